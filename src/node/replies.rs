//! Who waits for which reply: request ids → futures.
//!
//! A future that is dropped takes its entry along; an id is never used twice; when the machine
//! ends, everybody who still waits is told so.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use ostraca_ddata::replicator::request::RequestId;
use tokio::sync::oneshot;

/// Why no further request can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// As many as may wait do.
    Full,
    /// The machine has ended.
    Ended,
}

/// The machine ended before it replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoReply;

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Replies<R> {
    table: Mutex<Table<R>>,
    limit: usize,
}

#[derive(Debug)]
struct Table<R> {
    open: BTreeMap<RequestId, oneshot::Sender<R>>, // ≤ limit
    last: u64,
    ended: bool,
}

impl<R> Replies<R> {
    /// An empty table for at most `limit` requests.
    pub(crate) fn new(limit: usize) -> Self {
        let table = Table { open: BTreeMap::new(), last: 0, ended: false };
        Self { table: Mutex::new(table), limit }
    }

    /// A new id, and the future of its reply.
    pub(crate) fn open(self: &Arc<Self>) -> Result<Pending<R>, Unopened> {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.lock();
        if table.ended {
            return Err(Unopened::Ended);
        }
        if table.open.len() >= self.limit {
            return Err(Unopened::Full);
        }
        let id = table.next();
        table.open.insert(id, sender);
        drop(table);
        Ok(Pending { id, receiver, table: self.clone(), replied: false })
    }

    /// A new id for a request that gets no reply.
    pub(crate) fn id_without_reply(&self) -> RequestId {
        self.lock().next()
    }

    /// Hands the replies of a batch to whoever waits for them, if anybody still does: under one
    /// lock for all, and under none while callers are woken.
    pub(crate) fn reply_all(&self, replies: impl Iterator<Item = (RequestId, R)>) {
        let mut table = self.lock();
        let waiting: Vec<_> = replies.map(|(id, reply)| (table.open.remove(&id), reply)).collect();
        drop(table); // before what nobody waits for is dropped: it may hold a user's value
        for (sender, reply) in waiting {
            if let Some(sender) = sender {
                let _ = sender.send(reply); // dropped this very moment: then nobody cares
            }
        }
    }

    /// There will be no further replies.
    pub(crate) fn end(&self) {
        let mut table = self.lock();
        table.ended = true;
        let left = std::mem::take(&mut table.open);
        drop(table);
        drop(left); // wakes them
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table<R>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs under it
    }
}

impl<R> Table<R> {
    fn next(&mut self) -> RequestId {
        self.last += 1;
        RequestId(self.last)
    }
}

/// A reply to come.
#[derive(Debug)]
pub(crate) struct Pending<R> {
    id: RequestId,
    receiver: oneshot::Receiver<R>,
    table: Arc<Replies<R>>,
    replied: bool,
}

impl<R> Pending<R> {
    /// Names the request.
    pub(crate) const fn id(&self) -> RequestId {
        self.id
    }
}

impl<R> Future for Pending<R> {
    type Output = Result<R, NoReply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = Pin::new(&mut self.receiver).poll(context);
        self.replied = reply.is_ready();
        reply.map(|reply| reply.map_err(|_| NoReply))
    }
}

impl<R> Drop for Pending<R> {
    fn drop(&mut self) {
        if !self.replied {
            let entry = self.table.lock().open.remove(&self.id);
            drop(entry); // after the lock
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
    fn a_reply_reaches_the_one_who_asked_and_nobody_else() {
        let replies = table(9);
        let (one, mut two) = (replies.open().expect("room"), replies.open().expect("room"));
        let id = one.id();
        replies.reply_all([(id, "yes")].into_iter());
        replies.reply_all([(id, "and again")].into_iter());
        assert_eq!(one.now_or_never(), Some(Ok("yes")));
        assert_eq!((&mut two).now_or_never(), None);
        assert_eq!(replies.len(), 1);
    }

    #[test]
    fn a_batch_of_replies_reaches_those_who_still_wait() {
        let replies = table(9);
        let (one, two) = (replies.open().expect("room"), replies.open().expect("room"));
        let gone = replies.open().expect("room").id();
        let batch = [(two.id(), "two"), (gone, "nobody"), (one.id(), "one")];
        replies.reply_all(batch.into_iter());
        assert_eq!((one.now_or_never(), two.now_or_never()), (Some(Ok("one")), Some(Ok("two"))));
        assert_eq!(replies.len(), 0);
    }

    #[test]
    fn a_dropped_future_takes_its_entry_along_and_its_id_is_not_used_again() {
        let replies = table(2);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            let pending = replies.open().expect("what was dropped makes room");
            assert!(seen.insert(pending.id()), "an id came twice");
            assert!(seen.insert(replies.id_without_reply()), "an id came twice");
        }
        assert_eq!(replies.len(), 0);
        replies.reply_all([(*seen.first().expect("some"), "too late, and no harm")].into_iter());
    }

    #[test]
    fn beyond_the_limit_nobody_waits() {
        let replies = table(1);
        let first = replies.open().expect("room");
        assert_eq!(replies.open().err(), Some(Unopened::Full));
        drop(first);
        assert!(replies.open().is_ok());
    }

    #[test]
    fn at_the_end_everybody_is_told() {
        let replies = table(9);
        let pending = replies.open().expect("room");
        replies.end();
        assert_eq!(pending.now_or_never(), Some(Err(NoReply)));
        assert_eq!(replies.open().err(), Some(Unopened::Ended));
        assert_eq!(replies.len(), 0);
    }
}
