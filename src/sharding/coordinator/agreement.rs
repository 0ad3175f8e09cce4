//! Agreement on the settings of a type that all nodes must share
//! (docs/protocol/sharding.md#settings-must-agree).
//!
//! The settings are stored in the guarded group of the homes and written under a term before the
//! first decision, so every coordinator that reads a home reads them too. Without homes they do not
//! bind: the coordinator writes the settings of its own node, and a value that only a minority
//! holds has a lower term from then on and is never read again. With homes, the settings that homes
//! depend on are fixed, because another number of shards would look for entities in other shards.
//! The coordinator's role may change in a rolling restart: the next coordinator writes its own.

use super::port::CoordinatorOutput;
use super::{Coordinator, CoordinatorOutbox};
use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::store::StoreRequest;

impl Coordinator {
    /// Whether the coordinator may continue with the stored settings `there`. It may not if `homes`
    /// exist and the settings that homes depend on ([`AgreedSettings::has_same_homes`]) differ: it
    /// then steps down and reports `SteppedDown`, then `Differs`. A missing value never refuses.
    ///
    /// Otherwise, unless both settings are equal in full and `homes` exist, sets `agreeing`: the
    /// caller must then write the settings of this node before any cell. Returns `true` and sets
    /// nothing if this coordinator was given no settings.
    pub(super) fn agrees(
        &mut self,
        homes: bool,
        there: Option<AgreedSettings>,
        out: &mut CoordinatorOutbox,
    ) -> bool {
        if self.agreed == AgreedSettings::default() {
            return true; // no runnable type has the default settings
        }
        match there {
            Some(there) if homes && !there.has_same_homes(&self.agreed) => {
                self.step_down(
                    self.term,
                    "the stored settings of the type differ from this node's",
                    out,
                );
                out.push(CoordinatorOutput::Differs(there));
                return false;
            }
            Some(there) if homes && there == self.agreed => {}
            _ => self.agreeing = true,
        }
        true
    }

    /// Asks the Replicator to write the settings of this node, each time under a new stamp, and
    /// counts the write. The answer to an earlier request is ignored from now on.
    pub(super) fn write_agreed(&mut self, out: &mut CoordinatorOutbox) {
        self.seq += 1;
        self.stats.writes += 1;
        let (term, seq, within) = (self.term, self.seq, self.config.writing);
        self.ask(StoreRequest::Agree { term, seq, agreed: self.agreed.clone(), within }, out);
    }
}
