//! Effects of a shard's gate on lanes, mailboxes and limits. Frames are written and sent under the
//! shard's lock, which keeps their order. A *lost* message is counted as a dead letter with its
//! reason, and its asker is told that reason, once the lock is released.

use std::sync::atomic::Ordering;

use super::batch::MessageInTransit;
use super::dead_letters::DeadLetterReason;
use super::entity::Entity;
use super::envelope::Envelope;
use super::fault_injection::ShardingFault;
use super::frame;
use super::gate::{
    Bounce, Full, GateEffects, Gone, LaneSendError, MailboxLimitCheck, Origin, SizedMessage, Waits,
};
use super::ids::{Generation, RegionId};
use super::region_handle::NoRoom;
use super::shard::ShardGateEffects;

impl<E: Entity> GateEffects<Envelope> for ShardGateEffects<'_, E> {
    /// Writes a message frame and appends it to the lane. If that succeeds, an ask knows which node
    /// has its message.
    ///
    /// A missing lane is `Gone` if the region was removed; otherwise it counts as full. If the lane
    /// has no room, this shard is registered for the report of room, and stays so, and the lane is
    /// tried once more. A message that is too long for the lane is lost as
    /// [`DeadLetterReason::TooLong`], and the result is `Ok`, so that the messages behind it
    /// continue.
    fn send(
        &mut self,
        to: RegionId,
        stamp: Generation,
        item: SizedMessage<Envelope>,
        fit: MailboxLimitCheck,
    ) -> Result<(), LaneSendError<Envelope>> {
        let frame = &mut self.shard_entities.scratch;
        frame::message(frame, self.shard.id, stamp, fit, &item.message);
        let mut sent = self.runtime.world.send(to, frame);
        if sent == Err(NoRoom::NoLane) && self.runtime.is_removed(to) {
            return Err(LaneSendError::Gone(item));
        }
        if let Err(NoRoom::Full | NoRoom::NoLane) = sent {
            // Registered before the second try, so that room reported after it reaches this shard.
            let is_removed = || self.runtime.is_removed(to);
            self.runtime.waiting_shards.add(to, self.shard.id, is_removed);
            sent = self.runtime.world.send(to, frame);
        }
        if sent == Err(NoRoom::Full)
            && self.runtime.fault_injection.has(ShardingFault::UnconnectedLaneTakes)
        {
            // Answers enter a lane without a connection.
            sent = self.runtime.world.answer(to, frame);
        }
        match sent {
            Ok(()) => self.runtime.asks.set_holder(&item.message, Some(to)),
            // Messages behind it continue.
            Err(NoRoom::TooLong) => self.lose(DeadLetterReason::TooLong, item.message),
            Err(NoRoom::Full | NoRoom::NoLane) => return Err(LaneSendError::Full(item)),
        }
        Ok(())
    }

    /// Sends a barrier, beyond the limit of [`send`](GateEffects::send). Only a missing lane is an
    /// error, also if the region was not removed: nothing was sent down a lane that never existed.
    /// A barrier that a full lane drops is repeated later, by `remind`.
    fn barrier(&mut self, to: RegionId, stamp: Generation) -> Result<(), Gone> {
        frame::barrier(&mut self.shard_entities.scratch, self.shard.id, stamp);
        match self.runtime.world.answer(to, &self.shard_entities.scratch) {
            Err(NoRoom::NoLane) => Err(Gone),
            Ok(()) | Err(NoRoom::Full | NoRoom::TooLong) => Ok(()), // it is repeated
        }
    }

    /// Returns a message to its sender and counts it in `sent_back`. If the sender was removed, the
    /// message is lost as [`DeadLetterReason::NodeGone`] and not counted there. If the lane does
    /// not take the frame, it counts in `sent_back` and is also lost, as `NodeGone` (no lane),
    /// `LaneFull` or `TooLong`. The sender's gate hears nothing of a loss.
    fn bounce(&mut self, to: RegionId, back: Bounce<Envelope>) {
        let Bounce { stamp, item, newest } = back;
        if self.runtime.is_removed(to) {
            // A lane may remain without a reader.
            return self.lose(DeadLetterReason::NodeGone, item.message);
        }
        self.runtime.sent_back.fetch_add(1, Ordering::Relaxed);
        frame::bounce(
            &mut self.shard_entities.scratch,
            self.shard.id,
            stamp,
            newest,
            &item.message,
        );
        let why = match self.runtime.world.answer(to, &self.shard_entities.scratch) {
            Ok(()) => return,
            Err(NoRoom::NoLane) => DeadLetterReason::NodeGone,
            Err(NoRoom::Full) => DeadLetterReason::LaneFull,
            Err(NoRoom::TooLong) => DeadLetterReason::TooLong,
        };
        self.lose(why, item.message); // the echo behind it still confirms the barrier
    }

    /// Sends an echo and counts it in `sent_back`, also if the lane does not take it. A failure is
    /// ignored: a removed region needs no echo, and others repeat their barrier.
    fn echo(&mut self, to: RegionId, stamp: Generation) {
        self.runtime.sent_back.fetch_add(1, Ordering::Relaxed);
        frame::echo(&mut self.shard_entities.scratch, self.shard.id, stamp);
        // A removed region needs no echo; others repeat their barrier.
        let _sent = self.runtime.world.answer(to, &self.shard_entities.scratch);
    }

    /// Puts the message into the mailbox of its entity. An unknown entity is added to the table; an
    /// idle one starts only if the shard's stage allows it. The message is lost as `NodeStopped`
    /// once the node has stopped for good, or as `MailboxFull`: by the limits of a mailbox if
    /// `self.fit` is `Must`, and by the larger limits of moved messages if `self.moved` is set.
    /// Refused by the former, a remote sender `from` may get a busy notice.
    fn accept(&mut self, from: RegionId, item: SizedMessage<Envelope>, _origin: Origin) {
        self.deliver(from, MessageInTransit::Own(item.message));
    }

    /// Loses a message that came from the lane of another node as [`DeadLetterReason::HeldFull`].
    fn refuse(&mut self, _from: RegionId, item: SizedMessage<Envelope>) {
        self.lose(DeadLetterReason::HeldFull, item.message);
    }

    /// Loses a bounced message as [`DeadLetterReason::LaneGivenUp`].
    fn ignore(&mut self, _from: RegionId, item: SizedMessage<Envelope>) {
        self.lose(DeadLetterReason::LaneGivenUp, item.message);
    }

    fn reserve(&mut self, bytes: usize, own: Waits) -> Result<(), Full> {
        self.runtime.budget().reserve(bytes, own)
    }

    /// Releases the room of one buffered message, and wakes all callers of this type that wait for
    /// room, still under the shard's lock.
    fn release(&mut self, bytes: usize) {
        self.runtime.budget().release(bytes);
        self.runtime.room_here();
    }

    /// Reserves room for a held message, by the limits of moved messages if `self.moved` is set;
    /// these are limits of the lane of `from` over all shards, so `own` does not matter then.
    ///
    /// Messages that waited for a home elsewhere have larger limits, equal to what their senders'
    /// buffers and a lane can hold, so that a planned move loses none
    /// (docs/protocol/message-order.md#moved-messages-are-exempt).
    fn reserve_held(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full> {
        let mut held = self.runtime.held();
        if self.moved { held.reserve_moved(from, bytes) } else { held.reserve(from, bytes, own) }
    }

    fn release_held(&mut self, from: RegionId, what: Waits) {
        self.runtime.held().release(from, what);
    }
}
