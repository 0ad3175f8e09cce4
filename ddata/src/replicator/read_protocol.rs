//! The steps of a read: request, questions to the voters, answers, write-back, reply; and the
//! answering side. The state of an open read is in `read`.
//!
//! A read above `Local` ends only when enough replicas hold the value that it returns
//! (docs/protocol/replication.md#read-repair-before-the-reply).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::epoch::EpochId;
use super::quorum::{Level, Need};
use super::read::OpenRead;
use super::request::{ReadConsistency, ReplicatorReply, RequestError, RequestId};
use super::requests::ResolvedLevel;
use super::wire::{Body, ContextBytes, Entry, KeyContext, WireGuard};
use super::write::{Write, WritePurpose};
use super::{Replicator, ReplicatorOutbox, store};
use crate::causal::CausalContext;
use crate::clock::Now;
use crate::data::Value;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::types::delta::{Delta, KeyState};
use crate::types::shape::Shape;

/// Above this many replicas to ask, a read first asks only as many as its level needs, chosen at
/// random. The others are asked when the patience is over.
const ASK_ALL_UP_TO: usize = 50;

impl Replicator {
    /// Handles a read request: replies at once at `Local`, otherwise starts asking other replicas.
    /// The read counts as a use of the key, for expiry, also if it then fails by `wanted`. An
    /// absent or deleted key gives no value; a deleted one has a context. The name of the key is
    /// not checked, and `Local` needs no configuration and is not bounded.
    ///
    /// # Errors
    /// First `WrongType` if this replica holds the key, even deleted, with another type than
    /// `shape` (`None` accepts any); then those of [`wanted`](Self::wanted). Nothing was sent.
    pub(super) fn get(
        &mut self,
        now: Now,
        id: RequestId,
        key: KeyName,
        shape: Option<Shape>,
        consistency: ReadConsistency,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), RequestError> {
        if let Some(expected) = &shape {
            Self::check_shape(self.store.get(&key).map(Arc::as_ref), expected)?;
        }
        self.touch(now, &key);
        let Some((level, within)) = consistency.level() else {
            let held = self.store.get(&key);
            let context = held.map(|held| held.state.context().clone()).unwrap_or_default();
            let live = held.filter(|held| !held.state.is_bottom());
            let value = live.map(|held| Value::new(held.state.snapshot()));
            Self::reply(id, Ok(ReplicatorReply::Got { value, context }), out);
            return Ok(());
        };
        let ResolvedLevel { level, need, epoch, within } =
            self.wanted(self.floored(level), within)?;
        let read = OpenRead {
            key,
            shape,
            need,
            level,
            epoch,
            deadline: now.mono + within,
            resend: now.mono,
            tries: 0,
            sent: now.mono,
            merged: None,
            own: CausalContext::new(),
            answers: BTreeMap::new(),
        };
        self.begin_read(now, id, read, out);
        Ok(())
    }

    /// Records a use of a key, if an expiry pattern matches it. Does nothing if it is absent.
    fn touch(&mut self, now: Now, key: &KeyName) {
        if self.config.expiry_of(key).is_some() {
            self.store.touch(key, now.mono);
        }
    }

    /// The context of a key that this replica vouches for: everything that it holds. Of a durable
    /// key without write-behind that is only the part on disk, because an answer must survive a
    /// restart.
    pub(super) fn vouched(&self, held: &store::StoredKey) -> CausalContext {
        if self.config.is_durable(&held.key) && self.config.write_behind_interval.is_none() {
            held.synced.clone()
        } else {
            held.state.context().clone()
        }
    }

    /// Starts a read, or restarts it in a newly installed epoch: forgets the answers, but keeps the
    /// merged data and the deadline. This replica's own data is merged, even if it is not on disk
    /// yet; as an answer it counts if this replica is eligible, and only for what it vouches for.
    /// Asks the others, even if no further answer is needed; the read is then finished at once and
    /// never listed.
    fn begin_read(
        &mut self,
        now: Now,
        id: RequestId,
        mut read: OpenRead,
        out: &mut ReplicatorOutbox,
    ) {
        read.answers.clear();
        let held = self.store.get(&read.key);
        read.own = held.map(|held| held.state.context().clone()).unwrap_or_default();
        let vouched = held.map(|held| self.vouched(held)).unwrap_or_default();
        let held = held.map(|held| held.state.snapshot());
        read.include(held);
        if self.eligible() {
            read.answers.insert(self.me, vouched);
        }
        read.tries = 0;
        read.sent = now.mono;
        read.resend = now.mono + self.trips.patience(0);
        self.ask(id, &read, out);
        if read.is_met(&self.electors()) {
            self.finish_read(now, id, &read, out);
        } else {
            self.reads.insert(id, read);
        }
    }

    /// The replicas that a read asks and writes back to, perhaps with this one among them: the
    /// voters or, at levels that count members, the members that count. If these cannot meet the
    /// need, because too few of them vote, voters that have announced their stop are asked, too.
    fn replicas_to_ask(&self, level: Level, need: Need) -> Vec<ReplicaId> {
        let electors = self.electors();
        if matches!(level, Level::Majority { .. }) {
            return electors.voters.to_vec();
        }
        if need.is_met(electors.count(electors.members.iter())) {
            return electors.members.iter().copied().collect();
        }
        electors.all().copied().collect()
    }

    /// Sends the question to the replicas that have not answered, never to this one. While `tries`
    /// is 0, of more than [`ASK_ALL_UP_TO`] only to as many as the level needs, chosen at random.
    fn ask(&mut self, id: RequestId, read: &OpenRead, out: &mut ReplicatorOutbox) {
        let mut asked = self.replicas_to_ask(read.level, read.need);
        asked.retain(|id| *id != self.me && !read.answers.contains_key(id));
        if read.tries == 0 && asked.len() > ASK_ALL_UP_TO {
            use rand::seq::SliceRandom;
            asked.shuffle(&mut self.rng);
            asked.truncate(read.need.answers());
        }
        if asked.is_empty() {
            return;
        }
        let held = KeyContext::new(&read.key, &read.own);
        for to in asked {
            self.send(to, Body::Read { request: id.0, held: held.clone() }, out);
        }
    }

    /// Answers the read of a peer: with what the peer lacks of the key, and with the context that
    /// this replica vouches for if it is another one than the peer's. The data may go beyond that
    /// context, because it need not be on disk. Always answers, also about an absent key, but the
    /// answer only counts if this replica is eligible and both have the same configuration. The
    /// type is left to the asker. A context that does not decode is counted, raises an alarm and
    /// gets no answer. Counts as a use of the key otherwise.
    pub(super) fn on_read(
        &mut self,
        from: ReplicaId,
        same_epoch: bool,
        request: u64,
        held: &KeyContext,
        now: Now,
        out: &mut ReplicatorOutbox,
    ) {
        let Ok(theirs) = held.context.decode() else {
            return self.undecodable(now, from, "a context", out);
        };
        self.touch(now, &held.key);
        let mine = self.store.get(&held.key);
        let vouched = mine.map(|mine| self.vouched(mine)).unwrap_or_default();
        let entry = mine.and_then(|mine| mine.repair(&theirs)).map(Box::new);
        let context = (vouched != theirs).then(|| ContextBytes::new(&vouched));
        // Only eligible replicas count (docs/protocol/replication.md#only-eligible-replicas-count):
        // the snapshot of a sealed replica does not contain what it would acknowledge later.
        let counts = same_epoch && self.eligible();
        self.send(from, Body::ReadAnswer { request, counts, context, entry }, out);
    }

    /// Handles an answer to a read: merges its entry here, even if the read has ended, and then
    /// into the read, even if the answer does not count. Counts the replica if the answer counts in
    /// the epoch of the read; a later answer of it replaces an earlier one. Finishes the read if it
    /// has enough answers now. While the question was not repeated, any such answer is measured.
    ///
    /// Dropped with an alarm: a context that does not decode (before the entry is merged), an entry
    /// that is refused here, and a context with more than all answers together have brought.
    /// Without an alarm: an entry that builds on a missing change here or in the read, or has
    /// another type than the read's other answers. An entry of another key is merged here only.
    #[expect(clippy::too_many_arguments, reason = "an answer's fields")]
    pub(super) fn on_read_answer(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: Option<EpochId>,
        id: RequestId,
        counts: bool,
        context: Option<&ContextBytes>,
        entry: Option<&Entry>,
        out: &mut ReplicatorOutbox,
    ) {
        let decoded = context.map(ContextBytes::decode).transpose();
        let Ok(context) = decoded else { return self.undecodable(now, from, "a context", out) };
        if let Some(entry) = entry
            && !self.take_entry(now, from, entry, out)
        {
            return; // the entry could not be merged, so the answer does not count
        }
        let Some(read) = self.reads.get_mut(id) else { return };
        if let Some(entry) = entry.filter(|entry| entry.key == read.key)
            && !merge_into(&mut read.merged, entry)
        {
            return;
        }
        if counts && epoch == Some(read.epoch) {
            let vouched = context.unwrap_or_else(|| read.own.clone());
            let brought = read.merged.as_ref().map(|merged| merged.context().includes(&vouched));
            if !brought.unwrap_or_else(|| vouched.is_empty()) {
                // The context claims dots that no answer has brought, so the value lacks them.
                let why = format!("an answer about key `{}` claims data that it lacks", read.key);
                return self.refused(now, from, why, out);
            }
            read.answers.insert(from, vouched);
        }
        if read.tries == 0 {
            let took = now.mono - read.sent;
            self.trips.note(took);
        }
        self.check_read(now, id, out);
    }

    /// Takes a read out and [finishes](Self::finish_read) it if it has enough answers now. Does
    /// nothing if the read has ended.
    pub(super) fn check_read(&mut self, now: Now, id: RequestId, out: &mut ReplicatorOutbox) {
        if !self.reads.get(id).is_some_and(|read| read.is_met(&self.electors())) {
            return;
        }
        if let Some(read) = self.reads.remove(id) {
            self.finish_read(now, id, &read, out);
        }
    }

    /// Finishes a read that has enough answers and is not listed any longer: fails with `WrongType`
    /// if they hold another type than the program asked for, replies if all of them hold the same,
    /// and otherwise writes the merged value back first, until the read's deadline. Read repair
    /// (docs/protocol/replication.md#read-repair-before-the-reply): a returned value must be seen
    /// by every later majority read.
    ///
    /// The write-back is a request of the same level, need, epoch and id, and is counted in
    /// `read_repairs`. It sends those that answered what they lack, and those that did not a probe.
    /// Replicas that hold everything are counted from the start. So is this one, but of a durable
    /// key that is not all on disk only once it is: the key is ordered at once, also with
    /// write-behind.
    fn finish_read(
        &mut self,
        now: Now,
        id: RequestId,
        read: &OpenRead,
        out: &mut ReplicatorOutbox,
    ) {
        let reply = match read_value(read) {
            Ok(value) => {
                let context = read.merged.as_ref().map(|m| m.context().clone());
                ReplicatorReply::Got { value, context: context.unwrap_or_default() }
            }
            Err(error) => return Self::reply(id, Err(error), out),
        };
        if read.is_unanimous() || self.fault_injection.has(ReplicatorFault::NoReadRepair) {
            return Self::reply(id, Ok(reply), out);
        }
        cov_mark::hit!(read_repair);
        self.stats.read_repairs += 1;
        let Some(held) = self.store.get(&read.key) else {
            return Self::reply(id, Ok(reply), out);
        };
        let group = self.store.group_of(&read.key, Some(held)).cloned();
        let guard = group.map(|group| WireGuard { group, term: None }); // it only spreads
        let entry = Entry { guard, ..held.probe() };
        let purpose = WritePurpose::ReadRepair(reply);
        let mut write = Write::new(purpose, read.level, read.need, read.epoch, read.deadline, 1);
        let mut holders = read.holders();
        write.here = holders.remove(&self.me) || !self.config.is_durable(&read.key);
        self.writes.insert(id, write);
        for holder in &holders {
            self.writes.holds_all(id, *holder);
        }
        if !self.writes.get(id).is_some_and(|write| write.here) {
            self.persist_key(now, &read.key);
            self.persist(vec![super::durability::WriteCompletion::Here(id)], [&read.key], out);
        }
        let asked = self.replicas_to_ask(read.level, read.need).into_iter();
        let stale = asked.filter(|p| *p != self.me && !holders.contains(p)).collect();
        let known = |peer: &ReplicaId| read.answers.get(peer).cloned();
        self.push_to(now, &vec![entry].into(), id, &stale, known, out);
        self.check_write(id, out);
    }

    /// Fails reads whose deadline has passed with `Timeout`, and asks again for those whose
    /// patience is over: all replicas that have not answered, with growing intervals.
    pub(super) fn tick_reads(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        if self.reads.due().is_none_or(|at| at > now.mono) {
            return;
        }
        for (id, mut read) in self.reads.take_due(now.mono) {
            if read.deadline <= now.mono {
                self.timed_out(id, &read.answered(), read.need.answers(), out);
                continue;
            }
            read.tries += 1;
            read.resend = now.mono + self.trips.asked_again(read.tries);
            self.ask(id, &read, out);
            self.reads.insert(id, read);
        }
    }

    /// Adds this replica's own answer and data to every open read that lacks it, if this replica is
    /// eligible; otherwise does nothing. Finishes reads that are then complete. The question, which
    /// may be sent again, keeps the older context.
    pub(super) fn read_here(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        if !self.eligible() {
            return;
        }
        for id in self.reads.ids() {
            let Some(read) = self.reads.get(id).filter(|r| !r.answers.contains_key(&self.me))
            else {
                continue;
            };
            let held = self.store.get(&read.key);
            let vouched = held.map(|held| self.vouched(held)).unwrap_or_default();
            let held = held.map(|held| held.state.snapshot());
            let me = self.me;
            let Some(read) = self.reads.get_mut(id) else { continue };
            read.include(held);
            read.answers.insert(me, vouched);
            self.check_read(now, id, out);
        }
    }

    /// Restarts every open read in the epoch that was just installed, with its old deadline; all
    /// replicas are asked anew. A read whose level the new configuration cannot meet fails with the
    /// error of [`need`](Self::need).
    pub(super) fn restart_reads(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        for (id, mut read) in self.reads.take_all() {
            let Some(epoch) = self.epochs.id() else { continue };
            read.epoch = epoch;
            match self.need(read.level) {
                Ok(need) => read.need = need,
                Err(error) => {
                    Self::reply(id, Err(error), out);
                    continue;
                }
            }
            self.begin_read(now, id, read, out);
        }
    }
}

/// The value that a read returns: exactly its merged answers. `None` if the key is absent or
/// deleted.
///
/// # Errors
/// `WrongType` if they have another type than the read expects, also if the key is deleted.
fn read_value(read: &OpenRead) -> Result<Option<Value>, RequestError> {
    let Some(merged) = &read.merged else { return Ok(None) };
    match &read.shape {
        Some(expected) if expected != merged.shape() => Err(RequestError::WrongType {
            expected: expected.clone(),
            found: merged.shape().clone(),
        }),
        _ if merged.is_bottom() => Ok(None),
        _ => Ok(Some(Value::new(merged.clone()))),
    }
}

/// Merges the entry of an answer into the merged answers. Returns `false` and changes nothing if
/// the entry cannot be decoded, has another type, builds on something that is missing in them, or
/// is a probe. The key is not compared.
///
/// An answer without a dot leaves `None` behind, never an empty state: its type would make the read
/// refuse the answers of all other replicas, if they hold data of another type. An empty state that
/// was merged before becomes `None`, too.
pub(super) fn merge_into(merged: &mut Option<KeyState>, entry: &Entry) -> bool {
    let Ok(shape) = entry.shape.parse::<Shape>() else { return false };
    let has_dots = |state: &KeyState| !state.context().is_empty();
    let before = merged.take().filter(has_dots);
    let mut state = before.unwrap_or_else(|| KeyState::new(shape.clone()));
    if *state.shape() != shape {
        *merged = Some(state);
        return false;
    }
    let fits = match &entry.content {
        super::wire::EntryContent::Delta(bytes) => {
            Delta::decode(bytes.as_slice(), &shape).is_ok_and(|delta| state.apply(&delta).is_ok())
        }
        super::wire::EntryContent::Full(bytes) => KeyState::decode(bytes.as_slice(), &shape)
            .is_ok_and(|other| {
                state.merge(&other);
                true
            }),
        super::wire::EntryContent::Probe(_) => false,
    };
    *merged = Some(state).filter(has_dots);
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicator::wire::EntryContent;

    fn entry(shape: &str, content: EntryContent) -> Entry {
        Entry { index: 0, key: "k".into(), shape: shape.into(), guard: None, content }
    }

    #[test]
    fn answer_without_data_leaves_no_type_behind() {
        let empty = KeyState::new("pn-counter".parse().unwrap()).encode();
        let mut merged = None;
        for (content, fits) in [
            (EntryContent::Probe(ContextBytes::new(&CausalContext::new())), false),
            (EntryContent::Delta(vec![0xff].into()), false),
            (EntryContent::Full(vec![0xff].into()), false),
            (EntryContent::Full(empty.clone().into()), true),
        ] {
            assert_eq!(merge_into(&mut merged, &entry("pn-counter", content)), fits);
            assert_eq!(merged, None);
        }
        // An empty state of an earlier answer does not decide the type either.
        merged = Some(KeyState::new("or-set".parse().unwrap()));
        assert!(merge_into(&mut merged, &entry("pn-counter", EntryContent::Full(empty.into()))));
        assert_eq!(merged, None);
    }
}
