//! Questions of this node that wait for their answers, and how answers find them.
//!
//! A question to an entity of this node is answered in place; only one whose address leaves as
//! bytes gets a number and a row in the table.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, RandomState};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use serde::de::DeserializeOwned;

use super::dead_letters::Lost;
use super::ids::RegionId;
use super::letter::decode;
use super::scope;
use super::tenants::Numbers;
use super::types::Types;
use crate::threads::{self, PerThread};

/// Numbers of one place are so far apart.
const PLACES: u64 = threads::PLACES as u64;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asker {
    pub(super) node: RegionId,
    /// Never 0. Whoever has it may answer, from whichever node and once: the address of an answer may
    /// have been passed on. Peers that never had it cannot guess it.
    pub(super) correlation: u64,
}

/// The way of an answer to another node, or back to this one.
pub(super) trait Way: Send + Sync {
    /// Sends what [`frame`](super::frame) has written.
    fn send(&self, to: Asker, frame: &[u8]);

    /// The types of the node that it begins at.
    fn types(&self) -> &Arc<Types>;
}

/// A question that was asked: what may become of it.
pub(super) trait Question: Send + Sync {
    fn answered(&self, body: &[u8]) -> bool;
    fn refused(&self, why: Lost) -> bool;
}

/// Why there is no answer, and will be none.
#[derive(Debug)]
pub(super) enum Unanswered {
    Refused(Lost),
    Undecodable { bytes: usize, source: rmp_serde::decode::Error },
}

/// The table of one node, shared by all its entity types. Stands apart from the counts of its `Arc`.
#[repr(align(128))]
pub struct Asks {
    rows: PerThread<Mutex<Rows>>,
    late: AtomicU64,
    types: PerThread<Arc<Readers>>, // of one node
}

/// What is asked on some of the threads.
#[derive(Default)]
struct Rows {
    asked: u64,       // in all
    key: RandomState, // makes numbers of `asked` that no peer can foresee
    /// By number, without its place; ≤ asks whose callers wait.
    waiting: HashMap<u64, Arc<dyn Question>, BuildHasherDefault<Numbers>>,
}

impl Rows {
    /// A number that no waiting ask has; not 0. Without the key, numbers of earlier asks tell nothing
    /// about it: a peer that was asked cannot answer the next ask in place of its entity.
    fn draw(&mut self) -> u64 {
        loop {
            self.asked += 1;
            let number = self.key.hash_one(self.asked) / PLACES;
            if number != 0 && !self.waiting.contains_key(&number) {
                return number;
            }
        }
    }
}

/// The types, for who reads answers on one thread.
#[repr(align(128))] // and so are the counts of its `Arc` apart from others
pub(super) struct Readers(pub(super) Arc<Types>);

impl Default for Asks {
    fn default() -> Self {
        let types = Arc::<Types>::default();
        Self {
            rows: PerThread::default(),
            late: AtomicU64::new(0),
            types: PerThread::new(|| Arc::new(Readers(Arc::clone(&types)))),
        }
    }
}

fn lock(rows: &Mutex<Rows>) -> MutexGuard<'_, Rows> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Asks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asks").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl Asks {
    /// An empty table.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The types of the node whose table this is.
    pub(super) fn types(&self) -> &Arc<Types> {
        &self.types.mine().0
    }

    /// Asks that wait for an answer that comes as bytes.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.rows.all().map(|rows| lock(rows).waiting.len()).sum()
    }

    /// Answers that came when nobody waited any more: after the timeout, or twice.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// An asker's number is never 0.
    fn add(&self, question: Arc<dyn Question>) -> u64 {
        let place = threads::place();
        let mut rows = lock(self.rows.at(place));
        let number = rows.draw();
        rows.waiting.insert(number, question);
        number * PLACES + place as u64
    }

    fn take(&self, number: u64) -> Option<Arc<dyn Question>> {
        let place = (number % PLACES) as usize;
        lock(self.rows.at(place)).waiting.remove(&(number / PLACES))
    }

    /// An answer came from somewhere.
    pub(super) fn answered(&self, number: u64, body: &[u8]) {
        let answered = |question: Arc<dyn Question>| {
            scope::reading(Arc::clone(self.types.mine()), || question.answered(body))
        };
        self.count(self.take(number).is_some_and(answered));
    }

    /// There will be no answer.
    pub(super) fn refused(&self, number: u64, why: Lost) {
        self.count(self.take(number).is_some_and(|question| question.refused(why)));
    }

    fn count(&self, somebody_waited: bool) {
        if !somebody_waited {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The table, for who asks on one thread.
///
/// Addresses of answers count as its owners. Were they counted at the table itself, each question on any
/// thread would write to one cache line, twice.
#[repr(align(128))] // and so are the counts of its `Arc` apart from others
pub(super) struct Door(Arc<Asks>);

impl Deref for Door {
    type Target = Asks;

    fn deref(&self) -> &Asks {
        &self.0
    }
}

/// Those of all threads.
pub(super) struct Doors(PerThread<Arc<Door>>);

impl Doors {
    pub(super) fn new(asks: &Arc<Asks>) -> Self {
        Self(PerThread::new(|| Arc::new(Door(Arc::clone(asks)))))
    }

    pub(super) fn mine(&self) -> Arc<Door> {
        Arc::clone(self.0.mine())
    }
}

enum State<T> {
    Waiting(Option<Waker>),
    Over(Option<Result<T, Unanswered>>),
}

/// A question, between who waits and who answers.
pub(super) struct Slot<T> {
    number: AtomicU64, // 0: in no table
    state: Mutex<State<T>>,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Arc<Self> {
        let state = Mutex::new(State::Waiting(None));
        Arc::new(Self { number: AtomicU64::new(0), state })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waited for it.
    fn end(&self, result: Result<T, Unanswered>) -> bool {
        let before = {
            let mut state = self.lock();
            if let State::Over(_) = *state {
                return false;
            }
            std::mem::replace(&mut *state, State::Over(Some(result)))
        };
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
        true
    }

    pub(super) fn fill(&self, value: T, asks: &Asks) {
        asks.count(self.end(Ok(value)));
    }

    pub(super) fn refuse(&self, why: Lost) {
        let _was_waiting = self.end(Err(Unanswered::Refused(why)));
    }

    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, Unanswered>> {
        match &mut *self.lock() {
            State::Waiting(waker) => {
                match waker {
                    Some(waker) if waker.will_wake(cx.waker()) => {}
                    waker => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Over(result) => {
                Poll::Ready(result.take().unwrap_or(Err(Unanswered::Refused(Lost::NoAnswer))))
            }
        }
    }

    /// Nobody waits any more.
    pub(super) fn forget(&self, asks: &Asks) {
        let over = State::Over(None);
        let _value = std::mem::replace(&mut *self.lock(), over);
        let number = self.number.load(Ordering::Acquire);
        if number > 0 {
            asks.take(number);
        }
    }

    /// Its number, if its address left as bytes.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }
}

impl<T: DeserializeOwned + Send + 'static> Slot<T> {
    /// Its number in the table, from now on.
    pub(super) fn enlist(self: &Arc<Self>, asks: &Asks) -> u64 {
        let known = self.number();
        if known > 0 {
            return known;
        }
        let number = asks.add(Arc::<Self>::clone(self));
        self.number.store(number, Ordering::Release);
        if let State::Over(_) = *self.lock() {
            asks.take(number); // nobody waits any more
        }
        number
    }
}

impl<T: DeserializeOwned + Send + 'static> Question for Slot<T> {
    fn answered(&self, body: &[u8]) -> bool {
        let bytes = body.len();
        self.end(decode(body).map_err(|source| Unanswered::Undecodable { bytes, source }))
    }

    fn refused(&self, why: Lost) -> bool {
        self.end(Err(Unanswered::Refused(why)))
    }
}
