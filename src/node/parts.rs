//! Start and stop of the data part of a node: the Replicator, guarded by the node's lease promises
//! ([`GuardedReplicator`]), with its driver, disk task and receiver.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock, Weak};

use futures::FutureExt;
use ostraca_ddata::data::Registry;
use ostraca_ddata::durable::{MemoryStore, StoreError};
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};
use ostraca_ddata::replicator::stats::ReplicatorStats;
use ostraca_ddata::replicator::{Replicator as Unguarded, ReplicatorParameters};
use rand::RngExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::clock::Clock;
use super::control::Alive;
use super::data::{ControlHandle, DataEnvironment, DataResult};
use super::disk::{self, DiskHandle, Store};
use super::driver::Driver;
use super::inbox::{Inbox, InboxLimits};
use super::message_sender::{AtomicSendCounters, MessageSender};
use super::receiver::{DataReceiver, LeaseResponder};
use super::replicator::subscription::Subscribers;
use super::replicator::{Replicator, ReplicatorState, panic_message};
use super::replies::Replies;
use super::routes::{self, Fact, ReplicatorEvent};
use super::sharding::region_registry::RegionRegistry;
use crate::cluster::fault_injection::MembershipFaultInjection;
use crate::cluster::lease::guard::{Grants, GuardInput, GuardedReplicator};
use crate::net::Receiver;
use crate::net::handle::Net;

/// Maximum number of queued events for the node; further ones are logged and dropped. The event of
/// a panic has a reserved place beside these.
const EVENTS_MAX: usize = 1_024;

/// Setup of a node's Replicator.
pub struct ReplicatorSetup {
    /// Setup of the machine: its id, settings and user types.
    pub machine: ReplicatorParameters,
    /// Store for durable keys; read at the start only if the settings name such keys.
    pub store: Store,
    /// Bounds of its queues. Their `requests` also add to the bound of pending replies, which is
    /// that and `max_pending_requests` together.
    pub inbox: InboxLimits,
}

impl ReplicatorSetup {
    /// Creates a setup with a store in memory and the default limits.
    #[must_use]
    pub fn new(machine: ReplicatorParameters) -> Self {
        Self { machine, store: Box::new(MemoryStore::new()), inbox: InboxLimits::default() }
    }
}

/// The handles of a running Replicator.
pub struct ReplicatorPart {
    /// Handle for the program.
    pub handle: Replicator,
    /// Receiver of messages from the control, data and bulk lanes. The caller must also call
    /// [`Receiver::pause`] after a batch, otherwise messages are handled late.
    pub receiver: Arc<dyn Receiver>,
    /// Handle by which membership and the network report facts.
    pub facts: ReplicatorNotifier,
    /// Events that the node must handle.
    pub events: mpsc::Receiver<ReplicatorEvent>,
    /// Handle that stops the Replicator.
    pub running: ReplicatorTask,
}

impl std::fmt::Debug for ReplicatorPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicatorPart").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// Reports facts of other parts to the Replicator. Never waits; after the stop facts are dropped.
#[derive(Clone)]
pub struct ReplicatorNotifier {
    inbox: Inbox<GuardedReplicator>,
    grants: Grants,
}

impl ReplicatorNotifier {
    /// Reports a fact to the Replicator, which takes facts before queued messages and requests.
    pub fn tell(&self, fact: Fact) {
        self.give(routes::tell(fact));
    }

    /// The lease promises of this node, which answer heartbeats.
    pub(super) const fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Passes an input that module `routes` has already converted.
    pub(super) fn give(&self, input: GuardInput) {
        let _ = self.inbox.fact(input); // fails only after the stop
    }
}

impl std::fmt::Debug for ReplicatorNotifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplicatorNotifier")
    }
}

/// Handle to the Replicator's task. Dropping it stops the task like [`stop`](Self::stop), without
/// waiting for its end.
pub struct ReplicatorTask {
    inbox: Inbox<GuardedReplicator>,
    task: Option<JoinHandle<Result<ReplicatorStats, ReplicatorPanic>>>,
    disk: Option<JoinHandle<()>>,
}

/// The Replicator panicked, which is a bug. Acknowledged writes are held by other replicas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the Replicator failed: {message}; report this, and restart the node")]
pub struct ReplicatorPanic {
    /// Message of the panic.
    pub message: String,
}

impl ReplicatorTask {
    /// Stops the Replicator. Queued inputs are still handled, and their messages and records are
    /// sent and written; inputs that come later are not. Requests that wait for other replicas
    /// fail, and streams end. Returns the counters once the last record is written, at once if it
    /// has ended already. If the future is dropped, the Replicator still stops.
    ///
    /// # Errors
    /// [`ReplicatorPanic`] if the Replicator has panicked, or its runtime has ended; this also is
    /// returned only after the disk task has ended.
    pub async fn stop(mut self) -> Result<ReplicatorStats, ReplicatorPanic> {
        self.inbox.close();
        let ended = match self.task.take() {
            Some(task) => task.await,
            None => return Err(ReplicatorPanic { message: "it was stopped twice".to_owned() }),
        };
        if let Some(disk) = self.disk.take() {
            let _ = disk.await; // the task catches panics of the store
        }
        ended.unwrap_or_else(|error| Err(ReplicatorPanic { message: error.to_string() }))
    }
}

impl Drop for ReplicatorTask {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl std::fmt::Debug for ReplicatorTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplicatorTask")
    }
}

/// Starts the Replicator of a node, without membership, on a task of the current tokio runtime.
/// Returns when its durable data have been read.
///
/// Until the Replicator learns of a configuration (by [`Fact::Found`] or a peer's message), only
/// `Local` operations work.
///
/// # Errors
/// [`StoreError`] if the store cannot be read; its message states what to do.
pub async fn start_replicator(
    setup: ReplicatorSetup,
    outgoing: impl MessageSender,
) -> Result<ReplicatorPart, StoreError> {
    let node = InNode {
        sibling: None,
        region_registry: Arc::default(),
        clock: Clock::start(),
        alive: Arc::new(()),
        runtime: Handle::current(),
        heartbeat_net: None,
    };
    start_in_node(setup, outgoing, node).await
}

/// Parts of a node that its Replicator uses.
pub(super) struct InNode {
    /// The control part beside the Replicator, if the node has membership.
    pub(super) sibling: Option<ControlHandle>,
    /// The hosted entity types.
    pub(super) region_registry: Arc<RegionRegistry>,
    /// The clock of all parts.
    pub(super) clock: Clock,
    /// Kept until the Replicator and its disk have ended.
    pub(super) alive: Alive,
    /// Runtime of the Replicator's loop, which runs the turns that callers do not run.
    pub(super) runtime: Handle,
    /// The transport, if the receiver answers lease heartbeats itself instead of the Replicator.
    pub(super) heartbeat_net: Option<Weak<OnceLock<Net>>>,
}

/// Starts the Replicator in a node; see [`start_replicator`]. Reads the store only if the settings
/// name durable keys; [`Fact::Loaded`] with its records is then the first input, before any message
/// or request. If the future is dropped during the read, nothing was started. Spawns the tasks of
/// the Replicator, the disk and the check for overdue replies on `node.runtime`.
///
/// # Errors
/// [`StoreError`] if the store cannot be read; nothing was started.
pub(super) async fn start_in_node(
    setup: ReplicatorSetup,
    outgoing: impl MessageSender,
    node: InNode,
) -> Result<ReplicatorPart, StoreError> {
    let InNode { sibling, region_registry, clock, alive, runtime, heartbeat_net } = node;
    let ReplicatorSetup { machine, mut store, inbox: limits } = setup;
    let mut loaded = None;
    if !machine.config.durable_keys.is_empty() {
        let (read, records) = disk::load(store, alive.clone()).await?;
        store = read;
        loaded = Some(records);
    }
    let inbox = Inbox::new(limits);
    let replies_limit = machine.config.max_pending_requests.saturating_add(limits.requests);
    let replies = Arc::new(Replies::<DataResult>::new(replies_limit));
    let (subscribers, sending) =
        (Arc::<Subscribers>::default(), Arc::<AtomicSendCounters>::default());
    let (events, last, told) = last_reserved(EVENTS_MAX);
    let replicator = Unguarded::new(machine);
    let guard = GuardedReplicator::new(replicator, MembershipFaultInjection::none());
    let facts = ReplicatorNotifier { inbox: inbox.clone(), grants: guard.grants() };
    let beats = heartbeat_net.map(|net| LeaseResponder::new(guard.grants(), net, clock));
    if let Some(records) = loaded {
        facts.tell(Fact::Loaded(records));
    }
    let back = facts.clone();
    let persisted = move |id, result| {
        back.tell(Fact::Persisted { id, result });
    };
    let (disk, disk_task) = DiskHandle::start(store, alive.clone(), persisted, &runtime);
    let world = DataEnvironment {
        outgoing,
        sending: sending.clone(),
        replies: replies.clone(),
        subscribers: subscribers.clone(),
        disk,
        events,
        sibling: sibling.clone(),
        last: None,
        incomplete: None,
        answers: Vec::new(),
    };
    let driver = Driver::new(guard, world, inbox.clone(), clock);
    let counters = driver.counters();
    let ended =
        TaskEndGuard { replies: replies.clone(), subscribers: subscribers.clone(), _alive: alive };
    let task = runtime.spawn(run(driver, ended, last));
    runtime.spawn(Replies::look_after(Arc::downgrade(&replies)));
    let control = sibling.map(|sibling| sibling.inbox);
    let receiver = DataReceiver::new(inbox.clone(), control, region_registry, clock);
    let receiver = Arc::new(receiver.answering(beats));
    let handle = Replicator::new(ReplicatorState {
        inbox: inbox.clone(),
        replies,
        replies_limit,
        subscribers,
        counters,
        receiver: receiver.clone(),
        sending,
    });
    let running = ReplicatorTask { inbox, task: Some(task), disk: Some(disk_task) };
    Ok(ReplicatorPart { handle, receiver, facts, events: told, running })
}

/// Runs the Replicator to its end, and then fails pending requests and ends streams, by dropping
/// `ended`. Returns its counters. A panic is logged after that, and reported to the node by the
/// reserved place `last`. If the task is aborted, only `ended` is dropped.
async fn run<O: MessageSender>(
    driver: Driver<GuardedReplicator, DataEnvironment<O>>,
    ended: TaskEndGuard,
    last: mpsc::OwnedPermit<ReplicatorEvent>,
) -> Result<ReplicatorStats, ReplicatorPanic> {
    let result = AssertUnwindSafe(driver.run()).catch_unwind().await;
    drop(ended);
    match result {
        Ok((guard, _surroundings)) => Ok(guard.replicator().stats()),
        Err(panic) => {
            let message = panic_message(panic);
            tracing::error!(
                message,
                "node.replicator_failed: the Replicator panicked, which is a bug; the node stops"
            );
            drop(last.send(ReplicatorEvent::Failed(message.clone()))); // fails only if the node has ended
            Err(ReplicatorPanic { message })
        }
    }
}

/// Creates a channel for `places` events with a further, reserved place for its last event, so that
/// it can be sent although the channel is full. The unused place keeps the channel open.
fn last_reserved<T>(places: usize) -> (mpsc::Sender<T>, mpsc::OwnedPermit<T>, mpsc::Receiver<T>) {
    let (events, told) = mpsc::channel(places + 1);
    let last = events.clone().try_reserve_owned();
    (events, last.expect("the channel is empty"), told)
}

/// Fails all pending and later requests and ends all streams when the Replicator's task ends in any
/// way: stopped, after a panic, or aborted with its runtime.
struct TaskEndGuard {
    replies: Arc<Replies<DataResult>>,
    subscribers: Arc<Subscribers>,
    _alive: Alive,
}

impl Drop for TaskEndGuard {
    fn drop(&mut self) {
        self.replies.end();
        self.subscribers.end();
    }
}

/// Starts the Replicator of a cluster with one node, in memory: for examples and tests. Its id is
/// random, and it founds its configuration itself, before the first request, so that every
/// consistency level works. Must be called within a tokio runtime.
///
/// # Example
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let part = ostraca::node::parts::alone().await;
/// assert_eq!(part.handle.replica_count().await?, 1);
/// part.running.stop().await?;
/// # Ok(())
/// # }
/// ```
pub async fn alone() -> ReplicatorPart {
    let mut rng = rand::rng();
    let (me, seed) = (ReplicaId::new(rng.random()), rng.random());
    let (config, registry, fault_injection) =
        (ReplicatorConfig::default(), Registry::new(), FaultInjection::none());
    drop(rng);
    let setup =
        ReplicatorSetup::new(ReplicatorParameters { me, config, registry, seed, fault_injection });
    let part = start_replicator(setup, ()).await.expect("memory is always readable");
    let id = EpochId { generation: 1, number: 1 };
    let epoch = Epoch::founding(id, vec![me], EpochSettings::default()).expect("one member");
    part.facts.tell(Fact::Found(Arc::new(epoch)));
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn last_event_has_a_place_in_a_full_channel() {
        let (events, last, mut told) = last_reserved(3);
        for nth in 0..3 {
            events.try_send(nth).expect("a place for each");
        }
        assert!(events.try_send(3).is_err());
        drop(events);
        drop(last.send(9));
        let mut all = Vec::new();
        while let Some(event) = told.recv().await {
            all.push(event);
        }
        assert_eq!(all, [0, 1, 2, 9]);
    }
}
