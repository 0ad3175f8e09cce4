//! Why a request was not, or perhaps not, carried out: an enum per verb.
//!
//! Every variant says what is true now and whether the change may have happened. All but
//! `Timeout`, `StoreFailure`, `Interrupted` and `Unanswered` (and `Fenced`, if it says so) mean
//! that nothing was changed.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::data::NotRegistered;
use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::request::{RequestError, Tally};
use ostraca_ddata::types::Term;
use ostraca_ddata::types::edit::EditError;
use ostraca_ddata::types::shape::Shape;

/// What stands between a caller and the Replicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Never queued: too many wait.
    Overloaded { limit: usize },
    /// Never queued: the node has stopped.
    Stopped,
    /// Queued, and the node stopped before it replied.
    Interrupted,
    /// Queued, and there is no reply, long after the caller's time.
    Unanswered { waited: Duration },
}

/// Why an update did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The change is made here and will spread; whether a majority will ever hold it is open.
    /// Read at a majority before you repeat what must not happen twice.
    #[error(
        "{} of {} replicas acknowledged in time; the change stays applied here and will spread",
        .0.answered, .0.needed
    )]
    Timeout(Tally),
    /// The change is made in memory; it may be lost in a power cut.
    #[error(
        "the durable store failed on {failed} replicas; the change stays applied in memory: see \
         their logs"
    )]
    StoreFailure {
        /// How many said so.
        failed: usize,
    },
    /// The caller's function returned an error. Nothing was changed.
    #[error("the update was given up and nothing was changed")]
    Modify(#[source] Arc<EditError>),
    /// The caller's function panicked. Nothing was changed, and nothing else was harmed.
    #[error("the update's function panicked and nothing was changed: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// A higher term was promised: this owner is superseded and must step down.
    #[error(
        "a higher term {current:?} was promised: step down; the write {}",
        if *.nowhere { "was accepted nowhere" } else { "may have been accepted" }
    )]
    Fenced {
        /// The highest term heard of.
        current: Term,
        /// So many refused that no majority can have accepted.
        nowhere: bool,
    },
    /// Nothing was changed: a write with a higher stamp is there. Read it and try again.
    #[error("a later write is there and nothing was changed: read again")]
    Stale(#[source] Arc<EditError>),
    /// Nothing was changed: the key belongs to a guarded group.
    #[error("the key is guarded by group `{group}` and nothing was changed: take a term for it")]
    Guarded {
        /// The group.
        group: Group,
    },
    /// Nothing was changed: the key holds another kind of data.
    #[error("the key holds `{found}`, not `{expected}`; nothing was changed: use another key")]
    WrongType {
        /// What was asked for.
        expected: Shape,
        /// What is there.
        found: Shape,
    },
    /// Nothing was changed: the user type is not registered at this node.
    #[error(transparent)]
    NotRegistered(NotRegistered),
    /// Nothing was changed: the value, or the key's name, would be too large.
    #[error("{bytes} bytes are more than the {limit} allowed; nothing was changed")]
    TooLarge {
        /// How large.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Nothing was changed: this node is in no configuration. `Local` works all the same.
    #[error("this node is no member; nothing was changed: retry after it has joined")]
    NotJoined,
    /// Nothing was changed: the level asks for more replicas than there are.
    #[error("{needed} replicas are asked for and there are {existing}; nothing was changed")]
    NotEnoughReplicas {
        /// Replicas asked for.
        needed: usize,
        /// Replicas there are.
        existing: usize,
    },
    /// Nothing was changed: as many requests wait as may.
    #[error("{limit} requests wait already; nothing was changed: retry later")]
    Overloaded {
        /// How many may wait.
        limit: usize,
    },
    /// Nothing was changed: the node has stopped.
    #[error("the node has stopped; nothing was changed")]
    Stopped,
    /// The node stopped in between: the change may have been made, and may have spread.
    #[error("the node stopped before it answered; the change may have been made")]
    Interrupted,
    /// The Replicator has not begun, or not answered: this node is overloaded.
    /// The change may be made, also later.
    #[error(
        "no answer within {waited:?}; the change may be made, also later: this node is overloaded, \
         see its log"
    )]
    Unanswered {
        /// How long it had.
        waited: Duration,
    },
    /// Nothing was changed, for a reason that this release has no name for.
    #[error(transparent)]
    Refused(RequestError),
}

/// A function of the caller that panicked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Panicked(pub(super) String);

impl From<Lost> for UpdateError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Overloaded { limit } => Self::Overloaded { limit },
            Lost::Stopped => Self::Stopped,
            Lost::Interrupted => Self::Interrupted,
            Lost::Unanswered { waited } => Self::Unanswered { waited },
        }
    }
}

impl From<RequestError> for UpdateError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(tally) => Self::Timeout(tally),
            RequestError::StoreFailure { failed } => Self::StoreFailure { failed },
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

/// Why a read has no answer. A read changes nothing but what is stale, so it can be repeated.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GetError {
    /// Too few answered, or too few took the repair that makes the answer safe.
    #[error("{} of {} replicas answered in time: retry, or read fewer", .0.answered, .0.needed)]
    Timeout(Tally),
    /// The key holds another kind of data.
    #[error("the key holds `{found}`, not `{expected}`: read it as that")]
    WrongType {
        /// What was asked for.
        expected: Shape,
        /// What is there.
        found: Shape,
    },
    /// This node is in no configuration. `ReadLocal` works all the same.
    #[error("this node is no member: retry after it has joined, or read locally")]
    NotJoined,
    /// The level asks for more replicas than there are.
    #[error("{needed} replicas are asked for and there are {existing}")]
    NotEnoughReplicas {
        /// Replicas asked for.
        needed: usize,
        /// Replicas there are.
        existing: usize,
    },
    /// As many requests wait as may.
    #[error("{limit} requests wait already: retry later")]
    Overloaded {
        /// How many may wait.
        limit: usize,
    },
    /// The node has stopped, or stopped before it answered.
    #[error("the node has stopped: ask another one")]
    Stopped,
    /// The Replicator has not begun, or not answered: this node is overloaded.
    #[error("no answer within {waited:?}: this node is overloaded, see its log, and retry")]
    Unanswered {
        /// How long it had.
        waited: Duration,
    },
    /// A reason that this release has no name for.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<Lost> for GetError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Overloaded { limit } => Self::Overloaded { limit },
            Lost::Stopped | Lost::Interrupted => Self::Stopped,
            Lost::Unanswered { waited } => Self::Unanswered { waited },
        }
    }
}

impl From<RequestError> for GetError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(tally) => Self::Timeout(tally),
            RequestError::WrongType { expected, found } => Self::WrongType { expected, found },
            RequestError::NotJoined => Self::NotJoined,
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
    /// What this node had seen is deleted here, and that will spread.
    #[error(
        "{} of {} replicas acknowledged in time; the delete stays applied here and will spread",
        .0.answered, .0.needed
    )]
    Timeout(Tally),
    /// Deleted in memory; it may come back after a power cut.
    #[error(
        "the durable store failed on {failed} replicas; the delete stays applied in memory: see \
         their logs"
    )]
    StoreFailure {
        /// How many said so.
        failed: usize,
    },
    /// Nothing was deleted: keys of a guarded group are never removed.
    #[error("the key is guarded by group `{group}`: write a `None` under its term instead")]
    Guarded {
        /// The group.
        group: Group,
    },
    /// Nothing was deleted: this node is in no configuration.
    #[error("this node is no member; nothing was deleted: retry after it has joined")]
    NotJoined,
    /// Nothing was deleted: the level asks for more replicas than there are.
    #[error("{needed} replicas are asked for and there are {existing}; nothing was deleted")]
    NotEnoughReplicas {
        /// Replicas asked for.
        needed: usize,
        /// Replicas there are.
        existing: usize,
    },
    /// Nothing was deleted: as many requests wait as may.
    #[error("{limit} requests wait already; nothing was deleted: retry later")]
    Overloaded {
        /// How many may wait.
        limit: usize,
    },
    /// Nothing was deleted: the node has stopped.
    #[error("the node has stopped; nothing was deleted")]
    Stopped,
    /// The node stopped in between: the delete may have been made, and may have spread.
    #[error("the node stopped before it answered; the key may have been deleted")]
    Interrupted,
    /// The Replicator has not begun, or not answered: this node is overloaded.
    /// The key may be deleted, also later.
    #[error(
        "no answer within {waited:?}; the key may be deleted, also later: this node is \
         overloaded, see its log"
    )]
    Unanswered {
        /// How long it had.
        waited: Duration,
    },
    /// Nothing was deleted, for a reason that this release has no name for.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<Lost> for DeleteError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Overloaded { limit } => Self::Overloaded { limit },
            Lost::Stopped => Self::Stopped,
            Lost::Interrupted => Self::Interrupted,
            Lost::Unanswered { waited } => Self::Unanswered { waited },
        }
    }
}

impl From<RequestError> for DeleteError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(tally) => Self::Timeout(tally),
            RequestError::StoreFailure { failed } => Self::StoreFailure { failed },
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

/// Why it is not known that every change is delivered.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// Somebody lacks something still. Nothing is lost: it will be delivered.
    #[error("not everything was delivered in time; it will be")]
    Timeout,
    /// This node is in no configuration: nobody is there to deliver to.
    #[error("this node is no member: retry after it has joined")]
    NotJoined,
    /// As many requests wait as may.
    #[error("{limit} requests wait already: retry later")]
    Overloaded {
        /// How many may wait.
        limit: usize,
    },
    /// The node has stopped.
    #[error("the node has stopped")]
    Stopped,
    /// A reason that this release has no name for.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<Lost> for FlushError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Overloaded { limit } => Self::Overloaded { limit },
            Lost::Stopped | Lost::Interrupted => Self::Stopped,
            Lost::Unanswered { .. } => Self::Timeout,
        }
    }
}

impl From<RequestError> for FlushError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Timeout(_) => Self::Timeout,
            RequestError::NotJoined => Self::NotJoined,
            RequestError::Overloaded { limit } => Self::Overloaded { limit },
            other => Self::Refused(other),
        }
    }
}

/// Why a question about this node has no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// As many requests wait as may.
    #[error("{limit} requests wait already: retry later")]
    Overloaded {
        /// How many may wait.
        limit: usize,
    },
    /// The node has stopped.
    #[error("the node has stopped: ask another one")]
    Stopped,
    /// A reason that this release has no name for.
    #[error(transparent)]
    Refused(RequestError),
}

impl From<Lost> for QueryError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Overloaded { limit } => Self::Overloaded { limit },
            Lost::Stopped | Lost::Interrupted => Self::Stopped,
            Lost::Unanswered { .. } => unreachable!("a question about this node has no deadline"),
        }
    }
}

impl From<RequestError> for QueryError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Overloaded { limit } => Self::Overloaded { limit },
            other => Self::Refused(other),
        }
    }
}
