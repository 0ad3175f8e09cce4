//! To whom gossip goes: functions of the state and of chance.
//!
//! Eagerly, when something has changed: straight to all in a small cluster, to a random handful by
//! every node that learns it in a large one. And regularly to one member, rather to one that has
//! not seen the state. Spec: spec/membership.md, *Gossip*. That ⌈ln n⌉ + 6 random targets a node
//! reach everybody is the threshold of Erdős and Rényi for random graphs, with margin; why a large
//! cluster prefers random targets over stragglers is Akka's reason.

use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use rand::{Rng, RngExt};

use super::Gossip;
use crate::cluster::member::Status;

/// How targets are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Targeting {
    /// How probably regular gossip goes to a member that has not seen the state, if there is one;
    /// 0 to 1.
    pub different_view_probability: f64,
    /// Above that many members the probability shrinks, linearly, to a tenth of itself at three
    /// times as many: else all would gossip to the few stragglers and overwhelm them.
    pub reduce_above: usize,
    /// Up to that many members a change goes straight to all of them.
    pub direct_limit: usize,
}

impl Default for Targeting {
    fn default() -> Self {
        Self { different_view_probability: 0.8, reduce_above: 400, direct_limit: 100 }
    }
}

/// How this node came by its newest state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// By a change of its own, or by a merge that nobody else has: nobody else can tell it.
    Own,
    /// As it came: somebody else tells it, too.
    Heard,
}

impl Targeting {
    /// How probably regular gossip goes to a member that has not seen the state, in a cluster of
    /// `members`.
    #[must_use]
    pub fn probability(&self, members: usize) -> f64 {
        let full = self.different_view_probability;
        let least = full / 10.0;
        let (low, high) = (self.reduce_above, self.reduce_above.saturating_mul(3));
        if members <= low {
            full
        } else if members >= high {
            least
        } else {
            full - (full - least) * (members - low) as f64 / (high - low) as f64
        }
    }

    /// Whom to gossip to now; `None` if there is nobody.
    pub fn regular(&self, gossip: &Gossip, me: ReplicaId, rng: &mut impl Rng) -> Option<ReplicaId> {
        let peers = peers(gossip, me);
        let prefer = rng.random_bool(self.probability(gossip.len()).clamp(0.0, 1.0));
        if prefer {
            let behind = not_seen(gossip, &peers);
            if !behind.is_empty() {
                return one_of(&behind, rng);
            }
        }
        one_of(&peers, rng)
    }

    /// To whom to send the newest state at once.
    pub fn eager(
        &self,
        gossip: &Gossip,
        me: ReplicaId,
        news: News,
        rng: &mut impl Rng,
    ) -> Vec<ReplicaId> {
        let behind = not_seen(gossip, &peers(gossip, me));
        match news {
            News::Own if gossip.len() <= self.direct_limit => behind,
            News::Heard if gossip.len() <= self.direct_limit => Vec::new(),
            News::Own | News::Heard => some_of(behind, fanout(gossip.len()), rng),
        }
    }
}

/// How long until the next regular gossip, before jitter: a third of `interval` while fewer than
/// half of the members have seen the state.
#[must_use]
pub fn pace(gossip: &Gossip, interval: Duration) -> Duration {
    if gossip.seen().len() * 2 < gossip.len() { interval / 3 } else { interval }
}

/// Random targets of a change in a cluster of `members` above the direct limit: ⌈ln n⌉ + 6.
#[must_use]
pub fn fanout(members: usize) -> usize {
    (members.max(1) as f64).ln().ceil() as usize + 6
}

/// `me`'s valid targets: all but itself and whom it does not reach *itself*. Whom only others do
/// not reach stays one: a partition heals through it.
fn peers(gossip: &Gossip, me: ReplicaId) -> Vec<ReplicaId> {
    let reachability = gossip.reachability();
    let valid = |id: &ReplicaId| *id != me && reachability.verdict(me, *id).is_none();
    gossip.members().map(|member| member.incarnation()).filter(valid).collect()
}

/// Those that have not seen the state. Who is Down is told once, directly, and not listened to.
fn not_seen(gossip: &Gossip, peers: &[ReplicaId]) -> Vec<ReplicaId> {
    let behind = |id: &&ReplicaId| {
        let down = gossip.member(**id).is_some_and(|member| member.status == Status::Down);
        !down && !gossip.seen().contains(id)
    };
    peers.iter().filter(behind).copied().collect()
}

fn one_of(from: &[ReplicaId], rng: &mut impl Rng) -> Option<ReplicaId> {
    if from.is_empty() { None } else { Some(from[rng.random_range(0..from.len())]) }
}

/// `count` of them, all if there are no more; a partial shuffle of Fisher and Yates.
fn some_of(mut from: Vec<ReplicaId>, count: usize, rng: &mut impl Rng) -> Vec<ReplicaId> {
    let count = count.min(from.len());
    for at in 0..count {
        let other = rng.random_range(at..from.len());
        from.swap(at, other);
    }
    from.truncate(count);
    from
}
