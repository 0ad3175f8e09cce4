//! [`Replies`]: table of pending requests, from request id to the future that awaits the reply.
//!
//! Dropping a future removes its entry, ids are never reused, and the end of the machine fails all
//! pending requests. The machine itself enforces the deadlines of requests that it has begun. For
//! requests that it does not begin or answer in time, a task checks the table every [`LOOK_EVERY`]:
//! a timer for each request would cost more than the rest of the wait, and is rarely needed.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use ostraca_ddata::replicator::request::RequestId;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Interval between two checks for overdue requests, hence how late one may be reported.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why a request was not added to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The limit of pending requests was reached.
    Full,
    /// The machine has ended.
    Ended,
}

/// Why a pending request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReply {
    /// The machine has ended.
    Ended,
    /// No reply came in time.
    Overdue,
}

/// Table of pending requests.
#[derive(Debug)]
pub(crate) struct Replies<R> {
    table: Mutex<ReplyTable<R>>,
    limit: usize,
}

#[derive(Debug)]
struct ReplyTable<R> {
    open: FxHashMap<RequestId, PendingRequest<R>>, // ≤ limit
    last: u64,                                     // number of the newest id
    ended: bool, // the machine has ended; `open` is empty from then on
}

#[derive(Debug)]
struct PendingRequest<R> {
    sender: oneshot::Sender<R>,
    until: Option<Instant>, // overdue from then on; `None`: never
}

impl<R> Replies<R> {
    /// Creates an empty table for at most `limit` requests.
    pub(crate) fn new(limit: usize) -> Self {
        let table = ReplyTable { open: FxHashMap::default(), last: 0, ended: false };
        Self { table: Mutex::new(table), limit }
    }

    /// Adds a request with a new id. Returns the future of its reply, which is overdue after
    /// `patience`, or never if there is none or it exceeds the range of the clock. The request
    /// fails at the first check after that ([`LOOK_EVERY`]), until which a reply still counts. The
    /// caller sends the request itself.
    ///
    /// # Errors
    /// [`OpenError`]. After the end it is [`OpenError::Ended`], even if the table is full.
    pub(crate) fn open(
        self: &Arc<Self>,
        patience: Option<Duration>,
    ) -> Result<ReplyFuture<R>, OpenError> {
        let until = patience.and_then(|span| Instant::now().checked_add(span));
        let (sender, receiver) = oneshot::channel();
        let mut table = self.lock();
        if table.ended {
            return Err(OpenError::Ended);
        }
        if table.open.len() >= self.limit {
            return Err(OpenError::Full);
        }
        let id = table.next();
        let others = table.open.len();
        table.open.insert(id, PendingRequest { sender, until });
        drop(table);
        Ok(ReplyFuture { id, receiver, table: self.clone(), replied: false, others })
    }

    /// Returns a new id for a request that gets no reply, also after the end or if the table is
    /// full. Nothing is added to the table.
    pub(crate) fn id_without_reply(&self) -> RequestId {
        self.lock().next()
    }

    /// Delivers the replies of a batch to the futures that still wait, and drops all other replies.
    /// Takes the lock once for all, and wakes callers outside of it. The iterator runs under the
    /// lock, so it must not use this table.
    pub(crate) fn reply_all(&self, replies: impl Iterator<Item = (RequestId, R)>) {
        let mut table = self.lock();
        let waiting: Vec<_> = replies.map(|(id, reply)| (table.open.remove(&id), reply)).collect();
        drop(table); // before dropping unclaimed replies, which may hold a value of the program
        for (waiting, reply) in waiting {
            if let Some(PendingRequest { sender, .. }) = waiting {
                let _ = sender.send(reply); // fails if the future was dropped meanwhile
            }
        }
    }

    /// Fails overdue requests, every [`LOOK_EVERY`], until the machine ends or the table is
    /// dropped. The first check follows after one interval.
    pub(crate) async fn look_after(replies: Weak<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(replies) = replies.upgrade() else { return };
            if replies.end_overdue(Instant::now()) {
                return;
            }
        }
    }

    /// Removes the requests that are overdue at `now`, so that their futures fail. Returns true if
    /// the machine has ended, so that no further check is needed.
    fn end_overdue(&self, now: Instant) -> bool {
        let mut table = self.lock();
        let is_over =
            |waiting: &mut PendingRequest<R>| waiting.until.is_some_and(|until| until <= now);
        let over: Vec<_> = table.open.extract_if(|_, waiting| is_over(waiting)).collect();
        let ended = table.ended;
        drop(table);
        drop(over); // wakes the callers
        ended
    }

    /// Fails all pending requests and rejects further ones: the machine has ended. A second call
    /// has no effect.
    pub(crate) fn end(&self) {
        let mut table = self.lock();
        table.ended = true;
        let left = std::mem::take(&mut table.open);
        drop(table);
        drop(left); // wakes the callers
    }

    /// Number of pending requests.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    fn lock(&self) -> MutexGuard<'_, ReplyTable<R>> {
        // The program's code never runs under the lock, so the table is consistent after a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> ReplyTable<R> {
    fn next(&mut self) -> RequestId {
        self.last += 1;
        RequestId(self.last)
    }
}

/// Future of a reply. Dropping it removes the request from the table. Fails once its entry was
/// removed without a reply. Must not be polled after it completed.
#[derive(Debug)]
pub(crate) struct ReplyFuture<R> {
    id: RequestId,
    receiver: oneshot::Receiver<R>,
    table: Arc<Replies<R>>,
    replied: bool, // completed with a reply or an error: the entry is removed already
    others: usize,
}

impl<R> ReplyFuture<R> {
    /// Id of the request.
    pub(crate) const fn id(&self) -> RequestId {
        self.id
    }

    /// Number of other pending requests when this one was added.
    pub(crate) const fn others(&self) -> usize {
        self.others
    }
}

impl<R> Future for ReplyFuture<R> {
    type Output = Result<R, NoReply>;

    /// A reply that was delivered counts, even if the machine has ended since. Without a reply the
    /// error is [`NoReply::Ended`] if the machine has ended by now, also for an overdue request.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = Pin::new(&mut self.receiver).poll(context);
        self.replied = reply.is_ready();
        reply.map_err(|_| if self.table.lock().ended { NoReply::Ended } else { NoReply::Overdue })
    }
}

impl<R> Drop for ReplyFuture<R> {
    /// Removes the entry, unless the future has completed. A later reply is dropped.
    fn drop(&mut self) {
        if !self.replied {
            let entry = self.table.lock().open.remove(&self.id);
            drop(entry); // outside the lock
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn table(limit: usize) -> Arc<Replies<&'static str>> {
        Arc::new(Replies::new(limit))
    }

    #[test]
    fn reply_reaches_only_its_request() {
        let replies = table(9);
        let (one, mut two) = (replies.open(None).expect("room"), replies.open(None).expect("room"));
        let id = one.id();
        replies.reply_all([(id, "yes")].into_iter());
        replies.reply_all([(id, "and again")].into_iter());
        assert_eq!(one.now_or_never(), Some(Ok("yes")));
        assert_eq!((&mut two).now_or_never(), None);
        assert_eq!(replies.len(), 1);
    }

    #[test]
    fn batch_of_replies_reaches_pending_requests() {
        let replies = table(9);
        let (one, two) = (replies.open(None).expect("room"), replies.open(None).expect("room"));
        let gone = replies.open(None).expect("room").id();
        let batch = [(two.id(), "two"), (gone, "nobody"), (one.id(), "one")];
        replies.reply_all(batch.into_iter());
        assert_eq!((one.now_or_never(), two.now_or_never()), (Some(Ok("one")), Some(Ok("two"))));
        assert_eq!(replies.len(), 0);
    }

    #[test]
    fn dropped_future_frees_its_entry_but_not_its_id() {
        let replies = table(2);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            let pending = replies.open(None).expect("a dropped request frees its place");
            assert!(seen.insert(pending.id()), "an id was reused");
            assert!(seen.insert(replies.id_without_reply()), "an id was reused");
        }
        assert_eq!(replies.len(), 0);
        replies.reply_all([(*seen.first().expect("some"), "too late, and no harm")].into_iter());
    }

    #[test]
    fn requests_beyond_the_limit_are_refused() {
        let replies = table(1);
        let first = replies.open(None).expect("room");
        assert_eq!(replies.open(None).err(), Some(OpenError::Full));
        drop(first);
        assert!(replies.open(None).is_ok());
    }

    #[test]
    fn overdue_request_fails() {
        let replies = table(9);
        let (begun, span) = (Instant::now(), Duration::from_secs(1));
        let mut short = replies.open(Some(span)).expect("room");
        let mut others = [Some(Duration::MAX), None].map(|it| replies.open(it).expect("room"));
        assert!(!replies.end_overdue(begun + span - Duration::from_millis(1)));
        assert_eq!((&mut short).now_or_never(), None, "it is not overdue yet");
        assert!(!replies.end_overdue(Instant::now() + span));
        replies.reply_all([(short.id(), "too late, and no harm")].into_iter());
        assert_eq!(short.now_or_never(), Some(Err(NoReply::Overdue)));
        assert!(!replies.end_overdue(Instant::now() + span * 3_600));
        assert_eq!(others.each_mut().map(FutureExt::now_or_never), [None, None]);
        assert_eq!(replies.len(), 2);
        replies.end();
        assert!(replies.end_overdue(Instant::now()), "no further check is needed");
    }

    #[test]
    fn end_fails_pending_and_later_requests() {
        let replies = table(9);
        let pending = replies.open(None).expect("room");
        replies.end();
        assert_eq!(pending.now_or_never(), Some(Err(NoReply::Ended)));
        assert_eq!(replies.open(None).err(), Some(OpenError::Ended));
        assert_eq!(replies.len(), 0);
    }
}
