//! Throttle of alarms: at most one a minute of each kind about each node.

use super::port::{ReplicatorAlarm, ReplicatorOutput};
use super::{Replicator, ReplicatorOutbox};
use crate::clock::Now;
use crate::id::ReplicaId;
use crate::log_throttle::SourceThrottle;

/// Throttle of alarms. A group is a kind of alarm, and whether the node is a stranger: an
/// incarnation that is neither a member of this or the former configuration nor known to
/// membership, and may be invented. The source is the node that caused the alarm; `None`: this node
/// itself, as for a value that it holds.
pub(super) type AlarmThrottle = SourceThrottle<(u8, bool), Option<ReplicaId>>;

/// Number of the kind [`ReplicatorAlarm::LargeValue`] in the throttle.
const LARGE_VALUE: u8 = 1;

/// The number of an alarm's kind in the throttle.
const fn kind(alarm: &ReplicatorAlarm) -> u8 {
    match alarm {
        ReplicatorAlarm::ImpossibleClock { .. } => 0,
        ReplicatorAlarm::LargeValue { .. } => LARGE_VALUE,
        ReplicatorAlarm::Undecodable { .. } => 2,
        ReplicatorAlarm::WrongType { .. } => 3,
        ReplicatorAlarm::Store(_) => 4,
        ReplicatorAlarm::ClockAhead { .. } => 5,
        ReplicatorAlarm::TooLarge { .. } => 6,
        ReplicatorAlarm::Declined { .. } => 7,
    }
}

/// The peer that an alarm is about; `None` if it is about this node.
const fn peer(alarm: &ReplicatorAlarm) -> Option<ReplicaId> {
    match alarm {
        ReplicatorAlarm::ImpossibleClock { from, .. }
        | ReplicatorAlarm::ClockAhead { from, .. }
        | ReplicatorAlarm::Undecodable { from, .. }
        | ReplicatorAlarm::WrongType { from, .. }
        | ReplicatorAlarm::Declined { from, .. }
        | ReplicatorAlarm::TooLarge { peer: from, .. } => Some(*from),
        ReplicatorAlarm::LargeValue { .. } | ReplicatorAlarm::Store(_) => None,
    }
}

impl Replicator {
    /// Raises an alarm as an output, or drops it if the throttle refuses it. A dropped alarm is not
    /// raised later. Callers count the event themselves, also if the alarm is dropped.
    pub(super) fn alarm(&mut self, now: Now, alarm: ReplicatorAlarm, out: &mut ReplicatorOutbox) {
        let source = peer(&alarm);
        let is_known = |peer: ReplicaId| self.peers.contains(&peer) || self.former.contains(&peer);
        let group = (kind(&alarm), source.is_some_and(|peer| !is_known(peer)));
        if self.alarms.permit(now.mono, group, source) {
            out.push(ReplicatorOutput::Alarm(alarm));
        }
    }

    /// Whether a [`ReplicatorAlarm::LargeValue`] would be raised now. Starts no minute; callers use
    /// it to measure a value only then.
    pub(super) fn large_value_alarm_is_due(&self, now: Now) -> bool {
        !self.alarms.is_recent(now.mono, &(LARGE_VALUE, false), &None)
    }
}
