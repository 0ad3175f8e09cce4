//! Periodic check of the control lanes: a peer that reads nothing from its control lane is
//! disconnected, because a dropped heartbeat is worse than a broken connection
//! (docs/protocol/transport.md#control-is-never-dropped).

use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::ConnectionManager;
use crate::net::TrafficClass;
use crate::net::link::PeerLink;

/// Interval between two checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A check that is late by this time or more is skipped: this node was paused and has not yet read
/// the acknowledgements of its peers.
const PAUSED: Duration = Duration::from_secs(3);

impl ConnectionManager {
    /// Checks the control lanes if the check is due, and schedules the next one; otherwise changes
    /// nothing. A check that is late by [`PAUSED`] is skipped, for overflowed lanes as well.
    pub(super) fn check_if_due(&mut self) {
        let (is_taken, next) = schedule(self.now().mono, self.check_at);
        self.check_at = next;
        if is_taken {
            self.check_control_lanes();
        }
    }

    /// Disconnects peers that have acknowledged nothing on their control lane for
    /// `control_undrained_max`, although the lane has waited for so long and could be read for so
    /// long ([`carried_since`](PeerLink::carried_since)), or whose lane has overflowed, which means
    /// that it has rejected a message. Control messages must not be dropped silently: an overflowed
    /// lane is also given up, which counts its messages as lost and begins a new lane. That happens
    /// without a connection as well. A stuck lane without overflow keeps its messages.
    ///
    /// Closes the carrier only; the link of a peer that is kept then dials again.
    fn check_control_lanes(&mut self) {
        let longest = self.tasks.limits.control_undrained_max;
        let now = self.now().mono;
        let lanes = self.directory.all().into_iter();
        for (node, _, lane) in lanes.filter(|(_, class, _)| *class == TrafficClass::Control) {
            let stats = lane.stats();
            let waits = stats.undrained_since.is_some_and(|since| since.elapsed() >= longest);
            let overflowed = stats.refused > 0;
            let link = self.peers.get(&node.peer).map(|peer| &peer.link);
            let carrier = link.and_then(PeerLink::carrier);
            // Time that passed on an earlier connection does not count for this one.
            let since = link.and_then(|link| link.carried_since(TrafficClass::Control));
            let stuck = waits && since.is_some_and(|since| now - since >= longest);
            if let Some(carrier) = carrier.filter(|_| stuck || overflowed) {
                let kept = stats.kept_bytes;
                tracing::warn!(
                    %node, kept,
                    "net.control_undrained: the peer reads its control lane too slowly; the \
                     connection is closed: check whether that node is suspended or overloaded"
                );
                self.close(carrier);
            }
            if overflowed {
                self.give_up(node.peer, TrafficClass::Control);
            }
        }
    }
}

/// Whether a check is performed at `now`, and when the next one is due; `at` is when this one was
/// due. Before that, returns `false` and `at`. A late check, performed or skipped, is followed by
/// the next one [`CHECK_EVERY`] after `now`.
fn schedule(now: Instant, at: Instant) -> (bool, Instant) {
    if now < at { (false, at) } else { (now - at < PAUSED, now + CHECK_EVERY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_runs_when_due_and_is_skipped_after_a_pause() {
        let at = Instant::default() + Duration::from_secs(100);
        let after = |millis| at + Duration::from_millis(millis);
        let early = Instant::default() + Duration::from_secs(99);
        assert_eq!(schedule(early, at), (false, at));
        assert_eq!(schedule(at, at), (true, after(1_000)));
        assert_eq!(schedule(after(2_999), at), (true, after(3_999)));
        assert_eq!(schedule(after(3_000), at), (false, after(4_000)));
        assert_eq!(schedule(after(4_000), after(4_000)), (true, after(5_000)), "the next is taken");
    }
}
