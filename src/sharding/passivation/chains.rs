//! Doubly linked lists of slots in one arena. A slot is in at most one list, and every operation
//! takes constant time.

use super::Slot;

const NONE: u32 = u32::MAX;

/// One of the lists of a [`Chains`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain(u32);

impl Chain {
    pub(super) const fn new(index: u32) -> Self {
        Self(index)
    }

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Place of a slot: its neighbours, or `NONE` at an end, and its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChainNode {
    before: u32,
    after: u32,
    chain: u32, // NONE: in no list
}

const FREE: ChainNode = ChainNode { before: NONE, after: NONE, chain: NONE };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChainEnds {
    front: u32,
    back: u32,
    len: u32,
}

const EMPTY: ChainEnds = ChainEnds { front: NONE, back: NONE, len: 0 };

/// Several linked lists of slots. A list exists by its use: one that was never used is empty. The
/// arrays grow to the highest slot and list ever used, and never shrink.
#[derive(Clone, Debug)]
pub(super) struct Chains {
    nodes: Vec<ChainNode>, // by slot: as long as the highest slot ever used
    ends: Vec<ChainEnds>,  // by chain: ≤ the most lists that were ever used
    len: usize,
}

impl Chains {
    pub(super) const fn empty() -> Self {
        Self { nodes: Vec::new(), ends: Vec::new(), len: 0 }
    }

    /// Returns the number of slots in all lists.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of slots in one list; 0 for a list that was never used.
    pub(super) fn len_of(&self, chain: Chain) -> usize {
        self.ends.get(chain.index()).map_or(0, |ends| ends.len as usize)
    }

    /// Returns the list that contains a slot.
    pub(super) fn chain_of(&self, slot: Slot) -> Option<Chain> {
        let node = self.nodes.get(slot.index())?;
        (node.chain != NONE).then_some(Chain(node.chain))
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.chain_of(slot).is_some()
    }

    pub(super) fn front(&self, chain: Chain) -> Option<Slot> {
        self.ends.get(chain.index()).and_then(|ends| slot(ends.front))
    }

    pub(super) fn back(&self, chain: Chain) -> Option<Slot> {
        self.ends.get(chain.index()).and_then(|ends| slot(ends.back))
    }

    /// Returns the neighbour towards the front; `None` at the front or in no list.
    pub(super) fn before(&self, of: Slot) -> Option<Slot> {
        self.nodes.get(of.index()).and_then(|node| slot(node.before))
    }

    /// Returns the neighbour towards the back; `None` at the back or in no list.
    pub(super) fn after(&self, of: Slot) -> Option<Slot> {
        self.nodes.get(of.index()).and_then(|node| slot(node.after))
    }

    /// Appends a slot at the back of a list. Makes room for new slots and lists. Panics if the slot
    /// is in a list already, also if that is the same one; changes nothing then.
    pub(super) fn push_back(&mut self, chain: Chain, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot:?} is in a list already");
        if self.nodes.len() <= slot.index() {
            self.nodes.resize(slot.index() + 1, FREE);
        }
        if self.ends.len() <= chain.index() {
            self.ends.resize(chain.index() + 1, EMPTY);
        }
        let ends = &mut self.ends[chain.index()];
        self.nodes[slot.index()] = ChainNode { before: ends.back, after: NONE, chain: chain.0 };
        match ends.back {
            NONE => ends.front = slot.0,
            back => self.nodes[back as usize].after = slot.0,
        }
        ends.back = slot.0;
        ends.len += 1;
        self.len += 1;
    }

    /// Removes a slot from its list, whichever that is; false if it was in none, or is beyond the
    /// slots ever used.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        let Some(chain) = self.chain_of(slot) else { return false };
        let ChainNode { before, after, .. } =
            std::mem::replace(&mut self.nodes[slot.index()], FREE);
        let ends = &mut self.ends[chain.index()];
        match before {
            NONE => ends.front = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => ends.back = before,
            after => self.nodes[after as usize].before = before,
        }
        ends.len -= 1;
        self.len -= 1;
        true
    }
}

/// Converts an index of [`Chains`] into a slot; `None` for [`NONE`].
const fn slot(raw: u32) -> Option<Slot> {
    if raw == NONE { None } else { Some(Slot(raw)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    /// Returns the slots of a list from front to back.
    fn walk(chains: &Chains, chain: Chain) -> Vec<Slot> {
        std::iter::successors(chains.front(chain), |&slot| chains.after(slot)).collect()
    }

    #[test]
    fn lists_match_a_naive_model() {
        for seed in 0..50 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut chains = Chains::empty();
            let mut model = [VecDeque::new(), VecDeque::new(), VecDeque::new()];
            for _ in 0..400 {
                let slot = Slot(rng.random_range(0..20));
                let into = rng.random_range(0..3_u32);
                let was = model.iter().any(|list| list.contains(&slot));
                assert_eq!(chains.remove(slot), was, "seed {seed}");
                model.iter_mut().for_each(|list| list.retain(|&other| other != slot));
                if rng.random_bool(0.7) {
                    chains.push_back(Chain(into), slot);
                    model[into as usize].push_back(slot);
                }
                for (index, list) in (0..).zip(&model) {
                    assert_eq!(*list, walk(&chains, Chain(index)), "seed {seed}");
                    assert_eq!(chains.len_of(Chain(index)), list.len(), "seed {seed}");
                    assert_eq!(chains.back(Chain(index)), list.back().copied(), "seed {seed}");
                }
                let all: usize = model.iter().map(VecDeque::len).sum();
                assert_eq!(chains.len(), all, "seed {seed}");
            }
        }
    }
}
