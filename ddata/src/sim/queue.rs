//! The event queue of a run: a heap of small entries, ordered by time, node and order of
//! scheduling, and slabs for the messages and actions that the entries refer to.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::NodeIndex;
use super::clock::SimTime;
use super::network::MessageSlot;

/// The event of a queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueEvent {
    /// A message reaches its destination, unless a fault drops it first.
    Deliver(MessageSlot),
    /// A scheduled action is due: an index into the run's actions. It may be out of date by then.
    Action(u32),
    /// A node may have reached its deadline. Ignored unless it is the tick that the node has armed
    /// last.
    Tick,
    /// A node may continue after a pause or a busy time, or with the rest of its inbox.
    Wake,
    /// The next fault is drawn.
    DrawFault,
}

/// The owner of a queue entry. At one instant the entries of the run itself come first, then those
/// of the nodes, node by node. So all entries of a node at one instant follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Run,
    Node(NodeIndex),
}

impl Owner {
    /// Returns the number that orders owners at one instant: 0 for the run, then the nodes in
    /// order. Fits in 16 bits.
    #[inline]
    fn code(self) -> u64 {
        match self {
            Self::Run => 0,
            Self::Node(node) => node.get() as u64 + 1,
        }
    }

    /// Inverse function of [`code`](Self::code). Panics if the code is that of no node.
    #[inline]
    fn of(code: u64) -> Self {
        match usize::try_from(code) {
            Ok(code) if code > 0 => Self::Node(NodeIndex::new(code - 1)),
            _ => Self::Run,
        }
    }
}

/// Bits for the order of scheduling, below the owner: enough for 2^48 entries per run.
const ORDER_BITS: u32 = 48;

/// An entry of the heap. Its order is unique in a queue, so equality and order ignore the event.
#[derive(Clone, Copy, Debug)]
struct QueueEntry {
    order: u128, // time << 64 | owner << ORDER_BITS | order of scheduling
    what: QueueEvent,
}

impl QueueEntry {
    /// Returns the time at which the entry is due, in nanoseconds.
    #[inline]
    const fn at(&self) -> u64 {
        (self.order >> 64) as u64
    }

    /// Returns the [code](Owner::code) of the owner.
    #[inline]
    const fn owner(&self) -> u64 {
        self.order as u64 >> ORDER_BITS
    }
}

impl PartialEq for QueueEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for QueueEntry {}

impl PartialOrd for QueueEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueueEntry {
    /// The earliest entry is the greatest, because the heap returns the greatest first.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        other.order.cmp(&self.order)
    }
}

/// The event queue of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<QueueEntry>, // ≤ messages in flight + actions + stale ticks
    scheduled: u64,               // entries pushed so far, never reduced
}

impl EventQueue {
    /// Schedules an event. Entries of one owner at one time are taken in the order of these calls.
    /// A time in the past is not refused here; the engine then panics when it takes the entry.
    ///
    /// # Panics
    /// After 2^48 entries in one run.
    pub(super) fn push(&mut self, at: SimTime, owner: Owner, what: QueueEvent) {
        self.scheduled += 1;
        assert!(self.scheduled < 1 << ORDER_BITS, "a run has fewer than 2^48 entries");
        let key = (owner.code() << ORDER_BITS) | self.scheduled;
        let order = u128::from(at.as_nanos()) << 64 | u128::from(key);
        self.heap.push(QueueEntry { order, what });
    }

    /// Takes the next entry if it is due at `end` or before. Returns `None` if the queue is empty
    /// or the next entry is later, which then stays.
    pub(super) fn pop(&mut self, end: SimTime) -> Option<(SimTime, Owner, QueueEvent)> {
        if self.heap.peek()?.at() > end.as_nanos() {
            return None;
        }
        let entry = self.heap.pop()?;
        Some((SimTime::from_nanos(entry.at()), Owner::of(entry.owner()), entry.what))
    }

    /// Takes the next entry if it belongs to this node and is due at exactly this instant. Looks
    /// only at the first entry: returns `None` if that one belongs to the run or to another node.
    #[inline]
    pub(super) fn pop_same(&mut self, at: SimTime, node: NodeIndex) -> Option<QueueEvent> {
        let next = self.heap.peek()?;
        let same = next.at() == at.as_nanos() && next.owner() == Owner::Node(node).code();
        if same { self.heap.pop().map(|entry| entry.what) } else { None }
    }
}

/// Values under small numbers. The number of a removed value is reused, the one that became free
/// last first.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>, // ≤ max
    free: Vec<u32>,        // ≤ slots
    max: u32,
}

impl<T> Slab<T> {
    /// Creates a slab without values that holds at most `max` of them.
    pub(super) fn new(max: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), max }
    }

    /// Stores a value and returns its number.
    ///
    /// # Panics
    /// If there are `max` values: the protocol sends without end. The message speaks of messages in
    /// flight, also for a slab of actions.
    pub(super) fn put(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(value);
            return slot;
        }
        let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        assert!(slot < self.max, "{} messages in flight: the protocol sends without end", self.max);
        self.slots.push(Some(value));
        slot
    }

    /// Removes a value and returns it; its number becomes free.
    ///
    /// # Panics
    /// If there is no value under this number.
    pub(super) fn take(&mut self, slot: u32) -> T {
        self.free.push(slot);
        self.slots[slot as usize].take().expect("an entry refers to a stored value")
    }

    /// Returns the value under a number; `None` if it was removed or never stored.
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Number of values stored now.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_ordered_by_time_owner_and_scheduling() {
        let (early, late) = (SimTime::from_nanos(1), SimTime::from_nanos(2));
        let node = |n| Owner::Node(NodeIndex::new(n));
        let mut queue = EventQueue::default();
        queue.push(late, node(1), QueueEvent::Deliver(0));
        queue.push(late, node(0), QueueEvent::Deliver(1));
        queue.push(late, node(1), QueueEvent::Deliver(2));
        queue.push(late, Owner::Run, QueueEvent::DrawFault);
        queue.push(early, node(1), QueueEvent::Tick);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop(late)).map(|(_, _, w)| w).collect();
        let expected = [
            QueueEvent::Tick,
            QueueEvent::DrawFault,
            QueueEvent::Deliver(1),
            QueueEvent::Deliver(0),
            QueueEvent::Deliver(2),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn slab_reuses_numbers_and_counts_values() {
        let mut slab = Slab::new(2);
        let (a, _) = (slab.put('a'), slab.put('b'));
        assert_eq!(slab.take(a), 'a');
        assert_eq!((slab.len(), slab.put('c')), (1, a));
    }

    #[test]
    #[should_panic(expected = "the protocol sends without end")]
    fn message_storm_is_stopped() {
        let mut slab = Slab::new(2);
        for n in 0..3 {
            slab.put(n);
        }
    }
}
