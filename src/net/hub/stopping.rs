//! The end of a transport: what is queued goes out, as far as peers take it.
//!
//! Lanes move from one connection to another, and are opened again when they break, as at any
//! other time; but none is begun.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use libp2p::PeerId;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::Machine;
use tokio::sync::oneshot;

use super::{Hub, Peer};
use crate::net::Class;

/// A task reports its end before it has ended, and of the latter nobody tells: it is looked for.
const LOOK: Duration = Duration::from_millis(20);

impl Hub {
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
            let due = due.map_or(end, |due| due.min(end)).min(self.now().mono + LOOK);
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
        self.peers.values_mut().for_each(Peer::end);
        drop(self); // its sockets are closed before its node may let the identity go
        let _ = done.send(()); // the node does not wait for it
    }

    /// Whether a peer may still take something: a task carries a lane, or says that nothing follows;
    /// or a lane with a rest is not given up, though its task may be over and its report not heard.
    fn goes_on(&self) -> bool {
        self.peers.iter().any(|(id, peer)| peer.carries() || self.awaits(*id))
    }

    fn awaits(&self, id: PeerId) -> bool {
        let Some(peer) = self.peers.get(&id) else { return false };
        let rest = |class| peer.link.awaits(class) && self.has_rest(peer.meant(), class);
        Class::ALL.into_iter().any(rest)
    }

    /// Whether anything of a lane is unacknowledged.
    pub(super) fn has_rest(&self, to: Option<ReplicaId>, class: Class) -> bool {
        let lane = to.and_then(|to| self.directory.used(to, class));
        lane.is_some_and(|lane| lane.stats().unacknowledged > 0)
    }
}
