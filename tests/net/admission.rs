//! Tests of admission: the verdicts as tables, and each of them between two nodes on sockets.

use libp2p::PeerId;
use libp2p::swarm::{DialError, ListenError};
use ostraca::ddata::id::ReplicaId;
use ostraca::net::admission::{
    AdmissionState, ClientProofContext, ClientProverRole, LaneProofContext, NetConfigError,
    ProverRole, check,
};
use ostraca::net::config::NetConfig;
use ostraca::net::handshake::HandshakeError;
use ostraca::net::identity::Identity;
use ostraca::net::wire::{
    ClientHello, ClientWelcome, Greeting, Hello, LaneRefusal, NodeInfo, Nonce, Proof, Welcome,
};
use ostraca::net::{NodeId, TrafficClass};

use crate::nodes::{Node, Seen, config, live, only, secret, serves};

fn standing(change: impl FnOnce(&mut AdmissionState)) -> AdmissionState {
    let identity = Identity::load(None).expect("an identity");
    let mut standing = AdmissionState::new(&config(), &identity, &[]);
    change(&mut standing);
    standing
}

const THEIRS: Nonce = Nonce([1; 32]);
const OURS: Nonce = Nonce([2; 32]);

fn opening(opener: &AdmissionState, acceptor: &AdmissionState) -> LaneProofContext<'static> {
    LaneProofContext {
        opener: opener.peer,
        acceptor: acceptor.peer,
        opener_nonce: &THEIRS,
        acceptor_nonce: &OURS,
        class: TrafficClass::User,
        generation: 1,
    }
}

fn hello(opener: &AdmissionState, acceptor: &AdmissionState) -> Hello {
    Hello {
        facts: opener.facts.clone(),
        nonce: THEIRS,
        proof: opener.prove(ProverRole::Opener, &opening(opener, acceptor)),
        to: None,
        class: TrafficClass::User,
        generation: 1,
        first_unacknowledged: 1,
    }
}

/// Gives the facts an incarnation of a fixed peer; each number is a different one.
fn lives(them: &mut AdmissionState, number: u8) -> NodeId {
    them.peer = PeerId::from_bytes(&[0, 1, 9]).expect("an identity hash");
    live(&mut them.facts, &them.peer, number)
}

fn removed() -> NodeId {
    lives(&mut standing(|_| {}), 7)
}

fn is_removed(them: &mut AdmissionState) {
    lives(them, 7);
}

/// Verdict of `us` about an opener that differs by `them`, with a hello changed by `said`.
fn verdict(
    us: impl FnOnce(&mut AdmissionState),
    them: impl FnOnce(&mut AdmissionState),
    said: impl FnOnce(&mut Hello),
) -> Result<(), LaneRefusal> {
    let (us, them) = (standing(us), standing(them));
    let mut hello = hello(&them, &us);
    said(&mut hello);
    let opener = us.judge_hello(them.peer, &OURS, &hello)?;
    assert_eq!(opener.node, NodeId { peer: them.peer, incarnation: them.facts.incarnation });
    Ok(())
}

#[test]
fn node_with_same_cluster_and_secret_is_admitted() {
    assert_eq!(verdict(|_| {}, |_| {}, |_| {}), Ok(()));
    assert_eq!(verdict(|us| us.secret = None, |them| them.secret = None, |_| {}), Ok(()));
}

#[test]
fn wrong_missing_or_foreign_proof_is_refused() {
    let no = Err(LaneRefusal::Secret);
    assert_eq!(verdict(|_| {}, |them| them.secret = Some(secret(2)), |_| {}), no);
    assert_eq!(verdict(|_| {}, |them| them.secret = None, |_| {}), no);
    assert_eq!(verdict(|us| us.secret = None, |_| {}, |_| {}), no);
    assert_eq!(verdict(|_| {}, |_| {}, |said| said.proof = None), no);
    assert_eq!(verdict(|_| {}, |_| {}, |said| said.proof = Some(Proof([0; 32]))), no);
    assert_eq!(verdict(|_| {}, |_| {}, |said| said.nonce = Nonce([9; 32])), no);
    assert_eq!(verdict(|_| {}, |_| {}, |said| said.generation += 1), no);
    assert_eq!(verdict(|_| {}, |_| {}, |said| said.class = TrafficClass::Bulk), no);
}

#[test]
fn proof_is_bound_to_peer_and_greeting() {
    let (us, them) = (standing(|_| {}), standing(|_| {}));
    let hello = hello(&them, &us);
    assert!(us.judge_hello(them.peer, &OURS, &hello).is_ok());
    assert_eq!(us.judge_hello(PeerId::random(), &OURS, &hello), Err(LaneRefusal::Secret));
    assert_eq!(us.judge_hello(them.peer, &Nonce([3; 32]), &hello), Err(LaneRefusal::Secret));
    let third = standing(|_| {});
    assert_eq!(third.judge_hello(them.peer, &OURS, &hello), Err(LaneRefusal::Secret));
}

#[test]
fn unproven_peer_learns_no_name_or_incarnation() {
    let wrong_in_all = |them: &mut AdmissionState| {
        them.secret = Some(secret(2));
        them.facts.cluster = "another".to_owned();
    };
    let verdict = verdict(|_| {}, wrong_in_all, |said| said.to = Some(ReplicaId::new(1)));
    assert_eq!(verdict, Err(LaneRefusal::Secret));
}

#[test]
fn wrong_cluster_or_incarnation_is_refused() {
    let theirs = "ostraca".to_owned();
    let verdicts = [
        verdict(|_| {}, |them| them.facts.cluster = "another".to_owned(), |_| {}),
        verdict(
            |us| us.facts.incarnation = ReplicaId::new(6),
            |_| {},
            |said| {
                said.to = Some(ReplicaId::new(5));
            },
        ),
        verdict(|us| us.quarantined = only(removed()), is_removed, |_| {}),
        verdict(|us| us.allowed = only(PeerId::random()), |_| {}, |_| {}),
        verdict(|us| us.stopping = true, |_| {}, |_| {}),
    ];
    let refusals = [
        LaneRefusal::ClusterName { theirs },
        LaneRefusal::WrongIncarnation { current: ReplicaId::new(6) },
        LaneRefusal::Quarantined,
        LaneRefusal::NotAllowed,
        LaneRefusal::Stopping,
    ];
    assert_eq!(verdicts, refusals.map(Err));
}

/// It shares only the incarnation with the removed node, not the peer id.
#[test]
fn quarantine_applies_to_its_own_peer_only() {
    let them = standing(|_| {});
    let same_number = NodeId { incarnation: them.facts.incarnation, ..removed() };
    let us = standing(|us| us.quarantined = only(same_number));
    assert!(us.judge_hello(them.peer, &OURS, &hello(&them, &us)).is_ok());
}

/// Refused are a node that claims another's incarnation, with that node's nonce or its own, and a
/// node without a nonce.
#[test]
fn incarnation_that_is_not_the_peers_own_is_refused() {
    let victim = standing(|_| {});
    let (claimed, nonce) = (victim.facts.incarnation, victim.facts.incarnation_nonce);
    let lies: [&dyn Fn(&mut NodeInfo); 4] = [
        &|facts| facts.incarnation = claimed,
        &|facts| (facts.incarnation, facts.incarnation_nonce) = (claimed, nonce),
        &|facts| facts.incarnation_nonce = nonce,
        &|facts| facts.incarnation_nonce = None,
    ];
    for lie in lies {
        let lies = |them: &mut AdmissionState| lie(&mut them.facts);
        assert_eq!(verdict(|_| {}, lies, |_| {}), Err(LaneRefusal::FalseIncarnation));
        assert_eq!(opinion(lies, |_| {}, |_| {}), Err(LaneRefusal::FalseIncarnation));
        let stranger = |them: &mut AdmissionState| {
            lies(them);
            them.secret = Some(secret(2));
        };
        assert_eq!(
            verdict(|_| {}, stranger, |_| {}),
            Err(LaneRefusal::Secret),
            "proofs come first"
        );
    }
    assert_eq!(verdict(|_| {}, |them| _ = lives(them, 5), |_| {}), Ok(()));
}

#[test]
fn unsupported_version_is_refused_first() {
    for version in [0, 2, u16::MAX] {
        let verdict = verdict(
            |_| {},
            |_| {},
            |said| {
                said.facts.version = version;
                said.proof = None;
            },
        );
        assert_eq!(verdict, Err(LaneRefusal::Version { theirs: 1 }));
    }
}

/// Opinion of an opener about the welcome of an acceptor that differs by `them`.
fn opinion(
    them: impl FnOnce(&mut AdmissionState),
    asked: impl FnOnce(&mut Hello),
    said: impl FnOnce(&mut Welcome),
) -> Result<(), LaneRefusal> {
    let us = standing(|us| us.quarantined = only(removed()));
    let them = standing(them);
    let mut hello = hello(&us, &them);
    asked(&mut hello);
    let mut welcome = Welcome {
        facts: them.facts.clone(),
        proof: them.prove(ProverRole::Acceptor, &opening(&us, &them)),
        accepted: 0,
    };
    said(&mut welcome);
    let greeting = Greeting { version: 1, nonce: OURS };
    us.judge_welcome(them.peer, &greeting, &hello, &welcome).map(|_| ())
}

#[test]
fn an_acceptor_is_judged_like_an_opener() {
    assert_eq!(opinion(|_| {}, |_| {}, |_| {}), Ok(()));
    let verdicts = [
        opinion(|them| them.secret = Some(secret(2)), |_| {}, |_| {}),
        opinion(|_| {}, |_| {}, |said| said.proof = None),
        opinion(|_| {}, |_| {}, |said| said.facts.version = 9),
        opinion(|them| them.facts.cluster = "another".to_owned(), |_| {}, |_| {}),
        opinion(is_removed, |_| {}, |_| {}),
        opinion(|them| _ = lives(them, 6), |asked| asked.to = Some(ReplicaId::new(5)), |_| {}),
        opinion(|_| {}, |asked| asked.first_unacknowledged = 10, |said| said.accepted = 8),
    ];
    let refusals = [
        LaneRefusal::Secret,
        LaneRefusal::Secret,
        LaneRefusal::Version { theirs: 1 },
        LaneRefusal::ClusterName { theirs: "ostraca".to_owned() },
        LaneRefusal::Quarantined,
        LaneRefusal::WrongIncarnation { current: lives(&mut standing(|_| {}), 6).incarnation },
        LaneRefusal::Gap { accepted: 8, first: 10 },
    ];
    assert_eq!(verdicts, refusals.map(Err));
    let next = opinion(|_| {}, |asked| asked.first_unacknowledged = 10, |said| said.accepted = 9);
    assert_eq!(next, Ok(()));
}

#[test]
fn an_acceptor_cannot_send_the_openers_own_proof_back() {
    let (us, them) = (standing(|_| {}), standing(|_| {}));
    let hello = hello(&us, &them);
    let welcome = Welcome { facts: them.facts.clone(), proof: hello.proof, accepted: 0 };
    let greeting = Greeting { version: 1, nonce: OURS };
    let opinion = us.judge_welcome(them.peer, &greeting, &hello, &welcome);
    assert_eq!(opinion, Err(LaneRefusal::Secret));
}

fn call(client: &AdmissionState, node: &AdmissionState) -> ClientProofContext<'static> {
    ClientProofContext {
        client: client.peer,
        node: node.peer,
        client_nonce: &THEIRS,
        node_nonce: &OURS,
    }
}

fn client_hello(client: &AdmissionState, node: &AdmissionState) -> ClientHello {
    ClientHello {
        version: 1,
        cluster: client.facts.cluster.clone(),
        nonce: THEIRS,
        proof: client.prove_call(ClientProverRole::Client, &call(client, node)),
    }
}

/// Verdict of `us` about a client that differs by `them`, with a hello changed by `said`.
fn client_verdict(
    us: impl FnOnce(&mut AdmissionState),
    them: impl FnOnce(&mut AdmissionState),
    said: impl FnOnce(&mut ClientHello),
) -> Result<(), LaneRefusal> {
    let (us, them) = (standing(us), standing(them));
    let mut hello = client_hello(&them, &us);
    said(&mut hello);
    us.judge_client(them.peer, &OURS, &hello).map(drop)
}

#[test]
fn client_is_judged_like_a_node() {
    assert_eq!(client_verdict(|_| {}, |_| {}, |_| {}), Ok(()));
    assert_eq!(client_verdict(|us| us.secret = None, |them| them.secret = None, |_| {}), Ok(()));
    let other_name = |them: &mut AdmissionState| them.facts.cluster = "another".to_owned();
    let verdicts = [
        client_verdict(|_| {}, |them| them.secret = Some(secret(2)), |_| {}),
        client_verdict(|_| {}, |them| them.secret = None, |_| {}),
        client_verdict(|us| us.secret = None, |_| {}, |_| {}),
        client_verdict(|_| {}, |_| {}, |said| said.proof = None),
        client_verdict(|_| {}, |_| {}, |said| said.nonce = Nonce([9; 32])),
        client_verdict(|_| {}, |_| {}, |said| said.version = 0),
        client_verdict(|_| {}, |_| {}, |said| (said.version, said.proof) = (2, None)),
        client_verdict(|_| {}, other_name, |_| {}),
        client_verdict(|_| {}, other_name, |said| said.proof = None),
        client_verdict(|us| us.allowed = only(PeerId::random()), |_| {}, |_| {}),
        client_verdict(|us| us.stopping = true, |_| {}, |_| {}),
    ];
    let refusals = [
        LaneRefusal::Secret,
        LaneRefusal::Secret,
        LaneRefusal::Secret,
        LaneRefusal::Secret,
        LaneRefusal::Secret,
        LaneRefusal::Version { theirs: 1 },
        LaneRefusal::Version { theirs: 1 },
        LaneRefusal::ClusterName { theirs: "ostraca".to_owned() },
        LaneRefusal::Secret,
        LaneRefusal::NotAllowed,
        LaneRefusal::Stopping,
    ];
    assert_eq!(verdicts, refusals.map(Err));
}

#[test]
fn client_judges_the_welcome_of_a_node() {
    let opinion = |them: fn(&mut AdmissionState), said: fn(&mut ClientWelcome)| {
        let (us, them) = (standing(|_| {}), standing(them));
        let hello = client_hello(&us, &them);
        let mut welcome = ClientWelcome {
            version: 1,
            cluster: them.facts.cluster.clone(),
            proof: them.prove_call(ClientProverRole::Node, &call(&us, &them)),
        };
        said(&mut welcome);
        let greeting = Greeting { version: 1, nonce: OURS };
        us.judge_client_welcome(them.peer, &greeting, &hello, &welcome)
    };
    assert_eq!(opinion(|_| {}, |_| {}), Ok(()));
    let verdicts = [
        opinion(|them| them.secret = Some(secret(2)), |_| {}),
        opinion(|_| {}, |said| said.proof = None),
        opinion(|_| {}, |said| said.version = 9),
        opinion(|them| them.facts.cluster = "another".to_owned(), |_| {}),
    ];
    let refusals = [
        LaneRefusal::Secret,
        LaneRefusal::Secret,
        LaneRefusal::Version { theirs: 1 },
        LaneRefusal::ClusterName { theirs: "ostraca".to_owned() },
    ];
    assert_eq!(verdicts, refusals.map(Err));
}

#[test]
fn proof_of_one_role_fails_for_every_other_role() {
    let (us, them) = (standing(|_| {}), standing(|_| {}));
    let opening = opening(&them, &us);
    let call = call(&them, &us);
    let proofs = [
        us.prove(ProverRole::Opener, &opening),
        us.prove(ProverRole::Acceptor, &opening),
        us.prove_call(ClientProverRole::Client, &call),
        us.prove_call(ClientProverRole::Node, &call),
    ];
    for (nth, proof) in proofs.iter().enumerate() {
        assert!(proof.is_some() && !proofs[..nth].contains(proof), "{nth}");
        let lane = Hello { proof: *proof, ..hello(&them, &us) };
        assert_eq!(us.judge_hello(them.peer, &OURS, &lane).is_ok(), nth == 0, "{nth}");
        let client = ClientHello { proof: *proof, ..client_hello(&them, &us) };
        assert_eq!(us.judge_client(them.peer, &OURS, &client).is_ok(), nth == 2, "{nth}");
        let greeting = Greeting { version: 1, nonce: OURS };
        let welcome = ClientWelcome { version: 1, cluster: "ostraca".to_owned(), proof: *proof };
        let hello = client_hello(&them, &us);
        let opinion = them.judge_client_welcome(us.peer, &greeting, &hello, &welcome);
        assert_eq!(opinion.is_ok(), nth == 3, "{nth}");
    }
}

#[test]
fn client_proof_is_bound_to_both_peers_and_greeting() {
    let (us, them) = (standing(|_| {}), standing(|_| {}));
    let hello = client_hello(&them, &us);
    assert!(us.judge_client(them.peer, &OURS, &hello).is_ok());
    let no = Err(LaneRefusal::Secret);
    assert_eq!(us.judge_client(PeerId::random(), &OURS, &hello).map(drop), no);
    assert_eq!(us.judge_client(them.peer, &Nonce([3; 32]), &hello).map(drop), no);
    assert_eq!(standing(|_| {}).judge_client(them.peer, &OURS, &hello).map(drop), no);
}

#[test]
fn listening_beyond_loopback_needs_protection() {
    let on = |listen: &str| NetConfig {
        listen: vec![
            "/ip4/127.0.0.1/tcp/0".parse().expect("valid"),
            listen.parse().expect("valid"),
        ],
        ..NetConfig::default()
    };
    for open in ["/ip4/0.0.0.0/tcp/7001", "/ip6/::/tcp/7001", "/ip4/192.168.1.1/tcp/7001"] {
        let listen = open.parse().expect("valid");
        let error = check(&on(open)).expect_err("any peer could join");
        assert_eq!(error, NetConfigError::Open { listen });
        for how in [open, "cluster-secret-file", "ostraca secret", "allowed-peers", "insecure"] {
            assert!(error.to_string().contains(how), "{how} in {error}");
        }
        assert_eq!(check(&NetConfig { secret: Some(secret(1)), ..on(open) }), Ok(()));
        assert_eq!(check(&NetConfig { allowed_peers: vec![PeerId::random()], ..on(open) }), Ok(()));
        assert_eq!(check(&NetConfig { insecure: true, ..on(open) }), Ok(()));
    }
    assert_eq!(check(&on("/ip6/::1/tcp/7001")), Ok(()));
    assert_eq!(check(&NetConfig::default()), Ok(()));
}

#[test]
fn settings_that_contradict_themselves_are_refused() {
    let private = NetConfig { private_network: true, ..NetConfig::default() };
    assert_eq!(check(&private), Err(NetConfigError::PrivateWithoutSecret));
    for len in [0, 129] {
        let named = NetConfig { cluster_name: "x".repeat(len), ..NetConfig::default() };
        assert_eq!(check(&named), Err(NetConfigError::ClusterName { len }));
    }
}

/// Dials from one node to another, opens a lane, and returns the results of both ends.
async fn both_words(
    opener: &mut Node,
    acceptor: &mut Node,
    to: Option<ReplicaId>,
) -> (Result<NodeId, HandshakeError>, Result<NodeId, HandshakeError>) {
    let id = opener.connect(acceptor).await;
    let opened = opener.open(id, acceptor.peer(), |wanted| wanted.to = to).await;
    (opened.map(|(opened, _)| opened.node), acceptor.asked().await)
}

/// Asserts that both ends report the same refusal, and that the acceptor still serves other nodes.
async fn refused_everywhere(
    mut opener: Node,
    to: Option<ReplicaId>,
    mut us: Node,
    why: LaneRefusal,
) {
    let (theirs, ours) = both_words(&mut opener, &mut us, to).await;
    assert!(matches!(&theirs, Err(HandshakeError::Refused(said)) if *said == why), "{theirs:?}");
    assert!(matches!(&ours, Err(HandshakeError::Unacceptable(said)) if *said == why), "{ours:?}");
    serves(&us).await;
}

#[tokio::test]
async fn two_nodes_of_one_cluster_open_a_lane_and_know_each_other() {
    let (mut one, mut two) = (Node::start(config()).await, Node::start(config()).await);
    let to = Some(two.standing.facts.incarnation);
    let (theirs, ours) = both_words(&mut one, &mut two, to).await;
    assert_eq!(theirs.expect("welcome").peer, two.peer());
    assert_eq!(ours.expect("welcome").incarnation, one.standing.facts.incarnation);
}

#[tokio::test]
async fn a_private_network_carries_lanes_too() {
    let private = NetConfig { private_network: true, ..config() };
    let (mut one, mut two) = (Node::start(private.clone()).await, Node::start(private).await);
    let (theirs, ours) = both_words(&mut one, &mut two, None).await;
    assert!(theirs.is_ok() && ours.is_ok(), "{theirs:?} {ours:?}");
}

#[tokio::test]
async fn a_wrong_secret_fails_in_the_noise_handshake() {
    let mut us = Node::start(config()).await;
    for other in [Some(secret(2)), None] {
        for private_network in [false, other.is_some()] {
            let config = NetConfig { secret: other.clone(), private_network, ..config() };
            let mut stranger = Node::start(config).await;
            stranger.dial(&us);
            let failed = stranger.next("the end of the dial", |seen| match seen {
                Seen::DialFailed(error) => Some(error),
                Seen::Established(..) => panic!("a stranger was admitted"),
                _ => None,
            });
            failed.await;
            let ours = us.next("the end on this side", |seen| match seen {
                Seen::InboundFailed(error) => Some(error),
                Seen::Established(..) => panic!("a stranger was admitted"),
                _ => None,
            });
            assert!(matches!(ours.await, ListenError::Transport(_)));
            stranger.stop().await;
        }
    }
    serves(&us).await;
}

#[tokio::test]
async fn the_same_prologue_with_a_wrong_proof_is_refused() {
    let us = Node::start(config()).await;
    let wrong = |them: &mut AdmissionState| them.secret = Some(secret(2));
    let stranger = Node::start_as(config(), wrong).await;
    refused_everywhere(stranger, None, us, LaneRefusal::Secret).await;
}

#[tokio::test]
async fn another_cluster_name_is_refused() {
    let us = Node::start(config()).await;
    let other = NetConfig { cluster_name: "another".to_owned(), ..config() };
    let why = LaneRefusal::ClusterName { theirs: "ostraca".to_owned() };
    refused_everywhere(Node::start(other).await, None, us, why).await;
}

#[tokio::test]
async fn lane_to_an_earlier_incarnation_is_refused() {
    let us = Node::start(config()).await;
    let current = us.standing.facts.incarnation;
    let earlier = Some(ReplicaId::new(current.get() ^ 1));
    let opener = Node::start(config()).await;
    refused_everywhere(opener, earlier, us, LaneRefusal::WrongIncarnation { current }).await;
}

#[tokio::test]
async fn a_quarantined_incarnation_is_refused() {
    let opener = Node::start(config()).await;
    let incarnation = opener.standing.facts.incarnation;
    let removed = only(NodeId { peer: opener.peer(), incarnation });
    let us = Node::start_as(config(), |us| us.quarantined = removed).await;
    refused_everywhere(opener, None, us, LaneRefusal::Quarantined).await;
}

#[tokio::test]
async fn unlisted_peer_is_cut_before_any_protocol() {
    let mut stranger = Node::start(config()).await;
    let mut friend = Node::start(config()).await;
    let listed = NetConfig { allowed_peers: vec![friend.peer()], ..config() };
    let us = Node::start(listed).await;
    let id = stranger.connect(&us).await; // its side of the handshake finishes first
    let closed = stranger.next("the end", |seen| match seen {
        Seen::Closed(closed) => Some(closed),
        _ => None,
    });
    assert_eq!(closed.await, id);
    assert_eq!(us.count().await.0.not_allowed, 1);
    let id = friend.connect(&us).await;
    friend.open(id, us.peer(), |_| {}).await.expect("it serves the list");
}

#[tokio::test]
async fn allow_list_applies_to_dialled_peers() {
    let us = Node::start(config()).await;
    let listed = NetConfig { allowed_peers: vec![PeerId::random()], ..config() };
    let mut picky = Node::start(listed).await;
    picky.dial(&us);
    let failed = picky.next("a refusal", |seen| match seen {
        Seen::DialFailed(error) => Some(error),
        Seen::Established(..) => panic!("not in the list"),
        _ => None,
    });
    assert!(matches!(failed.await, DialError::Denied { .. }));
}
