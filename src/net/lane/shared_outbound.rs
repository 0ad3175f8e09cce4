//! Synchronisation of a lane's senders with its writer: one short lock, the writer's waker, and a
//! notification of senders that wait for room.
//!
//! Only the synchronisation is here; [`outbound`](super::outbound) has the queue. Tests compile
//! this file a second time, with loom's types under the names of [`sync`](super::sync), and explore
//! every interleaving.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::task::Waker;

use super::outbound::{OutboundQueue, WriterStep};
use super::sync::{AtomicWaker, Notify, ShortGuard, ShortMutex};
use super::{LaneStats, SendError};
use crate::net::frame::FrameViolation;

/// Outbound queue of a lane, shared by its senders and its writer.
#[derive(Debug)]
pub(super) struct SharedOutboundQueue {
    outbound: ShortMutex<OutboundQueue>,
    writer: AtomicWaker,
    room: Notify,
}

/// Guard of the queue. A panic while it is held abandons the lane, because the queue may be half
/// changed, and then wakes the writer and the senders that wait for room.
pub(super) struct QueueGuard<'a> {
    outbound: ShortGuard<'a, OutboundQueue>,
    panic_wakeup: PanicWakeup<'a>, // behind `outbound`: fields are dropped in this order
    calm: bool,                    // not panicking when it was locked
}

/// Wakes the writer and the senders that wait for room when it is dropped, if that is due.
struct PanicWakeup<'a> {
    queue: &'a SharedOutboundQueue,
    is_due: bool,
}

impl Drop for PanicWakeup<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_due {
            self.queue.wake_all();
        }
    }
}

impl Deref for QueueGuard<'_> {
    type Target = OutboundQueue;

    #[inline]
    fn deref(&self) -> &OutboundQueue {
        &self.outbound
    }
}

impl DerefMut for QueueGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut OutboundQueue {
        &mut self.outbound
    }
}

impl Drop for QueueGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.calm && std::thread::panicking() {
            self.outbound.give_up();
            self.panic_wakeup.is_due = true;
        }
    }
}

impl SharedOutboundQueue {
    pub(super) fn new(outbound: OutboundQueue) -> Self {
        Self {
            outbound: ShortMutex::new(outbound),
            writer: AtomicWaker::new(),
            room: Notify::new(),
        }
    }

    /// Locks the queue. Neither wakes the writer nor notifies senders when it is unlocked, except
    /// after a panic.
    #[inline]
    pub(super) fn lock(&self) -> QueueGuard<'_> {
        let panic_wakeup = PanicWakeup { queue: self, is_due: false };
        QueueGuard { calm: !std::thread::panicking(), panic_wakeup, outbound: self.outbound.lock() }
    }

    pub(super) fn stats(&self) -> LaneStats {
        self.lock().stats()
    }

    // ── Senders ──

    /// Appends a message. If the writer sleeps, calls `write_inline`, without the lock, to write in
    /// its place, and wakes the writer if that returns `false`. Calls neither if the message was
    /// rejected.
    #[inline]
    pub(super) fn send(
        &self,
        fields: &[&str],
        body: &[u8],
        write_inline: impl FnOnce() -> bool,
    ) -> Result<(), SendError> {
        let asleep = self.lock().append(fields, body)?;
        self.wake(asleep, write_inline);
        Ok(())
    }

    /// As [`send`](Self::send), but [`SendError::Unconnected`] if the lane has no substream, unless
    /// it has ended or the message is too long.
    #[inline]
    pub(super) fn send_connected(
        &self,
        fields: &[&str],
        body: &[u8],
        write_inline: impl FnOnce() -> bool,
    ) -> Result<(), SendError> {
        let asleep = self.lock().append_connected(fields, body)?;
        self.wake(asleep, write_inline);
        Ok(())
    }

    /// As [`send`](Self::send), beyond the limit of other messages, up to four times that limit.
    pub(super) fn answer(
        &self,
        fields: &[&str],
        body: &[u8],
        write_inline: impl FnOnce() -> bool,
    ) -> Result<(), SendError> {
        let asleep = self.lock().append_answer(fields, body)?;
        self.wake(asleep, write_inline);
        Ok(())
    }

    /// Waits until no message was rejected since there last was room, or the lane has ended;
    /// returns at once if that is so. Several senders may wait; all are notified together, and may
    /// be rejected again. The lock is not held while it waits.
    pub(super) async fn room(&self) {
        loop {
            let mut room = pin!(self.room.notified());
            room.as_mut().enable();
            if self.lock().has_room() {
                return;
            }
            room.await;
        }
    }

    /// Rejects further messages. Wakes the writer, which closes the lane once all is acknowledged,
    /// and the senders that wait for room, which are then rejected. Wakes them also if the lane has
    /// ended before; changes nothing else then.
    pub(super) fn finish(&self) {
        self.lock().finish();
        self.wake_all();
    }

    /// Abandons the lane, and wakes the writer, which ends, and the senders that wait for room.
    /// Returns the number of unacknowledged messages; 0 if it was abandoned before.
    pub(super) fn break_off(&self) -> u64 {
        let lost = self.lock().give_up();
        self.wake_all();
        lost
    }

    #[inline]
    fn wake(&self, asleep: bool, write_inline: impl FnOnce() -> bool) {
        if asleep && !write_inline() {
            self.writer.wake();
        }
    }

    fn wake_all(&self) {
        self.writer.wake();
        self.room.notify_waiters();
    }

    // ── Writer ──

    /// Starts the turn of a new writer, and wakes the earlier writer, which ends, and the senders
    /// that wait for room. After an error nothing is woken, but the earlier turn is over: that
    /// writer ends at its next poll, whenever that is.
    pub(super) fn resume(&self, accepted: u64) -> Result<u64, FrameViolation> {
        let turn = self.lock().resume(accepted)?;
        self.wake_all(); // earlier writers end, and acknowledged bytes make room
        Ok(turn)
    }

    /// Marks the lane as unconnected, because the writer of this turn has ended, and its substream
    /// with it. Wakes nothing. Has no effect if a later writer has the lane.
    pub(super) fn disconnect(&self, turn: u64) {
        self.lock().disconnect(turn);
    }

    pub(super) fn appended(&self) -> u64 {
        self.lock().appended()
    }

    /// Next step of the writer of this turn. Also notifies senders that wait for room, outside the
    /// lock, if a rejected long message has its turn now that other bytes were taken.
    pub(super) fn take(&self, turn: u64, copy: &mut Vec<u8>) -> WriterStep {
        let (taken, room) = {
            let mut outbound = self.lock();
            let taken = outbound.take(turn, copy);
            (taken, outbound.room_again())
        };
        if room {
            self.room.notify_waiters();
        }
        taken
    }

    /// Drops the messages up to `accepted`, and notifies senders, outside the lock, if that makes
    /// room. Has no effect if the turn is over or the lane was abandoned. The writer is not woken:
    /// it calls this, and then takes the next step.
    pub(super) fn acknowledge(&self, turn: u64, accepted: u64) -> Result<(), FrameViolation> {
        if self.lock().acknowledge(turn, accepted)? {
            self.room.notify_waiters();
        }
        Ok(())
    }

    /// Registers the writer's waker, in place of an earlier one. Returns `false` if a later writer
    /// has the lane; then the waker of that one is kept. Registers it also if the lane was
    /// abandoned, and returns `true`.
    pub(super) fn register(&self, turn: u64, waker: &Waker) -> bool {
        let outbound = self.lock();
        let stands = outbound.is_turn(turn);
        if stands {
            self.writer.register(waker); // under the lock: no later writer can come in between
        }
        stands
    }
}
