//! The node's own tasks in the coordinated shutdown, and [`Node::run_until_signal`].
//!
//! In the order of the phases: the node stops accepting shards, moves its shards away, becomes
//! Leaving, releases the hosting lease and becomes Exiting, waits for a configuration without it,
//! and then stops membership, replicated data and lanes.

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
use super::admin_server::AdminServer;
use super::cluster::Cluster;
use super::control::ControlPart;
use super::parts::ReplicatorTask;
use super::sharding::Sharding;
use super::shutdown::{CoordinatedShutdown, Phase, Reason};
use crate::cluster::member::Status;
use crate::cluster::membership::port::MembershipCommand;
use crate::net::handle::Net;
use crate::net::identity::Identity;
use crate::runtime::OwnRuntime;

/// Exit code after a second signal.
const IMPATIENT: i32 = 130;

/// Time reserved at the end of the phase `Terminate`, at most half of its timeout, for counting
/// messages that peers have not taken and for closing sockets. The data and the lanes [share] the
/// rest.
const TO_COUNT: Duration = Duration::from_millis(500);

/// The running parts of a node, each until the shutdown stops it or the node is dropped without a
/// shutdown. Each stop takes its part out under the lock and ends it after the lock, so to stop a
/// part that was stopped before has no effect and does not wait for the first stop.
pub(super) struct RunningParts {
    parts: Mutex<NodeParts>,
}

/// Parts of a node; `None` before the start, after the stop, and where the node has no such part.
#[derive(Default)]
pub(super) struct NodeParts {
    pub(super) tools: Option<AdminServer>,
    pub(super) tools_over: bool, // the shutdown has stopped them; later ones are stopped at once
    pub(super) control: Option<ControlPart>, // membership and the sharding machines
    pub(super) rest: Option<DataParts>,
}

/// The parts that every node has.
pub(super) struct DataParts {
    pub(super) running: ReplicatorTask,
    pub(super) net: Net,
    pub(super) listening: JoinHandle<()>, // the event pump
    pub(super) identity: Arc<Identity>,   // released last
    pub(super) runtime: OwnRuntime,       // for the Replicator and its lanes
}

impl RunningParts {
    pub(super) fn new(parts: NodeParts) -> Arc<Self> {
        Arc::new(Self { parts: Mutex::new(parts) })
    }

    /// Stops all parts at once, without leaving the cluster and without waiting for their ends.
    /// Called when the node is dropped and no shutdown has begun.
    pub(super) fn drop_parts(&self) {
        let parts = std::mem::take(&mut *self.lock());
        if let Some(rest) = &parts.rest {
            rest.listening.abort();
        }
        drop(parts); // after the lock
    }

    /// Takes over the administration server, to stop it with the other parts. Stops it at once if
    /// the shutdown has passed the phase that would.
    pub(super) fn set_tools(&self, tools: AdminServer) {
        let mut parts = self.lock();
        if parts.tools_over {
            drop(parts); // the lock, before the server
            drop(tools);
        } else {
            parts.tools = Some(tools);
        }
    }

    /// Stops the administration server and its connections, without waiting for their requests,
    /// which get no answer.
    fn stop_tools(&self) {
        let tools = {
            let mut parts = self.lock();
            parts.tools_over = true;
            parts.tools.take()
        };
        drop(tools); // after the lock
    }

    /// Stops membership and the sharding machines, and waits until they have handled their queued
    /// inputs. If the wait is dropped at the timeout of the phase, they stop all the same. Returns
    /// at once if the node has no membership or its membership has ended.
    async fn stop_control(&self) {
        let control = self.lock().control.take();
        if let Some(control) = control {
            control.stop().await;
        }
    }

    /// Stops replicated data and lanes within the timeout of the phase, less [`TO_COUNT`]. Messages
    /// that peers have not taken by then are counted. Logs an error if the Replicator panicked or
    /// did not end in time. Then stops the event pump, and releases the identity, which unlocks the
    /// data directory unless the node or a part still holds it, and the runtime of the Replicator.
    /// The sockets are closed before that.
    async fn stop_rest(&self, within: Duration) {
        let Some(rest) = self.lock().rest.take() else { return };
        let DataParts { running, net, listening, identity, runtime } = rest;
        let within = within - TO_COUNT.min(within / 2);
        match share(within, running.stop(), |left| net.stop_within(left)).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::error!(%error, "node.stopped_late: the Replicator ended with an error");
            }
            None => {
                tracing::error!(?within, "node.stopped_late: the Replicator has not ended in time");
            }
        }
        listening.abort();
        drop((identity, runtime));
    }

    fn lock(&self) -> MutexGuard<'_, NodeParts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code under it
    }
}

impl fmt::Debug for RunningParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunningParts")
    }
}

/// Stops the replicated data and then the lanes, in total `within` the given time. The lanes start
/// to stop when the data have ended or half of the time is over, so that a disk that hangs leaves
/// them the other half; meanwhile the data may still end. `lanes` is always called, once, with the
/// time that is left, and must keep to it: its future is awaited to its end. Returns `None` if the
/// data did not end, and drops their future.
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

/// Adds the tasks by which a node leaves its cluster; a node without membership has none of them:
///
/// - `BeforeServiceUnbind`, the first phase: makes this node accept no further shards, for good
///   ([`Sharding::begin_drain`]), without waiting. Must precede [`Sharding::leave`].
/// - `ClusterShardingShutdownRegion`: waits up to 3 s for new members that could take the shards
///   ([`Cluster::wait_for_newcomers`]), then moves them away ([`Sharding::leave`]).
/// - `ClusterLeave`: [`leave`]; `ClusterExiting`: [`exit`]; `ClusterExitingDone`: [`out`].
///
/// # Panics
/// If the shutdown has begun a phase of these tasks.
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

/// Adds the tasks that stop the parts of the node: membership in `ClusterShutdown`, the
/// administration server in `BeforeTerminate`, all others in `Terminate`. They run for every node;
/// a part that it does not have is skipped.
///
/// # Panics
/// If the shutdown has begun a phase of these tasks.
pub(super) fn end_parts(shutdown: &CoordinatedShutdown, ending: &Arc<RunningParts>) {
    let [first, tools, last] = [(); 3].map(|()| ending.clone());
    let within = shutdown.timeout(Phase::Terminate);
    add(shutdown, Phase::ClusterShutdown, "membership", move || async move {
        first.stop_control().await;
    });
    add(shutdown, Phase::BeforeTerminate, "tools", move || async move { tools.stop_tools() });
    add(shutdown, Phase::Terminate, "parts", move || async move { last.stop_rest(within).await });
}

/// Adds a task to a phase, for the node's start. Panics if the phase has begun.
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

/// Orders that this node becomes Leaving, and waits, without a limit of its own, until it is
/// Leaving, further on (Down included) or removed, or membership ends or stops it. Does nothing if
/// this node is no member, or membership has ended or stopped it.
async fn leave(cluster: Cluster) {
    if cluster.is_member()
        && cluster.order(MembershipCommand::Leave(cluster.me().incarnation)).await.is_ok()
    {
        cluster.until(|status| status.is_none_or(|status| status >= Status::Leaving)).await;
    }
}

/// Releases the hosting lease, after the shards have moved: no entity runs on this node any longer
/// (docs/protocol/membership.md#drain-before-exiting). This also ends the sharding machines for
/// good, and so stops all entities that are left, if the phase that moves shards timed out. Waits,
/// without a limit of its own, until this node is Exiting, Down or removed, or membership ends or
/// stops it. Does nothing if this node is no member, or membership has ended or stopped it.
async fn exit(cluster: Cluster) {
    if cluster.is_member() && cluster.order(MembershipCommand::Drained).await.is_ok() {
        cluster.until(|status| status.is_none_or(|status| status >= Status::Exiting)).await;
    }
}

/// Waits, without a limit of its own, until membership ends or stops this node, as it does once a
/// configuration without it is installed. Returns at once if this node is no member, or membership
/// has ended or stopped it.
async fn out(cluster: Cluster) {
    if cluster.is_member() {
        cluster.until(|_| false).await; // until membership ends or stops this node
    }
}

impl Node {
    /// Runs the node until the process receives SIGTERM or SIGINT, or the node stops for another
    /// reason, and then completes the coordinated shutdown. A second signal, of either kind, exits
    /// the process at once, with code 130 and without running destructors; also if the shutdown had
    /// begun for another reason before the first one, which then only logs a warning. The signal
    /// handlers stay installed, so the process ignores both signals after the return.
    ///
    /// If the future is dropped, the node is dropped as well; a shutdown that has begun continues.
    ///
    /// Returns the reason with which the shutdown began. It is [`Reason::Membership`] if the other
    /// members removed the node, its downing strategy stopped it, or it found no cluster in time:
    /// exit with [`Reason::exit_code`], so that a supervisor restarts it. `main` may return
    /// `ExitCode::from(reason)`.
    ///
    /// # Errors
    /// If the operating system accepts no signal handler. The node has been stopped in order then,
    /// with [`Reason::Asked`].
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
        let mut is_signalled = false;
        loop {
            tokio::select! {
                reason = &mut done => return Ok(reason),
                Some(()) = terminate.recv() => {}
                Some(()) = interrupt.recv() => {}
            }
            if is_signalled {
                tracing::error!(
                    "node.impatient: a second signal ends the node at once, with code 130"
                );
                std::process::exit(IMPATIENT);
            }
            is_signalled = true;
            if let Some(reason) = shutdown.reason() {
                tracing::warn!(
                    ?reason,
                    "node.stopping: the node stops already; another signal ends it at once, with code 130"
                );
            }
            shutdown.begin(Reason::Signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::Config;
    use crate::net::config::{NetConfig, NetLimits};
    use crate::net::handle::NetEvent;
    use crate::net::{Busy, Inbound, Receiver, TrafficClass};
    use crate::node::{admin_server, parts};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A receiver that accepts no message.
    struct Paused;

    impl Receiver for Paused {
        fn receive(&self, _: Inbound<'_>) -> Result<(), Busy> {
            Err(Busy)
        }

        fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
            std::future::pending().boxed()
        }
    }

    #[tokio::test]
    async fn lanes_get_the_time_left_by_data_but_at_least_half() {
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

    /// A shutdown may begin when membership runs, before the node serves tools.
    #[tokio::test]
    async fn tools_set_after_the_phase_of_tools_are_stopped() {
        let node = Node::listen(Config::default()).await.expect("it starts");
        let ending = RunningParts::new(NodeParts::default());
        ending.stop_tools();
        let (connected, clients) = mpsc::channel(1);
        let runtime = admin_server::start_threads().expect("threads");
        ending.set_tools(AdminServer::serve(runtime, None, clients, &node.management()));
        tokio::time::timeout(PATIENCE, connected.closed()).await.expect("the server has ended");
    }

    #[tokio::test]
    async fn slow_disk_may_end_while_the_lanes_stop() {
        let (lanes_end, data_end) = tokio::sync::oneshot::channel();
        let lanes = |_| async move { lanes_end.send(7).expect("somebody still waits") };
        let within = Duration::from_secs(2);
        assert_eq!(
            share(within, data_end, lanes).await,
            Some(Ok(7)),
            "the data end with the lanes"
        );
    }

    #[tokio::test]
    async fn stop_counts_untaken_messages_without_waiting_for_the_link() {
        let limits = NetLimits { link_down_max: PATIENCE, ..NetLimits::default() };
        let config = NetConfig { limits, ..NetConfig::default() };
        let [own, other] = [(); 2].map(|()| Identity::load(None).expect("an identity"));
        let started = Net::start(&config, &own, Arc::new(Paused)).await;
        let (net, mut told) = started.expect("a free port");
        let started = Net::start(&config, &other, Arc::new(Paused)).await;
        let (peer, _events) = started.expect("a free port");
        net.keep(peer.me().peer, vec![peer.listening()[0].clone()]);
        let up =
            async { while !matches!(told.recv().await.expect("it runs"), NetEvent::Up { .. }) {} };
        tokio::time::timeout(PATIENCE, up).await.expect("it never came up");
        let lane = net.lane(peer.me().incarnation, TrafficClass::User).expect("it is up");
        lane.send(&[], b"unheard").expect("room");
        let running = parts::alone().await.running;
        let listening = tokio::spawn(std::future::ready(()));
        let runtime = OwnRuntime::start("data", 1).expect("a thread");
        let rest = DataParts { running, net, listening, identity: Arc::new(own), runtime };
        let ending = RunningParts::new(NodeParts { rest: Some(rest), ..NodeParts::default() });
        let stopping = ending.stop_rest(Duration::from_secs(2));
        let stopped = tokio::time::timeout(PATIENCE / 2, stopping).await;
        assert!(stopped.is_ok(), "stopping must not wait for `link-down-max`, {PATIENCE:?}");
        let mut lost = Vec::new();
        while let Some(event) = told.recv().await {
            if let NetEvent::LaneBroken { node, class, messages } = event {
                lost.push((node, class, messages));
            }
        }
        assert_eq!(lost, [(peer.me(), TrafficClass::User, 1)]);
    }
}
