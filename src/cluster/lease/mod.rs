//! The hosting lease: a node begins a message only while a quorum of voters has recently promised
//! to consent to no configuration without it (docs/protocol/leases.md).
//!
//! The parts are pure. [`LeaseHolder`] sends heartbeats to all voters and knows until when this
//! node may serve. [`Grantor`] makes promises and answers how long they still run.
//! [`DepartedMembers`] tells from when on the entities of a removed node count as stopped. They
//! know nothing of shards, singletons, gossip or sockets, and assume only that the *rate* of every
//! clock is within ρ.
//!
//! # Why nothing runs twice
//! A lease counts from the sending of a heartbeat, a promise from its receipt, and the promise is
//! longer by the drift of both clocks. So a lease ends before any of its promises. A decision
//! without the holder needs a sealed quorum, which shares a voter with the quorum of the lease.
//! That voter seals only after its promise has ended, and grants nothing once it is sealed. A node
//! that installs the next configuration waits T_q before it consents again: by then, promises of
//! earlier configurations that it does not know have ended.
//!
//! # Obligations of the caller
//! - A heartbeat is judged by the value of `Epochs::sealed` that is published under the grantor's
//!   lock, and a question is answered under that lock in the step in which it is asked ([`guard`]).
//!   Otherwise a grant could be sent after the answer to a Seal.
//! - Heartbeats of this node to itself go to its own grantor.
//! - Every heartbeat of another configuration is reported to the Replicator (`PeerEpoch`): a holder
//!   in another configuration than its grantors gets no lease until one side has caught up.
//! - The clock is `CLOCK_BOOTTIME` and is read before every message and every poll:
//!   [`LeaseHolder::serves`] compares it with the end of the lease; no timer sets a flag.

mod departed_members;
mod grantor;
pub mod guard;
mod holder;

use std::time::Duration;

use ostraca_ddata::replicator::epoch::{EpochId, LeaseSettings};
use serde::{Deserialize, Serialize};

pub use self::departed_members::{DepartedMembers, Departure};
pub use self::grantor::{Grantor, GrantorStats};
pub use self::holder::{HolderInput, HolderOutput, HolderStats, LeaseHolder};

/// Clock rates are given in parts of a million.
const MILLION: u128 = 1_000_000;

/// Lease messages between nodes. The transport authenticates the sender's incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LeaseMessage {
    /// Holder → voters: heartbeat.
    #[serde(rename = "b")]
    Beat(Heartbeat),
    /// Grantor → holder: promise to consent, for T_q from the receipt of the heartbeat, to no
    /// configuration without the holder.
    #[serde(rename = "g")]
    Granted(Heartbeat),
    /// Holder → voters: the holder has stopped serving for ever.
    #[serde(rename = "r")]
    Release {
        /// Number of the holder's last heartbeat.
        #[serde(rename = "n")]
        number: u64,
    },
}

/// A heartbeat; in `Granted`, the heartbeat that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The configuration installed at the holder. A grantor in another configuration grants
    /// nothing.
    #[serde(rename = "e")]
    pub epoch: EpochId,
    /// Sequence number of the holder's heartbeats.
    #[serde(rename = "n")]
    pub number: u64,
}

/// Settings that may differ between nodes. All others are part of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Time between two heartbeats; default 1 s. A lease survives the loss of ⌊T_p / interval⌋ − 1
    /// consecutive heartbeats. Not checked here: with zero a heartbeat is due at every `Tick`.
    pub heartbeat_interval: Duration,
    /// How long a lapse only pauses the entities of this node; default 10 s. After this time,
    /// counted from the end of the lease, they are stopped. Zero stops them with the lapse.
    pub stop_after: Duration,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self { heartbeat_interval: Duration::from_secs(1), stop_after: Duration::from_secs(10) }
    }
}

/// T_p: duration of a lease on its holder's clock, from the sending of its heartbeats.
///
/// `T_q · (1 − ρ) / (1 + ρ)`, rounded down; zero for a drift of 100 % or more. Does not look at
/// `enabled`.
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
    fn lease_is_shorter_than_promise_by_both_drifts() {
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
            (
                LeaseMessage::Beat(Heartbeat { epoch, number: 9 }),
                "81a16282a16582a16707a16e03a16e09",
            ),
            (
                LeaseMessage::Granted(Heartbeat { epoch, number: 9 }),
                "81a16782a16582a16707a16e03a16e09",
            ),
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
