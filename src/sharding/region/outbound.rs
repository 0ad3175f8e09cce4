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

/// Bytes of a `Released` besides its payload. With the highest terms it takes slightly more, but a
/// lane accepts twice the length that is joined here.
const RELEASE_BYTES: usize = 128;

/// Maximum bytes of one `ReleasedWithLongPayload` and of one `Fetch`.
const CARRIES_BYTES: usize = 160;
const FETCH_BYTES: usize = 64;

type ShardGenerations = Vec<(ShardId, Generation)>;
type Confirmed = BTreeMap<ReplicaId, ShardGenerations>;

/// Messages that the region sends at the end of the batch.
#[derive(Clone, Debug, Default)]
pub(super) struct RegionOutboundBatch {
    confirm: Confirmed,
    confirmed: Confirmed,
    drained: Confirmed,
    released: BTreeMap<RegionId, Vec<Released>>,
    carries: BTreeMap<RegionId, Vec<ReleasedWithLongPayload>>,
    fetches: BTreeMap<RegionId, Vec<Fetch>>,
    pieces: Vec<(RegionId, PayloadPart)>, // ≤ one window per `Fetch`
    // ≤ message kinds, each in its parts
    said: Vec<(ReplicaId, ToCoordinator)>,
}

impl RegionOutboundBatch {
    /// `HostedType` to a coordinator: the shard is hosted here at `at`.
    pub(super) fn confirm(&mut self, to: ReplicaId, shard: ShardId, at: Generation) {
        self.confirm.entry(to).or_default().push((shard, at));
    }

    /// `HostedType` to a region that released the shard: it is hosted here at `at`.
    pub(super) fn confirmed(&mut self, to: RegionId, shard: ShardId, at: Generation) {
        self.confirmed.entry(to.replica()).or_default().push((shard, at));
    }

    /// `Drained` to a coordinator: the shard has stopped here and its decision names no home.
    pub(super) fn drained(&mut self, to: ReplicaId, shard: ShardId, reached: Generation) {
        self.drained.entry(to).or_default().push((shard, reached));
    }

    /// `Released` to the next home.
    pub(super) fn released(&mut self, to: RegionId, word: Released) {
        self.released.entry(to).or_default().push(word);
    }

    /// `ReleasedWithLongPayload` to the next home: a release whose payload must be fetched.
    pub(super) fn carries(&mut self, to: RegionId, word: ReleasedWithLongPayload) {
        self.carries.entry(to).or_default().push(word);
    }

    /// `Fetch` to the region that keeps a long payload.
    pub(super) fn fetch(&mut self, to: RegionId, word: Fetch) {
        self.fetches.entry(to).or_default().push(word);
    }

    /// `Part` of a payload to the next home.
    pub(super) fn piece(&mut self, to: RegionId, word: PayloadPart) {
        self.pieces.push((to, word));
    }

    /// Any other message to a coordinator.
    pub(super) fn say(&mut self, to: ReplicaId, word: ToCoordinator) {
        self.said.push((to, word));
    }

    /// Answer to `Recount`. Because it is long, only the answer to the last request of a batch is
    /// sent.
    pub(super) fn counted(&mut self, to: ReplicaId, word: ToCoordinator) {
        use ToCoordinator::{Counted, CountedPart};
        let counts = |said: &_| matches!(said, Counted { .. } | CountedPart { .. });
        self.said.retain(|(other, said)| *other != to || !counts(said));
        self.said.push((to, word));
    }

    /// Sends everything. Messages of one kind are joined up to the limits of [`PayloadPartSizes`]; a single
    /// release may be longer.
    pub(super) fn flush(
        &mut self,
        PayloadPartSizes { part, words: bytes_max, .. }: PayloadPartSizes,
        out: &mut RegionOutbox,
    ) {
        let Self { confirm, confirmed, drained, released, carries, fetches, pieces, said } =
            std::mem::take(self);
        for (to, words) in released {
            for words in in_messages(words, part, length) {
                send_region(to.replica(), ToRegion::Released(words), out);
            }
        }
        for (to, words) in carries {
            for words in in_messages(words, bytes_max, |_| CARRIES_BYTES) {
                send_region(to.replica(), ToRegion::Carries(words), out);
            }
        }
        for (to, words) in fetches {
            for words in in_messages(words, bytes_max, |_| FETCH_BYTES) {
                send_region(to.replica(), ToRegion::Fetch(words), out);
            }
        }
        for (to, piece) in pieces {
            send_region(to.replica(), ToRegion::Part(piece), out);
        }
        for (to, shards) in in_words(confirmed, bytes_max) {
            send_region(to, ToRegion::Hosted(shards), out);
        }
        for (to, word) in said {
            send(to, word, out);
        }
        for (to, shards) in in_words(confirm, bytes_max) {
            send(to, ToCoordinator::Hosted(shards), out);
        }
        for (to, shards) in in_words(drained, bytes_max) {
            send(to, ToCoordinator::Drained(shards), out);
        }
    }
}

fn in_words(
    all: Confirmed,
    bytes_max: usize,
) -> impl Iterator<Item = (ReplicaId, ShardGenerations)> {
    all.into_iter().flat_map(move |(to, shards)| {
        let words = in_messages(shards, bytes_max, |_| HOSTED_BYTES);
        words.into_iter().map(move |shards| (to, shards))
    })
}

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
