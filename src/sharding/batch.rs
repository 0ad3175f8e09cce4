//! Messages in order, with the bytes of short encoded messages in one buffer. They are read in the
//! order in which they were written, one behind the other, and need no allocation each.
//!
//! Messages that were taken out leave their bytes in the buffer until the batch is cleared: less
//! than [`BYTES_FULL`] + [`LONG`].

use std::collections::VecDeque;

use super::envelope::{Envelope, EnvelopeRef};

/// Messages after which a batch is full, so that other entities get their turn.
pub(super) const BATCH: usize = 256;

/// A batch is full once its buffer, or its weighed messages, have this many bytes.
const BYTES_FULL: usize = 32 * 1024;

/// An encoded message of more bytes is not copied into a batch. It has its own allocation, made
/// outside of any lock. The caller chooses by this; [`MessageBatch::push`] does not check it.
pub(super) const LONG: usize = 4 * 1024;

/// Most bytes of buffer memory that an idle batch keeps.
const BYTES_RESTING: usize = 8 * 1024;

/// A message on its own, outside a batch.
pub(super) enum SingleMessage<M> {
    /// A message from this node, not encoded.
    Typed(M),
    /// A message from elsewhere, encoded.
    Envelope(Envelope),
}

/// A message on its way into or out of a batch.
pub(super) enum MessageInTransit<'a, M> {
    /// Counts with the size of its type.
    Typed(M),
    /// Counts with the bytes that its entity returned.
    Weighed(M, u32),
    /// The bytes are borrowed. ≤ [`LONG`] when it is pushed.
    Envelope(EnvelopeRef<'a>),
    /// The bytes have their own allocation, which moves along.
    Own(Envelope),
}

impl<M> MessageInTransit<'_, M> {
    /// Returns the message on its own; borrowed bytes are copied. Its weight is lost.
    pub(super) fn entry(self) -> SingleMessage<M> {
        match self {
            Self::Typed(message) | Self::Weighed(message, _) => SingleMessage::Typed(message),
            Self::Envelope(envelope) => SingleMessage::Envelope(envelope.to_envelope()),
            Self::Own(envelope) => SingleMessage::Envelope(envelope),
        }
    }

    /// Returns its bytes if it is encoded.
    #[inline]
    pub(super) fn envelope(&self) -> Option<EnvelopeRef<'_>> {
        match self {
            Self::Typed(_) | Self::Weighed(..) => None,
            Self::Envelope(envelope) => Some(*envelope),
            Self::Own(envelope) => Some(envelope.view()),
        }
    }

    /// Returns the bytes that it counts with, unless that is the size of its type.
    #[inline]
    pub(super) fn weighed(&self) -> Option<usize> {
        match self {
            Self::Typed(_) => None,
            Self::Weighed(_, bytes) => Some(*bytes as usize),
            Self::Envelope(envelope) => Some(envelope.bytes().len()),
            Self::Own(envelope) => Some(envelope.bytes().len()),
        }
    }
}

impl<M> MessageInTransit<'static, M> {
    /// Makes a message of this node that counts with `bytes` bytes. It is not weighed if that is
    /// the size of its type.
    #[inline]
    pub(super) fn typed(message: M, bytes: u32) -> Self {
        if bytes as usize == size_of::<M>() {
            Self::Typed(message)
        } else {
            Self::Weighed(message, bytes)
        }
    }
}

/// A message in a batch.
enum QueuedMessage<M> {
    Typed(M),
    Weighed(M, u32),
    Envelope(EnvelopeSpan),
    Own(Envelope),
}

/// Position of an encoded message in the buffer.
#[derive(Clone, Copy)]
struct EnvelopeSpan {
    at: u32, // < BYTES_FULL
    length: u32,
    id_at: u16,
    body_at: u16,
}

impl EnvelopeSpan {
    /// The message in the buffer `bytes` of its batch.
    fn of(self, bytes: &[u8]) -> EnvelopeRef<'_> {
        let Self { at, length, id_at, body_at } = self;
        let bytes = &bytes[at as usize..][..length as usize];
        EnvelopeRef { bytes, id_at, body_at }
    }
}

/// Number and total bytes of the messages that are weighed one by one: encoded messages, and typed
/// ones with a weight of their own. Other messages count by their number alone, at no cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weighed {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Weighed {
    pub(super) const fn one(bytes: usize) -> Self {
        Self { count: 1, bytes }
    }

    pub(super) const fn add(&mut self, Self { count, bytes }: Self) {
        self.count += count;
        self.bytes += bytes;
    }

    pub(super) const fn remove(&mut self, Self { count, bytes }: Self) {
        self.count -= count;
        self.bytes -= bytes;
    }
}

/// Messages in order; see the module documentation.
pub(super) struct MessageBatch<M> {
    waiting: VecDeque<QueuedMessage<M>>, // ≤ BATCH
    bytes: Vec<u8>,                      // of encoded messages in the buffer, also of taken ones
    weighed: Weighed,                    // of `waiting`
}

impl<M> Default for MessageBatch<M> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), bytes: Vec::new(), weighed: Weighed::default() }
    }
}

impl<M> MessageBatch<M> {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether the next message belongs into another batch: by number, by weight (typed
    /// messages of their type's size weigh nothing), or by the bytes in the buffer, those of
    /// messages that were taken out included. A large message thus fills a batch alone: a batch
    /// that an entity has taken no longer counts against the limits of its mailbox.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= BATCH
            || self.bytes.len() >= BYTES_FULL
            || self.weighed.bytes >= BYTES_FULL
    }

    /// Returns the weight of the messages that are weighed.
    pub(super) const fn weighed(&self) -> Weighed {
        self.weighed
    }

    /// Appends a message and copies its bytes if they are borrowed, of any length. The batch must
    /// not be full, which is not checked.
    #[inline]
    pub(super) fn push(&mut self, message: MessageInTransit<'_, M>) {
        if let Some(bytes) = message.weighed() {
            self.weighed.add(Weighed::one(bytes));
        }
        self.waiting.push_back(match message {
            MessageInTransit::Typed(message) => QueuedMessage::Typed(message),
            MessageInTransit::Weighed(message, bytes) => QueuedMessage::Weighed(message, bytes),
            MessageInTransit::Own(envelope) => QueuedMessage::Own(envelope),
            MessageInTransit::Envelope(EnvelopeRef { bytes, id_at, body_at }) => {
                let fits = |len| u32::try_from(len).expect("less than BYTES_FULL + LONG");
                let (at, length) = (fits(self.bytes.len()), fits(bytes.len()));
                self.bytes.extend_from_slice(bytes);
                QueuedMessage::Envelope(EnvelopeSpan { at, length, id_at, body_at })
            }
        });
    }

    /// Returns the first message if it is encoded.
    #[inline]
    pub(super) fn first_envelope(&self) -> Option<EnvelopeRef<'_>> {
        match self.waiting.front()? {
            QueuedMessage::Typed(_) | QueuedMessage::Weighed(..) => None,
            QueuedMessage::Envelope(place) => Some(place.of(&self.bytes)),
            QueuedMessage::Own(envelope) => Some(envelope.view()),
        }
    }

    /// Takes the first message; `None` if the batch is empty. The bytes of one in the buffer stay
    /// there, borrowed by the result, also after the last message was taken.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<MessageInTransit<'_, M>> {
        let message = match self.waiting.pop_front()? {
            QueuedMessage::Typed(message) => MessageInTransit::Typed(message),
            QueuedMessage::Weighed(message, bytes) => MessageInTransit::Weighed(message, bytes),
            QueuedMessage::Envelope(place) => MessageInTransit::Envelope(place.of(&self.bytes)),
            QueuedMessage::Own(envelope) => MessageInTransit::Own(envelope),
        };
        if let Some(bytes) = message.weighed() {
            self.weighed.remove(Weighed::one(bytes));
        }
        Some(message)
    }

    /// Takes all messages, in order, and clears the buffer.
    pub(super) fn drain(&mut self, mut each: impl FnMut(MessageInTransit<'_, M>)) {
        while let Some(message) = self.pop() {
            each(message);
        }
        self.clear();
    }

    /// Removes and drops all messages; the memory stays for later ones.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.weighed = Weighed::default();
        self.bytes.clear();
    }

    /// Removes and drops all messages, because none is expected soon. A buffer of more than
    /// [`BYTES_RESTING`] is freed as a whole; the memory of `waiting` always stays.
    pub(super) fn rest(&mut self) {
        self.clear();
        if self.bytes.capacity() > BYTES_RESTING {
            self.bytes = Vec::new();
        }
    }

    /// Returns whether it has no memory: it never had a message. Not so after
    /// [`rest`](Self::rest).
    pub(super) fn is_fresh(&self) -> bool {
        self.waiting.capacity() == 0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::envelope::tests::envelope;
    use super::*;

    /// Makes message `number`: encoded with `bytes` bytes, or typed if `bytes` is 0. The caller
    /// keeps the bytes of a short one.
    pub(in crate::sharding) fn coming(
        number: u64,
        bytes: usize,
        short: &mut Option<Envelope>,
    ) -> MessageInTransit<'_, u64> {
        match bytes {
            0 => MessageInTransit::Typed(number),
            1..=LONG => MessageInTransit::Envelope(short.insert(envelope(number, bytes)).view()),
            _ => MessageInTransit::Own(envelope(number, bytes)),
        }
    }

    /// Returns its number, and its bytes if it is encoded.
    pub(in crate::sharding) fn told(message: &MessageInTransit<'_, u64>) -> (u64, usize) {
        match (message, message.envelope()) {
            (MessageInTransit::Typed(number) | MessageInTransit::Weighed(number, _), None) => {
                (*number, 0)
            }
            (_, envelope) => {
                let envelope = envelope.expect("every other message is encoded");
                let number = envelope.body()[..8].try_into().expect("eight bytes");
                (u64::from_le_bytes(number), envelope.bytes().len())
            }
        }
    }

    fn push(batch: &mut MessageBatch<u64>, number: u64, bytes: usize) {
        batch.push(coming(number, bytes, &mut None));
    }

    fn number(message: &MessageInTransit<'_, u64>) -> u64 {
        told(message).0
    }

    fn numbers(batch: &mut MessageBatch<u64>) -> Vec<u64> {
        let mut numbers = Vec::new();
        batch.drain(|message| numbers.push(number(&message)));
        numbers
    }

    #[test]
    fn batch_returns_messages_in_order() {
        let mut batch = MessageBatch::default();
        let lengths = [0, 20, 0, 700, 13, 0, 9_000, 99];
        for (number, length) in (0..).zip(lengths) {
            push(&mut batch, number, length);
        }
        assert_eq!(batch.weighed(), Weighed { count: 5, bytes: 9_832 });
        assert!(batch.first_envelope().is_none(), "the first one is typed");
        assert_eq!(batch.pop().map(|message| number(&message)), Some(0));
        assert_eq!(batch.first_envelope().map(|envelope| envelope.bytes().len()), Some(20));
        assert_eq!(batch.pop().map(|message| number(&message)), Some(1));
        assert_eq!((batch.len(), batch.weighed()), (6, Weighed { count: 4, bytes: 9_812 }));
        push(&mut batch, 8, 44);
        assert_eq!(numbers(&mut batch), [2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((batch.weighed(), batch.bytes.len()), (Weighed::default(), 0));
    }

    #[test]
    fn batch_is_full_by_number_or_by_bytes() {
        let mut batch = MessageBatch::default();
        (0..BATCH as u64).for_each(|number| {
            assert!(!batch.is_full());
            push(&mut batch, number, 0);
        });
        assert!(batch.is_full());
        batch.clear();
        (1..BYTES_FULL / LONG).for_each(|_| push(&mut batch, 0, LONG));
        push(&mut batch, 4, LONG - 1);
        assert!(!batch.is_full());
        push(&mut batch, 5, 13);
        assert!(batch.is_full());
        let _taken = batch.pop().is_some();
        assert!(batch.is_full(), "taken bytes still count");
    }

    #[test]
    fn large_messages_fill_a_batch_wherever_their_bytes_are() {
        let mut batch = MessageBatch::default();
        push(&mut batch, 1, BYTES_FULL);
        assert!(batch.is_full(), "with its own allocation");
        batch.clear();
        batch.push(MessageInTransit::typed(2, 8));
        batch.push(MessageInTransit::typed(3, BYTES_FULL as u32 - 1));
        assert!(!batch.is_full());
        batch.push(MessageInTransit::typed(4, 1));
        assert!(batch.is_full());
        assert_eq!(batch.weighed(), Weighed { count: 2, bytes: BYTES_FULL });
        assert_eq!(numbers(&mut batch), [2, 3, 4]);
        assert_eq!(batch.weighed(), Weighed::default());
    }

    #[test]
    fn memory_is_kept_and_reduced_at_rest() {
        let mut batch = MessageBatch::default();
        assert!(batch.is_fresh());
        (0..4).for_each(|number| push(&mut batch, number, LONG));
        batch.clear();
        assert!(batch.bytes.capacity() >= 4 * LONG && !batch.is_fresh());
        batch.rest();
        assert_eq!(batch.bytes.capacity(), 0);
        push(&mut batch, 1, 100);
        batch.rest();
        assert!(batch.bytes.capacity() >= 100);
    }
}
