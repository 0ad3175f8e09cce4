//! The sending half of a gate: messages of this node go down the lane to the home, or into a
//! buffer. Rules: docs/protocol/message-order.md#rules-of-the-sender.
//!
//! [`Route`] holds the queues and the [`RouteState`]. No method of it sends a message, or changes
//! the limits of [`GateEffects`](super::GateEffects): the gate does both before or after the call.

use std::collections::VecDeque;

use super::budget::Waits;
use super::fault_injection::{GateFault, GateFaultInjection};
use crate::sharding::ids::{Generation, RegionId};

/// A message with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SizedMessage<M> {
    /// The message itself, opaque to the gate.
    pub message: M,
    /// Bytes that it counts against limits.
    pub bytes: usize,
}

/// A message that waits in the gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueuedItem<M> {
    pub(super) item: SizedMessage<M>,
    /// Whether it counts against the buffer's limit. A returned message does not, because a planned
    /// move loses no message.
    pub(super) counts: bool,
}

/// Whether an accepted message must fit into its mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MailboxLimitCheck {
    /// Must fit: the message came directly.
    Must,
    /// Exempt from the limit, because a planned move loses no message: it waited for a home, was
    /// held, came back, or was carried by a payload.
    Exempt,
}

/// A decision of the coordinator about the home of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HomeDecision {
    /// Generation of the decision, which orders decisions.
    pub generation: Generation,
    /// The new home; `None`: the shard has none.
    pub home: Option<RegionId>,
}

/// The decision (with a home) whose lane is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Current {
    pub(super) generation: Generation,
    pub(super) home: RegionId,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum RouteState {
    /// No lane is in use; messages are buffered. The known decision names no home, or a removed
    /// region whose lane has ended.
    #[default]
    Parked,
    /// Messages go down the lane, or wait in the buffer for room in it.
    Open(Current),
    /// A barrier was sent down the lane, and its echo is expected. Nothing is sent meanwhile.
    Wait(Current),
}

impl RouteState {
    /// Returns the decision whose lane is in use, also while its echo is awaited; `None` if parked.
    pub(super) const fn current(self) -> Option<Current> {
        match self {
            Self::Parked => None,
            Self::Open(current) | Self::Wait(current) => Some(current),
        }
    }
}

/// State of the sending half. Returned messages came back from the lane in use and wait for its
/// echo; buffered messages wait for a lane, or for room in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Route<M> {
    /// The newest decision that was learned. Until [`complete`](Self::complete), `mode` may follow
    /// an older one.
    pub(super) known: HomeDecision,
    pub(super) mode: RouteState,
    returned: VecDeque<QueuedItem<M>>, // ≤ messages on one lane
    buffer: VecDeque<QueuedItem<M>>,   // ≤ limit of `GateEffects::reserve`, plus returned messages
    exempt: usize, // messages at the front of `buffer` that need not fit into their mailbox
    counted: Waits, // messages that count against the limit
}

impl<M> Route<M> {
    pub(super) const fn new() -> Self {
        let known = HomeDecision { generation: Generation::NEVER, home: None };
        Self {
            known,
            mode: RouteState::Parked,
            returned: VecDeque::new(),
            buffer: VecDeque::new(),
            exempt: 0,
            counted: Waits { messages: 0, bytes: 0 },
        }
    }

    /// Returns the number of waiting messages, returned and buffered.
    pub(super) fn waiting(&self) -> usize {
        self.returned.len() + self.buffer.len()
    }

    /// Returns the number of buffered messages; returned ones, which wait for an echo, do not
    /// count.
    pub(super) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the lane on which a message may be sent at once, because it is open and no buffered
    /// message waits before it (docs/protocol/message-order.md#a-tell-never-overtakes). `None`
    /// while parked, and while an echo is awaited.
    pub(super) fn open(&self, fault_injection: GateFaultInjection) -> Option<Current> {
        match self.mode {
            RouteState::Open(current)
                if self.buffer.is_empty() || fault_injection.has(GateFault::TellPastFlush) =>
            {
                Some(current)
            }
            _ => None,
        }
    }

    /// Returns the messages that count against the limit.
    pub(super) const fn counted(&self) -> Waits {
        self.counted
    }

    /// Appends a message to the buffer and counts it, in any state. The caller has reserved its
    /// room.
    pub(super) fn push(&mut self, item: SizedMessage<M>) {
        self.counted.messages += 1;
        self.counted.bytes += item.bytes;
        self.buffer.push_back(QueuedItem { item, counts: true });
    }

    /// Takes the next buffered message to send, with its lane. `None` if the lane is not `Open` or
    /// nothing is buffered. A message that waited at the last [`complete`](Self::complete) is
    /// `Exempt`; a later one `Must` fit. The message stays counted until [`left`](Self::left); if
    /// it is not sent, it must be [put back](Self::put_back).
    pub(super) fn next(&mut self) -> Option<(Current, QueuedItem<M>, MailboxLimitCheck)> {
        let RouteState::Open(current) = self.mode else { return None };
        let waiting = self.buffer.pop_front()?;
        let fit = if self.exempt > 0 { MailboxLimitCheck::Exempt } else { MailboxLimitCheck::Must };
        self.exempt = self.exempt.saturating_sub(1);
        Some((current, waiting, fit))
    }

    /// Uncounts a message that was sent. Only for messages that count against the limit; panics in
    /// debug builds, or wraps, if nothing is counted. The caller releases its room.
    pub(super) const fn left(&mut self, bytes: usize) {
        self.counted.messages -= 1;
        self.counted.bytes -= bytes;
    }

    /// Puts a message that [`next`](Self::next) gave back to the front, because the lane did not
    /// take it. `fit` must be that of `next`, so that the message is exempt as before.
    pub(super) fn put_back(&mut self, waiting: QueuedItem<M>, fit: MailboxLimitCheck) {
        self.buffer.push_front(waiting);
        self.exempt += usize::from(fit == MailboxLimitCheck::Exempt);
    }

    /// Removes all waiting messages, returned ones first, also if the result is not iterated. The
    /// flag tells whether a message counted against the limit: the caller releases the room of
    /// these. State and known decision stay.
    pub(super) fn empty(&mut self) -> impl Iterator<Item = (SizedMessage<M>, bool)> {
        (self.counted, self.exempt) = (Waits { messages: 0, bytes: 0 }, 0);
        let returned = std::mem::take(&mut self.returned);
        let all = returned.into_iter().chain(std::mem::take(&mut self.buffer));
        all.map(|QueuedItem { item, counts }| (item, counts))
    }

    /// Keeps a message that came back from the lane, behind those that came back before. It does
    /// not count against the limit, and is not sent before [`complete`](Self::complete).
    pub(super) fn returned(&mut self, item: SizedMessage<M>) {
        self.returned.push_back(QueuedItem { item, counts: false });
    }

    /// Takes in a decision. Returns whether it is newer than the known one; older ones and the
    /// known one are ignored (docs/protocol/message-order.md#one-barrier-at-a-time), and so is
    /// another one of the same generation. Does not change the lane.
    pub(super) fn learn(&mut self, decision: HomeDecision) -> bool {
        let news = decision.generation > self.known.generation;
        if news {
            self.known = decision;
        }
        news
    }

    /// Changes to the newest decision: opens the lane to its home, or uses no lane if it has none.
    /// Works in any state, without a barrier. Puts the returned messages in front of the buffered
    /// ones, because they are older (docs/protocol/message-order.md#returned-before-buffered). All
    /// messages that wait now become exempt from mailbox limits, also if no lane is open
    /// afterwards. The caller flushes.
    pub(super) fn complete(&mut self, fault_injection: GateFaultInjection) {
        self.mode = match self.known.home {
            Some(home) => RouteState::Open(Current { generation: self.known.generation, home }),
            None => RouteState::Parked,
        };
        if fault_injection.has(GateFault::ReturnedAtBack) {
            self.buffer.append(&mut self.returned);
        }
        if fault_injection.has(GateFault::ReturnedReversed) {
            self.returned.make_contiguous().reverse();
        }
        while let Some(waiting) = self.returned.pop_back() {
            self.buffer.push_front(waiting);
        }
        self.exempt = self.buffer.len();
    }
}
