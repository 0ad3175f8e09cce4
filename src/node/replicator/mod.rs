//! [`Replicator`], the handle: what a program asks of replicated data (spec/replicated-data.md).
//!
//! Requests become inputs of the machine and replies wake futures. Futures borrow nothing, so they
//! can be spawned; any may be dropped at any time and leaves nothing behind. Nothing happens before
//! the first poll. Knows no peer and no protocol.

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
use ostraca_ddata::replicator::port::Input;
use ostraca_ddata::replicator::request::{
    ReadConsistency, Reply, Request, RequestError, Update, WriteConsistency,
};
use ostraca_ddata::replicator::stats::Stats;
use ostraca_ddata::types::DataType;
use ostraca_ddata::types::edit::{Edit, EditError};
use tokio::sync::oneshot;

pub use self::consistency::{
    ReadAll, ReadFrom, ReadLocal, ReadMajority, ReadMajorityPlus, WriteAll, WriteLocal,
    WriteMajority, WriteMajorityPlus, WriteTo, secs,
};
use self::consistency::{patience_of_read, patience_of_write};
pub use self::error::{DeleteError, FlushError, GetError, QueryError, UpdateError};
use self::error::{Lost, Panicked};
use self::subscription::Subscribers;
pub use self::subscription::{Change, KeyChange, PrefixSubscription, Subscription};
use super::data::Answer;
use super::driver::{Counters, Turns};
use super::inbox::{Inbox, Place, Waiting};
use super::outgoing::{Sending, Sent};
use super::receiver::DataReceiver;
use super::replies::{NoReply, Replies, Unopened};
use crate::cluster::lease::guard::{Guard as Machine, GuardInput};

/// Requests under way, this one among them, up to which a caller runs it itself. Of more, many share
/// a turn of the Replicator's task, and their messages a frame.
const FEW: usize = 4;

/// How much longer than its caller's time a request may take that has its place: the Replicator,
/// which answers in that time once it begins, may not begin.
const GRACE: Duration = Duration::from_secs(1);

/// The replicated data of this node. Cheap to clone; every clone is the same.
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
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) inbox: Inbox<Machine>,
    pub(super) replies: Arc<Replies<Answer>>,
    pub(super) replies_limit: usize,
    pub(super) subscribers: Arc<Subscribers>,
    pub(super) counters: Arc<Counters>,
    pub(super) receiver: Arc<DataReceiver>,
    pub(super) sending: Arc<Sending>,
}

/// How busy the Replicator's task is, read without asking it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// What waits for it.
    pub waiting: Waiting,
    /// What it did so far.
    pub turns: Turns,
    /// Futures that wait for a reply.
    pub replies_awaited: usize,
    /// Streams that are open.
    pub subscriptions: usize,
    /// Messages of peers taken so far.
    pub received: u64,
    /// Messages of peers that did not decode.
    pub undecodable: u64,
    /// Messages to peers.
    pub sent: Sent,
}

impl Replicator {
    pub(super) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Changes the value under `key` with `f`, on the empty value if there is none, and returns
    /// what `f` returns when as many replicas as `consistency` asks for hold the change.
    ///
    /// `f` runs within the Replicator, on the caller's thread or another's (also while another
    /// caller's future is polled), so it must neither block nor take long: every other request
    /// waits for it. All of its changes happen, or none. It may return the new value:
    /// `|edit| { edit.increment()?; Ok(edit.view()) }`.
    ///
    /// The level's time counts twice at most: once for a place in the queue, once from then on, and
    /// two seconds. [`WriteLocal`] has no time: it waits while a durable store hangs. A future that is
    /// dropped before it ends leaves the question open: the change may be made.
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
        let request = Request::Update(update);
        let reply = self.ask::<UpdateError>(request, patience_of_write(consistency));
        async move {
            let reply = reply.await?;
            assert!(matches!(reply, Reply::Updated { .. }), "an update is answered by {reply:?}");
            let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(result.expect("an update is made only by its function, which left its result"))
        }
    }

    /// Reads what `key` holds; `None`: never there, deleted or expired.
    ///
    /// # Errors
    /// [`GetError`]. Nothing was changed; repeat it as you like.
    pub fn get<T: DataType>(
        &self,
        key: &Key<T>,
        consistency: ReadConsistency,
    ) -> impl Future<Output = Result<Option<T>, GetError>> + Send + use<T> {
        let (key, shape) = (key.name().clone(), Some(T::shape()));
        let request = Request::Get { key, shape, consistency };
        let reply = self.ask::<GetError>(request, patience_of_read(consistency));
        async move {
            match reply.await? {
                Reply::Got { value: None, .. } => Ok(None),
                Reply::Got { value: Some(value), .. } => {
                    let (expected, found) = (T::shape(), value.shape().clone());
                    value.get().map(Some).ok_or(GetError::WrongType { expected, found })
                }
                other => unreachable!("a read is answered by Got, not {other:?}"),
            }
        }
    }

    /// Reads what a key holds, whatever its type: for tools.
    ///
    /// # Errors
    /// [`GetError`], but never `WrongType`.
    pub fn get_value(
        &self,
        key: &KeyName,
        consistency: ReadConsistency,
    ) -> impl Future<Output = Result<Option<Value>, GetError>> + Send + use<> {
        let request = Request::Get { key: key.clone(), shape: None, consistency };
        let reply = self.ask::<GetError>(request, patience_of_read(consistency));
        async move {
            match reply.await? {
                Reply::Got { value, .. } => Ok(value),
                other => unreachable!("a read is answered by Got, not {other:?}"),
            }
        }
    }

    /// Deletes what this node has seen under `key`, of whatever type. A concurrent update survives
    /// it, and the key can be used again.
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
        let request = Request::Delete { key: key.name().clone(), consistency };
        let reply = self.ask::<DeleteError>(request, patience_of_write(consistency));
        async move { reply.await.map(drop) }
    }

    /// The changes of a key: its current value first, if it has one. Slow readers see the latest
    /// value, not every one; nobody waits for them.
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
        let Shared { subscribers, inbox, replies, .. } = &*self.shared;
        Subscription::open(subscribers, inbox, replies, key.name())
    }

    /// The changes of a key, of whatever type: its current value first, if it has one.
    #[must_use]
    pub fn subscribe_value(&self, key: &KeyName) -> PrefixSubscription {
        self.subscribe_pattern(Pattern::Exact(key.clone()))
    }

    /// The changes of every key that begins with `prefix`: their current values first.
    #[must_use]
    pub fn subscribe_prefix(&self, prefix: &str) -> PrefixSubscription {
        self.subscribe_pattern(Pattern::Prefix(prefix.into()))
    }

    fn subscribe_pattern(&self, pattern: Pattern) -> PrefixSubscription {
        let Shared { subscribers, inbox, replies, .. } = &*self.shared;
        PrefixSubscription::open(subscribers, inbox, replies, pattern)
    }

    /// Keys of this node that begin with `prefix` and hold something, in the order of their names:
    /// at most `limit`, only those after `after`. The last one of a page begins the next.
    ///
    /// Looks at every key that there is: not for the hot path.
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
        let request = Request::Keys { prefix: prefix.to_owned(), after: after.cloned(), limit };
        let reply = self.ask::<QueryError>(request, None);
        async move {
            match reply.await? {
                Reply::Keys(keys) => Ok(keys),
                other => unreachable!("a question for keys is answered by Keys, not {other:?}"),
            }
        }
    }

    /// Members of the installed configuration; 0 before this node is one of them.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn replica_count(&self) -> impl Future<Output = Result<usize, QueryError>> + Send + use<> {
        let reply = self.ask::<QueryError>(Request::ReplicaCount, None);
        async move {
            match reply.await? {
                Reply::ReplicaCount(count) => Ok(count),
                other => unreachable!("a count is answered by ReplicaCount, not {other:?}"),
            }
        }
    }

    /// Ends when every change made at this node so far is delivered to every replica.
    ///
    /// # Errors
    /// [`FlushError`]. Nothing is lost: what was not delivered will be.
    pub fn flush_changes(
        &self,
        within: Duration,
    ) -> impl Future<Output = Result<(), FlushError>> + Send + use<> {
        let reply = self.ask::<FlushError>(Request::FlushChanges { within }, Some(within));
        async move { reply.await.map(drop) }
    }

    /// The configuration that is installed here; `None` before this node has heard of one.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn configuration(
        &self,
    ) -> impl Future<Output = Result<Option<Arc<Epoch>>, QueryError>> + Send + use<> {
        self.look(|machine| machine.replicator().epochs().installed().cloned())
    }

    /// What the Replicator counts.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn stats(&self) -> impl Future<Output = Result<Stats, QueryError>> + Send + use<> {
        self.look(|machine| machine.replicator().stats())
    }

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
                let _ = sender.send(look(machine)); // who asked may have left
            };
            place.look(look).map_err(|_| QueryError::Stopped)?;
            receiver.await.map_err(|_| QueryError::Stopped)
        }
    }

    /// How busy the Replicator's task is: queues, turns, traffic. Never waits.
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

    /// Asks the machine. Waits for a place in its inbox at most as long as the caller is patient;
    /// from then on the machine itself minds the deadline. Should it not begin, since its disk is
    /// behind, the caller is told a little later.
    fn ask<E>(
        &self,
        request: Request,
        patience: Option<Duration>,
    ) -> impl Future<Output = Result<Reply, E>> + Send + use<E>
    where
        E: From<Lost> + From<RequestError>,
    {
        let shared = self.shared.clone();
        async move { Ok(shared.ask(request, patience).await??) }
    }
}

impl Shared {
    async fn ask(&self, request: Request, patience: Option<Duration>) -> Result<Answer, Lost> {
        let place = match self.inbox.place_now() {
            Some(place) => place,
            None => Box::pin(self.place(patience)).await?,
        };
        let waited = patience.map(|span| span.saturating_add(GRACE));
        let pending = self.replies.open(waited).map_err(|why| match why {
            Unopened::Full => Lost::Overloaded { limit: self.replies_limit },
            Unopened::Ended => Lost::Stopped,
        })?;
        let input = GuardInput::Data(Input::Request { id: pending.id(), request });
        let asked =
            if pending.others() < FEW { place.request_here(input) } else { place.request(input) };
        asked.map_err(|_| Lost::Stopped)?;
        pending.await.map_err(|why| match (why, waited) {
            (NoReply::Overdue, Some(waited)) => Lost::Unanswered { waited },
            (NoReply::Overdue | NoReply::Ended, _) => Lost::Interrupted,
        })
    }

    /// Waits for a place in the inbox.
    async fn place(&self, patience: Option<Duration>) -> Result<Place<'_, Machine>, Lost> {
        let place = match patience {
            None => self.inbox.place().await,
            Some(span) => {
                let limit = self.inbox.limits().requests;
                let place = tokio::time::timeout(span, self.inbox.place()).await;
                place.map_err(|_| Lost::Overloaded { limit })?
            }
        };
        place.map_err(|_| Lost::Stopped)
    }
}

impl fmt::Debug for Replicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicator").field("load", &self.load()).finish()
    }
}

/// A user's function, so wrapped that its panics stay its own: the edit fails and nothing else
/// does. It leaves its result in `result`.
fn contained<T, R, F>(
    f: F,
    result: Arc<Mutex<Option<R>>>,
) -> impl FnOnce(&mut Edit<'_, T>) -> Result<(), EditError> + Send + 'static
where
    T: DataType,
    R: Send + 'static,
    F: FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
{
    let mut kept = Contained(Some((f, result)));
    move |edit| {
        let (f, result) = kept.0.take().expect("a function that runs once");
        let run = AssertUnwindSafe(move || {
            let made = f(edit)?; // also drops what it captured, and the result of a lost caller
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
            Ok(())
        });
        catch_unwind(run).unwrap_or_else(|panic| Err(EditError::custom(Panicked(said(&*panic)))))
    }
}

/// Something of the user's that may panic when it is dropped.
struct Contained<T>(Option<T>);

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(inner)));
        }
    }
}

/// What a panic said.
pub(super) fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}
