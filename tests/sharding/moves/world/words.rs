//! Steps in plain words. A, B and C are regions, coordinators and replicas have numbers from 1, and
//! 2.3 is the generation of the third write in term 2.

use ostraca::sharding::ids::{Generation, RegionId};
use ostraca::sharding::wire::{ToCoordinator, ToRegion};
use ostraca_ddata::id::ReplicaId;

use super::{Op, Sent, Step, World};

fn name(place: usize) -> char {
    char::from(b'A' + place as u8)
}

fn home(region: Option<RegionId>) -> String {
    region.map_or_else(|| "no region".to_owned(), |region| party(region.replica()))
}

/// A region or a coordinator, by the incarnation of its node.
fn party(id: ReplicaId) -> String {
    match id.get() {
        id @ 1..=100 => name(id as usize - 1).to_string(),
        id => format!("coordinator {}", id - 100),
    }
}

fn after(listed: impl Iterator<Item = (RegionId, Generation)>) -> String {
    let one = |(region, at): (RegionId, Generation)| format!("{} up to {at}", home(Some(region)));
    let all: Vec<String> = listed.map(one).collect();
    if all.is_empty() { "nobody".to_owned() } else { all.join(" and ") }
}

impl World {
    /// A step as text, for traces.
    pub(crate) fn describe(&self, step: Step) -> String {
        match step {
            Step::Deliver(hash) => {
                let at = self.sent.binary_search_by_key(&hash, |(hash, _)| *hash);
                at.map_or_else(|_| "a message is lost".into(), |at| delivery(&self.sent[at].1))
            }
            Step::Lose(hash) => {
                let at = self.sent.binary_search_by_key(&hash, |(hash, _)| *hash);
                let message = at.map(|at| delivery(&self.sent[at].1)).unwrap_or_default();
                format!("from now on it is lost that {message}")
            }
            Step::Start(at) => format!("coordinator {} starts with term {}", at + 1, at + 1),
            Step::FenceAt(at, replica) => {
                format!("replica {} answers the fencing read of {}", replica + 1, at + 1)
            }
            Step::BackAt(at, replica) => {
                format!("replica {} stores the recovery write of {}", replica + 1, self.write(at))
            }
            Step::WriteAt(at, replica) => {
                format!("replica {} stores the decision of {}", replica + 1, self.write(at))
            }
            Step::Move(at, Some(to)) => {
                format!("coordinator {} decides to move the shard to {}", at + 1, name(to))
            }
            Step::Move(at, None) => {
                format!("coordinator {} decides that the shard has no home", at + 1)
            }
            Step::Place(at, to) => {
                format!("coordinator {} places the shard at {}", at + 1, name(to))
            }
            Step::Drained(at) => format!("the last entity of {} stops", name(at)),
            Step::DrainedEmpty(at) => {
                format!("the last entity of {} stops, without a payload", name(at))
            }
            Step::Crash(at) => format!("{} crashes", name(at)),
            Step::Leave(at) => format!("{} begins to leave", name(at)),
            Step::Remove(at) => format!("a configuration without {} is installed", name(at)),
            Step::InstallAtRegion(at) => format!("{} installs the newest configuration", name(at)),
            Step::InstallAtCoordinator(at) => {
                format!("coordinator {} installs the newest configuration", at + 1)
            }
            Step::Restart(at) => format!("{} restarts without its state", name(at)),
            Step::Gossip(from, to) => {
                format!("replica {} sends its cell to replica {}", from + 1, to + 1)
            }
        }
    }

    fn write(&self, at: usize) -> String {
        let cell = match &self.coordinators[at].op {
            Some(Op::Back { cell, .. } | Op::Write { cell, .. }) => &cell.2,
            _ => return format!("coordinator {}", at + 1),
        };
        let listed = cell.after.iter().map(|(region, at)| (*region, *at));
        let (generation, region) = (cell.generation, home(cell.region));
        let listed = after(listed);
        format!("coordinator {}: {generation} at {region}, after {listed}", at + 1)
    }
}

fn delivery(message: &Sent) -> String {
    match message {
        Sent::ToRegion(to, from, message) => {
            format!("{} receives {} from {}", name(*to), to_region(message), party(*from))
        }
        Sent::ToCoordinator(to, from, message) => {
            let text = to_coordinator(message);
            format!("coordinator {} receives {text} from {}", to + 1, party(*from))
        }
    }
}

fn to_region(message: &ToRegion) -> String {
    match message {
        ToRegion::Host(orders) => {
            let order = &orders[0];
            format!("Host of {} (after {})", order.generation, after(order.after.iter()))
        }
        ToRegion::Release(orders) => {
            format!("Release for {} at {}", orders[0].generation, home(orders[0].to))
        }
        ToRegion::Released(releases) => {
            let release = &releases[0];
            let payload = match &release.payload {
                Some(payload) => format!("with the payload of tenure {}", payload[0]),
                None => "without a payload".to_owned(),
            };
            format!("Released below {} {payload}", release.reached)
        }
        ToRegion::Hosted(hosted) => format!("Hosted at {}", hosted[0].1),
        ToRegion::MayLeave(_) => "MayLeave".to_owned(),
        ToRegion::Here(term) => format!("Here of term {}", term.number),
        ToRegion::RegisterAck { .. } => "RegisterAck".to_owned(),
        other => format!("{other:?}"),
    }
}

fn to_coordinator(message: &ToCoordinator) -> String {
    match message {
        ToCoordinator::Hosted(hosted) => format!("Hosted at {}", hosted[0].1),
        ToCoordinator::Drained(drained) => format!("Drained at {}", drained[0].1),
        ToCoordinator::Leaving => "Leaving".to_owned(),
        ToCoordinator::GetShardHome(_) => "GetShardHome".to_owned(),
        ToCoordinator::Register { hosted, .. } => match hosted.first() {
            Some((_, at)) => format!("Register, hosting at {at},"),
            None => "Register, hosting nothing,".to_owned(),
        },
        other => format!("{other:?}"),
    }
}
