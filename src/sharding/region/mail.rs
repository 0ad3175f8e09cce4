//! What a region says in one batch, joined per receiver.

use std::collections::BTreeMap;

use ostraca_ddata::id::ReplicaId;

use super::Out;
use super::port::RegionOutput;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{Released, ShardingMessage, ToCoordinator, ToRegion};

/// Payloads in one message, in bytes: more go into the next one. One payload may be longer.
const PAYLOADS_MAX: usize = 256 * 1_024;

type Confirmed = BTreeMap<ReplicaId, Vec<(ShardId, Generation)>>;

/// Messages of one batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Mail {
    confirm: Confirmed,
    confirmed: Confirmed,
    drained: Confirmed,
    released: BTreeMap<RegionId, Vec<Released>>,
    said: Vec<(ReplicaId, ToCoordinator)>, // ≤ kinds of words
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

    /// To the coordinator, anything else.
    pub(super) fn say(&mut self, to: ReplicaId, word: ToCoordinator) {
        self.said.push((to, word));
    }

    /// Sends everything.
    pub(super) fn flush(&mut self, out: &mut Out) {
        let Self { confirm, confirmed, drained, released, said } = std::mem::take(self);
        for (to, words) in released {
            for part in parts(words) {
                send_region(to.replica(), ToRegion::Released(part), out);
            }
        }
        for (to, shards) in confirmed {
            send_region(to, ToRegion::Hosted(shards), out);
        }
        for (to, word) in said {
            send(to, word, out);
        }
        for (to, shards) in confirm {
            send(to, ToCoordinator::Hosted(shards), out);
        }
        for (to, shards) in drained {
            send(to, ToCoordinator::Drained(shards), out);
        }
    }
}

/// Cuts releases into messages of a bearable length.
fn parts(words: Vec<Released>) -> Vec<Vec<Released>> {
    let (mut parts, mut bytes) = (Vec::<Vec<Released>>::new(), usize::MAX);
    for word in words {
        let length = word.payload.as_ref().map_or(0, bytes::Bytes::len);
        if bytes.saturating_add(length) > PAYLOADS_MAX {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        parts.last_mut().expect("one was begun").push(word);
    }
    parts
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
        };
        let lengths = [10, 20, PAYLOADS_MAX, 5, 2 * PAYLOADS_MAX, 7];
        let words = lengths.iter().enumerate().map(|(at, bytes)| word(at as u32, *bytes));
        let parts = parts(words.collect());
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 1, 1, 1]);
    }
}
