//! Founding by ballots: seeds without a cluster agree on one
//! (docs/protocol/membership.md#founding-majority).
//!
//! [`Founding`] contains the votes; this file decides when to propose and to repeat, and sends. A
//! node that founds nothing (`founding` is `None`) only enters or joins a founded cluster here
//! ([`on_founded`](Searching::on_founded)).

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Now;
use ostraca_ddata::id::NodeId;
use rand::RngExt;

use super::{
    LATECOMERS, PATIENCE, RESEND, SearchResult, Searching, TURN, UNHEARD, foundation, is_lost,
    is_sound,
};
use crate::cluster::member::Address;
use crate::cluster::membership::foundation::{Founding, FoundingStep, VoterKey};
use crate::cluster::membership::port::OperatorNotice;
use crate::cluster::membership::{MembershipCore, MembershipOutbox, SEEDS_MAX};
use crate::cluster::wire::{ClusterMessage, Foundation, FoundingBallot, InitAnswer};

impl Searching {
    /// The seeds that can vote with this one, including itself, by their keys: connected at an
    /// asked address, with an equal list and equal settings. The key is the first asked address of
    /// the node, or its peer key with `expected-nodes`. Of several nodes with one key the one with
    /// the highest node id votes, except that this node always votes with its own key.
    pub(super) fn voters(&self, core: &MembershipCore) -> BTreeMap<VoterKey, NodeId> {
        let by_key = core.config.expected_nodes.is_some();
        let key = |node: NodeId, address: &Address| {
            if by_key {
                format!("{:?}", node.peer.as_bytes()) // two incarnations of a peer have one vote
            } else {
                address.as_str().into()
            }
        };
        let agreeing = core.links.at(&self.asked).into_iter();
        let agreeing = agreeing.filter(|(node, _)| self.equal.contains(node));
        let mut voters: BTreeMap<VoterKey, NodeId> =
            agreeing.map(|(node, address)| (key(node, &address), node)).collect();
        voters.insert(key(core.me, &core.address), core.me);
        voters
    }

    /// The key with which a node votes; `None` if it is not among the present
    /// [`voters`](Self::voters).
    pub(super) fn voter_key_of(&self, core: &MembershipCore, node: NodeId) -> Option<VoterKey> {
        self.voters(core).into_iter().find(|(_, voter)| *voter == node).map(|(key, _)| key)
    }

    /// Gives up the open attempt, if any, with its deadlines. The time of the next attempt
    /// (`propose_at`) and the votes of this node as an acceptor remain.
    pub(super) fn stop_founding(&mut self) {
        if let Some(founding) = &mut self.founding {
            founding.give_up();
        }
        (self.latecomers_until, self.resend_at, self.patient_until) = (None, None, None);
    }

    /// Delay before this node proposes: [`TURN`] for each voter with a lower key, and [`UNHEARD`]
    /// for each seed with a lower address that is no voter, at most two of them; zero without any.
    /// With `expected-nodes` no key is an address, so every seed with a lower address counts as no
    /// voter. Up to half of the delay is added at random, anew in each call.
    pub(super) fn turn(
        &self,
        core: &mut MembershipCore,
        voters: &BTreeMap<VoterKey, NodeId>,
    ) -> Duration {
        let before = voters.values().take_while(|voter| **voter != core.me).count();
        let listed = self.seeds.range(..core.address.clone());
        let unheard = listed.filter(|seed| !voters.contains_key(seed.as_str())).count();
        let times = |count: usize| u32::try_from(count.min(SEEDS_MAX)).unwrap_or(u32::MAX);
        let turn = TURN * times(before) + UNHEARD * times(unheard.min(2));
        turn + turn.mul_f64(core.rng.random_range(0.0..0.5))
    }

    /// Performs due steps of the founding protocol: goes on with an open attempt, or begins one
    /// when it is this node's turn, which counts as `founding_ballots`. The next attempt, should
    /// this one fail, is planned for its [`PATIENCE`] plus another turn.
    ///
    /// Gives up, and forgets its turn, while a join is under way or the voters are no majority; the
    /// turn then counts anew from the time at which they are one.
    pub(super) fn found(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) {
        let voters = self.voters(core);
        let turn = self.turn(core, &voters);
        let Some(founding) = &mut self.founding else { return };
        if self.join.is_some() || voters.len() < founding.majority() {
            self.propose_at = None;
            return self.stop_founding();
        }
        let propose_at = *self.propose_at.get_or_insert(now.mono + turn);
        if founding.is_trying() {
            return self.go_on(core, now, out);
        }
        if now.mono < propose_at {
            return;
        }
        core.stats.founding_ballots += 1;
        let question = founding.begin();
        self.resend_at = Some(now.mono + RESEND);
        self.patient_until = Some(now.mono + PATIENCE);
        self.propose_at = Some(now.mono + PATIENCE + turn + TURN);
        for voter in voters.into_values() {
            core.send(voter, question.clone(), out);
        }
    }

    /// Goes on with the open attempt: gives it up after `PATIENCE` and does nothing else then;
    /// otherwise proposes once the time for latecomers is over, and repeats the request if
    /// [`RESEND`] has passed, also directly after a proposal.
    pub(super) fn go_on(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) {
        if self.patient_until.is_some_and(|until| now.mono >= until) {
            return self.stop_founding();
        }
        if self.latecomers_until.is_some_and(|until| now.mono >= until) {
            self.latecomers_until = None;
            self.propose_own(core, now, out);
        }
        if self.resend_at.is_some_and(|at| now.mono >= at) {
            self.resend_at = Some(now.mono + RESEND);
            self.ask_voters(core, out);
        }
    }

    /// Sends the request of the present phase to all voters, this node included, also to those that
    /// have answered. Does nothing without an attempt.
    pub(super) fn ask_voters(&self, core: &mut MembershipCore, out: &mut MembershipOutbox) {
        let Some(question) = self.founding.as_ref().and_then(Founding::question) else { return };
        for voter in self.voters(core).into_values() {
            core.send(voter, question.clone(), out);
        }
    }

    /// Handles a message of the founding protocol, as acceptor or proposer. Counted as nonsense,
    /// without an answer: a message of a node that cannot vote with this one, a foundation that is
    /// not well formed, a promise that describes another node or has a revision that jumps, and any
    /// other kind of message.
    pub(super) fn founding_message(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        message: ClusterMessage,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        use ClusterMessage as M;
        let key = self.voter_key_of(core, from);
        let (Some(key), Some(founding)) = (key, &mut self.founding) else {
            core.stats.nonsense += 1;
            return None;
        };
        core.stats.ballot_jumps += u64::from(jumps(founding, &message));
        let step = match message {
            M::FoundingPrepare(ballot) => {
                let answer = founding.prepare(ballot, core.member());
                self.vote(core, now, from, ballot, answer, out);
                return None;
            }
            M::FoundingAccept { ballot, foundation } if is_sound(&foundation) => {
                let answer = founding.accept(ballot, foundation);
                self.vote(core, now, from, ballot, answer, out);
                return None;
            }
            M::FoundingPromise { ballot, member, accepted } => {
                let told = accepted.as_ref().is_none_or(|(_, foundation)| is_sound(foundation));
                if member.node != from || !member.has_near_revision() || !told {
                    core.stats.nonsense += 1;
                    return None;
                }
                founding.promise(key, ballot, member, accepted)
            }
            M::FoundingAccepted(ballot) => founding.accepted(key, ballot),
            M::FoundingRefused { ballot, promised } => founding.refused(ballot, promised),
            _ => {
                core.stats.nonsense += 1;
                return None;
            }
        };
        self.follow(core, now, step, out)
    }

    /// Answers as a voter once the vote is durable, and gives the proposer time to finish: unless
    /// it is this node itself, the own proposal is postponed, also after a refusal. Writes to disk
    /// only if the acceptor's memory changed. A vote for this node as the only founder is written
    /// with the sole-member evidence.
    pub(super) fn vote(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        ballot: FoundingBallot,
        answer: ClusterMessage,
        out: &mut MembershipOutbox,
    ) {
        let memory = self.founding.as_ref().map(|founding| founding.memory.clone());
        if core.memory.founding != memory {
            let accepted = memory.as_ref().and_then(|votes| votes.accepted.as_ref());
            let sole = accepted.and_then(|(_, foundation)| core.sole(&foundation.epoch));
            (core.memory.founding, core.memory.sole) = (memory, sole);
            core.persist(out);
        }
        core.send_durably(from, answer, out);
        if ballot.proposer != core.me.incarnation {
            let turn = self.turn(core, &self.voters(core));
            let later = now.mono + PATIENCE + turn;
            self.propose_at = Some(self.propose_at.map_or(later, |at| at.max(later)));
        }
    }

    /// Does what an answer to the own proposal leads to. `Free`: proposes an own foundation, at
    /// once if all voters have promised, otherwise `LATECOMERS` after the first majority.
    /// `Adopted`: proposes that foundation at once, with a notice if too few of its founders are
    /// left. `Overtaken`: sets the time of the next attempt to [`TURN`] and its turn from now, even
    /// if [`vote`](Self::vote) had postponed it longer. `Founded`: tells the other voters, which is
    /// not repeated, and then enters the cluster itself or joins it.
    pub(super) fn follow(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        step: FoundingStep,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        match step {
            FoundingStep::Wait => {}
            FoundingStep::Free => {
                let promised = self.founding.as_ref().map_or(0, |f| f.promisers().len());
                if promised >= self.voters(core).len() {
                    self.latecomers_until = None;
                    self.propose_own(core, now, out);
                } else {
                    self.latecomers_until.get_or_insert(now.mono + LATECOMERS);
                }
            }
            FoundingStep::Adopted(foundation) => {
                let promisers = self.founding.as_ref().map(Founding::promisers).unwrap_or_default();
                if is_lost(&foundation, &promisers) {
                    let cluster = foundation.gossip.cluster();
                    core.say(now, OperatorNotice::FoundersLost { cluster }, out);
                }
                self.propose(core, foundation, out);
            }
            FoundingStep::Overtaken => {
                self.stop_founding();
                let turn = self.turn(core, &self.voters(core));
                self.propose_at = Some(now.mono + TURN + turn);
            }
            FoundingStep::Founded(foundation) => {
                let mut voters = self.voters(core);
                voters.retain(|_, voter| *voter != core.me);
                for voter in voters.into_values() {
                    core.send(voter, ClusterMessage::Founded(foundation.clone()), out);
                }
                return self.on_founded(core, now, core.me, foundation, out);
            }
        }
        None
    }

    /// Proposes a foundation of all members that have promised; gives the attempt up if they give
    /// no valid foundation.
    pub(super) fn propose_own(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) {
        let promisers = self.founding.as_ref().map(Founding::promisers).unwrap_or_default();
        match foundation(core, now, promisers) {
            Some(foundation) => self.propose(core, foundation, out),
            None => self.stop_founding(),
        }
    }

    /// Proposes a foundation in the open attempt and asks all voters to accept it; an attempt that
    /// has proposed one already repeats that one. Ends the wait for latecomers. Does not move the
    /// time of the next repetition.
    pub(super) fn propose(
        &mut self,
        core: &mut MembershipCore,
        foundation: Foundation,
        out: &mut MembershipOutbox,
    ) {
        self.latecomers_until = None;
        if let Some(founding) = &mut self.founding {
            founding.propose(foundation);
            self.ask_voters(core, out);
        }
    }

    /// A cluster was founded, as `from` (or this node itself) tells; the caller has checked the
    /// foundation. Enters the cluster if this node is a founder. Otherwise ends the own attempt,
    /// stores `Member` as the answer of `from` (if that is another node), and asks the first node
    /// that answered `Member`, not always `from`, to let it in, unless a join is under way.
    pub(super) fn on_founded(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        foundation: Foundation,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        if foundation.gossip.lists(core.me) {
            return Some(SearchResult::Found(foundation));
        }
        // The cluster was founded without this node: it joins.
        self.stop_founding();
        if from != core.me {
            self.remember(core, from, InitAnswer::Member(foundation.gossip.cluster()));
        }
        self.try_join(core, now, out);
        None
    }
}

/// Whether the message contains a ballot that violates the jump rule; [`Founding`] rejects such a
/// request and ignores such a refusal. For a refusal the promised ballot counts, not the refused
/// one. The ballot of a promise or an acceptance is not checked: it only counts if it is the own
/// one.
fn jumps(founding: &Founding, message: &ClusterMessage) -> bool {
    use ClusterMessage as M;
    match message {
        M::FoundingPrepare(ballot)
        | M::FoundingAccept { ballot, .. }
        | M::FoundingRefused { promised: ballot, .. } => !founding.is_near(*ballot),
        _ => false,
    }
}
