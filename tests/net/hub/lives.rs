//! Tests with two incarnations of one peer: only the later one counts, in whatever order they
//! arrive.

use super::*;
use crate::nodes::{self, Node, live};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::swarm::ConnectionId;
use ostraca::ddata::encoded::from_msgpack;
use ostraca::net::admission::{AdmissionState, LaneProofContext, ProverRole};
use ostraca::net::handshake::{decode_answer, encode};
use ostraca::net::identity::incarnation;
use ostraca::net::swarm::CountedSubstream;
use ostraca::net::wire::{Greeting, HandshakeAnswer, Hello, IncarnationNonce, NodeInfo, Nonce};

/// A lane that a peer has begun to open: it has received the greeting, and has not yet sent its
/// hello.
struct Begun {
    line: CountedSubstream,
    greeting: Greeting,
    generation: u64,
}

/// Receives one opening message.
async fn opening(line: &mut CountedSubstream) -> Vec<u8> {
    let mut len = [0; 4];
    line.read_exact(&mut len).await.expect("a length");
    let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
    line.read_exact(&mut bytes).await.expect("as many bytes as announced");
    bytes
}

async fn begin(peer: &Node, connection: ConnectionId, generation: u64) -> Begun {
    let mut line = peer.line(connection, TrafficClass::Control).await.expect("a substream");
    let greeting = from_msgpack(&opening(&mut line).await).expect("a greeting");
    Begun { line, greeting, generation }
}

fn life(peer: &Node, number: u8) -> ReplicaId {
    incarnation(&peer.peer(), &IncarnationNonce([number; 16]))
}

/// Sends the hello of that incarnation of the peer, and returns the answer.
async fn hello(begun: &mut Begun, peer: &Node, life: u8, host: &TestNode) -> HandshakeAnswer {
    let mut facts = peer.standing.facts.clone();
    live(&mut facts, &peer.peer(), life);
    hello_with(begun, peer, facts, host).await
}

/// Sends a hello with these facts, and returns the answer.
async fn hello_with(
    begun: &mut Begun,
    peer: &Node,
    facts: NodeInfo,
    host: &TestNode,
) -> HandshakeAnswer {
    let (nonce, generation) = (Nonce([7; 32]), begun.generation);
    let opened = LaneProofContext {
        opener: peer.peer(),
        acceptor: host.id().peer,
        opener_nonce: &nonce,
        acceptor_nonce: &begun.greeting.nonce,
        class: TrafficClass::Control,
        generation,
    };
    let proof = peer.standing.prove(ProverRole::Opener, &opened);
    let hello = Hello {
        facts,
        nonce,
        proof,
        to: None,
        class: TrafficClass::Control,
        generation,
        first_unacknowledged: 1,
    };
    begun.line.write_all(&encode(&hello).expect("encodes")).await.expect("written");
    begun.line.flush().await.expect("flushed");
    decode_answer(&soon(opening(&mut begun.line)).await).expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn late_hello_of_old_incarnation_keeps_the_current_one() {
    let host = TestNode::start(&NetConfig { secret: Some(nodes::secret(1)), ..quick() }).await;
    let address = host.net.listening()[0].clone();
    let mut peer = Node::start(nodes::config()).await;
    let (dead, living) = (1, 2);
    let old = peer.connect_at(host.id().peer, address.clone()).await;
    let mut late = begin(&peer, old, 1).await;
    // It restarts, and its new incarnation arrives before the last hello of the old one.
    let new = peer.connect_at(host.id().peer, address).await;
    let mut first = begin(&peer, new, 1).await;
    let welcome = hello(&mut first, &peer, living, &host).await;
    assert!(matches!(welcome, HandshakeAnswer::Welcome(_)), "{welcome:?}");
    let refused = hello(&mut late, &peer, dead, &host).await;
    assert_eq!(refused, HandshakeAnswer::Refused(LaneRefusal::Superseded));
    let known = host.net.peers().await;
    assert_eq!(
        known.iter().map(|known| known.incarnation).collect::<Vec<_>>(),
        [Some(life(&peer, living))]
    );
    let mut second = begin(&peer, new, 2).await;
    let welcome = hello(&mut second, &peer, living, &host).await;
    assert!(matches!(welcome, HandshakeAnswer::Welcome(_)), "it is the current one: {welcome:?}");
    assert!(host.net.lane(life(&peer, dead), TrafficClass::Control).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn later_incarnation_wins() {
    let mut host = TestNode::start(&NetConfig { secret: Some(nodes::secret(1)), ..quick() }).await;
    let address = host.net.listening()[0].clone();
    let mut peer = Node::start(nodes::config()).await;
    let (first, second) = (1, 2);
    for number in [first, second] {
        let connection = peer.connect_at(host.id().peer, address.clone()).await;
        let mut begun = begin(&peer, connection, 1).await;
        let welcome = hello(&mut begun, &peer, number, &host).await;
        assert!(matches!(welcome, HandshakeAnswer::Welcome(_)), "{number}: {welcome:?}");
    }
    let reborn = host.event("the first is over", |event| match event {
        NetEvent::NewIncarnation { old, node, .. } => Some((old.incarnation, node.incarnation)),
        _ => None,
    });
    assert_eq!(reborn.await, (life(&peer, first), life(&peer, second)));
    let connection = peer.connect_at(host.id().peer, address).await;
    let mut begun = begin(&peer, connection, 1).await;
    let refused = hello(&mut begun, &peer, first, &host).await;
    assert_eq!(
        refused,
        HandshakeAnswer::Refused(LaneRefusal::Quarantined),
        "a removed incarnation never returns"
    );
}

/// Facts of `peer` with the incarnation of another node, with its own nonce and with that node's.
fn claims(peer: &Node, of: &NodeInfo) -> [NodeInfo; 2] {
    let own = &peer.standing.facts;
    [
        NodeInfo { incarnation: of.incarnation, ..own.clone() },
        NodeInfo {
            incarnation: of.incarnation,
            incarnation_nonce: of.incarnation_nonce,
            ..own.clone()
        },
    ]
}

/// An admitted peer claims the incarnation of another node, before and after that node is known.
/// Messages to the incarnation must go only to its owner.
#[tokio::test(flavor = "multi_thread")]
async fn claim_of_another_incarnation_is_refused() {
    let mut host = TestNode::start(&NetConfig { secret: Some(nodes::secret(1)), ..quick() }).await;
    let address = host.net.listening()[0].clone();
    let (mut victim, mut mean) =
        (Node::start(nodes::config()).await, Node::start(nodes::config()).await);
    let of_victim = victim.standing.facts.clone();
    let node = NodeId { peer: victim.peer(), incarnation: of_victim.incarnation };
    let at_host = NodeInfo { incarnation: host.id().incarnation, ..of_victim.clone() };
    let mut generation = 0;
    for round in 0..2 {
        let connection = mean.connect_at(host.id().peer, address.clone()).await;
        for lie in claims(&mean, &of_victim).into_iter().chain(claims(&mean, &at_host)) {
            generation += 1;
            let mut begun = begin(&mean, connection, generation).await;
            let answer = hello_with(&mut begun, &mean, lie, &host).await;
            assert_eq!(answer, HandshakeAnswer::Refused(LaneRefusal::FalseIncarnation), "{round}");
        }
        // The claim must not exclude the owner, neither at first contact nor later.
        let connection = victim.connect_at(host.id().peer, address.clone()).await;
        let mut begun = begin(&victim, connection, generation).await;
        let answer = hello_with(&mut begun, &victim, of_victim.clone(), &host).await;
        assert!(matches!(answer, HandshakeAnswer::Welcome(_)), "{round}: {answer:?}");
    }
    assert_eq!(host.up().await, node);
    let lane = host.net.lane(node.incarnation, TrafficClass::User).expect("it is known");
    assert_eq!(lane.to(), node);
    eventually("each refusal is counted", async || host.net.stats().await.refused == 8).await;
    assert_eq!(host.net.peers().await.len(), 1, "the false claimant is not known");
}

/// The host has dialled, and gets a welcome from a peer that claims the incarnation of another
/// node.
#[tokio::test(flavor = "multi_thread")]
async fn welcome_with_another_incarnation_is_refused() {
    let mut host = TestNode::start(&NetConfig { secret: Some(nodes::secret(1)), ..quick() }).await;
    let victim = Node::start(nodes::config()).await;
    let claimed = victim.standing.facts.clone();
    host.net.keep(victim.peer(), vec![victim.address.clone()]);
    let node = NodeId { peer: victim.peer(), incarnation: claimed.incarnation };
    assert_eq!(host.up().await, node);
    let lies = |us: &mut AdmissionState| {
        us.facts.incarnation = claimed.incarnation;
        us.facts.incarnation_nonce = claimed.incarnation_nonce;
    };
    let mean = Node::start_as(nodes::config(), lies).await;
    host.net.keep(mean.peer(), vec![mean.address.clone()]);
    eventually("it is refused", async || host.net.stats().await.refused > 0).await;
    let known = host.net.peers().await;
    let mean = known.iter().find(|known| known.peer == mean.peer()).expect("it is kept");
    assert_eq!(mean.incarnation, None);
    assert_eq!(
        host.net.lane(node.incarnation, TrafficClass::User).expect("it is known").to(),
        node
    );
}

/// Membership learns of the next incarnation from other nodes, and keeps the link, before the
/// transport has noticed the end of the former one.
#[tokio::test(flavor = "multi_thread")]
async fn kept_link_survives_the_removal_of_an_incarnation() {
    let directory = tempfile::tempdir().expect("a directory");
    let keeps = NetConfig { data_dir: Some(directory.path().to_owned()), ..quick() };
    let (mut a, b, proxy) = behind_a_proxy(&keeps).await;
    let former = b.id();
    assert_eq!(a.up().await, former);
    a.net.release(former.peer);
    a.net.keep(former.peer, vec![proxy.address.clone()]);
    a.net.forget(former);
    drop(b);
    let b = TestNode::again(&NetConfig { advertise: vec![proxy.address.clone()], ..keeps }).await;
    proxy.lead_to(b.port());
    assert_eq!(a.up().await, b.id(), "only this side dials");
}

/// A late command about a forgotten peer must not re-create its state.
#[tokio::test(flavor = "multi_thread")]
async fn release_after_removal_does_not_restore_the_peer() {
    let (a, b) = pair(&quick()).await;
    a.net.release(b.id().peer);
    a.net.forget(b.id());
    a.net.release(b.id().peer);
    assert_eq!(a.net.peers().await, []);
}
