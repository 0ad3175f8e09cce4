//! The node's own steps of the coordinated shutdown, and the end by a signal.
//!
//! In order: from the beginning no target of allocations; shards handed over; Leaving; with the
//! lease released Exiting; out by a configuration; membership, replicated data and lanes ended.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::Node;
use super::cluster::Cluster;
use super::control::ControlPart;
use super::parts::Running;
use super::sharding::Sharding;
use super::shutdown::{CoordinatedShutdown, Phase, Reason};
use super::tools::Tools;
use crate::cluster::member::Status;
use crate::cluster::membership::port::Command;
use crate::net::handle::Net;
use crate::net::identity::Identity;
use crate::runtime::OwnRuntime;

/// The exit code after a second signal.
const IMPATIENT: i32 = 130;

/// Of the last phase's time, half of it at most: to count what peers have not taken, and to close
/// what is open. The rest is [shared](share).
const TO_COUNT: Duration = Duration::from_millis(500);

/// What runs, until somebody ends it.
pub(super) struct Ending {
    parts: Mutex<Parts>,
}

#[derive(Default)]
pub(super) struct Parts {
    pub(super) tools: Option<Tools>,
    pub(super) control: Option<ControlPart>,
    pub(super) rest: Option<Rest>,
}

pub(super) struct Rest {
    pub(super) running: Running,
    pub(super) net: Net,
    pub(super) listening: JoinHandle<()>,
    pub(super) identity: Arc<Identity>, // the last to go
    pub(super) runtime: OwnRuntime,     // of the Replicator and its lanes
}

impl Ending {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self { parts: Mutex::new(parts) })
    }

    /// Ends everything without a goodbye.
    pub(super) fn drop_parts(&self) {
        let parts = std::mem::take(&mut *self.lock());
        if let Some(rest) = &parts.rest {
            rest.listening.abort();
        }
        drop(parts); // after the lock
    }

    /// Tools are served until the end.
    pub(super) fn has_tools(&self, tools: Tools) {
        self.lock().tools = Some(tools);
    }

    fn stop_tools(&self) {
        let tools = self.lock().tools.take();
        drop(tools); // after the lock
    }

    async fn stop_control(&self) {
        let control = self.lock().control.take();
        if let Some(control) = control {
            control.stop().await;
        }
    }

    /// Stops the rest, `within` which its phase is over: what peers have not taken by then is
    /// counted, and the sockets are closed before the identity is let go.
    async fn stop_rest(&self, within: Duration) {
        let Some(rest) = self.lock().rest.take() else { return };
        let Rest { running, net, listening, identity, runtime } = rest;
        let within = within - TO_COUNT.min(within / 2);
        match share(within, running.stop(), |left| net.stop_within(left)).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => tracing::error!(%error, "node.stopped_late"),
            None => tracing::error!(?within, "node.stopped_late: replicated data still end"),
        }
        listening.abort();
        drop((identity, runtime));
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code under it
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ending")
    }
}

/// Ends replicated data, and lanes behind them, in one span of time. The former have half of it alone
/// (a disk that hangs takes no more from the lanes), lanes what those leave, and a disk that is slow
/// what there is beside the lanes. `None`: the data have not ended.
async fn share<T, F>(
    within: Duration,
    data: impl Future<Output = T>,
    lanes: impl FnOnce(Duration) -> F,
) -> Option<T>
where
    F: Future<Output = ()>,
{
    let (begun, mut data) = (Instant::now(), pin!(data));
    let ended = timeout(within / 2, &mut data).await.ok();
    let left = within.saturating_sub(begun.elapsed());
    if ended.is_some() {
        lanes(left).await;
        return ended;
    }
    let (ended, ()) = join(timeout(left, data), lanes(left)).await;
    ended.ok()
}

/// Adds the steps of a node that belongs to a cluster.
pub(super) fn leave_in_order(
    shutdown: &CoordinatedShutdown,
    cluster: &Cluster,
    sharding: &Sharding,
) {
    let (draining, leaving) = (sharding.clone(), sharding.clone());
    let waiting = cluster.clone();
    add(
        shutdown,
        Phase::BeforeServiceUnbind,
        "drain",
        move || async move { draining.begin_drain() },
    );
    add(shutdown, Phase::ClusterShardingShutdownRegion, "shards", move || async move {
        waiting.wait_for_newcomers().await;
        leaving.leave().await;
    });
    let [leaves, exits, goes] = [(); 3].map(|()| cluster.clone());
    add(shutdown, Phase::ClusterLeave, "leave", move || leave(leaves));
    add(shutdown, Phase::ClusterExiting, "exit", move || exit(exits));
    add(shutdown, Phase::ClusterExitingDone, "out", move || out(goes));
}

/// Adds the end of all parts.
pub(super) fn end_parts(shutdown: &CoordinatedShutdown, ending: &Arc<Ending>) {
    let [first, tools, last] = [(); 3].map(|()| ending.clone());
    let within = shutdown.timeout(Phase::Terminate);
    add(shutdown, Phase::ClusterShutdown, "membership", move || async move {
        first.stop_control().await;
    });
    add(shutdown, Phase::BeforeTerminate, "tools", move || async move { tools.stop_tools() });
    add(shutdown, Phase::Terminate, "parts", move || async move { last.stop_rest(within).await });
}

fn add<F>(
    shutdown: &CoordinatedShutdown,
    phase: Phase,
    name: &str,
    task: impl FnOnce() -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let added = shutdown.add_task(phase, name, task);
    assert!(added.is_ok(), "no shutdown begins before the node has started");
}

async fn leave(cluster: Cluster) {
    if cluster.is_member() && cluster.order(Command::Leave(cluster.me().incarnation)).await.is_ok()
    {
        cluster.until(|status| status.is_none_or(|status| status >= Status::Leaving)).await;
    }
}

/// Nothing runs here any more: the lease is released.
async fn exit(cluster: Cluster) {
    if cluster.is_member() && cluster.order(Command::Drained).await.is_ok() {
        cluster.until(|status| status.is_none_or(|status| status >= Status::Exiting)).await;
    }
}

async fn out(cluster: Cluster) {
    if cluster.is_member() {
        cluster.until(|_| false).await; // until membership says so
    }
}

impl Node {
    /// Runs until SIGTERM or SIGINT comes, or the node stops for a reason of its own, then ends it
    /// in order. A second signal exits the process at once, with code 130.
    ///
    /// Returns why it ended. A node that was removed by the others, that its downing strategy ended,
    /// or that found no cluster in time returns [`Reason::Membership`]: exit with
    /// [`Reason::exit_code`], so that a supervisor starts it again. `ExitCode::from(reason)` is what
    /// `main` may return.
    ///
    /// # Errors
    /// The system takes no handler for signals. The node was stopped then.
    pub async fn run_until_signal(self) -> io::Result<Reason> {
        let shutdown = self.shutdown();
        let signals = signal(SignalKind::terminate())
            .and_then(|terminate| Ok((terminate, signal(SignalKind::interrupt())?)));
        let (mut terminate, mut interrupt) = match signals {
            Ok(signals) => signals,
            Err(error) => {
                self.stop().await;
                return Err(error);
            }
        };
        let done = shutdown.done();
        tokio::pin!(done);
        loop {
            tokio::select! {
                reason = &mut done => return Ok(reason),
                Some(()) = terminate.recv() => {}
                Some(()) = interrupt.recv() => {}
            }
            if shutdown.reason() == Some(Reason::Signal) {
                tracing::error!("node.impatient: a second signal, the node ends at once");
                std::process::exit(IMPATIENT);
            }
            if shutdown.reason().is_some() {
                tracing::warn!("node.stopping: it is about to end already; once more ends it now");
            }
            shutdown.begin(Reason::Signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;
    use crate::net::config::{Config, Limits};
    use crate::net::handle::Event;
    use crate::net::{Busy, Class, Inbound, Receiver};
    use crate::node::parts;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Takes nothing.
    struct Paused;

    impl Receiver for Paused {
        fn receive(&self, _: Inbound<'_>) -> Result<(), Busy> {
            Err(Busy)
        }

        fn ready(&self, _: Class) -> BoxFuture<'_, ()> {
            std::future::pending().boxed()
        }
    }

    #[tokio::test]
    async fn lanes_have_the_time_that_data_leave_and_half_of_it_in_any_case() {
        let mut had = None;
        let lanes = |left| {
            had = Some(left);
            std::future::ready(())
        };
        assert_eq!(share(PATIENCE, std::future::ready(7), lanes).await, Some(7));
        assert!(had.is_some_and(|left| left > PATIENCE / 2), "{had:?}");
        let within = Duration::from_millis(100);
        let lanes = |left| {
            had = Some(left);
            std::future::ready(())
        };
        assert_eq!(share(within, std::future::pending::<()>(), lanes).await, None);
        assert!(had.is_some_and(|left| left <= within / 2), "{had:?}");
    }

    #[tokio::test]
    async fn a_slow_disk_has_the_time_of_the_lanes_beside_them() {
        let (lanes_end, data_end) = tokio::sync::oneshot::channel();
        let lanes = |_| async move { lanes_end.send(7).expect("somebody still waits") };
        let within = Duration::from_secs(2);
        assert_eq!(share(within, data_end, lanes).await, Some(Ok(7)), "after half of the time");
    }

    #[tokio::test]
    async fn what_a_peer_does_not_take_is_counted_without_waiting_for_the_link() {
        let limits = Limits { link_down_max: PATIENCE, ..Limits::default() };
        let config = Config { limits, ..Config::default() };
        let [own, other] = [(); 2].map(|()| Identity::load(None).expect("an identity"));
        let started = Net::start(&config, &own, Arc::new(Paused)).await;
        let (net, mut told) = started.expect("a free port");
        let started = Net::start(&config, &other, Arc::new(Paused)).await;
        let (peer, _events) = started.expect("a free port");
        net.keep(peer.me().peer, vec![peer.listening()[0].clone()]);
        let up =
            async { while !matches!(told.recv().await.expect("it runs"), Event::Up { .. }) {} };
        tokio::time::timeout(PATIENCE, up).await.expect("it never came up");
        let lane = net.lane(peer.me().incarnation, Class::User).expect("it is up");
        lane.send(&[], b"unheard").expect("room");
        let running = parts::alone().await.running;
        let listening = tokio::spawn(std::future::ready(()));
        let runtime = OwnRuntime::start("data", 1).expect("a thread");
        let rest = Rest { running, net, listening, identity: Arc::new(own), runtime };
        let ending = Ending::new(Parts { tools: None, control: None, rest: Some(rest) });
        let stopping = ending.stop_rest(Duration::from_secs(2));
        let stopped = tokio::time::timeout(PATIENCE / 2, stopping).await;
        assert!(stopped.is_ok(), "a link may be down for {PATIENCE:?}");
        let mut lost = Vec::new();
        while let Some(event) = told.recv().await {
            if let Event::LaneBroken { node, class, messages } = event {
                lost.push((node, class, messages));
            }
        }
        assert_eq!(lost, [(peer.me(), Class::User, 1)]);
    }
}
