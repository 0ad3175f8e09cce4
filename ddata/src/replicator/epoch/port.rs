//! The configuration machine's surroundings: its settings, what it is told, what it orders, what
//! it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::acceptor::AcceptorState;
use super::configuration::{Change, ChangeError, Epoch, EpochId};
use super::message::{EpochMessage, Remaining};
use super::senders::Declined;
use crate::id::ReplicaId;

/// Timers of the configuration machine. The defaults suit networks up to about 100 ms round trip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EpochConfig {
    /// A replica sealed for this long (plus a random part up to the same) without a next
    /// configuration proposes one. Doubles with each attempt of its own.
    #[serde(with = "humantime_serde")]
    pub abandoned_after: Duration,
    /// First resend of an unanswered message; doubles up to `resend-most`.
    #[serde(with = "humantime_serde")]
    pub resend_first: Duration,
    /// Longest time between two resends.
    #[serde(with = "humantime_serde")]
    pub resend_most: Duration,
    /// How long a member believed dead has for its answer before the first Accept. The seal waits
    /// with it, if the sync takes less. Also how long the voters have to answer a member that heard of a
    /// newer configuration from a node in none that it knows.
    #[serde(with = "humantime_serde")]
    pub probe_wait: Duration,
    /// How long one source of a state pull has before another is tried.
    #[serde(with = "humantime_serde")]
    pub source_patience: Duration,
    /// Own attempts in one epoch after which a proposal whose quorum does not sync is given up.
    pub sync_attempts: u32,
}

impl Default for EpochConfig {
    fn default() -> Self {
        Self {
            abandoned_after: Duration::from_millis(500),
            resend_first: Duration::from_millis(200),
            resend_most: Duration::from_secs(2),
            probe_wait: Duration::from_millis(300),
            source_patience: Duration::from_secs(5),
            sync_attempts: 4,
        }
    }
}

/// A fact for the configuration machine.
#[derive(Clone, Debug, PartialEq)]
pub enum EpochInput {
    /// A deadline may have passed.
    Tick,
    /// Membership wants this next. Answered by an [`Outcome`].
    Propose(Change),
    /// A peer's machine says.
    Message {
        /// The sending incarnation, as the transport knows it.
        from: ReplicaId,
        /// What it says.
        message: EpochMessage,
    },
    /// The lease machine's answer to [`EpochOutput::AskConsent`]: from now on it grants the asked
    /// ones nothing.
    Consent {
        /// As asked.
        query: u64,
        /// Leases that still run; who is not listed holds none.
        remaining: Vec<Remaining>,
    },
    /// The lease machine's promise to this one ended before its time: what it answered is stale.
    Released(ReplicaId),
    /// The parent has merged all of the snapshot (data, cells, promised terms) that `of` froze
    /// for `epoch`.
    SnapshotMerged {
        /// The sealed configuration.
        epoch: EpochId,
        /// Whose snapshot.
        of: ReplicaId,
    },
    /// The parent has merged the whole state of `from`, which was synced for `epoch` when it
    /// began to send it.
    StateMerged {
        /// The installed configuration.
        epoch: EpochId,
        /// Whose state.
        from: ReplicaId,
    },
    /// `from` cannot give its state (not synced itself, unreachable): try another.
    SourceFailed {
        /// The installed configuration.
        epoch: EpochId,
        /// Who failed.
        from: ReplicaId,
    },
    /// The first configuration of the cluster; its members start empty, hence synced.
    Found(Arc<Epoch>),
    /// An operator: no quorum of the installed configuration is left, and these are to go on with
    /// this node. Answered by [`EpochOutput::Installed`], or not at all if this node is no member, or
    /// has installed another one meanwhile: the parent has asked before.
    Force {
        /// What is installed.
        replaced: EpochId,
        /// Who goes on.
        kept: BTreeSet<ReplicaId>,
    },
    /// What was persisted before the restart; the first input, if any.
    Restore(AcceptorState),
    /// A peer's message, of whatever kind, carried this epoch (`None`: it has none).
    PeerEpoch {
        /// The sender.
        from: ReplicaId,
        /// Its installed configuration.
        id: Option<EpochId>,
    },
    /// The nodes that membership has let in and not removed since, and whether it reaches each:
    /// from some of them, a configuration is taken.
    Known(BTreeMap<ReplicaId, bool>),
}

/// Why the lease machine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consenting {
    /// For a Withhold: stop granting, say how long the leases still run.
    Withhold,
    /// For a Seal: the voter seals in the step of the answer if none still runs.
    Seal,
}

/// An order of the configuration machine.
#[derive(Clone, Debug, PartialEq)]
pub enum EpochOutput {
    /// Send to a peer; never to this node itself.
    Send {
        /// The receiver.
        to: ReplicaId,
        /// The message.
        message: EpochMessage,
    },
    /// Make this durable. Nothing ordered or acked later may leave this node before it is.
    Persist(AcceptorState),
    /// Take the snapshot for this epoch now, in the same step: data, cells and promised terms,
    /// everything acked so far included. Keep it until a newer epoch is installed.
    Freeze(EpochId),
    /// Get and merge the snapshot that `of` froze for `epoch`. Stands, and may be repeated, until
    /// `StopPulls`; the parent retries what is lost.
    PullSnapshot {
        /// The sealed configuration.
        epoch: EpochId,
        /// Whose snapshot.
        of: ReplicaId,
    },
    /// Get and merge the state of `from`, if it is synced for `epoch`. Replaces the last
    /// `PullState`; what was merged stays merged.
    PullState {
        /// The installed configuration.
        epoch: EpochId,
        /// Whose state.
        from: ReplicaId,
    },
    /// No pull is needed any more.
    StopPulls,
    /// This configuration is installed: open requests start counting anew, the snapshot goes.
    Installed(Arc<Epoch>),
    /// Synced for the installed configuration: this node may ack in it.
    Synced(EpochId),
    /// Ask the lease machine; it answers with [`EpochInput::Consent`].
    AskConsent {
        /// Names the question.
        query: u64,
        /// Members that are to go.
        removed: Vec<ReplicaId>,
        /// What the answer is for.
        why: Consenting,
    },
    /// What became of the proposal.
    Outcome(Outcome),
    /// The installed configuration is newer than one that had this node, and has it no more: it
    /// acks nothing and begins nothing, for ever.
    Excluded(EpochId),
    /// This node answers a proposal without itself: it begins no further message until a
    /// configuration that contains it is installed.
    StopServing,
    /// This may be decided already, or still be, whatever this node hears: it was accepted here, or
    /// is synced for. Over with the next `Installed`; may be said again.
    Pending(Arc<Epoch>),
    /// A newer configuration was not taken. May be repeated as often as a peer sends one; where only
    /// the sender is doubted, it comes once no member has confirmed the configuration within 10 s.
    Declined {
        /// The sender.
        from: ReplicaId,
        /// What it sent.
        epoch: EpochId,
        /// What stands against it.
        why: Declined,
    },
}

/// What became of a [`EpochInput::Propose`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Decided and installed. `deferred`: removals left out, because a lease still ran or they
    /// answered the probe; propose them again if they are still wanted.
    Decided {
        /// The new configuration.
        epoch: EpochId,
        /// Members that were to go and stayed.
        deferred: Vec<ReplicaId>,
    },
    /// Not proposed, or given up. What was given up may still be decided, if a voter had accepted
    /// it in an earlier ballot: only the next [`EpochOutput::Installed`] tells.
    Refused {
        /// What stands against it.
        why: WhyRefused,
    },
    /// Another configuration was installed first. Propose again if it is still wanted.
    Superseded {
        /// The new configuration.
        by: EpochId,
    },
}

/// Why a change is not, or no longer, proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhyRefused {
    /// Only members propose.
    #[error("this node is no member of the newest configuration; nothing was proposed")]
    NotAMember,
    /// A seal of this node's is under way: propose again after the next `Installed`.
    #[error("this node is deciding a configuration; nothing was proposed, wait for the next one")]
    Busy,
    /// The change leads nowhere.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Of those that the removals would leave, no quorum answered: are others gone as well? Nothing
    /// was sealed.
    #[error(
        "no quorum of those that would be left has answered; nothing was sealed, propose the removal \
         of everybody who is gone"
    )]
    TooFewAnswered,
    /// A quorum of the proposed configuration did not sync: is every joiner alive?
    #[error("no quorum of the proposed configuration synced; the same members are proposed again")]
    NotSynced,
}

/// What the machine counts. Plain numbers, compared in tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochStats {
    /// Messages that no correct peer sends here; dropped.
    pub nonsense: u64,
    /// Proposals of peers that cannot follow the installed configuration; dropped.
    pub unfit: u64,
    /// Ballots that this node began.
    pub attempts: u64,
    /// Ballots begun because a seal seemed abandoned.
    pub abandoned: u64,
    /// Seals and Accepts refused here.
    pub refused: u64,
    /// Configurations installed.
    pub installed: u64,
    /// Decisions that this node saw a quorum accept.
    pub decided: u64,
    /// Questions to the lease machine given up for newer ones.
    pub consents_dropped: u64,
    /// Configurations forced here, by an operator's word.
    pub forced: u64,
    /// Newer configurations that were not taken: of senders that may bring none, of another
    /// cluster, or too far ahead.
    pub declined: u64,
}
