//! The path of replies and refusals to the node that asked.

use super::dead_letters::DeadLetterReason;
use super::entity::Entity;
use super::frame::{self, ShardingFrame};
use super::pending_asks::ReplyAddress;
use super::region_handle::NoRoom;
use super::runtime::Runtime;

impl<E: Entity> Runtime<E> {
    /// Sends a reply or a refusal to the asking node. On this node it reaches its ask within the
    /// call, whatever its length and also after the node's stop; one that no ask awaits counts as
    /// late. Other and malformed frames have no effect there.
    pub(super) fn send(&self, to: ReplyAddress, bytes: &[u8]) {
        if to.node != self.me {
            return self.send_there(to, bytes);
        }
        match ShardingFrame::read(bytes) {
            Ok(ShardingFrame::Answer { correlation, body }) => {
                self.asks.answered(correlation, body);
            }
            Ok(ShardingFrame::Refused { correlation, why }) => self.asks.refused(correlation, why),
            _ => {}
        }
    }

    /// Sends a reply or a refusal to another node. A reply that is too long for a lane is counted,
    /// and replaced by a refusal with that reason. If the lane takes nothing, the reply is lost and
    /// counted, except towards a removed region: no ask waits there. A lost refusal is not counted,
    /// because its message was.
    fn send_there(&self, to: ReplyAddress, bytes: &[u8]) {
        let sent = if bytes.len() <= self.message_bytes_max {
            self.world.answer(to.node, bytes)
        } else {
            Err(NoRoom::TooLong)
        };
        let why = match sent {
            Ok(()) => return,
            Err(NoRoom::TooLong) => {
                let mut refused = Vec::with_capacity(16);
                frame::refused(&mut refused, to.correlation, DeadLetterReason::AnswerTooLong);
                // otherwise the asker's timeout expires
                let _sent = self.world.answer(to.node, &refused);
                DeadLetterReason::AnswerTooLong
            }
            // A region outside the configuration no longer waits for replies.
            Err(NoRoom::NoLane) if self.is_removed(to.node) => return,
            Err(NoRoom::NoLane | NoRoom::Full) => DeadLetterReason::AnswerLost,
        };
        if let Ok(ShardingFrame::Answer { .. }) = ShardingFrame::read(bytes) {
            self.lose_answer(why);
        }
    }

    /// Counts a reply that its asker does not get.
    pub(super) fn lose_answer(&self, why: DeadLetterReason) {
        self.dead_letters().add(why, 1, (&self.entity_type, None), || self.world.now());
    }
}
