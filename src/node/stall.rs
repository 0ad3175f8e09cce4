//! Notices what blocks threads of the program's runtime, and names it.
//!
//! A handler or a task that computes for long, sleeps without `await` or waits for a lock keeps a
//! thread of the runtime. Once all threads are kept, nothing of the program runs there: no entity,
//! no lane of entities. The node's lease and membership go on, on threads of their own, so others
//! see a healthy node whose entities do not answer. The cause must be in the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::clock::Clock;
use super::sharding::hostings::{BlockingHandler, Hostings};
use crate::sharding::polls::{self, LongPoll};

/// How often the monitor looks.
const LOOK: Duration = Duration::from_millis(100);

/// From here on a poll of a handler, or silence of the runtime, is counted and told of.
const LONG: Duration = Duration::from_millis(500);

/// Handlers that block are told of once in this time; all are counted.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What a stall monitor counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Polls of handlers that took 500 ms and more, those included that still run.
    pub handlers_blocked: u64,
    /// Times that all threads of the program's runtime were kept for 500 ms and more: a task that
    /// was spawned there did not begin.
    pub runtime_blocked: u64,
    /// The longest of these so far.
    pub runtime_blocked_max: Duration,
}

#[derive(Debug, Default)]
struct Counters {
    handlers_blocked: AtomicU64,
    runtime_blocked: AtomicU64,
    runtime_blocked_millis_max: AtomicU64,
}

/// See the module's page. Runs until it is dropped.
#[derive(Debug)]
pub(super) struct StallMonitor {
    counters: Arc<Counters>,
    task: AbortHandle,
}

impl StallMonitor {
    /// Watches the runtime `watched` and the handlers of `hostings` from another runtime.
    pub(super) fn start(
        watched: Handle,
        from: &Handle,
        hostings: &Arc<Hostings>,
        clock: Clock,
    ) -> Self {
        let counters = Arc::<Counters>::default();
        let look = Look {
            counters: counters.clone(),
            hostings: Arc::downgrade(hostings),
            watched,
            clock,
            probe: None,
            known: Vec::new(),
            told: None,
        };
        Self { counters, task: from.spawn(look.run()).abort_handle() }
    }

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
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Look {
    counters: Arc<Counters>,
    hostings: Weak<Hostings>,
    watched: Handle,
    clock: Clock,
    probe: Option<Probe>,
    known: Vec<LongPoll>, // counted already; ≤ threads of the process
    told: Option<Instant>,
}

/// A task on the watched runtime that has not run yet.
struct Probe {
    ran: oneshot::Receiver<()>,
    since: Instant,
    is_told: bool,
}

impl Look {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(hostings) = self.hostings.upgrade() else { return };
            let blocking = self.handlers(&hostings);
            self.runtime(&blocking);
        }
    }

    /// Counts handlers that block, and names those that were not known before. Returns all.
    fn handlers(&mut self, hostings: &Hostings) -> Vec<BlockingHandler> {
        let long = polls::longer_than(LONG, Clock::since_boot());
        let is_same =
            |one: &LongPoll, other: &LongPoll| LongPoll { took: one.took, ..*other } == *one;
        let mut blocking = Vec::new();
        for poll in &long {
            let Some(handler) = hostings.blocking(poll) else { continue }; // of another node
            if !self.known.iter().any(|known| is_same(known, poll)) {
                self.counters.handlers_blocked.fetch_add(1, Ordering::Relaxed);
                self.tell_of(&handler);
            }
            blocking.push(handler);
        }
        self.known = long;
        blocking
    }

    fn tell_of(&mut self, handler: &BlockingHandler) {
        let now = self.clock.mono();
        if self.told.is_some_and(|told| now - told < TELL_EVERY) {
            return;
        }
        self.told = Some(now);
        let BlockingHandler { entity_type, entity, shard, message, took } = handler;
        tracing::warn!(
            %entity_type, entity, %shard, messages = message, millis = took.as_millis(),
            "sharding.handler_blocks: a handler keeps its thread without an await; move long \
             computations and blocking calls to tokio::task::spawn_blocking"
        );
    }

    /// Asks the watched runtime for a sign of life, one question at a time.
    fn runtime(&mut self, blocking: &[BlockingHandler]) {
        let now = self.clock.mono();
        let Some(probe) = &mut self.probe else {
            let (run, ran) = oneshot::channel();
            drop(self.watched.spawn(async move {
                let _ = run.send(()); // the monitor has ended
            }));
            self.probe = Some(Probe { ran, since: now, is_told: false });
            return;
        };
        let silent = now - probe.since;
        let has_answered =
            !matches!(probe.ran.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        if silent >= LONG && (probe.is_told || !has_answered) {
            let millis = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
            self.counters.runtime_blocked_millis_max.fetch_max(millis, Ordering::Relaxed);
            if !std::mem::replace(&mut probe.is_told, true) {
                self.counters.runtime_blocked.fetch_add(1, Ordering::Relaxed);
                let (threads, handlers) = (self.watched.metrics().num_workers(), names(blocking));
                tracing::warn!(
                    millis,
                    threads,
                    handlers,
                    "node.runtime_blocked: all threads of the program's runtime are kept; no \
                     entity of this node answers until one of them is free"
                );
            }
        }
        if has_answered {
            if probe.is_told {
                tracing::info!(millis = silent.as_millis(), "node.runtime_free");
            }
            self.probe = None;
        }
    }
}

/// For a log line: ≤ 8 handlers.
fn names(blocking: &[BlockingHandler]) -> String {
    let name = |of: &BlockingHandler| {
        let entity = of.entity.as_deref().unwrap_or("?");
        format!("{}/{entity} ({})", of.entity_type, of.message)
    };
    let named: Vec<String> = blocking.iter().take(8).map(name).collect();
    named.join(", ")
}
