//! Throttle of alarms: at most one a minute of each kind about each node.

use std::collections::BTreeMap;
use std::time::Duration;

use super::port::{ReplicatorAlarm, ReplicatorOutput};
use super::{Replicator, ReplicatorOutbox};
use crate::clock::{Instant, Now};
use crate::id::ReplicaId;

/// Minimum time between two alarms of one kind and source.
const EVERY: Duration = Duration::from_secs(60);

/// Maximum number of nodes with entries of their own, for each kind of alarm: this many known nodes
/// and this many strangers. The further ones of either group share one alarm a minute. Strangers
/// can use as many incarnations as they like, so they can neither fill the log nor hide an alarm
/// about a node of this cluster.
const NAMES_MAX: usize = 64;

/// Number of the kind [`ReplicatorAlarm::LargeValue`] in the table of recent alarms.
const LARGE_VALUE: u8 = 1;

/// The node that caused an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AlarmSource {
    /// This node itself, as for a value that it holds.
    Local,
    /// A member of this or the former configuration, or a node that membership knows.
    Known(ReplicaId),
    /// Any other incarnation, which may be invented.
    Stranger(ReplicaId),
}

impl AlarmSource {
    const fn is_stranger(self) -> bool {
        matches!(self, Self::Stranger(_))
    }
}

/// Times of the alarms of the last minute.
#[derive(Debug, Default)]
pub(super) struct AlarmThrottle {
    named: BTreeMap<(u8, AlarmSource), Instant>, // ≤ 2 * NAMES_MAX + 1 for each kind
    further: BTreeMap<(u8, bool), Instant>,      // ≤ 2 for each kind
}

impl AlarmThrottle {
    /// Whether an alarm of this kind and source has been raised within the last minute.
    fn is_recent(&self, now: Instant, kind: u8, source: AlarmSource) -> bool {
        self.named.get(&(kind, source)).is_some_and(|last| now - *last < EVERY)
    }

    /// Whether to raise an alarm of this kind and source now. If so, its minute begins; a
    /// suppressed alarm does not prolong the minute. A source beyond [`NAMES_MAX`] shares the
    /// minute of its group.
    fn due(&mut self, now: Instant, kind: u8, source: AlarmSource) -> bool {
        let group = (kind, source.is_stranger());
        let shared = self.further.get(&group).is_some_and(|last| now - *last < EVERY);
        if self.is_recent(now, kind, source) {
            return false;
        }
        self.named.retain(|_, last| now - *last < EVERY);
        let same = self.named.keys().filter(|(kind, other)| (*kind, other.is_stranger()) == group);
        if same.count() < NAMES_MAX {
            self.named.insert((kind, source), now);
            return true;
        }
        if !shared {
            self.further.insert(group, now);
        }
        !shared
    }
}

/// The number of an alarm's kind in the tables.
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
    /// Raises an alarm, or drops it if the throttle refuses it. Callers count the event themselves.
    pub(super) fn alarm(&mut self, now: Now, alarm: ReplicatorAlarm, out: &mut ReplicatorOutbox) {
        let source = match peer(&alarm) {
            None => AlarmSource::Local,
            Some(peer) if self.peers.contains(&peer) || self.former.contains(&peer) => {
                AlarmSource::Known(peer)
            }
            Some(peer) => AlarmSource::Stranger(peer),
        };
        if self.alarms.due(now.mono, kind(&alarm), source) {
            out.push(ReplicatorOutput::Alarm(alarm));
        }
    }

    /// Whether a [`ReplicatorAlarm::LargeValue`] would be raised now.
    pub(super) fn large_value_alarm_is_due(&self, now: Now) -> bool {
        !self.alarms.is_recent(now.mono, LARGE_VALUE, AlarmSource::Local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: u8 = 2;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn known(number: u64) -> AlarmSource {
        AlarmSource::Known(ReplicaId::new(number))
    }

    fn stranger(number: u64) -> AlarmSource {
        AlarmSource::Stranger(ReplicaId::new(number))
    }

    #[test]
    fn one_alarm_a_minute_per_kind_and_source() {
        let mut throttle = AlarmThrottle::default();
        assert!(throttle.due(at(1), KIND, known(1)));
        assert!(!throttle.due(at(60), KIND, known(1)));
        assert!(throttle.due(at(60), KIND, known(2)), "another node");
        assert!(throttle.due(at(60), KIND + 1, known(1)), "another kind");
        assert!(throttle.due(at(60), KIND, AlarmSource::Local));
        assert!(throttle.due(at(61), KIND, known(1)), "a minute later");
    }

    #[test]
    fn strangers_neither_fill_the_log_nor_hide_a_member() {
        let mut throttle = AlarmThrottle::default();
        let raised = (0..10_000).filter(|number| throttle.due(at(1), KIND, stranger(*number)));
        assert_eq!(raised.count(), NAMES_MAX + 1);
        assert!(throttle.due(at(2), KIND, known(1)), "a node of this cluster");
        assert!(throttle.due(at(2), KIND + 1, stranger(1)), "another kind");
        assert!(!throttle.due(at(60), KIND, stranger(20_000)));
        assert!(throttle.due(at(61), KIND, stranger(20_000)), "a minute later");
        assert!(throttle.named.len() <= 2 * NAMES_MAX + 1);
    }
}
