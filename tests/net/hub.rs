//! Tests of whole transports: links, lanes and incarnations between nodes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use ostraca::net::config::{NetConfig, NetLimits, Secret};
use ostraca::net::handle::{Net, NetEvent};
use ostraca::net::identity::Identity;
use ostraca::net::lane::SendError;
use ostraca::net::secrets::Secrets;
use ostraca::net::wire::LaneRefusal;
use ostraca::net::{Busy, Inbound, NodeId, Receiver, TrafficClass};
use ostraca_ddata::id::ReplicaId;
use tokio::sync::{Notify, mpsc};

use crate::proxy::Proxy;
use crate::waits::{SOON, eventually, soon};

/// Stores received messages, as many as there is room for.
struct Recorder {
    room: AtomicUsize,
    wake: Notify,
    got: Mutex<VecDeque<(NodeId, TrafficClass, Vec<u8>)>>,
}

impl Recorder {
    fn with_room(room: usize) -> Arc<Self> {
        let got = Mutex::default();
        Arc::new(Self { room: AtomicUsize::new(room), wake: Notify::new(), got })
    }

    fn take(&self) -> Vec<(NodeId, TrafficClass, Vec<u8>)> {
        let taken: Vec<_> = self.got.lock().expect("not poisoned").drain(..).collect();
        self.room.fetch_add(taken.len(), Ordering::SeqCst);
        self.wake.notify_waiters();
        taken
    }
}

impl Receiver for Recorder {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        let one_less = |room: usize| room.checked_sub(1);
        self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).map_err(|_| Busy)?;
        let kept = (message.from, message.class, message.body.to_vec());
        self.got.lock().expect("not poisoned").push_back(kept);
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {
            while self.room.load(Ordering::SeqCst) == 0 {
                let woken = self.wake.notified();
                if self.room.load(Ordering::SeqCst) == 0 {
                    let _ = tokio::time::timeout(Duration::from_millis(50), woken).await;
                }
            }
        }
        .boxed()
    }
}

struct TestNode {
    net: Net,
    events: mpsc::UnboundedReceiver<NetEvent>,
    inbox: Arc<Recorder>,
    _identity: Identity,
}

impl TestNode {
    async fn start(config: &NetConfig) -> Self {
        Self::with_room(config, usize::MAX / 2).await
    }

    async fn with_room(config: &NetConfig, room: usize) -> Self {
        let identity = Identity::load(config.data_dir.as_deref()).expect("an identity");
        let inbox = Recorder::with_room(room);
        let (net, events) = Net::start(config, &identity, inbox.clone()).await.expect("starts");
        Self { net, events, inbox, _identity: identity }
    }

    /// Starts the next incarnation of a host that was dropped.
    async fn again(config: &NetConfig) -> Self {
        let mut again = None;
        eventually("the lock is free", async || {
            let identity = Identity::load(config.data_dir.as_deref());
            let Ok(identity) = identity else { return false };
            let inbox = Recorder::with_room(1_000);
            let started = Net::start(config, &identity, inbox.clone()).await;
            let Ok((net, events)) = started else { return false };
            again = Some(Self { net, events, inbox, _identity: identity });
            true
        })
        .await;
        again.expect("it was started")
    }

    fn id(&self) -> NodeId {
        self.net.me()
    }

    fn address(&self) -> Multiaddr {
        self.net.addresses()[0].clone()
    }

    fn port(&self) -> u16 {
        let tcp = |protocol| if let Protocol::Tcp(port) = protocol { Some(port) } else { None };
        self.net.listening()[0].iter().find_map(tcp).expect("listens on TCP")
    }

    fn keep(&self, other: &Self) {
        self.net.keep(other.id().peer, vec![other.address()]);
    }

    /// Waits for an event that `pick` accepts; skips all others.
    async fn event<T>(&mut self, what: &str, mut pick: impl FnMut(NetEvent) -> Option<T>) -> T {
        let mut skipped = Vec::new();
        let wanted = async {
            loop {
                let event = self.events.recv().await.expect("the transport runs");
                skipped.push(format!("{event:?}"));
                if let Some(found) = pick(event) {
                    return found;
                }
            }
        };
        let waited = tokio::time::timeout(SOON, wanted).await;
        waited.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}; came: {skipped:#?}"))
    }

    async fn up(&mut self) -> NodeId {
        self.event("a node is up", |event| match event {
            NetEvent::Up { node, .. } => Some(node),
            _ => None,
        })
        .await
    }

    fn send(&self, to: ReplicaId, class: TrafficClass, body: &[u8]) {
        let lane = self.net.lane(to, class).expect("the node is known");
        lane.send(&[], body).expect("there is room");
    }

    async fn send_waiting(&self, to: ReplicaId, class: TrafficClass, body: &[u8]) {
        loop {
            let lane = self.net.lane(to, class).expect("the node is known");
            match lane.send(&[], body) {
                Ok(()) => return,
                Err(SendError::Full { .. }) => lane.room().await,
                Err(error) => panic!("not sent: {error}"),
            }
        }
    }
}

fn quick() -> NetConfig {
    NetConfig {
        limits: NetLimits {
            idle_timeout: Duration::from_millis(500),
            link_down_max: Duration::from_millis(500),
            back_off: (Duration::from_millis(5), Duration::from_millis(100)),
            ..NetLimits::default()
        },
        transport: crate::transport(),
        ..NetConfig::default()
    }
}

/// Like [`quick`], but with this `link_down_max`: half a second passes quickly on a busy machine.
fn patient(link_down_max: Duration) -> NetConfig {
    NetConfig { limits: NetLimits { link_down_max, ..quick().limits }, ..quick() }
}

fn number(body: &[u8]) -> u64 {
    u64::from_be_bytes(body[..8].try_into().expect("8 bytes and more"))
}

/// Waits for `count` messages, numbered from 0 in order.
async fn receives_in_order(host: &TestNode, count: u64) {
    let mut next = 0;
    eventually("all messages arrive", async || {
        for (_, _, body) in host.inbox.take() {
            assert_eq!(number(&body), next, "lost, repeated or out of order");
            next += 1;
        }
        next == count
    })
    .await;
}

/// Starts two nodes, of which `a` knows `b` only through a proxy. A data directory, if set, is
/// `b`'s.
async fn behind_a_proxy(config: &NetConfig) -> (TestNode, TestNode, Proxy) {
    let proxy = Proxy::start().await;
    let config_of_a = NetConfig { data_dir: None, ..config.clone() };
    let config_of_b = NetConfig { advertise: vec![proxy.address.clone()], ..config.clone() };
    let (a, b) = (TestNode::start(&config_of_a).await, TestNode::start(&config_of_b).await);
    proxy.lead_to(b.port());
    a.net.keep(b.id().peer, vec![proxy.address.clone()]);
    (a, b, proxy)
}

async fn pair(config: &NetConfig) -> (TestNode, TestNode) {
    pair_with_room(config, usize::MAX / 2).await
}

/// Starts two connected nodes; the second one has room for this many messages.
async fn pair_with_room(config: &NetConfig, room: usize) -> (TestNode, TestNode) {
    let (mut a, mut b) = (TestNode::start(config).await, TestNode::with_room(config, room).await);
    a.keep(&b);
    assert_eq!((a.up().await, b.up().await), (b.id(), a.id()));
    (a, b)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_talk_on_every_lane_in_both_directions() {
    let (a, b) = pair(&quick()).await;
    for class in TrafficClass::ALL {
        a.send(b.id().incarnation, class, b"from a");
        b.send(a.id().incarnation, class, b"from b");
    }
    for (host, from, said) in [(&a, &b, b"from b"), (&b, &a, b"from a")] {
        let mut heard = Vec::new();
        eventually("every lane is heard", async || {
            heard.extend(host.inbox.take());
            heard.len() == 4
        })
        .await;
        heard.sort();
        let all: Vec<_> =
            TrafficClass::ALL.iter().map(|c| (from.id(), *c, said.to_vec())).collect();
        assert_eq!(heard, all);
    }
}

/// The timers of libp2p and of the system cannot represent such times.
#[tokio::test(flavor = "multi_thread")]
async fn longest_times_are_accepted() {
    let longest = Duration::MAX;
    let limits = NetLimits {
        first_message_within: longest,
        handshake_within: longest,
        idle_timeout: longest,
        control_undrained_max: longest,
        link_down_max: longest,
        tcp_user_timeout: longest,
        back_off: (Duration::from_millis(5), longest),
        ..NetLimits::default()
    };
    let (a, b) = pair(&NetConfig { limits, ..quick() }).await;
    for class in TrafficClass::ALL {
        a.send(b.id().incarnation, class, b"from a");
    }
    let mut count = 0;
    eventually("every lane is heard", async || {
        count += b.inbox.take().len();
        count == TrafficClass::ALL.len()
    })
    .await;
    soon(a.net.stop_within(longest)).await; // all is acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_has_a_connection_of_its_own() {
    let (a, b) = pair(&quick()).await;
    a.send(b.id().incarnation, TrafficClass::Bulk, &[7; 1_000_000]);
    eventually("the large message arrives", async || b.inbox.take().len() == 1).await;
    let peers = a.net.peers().await;
    assert_eq!(peers.iter().map(|peer| peer.connections).collect::<Vec<_>>(), [2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hundred_crossing_dials_keep_one_ordered_lossless_link() {
    for _ in 0..10 {
        futures::future::join_all((0..10).map(|_| crossing_dials())).await;
    }
}

async fn crossing_dials() {
    let config = quick();
    let (mut a, mut b) = (TestNode::start(&config).await, TestNode::start(&config).await);
    a.keep(&b);
    b.keep(&a);
    a.up().await;
    b.up().await;
    for n in 0..200_u64 {
        a.send(b.id().incarnation, TrafficClass::User, &n.to_be_bytes());
        b.send(a.id().incarnation, TrafficClass::User, &n.to_be_bytes());
        tokio::task::yield_now().await;
    }
    receives_in_order(&a, 200).await;
    receives_in_order(&b, 200).await;
    eventually("one connection is left", async || {
        let both = [a.net.peers().await, b.net.peers().await];
        both.iter().flatten().all(|peer| peer.connections == 1 && peer.linked)
    })
    .await;
    for host in [&mut a, &mut b] {
        while let Ok(event) = host.events.try_recv() {
            assert!(!matches!(event, NetEvent::LaneBroken { .. }), "{event:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_connections_keep_order_without_loss() {
    const MESSAGES: u64 = 30_000;
    let (mut a, mut b, proxy) = behind_a_proxy(&patient(SOON)).await;
    a.up().await;
    b.up().await;
    let send = async |from: &TestNode, to: &TestNode| {
        for n in 0..MESSAGES {
            let mut body = n.to_be_bytes().to_vec();
            body.resize(8 + (n % 400) as usize, 0);
            from.send_waiting(to.id().incarnation, TrafficClass::User, &body).await;
            if n % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
    };
    let cuts = async {
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            proxy.cut();
        }
    };
    tokio::join!(
        send(&a, &b),
        send(&b, &a),
        receives_in_order(&a, MESSAGES),
        receives_in_order(&b, MESSAGES),
        cuts,
    );
    for host in [&mut a, &mut b] {
        while let Ok(event) = host.events.try_recv() {
            assert!(!matches!(event, NetEvent::LaneBroken { .. }), "{event:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn link_cut_for_good_counts_unacknowledged_exactly() {
    // Long enough to send while the link is down.
    let (mut a, mut b, proxy) = behind_a_proxy(&patient(Duration::from_secs(5))).await;
    a.up().await;
    b.up().await;
    let to = b.id().incarnation;
    a.send(to, TrafficClass::User, &0_u64.to_be_bytes());
    let lane = a.net.lane(to, TrafficClass::User).expect("known");
    eventually("the first is acknowledged", async || lane.stats().unacknowledged == 0).await;
    proxy.close();
    eventually("the connection is gone", async || !a.net.peers().await[0].linked).await;
    for n in 1..=17_u64 {
        a.send(to, TrafficClass::User, &n.to_be_bytes());
    }
    let lost = a.event("the lane is broken", |event| match event {
        NetEvent::LaneBroken { node, class: TrafficClass::User, messages } => {
            Some((node, messages))
        }
        _ => None,
    });
    assert_eq!(lost.await, (b.id(), 17));
    proxy.open();
    a.send(to, TrafficClass::User, &18_u64.to_be_bytes());
    let mut heard = Vec::new();
    eventually("the lane goes on after the gap", async || {
        heard.extend(b.inbox.take().into_iter().map(|(_, _, body)| number(&body)));
        heard.len() >= 2
    })
    .await;
    assert_eq!(heard, [0, 18]);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_peer_gets_no_messages_for_the_old_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let keeps = NetConfig { data_dir: Some(directory.path().to_owned()), ..quick() };
    let (mut a, b, proxy) = behind_a_proxy(&keeps).await;
    assert_eq!(a.up().await, b.id());
    let old = b.id();
    proxy.close();
    eventually("the connection is gone", async || !a.net.peers().await[0].linked).await;
    a.send(old.incarnation, TrafficClass::Data, b"for the old one");
    drop(b);
    let b = TestNode::again(&NetConfig { advertise: vec![proxy.address.clone()], ..keeps }).await;
    proxy.lead_to(b.port());
    proxy.open();
    let mut lost = 0;
    let reborn = a
        .event("the new incarnation is known", |event| match event {
            NetEvent::LaneBroken { node, messages, .. } => {
                assert_eq!(node, old);
                lost += messages;
                None
            }
            NetEvent::NewIncarnation { old, node, is_proof } => Some((old, node, is_proof)),
            _ => None,
        })
        .await;
    assert_eq!(reborn, (old, b.id(), true), "the same lock on the same host is proof");
    assert_eq!(lost, 1);
    a.send(b.id().incarnation, TrafficClass::Data, b"for the new one");
    let mut heard = Vec::new();
    eventually("the new one hears", async || {
        heard.extend(b.inbox.take().into_iter().map(|(_, _, body)| body));
        !heard.is_empty()
    })
    .await;
    assert_eq!(heard, [b"for the new one"]);
    assert!(a.net.lane(old.incarnation, TrafficClass::Data).is_none(), "the old one has no lanes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_incarnation_is_refused_and_told_why() {
    let (mut a, mut b) = pair(&quick()).await;
    b.keep(&a);
    a.net.forget(b.id());
    let forgotten = a.event("it is forgotten", |event| match event {
        NetEvent::Forgotten { node } => Some(node),
        _ => None,
    });
    assert_eq!(forgotten.await, b.id());
    let refusal = b.event("it is refused", |event| match event {
        NetEvent::Refused { refusal, .. } => Some(refusal),
        _ => None,
    });
    assert_eq!(refusal.await, LaneRefusal::Quarantined);
    assert!(a.net.lane(b.id().incarnation, TrafficClass::Data).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_with_other_secret_or_cluster_never_comes_up() {
    let secret = |byte| Secret::new(vec![byte; 32]).ok().map(Secrets::from);
    let base = NetConfig { secret: secret(1), ..quick() };
    let other_secret = NetConfig { secret: secret(2), ..quick() };
    let other_name = NetConfig { cluster_name: "other".to_owned(), ..base.clone() };
    let mut a = TestNode::start(&base).await;
    for config in [other_secret, other_name] {
        let mut stranger = TestNode::start(&config).await;
        stranger.keep(&a);
        stranger
            .event("it is refused", |event| match event {
                NetEvent::DialRefused { .. } | NetEvent::Refused { .. } => Some(()),
                NetEvent::Up { .. } => panic!("a stranger was admitted"),
                _ => None,
            })
            .await;
    }
    let mut friend = TestNode::start(&base).await;
    friend.keep(&a);
    assert_eq!(friend.up().await, a.id());
    assert_eq!(a.up().await, friend.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_queued_at_the_stop_still_arrive() {
    let (a, b) = pair(&patient(SOON)).await;
    for n in 0..5_000_u64 {
        a.send(b.id().incarnation, TrafficClass::User, &n.to_be_bytes());
    }
    a.net.stop().await;
    receives_in_order(&b, 5_000).await;
}

/// Two nodes that are saturated with each other's messages and answer every one of them.
#[tokio::test(flavor = "multi_thread")]
async fn two_saturated_nodes_that_answer_each_other_do_not_deadlock() {
    const MESSAGES: u64 = 20_000;
    let limits = NetLimits { lane_bytes_max: [64 * 1024; 4], ..quick().limits };
    let config = NetConfig { limits, ..quick() };
    let (mut a, mut b) =
        (TestNode::with_room(&config, 100).await, TestNode::with_room(&config, 100).await);
    a.keep(&b);
    a.up().await;
    b.up().await;
    let ask = async |from: &TestNode, to: ReplicaId| {
        for n in 0..MESSAGES {
            from.send_waiting(to, TrafficClass::User, &[&n.to_be_bytes()[..], b"?"].concat()).await;
        }
    };
    let answer = async |host: &TestNode, to: ReplicaId| {
        let (mut asked, mut answered) = (0, 0);
        eventually("all is asked and answered", async || {
            for (_, _, body) in host.inbox.take() {
                if body.len() == 9 {
                    asked += 1;
                    let lane = host.net.lane(to, TrafficClass::User).expect("known");
                    lane.answer(&[], &body[..8]).expect("answers have room of their own");
                } else {
                    assert_eq!(number(&body), answered);
                    answered += 1;
                }
            }
            asked == MESSAGES && answered == MESSAGES
        })
        .await;
    };
    let (to_a, to_b) = (a.id().incarnation, b.id().incarnation);
    tokio::join!(ask(&a, to_b), ask(&b, to_a), answer(&a, to_b), answer(&b, to_a));
}

/// 20,000 requests in flight share the open substreams. With a substream each, the limit of 512
/// would end the connection.
#[tokio::test(flavor = "multi_thread")]
async fn known_failures_26_and_30_requests_share_few_substreams() {
    const REQUESTS: u64 = 20_000;
    let (a, b) = pair(&quick()).await;
    for n in 0..REQUESTS {
        a.send_waiting(b.id().incarnation, TrafficClass::User, &n.to_be_bytes()).await;
    }
    let mut answered = 0;
    eventually("every request is answered", async || {
        for (from, class, body) in b.inbox.take() {
            let lane = b.net.lane(from.incarnation, class).expect("known");
            lane.answer(&[], &body).expect("room");
        }
        answered += a.inbox.take().len();
        answered as u64 == REQUESTS
    })
    .await;
    let peers = a.net.peers().await;
    assert_eq!((peers.len(), peers[0].connections), (1, 1));
}

mod addresses;
mod clients;
mod contacts;
mod counts;
mod lives;
mod races;
mod silent;
mod stops;
mod undrained;
