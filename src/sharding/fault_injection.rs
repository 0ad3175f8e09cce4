//! Faults of sharding: each one leaves out or breaks a rule of moves or of message order, chosen at
//! run time. The test suites must catch each of them; otherwise they would miss a real mistake in
//! that rule.
//!
//! As in [`ostraca_ddata::fault_injection`], without the feature `canaries` every check is a
//! constant `false` and the branches vanish.

/// A rule that is left out or broken; see docs/protocol/sharding.md#exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ShardingFault {
    /// A `Host` below the highest generation starts the shard.
    HostBelowMax,
    /// A `Release` does not raise the highest generation.
    ReleaseDoesNotRaise,
    /// A `Release` sets the highest generation, down as well as up.
    ReleaseLowers,
    /// A `Release` below the highest generation stops the shard.
    LateReleaseStops,
    /// A region that does not host the shard ignores a `Release`.
    IdleIgnoresRelease,
    /// A repeated `Release` is not answered.
    RepeatUnanswered,
    /// A start waits for no predecessor.
    StartWithoutReleased,
    /// A `Released` of any generation counts.
    AnyReleased,
    /// A `Released` is sent before the drain ends.
    ReleasedBeforeDrained,
    /// A newer decision is adopted at once although a predecessor may still host.
    AdoptUnguarded,
    /// A region that is absent from an older configuration counts as removed.
    AbsentIsRemoved,
    /// A new coordinator drops the predecessors in `after`.
    RecoveryDropsAfter,
    /// A new coordinator continues from the cells that it read without writing them under its own
    /// term.
    NoRewrite,
    /// A decision lists only the last home.
    AfterLastHomeOnly,
    /// A home that never confirmed is not listed.
    UnconfirmedLeftOut,
    /// A registration confirms the newest decision, whatever generation its region reports.
    RegistrationConfirmsNewest,
    /// A move back to a listed region lists no predecessor.
    MoveBackEmptiesAfter,
    /// A decision without a home removes the cell, so a reader of the homes finds nothing of it.
    HomeKeyRemoved,
    /// The coordinator sends a decision before a quorum holds it.
    SpeaksBeforeAck,
    /// After a forced configuration the coordinator decides without counting the survivors.
    NothingRecounted,
    /// A partial answer to that count is taken for a complete one.
    PartCountsAsAll,
    /// After a forced configuration terms continue from those that survivors know.
    TermsGoOn,
    /// Only the last home gets a `Release`.
    ReleaseLastHomeOnly,
    /// The payload with the lowest `last` is taken.
    PayloadOfLowest,
    /// A tenure that left no payload is ignored, and the payload of an earlier one is taken.
    EmptyDoesNotCount,
    /// Payloads are compared by the generation that the decision lists instead of `last`.
    PayloadByListed,
    /// A region's own payload is no candidate.
    OwnPayloadLeftOut,
    /// The entry of a removed region does not outweigh older payloads.
    RemovedDoesNotCount,
    /// A removed region that was only named counts as one that hosted.
    NamedCountsAsHosted,
    /// A removed region vouches for shards that it had not released before.
    RemovedVouches,
    /// A region leaves before its empty `Released` was acknowledged.
    LeavesUnconfirmed,
    /// A region leaves before the coordinator confirmed that no decision names it.
    LeavesUnheard,
    /// The coordinator permits a leave although a decision names the region.
    PermitsNamedLeave,
    /// The kept payload is dropped when the same tenure is confirmed.
    KeptDroppedOnEqual,
    /// The payload of a repeated `Released` is taken again.
    PayloadTakenAgain,
    /// Messages taken out of a mailbox and not begun are not given back when the shard drains.
    TakenNotGivenBack,
    /// Messages taken out and not begun are given back behind those that arrived since.
    TakenGivenBackBehind,
    /// A message of a draining handler to a draining shard is carried to the next home like the
    /// rest.
    DrainingHandlersNotMarked,
    /// A message begins, and its handler is polled, without a check of the lease.
    LeaseNotAsked,
    /// A message for an entity that passivates is dropped with it.
    PassivatedWithMessages,
    /// Exported states are carried by one move only.
    StatesStay,
    /// A state that an instance imported is given to the next one as well.
    StateTakenAgain,
    /// An idle instance is dropped without exporting its state.
    IdleHandNothingOver,
    /// A lapse of the lease takes an instance from its entity's task that has not begun.
    LetGoTakesStarted,
    /// A message enters the lane to another node although no connection carries the lane.
    UnconnectedLaneTakes,
    /// An ask goes on although the node whose lane has its message was removed.
    AskOutlivesNode,
}

/// The injected fault, if any.
pub type ShardingFaultInjection = ostraca_ddata::fault_injection::FaultInjection<ShardingFault>;
