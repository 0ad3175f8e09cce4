//! Errors of requests to the Replicator, one enum for each kind of request.
//!
//! Every variant states whether the change may have been made. It may have been after `Timeout`,
//! `StoreFailure`, `Excluded`, `GuardedMeanwhile`, `Interrupted` and `Unanswered`, and after
//! `Fenced`; after all others nothing was changed.
//!
//! `Overloaded` has three sources, and its `limit` is the bound that was reached: no place in the
//! inbox within the timeout (`InboxLimits::requests`), too many pending replies, or too many open
//! requests in the Replicator (`max_pending_requests`).

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::data::NotRegistered;
use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::request::{RequestError, Tally};
use ostraca_ddata::types::Term;
use ostraca_ddata::types::edit::EditError;
use ostraca_ddata::types::shape::Shape;

/// Failures of a request that do not come from the Replicator's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// Not queued: too many requests wait.
    Overloaded { limit: usize },
    /// Not queued: the node has stopped.
    Stopped,
    /// Queued, but the node stopped before it replied.
    Interrupted,
    /// Queued, but no reply came within the caller's time and [`GRACE`](super::GRACE).
    Unanswered { waited: Duration },
}

/// Implements `From<CallFailure>` for the errors of changes, variant by variant. They tell a
/// request that was never queued, which changed nothing, from a queued one without a reply, which
/// may have been carried out. The errors of reads need no such difference.
macro_rules! change_may_be_made {
    ($($error:ty),+) => {$(
        impl From<CallFailure> for $error {
            fn from(failure: CallFailure) -> Self {
                match failure {
                    CallFailure::Overloaded { limit } => Self::Overloaded { limit },
                    CallFailure::Stopped => Self::Stopped,
                    CallFailure::Interrupted => Self::Interrupted,
                    CallFailure::Unanswered { waited } => Self::Unanswered { waited },
                }
            }
        }
    )+};
}

change_may_be_made!(UpdateError, DeleteError);

/// Why an update did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The change is made on this node and will spread, but a majority may never hold it. Before
    /// repeating an update that must not happen twice, read at a majority.
    #[error(
        "{} of {} replicas acknowledged in time; the change stays applied here and will spread",
        .0.answered, .0.needed
    )]
    Timeout(Tally),
    /// The change is made in memory, and may be lost in a power failure.
    #[error(
        "the durable store failed on {failed} replicas; the change stays applied in memory: see \
         their logs"
    )]
    StoreFailure {
        /// Number of replicas whose store failed.
        failed: usize,
    },
    /// This node was removed from the cluster while the request was open. The change is made on
    /// this node, which spreads nothing any longer; a majority may hold it. Restart the node, and
    /// read at a majority before repeating an update that must not happen twice.
    #[error(
        "configuration {epoch} removed this node; the change stays applied here and may be on a \
         majority: restart the node, and read at a majority"
    )]
    Excluded {
        /// The configuration without this node.
        epoch: EpochId,
    },
    /// The change is made on this node, which did not know that the key belongs to a guarded group.
    /// It may spread, but loses against every guarded write.
    #[error(
        "group `{group}` guards the key, which this node did not know: the change stays applied \
         here, may spread and loses against guarded ones; acquire a term"
    )]
    GuardedMeanwhile {
        /// The group of the key.
        group: Group,
    },
    /// The caller's function returned an error. Nothing was changed.
    #[error("the update's function failed and nothing was changed")]
    Modify(#[source] Arc<EditError>),
    /// The caller's function panicked. Nothing was changed, and other requests are not affected.
    #[error("the update's function panicked and nothing was changed: {message}")]
    Panicked {
        /// Message of the panic.
        message: String,
    },
    /// A higher term was promised: this owner has been superseded and must step down. If the write
    /// was sent to other replicas, it stays applied on this node, whatever `nowhere` is.
    #[error(
        "a higher term {current:?} was promised: step down; the write {}",
        if *.nowhere { "was accepted nowhere" } else { "may have been accepted" }
    )]
    Fenced {
        /// The highest term that any replica reported.
        current: Term,
        /// Whether so many replicas refused that no majority can have accepted the write.
        nowhere: bool,
    },
    /// Nothing was changed: the key holds a write with a higher stamp. Read it and try again.
    #[error("the key holds a later write and nothing was changed: read it again")]
    Stale(#[source] Arc<EditError>),
    /// Nothing was changed: the key belongs to a guarded group.
    #[error("the key is guarded by group `{group}` and nothing was changed: acquire a term")]
    Guarded {
        /// The group of the key.
        group: Group,
    },
    /// Nothing was changed: the key holds data of another type. A deleted key keeps its type.
    #[error("the key holds `{found}`, not `{expected}`; nothing was changed: use another key")]
    WrongType {
        /// Type that the caller expected.
        expected: Shape,
        /// Type that the key holds.
        found: Shape,
    },
    /// Nothing was changed: the user type is not registered at this node.
    #[error(transparent)]
    NotRegistered(NotRegistered),
    /// Nothing was changed: the value, or the key's name, would be too large.
    #[error("{bytes} bytes are more than the {limit} allowed; nothing was changed")]
    TooLarge {
        /// Size of the value or the name in bytes.
        bytes: usize,
        /// Maximum size in bytes.
        limit: usize,
    },
    /// Nothing was changed: this node is in no configuration, because it has not joined yet or was
    /// removed. `Local` operations still work.
    #[error("this node is no member; nothing was changed: retry after it has joined")]
    NotJoined,
    /// Nothing was changed: the consistency level needs more replicas than exist.
    #[error("the level needs {needed} replicas and {existing} exist; nothing was changed")]
    NotEnoughReplicas {
        /// Number of replicas that the level needs.
        needed: usize,
        /// Number of replicas in the configuration, without those that have announced their stop.
        existing: usize,
    },
    /// Nothing was changed: a limit of waiting requests was reached.
    #[error("{limit} requests wait already; nothing was changed: retry later")]
    Overloaded {
        /// The limit that was reached: of queued requests, pending replies or open requests.
        limit: usize,
    },
    /// Nothing was changed: the node has stopped.
    #[error("the node has stopped; nothing was changed")]
    Stopped,
    /// The node stopped before it answered. The change may have been made, and may have spread.
    #[error("the node stopped before it answered; the change may have been made")]
    Interrupted,
    /// The Replicator did not begin or answer the request in time, because this node is overloaded.
    /// The change may have been made, or may be made later.
    #[error(
        "no answer within {waited:?}; the change may be made, now or later: this node is \
         overloaded, see its log"
    )]
    Unanswered {
        /// How long the request was open: the timeout of the level and one second. The wait for a
        /// place in the queue came before.
        waited: Duration,
    },
    /// Nothing was changed, for another reason, which the message states.
    #[error(transparent)]
    Refused(RequestError),
}

/// Wraps the panic message of a caller's function as an [`EditError`], by which the conversion to
/// [`UpdateError`] tells a panic from an error that the function returned.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Panicked(pub(super) String);

impl From<RequestError> for UpdateError {
    /// A failed function becomes [`UpdateError::Panicked`] if it panicked, else
    /// [`UpdateError::Modify`]. Errors without a variant of their own become
    /// [`UpdateError::Refused`].
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(tally) => Self::Timeout(tally),
            RequestError::StoreFailure { failed } => Self::StoreFailure { failed },
            RequestError::Excluded { epoch } => Self::Excluded { epoch },
            RequestError::GuardedMeanwhile { group } => Self::GuardedMeanwhile { group },
            RequestError::ModifyFailure(why) => match &*why.0 {
                EditError::Custom(own) if own.is::<Panicked>() => {
                    Self::Panicked { message: own.to_string() }
                }
                _ => Self::Modify(why.0),
            },
            RequestError::Fenced { current, nowhere } => Self::Fenced { current, nowhere },
            RequestError::Stale(why) => Self::Stale(why.0),
            RequestError::Guarded { group } => Self::Guarded { group },
            RequestError::WrongType { expected, found } => Self::WrongType { expected, found },
            RequestError::NotRegistered(why) => Self::NotRegistered(why),
            RequestError::TooLarge { bytes, limit } => Self::TooLarge { bytes, limit },
            RequestError::NotJoined => Self::NotJoined,
            RequestError::NotEnoughReplicas { needed, existing } => {
                Self::NotEnoughReplicas { needed, existing }
            }
            RequestError::Overloaded { limit } => Self::Overloaded { limit },
            other => Self::Refused(other),
        }
    }
}

/// Why a read failed. A read changes nothing except stale replicas that it repairs, so it can be
/// repeated.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// Too few replicas answered, or too few acknowledged the repair that makes the result safe.
    #[error("{} of {} replicas answered in time: retry, or read fewer", .0.answered, .0.needed)]
    Timeout(Tally),
    /// The key holds data of another type. A deleted key keeps its type.
    #[error("the key holds `{found}`, not `{expected}`: read it with that type")]
    WrongType {
        /// Type that the caller expected.
        expected: Shape,
        /// Type that the key holds.
        found: Shape,
    },
    /// This node is in no configuration, because it has not joined yet or was removed. `ReadLocal`
    /// still works.
    #[error("this node is no member: retry after it has joined, or read locally")]
    NotJoined,
    /// This node was removed from the cluster while the request was open. `ReadLocal` still works.
    #[error("configuration {epoch} removed this node: restart it and read again")]
    Excluded {
        /// The configuration without this node.
        epoch: EpochId,
    },
    /// The consistency level needs more replicas than exist, perhaps only since a smaller
    /// configuration was installed during the read.
    #[error("the level needs {needed} replicas and {existing} exist")]
    NotEnoughReplicas {
        /// Number of replicas that the level needs.
        needed: usize,
        /// Number of replicas in the configuration, without those that have announced their stop.
        existing: usize,
    },
    /// The limit of waiting requests was reached.
    #[error("{limit} requests wait already: retry later")]
    Overloaded {
        /// Maximum number of waiting requests.
        limit: usize,
    },
    /// The node has stopped, or stopped before it answered.
    #[error("the node has stopped: ask another one")]
    Stopped,
    /// The Replicator did not begin or answer the request in time, because this node is overloaded.
    #[error("no answer within {waited:?}: this node is overloaded, see its log, and retry")]
    Unanswered {
        /// How long the request was open: the timeout of the level and one second. The wait for a
        /// place in the queue came before.
        waited: Duration,
    },
    /// Another reason, which the message states.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<CallFailure> for GetError {
    /// An interrupted read becomes [`GetError::Stopped`], because it can be repeated elsewhere.
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Overloaded { limit } => Self::Overloaded { limit },
            CallFailure::Stopped | CallFailure::Interrupted => Self::Stopped,
            CallFailure::Unanswered { waited } => Self::Unanswered { waited },
        }
    }
}

impl From<RequestError> for GetError {
    /// Errors without a variant of their own become [`GetError::Refused`].
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(tally) => Self::Timeout(tally),
            RequestError::WrongType { expected, found } => Self::WrongType { expected, found },
            RequestError::NotJoined => Self::NotJoined,
            RequestError::Excluded { epoch } => Self::Excluded { epoch },
            RequestError::NotEnoughReplicas { needed, existing } => {
                Self::NotEnoughReplicas { needed, existing }
            }
            RequestError::Overloaded { limit } => Self::Overloaded { limit },
            other => Self::Refused(other),
        }
    }
}

/// Why a delete did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeleteError {
    /// The value that this node had seen is deleted on this node, and the delete will spread.
    #[error(
        "{} of {} replicas acknowledged in time; the delete stays applied here and will spread",
        .0.answered, .0.needed
    )]
    Timeout(Tally),
    /// The key is deleted in memory, and may return after a power failure.
    #[error(
        "the durable store failed on {failed} replicas; the delete stays applied in memory: see \
         their logs"
    )]
    StoreFailure {
        /// Number of replicas whose store failed.
        failed: usize,
    },
    /// This node was removed from the cluster while the request was open. The value that it had
    /// seen is deleted on this node, which spreads nothing any longer; a majority may have deleted
    /// it. Restart the node, and read at a majority.
    #[error(
        "configuration {epoch} removed this node; the delete stays applied here and may be on a \
         majority: restart the node, and read at a majority"
    )]
    Excluded {
        /// The configuration without this node.
        epoch: EpochId,
    },
    /// The value is deleted on this node, which did not know that the key belongs to a guarded
    /// group. The delete may spread, but loses against every guarded write.
    #[error(
        "group `{group}` guards the key, which this node did not know: the delete stays applied \
         here, may spread and loses against guarded writes; write a `None` under a term instead"
    )]
    GuardedMeanwhile {
        /// The group of the key.
        group: Group,
    },
    /// Nothing was deleted: keys of a guarded group are never removed.
    #[error("the key is guarded by group `{group}`: write a `None` under its term instead")]
    Guarded {
        /// The group of the key.
        group: Group,
    },
    /// Nothing was deleted: this node is in no configuration, because it has not joined yet or was
    /// removed.
    #[error("this node is no member; nothing was deleted: retry after it has joined")]
    NotJoined,
    /// Nothing was deleted: the consistency level needs more replicas than exist.
    #[error("the level needs {needed} replicas and {existing} exist; nothing was deleted")]
    NotEnoughReplicas {
        /// Number of replicas that the level needs.
        needed: usize,
        /// Number of replicas in the configuration, without those that have announced their stop.
        existing: usize,
    },
    /// Nothing was deleted: the limit of waiting requests was reached.
    #[error("{limit} requests wait already; nothing was deleted: retry later")]
    Overloaded {
        /// Maximum number of waiting requests.
        limit: usize,
    },
    /// Nothing was deleted: the node has stopped.
    #[error("the node has stopped; nothing was deleted")]
    Stopped,
    /// The node stopped before it answered. The key may have been deleted, and that may have
    /// spread.
    #[error("the node stopped before it answered; the key may have been deleted")]
    Interrupted,
    /// The Replicator did not begin or answer the request in time, because this node is overloaded.
    /// The key may have been deleted, or may be deleted later.
    #[error(
        "no answer within {waited:?}; the key may be deleted, now or later: this node is \
         overloaded, see its log"
    )]
    Unanswered {
        /// How long the request was open: the timeout of the level and one second. The wait for a
        /// place in the queue came before.
        waited: Duration,
    },
    /// Nothing was deleted, for another reason, which the message states.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<RequestError> for DeleteError {
    /// Errors without a variant of their own, such as a key name that is too long, become
    /// [`DeleteError::Refused`].
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(tally) => Self::Timeout(tally),
            RequestError::StoreFailure { failed } => Self::StoreFailure { failed },
            RequestError::Excluded { epoch } => Self::Excluded { epoch },
            RequestError::GuardedMeanwhile { group } => Self::GuardedMeanwhile { group },
            RequestError::Guarded { group } => Self::Guarded { group },
            RequestError::NotJoined => Self::NotJoined,
            RequestError::NotEnoughReplicas { needed, existing } => {
                Self::NotEnoughReplicas { needed, existing }
            }
            RequestError::Overloaded { limit } => Self::Overloaded { limit },
            other => Self::Refused(other),
        }
    }
}

/// Why a flush could not confirm that every change is delivered. It changes nothing, and can be
/// repeated.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// A replica still lacks a change, or the Replicator did not answer in time because this node
    /// is overloaded. Nothing is lost: the changes will be delivered.
    #[error("not all changes were delivered in time; they will be delivered later")]
    Timeout,
    /// This node is in no configuration, so there are no replicas to deliver to.
    #[error("this node is no member: retry after it has joined")]
    NotJoined,
    /// This node was removed from the cluster before every replica had its changes. It delivers
    /// nothing any longer, so that changes which no other replica holds are lost.
    #[error(
        "configuration {epoch} removed this node before all changes were delivered; those that no \
         other replica holds are lost"
    )]
    Excluded {
        /// The configuration without this node.
        epoch: EpochId,
    },
    /// The limit of waiting requests was reached.
    #[error("{limit} requests wait already: retry later")]
    Overloaded {
        /// Maximum number of waiting requests.
        limit: usize,
    },
    /// The node has stopped, or stopped before it answered.
    #[error("the node has stopped")]
    Stopped,
    /// Another reason, which the message states.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<CallFailure> for FlushError {
    /// A flush without an answer in time becomes [`FlushError::Timeout`], and an interrupted one
    /// [`FlushError::Stopped`].
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Overloaded { limit } => Self::Overloaded { limit },
            CallFailure::Stopped | CallFailure::Interrupted => Self::Stopped,
            CallFailure::Unanswered { .. } => Self::Timeout,
        }
    }
}

impl From<RequestError> for FlushError {
    /// Drops the tally of a timeout. Errors without a variant of their own become
    /// [`FlushError::Refused`].
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(_) => Self::Timeout,
            RequestError::NotJoined => Self::NotJoined,
            RequestError::Excluded { epoch } => Self::Excluded { epoch },
            RequestError::Overloaded { limit } => Self::Overloaded { limit },
            other => Self::Refused(other),
        }
    }
}

/// Why a query about this node's Replicator failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The limit of waiting requests was reached.
    #[error("{limit} requests wait already: retry later")]
    Overloaded {
        /// Maximum number of waiting requests.
        limit: usize,
    },
    /// The node has stopped, or stopped before it answered.
    #[error("the node has stopped: ask another one")]
    Stopped,
    /// Another reason, which the message states.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<CallFailure> for QueryError {
    /// An interrupted query becomes [`QueryError::Stopped`].
    ///
    /// # Panics
    /// For `CallFailure::Unanswered`: queries have no deadline.
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Overloaded { limit } => Self::Overloaded { limit },
            CallFailure::Stopped | CallFailure::Interrupted => Self::Stopped,
            CallFailure::Unanswered { .. } => {
                unreachable!("a query about this node has no deadline")
            }
        }
    }
}

impl From<RequestError> for QueryError {
    /// All errors but `Overloaded` become [`QueryError::Refused`].
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Overloaded { limit } => Self::Overloaded { limit },
            other => Self::Refused(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How an update and a delete report a reason: their messages, and whether they are `Refused`.
    fn reported(why: &RequestError) -> [(String, bool); 2] {
        let update = UpdateError::from(why.clone());
        let delete = DeleteError::from(why.clone());
        [
            (update.to_string(), matches!(update, UpdateError::Refused(_))),
            (delete.to_string(), matches!(delete, DeleteError::Refused(_))),
        ]
    }

    #[test]
    fn change_that_stays_applied_is_not_reported_as_refused() {
        let (epoch, group) = (EpochId { generation: 1, number: 2 }, Group::new("g-"));
        for why in [RequestError::Excluded { epoch }, RequestError::GuardedMeanwhile { group }] {
            for (message, is_refused) in reported(&why) {
                assert!(!is_refused && message.contains("stays applied here"), "{message}");
            }
        }
        for why in [RequestError::NotLoaded, RequestError::EmptyKey] {
            for (message, is_refused) in reported(&why) {
                assert!(is_refused && message.contains("nothing was changed"), "{message}");
            }
        }
    }

    #[test]
    fn read_and_flush_report_the_removal_of_their_node() {
        let epoch = EpochId { generation: 1, number: 2 };
        let read = GetError::from(RequestError::Excluded { epoch });
        assert!(matches!(read, GetError::Excluded { epoch: by } if by == epoch), "{read}");
        let flush = FlushError::from(RequestError::Excluded { epoch });
        assert!(matches!(flush, FlushError::Excluded { epoch: by } if by == epoch), "{flush}");
    }
}
