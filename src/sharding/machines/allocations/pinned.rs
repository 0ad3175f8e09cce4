//! The pins of the `external` strategy, as this node knows them.
//!
//! A subscription keeps a local copy of the replicated map of pins. A new coordinator first reads
//! the map from a majority, so that it obeys every pin that was acknowledged before. If no majority
//! answers, it chooses homes by the local copy, moves no shards, and tries again.

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
    pub(super) external: External,
    shards: u32,
    patience: Duration,
    /// Whether the active coordinator has read the local copy. Homes need that.
    is_read: bool,
    /// Whether the local copy is as new as a majority's. Moves need that.
    caught_up: bool,
    again_at: Option<Instant>,
    told: BTreeMap<Address, usize>, // reported addresses without a region; ≤ shards
}

impl Pinned {
    pub(super) const fn new(external: External, shards: u32, patience: Duration) -> Self {
        let told = BTreeMap::new();
        let (is_read, caught_up) = (false, false);
        Self { external, shards, patience, is_read, caught_up, again_at: None, told }
    }

    pub(super) const fn is_read(&self) -> bool {
        self.is_read
    }

    /// Whether the pins are current enough to move shards.
    pub(super) const fn may_move(&self) -> bool {
        self.is_read && self.caught_up
    }

    /// The coordinator became active, or ended. Returns the request to send.
    pub(super) fn acts(&mut self, acts: bool) -> Option<PinsRequest> {
        (self.is_read, self.caught_up, self.again_at) = (false, false, None);
        self.told.clear();
        acts.then(|| self.catch())
    }

    const fn catch(&self) -> PinsRequest {
        PinsRequest::Catch { within: self.patience }
    }

    /// Returns the request that is due, if any.
    pub(super) fn due(&mut self, now: Instant) -> Option<PinsRequest> {
        let due = self.again_at.take_if(|at| *at <= now).is_some();
        due.then(|| self.catch())
    }

    /// Handles the Replicator's answer, and returns the next request.
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
                let told = value.map(|value| pins::told(&value, self.shards));
                self.hold(told.unwrap_or_else(|| Some(BTreeMap::new())));
                self.is_read = true;
                None
            }
            (PinsRequest::Read | PinsRequest::Watch, _) => {
                self.is_read = true; // the local copy has no more to offer
                None
            }
        }
    }

    /// Handles a change of the map on this node.
    pub(super) fn noticed(&mut self, notice: &SubscriptionNotice) {
        match notice {
            SubscriptionNotice::Changed { value, .. } => self.hold(pins::told(value, self.shards)),
            SubscriptionNotice::Deleted { .. } => self.hold(Some(BTreeMap::new())),
        }
    }

    /// Replaces the pins. Data of another type under the key is ignored.
    fn hold(&mut self, pins: Option<BTreeMap<ShardId, Address>>) {
        if pins.is_some() {
            self.external.pinned = pins;
        }
    }

    /// Pinned addresses without a region, if they differ from those reported last.
    pub(super) fn absent(&mut self, seen: &Allocations) -> Option<BTreeMap<Address, usize>> {
        let absent = self.external.absent(seen);
        let is_known = absent.keys().eq(self.told.keys());
        self.told.clone_from(&absent);
        (!is_known && !absent.is_empty()).then_some(absent)
    }

    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.again_at
    }
}
