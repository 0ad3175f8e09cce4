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
/// changed.
pub(super) struct QueueGuard<'a> {
    outbound: ShortGuard<'a, OutboundQueue>,
    calm: bool, // not panicking when it was locked
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

    #[inline]
    pub(super) fn lock(&self) -> QueueGuard<'_> {
        QueueGuard { calm: !std::thread::panicking(), outbound: self.outbound.lock() }
    }

    pub(super) fn stats(&self) -> LaneStats {
        self.lock().stats()
    }

    // ── Senders ──

    /// Appends a message. If the writer is idle, calls `write_inline` to write in its place, and
    /// wakes the writer if that returns `false`.
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

    /// As [`send`](Self::send), if the lane has a substream.
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

    pub(super) fn finish(&self) {
        self.lock().finish();
        self.wake_all();
    }

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

    pub(super) fn resume(&self, accepted: u64) -> Result<u64, FrameViolation> {
        let turn = self.lock().resume(accepted)?;
        self.wake_all(); // earlier writers end, and acknowledged bytes make room
        Ok(turn)
    }

    /// The writer of this turn has ended, and its substream with it.
    pub(super) fn disconnect(&self, turn: u64) {
        self.lock().disconnect(turn);
    }

    pub(super) fn appended(&self) -> u64 {
        self.lock().appended()
    }

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

    pub(super) fn acknowledge(&self, turn: u64, accepted: u64) -> Result<(), FrameViolation> {
        if self.lock().acknowledge(turn, accepted)? {
            self.room.notify_waiters();
        }
        Ok(())
    }

    /// Registers the writer's waker. Returns `false` if a later writer has the lane; then its waker
    /// is kept.
    pub(super) fn register(&self, turn: u64, waker: &Waker) -> bool {
        let outbound = self.lock();
        let stands = outbound.is_turn(turn);
        if stands {
            self.writer.register(waker); // under the lock: no later writer can come in between
        }
        stands
    }
}
