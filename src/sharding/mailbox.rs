//! The messages that wait for one entity, against its limits in messages and in bytes; and which
//! other nodes were told that there is no room (spec/sharding.md §8).
//!
//! A message from another node, or one that was encoded for a lane, counts with its bytes. One that
//! never left its node counts with the size of its type, without what that points to: nobody knows
//! how large that is. Under the shard's lock.

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;

use super::gate::Waits;
use super::ids::RegionId;
use super::letter::Letter;

/// A node that goes on sending is told again, for a notice may be lost: after two of its messages,
/// after four, and so on, and whenever it is so many.
const NOTICE_EVERY: u32 = 64;

/// Nodes that wait for one mailbox and hear of room; those beyond get no notice. A node that starts
/// anew is another region, and nobody says here that the former one went.
const TOLD_MAX: usize = 64;

/// A message in a mailbox.
pub(super) enum Entry<M> {
    /// As it was told on this node.
    Typed(M),
    /// As it came from elsewhere.
    Letter(Letter),
}

/// Letters of a mailbox. Typed messages are counted by their number alone: that costs them nothing.
#[derive(Clone, Copy, Default)]
struct Letters {
    count: usize,
    bytes: usize,
}

impl Letters {
    #[inline]
    fn add<M>(&mut self, entry: &Entry<M>) {
        if let Entry::Letter(letter) = entry {
            self.count += 1;
            self.bytes += letter.bytes().len();
        }
    }
}

/// What a mailbox has too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Messages: `mailbox-size`.
    Messages,
    /// Their bytes: `mailbox-bytes-max`.
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

/// How much may wait for one entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// There is no room: what waits, how much may, of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MailboxFull {
    pub(super) waiting: usize,
    pub(super) limit: usize,
    pub(super) of: Measure,
}

impl Room {
    /// Whether a message of `bytes` bytes fits. One that is larger than all the room fits where
    /// nothing waits: else it could never be sent.
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

    /// Whether so little waits that other nodes may send again: who began at the first free place
    /// would be refused after a few messages.
    const fn is_ample(self, waits: Waits) -> bool {
        waits.messages <= self.messages / 2 && waits.bytes <= self.bytes / 2
    }
}

/// See the module's page.
pub(super) struct Mailbox<M> {
    entries: VecDeque<Entry<M>>, // ≤ `Room` for direct messages
    letters: Letters,            // of `entries`
    refused: bool,               // somebody was, since room was made last
    told: Vec<Busied>,           // ≤ TOLD_MAX
}

/// A node that was told that there is no room.
struct Busied {
    region: RegionId,
    refused: u32, // of its messages since
    bytes: usize, // of the last one
}

impl<M> Default for Mailbox<M> {
    fn default() -> Self {
        let (entries, letters) = (VecDeque::new(), Letters::default());
        Self { entries, letters, refused: false, told: Vec::new() }
    }
}

impl<M> Mailbox<M> {
    /// Messages that wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Messages that it has memory for.
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Messages that wait, and their bytes.
    pub(super) fn waits(&self) -> Waits {
        let (messages, Letters { count, bytes }) = (self.entries.len(), self.letters);
        Waits { messages, bytes: bytes + (messages - count) * size_of::<M>() }
    }

    /// Whether a message fits. Who is refused is told by [`make_room`](Self::make_room).
    #[inline]
    pub(super) fn check(&mut self, room: Room, bytes: usize) -> Result<(), MailboxFull> {
        let checked = room.check(self.waits(), bytes);
        self.refused |= checked.is_err();
        checked
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry<M>) {
        self.letters.add(&entry);
        self.entries.push_back(entry);
    }

    /// Moves the first `count` messages behind those of `batch`.
    pub(super) fn take(&mut self, count: usize, batch: &mut VecDeque<Entry<M>>) {
        if count == self.entries.len() && batch.is_empty() {
            std::mem::swap(batch, &mut self.entries);
            self.letters = Letters::default();
            return;
        }
        if self.letters.count > 0 {
            let mut taken = Letters::default();
            self.entries.range(..count).for_each(|entry| taken.add(entry));
            self.letters.count -= taken.count;
            self.letters.bytes -= taken.bytes;
        }
        batch.extend(self.entries.drain(..count));
    }

    /// What was taken comes back, ahead of what came since.
    pub(super) fn give_back(&mut self, batch: &mut VecDeque<Entry<M>>) {
        while let Some(entry) = batch.pop_back() {
            self.letters.add(&entry);
            self.entries.push_front(entry);
        }
    }

    /// The same, behind what came since: wrong, for a canary.
    pub(super) fn give_back_behind(&mut self, batch: &mut VecDeque<Entry<M>>) {
        batch.drain(..).for_each(|entry| self.push(entry));
    }

    /// Memory for messages to come: `batch` has some and is empty.
    pub(super) fn adopt(&mut self, batch: &mut VecDeque<Entry<M>>) {
        if self.entries.capacity() == 0 && batch.is_empty() {
            std::mem::swap(&mut self.entries, batch);
        }
    }

    pub(super) fn drain(&mut self) -> Drain<'_, Entry<M>> {
        self.letters = Letters::default();
        self.entries.drain(..)
    }

    /// A message of another node was refused: whether that node is to be told.
    pub(super) fn turn_away(&mut self, region: RegionId, bytes: usize) -> bool {
        let Some(known) = self.told.iter_mut().find(|known| known.region == region) else {
            return self.remember(Busied { region, refused: 1, bytes });
        };
        known.bytes = bytes;
        known.refused = known.refused.wrapping_add(1);
        known.refused.is_power_of_two() || known.refused.is_multiple_of(NOTICE_EVERY)
    }

    /// Whether another node that asks has to wait on; if so it hears when it need not any more. If a
    /// message fits it does not, be there ample room or not: callers of this node may take each place
    /// that comes free, and so it gets one try for each question.
    pub(super) fn puts_off(&mut self, region: RegionId, room: Room) -> bool {
        let known = self.told.iter().position(|known| known.region == region);
        let bytes = known.map_or(1, |known| self.told[known].bytes);
        let fits = room.check(self.waits(), bytes).is_ok();
        match known {
            Some(known) if fits => {
                self.told.remove(known);
            }
            None if !fits => {
                let _remembered = self.remember(Busied { region, refused: 0, bytes });
            }
            _ => {}
        }
        !fits
    }

    /// Whether there is a place for it.
    fn remember(&mut self, busied: Busied) -> bool {
        let may = self.told.len() < TOLD_MAX;
        if may {
            self.told.push(busied);
        }
        may
    }

    /// After some were taken: whether callers of this node were refused, who may try again.
    pub(super) const fn make_room(&mut self) -> bool {
        std::mem::replace(&mut self.refused, false)
    }

    /// Whether other nodes wait.
    pub(super) const fn puts_somebody_off(&self) -> bool {
        !self.told.is_empty()
    }

    /// Other nodes that may send again, if there is ample room.
    pub(super) fn freed(&mut self, room: Room) -> Option<Vec<RegionId>> {
        if self.told.is_empty() || !room.is_ample(self.waits()) {
            return None;
        }
        Some(self.all_told())
    }

    /// All other nodes that wait: nothing waits here any more.
    pub(super) fn all_told(&mut self) -> Vec<RegionId> {
        std::mem::take(&mut self.told).into_iter().map(|known| known.region).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ostraca_ddata::id::ReplicaId;

    use super::*;

    const ROOM: Room = Room { messages: 8, bytes: 100 };

    fn region(number: u64) -> RegionId {
        RegionId::new(ReplicaId::new(number))
    }

    /// A letter of so many bytes.
    fn letter<M>(bytes: usize) -> Entry<M> {
        let mut text = vec![0, 1, 0, b'a'];
        text.resize(bytes, b'x');
        Entry::Letter(Letter::read(Bytes::from(text)).expect("a letter"))
    }

    #[test]
    fn messages_count_with_their_bytes_wherever_they_go() {
        let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), VecDeque::new());
        (1..=4).for_each(|n| mailbox.push(letter(10 * n)));
        mailbox.push(Entry::Typed(7));
        assert_eq!(mailbox.waits(), Waits { messages: 5, bytes: 108 });
        mailbox.take(2, &mut batch);
        assert_eq!((mailbox.waits().bytes, batch.len()), (78, 2));
        mailbox.give_back(&mut batch);
        assert_eq!((mailbox.waits().bytes, batch.len()), (108, 0));
        mailbox.take(5, &mut batch);
        assert_eq!(mailbox.waits(), Waits::default());
        mailbox.give_back(&mut batch);
        assert_eq!(mailbox.drain().count(), 5);
        assert_eq!(mailbox.waits(), Waits::default());
    }

    #[test]
    fn either_limit_refuses_and_one_message_alone_may_be_larger_than_all() {
        let mut mailbox = Mailbox::<u64>::default();
        assert_eq!(mailbox.check(ROOM, 1_000), Ok(()));
        mailbox.push(letter(90));
        assert_eq!((mailbox.check(ROOM, 10), mailbox.make_room()), (Ok(()), false));
        let full = MailboxFull { waiting: 90, limit: 100, of: Measure::Bytes };
        assert_eq!(mailbox.check(ROOM, 11), Err(full));
        assert_eq!((mailbox.make_room(), mailbox.make_room()), (true, false));
        (0..7).for_each(|_| mailbox.push(Entry::Typed(1)));
        let full = MailboxFull { waiting: 8, limit: 8, of: Measure::Messages };
        assert_eq!(mailbox.check(ROOM, 0), Err(full));
    }

    #[test]
    fn a_node_is_told_at_once_then_now_and_then_and_again_when_half_is_free() {
        let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), VecDeque::new());
        (0..8).for_each(|_| mailbox.push(letter(10)));
        assert!(mailbox.turn_away(region(1), 10) && mailbox.turn_away(region(2), 10));
        let again: Vec<_> = (2..=192).filter(|_| mailbox.turn_away(region(1), 10)).collect();
        assert_eq!(again, [2, 4, 8, 16, 32, 64, 128, 192]);
        assert!(mailbox.puts_off(region(3), ROOM) && mailbox.puts_off(region(1), ROOM));
        mailbox.take(2, &mut batch);
        assert_eq!(mailbox.freed(ROOM), None, "60 bytes are more than half");
        mailbox.take(2, &mut batch);
        assert_eq!(mailbox.freed(ROOM), Some(vec![region(1), region(2), region(3)]));
        assert_eq!((mailbox.freed(ROOM), mailbox.puts_off(region(3), ROOM)), (None, false));
        assert!(mailbox.turn_away(region(1), 10), "it was told otherwise since");
    }

    #[test]
    fn a_node_that_asks_may_try_once_as_soon_as_its_message_fits() {
        let (mut mailbox, mut batch) = (Mailbox::<u64>::default(), VecDeque::new());
        (0..8).for_each(|_| mailbox.push(letter(12)));
        assert!(mailbox.turn_away(region(1), 16) && mailbox.turn_away(region(2), 17));
        assert!(mailbox.puts_off(region(1), ROOM) && mailbox.puts_off(region(2), ROOM));
        mailbox.take(1, &mut batch);
        assert_eq!(mailbox.freed(ROOM), None);
        assert!(!mailbox.puts_off(region(1), ROOM) && mailbox.puts_off(region(2), ROOM));
        mailbox.push(letter(12)); // somebody was faster
        assert!(mailbox.turn_away(region(1), 16), "it was told otherwise since");
        assert_eq!(mailbox.all_told(), [region(2), region(1)]);
    }

    #[test]
    fn no_more_nodes_are_remembered_than_there_may_be() {
        let mut mailbox = Mailbox::<u64>::default();
        (0..8).for_each(|_| mailbox.push(letter(10)));
        let told = (0..100).filter(|&number| mailbox.turn_away(region(number), 10)).count();
        assert!(mailbox.puts_off(region(200), ROOM));
        assert_eq!((told, mailbox.all_told().len()), (TOLD_MAX, TOLD_MAX));
    }
}
