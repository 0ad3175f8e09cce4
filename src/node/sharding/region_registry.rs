//! [`RegionRegistry`]: registry of the entity types on this node.
//!
//! The other parts of the node pass orders of the machines, frames of user lanes and changes of
//! lanes to it; the registry forwards them to the code that runs the entities of the type. It also
//! holds the state for callers that wait for the sharding machines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::steps;
use super::strategies::Strategies;
use crate::cluster::lease::Departure;
use crate::cluster::member::ENTITY_TYPES_MAX;
use crate::net::Inbound;
use crate::node::names::NodeNames;
use crate::node::routes::sharding::ShardingEvent;
use crate::sharding::ids::{EntityId, EntityType, RegionId, ShardId};
use crate::sharding::machines::ClusterQueryResult;
use crate::sharding::pending_asks::PendingAsks;
use crate::sharding::polls::LongPoll;
use crate::sharding::region::RegionOutput;
use crate::sharding::region_handle::{BadFrame, RegionHandle, UndeliveredCounts};
use crate::sharding::stray;
use crate::threads::PerThread;

/// A leaving node waits until no message was returned to a sender for this time, so it waits this
/// long at least, if it has a region. A sender that does not know the new home of a shard gets its
/// message back and learns of the move, within a round trip. A sender that was silent, or whose
/// round trip is longer, may still not know.
const CALM: Duration = Duration::from_millis(200);

/// Maximum time for which a leaving node waits, because a sender may never learn of the move and a
/// lane may never have room.
const CALM_WITHIN: Duration = Duration::from_secs(2);

/// State of the sharding machines for callers that wait for a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Types whose region has been registered once. A type stays here if it loses its coordinator.
    pub(crate) registered: BTreeSet<EntityType>, // ≤ ENTITY_TYPES_MAX
    /// Counts the events [`ShardingEvent::Stopped`], each of which may stand for many shards. It
    /// serves to wake waiting callers.
    pub(crate) stopped: u64,
    /// All shards of this node have been handed over or stopped, because it leaves. Final.
    pub(crate) left: bool,
    /// The machines have ended. Final.
    pub(crate) ended: bool,
}

/// Registry of the entity types on this node.
#[derive(Default)]
pub(crate) struct RegionRegistry {
    types: PerThread<RwLock<TypesByName>>, // all copies are equal
    adding: Mutex<()>, // held while a type is added to all copies, and by `end` to set `ended`
    progress: watch::Sender<Progress>,
    asks: Arc<PendingAsks>,
    strategies: Strategies,
    /// Callers that wait for a cluster query, by its number; each until its query ends, also if the
    /// caller has dropped its future.
    cluster_queries: Mutex<BTreeMap<u64, oneshot::Sender<ClusterQueryResult>>>, // ≤ callers
    last_cluster_query: AtomicU64,
    names: OnceLock<NodeNames>, // for the log
}

/// Hosted types by name; ≤ [`ENTITY_TYPES_MAX`].
type TypesByName = BTreeMap<String, Arc<HostedType>>;

/// A hosted type, with a reference count for one thread, so that frames on different threads do not
/// contend for one counter. Padded, so that the counts of its own `Arc` share no cache line with
/// others.
type HostedType = CachePadded<Arc<dyn RegionHandle>>;

/// A handler that blocks its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockingHandler {
    /// Name of the entity type.
    pub(crate) entity_type: String,
    /// Id of the entity; `None` if the entity no longer exists.
    pub(crate) entity: Option<String>,
    /// Shard of the entity.
    pub(crate) shard: ShardId,
    /// Rust type of its messages.
    pub(crate) message: &'static str,
    /// Duration of the poll so far.
    pub(crate) took: Duration,
}

/// Why a frame on a user lane was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotArrived {
    /// The header is not the name of an entity type.
    #[error("its header is not the name of an entity type")]
    Header,
    /// The program has not started the type on this node.
    #[error("this node has not started the entity type that it is for")]
    Type,
    /// The frame is malformed.
    #[error(transparent)]
    Frame(#[from] BadFrame),
}

impl RegionRegistry {
    /// Registers a type, and stops it at once if the machines have ended. Returns `false`, without
    /// registering it, if [`ENTITY_TYPES_MAX`] types are registered already. Types whose start was
    /// told to the machines are never removed. The caller has checked that the type is not
    /// registered; otherwise it is replaced.
    pub(super) fn add(&self, entity_type: &EntityType, hosting: &Arc<dyn RegionHandle>) -> bool {
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = self.types().len() < ENTITY_TYPES_MAX;
        if has_room {
            for types in self.types.all() {
                let mut types = types.write().unwrap_or_else(PoisonError::into_inner);
                let hosted = Arc::new(CachePadded::new(Arc::clone(hosting)));
                types.insert(entity_type.as_str().to_owned(), hosted);
            }
        }
        drop(adding);
        if self.progress.borrow().ended {
            hosting.perform(RegionOutput::StopAll);
        }
        has_room
    }

    /// Removes a type with its strategy, because the machines ended before they could start it.
    pub(super) fn remove(&self, entity_type: &EntityType) {
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut removed = Vec::new();
        for types in self.types.all() {
            let mut types = types.write().unwrap_or_else(PoisonError::into_inner);
            removed.extend(types.remove(entity_type.as_str()));
        }
        drop(adding);
        drop(removed); // after the locks: the region owns values of the program
        self.strategies.remove(entity_type);
    }

    /// Sets the names of nodes for the log. Until then the log shows incarnations. A second call
    /// has no effect.
    pub(crate) fn set_names(&self, names: NodeNames) {
        let _ = self.names.set(names); // called once, at the start
    }

    fn names(&self) -> NodeNames {
        self.names.get().cloned().unwrap_or_default()
    }

    /// Pending asks of all types of this node.
    pub(super) const fn asks(&self) -> &Arc<PendingAsks> {
        &self.asks
    }

    /// Allocation strategies of the program.
    pub(crate) const fn strategies(&self) -> &Strategies {
        &self.strategies
    }

    fn types(&self) -> RwLockReadGuard<'_, TypesByName> {
        self.types.mine().read().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &str) -> Option<Arc<HostedType>> {
        self.types().get(name).cloned()
    }

    fn all(&self) -> Vec<Arc<dyn RegionHandle>> {
        self.types().values().map(|hosted| Arc::clone(&***hosted)).collect()
    }

    /// Delivers a frame that arrived on a user lane. An answer to an ask of this node is taken also
    /// if this node has not started its type, even if the ask has ended. `Ok` does not mean that a
    /// message reaches its entity: a type that has stopped counts it as lost.
    ///
    /// # Errors
    /// [`NotArrived`] if the frame is dropped, which the caller counts: its header has no name or
    /// several; its type is not registered and the frame is not an answer; or it is malformed.
    pub(crate) fn arrived(&self, message: &Inbound<'_>) -> Result<(), NotArrived> {
        let [name] = message.fields else { return Err(NotArrived::Header) };
        let Some(hosting) = self.find(name) else {
            // An answer names the type of the answering entity, which the asking node need not have
            // started.
            let taken = stray::take_answer(&self.asks, message.body)?;
            return if taken { Ok(()) } else { Err(NotArrived::Type) };
        };
        Ok(hosting.arrived(RegionId::new(message.from.incarnation), message.body)?)
    }

    /// Forwards an order of a region's machine. Ignores an order for a type that is not registered.
    pub(crate) fn perform(&self, entity_type: &EntityType, order: RegionOutput) {
        if let Some(hosting) = self.find(entity_type.as_str()) {
            hosting.perform(order);
        }
    }

    /// Called when the hosting lease has been expired for long: all types drop their instances, see
    /// [`RegionHandle::lapsed`]. The types themselves continue.
    pub(crate) fn lapsed(&self) {
        self.all().iter().for_each(|hosting| hosting.lapsed());
    }

    /// Called when the lane to a region has room again or was given up, or is new: all types try
    /// again to send. May be called without need.
    pub(crate) fn room(&self, to: RegionId) {
        self.all().iter().for_each(|hosting| hosting.room(to));
    }

    /// Called when a region's node is no longer in the configuration in effect; forwarded to all
    /// types, see [`RegionHandle::removed`].
    pub(crate) fn removed(&self, region: RegionId, how: Departure) {
        self.all().iter().for_each(|hosting| hosting.removed(region, how));
    }

    /// Called when the lane to a region has been broken for long, or its messages were given up;
    /// more than once for one break, if both happen.
    pub(crate) fn cut(&self, region: RegionId) {
        self.all().iter().for_each(|hosting| hosting.cut(region));
    }

    /// Reminds all types at the given interval ([`RegionHandle::remind`]): they request missing
    /// barrier acknowledgements again, among other things. The first time is after one interval.
    /// Ends when the machines end or, at the next interval, after the registry was dropped. Returns
    /// the task, which runs on even if its handle is dropped. Must be called on a runtime.
    pub(super) fn remind_every(self: &Arc<Self>, pause: Duration) -> JoinHandle<()> {
        let (region_registry, mut progress) = (Arc::downgrade(self), self.progress());
        tokio::spawn(async move {
            let ended = progress.wait_for(|progress| progress.ended);
            tokio::pin!(ended);
            while tokio::time::timeout(pause, &mut ended).await.is_err() {
                let Some(region_registry) = region_registry.upgrade() else { return };
                region_registry.all().iter().for_each(|hosting| hosting.remind());
            }
        })
    }

    /// Number of entities of a type in each shard on this node, those without an instance included;
    /// shards without any are left out. Empty for a type that is not registered. Locks one shard
    /// after the other, so the numbers are not of one moment.
    pub(crate) fn count(&self, entity_type: &EntityType) -> BTreeMap<ShardId, u64> {
        let hosting = self.find(entity_type.as_str());
        hosting.map(|hosting| hosting.entities().into_iter().collect()).unwrap_or_default()
    }

    /// Whether an entity is live on this node; `None` if its shard does not live here, or the type
    /// is not registered.
    pub(crate) fn lives(&self, entity_type: &EntityType, entity: &EntityId) -> Option<bool> {
        self.find(entity_type.as_str())?.lives(entity)
    }

    /// Finds the handler of this node that a long poll belongs to; `None` if it belongs to another
    /// node of this process. Also starts the check for slow handlers of that type. Holds the read
    /// lock of this thread's types meanwhile.
    pub(crate) fn blocking(&self, poll: &LongPoll) -> Option<BlockingHandler> {
        let types = self.types();
        types.iter().find_map(|(entity_type, hosted)| {
            let (entity, message) = hosted.polled(poll)?;
            Some(BlockingHandler {
                entity_type: entity_type.clone(),
                entity: entity.map(|entity| entity.to_string()),
                shard: poll.shard,
                message,
                took: poll.took,
            })
        })
    }

    /// The shard of an entity; `None` if the type was not started on this node.
    pub(super) fn shard(&self, entity_type: &EntityType, entity: &EntityId) -> Option<ShardId> {
        Some(self.find(entity_type.as_str())?.shard(entity))
    }

    /// The home of a shard, if this node knows it, see [`RegionHandle::home`]; `None` also for a
    /// type that is not registered.
    pub(super) fn home(&self, entity_type: &EntityType, shard: ShardId) -> Option<RegionId> {
        self.find(entity_type.as_str())?.home(shard)
    }

    /// Registers a caller of a cluster query. Returns the number of the query, from 1 on and never
    /// used twice, and the receiver of its answer. The caller must then order the query under this
    /// number; without that the entry stays until the machines end. If the machines have ended, the
    /// receiver fails at once; if they end later, it fails then.
    pub(super) fn await_cluster_query(&self) -> (u64, oneshot::Receiver<ClusterQueryResult>) {
        let number = self.last_cluster_query.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        let mut cluster_queries = self.cluster_queries();
        if !self.progress.borrow().ended {
            cluster_queries.insert(number, sender);
        }
        (number, receiver)
    }

    fn cluster_queries(
        &self,
    ) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<ClusterQueryResult>>> {
        self.cluster_queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event of the sharding machines. `Registered`, `Left` and `Stopped` are recorded
    /// in the progress, which wakes its observers even if nothing is new; the first two are logged
    /// as well. `Answered` goes to the caller of the cluster query, and is dropped if the caller is
    /// gone or the number unknown. All other events are only logged, without a throttle here.
    pub(crate) fn happened(&self, event: ShardingEvent) {
        match event {
            ShardingEvent::Registered(entity_type) => {
                tracing::info!(%entity_type, "sharding.registered");
                self.progress.send_modify(|progress| {
                    progress.registered.insert(entity_type);
                });
            }
            ShardingEvent::Answered { id, found } => {
                let waits = self.cluster_queries().remove(&id);
                let _ = waits.map(|sender| sender.send(found)); // fails if the caller has left
            }
            ShardingEvent::Stopped(_) => {
                self.progress.send_modify(|progress| progress.stopped += 1);
            }
            ShardingEvent::Step { entity_type, step } => {
                steps::log(&entity_type, &step, &self.names());
            }
            ShardingEvent::Slow { entity_type, slow } => {
                steps::warn(&entity_type, &slow, &self.names());
            }
            ShardingEvent::Unregistered { entity_type, complaint } => {
                steps::complain(&entity_type, &complaint, &self.names());
            }
            ShardingEvent::StrategyFailed { entity_type, why } => {
                tracing::warn!(
                    %entity_type, %why,
                    "sharding.strategy_failed: the program's allocation strategy failed or gave no \
                     usable answer; shards stay where they are, and it is asked again"
                );
            }
            ShardingEvent::PinsAbsent { entity_type, addresses } => {
                steps::absent(&entity_type, &addresses);
            }
            ShardingEvent::Left => {
                tracing::info!("sharding.left");
                self.progress.send_modify(|progress| progress.left = true);
            }
            ShardingEvent::Acting { entity_type, term } => {
                tracing::info!(%entity_type, term, "sharding.coordinator");
            }
            ShardingEvent::Differs { entity_type, here, coordinator, there } => {
                let names = self.names();
                let coordinator = coordinator.map(|it| tracing::field::display(names.of(it)));
                tracing::warn!(
                    %entity_type, %here, coordinator, %there,
                    "sharding.settings_differ: this node gets no shards of the type and learns no \
                     homes; set the type equally on all nodes, a proxy by start_proxy_with, and \
                     restart the wrong ones"
                );
            }
            ShardingEvent::SteppedDown { entity_type, why } => {
                tracing::warn!(
                    %entity_type, %why,
                    "sharding.stepped_down: this node no longer coordinates the type"
                );
            }
        }
    }

    /// Marks the machines as ended, which wakes all observers of the progress; then fails the
    /// callers of cluster queries, aborts requests to strategies and stops all types, in this
    /// order. Types that are added later are stopped at once. Called by the node, since machines
    /// that panicked cannot report their end themselves. A second call changes nothing.
    pub(crate) fn end(&self) {
        {
            // Under the lock, so that `add` either finds `ended` set, or is done before the loop
            // below.
            let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
            self.progress.send_modify(|progress| progress.ended = true);
        }
        self.cluster_queries().clear(); // fails the waiting callers
        self.strategies.end();
        self.all().iter().for_each(|hosting| hosting.perform(RegionOutput::StopAll));
    }

    /// Waits, for [`CALM_WITHIN`] at most, until no message was returned to a sender for [`CALM`]
    /// and no message on this node waits for a lane or a decision. Then returns in any case, with a
    /// warning if the time was over. Messages that still wait after that, and messages that other
    /// nodes send to this node later, are lost.
    pub(super) async fn calm(&self) {
        if tokio::time::timeout(CALM_WITHIN, self.calmed()).await.is_err() {
            let waiting: usize = self.unrest().iter().map(|of_type| of_type.waiting).sum();
            tracing::warn!(
                waiting,
                within = ?CALM_WITHIN,
                "sharding.not_calm: this node leaves, although messages still wait here, or other \
                 nodes may not know the new homes of its shards"
            );
        }
    }

    /// Waits until two successive checks, [`CALM`] apart, find equal counts of all types, those of
    /// waiting messages included, and no waiting message. Returns at once if no type has a region
    /// that still runs; a region that has only left still runs. Waits without a limit.
    async fn calmed(&self) {
        let mut seen = self.unrest();
        while !seen.is_empty() {
            tokio::time::sleep(CALM).await;
            let now = self.unrest();
            if now == seen && now.iter().all(|of_type| of_type.waiting == 0) {
                return;
            }
            seen = now;
        }
    }

    /// The counts of every type whose region has not stopped for good, in the order of the types.
    fn unrest(&self) -> Vec<UndeliveredCounts> {
        self.all().iter().filter_map(|hosting| hosting.unrest()).collect() // ≤ ENTITY_TYPES_MAX
    }

    /// Receiver of the present progress and all later changes.
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use libp2p::PeerId;
    use ostraca_ddata::id::ReplicaId;
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::Config;
    use crate::net::handle::NetEvent;
    use crate::net::{NodeId, TrafficClass};
    use crate::node::clock::Clock;
    use crate::node::event_pump::{ConnectedNodes, EventPump, PendingDisconnects};
    use crate::node::inbox::{Inbox, InboxLimits};
    use crate::node::lease::LeaseDeadline;
    use crate::node::parts;
    use crate::node::sharding::{Sharding, ShardingSetup};
    use crate::node::shutdown::{CoordinatedShutdown, ShutdownConfig};
    use crate::waits::eventually;

    #[derive(Default)]
    struct HostingRecorder(Mutex<Vec<String>>);

    impl HostingRecorder {
        /// Records a call. [`RegionHandle::unrest`] takes the notes back.
        fn note(&self, what: String) {
            self.0.lock().expect("no test panics under it").push(what);
        }
    }

    impl RegionHandle for HostingRecorder {
        fn perform(&self, order: RegionOutput) {
            self.note(format!("{order:?}"));
        }

        fn lapsed(&self) {
            self.note("lapsed".to_owned());
        }

        /// Records every frame, and refuses an empty one.
        fn arrived(&self, from: RegionId, frame: &[u8]) -> Result<(), BadFrame> {
            self.note(format!("{from} {frame:?}"));
            if frame.is_empty() { Err(BadFrame("empty")) } else { Ok(()) }
        }

        fn room(&self, to: RegionId) {
            self.note(format!("room {to}"));
        }

        fn removed(&self, region: RegionId, _: Departure) {
            self.note(format!("removed {region}"));
        }

        fn cut(&self, region: RegionId) {
            self.note(format!("cut {region}"));
        }

        /// Removes the last note and counts the others as sent back; `None` without a note. The
        /// note "waits for ever" is not removed and counts as a waiting message.
        fn unrest(&self) -> Option<UndeliveredCounts> {
            let mut heard = self.0.lock().expect("no test panics under it");
            let note = heard.pop()?;
            let waits = note == "waits for ever";
            if waits {
                heard.push(note);
            }
            Some(UndeliveredCounts { sent_back: heard.len() as u64, waiting: usize::from(waits) })
        }

        fn remind(&self) {
            self.note("remind".to_owned());
        }

        fn entities(&self) -> Vec<(ShardId, u64)> {
            vec![(ShardId::new(1), 5)]
        }

        fn lives(&self, _: &EntityId) -> Option<bool> {
            Some(true)
        }

        fn shard(&self, _: &EntityId) -> ShardId {
            ShardId::new(1)
        }

        fn home(&self, _: ShardId) -> Option<RegionId> {
            Some(RegionId::new(ReplicaId::new(7)))
        }
    }

    fn named(name: &str) -> EntityType {
        EntityType::new(name).expect("a name")
    }

    /// Registers a type whose calls are recorded. Returns false if there is no room for it.
    fn host(region_registry: &RegionRegistry, name: &str, recorder: &Arc<HostingRecorder>) -> bool {
        let hosting: Arc<dyn RegionHandle> = recorder.clone();
        region_registry.add(&named(name), &hosting)
    }

    #[test]
    fn frame_reaches_only_the_type_named_in_its_header() {
        let (region_registry, recorder) =
            (RegionRegistry::default(), Arc::new(HostingRecorder::default()));
        assert!(host(&region_registry, "counter", &recorder));
        let from = NodeId { peer: PeerId::random(), incarnation: ReplicaId::new(7) };
        let hear = |names: &[&str], body: &[u8]| {
            let fields: Vec<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
            region_registry.arrived(&Inbound {
                from,
                class: TrafficClass::User,
                fields: &fields,
                body,
            })
        };
        assert_eq!(hear(&["counter"], &[1]), Ok(()));
        let barrier = [2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(hear(&["other"], &barrier), Err(NotArrived::Type));
        let refused = [6, 1, 0, 0, 0, 0, 0, 0, 0, 1]; // an answer that comes too late
        assert_eq!((hear(&["other"], &refused), region_registry.asks().late()), (Ok(()), 1));
        assert!(matches!(hear(&["other"], &[0]), Err(NotArrived::Frame(_))));
        assert_eq!(hear(&[], &[1]), Err(NotArrived::Header));
        assert_eq!(hear(&["counter", "x"], &[1]), Err(NotArrived::Header));
        assert_eq!(hear(&["counter"], &[]), Err(NotArrived::Frame(BadFrame("empty"))));
        let heard = recorder.0.lock().expect("no test panics under it").clone();
        let seven = RegionId::new(ReplicaId::new(7));
        assert_eq!(heard, [format!("{seven} [1]"), format!("{seven} []")]);
    }

    #[test]
    fn orders_reach_one_type_and_lane_changes_reach_all() {
        let region_registry = RegionRegistry::default();
        let [one, other] = [(); 2].map(|()| Arc::new(HostingRecorder::default()));
        assert!(host(&region_registry, "one", &one));
        assert!(host(&region_registry, "other", &other));
        let order = RegionOutput::Abort(ShardId::new(3));
        region_registry.perform(&named("one"), order.clone());
        region_registry.perform(&named("third"), order);
        let region = RegionId::new(ReplicaId::new(7));
        region_registry.room(region);
        region_registry.removed(region, Departure::Unheard);
        region_registry.cut(region);
        let news = ["room", "removed", "cut"].map(|what| format!("{what} {region}"));
        let heard = |recorder: &HostingRecorder| recorder.0.lock().expect("no panic").clone();
        assert_eq!(heard(&one)[1..], news);
        assert_eq!(heard(&other), news);
    }

    #[test]
    fn end_of_machines_stops_present_and_later_types() {
        let region_registry = RegionRegistry::default();
        let [one, late] = [(); 2].map(|()| Arc::new(HostingRecorder::default()));
        assert!(host(&region_registry, "one", &one));
        region_registry.end();
        assert!(host(&region_registry, "late", &late));
        for recorder in [one, late] {
            let heard = recorder.0.lock().expect("no panic").clone();
            assert_eq!(heard, [format!("{:?}", RegionOutput::StopAll)]);
        }
    }

    #[tokio::test]
    async fn leaving_node_waits_while_messages_are_returned() {
        let (region_registry, recorder) =
            (RegionRegistry::default(), Arc::new(HostingRecorder::default()));
        region_registry.calm().await; // returns at once without a type
        assert!(host(&region_registry, "counter", &recorder));
        (0..3).for_each(|_| recorder.note("unrest".to_owned()));
        region_registry.calm().await;
        assert!(recorder.0.lock().expect("no panic").is_empty(), "every check saw a change");
    }

    #[tokio::test]
    async fn leaving_node_waits_only_so_long_for_a_full_lane() {
        let (region_registry, recorder) =
            (RegionRegistry::default(), Arc::new(HostingRecorder::default()));
        assert!(host(&region_registry, "counter", &recorder));
        recorder.note("waits for ever".to_owned());
        let within = CALM_WITHIN * 20; // allows for a slow machine
        tokio::time::timeout(within, region_registry.calm()).await.expect("the wait is bounded");
        assert_eq!(recorder.0.lock().expect("no panic").len(), 1, "the message still waits");
    }

    #[tokio::test]
    async fn types_are_reminded_until_the_machines_end() {
        let region_registry = Arc::new(RegionRegistry::default());
        let one = Arc::new(HostingRecorder::default());
        assert!(host(&region_registry, "one", &one));
        let reminds = region_registry.remind_every(Duration::from_millis(1));
        let reminded = || one.0.lock().expect("no panic").iter().filter(|x| *x == "remind").count();
        eventually("it is reminded", async || reminded() >= 3).await;
        region_registry.end();
        reminds.await.expect("the task ends with the machines");
    }

    /// Starts the event pump of a node with this `lane-broken-after`, and closes the node's
    /// connection to `peer`. Returns the recorder of its only type, and a sender; the pump ends
    /// when the sender is dropped.
    async fn disconnected(
        lane_broken_after: Duration,
        peer: NodeId,
    ) -> (Arc<HostingRecorder>, mpsc::UnboundedSender<NetEvent>) {
        let mut config = Config::default();
        config.sharding.lane_broken_after = lane_broken_after;
        let (region_registry, recorder) = (Arc::new(RegionRegistry::default()), Arc::default());
        assert!(host(&region_registry, "counter", &recorder));
        let (part, clock) = (parts::alone().await, Clock::start());
        let shutdown = CoordinatedShutdown::new(ShutdownConfig::default());
        let sharding = Sharding::new(ShardingSetup {
            me: ReplicaId::new(1),
            config: &config,
            net: Arc::default(),
            inbox: Inbox::new(InboxLimits::default()),
            lease: LeaseDeadline::none(clock),
            clock,
            region_registry: Arc::clone(&region_registry),
            replicator: part.handle,
            shutdown: shutdown.observer(),
        });
        let (net, net_events) = mpsc::unbounded_channel();
        let pump = EventPump {
            facts: part.facts,
            up: watch::channel(ConnectedNodes::new()).0,
            net_events,
            events: mpsc::channel(1).1,
            membership: None,
            region_registry,
            lane_broken_after: sharding.lane_broken_after(),
            shutdown,
            pending_disconnects: PendingDisconnects::default(),
            said: BTreeMap::new(),
        };
        tokio::spawn(pump.listen());
        net.send(NetEvent::Closed { node: peer }).expect("the pump runs");
        (recorder, net)
    }

    /// The node that should wait for an hour was disconnected first: with equal times it would give
    /// up the lane first, too.
    #[tokio::test]
    async fn closed_lane_is_given_up_after_the_configured_time() {
        let peer = NodeId { peer: PeerId::random(), incarnation: ReplicaId::new(7) };
        let (patient, _patient_net) = disconnected(Duration::from_secs(3_600), peer).await;
        let (hasty, _hasty_net) = disconnected(Duration::from_millis(1), peer).await;
        let cut = format!("cut {}", RegionId::new(peer.incarnation));
        let is_cut =
            |recorder: &HostingRecorder| recorder.0.lock().expect("no panic").contains(&cut);
        eventually("it gives up the lane", async || is_cut(&hasty)).await;
        tokio::task::yield_now().await; // timers that expired at the same time take effect
        assert!(!is_cut(&patient), "an hour has not passed");
    }

    #[tokio::test]
    async fn progress_reports_registration_and_end() {
        let region_registry = RegionRegistry::default();
        let mut progress = region_registry.progress();
        region_registry.happened(ShardingEvent::Registered(named("counter")));
        region_registry.happened(ShardingEvent::Left);
        let seen = progress.wait_for(|progress| progress.left).await.expect("reported").clone();
        assert!(seen.registered.contains(&named("counter")) && !seen.ended);
        region_registry.end();
        assert!(progress.wait_for(|progress| progress.ended).await.is_ok());
    }
}
