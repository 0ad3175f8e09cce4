//! What a region says in one batch, joined per receiver.

use std::collections::BTreeMap;

use ostraca_ddata::id::ReplicaId;

use super::port::RegionOutput;
use super::{Cut, Out};
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{
    Carries, Fetch, HOSTED_BYTES, Part, Released, ShardingMessage, ToCoordinator, ToRegion,
    in_messages,
};

/// What a release takes on its way beside its payload, in bytes: with the highest terms there are a
/// little more, and a lane takes twice as much as is put together.
const RELEASE_BYTES: usize = 128;

/// What these words take, at most.
const CARRIES_BYTES: usize = 160;
const FETCH_BYTES: usize = 64;

type Shards = Vec<(ShardId, Generation)>;
type Confirmed = BTreeMap<ReplicaId, Shards>;

/// Messages of one batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Mail {
    confirm: Confirmed,
    confirmed: Confirmed,
    drained: Confirmed,
    released: BTreeMap<RegionId, Vec<Released>>,
    carries: BTreeMap<RegionId, Vec<Carries>>,
    fetches: BTreeMap<RegionId, Vec<Fetch>>,
    pieces: Vec<(RegionId, Part)>, // ≤ a window for each question
    said: Vec<(ReplicaId, ToCoordinator)>, // ≤ kinds of words, each in its parts
}

impl Mail {
    /// To a coordinator: hosted here.
    pub(super) fn confirm(&mut self, to: ReplicaId, shard: ShardId, at: Generation) {
        self.confirm.entry(to).or_default().push((shard, at));
    }

    /// To a region that released it: hosted here.
    pub(super) fn confirmed(&mut self, to: RegionId, shard: ShardId, at: Generation) {
        self.confirmed.entry(to.replica()).or_default().push((shard, at));
    }

    /// To a coordinator: hosted here no more, and by nobody.
    pub(super) fn drained(&mut self, to: ReplicaId, shard: ShardId, reached: Generation) {
        self.drained.entry(to).or_default().push((shard, reached));
    }

    /// To the next home.
    pub(super) fn released(&mut self, to: RegionId, word: Released) {
        self.released.entry(to).or_default().push(word);
    }

    /// To the next home: a release with a long payload.
    pub(super) fn carries(&mut self, to: RegionId, word: Carries) {
        self.carries.entry(to).or_default().push(word);
    }

    /// To who keeps a long payload.
    pub(super) fn fetch(&mut self, to: RegionId, word: Fetch) {
        self.fetches.entry(to).or_default().push(word);
    }

    /// To the next home: a piece of a payload.
    pub(super) fn piece(&mut self, to: RegionId, word: Part) {
        self.pieces.push((to, word));
    }

    /// To the coordinator, anything else.
    pub(super) fn say(&mut self, to: ReplicaId, word: ToCoordinator) {
        self.said.push((to, word));
    }

    /// To a coordinator: what is known here. Asked for twice in a batch it is said once, as it was
    /// asked last: it is long.
    pub(super) fn counted(&mut self, to: ReplicaId, word: ToCoordinator) {
        use ToCoordinator::{Counted, CountedPart};
        let counts = |said: &_| matches!(said, Counted { .. } | CountedPart { .. });
        self.said.retain(|(other, said)| *other != to || !counts(said));
        self.said.push((to, word));
    }

    /// Sends everything: words of a kind together, as far as they fit; a release may be longer.
    pub(super) fn flush(&mut self, Cut { part, words: bytes_max, .. }: Cut, out: &mut Out) {
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

fn in_words(all: Confirmed, bytes_max: usize) -> impl Iterator<Item = (ReplicaId, Shards)> {
    all.into_iter().flat_map(move |(to, shards)| {
        let words = in_messages(shards, bytes_max, |_| HOSTED_BYTES);
        words.into_iter().map(move |shards| (to, shards))
    })
}

fn length(word: &Released) -> usize {
    RELEASE_BYTES + word.payload.as_ref().map_or(0, bytes::Bytes::len)
}

fn send(to: ReplicaId, word: ToCoordinator, out: &mut Out) {
    out.push(RegionOutput::Send { to, message: ShardingMessage::Coordinator(word) });
}

fn send_region(to: ReplicaId, word: ToRegion, out: &mut Out) {
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
