//! A strategy of the program's own: one question of each kind at a time, each with a deadline, and a
//! pause after a failure, which gets longer while nothing else comes.
//!
//! Knows of the strategy no more than its name; whoever has it carries the questions there, and may
//! bring an answer late or never.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use crate::sharding::ids::ShardId;

/// How long an answer is waited for.
pub(super) const WITHIN: Duration = Duration::from_secs(5);

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
    pub(super) next: u32,
    last: u64, // number of a question
    complained: Option<Instant>,
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
        Self { name, homes, moves, next: 0, last: 0, complained: None }
    }

    /// The number of a question that is asked now.
    pub(super) const fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Answers to what was asked so far are nobody's any more.
    pub(super) fn forget(&mut self) {
        (self.homes.asked, self.moves.asked) = (None, None);
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
