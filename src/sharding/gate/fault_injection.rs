//! Faults of the gate: each one leaves out or breaks a rule, chosen at run time. The exploration in
//! `tests/sharding/order` must find each of them; otherwise it would not find a real mistake in
//! that rule. See docs/protocol/message-order.md#exploration.

/// A rule that the gate leaves out or breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GateFault {
    /// A sender changes lanes without a barrier.
    FlushWithoutEcho,
    /// A barrier is acknowledged although earlier messages of its lane are held.
    EchoPastHeld,
    /// A message stamped with a decision that has not arrived yet is bounced.
    BounceAhead,
    /// A message for a pending start or adoption is bounced.
    BouncePending,
    /// A release leaves held messages in place.
    HeldStays,
    /// A release also bounces held messages of later decisions.
    AllHeldBounced,
    /// Returned messages are placed behind buffered ones.
    ReturnedAtBack,
    /// Returned messages are placed in front in reverse order.
    ReturnedReversed,
    /// A message is sent although earlier ones still wait for room.
    TellPastFlush,
    /// A second announcement sends a second barrier and waits for the echo of that lane.
    BarrierReplaced,
    /// A message stamped below the hosted generation is accepted.
    LowStampAccepted,
    /// The payload of a move is placed behind messages that came directly.
    PayloadBehind,
    /// The held messages of a lane are dropped when its sender leaves the configuration.
    HeldForgotten,
}

/// The injected fault, if any.
pub type GateFaultInjection = ostraca_ddata::fault_injection::FaultInjection<GateFault>;
