//! Tests that drive connection managers by hand, one event at a time, to check what each does when
//! several things happen before it runs. No test depends on the relative speed of two tasks.

use std::io;
use std::sync::Mutex;

use futures::future::BoxFuture;
use libp2p::TransportError;
use tokio::time::timeout;

use super::*;
use crate::net::config::NetLimits;
use crate::net::noise::NoiseError;
use crate::net::warning_throttle::WarningSource;
use crate::net::wire::{Hello, Nonce};
use crate::net::{Busy, Inbound};
use crate::waits::{SOON, eventually, soon};

/// Stores received messages, but rejects all until `takes` is set.
struct Taker {
    takes: watch::Sender<bool>,
    got: Mutex<Vec<Vec<u8>>>,
}

impl Receiver for Taker {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        if !*self.takes.borrow() {
            return Err(Busy);
        }
        self.got.lock().expect("no test panics under it").push(message.body.to_vec());
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        let mut takes = self.takes.subscribe();
        async move {
            let _ = takes.wait_for(|takes| *takes).await; // never fails: `self` holds the sender
        }
        .boxed()
    }
}

struct Bench {
    manager: ConnectionManager,
    taker: Arc<Taker>,
    address: Multiaddr,
    events: mpsc::UnboundedReceiver<NetEvent>,
    _commands: mpsc::UnboundedSender<ConnectionCommand>,
    _identity: Identity,
}

impl Bench {
    async fn start() -> Self {
        let limits = NetLimits { link_down_max: SOON, ..NetLimits::default() };
        let config = NetConfig { limits, ..NetConfig::default() };
        let identity = Identity::load(None).expect("an identity");
        let taker = Arc::new(Taker { takes: watch::Sender::new(false), got: Mutex::default() });
        let (_commands, commands) = mpsc::unbounded_channel();
        let (event_sender, events) = mpsc::unbounded_channel();
        let (receiver, runtimes) = (taker.clone(), Runtimes::current());
        let setup = ConnectionManagerSetup {
            config: &config,
            identity: &identity,
            receiver,
            commands,
            events: event_sender,
            runtimes,
        };
        let StartedConnectionManager { manager, listening, .. } =
            ConnectionManager::start(setup).await.expect("a free port");
        let address = listening[0].clone();
        Self { manager, taker, address, events, _commands, _identity: identity }
    }

    /// Runs one iteration of the loop of [`ConnectionManager::run`].
    async fn step(&mut self) {
        let manager = &mut self.manager;
        let wait = manager.deadline() - manager.now().mono;
        tokio::select! {
            event = manager.swarm.select_next_some() => manager.on_swarm(event),
            Some(report) = manager.reports.recv() => manager.on_report(report),
            Some(wanted) = manager.wanted.recv() => manager.on_wanted(wanted),
            () = tokio::time::sleep(wait) => manager.tick(),
        }
    }

    /// Runs the connection manager until `met` holds.
    async fn until(&mut self, what: &str, met: impl Fn(&Self) -> bool) {
        let met = async {
            while !met(self) {
                self.step().await;
            }
        };
        timeout(SOON, met).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    fn keep(&mut self, other: &Self) {
        self.manager.on_command(ConnectionCommand::Keep(
            other.manager.me.peer,
            vec![other.address.clone()],
        ));
    }

    /// Whether the control lane to that peer is carried.
    fn is_linked(&self, other: &Self) -> bool {
        let link = self.manager.peers.get(&other.manager.me.peer).map(|peer| &peer.link);
        link.is_some_and(|link| link.carried_since(TrafficClass::Control).is_some())
            && self
                .manager
                .directory
                .used(other.manager.me.incarnation, TrafficClass::Control)
                .is_some()
    }
}

/// Runs both managers until `met` holds.
async fn until(what: &str, a: &mut Bench, b: &mut Bench, met: impl Fn(&Bench, &Bench) -> bool) {
    let met = async {
        while !met(a, b) {
            tokio::select! {
                () = a.step() => {}
                () = b.step() => {}
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    };
    timeout(SOON, met).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Starts two connection managers, of which the first keeps its link to the second.
async fn linked() -> (Bench, Bench) {
    let (mut a, mut b) = (Bench::start().await, Bench::start().await);
    a.keep(&b);
    until("the link is up", &mut a, &mut b, Bench::is_linked).await;
    (a, b)
}

#[tokio::test]
async fn stop_waits_for_the_report_of_a_broken_lane() {
    const MESSAGES: u64 = 100;
    let (mut a, mut b) = linked().await;
    let (from, to) = (a.manager.me, b.manager.me);
    let lane = a.manager.directory.lane(to.incarnation, TrafficClass::User).expect("it is up");
    for n in 0..MESSAGES {
        lane.send(&[], &n.to_be_bytes()).expect("room");
    }
    until("all are under way", &mut a, &mut b, |_, _| lane.stats().unsent == 0).await;
    b.manager.swarm.disconnect_peer_id(from.peer).expect("they are connected");
    // The tasks of the lane have ended, but the connection manager has not processed their reports.
    eventually("the break is seen", async || !a.manager.peers[&to.peer].carries()).await;
    b.taker.takes.send_replace(true);
    let taker = b.taker.clone();
    let serving = tokio::spawn(b.manager.run());
    let (done, stopped) = oneshot::channel();
    soon(a.manager.stop(Duration::MAX, done)).await;
    assert_eq!(stopped.await, Ok(()));
    let got: Vec<_> = (0..MESSAGES).map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(*taker.got.lock().expect("no test panics under it"), got);
    let mut lost = Vec::new();
    while let Some(event) = a.events.recv().await {
        lost.extend(matches!(event, NetEvent::LaneBroken { .. }).then_some(event));
    }
    assert_eq!(lost, []);
    serving.abort();
}

/// The stop begins between the peer's hello, which its task has judged, and the report of it.
#[tokio::test]
async fn lane_of_an_earlier_handshake_is_refused_at_the_stop() {
    let (mut a, b) = linked().await;
    let peer = b.manager.me.peer;
    let connection = a.manager.peers[&peer].link.carrier().expect("the link is up");
    let hello = Hello {
        facts: b.manager.standing.borrow().facts.clone(),
        nonce: Nonce([0; 32]),
        proof: None,
        to: Some(a.manager.me.incarnation),
        class: TrafficClass::User,
        generation: 1,
        first_unacknowledged: 1,
    };
    a.manager.stops = true;
    let reader = tokio::spawn(std::future::pending::<()>()).abort_handle();
    let (reply, lane) = oneshot::channel();
    a.manager.on_report(Report::Hello { peer, connection, hello, reader, reply });
    let refusal = lane.await.expect("it is answered").err();
    assert_eq!(refusal, Some(LaneRefusal::Stopping));
}

/// Two attempts at first contact: the first one is welcomed after the second has replaced it.
#[tokio::test]
async fn welcome_to_a_replaced_attempt_is_ignored() {
    let (mut a, b) = linked().await;
    let (id, class) = (b.manager.me, TrafficClass::User);
    let peer = &a.manager.peers[&id.peer];
    let connection = peer.link.carrier().expect("the link is up");
    let lane = Lane::new(id, class, &a.manager.tasks.limits);
    let facts =
        NodeInfo { incarnation: id.incarnation, ..b.manager.standing.borrow().facts.clone() };
    let (reply, goes_on) = oneshot::channel();
    let (attempt, accepted, is_new) = (0, 0, true); // attempts are counted from 1
    let peer = id.peer;
    a.manager.welcomed(WelcomedLane {
        peer,
        class,
        attempt,
        connection,
        facts,
        accepted,
        lane,
        is_new,
        reply,
    });
    assert!(goes_on.await.is_err(), "its task goes on");
    assert!(a.manager.directory.used(id.incarnation, class).is_none(), "its lane is the one now");
}

/// An incarnation of a kept peer is forgotten while it is being dialled.
#[tokio::test]
async fn aborted_dial_of_a_former_incarnation_is_not_reported() {
    let (mut a, b) = linked().await;
    let former = b.manager.me;
    // This listener accepts connections and never sends anything.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let silent_at: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address");
    let keep = || ConnectionCommand::Keep(former.peer, vec![silent_at.clone()]);
    a.manager.on_command(keep());
    drop(b);
    let is_dialled = |a: &Bench| a.manager.dials.values().any(|dial| dial.address == silent_at);
    a.until("it is dialled anew", is_dialled).await;
    a.manager.on_command(ConnectionCommand::Release(former.peer));
    a.manager.on_command(keep());
    while a.events.try_recv().is_ok() {}
    a.manager.forget(former);
    let pending =
        |a: &Bench| a.manager.swarm.network_info().connection_counters().num_pending_outgoing();
    assert_eq!(pending(&a), 2, "both incarnations are being dialled");
    a.until("the former dial is over", |a| pending(a) == 1).await;
    assert_eq!(a.manager.dials.len(), 1);
    while let Ok(event) = a.events.try_recv() {
        assert!(!matches!(event, NetEvent::DialRefused { .. }), "{event:?}");
    }
}

/// Two peers have equal incarnations by a hash collision: the first one keeps its lanes.
#[tokio::test]
async fn second_peer_with_an_equal_incarnation_is_refused() {
    let (mut a, b) = linked().await;
    let (node, connection) = (b.manager.me, a.manager.peers[&b.manager.me.peer].link.carrier());
    let connection = connection.expect("the link is up");
    let facts = b.manager.standing.borrow().facts.clone();
    let own = NodeInfo { incarnation: a.manager.me.incarnation, ..facts.clone() };
    for facts in [&facts, &own] {
        let admitted = a.manager.admit(PeerId::random(), connection, facts);
        assert_eq!(admitted, Err(LaneRefusal::Claimed));
    }
    assert_eq!(a.manager.directory.peer_of(node.incarnation), Some(node.peer));
    assert_eq!(a.manager.admit(node.peer, connection, &facts), Ok(()));
}

#[tokio::test]
async fn refused_dial_of_known_peer_is_throttled_as_known() {
    let (mut a, b) = linked().await;
    let (peer, kind) = (b.manager.me.peer, "dial: secret");
    let cause = io::Error::other(NoiseError::Handshake(snow::Error::Decrypt));
    let cause = TransportError::Other(io::Error::other(cause));
    let error = DialError::Transport(vec![(b.address.clone(), cause)]);
    a.manager.complain_of_dial(Some(peer), &b.address, &error);
    let (now, throttle) = (std::time::Instant::now(), &mut a.manager.warning_throttle);
    assert!(!throttle.due(now, WarningSource::Known(peer), kind), "it was logged just now");
    assert!(throttle.due(now, WarningSource::Stranger(peer), kind));
}
