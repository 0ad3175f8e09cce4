//! Two lives of one peer: only the later one counts, whichever is heard of last.

use super::*;
use crate::nodes::{self, Node};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::swarm::ConnectionId;
use ostraca::ddata::encoded::from_msgpack;
use ostraca::net::admission::{Opening, Role};
use ostraca::net::handshake::{decode_answer, encode};
use ostraca::net::swarm::Line;
use ostraca::net::wire::{Answer, Greeting, Hello, Nonce};

/// A lane that a peer has begun to open: it was greeted, and says no Hello yet.
struct Begun {
    line: Line,
    greeting: Greeting,
    generation: u64,
}

/// Receives an opening message.
async fn opening(line: &mut Line) -> Vec<u8> {
    let mut len = [0; 4];
    line.read_exact(&mut len).await.expect("a length");
    let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
    line.read_exact(&mut bytes).await.expect("as long as it says");
    bytes
}

async fn begin(peer: &Node, connection: ConnectionId, generation: u64) -> Begun {
    let mut line = peer.line(connection, Class::Control).await.expect("a substream");
    let greeting = from_msgpack(&opening(&mut line).await).expect("a greeting");
    Begun { line, greeting, generation }
}

/// Says Hello as that life of the peer; the answer.
async fn hello(begun: &mut Begun, peer: &Node, life: ReplicaId, host: &Host) -> Answer {
    let (nonce, generation) = (Nonce([7; 32]), begun.generation);
    let opened = Opening {
        opener: peer.peer(),
        acceptor: host.id().peer,
        opener_nonce: &nonce,
        acceptor_nonce: &begun.greeting.nonce,
        class: Class::Control,
        generation,
    };
    let mut facts = peer.standing.facts.clone();
    facts.incarnation = life;
    let proof = peer.standing.prove(Role::Opener, &opened);
    let hello = Hello {
        facts,
        nonce,
        proof,
        to: None,
        class: Class::Control,
        generation,
        first_unacknowledged: 1,
    };
    begun.line.write_all(&encode(&hello).expect("encodes")).await.expect("written");
    begun.line.flush().await.expect("flushed");
    decode_answer(&nodes::soon("an answer", opening(&mut begun.line)).await).expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_hello_of_a_dead_life_does_not_turn_the_living_one_out() {
    let host = Host::start(&Config { secret: Some(nodes::secret(1)), ..quick() }).await;
    let address = host.net.listening()[0].clone();
    let mut peer = Node::start(nodes::config()).await;
    let (dead, living) = (ReplicaId::new(1), ReplicaId::new(2));
    let old = peer.connect_at(host.id().peer, address.clone()).await;
    let mut late = begin(&peer, old, 1).await;
    // It restarts; its new life is heard of before the last word of the old one.
    let new = peer.connect_at(host.id().peer, address).await;
    let mut first = begin(&peer, new, 1).await;
    let welcome = hello(&mut first, &peer, living, &host).await;
    assert!(matches!(welcome, Answer::Welcome(_)), "{welcome:?}");
    let refused = hello(&mut late, &peer, dead, &host).await;
    assert_eq!(refused, Answer::Refused(Refusal::Superseded));
    let known = host.net.peers().await;
    assert_eq!(known.iter().map(|peer| peer.incarnation).collect::<Vec<_>>(), [Some(living)]);
    let mut second = begin(&peer, new, 2).await;
    let welcome = hello(&mut second, &peer, living, &host).await;
    assert!(matches!(welcome, Answer::Welcome(_)), "it lives: {welcome:?}");
    assert!(host.net.lane(dead, Class::Control).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_that_comes_later_is_the_one_that_counts() {
    let mut host = Host::start(&Config { secret: Some(nodes::secret(1)), ..quick() }).await;
    let address = host.net.listening()[0].clone();
    let mut peer = Node::start(nodes::config()).await;
    let (first, second) = (ReplicaId::new(1), ReplicaId::new(2));
    for life in [first, second] {
        let connection = peer.connect_at(host.id().peer, address.clone()).await;
        let mut begun = begin(&peer, connection, 1).await;
        let welcome = hello(&mut begun, &peer, life, &host).await;
        assert!(matches!(welcome, Answer::Welcome(_)), "{life}: {welcome:?}");
    }
    let reborn = host.event("the first is over", |event| match event {
        Event::NewIncarnation { old, node, .. } => Some((old.incarnation, node.incarnation)),
        _ => None,
    });
    assert_eq!(reborn.await, (first, second));
    let connection = peer.connect_at(host.id().peer, address).await;
    let mut begun = begin(&peer, connection, 1).await;
    let refused = hello(&mut begun, &peer, first, &host).await;
    assert_eq!(refused, Answer::Refused(Refusal::Quarantined), "once dead, always dead");
}

/// Whoever it is that claims a life, messages for it go to whose it is, and only there.
#[tokio::test(flavor = "multi_thread")]
async fn who_claims_the_life_of_another_is_refused_and_gets_nothing_of_it() {
    let (claimed, own) = (ReplicaId::new(7), ReplicaId::new(8));
    let mut host = Host::start(&Config { secret: Some(nodes::secret(1)), ..quick() }).await;
    let address = host.net.listening()[0].clone();
    let mut victim = Node::start_as(nodes::config(), |us| us.facts.incarnation = claimed).await;
    let mut mean = Node::start_as(nodes::config(), |us| us.facts.incarnation = own).await;
    let connection = victim.connect_at(host.id().peer, address.clone()).await;
    let mut begun = begin(&victim, connection, 1).await;
    let welcome = hello(&mut begun, &victim, claimed, &host).await;
    assert!(matches!(welcome, Answer::Welcome(_)), "{welcome:?}");
    assert_eq!(host.up().await, NodeId { peer: victim.peer(), incarnation: claimed });
    // Neither at first contact, nor as a later life of one that is known.
    let connection = mean.connect_at(host.id().peer, address.clone()).await;
    let lives = [claimed, host.id().incarnation, own, claimed, host.id().incarnation, own];
    for (life, generation) in lives.into_iter().zip(1..) {
        let mut begun = begin(&mean, connection, generation).await;
        let answer = hello(&mut begun, &mean, life, &host).await;
        if life == own {
            assert!(matches!(answer, Answer::Welcome(_)), "{generation}: {answer:?}");
        } else {
            assert_eq!(answer, Answer::Refused(Refusal::Claimed), "{generation}");
        }
    }
    let lane = host.net.lane(claimed, Class::User).expect("it lives");
    assert_eq!(lane.to().peer, victim.peer());
    let connection = victim.connect_at(host.id().peer, address).await;
    let mut begun = begin(&victim, connection, 2).await;
    let welcome = hello(&mut begun, &victim, claimed, &host).await;
    assert!(matches!(welcome, Answer::Welcome(_)), "its life goes on: {welcome:?}");
    until("each refusal is counted", async || host.net.stats().await.refused == 4).await;
}

/// Who lies first keeps the owner out for as long as it is believed, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_life_that_another_has_claimed_is_its_owners_once_the_claim_is_over() {
    let (claimed, own) = (ReplicaId::new(7), ReplicaId::new(8));
    for is_removed in [false, true] {
        let mut host = Host::start(&Config { secret: Some(nodes::secret(1)), ..quick() }).await;
        let address = host.net.listening()[0].clone();
        let (mut victim, mut mean) =
            (Node::start(nodes::config()).await, Node::start(nodes::config()).await);
        let first = mean.connect_at(host.id().peer, address.clone()).await;
        let mut begun = begin(&mean, first, 1).await;
        let answer = hello(&mut begun, &mean, claimed, &host).await;
        assert!(matches!(answer, Answer::Welcome(_)), "nobody else was heard of: {answer:?}");
        let connection = victim.connect_at(host.id().peer, address.clone()).await;
        let mut begun = begin(&victim, connection, 1).await;
        let answer = hello(&mut begun, &victim, claimed, &host).await;
        assert_eq!(answer, Answer::Refused(Refusal::Claimed));
        let lie = NodeId { peer: mean.peer(), incarnation: claimed };
        if is_removed {
            host.net.forget(lie);
            let forgotten = host.event("it is removed", |event| match event {
                Event::Forgotten { node } => Some(node),
                _ => None,
            });
            assert_eq!(forgotten.await, lie);
        } else {
            let later = mean.connect_at(host.id().peer, address.clone()).await;
            let mut begun = begin(&mean, later, 1).await;
            let answer = hello(&mut begun, &mean, own, &host).await;
            assert!(matches!(answer, Answer::Welcome(_)), "another life: {answer:?}");
        }
        let connection = victim.connect_at(host.id().peer, address.clone()).await;
        let mut begun = begin(&victim, connection, 2).await;
        let answer = hello(&mut begun, &victim, claimed, &host).await;
        assert!(matches!(answer, Answer::Welcome(_)), "removed: {is_removed}: {answer:?}");
        let lane = host.net.lane(claimed, Class::User).expect("it lives");
        assert_eq!(lane.to().peer, victim.peer());
        let last = mean.connect_at(host.id().peer, address).await;
        let mut begun = begin(&mean, last, 2).await;
        let answer = hello(&mut begun, &mean, claimed, &host).await;
        assert_eq!(answer, Answer::Refused(Refusal::Quarantined));
        // What is over for the liar takes nothing from the owner.
        host.net.forget(lie);
        assert_eq!(host.net.peers().await.len(), if is_removed { 1 } else { 2 });
        assert!(host.net.lane(claimed, Class::User).is_some());
    }
}

/// The same where the host has dialled, and is welcomed by one that claims a life.
#[tokio::test(flavor = "multi_thread")]
async fn who_welcomes_in_the_name_of_another_is_not_let_in() {
    let mut host = Host::start(&Config { secret: Some(nodes::secret(1)), ..quick() }).await;
    let victim = Node::start(nodes::config()).await;
    let claimed = victim.standing.facts.incarnation;
    host.net.keep(victim.peer(), vec![victim.address.clone()]);
    assert_eq!(host.up().await, NodeId { peer: victim.peer(), incarnation: claimed });
    let mean = Node::start_as(nodes::config(), |us| us.facts.incarnation = claimed).await;
    host.net.keep(mean.peer(), vec![mean.address.clone()]);
    until("it is refused", async || host.net.stats().await.refused > 0).await;
    let known = host.net.peers().await;
    let mean = known.iter().find(|known| known.peer == mean.peer()).expect("it is kept");
    assert_eq!(mean.incarnation, None);
    assert_eq!(host.net.lane(claimed, Class::User).expect("it lives").to().peer, victim.peer());
}

/// Membership hears of the next life by others, and keeps its link, before the transport has seen
/// the end of the former one.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_kept_for_a_later_life_outlasts_the_former_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let keeps = Config { data_dir: Some(directory.path().to_owned()), ..quick() };
    let (mut a, b, proxy) = behind_a_proxy(&keeps).await;
    let former = b.id();
    assert_eq!(a.up().await, former);
    a.net.release(former.peer);
    a.net.keep(former.peer, vec![proxy.address.clone()]);
    a.net.forget(former);
    drop(b);
    let b = Host::again(&Config { advertise: vec![proxy.address.clone()], ..keeps }).await;
    proxy.lead_to(b.port());
    assert_eq!(a.up().await, b.id(), "only this side dials");
}

/// Nothing is remembered of a peer that was forgotten, whatever is still said of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_after_the_end_brings_nobody_back() {
    let (a, b) = pair(&quick()).await;
    a.net.release(b.id().peer);
    a.net.forget(b.id());
    a.net.release(b.id().peer);
    assert_eq!(a.net.peers().await, []);
}
