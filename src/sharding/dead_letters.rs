//! Messages that no handler completed and answers that were lost, counted and logged by reason.
//!
//! Every known loss is counted here, and an asker is told the reason
//! (docs/protocol/message-order.md#every-known-loss-is-reported-to-the-asker). Telling it is up to
//! the caller.

use ostraca_ddata::clock::Instant;

use super::ids::{EntityType, ShardId};
use super::loss_counter::LossCounter;

/// Reason why a message was not handled, or not to its end, or why its answer was lost.
///
/// Of [`NoAnswer`](Self::NoAnswer) and [`AnswerTooLong`](Self::AnswerTooLong) the message was
/// handled; the answer counts, at the node that does not send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// The entity's mailbox has reached its limit, or a moved message exceeds what moves can bring.
    #[error("the entity's mailbox is full; not handled")]
    MailboxFull,
    /// The shard has not started here, and its held messages have reached their limit.
    #[error("the shard has not started, and its held messages reached their limit; not handled")]
    HeldFull,
    /// The entity's handler panicked. A factory that panics loses a message only while the shard
    /// drains; otherwise the message waits.
    #[error("the entity failed while handling it")]
    EntityFailed,
    /// The type's supervision stopped the entity.
    #[error("the entity was stopped after a failure; not handled")]
    EntityStopped,
    /// The handler did not end within `handoff-timeout` when its shard moved, or had run for
    /// `slow-handler-after` and delayed the move alone.
    #[error("the handler was aborted, as its shard moved; it may have been handled in part")]
    Aborted,
    /// The node left the configuration, or its lease ended for good, before a handler began the
    /// message.
    #[error("the node stopped hosting; not handled")]
    NodeStopped,
    /// The body does not decode as a message of this type: another release, or another program.
    /// Also counted once for the payload of a move that is cut short, whatever was behind the cut.
    #[error("the message does not decode on its node; not handled")]
    Undecodable,
    /// A message that should travel with a move was refused by the type's own `Serialize`. Also the
    /// reason that an asker gets if that refused the answer; this is not counted.
    #[error("the message does not encode; not handled")]
    Unencodable,
    /// The message should return to its sender, but that node left the configuration, or no lane to
    /// it exists; or it was held for a decision that never came, and its sender's node had left.
    #[error("its sender's node left the cluster; not handled")]
    NodeGone,
    /// The message came back on a lane that had been given up, and is counted now. The transport
    /// counts what does not come back (`given_up` of its statistics), which may have been handled.
    #[error("its lane was cut for too long; it may have been handled")]
    LaneGivenUp,
    /// The payload of a move carried the message, and a later home may have handled it.
    #[error("it was carried by a move that another one overtook; it may have been handled")]
    Discarded,
    /// The message was handled, and its handler dropped the reply address without an answer, or
    /// the answer's own `Serialize` refused it. Only the latter is counted.
    #[error("it was handled, and no answer was given")]
    NoAnswer,
    /// The message is longer than the lane to the entity's node, or back to its sender, allows.
    #[error("the message is longer than the lane allows; not handled")]
    TooLong,
    /// The message was handled, and the answer is longer than a lane allows. Not counted.
    #[error("it was handled, and the answer is longer than the lane allows")]
    AnswerTooLong,
    /// The handler was dropped because the node had no lease for long.
    #[error("its node heard from no quorum for long; it may have been handled in part")]
    NotLeased,
    /// The shard had moved, and the lane back to the sender had no room, even beyond its usual
    /// limit.
    #[error("its shard had moved, and the lane back had no room; not handled")]
    LaneFull,
    /// The message was handled, and the lane to the asker does not exist or has no room.
    #[error("it was handled, and no lane took the answer")]
    AnswerLost,
    /// The handler was dropped because the node left the configuration, or its lease ended for
    /// good.
    #[error("the node stopped hosting during its handler; it may have been handled in part")]
    HandlerStopped,
    /// The message waited for its entity on the last node that hosts the type, which left in order.
    #[error("the last node that hosts the type left the cluster; not handled")]
    LastHostLeft,
}

/// All reasons, in the order of their codes. A new reason goes to the end of both lists, because
/// nodes of other releases know the codes.
const ALL: [DeadLetterReason; 19] = [
    DeadLetterReason::MailboxFull,
    DeadLetterReason::HeldFull,
    DeadLetterReason::EntityFailed,
    DeadLetterReason::EntityStopped,
    DeadLetterReason::Aborted,
    DeadLetterReason::NodeStopped,
    DeadLetterReason::Undecodable,
    DeadLetterReason::Unencodable,
    DeadLetterReason::NodeGone,
    DeadLetterReason::LaneGivenUp,
    DeadLetterReason::Discarded,
    DeadLetterReason::NoAnswer,
    DeadLetterReason::TooLong,
    DeadLetterReason::AnswerTooLong,
    DeadLetterReason::NotLeased,
    DeadLetterReason::LaneFull,
    DeadLetterReason::AnswerLost,
    DeadLetterReason::HandlerStopped,
    DeadLetterReason::LastHostLeft,
];

impl DeadLetterReason {
    /// Returns the number of the reason in frames, from 1.
    pub(super) const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the reason with this number in frames; `None` if this release knows none.
    pub(super) fn of(code: u8) -> Option<Self> {
        ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the name of the reason in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MailboxFull => "mailbox-full",
            Self::HeldFull => "held-full",
            Self::EntityFailed => "entity-failed",
            Self::EntityStopped => "entity-stopped",
            Self::Aborted => "aborted",
            Self::NodeStopped => "node-stopped",
            Self::Undecodable => "undecodable",
            Self::Unencodable => "unencodable",
            Self::NodeGone => "node-gone",
            Self::LaneGivenUp => "lane-given-up",
            Self::Discarded => "discarded",
            Self::NoAnswer => "no-answer",
            Self::TooLong => "too-long",
            Self::AnswerTooLong => "answer-too-long",
            Self::NotLeased => "not-leased",
            Self::LaneFull => "lane-full",
            Self::AnswerLost => "answer-lost",
            Self::HandlerStopped => "handler-stopped",
            Self::LastHostLeft => "last-host-left",
        }
    }
}

/// Counters of the lost messages of one entity type on one node.
#[derive(Debug, Default)]
pub(super) struct DeadLetters([LossCounter; ALL.len()]);

impl DeadLetters {
    /// Counts `count` messages. Logs the first ones of each reason, and further ones only if the
    /// last log line of that reason is a minute old, with the total so far; what comes between is
    /// counted and not logged later. Threads that add in the same moment may both log. Does nothing
    /// if `count` is 0, and reads the clock only otherwise. Tells no asker.
    pub(super) fn add(
        &self,
        why: DeadLetterReason,
        count: usize,
        of: (&EntityType, Option<ShardId>),
        now: impl FnOnce() -> Instant,
    ) {
        let Some(total) = self.0[why as usize].add_and_log(count, now) else { return };
        let (entity_type, shard) = (of.0, of.1.map(tracing::field::display));
        tracing::warn!(
            %entity_type, shard, count, total, reason = why.name(), %why,
            "sharding.dead_letters: messages were not handled"
        );
    }

    /// Returns the number of messages lost for this reason.
    pub(super) fn of(&self, why: DeadLetterReason) -> u64 {
        self.0[why as usize].count()
    }

    /// Iterates over all reasons with their numbers, also those that are 0.
    pub(super) fn all(&self) -> impl Iterator<Item = (DeadLetterReason, u64)> + '_ {
        ALL.into_iter().map(|why| (why, self.of(why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_code_of_its_own() {
        for (at, why) in ALL.into_iter().enumerate() {
            assert_eq!((why as usize, DeadLetterReason::of(why.code())), (at, Some(why)));
        }
        assert_eq!((DeadLetterReason::of(0), DeadLetterReason::of(99)), (None, None));
    }
}
