//! Seed invitation: members dial seeds that are not in the cluster and invite them to join
//! (docs/protocol/membership.md#seed-invitation).
//!
//! A new node finds the cluster through its seeds. If a seed was removed and it or another node
//! restarts at its address, no member would dial that address any longer: the seed would know no
//! cluster, and nodes that ask it would find none, for ever if no seed is left in the cluster. So
//! members dial the seeds of their list at which no member answers, and tell the node there that it
//! may join. The leader does so in each round, and a few others in turn, because the leader may not
//! reach the seed.
//!
//! Safety does not depend on invitations: an invited node asks for admission like any other. A node
//! of another cluster ignores the invitation, and logs that the two have met; a node without a
//! cluster joins the first that invites it. Seeds without a cluster may found one before they are
//! invited, so invitations do not replace their data directories.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};

use super::port::{MembershipOutput, OperatorNotice};
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::gossip::Gossip;
use crate::cluster::member::{Address, Status};
use crate::cluster::wire::InitAnswer;

/// Pause before a seed is invited after its member left, and the maximum pause: it doubles with
/// each round. A seed that is absent from the first state is also invited after the short pause: in
/// a rolling restart, the members that have just joined soon invite the next seed.
const CALL_FIRST: Duration = Duration::from_millis(500);
/// Maximum pause between two rounds. Rounds are also counted while no seed is absent.
const CALL_EVERY: Duration = Duration::from_secs(5);
/// Number of members that invite in turn beside the leader: the first ones of the gossip state, one
/// per round, whether or not they are Up. All members if there are fewer. A connection to a seed
/// that does not join may stay open.
const TURNS: usize = 8;
/// Each time that the number of rounds is a multiple of this, this node forgets which seed
/// addresses are its own, because DNS names may change. It dials them again then.
const OWN_FOR: usize = 12;

/// Schedule of the invitations of a node that is in a cluster. *Absent* seeds are those at which no
/// member is known.
#[derive(Debug)]
pub(super) struct SeedInviter {
    seeds: BTreeSet<Address>, // without the address that this node announces; ≤ SEEDS_MAX
    own: BTreeSet<Address>,   // seeds at which this node found itself; not invited
    is_seed: bool,            // the address that this node announces is on the list
    call_at: Option<Instant>, // `None`: there are no seeds to invite
    pause: Duration,
    absent: BTreeSet<Address>, // seeds without a member, by the last state; also own addresses
    absent_since: Instant,     // last change of `absent`
    round: usize,
    called_all: bool, // at this node's last turn it was no seed, and no member was at a seed
}

impl SeedInviter {
    /// Plans the first round after [`CALL_EVERY`], or after [`CALL_FIRST`] if the first observed
    /// state lacks a seed; without other seeds than this node, none ever.
    pub(super) fn new(core: &MembershipCore, now: Now) -> Self {
        let mut seeds = core.seeds();
        let is_seed = seeds.remove(&core.address);
        let call_at = (!seeds.is_empty()).then(|| now.mono + CALL_EVERY);
        Self {
            seeds,
            own: BTreeSet::new(),
            is_seed,
            call_at,
            pause: CALL_EVERY,
            absent: BTreeSet::new(),
            absent_since: now.mono,
            round: 0,
            called_all: false,
        }
    }

    /// The gossip state has changed. If a further seed is missing, invitations begin soon. A seed
    /// counts as present if a member has its address in gossip, whether or not the member is
    /// reachable. Does nothing without other seeds. Own addresses count as missing here, so that
    /// the rounds do not restart when [`begin_round`](Self::begin_round) forgets them.
    pub(super) fn observe(&mut self, now: Now, gossip: &Gossip) {
        if self.call_at.is_none() {
            return;
        }
        let mut absent = self.seeds.clone();
        gossip.members().for_each(|member| {
            absent.remove(&member.address);
        });
        if absent != self.absent {
            let is_news = !absent.is_subset(&self.absent);
            self.absent = absent;
            self.absent_since = now.mono;
            if is_news {
                self.pause = CALL_FIRST;
                let soon = now.mono + CALL_FIRST;
                self.call_at = self.call_at.map(|at| at.min(soon));
            }
        }
    }

    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.call_at
    }

    /// This node also answers at these addresses: seeds among them are not invited for the next
    /// [`OWN_FOR`] rounds at most. Others are ignored. Changes no deadline, and `absent` only with
    /// the next `observe`.
    pub(super) fn add_own(&mut self, addresses: &[Address]) {
        self.own.extend(addresses.iter().filter(|at| self.seeds.contains(at)).cloned());
    }

    /// Whether a round of invitations is due. If so, counts the round and schedules the next one
    /// after the present pause, which doubles then; even if the caller does not invite. Every
    /// [`OWN_FOR`] rounds, forgets the addresses of `add_own`. Always `false` without other seeds.
    pub(super) fn begin_round(&mut self, now: Now) -> bool {
        let is_due = self.call_at.is_some_and(|at| now.mono >= at);
        if is_due {
            self.call_at = Some(now.mono + self.pause);
            self.pause = (self.pause * 2).min(CALL_EVERY);
            self.round = self.round.wrapping_add(1);
            if self.round.is_multiple_of(OWN_FOR) {
                self.own.clear();
            }
        }
        is_due
    }

    /// Invites the seeds at which no member answers: each node that is connected at one of them
    /// gets a message, also if it got one before; addresses without a connected node are dialled,
    /// and the node there is invited once it is connected (`is_called`). Does nothing unless this
    /// member is Up and the round is its turn; the leader takes part in each round, and the first
    /// [`TURNS`] members in turn. The caller has called `begin_round`, and checks that this side
    /// has a quorum, because other sides cannot add members.
    ///
    /// Raises `NoSeedInside`, subject to the pauses of notices, if no address of the list is this
    /// node's, no member was at a seed in two successive turns of this node, and `absent` has not
    /// changed for [`CALL_EVERY`]. It still invites then.
    pub(super) fn call(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        leads: bool,
        out: &mut MembershipOutbox,
    ) {
        let me = core.me.incarnation;
        let turns = gossip.members().len().clamp(1, TURNS);
        let place = gossip.members().position(|member| member.incarnation() == me);
        let is_turn = leads || place == Some(self.round % turns);
        if !(is_turn && may_invite(me, gossip)) {
            return;
        }
        let absent = self.absent(core, gossip);
        let all = !self.is_seed && absent.len() == self.seeds.len();
        if all && self.called_all && now.mono >= self.absent_since + CALL_EVERY {
            core.say(now, OperatorNotice::NoSeedInside, out);
        }
        self.called_all = all;
        for (node, _) in core.links.at(&absent) {
            invite(core, node, gossip, out);
        }
        let there = core.links.reached(&absent, |_| true);
        let silent = absent.iter().filter(|seed| !there.contains(seed)).cloned();
        out.extend(silent.map(MembershipOutput::Dial));
    }

    /// Whether a newly connected node should be invited without waiting for a round: one of its
    /// addresses is a seed's, it is no member, and this node is Up. Any such member invites,
    /// whether or not it is its turn, and although another member answers at that address. The
    /// caller checks the quorum, and that the node was not removed.
    pub(super) fn is_called(&self, core: &MembershipCore, node: NodeId, gossip: &Gossip) -> bool {
        let at = core.links.addresses(node);
        let is_seed = at.is_some_and(|at| at.iter().any(|address| self.seeds.contains(address)));
        is_seed && !gossip.contains(node.incarnation) && may_invite(core.me.incarnation, gossip)
    }

    /// Seeds at which no member answers: neither a member's address in gossip nor an address of its
    /// link is the seed's. Members of any status count. Own addresses are left out. Unlike the
    /// field `absent` it considers the present links; the field is not changed.
    fn absent(&self, core: &MembershipCore, gossip: &Gossip) -> BTreeSet<Address> {
        let mut absent: BTreeSet<Address> = self.seeds.difference(&self.own).cloned().collect();
        for member in gossip.members() {
            absent.remove(&member.address);
            if let Some(at) = core.links.addresses(member.node).filter(|_| !absent.is_empty()) {
                absent.retain(|seed| !at.contains(seed));
            }
        }
        absent
    }
}

/// Whether this node may admit others: it is Up.
fn may_invite(me: ReplicaId, gossip: &Gossip) -> bool {
    gossip.member(me).is_some_and(|own| own.status == Status::Up)
}

/// Sends `InitJoinAnswer(Member)` with this cluster's id and this node's settings, although the
/// other node has not asked. Checks nothing and records nothing; counted as `sent`.
pub(super) fn invite(
    core: &mut MembershipCore,
    node: NodeId,
    gossip: &Gossip,
    out: &mut MembershipOutbox,
) {
    core.answer(node, InitAnswer::Member(gossip.cluster()), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config::ClusterConfig;
    use crate::cluster::fault_injection::MembershipFaultInjection;
    use crate::cluster::gossip::tests::{joiner, node, state};
    use crate::cluster::membership::Membership;
    use crate::cluster::membership::port::{MembershipSetup, Memory};
    use crate::cluster::wire::ComparedSettings;

    /// The inviter of A, which starts at the time 0.
    fn inviter(seeds: Vec<Address>) -> SeedInviter {
        let setup = MembershipSetup {
            me: node(1),
            address: joiner(1, 1).address,
            config: ClusterConfig { seeds, ..ClusterConfig::default() },
            settings: ComparedSettings::default(),
            memory: Memory::default(),
            directory: None,
            seed: 1,
            fault_injection: MembershipFaultInjection::none(),
        };
        SeedInviter::new(&Membership::new(setup).core, Now::default())
    }

    #[test]
    fn first_round_is_early_if_a_seed_is_absent() {
        for (text, pause) in [("A B C", CALL_EVERY), ("A C", CALL_FIRST)] {
            let mut inviter = inviter(vec![joiner(2, 2).address]);
            inviter.observe(Now::default(), &state(text));
            assert_eq!(inviter.next_deadline(), Some(Now::default().mono + pause), "{text}");
        }
    }

    /// The other seed address is A's own under another name, as each dial of it shows.
    #[test]
    fn forgotten_own_address_restarts_no_early_rounds() {
        let alias = Address::new("/dns4/alias/tcp/7000").expect("short");
        let mut inviter = inviter(vec![joiner(2, 2).address, alias.clone()]);
        let gossip = state("A B C");
        inviter.observe(Now::default(), &gossip);
        let mut pauses = Vec::new();
        for _ in 0..3 * OWN_FOR {
            let due = inviter.next_deadline().expect("there are seeds");
            let now = Now { mono: due, ..Now::default() };
            assert!(inviter.begin_round(now));
            inviter.observe(now, &gossip);
            inviter.add_own(std::slice::from_ref(&alias));
            inviter.observe(now, &gossip);
            pauses.push(inviter.next_deadline().expect("there are seeds") - due);
        }
        let early = pauses.iter().take_while(|pause| **pause < CALL_EVERY).count();
        assert!(early < OWN_FOR, "{pauses:?}");
        assert!(pauses[early..].iter().all(|pause| *pause == CALL_EVERY), "{pauses:?}");
    }
}
