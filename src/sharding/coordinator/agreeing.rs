//! What all nodes must agree on, as the cluster's data say it (spec/sharding.md §13).
//!
//! It is written under a term, like homes, before the first decision of all: whoever reads a home
//! reads it, too. While there are no homes it binds nobody, and the coordinator writes what its own
//! node says; a value that lies on a minority has a lower term from then on, and is never read
//! again. Once there are homes, what they depend on stays: they are of no use to who counts shards
//! otherwise. The coordinator's role may change with a rolling restart: the next coordinator writes
//! its own.

use super::port::CoordinatorOutput;
use super::{Coordinator, Out};
use crate::sharding::agreed::Agreed;
use crate::sharding::store::Ask;

impl Coordinator {
    /// Whether it may go on with what was read. It writes first what its node says, where nothing
    /// else is said.
    pub(super) fn agrees(&mut self, homes: bool, there: Option<Agreed>, out: &mut Out) -> bool {
        if self.agreed == Agreed::default() {
            return true; // of no type that can run
        }
        match there {
            Some(there) if homes && !there.has_same_homes(&self.agreed) => {
                self.step_down(self.term, "the cluster's data say otherwise of the type", out);
                out.push(CoordinatorOutput::Differs(there));
                return false;
            }
            Some(there) if homes && there == self.agreed => {}
            _ => self.agreeing = true,
        }
        true
    }

    pub(super) fn write_agreed(&mut self, out: &mut Out) {
        self.seq += 1;
        self.stats.writes += 1;
        let (term, seq, within) = (self.term, self.seq, self.config.writing);
        self.ask(Ask::Agree { term, seq, agreed: self.agreed.clone(), within }, out);
    }
}
