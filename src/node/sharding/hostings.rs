//! What runs the entities of this node, by type: the node's parts tell it orders, frames, and what
//! became of lanes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::steps;
use super::strategies::Strategies;
use crate::cluster::member::ENTITY_TYPES_MAX;
use crate::net::Inbound;
use crate::node::wiring::sharding::Event;
use crate::sharding::asks::Asks;
use crate::sharding::hosting::{BadFrame, Hosting, Unrest};
use crate::sharding::ids::{EntityId, EntityType, RegionId, ShardId};
use crate::sharding::machines::Found;
use crate::sharding::polls::LongPoll;
use crate::sharding::region::RegionOutput;
use crate::sharding::stray;
use crate::threads::PerThread;

/// Who has not heard of a move is told of it by what comes back, within a round trip. When nothing
/// was sent back for so long, most likely everybody has heard; who was silent, or is farther away
/// than that, may not have.
const CALM: Duration = Duration::from_millis(200);

/// Whoever leaves waits no longer for that: a sender may never hear, and a lane never have room.
const CALM_WITHIN: Duration = Duration::from_secs(2);

/// What waiters see of the sharding machines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Types whose region the coordinator has known once.
    pub(crate) registered: BTreeSet<EntityType>, // ≤ ENTITY_TYPES_MAX
    /// How often shards have stopped that the program wanted to.
    pub(crate) stopped: u64,
    /// Everything is handed over.
    pub(crate) left: bool,
    /// The machines are gone.
    pub(crate) ended: bool,
}

/// See the module's page.
#[derive(Default)]
pub(crate) struct Hostings {
    types: PerThread<RwLock<Types>>, // alike
    adding: Mutex<()>,
    progress: watch::Sender<Progress>,
    asks: Arc<Asks>,
    strategies: Strategies,
    surveys: Mutex<BTreeMap<u64, oneshot::Sender<Found>>>, // ≤ callers, until they time out
    last_survey: AtomicU64,
}

/// ≤ [`ENTITY_TYPES_MAX`].
type Types = BTreeMap<String, Arc<Hosted>>;

/// A type, for frames that come on one thread: they count here that they use it.
#[repr(align(128))] // and so are the counts of its `Arc` apart from others
struct Hosted(Arc<dyn Hosting>);

/// A handler that keeps its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockingHandler {
    /// The entity type.
    pub(crate) entity_type: String,
    /// The entity's id; `None`: it is gone by now.
    pub(crate) entity: Option<String>,
    /// Its shard.
    pub(crate) shard: ShardId,
    /// The Rust type of its messages.
    pub(crate) message: &'static str,
    /// For how long.
    pub(crate) took: Duration,
}

/// Why a frame on a user lane is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotArrived {
    /// The header is not a type's name.
    #[error("its header is not the name of an entity type")]
    Header,
    /// The program has not started the type here.
    #[error("this node has not started the entity type that it is for")]
    Type,
    /// It is none.
    #[error(transparent)]
    Frame(#[from] BadFrame),
}

impl Hostings {
    /// From now on this hosts the type here; at once over if the machines have ended. `false`:
    /// there are as many as there may be.
    pub(super) fn add(&self, entity_type: &EntityType, hosting: &Arc<dyn Hosting>) -> bool {
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = self.types().len() < ENTITY_TYPES_MAX;
        if has_room {
            for types in self.types.all() {
                let mut types = types.write().unwrap_or_else(PoisonError::into_inner);
                let hosted = Arc::new(Hosted(Arc::clone(hosting)));
                types.insert(entity_type.as_str().to_owned(), hosted);
            }
        }
        drop(adding);
        if self.progress.borrow().ended {
            hosting.perform(RegionOutput::StopAll);
        }
        has_room
    }

    /// The questions of all types of this node.
    pub(super) const fn asks(&self) -> &Arc<Asks> {
        &self.asks
    }

    /// Allocation strategies that the program brought.
    pub(crate) const fn strategies(&self) -> &Strategies {
        &self.strategies
    }

    fn types(&self) -> RwLockReadGuard<'_, Types> {
        self.types.mine().read().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &str) -> Option<Arc<Hosted>> {
        self.types().get(name).cloned()
    }

    fn all(&self) -> Vec<Arc<dyn Hosting>> {
        self.types().values().map(|hosted| Arc::clone(&hosted.0)).collect()
    }

    /// A frame came down a user lane.
    pub(crate) fn arrived(&self, message: &Inbound<'_>) -> Result<(), NotArrived> {
        let [name] = message.fields else { return Err(NotArrived::Header) };
        let Some(hosting) = self.find(name) else {
            // Under the name of who answers, and the asker need not have that type.
            let taken = stray::take_answer(&self.asks, message.body)?;
            return if taken { Ok(()) } else { Err(NotArrived::Type) };
        };
        Ok(hosting.0.arrived(RegionId::new(message.from.incarnation), message.body)?)
    }

    /// An order of a region's machine.
    pub(crate) fn perform(&self, entity_type: &EntityType, order: RegionOutput) {
        if let Some(hosting) = self.find(entity_type.as_str()) {
            hosting.0.perform(order);
        }
    }

    /// The hosting lease has lapsed for long.
    pub(crate) fn lapsed(&self) {
        self.all().iter().for_each(|hosting| hosting.lapsed());
    }

    /// The lane to a region has room again, or is new.
    pub(crate) fn room(&self, to: RegionId) {
        self.all().iter().for_each(|hosting| hosting.room(to));
    }

    /// A region is out of the installed configuration.
    pub(crate) fn removed(&self, region: RegionId) {
        self.all().iter().for_each(|hosting| hosting.removed(region));
    }

    /// The lane to a region has been cut for long, or what was on it was given up.
    pub(crate) fn cut(&self, region: RegionId) {
        self.all().iter().for_each(|hosting| hosting.cut(region));
    }

    /// Reminds all types every while, until the machines end or nobody holds this any more.
    pub(super) fn remind_every(self: &Arc<Self>, pause: Duration) -> JoinHandle<()> {
        let (hostings, mut progress) = (Arc::downgrade(self), self.progress());
        tokio::spawn(async move {
            let ended = progress.wait_for(|progress| progress.ended);
            tokio::pin!(ended);
            while tokio::time::timeout(pause, &mut ended).await.is_err() {
                let Some(hostings) = hostings.upgrade() else { return };
                hostings.all().iter().for_each(|hosting| hosting.remind());
            }
        })
    }

    /// How many entities of a type live in each shard here; shards without any are left out.
    pub(crate) fn count(&self, entity_type: &EntityType) -> BTreeMap<ShardId, u64> {
        let hosting = self.find(entity_type.as_str());
        hosting.map(|hosting| hosting.0.entities().into_iter().collect()).unwrap_or_default()
    }

    /// Whether an entity lives here; `None`: its shard does not.
    pub(crate) fn lives(&self, entity_type: &EntityType, entity: &EntityId) -> Option<bool> {
        self.find(entity_type.as_str())?.0.lives(entity)
    }

    /// Which handler of this node that is.
    pub(crate) fn blocking(&self, poll: &LongPoll) -> Option<BlockingHandler> {
        let types = self.types();
        types.iter().find_map(|(entity_type, hosted)| {
            let (entity, message) = hosted.0.polled(poll)?;
            Some(BlockingHandler {
                entity_type: entity_type.clone(),
                entity: entity.map(|entity| entity.to_string()),
                shard: poll.shard,
                message,
                took: poll.took,
            })
        })
    }

    /// The shard of an entity; `None`: the type was not started here.
    pub(super) fn shard(&self, entity_type: &EntityType, entity: &EntityId) -> Option<ShardId> {
        Some(self.find(entity_type.as_str())?.0.shard(entity))
    }

    /// Where a shard of a type lives, as far as is known here.
    pub(super) fn home(&self, entity_type: &EntityType, shard: ShardId) -> Option<RegionId> {
        self.find(entity_type.as_str())?.0.home(shard)
    }

    /// A place for the answer to a survey, and the survey's number.
    pub(super) fn await_survey(&self) -> (u64, oneshot::Receiver<Found>) {
        let number = self.last_survey.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        let mut surveys = self.surveys();
        if !self.progress.borrow().ended {
            surveys.insert(number, sender);
        }
        (number, receiver)
    }

    fn surveys(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<Found>>> {
        self.surveys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machines tell their node.
    pub(crate) fn happened(&self, event: Event) {
        match event {
            Event::Registered(entity_type) => {
                tracing::info!(%entity_type, "sharding.registered");
                self.progress.send_modify(|progress| {
                    progress.registered.insert(entity_type);
                });
            }
            Event::Surveyed { id, found } => {
                let waits = self.surveys().remove(&id);
                let _ = waits.map(|sender| sender.send(found)); // who asked may have left
            }
            Event::Stopped(_) => self.progress.send_modify(|progress| progress.stopped += 1),
            Event::Step { entity_type, step } => steps::log(&entity_type, &step),
            Event::Slow { entity_type, slow } => steps::warn(&entity_type, &slow),
            Event::Unregistered { entity_type, complaint } => {
                steps::complain(&entity_type, &complaint);
            }
            Event::StrategyFailed { entity_type, why } => {
                tracing::warn!(
                    %entity_type, %why,
                    "sharding.strategy_failed: the program's allocation strategy gives no answer \
                     that helps; shards stay as they are, and it is asked again"
                );
            }
            Event::PinsAbsent { entity_type, addresses } => {
                steps::absent(&entity_type, &addresses);
            }
            Event::Left => {
                tracing::info!("sharding.left");
                self.progress.send_modify(|progress| progress.left = true);
            }
            Event::Acting { entity_type, term } => {
                tracing::info!(%entity_type, term, "sharding.coordinator");
            }
            Event::Differs { entity_type, here, coordinator, there } => {
                let coordinator = coordinator.map(tracing::field::display);
                tracing::warn!(
                    %entity_type, %here, coordinator, %there,
                    "sharding.settings_differ: this node gets no shards of the type and learns \
                     no homes; set it alike on all nodes and start the wrong ones anew"
                );
            }
            Event::SteppedDown { entity_type, why } => {
                tracing::warn!(%entity_type, %why, "sharding.stepped_down");
            }
        }
    }

    /// There are no machines any more: nothing runs, and nobody waits for them. Whatever they
    /// ended by, they may not have said so themselves.
    pub(crate) fn end(&self) {
        {
            // Under the lock: what is added later finds it and is stopped, too.
            let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
            self.progress.send_modify(|progress| progress.ended = true);
        }
        self.surveys().clear(); // whoever waits hears that nobody answers
        self.strategies.end();
        self.all().iter().for_each(|hosting| hosting.perform(RegionOutput::StopAll));
    }

    /// Ends when nothing has been sent back from here for a while, and nothing waits here for a
    /// lane or a decision, and after a bound in any case. What still waits then, and what is told to
    /// a node that has gone, is lost.
    pub(super) async fn calm(&self) {
        if tokio::time::timeout(CALM_WITHIN, self.calmed()).await.is_err() {
            let waiting: usize = self.unrest().iter().map(|of_type| of_type.waiting).sum();
            tracing::warn!(
                waiting,
                within = ?CALM_WITHIN,
                "sharding.not_calm: left all the same; so many messages still wait here, and \
                 other nodes may not have heard yet where shards went"
            );
        }
    }

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

    fn unrest(&self) -> Vec<Unrest> {
        self.all().iter().filter_map(|hosting| hosting.unrest()).collect() // ≤ ENTITY_TYPES_MAX
    }

    /// What is so now and later.
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use libp2p::PeerId;
    use ostraca_ddata::id::ReplicaId;

    use super::*;
    use crate::net::{Class, NodeId};

    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Recorder {
        fn note(&self, what: String) {
            self.0.lock().expect("no test panics under it").push(what);
        }
    }

    impl Hosting for Recorder {
        fn perform(&self, order: RegionOutput) {
            self.note(format!("{order:?}"));
        }

        fn lapsed(&self) {
            self.note("lapsed".to_owned());
        }

        fn arrived(&self, from: RegionId, frame: &[u8]) -> Result<(), BadFrame> {
            self.note(format!("{from} {frame:?}"));
            if frame.is_empty() { Err(BadFrame("empty")) } else { Ok(()) }
        }

        fn room(&self, to: RegionId) {
            self.note(format!("room {to}"));
        }

        fn removed(&self, region: RegionId) {
            self.note(format!("removed {region}"));
        }

        fn cut(&self, region: RegionId) {
            self.note(format!("cut {region}"));
        }

        fn unrest(&self) -> Option<Unrest> {
            let mut heard = self.0.lock().expect("no test panics under it");
            let note = heard.pop()?;
            let waits = note == "waits for ever";
            if waits {
                heard.push(note);
            }
            Some(Unrest { sent_back: heard.len() as u64, waiting: usize::from(waits) })
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

    fn host(hostings: &Hostings, name: &str, recorder: &Arc<Recorder>) -> bool {
        let hosting: Arc<dyn Hosting> = recorder.clone();
        hostings.add(&named(name), &hosting)
    }

    #[test]
    fn a_frame_goes_to_the_type_that_its_header_names_and_to_nobody_else() {
        let (hostings, recorder) = (Hostings::default(), Arc::new(Recorder::default()));
        assert!(host(&hostings, "counter", &recorder));
        let from = NodeId { peer: PeerId::random(), incarnation: ReplicaId::new(7) };
        let hear = |names: &[&str], body: &[u8]| {
            let fields: Vec<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
            hostings.arrived(&Inbound { from, class: Class::User, fields: &fields, body })
        };
        assert_eq!(hear(&["counter"], &[1]), Ok(()));
        let barrier = [2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(hear(&["other"], &barrier), Err(NotArrived::Type));
        let refused = [6, 1, 0, 0, 0, 0, 0, 0, 0, 1]; // an answer, which comes too late
        assert_eq!((hear(&["other"], &refused), hostings.asks().late()), (Ok(()), 1));
        assert!(matches!(hear(&["other"], &[0]), Err(NotArrived::Frame(_))));
        assert_eq!(hear(&[], &[1]), Err(NotArrived::Header));
        assert_eq!(hear(&["counter", "x"], &[1]), Err(NotArrived::Header));
        assert_eq!(hear(&["counter"], &[]), Err(NotArrived::Frame(BadFrame("empty"))));
        let heard = recorder.0.lock().expect("no test panics under it").clone();
        let seven = RegionId::new(ReplicaId::new(7));
        assert_eq!(heard, [format!("{seven} [1]"), format!("{seven} []")]);
    }

    #[test]
    fn orders_are_for_one_type_and_news_of_lanes_for_all() {
        let hostings = Hostings::default();
        let [one, other] = [(); 2].map(|()| Arc::new(Recorder::default()));
        assert!(host(&hostings, "one", &one));
        assert!(host(&hostings, "other", &other));
        let order = RegionOutput::Abort(ShardId::new(3));
        hostings.perform(&named("one"), order.clone());
        hostings.perform(&named("third"), order);
        let region = RegionId::new(ReplicaId::new(7));
        hostings.room(region);
        hostings.removed(region);
        hostings.cut(region);
        let news = ["room", "removed", "cut"].map(|what| format!("{what} {region}"));
        let heard = |recorder: &Recorder| recorder.0.lock().expect("no panic").clone();
        assert_eq!(heard(&one)[1..], news);
        assert_eq!(heard(&other), news);
    }

    #[test]
    fn with_the_end_of_the_machines_everything_stops_and_what_is_added_later_too() {
        let hostings = Hostings::default();
        let [one, late] = [(); 2].map(|()| Arc::new(Recorder::default()));
        assert!(host(&hostings, "one", &one));
        hostings.end();
        assert!(host(&hostings, "late", &late));
        for recorder in [one, late] {
            let heard = recorder.0.lock().expect("no panic").clone();
            assert_eq!(heard, [format!("{:?}", RegionOutput::StopAll)]);
        }
    }

    #[tokio::test]
    async fn who_leaves_waits_as_long_as_messages_are_sent_back_and_not_for_what_has_stopped() {
        let (hostings, recorder) = (Hostings::default(), Arc::new(Recorder::default()));
        hostings.calm().await; // nobody is there
        assert!(host(&hostings, "counter", &recorder));
        (0..3).for_each(|_| recorder.note("unrest".to_owned()));
        hostings.calm().await;
        assert!(recorder.0.lock().expect("no panic").is_empty(), "each look was another one");
    }

    #[tokio::test]
    async fn who_leaves_does_not_wait_for_ever_for_a_lane_without_room() {
        let (hostings, recorder) = (Hostings::default(), Arc::new(Recorder::default()));
        assert!(host(&hostings, "counter", &recorder));
        recorder.note("waits for ever".to_owned());
        let within = CALM_WITHIN * 20; // a slow machine
        tokio::time::timeout(within, hostings.calm()).await.expect("it is bounded");
        assert_eq!(recorder.0.lock().expect("no panic").len(), 1, "it still waits");
    }

    #[tokio::test]
    async fn types_are_reminded_until_the_machines_end() {
        let hostings = Arc::new(Hostings::default());
        let one = Arc::new(Recorder::default());
        assert!(host(&hostings, "one", &one));
        let reminds = hostings.remind_every(Duration::from_millis(1));
        let reminded = || one.0.lock().expect("no panic").iter().filter(|x| *x == "remind").count();
        while reminded() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        hostings.end();
        reminds.await.expect("it ends");
    }

    #[tokio::test]
    async fn who_waits_for_a_registration_or_for_the_end_is_told() {
        let hostings = Hostings::default();
        let mut progress = hostings.progress();
        hostings.happened(Event::Registered(named("counter")));
        hostings.happened(Event::Left);
        let seen = progress.wait_for(|progress| progress.left).await.expect("it is there").clone();
        assert!(seen.registered.contains(&named("counter")) && !seen.ended);
        hostings.end();
        assert!(progress.wait_for(|progress| progress.ended).await.is_ok());
    }
}
