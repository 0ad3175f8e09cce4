//! What configuration machines say to each other. Wire types; the Replicator frames them.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::configuration::{Ballot, Epoch, EpochId};
use crate::id::ReplicaId;

/// A removed member and how long this voter's promise to it still runs.
pub type Remaining = (ReplicaId, Duration);

/// What a voter had accepted before it sealed.
pub type AcceptedProposal = (Ballot, Arc<Epoch>);

/// One step of deciding the next configuration. `epoch` is always the one that it follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EpochMessage {
    /// Proposer → voters: how long do your leases of these still run? Grant them no more.
    #[serde(rename = "w")]
    Withhold {
        /// The installed configuration.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// Names the attempt.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// Members that are to go.
        #[serde(rename = "r")]
        removed: Vec<ReplicaId>,
    },
    /// The answer to `Withhold`: leases that still run. Who is not listed holds none.
    #[serde(rename = "h")]
    Withheld {
        /// As asked.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// As asked.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// Leases that still run here.
        #[serde(rename = "r")]
        remaining: Vec<Remaining>,
    },
    /// Proposer → voters: promise this ballot, ack no more, freeze what you hold.
    #[serde(rename = "s")]
    Seal {
        /// The installed configuration.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot to promise.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// What the proposer would have next, unless something was accepted before.
        #[serde(rename = "p")]
        proposal: Arc<Epoch>,
    },
    /// The voter has promised the ballot and is sealed.
    #[serde(rename = "z")]
    Sealed {
        /// As asked.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// As asked.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// What it accepted before, below that ballot.
        #[serde(rename = "a")]
        accepted: Option<AcceptedProposal>,
    },
    /// A Seal or Accept was refused.
    #[serde(rename = "n")]
    Refused {
        /// As asked.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// As asked.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// What stands against it.
        #[serde(rename = "w")]
        why: Refusal,
    },
    /// Proposer → voters of the proposal: merge the snapshots of a whole sealed quorum.
    #[serde(rename = "y")]
    Sync {
        /// The configuration that is sealed.
        #[serde(rename = "c")]
        base: Arc<Epoch>,
        /// Names the attempt.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// What is to come.
        #[serde(rename = "p")]
        proposal: Arc<Epoch>,
        /// Voters of `base` known to be sealed; at least a quorum.
        #[serde(rename = "z")]
        sealed: Vec<ReplicaId>,
    },
    /// The voter is synced for the configuration after `epoch`, whatever its ballot.
    #[serde(rename = "k")]
    Synced {
        /// The configuration that is sealed.
        #[serde(rename = "e")]
        epoch: EpochId,
    },
    /// Proposer → a member believed dead: are you? Also sent to every voter, in the name of a ballot of
    /// number 0, by a member that heard of a newer configuration from a node that it does not trust.
    #[serde(rename = "i")]
    Ping {
        /// The installed configuration.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// Names the attempt.
        #[serde(rename = "b")]
        ballot: Ballot,
    },
    /// Not dead.
    #[serde(rename = "o")]
    Pong {
        /// As asked.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// As asked.
        #[serde(rename = "b")]
        ballot: Ballot,
    },
    /// Proposer → voters: accept this. Implies Seal.
    #[serde(rename = "a")]
    Accept {
        /// The installed configuration.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// The ballot it is proposed in.
        #[serde(rename = "b")]
        ballot: Ballot,
        /// The only proposal of this ballot.
        #[serde(rename = "p")]
        proposal: Arc<Epoch>,
    },
    /// Accepted. A quorum of these decides.
    #[serde(rename = "d")]
    Accepted {
        /// As asked.
        #[serde(rename = "e")]
        epoch: EpochId,
        /// As asked.
        #[serde(rename = "b")]
        ballot: Ballot,
    },
    /// This one is decided: install it unless yours is newer.
    #[serde(rename = "c")]
    Install {
        /// A decided configuration.
        #[serde(rename = "c")]
        epoch: Arc<Epoch>,
    },
    /// What is newer than this?
    #[serde(rename = "q")]
    Ask {
        /// What is installed here.
        #[serde(rename = "e")]
        installed: Option<EpochId>,
    },
}

/// Why a voter refuses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// It has promised a higher ballot.
    #[serde(rename = "p")]
    Promised(Ballot),
    /// It holds unexpired leases of members that the proposal removes.
    #[serde(rename = "l")]
    Leased(Vec<Remaining>),
}
