//! The pins of the `external` strategy, as this node knows them.
//!
//! A subscription keeps a local copy of the replicated map of pins. A new coordinator first reads
//! the map from a majority ([`PinsRequest::Catch`], which also updates the local copy), so that it
//! obeys every pin that was acknowledged before, and then the local copy ([`PinsRequest::Read`]).
//! If no majority answers, it chooses homes by the local copy, moves no shards, and tries again.
//!
//! At most one request is open; the caller ignores answers to earlier ones. Notices of the
//! subscription are taken in at any time, also while no coordinator is active here.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::replicator::request::{ReplicatorReply, RequestError, SubscriptionNotice};

use crate::cluster::member::Address;
use crate::sharding::allocation::pins::{self, PinsRequest};
use crate::sharding::allocation::{Allocations, External};
use crate::sharding::ids::ShardId;

/// Pause before a failed read of a majority is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// The known pins, and how current they are.
#[derive(Clone, Debug)]
pub(super) struct Pinned {
    pub(super) external: External, // its `pinned` is `None` until pins are known
    shards: u32,
    read_timeout: Duration, // of a read from a majority
    /// Whether a read of the local copy was answered since the coordinator became active, even with
    /// an error. Homes need that.
    is_read: bool,
    /// Whether a read from a majority has succeeded since the coordinator became active. Moves need
    /// that.
    caught_up: bool,
    again_at: Option<Instant>, // when a failed read from a majority is repeated
    reported: BTreeMap<Address, usize>, // absent at the last call of `absent`; ≤ shards
}

impl Pinned {
    pub(super) const fn new(external: External, shards: u32, read_timeout: Duration) -> Self {
        let reported = BTreeMap::new();
        let (is_read, caught_up) = (false, false);
        Self { external, shards, read_timeout, is_read, caught_up, again_at: None, reported }
    }

    pub(super) const fn is_read(&self) -> bool {
        self.is_read
    }

    /// Whether the pins are current enough to move shards.
    pub(super) const fn may_move(&self) -> bool {
        self.is_read && self.caught_up
    }

    /// The coordinator became active, or is not active; the latter may be repeated. Returns the
    /// request to send, a read from a majority; none if it is not active. Pins of before stay, but
    /// are not used until they are read again. Forgets which addresses were reported.
    pub(super) fn set_active(&mut self, active: bool) -> Option<PinsRequest> {
        (self.is_read, self.caught_up, self.again_at) = (false, false, None);
        self.reported.clear();
        active.then(|| self.read_from_majority())
    }

    const fn read_from_majority(&self) -> PinsRequest {
        PinsRequest::Catch { within: self.read_timeout }
    }

    /// Returns the request that is due, if any: a read from a majority that failed [`AGAIN`] ago,
    /// or earlier, is repeated. Each failure causes one repetition.
    pub(super) fn due(&mut self, now: Instant) -> Option<PinsRequest> {
        let due = self.again_at.take_if(|at| *at <= now).is_some();
        due.then(|| self.read_from_majority())
    }

    /// Handles the Replicator's answer to the last request, and returns the next request. After a
    /// read from a majority, successful or not, that is a read of the local copy; a failed one is
    /// also repeated later. Does not check that the coordinator is still active.
    ///
    /// The local read replaces the pins. A key without a value means that no shard is pinned. After
    /// an error, or with data of another type, the known pins stay. In each case homes may be
    /// chosen now.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        asked: PinsRequest,
        reply: Result<ReplicatorReply, RequestError>,
    ) -> Option<PinsRequest> {
        match (asked, reply) {
            (PinsRequest::Catch { .. }, Ok(_)) => {
                self.caught_up = true;
                Some(PinsRequest::Read)
            }
            (PinsRequest::Catch { .. }, Err(_)) => {
                self.again_at = Some(now + AGAIN);
                Some(PinsRequest::Read)
            }
            (PinsRequest::Read, Ok(ReplicatorReply::Got { value, .. })) => {
                // No value: no pins. Data of another type: the known pins stay.
                let pins = value.map(|value| pins::told(&value, self.shards));
                self.replace(pins.unwrap_or_else(|| Some(BTreeMap::new())));
                self.is_read = true;
                None
            }
            // The local read failed. A further one would not find more, so the known pins are used.
            // `Watch` gets notices and no answer.
            (PinsRequest::Read | PinsRequest::Watch, _) => {
                self.is_read = true;
                None
            }
        }
    }

    /// Handles a change of the map on this node: takes over its pins, or none if it was deleted.
    /// Data of another type is ignored. Does not count as a read.
    pub(super) fn noticed(&mut self, notice: &SubscriptionNotice) {
        match notice {
            SubscriptionNotice::Changed { value, .. } => {
                self.replace(pins::told(value, self.shards));
            }
            SubscriptionNotice::Deleted { .. } => self.replace(Some(BTreeMap::new())),
        }
    }

    /// Replaces the pins. `None`, data of another type under the key, is ignored.
    fn replace(&mut self, pins: Option<BTreeMap<ShardId, Address>>) {
        if pins.is_some() {
            self.external.pinned = pins;
        }
    }

    /// Pinned addresses where no region may host, each with the number of shards pinned to it.
    /// `None` if there are none, or the same ones as at the last call; their numbers may differ.
    /// Addresses that were absent, then present, are reported again.
    pub(super) fn absent(&mut self, seen: &Allocations) -> Option<BTreeMap<Address, usize>> {
        let absent = self.external.absent(seen);
        let is_known = absent.keys().eq(self.reported.keys());
        self.reported.clone_from(&absent);
        (!is_known && !absent.is_empty()).then_some(absent)
    }

    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.again_at
    }
}
