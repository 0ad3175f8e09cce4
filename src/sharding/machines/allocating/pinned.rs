//! What this node knows of where somebody wants shards to be.
//!
//! Its own copy of the replicated map, followed by a subscription. A coordinator that begins makes
//! it as new as a majority's before it chooses any home: a pin that was acknowledged counts from
//! then on. Where no majority answers, the copy has to do, and is brought up to date later.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::replicator::request::{Notice, Reply, RequestError};

use crate::cluster::member::Address;
use crate::sharding::allocation::pins::{self, AskPins};
use crate::sharding::allocation::{Allocations, External};
use crate::sharding::ids::ShardId;

/// Before a majority is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// See the module's page.
#[derive(Clone, Debug)]
pub(super) struct Pinned {
    pub(super) external: External,
    shards: u32,
    patience: Duration,
    /// The coordinator that acts here has read what there is.
    is_read: bool,
    /// What it has read is as new as a majority's: shards move by nothing less.
    caught_up: bool,
    again_at: Option<Instant>,
    told: BTreeMap<Address, usize>, // addresses without a region, as an operator knows; ≤ shards
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

    /// Whether what is known may move shards.
    pub(super) const fn may_move(&self) -> bool {
        self.is_read && self.caught_up
    }

    /// The coordinator acts, or no more; what is to be asked then.
    pub(super) fn acts(&mut self, acts: bool) -> Option<AskPins> {
        (self.is_read, self.caught_up, self.again_at) = (false, false, None);
        self.told.clear();
        acts.then(|| self.catch())
    }

    const fn catch(&self) -> AskPins {
        AskPins::Catch { within: self.patience }
    }

    /// What is to be asked now.
    pub(super) fn due(&mut self, now: Instant) -> Option<AskPins> {
        let due = self.again_at.take_if(|at| *at <= now).is_some();
        due.then(|| self.catch())
    }

    /// The Replicator's answer, and what to ask next.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        asked: AskPins,
        reply: Result<Reply, RequestError>,
    ) -> Option<AskPins> {
        match (asked, reply) {
            (AskPins::Catch { .. }, Ok(_)) => {
                self.caught_up = true;
                Some(AskPins::Read)
            }
            (AskPins::Catch { .. }, Err(_)) => {
                self.again_at = Some(now + AGAIN);
                Some(AskPins::Read)
            }
            (AskPins::Read, Ok(Reply::Got { value, .. })) => {
                let told = value.map(|value| pins::told(&value, self.shards));
                self.hold(told.unwrap_or_else(|| Some(BTreeMap::new())));
                self.is_read = true;
                None
            }
            (AskPins::Read | AskPins::Watch, _) => {
                self.is_read = true; // there is nothing more to know
                None
            }
        }
    }

    /// The map has changed here.
    pub(super) fn noticed(&mut self, notice: &Notice) {
        match notice {
            Notice::Changed { value, .. } => self.hold(pins::told(value, self.shards)),
            Notice::Deleted { .. } => self.hold(Some(BTreeMap::new())),
        }
    }

    /// Other data under the key says nothing: what is known stays.
    fn hold(&mut self, pins: Option<BTreeMap<ShardId, Address>>) {
        if pins.is_some() {
            self.external.pinned = pins;
        }
    }

    /// Addresses with pins and without a region, if they are others than an operator knows.
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
