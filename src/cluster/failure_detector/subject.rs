//! One peer that this node monitors: its answers, its connection, and what is thought of it.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::Why;
use super::phi::PhiAccrual;

/// What is thought of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It answers, or has not been silent for long.
    Trusted,
    /// Others have been asked to probe it.
    Suspected { why: Why, probe: u64, until: Instant },
    /// Silent towards this node, but somebody else has heard it: the link is bad, not the node.
    Vouched { until: Instant },
    /// Accused. Others are still asked, now and then.
    Unreachable { probe: u64 },
}

/// What the transport says about the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) is_closed: bool,
    pub(super) is_refused: bool,
}

impl Link {
    /// Closed, and a new one refused: nobody listens there any more.
    pub(super) const fn is_gone(self) -> bool {
        self.is_closed && self.is_refused
    }
}

#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) phi: PhiAccrual,
    pub(super) standing: Standing,
    pub(super) link: Link,
    /// Among the successors on the ring. Others stay only until they answer.
    pub(super) on_ring: bool,
    /// A witness off the ring does not speak before: others may have done so by then.
    pub(super) speaks_at: Option<Instant>,
    /// When it was first asked.
    pub(super) asked_at: Option<Instant>,
    /// The highest heartbeat that it has answered.
    pub(super) answered: u64,
    /// Whether it has answered since the last round.
    pub(super) answered_round: bool,
}

impl Subject {
    pub(super) const fn new(phi: PhiAccrual, on_ring: bool) -> Self {
        Self {
            phi,
            standing: Standing::Trusted,
            link: Link { is_closed: false, is_refused: false },
            on_ring,
            speaks_at: None,
            asked_at: None,
            answered: 0,
            answered_round: false,
        }
    }

    /// What speaks against it, if anything.
    pub(super) fn charge(&self, now: Instant, pause: Duration) -> Option<Why> {
        if self.link.is_gone() {
            Some(Why::Refused)
        } else if !self.phi.is_available(now, pause) {
            Some(Why::Silence)
        } else {
            None
        }
    }

    /// Whether nobody on this node has to do with it any more.
    pub(super) fn is_idle(&self) -> bool {
        !self.on_ring && self.standing == Standing::Trusted && self.speaks_at.is_none()
    }

    /// When its standing may change by itself.
    pub(super) fn next_deadline(&self, pause: Duration, expected: Duration) -> Option<Instant> {
        match self.standing {
            Standing::Trusted if self.speaks_at.is_some() => self.speaks_at,
            Standing::Trusted if self.phi.has_begun() => self.phi.unavailable_at(pause),
            Standing::Trusted => self.asked_at.map(|at| at + expected),
            Standing::Suspected { until, .. } | Standing::Vouched { until } => Some(until),
            Standing::Unreachable { .. } => None,
        }
    }

    /// Forgets what was noticed while this node itself was not there to listen.
    pub(super) fn excuse(&mut self, gap: Duration) {
        self.phi.excuse(gap);
        self.asked_at = self.asked_at.map(|at| at + gap);
        self.link = Link::default();
        self.speaks_at = None;
        self.answered_round = true;
        if matches!(self.standing, Standing::Suspected { .. } | Standing::Vouched { .. }) {
            self.standing = Standing::Trusted;
        }
    }
}
