//! Half-closed streams without a user: closed and dropped locally while the peer's half is open
//! (docs/protocol/transport.md#abandoned-streams-are-reset).

use std::collections::VecDeque;

/// Maximum number of half-closed streams remembered per connection. Beyond it, the oldest is reset.
pub(super) const HALF_CLOSED_MAX: usize = 256;

/// Ids of half-closed streams whose user is gone, the oldest first.
///
/// Nobody reads the data of such a stream, and nobody gives the peer credit for it: a peer that
/// writes would wait forever once its window is used up. The first data on the stream is therefore
/// answered with RST. An id is removed when RST is sent or the peer ends its half. Otherwise a
/// stream could be reset twice, or after both ends had closed it.
#[derive(Debug, Default)]
pub(super) struct HalfClosed(VecDeque<u32>); // ≤ HALF_CLOSED_MAX

impl HalfClosed {
    /// Remembers a stream; `id` must not be in the table, which is not checked. If the table was
    /// full, removes and returns the oldest stream. The caller must reset that stream now, because
    /// later data on it could no longer be recognized.
    pub(super) fn insert(&mut self, id: u32) -> Option<u32> {
        let evicted = if self.0.len() == HALF_CLOSED_MAX { self.0.pop_front() } else { None };
        self.0.push_back(id);
        evicted
    }

    /// Forgets a stream. Returns whether it was in the table.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        let at = self.0.iter().position(|&known| known == id);
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_table_returns_oldest_stream() {
        let mut streams = HalfClosed::default();
        for id in 0..HALF_CLOSED_MAX as u32 {
            assert_eq!(streams.insert(id), None);
        }
        assert_eq!(streams.insert(1_000), Some(0));
        assert!(!streams.remove(0));
        assert!(streams.remove(1_000) && !streams.remove(1_000));
    }
}
