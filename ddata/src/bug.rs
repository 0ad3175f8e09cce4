//! Canaries: deliberate bugs, chosen at run time, which the suites must catch.
//!
//! A suite that cannot find a planted bug proves nothing about the ones nobody planted. Without
//! the feature `canaries` every question is a constant `false` and the branches vanish.

use std::marker::PhantomData;

/// A rule that the code under test leaves out on purpose.
///
/// Names follow the list and spec/reference/epochs.md §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Bug {
    /// A majority read answers without writing the merged value back (breaks I2, BC).
    NoReadRepair,
    /// A replica acks a guarded write below the term that it promised (breaks I3, D2).
    NoTermCheck,
    /// A fencing read answers before a quorum holds what it read (breaks I3, D2).
    NoRecoveryWrite,
    /// A voter acks in the next configuration before it has synced for it.
    AckBeforeSync,
    /// Accept is sent before a quorum of the next configuration has synced (breaks BC).
    AcceptBeforeSync,
    /// A replica that answered a Seal goes on acking requests of the old configuration.
    NotSealed,
    /// Acks of two configurations are counted together, against the older one.
    MixedEpochs,
    /// A new ballot proposes its own wish although an answer names an accepted proposal.
    IgnoreAccepted,
    /// A new ballot adopts the accepted proposal of the lowest ballot.
    AdoptLowestBallot,
    /// Ballots carry no node id: two nodes can use the same one.
    BallotWithoutNode,
    /// Accept is taken below the promise.
    AcceptBelowPromise,
    /// Half of an even number of voters counts as a quorum without the tiebreaker.
    HalfWithoutTiebreaker,
    /// The next configuration syncs from fewer than a quorum of sealed snapshots.
    SyncFromFewer,
    /// A sealed snapshot leaves out what its replica acked last.
    SnapshotBeforeLastAck,
    /// A sealed replica answers fences.
    FenceWhileSealed,
    /// Terms carry no coordinator: two coordinators can hold the same one.
    TermWithoutCoordinator,
    /// The guarded cells of sealed replicas are not merged at sync.
    CellsNotSynced,
    /// The promised terms of sealed replicas are not merged at sync.
    PromisesNotSynced,
    /// A delta is sent with its sender's whole context (known failure 15).
    DeltaWithWholeContext,
    /// A delta is merged though it overwrites dots that were never seen (rule R dropped).
    NoRuleR,
    /// An observed register write below the live stamp or term is not refused.
    NoStaleCheck,
    /// A guarded map key can be removed from its map.
    GuardedKeyRemoved,
    /// Registers keep whatever arrived last.
    MergeByArrival,
    /// A delete erases dots that its replica had not seen.
    DeleteErasesUnseen,
    /// A change that builds on what its author found done already is acknowledged by whoever
    /// holds its delta (breaks I2).
    DeltaStandsForAll,
}

/// The bug to run with: none, unless the feature `canaries` is on and somebody chose one. `B` is
/// the enum of the package's deliberate bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Canary<B = Bug> {
    #[cfg(feature = "canaries")]
    bug: Option<B>,
    of: PhantomData<B>,
}

impl<B> Default for Canary<B> {
    fn default() -> Self {
        Self::none()
    }
}

impl<B> Canary<B> {
    /// No bug.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            #[cfg(feature = "canaries")]
            bug: None,
            of: PhantomData,
        }
    }
}

impl<B: Copy + PartialEq> Canary<B> {
    /// Runs with `bug`.
    #[cfg(feature = "canaries")]
    #[must_use]
    pub const fn with(bug: B) -> Self {
        Self { bug: Some(bug), of: PhantomData }
    }

    /// Whether this run leaves the rule out.
    #[inline]
    #[must_use]
    pub fn has(self, bug: B) -> bool {
        #[cfg(feature = "canaries")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "canaries"))]
        {
            let _ = bug;
            false
        }
    }
}
