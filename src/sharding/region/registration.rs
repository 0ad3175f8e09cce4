//! How a region stays known to the coordinator, whoever that is: it registers when it hears of
//! one, again until answered, and every while as an audit (spec/sharding.md §2, spec/safety.md §3).

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

/// How long a region may be unknown, and homes wanted, before it complains. A takeover takes a few
/// seconds.
const COMPLAIN_AFTER: Duration = Duration::from_secs(10);

/// Between two complaints.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Between two registrations, the later of which tells a change.
const CHANGE_PAUSE: Duration = Duration::from_secs(1);

/// A region that no coordinator knows while messages wait for homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unregistered {
    /// For how long.
    pub waited: Duration,
    /// Who should coordinate and does not answer; `None`: no member is known to do so.
    pub coordinator: Option<ReplicaId>,
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Registration {
    coordinator: Option<ReplicaId>,
    term: Term, // the highest that a coordinator named
    registered: bool,
    was_known: bool,            // ever
    asked: BTreeSet<ReplicaId>, // who may know it, before any has said so; ≤ members that coordinated
    due: Instant,
    said: Instant,                // when it registered last
    complaint: Option<Complaint>, // while it is not registered, and missed
}

#[derive(Clone, Copy, Debug)]
struct Complaint {
    since: Instant,
    at: Instant,
}

impl Registration {
    pub(super) const fn coordinator(&self) -> Option<ReplicaId> {
        self.coordinator
    }

    /// The highest term that a coordinator named.
    pub(super) const fn term(&self) -> Term {
        self.term
    }

    pub(super) const fn is_registered(&self) -> bool {
        self.registered
    }

    /// Whether this coordinator knows it under this term, and no other one may know it better.
    pub(super) fn is_with(&self, from: ReplicaId, term: Term) -> bool {
        self.registered && self.coordinator == Some(from) && self.term == term
    }

    /// Whether any coordinator may know it.
    pub(super) fn may_be_known(&self) -> bool {
        self.was_known || !self.asked.is_empty()
    }

    /// The singleton's proxy says where the coordinator is.
    pub(super) fn found(&mut self, now: Instant, coordinator: Option<ReplicaId>) {
        if self.coordinator != coordinator {
            (self.coordinator, self.registered, self.due) = (coordinator, false, now);
        }
    }

    /// A coordinator says that it is here, and under which term.
    pub(super) fn invited(&mut self, now: Instant, from: ReplicaId, term: Term) {
        if term.is_valid() && term >= self.term {
            self.term = term;
            (self.coordinator, self.registered, self.due) = (Some(from), false, now);
        }
    }

    /// It knows this region now. Says whether it did not before.
    pub(super) fn acked(
        &mut self,
        now: Instant,
        from: ReplicaId,
        term: Term,
        audit: Duration,
    ) -> bool {
        if self.coordinator != Some(from) || term < self.term {
            return false;
        }
        self.term = term;
        self.due = now + audit;
        self.was_known = true;
        self.asked.clear();
        !std::mem::replace(&mut self.registered, true)
    }

    /// It does not know this region.
    pub(super) fn put_off(&mut self, now: Instant, from: ReplicaId, retry: Duration) {
        self.asked.remove(&from);
        if self.coordinator == Some(from) {
            (self.registered, self.due) = (false, now + retry);
        }
    }

    /// What a registration tells has changed: the next one is due soon.
    pub(super) fn changed(&mut self, now: Instant) {
        self.due = self.due.min(now.max(self.said + CHANGE_PAUSE));
    }

    /// Whom to register with now, if it is time.
    pub(super) fn take_due(&mut self, now: Instant, retry: Duration) -> Option<ReplicaId> {
        let to = self.coordinator.filter(|_| self.due <= now)?;
        (self.said, self.due) = (now, now + retry);
        if !self.was_known {
            self.asked.insert(to);
        }
        Some(to)
    }

    /// Nobody waits for a registration.
    pub(super) const fn is_not_missed(&mut self) {
        self.complaint = None;
    }

    /// Whether it is time to complain, of what: somebody waits.
    pub(super) fn complain(&mut self, now: Instant) -> Option<Unregistered> {
        if self.registered {
            self.complaint = None;
            return None;
        }
        let first = Complaint { since: now, at: now + COMPLAIN_AFTER };
        let complaint = self.complaint.get_or_insert(first);
        if complaint.at > now {
            return None;
        }
        complaint.at = now + COMPLAIN_EVERY;
        Some(Unregistered { waited: now - complaint.since, coordinator: self.coordinator })
    }

    pub(super) fn next(&self) -> Option<Instant> {
        let complains = self.complaint.map(|complaint| complaint.at);
        self.coordinator.map(|_| self.due).into_iter().chain(complains).min()
    }
}
