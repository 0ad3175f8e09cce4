//! [`Replicator`]: the program's handle for replicated data.
//!
//! Requests become inputs of the machine, and replies wake the callers' futures. The futures borrow
//! nothing, so they can be spawned. A future may be dropped at any time without leaving state
//! behind, and does nothing before its first poll. The protocol is described in
//! docs/protocol/replication.md.

mod consistency;
mod error;
pub(crate) mod subscription;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostraca_ddata::data::Value;
use ostraca_ddata::key::{Key, KeyName, Pattern};
use ostraca_ddata::replicator::epoch::Epoch;
use ostraca_ddata::replicator::port::ReplicatorInput;
use ostraca_ddata::replicator::request::{
    ReadConsistency, ReplicatorReply, ReplicatorRequest, RequestError, Update, WriteConsistency,
};
use ostraca_ddata::replicator::stats::ReplicatorStats;
use ostraca_ddata::types::DataType;
use ostraca_ddata::types::edit::{Edit, EditError};
use tokio::sync::oneshot;

pub use self::consistency::{
    ReadAll, ReadFrom, ReadLocal, ReadMajority, ReadMajorityPlus, WriteAll, WriteLocal,
    WriteMajority, WriteMajorityPlus, WriteTo, secs,
};
use self::consistency::{patience_of_read, patience_of_write};
use self::error::{CallFailure, Panicked};
pub use self::error::{DeleteError, FlushError, GetError, QueryError, UpdateError};
use self::subscription::Subscribers;
pub use self::subscription::{Change, KeyChange, PrefixSubscription, Subscription};
use super::data::DataResult;
use super::driver::{DriverCounters, TurnStats};
use super::inbox::{Inbox, QueueLengths, QueuePermit};
use super::message_sender::{AtomicSendCounters, SendCounters};
use super::receiver::DataReceiver;
use super::replies::{NoReply, OpenError, Replies};
use crate::cluster::lease::guard::{GuardInput, GuardedReplicator as Machine};
use crate::sharding::forget_panic;

/// A caller runs its request on its own thread if fewer than this number of other requests are
/// pending and the Replicator sleeps. With more, the Replicator's task handles many requests in a
/// turn, and their messages share a frame.
const FEW: usize = 4;

/// How much longer than its timeout a queued request may remain unanswered. The Replicator answers
/// within the timeout once it has begun a request, but may not begin it.
const GRACE: Duration = Duration::from_secs(1);

/// Handle for the replicated data of this node. Cheap to clone; all clones refer to the same node.
///
/// # Example
/// ```
/// use ostraca::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let part = ostraca::node::parts::alone().await;
/// # let replicator = part.handle.clone();
/// let key = Key::<ORSet<String>>::new("online");
/// let is_new =
///     replicator.update(&key, WriteMajority::within(secs(3)), |set| set.insert("alice")).await?;
/// assert!(is_new);
/// let online = replicator.get(&key, ReadMajority::within(secs(3))).await?;
/// assert!(online.is_some_and(|set| set.contains("alice")));
/// # part.running.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Replicator {
    shared: Arc<ReplicatorState>,
}

pub(super) struct ReplicatorState {
    pub(super) inbox: Inbox<Machine>,
    pub(super) replies: Arc<Replies<DataResult>>,
    pub(super) replies_limit: usize,
    pub(super) subscribers: Arc<Subscribers>,
    pub(super) counters: Arc<DriverCounters>,
    pub(super) receiver: Arc<DataReceiver>,
    pub(super) sending: Arc<AtomicSendCounters>,
}

/// Load of the Replicator, read without waiting for its task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of queued inputs.
    pub waiting: QueueLengths,
    /// Turns and inputs handled so far.
    pub turns: TurnStats,
    /// Number of futures that wait for a reply.
    pub replies_awaited: usize,
    /// Number of open subscriptions.
    pub subscriptions: usize,
    /// Messages from peers accepted so far.
    pub received: u64,
    /// Messages from peers that could not be decoded.
    pub undecodable: u64,
    /// Messages sent to peers, and those that were not sent.
    pub sent: SendCounters,
}

impl Replicator {
    pub(super) fn new(shared: ReplicatorState) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Changes the value under `key` with `f`, starting from the empty value if the key holds none.
    /// Returns the result of `f` when as many replicas as `consistency` requires hold the change.
    ///
    /// `f` runs at most once, inside the Replicator, on the caller's thread or another one (also
    /// while another caller's future is polled), so it must neither block nor take long: every
    /// other request waits for it. If it returns an error or panics, only this update fails. All of
    /// its changes are made, or none. If the update is refused before, `f` is dropped without a
    /// run. It may return the new value:
    /// `|edit| { edit.increment()?; Ok(edit.view()) }`.
    ///
    /// The call may take twice the timeout of the level (once for a place in the queue, once for
    /// the write) plus two seconds. [`WriteLocal`] has no timeout: it waits for a place in the
    /// queue, and while a durable store hangs. If the future is dropped before it completes, the
    /// change may or may not be made.
    ///
    /// # Errors
    /// [`UpdateError`]. After `Timeout` the change stays applied here and will spread.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let part = ostraca::node::parts::alone().await;
    /// # let replicator = part.handle.clone();
    /// let hits = Key::<PNCounter>::new("hits");
    /// let now = replicator
    ///     .update(&hits, WriteLocal, |counter| {
    ///         counter.add(2)?;
    ///         Ok(counter.view().value())
    ///     })
    ///     .await?;
    /// assert_eq!(now, 2);
    /// # part.running.stop().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn update<T, R, F>(
        &self,
        key: &Key<T>,
        consistency: WriteConsistency,
        f: F,
    ) -> impl Future<Output = Result<R, UpdateError>> + Send + use<T, R, F>
    where
        T: DataType,
        R: Send + 'static,
        F: FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
    {
        let result = Arc::new(Mutex::new(None));
        let update = Update::new(key, consistency, contained(f, result.clone())).untold();
        let request = ReplicatorRequest::Update(update);
        let reply = self.ask::<UpdateError>(request, patience_of_write(consistency));
        async move {
            let reply = reply.await?;
            assert!(
                matches!(reply, ReplicatorReply::Updated { .. }),
                "an update is answered by {reply:?}"
            );
            let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(result.expect("an update succeeds only after its function stored its result"))
        }
    }

    /// Reads the value under `key`; `None` if it was never written, was deleted or has expired. The
    /// read counts as a use of the key, which postpones its expiry. It may take as long as an
    /// [`update`](Self::update) with the same timeout; [`ReadLocal`] has none, and waits while the
    /// node is overloaded.
    ///
    /// # Errors
    /// [`GetError`]. A read can be repeated safely.
    pub fn get<T: DataType>(
        &self,
        key: &Key<T>,
        consistency: ReadConsistency,
    ) -> impl Future<Output = Result<Option<T>, GetError>> + Send + use<T> {
        let (key, shape) = (key.name().clone(), Some(T::shape()));
        let request = ReplicatorRequest::Get { key, shape, consistency };
        let reply = self.ask::<GetError>(request, patience_of_read(consistency));
        async move {
            match reply.await? {
                ReplicatorReply::Got { value: None, .. } => Ok(None),
                ReplicatorReply::Got { value: Some(value), .. } => {
                    let (expected, found) = (T::shape(), value.shape().clone());
                    value.get().map(Some).ok_or(GetError::WrongType { expected, found })
                }
                other => unreachable!("a read is answered by Got, not {other:?}"),
            }
        }
    }

    /// Reads the value under a key, of any type, like [`get`](Self::get): for tools.
    ///
    /// # Errors
    /// [`GetError`], but never `WrongType`.
    pub fn get_value(
        &self,
        key: &KeyName,
        consistency: ReadConsistency,
    ) -> impl Future<Output = Result<Option<Value>, GetError>> + Send + use<> {
        let request = ReplicatorRequest::Get { key: key.clone(), shape: None, consistency };
        let reply = self.ask::<GetError>(request, patience_of_read(consistency));
        async move {
            match reply.await? {
                ReplicatorReply::Got { value, .. } => Ok(value),
                other => unreachable!("a read is answered by Got, not {other:?}"),
            }
        }
    }

    /// Deletes the value that this node has seen under `key`, of any type. A concurrent update
    /// survives the delete, and the key can be used again, with the same type. Succeeds if the key
    /// holds no value; at once if this node has never held it, but after the checks of the level.
    /// It may take as long as an [`update`](Self::update) with the same timeout.
    ///
    /// # Errors
    /// [`DeleteError`]. After `Timeout` the delete stays applied here and will spread.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let part = ostraca::node::parts::alone().await;
    /// # let replicator = part.handle.clone();
    /// let flag = Key::<Flag>::new("ready");
    /// replicator.update(&flag, WriteLocal, |flag| flag.switch_on()).await?;
    /// replicator.delete(&flag, WriteMajority::within(secs(3))).await?;
    /// assert_eq!(replicator.get(&flag, ReadLocal).await?, None);
    /// # part.running.stop().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn delete<T>(
        &self,
        key: &Key<T>,
        consistency: WriteConsistency,
    ) -> impl Future<Output = Result<(), DeleteError>> + Send + use<T> {
        let request = ReplicatorRequest::Delete { key: key.name().clone(), consistency };
        let reply = self.ask::<DeleteError>(request, patience_of_write(consistency));
        async move { reply.await.map(drop) }
    }

    /// Subscribes to a key: the stream yields its current value first, if it has one, then its
    /// changes. A slow reader sees the latest value but not every one; it delays nothing. Never
    /// fails: the stream of a node that has stopped ends at once.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let part = ostraca::node::parts::alone().await;
    /// # let replicator = part.handle.clone();
    /// let leader = Key::<LWWRegister<String>>::new("leader");
    /// let mut changes = replicator.subscribe(&leader);
    /// replicator.update(&leader, WriteLocal, |register| register.set("alice")).await?;
    /// let Some(Change::Changed(register)) = changes.next().await else { panic!("it was set") };
    /// assert_eq!(register.get()?.as_deref(), Some("alice"));
    /// # part.running.stop().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn subscribe<T: DataType>(&self, key: &Key<T>) -> Subscription<T> {
        let ReplicatorState { subscribers, inbox, replies, .. } = &*self.shared;
        Subscription::open(subscribers, inbox, replies, key.name())
    }

    /// Subscribes to a key of any type: the stream yields its current value first, if it has one.
    #[must_use]
    pub fn subscribe_value(&self, key: &KeyName) -> PrefixSubscription {
        self.subscribe_pattern(Pattern::Exact(key.clone()))
    }

    /// Subscribes to every key that begins with `prefix`: the stream yields their current values
    /// first.
    #[must_use]
    pub fn subscribe_prefix(&self, prefix: &str) -> PrefixSubscription {
        self.subscribe_pattern(Pattern::Prefix(prefix.into()))
    }

    fn subscribe_pattern(&self, pattern: Pattern) -> PrefixSubscription {
        let ReplicatorState { subscribers, inbox, replies, .. } = &*self.shared;
        PrefixSubscription::open(subscribers, inbox, replies, pattern)
    }

    /// Lists keys that begin with `prefix` and hold a value on this node, ordered by name: at most
    /// `limit` keys, only those after `after`, which need not exist. To get the next page, pass the
    /// last key of a page.
    ///
    /// Scans all keys, so do not call it on a hot path. Like all queries, it has no timeout, and
    /// waits while the node is overloaded or its disk is behind.
    ///
    /// # Errors
    /// [`QueryError`].
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let part = ostraca::node::parts::alone().await;
    /// # let replicator = part.handle.clone();
    /// for name in ["room/a", "room/b", "other"] {
    ///     replicator.update(&Key::<Flag>::new(name), WriteLocal, |flag| flag.switch_on()).await?;
    /// }
    /// let first = replicator.keys("room/", None, 1).await?;
    /// let second = replicator.keys("room/", first.last(), 1).await?;
    /// assert_eq!((first[0].as_str(), second[0].as_str()), ("room/a", "room/b"));
    /// # part.running.stop().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(
        &self,
        prefix: &str,
        after: Option<&KeyName>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<KeyName>, QueryError>> + Send + use<> {
        let request =
            ReplicatorRequest::Keys { prefix: prefix.to_owned(), after: after.cloned(), limit };
        let reply = self.ask::<QueryError>(request, None);
        async move {
            match reply.await? {
                ReplicatorReply::Keys(keys) => Ok(keys),
                other => unreachable!("a query for keys is answered by Keys, not {other:?}"),
            }
        }
    }

    /// Number of members in the installed configuration; 0 unless this node is one of them, and
    /// while its durable data are read.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn replica_count(&self) -> impl Future<Output = Result<usize, QueryError>> + Send + use<> {
        let reply = self.ask::<QueryError>(ReplicatorRequest::ReplicaCount, None);
        async move {
            match reply.await? {
                ReplicatorReply::ReplicaCount(count) => Ok(count),
                other => unreachable!("a count is answered by ReplicaCount, not {other:?}"),
            }
        }
    }

    /// Waits until every change made on this node so far is delivered to every replica. The call
    /// may take twice `within` (once for a place in the queue, once for the delivery) plus two
    /// seconds.
    ///
    /// # Errors
    /// [`FlushError`]. Unless this node was removed, no change is lost: undelivered changes will be
    /// delivered later.
    pub fn flush_changes(
        &self,
        within: Duration,
    ) -> impl Future<Output = Result<(), FlushError>> + Send + use<> {
        let reply =
            self.ask::<FlushError>(ReplicatorRequest::FlushChanges { within }, Some(within));
        async move { reply.await.map(drop) }
    }

    /// The configuration that is installed on this node; `None` before it has received one. It need
    /// not contain this node.
    ///
    /// # Errors
    /// [`QueryError::Stopped`] only.
    pub fn configuration(
        &self,
    ) -> impl Future<Output = Result<Option<Arc<Epoch>>, QueryError>> + Send + use<> {
        self.look(|machine| machine.replicator().epochs().installed().cloned())
    }

    /// Counters of the Replicator, read in its turn, after earlier requests.
    ///
    /// # Errors
    /// [`QueryError::Stopped`] only.
    pub fn stats(
        &self,
    ) -> impl Future<Output = Result<ReplicatorStats, QueryError>> + Send + use<> {
        self.look(|machine| machine.replicator().stats())
    }

    /// Reads the machine by a function that runs inside the Replicator, in the order of the
    /// requests, on the thread that runs the turn, even if the caller has dropped the future since.
    /// Waits without a time limit for a place in the queue and for the Replicator's turn, and needs
    /// no place in the table of replies. Fails only with `Stopped`, if the Replicator ends before
    /// the function has run, which is dropped then.
    fn look<T, F>(&self, look: F) -> impl Future<Output = Result<T, QueryError>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce(&Machine) -> T + Send + 'static,
    {
        let shared = self.shared.clone();
        async move {
            let (sender, receiver) = oneshot::channel();
            let place = shared.inbox.place().await.map_err(|_| QueryError::Stopped)?;
            let look = |machine: &Machine| {
                let _ = sender.send(look(machine)); // fails if the caller dropped its future
            };
            place.look(look).map_err(|_| QueryError::Stopped)?;
            receiver.await.map_err(|_| QueryError::Stopped)
        }
    }

    /// Load of the Replicator: queues, turns, traffic, read one after the other. Never waits, and
    /// works after the end as well.
    #[must_use]
    pub fn load(&self) -> Load {
        let shared = &*self.shared;
        Load {
            waiting: shared.inbox.waiting(),
            turns: shared.counters.read(),
            replies_awaited: shared.replies.len(),
            subscriptions: shared.subscribers.len(),
            received: shared.receiver.taken(),
            undecodable: shared.receiver.undecodable(),
            sent: shared.sending.read(),
        }
    }

    /// Sends a request to the machine and waits for its reply, without a time limit if `patience`
    /// is `None`. Waits at most `patience` for a place in its inbox, and fails as overloaded then;
    /// from then on the machine enforces the deadline. If it does not begin the request, because
    /// its disk is behind, the request fails as unanswered [`GRACE`] after the deadline. Does
    /// nothing before the first poll.
    fn ask<E>(
        &self,
        request: ReplicatorRequest,
        patience: Option<Duration>,
    ) -> impl Future<Output = Result<ReplicatorReply, E>> + Send + use<E>
    where
        E: From<CallFailure> + From<RequestError>,
    {
        let shared = self.shared.clone();
        async move { Ok(shared.ask(request, patience).await??) }
    }
}

impl ReplicatorState {
    /// Sends a request and waits for its reply; see [`Replicator::ask`]. Runs a turn on this thread
    /// if fewer than [`FEW`] others are pending and the machine sleeps. The outer error tells that
    /// there was no reply: `Overloaded` without a place in the inbox or in the table of replies,
    /// each with its own limit, `Stopped` if the request was not queued, `Interrupted` if the
    /// machine ended after that, `Unanswered` if no reply came in time. If the future is dropped, a
    /// queued request is still carried out.
    async fn ask(
        &self,
        request: ReplicatorRequest,
        patience: Option<Duration>,
    ) -> Result<DataResult, CallFailure> {
        let place = match self.inbox.place_now() {
            Some(place) => place,
            None => Box::pin(self.place(patience)).await?,
        };
        let waited = patience.map(|span| span.saturating_add(GRACE));
        let pending = self.replies.open(waited).map_err(|why| match why {
            OpenError::Full => CallFailure::Overloaded { limit: self.replies_limit },
            OpenError::Ended => CallFailure::Stopped,
        })?;
        let input = GuardInput::Data(ReplicatorInput::Request { id: pending.id(), request });
        let asked =
            if pending.others() < FEW { place.request_here(input) } else { place.request(input) };
        asked.map_err(|_| CallFailure::Stopped)?;
        pending.await.map_err(|why| match (why, waited) {
            (NoReply::Overdue, Some(waited)) => CallFailure::Unanswered { waited },
            (NoReply::Overdue | NoReply::Ended, _) => CallFailure::Interrupted,
        })
    }

    /// Waits for a place in the inbox, at most `patience`: then fails with `Overloaded` and the
    /// inbox's limit. Fails with `Stopped` when the inbox is closed, also during the wait.
    async fn place(
        &self,
        patience: Option<Duration>,
    ) -> Result<QueuePermit<'_, Machine>, CallFailure> {
        let place = match patience {
            None => self.inbox.place().await,
            Some(span) => {
                let limit = self.inbox.limits().requests;
                let place = tokio::time::timeout(span, self.inbox.place()).await;
                place.map_err(|_| CallFailure::Overloaded { limit })?
            }
        };
        place.map_err(|_| CallFailure::Stopped)
    }
}

impl fmt::Debug for Replicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicator").field("load", &self.load()).finish()
    }
}

/// Wraps the caller's function so that a panic, also of the values that it captured or of a result
/// whose caller is gone, fails only its own edit. The function's result is stored in `result` if it
/// succeeds, and its error is passed on. A panic becomes an [`EditError`] with [`Panicked`]. If the
/// returned function is dropped without a call, the caller's function is dropped, and a panic of
/// that is caught.
fn contained<T, R, F>(
    f: F,
    result: Arc<Mutex<Option<R>>>,
) -> impl FnOnce(&mut Edit<'_, T>) -> Result<(), EditError> + Send + 'static
where
    T: DataType,
    R: Send + 'static,
    F: FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
{
    let mut kept = PanicSafeDrop(Some((f, result)));
    move |edit| {
        let (f, result) = kept.0.take().expect("a function that runs once");
        let run = AssertUnwindSafe(move || {
            let made = f(edit)?; // captured values and a lost caller's result are dropped here
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
            Ok(())
        });
        catch_unwind(run)
            .unwrap_or_else(|panic| Err(EditError::custom(Panicked(panic_message(panic)))))
    }
}

/// A value of the program that may panic when it is dropped. The panic is caught, and a second one
/// by the drop of its payload as well.
struct PanicSafeDrop<T>(Option<T>);

impl<T> Drop for PanicSafeDrop<T> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(inner)))
        {
            forget_panic(panic); // the panic hook has reported it
        }
    }
}

/// Message of a caught panic; `no text` if its payload is no string. Drops the payload as
/// [`forget_panic`] does.
pub(super) fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    forget_panic(panic);
    text.unwrap_or_else(|| "no text".to_owned())
}
