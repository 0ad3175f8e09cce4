//! Limits of messages that other nodes marked as moved: how many may wait for one entity
//! (docs/protocol/message-order.md#moved-messages-are-exempt), and when held messages of a removed
//! sender are given up (docs/protocol/message-order.md#orphaned-held-messages-expire).

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::dead_letters::DeadLetterReason;
use super::entity::Entity;
use super::envelope::Envelope;
use super::gate::{BufferLimits, Gate, HostState};
use super::ids::RegionId;
use super::mailbox::MailboxLimits;
use super::shard::ShardGateEffects;

/// Shortest time after which held messages of a removed sender are given up, however short drains
/// are.
const ORPHANED_MIN: Duration = Duration::from_secs(30);

/// Start of the wait for each removed sender with held messages, and the state of the shard then.
pub(super) struct RemovedSenders {
    since: BTreeMap<RegionId, Instant>, // when `review_held` first found its messages; ≤ lanes
    standing: HostState,                // another one starts all waits anew
}

impl<E: Entity> ShardGateEffects<'_, E> {
    /// Returns whether a message of `bytes` bytes, which `from` marked as moved, must be refused:
    /// more messages wait for the entity than moves can bring. Only the sender marks messages as
    /// moved, so the mark must not give it unlimited room. False for an idle entity, however long
    /// the message is. All messages in the mailbox count, not only moved ones.
    ///
    /// First counts `from` among the regions that moved something, whatever the result; the limits
    /// are those of one region times their number. The caller drops and counts the message.
    pub(super) fn is_overrun(&self, from: RegionId, row: u32, bytes: usize) -> bool {
        let BufferLimits { messages, bytes: bytes_max } = self.runtime.moved_by(from);
        let busy = self.shard_entities.entity_table.get(row).busy.as_ref();
        let room = MailboxLimits { messages, bytes: bytes_max };
        busy.is_some_and(|busy| room.check(busy.mailbox.waits(), bytes).is_err())
    }

    /// Gives up held messages of removed senders, as lost with [`DeadLetterReason::NodeGone`],
    /// after no decision has come for the first of them for twice the `handoff-timeout`, and for
    /// [`ORPHANED_MIN`]. A coordinator that knows this region repeats its decisions, so the
    /// decision was lost with a majority or never existed.
    ///
    /// Called with the reminders; the first call that finds such messages begins the wait. The wait
    /// begins anew when the state of the shard in the region changes, and when a coordinator
    /// registers this region. While none knows this region, does nothing and keeps the waits.
    /// Senders whose removal this runtime no longer remembers are passed over.
    pub(super) fn review_held(&mut self, gate: &mut Gate<Envelope>) {
        let Some(coordinated) = self.runtime.coordinated_since() else { return };
        let lanes = gate.ahead().filter(|lane| self.runtime.is_removed(*lane));
        let lanes: Vec<RegionId> = lanes.collect();
        let (now, standing) = (self.runtime.world.now(), gate.standing());
        let limit = self.runtime.settings.handoff_timeout.saturating_mul(2).max(ORPHANED_MIN);
        let known =
            self.shard_entities.removed_senders.take().filter(|known| known.standing == standing);
        let mut since = known.map_or_else(BTreeMap::new, |known| known.since);
        since.retain(|lane, _| lanes.contains(lane));
        for lane in lanes {
            let waits_since = coordinated.max(*since.entry(lane).or_insert(now));
            if now - waits_since < limit {
                continue;
            }
            since.remove(&lane);
            for item in gate.give_up_held(lane, self) {
                self.lose(DeadLetterReason::NodeGone, item.message);
            }
        }
        self.shard_entities.removed_senders =
            (!since.is_empty()).then(|| Box::new(RemovedSenders { since, standing }));
    }
}
