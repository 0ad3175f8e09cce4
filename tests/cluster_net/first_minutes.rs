//! First contact with the library: a node that founds alone, and warnings that state a remedy.
//!
//! The log belongs to the whole process, so each test here runs in a process of its own.

use std::collections::BTreeSet;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use ostraca::cluster::member::Address;
use ostraca::net::address::{is_loopback, socket_address};
use ostraca::net::config::Secret;
use ostraca::prelude::*;

use crate::fixture::free_addresses;
use crate::process_log::{self, begin_log, lines};
use crate::waits::{eventually, soon};

/// Runs the named test in a process of its own.
async fn alone(test: &str, what: impl Future<Output = ()>) {
    process_log::alone("first_minutes", test, what).await;
}

fn config(secret: u8) -> Config {
    let mut config = Config::default();
    config.net.secret = Some(Secret::new([secret; 32]).expect("32 bytes").into());
    config
}

/// The configuration with this seed and short retry times.
fn seeded(mut config: Config, seed: &Multiaddr) -> Config {
    config.cluster.seeds = vec![Address::new(seed.to_string()).expect("short")];
    config.cluster.seed_node_timeout = Duration::from_secs(1);
    config.cluster.retry_unsuccessful_join_after = Duration::from_millis(200);
    config
}

/// Waits until each wanted warning was logged, then for `more` further lines of a kind; each wanted
/// warning must have been logged exactly once, and no other.
async fn are_the_only_warnings(wanted: &[&[&str]], more: (&str, usize)) {
    let warned = |words: &[&str]| lines(&[&["WARN"], words].concat()).len();
    eventually("all is warned of", async || wanted.iter().all(|words| warned(words) > 0)).await;
    let (tries, count) = more;
    let so_far = lines(&[tries]).len();
    eventually("it goes on trying", async || lines(&[tries]).len() >= so_far + count).await;
    let all = lines(&["WARN"]);
    assert!(wanted.iter().all(|words| warned(words) == 1), "{all:#?}");
    assert_eq!(all.len(), wanted.len(), "{all:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn default_settings_listen_on_loopback_and_found_alone() {
    alone("default_settings_listen_on_loopback_and_found_alone", async {
        begin_log();
        let node = Node::start(Config::default()).await.expect("nothing has to be set");
        // It listens as soon as `start` returns.
        let address = socket_address(&node.addresses()[0]).expect("an address of TCP");
        assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
        TcpStream::connect(address).expect("it listens");
        soon(node.cluster().wait_until_up()).await.expect("it founds alone");
        let logged =
            lines(&["INFO", "cluster.alone: no seeds are set", "founds a cluster of its own"]);
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert_eq!(lines(&["INFO", "node.listening", &address.port().to_string()]).len(), 1);
        soon(node.stop()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_secret_logs_one_warning_with_advice_on_either_side() {
    alone("wrong_secret_logs_one_warning_with_advice_on_either_side", async {
        begin_log();
        let founder = Node::start(config(1)).await.expect("it starts");
        let stranger = Node::start(seeded(config(2), &founder.addresses()[0])).await;
        let here: &[&str] = &["net.handshake_failed", "net.cluster-secret-file"];
        let there: &[&str] = &["cluster.notice", "the addresses and the secret right"];
        let dialler: &[&str] = &["net.handshake_refused", "net.cluster-secret-file"];
        are_the_only_warnings(&[here, there, dialler], ("net.dial_failed", 5)).await;
        drop((founder, stranger));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_cluster_name_logs_one_warning_with_advice() {
    alone("other_cluster_name_logs_one_warning_with_advice", async {
        begin_log();
        let founder = Node::start(config(1)).await.expect("it starts");
        let mut other = config(1);
        other.net.cluster_name = "another".to_owned();
        other.net.limits.back_off = (Duration::from_millis(10), Duration::from_millis(100));
        let mut other = seeded(other, &founder.addresses()[0]);
        other.cluster.seed_node_timeout = Duration::from_secs(5); // longer than the refusal takes
        let other = Node::start(other).await;
        let here: &[&str] = &["net.refused:", "set cluster-name to that"];
        let there: &[&str] = &["net.refused_by_peer", "set cluster-name to that"];
        // The seed also stays silent; this notice has a lower level because the refusal is more
        // precise.
        eventually("that is told", async || !lines(&["DEBUG", "cluster.notice"]).is_empty()).await;
        are_the_only_warnings(&[here, there], ("node.refused", 2)).await;
        drop((founder, other));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_seed_logs_one_warning_with_advice() {
    alone("silent_seed_logs_one_warning_with_advice", async {
        begin_log();
        let unused = free_addresses(1).remove(0);
        let node = Node::start(seeded(config(1), &unused)).await.expect("it starts");
        let port = socket_address(&unused).expect("an address of TCP").port().to_string();
        let silent: &[&str] = &["cluster.notice", "do not answer; are they started", &port];
        are_the_only_warnings(&[silent], ("net.dial_failed", 5)).await;
        drop(node);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doubtful_settings_are_warned_of_at_start() {
    alone("doubtful_settings_are_warned_of_at_start", async {
        begin_log();
        let mut config = Config::default();
        config.sharding.ask_timeout = Duration::from_secs(1);
        let node = Node::start(config).await.expect("a doubtful setting is allowed");
        let all = lines(&["cluster.settings"]);
        let [line] = &all[..] else { panic!("one warning, not {all:#?}") };
        let words = ["WARN", "cluster.sharding.ask-timeout is 1s", "takes up to 8s 800ms"];
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        soon(node.stop()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_installs_no_subscriber() {
    alone("the_library_installs_no_subscriber", async {
        let node = Node::start(Config::default()).await.expect("it starts");
        soon(node.cluster().wait_until_up()).await.expect("it founds alone");
        soon(node.stop()).await;
        assert!(!tracing::dispatcher::has_been_set(), "the program chooses its subscriber");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcard_listener_advertises_the_default_route_address() {
    alone("wildcard_listener_advertises_the_default_route_address", async {
        begin_log();
        let mut config = config(1);
        config.net.listen = vec!["/ip4/0.0.0.0/tcp/0".parse().expect("valid")];
        let node = Node::start(config).await.expect("it starts");
        let [told] = node.addresses() else { panic!("{:?}", node.addresses()) };
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
        match socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()) {
            Ok(own) if !own.ip().is_loopback() => {
                let address = socket_address(told).expect("an address of TCP");
                assert_eq!(address.ip(), own.ip());
                assert!(!is_loopback(told));
                let said = lines(&["INFO", "net.advertised", &own.ip().to_string()]);
                assert_eq!(said.len(), 1, "{said:?}");
                TcpStream::connect(address).expect("it listens there");
            }
            // A host without a route, such as a container without a network.
            _ => assert_eq!(lines(&["WARN", "net.no_route", "set net.advertise"]).len(), 1),
        }
        drop(node);
    })
    .await;
}

/// Answers each ask.
#[derive(Default)]
struct Echo;

#[derive(serde::Serialize, serde::Deserialize)]
struct Say(Reply<u64>);

impl Entity for Echo {
    type Message = Say;

    async fn handle(&mut self, Say(reply): Say, _: &mut Context<'_, Self>) {
        reply.send(1);
    }
}

/// A node of three that hosts the type, at the address of `place`.
async fn hosting(
    seeds: &[Multiaddr],
    place: usize,
    dir: &std::path::Path,
) -> (Node, ShardRegion<Echo>) {
    let mut config = Config::default();
    config.cluster.seeds =
        seeds.iter().map(|seed| Address::new(seed.to_string()).expect("short")).collect();
    config.net.listen = vec![seeds[place].clone()];
    config.net.data_dir = Some(dir.to_owned());
    let node = Node::start(config).await.expect("it starts");
    soon(node.cluster().wait_until_up()).await.expect("it is Up");
    let region = node.sharding().start("echo", |_| Echo).await.expect("it starts");
    soon(node.sharding().wait_until_registered("echo")).await.expect("it serves");
    (node, region)
}

/// With the default number of shards, and with asks before and after each restart. Some 600 shards
/// get a home: from about 300 on, their table exceeds `ddata.log-data-size-exceeding`.
#[tokio::test(flavor = "multi_thread")]
async fn orderly_roll_logs_no_warning() {
    alone("orderly_roll_logs_no_warning", async {
        begin_log();
        let seeds = free_addresses(3);
        let dirs = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
        let start = |place: usize| hosting(&seeds, place, dirs[place].path());
        let (first, second, third) = tokio::join!(start(0), start(1), start(2));
        let mut nodes = vec![first, second, third];
        let ask_all = async |region: &ShardRegion<Echo>| {
            let mut shards = BTreeSet::new();
            for number in 0..1_000 {
                let entity = region.entity(&format!("echo-{number}"));
                soon(entity.ask(Say)).await.expect("it answers");
                shards.insert(entity.shard());
            }
            assert!(shards.len() > 500, "{} shards", shards.len());
        };
        for place in 0..3 {
            ask_all(&nodes[1].1).await;
            let (node, _) = nodes.remove(0);
            soon(node.stop()).await;
            nodes.push(start(place).await);
            ask_all(&nodes[0].1).await;
        }
        let warned = [lines(&["WARN"]), lines(&["ERROR"])].concat();
        assert!(warned.is_empty(), "{warned:#?}");
        let left = lines(&["INFO", "cluster.left"]).len();
        assert_eq!(left, 3, "each node left in order");
        for (node, _) in nodes {
            soon(node.stop()).await;
        }
    })
    .await;
}

/// Whether a text is the name of a node: `890bb1ab/00000000c0ffee01`.
fn is_name(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    text.split_once('/').is_some_and(|(key, life)| {
        (key.len(), life.len()) == (8, 16) && is_hex(key) && is_hex(life)
    })
}

/// The values of a field in lines of the log; several nodes in one value count one by one.
fn values(lines: &[String], field: &str) -> Vec<String> {
    let field = format!(" {field}=");
    let value = |line: &String| {
        let (_, value) = line.split_once(&field)?;
        let quoted = value.strip_prefix('"').and_then(|value| value.split('"').next());
        quoted.or_else(|| value.split(' ').next()).map(str::to_owned)
    };
    let all: Vec<String> = lines.iter().filter_map(value).collect();
    all.iter().flat_map(|value| value.split(", ")).map(str::to_owned).collect()
}

/// Shards move from one node to another one and neither is removed, so that the key of every node in
/// the log is known.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_in_the_log_has_one_spelling() {
    alone("every_node_in_the_log_has_one_spelling", async {
        begin_log();
        let seeds = free_addresses(2);
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let start = |place: usize| hosting(&seeds, place, dirs[place].path());
        let ((first, region), (second, _other)) = tokio::join!(start(0), start(1));
        for number in 0..50 {
            soon(region.entity(&format!("echo-{number}")).ask(Say)).await.expect("it answers");
        }
        let drained = soon(first.sharding().drain(Duration::from_secs(60))).await;
        assert!(drained.expect("it runs").is_done(), "its shards move to the other node");

        let mut all = lines(&[]);
        all.retain(|line| !line.contains("net.handshake_failed")); // its `from` is an address
        let me = first.cluster().me().to_string();
        for field in ["node", "to", "from", "old", "other", "region", "coordinator", "awaited"] {
            let values = values(&all, field);
            let wrong: Vec<&String> = values.iter().filter(|value| !is_name(value)).collect();
            assert!(wrong.is_empty(), "{field}: {wrong:?}");
            let is_used = ["node", "to", "from"].contains(&field);
            assert!(!is_used || values.contains(&me), "{field} names {me}: {values:?}");
        }
        for node in [first, second] {
            soon(node.stop()).await;
        }
    })
    .await;
}
