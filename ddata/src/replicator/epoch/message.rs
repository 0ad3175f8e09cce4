//! Messages between configuration machines, as they are encoded; the Replicator frames them
//! (docs/protocol/configurations.md#messages). All messages of one ballot are idempotent, and the
//! proposer repeats them until they are answered.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::configuration::{Ballot, Epoch, EpochId};
use crate::id::ReplicaId;

/// A removed member, and for how long this voter's lease promise to it still runs.
pub type Remaining = (ReplicaId, Duration);

/// A proposal that a voter accepted, with its ballot.
pub type AcceptedProposal = (Ballot, Arc<Epoch>);

/// A message of the decision of the next configuration. Except in `Install` and `Ask`, the
/// configuration named first is the one that the proposal follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EpochMessage {
    /// Proposer → voters: how long do your lease promises to these members run? Grant them none
    /// from now on. A voter answers whatever ballot it has promised.
    #[serde(rename = "w")]
    Withhold {
        /// The id of the configuration that the proposal follows.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot of the attempt.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// Members that the proposal removes.
        #[serde(rename = "r")]
        removed: Vec<ReplicaId>,
    },
    /// Answer to `Withhold`: the lease promises that still run. A member that is not listed has
    /// none.
    #[serde(rename = "h")]
    Withheld {
        /// The configuration named in the question.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot of the question.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// Lease promises that still run here.
        #[serde(rename = "r")]
        remaining: Vec<Remaining>,
    },
    /// Proposer → voters: promise this ballot, stop acknowledging, freeze a snapshot.
    #[serde(rename = "s")]
    Seal {
        /// The id of the configuration that the proposal follows.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot to promise.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// The proposer's own proposal. An accepted one takes precedence.
        #[serde(rename = "p")]
        proposal: Arc<Epoch>,
    },
    /// The voter has promised the ballot and is sealed. Sent again for each repeated `Seal`.
    #[serde(rename = "z")]
    Sealed {
        /// The configuration named in the question.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot of the question.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// The proposal that the voter accepted last, with its ballot; `None` if it has accepted
        /// none. The ballot is lower than that of the question, except in the answer to a late
        /// duplicate of `Seal`.
        #[serde(rename = "a")]
        accepted: Option<AcceptedProposal>,
    },
    /// Answer of a voter that refuses a `Seal` or an `Accept`; `Leased` only answers a `Seal`.
    #[serde(rename = "n")]
    Refused {
        /// The configuration named in the question.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot of the question.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// The reason of the refusal.
        #[serde(rename = "w")]
        why: BallotRefusal,
    },
    /// Proposer → voters of the proposal: merge the snapshots of a sealed quorum.
    #[serde(rename = "y")]
    Sync {
        /// The configuration that is sealed.
        #[serde(rename = "c")]
        base: Arc<Epoch>,
        /// The ballot of the attempt.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// The configuration to sync for.
        #[serde(rename = "p")]
        proposal: Arc<Epoch>,
        /// Voters of `base` known to be sealed; at least a quorum.
        #[serde(rename = "z")]
        sealed: Vec<ReplicaId>,
    },
    /// The voter is ready for the configuration after `epoch`, in whatever ballot.
    #[serde(rename = "k")]
    Synced {
        /// The configuration that is sealed.
        #[serde(rename = "e")]
        epoch: EpochId,
    },
    /// Proposer → a member believed dead: do you answer? A member also sends it to every voter,
    /// with ballot number 0, when an untrusted node has named a newer configuration
    /// (docs/protocol/configurations.md#hints).
    #[serde(rename = "i")]
    Ping {
        /// The id of the configuration installed at the sender.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot of the attempt; its number is 0 in a hint probe, and no attempt has that
        /// number.
        #[serde(rename = "b")]
        ballot: Ballot,
    },
    /// A live node's answer to `Ping`.
    #[serde(rename = "o")]
    Pong {
        /// The configuration named in the question.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot of the question.
        #[serde(rename = "b")]
        ballot: Ballot,
    },
    /// Proposer → voters: accept this proposal. A voter that is not sealed seals.
    #[serde(rename = "a")]
    Accept {
        /// The id of the configuration that the proposal follows.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot it is proposed in.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// The only proposal of this ballot.
        #[serde(rename = "p")]
        proposal: Arc<Epoch>,
    },
    /// The voter has accepted. A quorum of these decides.
    #[serde(rename = "d")]
    Accepted {
        /// The configuration named in the question.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot of the question.
        #[serde(rename = "b")]
        ballot: Ballot,
    },
    /// A decided configuration: install it if it is newer than yours.
    #[serde(rename = "c")]
    Install {
        /// The decided configuration, as a whole.
        #[serde(rename = "c")]
        epoch: Arc<Epoch>,
    },
    /// Asks for a newer configuration than this one. Only a node that has a newer one answers; one
    /// that is behind asks back.
    #[serde(rename = "q")]
    Ask {
        /// The id of the configuration installed at the sender; `None` before the first.
        #[serde(rename = "e")]
        installed: Option<EpochId>,
    },
}

/// The reason of a refusal, by the voter that refuses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BallotRefusal {
    /// It has promised this higher ballot.
    #[serde(rename = "p")]
    Promised(Ballot),
    /// Its lease promises to members that the proposal removes still run, for these times.
    #[serde(rename = "l")]
    Leased(Vec<Remaining>),
}
