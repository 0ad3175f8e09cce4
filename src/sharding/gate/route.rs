//! The half of a gate that messages of this node leave by: down a lane, or into a buffer
//! (spec/safety.md §5; S1 to S9 of spec/reference/order.md).

use std::collections::VecDeque;

use super::budget::Waits;
use super::bug::{Bug, Canary};
use crate::sharding::ids::{Generation, RegionId};

/// A message with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item<M> {
    /// The message.
    pub message: M,
    /// What it counts against limits, in bytes.
    pub bytes: usize,
}

/// A message that waits here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting<M> {
    pub(super) item: Item<M>,
    /// Whether it counts against the buffer's limit. What came back does not: a planned move
    /// loses nothing.
    pub(super) counts: bool,
}

/// Whether a message that is accepted has to fit into its mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fit {
    /// It came directly.
    Must,
    /// It waited for a home, was held, sent back, or carried along: a planned move loses nothing.
    Exempt,
}

/// A decision: which home, by which generation. `home` is `None` for a shard that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Orders decisions.
    pub generation: Generation,
    /// Where the shard is to be.
    pub home: Option<RegionId>,
}

/// The decision by whose lane messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Current {
    pub(super) generation: Generation,
    pub(super) home: RegionId,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    /// No lane.
    #[default]
    Parked,
    /// Messages go down the lane, or behind those that wait for room in it.
    Open(Current),
    /// A barrier is on the lane, its echo is out.
    Wait(Current),
}

impl Mode {
    pub(super) const fn current(self) -> Option<Current> {
        match self {
            Self::Parked => None,
            Self::Open(current) | Self::Wait(current) => Some(current),
        }
    }
}

/// The route half.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Route<M> {
    pub(super) known: Decision,
    pub(super) mode: Mode,
    returned: VecDeque<Waiting<M>>, // ≤ what was on one lane
    buffer: VecDeque<Waiting<M>>,   // ≤ the limit of `Post::reserve`, and what came back
    exempt: usize,                  // of the buffer's first ones: they waited for a home
    counted: Waits,                 // of those that count
}

impl<M> Route<M> {
    pub(super) const fn new() -> Self {
        let known = Decision { generation: Generation::NEVER, home: None };
        Self {
            known,
            mode: Mode::Parked,
            returned: VecDeque::new(),
            buffer: VecDeque::new(),
            exempt: 0,
            counted: Waits { messages: 0, bytes: 0 },
        }
    }

    /// Messages that wait here.
    pub(super) fn waiting(&self) -> usize {
        self.returned.len() + self.buffer.len()
    }

    /// Those of them that do not wait for an echo.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Where a message goes at once: nothing waits before it.
    pub(super) fn open(&self, canary: Canary) -> Option<Current> {
        match self.mode {
            Mode::Open(current) if self.buffer.is_empty() || canary.has(Bug::TellPastFlush) => {
                Some(current)
            }
            _ => None,
        }
    }

    /// Those that count against the limit.
    pub(super) const fn counted(&self) -> Waits {
        self.counted
    }

    pub(super) fn push(&mut self, item: Item<M>) {
        self.counted.messages += 1;
        self.counted.bytes += item.bytes;
        self.buffer.push_back(Waiting { item, counts: true });
    }

    /// The next message to send, and where, if the lane is in use.
    pub(super) fn next(&mut self) -> Option<(Current, Waiting<M>, Fit)> {
        let Mode::Open(current) = self.mode else { return None };
        let waiting = self.buffer.pop_front()?;
        let fit = if self.exempt > 0 { Fit::Exempt } else { Fit::Must };
        self.exempt = self.exempt.saturating_sub(1);
        Some((current, waiting, fit))
    }

    /// A message that counted is on its lane.
    pub(super) const fn left(&mut self, bytes: usize) {
        self.counted.messages -= 1;
        self.counted.bytes -= bytes;
    }

    /// The lane had no room for it.
    pub(super) fn put_back(&mut self, waiting: Waiting<M>, fit: Fit) {
        self.buffer.push_front(waiting);
        self.exempt += usize::from(fit == Fit::Exempt);
    }

    /// All that wait, with whether they counted.
    pub(super) fn empty(&mut self) -> impl Iterator<Item = (Item<M>, bool)> {
        (self.counted, self.exempt) = (Waits { messages: 0, bytes: 0 }, 0);
        let returned = std::mem::take(&mut self.returned);
        let all = returned.into_iter().chain(std::mem::take(&mut self.buffer));
        all.map(|Waiting { item, counts }| (item, counts))
    }

    /// A message came back from the lane.
    pub(super) fn returned(&mut self, item: Item<M>) {
        self.returned.push_back(Waiting { item, counts: false });
    }

    /// Takes in a decision: whether it is news (S3).
    pub(super) fn learn(&mut self, decision: Decision) -> bool {
        let news = decision.generation > self.known.generation;
        if news {
            self.known = decision;
        }
        news
    }

    /// On to the newest decision: what came back first, then what was buffered.
    pub(super) fn complete(&mut self, canary: Canary) {
        self.mode = match self.known.home {
            Some(home) => Mode::Open(Current { generation: self.known.generation, home }),
            None => Mode::Parked,
        };
        if canary.has(Bug::ReturnedAtBack) {
            self.buffer.append(&mut self.returned);
        }
        if canary.has(Bug::ReturnedReversed) {
            self.returned.make_contiguous().reverse();
        }
        while let Some(waiting) = self.returned.pop_back() {
            self.buffer.push_front(waiting);
        }
        self.exempt = self.buffer.len();
    }
}
