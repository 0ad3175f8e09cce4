//! Tests of clients: admitted like nodes, unknown to membership, and without effect on lanes.

use super::*;
use crate::nodes::{self, Node, one_secret, secret};
use libp2p::swarm::{Swarm, SwarmEvent, dummy};
use ostraca::net::CLIENT_PROTOCOL;
use ostraca::net::client::{ClientStream, ConnectError, connect, connect_as};
use ostraca::net::handshake::HandshakeError;
use ostraca::net::secrets::{Keyring, Secrets};
use ostraca::net::transport::transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn closed_to_strangers() -> NetConfig {
    NetConfig { secret: Some(secret(1)), ..quick() }
}

/// Echoes the data of every client until the client shuts down its half.
fn echoes(host: &TestNode) -> tokio::task::JoinHandle<()> {
    let mut clients = host.net.clients();
    tokio::spawn(async move {
        while let Some(client) = clients.recv().await {
            tokio::spawn(async move {
                let (mut words, mut back) = tokio::io::split(client);
                if tokio::io::copy(&mut words, &mut back).await.is_ok() {
                    let _ = back.shutdown().await; // an error: the client has gone
                }
            });
        }
    })
}

async fn is_echoed(client: &mut ClientStream, word: &[u8]) {
    let mut heard = vec![0; word.len()];
    client.write_all(word).await.expect("written");
    client.flush().await.expect("sent");
    soon(client.read_exact(&mut heard)).await.expect("it answers");
    assert_eq!(heard, word);
}

async fn refused(config: &NetConfig, address: &Multiaddr) -> ConnectError {
    let connected = soon(connect(config, address, SOON)).await;
    connected.expect_err("it is refused")
}

#[tokio::test(flavor = "multi_thread")]
async fn client_with_same_settings_talks_both_ways() {
    let private = NetConfig { private_network: true, ..closed_to_strangers() };
    for config in [quick(), closed_to_strangers(), private] {
        let host = TestNode::start(&config).await;
        let echoing = echoes(&host);
        let named = format!("/dns4/localhost/tcp/{}", host.port()).parse().expect("valid");
        for address in [&host.net.listening()[0], &host.address(), &named] {
            let mut client = connect(&config, address, SOON).await.expect("it is admitted");
            assert_eq!(client.peer(), host.id().peer);
            is_echoed(&mut client, b"word").await;
            is_echoed(&mut client, &[7; 100_000]).await;
            client.write_all(b"last").await.expect("written");
            client.shutdown().await.expect("shut down");
            let mut rest = Vec::new();
            soon(client.read_to_end(&mut rest)).await.expect("a clean end");
            assert_eq!(rest, b"last");
        }
        eventually("all places are free again", async || host.net.stats().await.clients == 0).await;
        echoing.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_never_disturbs_lanes_or_appears_as_a_peer() {
    let config = closed_to_strangers();
    let (mut a, b) = pair(&config).await;
    let echoing = echoes(&a);
    let peers = |stats: &ostraca::net::handle::NetStats| -> Vec<_> {
        stats.peers.iter().map(|peer| (peer.peer, peer.connections)).collect()
    };
    let before = peers(&a.net.stats().await);
    let mut clients = Vec::new();
    for n in 0..3_000_u64 {
        a.send_waiting(b.id().incarnation, TrafficClass::User, &n.to_be_bytes()).await;
        b.send_waiting(a.id().incarnation, TrafficClass::User, &n.to_be_bytes()).await;
        if n % 1_000 == 0 {
            let client = connect(&config, &a.address(), SOON).await.expect("it is admitted");
            clients.push(client);
        }
        if n % 100 == 0 {
            for client in &mut clients {
                is_echoed(client, &n.to_be_bytes()).await;
            }
        }
    }
    receives_in_order(&b, 3_000).await;
    receives_in_order(&a, 3_000).await;
    let stats = a.net.stats().await;
    assert_eq!((stats.clients, peers(&stats)), (3, before));
    assert_eq!((stats.refused, stats.violations, stats.given_up), (0, 0, 0));
    drop(clients);
    eventually("they are gone", async || a.net.stats().await.clients == 0).await;
    b.net.stop().await;
    // Events arrive in order: the clients have caused none before this one.
    let next = a.event("anything", Some).await;
    assert!(matches!(&next, NetEvent::Closed { node } if *node == b.id()), "{next:?}");
    echoing.abort();
}

/// Secrets of the cluster, and of its clients.
fn secrets(cluster: &[u8], client: &[u8]) -> Option<Secrets> {
    let all = |bytes: &[u8]| bytes.iter().copied().map(one_secret).collect();
    Some(Secrets::new(all(cluster), all(client)))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_admitted_with_either_secret() {
    let host = TestNode::start(&NetConfig { secret: secrets(&[1, 2], &[8, 9]), ..quick() }).await;
    let echoing = echoes(&host);
    // On a node's host a client finds both secrets in the settings.
    let tools = [(&[1][..], &[][..]), (&[2], &[]), (&[], &[8]), (&[], &[9]), (&[1], &[9])];
    for (cluster, client) in tools {
        let config = NetConfig { secret: secrets(cluster, client), ..quick() };
        let called = connect(&config, &host.address(), SOON).await;
        is_echoed(&mut called.expect("it is admitted"), b"word").await;
    }
    for (cluster, client) in [(&[8][..], &[][..]), (&[], &[1]), (&[], &[7])] {
        let config = NetConfig { secret: secrets(cluster, client), ..quick() };
        let error = refused(&config, &host.address()).await;
        assert!(
            matches!(error, ConnectError::Handshake { .. } | ConnectError::Closed { .. }),
            "{error:?}"
        );
    }
    echoing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn client_of_other_cluster_or_secret_learns_the_cause() {
    let config = closed_to_strangers();
    let host = TestNode::start(&config).await;
    let echoing = echoes(&host);
    for stranger in [None, Some(secret(2))] {
        let wrong = NetConfig { secret: stranger, ..config.clone() };
        let error = refused(&wrong, &host.address()).await;
        assert!(
            matches!(error, ConnectError::Handshake { .. } | ConnectError::Closed { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("the cluster-secret-file of that node"), "{error}");
    }
    let private = NetConfig { private_network: true, ..config.clone() };
    let error = connect(&private, &host.address(), Duration::from_secs(5)).await.err();
    let error = error.expect("only one side is private");
    assert!(
        matches!(
            error,
            ConnectError::Handshake { .. }
                | ConnectError::Closed { .. }
                | ConnectError::Silent { .. }
                | ConnectError::NoAnswer { .. }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("net.private-network"), "{error}");
    let other = NetConfig { cluster_name: "another".to_owned(), ..config.clone() };
    let error = refused(&other, &host.address()).await;
    let why = LaneRefusal::ClusterName { theirs: "ostraca".to_owned() };
    assert!(
        matches!(&error, ConnectError::Refused { refusal, .. } if *refusal == why),
        "{error:?}"
    );
    assert!(error.to_string().contains("set cluster-name to that"), "{error}");
    eventually("it is counted", async || host.net.stats().await.refused == 1).await;
    connect(&config, &host.address(), SOON).await.expect("it serves its own");
    echoing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn allow_list_applies_to_clients_on_both_sides() {
    let friend = Identity::load(None).expect("an identity");
    let listed = NetConfig { allowed_peers: vec![friend.node_id().peer], ..closed_to_strangers() };
    let host = TestNode::start(&listed).await;
    let echoing = echoes(&host);
    let config = closed_to_strangers();
    let error = refused(&config, &host.address()).await;
    assert!(matches!(error, ConnectError::Cut { .. }), "{error:?}");
    assert!(error.to_string().contains("net.allowed-peers"), "{error}");
    assert_eq!(host.net.stats().await.exceeded.not_allowed, 1);
    let called = connect_as(&friend, &config, &host.address(), SOON).await;
    is_echoed(&mut called.expect("it is on the list"), b"word").await;
    let picky = connect_as(&friend, &listed, &host.address(), SOON).await;
    let error = picky.expect_err("the node is not on the client's list");
    assert!(matches!(error, ConnectError::NotInOwnList { .. }), "{error:?}");
    echoing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_room_or_taker_refuses_clients() {
    let limits = NetLimits { clients: 2, ..quick().limits };
    let config = NetConfig { limits, ..closed_to_strangers() };
    let host = TestNode::start(&config).await;
    let error = refused(&config, &host.address()).await;
    let is = |error: &ConnectError, why: &LaneRefusal| {
        let said = matches!(error, ConnectError::Refused { refusal, .. } if refusal == why);
        assert!(said, "{error:?}");
    };
    is(&error, &LaneRefusal::Unserved);
    let mut clients = host.net.clients(); // the clients wait in the channel
    let first = connect(&config, &host.address(), SOON).await.expect("there is room");
    let _second = connect(&config, &host.address(), SOON).await.expect("there is room");
    let full = LaneRefusal::Limit { what: "net.limits.clients".to_owned() };
    let error = refused(&config, &host.address()).await;
    is(&error, &full);
    assert!(error.to_string().contains("try again later, or raise it there"), "{error}");
    let served = soon(clients.recv()).await.expect("it was delivered");
    is(&refused(&config, &host.address()).await, &full); // taken from the channel, but still open
    drop((first, served));
    eventually("its place is free", async || host.net.stats().await.clients == 1).await;
    connect(&config, &host.address(), SOON).await.expect("there is room again");
    drop(clients);
    is(&refused(&config, &host.address()).await, &LaneRefusal::Unserved);
}

#[tokio::test(flavor = "multi_thread")]
async fn client_error_names_missing_and_unexpected_nodes() {
    let config = closed_to_strangers();
    let host = TestNode::start(&config).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = closed.local_addr().expect("bound").port();
    drop(closed);
    let address = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("valid");
    let error = refused(&config, &address).await;
    assert!(matches!(error, ConnectError::NobodyListens { .. }), "{error:?}");
    assert!(error.to_string().contains("is the node running"), "{error}");

    let other = libp2p::PeerId::random();
    let address = host.net.listening()[0].clone().with_p2p(other).expect("it names none");
    let error = refused(&config, &address).await;
    let found = host.id().peer;
    assert!(matches!(error, ConnectError::AnotherPeer { found: peer, .. } if peer == found));

    let address: Multiaddr = "/ip4/127.0.0.1/udp/1/quic-v1".parse().expect("valid");
    let error = refused(&config, &address).await;
    assert!(matches!(error, ConnectError::Unresolved(_)), "{error:?}");

    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let address = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("valid");
    let called = connect(&config, &address, Duration::from_millis(200)).await;
    let error = called.expect_err("nothing answers");
    assert!(matches!(error, ConnectError::Silent { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_distinguishes_missing_protocol_from_refusal() {
    let config = closed_to_strangers();
    let identity = Identity::load(None).expect("an identity");
    let keyring = Keyring::new(config.secret.clone());
    let stack = transport(&config, &keyring, identity.keypair()).expect("a key that signs");
    let settings = libp2p::swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(Duration::from_secs(60));
    let peer = identity.node_id().peer;
    let mut older = Swarm::new(stack, dummy::Behaviour, peer, settings);
    older.listen_on(config.listen[0].clone()).expect("a port");
    let (tell, address) = tokio::sync::oneshot::channel();
    let driving = tokio::spawn(async move {
        let mut tell = Some(tell);
        loop {
            let event = futures::StreamExt::select_next_some(&mut older).await;
            if let (SwarmEvent::NewListenAddr { address, .. }, Some(tell)) = (event, tell.take()) {
                let _ = tell.send(address); // an error: the test has ended
            }
        }
    });
    let error = refused(&config, &soon(address).await.expect("it listens")).await;
    assert!(matches!(error, ConnectError::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains(CLIENT_PROTOCOL), "{error}");
    driving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn client_with_a_nodes_key_is_refused_and_lanes_continue() {
    let config = closed_to_strangers();
    let (a, b) = pair(&config).await;
    let echoing = echoes(&a);
    for n in 0..100_u64 {
        a.send(b.id().incarnation, TrafficClass::User, &n.to_be_bytes());
    }
    let own = connect_as(&a._identity, &config, &a.address(), SOON).await;
    let error = own.expect_err("a node must not call itself");
    assert!(matches!(error, ConnectError::OwnIdentity { .. }), "{error:?}");
    let twin = connect_as(&b._identity, &config, &a.address(), SOON).await;
    let error = twin.expect_err("a node has this key");
    assert!(
        matches!(&error, ConnectError::Refused { refusal: LaneRefusal::Twin, .. }),
        "{error:?}"
    );
    for n in 100..200_u64 {
        a.send(b.id().incarnation, TrafficClass::User, &n.to_be_bytes());
    }
    receives_in_order(&b, 200).await;
    assert_eq!(a.net.stats().await.given_up, 0);
    echoing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_are_bounded_and_time_out() {
    let within = Duration::from_secs(2);
    let limits = NetLimits { handshakes: 4, handshake_within: within, ..quick().limits };
    let config = NetConfig { limits, ..closed_to_strangers() };
    let host = TestNode::start(&config).await;
    let echoing = echoes(&host);
    let (mut crowd, mut strangers) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut stranger = Node::start(nodes::config()).await;
        let address = host.net.listening()[0].clone();
        let connection = stranger.connect_at(host.id().peer, address).await;
        for _ in 0..4 {
            let mut line = stranger.call(connection).await.expect("a substream");
            let _ = futures::AsyncWriteExt::flush(&mut line).await; // it may already be reset
            strangers.push(line);
        }
        crowd.push(stranger); // with its connection
    }
    eventually("the others are refused", async || {
        let stats = host.net.stats().await;
        stats.exceeded.clients >= 8 && stats.clients == 0
    })
    .await;
    eventually("there is room when their time is over", async || {
        connect(&config, &host.address(), SOON).await.is_ok()
    })
    .await;
    drop((crowd, strangers));
    echoing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn client_and_node_protocols_do_not_mix() {
    let host = TestNode::start(&closed_to_strangers()).await;
    let echoing = echoes(&host);
    let mut peer = Node::start(nodes::config()).await;
    let connection = peer.connect_at(host.id().peer, host.net.listening()[0].clone()).await;
    let (to, within) = (host.id().peer, SOON);
    let mut line = peer.call(connection).await.expect("a substream");
    let wanted = ostraca::net::handshake::LaneParameters {
        peer: to,
        to: None,
        class: TrafficClass::User,
        generation: 1,
        first_unacknowledged: 1,
    };
    let opened = ostraca::net::handshake::open(&mut line, &peer.standing, wanted, within).await;
    assert!(matches!(opened, Err(HandshakeError::Io(_))), "{opened:?}");
    let mut line = peer.line(connection, TrafficClass::User).await.expect("a substream");
    let called = ostraca::net::handshake::call(&mut line, &peer.standing, to, within).await;
    assert!(matches!(called, Err(HandshakeError::Io(_))), "{called:?}");
    let stats = host.net.stats().await;
    assert_eq!((stats.clients, stats.peers.len()), (0, 0));
    echoing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_stops_reading_does_not_block_the_node() {
    let longest = Duration::from_millis(300);
    let limits = NetLimits { control_undrained_max: longest, ..quick().limits };
    let config = NetConfig { limits, ..closed_to_strangers() };
    let (a, b) = pair(&config).await;
    let mut clients = a.net.clients();
    let deaf = connect(&config, &a.address(), SOON).await.expect("it is admitted");
    let mut server = soon(clients.recv()).await.expect("it was delivered");
    let talking = tokio::spawn(async move {
        let failed = loop {
            if let Err(error) = server.write_all(&[7; 64 * 1024]).await {
                break error;
            }
        };
        failed.kind()
    });
    let mut other = connect(&config, &a.address(), SOON).await.expect("it is admitted");
    let mut served = soon(clients.recv()).await.expect("it was delivered");
    for n in 0..100_u64 {
        a.send(b.id().incarnation, TrafficClass::User, &n.to_be_bytes());
        served.write_u64(n).await.expect("written");
        served.flush().await.expect("sent");
        assert_eq!(soon(other.read_u64()).await.expect("they come"), n);
    }
    receives_in_order(&b, 100).await;
    let failed = soon(talking).await.expect("no panic");
    assert_eq!(failed, std::io::ErrorKind::TimedOut);
    eventually("its place is free", async || a.net.stats().await.clients == 1).await;
    drop(deaf);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_ends_with_its_connection_from_either_side() {
    let config = closed_to_strangers();
    let host = TestNode::start(&config).await;
    let mut clients = host.net.clients();
    let one = Identity::load(None).expect("an identity");
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for _ in 0..=config.limits.connections_per_peer {
        let called = connect_as(&one, &config, &host.address(), SOON).await;
        here.push(called.expect("it is admitted"));
        there.push(soon(clients.recv()).await.expect("it was delivered"));
    }
    // The oldest connection exceeds the limit, so the node closes it.
    for oldest in [here.remove(0), there.remove(0)] {
        let (mut reader, _writer) = tokio::io::split(oldest);
        let mut rest = Vec::new();
        let _ = soon(reader.read_to_end(&mut rest)).await; // may fail
        assert_eq!(rest, b"");
    }
    drop(here.remove(0));
    let mut rest = Vec::new();
    let _ = soon(there.remove(0).read_to_end(&mut rest)).await; // may fail
    host.net.stop().await;
    for mut left in here.into_iter().chain(there) {
        let _ = soon(left.read_to_end(&mut rest)).await; // may fail
    }
    assert_eq!(rest, b"");
    let error = refused(&config, &host.address()).await;
    assert!(matches!(error, ConnectError::NobodyListens { .. }), "{error:?}");
}

/// More clients than there may be connections without an admitted peer, each with a new peer id.
#[tokio::test(flavor = "multi_thread")]
async fn admitted_clients_do_not_count_as_unadmitted() {
    const UNADMITTED: usize = 8;
    let limits = NetLimits { unadmitted: UNADMITTED, ..quick().limits };
    let config = NetConfig { limits, ..closed_to_strangers() };
    let host = TestNode::start(&config).await;
    let echoing = echoes(&host);
    let mut clients = Vec::new();
    for _ in 0..UNADMITTED + 4 {
        let called = connect(&config, &host.address(), SOON).await;
        let mut client = called.expect("it is admitted");
        is_echoed(&mut client, b"word").await;
        clients.push(client);
    }
    for client in &mut clients {
        is_echoed(client, b"again").await;
    }
    let stats = host.net.stats().await;
    assert_eq!((stats.clients, stats.exceeded.unadmitted), (UNADMITTED + 4, 0));
    echoing.abort();
}
