//! The hosting lease: a node begins a message only while a quorum has promised, a short while
//! ago, to consent to no configuration without it (spec/safety.md §4).
//!
//! Three pure parts. [`Holder`] beats to all voters and knows until when this node may serve.
//! [`Grantor`] promises, and answers the configuration machine's question how long its promises
//! still run. [`Departures`] says from when on what ran on a removed node counts as stopped.
//! Knows no shard, no singleton, no gossip, no socket; only clock *rates* within ρ are assumed.
//!
//! # Why nothing runs twice
//! A lease is counted from the sending of the heartbeats, a promise from their receipt, and it is
//! longer by the drift of both clocks: a lease is over before any of its promises is. A decision
//! needs a sealed quorum of the configuration, which meets the quorum of the lease in a voter
//! that seals only when its promise is over, and that grants nothing once it is sealed. Whoever
//! installs the next configuration waits T_q before it consents again: promises of earlier
//! configurations that it does not know are over by then.
//!
//! # What the parent owes
//! - The grantor lives beside the Replicator, in one task: a heartbeat is judged by what
//!   `Epochs::sealed` says in that very step, and a question is answered in the step in which it
//!   is asked. Else a grant could leave after the Seal's answer.
//! - Heartbeats of this node to itself go to its own grantor, like any other.
//! - Every heartbeat and grant tells the Replicator its sender's epoch (`PeerEpoch`): a holder in
//!   another configuration than its grantors gets no lease until one of them has caught up.
//! - The clock is `CLOCK_BOOTTIME` and is read before every message and every poll:
//!   [`Holder::serves`] compares, no timer sets a flag.

mod departures;
mod grantor;
pub mod guard;
mod holder;

use std::time::Duration;

use ostraca_ddata::replicator::epoch::{EpochId, LeaseSettings};
use serde::{Deserialize, Serialize};

pub use self::departures::{Departure, Departures};
pub use self::grantor::{Grantor, GrantorStats};
pub use self::holder::{Holder, HolderInput, HolderOutput, HolderStats};

/// A million: rates of clocks are given in parts of it.
const MILLION: u128 = 1_000_000;

/// What nodes say to each other about leases. The transport names the sender's incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LeaseMessage {
    /// Holder → voters: I am here.
    #[serde(rename = "b")]
    Beat(Beat),
    /// Grantor → holder: for T_q from now on I consent to no configuration without you.
    #[serde(rename = "g")]
    Granted(Beat),
    /// Holder → voters: I serve no more, and this was the number of my last heartbeat.
    #[serde(rename = "r")]
    Release {
        /// No heartbeat of this sender up to this number grants anything.
        #[serde(rename = "n")]
        number: u64,
    },
}

/// A heartbeat, or which heartbeat an answer is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Beat {
    /// The configuration installed at the holder; a grantor in another one grants nothing.
    #[serde(rename = "e")]
    pub epoch: EpochId,
    /// Counts the holder's heartbeats.
    #[serde(rename = "n")]
    pub number: u64,
}

/// What may differ between nodes; all else stands in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Time between two heartbeats. A lease survives ⌊T_p / interval⌋ − 1 lost ones.
    pub heartbeat_interval: Duration,
    /// A lapse only pauses what runs here; one that lasts this long stops it.
    pub stop_after: Duration,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self { heartbeat_interval: Duration::from_secs(1), stop_after: Duration::from_secs(10) }
    }
}

/// T_p: how long a lease runs on its holder's clock, from the sending of its heartbeats.
///
/// `T_q · (1 − ρ) / (1 + ρ)`, rounded down; zero for a drift of 100 % or more.
#[must_use]
pub fn holding_time(settings: &LeaseSettings) -> Duration {
    let drift = u128::from(settings.drift_ppm).min(MILLION);
    let nanos = settings.duration.as_nanos() * (MILLION - drift) / (MILLION + drift);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_shorter_than_its_promises_by_the_drift_of_both_clocks() {
        let settings = LeaseSettings::default();
        let held = holding_time(&settings).as_secs_f64();
        assert!((held - 5.0 * 0.99 / 1.01).abs() < 1e-6, "{held}");
        // The slowest holder's lease, in true time, ends with the fastest grantor's promise.
        assert!(held / 0.99 <= 5.0 / 1.01 + 1e-9);
        let wild = LeaseSettings { drift_ppm: 2_000_000, ..settings };
        assert_eq!(holding_time(&wild), Duration::ZERO);
    }

    #[test]
    fn messages_survive_the_wire_and_a_newer_sender() {
        let epoch = EpochId { generation: 7, number: 3 };
        let messages = [
            (LeaseMessage::Beat(Beat { epoch, number: 9 }), "81a16282a16582a16707a16e03a16e09"),
            (LeaseMessage::Granted(Beat { epoch, number: 9 }), "81a16782a16582a16707a16e03a16e09"),
            (LeaseMessage::Release { number: 9 }, "81a17281a16e09"),
        ];
        for (message, golden) in messages {
            let bytes = rmp_serde::to_vec_named(&message).expect("plain data");
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden);
            assert_eq!(rmp_serde::from_slice::<LeaseMessage>(&bytes).ok(), Some(message));
        }
        // A `Release` with one more field, `x`.
        let newer = [0x81, 0xa1, 0x72, 0x82, 0xa1, 0x6e, 0x09, 0xa1, 0x78, 0x01];
        let decoded = rmp_serde::from_slice::<LeaseMessage>(&newer).ok();
        assert_eq!(decoded, Some(LeaseMessage::Release { number: 9 }));
    }
}
