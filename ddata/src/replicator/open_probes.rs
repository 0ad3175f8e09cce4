//! Probes of peers that wait for an answer, because they ask for changes of third replicas that are
//! still in flight to this one.
//!
//! Rule "Questions wait for changes on their way"
//! (docs/protocol/replication.md#questions-wait-for-changes-on-their-way). A removal at a majority
//! probes every replica for all that its author holds. While several replicas change one key, the
//! author nearly always holds a change of a third replica that the probed one is about to receive.
//! Answering `Lack` would make the author send a repair of it for each change of a busy key; for a
//! large key a repair is a scan or the full state. So the answer waits. When the asker's patience
//! is over it asks again, and that question is answered at once. To the asker, a question that
//! waits or was dropped looks like a late or lost message.

use std::collections::{BTreeMap, VecDeque};

use super::epoch::EpochId;
use super::wire::Entry;
use crate::causal::CausalContext;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// Maximum number of waiting questions of one peer about one key. Beyond, the oldest is dropped.
const WAITING_MAX: usize = 256;

/// Maximum number of waiting questions over all peers and keys. Further ones are answered at once.
const ALL_MAX: usize = 2_048;

/// Maximum size of a waiting question, in bytes. A longer one (its context has many gaps) is
/// answered at once.
const QUESTION_BYTES_MAX: usize = 4_096;

/// A probe, here called a question, that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct OpenProbe {
    pub(super) from: ReplicaId,
    /// The configuration of the two replicas, if it was the same when the question arrived.
    pub(super) epoch: Option<EpochId>,
    /// The [`name`](super::push::name) of the sending that contained it.
    pub(super) sending: u64,
    pub(super) entry: Entry,
    /// The context that this replica must hold before it can acknowledge.
    pub(super) asked: CausalContext,
}

/// All waiting questions, by key and asker.
#[derive(Clone, Debug, Default)]
pub(super) struct Questions {
    /// In the order of arrival. The contexts of one asker only grow, so the first is held first.
    waiting: BTreeMap<(KeyName, ReplicaId), VecDeque<OpenProbe>>, // ≤ ALL_MAX questions, none empty
    count: usize,          // of these questions
    changed: Vec<KeyName>, // keys of `waiting` that have changed since the last `take`
}

impl Questions {
    /// Stores a question. Returns `false` if it may not wait and must be answered now: it is longer
    /// than [`QUESTION_BYTES_MAX`], or [`ALL_MAX`] questions wait. Otherwise, at [`WAITING_MAX`]
    /// questions of this peer about this key, the oldest is dropped and never answered. Duplicates
    /// are not looked for.
    pub(super) fn wait(&mut self, question: OpenProbe) -> bool {
        let of = (question.entry.key.clone(), question.from);
        if question.entry.len() > QUESTION_BYTES_MAX || self.count >= ALL_MAX {
            return false;
        }
        let waiting = self.waiting.entry(of).or_default();
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        } else {
            self.count += 1;
        }
        waiting.push_back(question);
        true
    }

    /// Records that a key has changed, so that its questions are examined by the next `take`. Does
    /// nothing if no question about the key waits.
    pub(super) fn changed(&mut self, key: &KeyName) {
        if self.waiting.is_empty() || self.changed.last() == Some(key) {
            return;
        }
        let of = (key.clone(), ReplicaId::new(0))..=(key.clone(), ReplicaId::new(u64::MAX));
        if self.waiting.range(of).next().is_some() {
            self.changed.push(key.clone());
        }
    }

    /// Takes the questions whose context is held now, among those about keys that have changed
    /// since the last call; the others of these keys wait for the next change. `context` is what
    /// this replica holds of a key. Of each asker they are taken in order, up to the first one that
    /// must still wait. The caller answers them.
    pub(super) fn take(&mut self, context: impl Fn(&KeyName) -> CausalContext) -> Vec<OpenProbe> {
        let mut answerable = Vec::new();
        for key in std::mem::take(&mut self.changed) {
            let held = context(&key);
            let of = (key.clone(), ReplicaId::new(0))..=(key, ReplicaId::new(u64::MAX));
            for (_, waiting) in self.waiting.range_mut(of) {
                while waiting.front().is_some_and(|question| held.includes(&question.asked)) {
                    answerable.extend(waiting.pop_front());
                }
            }
        }
        if !answerable.is_empty() {
            self.count -= answerable.len();
            self.waiting.retain(|_, waiting| !waiting.is_empty());
        }
        answerable
    }

    /// Removes the questions of a peer about a key for which `is_it` holds: the peer has asked
    /// again, and the repeated one is answered now. Does nothing if none waits.
    pub(super) fn asked_again(
        &mut self,
        key: &KeyName,
        from: ReplicaId,
        is_it: impl Fn(&OpenProbe) -> bool,
    ) {
        let of = (key.clone(), from);
        let Some(waiting) = self.waiting.get_mut(&of) else { return };
        let before = waiting.len();
        waiting.retain(|question| !is_it(question));
        self.count -= before - waiting.len();
        if waiting.is_empty() {
            self.waiting.remove(&of);
        }
    }

    /// Drops all questions, because after an install their askers ask again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causal::Dot;
    use crate::replicator::wire::{ContextBytes, EntryContent};

    const AUTHOR: ReplicaId = ReplicaId::new(9);

    fn context(last: u64) -> CausalContext {
        let mut context = CausalContext::new();
        (1..=last).for_each(|counter| context.insert(Dot::new(AUTHOR, counter)));
        context
    }

    fn question(from: u64, last: u64) -> OpenProbe {
        let (key, shape, asked) = (KeyName::new("key"), "set".into(), context(last));
        let content = EntryContent::Probe(ContextBytes::new(&asked));
        let entry = Entry { index: 0, key, shape, guard: None, content };
        OpenProbe { from: ReplicaId::new(from), epoch: None, sending: last * 16, entry, asked }
    }

    fn taken(questions: &mut Questions, last: u64) -> Vec<(u64, u64)> {
        questions.changed(&KeyName::new("key"));
        let taken = questions.take(|_| context(last));
        taken.iter().map(|question| (question.from.get(), question.sending / 16)).collect()
    }

    #[test]
    fn question_is_answered_once_its_context_is_held() {
        let mut questions = Questions::default();
        for (from, last) in [(1, 2), (2, 3), (1, 4)] {
            assert!(questions.wait(question(from, last)));
        }
        assert_eq!(taken(&mut questions, 1), []);
        assert_eq!(taken(&mut questions, 3), [(1, 2), (2, 3)]);
        assert_eq!(taken(&mut questions, 3), []);
        questions.asked_again(&KeyName::new("key"), ReplicaId::new(1), |it| it.sending == 4 * 16);
        assert_eq!(taken(&mut questions, 9), [], "the repeated question was answered at once");
        assert_eq!(questions.count, 0);
    }

    #[test]
    fn waiting_questions_are_bounded() {
        let mut questions = Questions::default();
        let askers = (ALL_MAX / WAITING_MAX) as u64 + 1;
        for from in 1..=askers {
            for last in 1..=WAITING_MAX as u64 + 50 {
                questions.wait(question(from, last));
            }
        }
        let waiting: usize = questions.waiting.values().map(VecDeque::len).sum();
        assert_eq!((waiting, questions.count), (ALL_MAX, ALL_MAX));
        assert_eq!(taken(&mut questions, 1_000).len(), ALL_MAX);
        assert_eq!(questions.count, 0);
    }
}
