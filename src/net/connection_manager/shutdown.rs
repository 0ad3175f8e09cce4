//! Shutdown of the transport: queued messages are sent, as far as peers acknowledge them.
//!
//! The last messages of an orderly leave are decisions that other nodes wait for
//! (docs/protocol/transport.md#stopping-drains-lanes). Until the deadline lanes still move between
//! connections and are reopened when they break, but no new lane begins. Peers' open lanes are read
//! until then. Commands are no longer read (their replies are dropped at the end), and control
//! lanes are no longer checked for stalled peers.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::Machine;
use tokio::sync::oneshot;

use super::{ConnectionManager, PeerState};
use crate::net::TrafficClass;
use crate::net::wire::{LaneRefusal, NodeInfo};

/// Poll interval of the shutdown. A task reports just before it ends, and its end itself produces
/// no event.
const POLL_EVERY: Duration = Duration::from_millis(20);

impl ConnectionManager {
    /// Stops the transport and replies on `done`. Closes the directory and finishes all lanes,
    /// refuses lanes and clients whose handshake begins later, and goes on with swarm and links
    /// until no peer awaits or carries anything, at most for the shorter of `within` and
    /// `link_down_max`.
    ///
    /// Then counts and reports the unacknowledged messages as lost, ends all tasks and drops the
    /// swarm, before it replies. Lanes with messages that senders requested just before are opened.
    pub(super) async fn stop(mut self, within: Duration, done: oneshot::Sender<()>) {
        let lanes = self.directory.close();
        lanes.iter().for_each(|(_, _, lane)| lane.finish());
        self.stops = true;
        self.standing.send_modify(|standing| Arc::make_mut(standing).stopping = true);
        while let Ok(wanted) = self.wanted.try_recv() {
            self.on_wanted(wanted);
        }
        let end = self.now().mono + within.min(self.tasks.limits.link_down_max);
        while self.goes_on() && self.now().mono < end {
            let due = self.peers.values().filter_map(|peer| peer.link.next_deadline()).min();
            let due = due.map_or(end, |due| due.min(end)).min(self.now().mono + POLL_EVERY);
            let wait = due - self.now().mono;
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some(report) = self.reports.recv() => self.on_report(report),
                () = tokio::time::sleep(wait) => self.tick_links(),
            }
        }
        for (node, class, lane) in lanes {
            self.broken(node, class, lane.break_off());
        }
        self.peers.values_mut().for_each(PeerState::end);
        drop(self); // close the sockets before the caller releases the identity
        let _ = done.send(()); // an error: the caller has gone
    }

    /// Admits a peer's incarnation as [`admit`](Self::admit) does, but none during the stop: the
    /// task may have judged the hello by a state from before.
    pub(super) fn admit_unless_stopping(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        facts: &NodeInfo,
    ) -> Result<(), LaneRefusal> {
        if self.stops { Err(LaneRefusal::Stopping) } else { self.admit(peer, connection, facts) }
    }

    /// Whether a peer may still acknowledge something: a task still carries a lane or sends its end
    /// frame, or a lane with unacknowledged messages can still be reopened, for example when its
    /// task has ended but its report has not arrived.
    fn goes_on(&self) -> bool {
        self.peers.iter().any(|(id, peer)| peer.carries() || self.awaits(*id))
    }

    /// Whether a lane to this peer has unacknowledged messages and may still be sent soon, in the
    /// judgement of its link. `false` if the peer or its incarnation is not known, or is stale.
    fn awaits(&self, id: PeerId) -> bool {
        let Some(peer) = self.peers.get(&id) else { return false };
        let rest = |class| peer.link.awaits(class) && self.has_rest(peer.meant(), class);
        TrafficClass::ALL.into_iter().any(rest)
    }

    /// Whether the directory has the lane to this incarnation, and it has unacknowledged messages,
    /// sent or not; `false` without an incarnation. Works also after the close of the directory.
    pub(super) fn has_rest(&self, to: Option<ReplicaId>, class: TrafficClass) -> bool {
        let lane = to.and_then(|to| self.directory.used(to, class));
        lane.is_some_and(|lane| lane.stats().unacknowledged > 0)
    }
}
