//! Subscriptions to keys as streams: the current value first, then changes.
//!
//! The Replicator never waits for a reader: for each key only the latest unread value is kept, so
//! that a slow reader skips values. Dropping a stream ends its subscription.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Bound::{Excluded, Unbounded};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::Stream;
use ostraca_ddata::data::Value;
use ostraca_ddata::key::{KeyName, Pattern};
use ostraca_ddata::replicator::port::ReplicatorInput;
use ostraca_ddata::replicator::request::{ReplicatorRequest, SubscriptionId, SubscriptionNotice};
use ostraca_ddata::types::DataType;
use ostraca_ddata::types::shape::Shape;

use super::super::data::DataResult;
use super::super::inbox::Inbox;
use super::super::replies::Replies;
use crate::cluster::lease::guard::{GuardInput, GuardedReplicator as Machine};

/// Table of open subscriptions, each with its unread changes.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    table: Mutex<SubscriptionTable>,
}

#[derive(Debug, Default)]
struct SubscriptionTable {
    open: BTreeMap<SubscriptionId, Arc<Mutex<Unread>>>, // unbounded: the program opens them
    last: u64,   // number of the newest subscription; none is reused
    ended: bool, // the Replicator has ended; `open` is empty from then on
}

/// Unread changes of a subscription.
#[derive(Debug, Default)]
struct Unread {
    /// The latest change of each key; `None` for a deleted key.
    news: BTreeMap<KeyName, Option<Value>>, // ≤ keys that match
    /// The key that was read last. Reading continues after it, so that one key that changes all the
    /// time does not starve the others.
    last: Option<KeyName>,
    waker: Option<Waker>, // of the task that polled last
    ended: bool,          // no change follows; those in `news` are still read
}

impl Subscribers {
    /// Adds a change to a subscription and wakes its reader. Replaces an unread change of the same
    /// key. Does nothing if the subscription is no longer open.
    pub(crate) fn tell(&self, id: SubscriptionId, notice: SubscriptionNotice) {
        let Some(unread) = self.lock().open.get(&id).cloned() else { return };
        let (key, value) = match notice {
            SubscriptionNotice::Changed { key, value, .. } => (key, Some(value)),
            SubscriptionNotice::Deleted { key } => (key, None),
        };
        let mut unread = lock(&unread);
        let old = unread.news.insert(key, value);
        let waker = unread.waker.take();
        drop(unread);
        drop(old);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends all streams after their unread changes, because there will be no further ones, and
    /// wakes their readers. Closes all subscriptions; those that are opened later end at once. A
    /// second call has no effect.
    pub(crate) fn end(&self) {
        let mut table = self.lock();
        table.ended = true;
        let all = std::mem::take(&mut table.open);
        drop(table);
        for unread in all.values() {
            let mut unread = lock(unread);
            unread.ended = true;
            let waker = unread.waker.take();
            drop(unread);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Number of open subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// Opens a subscription under a new id. After [`end`](Self::end) the subscription is not added,
    /// and its stream ends at once.
    fn open(&self) -> (SubscriptionId, Arc<Mutex<Unread>>) {
        let mut table = self.lock();
        table.last += 1;
        let (id, unread) = (SubscriptionId(table.last), Arc::<Mutex<Unread>>::default());
        if table.ended {
            lock(&unread).ended = true;
        } else {
            table.open.insert(id, unread.clone());
        }
        (id, unread)
    }

    fn lock(&self) -> MutexGuard<'_, SubscriptionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(unread: &Mutex<Unread>) -> MutexGuard<'_, Unread> {
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unread {
    /// Takes the unread change of the next key, by name, after the key that was read last; if there
    /// is none after it, that of the first key. `None` if nothing is unread; reading then starts
    /// again with the first key.
    fn next(&mut self) -> Option<(KeyName, Option<Value>)> {
        let after = self.last.take().and_then(|last| {
            self.news.range((Excluded(&last), Unbounded)).next().map(|(key, _)| key.clone())
        });
        let news = match after {
            Some(key) => self.news.remove_entry(&key),
            None => self.news.pop_first(),
        };
        self.last = news.as_ref().map(|(key, _)| key.clone());
        news
    }
}

/// The reading side of one subscription. Dropping it unsubscribes.
struct Feed {
    id: SubscriptionId,
    unread: Arc<Mutex<Unread>>,
    subscribers: Arc<Subscribers>,
    inbox: Inbox<Machine>,
    replies: Arc<Replies<DataResult>>,
}

impl Feed {
    /// Opens a subscription to the keys of `pattern` and requests it from the Replicator. Never
    /// waits and never fails: the request may exceed the bound of queued requests, and the stream
    /// of a stopped node ends without a change.
    fn open(
        subscribers: &Arc<Subscribers>,
        inbox: &Inbox<Machine>,
        replies: &Arc<Replies<DataResult>>,
        pattern: Pattern,
    ) -> Self {
        let (id, unread) = subscribers.open();
        let feed = Self {
            id,
            unread,
            subscribers: subscribers.clone(),
            inbox: inbox.clone(),
            replies: replies.clone(),
        };
        feed.ask(ReplicatorRequest::Subscribe { subscription: id, pattern });
        feed
    }

    /// Sends a request that has no reply. The request is lost if the inbox is closed.
    fn ask(&self, request: ReplicatorRequest) {
        let id = self.replies.id_without_reply();
        // Fails only if the inbox is closed: the stream has ended or ends with the Replicator.
        let _ = self.inbox.request_now(GuardInput::Data(ReplicatorInput::Request { id, request }));
    }

    /// Takes the next unread change, also after the end. Ready with `None` once the subscription
    /// has ended and nothing is unread, and at each later poll. If pending, only the task that
    /// polled last is woken.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<(KeyName, Option<Value>)>> {
        let mut unread = lock(&self.unread);
        if let Some(news) = unread.next() {
            return Poll::Ready(Some(news));
        }
        if unread.ended {
            return Poll::Ready(None);
        }
        let old = unread.waker.replace(context.waker().clone());
        drop(unread);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Feed {
    /// Closes the subscription, so that its further changes are dropped, and unsubscribes at the
    /// Replicator, unless the Replicator has ended. Needs no place in the queue of requests.
    fn drop(&mut self) {
        let known = self.subscribers.lock().open.remove(&self.id);
        if known.is_some() {
            self.ask(ReplicatorRequest::Unsubscribe(self.id));
        }
    }
}

/// A change of a key, from a subscription to that key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change<T> {
    /// The present value of the key. Values in between may have been skipped.
    Changed(T),
    /// The key no longer holds a value.
    Deleted,
    /// The key holds data of another type: two programs use one key.
    WrongType {
        /// Type that the subscriber expected.
        expected: Shape,
        /// Type that the key holds.
        found: Shape,
    },
}

/// The changes of one key: a [`Stream`] that ends when the node stops, after its unread changes.
/// Dropping it unsubscribes.
pub struct Subscription<T> {
    feed: Feed,
    kind: PhantomData<fn() -> T>,
}

impl<T: DataType> Subscription<T> {
    /// Subscribes to a key. If the key holds no value, nothing is read until it does.
    pub(super) fn open(
        subscribers: &Arc<Subscribers>,
        inbox: &Inbox<Machine>,
        replies: &Arc<Replies<DataResult>>,
        key: &KeyName,
    ) -> Self {
        let feed = Feed::open(subscribers, inbox, replies, Pattern::Exact(key.clone()));
        Self { feed, kind: PhantomData }
    }

    /// The next change; `None` when the node has stopped and all changes are read. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change<T>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl<T: DataType> Stream for Subscription<T> {
    type Item = Change<T>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change<T>>> {
        self.feed.poll(context).map(|news| news.map(|(_, value)| opened(value.as_ref())))
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscription({})", self.feed.id.0)
    }
}

/// Converts a change to the subscriber's type: `None` becomes [`Change::Deleted`], a value of
/// another type [`Change::WrongType`].
fn opened<T: DataType>(value: Option<&Value>) -> Change<T> {
    match value {
        None => Change::Deleted,
        Some(value) => value.get().map_or_else(
            || Change::WrongType { expected: T::shape(), found: value.shape().clone() },
            Change::Changed,
        ),
    }
}

/// A change of a key, from a subscription to a prefix or to a key of any type.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyChange {
    /// Name of the key that changed.
    pub key: KeyName,
    /// The present value; `None` if the key no longer holds one. To find the changed entries of a
    /// value, keep the previous value and call [`Value::keys_changed_since`].
    pub value: Option<Value>,
}

/// The changes of one key, or of all keys with a prefix, of any type: a [`Stream`] that ends when
/// the node stops, after its unread changes. Keys with unread changes are read in turn, so that
/// none is starved. Dropping the stream unsubscribes.
pub struct PrefixSubscription {
    feed: Feed,
}

impl PrefixSubscription {
    /// Subscribes to the keys of a pattern. The present values of all these keys are read first.
    pub(super) fn open(
        subscribers: &Arc<Subscribers>,
        inbox: &Inbox<Machine>,
        replies: &Arc<Replies<DataResult>>,
        pattern: Pattern,
    ) -> Self {
        Self { feed: Feed::open(subscribers, inbox, replies, pattern) }
    }

    /// The next change; `None` when the node has stopped and all changes are read. Cancel-safe.
    pub async fn next(&mut self) -> Option<KeyChange> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for PrefixSubscription {
    type Item = KeyChange;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<KeyChange>> {
        self.feed.poll(context).map(|news| news.map(|(key, value)| KeyChange { key, value }))
    }
}

impl fmt::Debug for PrefixSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixSubscription({})", self.feed.id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_key_does_not_starve_other_keys_of_a_slow_reader() {
        let mut unread = Unread::default();
        for key in ["a", "b", "c"] {
            unread.news.insert(key.into(), None);
        }
        let mut seen = Vec::new();
        for _ in 0..6 {
            let (key, _) = unread.next().expect("news");
            seen.push(key.as_str().to_owned());
            unread.news.insert("a".into(), None);
        }
        assert_eq!(seen, ["a", "b", "c", "a", "a", "a"]);
        unread.news.clear();
        assert_eq!(unread.next(), None);
    }

    #[test]
    fn changes_for_closed_streams_are_dropped_and_end_reaches_all() {
        let subscribers = Subscribers::default();
        subscribers.tell(SubscriptionId(9), SubscriptionNotice::Deleted { key: "k".into() });
        let (id, unread) = subscribers.open();
        subscribers.tell(id, SubscriptionNotice::Deleted { key: "k".into() });
        subscribers.tell(id, SubscriptionNotice::Deleted { key: "k".into() });
        assert_eq!(lock(&unread).news.len(), 1, "only the latest change of a key is kept");
        subscribers.end();
        assert!(lock(&unread).ended);
        assert_eq!(subscribers.len(), 0);
        let (_, late) = subscribers.open();
        assert!(lock(&late).ended);
    }
}
