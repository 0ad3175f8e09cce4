//! A look at the control lanes, now and then: who takes nothing is disconnected.

use std::time::Duration;

use super::Hub;
use crate::net::Class;
use crate::net::link::Link;

/// How often lanes are looked at that nobody takes anything from.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A look that comes so late is left out: this node did not run, and has not read what others have
/// acknowledged meanwhile.
const PAUSED: Duration = Duration::from_secs(3);

impl Hub {
    pub(super) fn look_if_due(&mut self) {
        let now = self.now().mono;
        if now < self.look_at {
            return;
        }
        let was_paused = now - self.look_at >= PAUSED;
        self.look_at = now + LOOK_EVERY;
        if !was_paused {
            self.look();
        }
    }

    /// Disconnects peers that have taken nothing from their control lane for too long, or too
    /// little of it: what no longer fits is never dropped in silence.
    fn look(&mut self) {
        let longest = self.tasks.limits.control_undrained_max;
        let now = self.now().mono;
        let lanes = self.directory.all().into_iter();
        for (node, _, lane) in lanes.filter(|(_, class, _)| *class == Class::Control) {
            let stats = lane.stats();
            let waits = stats.undrained_since.is_some_and(|since| since.elapsed() >= longest);
            let overflowed = stats.refused > 0;
            let link = self.peers.get(&node.peer).map(|peer| &peer.link);
            let carrier = link.and_then(Link::carrier);
            // What waited on another connection says nothing about this one.
            let since = link.and_then(|link| link.carried_since(Class::Control));
            let stuck = waits && since.is_some_and(|since| now - since >= longest);
            if let Some(carrier) = carrier.filter(|_| stuck || overflowed) {
                let kept = stats.kept_bytes;
                tracing::warn!(peer = %node.peer, kept, "net.control_undrained: closing");
                self.close(carrier);
            }
            if overflowed {
                self.give_up(node.peer, Class::Control);
            }
        }
    }
}
