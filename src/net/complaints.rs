//! Log throttle: at most one warning a minute per peer and kind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use libp2p::PeerId;

const EVERY: Duration = Duration::from_secs(60);

/// Maximum number of peers tracked by name within a minute, for each kind of warning. A stranger
/// can use as many peer ids as it likes: beyond this number all further ones share one warning a
/// minute, so that strangers can neither fill the log nor silence it. Kinds are tracked separately,
/// so that one never silences another.
const NAMES_MAX: usize = 64;

/// Times of the warnings of the last minute. Metrics count every case; only the log is throttled.
#[derive(Debug, Default)]
pub struct Complaints {
    kinds: BTreeMap<&'static str, KindTimes>, // ≤ kinds in the source
}

#[derive(Debug, Default)]
struct KindTimes {
    named: BTreeMap<PeerId, Instant>, // ≤ NAMES_MAX
    unnamed: Option<Instant>,
    further: Option<Instant>,
}

impl Complaints {
    /// Whether to log this kind of warning about that peer (`None`: its peer id is not known), and
    /// records it.
    pub fn due(&mut self, now: Instant, peer: Option<PeerId>, kind: &'static str) -> bool {
        let is_recent = |last: &Instant| now.duration_since(*last) < EVERY;
        let KindTimes { named, unnamed, further } = self.kinds.entry(kind).or_default();
        let shared = match peer {
            None => unnamed,
            Some(peer) => {
                if named.get(&peer).is_some_and(is_recent) {
                    return false;
                }
                named.retain(|_, last| is_recent(last));
                if named.len() < NAMES_MAX {
                    named.insert(peer, now);
                    return true;
                }
                further
            }
        };
        let is_due = !shared.as_ref().is_some_and(is_recent);
        if is_due {
            *shared = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_a_minute_per_peer_and_kind() {
        let mut complaints = Complaints::default();
        let (start, peer) = (Instant::now(), Some(PeerId::random()));
        assert!(complaints.due(start, peer, "secret"));
        assert!(!complaints.due(start + EVERY / 2, peer, "secret"));
        assert!(complaints.due(start + EVERY / 2, peer, "cluster"));
        assert!(complaints.due(start + EVERY / 2, None, "secret"));
        assert!(complaints.due(start + EVERY, peer, "secret"));
    }

    #[test]
    fn many_peer_ids_neither_fill_nor_silence_the_log() {
        let mut complaints = Complaints::default();
        let start = Instant::now();
        let stranger = || Some(PeerId::random());
        let logged = (0..10_000).filter(|_| complaints.due(start, stranger(), "secret"));
        assert_eq!(logged.count(), NAMES_MAX + 1);
        assert!(complaints.due(start, None, "secret"), "one without a name");
        assert!(complaints.due(start, stranger(), "cluster"), "another kind");
        assert!(complaints.due(start + EVERY, stranger(), "secret"), "a minute later");
        assert!(complaints.kinds["secret"].named.len() <= NAMES_MAX);
    }
}
