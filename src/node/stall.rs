//! Stall monitor: detects and logs what blocks threads of the program's runtime.
//!
//! A handler or a task that computes for long, sleeps without `await` or waits for a lock blocks a
//! thread of the runtime. Once all threads are blocked, no entity and no lane of entities makes
//! progress. The node's lease and membership have threads of their own and continue, so other nodes
//! see a healthy node whose entities do not answer. The log must therefore name the cause.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::clock::Clock;
use super::sharding::region_registry::{BlockingHandler, RegionRegistry};
use crate::sharding::polls::{self, LongPoll};

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A longer time between two checks means that this process, or the monitor's thread, was
/// suspended: what ran meanwhile is measured from the end of that gap. A stall of the runtime that
/// was counted before goes on, without the gap.
const GAP: Duration = Duration::from_millis(300);

/// Threshold from which a handler's poll, or the start delay of a probe task, is a stall.
const STALL_THRESHOLD: Duration = Duration::from_millis(500);

/// `sharding.handler_blocks` is logged at most once in this time, with a line for each handler that
/// was found since the last one (at most [`UNLOGGED_MAX`]); the first one of all at once.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Blocking handlers that wait for their log line, at most; further ones are only counted.
const UNLOGGED_MAX: usize = 64;

/// Counters of the stall monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Handler polls of at least 500 ms, to within about 100 ms, including those still running.
    /// Only of this node, not of other nodes of the process.
    pub handlers_blocked: u64,
    /// Stalls of the program's runtime: a probe task did not start within 500 ms, because all
    /// threads were busy. A stall of less than about 600 ms may be missed.
    pub runtime_blocked: u64,
    /// The longest stall of the runtime so far, a present one included; zero without a stall.
    /// Without the time in which the process was suspended.
    pub runtime_blocked_max: Duration,
}

#[derive(Debug, Default)]
struct StallCounters {
    handlers_blocked: AtomicU64,
    runtime_blocked: AtomicU64,
    runtime_blocked_millis_max: AtomicU64,
}

/// Handle to the monitor's thread, which ends when this is dropped, or the registry of regions is;
/// the counters then keep their values.
#[derive(Debug)]
pub(super) struct StallMonitor {
    counters: Arc<StallCounters>,
    stopped: Arc<AtomicBool>,
    thread: Thread,
}

impl StallMonitor {
    /// Watches the runtime `watched` and the handlers of `region_registry` from a thread of its
    /// own: one that it shared with a Replicator would blame handlers for the Replicator's long
    /// turns. The first check is after [`CHECK_INTERVAL`]. The start counts as the end of a gap.
    ///
    /// # Errors
    /// The operating system makes no further thread.
    pub(super) fn start(
        watched: Handle,
        region_registry: &Arc<RegionRegistry>,
        clock: Clock,
    ) -> io::Result<Self> {
        let (counters, stopped) = (Arc::<StallCounters>::default(), Arc::<AtomicBool>::default());
        let checks = Checks {
            counters: counters.clone(),
            region_registry: Arc::downgrade(region_registry),
            watched,
            clock,
            checked: clock.mono(),
            resumed: clock.mono(),
            probe: None,
            known: Vec::new(),
            unlogged: Vec::new(),
            last_logged: None,
        };
        let until = stopped.clone();
        let thread = std::thread::Builder::new().name("ostraca-stalls".to_owned());
        let thread = thread.spawn(move || checks.run(&until))?.thread().clone();
        Ok(Self { counters, stopped, thread })
    }

    /// The present counters, each read by itself; times are cut to whole milliseconds.
    pub(super) fn stalls(&self) -> Stalls {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stalls {
            handlers_blocked: of(&self.counters.handlers_blocked),
            runtime_blocked: of(&self.counters.runtime_blocked),
            runtime_blocked_max: Duration::from_millis(of(&self
                .counters
                .runtime_blocked_millis_max)),
        }
    }
}

impl Drop for StallMonitor {
    /// Makes the thread end soon, after a last check, and does not wait for that.
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The state of the monitor's thread.
struct Checks {
    counters: Arc<StallCounters>,
    region_registry: Weak<RegionRegistry>,
    watched: Handle,
    clock: Clock,
    checked: Instant,               // time of the last check
    resumed: Instant,               // end of the last gap between two checks, or the start
    probe: Option<StallProbe>, // spawned, and not seen to have run; `None` only before the first
    known: Vec<LongPoll>,      // at the last check, already counted; ≤ threads of the process
    unlogged: Vec<BlockingHandler>, // ≤ UNLOGGED_MAX
    last_logged: Option<Instant>,
}

/// A task that was spawned on the watched runtime to measure its start delay.
struct StallProbe {
    ran: oneshot::Receiver<()>, // closed without a message if the runtime dropped the task
    since: Instant,             // its spawn, or later, because gaps do not count
    is_told: bool,              // its delay was counted and logged as a stall
}

impl Checks {
    /// Checks every [`CHECK_INTERVAL`], or when unparked, until the monitor or the registry is
    /// dropped. Holds the registry only during a check.
    fn run(mut self, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Acquire) {
            std::thread::park_timeout(CHECK_INTERVAL);
            let Some(region_registry) = self.region_registry.upgrade() else { return };
            self.check(self.clock.mono(), &region_registry);
        }
    }

    /// Makes one check: first the handlers, then the runtime. If there was a gap before it, a
    /// pending probe is measured from `now`; a stall that was counted before continues without the
    /// time of the gap.
    fn check(&mut self, now: Instant, region_registry: &RegionRegistry) {
        let gap = now - self.checked;
        if gap > GAP {
            self.resumed = now;
            if let Some(probe) = &mut self.probe {
                // A reported stall goes on, and the gap is no part of it.
                probe.since = if probe.is_told { probe.since + gap } else { now };
            }
        }
        self.checked = now;
        let blocking = self.handlers(now, region_registry);
        self.runtime(now, &blocking);
    }

    /// Counts the handlers that began to block since the last check, each poll once, and logs them
    /// at most every [`LOG_INTERVAL`], even if they have ended by then. Returns all that block now,
    /// counted before or not. Ignores handlers of other nodes of this process, and for
    /// [`STALL_THRESHOLD`] after a gap all that did not block before it; those are counted later if
    /// they still block. Also advances the clock of module `polls`, and starts the check for slow
    /// handlers of the types concerned.
    fn handlers(&mut self, now: Instant, region_registry: &RegionRegistry) -> Vec<BlockingHandler> {
        let is_same =
            |one: &LongPoll, other: &LongPoll| LongPoll { took: one.took, ..*other } == *one;
        let measured = now - self.resumed;
        let since_boot = Clock::since_boot();
        polls::skip_gap(GAP, since_boot);
        let mut long = polls::longer_than(STALL_THRESHOLD, since_boot);
        long.retain(|poll| {
            measured >= STALL_THRESHOLD || self.known.iter().any(|known| is_same(known, poll))
        });
        let mut blocking = Vec::new();
        for poll in &long {
            let Some(handler) = region_registry.blocking(poll) else { continue }; // of another node
            if !self.known.iter().any(|known| is_same(known, poll)) {
                self.counters.handlers_blocked.fetch_add(1, Ordering::Relaxed);
                if self.unlogged.len() < UNLOGGED_MAX {
                    self.unlogged.push(handler.clone());
                }
            }
            blocking.push(handler);
        }
        self.known = long;
        if self.last_logged.is_none_or(|last| now - last >= LOG_INTERVAL) {
            self.last_logged = (!self.unlogged.is_empty()).then_some(now).or(self.last_logged);
            self.unlogged.drain(..).for_each(|handler| log_blocking(&handler));
        }
        blocking
    }

    /// Checks the pending probe of the watched runtime, and spawns the next one if it has run, or
    /// if there is none. A probe that has not run within [`STALL_THRESHOLD`] is counted and logged
    /// once as a stall, with the `blocking` handlers, and raises the maximum at each check, the one
    /// that finds it run included; that one also logs `node.runtime_free`. A probe that has run by
    /// its first check after the threshold is no stall. One that the runtime has dropped, because
    /// it was shut down, counts as run.
    fn runtime(&mut self, now: Instant, blocking: &[BlockingHandler]) {
        if let Some(probe) = &mut self.probe {
            let delay = now - probe.since;
            let has_run = !matches!(probe.ran.try_recv(), Err(oneshot::error::TryRecvError::Empty));
            if delay >= STALL_THRESHOLD && (probe.is_told || !has_run) {
                let is_first = !std::mem::replace(&mut probe.is_told, true);
                self.counters.runtime_is_blocked(delay, is_first);
                if is_first {
                    self.log_runtime(delay, blocking);
                }
            }
            let Some(probe) = self.probe.take_if(|_| has_run) else { return };
            if probe.is_told {
                let millis = delay.as_millis();
                tracing::info!(millis, "node.runtime_free: the program's runtime runs tasks again");
            }
        }
        let (run, ran) = oneshot::channel();
        drop(self.watched.spawn(async move {
            let _ = run.send(()); // fails only if the monitor has ended
        }));
        self.probe = Some(StallProbe { ran, since: now, is_told: false });
    }

    /// Logs a stall of the runtime as a warning, with the handlers that block its threads; the
    /// field is empty if none does, for example because tasks of the program block them.
    fn log_runtime(&self, delay: Duration, blocking: &[BlockingHandler]) {
        let (threads, handlers) = (self.watched.metrics().num_workers(), names(blocking));
        tracing::warn!(
            millis = delay.as_millis(),
            threads,
            handlers,
            "node.runtime_blocked: all threads of the program's runtime are busy; no entity of \
             this node answers until one of them is free"
        );
    }
}

impl StallCounters {
    /// Records the present duration of a stall, which can only raise the maximum, and counts the
    /// stall if `is_first`.
    fn runtime_is_blocked(&self, delay: Duration, is_first: bool) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.runtime_blocked_millis_max.fetch_max(millis, Ordering::Relaxed);
        self.runtime_blocked.fetch_add(u64::from(is_first), Ordering::Relaxed);
    }
}

/// Logs one blocking handler as a warning, without its entity if that no longer exists.
fn log_blocking(handler: &BlockingHandler) {
    let BlockingHandler { entity_type, entity, shard, message, took } = handler;
    tracing::warn!(
        %entity_type, entity, %shard, message_type = message, millis = took.as_millis(),
        "sharding.handler_blocks: a handler blocks its thread without an await; move long \
         computations and blocking calls to tokio::task::spawn_blocking"
    );
}

/// Formats at most 8 handlers for a log line, with `?` for an entity that no longer exists. Empty
/// without handlers. Does not show how many are left out.
fn names(blocking: &[BlockingHandler]) -> String {
    let name = |of: &BlockingHandler| {
        let entity = of.entity.as_deref().unwrap_or("?");
        format!("{}/{entity} ({})", of.entity_type, of.message)
    };
    let named: Vec<String> = blocking.iter().take(8).map(name).collect();
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probe never runs, because the test does not await.
    #[tokio::test]
    async fn suspension_is_no_part_of_a_reported_stall() {
        let registry = Arc::<RegionRegistry>::default();
        let mut checks = Checks {
            counters: Arc::default(),
            region_registry: Arc::downgrade(&registry),
            watched: Handle::current(),
            clock: Clock::start(),
            checked: Instant::default(),
            resumed: Instant::default(),
            probe: None,
            known: Vec::new(),
            unlogged: Vec::new(),
            last_logged: None,
        };
        let mut blocked = |millis: u64| {
            checks.check(Instant::default() + Duration::from_millis(millis), &registry);
            let StallCounters { runtime_blocked, runtime_blocked_millis_max, .. } =
                &*checks.counters;
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            (of(runtime_blocked), of(runtime_blocked_millis_max))
        };
        assert_eq!(blocked(100), (0, 0));
        assert_eq!(blocked(400), (0, 0));
        assert_eq!(blocked(60_400), (0, 0), "measured from the end of the suspension");
        assert_eq!(blocked(60_700), (0, 0));
        assert_eq!(blocked(61_000), (1, 600), "a stall");
        assert_eq!(blocked(121_000), (1, 600), "suspended again");
        assert_eq!(blocked(121_200), (1, 800));
    }
}
