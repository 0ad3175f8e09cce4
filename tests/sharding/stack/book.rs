//! The record of all messages of a run. It checks invariants as entities report what they do; a
//! violation starts with the invariant's name: `instance` (handlers run only under a lease),
//! `order` (each sender's messages are handled once and in order), `host` (generations never go
//! back), `state` (exported state is imported at most once), `loss` (a message is missing without
//! an excuse).
//!
//! Each message has a mark by which the book recognizes it in frames and payloads, and so knows
//! where the message is: a crashed node or an abandoned lane excuses the messages that were there
//! and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::ids::Generation;
use ostraca::sharding::shard_region::ShardRegion;
use ostraca_ddata::id::ReplicaId;

use super::player::{From, Player};

/// A message: its sender, its entity, and its number among those of the sender to the entity, from
/// 1.
type Message = (ReplicaId, String, u64);

/// The upper half of each mark, which does not occur elsewhere in frames and payloads.
const MARK: u64 = 0xC0DE_CAFE << 32;

/// The marks in `bytes`: each is a big-endian number of eight bytes.
fn marks(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let numbers =
        bytes.windows(8).map(|eight| u64::from_be_bytes(eight.try_into().expect("eight")));
    numbers.filter(|number| number >> 32 == MARK >> 32)
}

/// A message that no handler has begun.
struct Open {
    message: Message,
    at: BTreeSet<ReplicaId>, // nodes that have it; both ends while it is under way
    young: bool,             // told after the last crash and the last abandoned lane
}

/// The record that all nodes of a run share.
#[derive(Default)]
pub(crate) struct Book(Mutex<Pages>);

#[derive(Default)]
pub(crate) struct Pages {
    /// The first violation of the run, until the watch takes it.
    pub(crate) violation: Option<String>,
    pub(crate) told: u64,
    pub(crate) handled: u64,
    /// Number of states that an instance imported.
    pub(crate) taken: u64,
    pub(crate) answers: u64,
    pub(crate) unanswered: u64,
    /// Number of messages that were lost with a crashed node or an abandoned lane.
    pub(crate) excused: u64,
    last: BTreeMap<(ReplicaId, String), u64>,
    generations: BTreeMap<String, Generation>,
    handed: BTreeMap<String, BTreeSet<u64>>,
    open: BTreeMap<u64, Open>,                         // by mark
    regions: BTreeMap<ReplicaId, ShardRegion<Player>>, // all but those of crashed incarnations
    dead: BTreeSet<ReplicaId>,
    lost_before: u64, // dead letters at the last crash or abandoned lane
}

impl Pages {
    fn violates(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn lost(&self) -> u64 {
        let counts = self.regions.values().flat_map(ShardRegion::dead_letters);
        // Their messages were handled; only the answers are counted as lost.
        let of_messages = counts.filter(|(why, _)| {
            !matches!(
                why,
                DeadLetterReason::NoAnswer
                    | DeadLetterReason::AnswerLost
                    | DeadLetterReason::AnswerTooLong
            )
        });
        of_messages.map(|(_, count)| count).sum()
    }

    /// Removes the open messages for whose nodes `excused` is true. A message is counted as lost
    /// where it is, so the counts of excused messages disappear together with the region of a
    /// crashed node.
    fn excuse(&mut self, excused: impl Fn(&BTreeSet<ReplicaId>) -> bool) {
        let before = self.open.len();
        self.open.retain(|_, open| !excused(&open.at));
        self.excused += (before - self.open.len()) as u64;
        self.open.values_mut().for_each(|open| open.young = false);
        self.lost_before = self.lost();
    }

    /// Removes those open messages in `bytes` for which `excused` is true.
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

    /// What hosts the entities of a life.
    pub(crate) fn region(&self, of: ReplicaId) -> ShardRegion<Player> {
        self.pages().regions[&of].clone()
    }

    /// The mark of a message that is about to be told.
    pub(crate) fn told(&self, message: Message) -> u64 {
        let mut pages = self.pages();
        pages.told += 1;
        let (mark, at) = (MARK | pages.told, BTreeSet::from([message.0]));
        pages.open.insert(mark, Open { message, at, young: true });
        mark
    }

    /// The messages in `bytes` are sent to a node, or will be counted there: from now on they may
    /// be lost with that node too. Messages to a crashed node are excused at once.
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

    /// A lane to `to` has ended for good with the frame `kept` unacknowledged. A message in it that
    /// has not arrived never will, and is excused. Either end may have left gracefully, which
    /// excuses no others.
    pub(crate) fn ends(&self, kept: &[u8], to: ReplicaId) {
        let has_come = BTreeSet::from([to]);
        self.pages().excuse_in(kept, |open| open.at.contains(&to) && open.at != has_come);
    }

    /// The messages in `bytes` have arrived.
    pub(crate) fn comes(&self, bytes: &[u8], at: ReplicaId) {
        let mut pages = self.pages();
        for mark in marks(bytes) {
            if let Some(open) = pages.open.get_mut(&mark) {
                open.at = BTreeSet::from([at]);
            }
        }
    }

    /// An entity begins to handle a message.
    pub(crate) fn handles(&self, from: &From, id: &str, at: Generation, serves: bool) {
        let mut pages = self.pages();
        let (From { sender, number, mark }, id) = (*from, id.to_owned());
        if !serves {
            pages.violates(format!("instance: {id} handles {number} of {sender} without a lease"));
        }
        let last = pages.last.insert((sender, id.clone()), number).unwrap_or(0);
        if number <= last {
            pages.violates(format!("order: {id} handles {number} of {sender} after {last}"));
        }
        let before = pages.generations.insert(id.clone(), at).unwrap_or(Generation::NEVER);
        if at < before {
            pages.violates(format!("host: {id} handles {number} at {at} after {before}"));
        }
        pages.handled += 1;
        pages.open.remove(&mark);
    }

    pub(crate) fn hands_over(&self, id: &str, count: u64) {
        self.pages().handed.entry(id.to_owned()).or_default().insert(count);
    }

    /// An instance imports a state. Each exported state may be imported at most once.
    pub(crate) fn takes_over(&self, id: &str, count: u64) {
        let mut pages = self.pages();
        pages.taken += 1;
        let was_handed = pages.handed.get_mut(id).is_some_and(|handed| handed.remove(&count));
        if !was_handed {
            pages.violates(format!("state: {id} takes {count} over, which was not exported"));
        }
    }

    pub(crate) fn violates(&self, what: String) {
        self.pages().violates(what);
    }

    /// An incarnation ends without having left: its messages, and those under way to it or from it,
    /// may be lost.
    pub(crate) fn dies(&self, me: ReplicaId) {
        let mut pages = self.pages();
        let region = pages.regions.remove(&me);
        pages.dead.insert(me);
        pages.excuse(|at| at.contains(&me));
        drop(pages);
        // Dropped after the lock, because its entities report to the book when they end.
        drop(region);
    }

    /// The lane between two incarnations is abandoned.
    pub(crate) fn gives_up(&self, one: ReplicaId, other: ReplicaId) {
        self.pages().excuse(|at| at.contains(&one) && at.contains(&other));
    }

    /// Why the run is not at rest: messages wait, or are missing without being counted.
    pub(crate) fn unrest(&self) -> Option<String> {
        let pages = self.pages();
        let waits = |region: &ShardRegion<Player>| region.buffered() + region.held();
        let waiting: usize = pages.regions.values().map(waits).sum();
        let (open, lost) = (pages.open.len() as u64, pages.lost());
        // A count does not tell which message was lost. Counts from before the last crash cannot
        // belong to messages told since.
        let young = pages.open.values().filter(|open| open.young).count() as u64;
        let lost_since = lost - pages.lost_before;
        if open <= lost && young <= lost_since && waiting == 0 {
            return None;
        }
        let some = pages.open.values().take(5).map(|Open { message, at, .. }| (message, at));
        let some: Vec<_> = some.collect();
        Some(format!(
            "loss: {open} messages open, {lost} counted, since a crash {young} and {lost_since}, \
             {waiting} wait: {some:?}"
        ))
    }
}

const ONE: ReplicaId = ReplicaId::new(1);
const TWO: ReplicaId = ReplicaId::new(2);
const THREE: ReplicaId = ReplicaId::new(3);

/// A book with a message of node `ONE`, and a frame that contains the message's mark.
fn book() -> (Book, Vec<u8>) {
    let book = Book::default();
    let mark = book.told((ONE, "e1".into(), 1));
    (book, [&b"a letter "[..], &mark.to_be_bytes()].concat())
}

/// Events of the message, and the nodes whose crash excuses it afterwards.
type Case = (fn(&Book, &[u8]), &'static [ReplicaId]);

#[test]
fn crash_excuses_only_messages_at_the_node_or_on_its_lanes() {
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
fn messages_to_a_crashed_node_are_excused() {
    let (book, letter) = book();
    book.dies(TWO);
    assert!(book.unrest().is_some());
    book.goes(&letter, TWO);
    assert_eq!((book.unrest(), book.pages().excused), (None, 1));
}

#[test]
fn arrived_messages_of_an_ended_lane_are_not_excused() {
    for has_come in [false, true] {
        let (book, letter) = book();
        book.goes(&letter, TWO);
        if has_come {
            book.comes(&letter, TWO); // arrived, but not acknowledged
        }
        book.ends(&letter, TWO);
        assert_eq!(book.unrest().is_some(), has_come);
    }
}
