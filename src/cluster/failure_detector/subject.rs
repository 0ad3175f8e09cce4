//! State of one monitored member: answers, connection and suspicion.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::SuspicionReason;
use super::phi::PhiAccrual;

/// Suspicion of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// It answers, or its silence is still tolerable.
    Trusted,
    /// Indirect probes with the number `probe` were requested. At `until` it is accused.
    Suspected { why: SuspicionReason, probe: u64, until: Instant },
    /// It does not answer this node, but another member reached it: the link is bad, not the
    /// member. It is not suspected again before `until`.
    BadLink { until: Instant },
    /// It is accused. Indirect probes with the number `probe` are requested in every round.
    Unreachable { probe: u64 },
}

/// Evidence from connections with a member. An answer, a new connection and a pause of this node
/// clear it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionEvidence {
    /// The last connection was closed.
    pub(super) is_closed: bool,
    /// A new connection was refused.
    pub(super) is_refused: bool,
}

impl ConnectionEvidence {
    /// Closed, and a new connection was refused, in either order: no process listens there.
    pub(super) const fn is_gone(self) -> bool {
        self.is_closed && self.is_refused
    }
}

/// State of a monitored member at this node.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) phi: PhiAccrual,
    pub(super) suspicion: Suspicion,
    pub(super) link: ConnectionEvidence,
    /// It is a successor on the ring. Other members are dropped when they answer.
    pub(super) on_ring: bool,
    /// An observer off the ring does not act on its evidence before this time, because others may
    /// do so until then. Set only while it waits with evidence against a trusted member.
    pub(super) accuses_from: Option<Instant>,
    /// Time of the first heartbeat to it, moved forward by excused gaps.
    pub(super) asked_at: Option<Instant>,
    /// Highest sequence number of a heartbeat that it has answered; 0 if none.
    pub(super) answered: u64,
    /// Whether it has answered in the current round; also set if the round is excused.
    pub(super) answered_round: bool,
}

impl Subject {
    pub(super) const fn new(phi: PhiAccrual, on_ring: bool) -> Self {
        Self {
            phi,
            suspicion: Suspicion::Trusted,
            link: ConnectionEvidence { is_closed: false, is_refused: false },
            on_ring,
            accuses_from: None,
            asked_at: None,
            answered: 0,
            answered_round: false,
        }
    }

    /// The present evidence against the member, if any, whatever its suspicion: `Refused` if its
    /// connection [is gone](ConnectionEvidence::is_gone), otherwise `Silence` if phi has reached
    /// the threshold. One flag of the connection alone is no evidence. A member without a recorded
    /// answer is not silent.
    pub(super) fn evidence(&self, now: Instant, pause: Duration) -> Option<SuspicionReason> {
        if self.link.is_gone() {
            Some(SuspicionReason::Refused)
        } else if !self.phi.is_available(now, pause) {
            Some(SuspicionReason::Silence)
        } else {
            None
        }
    }

    /// Whether this node has no reason to monitor the member any longer: it is off the ring and
    /// trusted, no time to accuse is set, and its connection was neither closed nor refused (one of
    /// them alone is a reason). Silence is no reason.
    pub(super) fn is_idle(&self) -> bool {
        !self.on_ring
            && self.suspicion == Suspicion::Trusted
            && self.accuses_from.is_none()
            && self.link == ConnectionEvidence::default()
    }

    /// Next time at which the suspicion may change without an input; may be in the past. For a
    /// trusted member: the time to accuse, if set; otherwise the time at which its silence counts,
    /// or `expected` after the first heartbeat if no answer is recorded. `None` for an accused
    /// member, which only an answer or a witness can clear, and for one that was not asked.
    pub(super) fn next_deadline(&self, pause: Duration, expected: Duration) -> Option<Instant> {
        match self.suspicion {
            Suspicion::Trusted if self.accuses_from.is_some() => self.accuses_from,
            Suspicion::Trusted if self.phi.has_begun() => self.phi.unavailable_at(pause),
            Suspicion::Trusted => self.asked_at.map(|at| at + expected),
            Suspicion::Suspected { until, .. } | Suspicion::BadLink { until } => Some(until),
            Suspicion::Unreachable { .. } => None,
        }
    }

    /// Drops observations from a time in which this node itself was stopped: `gap` of the silence
    /// (also of a member that never answered), connection evidence with the time to accuse, and a
    /// suspicion or vouching. The present round counts as answered. An accusation remains.
    pub(super) fn excuse(&mut self, gap: Duration) {
        self.phi.excuse(gap);
        self.asked_at = self.asked_at.map(|at| at + gap);
        self.link = ConnectionEvidence::default();
        self.accuses_from = None;
        self.answered_round = true;
        if matches!(self.suspicion, Suspicion::Suspected { .. } | Suspicion::BadLink { .. }) {
            self.suspicion = Suspicion::Trusted;
        }
    }
}
