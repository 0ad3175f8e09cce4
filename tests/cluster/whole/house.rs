//! Interface to a real entity runtime, which replaces the simulation of
//! [`entities`](super::entities) with gates, lanes, tasks and a user's code.

use std::rc::Rc;
use std::time::Duration;

use ostraca::cluster::lease::Departure;
use ostraca::sharding::ids::RegionId;
use ostraca::sharding::region::{RegionInput, RegionOutput};
use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;

/// Creates the entity runtime of a life from the node's id and a seed.
pub(crate) type Houses = Rc<dyn Fn(ReplicaId, u64) -> Box<dyn House>>;

/// A frame of a user lane with its sequence number; without a frame, only an acknowledgement.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    /// Sequence number from 1.
    pub(crate) number: u64,
    /// All frames up to this number have arrived.
    pub(crate) acked: u64,
    pub(crate) frame: Option<Vec<u8>>,
}

/// Outputs of one run.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) parcels: Vec<(ReplicaId, Parcel)>,
    pub(crate) facts: Vec<RegionInput>,
}

/// The entity runtime of one type on one node.
pub(crate) trait House {
    fn perform(&mut self, order: RegionOutput);

    /// The region is not in the installed configuration.
    fn removed(&mut self, region: RegionId, how: Departure);

    /// The lease is lost, not only paused by a lapse.
    fn lapsed(&mut self);

    /// A handshake with this life has completed.
    fn up(&mut self, peer: ReplicaId);

    /// The connection to the peer has closed.
    fn closed(&mut self, now: Instant, peer: ReplicaId);

    /// A later life has replaced this peer.
    fn over(&mut self, peer: ReplicaId);

    fn arrived(&mut self, from: ReplicaId, parcel: Parcel);

    /// Sends this number of messages to random entities from this node.
    fn tell(&mut self, messages: usize);

    /// Runs every ready task until none is ready.
    fn run(&mut self, now: Instant, serves: bool) -> Said;

    /// Whether no message from here is in flight and no answer is expected.
    fn is_calm(&mut self, now: Instant, within: Duration) -> bool;

    fn next_deadline(&self) -> Option<Instant>;

    fn story(&self) -> String;
}
