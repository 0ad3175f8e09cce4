//! Full mailboxes on other nodes. The host that refuses a message tells its sender, and that node
//! then refuses further messages to the entity at the call, until the host reports room
//! (docs/protocol/message-order.md#mailbox-limits-and-busy-notices).
//!
//! The notice is only a hint. It is valid as long as the decision under which it was given, it is
//! checked by a question after a while, and it expires without an answer. So a lost or late notice
//! never makes an entity unreachable.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::entity::Entity;
use super::envelope::Envelope;
use super::frame::{self, MailboxNotice};
use super::gate::{Gate, HomeDecision};
use super::id_hash::hash;
use super::ids::{EntityId, RegionId, ShardId};
use super::runtime::Runtime;
use super::shard::{ShardEntities, ShardGateEffects};

/// Most entities of a shard that are remembered as busy. Messages to further ones are sent, and
/// lost if the mailbox is full.
const CROWDED_MAX: usize = 64;

/// Time after which the home of a busy entity is asked whether it still is; without an answer the
/// notice expires after the same time. Checked when the node repeats its reminders.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// Entities of one shard whose mailboxes at its home are full.
#[derive(Debug)]
pub(super) struct FullMailboxes {
    by: HomeDecision, // decision under which the home reported it
    entities: BTreeMap<EntityId, BusyReport>, // ≤ CROWDED_MAX
}

#[derive(Clone, Copy, Debug)]
struct BusyReport {
    at: Instant, // of the last busy notice, or of the question if that came later
    asked: bool, // after that notice
}

impl FullMailboxes {
    /// Makes an empty set of notices of the home by this decision.
    pub(super) const fn new(by: HomeDecision) -> Self {
        Self { by, entities: BTreeMap::new() }
    }

    /// Returns whether the notices are still valid, that is, whether `newest` is the decision under
    /// which they came. The caller drops all of them if not.
    pub(super) fn is_valid_for(&self, newest: HomeDecision) -> bool {
        self.by == newest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entities.is_empty()
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.entities.contains_key(id)
    }

    /// Remembers an entity as busy from `at` on; a repeated notice starts its time again, and it
    /// counts as not asked about. Ignores a further entity when [`CROWDED_MAX`] are remembered.
    pub(super) fn add(&mut self, id: EntityId, at: Instant) {
        if self.entities.len() < CROWDED_MAX || self.entities.contains_key(&id) {
            self.entities.insert(id, BusyReport { at, asked: false });
        }
    }

    /// Forgets an entity. Returns whether it was remembered as busy.
    pub(super) fn remove(&mut self, id: &str) -> bool {
        self.entities.remove(id).is_some()
    }

    /// Returns the entities to ask about, and whether any notice expired. A notice is due
    /// [`ASK_AFTER`] after it came: its entity is returned once, counts as asked at `now`, and
    /// stays. If no newer notice comes, the first call at least [`ASK_AFTER`] after that one
    /// forgets it.
    pub(super) fn review(&mut self, now: Instant) -> (Vec<EntityId>, bool) {
        let (mut ask, before) = (Vec::new(), self.entities.len());
        self.entities.retain(|id, said| {
            if now - said.at < ASK_AFTER {
                return true;
            }
            let was_asked = std::mem::replace(said, BusyReport { at: now, asked: true }).asked;
            if !was_asked {
                ask.push(id.clone());
            }
            !was_asked
        });
        (ask, self.entities.len() < before)
    }
}

impl<E: Entity> ShardEntities<E> {
    /// Returns the home of the shard if it reported that the entity's mailbox there is full, and
    /// the notice has not expired. Does not compare decisions: notices of an earlier one are
    /// dropped whenever the gate changes (`Shard::look`).
    pub(super) fn crowded_at(&self, id: &str) -> Option<RegionId> {
        self.full_mailboxes.as_ref().filter(|full_mailboxes| full_mailboxes.has(id))?.by.home
    }

    /// Reports room to all nodes that were told, if at least half of the entity's mailbox is free
    /// in number and in bytes, and forgets these nodes; otherwise does nothing. The entity must be
    /// busy; an idle one would become busy. Called when its task has taken messages.
    pub(super) fn tell_freed(&mut self, row: u32, shard: ShardId, runtime: &Runtime<E>) {
        let freed =
            self.entity_table.busy(row).mailbox.take_notified_if_ample(runtime.room_of_mailbox());
        freed.into_iter().for_each(|told| self.tell_free(row, told, shard, runtime));
    }

    /// Reports room to the nodes that were told, because the entity's mailbox no longer holds any
    /// message, which is not checked, and forgets these nodes. Does nothing if the entity is idle.
    pub(super) fn tell_emptied(&mut self, row: u32, shard: ShardId, runtime: &Runtime<E>) {
        let Some(busy) = &mut self.entity_table.get_mut(row).busy else { return };
        let told = busy.mailbox.take_notified();
        self.tell_free(row, told, shard, runtime);
    }

    /// Sends a notice of room about the entity to each of these nodes.
    fn tell_free(&mut self, row: u32, told: Vec<RegionId>, shard: ShardId, runtime: &Runtime<E>) {
        let id = self.entity_table.get(row).id.clone();
        for region in told {
            self.notify(region, (MailboxNotice::Free, shard, &id), runtime);
        }
    }

    /// Sends a notice or question; a failure is ignored, because notices are hints. Called under
    /// the shard's lock, so that notices about an entity are sent in the order of its states.
    fn notify(
        &mut self,
        to: RegionId,
        (notice, shard, id): (MailboxNotice, ShardId, &EntityId),
        runtime: &Runtime<E>,
    ) {
        frame::notice(&mut self.scratch, notice, shard, id);
        // A node that left the configuration has no lane.
        let _sent = runtime.world.answer(to, &self.scratch);
    }
}

impl<E: Entity> ShardGateEffects<'_, E> {
    /// Called when a message of `bytes` bytes finds the mailbox full; the caller drops the message.
    /// Remembers the sending node, and tells it at its first refused message, at each power of two,
    /// and at each multiple of 64. Does nothing if this node sent the message, or for a further
    /// node when the mailbox remembers 64. Counts no dead letter.
    pub(super) fn turn_away(&mut self, from: RegionId, row: u32, bytes: usize) {
        let (shard, runtime) = (self.shard.id, self.runtime);
        if from != runtime.me
            && self.shard_entities.entity_table.busy(row).mailbox.turn_away(from, bytes)
        {
            let id = self.shard_entities.entity_table.get(row).id.clone();
            self.shard_entities.notify(from, (MailboxNotice::Busy, shard, &id), runtime);
        }
    }

    /// Handles a notice or question of another node about a mailbox.
    ///
    /// A busy notice is remembered only if it comes from the home by the newest decision and
    /// messages of this node do not go to a mailbox here ([`Gate::leads_here`]). A free notice of
    /// the node that gave the busy notices forgets the entity and, if it was remembered, lets
    /// callers try again; one of any other node is ignored. A question is answered, whatever the
    /// shard's state here.
    pub(super) fn noticed(
        &mut self,
        gate: &Gate<Envelope>,
        from: RegionId,
        notice: MailboxNotice,
        id: EntityId,
    ) {
        match notice {
            MailboxNotice::Busy if gate.newest().home == Some(from) && !gate.leads_here() => {
                let new = || Box::new(FullMailboxes::new(gate.newest()));
                let full_mailboxes = self.shard_entities.full_mailboxes.get_or_insert_with(new);
                full_mailboxes.add(id, self.runtime.world.now());
            }
            MailboxNotice::Busy => {} // of an earlier home
            MailboxNotice::Free => {
                let Some(full_mailboxes) = &mut self.shard_entities.full_mailboxes else { return };
                if full_mailboxes.by.home != Some(from) {
                    return; // of an earlier home too
                }
                self.after.freed |= full_mailboxes.remove(id.as_str());
                if full_mailboxes.is_empty() {
                    self.shard_entities.full_mailboxes = None;
                }
            }
            MailboxNotice::StillBusy => self.say_if_busy(from, &id),
        }
    }

    /// Answers the question whether a mailbox is still full. The answer is `Busy` if a message as
    /// long as the last one refused from that node would not fit, of one byte if none was; the node
    /// is then remembered, if there is a place, and gets a notice of room. Otherwise, and if the
    /// entity is unknown or idle here, the answer is `Free`, and the node is forgotten.
    fn say_if_busy(&mut self, to: RegionId, id: &EntityId) {
        let (shard, runtime) = (self.shard.id, self.runtime);
        let row = self.shard_entities.entity_table.find(hash(id.as_bytes()), id.as_bytes());
        let room = runtime.room_of_mailbox();
        let busy = row.and_then(|row| self.shard_entities.entity_table.get_mut(row).busy.as_mut());
        let is_busy = busy.is_some_and(|busy| busy.mailbox.is_still_busy(to, room));
        let notice = if is_busy { MailboxNotice::Busy } else { MailboxNotice::Free };
        self.shard_entities.notify(to, (notice, shard, id), runtime);
    }

    /// Asks the home about old notices, and drops those without an answer: callers may then try
    /// again. Called with the reminders, see [`FullMailboxes::review`].
    pub(super) fn review_crowded(&mut self) {
        let Some(full_mailboxes) = &mut self.shard_entities.full_mailboxes else { return };
        let (home, (ask, forgot)) =
            (full_mailboxes.by.home, full_mailboxes.review(self.runtime.world.now()));
        self.after.freed |= forgot;
        if full_mailboxes.is_empty() {
            self.shard_entities.full_mailboxes = None;
        }
        let (shard, runtime) = (self.shard.id, self.runtime);
        for id in ask {
            if let Some(home) = home {
                self.shard_entities.notify(home, (MailboxNotice::StillBusy, shard, &id), runtime);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> EntityId {
        EntityId::new(&number.to_string()).expect("an id")
    }

    fn at(millis: u64) -> Instant {
        Instant::default() + Duration::from_millis(millis)
    }

    #[test]
    fn old_busy_notice_is_queried_once_then_forgotten() {
        let mut full_mailboxes = FullMailboxes::new(HomeDecision::default());
        full_mailboxes.add(id(1), at(0));
        full_mailboxes.add(id(2), at(500));
        assert_eq!(full_mailboxes.review(at(999)), (vec![], false));
        assert_eq!(full_mailboxes.review(at(1_000)), (vec![id(1)], false));
        assert_eq!(full_mailboxes.review(at(1_900)), (vec![id(2)], false));
        full_mailboxes.add(id(1), at(1_950)); // it is still busy
        assert_eq!(full_mailboxes.review(at(2_900)), (vec![], true), "entity 2 was not answered");
        assert!(full_mailboxes.has("1") && !full_mailboxes.has("2"));
        assert_eq!(full_mailboxes.review(at(2_950)), (vec![id(1)], false));
    }

    #[test]
    fn busy_entities_are_bounded() {
        let mut full_mailboxes = FullMailboxes::new(HomeDecision::default());
        (0..2 * CROWDED_MAX).for_each(|n| full_mailboxes.add(id(n), at(0)));
        assert_eq!(full_mailboxes.entities.len(), CROWDED_MAX);
        full_mailboxes.add(id(0), at(5));
        assert_eq!(full_mailboxes.entities[&id(0)].at, at(5));
        assert!(full_mailboxes.remove("0") && !full_mailboxes.remove("0"));
        full_mailboxes.add(id(CROWDED_MAX), at(0));
        assert_eq!(full_mailboxes.entities.len(), CROWDED_MAX);
    }
}
