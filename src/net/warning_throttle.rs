//! Log throttle. Warnings of one kind about one source are logged at most once a minute. Warnings
//! about failed dials of an address whose peer is not known (a seed) are logged after pauses that
//! grow from a minute to an hour.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use libp2p::{Multiaddr, PeerId};

/// Minimum time between two logged warnings of one kind about one source; between the first two
/// about dials of one address as well.
const PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of sources tracked one by one within a minute, for each pair of a kind of warning
/// and a kind of source. All further sources of the pair share one warning a minute: a stranger can
/// use as many peer ids as it likes, and must neither fill the log nor silence it. Because pairs
/// are counted separately, strangers never silence a warning about a known peer, or one of another
/// kind.
const TRACKED_MAX: usize = 64;

/// Maximum pause between two warnings about dials of one address. A node dials its absent seeds for
/// ever: with a warning a minute, a seed that never returns would fill the log.
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// Maximum number of tracked pairs of a dialled address and a kind of warning. Further addresses
/// share one warning a minute for each kind.
const ADDRESSES_MAX: usize = 256;

/// Subject of a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WarningSource {
    /// All peers of which neither id nor address is known.
    Unnamed,
    /// An admitted peer, or one to which this node keeps a link.
    Known(PeerId),
    /// Any other peer, whose id may be invented.
    Stranger(PeerId),
    /// The host from which a peer connected whose id is not known, because its handshake failed.
    Address(IpAddr),
}

impl WarningSource {
    const COUNT: usize = 4;

    /// Group of the source, as its index in [`KindTimes::further`]. Each group has its own limits.
    const fn group(self) -> usize {
        match self {
            Self::Unnamed => 0,
            Self::Known(_) => 1,
            Self::Stranger(_) => 2,
            Self::Address(_) => 3,
        }
    }
}

/// A peer of which only the id is known counts as a stranger.
impl From<Option<PeerId>> for WarningSource {
    fn from(peer: Option<PeerId>) -> Self {
        peer.map_or(Self::Unnamed, Self::Stranger)
    }
}

/// Times of the recently logged warnings. Metrics count every case; only the log is throttled.
#[derive(Debug, Default)]
pub struct WarningThrottle {
    kinds: BTreeMap<&'static str, KindTimes>, // ≤ kinds in this crate's code
    dials: BTreeMap<(Multiaddr, &'static str), DialTimes>, // ≤ ADDRESSES_MAX
}

#[derive(Debug, Default)]
struct KindTimes {
    tracked: BTreeMap<WarningSource, Instant>, // ≤ TRACKED_MAX of each kind of source
    /// Last warning that all untracked sources share, for each kind of source.
    further: [Option<Instant>; WarningSource::COUNT],
}

#[derive(Debug)]
struct DialTimes {
    last: Instant,
    /// Number of logged warnings since the address was first tracked or last answered.
    count: u32,
}

impl DialTimes {
    /// Whether the pause after the last logged warning continues. The pause doubles with each
    /// logged warning, from [`PAUSE`] to [`DIAL_PAUSE_MAX`].
    fn is_pausing(&self, now: Instant) -> bool {
        let doublings = self.count.saturating_sub(1).min(16); // the maximum is reached after 6
        now.duration_since(self.last) < (PAUSE * (1 << doublings)).min(DIAL_PAUSE_MAX)
    }
}

impl WarningThrottle {
    /// Returns whether to log this kind of warning about that source now, and if so, records it. A
    /// warning that is not logged does not extend the pause. Once 64 sources of one variant of
    /// [`WarningSource`] were logged within a minute, all further ones of the variant share one
    /// warning a minute.
    pub fn due(
        &mut self,
        now: Instant,
        source: impl Into<WarningSource>,
        kind: &'static str,
    ) -> bool {
        let is_recent = |last: &Instant| now.duration_since(*last) < PAUSE;
        let source = source.into();
        let KindTimes { tracked, further } = self.kinds.entry(kind).or_default();
        if tracked.get(&source).is_some_and(is_recent) {
            return false;
        }
        tracked.retain(|_, last| is_recent(last));
        if tracked.keys().filter(|other| other.group() == source.group()).count() < TRACKED_MAX {
            tracked.insert(source, now);
            return true;
        }
        let shared = &mut further[source.group()];
        let is_due = !shared.as_ref().is_some_and(is_recent);
        if is_due {
            *shared = Some(now);
        }
        is_due
    }

    /// Returns whether to log this kind of warning about a failed dial now, and if so, records it.
    /// The peer at the address is not known. At the limit of 256 addresses those whose pause has
    /// passed are forgotten, so that their pauses grow from a minute again; if none has, the
    /// address shares one warning a minute with all further ones.
    pub fn dial_due(&mut self, now: Instant, address: &Multiaddr, kind: &'static str) -> bool {
        let key = (address.clone(), kind);
        if let Some(times) = self.dials.get_mut(&key) {
            let is_due = !times.is_pausing(now);
            if is_due {
                *times = DialTimes { last: now, count: times.count.saturating_add(1) };
            }
            return is_due;
        }
        if self.dials.len() >= ADDRESSES_MAX {
            self.dials.retain(|_, times| times.is_pausing(now));
        }
        if self.dials.len() >= ADDRESSES_MAX {
            return self.due(now, None, kind); // only these addresses share `Unnamed` of this kind
        }
        self.dials.insert(key, DialTimes { last: now, count: 1 });
        true
    }

    /// Forgets the failures of all kinds at this address, because a peer answers there: the next
    /// failure is logged at once.
    pub fn dial_answered(&mut self, address: &Multiaddr) {
        self.dials.retain(|(at, _), _| at != address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_a_minute_per_peer_and_kind() {
        let mut warning_throttle = WarningThrottle::default();
        let (start, peer) = (Instant::now(), Some(PeerId::random()));
        assert!(warning_throttle.due(start, peer, "secret"));
        assert!(!warning_throttle.due(start + PAUSE / 2, peer, "secret"));
        assert!(warning_throttle.due(start + PAUSE / 2, peer, "cluster"));
        assert!(warning_throttle.due(start + PAUSE / 2, None, "secret"));
        assert!(warning_throttle.due(start + PAUSE, peer, "secret"));
    }

    #[test]
    fn many_peer_ids_neither_fill_nor_silence_the_log() {
        let mut warning_throttle = WarningThrottle::default();
        let start = Instant::now();
        let stranger = || Some(PeerId::random());
        let logged = (0..10_000).filter(|_| warning_throttle.due(start, stranger(), "secret"));
        assert_eq!(logged.count(), TRACKED_MAX + 1);
        assert!(warning_throttle.due(start, None, "secret"), "one without a name");
        assert!(warning_throttle.due(start, stranger(), "cluster"), "another kind");
        assert!(warning_throttle.due(start + PAUSE, stranger(), "secret"), "a minute later");
        assert!(warning_throttle.kinds["secret"].tracked.len() <= TRACKED_MAX);
    }

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address")
    }

    #[test]
    fn dead_address_is_logged_at_growing_intervals() {
        let (mut warning_throttle, start) = (WarningThrottle::default(), Instant::now());
        let (dead, other) = (address(1), address(2));
        let at = |second: u64| start + Duration::from_secs(second);
        let due = |second: &u64| warning_throttle.dial_due(at(*second), &dead, "closed");
        let logged: Vec<u64> = (0..4 * 3_600).step_by(5).filter(due).collect();
        assert_eq!(logged, [0, 60, 180, 420, 900, 1_860, 3_780, 7_380, 10_980]);
        let now = at(4 * 3_600);
        assert!(!warning_throttle.dial_due(now, &dead, "closed"));
        assert!(warning_throttle.dial_due(now, &other, "closed"), "another address");
        assert!(warning_throttle.dial_due(now, &dead, "secret"), "another kind");
        warning_throttle.dial_answered(&dead);
        assert!(warning_throttle.dial_due(now, &dead, "closed"), "it had answered");
        assert!(!warning_throttle.dial_due(now, &other, "closed"), "this one had not");
    }

    #[test]
    fn many_addresses_neither_fill_nor_silence_the_log() {
        let (mut warning_throttle, start) = (WarningThrottle::default(), Instant::now());
        let logged =
            (1..10_000).filter(|port| warning_throttle.dial_due(start, &address(*port), "closed"));
        assert_eq!(logged.count(), ADDRESSES_MAX + 1);
        assert!(warning_throttle.dials.len() <= ADDRESSES_MAX);
        assert!(
            warning_throttle.dial_due(start + PAUSE, &address(10_000), "closed"),
            "a minute later"
        );
    }

    #[test]
    fn strangers_silence_no_warning_about_others() {
        let mut warning_throttle = WarningThrottle::default();
        let start = Instant::now();
        let address = |last| WarningSource::Address(IpAddr::from([10, 0, 0, last]));
        for _ in 0..1_000 {
            warning_throttle.due(start, Some(PeerId::random()), "handshake");
        }
        assert!(!warning_throttle.due(start, Some(PeerId::random()), "handshake"));
        assert!(warning_throttle.due(start, WarningSource::Known(PeerId::random()), "handshake"));
        assert!(warning_throttle.due(start, address(1), "handshake"));
        assert!(!warning_throttle.due(start, address(1), "handshake"));
        assert!(warning_throttle.due(start, address(2), "handshake"), "another host");
    }
}
