//! Payloads that don't fit one message: fetched from whoever released the shard, piece by piece.
//!
//! A payload is known by who keeps it and by the stay that left it: it never changes while it is
//! kept, and neither does its length. So pieces are taken in order, whichever repetition brings
//! them, and a whole payload makes the word that announced it what it would have been in one
//! message: a release, come late. The rules of spec/sharding.md §5 see nothing of this.
//!
//! Knows no clock but for whose turn it is, and of a shard only its number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ostraca_ddata::clock::Instant;

use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{Carries, Fetch, Part, Released};

/// Payloads that are fetched at a time; the others wait for their turn.
const AT_A_TIME: usize = 4;

/// Bytes of payloads that are fetched at a time, unless a single one has more.
const BYTES_MAX: u64 = 256 * 1_024 * 1_024;

/// The longest payload: a longer one is a faulty peer's claim.
const PAYLOAD_MAX: u64 = u32::MAX as u64;

/// A payload of which nothing came for so long makes room for those that wait.
const STALLED: Duration = Duration::from_secs(10);

/// How payloads are cut, in bytes. Pieces go down the lane of leases and decisions, which is kept
/// in order and limited: what stands there before a heartbeat, four windows from each of
/// its peers, is to be short beside a lease, and small beside what the lane keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Up to this length a payload travels with its release.
    pub whole: usize,
    /// The length of a piece, and of payloads that travel in one message together; at least 1.
    pub part: usize,
    /// What is fetched by one question; at least a piece.
    pub window: usize,
    /// The length of a message with words about many shards, as far as they can be divided.
    pub words: usize,
}

impl Default for Cut {
    fn default() -> Self {
        let words = 2 * 1_024 * 1_024;
        Self { whole: 32 * 1_024, part: 64 * 1_024, window: 256 * 1_024, words }
    }
}

impl Cut {
    /// For lanes that take messages up to this length.
    #[must_use]
    pub fn within(message_bytes_max: usize) -> Self {
        let Self { whole, part, window, words } = Self::default();
        let fits = (message_bytes_max / 2).max(1); // beside what describes it
        Self { whole: whole.min(fits), part: part.min(fits), window, words: words.min(fits) }
    }
}

/// Whose payload, of which shard.
type Key = (ShardId, RegionId);

/// What is on its way here.
#[derive(Clone, Debug, Default)]
pub(super) struct Intake {
    arriving: BTreeMap<Key, Arriving>, // ≤ shards × regions
    due: BTreeSet<Key>,                // to be asked for in this batch; ≤ arriving
}

#[derive(Clone, Debug)]
struct Arriving {
    reached: Generation,
    last: Generation,
    sealed: Generation,
    length: u64,        // 1 to PAYLOAD_MAX
    bytes: Vec<u8>,     // what has come, from the beginning; ≤ length
    asked: Option<u64>, // for what comes before; `None`: it waits for its turn
    since: Instant,     // the last piece, the turn that it got or lost, or the announcement
    moves: bool,        // something came since it was announced last
}

impl Arriving {
    fn is_stalled(&self, now: Instant) -> bool {
        self.asked.is_some() && now - self.since >= STALLED
    }
}

impl Intake {
    /// A region keeps a payload for this one; said again until that is confirmed. `false`: there
    /// can be none like it.
    pub(super) fn announced(&mut self, now: Instant, from: RegionId, word: Carries) -> bool {
        let Carries { shard, reached, last, length, sealed, .. } = word;
        if length == 0 || length > PAYLOAD_MAX {
            return false;
        }
        let key = (shard, from);
        let known = self.arriving.get_mut(&key).filter(|known| known.last >= last);
        match known {
            Some(known) if known.last == last && known.length == length => {
                known.reached = known.reached.max(reached);
                // Pieces, or the question, may be lost.
                if !std::mem::take(&mut known.moves) && known.asked.is_some() {
                    self.due.insert(key);
                }
            }
            Some(_) => {} // of an earlier stay
            None => {
                let (bytes, asked, since, moves) = (Vec::new(), None, now, false);
                let new = Arriving { reached, last, sealed, length, bytes, asked, since, moves };
                self.arriving.insert(key, new);
            }
        }
        true
    }

    /// A piece has come: the release, once it is whole.
    pub(super) fn took(&mut self, now: Instant, from: RegionId, part: &Part) -> Option<Released> {
        let key = (part.shard, from);
        let known = self.arriving.get_mut(&key)?;
        let is_next = known.last == part.last && known.bytes.len() as u64 == part.at;
        let room = known.length - known.bytes.len() as u64;
        if !is_next || part.bytes.is_empty() || part.bytes.len() as u64 > room {
            return None; // again, too early, or of another stay
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
        let (payload, cluster) = (Some(Bytes::from(bytes)), 0); // the announcement's was looked at
        Some(Released { shard: key.0, reached, last, payload, sealed, cluster })
    }

    /// Forgets what is of no use any more of a shard.
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

    /// A region has released the shard in one message: it keeps nothing of this stay any more.
    pub(super) fn superseded(&mut self, shard: ShardId, from: RegionId, last: Generation) {
        let key = (shard, from);
        if self.arriving.get(&key).is_some_and(|known| known.last <= last) {
            self.forget(&key);
        }
    }

    /// Whoever is not among these brings nothing any more.
    pub(super) fn keep_only(&mut self, members: &BTreeSet<RegionId>) {
        self.arriving.retain(|(_, from), _| members.contains(from));
        self.due.retain(|(_, from)| members.contains(from));
    }

    fn forget(&mut self, key: &Key) {
        self.arriving.remove(key);
        self.due.remove(key);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes that have come of payloads that are not whole yet.
    pub(super) fn bytes(&self) -> u64 {
        self.arriving.values().map(|known| known.bytes.len() as u64).sum()
    }

    /// Whom to ask for what now; each question is for a window.
    pub(super) fn take_due(&mut self, now: Instant, window: usize) -> Vec<(RegionId, Fetch)> {
        self.take_turns(now);
        let due = std::mem::take(&mut self.due);
        let ask = |key: Key| {
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

    /// Gives turns to those that wait, the longest first.
    fn take_turns(&mut self, now: Instant) {
        let waits = |known: &Arriving| known.asked.is_none();
        if !self.arriving.values().any(waits) {
            return;
        }
        for known in self.arriving.values_mut().filter(|known| known.is_stalled(now)) {
            (known.asked, known.bytes, known.since) = (None, Vec::new(), now);
        }
        let under_way = self.arriving.values().filter(|known| !waits(known));
        let (mut turns, mut bytes) =
            under_way.fold((0, 0), |(turns, bytes), known| (turns + 1, bytes + known.length));
        let mut waiting: Vec<(Instant, Key, u64)> = Vec::new();
        for (key, known) in self.arriving.iter().filter(|(_, known)| waits(known)) {
            waiting.push((known.since, *key, known.length));
        }
        waiting.sort_unstable();
        for (_, key, length) in waiting {
            if turns < AT_A_TIME && (turns == 0 || bytes + length <= BYTES_MAX) {
                (turns, bytes) = (turns + 1, bytes + length);
                self.due.insert(key);
            }
        }
    }
}
