//! The data of a replica: keys in the order of their hashes, their states, the digest sums over
//! them and the bound on the removal records that repairs need.
//!
//! Snapshots are cheap, because the map is persistent. The store does not depend on peers, requests
//! or promised terms. It records the guarded group of a key; other modules enforce it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;

use super::fence::{GROUPS_MAX, is_group};
use super::sums::{self, Sums};
use super::wire::{ContextBytes, Entry, EntryContent, WireGuard};
use crate::causal::CausalContext;
use crate::clock::{HybridTimestamp, Instant};
use crate::encoded::{DecodeError, hash_of};
use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;
use crate::key::{Group, KEY_BYTES_MAX, KeyName};
use crate::types::delta::{Delta, KeyState, Lack, MergeResult, Repair};
use crate::types::shape::Shape;

/// Maximum number of removal records over all keys. Beyond, the oldest is dropped, and peers that
/// would need it get the full state (docs/protocol/replication.md#removal-records-are-bounded).
pub(super) const RECORDS_MAX: usize = 4_096;

/// How long a change stays out of the sums. A change that is still in flight between two replicas
/// is then in the sums of neither, and comparing them finds no difference
/// (docs/protocol/replication.md#changes-settle-before-they-are-compared).
pub(super) const SETTLES_AFTER: Duration = Duration::from_millis(100);

/// A key with its state and bookkeeping.
#[derive(Clone, Debug)]
pub(super) struct StoredKey {
    pub(super) key: KeyName,
    pub(super) state: KeyState,
    pub(super) shape: Arc<str>, // the name of the state's shape, as it is sent
    /// The guarded group that was recorded with the key; it never changes after that.
    pub(super) group: Option<Group>,
    /// The latest use that this replica knows of, for expiry.
    pub(super) used: Instant,
    /// The latest use that the owner of the key knows of. The creation of the key counts as known,
    /// because its change reaches the owner.
    pub(super) reported: Instant,
    item: u64,     // its item in the sums; 0: none
    settled: bool, // whether `item` is current; otherwise the key is in `settling`
    /// Estimate of its encoded size, in bytes: exact when last measured, grown by every delta
    /// since.
    pub(super) size: usize,
    /// The context that is on disk; empty if no state of the key was written or loaded.
    pub(super) synced: CausalContext,
}

/// The place of a key in the order of the store: the hash of its name, then the name.
pub(super) type StorePlace = (u64, KeyName);

/// Keys and the sums over them: the live ones, or those of the moment of a seal.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    keys: OrdMap<StorePlace, Arc<StoredKey>>,
    sums: Sums,
}

/// All keys of a replica, with the indexes and bounds over them.
///
/// A deleted key stays in the store: it keeps its causal context, type and group, and its value is
/// empty (`is_bottom`), as that of an emptied one. Functions that give keys give deleted ones, too.
/// No key is ever removed. Every change of a state goes through [`change`](Self::change).
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicaStore {
    live: Snapshot,
    seed: u64,
    names: BTreeSet<KeyName>,       // of all keys, in lexical order
    records: VecDeque<StorePlace>,  // the key of each removal record, oldest first; ≤ RECORDS_MAX
    groups: BTreeSet<Group>,        // ≤ GROUPS_MAX known by a promise, + those of the keys
    group_lengths: BTreeSet<usize>, // lengths of the groups' prefixes
    settling: VecDeque<(Instant, StorePlace)>, // changed keys that are not in the sums yet; ≤ keys
    deleted: usize,                 // keys with an empty value
}

/// The result of merging an entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EntryMergeResult {
    /// The key holds the whole entry now, perhaps since before. `latest` is the highest stamp in
    /// the entry (`None` without one, and for a probe), `full` whether the entry was a full state.
    /// The caller advances the clock and reports the change.
    Merged { merged: MergeResult, latest: Option<HybridTimestamp>, full: bool },
    /// The entry builds on dots that are missing here, or is a probe for them. Nothing has changed;
    /// the context is that of the key, empty if it is absent.
    Lack(CausalContext),
}

/// Whether a delta is news to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DeltaNovelty {
    /// The key's context contains all dots of the delta.
    Known,
    /// Some dots of the delta are new to the key, and the causal delta rule refuses it.
    Refused(Lack),
    /// Some dots of the delta are new to the key, and the delta can be merged.
    New,
}

impl DeltaNovelty {
    /// Compares a delta with a key; an absent key is compared as an empty one.
    fn of(held: Option<&Arc<StoredKey>>, shape: &Shape, delta: &Delta) -> Self {
        let checked = match held {
            Some(held) if held.state.context().includes_all(delta.dots()) => return Self::Known,
            Some(held) => held.state.check(delta),
            None => KeyState::new(shape.clone()).check(delta),
        };
        checked.map_or_else(Self::Refused, |()| Self::New)
    }
}

/// Why an entry was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EntryRefusal {
    /// The entry does not decode, has a name that no release sends, is of a type that is not
    /// registered here, or claims dots that this replica has not made.
    Decode(DecodeError),
    /// The key exists with another type.
    WrongType,
}

impl From<DecodeError> for EntryRefusal {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// Refuses names that no release sends: a key that is empty or too long, a group that does not
/// contain the key, a group or term that is not valid. An entry without a guard is checked for its
/// key only.
fn check_names(entry: &Entry) -> Result<(), DecodeError> {
    if entry.key.as_str().is_empty() {
        // Requests refuse such a key, so that no program could change or delete it.
        return Err(DecodeError::Message("a key with an empty name".into()));
    }
    if entry.key.as_str().len() > KEY_BYTES_MAX {
        return Err(DecodeError::TooLong { what: "bytes of a key", limit: KEY_BYTES_MAX });
    }
    let Some(guard) = &entry.guard else { return Ok(()) };
    if !guard.group.contains(&entry.key) {
        return Err(DecodeError::Message("a guard whose group does not contain its key".into()));
    }
    if !is_group(&guard.group) || guard.term.is_some_and(|term| !term.is_valid()) {
        return Err(DecodeError::Message("a guard with an invalid group or term".into()));
    }
    Ok(())
}

/// Refuses an entry with dots of this replica above the last one that it made
/// (docs/protocol/replication.md#nobody-teaches-a-replica-its-own-dots). Other replicas would
/// otherwise take its next changes for known. `made` and `last` are the counters of the last own
/// dot of the key here (0: none) and of the last own dot in the entry (`None` or 0: none). An entry
/// that brings back own dots that were made is accepted.
fn check_own(
    made: u64,
    last: Option<u64>,
    fault_injection: FaultInjection,
) -> Result<(), DecodeError> {
    let false_claim = last.is_some_and(|last| last > made);
    if false_claim && !fault_injection.has(ReplicatorFault::DeleteErasesUnseen) {
        return Err(DecodeError::ImpossibleDot);
    }
    Ok(())
}

/// The key's place in the order of the store. Hashes come first, so that most comparisons compare
/// numbers and not names.
pub(super) fn place(key: &KeyName) -> StorePlace {
    (hash_of(key.as_str().as_bytes()), key.clone())
}

impl Snapshot {
    pub(super) const fn sums(&self) -> &Sums {
        &self.sums
    }

    pub(super) fn get(&self, key: &KeyName) -> Option<&Arc<StoredKey>> {
        self.keys.get(&place(key))
    }

    /// The context of a key; empty if the key is absent.
    pub(super) fn context(&self, key: &KeyName) -> CausalContext {
        self.get(key).map(|held| held.state.context().clone()).unwrap_or_default()
    }

    /// Keys in a range of buckets (both ends included), each with its bucket, in the order of their
    /// hashes.
    pub(super) fn in_buckets(
        &self,
        range: RangeInclusive<u16>,
    ) -> impl Iterator<Item = (u16, &Arc<StoredKey>)> {
        let first = (u64::from(*range.start()) << 48, KeyName::new(""));
        let last = *range.end();
        self.keys
            .range(first..)
            .map(|((hash, _), held)| (super::sums::bucket(*hash), held))
            .take_while(move |(bucket, _)| *bucket <= last)
    }
}

impl ReplicaStore {
    pub(super) fn len(&self) -> usize {
        self.live.keys.len()
    }

    pub(super) const fn deleted(&self) -> usize {
        self.deleted
    }

    pub(super) fn records(&self) -> usize {
        self.records.len()
    }

    /// The live keys and sums. Recent changes may not be in the sums yet.
    pub(super) const fn live(&self) -> &Snapshot {
        &self.live
    }

    pub(super) fn get(&self, key: &KeyName) -> Option<&Arc<StoredKey>> {
        self.live.get(key)
    }

    pub(super) fn context(&self, key: &KeyName) -> CausalContext {
        self.live.context(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<StoredKey>> {
        self.live.keys.values()
    }

    /// Keys with a prefix, deleted ones included, in the order of their names, starting at `from`.
    /// A bound below the prefix, or none, starts at the first key with the prefix.
    pub(super) fn by_name<'a>(
        &'a self,
        prefix: &'a str,
        from: Bound<&KeyName>,
    ) -> impl Iterator<Item = &'a Arc<StoredKey>> {
        let first = KeyName::new(prefix);
        let from = match from {
            Bound::Included(key) | Bound::Excluded(key) if *key < first => Bound::Included(&first),
            Bound::Unbounded => Bound::Included(&first),
            later => later,
        };
        let names = self.names.range::<KeyName, _>((from, Bound::Unbounded));
        let names = names.take_while(move |name| name.as_str().starts_with(prefix));
        names.filter_map(|name| self.get(name))
    }

    /// Keys that a group guards, deleted ones included, in the order of their names: those recorded
    /// with it, and those under its prefix that belong to no other group. The latter may have been
    /// written before the group was known; an owner that takes a term must see what was
    /// acknowledged of them. The group itself need not be known.
    pub(super) fn of_group<'a>(
        &'a self,
        group: &'a Group,
    ) -> impl Iterator<Item = &'a Arc<StoredKey>> {
        let of = move |held: &&Arc<StoredKey>| {
            self.group_of(&held.key, Some(held)).is_none_or(|of| of == group)
        };
        self.by_name(group.as_str(), Bound::Unbounded).filter(of)
    }

    /// The group that guards a key: the one recorded with it, or otherwise the shortest known group
    /// whose prefix it has; `None` if there is neither. `held` is the stored key, `None` if it is
    /// absent.
    pub(super) fn group_of<'a>(
        &'a self,
        key: &KeyName,
        held: Option<&'a StoredKey>,
    ) -> Option<&'a Group> {
        match held.and_then(|held| held.group.as_ref()) {
            Some(group) => Some(group),
            None => self.group_lengths.iter().find_map(|length| {
                let prefix = Group::new(key.as_str().get(..*length)?);
                self.groups.get(&prefix)
            }),
        }
    }

    /// Whether any group is known.
    pub(super) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Makes a group known, so that it guards all keys with its prefix that have no group recorded;
    /// known groups are never forgotten. Ignored if [`GROUPS_MAX`] groups or more are known.
    /// Nothing is recorded with the keys.
    pub(super) fn know_group(&mut self, group: &Group) {
        if !self.groups.contains(group) && self.groups.len() < GROUPS_MAX {
            self.group_lengths.insert(group.as_str().len());
            self.groups.insert(group.clone());
        }
    }

    /// Applies `f` to the state of a key, which is created empty if it does not exist, and returns
    /// the result of `f`. `shape` is used for a new key only.
    ///
    /// The bookkeeping follows `at` even if `f` changes nothing: the estimate of the size grows,
    /// the use counts, and the key is scheduled to enter the sums with its new state after
    /// [`SETTLES_AFTER`], if it is not scheduled already. New removal records are registered and
    /// bounded. Whether the key is guarded or durable is left to the caller.
    pub(super) fn change<R>(
        &mut self,
        key: &KeyName,
        shape: &Shape,
        at: StateChange,
        f: impl FnOnce(&mut KeyState) -> R,
    ) -> R {
        let place = place(key);
        let held = match self.live.keys.get_mut(&place) {
            Some(held) => held,
            None => {
                self.live.keys.insert(place.clone(), Arc::new(StoredKey::new(key, shape, at.now)));
                self.deleted += 1;
                self.names.insert(key.clone());
                self.live.keys.get_mut(&place).expect("the key was just inserted")
            }
        };
        let held = Arc::make_mut(held);
        let (records, bottom) = (held.state.records(), held.state.is_bottom());
        let result = f(&mut held.state);
        held.size += at.bytes;
        if at.used {
            held.used = held.used.max(at.now);
        }
        match (bottom, held.state.is_bottom()) {
            (true, false) => self.deleted -= 1,
            (false, true) => self.deleted += 1,
            _ => {}
        }
        let grown = held.state.records().saturating_sub(records);
        if std::mem::replace(&mut held.settled, false) {
            self.settling.push_back((at.now + SETTLES_AFTER, place.clone()));
        }
        for _ in 0..grown {
            self.remember(&place);
        }
        result
    }

    /// Registers a new removal record of the key at this place. Above [`RECORDS_MAX`] the oldest
    /// registered record of any key is dropped, from its state, too; sums and context of that key
    /// stay.
    fn remember(&mut self, place: &StorePlace) {
        self.records.push_back(place.clone());
        if self.records.len() > RECORDS_MAX
            && let Some(oldest) = self.records.pop_front()
            && let Some(held) = self.live.keys.get_mut(&oldest)
        {
            Arc::make_mut(held).state.forget_record();
        }
    }

    /// Records a group with a key that has none recorded yet, and makes the group known, even above
    /// [`GROUPS_MAX`]. Does nothing if the key is absent (the group does not become known then) or
    /// has a group recorded, even another one. Other known groups are not compared.
    pub(super) fn set_group(&mut self, key: &KeyName, group: &Group) {
        let Some(held) = self.live.keys.get_mut(&place(key)) else { return };
        if held.group.is_none() {
            Arc::make_mut(held).group = Some(group.clone());
            self.group_lengths.insert(group.as_str().len());
            self.groups.insert(group.clone());
        }
    }

    /// Records a use of a key, for expiry. An earlier use than the recorded one changes nothing,
    /// nor does a use of an absent key.
    pub(super) fn touch(&mut self, key: &KeyName, used: Instant) {
        if let Some(held) = self.live.keys.get_mut(&place(key))
            && held.used < used
        {
            Arc::make_mut(held).used = used;
        }
    }

    /// Marks the uses of all keys, deleted ones included, as not reported, because the owners of
    /// keys may have changed.
    pub(super) fn forget_reports(&mut self) {
        let places: Vec<StorePlace> = self.live.keys.keys().cloned().collect();
        for place in places {
            if let Some(held) = self.live.keys.get_mut(&place) {
                Arc::make_mut(held).reported = Instant::default();
            }
        }
    }

    /// Changes the bookkeeping of a key; does not call `f` if it is absent. `f` must not change the
    /// state: sums, size and the number of deleted keys would not follow.
    pub(super) fn note(&mut self, key: &KeyName, f: impl FnOnce(&mut StoredKey)) {
        if let Some(held) = self.live.keys.get_mut(&place(key)) {
            f(Arc::make_mut(held));
        }
    }

    /// Whether this replica holds the whole content of an entry already; of a probe: everything
    /// that it asks for. `false` if the key is absent, even for an empty probe, or the content does
    /// not decode with the type that the key has here. The entry's own type and guard are not
    /// looked at.
    pub(super) fn holds(&self, entry: &Entry) -> bool {
        let Some(held) = self.get(&entry.key) else { return false };
        let (context, shape) = (held.state.context(), held.state.shape());
        match &entry.content {
            EntryContent::Probe(asked) => {
                asked.decode().is_ok_and(|asked| context.includes(&asked))
            }
            EntryContent::Delta(bytes) => Delta::decode(bytes.as_slice(), shape)
                .is_ok_and(|delta| context.includes_all(delta.dots())),
            EntryContent::Full(bytes) => KeyState::decode(bytes.as_slice(), shape)
                .is_ok_and(|state| context.includes(state.context())),
        }
    }

    /// Merges an entry that a peer sent or that was loaded from disk. Creates the key if it is
    /// absent, but not for a probe, an empty state, or a delta that gives `Lack`. A probe changes
    /// no state: it gives `Merged` if everything that it asks for is held here, otherwise `Lack`.
    ///
    /// Unless the result is `Lack`, also if nothing was new, the group of the entry's guard is
    /// recorded with the key, if the key exists and has none. The term of the guard is not compared
    /// with promises here. `at.bytes` is ignored: the growth is the length of the content.
    ///
    /// # Errors
    /// [`EntryRefusal`], in this order: a bad name, another type than the key (also of a probe), a
    /// type or content that does not decode, dots of this replica that it has not made. Nothing has
    /// changed.
    pub(super) fn take(
        &mut self,
        entry: &Entry,
        at: StateChange,
        me: ReplicaId,
        fault_injection: FaultInjection,
    ) -> Result<EntryMergeResult, EntryRefusal> {
        check_names(entry)?;
        let held = self.get(&entry.key);
        let shape: Shape = match held {
            Some(held) if *held.shape == *entry.shape => held.state.shape().clone(),
            Some(_) => return Err(EntryRefusal::WrongType),
            None => entry.shape.parse()?,
        };
        let made = held.map_or(0, |held| held.state.context().next_dot(me).counter - 1);
        let taken = match &entry.content {
            EntryContent::Probe(context) => {
                let asked = context.decode()?;
                let mine = held.map(|held| held.state.context().clone()).unwrap_or_default();
                if mine.includes(&asked) {
                    EntryMergeResult::Merged {
                        merged: MergeResult::Unchanged,
                        latest: None,
                        full: false,
                    }
                } else {
                    EntryMergeResult::Lack(mine)
                }
            }
            EntryContent::Delta(bytes) => {
                let delta = Delta::decode(bytes.as_slice(), &shape)?;
                let mine = delta.dots().runs().iter().filter(|run| run.replica == me);
                let mine = mine.map(|run| run.last).max();
                let novelty = DeltaNovelty::of(held, &shape, &delta);
                let at = at.sized(bytes.len());
                check_own(made, mine, fault_injection)?;
                self.take_delta(&entry.key, &shape, novelty, &delta, at, fault_injection)
            }
            EntryContent::Full(bytes) => {
                let state = KeyState::decode(bytes.as_slice(), &shape)?;
                let mine = state.context().next_dot(me).counter - 1;
                check_own(made, Some(mine), fault_injection)?;
                self.take_state(&entry.key, &shape, &state, at.sized(bytes.len()), fault_injection)
            }
        };
        if let Some(guard) = &entry.guard
            && !matches!(taken, EntryMergeResult::Lack(_))
        {
            self.set_group(&entry.key, &guard.group);
        }
        Ok(taken)
    }

    /// Merges a decoded delta, or returns `Lack` by the causal delta rule
    /// (docs/protocol/replication.md#causal-delta-rule). Then, and if the delta is known already,
    /// nothing is changed, and no key is created.
    fn take_delta(
        &mut self,
        key: &KeyName,
        shape: &Shape,
        novelty: DeltaNovelty,
        delta: &Delta,
        at: StateChange,
        fault_injection: FaultInjection,
    ) -> EntryMergeResult {
        let latest = delta.latest_time();
        match novelty {
            DeltaNovelty::Known => {
                return EntryMergeResult::Merged {
                    merged: MergeResult::Unchanged,
                    latest,
                    full: false,
                };
            }
            DeltaNovelty::Refused(Lack { context })
                if !fault_injection.has(ReplicatorFault::NoRuleR) =>
            {
                return EntryMergeResult::Lack(context);
            }
            DeltaNovelty::Refused(_) | DeltaNovelty::New => {}
        }
        let merged = self.change(key, shape, at, |state| {
            let merged = state.apply_unchecked(delta);
            if fault_injection.has(ReplicatorFault::MergeByArrival) {
                state.keep_arrived(delta.dots());
            }
            merged
        });
        EntryMergeResult::Merged { merged, latest, full: false }
    }

    /// Merges a decoded full state. A state that is known already, or that contains no dot, changes
    /// nothing, not even use and size, and creates no key. Never returns `Lack`.
    fn take_state(
        &mut self,
        key: &KeyName,
        shape: &Shape,
        state: &KeyState,
        at: StateChange,
        fault_injection: FaultInjection,
    ) -> EntryMergeResult {
        let latest = state.latest_time();
        let known =
            self.get(key).is_some_and(|held| held.state.context().includes(state.context()));
        if known || state.context().is_empty() {
            return EntryMergeResult::Merged { merged: MergeResult::Unchanged, latest, full: true };
        }
        let merged = self.change(key, shape, at, |mine| {
            let merged = mine.merge(state);
            if fault_injection.has(ReplicatorFault::MergeByArrival) {
                mine.keep_arrived(&state.context().minus(&CausalContext::new()));
            }
            merged
        });
        EntryMergeResult::Merged { merged, latest, full: true }
    }

    // ── sums ──

    pub(super) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Changes the seed of the sums and recomputes them, with all changes in them, also those that
    /// have not settled. Does nothing if the seed is the same: such changes stay out then.
    pub(super) fn reseed(&mut self, seed: u64) {
        if seed == self.seed {
            return;
        }
        self.seed = seed;
        self.live.sums = Sums::default();
        let places: Vec<StorePlace> = self.live.keys.keys().cloned().collect();
        for place in places {
            if let Some(held) = self.live.keys.get_mut(&place) {
                let held = Arc::make_mut(held);
                held.item = held.item_under(seed);
                held.settled = true;
                self.live.sums.replace(place.0, 0, held.item);
            }
        }
        self.settling.clear();
    }

    /// Brings every changed key into the sums at once, whenever it changed, for comparisons that
    /// must be exact.
    pub(super) fn settle_all(&mut self) {
        for (_, place) in std::mem::take(&mut self.settling) {
            self.settle(&place);
        }
    }

    /// Brings into the sums the keys that changed at least [`SETTLES_AFTER`] ago, counted from the
    /// first change since they were last in the sums; later changes of such a key are included. It
    /// is called before sums are compared, so it needs no timer, and on every tick, so that the
    /// work stays small.
    pub(super) fn settle_due(&mut self, now: Instant) {
        while self.settling.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, place)) = self.settling.pop_front() else { return };
            self.settle(&place);
        }
    }

    /// Brings a key into the sums with its present context. The caller has removed it from
    /// `settling`.
    fn settle(&mut self, place: &StorePlace) {
        if let Some(held) = self.live.keys.get_mut(place) {
            let held = Arc::make_mut(held);
            held.settled = true;
            let new = held.item_under(self.seed);
            let old = std::mem::replace(&mut held.item, new);
            self.live.sums.replace(place.0, old, new);
        }
    }
}

/// The time of a change, and its effect on size and expiry.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateChange {
    pub(super) now: Instant,
    /// Estimate of the growth of the value, in bytes; added to its size, never subtracted.
    pub(super) bytes: usize,
    /// Whether the change counts as a use, for expiry.
    pub(super) used: bool,
}

impl StateChange {
    /// The same change with another growth of the value.
    pub(super) const fn sized(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }
}

impl StoredKey {
    /// An empty key that was used now, belongs to no group, is not on disk and has no item in the
    /// sums. It counts as settled and as reported.
    fn new(key: &KeyName, shape: &Shape, now: Instant) -> Self {
        Self {
            key: key.clone(),
            state: KeyState::new(shape.clone()),
            shape: shape.to_string().into(),
            group: None,
            used: now,
            reported: now,
            item: 0,
            settled: true,
            size: 0,
            synced: CausalContext::new(),
        }
    }

    /// The item of the key in sums under this seed; 0 (no item) while no change of it is known.
    fn item_under(&self, seed: u64) -> u64 {
        let context = self.state.context();
        if context.is_empty() {
            return 0;
        }
        sums::item(&self.key, context.digest(seed), seed)
    }

    /// The recorded group as a guard without a term, which lets an entry spread; `None` without
    /// one.
    pub(super) fn guard(&self) -> Option<WireGuard> {
        self.group.as_ref().map(|group| WireGuard { group: group.clone(), term: None })
    }

    /// An entry of this key with index 0 and the guard of [`guard`](Self::guard).
    pub(super) fn entry(&self, content: EntryContent) -> Entry {
        let (key, shape) = (self.key.clone(), self.shape.clone());
        Entry { index: 0, key, shape, guard: self.guard(), content }
    }

    /// The repair for a peer with this context: a delta or, if removal records for it are missing,
    /// the full state. `None` if the peer lacks nothing, also if it has more. It contains all data
    /// held here, also what is not on disk.
    pub(super) fn repair(&self, context: &CausalContext) -> Option<Entry> {
        match self.state.repair(context) {
            Repair::Nothing => None,
            Repair::Delta(delta) => Some(self.entry(EntryContent::Delta(delta.encode().into()))),
            Repair::Full => Some(self.entry(EntryContent::Full(self.state.encode().into()))),
        }
    }

    /// An entry that asks whether the receiver holds everything that this replica holds of the key.
    pub(super) fn probe(&self) -> Entry {
        self.entry(EntryContent::Probe(ContextBytes::new(self.state.context())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LWWRegister;
    use crate::types::edit::Author;

    const NONE: FaultInjection = FaultInjection::none();

    /// Writes a register and returns the entry of the change.
    fn write(state: &mut KeyState, author: u64) -> Entry {
        let author = Author::new(ReplicaId::new(author), HybridTimestamp::from_raw(1));
        let written = state.edit::<LWWRegister<u64>, _>(author, |register| register.set(&7_u64));
        let ((), delta) = written.expect("the value encodes");
        let (key, shape) = ("k".into(), Shape::LWWRegister.to_string().into());
        let content = EntryContent::Delta(delta.encode().into());
        Entry { index: 0, key, shape, guard: None, content }
    }

    #[test]
    fn refused_delta_changes_no_bookkeeping() {
        let (me, key) = (ReplicaId::new(9), KeyName::new("k"));
        let at = |nanos| StateChange { now: Instant::from_nanos(nanos), bytes: 0, used: true };
        let bookkeeping = |store: &ReplicaStore| {
            let held = store.get(&key).expect("the key was merged");
            (held.size, held.used, held.settled)
        };
        let mut store = ReplicaStore::default();
        let merged = write(&mut KeyState::new(Shape::LWWRegister), 1);
        let merged = store.take(&merged, at(1), me, NONE).expect("the delta decodes");
        assert!(matches!(merged, EntryMergeResult::Merged { .. }));
        store.settle_all();
        let before = bookkeeping(&store);

        let mut other = KeyState::new(Shape::LWWRegister);
        let _unsent = write(&mut other, 2);
        let refused = write(&mut other, 2); // overwrites the first write, which was not sent
        let refused = store.take(&refused, at(2), me, NONE).expect("the delta decodes");
        assert!(matches!(refused, EntryMergeResult::Lack(_)));
        assert_eq!(bookkeeping(&store), before);
    }
}
