//! The peer process of a test: carries out orders from standard input, one per line, and reports
//! events on standard output. This file implements the bare transport; nodes and members are in
//! `replicas` and `member`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use ostraca::cluster::config::DowningStrategyName;
use ostraca::ddata::id::ReplicaId;
use ostraca::net::config::{NetConfig, NetLimits, Secret};
use ostraca::net::handle::{Net, NetEvent};
use ostraca::net::identity::Identity;
use ostraca::net::lane::SendError;
use ostraca::net::{Busy, Inbound, Receiver, TrafficClass, address};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;

use crate::member;
use crate::peer::Peer;
use crate::replicas;

/// The environment variable that makes a run of this program a peer.
pub(crate) const ORDER: &str = "OSTRACA_PEER";

/// Kind of a peer process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Transport,
    Node,
    Member,
    /// A member that hosts counters.
    Host,
    /// A member that sends to all counters and keeps ledgers of their answers.
    Feeder,
}

/// Settings of a peer process.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) kind: Kind,
    pub(crate) listen: Multiaddr,
    pub(crate) user_timeout: Duration,
    pub(crate) link_down: Duration,
    pub(crate) data_dir: Option<PathBuf>,
    /// Seeds of a member.
    pub(crate) seeds: Vec<Multiaddr>,
    /// Downing strategy of a member.
    pub(crate) downing: DowningStrategyName,
    /// Journal file of the lease of `lease-majority`.
    pub(crate) lease: Option<PathBuf>,
}

impl Default for Order {
    fn default() -> Self {
        let limits = NetLimits::default();
        Self {
            kind: Kind::Transport,
            listen: "/ip4/127.0.0.1/tcp/0".parse().expect("a constant"),
            user_timeout: limits.tcp_user_timeout,
            link_down: limits.link_down_max,
            data_dir: None,
            seeds: Vec::new(),
            downing: DowningStrategyName::default(),
            lease: None,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |path: &Option<PathBuf>| {
            path.as_deref().map_or_else(String::new, |path| path.display().to_string())
        };
        let (dir, lease) = (path(&self.data_dir), path(&self.lease));
        let (user, link) = (self.user_timeout.as_millis(), self.link_down.as_millis());
        let seeds: Vec<String> = self.seeds.iter().map(ToString::to_string).collect();
        let (seeds, downing) = (seeds.join(" "), self.downing);
        write!(f, "{:?}\n{}\n{user}\n{link}\n", self.kind, self.listen)?;
        write!(f, "{dir}\n{seeds}\n{downing}\n{lease}")
    }
}

impl Order {
    fn of_this_process() -> Option<Self> {
        let text = std::env::var(ORDER).ok()?;
        let parts: Vec<&str> = text.split('\n').collect();
        let [kind, listen, user, link, dir, seeds, downing, lease] = parts[..] else {
            panic!("no order: {text:?}")
        };
        let strategy =
            DowningStrategyName::ALL.into_iter().find(|name| name.to_string() == downing);
        let seeds = seeds.split_whitespace().map(|seed| seed.parse().expect("an address"));
        let path = |text: &str| Some(PathBuf::from(text)).filter(|_| !text.is_empty());
        let millis = |text: &str| Duration::from_millis(text.parse().expect("milliseconds"));
        Some(Self {
            kind: match kind {
                "Transport" => Kind::Transport,
                "Node" => Kind::Node,
                "Member" => Kind::Member,
                "Host" => Kind::Host,
                "Feeder" => Kind::Feeder,
                _ => panic!("no kind: {kind:?}"),
            },
            listen: listen.parse().expect("an address"),
            user_timeout: millis(user),
            link_down: millis(link),
            data_dir: path(dir),
            seeds: seeds.collect(),
            downing: strategy.expect("a strategy"),
            lease: path(lease),
        })
    }

    pub(crate) fn config(&self) -> NetConfig {
        NetConfig {
            listen: vec![self.listen.clone()],
            secret: Secret::new([7; 32]).ok().map(Into::into),
            data_dir: self.data_dir.clone(),
            limits: NetLimits {
                tcp_user_timeout: self.user_timeout,
                link_down_max: self.link_down,
                back_off: (Duration::from_millis(20), Duration::from_millis(500)),
                ..NetLimits::default()
            },
            ..NetConfig::default()
        }
    }
}

/// Every peer process is another run of this test.
#[test]
fn peer_process_starts_and_ends_with_its_test() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(order) = Order::of_this_process() {
        match order.kind {
            Kind::Transport => runtime.block_on(serve(&order)),
            Kind::Node => runtime.block_on(replicas::serve(&order)),
            Kind::Member | Kind::Host | Kind::Feeder => runtime.block_on(member::serve(&order)),
        }
        std::process::exit(0);
    }
    runtime.block_on(async {
        let mut peer = Peer::start(&[], &Order::default()).await;
        assert_eq!(peer.status().await.linked, 0);
        peer.order("end").await;
        peer.tells("ended").await;
    });
}

pub(crate) fn peer_of(address: &Multiaddr) -> PeerId {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => peer,
        other => panic!("{other:?} names no peer"),
    }
}

pub(crate) fn tell(news: &str) {
    println!("@ {news}");
}

/// Receiver that counts messages and checks their order; each sender numbers its messages from 0.
#[derive(Debug, Default)]
struct Counts {
    by_sender: Mutex<BTreeMap<ReplicaId, u64>>,
    disordered: Mutex<u64>,
}

impl Receiver for Counts {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        let number = u64::from_be_bytes(message.body[..8].try_into().expect("at least 8 bytes"));
        let mut by_sender = self.by_sender.lock().expect("no panic inside");
        let count = by_sender.entry(message.from.incarnation).or_default();
        *self.disordered.lock().expect("no panic inside") += u64::from(*count != number);
        *count += 1;
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {}.boxed() // never called: the receiver always has room
    }
}

/// State of a transport peer.
struct Served {
    net: Net,
    counts: Arc<Counts>,
    known: BTreeMap<PeerId, ReplicaId>, // peers that have been connected
    senders: BTreeMap<ReplicaId, Sender>,
}

/// Sends ordered messages to one peer, in one task. (With a task for each order, a busy machine
/// once began the second order before the first, so that all messages came out of order.)
struct Sender {
    orders: mpsc::UnboundedSender<(u64, usize)>, // number of messages, bytes of each
    left: Arc<AtomicU64>,                        // ordered messages that are not in the lane yet
}

async fn serve(order: &Order) {
    let identity = Identity::load(order.data_dir.as_deref()).expect("an identity");
    let counts = Arc::<Counts>::default();
    let started = Net::start(&order.config(), &identity, counts.clone()).await;
    let (net, mut events) = started.expect("the transport starts");
    tell(&format!("ready {}", net.addresses()[0]));
    let (known, senders) = (BTreeMap::new(), BTreeMap::new());
    let mut served = Served { net, counts, known, senders };
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    loop {
        tokio::select! {
            Some(event) = events.recv() => served.hears(event),
            line = orders.next_line() => match line.expect("stdin is readable") {
                Some(line) if line == "end" => break,
                Some(line) => served.obeys(&line).await,
                None => return, // the test has ended
            },
        }
    }
    served.net.stop().await;
    tell("ended");
}

impl Served {
    fn hears(&mut self, event: NetEvent) {
        match event {
            NetEvent::Up { node, .. } => {
                self.known.insert(node.peer, node.incarnation);
                tell(&format!("up {}", node.peer));
            }
            NetEvent::NewIncarnation { node, is_proof, .. } => {
                tell(&format!("reborn {} {is_proof}", node.peer));
            }
            NetEvent::Closed { node } => tell(&format!("closed {}", node.peer)),
            NetEvent::LaneBroken { class, messages, .. } => {
                tell(&format!("broken {class:?} {messages}"));
            }
            NetEvent::DialRefused { reason, .. } => tell(&format!("dial-refused {reason}")),
            NetEvent::Refused { refusal, .. } => tell(&format!("refused {refusal}")),
            _ => {}
        }
    }

    async fn obeys(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["keep", address] => {
                let address: Multiaddr = address.parse().expect("an address");
                self.net.keep(peer_of(&address), vec![address]);
            }
            ["seed", seed] => {
                let found = address::resolve(&seed.parse().expect("a seed")).await;
                let found = found.expect("the seed resolves");
                tell(&format!("resolved {}", found.len()));
                found.into_iter().for_each(|address| self.net.dial(address));
            }
            ["send", to, count, len] => {
                let (count, len) = (count.parse().expect("a count"), len.parse().expect("bytes"));
                self.send(to.parse().expect("a peer"), count, len);
            }
            ["status"] => self.say_status().await,
            _ => panic!("no order: {line:?}"),
        }
    }

    /// Starts to send the next `count` messages, without waiting for the end.
    fn send(&mut self, to: PeerId, count: u64, len: usize) {
        let to = self.known[&to];
        let sender = self.senders.entry(to).or_insert_with(|| Sender::start(self.net.clone(), to));
        sender.left.fetch_add(count, Ordering::SeqCst);
        sender.orders.send((count, len)).expect("the task takes orders");
    }

    async fn say_status(&mut self) {
        let peers = self.net.peers().await;
        let linked = peers.iter().filter(|peer| peer.linked).count();
        // Read `left` before the lanes: a message that moves in between counts twice instead of not
        // at all.
        let left = self.senders.values().map(|sender| sender.left.load(Ordering::SeqCst));
        let left: u64 = left.sum();
        let lanes = self.senders.keys().filter_map(|to| self.net.lane(*to, TrafficClass::User));
        let stats: Vec<_> = lanes.map(|lane| lane.stats()).collect();
        let unacknowledged = left + stats.iter().map(|stats| stats.unacknowledged).sum::<u64>();
        let resent: u64 = stats.iter().map(|stats| stats.resent).sum();
        let received: u64 = self.counts.by_sender.lock().expect("no panic inside").values().sum();
        let disordered = *self.counts.disordered.lock().expect("no panic inside");
        tell(&format!("status {received} {disordered} {unacknowledged} {resent} {linked}"));
    }
}

impl Sender {
    fn start(net: Net, to: ReplicaId) -> Self {
        let (orders, mut ordered) = mpsc::unbounded_channel();
        let left = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&left);
        tokio::spawn(async move {
            let mut next = 0;
            while let Some((count, len)) = ordered.recv().await {
                let mut was_full = false;
                for number in next..next + count {
                    if !send_one(&net, to, number, len, &mut was_full).await {
                        return tell("gone");
                    }
                    counter.fetch_sub(1, Ordering::SeqCst);
                }
                next += count;
                tell(&format!("sent {next}"));
            }
        });
        Self { orders, left }
    }
}

/// Sends one message, waiting for room. Returns false if there is no longer a lane.
async fn send_one(net: &Net, to: ReplicaId, number: u64, len: usize, was_full: &mut bool) -> bool {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(len.max(8), 0);
    loop {
        let Some(lane) = net.lane(to, TrafficClass::User) else { return false };
        match lane.send(&[], &body) {
            Ok(()) => return true,
            Err(SendError::Full { .. }) => {
                if !std::mem::replace(was_full, true) {
                    tell("full");
                }
                lane.room().await;
            }
            Err(SendError::Broken) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    }
}
