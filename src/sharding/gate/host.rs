//! The receiving half of a gate: it accepts, holds or bounces each message that comes from a lane,
//! and holds barriers behind held messages. Rules:
//! docs/protocol/message-order.md#accept-hold-or-bounce.
//!
//! [`Host`] only decides: it returns a [`GateVerdict`], which the gate carries out.

use std::collections::{BTreeMap, VecDeque};

use super::budget::Waits;
use super::fault_injection::{GateFault, GateFaultInjection};
use super::route::SizedMessage;
use crate::sharding::ids::{Generation, RegionId};

/// State of a shard in the region of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostingPhase {
    /// No entity of the shard runs here.
    #[default]
    Idle,
    /// The shard lives here at this generation.
    Hosting(Generation),
    /// The shard stops here; it lived here at this generation.
    Draining(Generation),
}

/// State of a shard in its region, as the region's machine reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostState {
    /// Whether the shard runs here.
    pub run: HostingPhase,
    /// The highest decision that a `Host` or `Release` named.
    pub newest: Generation,
    /// The home according to that decision.
    pub home: Option<RegionId>,
    /// Whether a start or adoption at `newest` waits for earlier homes to end.
    pub pending: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum HeldFrame<M> {
    Message { stamp: Generation, item: SizedMessage<M> },
    Barrier { stamp: Generation },
}

/// Decision about a message or barrier that arrived or was held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum GateVerdict<M> {
    Accept(SizedMessage<M>),
    /// The message is held; nothing to do.
    Hold,
    /// Return the message to its sender, with the newest decision known here.
    Bounce {
        stamp: Generation,
        item: SizedMessage<M>,
    },
    Echo {
        stamp: Generation,
    },
    /// The message should be held, and the limit of held messages is reached.
    Refuse(SizedMessage<M>),
}

/// Decision about a message by its stamp alone, as if nothing of its lane were held.
enum Disposition {
    Accept,
    Hold,
    Bounce,
}

/// State of the receiving half.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host<M> {
    pub(super) standing: HostState,
    held: BTreeMap<RegionId, VecDeque<HeldFrame<M>>>, // by lane; ≤ the limit of `GateEffects::reserve_held`
    waits: Waits,                                     // held messages of all lanes
    left: Vec<(RegionId, Waits)>, // released since `take_left`; empty between two steps of the gate
}

impl<M> Host<M> {
    pub(super) const fn new() -> Self {
        let standing = HostState {
            run: HostingPhase::Idle,
            newest: Generation::NEVER,
            home: None,
            pending: false,
        };
        let waits = Waits { messages: 0, bytes: 0 };
        Self { standing, held: BTreeMap::new(), waits, left: Vec::new() }
    }

    /// Returns the number and bytes of the held messages of all lanes.
    pub(super) const fn held(&self) -> Waits {
        self.waits
    }

    /// Returns the held messages of all lanes, without the barriers.
    #[cfg(feature = "canaries")]
    pub(super) fn messages(&self) -> impl Iterator<Item = &SizedMessage<M>> + '_ {
        self.held.values().flatten().filter_map(|held| match held {
            HeldFrame::Message { item, .. } => Some(item),
            HeldFrame::Barrier { .. } => None,
        })
    }

    /// Returns whether a barrier of this lane waits behind held messages.
    #[cfg(feature = "canaries")]
    pub(super) fn holds_barrier_of(&self, lane: RegionId) -> bool {
        let held = self.held.get(&lane).into_iter().flatten();
        held.into_iter().any(|held| matches!(held, HeldFrame::Barrier { .. }))
    }

    /// Accept, hold or bounce (docs/protocol/message-order.md#accept-hold-or-bounce): a message is
    /// accepted only at the generation by which the shard lives here, held while its decision is
    /// unknown here (its stamp is above the newest one) or is the newest one and pending, and
    /// bounced otherwise. While the shard drains, only the own lane is accepted, at the generation
    /// by which it lived here.
    fn disposition(
        &self,
        lane: LaneKind,
        stamp: Generation,
        fault_injection: GateFaultInjection,
    ) -> Disposition {
        let HostState { run, newest, pending, .. } = self.standing;
        match (run, lane) {
            (HostingPhase::Hosting(at), _) if stamp == at => return Disposition::Accept,
            (HostingPhase::Draining(at), LaneKind::Own) if stamp == at => {
                return Disposition::Accept;
            }
            (HostingPhase::Hosting(at), _)
                if stamp < at && fault_injection.has(GateFault::LowStampAccepted) =>
            {
                return Disposition::Accept;
            }
            _ => {}
        }
        let ahead = stamp > newest && !fault_injection.has(GateFault::BounceAhead);
        let waits = stamp == newest && pending && !fault_injection.has(GateFault::BouncePending);
        if ahead || waits { Disposition::Hold } else { Disposition::Bounce }
    }

    /// Returns whether a message from a lane is accepted at once: its stamp allows it and nothing
    /// of its lane is held.
    pub(super) fn accepts(
        &self,
        from: RegionId,
        lane: LaneKind,
        stamp: Generation,
        fault_injection: GateFaultInjection,
    ) -> bool {
        !self.is_holding(from)
            && matches!(self.disposition(lane, stamp, fault_injection), Disposition::Accept)
    }

    /// Decides about a message from a lane, and holds it if it must wait. Behind held messages of
    /// its lane it is held whatever its stamp. `reserve(bytes, waits)` returns whether a message of
    /// `bytes` bytes may be held beside the `waits` that this gate holds already; it is called only
    /// for a message that must be held. If it returns false, the verdict is `Refuse`, and nothing
    /// changes.
    pub(super) fn arrive(
        &mut self,
        from: RegionId,
        lane: LaneKind,
        (stamp, item): (Generation, SizedMessage<M>),
        fault_injection: GateFaultInjection,
        reserve: impl FnOnce(usize, Waits) -> bool,
    ) -> GateVerdict<M> {
        if !self.is_holding(from) {
            match self.disposition(lane, stamp, fault_injection) {
                Disposition::Accept => return GateVerdict::Accept(item),
                Disposition::Bounce => return GateVerdict::Bounce { stamp, item },
                Disposition::Hold => {}
            }
        }
        if !reserve(item.bytes, self.waits) {
            return GateVerdict::Refuse(item);
        }
        self.waits.messages += 1;
        self.waits.bytes += item.bytes;
        self.held.entry(from).or_default().push_back(HeldFrame::Message { stamp, item });
        GateVerdict::Hold
    }

    /// Decides whether a barrier is acknowledged now. A barrier waits behind held messages of its
    /// lane (docs/protocol/message-order.md#a-barrier-waits-behind-held-messages): its echo states
    /// that every earlier message was accepted or returned. A barrier directly behind another one
    /// replaces it, so only the last stamp is echoed. Does not look at the shard's state: without
    /// held messages the verdict is always `Echo`.
    pub(super) fn barrier(
        &mut self,
        from: RegionId,
        stamp: Generation,
        fault_injection: GateFaultInjection,
    ) -> GateVerdict<M> {
        if self.is_holding(from) && !fault_injection.has(GateFault::EchoPastHeld) {
            let queue = self.held.entry(from).or_default();
            match queue.back_mut() {
                // The sender waits only for its newest barrier, and repeated barriers must not grow
                // the queue.
                Some(HeldFrame::Barrier { stamp: last }) => *last = stamp,
                _ => queue.push_back(HeldFrame::Barrier { stamp }),
            }
            return GateVerdict::Hold;
        }
        GateVerdict::Echo { stamp }
    }

    /// Decides again about everything held, lane by lane in order, up to the first message of a
    /// lane that is still held (docs/protocol/message-order.md#held-messages-are-judged-again).
    /// Returns the verdicts in the order in which the gate must carry them out, none of them `Hold`
    /// or `Refuse`; their messages are no longer held. A barrier that is reached is echoed. Called
    /// after every change of `standing`. [`take_left`](Self::take_left) then returns the released
    /// room.
    pub(super) fn settle(
        &mut self,
        me: RegionId,
        fault_injection: GateFaultInjection,
    ) -> Vec<(RegionId, GateVerdict<M>)> {
        let mut settled = Vec::new();
        if fault_injection.has(GateFault::HeldStays)
            && !matches!(self.standing.run, HostingPhase::Hosting(_))
        {
            return settled;
        }
        for (from, mut queue) in std::mem::take(&mut self.held) {
            let lane = if from == me { LaneKind::Own } else { LaneKind::Remote };
            let mut left = Waits::default();
            while let Some(next) = queue.pop_front() {
                let (stamp, item) = match next {
                    HeldFrame::Barrier { stamp } => {
                        settled.push((from, GateVerdict::Echo { stamp }));
                        continue;
                    }
                    HeldFrame::Message { stamp, item } => (stamp, item),
                };
                let bytes = item.bytes;
                match self.disposition(lane, stamp, fault_injection) {
                    Disposition::Hold if !self.bounces_all(fault_injection) => {
                        queue.push_front(HeldFrame::Message { stamp, item });
                        self.held.insert(from, queue);
                        break;
                    }
                    Disposition::Accept => settled.push((from, GateVerdict::Accept(item))),
                    Disposition::Hold | Disposition::Bounce => {
                        settled.push((from, GateVerdict::Bounce { stamp, item }));
                    }
                }
                left.messages += 1;
                left.bytes += bytes;
            }
            self.left(from, left);
        }
        settled
    }

    /// Ends a lane whose sender left the configuration. Its barriers are dropped because no sender
    /// waits for the echo. Its messages were acknowledged, and wait for their decision as before;
    /// they stay counted.
    pub(super) fn ended(&mut self, lane: RegionId, fault_injection: GateFaultInjection) {
        let Some(mut queue) = self.held.remove(&lane) else { return };
        queue.retain(|held| matches!(held, HeldFrame::Message { .. }));
        if fault_injection.has(GateFault::HeldForgotten) {
            self.left(lane, waits(&std::mem::take(&mut queue)));
        }
        if !queue.is_empty() {
            self.held.insert(lane, queue);
        }
    }

    /// Returns the lanes whose first held message waits for a decision that is not known here.
    pub(super) fn ahead(&self) -> impl Iterator<Item = RegionId> + '_ {
        let newest = self.standing.newest;
        let is_ahead = move |queue: &VecDeque<HeldFrame<M>>| matches!(queue.front(), Some(HeldFrame::Message { stamp, .. }) if *stamp > newest);
        self.held.iter().filter(move |(_, queue)| is_ahead(queue)).map(|(lane, _)| *lane)
    }

    /// Removes the held messages and barriers of a lane, and returns the messages in their order.
    /// [`take_left`](Self::take_left) then returns their room. No barrier is echoed.
    pub(super) fn forget(&mut self, lane: RegionId) -> Vec<SizedMessage<M>> {
        let Some(queue) = self.held.remove(&lane) else { return Vec::new() };
        self.left(lane, waits(&queue));
        let messages = queue.into_iter().filter_map(|held| match held {
            HeldFrame::Message { item, .. } => Some(item),
            HeldFrame::Barrier { .. } => None,
        });
        messages.collect()
    }

    /// Does the same as [`forget`](Self::forget) for all lanes, one after the other.
    pub(super) fn empty(&mut self) -> Vec<SizedMessage<M>> {
        let lanes: Vec<RegionId> = self.held.keys().copied().collect();
        lanes.into_iter().flat_map(|lane| self.forget(lane)).collect()
    }

    /// Returns number and bytes of the messages that are no longer held since the last call, by
    /// lane; a lane may occur several times. The gate releases their room.
    pub(super) fn take_left(&mut self) -> Vec<(RegionId, Waits)> {
        std::mem::take(&mut self.left)
    }

    /// Records that messages of a lane are no longer held.
    fn left(&mut self, lane: RegionId, what: Waits) {
        if what.messages > 0 {
            self.waits.messages -= what.messages;
            self.waits.bytes -= what.bytes;
            self.left.push((lane, what));
        }
    }

    fn is_holding(&self, lane: RegionId) -> bool {
        self.held.get(&lane).is_some_and(|queue| !queue.is_empty())
    }

    /// Returns whether the injected fault bounces messages of later decisions too.
    fn bounces_all(&self, fault_injection: GateFaultInjection) -> bool {
        let released =
            !matches!(self.standing.run, HostingPhase::Hosting(_)) && !self.standing.pending;
        fault_injection.has(GateFault::AllHeldBounced) && released
    }
}

/// Returns number and bytes of the messages in a queue; barriers do not count.
fn waits<M>(queue: &VecDeque<HeldFrame<M>>) -> Waits {
    let mut waits = Waits::default();
    for held in queue {
        if let HeldFrame::Message { item, .. } = held {
            waits.messages += 1;
            waits.bytes += item.bytes;
        }
    }
    waits
}

/// Origin of a message or barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneKind {
    /// The lane of length zero from this node to itself.
    Own,
    Remote,
}
