//! The seam to what runs entities for real, in place of the stand-in of [`entities`](super::entities):
//! gates, lanes, tasks and a user's code.

use std::rc::Rc;
use std::time::Duration;

use ostraca::sharding::ids::RegionId;
use ostraca::sharding::region::{RegionInput, RegionOutput};
use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;

/// Makes what runs the entities of a life: who it is, and a seed.
pub(crate) type Houses = Rc<dyn Fn(ReplicaId, u64) -> Box<dyn House>>;

/// A frame of a user lane, in its place; without one, only what has come.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    /// From 1.
    pub(crate) number: u64,
    /// All up to this one came.
    pub(crate) acked: u64,
    pub(crate) frame: Option<Vec<u8>>,
}

/// What follows from a turn.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) parcels: Vec<(ReplicaId, Parcel)>,
    pub(crate) facts: Vec<RegionInput>,
}

/// What runs the entities of one type on one node.
pub(crate) trait House {
    fn perform(&mut self, order: RegionOutput);

    /// Out of the installed configuration.
    fn removed(&mut self, region: RegionId);

    /// The lease has lapsed for long.
    fn lapsed(&mut self);

    /// Hands were shaken with a life.
    fn up(&mut self, peer: ReplicaId);

    /// Its connection is gone.
    fn closed(&mut self, now: Instant, peer: ReplicaId);

    /// A later life has taken its place.
    fn over(&mut self, peer: ReplicaId);

    fn arrived(&mut self, from: ReplicaId, parcel: Parcel);

    /// The node's own entities are told so much, as it draws.
    fn tell(&mut self, messages: usize);

    /// Everything that is ready has its turn, until nothing is.
    fn run(&mut self, now: Instant, serves: bool) -> Said;

    /// Nothing is on its way from here, and nothing comes back.
    fn is_calm(&mut self, now: Instant, within: Duration) -> bool;

    fn next_deadline(&self) -> Option<Instant>;

    fn story(&self) -> String;
}
