//! The load of a run: users send every kind of request, at every consistency level, to every node.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ostraca_ddata::key::{Key, KeyName, Pattern};
use ostraca_ddata::replicator::request::{
    MinCap, ReadConsistency, ReplicatorRequest, RequestId, SubscriptionId, Update, WriteConsistency,
};
use ostraca_ddata::sim::{NodeIndex, RandomStream, Simulation};
use ostraca_ddata::types::edit::Edit;
use ostraca_ddata::types::{Flag, LWWMap, LWWRegister, ORSet, PNCounter};

use crate::history::{Ask, Asked, EXPIRING, GROUP, History};
use crate::node::{Command, Node};
use crate::oracle::{Slot, What};

type Sim = Simulation<Node, History>;

/// The data type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Set,
    Counter,
    Register,
    Map,
    Flag,
    /// A set that expires: its owner also empties it by itself.
    Expiring,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Set, Self::Counter, Self::Register, Self::Map, Self::Flag, Self::Expiring];

    fn name(self, number: usize) -> String {
        match self {
            Self::Set => format!("set-{number}"),
            Self::Counter => format!("count-{number}"),
            Self::Register => format!("register-{number}"),
            Self::Map => format!("map-{number}"),
            Self::Flag => format!("flag-{number}"),
            Self::Expiring => format!("{EXPIRING}{number}"),
        }
    }
}

/// The mix of requests in a run.
#[derive(Clone, Debug)]
pub struct Habits {
    pub keys: Vec<Kind>,
    /// Mean time between two requests of the whole cluster.
    pub every: Duration,
    /// Percentage of requests that are changes; the others read.
    pub changes: u64,
    /// Percentage of changes of a set that remove, clear or delete.
    pub removals: u64,
    /// Percentage of insertions into a set that insert an earlier element again, or swap it for a
    /// new one.
    pub again: u64,
    /// Percentage of requests at a majority level or higher.
    pub strong: u64,
    /// Most elements of one insertion.
    pub batch: u64,
    /// Longest timeout of a request.
    pub within: Duration,
}

/// The users of a run.
pub struct Users {
    habits: Habits,
    names: Vec<(Kind, KeyName)>,
    chance: RandomStream,
    unique: u64,
    inserted: BTreeMap<KeyName, Vec<u64>>, // ≤ insertions of a run
    /// The subscriptions at each node, oldest first.
    subscribed: BTreeMap<NodeIndex, VecDeque<SubscriptionId>>, // ≤ SUBSCRIPTIONS_MAX each
}

/// Most subscriptions at a node; a further one ends the oldest.
const SUBSCRIPTIONS_MAX: usize = 3;

impl Users {
    pub fn new(seed: u64, habits: Habits) -> Self {
        let named = |(number, kind): (usize, &Kind)| (*kind, kind.name(number).as_str().into());
        let names = habits.keys.iter().enumerate().map(named).collect();
        let chance = RandomStream::split(seed, "users", 0);
        let (inserted, subscribed) = (BTreeMap::new(), BTreeMap::new());
        Self { habits, names, chance, unique: 0, inserted, subscribed }
    }

    /// Random time until the next request.
    pub fn wait(&mut self) -> Duration {
        let mean = u64::try_from(self.habits.every.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.chance.exponential(mean).max(1))
    }

    /// Sends a random request to a random node.
    pub fn ask(&mut self, sim: &mut Sim, next: &mut u64) {
        let running: Vec<NodeIndex> = sim.processes().map(|(node, _)| node).collect();
        if running.is_empty() {
            return;
        }
        let node = *self.chance.pick(&running);
        let (kind, key) = self.chance.pick(&self.names).clone();
        *next += 1;
        let id = RequestId(*next);
        let (request, asked) = match self.chance.below(100) {
            n if n < self.habits.changes => self.change(kind, &key),
            n if n < 96 => self.read(key),
            _ => self.other(id, key),
        };
        let subscribes = matches!(request, ReplicatorRequest::Subscribe { .. });
        sim.observer_mut().expect(id, asked);
        sim.command(node, Command::Request(id, request));
        if subscribes {
            self.unsubscribe(sim, node, id, next);
        }
    }

    /// Ends the oldest subscription of a node that has more than `SUBSCRIPTIONS_MAX`.
    fn unsubscribe(&mut self, sim: &mut Sim, node: NodeIndex, new: RequestId, next: &mut u64) {
        let all = self.subscribed.entry(node).or_default();
        all.push_back(SubscriptionId(new.0));
        if all.len() <= SUBSCRIPTIONS_MAX {
            return;
        }
        let Some(oldest) = all.pop_front() else { return };
        *next += 1;
        let id = RequestId(*next);
        let ask = Ask::Unsubscribe(oldest);
        sim.observer_mut().expect(id, Asked { key: None, ask, strong: false, within: None });
        sim.command(node, Command::Request(id, ReplicatorRequest::Unsubscribe(oldest)));
    }

    fn patience(&mut self) -> Duration {
        self.chance.span(Duration::from_millis(200), self.habits.within)
    }

    fn is_strong(&mut self) -> bool {
        self.chance.below(100) < self.habits.strong
    }

    fn read(&mut self, key: KeyName) -> (ReplicatorRequest, Asked) {
        let key = if self.chance.chance(0.1) {
            KeyName::new(&format!("{GROUP}{}", self.chance.below(2)))
        } else {
            key
        };
        let patience = self.patience();
        let strong = self.is_strong();
        let none = MinCap(0);
        let (consistency, within) = match (strong, self.chance.below(10)) {
            (true, 0) => (ReadConsistency::All(patience), Some(patience)),
            (true, 1) => (ReadConsistency::MajorityPlus(1, none, patience), Some(patience)),
            (true, 2) => (ReadConsistency::Majority(MinCap(3), patience), Some(patience)),
            (true, _) => (ReadConsistency::majority(patience), Some(patience)),
            (false, 0..5) => (ReadConsistency::Local, None),
            (false, _) => (ReadConsistency::From(2, patience), Some(patience)),
        };
        let request = ReplicatorRequest::Get { key: key.clone(), shape: None, consistency };
        (request, Asked { key: Some(key), ask: Ask::Read, strong, within })
    }

    fn write_level(&mut self) -> (WriteConsistency, bool, Option<Duration>) {
        let patience = self.patience();
        let strong = self.is_strong();
        let none = MinCap(0);
        let (level, within) = match (strong, self.chance.below(10)) {
            (true, 0) => (WriteConsistency::All(patience), Some(patience)),
            (true, 1) => (WriteConsistency::MajorityPlus(1, none, patience), Some(patience)),
            (true, 2) => (WriteConsistency::Majority(MinCap(3), patience), Some(patience)),
            (true, _) => (WriteConsistency::majority(patience), Some(patience)),
            (false, 0..6) => (WriteConsistency::Local, None),
            (false, _) => (WriteConsistency::To(2, patience), Some(patience)),
        };
        (level, strong, within)
    }

    fn change(&mut self, kind: Kind, key: &KeyName) -> (ReplicatorRequest, Asked) {
        let (level, strong, within) = self.write_level();
        let asked = |what| Asked { key: Some(key.clone()), ask: Ask::Change(what), strong, within };
        self.unique += 1;
        let value = self.unique;
        match kind {
            Kind::Set | Kind::Expiring => self.change_set(key, level, asked),
            Kind::Counter => {
                let n = i64::try_from(self.chance.between(1, 9)).unwrap_or(1) - 5;
                let n = if n == 0 { 7 } else { n };
                let f = move |c: &mut Edit<'_, PNCounter>| c.add(i128::from(n));
                (update::<PNCounter, _>(key, level, f), asked(What::Add(n)))
            }
            Kind::Register => {
                let f = move |r: &mut Edit<'_, LWWRegister<u64>>| r.set(&value);
                let request = update::<LWWRegister<u64>, _>(key, level, f);
                (request, asked(What::Write(Slot::Whole, value)))
            }
            Kind::Map => {
                // Each key of the map is written once: the rank of an entry cannot be read.
                let slot = u32::try_from(value).unwrap_or(u32::MAX);
                let f = move |m: &mut Edit<'_, LWWMap<u32, u64>>| m.insert(&slot, &value);
                let request = update::<LWWMap<u32, u64>, _>(key, level, f);
                (request, asked(What::Write(Slot::Of(slot), value)))
            }
            Kind::Flag => {
                let f = |flag: &mut Edit<'_, Flag>| flag.switch_on();
                (update::<Flag, _>(key, level, f), asked(What::On))
            }
        }
    }

    fn change_set(
        &mut self,
        key: &KeyName,
        level: WriteConsistency,
        asked: impl Fn(What) -> Asked,
    ) -> (ReplicatorRequest, Asked) {
        type Set = ORSet<u64>;
        if self.chance.below(100) >= self.habits.removals {
            let again = self.habits.again;
            if again > 0
                && self.chance.below(100) < again
                && let Some(known) = self.inserted.get(key)
            {
                let known = *self.chance.pick(known);
                return self.change_again(key, level, known, asked);
            }
            let count = self.chance.between(1, self.habits.batch);
            let first = self.unique;
            self.unique += count;
            let elements: Vec<u64> = (first..first + count).collect();
            self.inserted.entry(key.clone()).or_default().extend(&elements);
            let what = What::Insert(elements.clone());
            let f = move |set: &mut Edit<'_, Set>| {
                elements.iter().try_for_each(|element| set.insert(element).map(|_| ()))
            };
            return (update::<Set, _>(key, level, f), asked(what));
        }
        match self.chance.below(10) {
            0 => {
                let f = |set: &mut Edit<'_, Set>| set.clear();
                (update::<Set, _>(key, level, f), asked(What::Clear))
            }
            1..=3 => {
                let request = ReplicatorRequest::Delete { key: key.clone(), consistency: level };
                (request, asked(What::Clear))
            }
            _ => {
                let known = self.inserted.get(key);
                let element = known.map_or(0, |known| *self.chance.pick(known));
                let f = move |set: &mut Edit<'_, Set>| set.remove(&element);
                (update::<Set, _>(key, level, f), asked(What::Remove(element)))
            }
        }
    }

    /// Inserts an earlier element again, or removes it and inserts a new one.
    fn change_again(
        &mut self,
        key: &KeyName,
        level: WriteConsistency,
        known: u64,
        asked: impl Fn(What) -> Asked,
    ) -> (ReplicatorRequest, Asked) {
        type Set = ORSet<u64>;
        if self.chance.chance(0.5) {
            let f = move |set: &mut Edit<'_, Set>| set.insert(&known);
            return (update::<Set, _>(key, level, f), asked(What::Again(known)));
        }
        let new = self.unique;
        self.inserted.entry(key.clone()).or_default().push(new);
        let f = move |set: &mut Edit<'_, Set>| {
            set.remove(&known)?;
            set.insert(&new)
        };
        (update::<Set, _>(key, level, f), asked(What::Swap { out: known, new }))
    }

    fn other(&mut self, id: RequestId, key: KeyName) -> (ReplicatorRequest, Asked) {
        let nothing = Asked { key: None, ask: Ask::Other, strong: false, within: None };
        match self.chance.below(4) {
            0 => {
                let text = *self.chance.pick(&["set-*", "c*", "*", "home-*"]);
                let pattern =
                    if self.chance.chance(0.5) { Pattern::Exact(key) } else { Pattern::new(text) };
                let subscription = SubscriptionId(id.0);
                (ReplicatorRequest::Subscribe { subscription, pattern }, nothing)
            }
            1 => (ReplicatorRequest::Keys { prefix: "set".into(), after: None, limit: 5 }, nothing),
            2 => (ReplicatorRequest::ReplicaCount, nothing),
            _ => {
                let within = self.patience();
                let asked = Asked { within: Some(within), ..nothing };
                (ReplicatorRequest::FlushChanges { within }, asked)
            }
        }
    }
}

fn update<T: ostraca_ddata::types::DataType, R>(
    key: &KeyName,
    level: WriteConsistency,
    f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, ostraca_ddata::types::edit::EditError>
    + Send
    + 'static,
) -> ReplicatorRequest {
    ReplicatorRequest::Update(Update::new(&Key::<T>::new(key.as_str()), level, f))
}
