//! Outgoing messages of one batch of inputs, joined per receiver and kind.

use std::collections::BTreeMap;

use ostraca_ddata::id::ReplicaId;

use super::port::RegionOutput;
use super::{PayloadPartSizes, RegionOutbox};
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{
    Fetch, HOSTED_BYTES, PayloadPart, Released, ReleasedWithLongPayload, ShardingMessage,
    ToCoordinator, ToRegion, in_messages,
};

/// Bytes of a `Released` besides its payload. Numbers have a variable length; with the highest
/// terms it takes slightly more, but a lane accepts messages of twice the length that is joined
/// here.
const RELEASE_BYTES: usize = 128;

/// Maximum bytes of one `ReleasedWithLongPayload` and of one `Fetch`.
const LONG_RELEASE_BYTES: usize = 160;
const FETCH_BYTES: usize = 64;

/// Shards, each with the generation that the message names.
type ShardGenerations = Vec<(ShardId, Generation)>;
type ByReceiver = BTreeMap<ReplicaId, ShardGenerations>;

/// Messages that the region sends at the end of the batch. Adding one neither sends anything nor
/// looks for an earlier one about the same shard, except for [`counted`](Self::counted).
#[derive(Clone, Debug, Default)]
pub(super) struct RegionOutboundBatch {
    hosted_to_coordinators: ByReceiver,
    hosted_to_regions: ByReceiver,
    drained: ByReceiver,
    released: BTreeMap<RegionId, Vec<Released>>,
    released_long: BTreeMap<RegionId, Vec<ReleasedWithLongPayload>>,
    fetches: BTreeMap<RegionId, Vec<Fetch>>,
    parts: Vec<(RegionId, PayloadPart)>, // ≤ one window of `PayloadPartSizes` for each `Fetch`
    // Sent as they are: the callers add at most one message of each kind, and split long ones.
    said: Vec<(ReplicaId, ToCoordinator)>,
}

impl RegionOutboundBatch {
    /// `Hosted` to a coordinator: the shard is hosted here at `at`.
    pub(super) fn hosted_to_coordinator(&mut self, to: ReplicaId, shard: ShardId, at: Generation) {
        self.hosted_to_coordinators.entry(to).or_default().push((shard, at));
    }

    /// `Hosted` to a region that released the shard: it is hosted here at `at`.
    pub(super) fn hosted_to_region(&mut self, to: RegionId, shard: ShardId, at: Generation) {
        self.hosted_to_regions.entry(to.replica()).or_default().push((shard, at));
    }

    /// `Drained` to a coordinator: the shard has stopped here and its decision names no home.
    /// `reached` is the highest generation that this region has received for the shard.
    pub(super) fn drained(&mut self, to: ReplicaId, shard: ShardId, reached: Generation) {
        self.drained.entry(to).or_default().push((shard, reached));
    }

    /// `Released` to the next home.
    pub(super) fn released(&mut self, to: RegionId, word: Released) {
        self.released.entry(to).or_default().push(word);
    }

    /// `Carries` to the next home: a release without its payload, which is long and must be
    /// fetched.
    pub(super) fn released_long(&mut self, to: RegionId, word: ReleasedWithLongPayload) {
        self.released_long.entry(to).or_default().push(word);
    }

    /// `Fetch` to the region that keeps a long payload.
    pub(super) fn fetch(&mut self, to: RegionId, word: Fetch) {
        self.fetches.entry(to).or_default().push(word);
    }

    /// `Part` of a payload to the next home.
    pub(super) fn part(&mut self, to: RegionId, word: PayloadPart) {
        self.parts.push((to, word));
    }

    /// Any other message to a coordinator.
    pub(super) fn say(&mut self, to: ReplicaId, word: ToCoordinator) {
        self.said.push((to, word));
    }

    /// Answer to `Recount`. Replaces an earlier answer of this batch to the same coordinator,
    /// because an answer is long: a coordinator requests each part once it has the part before.
    pub(super) fn counted(&mut self, to: ReplicaId, word: ToCoordinator) {
        use ToCoordinator::{Counted, CountedPart};
        let counts = |said: &_| matches!(said, Counted { .. } | CountedPart { .. });
        self.said.retain(|(other, said)| *other != to || !counts(said));
        self.said.push((to, word));
    }

    /// Sends everything and empties the batch. The order is: `Released` and `Carries`, because the
    /// next homes wait for them, `Fetch`, `Part`, `Hosted` to regions, the messages of
    /// [`say`](Self::say) and [`counted`](Self::counted) in the order of the calls, then `Hosted`
    /// and `Drained` to coordinators. Within a kind, receivers come in the order of their ids.
    ///
    /// Messages of one kind to one receiver are joined up to the limits of [`PayloadPartSizes`]
    /// (`part` for releases with their payloads, `words` for the others), apart from parts and
    /// those of `say` and `counted`. A single release may be longer.
    pub(super) fn flush(
        &mut self,
        PayloadPartSizes { part: payloads_max, words: bytes_max, .. }: PayloadPartSizes,
        out: &mut RegionOutbox,
    ) {
        let Self {
            hosted_to_coordinators,
            hosted_to_regions,
            drained,
            released,
            released_long,
            fetches,
            parts,
            said,
        } = std::mem::take(self);
        for (to, words) in released {
            for words in in_messages(words, payloads_max, length) {
                send_region(to.replica(), ToRegion::Released(words), out);
            }
        }
        for (to, words) in released_long {
            for words in in_messages(words, bytes_max, |_| LONG_RELEASE_BYTES) {
                send_region(to.replica(), ToRegion::Carries(words), out);
            }
        }
        for (to, words) in fetches {
            for words in in_messages(words, bytes_max, |_| FETCH_BYTES) {
                send_region(to.replica(), ToRegion::Fetch(words), out);
            }
        }
        for (to, part) in parts {
            send_region(to.replica(), ToRegion::Part(part), out);
        }
        for (to, shards) in joined(hosted_to_regions, bytes_max) {
            send_region(to, ToRegion::Hosted(shards), out);
        }
        for (to, word) in said {
            send(to, word, out);
        }
        for (to, shards) in joined(hosted_to_coordinators, bytes_max) {
            send(to, ToCoordinator::Hosted(shards), out);
        }
        for (to, shards) in joined(drained, bytes_max) {
            send(to, ToCoordinator::Drained(shards), out);
        }
    }
}

/// Divides the shards for each receiver into messages of at most `bytes_max` bytes, each with at
/// least one shard.
fn joined(
    all: ByReceiver,
    bytes_max: usize,
) -> impl Iterator<Item = (ReplicaId, ShardGenerations)> {
    all.into_iter().flat_map(move |(to, shards)| {
        let messages = in_messages(shards, bytes_max, |_| HOSTED_BYTES);
        messages.into_iter().map(move |shards| (to, shards))
    })
}

/// Bytes that a release takes up in a message, its payload included.
fn length(word: &Released) -> usize {
    RELEASE_BYTES + word.payload.as_ref().map_or(0, bytes::Bytes::len)
}

fn send(to: ReplicaId, word: ToCoordinator, out: &mut RegionOutbox) {
    out.push(RegionOutput::Send { to, message: ShardingMessage::Coordinator(word) });
}

fn send_region(to: ReplicaId, word: ToRegion, out: &mut RegionOutbox) {
    out.push(RegionOutput::Send { to, message: ShardingMessage::Region(word) });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn long_payloads_go_one_by_one_and_short_ones_together() {
        let word = |shard, bytes| Released {
            shard: ShardId::new(shard),
            reached: Generation::NEVER,
            last: Generation::NEVER,
            payload: Some(Bytes::from(vec![0; bytes])),
            sealed: Generation::NEVER,
            cluster: 1,
        };
        let lengths = [10, 20, 1_000, 5, 2_000, 7];
        let words = lengths.iter().enumerate().map(|(at, bytes)| word(at as u32, *bytes));
        let messages = in_messages(words.collect(), 1_000, length);
        let sizes: Vec<usize> = messages.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 1, 1, 1]);
    }
}
