//! Fragmentation and reassembly of messages longer than a frame.
//!
//! Rule "Long messages are cut and bounded"
//! (docs/protocol/replication.md#long-messages-are-cut-and-bounded): such a message is encoded and
//! cut into pieces, which may arrive in any order; without that, state larger than a frame would
//! never reach a peer. Incomplete messages are bounded in bytes over all peers and in number per
//! peer. Beyond a bound the oldest is dropped, and its sender sends it again.
//!
//! A duplicate piece that arrives after its message was complete opens an incomplete message. It
//! stays until a bound or the removal of the peer drops it, and then counts as dropped.

use std::collections::BTreeMap;

use super::wire::{Body, ReplicatorMessage, SharedBytes};
use crate::clock::Instant;
use crate::id::ReplicaId;

/// Maximum number of incomplete messages of one peer. Beyond, that peer's oldest is dropped.
const PER_PEER_MAX: usize = 8;

/// Overhead counted per stored piece, in bytes, so that many tiny pieces are bounded as well.
const PIECE_BYTES: usize = 128;

/// The incomplete messages of all peers, and the counter that numbers this replica's own transfers.
#[derive(Clone, Debug, Default)]
pub(super) struct Reassembly {
    next: u64,
    open: BTreeMap<(ReplicaId, u64), Assembly>, // ≤ PER_PEER_MAX per peer, ≤ the budget in bytes
    bytes: usize,
    dropped: u64,
}

/// The pieces of one message that have arrived, by offset.
#[derive(Clone, Debug)]
struct Assembly {
    total: usize,
    pieces: BTreeMap<usize, SharedBytes>,
    /// Bytes of the pieces that have arrived.
    have: usize,
    /// Arrival of the first piece.
    since: Instant,
}

impl Assembly {
    /// The bytes that count against the budget.
    fn cost(&self) -> usize {
        self.have + self.pieces.len() * PIECE_BYTES
    }
}

impl Reassembly {
    /// Cuts an encoded message into pieces of at most `frame` bytes, in order, all under a new
    /// transfer number. No bytes give no pieces. The caller has checked the length against
    /// `assembly_bytes_max`.
    ///
    /// # Panics
    /// If `frame` is 0, or the message is 4 GiB or longer.
    pub(super) fn cut(&mut self, encoded: &[u8], frame: usize) -> Vec<Body> {
        self.next += 1;
        let transfer = self.next;
        let total = u32::try_from(encoded.len()).expect("values are limited far below 4 GiB");
        let piece = |(at, bytes): (usize, &[u8])| Body::Part {
            transfer,
            total,
            offset: u32::try_from(at * frame).expect("an offset lies within the total"),
            bytes: bytes.into(),
        };
        encoded.chunks(frame).enumerate().map(piece).collect()
    }

    /// Number of drops so far: an incomplete message counts once, however many pieces of it had
    /// arrived, and so does a single refused piece.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Stores a piece and returns the whole message once its last piece has arrived. `None` means
    /// that pieces are missing, or that something was dropped and counted: this piece, if it is
    /// empty or exceeds the announced length; the message with this piece, if an earlier piece
    /// announced another length, the pieces overlap or the whole does not decode. A piece at an
    /// offset that has arrived already is ignored, even if it differs, and not counted. A late
    /// duplicate of a completed message begins it anew.
    ///
    /// `budget` is in bytes: the longest message, and the bound on all incomplete messages with
    /// [`PIECE_BYTES`] of overhead per piece. Above it the oldest incomplete messages of all peers
    /// are dropped (perhaps this one), above [`PER_PEER_MAX`] the peer's oldest. A single message
    /// may take twice the budget because of that overhead; above that it is dropped as well.
    ///
    /// # Errors
    /// The announced length, if it exceeds the budget, whatever else is wrong. The piece is dropped
    /// and counted; earlier pieces of the transfer stay.
    pub(super) fn take(
        &mut self,
        now: Instant,
        from: ReplicaId,
        part: Piece,
        budget: usize,
    ) -> Result<Option<ReplicatorMessage>, usize> {
        let Piece { transfer, total, offset, bytes } = part;
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= total);
        if !fits || bytes.is_empty() || total > budget {
            self.dropped += 1;
            return if total > budget { Err(total) } else { Ok(None) };
        }
        let key = (from, transfer);
        if !self.open.contains_key(&key) {
            let open = self.open.range((from, 0)..=(from, u64::MAX)).count();
            if open >= PER_PEER_MAX {
                self.drop_oldest(Some(from));
            }
        }
        let fresh = Assembly { total, pieces: BTreeMap::new(), have: 0, since: now };
        let assembly = self.open.entry(key).or_insert(fresh);
        if assembly.total != total {
            self.drop(key);
            return Ok(None);
        }
        if let std::collections::btree_map::Entry::Vacant(vacant) = assembly.pieces.entry(offset) {
            assembly.have += bytes.len();
            self.bytes += bytes.len() + PIECE_BYTES;
            vacant.insert(bytes);
        }
        if assembly.have >= assembly.total {
            return Ok(self.complete(key));
        }
        while self.bytes > budget && (self.open.len() > 1 || self.bytes / 2 > budget) {
            self.drop_oldest(None);
        }
        Ok(None)
    }

    /// Removes a complete message, joins its pieces and decodes it. Returns `None`, and counts it
    /// as dropped, if the pieces overlap, the bytes do not decode, or the message is itself a
    /// piece.
    fn complete(&mut self, key: (ReplicaId, u64)) -> Option<ReplicatorMessage> {
        let assembly = self.open.remove(&key)?;
        self.bytes -= assembly.cost();
        let mut whole = Vec::with_capacity(assembly.have);
        for (offset, piece) in &assembly.pieces {
            if *offset != whole.len() {
                self.dropped += 1;
                return None; // the pieces overlap
            }
            whole.extend_from_slice(piece.as_slice());
        }
        let message =
            ReplicatorMessage::decode(&whole).ok().filter(|m| !matches!(m.body, Body::Part { .. }));
        self.dropped += u64::from(message.is_none());
        message
    }

    /// Drops the incomplete message whose first piece arrived earliest, of this peer or (`None`) of
    /// all.
    fn drop_oldest(&mut self, of: Option<ReplicaId>) {
        let candidates = self.open.iter().filter(|((peer, _), _)| of.is_none_or(|of| of == *peer));
        if let Some(key) = candidates.min_by_key(|(key, a)| (a.since, **key)).map(|(key, _)| *key) {
            self.drop(key);
        }
    }

    /// Drops an incomplete message and counts it; does nothing if there is none.
    fn drop(&mut self, key: (ReplicaId, u64)) {
        if let Some(assembly) = self.open.remove(&key) {
            self.bytes -= assembly.cost();
            self.dropped += 1;
        }
    }

    /// Drops the incomplete messages of a removed peer, and counts each.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        let keys: Vec<_> =
            self.open.range((peer, 0)..=(peer, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            self.drop(key);
        }
    }
}

/// One received piece: the fields of [`Body::Part`].
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) transfer: u64,
    pub(super) total: usize,
    pub(super) offset: usize,
    pub(super) bytes: SharedBytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(body: Body) -> Piece {
        let Body::Part { transfer, total, offset, bytes } = body else { panic!("a piece") };
        Piece { transfer, total: total as usize, offset: offset as usize, bytes }
    }

    fn long() -> ReplicatorMessage {
        let keys = (0..100).map(|n| (format!("key-{n}").as_str().into(), n)).collect();
        ReplicatorMessage { epoch: None, body: Body::Used(keys) }
    }

    const PEER: ReplicaId = ReplicaId::new(7);

    #[test]
    fn reordered_and_duplicate_pieces_make_the_message() {
        let mut parts = Reassembly::default();
        let mut pieces = parts.cut(&long().encode(), 100);
        pieces.reverse();
        let last = pieces.pop().unwrap();
        let mut whole = None;
        for body in pieces.iter().chain(&pieces).cloned().chain([last]) {
            let taken = parts.take(Instant::default(), PEER, piece(body), 1 << 20).unwrap();
            whole = whole.or(taken);
        }
        assert_eq!(whole, Some(long()));
        assert_eq!((parts.bytes, parts.open.len()), (0, 0));
    }

    #[test]
    fn incomplete_messages_are_bounded_and_dropped_oldest_first() {
        let mut parts = Reassembly::default();
        for transfer in 0..100 {
            let piece = Piece { transfer, total: 1_000, offset: 0, bytes: vec![0; 500].into() };
            let at = Instant::from_nanos(transfer);
            assert_eq!(parts.take(at, ReplicaId::new(transfer), piece, 4_000), Ok(None));
            assert!(parts.bytes <= 4_000);
        }
        assert_eq!(parts.dropped, 94); // each one kept costs 628 B
        let false_total = Piece { transfer: 1, total: 1 << 30, offset: 0, bytes: vec![0].into() };
        assert_eq!(parts.take(Instant::default(), PEER, false_total, 4_000), Err(1 << 30));
        assert_eq!(parts.dropped, 95);
    }

    #[test]
    fn message_longer_than_the_budget_is_refused() {
        let encoded = long().encode();
        let mut parts = Reassembly::default();
        for (budget, fits) in [(encoded.len(), true), (encoded.len() - 1, false)] {
            let pieces = parts.cut(&encoded, 400);
            let taken = pieces
                .into_iter()
                .map(|body| parts.take(Instant::default(), PEER, piece(body), budget));
            let last = taken.last().unwrap();
            assert_eq!(last, if fits { Ok(Some(long())) } else { Err(encoded.len()) });
        }
    }

    #[test]
    fn message_in_countless_tiny_pieces_is_dropped() {
        let mut parts = Reassembly::default();
        for offset in 0..4_000 {
            let piece = Piece { transfer: 1, total: 4_000, offset, bytes: vec![0].into() };
            let _ = parts.take(Instant::default(), PEER, piece, 4_000);
            assert!(parts.bytes <= 8_000 + 1);
        }
        assert!(parts.dropped > 0);
    }
}
