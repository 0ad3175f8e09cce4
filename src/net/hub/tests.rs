//! Hubs that are run by hand, event by event: what one finds if several things happen before it
//! looks. Nothing here depends on which of two tasks is the faster one.

use std::sync::Mutex;

use futures::future::BoxFuture;

use super::*;
use crate::net::config::Limits;
use crate::net::{Busy, Inbound};

const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps what arrives, once it is told to take anything.
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

    fn ready(&self, _: Class) -> BoxFuture<'_, ()> {
        let mut takes = self.takes.subscribe();
        async move {
            let _ = takes.wait_for(|takes| *takes).await; // its sender is this receiver's own
        }
        .boxed()
    }
}

struct Bench {
    hub: Hub,
    taker: Arc<Taker>,
    address: Multiaddr,
    events: mpsc::UnboundedReceiver<Event>,
    _commands: mpsc::UnboundedSender<Command>,
    _identity: Identity,
}

impl Bench {
    async fn start() -> Self {
        let limits = Limits { link_down_max: PATIENCE, ..Limits::default() };
        let config = Config { limits, ..Config::default() };
        let identity = Identity::load(None).expect("an identity");
        let taker = Arc::new(Taker { takes: watch::Sender::new(false), got: Mutex::default() });
        let (_commands, commands) = mpsc::unbounded_channel();
        let (told, events) = mpsc::unbounded_channel();
        let receiver = taker.clone();
        let setup = Setup { config: &config, identity: &identity, receiver, commands, events: told };
        let Started { hub, listening, .. } = Hub::start(setup).await.expect("a free port");
        let address = listening[0].clone();
        Self { hub, taker, address, events, _commands, _identity: identity }
    }

    /// As [`Hub::run`] does, once.
    async fn step(&mut self) {
        let hub = &mut self.hub;
        let wait = hub.deadline() - hub.now().mono;
        tokio::select! {
            event = hub.swarm.select_next_some() => hub.on_swarm(event),
            Some(report) = hub.reports.recv() => hub.on_report(report),
            Some(wanted) = hub.wanted.recv() => hub.on_wanted(wanted),
            () = tokio::time::sleep(wait) => hub.tick(),
        }
    }

    fn keep(&mut self, other: &Self) {
        self.hub.on_command(Command::Keep(other.hub.me.peer, vec![other.address.clone()]));
    }

    /// Whether every lane to that peer that is wanted is carried, and nothing else is under way.
    fn is_linked(&self, other: &Self) -> bool {
        let link = self.hub.peers.get(&other.hub.me.peer).map(|peer| &peer.link);
        link.is_some_and(|link| link.carried_since(Class::Control).is_some())
            && self.hub.directory.used(other.hub.me.incarnation, Class::Control).is_some()
    }
}

async fn soon<T>(what: &str, wanted: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, wanted).await;
    waited.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Runs both hubs until `met` says so.
async fn until(what: &str, a: &mut Bench, b: &mut Bench, met: impl Fn(&Bench, &Bench) -> bool) {
    soon(what, async {
        while !met(a, b) {
            tokio::select! {
                () = a.step() => {}
                () = b.step() => {}
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    })
    .await;
}

/// Two hubs, the first of which keeps its link to the second.
async fn linked() -> (Bench, Bench) {
    let (mut a, mut b) = (Bench::start().await, Bench::start().await);
    a.keep(&b);
    until("the link is up", &mut a, &mut b, Bench::is_linked).await;
    (a, b)
}

#[tokio::test]
async fn a_stop_that_comes_before_the_report_of_a_broken_lane_does_not_end_without_it() {
    const MESSAGES: u64 = 100;
    let (mut a, mut b) = linked().await;
    let (from, to) = (a.hub.me, b.hub.me);
    let lane = a.hub.directory.lane(to.incarnation, Class::User).expect("it is up");
    for n in 0..MESSAGES {
        lane.send(&[], &n.to_be_bytes()).expect("room");
    }
    until("all are under way", &mut a, &mut b, |_, _| lane.stats().unsent == 0).await;
    b.hub.swarm.disconnect_peer_id(from.peer).expect("they are connected");
    // Whatever carried a lane is over, and nobody has heard of it.
    soon("the break is seen", async {
        while a.hub.peers[&to.peer].carries() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    b.taker.takes.send_replace(true);
    let taker = b.taker.clone();
    let serving = tokio::spawn(b.hub.run());
    let (done, stopped) = oneshot::channel();
    soon("the end", a.hub.stop(Duration::MAX, done)).await;
    assert_eq!(stopped.await, Ok(()));
    let got: Vec<_> = (0..MESSAGES).map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(*taker.got.lock().expect("no test panics under it"), got);
    let mut lost = Vec::new();
    while let Some(event) = a.events.recv().await {
        lost.extend(matches!(event, Event::LaneBroken { .. }).then_some(event));
    }
    assert_eq!(lost, []);
    serving.abort();
}
