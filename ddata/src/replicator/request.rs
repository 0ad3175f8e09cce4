//! Requests of the program to the Replicator, their replies and errors, and notices to subscribers.
//!
//! See docs/protocol/replication.md#consistency-levels for the levels and outcomes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::epoch::EpochId;
use super::quorum::Level;
use crate::causal::{CausalContext, DotSet};
use crate::data::{NotRegistered, Value};
use crate::id::ReplicaId;
use crate::key::{Group, Key, KeyName, Pattern};
use crate::types::delta::KeyState;
use crate::types::edit::{Author, Edit, EditError, Prepared};
use crate::types::shape::Shape;
use crate::types::{DataType, Term};

/// The id of a request, chosen by the program. It must never be reused, which is not checked; the
/// reply carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The id of a subscription, chosen by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// The number of replicas whose answers a read needs, with its timeout. All levels but `Local` need
/// this node to be a member, and fail with `NotJoined` otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadConsistency {
    /// Reads this replica only, at once, whether it is a member or not.
    Local,
    /// `n` members that have not announced their stop, this one included; 0 needs no answer. More
    /// than there are fail with `NotEnoughReplicas`.
    From(usize, Duration),
    /// A majority of the voters; at least `min_cap` of them, if there are as many.
    Majority(MinCap, Duration),
    /// A majority and the given number of further voters.
    MajorityPlus(usize, MinCap, Duration),
    /// Every member that has not announced its stop, and a majority of the voters. If fewer voters
    /// go on, voters that have announced their stop must answer as well.
    All(Duration),
}

/// The number of replicas that must hold a change before the reply, with the timeout. All levels
/// but `Local` need this node to be a member, and fail with `NotJoined` otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteConsistency {
    /// This replica only, whether it is a member or not; of a durable key without write-behind,
    /// once its disk holds the change. It still spreads to all others: from a node that has not
    /// joined, once it has.
    Local,
    /// `n` members that have not announced their stop, this one included; 0 and 1 are replied to at
    /// the end of the batch. More than there are fail with `NotEnoughReplicas`.
    To(usize, Duration),
    /// A majority of the voters; at least `min_cap` of them, if there are as many.
    Majority(MinCap, Duration),
    /// A majority and the given number of further voters.
    MajorityPlus(usize, MinCap, Duration),
    /// Every member that has not announced its stop, and a majority of the voters. If fewer voters
    /// go on, voters that have announced their stop must answer as well.
    All(Duration),
}

/// Lower bound of a majority (at most all voters). Zero is safe, because majorities are counted
/// within one configuration; other values reproduce Akka's `majority-min-cap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinCap(pub usize);

impl ReadConsistency {
    /// A majority of the voters without a lower bound.
    #[must_use]
    pub const fn majority(within: Duration) -> Self {
        Self::Majority(MinCap(0), within)
    }

    /// The level and the timeout of a read that needs other replicas; `None` for `Local`. The
    /// configured floor of majorities is not applied yet.
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
    /// A majority of the voters without a lower bound.
    #[must_use]
    pub const fn majority(within: Duration) -> Self {
        Self::Majority(MinCap(0), within)
    }

    /// The level and the timeout of a write that needs other replicas; `None` for `Local`. The
    /// configured floor of majorities is not applied yet.
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

/// The guarded group and the term under which a guarded change is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The group that contains the key.
    pub group: Group,
    /// The term that the caller has taken by [`ReplicatorRequest::Fence`]. Whether it was taken is
    /// not checked, only that no higher one is promised.
    pub term: Term,
}

/// The change of an update: computes a delta from the present state of the key (an empty one if it
/// is absent), which it does not change.
type Modify = Box<dyn FnOnce(&KeyState, Author) -> Result<Prepared, EditError> + Send>;

/// A change of one key, as a function on its value. Without further calls it is unguarded, and the
/// reply contains the value after the change.
pub struct Update(pub(super) Box<UpdateParts>); // boxed, because it is moved between queues

/// The parts of an [`Update`].
pub(super) struct UpdateParts {
    pub(super) key: KeyName,
    pub(super) shape: Shape,
    pub(super) consistency: WriteConsistency,
    pub(super) guard: Option<Guard>, // `None`: an unguarded change
    pub(super) told: bool,           // whether the reply contains the value after the change
    pub(super) modify: Modify,
}

impl Update {
    /// Changes the value of `key` by `f`. If the key does not exist or was deleted, `f` gets the
    /// empty value.
    ///
    /// `f` is called at most once, by the Replicator when it handles the request, and not at all if
    /// the request is refused before. Its result is dropped. If it returns an error, nothing is
    /// changed, and the request fails with `ModifyFailure`, `Stale` or `Fenced`.
    pub fn new<T: DataType, R>(
        key: &Key<T>,
        consistency: WriteConsistency,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
    ) -> Self {
        let modify: Modify = Box::new(move |state, author| {
            state.prepare::<T, _>(author, f).map(|(_, prepared)| prepared)
        });
        let (key, shape) = (key.name().clone(), T::shape());
        Self(Box::new(UpdateParts { key, shape, consistency, guard: None, told: true, modify }))
    }

    /// Returns the key that the update changes.
    #[must_use]
    pub const fn key(&self) -> &KeyName {
        &self.0.key
    }

    /// Makes this a guarded change: every replica that has promised a higher term refuses it. The
    /// update fails with `TooWeak` unless its level is `Majority`, `MajorityPlus` or `All`. A
    /// second call replaces the guard.
    #[must_use]
    pub fn guarded(mut self, guard: Guard) -> Self {
        self.0.guard = Some(guard);
        self
    }

    /// Omits the value after the change from the reply.
    #[must_use]
    pub fn untold(mut self) -> Self {
        self.0.told = false;
        self
    }
}

/// Shows key, shape, level and guard, but not the function.
impl fmt::Debug for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UpdateParts { key, shape, consistency, guard, .. } = &*self.0;
        write!(f, "Update({key}, {shape}, {consistency:?}, {guard:?})")
    }
}

/// A request to the Replicator. All but `Subscribe` and `Unsubscribe` get exactly one reply.
#[derive(Debug)]
pub enum ReplicatorRequest {
    /// Reads the value of a key. Counts as a use of it, for expiry.
    Get {
        /// The name of the key. Its length is not checked.
        key: KeyName,
        /// The expected type of data; `None` accepts any. If the key holds another one, here or in
        /// the answers, and even if it is deleted, the read fails with `WrongType`.
        shape: Option<Shape>,
        /// The number of replicas to read from, and the timeout.
        consistency: ReadConsistency,
    },
    /// Changes the value of a key.
    Update(Update),
    /// Deletes the changes of a key that this replica has seen. The key can be used again, with the
    /// same type, and concurrent changes survive. Succeeds at once if this replica does not hold
    /// the key. A guarded key cannot be deleted: the request fails with `Guarded`.
    Delete {
        /// The name of the key.
        key: KeyName,
        /// The number of replicas that must hold the deletion, and the timeout.
        consistency: WriteConsistency,
    },
    /// Notifies of the current values and of every later change. A slow subscriber sees the latest
    /// value, not each one.
    Subscribe {
        /// The id that every notice will carry. An open subscription with this id is replaced.
        subscription: SubscriptionId,
        /// The key or prefix to watch.
        pattern: Pattern,
    },
    /// Ends a subscription; ignored if it is not open.
    Unsubscribe(SubscriptionId),
    /// Lists keys that hold data at this replica, in the order of their names. Deleted keys are
    /// left out.
    Keys {
        /// Lists only keys with this prefix.
        prefix: String,
        /// Lists only keys after this one, which need not exist; `None` lists from the first on.
        after: Option<KeyName>,
        /// The maximum number of keys in the reply; 0 gives an empty one.
        limit: usize,
    },
    /// Returns the number of members, with those that have announced their stop; 0 while durable
    /// data is loaded, before this node has joined, or after it was removed.
    ReplicaCount,
    /// Replies when every change that this replica holds so far and has pushed is held by every
    /// peer that it was pushed to, and each peer that a push was given up for has caught up by
    /// anti-entropy. Fails with `NotJoined` if this node is no member.
    FlushChanges {
        /// The time after which the request fails with `Timeout`.
        within: Duration,
    },
    /// Takes a term for a guarded group by a fencing read and the recovery write, so that writes of
    /// earlier owners are refused (docs/protocol/replication.md#guarded-groups).
    Fence {
        /// The guarded group whose term is taken.
        group: Group,
        /// The new term. No voter asked may have promised a higher one; a term that is promised
        /// already may be taken again.
        term: Term,
        /// The time after which the request fails with `Timeout`.
        within: Duration,
    },
}

/// The reply to a request that succeeded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ReplicatorReply {
    /// The reply to a `Get`, at any level.
    Got {
        /// The value; `None` if the key was never written, or was deleted or expired.
        value: Option<Value>,
        /// The context of the value that was read; empty if no replica that was read held the key,
        /// but not if it is deleted. A context of a later majority read includes that of an earlier
        /// one.
        context: CausalContext,
    },
    /// The update was applied, and as many replicas hold it as its level asks for.
    Updated {
        /// The value after the update at this replica, an empty one included; `None` if it was made
        /// [untold](Update::untold).
        value: Option<Value>,
        /// The dots of the update: a context that contains them includes the update. Empty if the
        /// update changed nothing.
        dots: DotSet,
    },
    /// The deletion was applied, and as many replicas hold it as its level asks for.
    Deleted {
        /// The dots of the deletion; empty if there was nothing to delete, because the key is
        /// absent or deleted already.
        dots: DotSet,
    },
    /// A page of keys, in the order of their names.
    Keys(Vec<KeyName>),
    /// The number of members.
    ReplicaCount(usize),
    /// Every change made before the request has been delivered.
    Flushed,
    /// The term is taken. At least a quorum holds the group's values that are returned.
    Fenced {
        /// The term that was taken.
        term: Term,
        /// Every key of the group with its value, in the order of names. Deleted keys are left out.
        values: Vec<(KeyName, Value)>,
    },
}

/// The error of the caller's update function. Two are equal if their texts are equal.
#[derive(Clone, Debug)]
pub struct ModifyError(pub Arc<EditError>);

impl PartialEq for ModifyError {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_string() == other.0.to_string()
    }
}

/// The replicas that answered a request which timed out. Of a flush: those that hold all changes,
/// out of this replica and all its peers, which need not be members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of replicas that answered, this one included if it counts. Of a write: those that
    /// hold all of it.
    pub answered: usize,
    /// Number of answers that the request needs. Of a fence: half of the voters, rounded up, if the
    /// tiebreaker is among those that answered, otherwise more than half.
    pub needed: usize,
    /// The members that have not answered, perhaps this one too; at most [`MISSING_MAX`] of them. A
    /// member that has announced its stop is named only if it votes. Of a flush: the peers that
    /// lack changes.
    pub missing: Vec<ReplicaId>,
}

/// Maximum number of missing replicas that a [`Tally`] names.
pub const MISSING_MAX: usize = 100;

/// Why a request failed. After most errors nothing was changed; the others describe what may
/// remain.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Too few replicas answered in time. A write stays applied here and will spread; it may be on
    /// a majority already.
    #[error("{} of {} replicas answered in time; a write stays applied and will spread", .0.answered, .0.needed)]
    Timeout(Tally),
    /// The durable store failed on so many replicas that the level can't be reached; of `Local`: on
    /// this one. The change stays applied in memory and spreads.
    #[error("the durable store failed on {failed} replicas; the change stays applied in memory")]
    StoreFailure {
        /// Number of replicas whose store failed.
        failed: usize,
    },
    /// The update function returned an error. Nothing was changed.
    #[error("the update failed and nothing was changed: {}", .0.0)]
    ModifyFailure(ModifyError),
    /// A higher term was promised, so the caller must step down; also the error of a `Fence`.
    /// Unless `nowhere`, a majority may have accepted the write
    /// (docs/protocol/replication.md#fenced-and-timeout-are-indeterminate). A write that was sent
    /// stays applied here.
    #[error("a higher term {current:?} was promised: this owner is superseded and must step down")]
    Fenced {
        /// The highest promised term that was reported.
        current: Term,
        /// Whether so many voters refused the write that no majority can have accepted it.
        nowhere: bool,
    },
    /// This node was removed while the request, of whatever kind, was open. A write stays applied
    /// here and may be on a majority. The node never becomes a member again and must be restarted.
    /// Later requests above `Local` fail with `NotJoined`.
    #[error(
        "configuration {epoch} removed this node; a write may be on a majority: restart the node \
         and ask again"
    )]
    Excluded {
        /// The configuration without this node.
        epoch: EpochId,
    },
    /// Nothing was changed: the durable data of this node can't be read, so it serves nothing.
    #[error("the durable data of this node can't be read; nothing was changed, see its log")]
    NotLoaded,
    /// Nothing was changed: this node has not joined yet, or is no longer a member.
    #[error("this node is no member; nothing was changed, retry after it has joined")]
    NotJoined,
    /// Nothing was changed: the level asks for more replicas than there are. An open read may fail
    /// with it later, when a smaller configuration is installed; a write then waits for its
    /// timeout.
    #[error("the level needs {needed} replicas and there are {existing}; nothing was changed")]
    NotEnoughReplicas {
        /// Number of replicas that the level asks for.
        needed: usize,
        /// Number of replicas that count.
        existing: usize,
    },
    /// Nothing was changed: too many requests are open.
    #[error("{limit} requests are open, the maximum; nothing was changed, retry later")]
    Overloaded {
        /// The value of the setting `max_pending_requests`.
        limit: usize,
    },
    /// No term was taken: this replica keeps promised terms of as many groups as it may. A group
    /// that is among them needs no room.
    #[error("this replica has promised terms of {limit} groups, the maximum; no term was taken")]
    TooManyGroups {
        /// The most groups that a replica accepts fencing reads for.
        limit: usize,
    },
    /// Nothing was changed: the name of the key is empty.
    #[error("a key's name has at least one character; nothing was changed")]
    EmptyKey,
    /// Nothing was changed: the value, or the name of the key or of a group to fence, is too large.
    #[error("{bytes} bytes are more than the {limit} allowed; nothing was changed")]
    TooLarge {
        /// The size in bytes.
        bytes: usize,
        /// The maximum size in bytes.
        limit: usize,
    },
    /// Nothing was changed: the key holds data of another type. A deleted key keeps its type.
    #[error("the key holds `{found}`, not `{expected}`; nothing was changed")]
    WrongType {
        /// The type that the caller expected.
        expected: Shape,
        /// The type that the key holds.
        found: Shape,
    },
    /// Nothing was changed: the type's name is too long or too deeply nested to be sent to peers.
    #[error(
        "type `{shape}` cannot be sent to peers: maps nest at most 16 deep, names have 1 to 500 \
         bytes; nothing was changed"
    )]
    UnfitType {
        /// The type that was refused.
        shape: Shape,
    },
    /// Nothing was changed: the key belongs to a guarded group, and the change has no guard, or
    /// that of another group.
    #[error("the key is guarded by group `{group}`: take a term for it; nothing was changed")]
    Guarded {
        /// The group that guards the key.
        group: Group,
    },
    /// Other replicas know that the key belongs to a guarded group; this node did not know it when
    /// it applied the change. The change stays applied here and may spread, but loses against every
    /// guarded write.
    #[error(
        "group `{group}` guards the key, which this node did not know: the change stays applied \
         here, may spread and loses against guarded ones; take a term for the group"
    )]
    GuardedMeanwhile {
        /// The group that guards the key.
        group: Group,
    },
    /// Nothing was changed: the next fencing read might not see a guarded update below a majority.
    #[error("a guarded update needs `Majority`, `MajorityPlus` or `All`; nothing was changed")]
    TooWeak,
    /// Nothing was changed: the number of the term is out of range.
    #[error("a term's number is at least 1 and at most 2^63 - 1, not {}; nothing was changed", .term.number)]
    UnfitTerm {
        /// The term that was refused.
        term: Term,
    },
    /// Nothing was changed: the term is so far above all earlier ones that no voter promises it
    /// (docs/protocol/leases.md#fencing-read).
    #[error("term {} jumps: the highest that is promised now is {highest}; nothing was changed", .term.number)]
    TermJumps {
        /// The term that was refused.
        term: Term,
        /// The highest number of a term that is promised now.
        highest: u64,
    },
    /// Nothing was changed: a group without a name would guard every key.
    #[error("a group needs a name, or it would guard every key; nothing was changed")]
    UnfitGroup,
    /// Nothing was changed: the key does not belong to the group of the guard.
    #[error("the key is not in group `{group}`; nothing was changed")]
    NotInGroup {
        /// The group of the guard.
        group: Group,
    },
    /// Nothing was changed: the register holds a value with a higher stamp.
    #[error("the register holds a later write; nothing was changed: {}", .0.0)]
    Stale(ModifyError),
    /// Nothing was changed: the user type is not registered.
    #[error(transparent)]
    NotRegistered(#[from] NotRegistered),
}

/// A notice to a subscriber. No notice is sent for changes after which the key reads as before.
#[derive(Clone, Debug, PartialEq)]
pub enum SubscriptionNotice {
    /// The key has a new value.
    Changed {
        /// The name of the key.
        key: KeyName,
        /// The value of the key.
        value: Value,
        /// The value before the changes that this notice reports; see
        /// [`Value::keys_changed_since`]. `None` if the key had no value, and in the first notices
        /// of a subscription, which report the present values.
        before: Option<Value>,
    },
    /// The key has no value any longer: it was deleted or emptied, or has expired.
    Deleted {
        /// The name of the key.
        key: KeyName,
    },
}
