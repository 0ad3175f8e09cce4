//! Counts the messages and bytes that the nodes of a run send.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use ostraca::cluster::gossip::Gossip;
use ostraca::cluster::wire::ClusterMessage;
use serde::Serialize;

use super::Body;

/// Maximum number of states whose encoded length is cached: one state is sent to many nodes.
const STATES_MAX: usize = 1_024;

/// Messages and their encoded bytes, without frames and encryption.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Messages of membership: gossip, heartbeats of the failure detector, joins.
    pub(crate) membership: Sent,
    /// Messages of the hosting lease.
    pub(crate) lease: Sent,
    /// Messages of the Replicator: configurations and its own gossip.
    pub(crate) data: Sent,
    /// Digests of the gossip state, which `membership` counts as well.
    pub(crate) digests: u64,
    states: BTreeMap<usize, (Arc<Gossip>, u64)>, // by address; ≤ STATES_MAX
}

/// Messages and bytes of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Sent {
    fn add(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }
}

impl Meter {
    pub(crate) fn reset(&mut self) {
        (self.membership, self.lease, self.data) = Default::default();
        self.digests = 0;
    }

    pub(super) fn count(&mut self, body: &Body) {
        match body {
            Body::Cluster(ClusterMessage::Gossip(state)) => {
                let bytes = self.state(state);
                self.membership.add(bytes);
            }
            Body::Cluster(message) => {
                self.digests += u64::from(matches!(message, ClusterMessage::GossipDigest(_)));
                self.membership.add(length(message));
            }
            Body::Lease(message) => self.lease.add(length(message)),
            Body::Data(message) => self.data.add(message.encode().len() as u64),
            Body::Hello { .. }
            | Body::Refused
            | Body::Quarantined
            | Body::Reset { .. }
            | Body::Sharding(..)
            | Body::User(_) => {}
        }
    }

    fn state(&mut self, state: &Arc<Gossip>) -> u64 {
        if self.states.len() >= STATES_MAX {
            self.states.clear();
        }
        let of_it = || (state.clone(), length(&ClusterMessage::Gossip(state.clone())));
        self.states.entry(Arc::as_ptr(state).addr()).or_insert_with(of_it).1
    }
}

fn length(message: &impl Serialize) -> u64 {
    let mut counted = Counted(0);
    let mut serializer = rmp_serde::Serializer::new(&mut counted).with_struct_map();
    message.serialize(&mut serializer).expect("plain data");
    counted.0
}

/// A writer that counts the bytes and discards them.
struct Counted(u64);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
