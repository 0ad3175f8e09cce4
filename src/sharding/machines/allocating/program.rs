//! A strategy of the program's own: one question of each kind at a time, each with a deadline, and a
//! pause after a failure, which gets longer while nothing else comes; and a time within which all
//! homes are to be found for what lives on a node that leaves.
//!
//! Knows of the strategy no more than its name; whoever has it carries the questions there, and may
//! bring an answer late or never.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::picture::Picture;
use crate::cluster::events::ClusterState;
use crate::sharding::allocation::Allocations;
use crate::sharding::coordinator::Coordinator;
use crate::sharding::ids::{RegionId, ShardId};

/// How long an answer is waited for.
pub(super) const WITHIN: Duration = Duration::from_secs(5);

/// How long it is asked about shards of a node that leaves, all of them together. By default a node
/// has 20 s to hand over what it hosts, of which a handler may take `handoff-timeout`, 15 s: this
/// leaves 2 s for what is written and said.
pub(super) const LEAVER_WITHIN: Duration = Duration::from_secs(3);

/// After the first failure; doubled by each further one in a row.
const PAUSE_MIN: Duration = Duration::from_millis(100);

const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Between two complaints about failures.
const COMPLAIN: Duration = Duration::from_secs(60);

/// What is asked of the strategy now.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: Arc<str>,
    pub(super) homes: Line<ShardId>,
    pub(super) moves: Line<()>,
    /// Of the shards without a home, the first from here on is asked about next: one that the
    /// strategy fails at holds up no other.
    pub(super) next: ShardId,
    picture: Option<Picture>,
    drawn: u64,                          // pictures that were made anew
    leavers: BTreeMap<RegionId, Leaver>, // ≤ members
    last: u64,                           // number of a question
    complained: Option<Instant>,
}

/// A region whose node leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaver {
    /// The strategy is asked about its shards.
    Asked { until: Instant },
    /// Its time is over.
    Late,
}

/// Questions of one kind.
#[derive(Clone, Debug)]
pub(super) struct Line<T> {
    asked: Option<(u64, Instant, T)>, // number, until when, about what
    again_at: Option<Instant>,
    pause: Duration,
}

impl Program {
    pub(super) const fn new(name: Arc<str>) -> Self {
        let (homes, moves) = (Line::new(), Line::new());
        Self {
            name,
            homes,
            moves,
            next: ShardId::new(0),
            picture: None,
            drawn: 0,
            leavers: BTreeMap::new(),
            last: 0,
            complained: None,
        }
    }

    /// The number of a question that is asked now.
    pub(super) const fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Answers to what was asked so far are nobody's any more.
    pub(super) fn forget(&mut self) {
        (self.homes.asked, self.moves.asked) = (None, None);
        self.leavers.clear();
        self.picture = None;
    }

    /// These regions leave, as the coordinator knows now.
    pub(super) fn leaving(&mut self, now: Instant, regions: impl Iterator<Item = RegionId>) {
        let known = std::mem::take(&mut self.leavers);
        for region in regions {
            let new = Leaver::Asked { until: now + LEAVER_WITHIN };
            let leaver = match *known.get(&region).unwrap_or(&new) {
                Leaver::Asked { until } if until <= now => Leaver::Late,
                leaver => leaver,
            };
            self.leavers.insert(region, leaver);
        }
    }

    /// What it is shown now.
    pub(super) fn see(
        &mut self,
        coordinator: &mut Coordinator,
        state: &Arc<ClusterState>,
    ) -> Arc<Allocations> {
        let changed = coordinator.take_changed();
        let known = self.picture.take().filter(|picture| picture.is_of(state)).zip(changed);
        let picture = match known {
            Some((picture, changed)) => picture.with(&changed, coordinator),
            None => {
                self.drawn += 1;
                Picture::new(coordinator, state)
            }
        };
        self.picture.insert(picture).show()
    }

    /// How often that could not be made of what was shown before.
    pub(super) const fn drawn(&self) -> u64 {
        self.drawn
    }

    /// Whether anybody is late.
    pub(super) fn has_late(&self) -> bool {
        self.leavers.values().any(|leaver| *leaver == Leaver::Late)
    }

    /// Whether a region leaves and its shards wait for the strategy no longer.
    pub(super) fn is_late(&self, region: RegionId) -> bool {
        self.leavers.get(&region) == Some(&Leaver::Late)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let leavers = self.leavers.values().filter_map(|leaver| match leaver {
            Leaver::Asked { until } => Some(*until),
            Leaver::Late => None,
        });
        let lines = [self.homes.next_deadline(), self.moves.next_deadline()];
        lines.into_iter().flatten().chain(leavers).min()
    }

    /// Why it failed, unless that was said lately.
    pub(super) fn complain(&mut self, now: Instant, why: Arc<str>) -> Option<Arc<str>> {
        let lately = self.complained.is_some_and(|at| now - at < COMPLAIN);
        if !lately {
            self.complained = Some(now);
        }
        (!lately).then_some(why)
    }
}

impl<T> Line<T> {
    const fn new() -> Self {
        Self { asked: None, again_at: None, pause: PAUSE_MIN }
    }

    /// Whether the next question may be asked.
    pub(super) const fn is_free(&self) -> bool {
        self.asked.is_none() && self.again_at.is_none()
    }

    /// Whether the last answer was none, and nothing is asked for a while.
    pub(super) const fn is_pausing(&self) -> bool {
        self.asked.is_none() && self.again_at.is_some()
    }

    pub(super) fn ask(&mut self, now: Instant, number: u64, about: T) {
        self.asked = Some((number, now + WITHIN, about));
    }

    /// What the question of this number is about; `None`: nobody waits for its answer.
    pub(super) fn take(&mut self, number: u64) -> Option<T> {
        let asked = self.asked.take_if(|(asked, ..)| *asked == number);
        asked.map(|(.., about)| about)
    }

    /// Time has passed. Says whether an answer is overdue; it is waited for no longer.
    pub(super) fn pass(&mut self, now: Instant) -> bool {
        self.again_at.take_if(|at| *at <= now);
        self.asked.take_if(|(_, until, _)| *until <= now).is_some()
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.again_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    pub(super) const fn succeeded(&mut self) {
        self.pause = PAUSE_MIN;
    }

    /// When an answer is overdue, or the pause over.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.asked.as_ref().map(|(_, until, _)| *until).or(self.again_at)
    }
}
