//! Canaries of this room: rules that the code under test leaves out on purpose, chosen at run
//! time, which the suites must catch.
//!
//! The same idea as [`ostraca_ddata::bug`]: without the feature `canaries` every question is a
//! constant `false` and the branches vanish.

/// A rule that is left out. The names follow spec/reference/moves.md §4, and order.md §7 for what
/// a move carries along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Bug {
    /// A Host below the highest generation starts the shard.
    HostBelowMax,
    /// A Release does not raise the highest generation.
    ReleaseDoesNotRaise,
    /// A Release sets the highest generation, down as well as up.
    ReleaseLowers,
    /// A Release below the highest generation stops the shard.
    LateReleaseStops,
    /// A region that does not host the shard ignores a Release.
    IdleIgnoresRelease,
    /// A repeated Release is not answered.
    RepeatUnanswered,
    /// A start waits for nobody.
    StartWithoutReleased,
    /// A Released of any generation counts.
    AnyReleased,
    /// A Released is said before the drain ends.
    ReleasedBeforeDrained,
    /// A newer decision is adopted at once, whoever may still host.
    AdoptUnguarded,
    /// Who is absent from an older configuration counts as removed.
    AbsentIsRemoved,
    /// A new coordinator drops what `after` lists.
    RecoveryDropsAfter,
    /// A new coordinator goes on from what it has read without writing it under its own term.
    NoRewrite,
    /// A decision lists the last home only.
    AfterLastHomeOnly,
    /// A home that never confirmed is not listed.
    UnconfirmedLeftOut,
    /// A registration confirms the newest decision, whichever its region says that it hosts by.
    RegistrationConfirmsNewest,
    /// A move back to a listed region lists nobody.
    MoveBackEmptiesAfter,
    /// A shard that is to live nowhere leaves no cell behind, as if its key had been removed: who
    /// reads the homes finds nothing of it.
    HomeKeyRemoved,
    /// The coordinator speaks before a quorum holds its decision.
    SpeaksBeforeAck,
    /// After a recovery by force a coordinator decides by what the survivors' data show.
    NothingRecounted,
    /// In that count a part of what a node knows is taken for all of it.
    PartCountsAsAll,
    /// After a recovery by force terms go on from those that survivors have heard of.
    TermsGoOn,
    /// Only the last home is told to release.
    ReleaseLastHomeOnly,
    /// The payload with the lowest `last` is taken.
    PayloadOfLowest,
    /// A stay that left nothing does not count: the payload of an earlier one is taken.
    EmptyDoesNotCount,
    /// Payloads are compared by the generation that the decision lists, not by `last`.
    PayloadByListed,
    /// A region's own payload is no candidate.
    OwnPayloadLeftOut,
    /// A removed region's entry does not outweigh older payloads.
    RemovedDoesNotCount,
    /// A removed region that was only named counts as one that hosted.
    NamedCountsAsHosted,
    /// A region that was removed vouches for what it had not released before.
    RemovedVouches,
    /// A region leaves though nobody has confirmed that its empty release came.
    LeavesUnconfirmed,
    /// A region leaves without a word of the coordinator that no decision names it.
    LeavesUnheard,
    /// The coordinator gives that word though a decision names the region that leaves.
    LetsGoWhoIsNamed,
    /// The payload is dropped when the same stay is confirmed.
    KeptDroppedOnEqual,
    /// A repeated Released brings its payload again.
    PayloadTakenAgain,
    /// What was taken out of a mailbox and not begun is not given back when the shard drains.
    TakenNotGivenBack,
    /// What was taken out and not begun is given back behind what came since.
    TakenGivenBackBehind,
    /// What a draining handler tells a draining shard is carried to the next home like the rest.
    DrainingHandlersNotMarked,
    /// A message begins, and is polled, without a look at the lease.
    LeaseNotAsked,
    /// A message for an entity that passivates goes with it.
    PassivatedWithMessages,
    /// What an entity handed over is carried by one move only.
    StatesStay,
    /// What an instance took over is given to the next one as well.
    StateTakenAgain,
    /// An idle instance is dropped and hands nothing over.
    IdleHandNothingOver,
    /// A lapse takes an instance from its entity's task that has not begun.
    LetGoTakesStarted,
}

/// The bug to run with, if any.
pub type Canary = ostraca_ddata::bug::Canary<Bug>;
