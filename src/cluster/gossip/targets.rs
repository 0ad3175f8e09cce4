//! Selection of the receivers of gossip: functions of the state and a random generator.
//!
//! Eager dissemination after a change: in a small cluster directly to all members; in a large one
//! every node that learns of the change sends it to a few random members. Regular gossip: to one
//! member, preferably one that has not seen the state
//! (docs/protocol/membership.md#eager-dissemination). ⌈ln n⌉ + 6 random receivers per node reach
//! all members: this is the connectivity threshold of random graphs by Erdős and Rényi with a
//! margin. A large cluster prefers random receivers over stragglers for Akka's reason, see
//! [`Targeting::reduce_above`].

use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use rand::{Rng, RngExt};

use super::Gossip;
use crate::cluster::member::Status;

/// Parameters of the selection.
#[derive(Clone, Debug, PartialEq)]
pub struct Targeting {
    /// Probability, 0 to 1, that regular gossip goes to a member that has not seen the state, if
    /// there is one. Values outside are clamped when it is used.
    pub different_view_probability: f64,
    /// Above this number of members the probability decreases linearly, to a tenth at three times
    /// the number. Otherwise all members would gossip to the few stragglers and overload them.
    pub reduce_above: usize,
    /// Up to this number of members of the cluster, a change is sent directly to all of them.
    pub direct_limit: usize,
}

impl Default for Targeting {
    fn default() -> Self {
        Self { different_view_probability: 0.8, reduce_above: 400, direct_limit: 100 }
    }
}

/// Origin of the newest state of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateOrigin {
    /// A change of this node, or a merge that, as far as this node knows, no other node has.
    Own,
    /// Received unchanged: another node sends it, too.
    Heard,
}

impl Targeting {
    /// Probability that regular gossip goes to a member that has not seen the state, in a cluster
    /// of `members`: the configured one up to `reduce_above`, a tenth of it from three times that
    /// number on, and linear in between.
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

    /// The receiver of regular gossip: with the [`probability`](Self::probability) for this cluster
    /// a random member that has not seen the state and is not Down; otherwise, or if there is no
    /// such member, any random member, also one that is Down or has seen the state.
    ///
    /// Never `me` or a member that `me` itself accuses. `None` if there is no other member than
    /// these.
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

    /// The receivers of the newest state in eager dissemination, among the members that have not
    /// seen it and are not Down. In a cluster up to the direct limit: all of them for an `Own`
    /// state, none for a `Heard` one. In a larger cluster: [`fanout`] random ones for either, or
    /// all if there are fewer.
    ///
    /// Never `me` or a member that `me` itself accuses.
    pub fn eager(
        &self,
        gossip: &Gossip,
        me: ReplicaId,
        news: StateOrigin,
        rng: &mut impl Rng,
    ) -> Vec<ReplicaId> {
        let behind = not_seen(gossip, &peers(gossip, me));
        match news {
            StateOrigin::Own if gossip.len() <= self.direct_limit => behind,
            StateOrigin::Heard if gossip.len() <= self.direct_limit => Vec::new(),
            StateOrigin::Own | StateOrigin::Heard => some_of(behind, fanout(gossip.len()), rng),
        }
    }
}

/// Time until the next regular gossip, before jitter: a third of `interval` while fewer than half
/// of all members (Down ones included) have seen the state, otherwise `interval`.
#[must_use]
pub fn pace(gossip: &Gossip, interval: Duration) -> Duration {
    if gossip.seen().len() * 2 < gossip.len() { interval / 3 } else { interval }
}

/// Number of random receivers of a change in a cluster above the direct limit: ⌈ln n⌉ + 6.
#[must_use]
pub fn fanout(members: usize) -> usize {
    (members.max(1) as f64).ln().ceil() as usize + 6
}

/// Possible receivers: all members of any status, except `me` and those about which `me` itself has
/// recorded a verdict. A member that only others cannot reach stays a receiver, so that a partition
/// can heal through it.
fn peers(gossip: &Gossip, me: ReplicaId) -> Vec<ReplicaId> {
    let reachability = gossip.reachability();
    let valid = |id: &ReplicaId| *id != me && reachability.verdict(me, *id).is_none();
    gossip.members().map(|member| member.incarnation()).filter(valid).collect()
}

/// The peers that have not seen the state. A Down member is excluded: it is informed once,
/// directly, and its gossip is rejected.
fn not_seen(gossip: &Gossip, peers: &[ReplicaId]) -> Vec<ReplicaId> {
    let behind = |id: &&ReplicaId| {
        let down = gossip.member(**id).is_some_and(|member| member.status == Status::Down);
        !down && !gossip.seen().contains(id)
    };
    peers.iter().filter(behind).copied().collect()
}

/// A random element; `None` of an empty list.
fn one_of(from: &[ReplicaId], rng: &mut impl Rng) -> Option<ReplicaId> {
    if from.is_empty() { None } else { Some(from[rng.random_range(0..from.len())]) }
}

/// `count` random elements, or all if there are fewer; a partial Fisher–Yates shuffle.
fn some_of(mut from: Vec<ReplicaId>, count: usize, rng: &mut impl Rng) -> Vec<ReplicaId> {
    let count = count.min(from.len());
    for at in 0..count {
        let other = rng.random_range(at..from.len());
        from.swap(at, other);
    }
    from.truncate(count);
    from
}
