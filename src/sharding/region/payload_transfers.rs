//! Reception of payloads that are too long for one message. The new home fetches such a payload in
//! parts from the region that released the shard.
//!
//! A payload is identified by shard, keeping region and tenure (`last`). While it is kept, its
//! content and length do not change, so parts that answer different requests fit together and are
//! appended in order. A complete payload has the effect of a [`Released`] that arrived at that
//! moment, so the rules of moves do not know of parts
//! (docs/protocol/sharding.md#long-payloads-are-fetched).
//!
//! The state machine reads the clock only to take turns, and knows nothing of a shard but its
//! number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ostraca_ddata::clock::Instant;

use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{Fetch, PayloadPart, Released, ReleasedWithLongPayload};

/// Maximum number of payloads that are fetched at a time. Further ones wait for their turn.
const AT_A_TIME: usize = 4;

/// Maximum total length of the payloads that are fetched at a time, unless a single one is longer.
const BYTES_MAX: u64 = 256 * 1_024 * 1_024;

/// Maximum length of one payload. A longer claim comes from a faulty peer and is refused.
const PAYLOAD_MAX: u64 = u32::MAX as u64;

/// A fetched payload of which no part arrived for this long gives its turn to a waiting one. No
/// deadline wakes the region for it: it is noticed with the next input, such as an announcement.
const STALLED: Duration = Duration::from_secs(10);

/// How payloads are cut, in bytes. Parts share the control lane with heartbeats and decisions, and
/// that lane keeps order and has a limit. Up to four windows from each peer may lie ahead of a
/// heartbeat, so four windows must take much less time than a lease lasts and far less room than
/// the lane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadPartSizes {
    /// Maximum length of a payload that travels with its release.
    pub whole: usize,
    /// Length of one part, and maximum total length of the payloads joined in one message; at least
    /// 1.
    pub part: usize,
    /// Number of bytes requested by one `Fetch`; less than one part counts as one part.
    pub window: usize,
    /// Maximum length of a message that lists many shards, as far as its list can be cut.
    pub words: usize,
}

impl Default for PayloadPartSizes {
    /// Lengths for lanes without a small limit of their own: 32 KiB with a release, parts of 64
    /// KiB, 256 KiB for each `Fetch`, and lists of 2 MiB. [`PayloadPartSizes::within`] lowers them.
    fn default() -> Self {
        let words = 2 * 1_024 * 1_024;
        Self { whole: 32 * 1_024, part: 64 * 1_024, window: 256 * 1_024, words }
    }
}

impl PayloadPartSizes {
    /// Lengths that fit lanes whose messages have at most `message_bytes_max` bytes: half of it at
    /// most, at least 1 (also with 0), and never above the default. The window stays the default
    /// one.
    #[must_use]
    pub fn within(message_bytes_max: usize) -> Self {
        let Self { whole, part, window, words } = Self::default();
        // the other half is for the fields around the payload
        let fits = (message_bytes_max / 2).max(1);
        Self { whole: whole.min(fits), part: part.min(fits), window, words: words.min(fits) }
    }
}

/// Identifies the payload: its shard and the region that keeps it.
type PayloadKey = (ShardId, RegionId);

/// Payloads that other regions announced and that are not complete yet. At most [`AT_A_TIME`] of
/// them have a turn: they are fetched, in windows of several parts. The others wait. Turns are
/// given, and requests made, only by [`take_due`](Self::take_due).
#[derive(Clone, Debug, Default)]
pub(super) struct Intake {
    arriving: BTreeMap<PayloadKey, Arriving>, // ≤ shards × regions
    due: BTreeSet<PayloadKey>,                // to request in this batch; ≤ arriving
}

/// A payload that is fetched, or waits for its turn. The generations are those of its release.
#[derive(Clone, Debug)]
struct Arriving {
    reached: Generation,
    last: Generation,
    sealed: Generation,
    length: u64,        // 1 to PAYLOAD_MAX
    bytes: Vec<u8>,     // the part received so far, from the beginning; ≤ length
    asked: Option<u64>, // requested up to this offset; `None`: waits for its turn
    // time of the last part, of the begin or end of its turn, or of the announcement
    since: Instant,
    moves: bool, // a part arrived since the last announcement
}

impl Arriving {
    /// Whether it has a turn, and no part arrived for [`STALLED`].
    fn is_stalled(&self, now: Instant) -> bool {
        self.asked.is_some() && now - self.since >= STALLED
    }
}

impl Intake {
    /// Handles an announcement (`ReleasedWithLongPayload`), which the sender repeats until the
    /// receiver confirms. Returns `false` if no payload can have the claimed length.
    ///
    /// A new payload waits for its turn. It replaces the one of an earlier tenure of that region,
    /// with what was received of it. A repetition raises the stored `reached`, and requests the
    /// rest again if no part has arrived since the announcement before; while the payload waits for
    /// its turn nothing is requested. An announcement of an earlier tenure, or of another length,
    /// is ignored and returns `true`. The caller has judged the release and its cluster generation.
    pub(super) fn announced(
        &mut self,
        now: Instant,
        from: RegionId,
        word: ReleasedWithLongPayload,
    ) -> bool {
        let ReleasedWithLongPayload { shard, reached, last, length, sealed, .. } = word;
        if length == 0 || length > PAYLOAD_MAX {
            return false;
        }
        let key = (shard, from);
        let known = self.arriving.get_mut(&key).filter(|known| known.last >= last);
        match known {
            Some(known) if known.last == last && known.length == length => {
                known.reached = known.reached.max(reached);
                // No part since the last announcement: the request or its answer may be lost.
                if !std::mem::take(&mut known.moves) && known.asked.is_some() {
                    self.due.insert(key);
                }
            }
            Some(_) => {} // an earlier tenure
            None => {
                let (bytes, asked, since, moves) = (Vec::new(), None, now, false);
                let new = Arriving { reached, last, sealed, length, bytes, asked, since, moves };
                self.arriving.insert(key, new);
            }
        }
        true
    }

    /// Appends a part, and makes the request of the next window due once the present one is
    /// complete. Returns the release once the payload is complete, and forgets it here; its cluster
    /// generation is 0, because that of the announcement has been checked. A part is ignored if it
    /// is not the next one, is empty, exceeds the announced length, or belongs to a payload or
    /// tenure that is unknown or has no turn. A part may exceed the window.
    pub(super) fn took(
        &mut self,
        now: Instant,
        from: RegionId,
        part: &PayloadPart,
    ) -> Option<Released> {
        let key = (part.shard, from);
        let known = self.arriving.get_mut(&key)?;
        let is_next = known.last == part.last && known.bytes.len() as u64 == part.at;
        let room = known.length - known.bytes.len() as u64;
        if !is_next || part.bytes.is_empty() || part.bytes.len() as u64 > room {
            return None; // duplicate, out of order, or of another tenure
        }
        let asked = known.asked?;
        known.bytes.extend_from_slice(&part.bytes);
        (known.since, known.moves) = (now, true);
        let come = known.bytes.len() as u64;
        if come < known.length {
            if come >= asked {
                self.due.insert(key);
            }
            return None;
        }
        let whole = self.arriving.remove(&key)?;
        self.due.remove(&key);
        let Arriving { reached, last, sealed, bytes, .. } = whole;
        let (payload, cluster) = (Some(Bytes::from(bytes)), 0); // `announced` has checked it
        Some(Released { shard: key.0, reached, last, payload, sealed, cluster })
    }

    /// Drops the unfinished payloads of a shard that `wanted` (region, `reached`) rejects.
    pub(super) fn retain(&mut self, shard: ShardId, wanted: impl Fn(RegionId, Generation) -> bool) {
        let of_shard = (shard, RegionId::MIN)..=(shard, RegionId::MAX);
        let mut vain = Vec::new();
        for (key, known) in self.arriving.range(of_shard) {
            if !wanted(key.1, known.reached) {
                vain.push(*key);
            }
        }
        vain.iter().for_each(|key| self.forget(key));
    }

    /// A region released the shard in one message. It no longer keeps another payload of the tenure
    /// `last` or an earlier one, so a pending fetch of one is dropped.
    pub(super) fn superseded(&mut self, shard: ShardId, from: RegionId, last: Generation) {
        let key = (shard, from);
        if self.arriving.get(&key).is_some_and(|known| known.last <= last) {
            self.forget(&key);
        }
    }

    /// Drops what regions outside `members` announced: they can no longer be asked for the rest.
    pub(super) fn keep_only(&mut self, members: &BTreeSet<RegionId>) {
        self.arriving.retain(|(_, from), _| members.contains(from));
        self.due.retain(|(_, from)| members.contains(from));
    }

    fn forget(&mut self, key: &PayloadKey) {
        self.arriving.remove(key);
        self.due.remove(key);
    }

    /// Drops all payloads, for a region that has stopped for good.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Number of received bytes that belong to incomplete payloads.
    pub(super) fn bytes(&self) -> u64 {
        self.arriving.values().map(|known| known.bytes.len() as u64).sum()
    }

    /// Requests to send now, each for one window, which begins behind the bytes received so far. At
    /// most one for each payload. First gives free turns to waiting payloads. The caller must send
    /// them: they are no longer due.
    pub(super) fn take_due(&mut self, now: Instant, window: usize) -> Vec<(RegionId, Fetch)> {
        self.take_turns(now);
        let due = std::mem::take(&mut self.due);
        let ask = |key: PayloadKey| {
            let known = self.arriving.get_mut(&key)?;
            let at = known.bytes.len() as u64;
            if known.asked.is_none() {
                known.since = now; // its turn begins
            }
            known.asked = Some(at.saturating_add(window as u64));
            Some((key.1, Fetch { shard: key.0, last: known.last, at }))
        };
        due.into_iter().filter_map(ask).collect()
    }

    /// Gives free turns to waiting payloads, in the order in which they began to wait, and makes
    /// their requests due. Stops at the first one that does not fit beside those with a turn: a
    /// long one is not overtaken, because others could delay it without end. Alone it always fits.
    ///
    /// A stalled payload loses its turn and the bytes received so far, but only if others wait. It
    /// then waits behind all of them, and may get a turn again at once if one is left.
    fn take_turns(&mut self, now: Instant) {
        let waits = |known: &Arriving| known.asked.is_none();
        if !self.arriving.values().any(waits) {
            return;
        }
        for known in self.arriving.values_mut().filter(|known| known.is_stalled(now)) {
            (known.asked, known.bytes, known.since) = (None, Vec::new(), now);
        }
        // A payload without a turn must not be requested, or more than the maximum would be
        // fetched.
        let arriving = &self.arriving;
        self.due.retain(|key| arriving.get(key).is_some_and(|known| !waits(known)));
        let under_way = self.arriving.values().filter(|known| !waits(known));
        let (mut turns, mut bytes) =
            under_way.fold((0, 0), |(turns, bytes), known| (turns + 1, bytes + known.length));
        let mut waiting: Vec<(Instant, PayloadKey, u64)> = Vec::new();
        for (key, known) in self.arriving.iter().filter(|(_, known)| waits(known)) {
            waiting.push((known.since, *key, known.length));
        }
        waiting.sort_unstable();
        for (_, key, length) in waiting {
            if turns == AT_A_TIME || (turns > 0 && bytes + length > BYTES_MAX) {
                break;
            }
            (turns, bytes) = (turns + 1, bytes + length);
            self.due.insert(key);
        }
    }
}
