//! The address of an answer: which node asked, and which of its questions.
//!
//! Travels in messages like any other value. It is read only where a message is decoded for its
//! entity, which knows the node's way back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::asks::{Asker, Door, Slot, Way};
use super::dead_letters::Lost;
use super::ids::RegionId;
use super::{frame, scope};

enum Kind<T> {
    /// The question was asked on this node.
    Here {
        slot: Arc<Slot<T>>,
        asks: Arc<Door>,
        node: RegionId,
    },
    There {
        to: Asker,
        way: Arc<dyn Way>,
    },
    Used,
}

/// Where the answer to an ask goes, from whichever node. Good for one answer.
///
/// May be kept, or passed on in a message to another entity. Dropped unused, it tells whoever
/// asked that there will be no answer; so nobody waits for a timeout, as long as the nodes live.
/// Passed on, it is where the message is, and lost with it: also if that is refused where it is
/// told, or counted as lost on its way.
pub struct Reply<T> {
    kind: Kind<T>,
    passed_on: AtomicBool, // it left as bytes: those count
}

impl<T> Reply<T> {
    pub(super) fn here(slot: Arc<Slot<T>>, asks: Arc<Door>, node: RegionId) -> Self {
        Self { kind: Kind::Here { slot, asks, node }, passed_on: AtomicBool::new(false) }
    }
}

impl<T: Serialize> Reply<T> {
    /// Answers. Whether somebody still waits is not known here: late answers are counted where
    /// the question was asked.
    ///
    /// A value that its own `Serialize` refuses is as good as no answer: whoever asked learns it.
    pub fn send(mut self, value: T) {
        match std::mem::replace(&mut self.kind, Kind::Used) {
            Kind::Here { slot, asks, .. } => slot.fill(value, &asks),
            Kind::There { to, way } => {
                let mut bytes = Vec::with_capacity(64);
                frame::answer(&mut bytes, to.correlation);
                if rmp_serde::encode::write_named(&mut bytes, &value).is_err() {
                    frame::refused(&mut bytes, to.correlation, Lost::Unencodable);
                }
                way.send(to, &bytes);
            }
            Kind::Used => {}
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if *self.passed_on.get_mut() {
            return;
        }
        let Some(why) = scope::dropped() else { return };
        match &self.kind {
            Kind::Here { slot, .. } => slot.refuse(why),
            Kind::There { to, way } => {
                let mut bytes = Vec::with_capacity(16);
                frame::refused(&mut bytes, to.correlation, why);
                way.send(*to, &bytes);
            }
            Kind::Used => {}
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Here { node, .. } => f.debug_tuple("Reply").field(node).finish(),
            Kind::There { to, .. } => f.debug_tuple("Reply").field(to).finish(),
            Kind::Used => f.write_str("Reply"),
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> Serialize for Reply<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let address = match &self.kind {
            Kind::Here { slot, asks, node } => (*node, slot.enlist(asks)),
            Kind::There { to, .. } => (to.node, to.correlation),
            Kind::Used => return Err(serde::ser::Error::custom("the reply was sent already")),
        };
        self.passed_on.store(true, Ordering::Relaxed);
        address.serialize(to)
    }
}

impl<'de, T> Deserialize<'de> for Reply<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (node, correlation) = Deserialize::deserialize(from)?;
        let way = scope::way().ok_or_else(|| {
            D::Error::custom("a reply's address is read only where its entity handles the message")
        })?;
        let kind = Kind::There { to: Asker { node, correlation }, way };
        Ok(Self { kind, passed_on: AtomicBool::new(false) })
    }
}
