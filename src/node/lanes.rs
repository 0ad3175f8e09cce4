//! [`Lanes`]: sends the messages of the Replicator and the control part on lanes of the transport.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ostraca_ddata::id::ReplicaId;

use super::message_sender::{MessageSender, NotSent};
use super::routes::Subsystem;
use crate::net::TrafficClass;
use crate::net::handle::Net;
use crate::net::lane::{Lane, SendError};

/// Maximum number of cached lanes; when it is reached, the cache is cleared.
const KNOWN_MAX: usize = 4_096;

/// Sends on lanes, and caches them. Each part has its own cache. Before the transport has started
/// there is no lane. A broken lane stays cached until the next message for it, or until the cache
/// is cleared.
#[derive(Debug)]
pub(super) struct Lanes {
    net: Arc<OnceLock<Net>>, // empty until the transport has started
    known: BTreeMap<(ReplicaId, TrafficClass), Lane>, // ≤ KNOWN_MAX
}

impl Lanes {
    /// Creates an empty cache. `net` may be set later.
    pub(super) fn new(net: Arc<OnceLock<Net>>) -> Self {
        Self { net, known: BTreeMap::new() }
    }

    /// Gets a lane from the transport and caches it; `None` if there is none. Clears a full cache
    /// first.
    fn find(&mut self, to: ReplicaId, class: TrafficClass) -> Option<Lane> {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let lane = self.net.get()?.lane(to, class)?;
        self.known.insert((to, class), lane.clone());
        Some(lane)
    }

    /// Sends a message with a header; never waits. If the cached lane is broken, removes it and
    /// tries the transport's present one, once. A lane without a connection accepts messages as
    /// well, up to its bound.
    ///
    /// # Errors
    /// [`NotSent`]: `Full`, if the lane has no room; `TooLong`, if message or header exceeds a
    /// limit; `NoLink`, if the transport has no lane to the incarnation, or this has just broken.
    pub(super) fn send_with(
        &mut self,
        to: ReplicaId,
        class: TrafficClass,
        header: &[&str],
        message: &[u8],
    ) -> Result<(), NotSent> {
        if let Some(lane) = self.known.get(&(to, class)) {
            match lane.send(header, message) {
                Err(SendError::Broken) => self.known.remove(&(to, class)),
                sent => return sent.map_err(not_sent),
            };
        }
        let lane = self.find(to, class).ok_or(NotSent::NoLink)?;
        lane.send(header, message).map_err(not_sent)
    }
}

impl MessageSender for Lanes {
    fn send(&mut self, to: ReplicaId, class: TrafficClass, message: &[u8]) -> Result<(), NotSent> {
        self.send_with(to, class, Subsystem::Replicator.header(), message)
    }

    fn send_lease(&mut self, to: ReplicaId, message: &[u8]) -> Result<(), NotSent> {
        self.send_with(to, TrafficClass::Control, Subsystem::Lease.header(), message)
    }

    /// The transport's name of the node; its incarnation before the transport has started, and for
    /// a node that the transport does not know.
    fn name_of(&self, node: ReplicaId) -> String {
        self.net.get().map_or_else(|| node.to_string(), |net| net.name_of(node))
    }
}

/// The reason for the counters: a header that is too long counts as a message that is.
/// `Unconnected` would count as full, but [`Lane::send`] never returns it.
const fn not_sent(error: SendError) -> NotSent {
    match error {
        SendError::Full { .. } | SendError::Unconnected => NotSent::Full,
        SendError::TooLong { .. } | SendError::Header => NotSent::TooLong,
        SendError::Broken => NotSent::NoLink,
    }
}
