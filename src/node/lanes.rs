//! The Replicator's way out: the lanes of the transport.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ostraca_ddata::id::ReplicaId;

use super::outgoing::{NotSent, Outgoing};
use crate::net::Class;
use crate::net::handle::Net;
use crate::net::lane::{Lane, SendError};

/// Lanes that are remembered; beyond, all are looked up anew.
const KNOWN_MAX: usize = 4_096;

/// Sends over lanes, and remembers them.
#[derive(Debug)]
pub(super) struct Lanes {
    net: Arc<OnceLock<Net>>, // empty until the transport has started
    known: BTreeMap<(ReplicaId, Class), Lane>, // ≤ KNOWN_MAX
}

impl Lanes {
    pub(super) fn new(net: Arc<OnceLock<Net>>) -> Self {
        Self { net, known: BTreeMap::new() }
    }

    fn find(&mut self, to: ReplicaId, class: Class) -> Option<Lane> {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let lane = self.net.get()?.lane(to, class)?;
        self.known.insert((to, class), lane.clone());
        Some(lane)
    }
}

impl Outgoing for Lanes {
    fn send(&mut self, to: ReplicaId, class: Class, message: &[u8]) -> Result<(), NotSent> {
        if let Some(lane) = self.known.get(&(to, class)) {
            match lane.send(&[], message) {
                Err(SendError::Broken) => self.known.remove(&(to, class)),
                sent => return sent.map_err(not_sent),
            };
        }
        let lane = self.find(to, class).ok_or(NotSent::NoLink)?;
        lane.send(&[], message).map_err(not_sent)
    }
}

const fn not_sent(error: SendError) -> NotSent {
    match error {
        SendError::Full { .. } => NotSent::Full,
        SendError::TooLong { .. } | SendError::Header => NotSent::TooLong,
        SendError::Broken => NotSent::NoLink,
    }
}
