//! Coordinated shutdown: runs the tasks of a node in a fixed order of phases before the node ends.
//!
//! Phases run one after the other, the tasks of one phase concurrently. A task that panics or
//! exceeds the timeout of its phase does not hold up the next phase. The node's own steps (module
//! `teardown`) are tasks like those of a program, so this module knows neither cluster nor sockets.

mod phase;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::phase::{Phase, PhaseSettings, ShutdownConfig};
use crate::cluster::membership::port::StopReason;

/// Reason why a node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The program requested the shutdown.
    #[error("the program requested the shutdown")]
    Asked,
    /// The process received SIGTERM or SIGINT.
    #[error("the process received a signal")]
    Signal,
    /// A member, this node's program or a tool called `leave` for this node, and the node became
    /// Leaving.
    #[error("this node was asked to leave the cluster")]
    Leaving,
    /// Membership stopped the node, for example because it was removed, or had left in order.
    #[error(transparent)]
    Membership(#[from] StopReason),
    /// Membership or the Replicator panicked, which is a bug, or the Replicator could not load its
    /// data; the log has details.
    #[error("a part of this node failed, see its log; report this")]
    Failed,
}

/// Exit code of a process whose node was removed from its cluster, was stopped by the downing
/// strategy, or found no cluster in time. A supervisor should restart it.
pub const EXIT_OUT: u8 = 6;

impl Reason {
    /// Exit code for the process of this node: 0 after a requested shutdown (`Asked`, `Signal`,
    /// `Leaving`, and `Membership` with [`StopReason::Left`]), [`EXIT_OUT`] (6) with every other
    /// reason of membership, 1 after a failure (`Failed`).
    /// A supervisor that restarts on failure (`Restart=on-failure` of systemd, `on-failure` of
    /// Docker) therefore restarts a node that was removed.
    ///
    /// # Example
    /// ```
    /// use ostraca::cluster::membership::port::StopReason;
    /// use ostraca::prelude::*;
    ///
    /// assert_eq!(Reason::Signal.exit_code(), 0);
    /// assert_eq!(Reason::Membership(StopReason::Removed).exit_code(), 6);
    /// ```
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Asked | Self::Signal | Self::Leaving | Self::Membership(StopReason::Left) => 0,
            Self::Membership(_) => EXIT_OUT,
            Self::Failed => 1,
        }
    }
}

impl From<Reason> for ExitCode {
    fn from(reason: Reason) -> Self {
        Self::from(reason.exit_code())
    }
}

/// Error of [`CoordinatedShutdown::add_task`]: the phase has already begun or ended, so the task
/// will not run. It is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shutdown has reached {phase} already: the task will not run")]
pub struct TooLate {
    /// The phase of the rejected task.
    pub phase: Phase,
}

struct ShutdownTask {
    name: String,
    run: Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>,
}

/// Tasks of the phases that have not begun. Those of a phase are taken when it begins.
struct ShutdownTasks {
    tasks: BTreeMap<Phase, Vec<ShutdownTask>>, // unbounded: the program adds them
    begun: Option<Phase>, // the last phase that has begun; those without tasks count
}

#[derive(Clone, Copy, Debug, Default)]
struct ShutdownProgress {
    reason: Option<Reason>, // set when the shutdown begins, and never changed
    done: bool,             // all phases have ended, or their runtime was shut down
}

struct ShutdownState {
    settings: ShutdownConfig,
    runtime: Handle,
    state: Mutex<ShutdownTasks>,
    progress: watch::Sender<ShutdownProgress>,
}

/// The coordinated shutdown of a node. Cheap to clone; all clones refer to the same shutdown.
///
/// It *has begun* from the first [`begin`](Self::begin) or [`run`](Self::run) on, and *has ended*
/// once all phases have ended; neither is ever undone.
///
/// # Example
/// ```
/// use ostraca::node::shutdown::{Phase, Reason};
/// use ostraca::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::listen(Config::default()).await?;
/// node.shutdown().add_task(Phase::ServiceStop, "say goodbye", || async {
///     // close what this program has opened
/// })?;
/// assert_eq!(node.shutdown().run(Reason::Asked).await, Reason::Asked);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CoordinatedShutdown(Arc<ShutdownState>);

impl CoordinatedShutdown {
    /// Creates a shutdown that has not begun. Its tasks will run on the current runtime. Panics
    /// without one.
    #[must_use]
    pub(super) fn new(settings: ShutdownConfig) -> Self {
        let state = Mutex::new(ShutdownTasks { tasks: BTreeMap::new(), begun: None });
        let progress = watch::Sender::new(ShutdownProgress::default());
        Self(Arc::new(ShutdownState { settings, runtime: Handle::current(), state, progress }))
    }

    /// Adds a task to a phase. The tasks of a phase run concurrently, each in a task of the runtime
    /// of its own, and the next phase begins when all have ended or the timeout of the phase has
    /// expired. A task that has not ended by then is dropped at its next await; one that blocks its
    /// thread runs on beside the next phase. With a timeout of 0 a task may be dropped before its
    /// first poll. The name is for the log and need not be unique; the number of tasks is not
    /// limited.
    ///
    /// # Errors
    /// [`TooLate`] if the phase has begun, with tasks or without, so that a task can add tasks only
    /// to later phases, and none after the end. Before the shutdown there is no error, also after
    /// the node was dropped.
    pub fn add_task<F, Fut>(
        &self,
        phase: Phase,
        name: impl Into<String>,
        task: F,
    ) -> Result<(), TooLate>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut state = self.lock();
        if state.begun.is_some_and(|begun| phase <= begun) {
            return Err(TooLate { phase });
        }
        let run = Box::new(move || task().boxed());
        state.tasks.entry(phase).or_default().push(ShutdownTask { name: name.into(), run });
        Ok(())
    }

    /// Begins the shutdown, unless it has begun already, and waits for its end; returns at once if
    /// it has ended. Returns the reason with which it was begun first. If the future is dropped,
    /// the shutdown continues. A task of the shutdown must not wait for this: it would wait until
    /// the timeout of its phase.
    pub async fn run(&self, reason: Reason) -> Reason {
        self.begin(reason);
        self.done().await
    }

    /// Begins the shutdown in the background, unless it has begun already: the first reason counts,
    /// and a later call does nothing, even after the end. [`reason`](Self::reason) is set when this
    /// returns. May be called from any thread; the phases run on the runtime on which the node was
    /// started. If that has been shut down, no phase runs and the shutdown ends at once.
    pub fn begin(&self, reason: Reason) {
        let first = self.0.progress.send_if_modified(|progress| {
            let first = progress.reason.is_none();
            if first {
                progress.reason = Some(reason);
            }
            first
        });
        if first {
            tracing::info!(%reason, "node.shutdown");
            let phases = RunningPhases(self.clone());
            self.0.runtime.spawn(async move { phases.run().await });
        }
    }

    /// The reason with which the shutdown was begun, also after its end; `None` if it has not
    /// begun.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.0.progress.borrow().reason
    }

    /// Waits until the shutdown has ended, without beginning it. Returns the reason with which it
    /// was begun, at once if it has ended. A shutdown also ends when its runtime is shut down; the
    /// phases that are left do not run then.
    pub async fn done(&self) -> Reason {
        let mut progress = self.0.progress.subscribe();
        let done = progress.wait_for(|progress| progress.done).await;
        let reason = done.ok().and_then(|progress| progress.reason);
        reason.expect("`self` keeps the sender alive, and `done` is set only after a reason")
    }

    /// Called when the node is dropped. Unless a shutdown has begun, drops all tasks with the
    /// values that they captured, and returns true: the caller must stop the parts itself. A
    /// shutdown that begins later runs all phases, with the tasks that were added after this. A
    /// shutdown that has begun, or has ended, is not affected; then this returns false.
    pub(super) fn abandon(&self) -> bool {
        let is_alone = self.reason().is_none();
        if is_alone {
            let tasks = std::mem::take(&mut self.lock().tasks);
            drop(tasks); // outside the lock: drops values of the program
        }
        is_alone
    }

    /// Observer of this shutdown, which may have begun already.
    pub(super) fn observer(&self) -> ShutdownObserver {
        ShutdownObserver(self.0.progress.subscribe())
    }

    /// Timeout of a phase by the settings, or its default.
    pub(super) fn timeout(&self, phase: Phase) -> Duration {
        self.0.settings.timeout(phase)
    }

    /// Runs the tasks of a phase until all have ended or the timeout has expired, and aborts those
    /// that are left then, without waiting for their ends. Logs each panic as an error, which does
    /// not end the phase, and the names of aborted tasks as one warning.
    async fn run_phase(&self, phase: Phase, tasks: Vec<ShutdownTask>) {
        let within = self.timeout(phase);
        let (mut running, mut names) = (JoinSet::new(), HashMap::new());
        for ShutdownTask { name, run } in tasks {
            let id = running.spawn(async move { run().await }).id();
            names.insert(id, name);
        }
        let all = async {
            while let Some(ended) = running.join_next_with_id().await {
                let id = match &ended {
                    Ok((id, ())) => *id,
                    Err(error) => error.id(),
                };
                let task = names.remove(&id).unwrap_or_default();
                if let Err(error) = ended {
                    tracing::error!(
                        %phase, task, %error,
                        "node.shutdown_task_failed: the task panicked; the shutdown continues"
                    );
                }
            }
        };
        let in_time = tokio::time::timeout(within, all).await.is_ok();
        if !in_time {
            let tasks: Vec<&String> = names.values().collect();
            tracing::warn!(
                %phase, ?within, ?tasks,
                "node.shutdown_timed_out: these tasks did not end within the timeout of the phase \
                 and were aborted; the shutdown continues"
            );
        }
    }

    /// Begins a phase: it and all earlier ones accept no further tasks. Takes its tasks, in the
    /// order in which they were added.
    fn take(&self, phase: Phase) -> Vec<ShutdownTask> {
        let mut state = self.lock();
        state.begun = Some(phase);
        state.tasks.remove(&phase).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, ShutdownTasks> {
        // The program's code never runs under the lock, so the state is consistent after a panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The phases of a shutdown that has begun. Dropping this marks the shutdown as ended, because a
/// runtime that is shut down drops its tasks: callers on another runtime would wait for ever.
struct RunningPhases(CoordinatedShutdown);

impl RunningPhases {
    /// Runs the tasks of all phases in order. Phases without tasks begin and end at once.
    async fn run(self) {
        let Self(shutdown) = &self;
        for phase in Phase::ALL {
            let tasks = shutdown.take(phase);
            if !tasks.is_empty() {
                shutdown.run_phase(phase, tasks).await;
            }
        }
        tracing::info!("node.stopped");
    }
}

impl Drop for RunningPhases {
    fn drop(&mut self) {
        self.0.0.progress.send_modify(|progress| progress.done = true);
    }
}

/// Observer of a shutdown. It keeps neither the shutdown nor a task alive, so that a part that a
/// task holds can hold it.
pub(super) struct ShutdownObserver(watch::Receiver<ShutdownProgress>);

impl ShutdownObserver {
    /// The reason with which the shutdown was begun, also after its end; `None` if it has not
    /// begun.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.0.borrow().reason
    }

    /// Waits until the shutdown begins, or all handles of it are dropped; at once if it has begun.
    /// Does not return the cause: [`reason`](Self::reason) is `None` if the handles were dropped.
    pub(super) async fn begun(&self) {
        let mut progress = self.0.clone();
        let _ = progress.wait_for(|it| it.reason.is_some()).await; // fails if the node was dropped
    }
}

impl fmt::Debug for CoordinatedShutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoordinatedShutdown").field("reason", &self.reason()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    fn note(log: &Log, what: &str) {
        log.lock().expect("no test panics under it").push(what.to_owned());
    }

    /// A task that records its run.
    fn noting(log: &Log, what: &'static str) -> impl FnOnce() -> BoxFuture<'static, ()> + use<> {
        let log = log.clone();
        move || async move { note(&log, what) }.boxed()
    }

    /// Settings by which every phase ends after 20 ms.
    fn quick() -> ShutdownConfig {
        let timeout = Duration::from_millis(20);
        let quick = |phase| (phase, PhaseSettings { timeout });
        ShutdownConfig { phases: Phase::ALL.into_iter().map(quick).collect() }
    }

    #[tokio::test]
    async fn tasks_run_once_in_the_order_of_phases() {
        let (shutdown, log) = (CoordinatedShutdown::new(ShutdownConfig::default()), Log::default());
        for phase in Phase::ALL.into_iter().rev() {
            shutdown.add_task(phase, "test", noting(&log, phase.name())).expect("in time");
        }
        let (first, second) =
            tokio::join!(shutdown.run(Reason::Signal), shutdown.run(Reason::Asked));
        assert_eq!((first, second), (Reason::Signal, Reason::Signal));
        shutdown.begin(Reason::Leaving);
        assert_eq!(shutdown.reason(), Some(Reason::Signal));
        let names: Vec<&str> = Phase::ALL.iter().map(|phase| phase.name()).collect();
        assert_eq!(*log.lock().expect("no test panics under it"), names);
    }

    #[tokio::test]
    async fn tasks_of_a_phase_run_concurrently() {
        let shutdown = CoordinatedShutdown::new(ShutdownConfig::default());
        let (one, other) = (Arc::new(tokio::sync::Notify::new()), tokio::sync::Notify::new());
        let other = Arc::new(other);
        for (mine, yours) in [(one.clone(), other.clone()), (other, one)] {
            let meet = async move {
                yours.notify_one();
                mine.notified().await;
            };
            shutdown.add_task(Phase::ServiceStop, "meet", || meet).expect("in time");
        }
        shutdown.run(Reason::Asked).await; // would take 5 s and drop them otherwise
        assert!(shutdown.0.progress.borrow().done);
    }

    #[tokio::test]
    async fn panicking_or_hanging_task_does_not_stop_the_shutdown() {
        let (shutdown, log) = (CoordinatedShutdown::new(quick()), Log::default());
        let panics = || async { panic!("as ordered") };
        shutdown.add_task(Phase::ServiceUnbind, "panics", panics).expect("in time");
        shutdown.add_task(Phase::ServiceUnbind, "works", noting(&log, "works")).expect("in time");
        shutdown.add_task(Phase::ServiceStop, "hangs", std::future::pending).expect("in time");
        shutdown.add_task(Phase::Terminate, "last", noting(&log, "last")).expect("in time");
        shutdown.run(Reason::Asked).await;
        assert_eq!(*log.lock().expect("no test panics under it"), ["works", "last"]);
    }

    #[tokio::test]
    async fn task_can_add_tasks_only_to_later_phases() {
        let (shutdown, log) = (CoordinatedShutdown::new(ShutdownConfig::default()), Log::default());
        let adds = {
            let (shutdown, log) = (shutdown.clone(), log.clone());
            move || async move {
                let add = |phase| shutdown.add_task(phase, "late", noting(&log, "late"));
                let early = [Phase::BeforeServiceUnbind, Phase::ServiceStop];
                assert_eq!(early.map(add), early.map(|phase| Err(TooLate { phase })));
                add(Phase::Terminate).expect("in time");
            }
        };
        shutdown.add_task(Phase::ServiceStop, "adds", adds).expect("in time");
        shutdown.run(Reason::Asked).await;
        assert_eq!(*log.lock().expect("no test panics under it"), ["late"]);
        let late = shutdown.add_task(Phase::Terminate, "too late", noting(&log, "never"));
        assert_eq!(late, Err(TooLate { phase: Phase::Terminate }));
    }

    #[test]
    fn exit_code_tells_orderly_ends_from_removals() {
        let codes = [
            (Reason::Asked, 0),
            (Reason::Signal, 0),
            (Reason::Leaving, 0),
            (Reason::Membership(StopReason::Left), 0),
            (Reason::Membership(StopReason::Downed), EXIT_OUT),
            (Reason::Membership(StopReason::DownedItself), EXIT_OUT),
            (Reason::Membership(StopReason::Removed), EXIT_OUT),
            (Reason::Membership(StopReason::NotJoined), EXIT_OUT),
            (Reason::Membership(StopReason::Orphaned), EXIT_OUT),
            (Reason::Membership(StopReason::Stranded), EXIT_OUT),
            (Reason::Failed, 1),
        ];
        for (reason, code) in codes {
            assert_eq!(reason.exit_code(), code, "{reason}");
        }
    }

    #[tokio::test]
    async fn shutdown_ends_with_its_runtime() {
        for begins_before in [true, false] {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(1).enable_all().build().expect("a thread");
            let shutdown = {
                let _on_its_threads = runtime.enter();
                CoordinatedShutdown::new(ShutdownConfig::default())
            };
            shutdown.add_task(Phase::ServiceStop, "hangs", std::future::pending).expect("in time");
            if begins_before {
                shutdown.begin(Reason::Asked);
            }
            runtime.shutdown_background();
            let ended = tokio::time::timeout(Duration::from_secs(60), shutdown.run(Reason::Asked));
            assert_eq!(ended.await, Ok(Reason::Asked), "{begins_before}");
        }
    }

    #[tokio::test]
    async fn abandoned_shutdown_drops_its_tasks() {
        let shutdown = CoordinatedShutdown::new(ShutdownConfig::default());
        let held = Arc::new(());
        let holds = held.clone();
        shutdown.add_task(Phase::Terminate, "holds", || async { drop(holds) }).expect("in time");
        assert!(shutdown.abandon());
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
