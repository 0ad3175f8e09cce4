//! How the data part of a node is started and stopped: the Replicator with its node's promises,
//! on a task of its own.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock, Weak};

use futures::FutureExt;
use ostraca_ddata::bug::Canary;
use ostraca_ddata::data::Registry;
use ostraca_ddata::durable::{MemoryStore, StoreError};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::config::Config;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};
use ostraca_ddata::replicator::stats::Stats;
use ostraca_ddata::replicator::{Replicator as Unguarded, Setup};
use rand::RngExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::clock::Clock;
use super::control::Alive;
use super::data::{Answer, Sibling, Surroundings};
use super::disk::{self, Disk, Store};
use super::driver::Driver;
use super::inbox::{Inbox, InboxLimits};
use super::outgoing::{Outgoing, Sending};
use super::receiver::{Beats, DataReceiver};
use super::replicator::subscription::Subscribers;
use super::replicator::{Replicator, Shared, said};
use super::replies::Replies;
use super::sharding::hostings::Hostings;
use super::wiring::{self, Event, Fact};
use crate::cluster::bug::Canary as NoCanary;
use crate::cluster::lease::guard::{Grants, Guard, GuardInput};
use crate::net::Receiver;
use crate::net::handle::Net;

/// Events that wait for the node; beyond, they are logged and lost.
const EVENTS_MAX: usize = 1_024;

/// What the Replicator of a node is made with.
pub struct ReplicatorSetup {
    /// Who it is, its settings, the user types that it knows.
    pub machine: Setup,
    /// Where durable keys live; read only if the settings name some.
    pub store: Store,
    /// How much may wait for it.
    pub inbox: InboxLimits,
}

impl ReplicatorSetup {
    /// With durable data in memory, and the default limits.
    #[must_use]
    pub fn new(machine: Setup) -> Self {
        Self { machine, store: Box::new(MemoryStore::new()), inbox: InboxLimits::default() }
    }
}

/// A running Replicator, from all its sides.
pub struct ReplicatorPart {
    /// For programs.
    pub handle: Replicator,
    /// For lanes: what arrives on control, data and bulk. Who feeds it calls [`Receiver::pause`], or
    /// it is heard late.
    pub receiver: Arc<dyn Receiver>,
    /// For membership and the network: what they know.
    pub facts: Facts,
    /// For the node: what it must hear.
    pub events: mpsc::Receiver<Event>,
    /// For whoever stops it.
    pub running: Running,
}

impl std::fmt::Debug for ReplicatorPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicatorPart").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// Tells the Replicator what others know. Never waits; after the stop nobody listens.
#[derive(Clone)]
pub struct Facts {
    inbox: Inbox<Guard>,
    grants: Grants,
}

impl Facts {
    /// Tells a fact.
    pub fn tell(&self, fact: Fact) {
        self.give(wiring::tell(fact));
    }

    /// The promises of this node, which answer heartbeats.
    pub(super) const fn grants(&self) -> &Grants {
        &self.grants
    }

    /// What another part's word has become.
    pub(super) fn give(&self, input: GuardInput) {
        let _ = self.inbox.fact(input); // refused only after the stop
    }
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Facts")
    }
}

/// The Replicator's task. Dropping this stops it, without waiting for the end.
pub struct Running {
    inbox: Inbox<Guard>,
    task: Option<JoinHandle<Result<Stats, Failed>>>,
    disk: Option<JoinHandle<()>>,
}

/// The Replicator panicked, which is a bug. What it acknowledged is held by others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the Replicator failed: {message}; report this, and restart the node")]
pub struct Failed {
    /// What the panic said.
    pub message: String,
}

impl Running {
    /// Stops: what is queued is still handled, what it ordered is sent and written; requests that
    /// wait for other replicas end with an error, streams end. Returns what was counted.
    ///
    /// # Errors
    /// [`Failed`] if it had panicked.
    pub async fn stop(mut self) -> Result<Stats, Failed> {
        self.inbox.close();
        let ended = match self.task.take() {
            Some(task) => task.await,
            None => return Err(Failed { message: "it was stopped twice".to_owned() }),
        };
        if let Some(disk) = self.disk.take() {
            let _ = disk.await; // it catches what the store does
        }
        ended.unwrap_or_else(|error| Err(Failed { message: error.to_string() }))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

/// Starts the Replicator of a node on a task of its own. Returns when its durable data are read.
///
/// It waits to be told of a configuration ([`Fact::Found`], or a peer's message) and meanwhile
/// serves `Local` only.
///
/// # Errors
/// [`StoreError`] if the store can't be read; it names the way out.
pub async fn start_replicator(
    setup: ReplicatorSetup,
    outgoing: impl Outgoing,
) -> Result<ReplicatorPart, StoreError> {
    let surroundings = InNode {
        sibling: None,
        hostings: Arc::default(),
        clock: Clock::start(),
        alive: Arc::new(()),
        runtime: Handle::current(),
        leases: None,
    };
    start_in_node(setup, outgoing, surroundings).await
}

/// What the Replicator of a whole node shares with the node's other parts.
pub(super) struct InNode {
    /// Membership, if it runs.
    pub(super) sibling: Option<Sibling>,
    /// What runs entities.
    pub(super) hostings: Arc<Hostings>,
    /// By which all parts count.
    pub(super) clock: Clock,
    /// Must outlive the Replicator.
    pub(super) alive: Alive,
    /// Where the Replicator runs when nobody else runs a turn of it.
    pub(super) runtime: Handle,
    /// The way to holders, if their heartbeats are answered beside the Replicator.
    pub(super) leases: Option<Weak<OnceLock<Net>>>,
}

/// Starts the Replicator in a node; see [`start_replicator`].
pub(super) async fn start_in_node(
    setup: ReplicatorSetup,
    outgoing: impl Outgoing,
    node: InNode,
) -> Result<ReplicatorPart, StoreError> {
    let InNode { sibling, hostings, clock, alive, runtime, leases } = node;
    let ReplicatorSetup { machine, mut store, inbox: limits } = setup;
    let mut loaded = None;
    if !machine.config.durable_keys.is_empty() {
        let (read, records) = disk::load(store).await?;
        store = read;
        loaded = Some(records);
    }
    let inbox = Inbox::new(limits);
    let replies_limit = machine.config.max_pending_requests.saturating_add(limits.requests);
    let replies = Arc::new(Replies::<Answer>::new(replies_limit));
    let (subscribers, sending) = (Arc::<Subscribers>::default(), Arc::<Sending>::default());
    let (events, last, told) = last_reserved(EVENTS_MAX);
    let guard = Guard::new(Unguarded::new(machine), NoCanary::none());
    let facts = Facts { inbox: inbox.clone(), grants: guard.grants() };
    let beats = leases.map(|net| Beats::new(guard.grants(), net, clock));
    if let Some(records) = loaded {
        facts.tell(Fact::Loaded(records));
    }
    let back = facts.clone();
    let persisted = move |id, result| {
        back.tell(Fact::Persisted { id, result });
    };
    let (disk, disk_task) = Disk::start(store, alive.clone(), persisted, &runtime);
    let surroundings = Surroundings {
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
    let driver = Driver::new(guard, surroundings, inbox.clone(), clock);
    let counters = driver.counters();
    let ended = Ended { replies: replies.clone(), subscribers: subscribers.clone(), _alive: alive };
    let task = runtime.spawn(run(driver, ended, last));
    runtime.spawn(Replies::look_after(Arc::downgrade(&replies)));
    let control = sibling.map(|sibling| sibling.inbox);
    let receiver = DataReceiver::new(inbox.clone(), control, hostings, clock);
    let receiver = Arc::new(receiver.answering(beats));
    let handle = Replicator::new(Shared {
        inbox: inbox.clone(),
        replies,
        replies_limit,
        subscribers,
        counters,
        receiver: receiver.clone(),
        sending,
    });
    let running = Running { inbox, task: Some(task), disk: Some(disk_task) };
    Ok(ReplicatorPart { handle, receiver, facts, events: told, running })
}

async fn run<O: Outgoing>(
    driver: Driver<Guard, Surroundings<O>>,
    ended: Ended,
    last: mpsc::OwnedPermit<Event>,
) -> Result<Stats, Failed> {
    let result = AssertUnwindSafe(driver.run()).catch_unwind().await;
    drop(ended);
    match result {
        Ok((guard, _surroundings)) => Ok(guard.replicator().stats()),
        Err(panic) => {
            let message = said(&*panic);
            tracing::error!(message, "node.replicator_failed: a bug; the node must stop");
            drop(last.send(Event::Failed(message.clone()))); // or nobody listens any more
            Err(Failed { message })
        }
    }
}

/// A line of events in which the last one always has a place, however many nobody has read.
fn last_reserved<T>(places: usize) -> (mpsc::Sender<T>, mpsc::OwnedPermit<T>, mpsc::Receiver<T>) {
    let (events, told) = mpsc::channel(places + 1);
    let last = events.clone().try_reserve_owned();
    (events, last.expect("nobody has sent anything yet"), told)
}

/// Ends whatever waits for the Replicator, however its task ends.
struct Ended {
    replies: Arc<Replies<Answer>>,
    subscribers: Arc<Subscribers>,
    _alive: Alive,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.replies.end();
        self.subscribers.end();
    }
}

/// A cluster of one, in memory: for examples and first tries.
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
    let (config, registry, canary) = (Config::default(), Registry::new(), Canary::none());
    drop(rng);
    let setup = ReplicatorSetup::new(Setup { me, config, registry, seed, canary });
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
    async fn the_last_event_has_a_place_even_if_nobody_has_read_any() {
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
