//! Serde helpers for settings of `[net]` whose text form differs from their type: arrays that are
//! written as tables with names, and values that are written as text. Limits and ranges of the
//! values are checked elsewhere, with the whole configuration.

use libp2p::PeerId;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};
use zeroize::Zeroizing;

use super::{Secret, Secrets};

/// `lane-bytes-max = { control = .., data = .., user = .., bulk = .. }`. Missing entries have their
/// defaults, unknown ones are an error. The array is in the order of the traffic classes.
pub(super) mod lane_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::super::NetLimits;

    /// The table in the configuration, in bytes.
    #[derive(Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct LaneBytes {
        control: usize,
        data: usize,
        user: usize,
        bulk: usize,
    }

    impl From<[usize; 4]> for LaneBytes {
        fn from([control, data, user, bulk]: [usize; 4]) -> Self {
            Self { control, data, user, bulk }
        }
    }

    impl Default for LaneBytes {
        fn default() -> Self {
            NetLimits::default().lane_bytes_max.into()
        }
    }

    pub(in super::super) fn serialize<S: Serializer>(
        bytes: &[usize; 4],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        LaneBytes::from(*bytes).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<[usize; 4], D::Error> {
        let LaneBytes { control, data, user, bulk } = LaneBytes::deserialize(from)?;
        Ok([control, data, user, bulk])
    }
}

/// `back-off = { min = "50ms", max = "5s" }`. Missing entries have their defaults, unknown ones are
/// an error.
pub(super) mod back_off {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::super::NetLimits;

    /// The table in the configuration: first and longest pause.
    #[derive(Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct BackOff {
        #[serde(with = "humantime_serde")]
        min: Duration,
        #[serde(with = "humantime_serde")]
        max: Duration,
    }

    impl Default for BackOff {
        fn default() -> Self {
            let (min, max) = NetLimits::default().back_off;
            Self { min, max }
        }
    }

    pub(in super::super) fn serialize<S: Serializer>(
        &(min, max): &(Duration, Duration),
        to: S,
    ) -> Result<S::Ok, S::Error> {
        BackOff { min, max }.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<(Duration, Duration), D::Error> {
        let BackOff { min, max } = BackOff::deserialize(from)?;
        Ok((min, max))
    }
}

/// Reads a secret of the cluster from a text, without white space around it; the decoded text is
/// wiped from memory. `None` only if the format has a null; an empty text is too short. Fails if
/// the secret is too short, and then tells only its length.
pub(super) fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Secrets>, D::Error> {
    let text = Option::<String>::deserialize(from)?.map(Zeroizing::new);
    let secret = text.map(|text| Secret::new(text.trim()).map_err(D::Error::custom)).transpose()?;
    Ok(secret.map(Secrets::from))
}

/// Writes peer ids as a list of texts, in their order.
pub(super) fn write_peers<S: Serializer>(peers: &[PeerId], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(peers.iter().map(PeerId::to_string))
}

/// One entry of `allowed-peers`. Entries are parsed one by one, so that an error names the wrong
/// one.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct PeerEntry(PeerId);

impl TryFrom<String> for PeerEntry {
    type Error = String;

    /// Parses a peer id; the error shows the text.
    fn try_from(text: String) -> Result<Self, String> {
        let refused = |why| format!("`{text}` is no peer id, such as 12D3KooW…: {why}");
        text.parse().map(Self).map_err(refused)
    }
}

/// Reads a list of peer ids. The first text that is none fails the whole list; duplicates are kept.
pub(super) fn read_peers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PeerId>, D::Error> {
    let peers = Vec::<PeerEntry>::deserialize(from)?;
    Ok(peers.into_iter().map(|peer| peer.0).collect())
}
