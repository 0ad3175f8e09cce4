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

/// Maximum of the counts of unacknowledged registrations: bounds the registrations that are
/// repeated because an acknowledgement may be late.
const UNACKED_MAX: u32 = 3;

/// A region that no coordinator knows while messages wait for homes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unregistered {
    /// Time that messages have waited for homes while the region was not registered.
    pub waited: Duration,
    /// The node that should coordinate and does not acknowledge; `None`: no coordinator is known.
    pub coordinator: Option<ReplicaId>,
}

/// State of the registration: the known coordinator, and when to register next. A region registers
/// only with the coordinator that it knows, and its registration ends when that changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Registration {
    coordinator: Option<ReplicaId>, // the known one, registered with or not
    term: Term,                     // the highest that a coordinator named
    registered: bool,               // with `coordinator`
    was_known: bool,                // a coordinator has registered it, ever
    asked: BTreeSet<ReplicaId>, // may have registered it, before the first ack; ≤ past coordinators
    due: Instant,
    said: Instant,                // when it registered last
    changed: bool,                // the content, since it registered last
    unacked: u32,                 // registrations without an acknowledgement; ≤ UNACKED_MAX
    stale: u32,                   // of these, the ones before the last change; ≤ UNACKED_MAX
    complaint: Option<Complaint>, // while homes are wanted and it is not registered
}

/// A wait for a registration while homes are wanted.
#[derive(Clone, Copy, Debug)]
struct Complaint {
    since: Instant, // when it began
    at: Instant,    // when the next report is due
}

impl Registration {
    /// The known coordinator, even if it has not registered the region.
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

    /// Whether any coordinator may ever have registered the region: one has acknowledged it, or one
    /// that it asked has not refused it.
    pub(super) fn may_be_known(&self) -> bool {
        self.was_known || !self.asked.is_empty()
    }

    /// Notes the coordinator that the singleton's proxy has found. If the region knew another one
    /// or none, it is no longer registered, and registers at once; `None`: it cannot. The known
    /// coordinator has no effect. The highest term stays.
    pub(super) fn found(&mut self, now: Instant, coordinator: Option<ReplicaId>) {
        if self.coordinator != coordinator {
            (self.coordinator, self.registered, self.due) = (coordinator, false, now);
        }
    }

    /// Handles `Here`: a coordinator acts under this term. The region is no longer registered, and
    /// registers with it at once, also if it was registered with it under this term. Invalid terms,
    /// and terms below the highest that a coordinator named, are ignored.
    pub(super) fn invited(&mut self, now: Instant, from: ReplicaId, term: Term) {
        if term.is_valid() && term >= self.term {
            self.term = term;
            (self.coordinator, self.registered, self.due) = (Some(from), false, now);
        }
    }

    /// Handles an acknowledgement. Returns true if the region was not registered before; false if
    /// it was, or if the acknowledgement is ignored because it comes from another node than the
    /// known coordinator, or names a lower term than one did before.
    ///
    /// The next registration is due after `audit`. If the content has changed since the last one,
    /// it is due after [`CHANGE_PAUSE`] instead; if the acknowledgement may answer one that was
    /// sent before the last change, it stays due after `retry`. From the first acknowledgement on
    /// [`may_be_known`](Self::may_be_known) is true for ever.
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

    /// Handles `RegistrationRefusal`: the region is no longer registered, and tries again after
    /// `retry`. A refusal by another node than the known coordinator only proves that this node has
    /// not registered the region.
    pub(super) fn put_off(&mut self, now: Instant, from: ReplicaId, retry: Duration) {
        self.asked.remove(&from);
        if self.coordinator == Some(from) {
            (self.registered, self.due) = (false, now + retry);
        }
    }

    /// The content of registrations has changed: the next one is due at once, but not before
    /// [`CHANGE_PAUSE`] after the last one, and not later than it was. An acknowledgement of an
    /// earlier one does not delay it.
    pub(super) fn changed(&mut self, now: Instant) {
        self.changed = true;
        self.due = self.due.min(self.after_change(now));
    }

    /// Returns when a registration that reports a change is due; not before `now`.
    fn after_change(&self, now: Instant) -> Instant {
        now.max(self.said + CHANGE_PAUSE)
    }

    /// Returns the coordinator to register with if a registration is due, and sets the time of the
    /// next one, after `retry`. The caller must send the registration, with the present content.
    /// `None`: none is due, or no coordinator is known. Does not end a registration.
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

    /// No message waits for a home: the time until a report begins anew.
    pub(super) const fn is_not_missed(&mut self) {
        self.complaint = None;
    }

    /// Returns a report if the region is not registered and a report is due: [`COMPLAIN_AFTER`]
    /// after the first call without a registration, then every [`COMPLAIN_EVERY`]. A call while it
    /// is registered begins that time anew. Must be called only while messages wait for homes,
    /// otherwise [`is_not_missed`](Self::is_not_missed).
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

    /// Returns when a registration or a report is due; `None` without a known coordinator and
    /// without a wait for a registration.
    pub(super) fn next(&self) -> Option<Instant> {
        let complains = self.complaint.map(|complaint| complaint.at);
        self.coordinator.map(|_| self.due).into_iter().chain(complains).min()
    }
}
