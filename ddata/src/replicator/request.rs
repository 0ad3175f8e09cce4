//! Requests to the Replicator, and their replies.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::epoch::EpochId;
use super::quorum::Level;
use crate::causal::{CausalContext, DotSet};
use crate::data::{NotRegistered, Value};
use crate::id::ReplicaId;
use crate::key::{Group, Key, KeyName, Pattern};
use crate::types::delta::State;
use crate::types::edit::{Author, Edit, EditError, Prepared};
use crate::types::shape::Shape;
use crate::types::{DataType, Term};

/// Names a request, and no other ever; its reply carries the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// From how many replicas to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadConsistency {
    /// This replica only.
    Local,
    /// `n` replicas, this one included.
    From(usize, Duration),
    /// A majority of the voters, never fewer than `min_cap`.
    Majority(MinCap, Duration),
    /// A majority and `additional` more.
    MajorityPlus(usize, MinCap, Duration),
    /// Every member.
    All(Duration),
}

/// To how many replicas to write before the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteConsistency {
    /// This replica only; the change spreads all the same.
    Local,
    /// `n` replicas, this one included.
    To(usize, Duration),
    /// A majority of the voters, never fewer than `min_cap`.
    Majority(MinCap, Duration),
    /// A majority and `additional` more.
    MajorityPlus(usize, MinCap, Duration),
    /// Every member.
    All(Duration),
}

/// The least number of replicas that a majority operation asks for (if there are as many). Zero
/// unless one wants Akka's arithmetic: with configurations a plain majority is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinCap(pub usize);

impl ReadConsistency {
    /// A plain majority.
    #[must_use]
    pub const fn majority(within: Duration) -> Self {
        Self::Majority(MinCap(0), within)
    }

    pub(super) const fn level(self) -> Option<(Level, Duration)> {
        Some(match self {
            Self::Local => return None,
            Self::From(n, within) => (Level::Count(n), within),
            Self::Majority(MinCap(min_cap), within) => {
                (Level::Majority { additional: 0, min_cap }, within)
            }
            Self::MajorityPlus(additional, MinCap(min_cap), within) => {
                (Level::Majority { additional, min_cap }, within)
            }
            Self::All(within) => (Level::All, within),
        })
    }
}

impl WriteConsistency {
    /// A plain majority.
    #[must_use]
    pub const fn majority(within: Duration) -> Self {
        Self::Majority(MinCap(0), within)
    }

    pub(super) const fn level(self) -> Option<(Level, Duration)> {
        Some(match self {
            Self::Local => return None,
            Self::To(n, within) => (Level::Count(n), within),
            Self::Majority(MinCap(min_cap), within) => {
                (Level::Majority { additional: 0, min_cap }, within)
            }
            Self::MajorityPlus(additional, MinCap(min_cap), within) => {
                (Level::Majority { additional, min_cap }, within)
            }
            Self::All(within) => (Level::All, within),
        })
    }
}

/// The right under which a guarded change is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The group.
    pub group: Group,
    /// The term that the caller holds.
    pub term: Term,
}

type Modify = Box<dyn FnOnce(&State, Author) -> Result<Prepared, EditError> + Send>;

/// A change of one key, as a function on its value.
pub struct Update(pub(super) Box<Change>); // it is moved from queue to queue

/// What an [`Update`] is made of.
pub(super) struct Change {
    pub(super) key: KeyName,
    pub(super) shape: Shape,
    pub(super) consistency: WriteConsistency,
    pub(super) guard: Option<Guard>,
    pub(super) told: bool,
    pub(super) modify: Modify,
}

impl Update {
    /// Changes the value under `key` with `f`, on the empty value if there is none.
    pub fn new<T: DataType, R>(
        key: &Key<T>,
        consistency: WriteConsistency,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
    ) -> Self {
        let modify: Modify = Box::new(move |state, author| {
            state.prepare::<T, _>(author, f).map(|(_, prepared)| prepared)
        });
        let (key, shape) = (key.name().clone(), T::shape());
        Self(Box::new(Change { key, shape, consistency, guard: None, told: true, modify }))
    }

    /// The key that it changes.
    #[must_use]
    pub const fn key(&self) -> &KeyName {
        &self.0.key
    }

    /// Makes the change under a term: refused by every replica that has promised a higher one.
    #[must_use]
    pub fn guarded(mut self, guard: Guard) -> Self {
        self.0.guard = Some(guard);
        self
    }

    /// Its reply brings no snapshot of what the key holds then.
    #[must_use]
    pub fn untold(mut self) -> Self {
        self.0.told = false;
        self
    }
}

impl fmt::Debug for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { key, shape, consistency, guard, .. } = &*self.0;
        write!(f, "Update({key}, {shape}, {consistency:?}, {guard:?})")
    }
}

/// What a user asks of the Replicator. All but `Subscribe` and `Unsubscribe` get one reply.
#[derive(Debug)]
pub enum Request {
    /// Reads a key.
    Get {
        /// The key.
        key: KeyName,
        /// The kind of data expected; another one is `WrongType`.
        shape: Option<Shape>,
        /// From how many replicas.
        consistency: ReadConsistency,
    },
    /// Changes a key.
    Update(Update),
    /// Removes what this replica has seen of a key; the key can be used again.
    Delete {
        /// The key.
        key: KeyName,
        /// To how many replicas.
        consistency: WriteConsistency,
    },
    /// Tells of the current value and of every change. A slow reader sees the latest value.
    Subscribe {
        /// Names it in every notice.
        subscription: SubscriptionId,
        /// Which keys.
        pattern: Pattern,
    },
    /// Ends a subscription.
    Unsubscribe(SubscriptionId),
    /// The keys that hold something, in the order of their names.
    Keys {
        /// Only those that begin so.
        prefix: String,
        /// Only those after this one.
        after: Option<KeyName>,
        /// At most so many.
        limit: usize,
    },
    /// How many replicas there are; 0 while durable data loads or before this node has joined.
    ReplicaCount,
    /// Replies when every change made so far is delivered to every replica.
    FlushChanges {
        /// How long to wait.
        within: Duration,
    },
    /// Takes a term for a group: a fencing read and the recovery write (spec/safety.md §2).
    Fence {
        /// The group.
        group: Group,
        /// The new term, higher than any known.
        term: Term,
        /// How long to wait.
        within: Duration,
    },
}

/// A request that was carried out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// What was read.
    Got {
        /// The value; `None`: never there, deleted or expired.
        value: Option<Value>,
        /// What the read has seen of the key: every later majority read has seen as much.
        context: CausalContext,
    },
    /// The update was made.
    Updated {
        /// The value after it, unless it was to be [untold](Update::untold).
        value: Option<Value>,
        /// Its dots: where a context contains them, the update is known. Empty if it changed
        /// nothing.
        dots: DotSet,
    },
    /// Deleted.
    Deleted {
        /// Its dots; empty if there was nothing to delete.
        dots: DotSet,
    },
    /// A page of keys.
    Keys(Vec<KeyName>),
    /// How many replicas there are.
    ReplicaCount(usize),
    /// Everything is delivered.
    Flushed,
    /// The term is taken; the group's values as a quorum holds them now.
    Fenced {
        /// The term.
        term: Term,
        /// Every key of the group with what it holds.
        values: Vec<(KeyName, Value)>,
    },
}

/// Why the caller's function refused, comparable by its text.
#[derive(Clone, Debug)]
pub struct ModifyError(pub Arc<EditError>);

impl PartialEq for ModifyError {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

/// Who answered a request that timed out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Replicas that answered, this one included if it counts.
    pub answered: usize,
    /// Replicas needed.
    pub needed: usize,
    /// Who has not answered; at most [`MISSING_MAX`] of them.
    pub missing: Vec<ReplicaId>,
}

/// Missing replicas that a [`Tally`] names.
pub const MISSING_MAX: usize = 100;

/// Why a request was not, or perhaps not, carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Too few answered in time. A write stays applied here and will spread; it may be on a
    /// majority already.
    #[error("{} of {} replicas answered in time; a write stays applied and will spread", .0.answered, .0.needed)]
    Timeout(Tally),
    /// The durable store failed on so many replicas that the level can't be reached.
    #[error("the durable store failed on {failed} replicas; the change stays applied in memory")]
    StoreFailure {
        /// How many refused.
        failed: usize,
    },
    /// The caller's function failed. Nothing was changed.
    #[error("the update failed and nothing was changed: {}", .0.0)]
    ModifyFailure(ModifyError),
    /// A higher term was promised. Step down. If not `nowhere`, the write may have been accepted.
    #[error("a higher term {current:?} was promised: this owner is superseded and must step down")]
    Fenced {
        /// The highest term heard of.
        current: Term,
        /// So many refused that no majority can have accepted.
        nowhere: bool,
    },
    /// This node was removed while the request was under way. A write stays applied here and may
    /// be on a majority. It never comes back: restart the node.
    #[error(
        "configuration {epoch} removed this node; a write may be on a majority: restart the node \
         and ask again"
    )]
    Excluded {
        /// The configuration without this node.
        epoch: EpochId,
    },
    /// Nothing was changed: what this node has on disk can't be read, so it serves nothing.
    #[error("the durable data of this node can't be read; nothing was changed, see its log")]
    NotLoaded,
    /// Nothing was changed: this node is in no configuration yet, or in none any more.
    #[error("this node is no member; nothing was changed, retry after it has joined")]
    NotJoined,
    /// Nothing was changed: the level asks for more replicas than there are.
    #[error("{needed} replicas are asked for and there are {existing}; nothing was changed")]
    NotEnoughReplicas {
        /// Replicas asked for.
        needed: usize,
        /// Replicas there are.
        existing: usize,
    },
    /// Nothing was changed: too many requests wait.
    #[error("{limit} requests wait already; nothing was changed, retry later")]
    Overloaded {
        /// `max_pending_requests`.
        limit: usize,
    },
    /// Nothing was changed: the key has no name.
    #[error("a key's name has at least one character; nothing was changed")]
    EmptyKey,
    /// Nothing was changed: the value, or the key's name, would be too large.
    #[error("{bytes} bytes are more than the {limit} allowed; nothing was changed")]
    TooLarge {
        /// How large.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Nothing was changed: the key holds another kind of data.
    #[error("the key holds `{found}`, not `{expected}`; nothing was changed")]
    WrongType {
        /// What the caller expected.
        expected: Shape,
        /// What the key holds.
        found: Shape,
    },
    /// Nothing was changed: the type's name can't travel.
    #[error(
        "no peer could read type `{shape}`: maps nest at most 16 deep, names have 1 to 500 bytes; \
         nothing was changed"
    )]
    UnfitType {
        /// The type.
        shape: Shape,
    },
    /// Nothing was changed: the key belongs to a guarded group.
    #[error("the key is guarded by group `{group}`: take a term for it; nothing was changed")]
    Guarded {
        /// The group.
        group: Group,
    },
    /// The key belongs to a guarded group of which this node did not know when it made the change.
    /// The change stays applied here and may spread; every guarded write wins over it.
    #[error(
        "others know that group `{group}` guards the key: the change stays applied here, may \
         spread and loses against guarded ones; take a term for the group"
    )]
    GuardedMeanwhile {
        /// The group.
        group: Group,
    },
    /// Nothing was changed: a guarded update below a majority need not meet the next fence.
    #[error("a guarded update needs `Majority`, `MajorityPlus` or `All`; nothing was changed")]
    TooWeak,
    /// Nothing was changed: nobody can hold this term.
    #[error("a term's number is at least 1 and at most 2^63 - 1, not {}; nothing was changed", .term.number)]
    UnfitTerm {
        /// The term.
        term: Term,
    },
    /// Nothing was changed: a group without a name would guard every key.
    #[error("a group needs a name, or it would guard every key; nothing was changed")]
    UnfitGroup,
    /// Nothing was changed: the key does not belong to the group of the guard.
    #[error("the key is not in group `{group}`; nothing was changed")]
    NotInGroup {
        /// The group.
        group: Group,
    },
    /// Nothing was changed: a write with a higher stamp is there.
    #[error("a later write is there; nothing was changed: {}", .0.0)]
    Stale(ModifyError),
    /// Nothing was changed: the user type is not registered.
    #[error(transparent)]
    NotRegistered(#[from] NotRegistered),
}

/// A notice to a subscriber.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The key holds this now.
    Changed {
        /// The key.
        key: KeyName,
        /// What it holds.
        value: Value,
        /// What the last notice showed of it, if there was one: see
        /// [`Value::keys_changed_since`].
        before: Option<Value>,
    },
    /// The key holds nothing any more.
    Deleted {
        /// The key.
        key: KeyName,
    },
}
