//! Messages of peers: pushes, acknowledgements and pieces of long messages are handled here; reads,
//! fences, comparisons and configuration messages are dispatched to other files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::batch::EntryWaiters;
use super::durability::WriteCompletion;
use super::epoch::{EpochId, EpochInput};
use super::fence::is_group;
use super::open_probes::OpenProbe;
use super::port::ReplicatorAlarm;
use super::push::{AckContent, Resend, is_first, later_than_measured, push_of};
use super::reassembly::Piece;
use super::request::RequestId;
use super::store::{EntryMergeResult, EntryRefusal};
use super::wire::{
    AckScope, At, Body, ENTRIES_MAX, Entry, EntryContent, Nack, ReplicatorMessage, WireGuard,
};
use super::write::Fenced;
use super::{Replicator, ReplicatorOutbox};
use crate::causal::CausalContext;
use crate::clock::{HybridTimestamp, Now};
use crate::encoded::DecodeError;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;
use crate::key::{Group, KeyName};
use crate::types::delta::MergeResult;

/// Stamps further ahead of this node's wall clock than this cause an alarm.
const CLOCK_AHEAD: Duration = Duration::from_millis(500);

impl Replicator {
    /// Handles a message of a peer. The configuration machine hears of the sender's configuration
    /// if it is another one, even from a sender whose message is then counted and dropped as that
    /// of a stranger. A piece that completes a long message has that message handled in the same
    /// way. At the end waiting questions are answered that can be, unless the sender is a stranger.
    /// Ignores messages of this replica itself, and all while durable data is loading.
    pub(super) fn message(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: ReplicatorMessage,
        out: &mut ReplicatorOutbox,
    ) {
        if from == self.me || self.loading.is_some() {
            return;
        }
        let ReplicatorMessage { epoch, body } = message;
        if epoch != self.epochs.id() {
            self.drive(now, EpochInput::PeerEpoch { from, id: epoch }, out);
        }
        let same_epoch = epoch.is_some() && epoch == self.epochs.id();
        if !self.admits(from, &body) {
            self.stats.strangers += 1;
            return;
        }
        match body {
            Body::Epoch(message) => self.drive(now, EpochInput::Message { from, message }, out),
            Body::Write { push, whole, entries } => {
                self.on_write(now, from, same_epoch, push, whole, &entries, out);
            }
            Body::Ack { push, scope, counts, nacks } => {
                self.on_ack(now, from, epoch, push, &scope, counts, nacks, out);
            }
            Body::Read { request, held } => {
                self.on_read(from, same_epoch, request, &held, now, out);
            }
            Body::ReadAnswer { request, counts, context, entry } => {
                let (id, context) = (RequestId(request), context.as_ref());
                self.on_read_answer(now, from, epoch, id, counts, context, entry.as_deref(), out);
            }
            Body::Fence { request, group, term, held } => {
                self.on_fence(now, from, same_epoch, request, &group, term, &held, out);
            }
            Body::Promised { request, counts, differing, entries } => {
                let id = RequestId(request);
                self.on_promised(now, from, epoch, id, counts, &differing, &entries, out);
            }
            Body::NotPromised { request, current } => {
                self.on_not_promised(now, from, RequestId(request), current, out);
            }
            Body::Compare { session, at, query } => {
                self.on_compare(now, from, session, at, &query, out);
            }
            Body::Compared { session, at, answer, promises } => {
                self.on_compared(now, from, session, at, *answer, &promises, out);
            }
            Body::Used(keys) => self.on_used(now, from, &keys, out),
            Body::Known(keys) => self.on_known(now, from, &keys),
            Body::Part { transfer, total, offset, bytes } => {
                let (total, offset) = (total as usize, offset as usize);
                let piece = Piece { transfer, total, offset, bytes };
                let budget = self.config.assembly_bytes_max;
                match self.parts.take(now.mono, from, piece, budget) {
                    Ok(None) => {}
                    Ok(Some(whole)) => self.message(now, from, whole, out),
                    Err(bytes) => self.too_large(now, from, bytes, out),
                }
            }
        }
        self.answer_questions(now, out);
    }

    /// Answers the waiting questions of peers about changes that have arrived since, as repeated
    /// ones, so that none waits again. These answers measure no round trip.
    fn answer_questions(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        let store = &self.store;
        for question in self.questions.take(|key| store.context(key)) {
            let same_epoch = question.epoch.is_some() && question.epoch == self.epochs.id();
            let sending = later_than_measured(question.sending);
            let entry = [question.entry];
            self.on_write(now, question.from, same_epoch, sending, false, &entry, out);
        }
    }

    /// A message of a peer exceeds `assembly_bytes_max`: counts it and raises an alarm.
    fn too_large(&mut self, now: Now, peer: ReplicaId, bytes: usize, out: &mut ReplicatorOutbox) {
        self.stats.too_large += 1;
        let limit = self.config.assembly_bytes_max;
        self.alarm(now, ReplicatorAlarm::TooLarge { peer, bytes, limit }, out);
    }

    /// Notes that a peer has answered, so that gossip turns to others first. Unknown senders leave
    /// no state behind.
    pub(super) fn heard_of(&mut self, now: Now, peer: ReplicaId) {
        if self.peers.contains(&peer) {
            self.contacted.insert(peer, now.mono);
        }
    }

    /// Whether a message of this sender is processed
    /// (docs/protocol/replication.md#which-messages-are-processed).
    ///
    /// - Data: from members of this or the former configuration, and nodes that membership knows
    ///   and the configuration does not list as departed. From any peer while this replica has no
    ///   configuration and knows no node of membership.
    /// - Configuration messages: from any peer, because the configuration machine checks each
    ///   sender (docs/protocol/configurations.md#sender-rule).
    /// - Reads of a sealed snapshot: also from members of the sealed configuration and of the last
    ///   one proposed to follow it. Any other peer could copy all data of the cluster with it.
    /// - Pieces of a large message: also from peers whose configuration may be installed here. The
    ///   whole message is checked again.
    /// - Answers to a comparison: from any peer, because they name a session, which belongs to one
    ///   peer.
    fn admits(&self, from: ReplicaId, body: &Body) -> bool {
        let is_known = || {
            self.peers.contains(&from)
                || self.former.contains(&from)
                || (self.epochs.installed().is_none() && self.membership.is_empty())
        };
        match body {
            Body::Epoch(_) | Body::Compared { .. } => true,
            Body::Part { .. } => is_known() || self.epochs.may_inform(from),
            Body::Compare { at: At::Sealed(_), .. } => is_known() || self.epochs.may_sync(from),
            _ => is_known(),
        }
    }

    /// A part of a peer's message does not decode: counts it and raises an alarm.
    pub(super) fn undecodable(
        &mut self,
        now: Now,
        from: ReplicaId,
        what: &str,
        out: &mut ReplicatorOutbox,
    ) {
        self.refused(now, from, format!("{what} that does not decode"), out);
    }

    /// A peer sent something that no correct peer sends: counts it as undecodable and raises an
    /// alarm with the reason.
    pub(super) fn refused(
        &mut self,
        now: Now,
        from: ReplicaId,
        why: String,
        out: &mut ReplicatorOutbox,
    ) {
        self.stats.undecodable += 1;
        self.alarm(now, ReplicatorAlarm::Undecodable { from, why }, out);
    }

    /// Merges an entry that no request waits for. Returns whether it was taken, also if it brought
    /// nothing new; `false` if it was refused or builds on a missing change. A durable one that is
    /// not on disk is ordered to disk, now or by write-behind; nothing waits for that. Terms are
    /// not checked.
    pub(super) fn take_entry(
        &mut self,
        now: Now,
        from: ReplicaId,
        entry: &Entry,
        out: &mut ReplicatorOutbox,
    ) -> bool {
        let taken =
            !matches!(self.merge(now, from, entry, out), Err(_) | Ok(EntryMergeResult::Lack(_)));
        if taken && self.config.is_durable(&entry.key) && self.persist_key(now, &entry.key) {
            self.persist(vec![], [&entry.key], out);
        }
        taken
    }

    /// Merges an entry and advances the clock to its latest stamp, even if it brought nothing new.
    /// If it changed the value, notifies subscribers, counts it, makes gossip faster and has the
    /// questions about the key examined. An entry that builds on a missing change merges nothing
    /// and gives `Lack` with the context held here, not an error; so does a probe for more than is
    /// held. The caller has checked the term.
    ///
    /// # Errors
    /// The refusal to answer, if the entry has another type than the key or does not decode; it was
    /// counted and raised an alarm.
    pub(super) fn merge(
        &mut self,
        now: Now,
        from: ReplicaId,
        entry: &Entry,
        out: &mut ReplicatorOutbox,
    ) -> Result<EntryMergeResult, Nack> {
        let before = self.before(&entry.key);
        let taken = match self.store.take(entry, Self::change(now), self.me, self.fault_injection) {
            Ok(taken) => taken,
            Err(unfit) => return Err(self.unfit(now, from, entry, unfit, out)),
        };
        if let EntryMergeResult::Merged { merged, latest, full } = &taken {
            if let Some(latest) = latest {
                self.observe(now, from, *latest, out);
            }
            if *merged == MergeResult::Changed {
                if *full {
                    self.stats.states_merged += 1;
                } else {
                    self.stats.deltas_merged += 1;
                }
                self.tell_later(now, &entry.key, before);
                self.noted_change(now);
                self.questions.changed(&entry.key);
            }
        }
        Ok(taken)
    }

    /// Advances the clock to a peer's stamp. A stamp that is impossibly far ahead is counted and
    /// not followed, but its value is merged all the same. It raises an alarm, as does one that is
    /// followed but more than [`CLOCK_AHEAD`] ahead.
    pub(super) fn observe(
        &mut self,
        now: Now,
        from: ReplicaId,
        stamp: HybridTimestamp,
        out: &mut ReplicatorOutbox,
    ) {
        match self.clock.observe(now.wall, stamp) {
            Ok(ahead) if ahead > CLOCK_AHEAD => {
                self.alarm(now, ReplicatorAlarm::ClockAhead { from, ahead }, out);
            }
            Ok(_) => {}
            Err(impossible) => {
                self.stats.impossible_clocks += 1;
                self.alarm(
                    now,
                    ReplicatorAlarm::ImpossibleClock { from, ahead: impossible.ahead },
                    out,
                );
            }
        }
    }

    /// Counts an entry that was refused, by the reason (`wrong_types`, `unknown_types` or
    /// `undecodable`), raises an alarm and returns the refusal to answer.
    fn unfit(
        &mut self,
        now: Now,
        from: ReplicaId,
        entry: &Entry,
        unfit: EntryRefusal,
        out: &mut ReplicatorOutbox,
    ) -> Nack {
        match unfit {
            EntryRefusal::WrongType => {
                self.stats.wrong_types += 1;
                self.alarm(now, ReplicatorAlarm::WrongType { from, key: entry.key.clone() }, out);
                Nack::WrongType
            }
            EntryRefusal::Decode(error) => {
                match &error {
                    DecodeError::UnknownType(_) => self.stats.unknown_types += 1,
                    _ => self.stats.undecodable += 1,
                }
                self.alarm(now, ReplicatorAlarm::Undecodable { from, why: error.to_string() }, out);
                Nack::Undecodable
            }
        }
    }

    /// Handles a push: merges its entries in order and acknowledges them, those of durable keys
    /// that are not on disk once they are. In large clusters it forwards what was new. The
    /// acknowledgement counts if this replica is eligible when it is sent and both have the same
    /// configuration; otherwise it is sent as one that does not count.
    ///
    /// An entry that is refused (lower term, unguarded write to a guarded key, missing change,
    /// other type, undecodable) is named in the answer; the others are merged all the same. A
    /// question that waits is left out of the answer; if all wait, there is none yet. A `push` of 0
    /// gets no answer, and may write to guarded keys without their guard; a term that it names is
    /// checked.
    #[expect(clippy::too_many_arguments, reason = "a message's fields")]
    fn on_write(
        &mut self,
        now: Now,
        from: ReplicaId,
        same_epoch: bool,
        push: u64,
        whole: bool,
        entries: &[Entry],
        out: &mut ReplicatorOutbox,
    ) {
        if self.fault_injection.has(ReplicatorFault::SnapshotBeforeLastAck) {
            self.before_last_ack = Some(self.store.live().clone());
        }
        let (mut nacks, mut stored, mut news) = (Vec::new(), Vec::new(), Vec::new());
        let mut waiting: SmallVec<[u32; 1]> = smallvec![];
        let forwards = self.peers.len() > self.config.direct_push_limit;
        for entry in entries {
            let refused = if push == 0 { None } else { self.unguarded_write(entry) };
            if refused.is_none() && self.waits(from, same_epoch, push, entry) {
                waiting.push(entry.index);
                continue;
            }
            let taken = match refused {
                Some(group) => Err(Nack::Guarded(group)),
                None => self.take_pushed(now, from, entry, out),
            };
            match taken {
                Ok(merged) => {
                    if self.config.is_durable(&entry.key) && self.persist_key(now, &entry.key) {
                        stored.push((entry.index, entry.key.clone()));
                    }
                    if merged == MergeResult::Changed && forwards {
                        news.push(entry.clone());
                    }
                }
                Err(nack) => nacks.push((entry.index, nack)),
            }
        }
        self.forward(from, &news, out);
        self.store.settle_due(now.mono); // in small parts, so that a comparison finds it done
        if push == 0 {
            self.persist(vec![], stored.iter().map(|(_, key)| key), out); // no sender waits for it
            return;
        }
        let answered = entries.iter().map(|entry| entry.index).filter(|i| !waiting.contains(i));
        let scope = if whole && waiting.is_empty() {
            AckScope::All
        } else {
            AckScope::Only(answered.collect())
        };
        if waiting.len() == entries.len() && !entries.is_empty() {
            return; // no entry can be answered yet
        }
        if stored.is_empty() {
            let counts = same_epoch && self.eligible();
            return self.send(from, Body::Ack { push, scope, counts, nacks }, out);
        }
        let mut keys: Vec<KeyName> = stored.iter().map(|(_, key)| key.clone()).collect();
        keys.dedup(); // a change and the question after it have the same key
        let stored = stored.into_iter().map(|(index, _)| index).collect();
        let epoch = self.epochs.id().filter(|_| same_epoch);
        let after = WriteCompletion::Ack { to: from, push, scope, nacks, stored, epoch };
        self.persist(vec![after], &keys, out);
    }

    /// Whether a question waits for changes of other peers that are on their way, and stores it
    /// then (docs/protocol/replication.md#questions-wait-for-changes-on-their-way). A repeated
    /// question does not wait, because the changes may be lost; it replaces the waiting one. Nor
    /// does a change, a question under a term, about a key that is not held here, or above the
    /// bounds of [`Questions::wait`]; nor one for which nothing is lacking here, or something that
    /// no third peer can still bring.
    ///
    /// [`Questions::wait`]: super::open_probes::Questions::wait
    fn waits(&mut self, from: ReplicaId, same_epoch: bool, sending: u64, entry: &Entry) -> bool {
        let EntryContent::Probe(asked) = &entry.content else { return false };
        if sending == 0 || !is_first(sending) {
            let again = |question: &OpenProbe| push_of(question.sending) == push_of(sending);
            self.questions.asked_again(&entry.key, from, again);
            return false;
        }
        let is_guarded = entry.guard.as_ref().is_some_and(|guard| guard.term.is_some());
        let (Some(held), Ok(asked)) = (self.store.get(&entry.key), asked.decode()) else {
            return false;
        };
        if is_guarded {
            return false; // a higher promise is answered at once
        }
        let lacking = asked.minus(held.state.context());
        // Changes of the asker or of this replica were sent before the question, or never arrive.
        let comes = |by: ReplicaId| by != from && by != self.me && self.peers.contains(&by);
        if lacking.is_empty() || !lacking.runs().iter().all(|run| comes(run.replica)) {
            return false;
        }
        let epoch = self.epochs.id().filter(|_| same_epoch);
        self.questions.wait(OpenProbe { from, epoch, sending, entry: entry.clone(), asked })
    }

    /// The group of a key that an entry would write to without that group's guard; such an entry is
    /// counted. `None` if the key belongs to no group, or the entry carries the guard. An entry
    /// that only spreads data names a group, whichever, without a term, and is not refused; one
    /// with the term of another group is. The height of the term is not checked.
    fn unguarded_write(&mut self, entry: &Entry) -> Option<Group> {
        if !self.store.has_groups() {
            return None;
        }
        let held = self.store.get(&entry.key).map(|held| &**held);
        let group = self.store.group_of(&entry.key, held)?.clone();
        let spreads = |guard: &WireGuard| guard.term.is_none() || guard.group == group;
        if entry.guard.as_ref().is_some_and(spreads) {
            return None;
        }
        self.stats.unguarded += 1;
        Some(group)
    }

    /// Merges an entry of a push, unless its term is below the promised one.
    ///
    /// # Errors
    /// The refusal to answer: a higher term is promised (and whether this replica holds the entry
    /// all the same), the entry builds on a missing change, or [`merge`](Self::merge) refuses it.
    /// Each is counted.
    fn take_pushed(
        &mut self,
        now: Now,
        from: ReplicaId,
        entry: &Entry,
        out: &mut ReplicatorOutbox,
    ) -> Result<MergeResult, Nack> {
        if let Some(guard) = &entry.guard
            && let Some(term) = guard.term
            && let Some(promised) = self.promises.refuses(&guard.group, term, self.fault_injection)
        {
            self.stats.fenced += 1;
            let held = self.store.holds(entry);
            return Err(if held { Nack::FencedYetHeld(promised) } else { Nack::Fenced(promised) });
        }
        match self.merge(now, from, entry, out)? {
            EntryMergeResult::Merged { merged, .. } => Ok(merged),
            EntryMergeResult::Lack(context) => {
                self.stats.lacks += 1;
                Err(Nack::Lack(super::wire::ContextBytes::new(&context)))
            }
        }
    }

    /// Handles the acknowledgement of a push: counts the peer as a holder for the requests that
    /// wait, and sends at once what it lacks, unless a repair of that key is in flight to it. Other
    /// refusals are recorded for the requests. Ends requests and flushes that are then complete. An
    /// answer that does not count still tells what the peer holds, and measures the round trip.
    /// Ignored if the push is no longer open; the sender is not checked against the receivers of
    /// the push.
    #[expect(clippy::too_many_arguments, reason = "a message's fields")]
    fn on_ack(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: Option<EpochId>,
        sending: u64,
        scope: &AckScope,
        counts: bool,
        nacks: Vec<(u32, Nack)>,
        out: &mut ReplicatorOutbox,
    ) {
        let id = push_of(sending);
        let Some(push) = self.pushes.get(id) else { return };
        let entries = push.entries.clone();
        let waiting = |(index, _): &(u32, Nack)| (*index, push.waiting.of(*index).into());
        let waiting: BTreeMap<u32, EntryWaiters> = nacks.iter().map(waiting).collect();
        let refused: BTreeSet<u32> = nacks.iter().map(|(index, _)| *index).collect();
        let lacking = nacks.iter().filter(|(_, nack)| matches!(nack, Nack::Lack(_)));
        let lacking: BTreeSet<u32> = lacking.map(|(index, _)| *index).collect();
        let same = epoch.is_some() && epoch == self.epochs.id();
        let told =
            AckContent { scope, refused: &refused, lacking: &lacking, counts: counts && same };
        let acked = self.pushes.acked(now.mono, sending, from, told);
        if let Some(took) = acked.took {
            self.trips.note(took);
        }
        self.heard_of(now, from);
        let mut touched = Vec::with_capacity(acked.held.len());
        for (index, request) in acked.held {
            if counts {
                self.writes.held(request, from, (id, index), epoch, self.fault_injection);
            }
            touched.push(request);
        }
        self.repairs_arrived(from, id, &entries, |index| {
            scope.contains(index) && !refused.contains(&index)
        });
        let mut repairs = Vec::new();
        for (index, nack) in nacks {
            let Some(entry) = entries.get(index as usize) else { continue };
            let requests = waiting.get(&index).cloned().unwrap_or_default();
            let repaired = repairs.last().is_some_and(|repair: &Entry| repair.key == entry.key);
            let is_lack = matches!(nack, Nack::Lack(_));
            if is_lack && !repaired && self.repairs.is_under_way(now.mono, from, &entry.key) {
                continue; // sent again later
            }
            self.on_nack(from, index, nack, entry, &requests, &mut repairs);
            touched.extend(requests);
        }
        for repair in
            repairs.iter().filter(|repair| !matches!(repair.content, EntryContent::Probe(_)))
        {
            let what = (&repair.key, repair.len());
            self.repairs.sent(now.mono, (from, id), what, &self.trips);
        }
        if !repairs.is_empty() {
            let sending = self.pushes.sent_again(now.mono, id, from);
            self.send_repairs(from, sending, repairs, out);
        }
        self.check_writes(touched, out);
        self.check_flushes(out);
    }

    /// Notes which repairs a peer has received: those of the entries of `push` for which `is_held`
    /// holds.
    fn repairs_arrived(
        &mut self,
        from: ReplicaId,
        push: u64,
        entries: &[Entry],
        is_held: impl Fn(u32) -> bool,
    ) {
        if self.repairs.is_empty() {
            return;
        }
        for entry in entries.iter().filter(|entry| is_held(entry.index)) {
            self.repairs.arrived(from, push, &entry.key);
        }
    }

    /// Handles a refused entry. For a `Lack` it adds a repair to `repairs` (for a question whose
    /// change is repaired already, the question only), none if its context does not decode; other
    /// refusals are recorded for `requests`, those that wait for the entry, and the caller checks
    /// these. An impossible term is counted and ignored. A refusal because of type or encoding has
    /// no effect: the peer never counts for these requests, and the entry is not sent to it again.
    fn on_nack(
        &mut self,
        from: ReplicaId,
        index: u32,
        nack: Nack,
        entry: &Entry,
        requests: &[RequestId],
        repairs: &mut Vec<Entry>,
    ) {
        match nack {
            Nack::Lack(context) => {
                let Ok(context) = context.decode() else { return };
                // The repair of the change before it brings everything; entries are taken in order.
                let repaired = repairs.last().is_some_and(|repair| repair.key == entry.key);
                let context = if repaired { None } else { Some(&context) };
                repairs.extend(self.repair_for(entry, index, context));
            }
            Nack::Fenced(by) | Nack::FencedYetHeld(by) if !by.is_valid() => {
                self.stats.undecodable += 1; // an owner that believed it could take no higher term
            }
            Nack::Fenced(by) | Nack::FencedYetHeld(by) => {
                // A question may be refused though its change is held.
                let asks = matches!(entry.content, EntryContent::Probe(_));
                let held = asks || matches!(nack, Nack::FencedYetHeld(_));
                for request in requests {
                    self.writes.fenced(*request, from, Fenced { by, held });
                }
            }
            Nack::StoreFailed => {
                for request in requests {
                    self.writes.store_failed(*request, from);
                }
            }
            Nack::Guarded(group) => repairs.extend(self.on_guarded(index, entry, requests, &group)),
            Nack::WrongType | Nack::Undecodable => {}
        }
    }

    /// A peer answers that a key is guarded. The group becomes known here, even if no request
    /// waits. A change of the key is refused (when the caller checks the requests). Data that a
    /// read writes back was written by other nodes; the returned entry sends it again as data that
    /// only spreads. `None` if there is no such request, or the key is not held. A group that does
    /// not contain the key, or an entry that had a guard, is ignored; an empty or overlong group is
    /// counted.
    fn on_guarded(
        &mut self,
        index: u32,
        entry: &Entry,
        requests: &[RequestId],
        group: &Group,
    ) -> Option<Entry> {
        if !is_group(group) {
            self.stats.undecodable += 1; // a group without a name would guard every key
            return None;
        }
        if !group.contains(&entry.key) || entry.guard.is_some() {
            return None;
        }
        self.store.know_group(group);
        let mut written_back = false;
        for request in requests {
            written_back |= !self.writes.guarded(*request, group);
        }
        let guard = Some(WireGuard { group: group.clone(), term: None });
        let held = self.store.get(&entry.key).filter(|_| written_back)?;
        let full = EntryContent::Full(held.state.encode().into());
        Some(Entry { index, guard, ..held.entry(full) })
    }

    /// The entry that brings a peer with this context up to date with an entry's key, under the
    /// entry's guard and index; a delta or full state is counted as a repair. It is a question if
    /// the peer lacks nothing, or if another entry brings it (`context` is `None`). `None` if the
    /// key is not held here.
    pub(super) fn repair_for(
        &mut self,
        entry: &Entry,
        index: u32,
        context: Option<&CausalContext>,
    ) -> Option<Entry> {
        let held = self.store.get(&entry.key)?;
        let repair = context.and_then(|context| held.repair(context));
        let repair = repair.unwrap_or_else(|| held.probe());
        match repair.content {
            EntryContent::Full(_) => self.stats.repairs_full += 1,
            EntryContent::Delta(_) => self.stats.repairs += 1,
            EntryContent::Probe(_) => {}
        }
        Some(Entry { index, guard: entry.guard.clone(), ..repair })
    }

    /// Sends repairs as one sending of a push, cut into frames. `push` is the
    /// [`name`](super::push::name) of the sending, or 0 if no answer is wanted. Sends nothing if
    /// there are no repairs.
    pub(super) fn send_repairs(
        &mut self,
        to: ReplicaId,
        push: u64,
        repairs: Vec<Entry>,
        out: &mut ReplicatorOutbox,
    ) {
        for entries in self.in_frames(repairs) {
            self.send(to, Body::Write { push, whole: false, entries: entries.into() }, out);
        }
    }

    /// Cuts entries into messages that fit a frame (except for large single entries) and hold at
    /// most `max_delta_elements`, and at most [`ENTRIES_MAX`]. The order stays. An entry that
    /// follows a single one of the same key goes with it, even above these bounds.
    pub(super) fn in_frames(&self, entries: Vec<Entry>) -> Vec<Vec<Entry>> {
        let bytes_max = self.config.frame_bytes_max;
        let count_max = self.config.max_delta_elements.min(ENTRIES_MAX);
        let mut messages: Vec<Vec<Entry>> = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            bytes += entry.len();
            let fits = bytes + 128 <= bytes_max;
            match messages.last_mut() {
                // In its own message a question would overtake its change, which is sent in pieces.
                Some(last)
                    if (fits && last.len() < count_max)
                        || (last.len() == 1 && last[0].key == entry.key) =>
                {
                    last.push(entry);
                }
                _ => {
                    bytes = entry.len();
                    messages.push(vec![entry]);
                }
            }
        }
        messages
    }

    /// Ends the flushes whose pushes are delivered and whose peers that were left behind have
    /// caught up, each with the reply `Flushed`. After the last one the pushes that flushes kept
    /// may be left to anti-entropy again.
    pub(super) fn check_flushes(&mut self, out: &mut ReplicatorOutbox) {
        if self.flushes.is_empty() {
            return;
        }
        let (pushes, behind) = (&self.pushes, self.pushes.left_behind());
        let mut done = Vec::new();
        self.flushes.retain(|id, flush| {
            flush.open.retain(|push| pushes.is_under_way(*push));
            flush.behind.retain(|peer| behind.contains(peer));
            let over = flush.open.is_empty() && flush.behind.is_empty();
            if over {
                done.push(*id);
            }
            !over
        });
        for id in done {
            Self::reply(id, Ok(super::request::ReplicatorReply::Flushed), out);
        }
        if self.flushes.is_empty() {
            self.pushes.release();
        }
    }

    /// Handles a new connection to a peer: resends all that it has not acknowledged, and compares
    /// with it, even if this replica is no member. In a forced generation a departed node is sent
    /// the configuration instead, because it may be one that was given up. Does nothing for other
    /// nodes that are no peers.
    pub(super) fn link_up(&mut self, now: Now, peer: ReplicaId, out: &mut ReplicatorOutbox) {
        for resend in self.pushes.renew(now.mono, peer) {
            self.resend(resend, out);
        }
        if self.peers.contains(&peer) {
            self.compare_with(now, peer, At::Live, out);
        } else if self.epochs.installed().is_some_and(|it| it.is_forced() && it.has_left(peer)) {
            // The peer was given up by force, and perhaps no other node can tell it
            // (docs/protocol/configurations.md#given-up-nodes-are-told).
            self.drive(now, EpochInput::PeerEpoch { from: peer, id: None }, out);
        }
    }

    /// Sends the unacknowledged part of a push again, to one peer and cut into frames; nothing if
    /// the push is no longer open.
    pub(super) fn resend(&mut self, resend: Resend, out: &mut ReplicatorOutbox) {
        let Resend { push, to, indices, name } = resend;
        let Some(push) = self.pushes.get(push) else { return };
        let all = push.entries.clone();
        if indices.len() == all.len() {
            let body = Body::Write { push: name, whole: true, entries: all };
            return self.send(to, body, out);
        }
        let some = indices.iter().filter_map(|index| all.get(*index as usize)).cloned().collect();
        self.send_repairs(to, name, some, out);
    }
}
