//! Losses of messages. A message of an overtaken decision, or between regions, may be lost for good;
//! the coordinator repeats the others until the home has confirmed, so that their loss only delays.

use ostraca::sharding::wire::ToRegion;

use super::{Sent, Step, World, generation_of};

impl World {
    pub(super) fn steps_of_losses(&self, steps: &mut Vec<Step>) {
        if self.losses == 0 {
            return;
        }
        let newest = self.acked.iter().map(|(generation, _)| *generation).max();
        let is_repeated = |fact: &Sent| {
            let order =
                matches!(fact, Sent::ToRegion(_, _, ToRegion::Host(_) | ToRegion::Release(_)));
            order && Some(generation_of(fact)) >= newest
        };
        let lost = self.sent.iter().filter(|(_, fact)| !is_repeated(fact));
        steps.extend(lost.map(|(hash, _)| Step::Lose(*hash)));
    }
}
