//! The entities of one simulated node: the library's runtime of their type, an executor that runs
//! tasks in random order, and lanes that outlive connections. A lane keeps each frame until the
//! other end has acknowledged it, and sends the kept frames again on the next connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use ostraca::cluster::lease::Departure;
use ostraca::sharding::activation::Activation;
use ostraca::sharding::config::ShardingConfig as Settings;
use ostraca::sharding::entity::Supervision;
use ostraca::sharding::extractor::{ByMessage, HashExtractor, ShardHash};
use ostraca::sharding::fault_injection::ShardingFaultInjection;
use ostraca::sharding::ids::{EntityId, RegionId};
use ostraca::sharding::pending_asks::PendingAsks;
use ostraca::sharding::region::{RegionInput, RegionOutput};
use ostraca::sharding::region_handle::{
    NoRoom, RegionEnvironment, RegionHandle, UndeliveredCounts,
};
use ostraca::sharding::shard_region::{RegionSetup, ShardRegion};
use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::sim::RandomStream;

use super::book::Book;
use super::player::{From, Player, Word};
use crate::entities::executor::Executor;
use crate::nodes::counter;
use crate::whole::house::{House, Houses, Parcel, Said};

const ENTITIES: u64 = 30;
const MESSAGE_BYTES_MAX: usize = 1 << 16;
/// Frames beyond which a lane with a small limit refuses answers and bounces too.
const ANSWERS_MAX: usize = 64;
/// Interval of reminders, as in a real node.
const REMIND: Duration = Duration::from_secs(2);
/// Most polls of tasks in one event; more mean that tasks wake each other without end.
const TURNS_MAX: usize = 100_000;

/// The lane to one incarnation.
#[derive(Default)]
struct Lane {
    kept: VecDeque<(u64, Vec<u8>)>, // unacknowledged frames; at most `limit`, not counting answers
    last: u64,                      // number of the newest frame
    sent: u64,                      // highest number sent on this connection
    received: u64,
    acked: u64, // highest number acknowledged to the other end
    refused: bool,
    linked: bool,
}

impl Lane {
    fn push(&mut self, frame: &[u8]) {
        self.last += 1;
        self.kept.push_back((self.last, frame.to_vec()));
    }

    fn end(&self, peer: ReplicaId, book: &Book) {
        self.kept.iter().for_each(|(_, frame)| book.ends(frame, peer));
    }

    fn say(&mut self, to: ReplicaId, said: &mut Said) {
        if !self.linked {
            return;
        }
        for (number, frame) in self.kept.iter().filter(|(number, _)| *number > self.sent) {
            let parcel =
                Parcel { number: *number, acked: self.received, frame: Some(frame.clone()) };
            said.parcels.push((to, parcel));
            self.acked = self.received;
        }
        self.sent = self.last;
        if self.acked < self.received {
            self.acked = self.received;
            said.parcels.push((to, Parcel { number: 0, acked: self.received, frame: None }));
        }
    }
}

#[derive(Default)]
struct Lanes {
    to: BTreeMap<ReplicaId, Lane>,
    over: BTreeSet<ReplicaId>,
    limit: usize, // frames that a lane keeps before it refuses messages
}

/// The environment of a node's entities.
pub(crate) struct HouseWorld {
    book: Arc<Book>,
    executor: Arc<Executor>,
    lanes: Mutex<Lanes>,
    facts: Mutex<Vec<RegionInput>>,
    leased: AtomicBool,
}

impl HouseWorld {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().expect("nobody panicked")
    }
}

impl RegionEnvironment for HouseWorld {
    fn send(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom> {
        let mut lanes = self.lanes();
        let limit = lanes.limit;
        let lane = lanes.to.get_mut(&to.replica()).ok_or(NoRoom::NoLane)?;
        if frame.len() > MESSAGE_BYTES_MAX {
            return Err(NoRoom::TooLong);
        }
        if lane.kept.len() >= limit {
            lane.refused = true;
            return Err(NoRoom::Full);
        }
        lane.push(frame);
        self.book.goes(frame, to.replica());
        Ok(())
    }

    fn answer(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom> {
        let mut lanes = self.lanes();
        let limit = lanes.limit.saturating_mul(4).max(ANSWERS_MAX); // four times, as in real lanes
        let lane = lanes.to.get_mut(&to.replica()).ok_or(NoRoom::NoLane)?;
        if lane.kept.len() >= limit {
            return Err(NoRoom::Full);
        }
        lane.push(frame);
        self.book.goes(frame, to.replica());
        Ok(())
    }

    fn tell(&self, fact: RegionInput) {
        self.facts.lock().expect("nobody panicked").push(fact);
    }

    fn serves(&self) -> bool {
        self.leased.load(Ordering::SeqCst)
    }

    fn now(&self) -> Instant {
        self.executor.now()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.executor.spawn(task);
    }

    fn run(&self, burst: Activation) {
        self.executor.run(burst);
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        self.executor.sleep(pause)
    }
}

/// Settings that all nodes of a run share.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) book: Arc<Book>,
    pub(crate) settings: Settings,
    pub(crate) lane_max: usize, // limit of each lane, in frames
    pub(crate) fault_injection: ShardingFaultInjection,
}

impl Plan {
    pub(crate) fn houses(self) -> Houses {
        std::rc::Rc::new(move |me, seed| Box::new(Quarters::new(&self, me, seed)))
    }
}

/// The entities of one node, with their executor and lanes.
struct Quarters {
    me: ReplicaId,
    region: ShardRegion<Player>,
    hosting: Arc<dyn RegionHandle>,
    world: Arc<HouseWorld>,
    book: Arc<Book>,
    chance: RandomStream,
    told: BTreeMap<String, u64>,
    remind_at: Instant,
    again_at: Option<Instant>, // time until which ready tasks wait
    cut_after: Duration,
    cuts: BTreeMap<ReplicaId, Instant>,
    calm: Option<(Option<UndeliveredCounts>, Instant)>,
}

fn name(entity: u64) -> String {
    format!("e{entity}")
}

impl Quarters {
    fn new(plan: &Plan, me: ReplicaId, seed: u64) -> Self {
        let executor = Executor::new();
        let lanes = Mutex::new(Lanes { limit: plan.lane_max, ..Lanes::default() });
        let (facts, leased) = (Mutex::default(), AtomicBool::new(false));
        let book = Arc::clone(&plan.book);
        let world = Arc::new(HouseWorld { book, executor, lanes, facts, leased });
        let shards = plan.settings.number_of_shards;
        let hash = HashExtractor::new(ShardHash::Xxh3, shards).expect("a valid number of shards");
        let (book, of_players) = (Arc::clone(&plan.book), Arc::clone(&world));
        let factory = move |id: &EntityId| Player {
            book: Arc::clone(&book),
            world: Arc::clone(&of_players),
            id: id.as_str().to_owned(),
            count: 0,
        };
        let setup = RegionSetup {
            entity_type: counter(),
            me: RegionId::new(me),
            settings: plan.settings.clone(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            supervision: Supervision::default(),
            extractor: Arc::new(ByMessage::new(hash, |_: &Word| None)),
            factory: Box::new(factory),
            asks: PendingAsks::new(),
            fault_injection: plan.fault_injection,
        };
        let region = ShardRegion::new(setup, Arc::<HouseWorld>::clone(&world));
        region.publish();
        plan.book.opens(me, region.clone());
        Self {
            me,
            hosting: region.hosting(),
            region,
            world,
            book: Arc::clone(&plan.book),
            chance: RandomStream::split(seed, "quarters", 0),
            told: BTreeMap::new(),
            remind_at: Instant::from_nanos(0),
            again_at: None,
            cut_after: plan.settings.lane_broken_after,
            cuts: BTreeMap::new(),
            calm: None,
        }
    }

    fn due(&mut self, now: Instant) {
        if now >= self.remind_at {
            self.remind_at = now + REMIND;
            self.hosting.remind();
        }
        let due = self.cuts.iter().filter(|(_, at)| now >= **at);
        for peer in due.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.cuts.remove(&peer);
            self.cut(peer);
        }
    }

    fn cut(&self, peer: ReplicaId) {
        self.hosting.cut(RegionId::new(peer));
        self.book.gives_up(self.me, peer);
    }

    fn end_lane(&mut self, peer: ReplicaId) {
        let mut lanes = self.world.lanes();
        if let Some(lane) = lanes.to.remove(&peer) {
            lane.end(peer, &self.book);
        }
        lanes.over.insert(peer);
        self.cuts.remove(&peer);
    }
}

impl House for Quarters {
    fn perform(&mut self, order: RegionOutput) {
        match &order {
            RegionOutput::Start { payload: Some(payload), .. } => self.book.comes(payload, self.me),
            // From now on this node counts its messages.
            RegionOutput::Discard { payload, .. } => self.book.goes(payload, self.me),
            _ => {}
        }
        self.hosting.perform(order);
    }

    fn removed(&mut self, region: RegionId, how: Departure) {
        self.end_lane(region.replica());
        self.hosting.removed(region, how);
    }

    fn lapsed(&mut self) {
        self.world.leased.store(false, Ordering::SeqCst);
        self.hosting.lapsed();
    }

    fn up(&mut self, peer: ReplicaId) {
        self.cuts.remove(&peer);
        {
            let mut lanes = self.world.lanes();
            if lanes.over.contains(&peer) {
                return;
            }
            let lane = lanes.to.entry(peer).or_default();
            lane.linked = true;
            lane.sent = lane.kept.front().map_or(lane.last, |(first, _)| first - 1);
            lane.acked = 0; // acknowledges the received frames again
        }
        self.hosting.room(RegionId::new(peer));
    }

    fn closed(&mut self, now: Instant, peer: ReplicaId) {
        if let Some(lane) = self.world.lanes().to.get_mut(&peer) {
            lane.linked = false;
            self.cuts.insert(peer, now + self.cut_after);
        }
    }

    fn over(&mut self, peer: ReplicaId) {
        self.end_lane(peer);
        self.cut(peer);
        self.hosting.room(RegionId::new(peer));
    }

    fn arrived(&mut self, from: ReplicaId, Parcel { number, acked, frame }: Parcel) {
        let (has_room, is_next) = {
            let mut lanes = self.world.lanes();
            let limit = lanes.limit;
            let Some(lane) = lanes.to.get_mut(&from) else { return };
            while lane.kept.front().is_some_and(|(first, _)| *first <= acked) {
                lane.kept.pop_front();
            }
            let has_room = lane.refused && lane.kept.len() < limit;
            lane.refused &= !has_room;
            let is_next = number == lane.received + 1;
            lane.received += u64::from(is_next);
            (has_room, is_next)
        };
        if let (Some(frame), true) = (frame, is_next) {
            self.book.comes(&frame, self.me);
            self.hosting.arrived(RegionId::new(from), &frame).expect("a frame of ours");
        }
        if has_room {
            self.hosting.room(RegionId::new(from));
        }
    }

    fn tell(&mut self, messages: usize) {
        for _ in 0..messages {
            let entity = self.chance.below(ENTITIES);
            let number = self.told.get(&name(entity)).copied().unwrap_or(0) + 1;
            let mark = self.book.told((self.me, name(entity), number));
            let from = From { sender: self.me, number, mark };
            let word = match self.chance.below(12) {
                0 => Word::Slow(from, self.chance.below(400)),
                1 => Word::Passivate(from),
                2 | 3 if entity > 0 => Word::AskPeer(from, name(self.chance.below(entity))),
                _ => Word::Note(from),
            };
            self.told.insert(name(entity), number);
            let told = self.region.entity(&name(entity)).tell(word);
            assert!(told.is_ok(), "no room: {told:?}");
        }
    }

    fn run(&mut self, now: Instant, serves: bool) -> Said {
        self.world.executor.set(now);
        self.world.leased.store(serves, Ordering::SeqCst);
        self.due(now);
        let executor = Arc::clone(&self.world.executor);
        self.again_at = None;
        for turn in 0.. {
            assert!(turn < TURNS_MAX, "tasks wake each other without end");
            if executor.ready() == 0 {
                break;
            }
            if self.chance.chance(0.02) {
                let pause = self.chance.span(Duration::ZERO, Duration::from_millis(20));
                self.again_at = Some(now + pause);
                break;
            }
            executor.step(self.chance.index(1 << 20));
        }
        let mut said = Said::default();
        for (to, lane) in &mut self.world.lanes().to {
            lane.say(*to, &mut said);
        }
        said.facts = std::mem::take(&mut *self.world.facts.lock().expect("nobody panicked"));
        said
    }

    fn is_calm(&mut self, now: Instant, within: Duration) -> bool {
        let unrest = self.hosting.unrest();
        let since = match &self.calm {
            Some((before, since)) if *before == unrest => *since,
            _ => now,
        };
        self.calm = Some((unrest, since));
        let waits = unrest.is_some_and(|unrest| unrest.waiting > 0);
        let lanes = self.world.lanes();
        !waits && now >= since + within && lanes.to.values().all(|lane| lane.kept.is_empty())
    }

    fn next_deadline(&self) -> Option<Instant> {
        let sleeper = self.world.executor.next_wake();
        let own = [Some(self.remind_at), self.again_at, sleeper];
        own.into_iter().flatten().chain(self.cuts.values().copied()).min()
    }

    fn story(&self) -> String {
        let lanes = self.world.lanes();
        let of = |(to, lane): (&ReplicaId, &Lane)| {
            let Lane { kept, last, sent, received, linked, .. } = lane;
            format!("to {to}: {} kept of {last}, {sent} sent, {received} got, {linked}", kept.len())
        };
        let lanes: Vec<String> = lanes.to.iter().map(of).collect();
        let region = &self.region;
        let lost: Vec<_> = region.dead_letters().filter(|(_, count)| *count > 0).collect();
        format!(
            "{} entities, {} buffered, {} held, lost {lost:?}, {} tasks, lanes {lanes:?}",
            region.entities(),
            region.buffered(),
            region.held(),
            self.world.executor.tasks(),
        )
    }
}

impl Drop for Quarters {
    /// Ends all lanes: even a node that leaves gracefully waits only for a limited time until its
    /// frames are acknowledged.
    fn drop(&mut self) {
        let lanes = self.world.lanes();
        lanes.to.iter().for_each(|(peer, lane)| lane.end(*peer, &self.book));
    }
}
