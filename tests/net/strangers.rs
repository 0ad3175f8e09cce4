//! Tests of strangers that are no nodes: garbage, silence, dripping and floods. The node must keep
//! serving, with bounded memory.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::Multiaddr;
use ostraca::net::TrafficClass;
use ostraca::net::address::socket_address;
use ostraca::net::config::{NetConfig, NetLimits};
use ostraca::net::handshake::HandshakeError;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::memory_log::MemoryLog;
use crate::nodes::{Node, config, serves};
use crate::waits::{eventually, soon};

const PREFACE: &[u8] = b"\x13/multistream/1.0.0\n\x15/ostraca/noise-psk/1\n";

/// Connects like another host: from a different loopback address than the nodes use.
async fn knock(node: &Node) -> TcpStream {
    let to = socket_address(&node.address).expect("an address of TCP");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::new(IpAddr::from([127, 0, 0, 2]), 0)).expect("loopback is a /8");
    soon(socket.connect(to)).await.expect("it listens")
}

/// Waits until the node has closed the connection, cleanly or not.
async fn cut(stream: &mut TcpStream) {
    let mut sink = [0; 4096];
    let end = async {
        loop {
            match stream.read(&mut sink).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    };
    soon(end).await;
}

/// Short handshake timeout. Honest peers also need a part of it on a busy machine.
fn hasty(within: Duration) -> NetConfig {
    let limits = NetLimits { handshake_within: within, ..NetLimits::default() };
    NetConfig { limits, ..config() }
}

#[tokio::test]
async fn garbage_costs_only_its_own_connection() {
    let seed = 4_817;
    let mut random = StdRng::seed_from_u64(seed);
    let node = Node::start(hasty(Duration::from_secs(5))).await;
    for round in 0..40 {
        let mut stream = knock(&node).await;
        let mut garbage = vec![0; 1 + round * 97];
        random.fill_bytes(&mut garbage);
        if round % 2 == 1 {
            garbage.splice(0..0, PREFACE.iter().copied()); // so that it reaches the cipher
        }
        let _ = stream.write_all(&garbage).await; // it may be cut while it writes
        let _ = stream.shutdown().await; // likewise
        cut(&mut stream).await;
    }
    serves(&node).await;
}

#[tokio::test]
async fn dripping_client_is_cut_at_the_handshake_timeout() {
    let node = Node::start(hasty(Duration::from_secs(5))).await;
    for from in [0, PREFACE.len() - 1] {
        let mut stream = knock(&node).await;
        stream.write_all(&PREFACE[..from]).await.expect("a beginning");
        let (mut reader, mut writer) = stream.split();
        let drip = async {
            let mut pace = tokio::time::interval(Duration::from_millis(200));
            for byte in PREFACE[from..].iter().chain(&[1, 0]).chain(&[0; 256]) {
                pace.tick().await;
                if writer.write_all(&[*byte]).await.is_err() {
                    return true;
                }
            }
            false
        };
        let hear = async {
            let mut sink = [0; 4096];
            while reader.read(&mut sink).await.is_ok_and(|read| read > 0) {}
        };
        let was_cut = async {
            tokio::select! {
                was_cut = drip => was_cut,
                () = hear => true,
            }
        };
        assert!(soon(was_cut).await, "the node accepted 51 s of dripping");
    }
    assert_eq!(node.count().await.1, 0);
    serves(&node).await;
}

/// Settings with which no handshake times out.
fn patient(listen: Vec<Multiaddr>) -> NetConfig {
    let within = Duration::from_secs(600);
    let limits = NetLimits {
        first_message_within: within,
        handshake_within: within,
        ..NetLimits::default()
    };
    NetConfig { listen, limits, ..config() }
}

/// Waits until this many handshakes were evicted since the start.
async fn evicts(node: &Node, wanted: u64) {
    let are_evicted = async || node.count().await.0.handshakes >= wanted;
    eventually("handshakes are evicted", are_evicted).await;
}

/// Holds this many silent connections from each address, and replaces those that are cut.
async fn flood(to: SocketAddr, from: Vec<IpAddr>, each: usize) {
    let mut held: Vec<(IpAddr, TcpStream)> = Vec::new(); // ≤ each for every address
    loop {
        held.retain(|(_, stream)| {
            matches!(stream.try_read(&mut [0; 64]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        });
        for &address in &from {
            let there = held.iter().filter(|(from, _)| *from == address).count();
            for _ in there..each {
                let socket = match address {
                    IpAddr::V4(_) => TcpSocket::new_v4(),
                    IpAddr::V6(_) => TcpSocket::new_v6(),
                };
                let socket = socket.expect("a socket");
                socket.bind(SocketAddr::new(address, 0)).expect("an address of loopback");
                if let Ok(stream) = socket.connect(to).await {
                    held.push((address, stream));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asserts that honest nodes are served repeatedly while the flood evicts more and more handshakes.
async fn serves_during_flood(listen: &str, from: &[&str], each: usize) {
    let node = Node::start(patient(vec![listen.parse().expect("an address")])).await;
    let to = socket_address(&node.address).expect("an address of TCP");
    let from = from.iter().map(|from| from.parse().expect("an address")).collect();
    let flooding = tokio::spawn(flood(to, from, each));
    for round in 1..=5 {
        evicts(&node, round * 100).await;
        serves(&node).await;
    }
    assert!(!flooding.is_finished(), "the flood must last as long as the test");
    flooding.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_from_one_address_leaves_peers_admitted() {
    serves_during_flood("/ip4/127.0.0.1/tcp/0", &["127.0.0.2"], 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_from_two_addresses_leaves_peers_admitted() {
    serves_during_flood("/ip4/127.0.0.1/tcp/0", &["127.0.0.2", "127.0.0.3"], 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_from_a_shared_address_leaves_peers_admitted() {
    serves_during_flood("/ip4/127.0.0.1/tcp/0", &["127.0.0.1"], 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_over_ipv6_leaves_peers_admitted() {
    serves_during_flood("/ip6/::1/tcp/0", &["::1"], 100).await;
}

#[tokio::test] // one thread, because the log is that of this thread
async fn full_node_logs_the_busiest_address_once() {
    const BEYOND: usize = 10;
    let log = MemoryLog::default();
    let to_log = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(to_log);
    let node = Node::start(patient(NetConfig::default().listen)).await;
    let places = node.config.limits.handshakes * 3 / 4; // the others are for known addresses
    let mut crowd = Vec::new();
    for _ in 0..places + BEYOND {
        crowd.push(knock(&node).await);
    }
    evicts(&node, BEYOND as u64).await;
    let text = log.text();
    let logged: Vec<&str> =
        text.lines().filter(|line| line.contains("net.limit_exceeded")).collect();
    assert_eq!(logged.len(), 1, "{logged:#?}");
    for part in ["address=127.0.0.2", "limits.handshakes inbound handshakes are unfinished"] {
        assert!(logged[0].contains(part), "{part}: {logged:#?}");
    }
}

#[tokio::test]
async fn silent_connection_is_cut_after_first_message_time() {
    let limits = NetLimits {
        first_message_within: Duration::from_millis(200),
        handshake_within: Duration::from_secs(600),
        ..NetLimits::default()
    };
    let node = Node::start(NetConfig { limits, ..config() }).await;
    for said in [&[][..], PREFACE] {
        let mut stream = knock(&node).await;
        stream.write_all(said).await.expect("sent");
        cut(&mut stream).await;
    }
    serves(&node).await;
}

/// Runs that test again in a process of its own, so that the memory is only this test's.
fn alone(name: &str) -> bool {
    const ALONE: &str = "OSTRACA_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut run = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = run.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
    let output = output.expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("1 passed"), "{name} is not the test's name: {told}");
    false
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a figure");
    let figure = line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number");
    figure * 1024
}

#[test]
fn ten_thousand_half_open_connections_are_bounded() {
    if alone("strangers::ten_thousand_half_open_connections_are_bounded") {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(half_open_connections(crowd(10_000)));
    }
}

/// Number of sockets: as many as wanted, or as this process may have, which holds the strangers'
/// ends.
fn crowd(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: usize = 500; // files of the node, its peers and the runtime
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.current.is_none_or(|files| files as usize >= wanted + OTHERS);
    let most = limit.maximum.map_or(wanted, |files| (files as usize).saturating_sub(OTHERS));
    let crowd = wanted.min(most);
    if !enough {
        let current = Some((crowd + OTHERS) as u64);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("up to the hard limit");
    }
    if crowd < wanted {
        eprintln!("{crowd} strangers instead of {wanted}: the hard limit of open files is lower");
    }
    crowd
}

async fn half_open_connections(count: usize) {
    const MEMORY: usize = 32 * 1024 * 1024;
    let node = Node::start(patient(NetConfig::default().listen)).await;
    serves(&node).await;
    let before = resident();
    let places = node.config.limits.handshakes * 3 / 4; // the others are for known addresses
    let mut crowd = Vec::new();
    for n in 0..count {
        let mut stream = knock(&node).await;
        let _ = stream.write_all(&PREFACE[..n % PREFACE.len()]).await; // it may already be cut
        crowd.push(stream);
        if n % (count / 10) == 0 {
            let under_way = node.count().await.1;
            assert!(under_way <= places, "{under_way} handshakes");
            serves(&node).await;
        }
    }
    evicts(&node, (count - places) as u64).await;
    let under_way = node.count().await.1;
    let mut cut = 0;
    for stream in &mut crowd {
        cut += usize::from(is_cut(stream).await);
    }
    assert_eq!(cut, count - under_way, "all others are closed");
    serves(&node).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < MEMORY, "{grown} bytes for {count} strangers");
}

/// Whether the node has closed the connection, after reading its last bytes.
async fn is_cut(stream: &mut TcpStream) -> bool {
    let mut sink = [0; 4096];
    loop {
        match stream.try_read(&mut sink) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let more = stream.readable();
                if tokio::time::timeout(Duration::from_millis(20), more).await.is_err() {
                    return false;
                }
            }
            Err(_) => return true,
        }
    }
}

#[tokio::test]
async fn garbage_from_an_admitted_peer_costs_only_its_lane() {
    let mut node = Node::start(config()).await;
    let mut peer = Node::start(config()).await;
    let id = peer.connect(&node).await;
    for said in [&[0xff; 64][..], &[0, 0, 0x10, 0x01], &[0, 0, 0, 3, 0xc1, 0xc1, 0xc1]] {
        let mut line = peer.line(id, TrafficClass::Control).await.expect("a substream");
        line.write_all(said).await.expect("sent");
        line.flush().await.expect("sent");
        let asked = node.asked().await;
        assert!(
            matches!(asked, Err(HandshakeError::TooLong { .. } | HandshakeError::Malformed(_))),
            "{asked:?}"
        );
        let mut rest = Vec::new();
        let _ = soon(line.read_to_end(&mut rest)).await; // the greeting, and a reset
    }
    peer.open(id, node.peer(), |_| {}).await.expect("the connection is as good as before");
}

#[tokio::test]
async fn admitted_peer_without_hello_times_out() {
    let mut node = Node::start(hasty(Duration::from_secs(5))).await;
    let mut peer = Node::start(config()).await;
    let id = peer.connect(&node).await;
    let mut line = peer.line(id, TrafficClass::Data).await.expect("a substream");
    line.flush().await.expect("the protocol's name is sent");
    let asked = node.asked().await;
    assert!(matches!(asked, Err(HandshakeError::TimedOut { .. })), "{asked:?}");
    peer.open(id, node.peer(), |_| {}).await.expect("it serves");
}
