//! The mailbox of one entity: its waiting messages, limited in number and bytes, and the nodes that
//! were told that it is full.
//!
//! A message from another node, or one that was encoded for a lane, counts with its encoded length.
//! A message that never left its node counts with the result of
//! [`Entity::message_bytes`](super::entity::Entity::message_bytes), by default the size of its
//! type. The lock of the shard protects the mailbox. Busy notices:
//! docs/protocol/message-order.md#mailbox-limits-and-busy-notices.

use std::collections::VecDeque;

use super::batch::{MessageBatch, MessageInTransit, SingleMessage, Weighed};
use super::gate::Waits;
use super::ids::RegionId;

/// A busy notice may be lost, so a node that goes on sending is told again: after 2, 4, 8, ...
/// refused messages, and after every multiple of this number. The count begins anew when the node
/// is forgotten.
const NOTICE_EVERY: u32 = 64;

/// Most nodes that are remembered as told and get a notice of room. While as many are remembered,
/// a further node gets neither notice. Bounded because a restarted node is another region, and the
/// mailbox is not told that the former one ended.
const TOLD_MAX: usize = 64;

/// Limit of a mailbox that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Number of messages: `mailbox-size`.
    Messages,
    /// Bytes of the messages: `mailbox-bytes-max`.
    Bytes,
}

impl std::fmt::Display for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Messages => "messages",
            Self::Bytes => "bytes",
        })
    }
}

/// Most messages and bytes that may wait for one entity. The caller checks them before
/// [`Mailbox::push`], which takes any message. With a limit of 0 messages none fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MailboxLimits {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// The mailbox is full: the amount that waits without the refused message, the limit, and the unit
/// of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MailboxFull {
    pub(super) waiting: usize,
    pub(super) limit: usize,
    pub(super) of: Measure,
}

impl MailboxLimits {
    /// Checks whether a message of `bytes` bytes fits. A message larger than the byte limit fits
    /// into an empty mailbox; otherwise it could never be sent. If both limits are reached, the
    /// error names the number of messages.
    #[inline]
    pub(super) const fn check(self, waits: Waits, bytes: usize) -> Result<(), MailboxFull> {
        if waits.messages >= self.messages {
            let (waiting, limit) = (waits.messages, self.messages);
            return Err(MailboxFull { waiting, limit, of: Measure::Messages });
        }
        if waits.messages > 0 && waits.bytes.saturating_add(bytes) > self.bytes {
            return Err(MailboxFull {
                waiting: waits.bytes,
                limit: self.bytes,
                of: Measure::Bytes,
            });
        }
        Ok(())
    }

    /// Returns whether other nodes may send again. Half of the mailbox must be free, because a node
    /// that resumed at the first free place would be refused again after a few messages.
    const fn is_ample(self, waits: Waits) -> bool {
        waits.messages <= self.messages / 2 && waits.bytes <= self.bytes / 2
    }
}

/// Mailbox of one entity; see the module documentation. No method sends a notice or wakes a caller:
/// the results tell the caller to do so. The methods that remove messages leave `refused` and
/// `told` as they are, for [`take_refused`](Self::take_refused) and
/// [`take_notified`](Self::take_notified).
pub(super) struct Mailbox<M> {
    front: MessageBatch<M>,         // empty only if nothing waits behind it
    more: Option<Box<Overflow<M>>>, // allocated once more than one batch has waited
    count: usize,                   // all messages; ≤ limit, apart from ones exempt from it
    weighed: Weighed,               // those of the messages that count with their own bytes
    refused: bool,                  // `check` refused a message since the last `take_refused`
    told: Vec<NotifiedNode>,        // get a notice of room; ≤ TOLD_MAX
}

/// Kept apart because a mailbox with few messages does not need it: with many mailboxes, each cache
/// line counts.
struct Overflow<M> {
    behind: VecDeque<MessageBatch<M>>, // none is empty
    spare: Option<MessageBatch<M>>,    // empty: memory for later messages
}

impl<M> Default for Overflow<M> {
    fn default() -> Self {
        Self { behind: VecDeque::new(), spare: None }
    }
}

/// Another node that was told that the mailbox is full, by a busy notice or in answer to its
/// question. It is forgotten when it may send again.
struct NotifiedNode {
    region: RegionId,
    refused: u32, // messages refused while it is remembered; 0 if it has only asked
    bytes: usize, // length of the last one; 1 if it has only asked
}

impl<M> Default for Mailbox<M> {
    fn default() -> Self {
        Self {
            front: MessageBatch::default(),
            more: None,
            count: 0,
            weighed: Weighed::default(),
            refused: false,
            told: Vec::new(),
        }
    }
}

impl<M> Mailbox<M> {
    /// Returns the number of waiting messages.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of waiting messages and their bytes.
    pub(super) const fn waits(&self) -> Waits {
        let (messages, Weighed { count, bytes }) = (self.count, self.weighed);
        Waits { messages, bytes: bytes + (messages - count) * size_of::<M>() }
    }

    /// Checks whether a message fits, and notes a refusal until
    /// [`take_refused`](Self::take_refused), after which refused local callers are woken.
    #[inline]
    pub(super) fn check(&mut self, room: MailboxLimits, bytes: usize) -> Result<(), MailboxFull> {
        let checked = room.check(self.waits(), bytes);
        self.refused |= checked.is_err();
        checked
    }

    /// Appends a message, also beyond the limits: the caller has called [`check`](Self::check), or
    /// the message is exempt from it.
    #[inline]
    pub(super) fn push(&mut self, message: MessageInTransit<'_, M>) {
        self.count += 1;
        if let Some(bytes) = message.weighed() {
            self.weighed.add(Weighed::one(bytes));
        }
        let behind = self.more.as_mut().and_then(|more| more.behind.back_mut());
        let last = behind.unwrap_or(&mut self.front);
        if !last.is_full() {
            return last.push(message);
        }
        let Overflow { behind, spare } = &mut **self.more.get_or_insert_default();
        let mut next = spare.take().unwrap_or_default();
        next.push(message);
        behind.push_back(next);
    }

    /// Moves at most `most` messages from the front into `batch`, and returns how many. Takes them
    /// from one batch only, so at most [`BATCH`](super::batch::BATCH), and perhaps fewer although
    /// more wait. Returns 0 only if nothing waits or `most` is 0. Panics if `batch` has messages.
    /// They no longer count as waiting. If the whole front batch is taken, the mailbox keeps the
    /// memory of `batch`.
    pub(super) fn take(&mut self, most: usize, batch: &mut MessageBatch<M>) -> usize {
        assert!(batch.is_empty(), "the batch must be empty");
        batch.clear();
        if self.front.len() <= most {
            std::mem::swap(&mut self.front, batch);
            self.advance();
        } else {
            for _ in 0..most {
                let message = self.front.pop().expect("the front batch has more than `most`");
                batch.push(message);
            }
        }
        self.count -= batch.len();
        self.weighed.remove(batch.weighed());
        batch.len()
    }

    /// Makes the next batch the front one after the front batch was taken, and keeps the memory of
    /// the empty one, if it has any, as `spare`, in place of an earlier spare. If no batch follows,
    /// the front stays empty and a spare stays.
    fn advance(&mut self) {
        let Some(Overflow { behind, spare }) = self.more.as_deref_mut() else { return };
        let Some(next) = behind.pop_front() else { return };
        let empty = std::mem::replace(&mut self.front, next);
        if !empty.is_fresh() {
            *spare = Some(empty);
        }
    }

    /// Puts taken messages back in front of all that arrived since. Unbegun messages go back first
    /// (docs/protocol/message-order.md#unbegun-messages-go-back-first), because they are the
    /// oldest. Leaves `batch` empty. The limits may be exceeded. Does nothing with an empty
    /// `batch`.
    pub(super) fn give_back(&mut self, batch: &mut MessageBatch<M>) {
        if batch.is_empty() {
            return;
        }
        self.count += batch.len();
        self.weighed.add(batch.weighed());
        std::mem::swap(&mut self.front, batch);
        if !batch.is_empty() {
            self.more.get_or_insert_default().behind.push_front(std::mem::take(batch));
        }
    }

    /// Puts taken messages back behind those that arrived since. This is wrong and injects a fault.
    pub(super) fn give_back_behind(&mut self, batch: &mut MessageBatch<M>) {
        batch.drain(|message| self.push(message));
    }

    /// Takes over the memory of an empty batch for later messages, and leaves `batch` without any.
    /// Does nothing if the front batch has memory already or `batch` has messages.
    pub(super) fn adopt(&mut self, batch: &mut MessageBatch<M>) {
        if self.front.is_fresh() && batch.is_empty() {
            batch.clear();
            std::mem::swap(&mut self.front, batch);
        }
    }

    /// Frees all but a little memory. Called when the entity becomes idle. Panics if a message
    /// waits. The told nodes and the note of a refusal stay.
    pub(super) fn shrink(&mut self) {
        assert!(self.is_empty(), "messages still wait");
        self.front.rest();
        self.more = None;
    }

    /// Removes all messages, in order. The told nodes stay: the caller takes and tells them.
    pub(super) fn drain(&mut self, mut each: impl FnMut(MessageInTransit<'_, M>)) {
        self.front.drain(&mut each);
        if let Some(more) = &mut self.more {
            more.behind.drain(..).for_each(|mut batch| batch.drain(&mut each));
        }
        (self.count, self.weighed) = (0, Weighed::default());
    }

    /// Removes all messages as [`drain`](Self::drain) does, each as an entry of its own. Borrowed
    /// bytes are copied, and a weight that the entity had returned is lost.
    pub(super) fn entries(&mut self) -> Vec<SingleMessage<M>> {
        let mut entries = Vec::with_capacity(self.count);
        self.drain(|message| entries.push(message.entry()));
        entries
    }

    /// Records that a message of another node was refused. Returns whether that node must be told
    /// now: after 1, 2, 4, 8, ... refusals, and after every multiple of [`NOTICE_EVERY`]. Keeps the
    /// length of this message for [`is_still_busy`](Self::is_still_busy).
    ///
    /// Returns `false` for a further node while [`TOLD_MAX`] are remembered: it is not remembered,
    /// so it is told only at a refusal for which there is a place again.
    pub(super) fn turn_away(&mut self, region: RegionId, bytes: usize) -> bool {
        let Some(known) = self.told.iter_mut().find(|known| known.region == region) else {
            return self.remember(NotifiedNode { region, refused: 1, bytes });
        };
        known.bytes = bytes;
        known.refused = known.refused.wrapping_add(1);
        known.refused.is_power_of_two() || known.refused.is_multiple_of(NOTICE_EVERY)
    }

    /// Answers the question of another node whether the mailbox is still busy. Returns `true` if it
    /// must wait on; then it is remembered, below [`TOLD_MAX`], and gets a notice of room; its
    /// count of refusals stays. Otherwise it is forgotten. A node whose last refused message fits
    /// may send even if less than half is free: local callers may take each place that becomes
    /// free, so this gives the node one try per question. For a node without a refused message, one
    /// byte must fit. A refusal is not noted for [`take_refused`](Self::take_refused).
    pub(super) fn is_still_busy(&mut self, region: RegionId, room: MailboxLimits) -> bool {
        let known = self.told.iter().position(|known| known.region == region);
        let bytes = known.map_or(1, |known| self.told[known].bytes);
        let fits = room.check(self.waits(), bytes).is_ok();
        match known {
            Some(known) if fits => {
                self.told.remove(known);
            }
            None if !fits => {
                let _remembered = self.remember(NotifiedNode { region, refused: 0, bytes });
            }
            _ => {}
        }
        !fits
    }

    /// Remembers a node as told, if fewer than `TOLD_MAX` are. Returns whether it does. The node
    /// must not be remembered already.
    fn remember(&mut self, busied: NotifiedNode) -> bool {
        let may = self.told.len() < TOLD_MAX;
        if may {
            self.told.push(busied);
        }
        may
    }

    /// Called after messages were taken. Returns whether [`check`](Self::check) has refused a
    /// message, of any node, since the last call: local callers may then try again.
    pub(super) const fn take_refused(&mut self) -> bool {
        std::mem::replace(&mut self.refused, false)
    }

    /// Returns whether any other node is remembered as told that the mailbox is full.
    pub(super) const fn puts_somebody_off(&self) -> bool {
        !self.told.is_empty()
    }

    /// Returns and forgets the other nodes that were told, if half of the mailbox is free, in
    /// number and in bytes: they may send again, and the caller tells them. `None` if no node was
    /// told, or less is free.
    pub(super) fn take_notified_if_ample(&mut self, room: MailboxLimits) -> Option<Vec<RegionId>> {
        if self.told.is_empty() || !room.is_ample(self.waits()) {
            return None;
        }
        Some(self.take_notified())
    }

    /// Returns and forgets all nodes that were told, because nothing waits here any longer, which
    /// is not checked. The caller tells them.
    pub(super) fn take_notified(&mut self) -> Vec<RegionId> {
        std::mem::take(&mut self.told).into_iter().map(|known| known.region).collect()
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::batch::BATCH;
    use super::super::batch::tests::{coming, told};
    use super::super::envelope::tests::envelope as of;
    use super::*;

    const ROOM: MailboxLimits = MailboxLimits { messages: 8, bytes: 100 };

    fn region(number: u64) -> RegionId {
        RegionId::new(ReplicaId::new(number))
    }

    /// Pushes an encoded message of `bytes` bytes.
    fn envelope<M>(mailbox: &mut Mailbox<M>, bytes: usize) {
        mailbox.push(MessageInTransit::Envelope(of(0, bytes).view()));
    }

    #[test]
    fn messages_count_with_their_bytes_wherever_they_go() {
        let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), MessageBatch::default());
        (1..=4).for_each(|n| envelope(&mut mailbox, 10 * n));
        mailbox.push(MessageInTransit::Typed(7));
        assert_eq!(mailbox.waits(), Waits { messages: 5, bytes: 108 });
        mailbox.take(2, &mut batch);
        assert_eq!((mailbox.waits().bytes, batch.len()), (78, 2));
        mailbox.give_back(&mut batch);
        assert_eq!((mailbox.waits().bytes, batch.len()), (108, 0));
        assert_eq!(mailbox.take(5, &mut batch), 2, "one batch at most");
        assert_eq!(mailbox.waits(), Waits { messages: 3, bytes: 78 });
        mailbox.give_back(&mut batch);
        assert_eq!(mailbox.entries().len(), 5);
        assert_eq!(mailbox.waits(), Waits::default());
    }

    #[test]
    fn spare_memory_stays_until_the_mailbox_shrinks() {
        let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), MessageBatch::default());
        (0..3 * BATCH as u64).for_each(|n| mailbox.push(MessageInTransit::Typed(n)));
        while mailbox.take(BATCH, &mut batch) > 0 {
            batch.clear();
        }
        assert!(mailbox.more.as_ref().is_some_and(|more| more.spare.is_some()));
        mailbox.shrink();
        assert!(mailbox.more.is_none());
    }

    #[test]
    fn limits_refuse_but_an_empty_mailbox_takes_any_length() {
        let mut mailbox = Mailbox::<u64>::default();
        assert_eq!(mailbox.check(ROOM, 1_000), Ok(()));
        envelope(&mut mailbox, 90);
        assert_eq!((mailbox.check(ROOM, 10), mailbox.take_refused()), (Ok(()), false));
        let full = MailboxFull { waiting: 90, limit: 100, of: Measure::Bytes };
        assert_eq!(mailbox.check(ROOM, 11), Err(full));
        assert_eq!((mailbox.take_refused(), mailbox.take_refused()), (true, false));
        (0..7).for_each(|_| mailbox.push(MessageInTransit::Typed(1)));
        let full = MailboxFull { waiting: 8, limit: 8, of: Measure::Messages };
        assert_eq!(mailbox.check(ROOM, 0), Err(full));
    }

    #[test]
    fn busy_notices_thin_out_and_room_is_reported_at_half() {
        let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), MessageBatch::default());
        (0..8).for_each(|_| envelope(&mut mailbox, 10));
        assert!(mailbox.turn_away(region(1), 10) && mailbox.turn_away(region(2), 10));
        let again: Vec<_> = (2..=192).filter(|_| mailbox.turn_away(region(1), 10)).collect();
        assert_eq!(again, [2, 4, 8, 16, 32, 64, 128, 192]);
        assert!(mailbox.is_still_busy(region(3), ROOM) && mailbox.is_still_busy(region(1), ROOM));
        mailbox.take(2, &mut batch);
        assert_eq!(mailbox.take_notified_if_ample(ROOM), None, "60 bytes are more than half");
        batch.clear();
        mailbox.take(2, &mut batch);
        assert_eq!(
            mailbox.take_notified_if_ample(ROOM),
            Some(vec![region(1), region(2), region(3)])
        );
        assert_eq!(
            (mailbox.take_notified_if_ample(ROOM), mailbox.is_still_busy(region(3), ROOM)),
            (None, false)
        );
        assert!(mailbox.turn_away(region(1), 10), "it was told of room since, so it is told again");
    }

    #[test]
    fn asking_node_gets_one_try_when_its_message_fits() {
        let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), MessageBatch::default());
        (0..8).for_each(|_| envelope(&mut mailbox, 12));
        assert!(mailbox.turn_away(region(1), 16) && mailbox.turn_away(region(2), 17));
        assert!(mailbox.is_still_busy(region(1), ROOM) && mailbox.is_still_busy(region(2), ROOM));
        mailbox.take(1, &mut batch);
        assert_eq!(mailbox.take_notified_if_ample(ROOM), None);
        assert!(!mailbox.is_still_busy(region(1), ROOM) && mailbox.is_still_busy(region(2), ROOM));
        envelope(&mut mailbox, 12); // a local caller was faster
        assert!(mailbox.turn_away(region(1), 16), "it was told of room since, so it is told again");
        assert_eq!(mailbox.take_notified(), [region(2), region(1)]);
    }

    #[test]
    fn told_nodes_are_bounded() {
        let mut mailbox = Mailbox::<u64>::default();
        (0..8).for_each(|_| envelope(&mut mailbox, 10));
        let told = (0..100).filter(|&number| mailbox.turn_away(region(number), 10)).count();
        assert!(mailbox.is_still_busy(region(200), ROOM));
        assert_eq!((told, mailbox.take_notified().len()), (TOLD_MAX, TOLD_MAX));
    }

    /// Operation on a mailbox and a batch taken out of it.
    #[derive(Clone, Copy, Debug)]
    enum MailboxStep {
        /// Pushes `.0` messages of `.1` encoded bytes; with 0 bytes, typed messages.
        Push(usize, usize),
        Take(usize),
        /// Begins this many messages of the batch.
        Pop(usize),
        GiveBack,
        Adopt,
        Rest,
    }

    /// Random operations. Nearly all that push give many short messages, a few give long ones.
    fn step() -> impl Strategy<Value = MailboxStep> {
        prop_oneof![
            3 => (1..400_usize, 0..3_usize).prop_map(|(n, i)| MailboxStep::Push(n, [0, 40, 700][i])),
            1 => (1..3_usize, 12..200_000_usize).prop_map(|(n, bytes)| MailboxStep::Push(n, bytes)),
            3 => Just(MailboxStep::Take(BATCH)),
            1 => (0..600_usize).prop_map(MailboxStep::Take),
            3 => (0..300_usize).prop_map(MailboxStep::Pop),
            2 => Just(MailboxStep::GiveBack),
            1 => Just(MailboxStep::Adopt),
            1 => Just(MailboxStep::Rest),
        ]
    }

    /// Number of a message and its encoded bytes, 0 if it is typed.
    type Numbered = (u64, usize);

    /// The expected [`Mailbox::waits`]; a typed message counts 8 bytes.
    fn waits(messages: &VecDeque<Numbered>) -> Waits {
        let bytes = messages.iter().map(|(_, bytes)| if *bytes == 0 { 8 } else { *bytes }).sum();
        Waits { messages: messages.len(), bytes }
    }

    proptest! {
        #[test]
        fn every_message_comes_out_once_and_in_order(steps in vec(step(), 1..60)) {
            let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), MessageBatch::default());
            let (mut inside, mut taken) = (VecDeque::new(), VecDeque::new());
            let mut last = 0;
            for step in steps {
                match step {
                    MailboxStep::Push(count, bytes) => for _ in 0..count {
                        last += 1;
                        inside.push_back((last, bytes));
                        mailbox.push(coming(last, bytes, &mut None));
                    },
                    MailboxStep::Take(most) if batch.is_empty() => {
                        let count = mailbox.take(most, &mut batch);
                        prop_assert!(count <= most && count <= BATCH);
                        let nothing_to_take = most == 0 || inside.is_empty();
                        prop_assert!(count > 0 || nothing_to_take, "no message was taken");
                        taken.extend(inside.drain(..count));
                    }
                    MailboxStep::Pop(count) => for _ in 0..count {
                        prop_assert_eq!(batch.pop().map(|message| told(&message)), taken.pop_front());
                    },
                    MailboxStep::GiveBack => {
                        mailbox.give_back(&mut batch);
                        taken.extend(inside.drain(..));
                        std::mem::swap(&mut taken, &mut inside);
                    }
                    MailboxStep::Adopt => mailbox.adopt(&mut batch),
                    MailboxStep::Rest if mailbox.is_empty() => mailbox.shrink(),
                    MailboxStep::Take(_) | MailboxStep::Rest => {}
                }
                prop_assert_eq!(mailbox.waits(), waits(&inside));
                prop_assert_eq!((mailbox.len(), batch.len()), (inside.len(), taken.len()));
            }
            let mut rest = VecDeque::new();
            mailbox.drain(|message| rest.push_back(told(&message)));
            prop_assert_eq!(rest, inside);
            prop_assert_eq!(mailbox.waits(), Waits::default());
        }
    }
}
