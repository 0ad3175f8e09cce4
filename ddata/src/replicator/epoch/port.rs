//! Interface of the configuration machine: settings, inputs, outputs, outcomes and counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::acceptor::AcceptorState;
use super::configuration::{ChangeError, Epoch, EpochId, MembershipChange};
use super::message::{EpochMessage, Remaining};
use super::senders::ConfigurationRefusal;
use crate::id::ReplicaId;

/// Timers of the configuration machine. The defaults suit round trips up to about 100 ms.
///
/// The machine checks no bounds. A node refuses a configuration file in which `abandoned-after`,
/// `resend-first` or `source-patience` is 0, `resend-most` is below `resend-first`, or
/// `sync-attempts` is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EpochConfig {
    /// A replica that is sealed for this long (plus a random time up to the same) without a next
    /// configuration proposes one. Doubles with each attempt of its own, up to seven times.
    #[serde(with = "humantime_serde")]
    pub abandoned_after: Duration,
    /// Time before an unanswered message is sent again; doubles up to `resend-most`.
    #[serde(with = "humantime_serde")]
    pub resend_first: Duration,
    /// Longest time between two resends of a message.
    #[serde(with = "humantime_serde")]
    pub resend_most: Duration,
    /// How long a member believed dead has to answer a probe before the first `Accept`. The seal
    /// lasts at least as long. Also how long the voters have to answer the probe of a member that
    /// was told of a newer configuration by a node outside its own configuration.
    #[serde(with = "humantime_serde")]
    pub probe_wait: Duration,
    /// How long one source of a state pull may take before another is tried.
    #[serde(with = "humantime_serde")]
    pub source_patience: Duration,
    /// Attempts of this node in one configuration after which a proposal without a synced quorum is
    /// given up. Only attempts that reached the sealing phase count.
    pub sync_attempts: u32,
}

impl Default for EpochConfig {
    /// Patience 500 ms, resends after 200 ms up to 2 s, 300 ms for a probe, 5 s for a source, 4
    /// attempts.
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

/// An input of the configuration machine.
#[derive(Clone, Debug, PartialEq)]
pub enum EpochInput {
    /// A deadline may have passed.
    Tick,
    /// The parent wants this change next. Answered by [`EpochOutput::Outcome`].
    Propose(MembershipChange),
    /// A message of a peer's configuration machine.
    Message {
        /// The sending incarnation, authenticated by the transport.
        from: ReplicaId,
        /// The message, decoded and well formed.
        message: EpochMessage,
    },
    /// The lease machine's answer to [`EpochOutput::AskConsent`]. It grants nothing to the members
    /// that were named there for twice the lease duration, or until the next
    /// [`EpochOutput::Installed`]. Ignored if the question was dropped or replaced.
    Consent {
        /// The id of the question.
        query: u64,
        /// Lease promises that still run. A member that is not listed has none.
        remaining: Vec<Remaining>,
    },
    /// The lease machine's promise to this member ended early, because the member released its
    /// lease. [`EpochInput::Consent`] answers that listed the promise are stale: the machine asks
    /// again for each proposer that was told of the promise.
    Released(ReplicaId),
    /// The parent has merged the whole snapshot (data, guarded values, promised terms) that `of`
    /// froze for `epoch`.
    SnapshotMerged {
        /// The id of the sealed configuration.
        epoch: EpochId,
        /// The replica whose snapshot it is.
        of: ReplicaId,
    },
    /// The parent has merged the whole state of `from`, which was synced for `epoch` when it began
    /// to send it.
    StateMerged {
        /// The id of the installed configuration.
        epoch: EpochId,
        /// The replica whose state it is.
        from: ReplicaId,
    },
    /// `from` cannot serve its state, because it is unreachable or not synced itself: try another.
    SourceFailed {
        /// The id of the installed configuration.
        epoch: EpochId,
        /// The source that failed.
        from: ReplicaId,
    },
    /// The first configuration of the cluster, or of the generation that this node begins alone.
    /// The machine counts as synced in it. The parent has checked with `Epochs::may_found` that
    /// this node may found; otherwise the machine panics.
    Found(Arc<Epoch>),
    /// An operator's order to go on without a quorum: this node and the members in `kept` form the
    /// next configuration. Answered by [`EpochOutput::Installed`]. Ignored, without an answer, if
    /// this node is no member, no longer has `replaced` installed, or there is no higher
    /// configuration.
    Force {
        /// The id of the configuration to replace.
        replaced: EpochId,
        /// The members that stay.
        kept: BTreeSet<ReplicaId>,
    },
    /// The state persisted before a restart. It must be the first input; otherwise the machine
    /// panics.
    Restore(AcceptorState),
    /// A message of any kind carried this id of the sender's configuration; `None` if it has none.
    PeerEpoch {
        /// The incarnation that sent it.
        from: ReplicaId,
        /// The id of its installed configuration.
        id: Option<EpochId>,
    },
    /// The nodes that membership has let in and not removed since, and whether it reaches each.
    /// Replaces the list before. Needed for the sender rule
    /// (docs/protocol/configurations.md#sender-rule).
    Known(BTreeMap<ReplicaId, bool>),
}

/// The message of a proposer because of which the lease machine is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consenting {
    /// [`EpochMessage::Withhold`]: stop granting leases to the members to be removed, and report
    /// how long the promises to them run.
    Withhold,
    /// [`EpochMessage::Seal`]: if no promise runs, the voter seals in the same step as the answer.
    Seal,
}

/// An order of the configuration machine.
#[derive(Clone, Debug, PartialEq)]
pub enum EpochOutput {
    /// Send a message to a peer, never to this node itself.
    Send {
        /// The receiver, which is another node.
        to: ReplicaId,
        /// The message to send.
        message: EpochMessage,
    },
    /// Make this state durable before anything that is ordered or acknowledged later leaves the
    /// node.
    Persist(AcceptorState),
    /// Take the snapshot of this installed configuration, which is sealed now, in the same step:
    /// data, guarded values and promised terms, including everything acknowledged so far. Keep it
    /// until a newer configuration is installed.
    Freeze(EpochId),
    /// Pull and merge the snapshot that `of` froze for `epoch`. Repeat lost messages until
    /// `StopPulls`. The order itself may be repeated.
    PullSnapshot {
        /// The id of the sealed configuration.
        epoch: EpochId,
        /// The replica whose snapshot it is.
        of: ReplicaId,
    },
    /// Pull and merge the state of `from`, if it is synced for `epoch`. Replaces the last
    /// `PullState`; merged data stays merged.
    PullState {
        /// The id of the installed configuration.
        epoch: EpochId,
        /// The replica whose state it is.
        from: ReplicaId,
    },
    /// Ends all pulls that were ordered. Given also if none is under way.
    StopPulls,
    /// This configuration is installed: open requests start counting anew, and the snapshot is
    /// dropped. Also reported after [`EpochInput::Restore`].
    Installed(Arc<Epoch>),
    /// This node is synced for the installed configuration (its state holds everything that was
    /// acknowledged in earlier ones) and may acknowledge in it, unless it is sealed.
    Synced(EpochId),
    /// A question to the lease machine, answered by [`EpochInput::Consent`].
    AskConsent {
        /// The id of the question.
        query: u64,
        /// Members that the proposal removes.
        removed: Vec<ReplicaId>,
        /// The purpose of the question.
        why: Consenting,
    },
    /// The result of a proposed change.
    Outcome(ProposalOutcome),
    /// A configuration removed this node, or barred it: named it for removal before it was a
    /// member. It must acknowledge nothing and begin nothing, for ever. Given once.
    Excluded(EpochId),
    /// This node has promised or accepted a ballot that removes it. It must begin to handle no
    /// further message of the application until a configuration that lists it is installed. Given
    /// once in a configuration.
    StopServing,
    /// This configuration may be decided without further news to this node, which has accepted it
    /// or syncs for it. Until the next `Installed` the parent must ask, in a split, whether this
    /// node reaches a quorum of it as well. May be repeated.
    Pending(Arc<Epoch>),
    /// A newer configuration was refused by the sender rule
    /// (docs/protocol/configurations.md#sender-rule). May be repeated as often as a peer sends one.
    /// If only the sender is the reason, a member has 10 s to confirm the configuration before the
    /// refusal is reported, and of several such refusals in that time only the one with the highest
    /// id is.
    Declined {
        /// The incarnation that sent it.
        from: ReplicaId,
        /// The id of the refused configuration.
        epoch: EpochId,
        /// The reason of the refusal.
        why: ConfigurationRefusal,
    },
}

/// The result of an [`EpochInput::Propose`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProposalOutcome {
    /// Decided and installed, by this node or another. `deferred` lists removals that were left
    /// out, because a lease still ran, the member answered the probe or the patience ended. Propose
    /// them again if they are still wanted.
    Decided {
        /// The id of the new configuration.
        epoch: EpochId,
        /// Members that should be removed and stayed, and incarnations that should be barred and
        /// were not.
        deferred: Vec<ReplicaId>,
    },
    /// Not proposed, or given up. A change that was given up may still be decided if a voter had
    /// accepted it in an earlier ballot: only the next [`EpochOutput::Installed`] tells.
    Refused {
        /// The reason of the refusal.
        why: ProposalRefusal,
    },
    /// Another configuration was installed first. Propose the change again if it is still wanted.
    Superseded {
        /// The id of the new configuration.
        by: EpochId,
    },
}

/// Why a change is not, or no longer, proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposalRefusal {
    /// This node is no member of the installed configuration.
    #[error("this node is no member of the newest configuration; nothing was proposed")]
    NotAMember,
    /// The running ballot of this node has sent its `Seal`, or only ends an abandoned seal: propose
    /// again after the next `Installed`.
    #[error("this node is deciding a configuration; nothing was proposed, wait for the next one")]
    Busy,
    /// The change has no next configuration.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// No quorum of the members that would remain has answered: perhaps more members are gone. An
    /// earlier ballot of the batch may have sealed voters, which end that when their patience ends.
    #[error(
        "no quorum of the members that would remain has answered; propose the removal of all \
         members that are gone"
    )]
    TooFewAnswered,
    /// No quorum of the proposed configuration synced: perhaps a joiner is dead. To end the seal,
    /// this node now proposes the members of the installed configuration.
    #[error("no quorum of the proposed configuration synced; the same members are proposed again")]
    NotSynced,
}

/// Counters of the configuration machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochStats {
    /// Dropped messages that no correct peer sends here, and a second configuration with the id of
    /// the installed one.
    pub nonsense: u64,
    /// Dropped proposals of peers, also in `Sealed` answers; they cannot follow the installed
    /// configuration.
    pub unfit: u64,
    /// Ballots that this node began.
    pub attempts: u64,
    /// Ballots begun because a seal seemed abandoned.
    pub abandoned: u64,
    /// `Seal` and `Accept` messages refused here.
    pub refused: u64,
    /// Configurations installed here, founding and forced ones included, restored ones not.
    pub installed: u64,
    /// Decisions of this node's own attempts.
    pub decided: u64,
    /// Questions to the lease machine given up for newer ones; not those that an install ends.
    pub consents_dropped: u64,
    /// Configurations forced here by an operator.
    pub forced: u64,
    /// Newer configurations refused because of their sender, their cluster, or a jump of their
    /// number or generation.
    pub declined: u64,
}
