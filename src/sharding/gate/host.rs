//! The half of a gate that messages from lanes come to: accepts, holds, or sends back
//! (spec/safety.md §5; H1 to H3 of spec/reference/order.md).

use std::collections::{BTreeMap, VecDeque};

use super::bug::{Bug, Canary};
use crate::sharding::ids::{Generation, RegionId};

/// What a shard does here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Run {
    /// Nothing.
    #[default]
    Idle,
    /// Lives here at a generation.
    Hosting(Generation),
    /// Ends here; lived at a generation.
    Draining(Generation),
}

/// Where a shard stands with its region, as the region's machine says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Standing {
    /// What it does here.
    pub run: Run,
    /// The highest decision that a `Host` or `Release` has told of.
    pub newest: Generation,
    /// The home by that decision.
    pub home: Option<RegionId>,
    /// Whether a start or an adoption at `newest` waits for earlier homes.
    pub pending: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Held<M> {
    Message { stamp: Generation, message: M },
    Barrier { stamp: Generation },
}

/// What becomes of something that arrived, or was held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verdict<M> {
    Accept(M),
    /// Held: nothing to do.
    Hold,
    /// Back to its sender, with the newest decision known here.
    Bounce {
        stamp: Generation,
        message: M,
    },
    Echo {
        stamp: Generation,
    },
    /// Too much is held.
    Refuse(M),
}

enum Kind {
    Accept,
    Hold,
    Bounce,
}

/// The host half.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host<M> {
    pub(super) standing: Standing,
    held: BTreeMap<RegionId, VecDeque<Held<M>>>, // by lane; ≤ held_max messages in all
    messages: usize,
    held_max: usize,
}

impl<M> Host<M> {
    pub(super) const fn new(held_max: usize) -> Self {
        let standing =
            Standing { run: Run::Idle, newest: Generation::NEVER, home: None, pending: false };
        Self { standing, held: BTreeMap::new(), messages: 0, held_max }
    }

    /// Messages that are held, of all lanes.
    pub(super) const fn held(&self) -> usize {
        self.messages
    }

    #[cfg(test)]
    pub(super) fn messages(&self) -> impl Iterator<Item = &M> + '_ {
        self.held.values().flatten().filter_map(|held| match held {
            Held::Message { message, .. } => Some(message),
            Held::Barrier { .. } => None,
        })
    }

    #[cfg(test)]
    pub(super) fn holds_barrier_of(&self, lane: RegionId) -> bool {
        let held = self.held.get(&lane).into_iter().flatten();
        held.into_iter().any(|held| matches!(held, Held::Barrier { .. }))
    }

    /// H1.
    fn kind(&self, lane: Lane, stamp: Generation, canary: Canary) -> Kind {
        let Standing { run, newest, pending, .. } = self.standing;
        match (run, lane) {
            (Run::Hosting(at), _) if stamp == at => return Kind::Accept,
            (Run::Draining(at), Lane::Own) if stamp == at => return Kind::Accept,
            (Run::Hosting(at), _) if stamp < at && canary.has(Bug::LowStampAccepted) => {
                return Kind::Accept;
            }
            _ => {}
        }
        let ahead = stamp > newest && !canary.has(Bug::BounceAhead);
        let waits = stamp == newest && pending && !canary.has(Bug::BouncePending);
        if ahead || waits { Kind::Hold } else { Kind::Bounce }
    }

    /// A message from a lane.
    pub(super) fn arrive(
        &mut self,
        from: RegionId,
        lane: Lane,
        (stamp, message): (Generation, M),
        canary: Canary,
    ) -> Verdict<M> {
        if self.is_holding(from) {
            return self.hold(from, stamp, message);
        }
        match self.kind(lane, stamp, canary) {
            Kind::Accept => Verdict::Accept(message),
            Kind::Bounce => Verdict::Bounce { stamp, message },
            Kind::Hold => self.hold(from, stamp, message),
        }
    }

    /// A barrier from a lane: whether it is echoed now (H3).
    pub(super) fn barrier(
        &mut self,
        from: RegionId,
        stamp: Generation,
        canary: Canary,
    ) -> Verdict<M> {
        if self.is_holding(from) && !canary.has(Bug::EchoPastHeld) {
            let queue = self.held.entry(from).or_default();
            match queue.back_mut() {
                // Its sender waits for the newest only, and no peer may grow the queue by asking.
                Some(Held::Barrier { stamp: last }) => *last = stamp,
                _ => queue.push_back(Held::Barrier { stamp }),
            }
            return Verdict::Hold;
        }
        Verdict::Echo { stamp }
    }

    /// Everything held goes through the rules again, lane by lane in order (H2).
    pub(super) fn settle(&mut self, me: RegionId, canary: Canary) -> Vec<(RegionId, Verdict<M>)> {
        let mut settled = Vec::new();
        if canary.has(Bug::HeldStays) && !matches!(self.standing.run, Run::Hosting(_)) {
            return settled;
        }
        for (from, mut queue) in std::mem::take(&mut self.held) {
            let lane = if from == me { Lane::Own } else { Lane::Remote };
            while let Some(next) = queue.pop_front() {
                let (stamp, message) = match next {
                    Held::Barrier { stamp } => {
                        settled.push((from, Verdict::Echo { stamp }));
                        continue;
                    }
                    Held::Message { stamp, message } => (stamp, message),
                };
                match self.kind(lane, stamp, canary) {
                    Kind::Hold if !self.bounces_all(canary) => {
                        queue.push_front(Held::Message { stamp, message });
                        self.held.insert(from, queue);
                        break;
                    }
                    Kind::Accept => settled.push((from, Verdict::Accept(message))),
                    Kind::Hold | Kind::Bounce => {
                        settled.push((from, Verdict::Bounce { stamp, message }));
                    }
                }
                self.messages -= 1;
            }
        }
        settled
    }

    /// Forgets what is held of a lane that has ended: how many messages that were.
    pub(super) fn forget(&mut self, lane: RegionId) -> usize {
        let held = self.held.remove(&lane).unwrap_or_default();
        let lost = held.iter().filter(|held| matches!(held, Held::Message { .. })).count();
        self.messages -= lost;
        lost
    }

    /// All that is held.
    pub(super) fn empty(&mut self) -> impl Iterator<Item = M> {
        self.messages = 0;
        let held = std::mem::take(&mut self.held).into_values().flatten();
        held.filter_map(|held| match held {
            Held::Message { message, .. } => Some(message),
            Held::Barrier { .. } => None,
        })
    }

    fn is_holding(&self, lane: RegionId) -> bool {
        self.held.get(&lane).is_some_and(|queue| !queue.is_empty())
    }

    fn hold(&mut self, from: RegionId, stamp: Generation, message: M) -> Verdict<M> {
        if self.messages >= self.held_max {
            return Verdict::Refuse(message);
        }
        self.messages += 1;
        self.held.entry(from).or_default().push_back(Held::Message { stamp, message });
        Verdict::Hold
    }

    fn bounces_all(&self, canary: Canary) -> bool {
        let released = !matches!(self.standing.run, Run::Hosting(_)) && !self.standing.pending;
        canary.has(Bug::AllHeldBounced) && released
    }
}

/// Which lane something came down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The one of length zero, from this node itself.
    Own,
    Remote,
}
