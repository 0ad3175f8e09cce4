//! Registration of a region with the current coordinator. A region registers when it learns of a
//! coordinator, repeats that until it is acknowledged
//! (docs/protocol/sharding.md#registration-repeats-until-acknowledged), and then registers
//! periodically as an audit, which finds shards that it hosts without authority.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

/// Time that a region may be unregistered while homes are wanted before it reports that. A takeover
/// takes a few seconds.
const COMPLAIN_AFTER: Duration = Duration::from_secs(10);

/// Interval between two reports that the region is not registered.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Minimum pause between a registration and the next one if that reports a change.
const CHANGE_PAUSE: Duration = Duration::from_secs(1);

/// Maximum of the counts of unacknowledged registrations: bounds the registrations that are repeated
/// because an acknowledgement may be late.
const UNACKED_MAX: u32 = 3;

/// A region that no coordinator knows while messages wait for homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unregistered {
    /// Time that messages have waited for homes while the region was not registered.
    pub waited: Duration,
    /// The node that should coordinate and does not acknowledge; `None`: no coordinator is known.
    pub coordinator: Option<ReplicaId>,
}

/// State of the registration: the known coordinator, and when to register next.
#[derive(Clone, Debug, Default)]
pub(super) struct Registration {
    coordinator: Option<ReplicaId>,
    term: Term, // the highest that a coordinator named
    registered: bool,
    was_known: bool,            // ever
    asked: BTreeSet<ReplicaId>, // may have registered it, before the first ack; ≤ past coordinators
    due: Instant,
    said: Instant,                // when it registered last
    changed: bool,                // the content, since it registered last
    unacked: u32,                 // registrations without an acknowledgement; ≤ UNACKED_MAX
    stale: u32,                   // of these, the ones before the last change; ≤ UNACKED_MAX
    complaint: Option<Complaint>, // while homes are wanted and it is not registered
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

    /// Whether the region is registered with this coordinator under this term.
    pub(super) fn is_with(&self, from: ReplicaId, term: Term) -> bool {
        self.registered && self.coordinator == Some(from) && self.term == term
    }

    /// Whether any coordinator may have registered the region.
    pub(super) fn may_be_known(&self) -> bool {
        self.was_known || !self.asked.is_empty()
    }

    /// Notes the coordinator that the singleton's proxy has found.
    pub(super) fn found(&mut self, now: Instant, coordinator: Option<ReplicaId>) {
        if self.coordinator != coordinator {
            (self.coordinator, self.registered, self.due) = (coordinator, false, now);
        }
    }

    /// Handles `Here`: a coordinator acts under this term. Lower terms are ignored.
    pub(super) fn invited(&mut self, now: Instant, from: ReplicaId, term: Term) {
        if term.is_valid() && term >= self.term {
            self.term = term;
            (self.coordinator, self.registered, self.due) = (Some(from), false, now);
        }
    }

    /// Handles an acknowledgement. Returns whether the region was not registered before.
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
        // Acknowledgements carry no number. While earlier ones are missing, this one may answer a
        // registration before the last change: that change is then repeated in case it was lost.
        let is_stale = self.stale > 0;
        self.unacked = if is_stale { self.unacked.saturating_sub(1) } else { 0 };
        self.stale = self.stale.saturating_sub(1);
        if self.changed {
            self.due = self.after_change(now);
        } else if !is_stale {
            self.due = now + audit;
        }
        self.was_known = true;
        self.asked.clear();
        !std::mem::replace(&mut self.registered, true)
    }

    /// Handles `RegistrationRefusal`: the coordinator does not register this region, which tries again later.
    pub(super) fn put_off(&mut self, now: Instant, from: ReplicaId, retry: Duration) {
        self.asked.remove(&from);
        if self.coordinator == Some(from) {
            (self.registered, self.due) = (false, now + retry);
        }
    }

    /// The content of registrations has changed: the next one is due soon, also if an earlier one
    /// is acknowledged meanwhile.
    pub(super) fn changed(&mut self, now: Instant) {
        self.changed = true;
        self.due = self.due.min(self.after_change(now));
    }

    fn after_change(&self, now: Instant) -> Instant {
        now.max(self.said + CHANGE_PAUSE)
    }

    /// Returns the coordinator to register with if a registration is due, and sets the time of the
    /// next one.
    pub(super) fn take_due(&mut self, now: Instant, retry: Duration) -> Option<ReplicaId> {
        let to = self.coordinator.filter(|_| self.due <= now)?;
        if self.changed {
            self.stale = self.unacked;
        }
        self.unacked = (self.unacked + 1).min(UNACKED_MAX);
        (self.said, self.due, self.changed) = (now, now + retry, false);
        if !self.was_known {
            self.asked.insert(to);
        }
        Some(to)
    }

    /// No message waits for a home: ends the report.
    pub(super) const fn is_not_missed(&mut self) {
        self.complaint = None;
    }

    /// Returns a report if messages wait for homes, the region is not registered, and a report is
    /// due.
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
