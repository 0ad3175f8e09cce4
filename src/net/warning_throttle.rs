//! Log throttle. Warnings of one kind about one source are logged at most once a minute. Warnings
//! about failed dials of an address whose peer is not known (a seed) are logged after pauses that
//! grow from a minute to an hour.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time;

use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::clock::Instant;
use ostraca_ddata::log_throttle::{GrowingThrottle, SourceThrottle};

/// Maximum number of tracked pairs of a dialled address and a kind of warning. Further pairs share
/// one warning a minute for each kind.
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
    /// For IPv6 the callers give the first address of its /64 network.
    Address(IpAddr),
}

impl WarningSource {
    /// Group of the source. Each group has its own limits, so that strangers never silence a
    /// warning about a known peer.
    const fn group(self) -> u8 {
        match self {
            Self::Unnamed => 0,
            Self::Known(_) => 1,
            Self::Stranger(_) => 2,
            Self::Address(_) => 3,
        }
    }
}

/// A peer of which only the id is known counts as a stranger; `None` is the unnamed source.
impl From<Option<PeerId>> for WarningSource {
    fn from(peer: Option<PeerId>) -> Self {
        peer.map_or(Self::Unnamed, Self::Stranger)
    }
}

/// Times of the recently logged warnings. Metrics count every case; only the log is throttled.
#[derive(Debug)]
pub struct WarningThrottle {
    started: time::Instant,
    /// By kind of warning, each in this crate's code, and group of the source.
    sources: SourceThrottle<(&'static str, u8), WarningSource>,
    /// By address and kind. A node dials its absent seeds for ever: with a warning a minute, a seed
    /// that never returns would fill the log.
    dials: BTreeMap<(Multiaddr, &'static str), GrowingThrottle>, // ≤ ADDRESSES_MAX
}

impl Default for WarningThrottle {
    fn default() -> Self {
        let (sources, dials) = (SourceThrottle::default(), BTreeMap::new());
        Self { started: time::Instant::now(), sources, dials }
    }
}

impl WarningThrottle {
    fn since_start(&self, now: time::Instant) -> Instant {
        Instant::default() + now.saturating_duration_since(self.started)
    }

    /// Returns whether to log this kind of warning about that source now, and if so, records it. A
    /// warning that is not logged does not extend the pause. Once 64 sources of one variant of
    /// [`WarningSource`] were logged with this kind within a minute, all further ones of the
    /// variant and kind share one warning a minute. A source logged in that share is not tracked by
    /// itself, so it may be logged again as soon as one of the 64 has expired.
    pub fn due(
        &mut self,
        now: time::Instant,
        source: impl Into<WarningSource>,
        kind: &'static str,
    ) -> bool {
        let (now, source) = (self.since_start(now), source.into());
        self.sources.permit(now, (kind, source.group()), source)
    }

    /// Returns whether to log this kind of warning about a failed dial now, and if so, records it.
    /// The peer at the address is not known. Addresses are compared as they are written. At the
    /// limit of 256 pairs of address and kind, a new pair first removes all those whose pause has
    /// passed, so that their pauses grow from a minute again; if none has, the new pair shares one
    /// warning a minute with all further ones of its kind ([`due`](Self::due) for the unnamed
    /// source).
    pub fn dial_due(
        &mut self,
        now: time::Instant,
        address: &Multiaddr,
        kind: &'static str,
    ) -> bool {
        let (at, key) = (self.since_start(now), (address.clone(), kind));
        if let Some(dial) = self.dials.get_mut(&key) {
            return dial.permit(at);
        }
        if self.dials.len() >= ADDRESSES_MAX {
            self.dials.retain(|_, dial| dial.is_pausing(at));
        }
        if self.dials.len() >= ADDRESSES_MAX {
            return self.due(now, None, kind); // only these addresses share `Unnamed` of this kind
        }
        self.dials.insert(key, GrowingThrottle::with_first(at));
        true
    }

    /// Forgets the failures of all kinds at this address, because a peer answers there: its next
    /// failure is logged immediately, unless the limit of addresses is reached again by then. Does
    /// not end the minute of the shared warning.
    pub fn dial_answered(&mut self, address: &Multiaddr) {
        self.dials.retain(|(at, _), _| at != address);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ostraca_ddata::log_throttle::{PAUSE, SOURCES_MAX};

    use super::{ADDRESSES_MAX, IpAddr, Multiaddr, PeerId, WarningSource, WarningThrottle};

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
        assert_eq!(logged.count(), SOURCES_MAX + 1);
        assert!(warning_throttle.due(start, None, "secret"), "one without a name");
        assert!(warning_throttle.due(start, stranger(), "cluster"), "another kind");
        assert!(warning_throttle.due(start + PAUSE, stranger(), "secret"), "a minute later");
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
