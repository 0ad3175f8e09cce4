//! Seeds that are not in the cluster are called, and told of it.
//!
//! Whoever starts finds the cluster by its seeds. Where a seed has been removed, and it or another
//! node started again at its address, nobody inside would dial that any more: it knew of no cluster,
//! and who asked it would hear of none, for ever if no seed is left inside. So members dial the seeds
//! of their list at which no member answers, and tell whoever answers that it may join here. The
//! leader calls each time, a few others in their turns: the leader may be the one that does not get
//! through.
//!
//! Nothing rests on a call: who hears it asks to be let in, as who had asked. Who belongs to another
//! cluster does not listen, and logs that the two have met; who remembers none joins the first that
//! speaks to it. Seeds that know of no cluster may found one before they are called: a call is no
//! substitute for their data directories (spec/safety.md §1).

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};

use super::port::{Notice, Output};
use super::{Core, Out};
use crate::cluster::gossip::Gossip;
use crate::cluster::member::{Address, Status};
use crate::cluster::wire::InitAnswer;

/// How soon a seed is called after its member has left, and how often at last: the pause doubles. A
/// seed that starts asks the others for itself at first, and finds nobody if they started with it.
const CALL_FIRST: Duration = Duration::from_millis(500);
const CALL_EVERY: Duration = Duration::from_secs(5);
/// How many members have a turn beside the leader: a link to who does not come in may stay.
const TURNS: usize = 8;
/// After so many times it is found out anew at which seeds this node itself answers: names come to
/// stand for others.
const OWN_FOR: usize = 12;

/// Who is called, and when.
#[derive(Debug)]
pub(super) struct Calling {
    seeds: BTreeSet<Address>, // but this node's own address; ≤ SEEDS_MAX
    own: BTreeSet<Address>,   // those that turned out to be this node's, too
    is_seed: bool,
    call_at: Option<Instant>, // `None`: there is nobody to call
    pause: Duration,
    absent: BTreeSet<Address>, // at which no member is listed, when the state changed last
    absent_since: Instant,
    round: usize,
    called_all: bool, // the last time, since none was inside
}

impl Calling {
    pub(super) fn new(core: &Core, now: Now) -> Self {
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

    /// The state has changed: where another seed is missing than before, calls begin soon.
    pub(super) fn observe(&mut self, now: Now, gossip: &Gossip) {
        if self.call_at.is_none() {
            return;
        }
        let mut absent: BTreeSet<Address> = self.seeds.difference(&self.own).cloned().collect();
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

    /// This node answers at these addresses, too.
    pub(super) fn is_own(&mut self, addresses: &[Address]) {
        self.own.extend(addresses.iter().filter(|at| self.seeds.contains(at)).cloned());
    }

    /// Whether it is time to look who is to be called; from then on to the next time it is not.
    pub(super) fn is_due(&mut self, now: Now) -> bool {
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

    /// Calls, if it is this member's turn. Its side has a quorum: nobody is called to where it could
    /// not be taken up.
    pub(super) fn call(
        &mut self,
        core: &mut Core,
        now: Now,
        gossip: &Gossip,
        leads: bool,
        out: &mut Out,
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
            core.say(now, Notice::NoSeedInside, out);
        }
        self.called_all = all;
        let linked = core.links.at(&absent);
        for (node, _) in &linked {
            invite(core, *node, gossip, out);
        }
        let silent = absent.into_iter().filter(|seed| linked.iter().all(|(_, at)| at != seed));
        out.extend(silent.map(Output::Dial));
    }

    /// Whether a node at a seed's address, which is connected, is to be told that it may join here.
    pub(super) fn is_called(&self, core: &Core, node: NodeId, gossip: &Gossip) -> bool {
        let at = core.links.addresses(node);
        let is_seed = at.is_some_and(|at| at.iter().any(|address| self.seeds.contains(address)));
        is_seed && !gossip.contains(node.incarnation) && may_invite(core.me.incarnation, gossip)
    }

    /// Seeds at which no member answers.
    fn absent(&self, core: &Core, gossip: &Gossip) -> BTreeSet<Address> {
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

/// Whether this node lets others in.
fn may_invite(me: ReplicaId, gossip: &Gossip) -> bool {
    gossip.member(me).is_some_and(|own| own.status == Status::Up)
}

/// The answer to a question that the other one did not know to ask.
pub(super) fn invite(core: &mut Core, node: NodeId, gossip: &Gossip, out: &mut Out) {
    core.answer(node, InitAnswer::Member(gossip.cluster()), out);
}
