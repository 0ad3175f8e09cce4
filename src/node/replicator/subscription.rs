//! Subscriptions as streams: the current value first, then every change that a reader is quick
//! enough to see.
//!
//! The Replicator never waits for a reader: per key only the latest value is kept. A stream that
//! is dropped ends its subscription.

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
use ostraca_ddata::replicator::port::Input;
use ostraca_ddata::replicator::request::{Notice, Request, SubscriptionId};
use ostraca_ddata::types::DataType;
use ostraca_ddata::types::shape::Shape;

use super::super::data::Answer;
use super::super::inbox::Inbox;
use super::super::replies::Replies;
use crate::cluster::lease::guard::{Guard as Machine, GuardInput};

/// Everybody who listens: subscription → what it has not read.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: BTreeMap<SubscriptionId, Arc<Mutex<Unread>>>, // as many as the program opens
    last: u64,
    ended: bool,
}

/// What a subscriber has not read.
#[derive(Debug, Default)]
struct Unread {
    news: BTreeMap<KeyName, Option<Value>>, // ≤ keys that match
    /// The key read last: the next one is read next, so that none is read for ever.
    last: Option<KeyName>,
    waker: Option<Waker>,
    ended: bool,
}

impl Subscribers {
    /// Hands news to a subscriber, if it is still there.
    pub(crate) fn tell(&self, id: SubscriptionId, notice: Notice) {
        let Some(unread) = self.lock().open.get(&id).cloned() else { return };
        let (key, value) = match notice {
            Notice::Changed { key, value, .. } => (key, Some(value)),
            Notice::Deleted { key } => (key, None),
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

    /// There will be no further news: streams end when they are read.
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

    /// How many listen.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

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

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(unread: &Mutex<Unread>) -> MutexGuard<'_, Unread> {
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unread {
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

/// One subscription; its end, when dropped.
struct Feed {
    id: SubscriptionId,
    unread: Arc<Mutex<Unread>>,
    subscribers: Arc<Subscribers>,
    inbox: Inbox<Machine>,
    replies: Arc<Replies<Answer>>,
}

impl Feed {
    fn open(
        subscribers: &Arc<Subscribers>,
        inbox: &Inbox<Machine>,
        replies: &Arc<Replies<Answer>>,
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
        feed.ask(Request::Subscribe { subscription: id, pattern });
        feed
    }

    fn ask(&self, request: Request) {
        let id = self.replies.id_without_reply();
        // Refused only by a node that has stopped: then the stream has ended already.
        let _ = self.inbox.request_now(GuardInput::Data(Input::Request { id, request }));
    }

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
    fn drop(&mut self) {
        let known = self.subscribers.lock().open.remove(&self.id);
        if known.is_some() {
            self.ask(Request::Unsubscribe(self.id));
        }
    }
}

/// What a subscription to one key tells.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change<T> {
    /// The key holds this now. Values in between may have been skipped.
    Changed(T),
    /// The key holds nothing any more.
    Deleted,
    /// The key holds data of another kind: two programs use one key.
    WrongType {
        /// What the subscriber expected.
        expected: Shape,
        /// What is there.
        found: Shape,
    },
}

/// The changes of one key: a [`Stream`] that ends when the node stops. Dropping it unsubscribes.
pub struct Subscription<T> {
    feed: Feed,
    kind: PhantomData<fn() -> T>,
}

impl<T: DataType> Subscription<T> {
    pub(super) fn open(
        subscribers: &Arc<Subscribers>,
        inbox: &Inbox<Machine>,
        replies: &Arc<Replies<Answer>>,
        key: &KeyName,
    ) -> Self {
        let feed = Feed::open(subscribers, inbox, replies, Pattern::Exact(key.clone()));
        Self { feed, kind: PhantomData }
    }

    /// The next change; `None` when the node has stopped. Cancel-safe.
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

fn opened<T: DataType>(value: Option<&Value>) -> Change<T> {
    match value {
        None => Change::Deleted,
        Some(value) => value.get().map_or_else(
            || Change::WrongType { expected: T::shape(), found: value.shape().clone() },
            Change::Changed,
        ),
    }
}

/// What a subscription to a prefix tells.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyChange {
    /// The key.
    pub key: KeyName,
    /// What it holds now; `None`: nothing any more. To learn what changed in it keep the last one
    /// and ask [`Value::keys_changed_since`].
    pub value: Option<Value>,
}

/// The changes of one key, or of all keys with a prefix, whatever they hold: a [`Stream`] that ends
/// when the node stops. Of keys that wait to be read none is passed over for ever. Dropping it
/// unsubscribes.
pub struct PrefixSubscription {
    feed: Feed,
}

impl PrefixSubscription {
    pub(super) fn open(
        subscribers: &Arc<Subscribers>,
        inbox: &Inbox<Machine>,
        replies: &Arc<Replies<Answer>>,
        pattern: Pattern,
    ) -> Self {
        Self { feed: Feed::open(subscribers, inbox, replies, pattern) }
    }

    /// The next change; `None` when the node has stopped. Cancel-safe.
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
    fn a_slow_reader_sees_each_key_in_turn_though_the_first_never_rests() {
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
    fn news_for_those_who_left_are_dropped_and_the_end_reaches_all() {
        let subscribers = Subscribers::default();
        subscribers.tell(SubscriptionId(9), Notice::Deleted { key: "k".into() });
        let (id, unread) = subscribers.open();
        subscribers.tell(id, Notice::Deleted { key: "k".into() });
        subscribers.tell(id, Notice::Deleted { key: "k".into() });
        assert_eq!(lock(&unread).news.len(), 1, "only the latest of a key is kept");
        subscribers.end();
        assert!(lock(&unread).ended);
        assert_eq!(subscribers.len(), 0);
        let (_, late) = subscribers.open();
        assert!(lock(&late).ended);
    }
}
