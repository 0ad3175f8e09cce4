//! What other nodes have moved here, by their own word: how much of it may wait for one entity, and
//! what becomes of what is held for a shard when its sender is out.

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

/// Since when messages are held whose senders are out, and how the shard stands.
pub(super) struct Orphaned {
    since: Instant,
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
    /// long of the decision that it waits for. A coordinator says that again and again, unless it was
    /// lost with a majority, or never was.
    pub(super) fn review_held(&mut self, gate: &mut Gate<Letter>) {
        let lanes = gate.ahead().filter(|lane| self.runtime.is_removed(*lane));
        let lanes: Vec<RegionId> = lanes.collect();
        let (now, standing) = (self.runtime.world.now(), gate.standing());
        let known = self.floor.orphaned.as_deref();
        let since = known.filter(|known| known.standing == standing).map(|known| known.since);
        let limit = (self.runtime.settings.handoff_timeout * 2).max(ORPHANED_MIN);
        self.floor.orphaned = match since {
            _ if lanes.is_empty() => None,
            None => Some(Box::new(Orphaned { since: now, standing })),
            Some(since) if now - since < limit => return,
            Some(_) => {
                for lane in lanes {
                    for item in gate.give_up_held(lane, self) {
                        self.lose(Lost::NodeGone, item.message);
                    }
                }
                None
            }
        };
    }
}
