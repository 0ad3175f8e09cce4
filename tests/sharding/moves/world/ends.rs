//! The end of a run: settles a world without further choices or faults, and tells whether the
//! newest decision was carried out and the leaving regions have left.

use std::rc::Rc;

use ostraca::sharding::coordinator::CoordinatorPhase;
use ostraca::sharding::ids::Generation;
use ostraca::sharding::region::HostingPhase;
use ostraca::sharding::wire::ToRegion;

use super::{RegionNode, Sent, Step, World, region};

impl World {
    /// Applies all steps that are not choices until nothing changes.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        loop {
            let before = self.digest();
            for step in self.steps() {
                if !step.is_chosen() && !self.is_old_invitation(step) {
                    self.apply(step)?;
                }
            }
            if self.digest() == before {
                return Ok(());
            }
        }
    }

    /// Whether the step delivers an invitation that the region has already followed. Delivered
    /// again, it would make the region register again without end.
    pub(super) fn is_old_invitation(&self, step: Step) -> bool {
        let Step::Deliver(hash) = step else { return false };
        let Ok(at) = self.sent.binary_search_by_key(&hash, |(hash, _)| *hash) else { return false };
        let Sent::ToRegion(place, from, ToRegion::Here(term)) = &*self.sent[at].1 else {
            return false;
        };
        self.places[*place].machine.registered_with() == (Some(*from), *term)
    }

    /// Delivers the messages to and from one region and ends its drains until nothing changes; no
    /// other region takes a step.
    pub(crate) fn only(&mut self, place: usize) -> Result<(), String> {
        loop {
            let before = self.digest();
            let its_own = |(_, fact): &&(u64, Rc<Sent>)| match &**fact {
                Sent::ToRegion(to, ..) => *to == place,
                Sent::ToCoordinator(_, from, _) => *from == region(place).replica(),
            };
            let heard = self.sent.iter().filter(its_own).map(|(fact, _)| Step::Deliver(*fact));
            for step in heard.chain([Step::Drained(place)]).collect::<Vec<_>>() {
                self.apply(step)?;
            }
            if self.digest() == before {
                return Ok(());
            }
        }
    }

    /// Whether a coordinator acts under the highest promised term.
    pub(crate) fn is_coordinated(&self) -> bool {
        let promised = self.replicas.iter().map(|replica| replica.promised).max();
        let mut acting = self
            .coordinators
            .iter()
            .filter(|coordinator| coordinator.machine.phase() == CoordinatorPhase::Active);
        acting.any(|coordinator| Some(coordinator.machine.term()) == promised)
    }

    /// Whether a live member stays that could host the shards of leaving regions.
    pub(crate) fn has_heirs(&self) -> bool {
        let members = self.configurations.last();
        let is_in = |at: usize| members.is_some_and(|all| all.contains(&region(at)));
        let heir = |at: usize| is_in(at) && self.places[at].up && !self.places[at].leaves;
        (0..self.places.len()).any(heir)
    }

    /// Whether every live region that was told to leave has left.
    pub(crate) fn leavers_have_left(&self) -> bool {
        self.places.iter().all(|place| !place.up || !place.leaves || place.has_left())
    }

    /// Whether a live region was told to leave.
    pub(crate) fn has_leavers(&self) -> bool {
        self.places.iter().any(|place| place.up && place.leaves)
    }

    /// Whether the coordinator has permitted every live leaving region to leave.
    pub(crate) fn leavers_are_let_go(&self) -> bool {
        let is_let_go = |place: &Rc<RegionNode>| place.has_left() || place.machine.may_exit();
        self.places.iter().all(|place| !place.up || !place.leaves || is_let_go(place))
    }

    /// Whether the home of the newest acknowledged decision hosts the shard under its generation.
    pub(crate) fn is_carried_out(&self) -> bool {
        let newest = self.acked.iter().max();
        let hosts = |index: usize, at: Generation| {
            self.places[index].up && self.run(index) == HostingPhase::Hosting(at)
        };
        newest.is_some_and(|(generation, home)| {
            (0..self.places.len())
                .any(|index| Some(region(index)) == *home && hosts(index, *generation))
        })
    }
}
