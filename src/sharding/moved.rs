//! What other nodes have moved here, by their own word: how much of it may wait for one entity, and
//! what becomes of what is held for a shard when its sender is out.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::dead_letters::Lost;
use super::entity::Entity;
use super::gate::{Gate, Limits, Standing};
use super::ids::RegionId;
use super::letter::Letter;
use super::mailbox::Room;
use super::shard::Desk;

/// What is held of who is out is given up no earlier, however short drains may be.
const ORPHANED_MIN: Duration = Duration::from_secs(30);

/// Since when messages are held whose senders are out, of each, and how the shard stands.
pub(super) struct Orphaned {
    since: BTreeMap<RegionId, Instant>, // ≤ lanes
    standing: Standing,
}

impl<E: Entity> Desk<'_, E> {
    /// Whether more waits for an entity than moves bring: that others say that a message had to wait
    /// for one gives them no room without an end.
    pub(super) fn is_overrun(&self, from: RegionId, row: u32, bytes: usize) -> bool {
        let Limits { messages, bytes: bytes_max } = self.runtime.moved_by(from);
        let busy = self.floor.tenants.get(row).busy.as_ref();
        let room = Room { messages, bytes: bytes_max };
        busy.is_some_and(|busy| room.check(busy.mailbox.waits(), bytes).is_err())
    }

    /// Some time has passed: gives up what is held of senders that are out, once nobody has told for
    /// long of the decision that it waits for. A coordinator that knows this region says that again
    /// and again, unless it was lost with a majority, or never was.
    pub(super) fn review_held(&mut self, gate: &mut Gate<Letter>) {
        let Some(coordinated) = self.runtime.coordinated_since() else { return };
        let lanes = gate.ahead().filter(|lane| self.runtime.is_removed(*lane));
        let lanes: Vec<RegionId> = lanes.collect();
        let (now, standing) = (self.runtime.world.now(), gate.standing());
        let limit = (self.runtime.settings.handoff_timeout * 2).max(ORPHANED_MIN);
        let known = self.floor.orphaned.take().filter(|known| known.standing == standing);
        let mut since = known.map_or_else(BTreeMap::new, |known| known.since);
        since.retain(|lane, _| lanes.contains(lane));
        for lane in lanes {
            let waits_since = coordinated.max(*since.entry(lane).or_insert(now));
            if now - waits_since < limit {
                continue;
            }
            since.remove(&lane);
            for item in gate.give_up_held(lane, self) {
                self.lose(Lost::NodeGone, item.message);
            }
        }
        self.floor.orphaned = (!since.is_empty()).then(|| Box::new(Orphaned { since, standing }));
    }
}
