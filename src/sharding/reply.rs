//! The reply address of an ask: the asking node and the number of the ask.
//!
//! A [`Reply`] travels in messages like any other value. It can be deserialized only while a
//! message is decoded for its entity, because the decoder supplies the node's path for answers
//! (`scope.rs`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::dead_letters::DeadLetterReason;
use super::ids::RegionId;
use super::pending_asks::{AskSlot, PendingAsksHandle, ReplyAddress, ReplySink};
use super::{frame, scope};

enum ReplyTarget<T> {
    /// The ask was made on this node, and the address was never encoded on its way here.
    Here { slot: Arc<AskSlot<T>>, asks: Arc<PendingAsksHandle>, node: RegionId },
    /// The address was decoded from a message; the ask may have been made on this node all the
    /// same.
    There { to: ReplyAddress, way: Arc<dyn ReplySink> },
    /// The answer was sent: nothing follows when the address is dropped.
    Used,
}

/// Address for the answer to an ask, usable from any node for one answer.
///
/// It may be kept, or passed on in a message to another entity. If it is dropped unused, the asker
/// is told that there will be no answer, so it does not wait for its timeout as long as the nodes
/// live. Once passed on, which is when it is first serialized, it is lost with the message that
/// contains it, also if that message is refused at the call or counted as lost on its way. The
/// original can still send; the ask takes the first answer.
pub struct Reply<T> {
    target: ReplyTarget<T>,
    passed_on: AtomicBool, // it was serialized: dropping it sends nothing
}

impl<T> Reply<T> {
    pub(super) fn here(
        slot: Arc<AskSlot<T>>,
        asks: Arc<PendingAsksHandle>,
        node: RegionId,
    ) -> Self {
        Self { target: ReplyTarget::Here { slot, asks, node }, passed_on: AtomicBool::new(false) }
    }
}

impl<T: Serialize> Reply<T> {
    /// Sends the answer. The sender does not learn whether the ask still waits; late answers, and
    /// all after the first one, are counted at the asking node.
    ///
    /// An address that was not decoded from a message gives the value to the asker without encoding
    /// it. Otherwise an answer to another node that is longer than a lane allows is replaced by a
    /// refusal with `AnswerTooLong`, and a value that its own `Serialize` refuses by one with
    /// `NoAnswer`; both are counted here. If `Serialize` panics, the asker is told as when the
    /// address is dropped.
    pub fn send(mut self, value: T) {
        match &self.target {
            ReplyTarget::Here { slot, asks, .. } => slot.fill(value, asks),
            ReplyTarget::There { to, way } => {
                // If this panics, the address is dropped unused, which tells the asker.
                let mut bytes = Vec::with_capacity(64);
                frame::answer(&mut bytes, to.correlation);
                if rmp_serde::encode::write_named(&mut bytes, &value).is_err() {
                    way.lose_answer(DeadLetterReason::NoAnswer);
                    frame::refused(&mut bytes, to.correlation, DeadLetterReason::NoAnswer);
                }
                way.send(*to, &bytes);
            }
            ReplyTarget::Used => {}
        }
        self.target = ReplyTarget::Used;
    }
}

impl<T> Drop for Reply<T> {
    /// Tells the asker that there will be no answer, with the reason of the present scope
    /// (`scope.rs`): by default that the handler gave none, or that it panicked. If the ask has
    /// ended, the refusal counts as late there, unless the address was never encoded.
    ///
    /// Does nothing if the answer was sent, if the address was passed on in a message, or if its
    /// message continues to exist as bytes.
    fn drop(&mut self) {
        if *self.passed_on.get_mut() {
            return;
        }
        let Some(why) = scope::drop_reason() else { return };
        match &self.target {
            ReplyTarget::Here { slot, .. } => slot.refuse(why),
            ReplyTarget::There { to, way } => {
                let mut bytes = Vec::with_capacity(16);
                frame::refused(&mut bytes, to.correlation, why);
                way.send(*to, &bytes);
            }
            ReplyTarget::Used => {}
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            ReplyTarget::Here { node, .. } => f.debug_tuple("Reply").field(node).finish(),
            ReplyTarget::There { to, .. } => f.debug_tuple("Reply").field(to).finish(),
            ReplyTarget::Used => f.write_str("Reply"),
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> Serialize for Reply<T> {
    /// Encodes the asking node and the number of the ask, which an ask of this node gets by its
    /// first encoding, with an entry in the table of pending asks. From then on the address counts
    /// as passed on, also if the encoding of the message fails later: dropping it sends nothing.
    /// Also notes the address for the header of the message's envelope (`scope.rs`).
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let address = match &self.target {
            ReplyTarget::Here { slot, asks, node } => {
                ReplyAddress { node: *node, correlation: slot.enlist(asks) }
            }
            ReplyTarget::There { to, .. } => *to,
            ReplyTarget::Used => {
                return Err(serde::ser::Error::custom("the reply was sent already"));
            }
        };
        self.passed_on.store(true, Ordering::Relaxed);
        scope::note_reply_address(address);
        (address.node, address.correlation).serialize(to)
    }
}

impl<'de, T> Deserialize<'de> for Reply<T> {
    /// Fails anywhere except where a message is decoded for its entity.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (node, correlation) = Deserialize::deserialize(from)?;
        let way = scope::reply_sink().ok_or_else(|| {
            D::Error::custom(
                "a reply address can be deserialized only where an entity decodes its message",
            )
        })?;
        let target = ReplyTarget::There { to: ReplyAddress { node, correlation }, way };
        Ok(Self { target, passed_on: AtomicBool::new(false) })
    }
}
