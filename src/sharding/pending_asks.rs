//! The pending asks of a node, and how answers reach them.
//!
//! An ask of an entity on this node is answered directly through its `AskSlot`. Only an ask whose
//! reply address is serialized gets a number and an entry in the table ([`PendingAsks`]), under
//! which a frame from another node finds it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;
use rustc_hash::FxHashMap;
use serde::de::DeserializeOwned;

use super::dead_letters::DeadLetterReason;
use super::envelope::{Envelope, decode};
use super::ids::{RegionId, ShardId};
use super::scope;
use super::types::TypeRegistry;
use crate::threads::{self, PerThread};

/// Distance between two numbers of one place; the remainder of a number is its place.
const PLACES: u64 = threads::PLACES as u64;

/// Reply address of an ask: the asking node and the number of the ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReplyAddress {
    pub(super) node: RegionId,
    /// Never 0. Any node that has the number may answer, once, because a reply address may be
    /// passed on. A peer without it cannot guess it
    /// (docs/protocol/message-order.md#correlation-numbers-are-secret-and-single-use).
    pub(super) correlation: u64,
}

/// The shard of the entity that an ask is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AskedShard {
    /// Number of the entity type's runtime, unique in this process.
    pub(super) runtime: u32,
    pub(super) shard: ShardId,
}

/// An ask whose message is being sent.
pub(super) trait CarriedAsk {
    /// Returns the reply address; `None` if the message does not contain it. Called after the
    /// message was serialized, which gives the ask its number.
    fn asker(&self) -> Option<ReplyAddress>;

    /// Records that the lane to this node has the message.
    fn is_with(&self, home: RegionId);
}

/// Path of an answer to another node, or back to this one.
pub(super) trait ReplySink: Send + Sync {
    /// Sends a frame that [`frame`](super::frame) wrote.
    fn send(&self, to: ReplyAddress, frame: &[u8]);

    /// Counts an answer that will not be sent.
    fn lose_answer(&self, why: DeadLetterReason);

    /// Returns the registry of types of the node that sends.
    fn types(&self) -> &Arc<TypeRegistry>;
}

/// A pending ask, independent of the type of its answer. The first result ends it; later ones are
/// dropped. `answered` and `refused` return whether it still waited.
pub(super) trait PendingAsk: Send + Sync {
    /// Ends the ask with this encoded answer, or with an error if the answer cannot be decoded;
    /// that also counts as answered. Decodes even if the ask has ended.
    fn answered(&self, body: &[u8]) -> bool;
    fn refused(&self, why: DeadLetterReason) -> bool;

    /// Records the node whose lane has the message; `None`: the message is on this node.
    fn set_holder(&self, node: Option<RegionId>);
    fn holder(&self) -> Option<RegionId>;
    fn asked(&self) -> AskedShard;

    /// Fails the ask because this node, whose lane had the message, was removed. The caller has
    /// compared it with the holder. No effect if the ask has ended.
    fn lost_with(&self, node: RegionId);
}

/// Reason why an ask gets no answer.
#[derive(Debug)]
pub(super) enum AskFailure {
    /// The message was not handled, or its handler gave no answer.
    Refused(DeadLetterReason),
    /// An answer came, but it is not of the type that the asker expects.
    Undecodable { bytes: usize, source: rmp_serde::decode::Error },
    /// The node whose lane had the message was removed from the cluster.
    NodeLost(RegionId),
}

/// The pending asks of one node, shared by all its entity types. Its fields for each thread begin a
/// cache line, so the reference counts of its `Arc` are in another one.
pub struct PendingAsks {
    rows: PerThread<Mutex<AskTable>>,
    late: AtomicU64,
    types: PerThread<Arc<AnswerTypes>>, // the registry of one node
}

/// Number of an ask without its place. This node draws it, and no peer can foresee it.
type AskNumber = u64;

/// The pending asks made on some of the threads.
#[derive(Default)]
struct AskTable {
    asked: u64,       // total number of asks
    key: RandomState, // makes numbers from `asked` that no peer can foresee
    /// At most the asks that wait.
    waiting: FxHashMap<AskNumber, Arc<dyn PendingAsk>>,
}

impl AskTable {
    /// Returns a number, without a place, that no waiting ask of this table has; not 0. Without the
    /// key a peer cannot derive it from the numbers of earlier asks, so it cannot answer the next
    /// ask in place of its entity.
    fn draw(&mut self) -> AskNumber {
        loop {
            self.asked += 1;
            let number = self.key.hash_one(self.asked) / PLACES;
            if number != 0 && !self.waiting.contains_key(&number) {
                return number;
            }
        }
    }
}

/// The registry of types, for the thread that decodes an answer. Padded, so that the counts of its
/// own `Arc` share no cache line with others.
pub(super) type AnswerTypes = CachePadded<Arc<TypeRegistry>>;

impl Default for PendingAsks {
    fn default() -> Self {
        let types = Arc::<TypeRegistry>::default();
        Self {
            rows: PerThread::default(),
            late: AtomicU64::new(0),
            types: PerThread::new(|| Arc::new(CachePadded::new(Arc::clone(&types)))),
        }
    }
}

/// Ignores poison: an entry is added or removed as a whole.
fn lock(rows: &Mutex<AskTable>) -> MutexGuard<'_, AskTable> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for PendingAsks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingAsks").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl PendingAsks {
    /// Makes an empty table for a node.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the registry of types of the node that owns this table.
    pub(super) fn types(&self) -> &Arc<TypeRegistry> {
        self.types.mine()
    }

    /// Returns the number of asks in the table, whose answers come as bytes. An ask that was ended
    /// on this node although its reply address was serialized is one of them until its future ends.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.rows.all().map(|rows| lock(rows).waiting.len()).sum()
    }

    /// Returns the number of answers and refusals that no ask awaited: they arrived after the
    /// timeout, twice, or under an unknown number. Refusals that this node itself gives to an ask
    /// that has ended are not counted; its answers are.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Adds an ask to the table of this thread and returns its number, which is never 0. The caller
    /// must not add an ask twice: it would have two entries.
    fn add(&self, question: Arc<dyn PendingAsk>) -> u64 {
        let place = threads::place();
        let mut rows = lock(self.rows.at(place));
        let number = rows.draw();
        rows.waiting.insert(number, question);
        number * PLACES + place as u64
    }

    /// Removes an ask and returns it; `None` if no ask waits under the number.
    fn take(&self, number: u64) -> Option<Arc<dyn PendingAsk>> {
        let place = (number % PLACES) as usize;
        lock(self.rows.at(place)).waiting.remove(&(number / PLACES))
    }

    /// Passes an answer from any node to its ask, which leaves the table even if the answer cannot
    /// be decoded. Counts an answer that no ask awaits as late, also if the ask has an entry but
    /// was ended on this node. The answer is decoded without the table's lock.
    pub(super) fn answered(&self, number: u64, body: &[u8]) {
        let answered = |question: Arc<dyn PendingAsk>| {
            scope::reading(Arc::clone(self.types.mine()), || question.answered(body))
        };
        self.count(self.take(number).is_some_and(answered));
    }

    /// Fails an ask because there will be no answer. Counts a refusal that no ask awaits as late.
    pub(super) fn refused(&self, number: u64, why: DeadLetterReason) {
        self.count(self.take(number).is_some_and(|question| question.refused(why)));
    }

    /// Records where a message of this node is, see [`PendingAsk::set_holder`]. No effect if it is
    /// no ask's, or the ask has left the table. Finds the ask by its number alone; the node in the
    /// reply address is not compared.
    pub(super) fn set_holder(&self, message: &Envelope, node: Option<RegionId>) {
        let Some(ReplyAddress { correlation: number, .. }) = message.asker() else { return };
        let place = (number % PLACES) as usize;
        if let Some(question) = lock(self.rows.at(place)).waiting.get(&(number / PLACES)) {
            question.set_holder(node);
        }
    }

    /// Fails the asks whose message the lane to `node` had, if `of` selects the shard that they are
    /// for: the node was removed. Only asks with an entry in the table are found
    /// (docs/protocol/message-order.md#asks-end-with-the-node-that-has-their-message). They leave
    /// the table, so a later answer counts as late. `of` runs under the lock of a thread's table;
    /// the askers are woken without it.
    pub(super) fn lost_with(&self, node: RegionId, of: impl Fn(AskedShard) -> bool) {
        for rows in self.rows.all() {
            let is_lost = |_: &u64, question: &mut Arc<dyn PendingAsk>| {
                question.holder() == Some(node) && of(question.asked())
            };
            let lost: Vec<_> = lock(rows).waiting.extract_if(is_lost).collect();
            lost.into_iter().for_each(|(_, question)| question.lost_with(node));
        }
    }

    /// Counts a late answer unless an ask waited for it.
    fn count(&self, somebody_waited: bool) {
        if !somebody_waited {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Handle of the table for the asks of one thread.
///
/// Reply addresses own this handle. If they owned the table itself, each ask on any thread would
/// write twice to the one cache line with its reference count. Padded for the same reason as
/// [`AnswerTypes`].
pub(super) type PendingAsksHandle = CachePadded<Arc<PendingAsks>>;

/// The handles of all threads.
pub(super) struct PendingAsksHandles(PerThread<Arc<PendingAsksHandle>>);

impl PendingAsksHandles {
    pub(super) fn new(asks: &Arc<PendingAsks>) -> Self {
        Self(PerThread::new(|| Arc::new(CachePadded::new(Arc::clone(asks)))))
    }

    pub(super) fn mine(&self) -> Arc<PendingAsksHandle> {
        Arc::clone(self.0.mine())
    }
}

enum AskState<T> {
    /// No result yet. Has a waker once the future was polled.
    Waiting(Option<Waker>),
    /// Ended, with the result until the future takes it. `None` also if the future was dropped or
    /// timed out.
    Over(Option<Result<T, AskFailure>>),
}

/// State shared by the future of an ask and its reply address.
pub(super) struct AskSlot<T> {
    number: AtomicU64, // 0: not in the table
    holder: AtomicU64, // incarnation of the node whose lane has the message; 0: none
    asked: AskedShard,
    state: Mutex<AskState<T>>,
}

impl<T> AskSlot<T> {
    pub(super) fn new(asked: AskedShard) -> Arc<Self> {
        let state = Mutex::new(AskState::Waiting(None));
        Arc::new(Self { number: AtomicU64::new(0), holder: AtomicU64::new(0), asked, state })
    }

    /// Records the node whose lane has the message; `None`: the message is on this node. Called
    /// under the lock of the message's shard, which orders it with the removal of that node. Not
    /// reset when the ask ends.
    pub(super) fn set_holder(&self, node: Option<RegionId>) {
        self.holder.store(node.map_or(0, |node| node.replica().get()), Ordering::Release);
    }

    /// Returns the node whose lane has, or had, the message; `None`: the message is on this node.
    pub(super) fn holder(&self) -> Option<RegionId> {
        let incarnation = self.holder.load(Ordering::Acquire);
        (incarnation > 0).then(|| RegionId::new(incarnation.into()))
    }

    /// Ignores poison: the state is always replaced as a whole.
    fn lock(&self) -> MutexGuard<'_, AskState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the result and wakes the asker, after the lock is released. Returns whether the ask
    /// still waited; if not, the result is dropped. The entry in the table stays.
    fn end(&self, result: Result<T, AskFailure>) -> bool {
        let before = {
            let mut state = self.lock();
            if let AskState::Over(_) = *state {
                return false;
            }
            std::mem::replace(&mut *state, AskState::Over(Some(result)))
        };
        if let AskState::Waiting(Some(waker)) = before {
            waker.wake();
        }
        true
    }

    /// Ends the ask with an answer of this node, not encoded. Counts it as late if the ask has
    /// ended. The entry in the table, if any, stays until [`forget`](Self::forget).
    pub(super) fn fill(&self, value: T, asks: &PendingAsks) {
        asks.count(self.end(Ok(value)));
    }

    /// Fails the ask. Does nothing if it has ended, and counts nothing.
    pub(super) fn refuse(&self, why: DeadLetterReason) {
        let _was_waiting = self.end(Err(AskFailure::Refused(why)));
    }

    /// Takes the result, or registers the waker for it in place of the one of the poll before.
    /// After the result was taken, or the ask was [forgotten](Self::forget), returns a refusal with
    /// [`DeadLetterReason::NoAnswer`].
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, AskFailure>> {
        let mut state = self.lock();
        let former = match &mut *state {
            AskState::Waiting(Some(waker)) if waker.will_wake(cx.waker()) => None,
            AskState::Waiting(waker) => waker.replace(cx.waker().clone()),
            AskState::Over(result) => {
                let taken = result.take();
                return Poll::Ready(
                    taken.unwrap_or(Err(AskFailure::Refused(DeadLetterReason::NoAnswer))),
                );
            }
        };
        drop(state);
        drop(former); // may be the last reference to its task, which may own the reply address
        Poll::Pending
    }

    /// Ends the wait: removes the entry in the table, and the result, which is returned if the ask
    /// has one that was not read; `None` if it still waited. Wakes no task. Answers that arrive
    /// after that count as late. A second call returns `None` and has no other effect.
    pub(super) fn forget(&self, asks: &PendingAsks) -> Option<Result<T, AskFailure>> {
        let before = std::mem::replace(&mut *self.lock(), AskState::Over(None));
        let number = self.number();
        if number > 0 {
            asks.take(number);
        }
        match before {
            AskState::Waiting(_) => None,
            AskState::Over(result) => result,
        }
    }

    /// Returns its number in the table; 0 if its reply address was not serialized.
    fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Returns the ask as its message carries it. `node` is this node.
    pub(super) fn carried(&self, node: RegionId) -> impl CarriedAsk {
        AskOfSlot { node, slot: self }
    }
}

/// An ask of this node whose message is being sent.
struct AskOfSlot<'a, T> {
    node: RegionId,
    slot: &'a AskSlot<T>,
}

impl<T> CarriedAsk for AskOfSlot<'_, T> {
    fn asker(&self) -> Option<ReplyAddress> {
        let correlation = self.slot.number();
        (correlation > 0).then_some(ReplyAddress { node: self.node, correlation })
    }

    fn is_with(&self, home: RegionId) {
        self.slot.set_holder(Some(home));
    }
}

impl<T: DeserializeOwned + Send + 'static> AskSlot<T> {
    /// Adds it to the table if it was never added, and returns its number, which stays the same.
    /// The number of an ask that has ended finds no entry, so that an answer to it is late. Two
    /// threads may call this at the same time for one ask.
    pub(super) fn enlist(self: &Arc<Self>, asks: &PendingAsks) -> u64 {
        let known = self.number();
        if known > 0 {
            return known;
        }
        let state = self.lock();
        let known = self.number(); // another thread may serialize the reply address as well
        if known > 0 {
            return known;
        }
        let number = asks.add(Arc::<Self>::clone(self));
        self.number.store(number, Ordering::Release);
        if let AskState::Over(_) = *state {
            asks.take(number); // the ask no longer waits
        }
        number
    }
}

impl<T: DeserializeOwned + Send + 'static> PendingAsk for AskSlot<T> {
    fn answered(&self, body: &[u8]) -> bool {
        let bytes = body.len();
        self.end(decode(body).map_err(|source| AskFailure::Undecodable { bytes, source }))
    }

    fn refused(&self, why: DeadLetterReason) -> bool {
        self.end(Err(AskFailure::Refused(why)))
    }

    fn set_holder(&self, node: Option<RegionId>) {
        Self::set_holder(self, node);
    }

    fn holder(&self) -> Option<RegionId> {
        Self::holder(self)
    }

    fn asked(&self) -> AskedShard {
        self.asked
    }

    fn lost_with(&self, node: RegionId) {
        let _was_waiting = self.end(Err(AskFailure::NodeLost(node)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// The message of an ask may be serialized by two threads at once.
    #[test]
    fn concurrent_enlist_adds_one_entry() {
        let (asks, barrier) = (PendingAsks::new(), Barrier::new(2));
        for _ in 0..1_000 {
            let slot = AskSlot::<u32>::new(AskedShard::default());
            let enlist = || {
                barrier.wait();
                slot.enlist(&asks)
            };
            let numbers = thread::scope(|scope| {
                let other = scope.spawn(enlist);
                (enlist(), other.join().expect("it does not panic"))
            });
            assert_eq!((numbers.0, asks.waiting()), (numbers.1, 1));
            assert!(slot.forget(&asks).is_none());
            assert_eq!(asks.waiting(), 0);
        }
    }
}
