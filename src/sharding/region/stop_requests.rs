//! Requests of the program to stop shards, wherever they are hosted. The region repeats them to the
//! coordinator until it answers that they have stopped
//! (docs/protocol/sharding.md#a-stopping-shard-gets-no-home), or until their time is over.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;

use super::port::RegionOutput;
use super::{Region, RegionOutbox};
use crate::sharding::ids::ShardId;
use crate::sharding::wire::{ToCoordinator, WISH_BYTES, in_messages};

/// Pending stop requests of the program.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopping {
    requests: BTreeMap<ShardId, StopRequest>, // ≤ shards
    last: u64,                                // number of the last request
    ask_at: Instant,                          // when all requests are sent next
}

/// Stop request for one shard. A newer request replaces it, with the later of both ends.
#[derive(Clone, Copy, Debug)]
struct StopRequest {
    number: u64, // only an answer with this number ends the request
    until: Instant,
}

impl Stopping {
    /// A coordinator registered this region, which was not registered: all requests are due now.
    pub(super) fn again(&mut self, now: Instant) {
        self.ask_at = now;
    }

    /// The next time to repeat the requests or to drop one; `None` without requests. Requests are
    /// repeated only while the region is registered, but dropped in any case.
    pub(super) fn next(&self, registered: bool) -> Option<Instant> {
        let asks = registered.then_some(self.ask_at).filter(|_| !self.requests.is_empty());
        self.requests.values().map(|request| request.until).chain(asks).min()
    }
}

impl Region {
    /// Shards with a pending stop request.
    pub fn stopping(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.stopping.requests.keys().copied()
    }

    /// Notes that the program wants these shards to stop. All pending requests are due now: they
    /// are sent in this batch if the region is registered, else once it is. All shards of a call
    /// get one new number, also those whose request was pending, so that an earlier answer no
    /// longer counts. Numbers of no shard are left out and counted as strange. With `within` 0 a
    /// new request expires in this batch without being sent, with the output `Stopped`.
    pub(super) fn request_stop(&mut self, now: Now, shards: Vec<ShardId>, within: Duration) {
        let until = now.mono + within;
        self.stopping.last += 1;
        let new = StopRequest { number: self.stopping.last, until };
        for shard in shards {
            if self.is_shard(shard) {
                let known = self.stopping.requests.entry(shard).or_insert(new);
                *known = StopRequest { until: until.max(known.until), ..new };
            }
        }
        self.stopping.ask_at = now.mono;
    }

    /// Handles `Stopped`: ends the requests with these numbers, and outputs `Stopped`, once for the
    /// message, if there was any. Answers to earlier requests, and unknown shards, have no effect.
    /// Only the known coordinator is believed, registered with or not; a new one is asked again.
    pub(super) fn stopped(
        &mut self,
        from: ReplicaId,
        told: &[(ShardId, u64)],
        out: &mut RegionOutbox,
    ) {
        if self.registration.coordinator() != Some(from) {
            return;
        }
        let requests = &mut self.stopping.requests;
        let before = requests.len();
        for (shard, number) in told {
            if requests.get(shard).is_some_and(|request| request.number == *number) {
                requests.remove(shard);
            }
        }
        if requests.len() < before {
            out.push(RegionOutput::Stopped);
        }
    }

    /// Drops the requests whose time is over, registered or not, and outputs `Stopped` once if
    /// there was any. Then sends all other requests to the coordinator if that is due and the
    /// region is registered; they are next due after `retry`.
    pub(super) fn repeat_stop_requests(&mut self, now: Now, out: &mut RegionOutbox) {
        let before = self.stopping.requests.len();
        self.stopping.requests.retain(|_, request| request.until > now.mono);
        if self.stopping.requests.len() < before {
            out.push(RegionOutput::Stopped);
        }
        let due = !self.stopping.requests.is_empty() && self.stopping.ask_at <= now.mono;
        let to = self.registration.coordinator().filter(|_| self.registration.is_registered());
        if let (true, Some(to)) = (due, to) {
            self.stopping.ask_at = now.mono + self.config.retry;
            let requests =
                self.stopping.requests.iter().map(|(shard, request)| (*shard, request.number));
            for requests in in_messages(requests.collect(), self.config.cut.words, |_| WISH_BYTES) {
                self.outbound.say(to, ToCoordinator::Stop(requests));
            }
        }
    }
}
