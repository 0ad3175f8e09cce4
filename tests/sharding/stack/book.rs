//! What all entities of a run did, checked as it happens: nothing without a lease, each message once
//! and in its sender's order, under generations that never go back; and what may be missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use ostraca::sharding::dead_letters::Lost;
use ostraca::sharding::ids::Generation;
use ostraca::sharding::shard_region::ShardRegion;
use ostraca_ddata::id::ReplicaId;

use super::player::Player;

/// Sender, entity, number from 1.
type Message = (ReplicaId, String, u64);

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
    open: BTreeSet<Message>,
    regions: BTreeMap<ReplicaId, ShardRegion<Player>>, // of lives that ended in order, too
    lost_before: u64, // dead letters when messages were last excused
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

    fn excuse(&mut self, excused: impl Fn(&Message) -> bool) {
        let before = self.open.len();
        self.open.retain(|message| !excused(message));
        self.excused += (before - self.open.len()) as u64;
        self.lost_before = self.lost();
    }
}

impl Book {
    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().expect("nobody panicked")
    }

    pub(crate) fn opens(&self, me: ReplicaId, region: ShardRegion<Player>) {
        self.pages().regions.insert(me, region);
    }

    pub(crate) fn told(&self, message: Message) {
        let mut pages = self.pages();
        pages.told += 1;
        pages.open.insert(message);
    }

    /// An entity begins a message.
    pub(crate) fn handles(&self, (sender, id, number): Message, at: Generation, serves: bool) {
        let mut pages = self.pages();
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
        pages.open.remove(&(sender, id, number));
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

    /// A life ends without having left: what was under way may have died with it.
    pub(crate) fn dies(&self, me: ReplicaId) {
        let mut pages = self.pages();
        let region = pages.regions.remove(&me);
        pages.excuse(|_| true);
        drop(pages);
        drop(region); // its tasks end, and their entities write here
    }

    /// Lanes of this life were given up.
    pub(crate) fn gives_up(&self) {
        self.pages().excuse(|_| true);
    }

    /// Why not everything is where it belongs.
    pub(crate) fn unrest(&self) -> Option<String> {
        let pages = self.pages();
        let waits = |region: &ShardRegion<Player>| region.buffered() + region.held();
        let waiting: usize = pages.regions.values().map(waits).sum();
        let (open, lost) = (pages.open.len() as u64, pages.lost() - pages.lost_before);
        if open <= lost && waiting == 0 {
            return None;
        }
        let some: Vec<&Message> = pages.open.iter().take(5).collect();
        Some(format!("I6: {open} messages open, {lost} counted, {waiting} wait: {some:?}"))
    }
}
