//! What all entities of a run did, checked as it happens: nothing without a lease, each message once
//! and in its sender's order, under generations that never go back; and what may be missing.
//!
//! Each message has a mark by which the book finds it in whatever carries it, so it knows where it
//! is: a node that dies, or a lane that is given up, excuses what was there and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use ostraca::sharding::dead_letters::Lost;
use ostraca::sharding::ids::Generation;
use ostraca::sharding::shard_region::ShardRegion;
use ostraca_ddata::id::ReplicaId;

use super::player::{From, Player};

/// Sender, entity, number from 1.
type Message = (ReplicaId, String, u64);

/// The upper half of each mark. Nothing else in frames and payloads looks like it.
const MARK: u64 = 0xC0DE_CAFE << 32;

/// The marks of all messages in there: words have them as numbers of eight bytes.
fn marks(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let numbers =
        bytes.windows(8).map(|eight| u64::from_be_bytes(eight.try_into().expect("eight")));
    numbers.filter(|number| number >> 32 == MARK >> 32)
}

/// A message that nobody has begun.
struct Open {
    message: Message,
    at: BTreeSet<ReplicaId>, // who has it; two while it is under way
    young: bool,             // nobody has died since it was told, and no lane was given up
}

/// Shared by all nodes of a run.
#[derive(Default)]
pub(crate) struct Book(Mutex<Pages>);

#[derive(Default)]
pub(crate) struct Pages {
    /// The first thing that went wrong.
    pub(crate) violation: Option<String>,
    pub(crate) told: u64,
    pub(crate) handled: u64,
    /// States that a later instance went on with.
    pub(crate) taken: u64,
    pub(crate) answers: u64,
    pub(crate) unanswered: u64,
    /// Messages that died with a node, or with a lane that was given up.
    pub(crate) excused: u64,
    last: BTreeMap<(ReplicaId, String), u64>,
    generations: BTreeMap<String, Generation>,
    handed: BTreeMap<String, BTreeSet<u64>>,
    open: BTreeMap<u64, Open>,                         // by mark
    regions: BTreeMap<ReplicaId, ShardRegion<Player>>, // of lives that ended in order, too
    dead: BTreeSet<ReplicaId>,
    lost_before: u64, // dead letters when somebody last died or gave up a lane
}

impl Pages {
    fn violates(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn lost(&self) -> u64 {
        let counts = self.regions.values().flat_map(ShardRegion::dead_letters);
        // Handled, and counted for its answer's sake.
        let of_messages =
            counts.filter(|(why, _)| !matches!(why, Lost::NoAnswer | Lost::AnswerLost));
        of_messages.map(|(_, count)| count).sum()
    }

    /// Whoever counts a message has it: so with a life end the counts of what is excused for it.
    fn excuse(&mut self, excused: impl Fn(&BTreeSet<ReplicaId>) -> bool) {
        let before = self.open.len();
        self.open.retain(|_, open| !excused(&open.at));
        self.excused += (before - self.open.len()) as u64;
        self.open.values_mut().for_each(|open| open.young = false);
        self.lost_before = self.lost();
    }

    /// Of those in there.
    fn excuse_in(&mut self, bytes: &[u8], excused: impl Fn(&Open) -> bool) {
        for mark in marks(bytes) {
            let gone = self.open.get(&mark).is_some_and(&excused);
            self.excused += u64::from(gone);
            if gone {
                self.open.remove(&mark);
            }
        }
    }
}

impl Book {
    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().expect("nobody panicked")
    }

    pub(crate) fn opens(&self, me: ReplicaId, region: ShardRegion<Player>) {
        self.pages().regions.insert(me, region);
    }

    /// The mark of a message that is about to be told.
    pub(crate) fn told(&self, message: Message) -> u64 {
        let mut pages = self.pages();
        pages.told += 1;
        let (mark, at) = (MARK | pages.told, BTreeSet::from([message.0]));
        pages.open.insert(mark, Open { message, at, young: true });
        mark
    }

    /// These may be lost with that node, too: they are on their way to it, or it is to count them. To
    /// one that is dead they go for nothing.
    pub(crate) fn goes(&self, bytes: &[u8], to: ReplicaId) {
        let mut pages = self.pages();
        if pages.dead.contains(&to) {
            pages.excuse_in(bytes, |_| true);
        }
        for mark in marks(bytes) {
            if let Some(open) = pages.open.get_mut(&mark) {
                open.at.insert(to);
            }
        }
    }

    /// A lane has ended for good that kept these: what has not come there will not. Either end may have
    /// left in order, which excuses nothing else.
    pub(crate) fn ends(&self, kept: &[u8], to: ReplicaId) {
        let has_come = BTreeSet::from([to]);
        self.pages().excuse_in(kept, |open| open.at.contains(&to) && open.at != has_come);
    }

    /// These have come.
    pub(crate) fn comes(&self, bytes: &[u8], at: ReplicaId) {
        let mut pages = self.pages();
        for mark in marks(bytes) {
            if let Some(open) = pages.open.get_mut(&mark) {
                open.at = BTreeSet::from([at]);
            }
        }
    }

    /// An entity begins a message.
    pub(crate) fn handles(&self, from: &From, id: &str, at: Generation, serves: bool) {
        let mut pages = self.pages();
        let (From { sender, number, mark }, id) = (*from, id.to_owned());
        if !serves {
            pages.violates(format!("I4: {id} handles {number} of {sender} without a lease"));
        }
        let last = pages.last.insert((sender, id.clone()), number).unwrap_or(0);
        if number <= last {
            pages.violates(format!("I5: {id} handles {number} of {sender} after {last}"));
        }
        let before = pages.generations.insert(id.clone(), at).unwrap_or(Generation::NEVER);
        if at < before {
            pages.violates(format!("I3: {id} handles {number} at {at} after {before}"));
        }
        pages.handled += 1;
        pages.open.remove(&mark);
    }

    pub(crate) fn hands_over(&self, id: &str, count: u64) {
        self.pages().handed.entry(id.to_owned()).or_default().insert(count);
    }

    /// Each state that an instance has handed over is taken at most once.
    pub(crate) fn takes_over(&self, id: &str, count: u64) {
        let mut pages = self.pages();
        pages.taken += 1;
        let was_handed = pages.handed.get_mut(id).is_some_and(|handed| handed.remove(&count));
        if !was_handed {
            pages.violates(format!("S: {id} takes {count} over, which nobody has handed over"));
        }
    }

    pub(crate) fn violates(&self, what: String) {
        self.pages().violates(what);
    }

    /// A life ends without having left: what it had, and what was under way to it or from it, may have
    /// died with it.
    pub(crate) fn dies(&self, me: ReplicaId) {
        let mut pages = self.pages();
        let region = pages.regions.remove(&me);
        pages.dead.insert(me);
        pages.excuse(|at| at.contains(&me));
        drop(pages);
        drop(region); // its tasks end, and their entities write here
    }

    /// The lane between two lives is given up.
    pub(crate) fn gives_up(&self, one: ReplicaId, other: ReplicaId) {
        self.pages().excuse(|at| at.contains(&one) && at.contains(&other));
    }

    /// Why not everything is where it belongs.
    pub(crate) fn unrest(&self) -> Option<String> {
        let pages = self.pages();
        let waits = |region: &ShardRegion<Player>| region.buffered() + region.held();
        let waiting: usize = pages.regions.values().map(waits).sum();
        let (open, lost) = (pages.open.len() as u64, pages.lost());
        // Counts do not say of what they are. Those of before are not for what was told since.
        let young = pages.open.values().filter(|open| open.young).count() as u64;
        let lost_since = lost - pages.lost_before;
        if open <= lost && young <= lost_since && waiting == 0 {
            return None;
        }
        let some = pages.open.values().take(5).map(|Open { message, at, .. }| (message, at));
        let some: Vec<_> = some.collect();
        Some(format!(
            "I6: {open} messages open, {lost} counted, since a death {young} and {lost_since}, \
             {waiting} wait: {some:?}"
        ))
    }
}

const ONE: ReplicaId = ReplicaId::new(1);
const TWO: ReplicaId = ReplicaId::new(2);
const THREE: ReplicaId = ReplicaId::new(3);

/// A book with a message of the first node, and what that is in.
fn book() -> (Book, Vec<u8>) {
    let book = Book::default();
    let mark = book.told((ONE, "e1".into(), 1));
    (book, [&b"a letter "[..], &mark.to_be_bytes()].concat())
}

/// What has happened to the message, and whose death excuses it then.
type Case = (fn(&Book, &[u8]), &'static [ReplicaId]);

#[test]
fn a_death_excuses_what_was_there_or_on_a_lane_of_the_dead_and_nothing_else() {
    const CASES: [Case; 4] = [
        (|_, _| {}, &[ONE]),
        (|book, letter| book.goes(letter, TWO), &[ONE, TWO]),
        (|book, letter| book.comes(letter, TWO), &[TWO]),
        (|book, letter| [TWO, THREE].into_iter().for_each(|at| book.comes(letter, at)), &[THREE]),
    ];
    for (case, (happens, excused_by)) in CASES.into_iter().enumerate() {
        for dead in [ONE, TWO, THREE] {
            let (book, letter) = book();
            happens(&book, &letter);
            book.dies(dead);
            let is_excused = excused_by.contains(&dead);
            assert_eq!(book.unrest().is_none(), is_excused, "case {case}, {dead} dies");
            assert_eq!(book.pages().excused, u64::from(is_excused), "case {case}, {dead} dies");
        }
        for (one, other) in [(ONE, TWO), (TWO, THREE)] {
            let (book, letter) = book();
            happens(&book, &letter);
            book.gives_up(one, other);
            let is_excused = [one, other].iter().all(|end| excused_by.contains(end));
            assert_eq!(book.unrest().is_none(), is_excused, "case {case}, {one} to {other}");
        }
    }
}

#[test]
fn what_is_sent_to_the_dead_is_excused() {
    let (book, letter) = book();
    book.dies(TWO);
    assert!(book.unrest().is_some());
    book.goes(&letter, TWO);
    assert_eq!((book.unrest(), book.pages().excused), (None, 1));
}

#[test]
fn of_what_a_lane_keeps_that_ends_what_has_come_is_not_excused() {
    for has_come in [false, true] {
        let (book, letter) = book();
        book.goes(&letter, TWO);
        if has_come {
            book.comes(&letter, TWO); // and nobody has heard of that
        }
        book.ends(&letter, TWO);
        assert_eq!(book.unrest().is_some(), has_come);
    }
}
