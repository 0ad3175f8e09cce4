//! How a world goes on once nobody chooses anything any more, and what is to have come of it.

use std::rc::Rc;

use ostraca::sharding::coordinator::Phase;
use ostraca::sharding::ids::Generation;
use ostraca::sharding::region::Run;
use ostraca::sharding::wire::ToRegion;

use super::{Fact, Place, Step, World, region};

impl World {
    /// Everything happens that nobody chooses, until nothing changes.
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

    /// Whether a region has heard of it: again it would have to register anew, again and again.
    pub(super) fn is_old_invitation(&self, step: Step) -> bool {
        let Step::Deliver(hash) = step else { return false };
        let Ok(at) = self.sent.binary_search_by_key(&hash, |(hash, _)| *hash) else { return false };
        let Fact::ToRegion(place, from, ToRegion::Here(term)) = &*self.sent[at].1 else {
            return false;
        };
        self.places[*place].machine.registered_with() == (Some(*from), *term)
    }

    /// A region hears, does and says all that it can; nobody else does anything.
    pub(crate) fn only(&mut self, place: usize) -> Result<(), String> {
        loop {
            let before = self.digest();
            let its_own = |(_, fact): &&(u64, Rc<Fact>)| match &**fact {
                Fact::ToRegion(to, ..) => *to == place,
                Fact::ToCoordinator(_, from, _) => *from == region(place).replica(),
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

    /// Whether somebody acts under the highest term that was ever promised.
    pub(crate) fn is_coordinated(&self) -> bool {
        let promised = self.replicas.iter().map(|replica| replica.promised).max();
        let mut acting = self.seats.iter().filter(|seat| seat.machine.phase() == Phase::Active);
        acting.any(|seat| Some(seat.machine.term()) == promised)
    }

    /// Whether somebody could take what others leave.
    pub(crate) fn has_heirs(&self) -> bool {
        let members = self.configurations.last();
        let is_in = |at: usize| members.is_some_and(|all| all.contains(&region(at)));
        let heir = |at: usize| is_in(at) && self.places[at].up && !self.places[at].leaves;
        (0..self.places.len()).any(heir)
    }

    /// Whether everybody who lives and was told to leave has left.
    pub(crate) fn leavers_have_left(&self) -> bool {
        self.places.iter().all(|place| !place.up || !place.leaves || place.has_left())
    }

    /// Whether somebody who lives was told to leave.
    pub(crate) fn has_leavers(&self) -> bool {
        self.places.iter().any(|place| place.up && place.leaves)
    }

    /// Whether their coordinators wait for none of them any more.
    pub(crate) fn leavers_are_let_go(&self) -> bool {
        let is_let_go = |place: &Rc<Place>| place.has_left() || place.machine.is_let_go();
        self.places.iter().all(|place| !place.up || !place.leaves || is_let_go(place))
    }

    /// Whether the newest acknowledged decision's home hosts the shard by it.
    pub(crate) fn is_carried_out(&self) -> bool {
        let newest = self.acked.iter().max();
        let hosts = |index: usize, at: Generation| {
            self.places[index].up && self.run(index) == Run::Hosting(at)
        };
        newest.is_some_and(|(generation, home)| {
            (0..self.places.len())
                .any(|index| Some(region(index)) == *home && hosts(index, *generation))
        })
    }
}
