//! Planted faults: deliberate violations of rules, chosen at run time, which the suites must
//! detect.
//!
//! A suite that can't detect a planted fault gives no evidence about real ones. Without the feature
//! `canaries` every check is the constant `false`, and the compiler removes the branches.

use std::marker::PhantomData;

/// A rule that the code under test deliberately violates.
///
/// The rules are defined in docs/protocol/configurations.md, leases.md and replication.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ReplicatorFault {
    /// A majority read replies without writing the merged value back, so a later majority read may
    /// miss it.
    NoReadRepair,
    /// A replica acknowledges a guarded write below the term that it promised, so a superseded
    /// owner may write.
    NoTermCheck,
    /// A fencing read replies before a quorum stores the value that it read, so a later owner may
    /// miss it.
    NoRecoveryWrite,
    /// A voter acknowledges in the next configuration before it has synced for it.
    AckBeforeSync,
    /// Accept is sent before a quorum of the next configuration has synced, so acknowledged writes
    /// may be lost.
    AcceptBeforeSync,
    /// A replica that answered a Seal still acknowledges requests of the old configuration.
    NotSealed,
    /// Acknowledgements of two configurations are counted together for the older one.
    MixedEpochs,
    /// A new ballot proposes its own configuration although an answer contains an accepted
    /// proposal.
    IgnoreAccepted,
    /// A new ballot adopts the accepted proposal with the lowest ballot.
    AdoptLowestBallot,
    /// Ballots contain no node id, so two nodes can use the same ballot.
    BallotWithoutNode,
    /// A replica accepts a proposal below its promise.
    AcceptBelowPromise,
    /// Half of an even number of voters counts as a quorum, without the tiebreaker.
    HalfWithoutTiebreaker,
    /// The next configuration syncs from the snapshots of fewer than a quorum of sealed replicas.
    SyncFromFewer,
    /// A sealed snapshot lacks the replica's last acknowledgement.
    SnapshotBeforeLastAck,
    /// A sealed replica answers fencing reads.
    FenceWhileSealed,
    /// Terms contain no coordinator, so two coordinators can hold the same term.
    TermWithoutCoordinator,
    /// The guarded values of sealed replicas are not merged during sync.
    CellsNotSynced,
    /// The promised terms of sealed replicas are not merged during sync.
    PromisesNotSynced,
    /// A delta is sent with the whole context of its sender.
    DeltaWithWholeContext,
    /// A delta is merged although it overwrites dots that were never seen (no causal delta rule).
    NoRuleR,
    /// A register write that is not above the live stamp or term is not refused.
    NoStaleCheck,
    /// A key can be removed from a guarded map.
    GuardedKeyRemoved,
    /// Registers keep the value that arrived last.
    MergeByArrival,
    /// A delete erases dots that its replica had not seen.
    DeleteErasesUnseen,
    /// A change that relies on effects that its author found present is acknowledged by replicas
    /// that hold only its delta, so an acknowledged write may be incomplete.
    DeltaStandsForAll,
    /// A configuration is installed without a check of its sender and its cluster
    /// (docs/protocol/configurations.md#sender-rule).
    ConfigurationFromAnybody,
}

/// The planted fault of a run: none, unless the feature `canaries` is on and the run chose one. `B`
/// is the enum of the package's faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultInjection<B = ReplicatorFault> {
    #[cfg(feature = "canaries")]
    fault: Option<B>,
    of: PhantomData<B>,
}

impl<B> Default for FaultInjection<B> {
    fn default() -> Self {
        Self::none()
    }
}

impl<B> FaultInjection<B> {
    /// Returns the value without a planted fault.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            #[cfg(feature = "canaries")]
            fault: None,
            of: PhantomData,
        }
    }
}

impl<B: Copy + PartialEq> FaultInjection<B> {
    /// A run with this planted fault and no other.
    #[cfg(feature = "canaries")]
    #[must_use]
    pub const fn with(fault: B) -> Self {
        Self { fault: Some(fault), of: PhantomData }
    }

    /// Whether this run plants `fault`; always `false` without the feature `canaries`.
    #[inline]
    #[must_use]
    pub fn has(self, fault: B) -> bool {
        #[cfg(feature = "canaries")]
        return self.fault == Some(fault);
        #[cfg(not(feature = "canaries"))]
        {
            let _ = fault;
            false
        }
    }
}
