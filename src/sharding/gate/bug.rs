//! Canaries of the gate: rules that it leaves out on purpose, chosen at run time, which the
//! exploration must catch. Names follow spec/reference/order.md §7.

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Bug {
    /// A sender changes lanes without a barrier.
    FlushWithoutEcho,
    /// A barrier is answered though earlier messages of its lane are held.
    EchoPastHeld,
    /// A message for a decision that has not arrived yet is sent back.
    BounceAhead,
    /// A message for a start or an adoption that waits is sent back.
    BouncePending,
    /// A release leaves held messages where they are.
    HeldStays,
    /// A release sends back held messages of later decisions too.
    AllHeldBounced,
    /// What came back goes behind what was buffered.
    ReturnedAtBack,
    /// What came back goes ahead, the last one first.
    ReturnedReversed,
    /// A message is sent though earlier ones still wait for room.
    TellPastFlush,
    /// A second announcement sends a second barrier and waits for that one's lane.
    BarrierReplaced,
    /// A message stamped below the hosted generation is accepted.
    LowStampAccepted,
    /// What a move carried goes behind what came directly.
    PayloadBehind,
    /// What is held of a lane is forgotten when its sender is out.
    HeldForgotten,
}

/// The bug to run with, if any.
pub type Canary = ostraca_ddata::bug::Canary<Bug>;
