//! A member of a cluster with default settings: the code of its process, and the test's handle to
//! it ([`Running`]).

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::cluster::config::DowningStrategyName;
use ostraca::cluster::member::Address;
use ostraca::config::Config;
use ostraca::net::config::NetLimits;
use ostraca::node::lease::LeaseDeadline;
use ostraca::prelude::*;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::counters::{Counters, SHARDS};
use crate::outside::Outside;
use crate::peer::Peer;
use crate::served::{Order, tell};
use crate::waits::until;

/// Timeout of a majority operation. Less than that of a wait, so that the test gets the error.
const WITHIN: Duration = Duration::from_secs(50);

/// Timeout of each of many successive writes: longer than a busy machine delays one, and shorter
/// than the stall of a cluster that cannot decide.
const WHILE_WRITING_ON: Duration = Duration::from_secs(15);

/// Timeout of a write that no majority can acknowledge.
const IN_VAIN: Duration = Duration::from_secs(1);

/// Delay after which the half without the tiebreaker acquires the lease. The other half may notice
/// the partition that much later; if this half were the first, neither could continue.
const MINORITY_WAITS: Duration = Duration::from_secs(4);

/// Quorum of the planned five members.
const QUORUM_SIZE: usize = 3;

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

// ── The process ──

fn config(order: &Order) -> Config {
    let mut config = Config { net: order.config(), ..Config::default() };
    config.net.limits = NetLimits::default();
    let address = |seed: &Multiaddr| Address::new(seed.to_string()).expect("short");
    config.cluster.seeds = order.seeds.iter().map(address).collect();
    if order.seeds.iter().any(|seed| seed.to_string().starts_with("/dns4/")) {
        config.cluster.expected_nodes = Some(3);
    }
    config.cluster.downing.strategy = order.downing;
    config.cluster.downing.lease_majority.acquire_lease_delay_for_minority = MINORITY_WAITS;
    config.sharding.number_of_shards = SHARDS;
    if order.downing == DowningStrategyName::StaticQuorum {
        config.cluster.downing.static_quorum.quorum_size = QUORUM_SIZE;
    }
    config
}

/// Members that were removed or declared dead so far, collected from events.
#[derive(Debug, Default)]
struct Told {
    removed: BTreeSet<String>,
    downed: BTreeSet<String>,
}

impl Told {
    fn hear(&mut self, event: &ClusterEvent) {
        match event {
            ClusterEvent::MemberRemoved { member, .. } => {
                self.removed.insert(member.node.to_string());
            }
            ClusterEvent::MemberDowned(member) => {
                self.downed.insert(member.node.to_string());
            }
            _ => {}
        }
    }
}

/// Handles of the node, which work also after its end.
struct Handles {
    cluster: Cluster,
    replicator: Replicator,
    lease: LeaseDeadline,
    told: Arc<Mutex<Told>>,
    writes: Arc<AtomicBool>,
    counters: Option<Counters>,
}

pub(crate) async fn serve(order: &Order) {
    let builder = match &order.lease {
        Some(journal) => {
            let outside = Outside::in_file(journal.clone());
            Node::builder(config(order)).downing_lease(Arc::new(outside))
        }
        None => Node::builder(config(order)),
    };
    let node = builder.start().await.expect("the node starts");
    let handles = Handles {
        cluster: node.cluster(),
        replicator: node.replicator(),
        lease: node.lease(),
        told: Arc::default(),
        writes: Arc::default(),
        counters: Counters::start(&node, order.kind).await,
    };
    let (mut events, told) = (node.cluster().events(), handles.told.clone());
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            told.lock().expect("no panic inside").hear(&event);
        }
    });
    let ready = format!("ready {}", node.addresses()[0]);
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let run = node.run_until_signal();
    tokio::pin!(run);
    let mut is_ready = false;
    loop {
        tokio::select! {
            biased; // signal handlers are installed before the first report
            reason = &mut run => {
                let reason = reason.expect("signals can be handled");
                let removed = joined(handles.told.lock().expect("no panic inside").removed.iter());
                return tell(&format!("ended {reason:?} {removed}"));
            }
            () = async {}, if !is_ready => {
                is_ready = true;
                tell(&ready);
            }
            line = orders.next_line(), if is_ready => match line.expect("stdin is readable") {
                Some(line) => handles.obey(&line).await,
                None => return, // the test has ended
            },
        }
    }
}

impl Handles {
    async fn obey(&self, line: &str) {
        match line {
            "who" => tell(&format!("who {}", self.cluster.me())),
            "view" => self.say_view().await,
            "sent" => {
                // Fails if the node ends, which it reports itself.
                let Ok(stats) = self.cluster.stats().await else { return };
                tell(&format!("sent {}", stats.sent));
            }
            "write" => self.write("write", WITHIN),
            "try" => self.write("try", IN_VAIN),
            "write-on" => self.write_on(),
            "enough" => self.writes.store(false, Ordering::Relaxed),
            "read" => {
                let replicator = self.replicator.clone();
                tokio::spawn(async move {
                    match replicator.get(&hits(), ReadMajority::within(WITHIN)).await {
                        Ok(hits) => tell(&format!("read {}", hits.map_or(0, |hits| hits.value()))),
                        Err(error) => tell(&format!("read {error}")),
                    }
                });
            }
            _ => match &self.counters {
                Some(counters) => counters.obey(line).await,
                None => panic!("no order: {line:?}"),
            },
        }
    }

    async fn say_view(&self) {
        // These fail if the node ends, which it reports itself.
        let Ok(view) = self.cluster.state().await else { return };
        let Ok(stats) = self.cluster.stats().await else { return };
        let is_up = |member: &&Arc<Member>| member.status == Status::Up;
        let up = joined(view.members.iter().filter(is_up).map(|member| member.node));
        let known = joined(view.members.iter().map(|member| member.node));
        let unreachable = joined(view.unreachable.keys());
        let cluster = view.id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let (removed, downed) = {
            let told = self.told.lock().expect("no panic inside");
            (joined(told.removed.iter()), joined(told.downed.iter()))
        };
        let (serves, accusations) = (self.lease.serves(), stats.accusations);
        tell(&format!(
            "view {serves} {accusations} {cluster} {up} {known} {unreachable} {removed} {downed}"
        ));
    }

    /// Writes once, and reports the result with `word`.
    fn write(&self, word: &'static str, within: Duration) {
        let replicator = self.replicator.clone();
        tokio::spawn(async move {
            let (done, failed) = write(&replicator, within).await;
            tell(&format!("{word} {done} {failed}"));
        });
    }

    /// Writes repeatedly until the order `enough`, and reports the numbers of writes.
    fn write_on(&self) {
        self.writes.store(true, Ordering::Relaxed);
        let (replicator, writes) = (self.replicator.clone(), self.writes.clone());
        tokio::spawn(async move {
            let mut sum = (0, 0);
            while writes.load(Ordering::Relaxed) {
                let (done, failed) = write(&replicator, WHILE_WRITING_ON).await;
                sum = (sum.0 + done, sum.1 + failed);
                tokio::time::sleep(Duration::from_millis(5)).await; // lets other processes run
            }
            tell(&format!("enough {} {}", sum.0, sum.1));
        });
        tell("write-on");
    }
}

/// Writes once at a majority. Returns the numbers of acknowledged and failed writes.
async fn write(replicator: &Replicator, within: Duration) -> (u64, u64) {
    let level = WriteMajority::within(within);
    match replicator.update(&hits(), level, |hits| hits.increment()).await {
        Ok(()) => (1, 0),
        Err(error) => {
            eprintln!("a write failed: {error}");
            (0, 1)
        }
    }
}

fn joined<T: Display>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.is_empty() { "-".to_owned() } else { items.join(",") }
}

// ── The test's side ──

/// A member's process: it may be joining, a member, or have ended.
pub(crate) struct Running {
    /// Id of the node, with its incarnation.
    pub(crate) me: String,
    pub(crate) peer: Peer,
    /// The report of its end, if that came instead of an answer.
    ended: Option<End>,
}

/// The cluster as reported by a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Whether the member holds its lease, so that entities could run on it.
    pub(crate) serves: bool,
    /// Number of times that it has found a member unreachable.
    pub(crate) accusations: u64,
    pub(crate) cluster: String,
    pub(crate) up: BTreeSet<String>,
    /// All members, with any status.
    pub(crate) known: BTreeSet<String>,
    /// Members that are unreachable for any member.
    pub(crate) unreachable: BTreeSet<String>,
    /// Members whose removal it has seen.
    pub(crate) removed: BTreeSet<String>,
    /// Members that it has seen declared dead.
    pub(crate) downed: BTreeSet<String>,
}

/// A member's report of its end.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: String,
    /// Members whose removal it had seen.
    pub(crate) removed: BTreeSet<String>,
}

impl View {
    fn parse(line: &str) -> Self {
        let parts: Vec<&str> = line.split(' ').collect();
        let [serves, accusations, cluster, up, known, unreachable, removed, downed] = parts[..]
        else {
            panic!("no view: {line:?}")
        };
        Self {
            serves: serves == "true",
            accusations: accusations.parse().expect("a count"),
            cluster: cluster.to_owned(),
            up: parse_list(up),
            known: parse_list(known),
            unreachable: parse_list(unreachable),
            removed: parse_list(removed),
            downed: parse_list(downed),
        }
    }
}

fn parse_list(list: &str) -> BTreeSet<String> {
    list.split(',').filter(|item| *item != "-").map(str::to_owned).collect()
}

fn parse_end(line: &str) -> End {
    let (reason, removed) = line.rsplit_once(' ').expect("two words");
    End { reason: reason.to_owned(), removed: parse_list(removed) }
}

impl Running {
    pub(crate) async fn start(host: &[String], order: &Order) -> Self {
        let mut peer = Peer::start(host, order).await;
        let me = peer.asks("who").await.expect("the process has just started");
        Self { me, peer, ended: None }
    }

    /// Returns the member's view of the cluster, or the report of its end.
    pub(crate) async fn look(&mut self) -> Result<View, End> {
        let view = match self.peer.asks("view").await {
            Ok(view) => view,
            Err(end) => return Err(self.ended.insert(parse_end(&end)).clone()),
        };
        let view = View::parse(&view);
        let peers: Vec<&str> = view.up.iter().filter_map(|id| id.split('/').next()).collect();
        let lives = peers.iter().collect::<BTreeSet<_>>().len();
        assert_eq!(lives, peers.len(), "known failure 22: a node is Up twice: {view:?}");
        Ok(view)
    }

    /// Returns the view of a member that must still run.
    pub(crate) async fn view(&mut self) -> View {
        self.look().await.unwrap_or_else(|end| panic!("the member has ended: {end:?}"))
    }

    /// Waits until the member's view meets a condition.
    pub(crate) async fn sees(&mut self, what: &str, is_so: impl Fn(&View) -> bool) -> View {
        until(what, async || self.view().await, is_so).await
    }

    /// Waits until the member has ended by itself, successfully.
    pub(crate) async fn ends(mut self) -> End {
        let end = match self.ended.take() {
            Some(end) => end,
            None => parse_end(&self.peer.tells("ended").await),
        };
        assert!(self.peer.exits().await.success(), "{end:?}");
        end
    }

    /// Writes once. Returns whether a majority acknowledged the write.
    pub(crate) async fn writes(&mut self) -> bool {
        self.peer.asks("write").await.expect("the member runs") == "1 0"
    }

    /// Like [`writes`](Self::writes), but with a short timeout: for members without a majority.
    pub(crate) async fn tries(&mut self) -> bool {
        self.peer.asks("try").await.expect("the member runs") == "1 0"
    }

    /// Reads the number of acknowledged writes from a majority.
    pub(crate) async fn reads(&mut self) -> u64 {
        let read = self.peer.asks("read").await.expect("the member runs");
        read.parse().unwrap_or_else(|_| panic!("no majority answers: {read}"))
    }

    /// Waits until the member has sent `count` messages of membership.
    pub(crate) async fn has_sent(&mut self, count: u64) {
        let sent = async || {
            let sent = self.peer.asks("sent").await.expect("the member runs");
            sent.parse::<u64>().expect("a count")
        };
        until("the member has sent enough messages", sent, |sent| *sent >= count).await;
    }
}
