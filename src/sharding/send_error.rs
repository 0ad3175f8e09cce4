//! Errors of tells and asks: why a message was not sent, and why an ask has no answer. Each states
//! whether the message may have been handled, because that decides whether it may be repeated.

use std::fmt;
use std::time::Duration;

use super::dead_letters::DeadLetterReason;
use super::gate::Full;
use super::ids::{EntityId, EntityType, InvalidName, RegionId};
use super::mailbox::{MailboxFull, Measure};
use super::slow_handlers::RunningHandler;

/// Reason why a message was not sent. It will not be handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TellError {
    /// The entity id is empty or too long.
    #[error("{0}; not sent")]
    InvalidId(#[from] InvalidName),
    /// The message has to wait for a home or a lane, and the buffer for that is full.
    #[error(transparent)]
    BufferFull(#[from] Full),
    /// The entity lives here and its mailbox is full.
    #[error(
        "{waiting} {of} wait for the entity, at most {limit} may; not sent: wait for room \
         (tell_wait), or raise cluster.sharding.mailbox-size or mailbox-bytes-max"
    )]
    MailboxFull {
        /// Messages or bytes that wait.
        waiting: usize,
        /// Most messages or bytes that may wait.
        limit: usize,
        /// The limit that was reached.
        of: Measure,
    },
    /// The entity lives on another node. That node refused an earlier message because the mailbox
    /// was full, and has not reported room since.
    #[error(
        "the entity's mailbox on {home} is full; not sent: wait for room (tell_wait), or raise \
         cluster.sharding.mailbox-size or mailbox-bytes-max there"
    )]
    Busy {
        /// The entity's home node.
        home: RegionId,
    },
    /// The message is longer than a lane allows. Not checked for a message that is never encoded,
    /// because its entity lives on this node.
    #[error(
        "the message has {bytes} bytes, at most {limit} are allowed; not sent: split it, or \
             raise the transport's message-bytes-max"
    )]
    TooLong {
        /// Encoded length in bytes.
        bytes: usize,
        /// Most bytes that are allowed.
        limit: usize,
    },
    /// The type's own `Serialize` returned an error.
    #[error("the message does not encode: {0}; not sent")]
    Encode(String),
    /// This node is out of the cluster, or its lease has ended for good.
    #[error("this node stopped hosting and routing; not sent: restart it")]
    Stopped,
    /// The extractor finds no entity for the message.
    #[error("the type's extractor finds no entity for the message; not sent")]
    NoEntity,
    /// The reference came in a message, and this node has not started its type.
    #[error(
        "this node has not started {entity_type} (or started it as another type); not sent: start \
         it, be it as a proxy"
    )]
    NotStarted {
        /// The type to start here.
        entity_type: EntityType,
    },
}

impl TellError {
    /// Returns whether the call may succeed later, once messages have been taken out: a buffer or a
    /// mailbox is full, here or at the entity's home (`BufferFull`, `MailboxFull`, `Busy`). False
    /// for `NotStarted`, although a start of the type here ends that error.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::BufferFull(_) | Self::MailboxFull { .. } | Self::Busy { .. })
    }
}

impl From<MailboxFull> for TellError {
    fn from(MailboxFull { waiting, limit, of }: MailboxFull) -> Self {
        Self::MailboxFull { waiting, limit, of }
    }
}

/// Cause of a missing answer, as far as the asking node knows it when the timeout expires. Of
/// several the first in this order: `NoHome`, `Moving` (messages wait for the end of a move),
/// `BehindLane`, `NotLeased`, `NotBegun`, `Moving` (the shard drains here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutReason {
    /// No cause is known: the entity may be slow, or its node dead, or its handler on this node has
    /// begun since the ask.
    Unknown,
    /// The shard has no home yet: its coordinator is being replaced, or has no quorum.
    NoHome,
    /// The shard is moving to another node, or stops.
    Moving,
    /// The lane to the shard's home has no connection, or no room, and the message waits on this
    /// node. It is sent to another home if that node is removed.
    BehindLane,
    /// The shard lives on this node, which has no lease now because no quorum answers it.
    NotLeased,
    /// The entity lives on this node and its current handler began before the ask, so the message
    /// has not begun.
    NotBegun,
}

impl fmt::Display for TimeoutReason {
    /// Tells the cause and that the message may still be handled, as the end of a sentence. For
    /// `Unknown` it may have been handled already.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the entity may have handled the message, or may still",
            Self::NoHome => "its shard has no home yet; the message waits and may still be handled",
            Self::Moving => "its shard is moving or stops; the message may still be handled",
            Self::BehindLane => {
                "no connection to its node, or no room in it: the message waits here and may still \
                 be handled"
            }
            Self::NotBegun => {
                "the entity still handles an earlier message, so this one has not begun; it may \
                 still be handled"
            }
            Self::NotLeased => "this node hosts it and has no lease; it may still be handled",
        })
    }
}

/// Formats the last part of a timeout's text, with a semicolon before it; empty if no handler is
/// known.
fn behind(handler: &Option<Box<RunningHandler>>) -> String {
    handler.as_ref().map_or_else(String::new, |handler| format!("; it waits for {handler}"))
}

/// Reason why an ask has no answer. Every variant states whether the message may have been handled:
///
/// - not handled, and never will be: [`NotSent`](Self::NotSent), [`NoTime`](Self::NoTime), and
///   [`Refused`](Self::Refused) where its [reason](DeadLetterReason) ends with "not handled". An
///   exception is [`Unencodable`](DeadLetterReason::Unencodable), which a handler's answer that
///   does not encode also gives;
/// - handled: [`Decode`](Self::Decode), and `Refused` with a reason that states so;
/// - perhaps handled, or handled later: all others. Repeat only idempotent messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The message was not sent.
    #[error(transparent)]
    NotSent(#[from] TellError),
    /// The message was sent, and it was refused, lost, or handled without an answer.
    #[error("{entity_type}/{entity} gave no answer to {question} after {waited:?}: {why}")]
    Refused {
        /// Type of the entity that was asked.
        entity_type: EntityType,
        /// Id of the entity that was asked.
        entity: EntityId,
        /// The type of the message.
        question: &'static str,
        /// Time from the ask to this error.
        waited: Duration,
        /// Reason, which tells the fate of the message.
        why: DeadLetterReason,
    },
    /// The message was handled, but the answer does not decode: the nodes run different releases.
    #[error(
        "{entity_type}/{entity} answered {question} after {waited:?} with {bytes} bytes that do \
         not decode"
    )]
    Decode {
        /// Type of the entity that was asked.
        entity_type: EntityType,
        /// Id of the entity that was asked.
        entity: EntityId,
        /// The type of the message.
        question: &'static str,
        /// Time from the ask to the answer.
        waited: Duration,
        /// Length of the answer in bytes.
        bytes: usize,
        /// Error of the decoder.
        source: rmp_serde::decode::Error,
    },
    /// The node to which the message was sent was removed from the cluster before it answered,
    /// because it crashed or was cut off. The message may have been handled, so repeat only
    /// idempotent messages; the entity starts on another node with the next message.
    #[error(
        "no answer from {entity_type}/{entity} to {question} after {waited:?}: its node {node} was \
         removed from the cluster; the message may have been handled there"
    )]
    NodeLost {
        /// Type of the entity that was asked.
        entity_type: EntityType,
        /// Id of the entity that was asked.
        entity: EntityId,
        /// The type of the message.
        question: &'static str,
        /// Time from the ask to this error.
        waited: Duration,
        /// The removed node that had the message.
        node: RegionId,
    },
    /// No answer came in time. The message may have been handled, so repeat only idempotent
    /// messages.
    #[error(
        "no answer from {entity_type}/{entity} to {question} within {waited:?}; {kept}{}",
        behind(.handler)
    )]
    Timeout {
        /// Type of the entity that was asked.
        entity_type: EntityType,
        /// Id of the entity that was asked.
        entity: EntityId,
        /// The type of the message.
        question: &'static str,
        /// The timeout of the ask; the error may come later than that.
        waited: Duration,
        /// Cause, as far as it is known.
        kept: TimeoutReason,
        /// The handler that the message waits for, if it runs on this node: the entity's own, with
        /// [`TimeoutReason::NotBegun`], or the one of the shard that has run for the longest time
        /// while the shard leaves this node. The latter is found by the watch for slow handlers, so
        /// not if `slow-handler-after` is 0, and not within a quarter of that time, unless it
        /// blocks its thread.
        handler: Option<Box<RunningHandler>>,
    },
    /// The entity's handler awaits an answer of the entity itself, which handles one message at a
    /// time, so the answer would never come. The message was sent and may be handled after that
    /// handler. Found at the first poll, without a wait. Await the answer in a task
    /// ([`Context::spawn`](super::context::Context::spawn)), or call a method.
    #[error(
        "{entity_type}/{entity} asks itself {question} in a handler, which would wait for ever: it \
         handles one message at a time; the message was sent and may be handled after this \
         handler: await the answer in a task (Context::spawn), or call a method instead"
    )]
    AsksItself {
        /// Type of the entity that asks itself.
        entity_type: EntityType,
        /// Id of the entity that asks itself.
        entity: EntityId,
        /// The type of the message.
        question: &'static str,
    },
    /// Entities of this node wait in their handlers for each other's answers. The message may have
    /// been handled, so repeat only idempotent messages. A cycle through other nodes is not
    /// detected and ends as a [`Timeout`](Self::Timeout).
    #[error(
        "no answer from {entity_type}/{entity} to {question} within {waited:?}: handlers wait for \
         each other ({cycle}); the message may have been handled in part: let one of them tell, or \
         ask in a task (Context::spawn)"
    )]
    Cycle {
        /// Type of the entity that was asked.
        entity_type: EntityType,
        /// Id of the entity that was asked.
        entity: EntityId,
        /// The type of the message.
        question: &'static str,
        /// The timeout of the ask, because a cycle is looked for only then.
        waited: Duration,
        /// The entities of the cycle as `type/id -> type/id -> ..`, from the asking one back to it.
        cycle: String,
    },
    /// The timeout of the ask is zero. The message was not made.
    #[error("the timeout of the ask is zero; not sent: use a longer timeout")]
    NoTime,
}
