//! The voter: answers `Withhold`, `Seal` and `Accept` (docs/protocol/configurations.md#the-voter).
//!
//! The lease machine must consent before this voter seals for a proposal that removes members,
//! because a removed member may serve until its lease ends. Its answer arrives as a later input;
//! until then the message waits in [`Consents`]. A *promise* is that of a ballot; that of the lease
//! machine to a member is a *lease promise*.

use std::collections::{BTreeMap, BTreeSet};

use super::acceptor::BallotOrder;
use super::configuration::{Ballot, EpochId, SharedEpoch};
use super::message::{BallotRefusal, EpochMessage, Remaining};
use super::{Consenting, EpochOutbox, EpochOutput, Epochs};
use crate::clock::Now;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;

/// Most open questions to the lease machine. Above it the oldest is dropped; its proposer asks
/// again.
const CONSENTS_MAX: usize = 64;

/// A `Seal` or an `Accept`.
#[derive(Clone, Debug)]
pub(super) struct VoteRequest {
    pub(super) from: ReplicaId,
    pub(super) ballot: Ballot,
    pub(super) proposal: SharedEpoch,
}

/// An open question to the lease machine, and the message that it answers.
#[derive(Clone, Debug)]
enum ConsentQuery {
    Withhold(WithholdRequest),
    Seal(VoteRequest),
}

/// The fields of a `Withhold`; `removed` lists members only, each once.
#[derive(Clone, Debug)]
struct WithholdRequest {
    from: ReplicaId,
    ballot: Ballot,
    removed: Vec<ReplicaId>, // ≤ members
}

impl ConsentQuery {
    /// The peer and the kind of the question: a newer question with the same key replaces it.
    const fn key(&self) -> (ReplicaId, Consenting) {
        match self {
            Self::Withhold(asked) => (asked.from, Consenting::Withhold),
            Self::Seal(asked) => (asked.from, Consenting::Seal),
        }
    }
}

/// Questions to the lease machine in the installed configuration, dropped at the next install. One
/// per peer and kind: a newer one replaces it.
#[derive(Clone, Debug, Default)]
pub(super) struct Consents {
    /// Open questions, oldest first.
    waiting: BTreeMap<u64, ConsentQuery>, // ≤ CONSENTS_MAX
    /// The last `Withhold` of each peer, if it was answered with lease promises that still run.
    leased: BTreeMap<ReplicaId, WithholdRequest>, // ≤ members
}

impl Epochs {
    /// The installed configuration, if this node may vote on a message of `from`
    /// (docs/protocol/configurations.md#voting-members-only). `None` if the message names another
    /// configuration, and then the side that is behind learns of the newer one (checked first, not
    /// counted). Also `None`, and counted as nonsense, if this node is no voter, `from` is no
    /// member, or the ballot is not that of `from` or jumps.
    pub(super) fn voting(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: EpochId,
        ballot: Ballot,
        out: &mut EpochOutbox,
    ) -> Option<SharedEpoch> {
        if !self.same_epoch(now, from, epoch, out) {
            return None;
        }
        let current = self.current();
        if self.is_voter() && current.is_member(from) && self.is_ballot_of(ballot, from) {
            return Some(current);
        }
        self.stats.nonsense += 1;
        None
    }

    /// Whether `ballot` names `from` as its proposer and its number does not jump.
    pub(super) fn is_ballot_of(&self, ballot: Ballot, from: ReplicaId) -> bool {
        let known =
            ballot.node == from || self.fault_injection.has(ReplicatorFault::BallotWithoutNode);
        known && self.is_near(ballot)
    }

    /// Asks the lease machine how long its promises to these members run; its answer becomes
    /// `Withheld`, whatever ballot is promised. Ids that are no members are left out. If no member
    /// is left, the message is counted as nonsense and dropped. A repeated `Withhold` asks again.
    pub(super) fn on_withhold(
        &mut self,
        current: &SharedEpoch,
        from: ReplicaId,
        ballot: Ballot,
        removed: Vec<ReplicaId>,
        out: &mut EpochOutbox,
    ) {
        let removed: BTreeSet<_> =
            removed.into_iter().filter(|id| current.is_member(*id)).collect();
        let removed: Vec<_> = removed.into_iter().collect();
        if removed.is_empty() {
            self.stats.nonsense += 1;
        } else {
            self.ask_consent(
                ConsentQuery::Withhold(WithholdRequest { from, ballot, removed }),
                out,
            );
        }
    }

    /// Handles `Seal`: seals at once if the proposal removes no member or this ballot is the
    /// promised one; otherwise asks the lease machine first, and seals or refuses when it answers.
    /// Counted as `unfit` and dropped if the proposal cannot follow (checked first); refused if a
    /// higher ballot is promised. A proposal that passes both checks becomes the last one proposed
    /// and restarts the patience, even if leases then prevent the seal.
    pub(super) fn on_seal(
        &mut self,
        now: Now,
        current: &SharedEpoch,
        asked: VoteRequest,
        out: &mut EpochOutbox,
    ) {
        if !self.fits(current, &asked) || self.refuses(&asked, out) {
            return;
        }
        self.proposed = Some(asked.proposal.clone());
        self.restart_patience(now);
        let removes_nobody = current.removed_by(&asked.proposal).is_empty();
        if removes_nobody || self.state.weigh(asked.ballot) == BallotOrder::Again {
            self.seal(now, &asked, out);
        } else {
            self.ask_consent(ConsentQuery::Seal(asked), out);
        }
    }

    /// Whether the proposal may follow the installed configuration. One that may not is counted as
    /// `unfit`.
    fn fits(&mut self, current: &SharedEpoch, asked: &VoteRequest) -> bool {
        let fits = current.admits(&asked.proposal).is_ok();
        self.stats.unfit += u64::from(!fits);
        fits
    }

    /// Whether a higher ballot is promised; if so, counts the refusal and answers `Refused` with
    /// it.
    fn refuses(&mut self, asked: &VoteRequest, out: &mut EpochOutbox) -> bool {
        let BallotOrder::Not(promise) = self.state.weigh(asked.ballot) else { return false };
        self.refuse(asked, BallotRefusal::Promised(promise), out);
        true
    }

    /// Counts the refusal as `refused` and answers `Refused` to the proposer.
    fn refuse(&mut self, asked: &VoteRequest, why: BallotRefusal, out: &mut EpochOutbox) {
        self.stats.refused += 1;
        let (epoch, ballot) = (self.current().id(), asked.ballot);
        self.send(asked.from, EpochMessage::Refused { epoch, ballot, why }, out);
    }

    /// Promises the ballot and answers `Sealed` with the proposal accepted before. The first
    /// promise freezes the snapshot, with the last acknowledgement in it. If this ballot is
    /// promised already, it only answers. Panics if a higher one is.
    fn seal(&mut self, now: Now, asked: &VoteRequest, out: &mut EpochOutbox) {
        let epoch = self.current().id();
        let promised = self.state.weigh(asked.ballot);
        if promised != BallotOrder::Again {
            self.state.promise(asked.ballot);
            self.after_promise(now, promised, &asked.proposal, out);
        }
        let accepted = self.state.accepted.clone();
        let answer = EpochMessage::Sealed { epoch, ballot: asked.ballot, accepted };
        self.send(asked.from, answer, out);
    }

    /// Handles `Accept`: accepts the proposal, promises its ballot and answers `Accepted`. A voter
    /// that was not sealed is sealed by it. The lease machine is not asked: a quorum has consented
    /// before. An `Accept` of the ballot accepted last is only answered again; it is counted and
    /// dropped if it names another proposal. Refused if a higher ballot is promised; counted and
    /// dropped if the proposal cannot follow.
    pub(super) fn on_accept(
        &mut self,
        now: Now,
        current: &SharedEpoch,
        asked: &VoteRequest,
        out: &mut EpochOutbox,
    ) {
        if !self.fits(current, asked) {
            return;
        }
        let VoteRequest { from, ballot, proposal } = asked.clone();
        let last = self.state.accepted.as_ref().filter(|(last, _)| *last == ballot);
        let again = last.is_some();
        if last.is_some_and(|(_, accepted)| *accepted != proposal)
            && !self.fault_injection.has(ReplicatorFault::BallotWithoutNode)
        {
            self.stats.nonsense += 1; // a proposer has one proposal per ballot
            return;
        }
        match self.state.accept(ballot, proposal.clone(), self.fault_injection) {
            BallotOrder::Not(promise) => self.refuse(asked, BallotRefusal::Promised(promise), out),
            promised => {
                self.proposed = Some(proposal.clone());
                self.restart_patience(now);
                if !again {
                    out.push(EpochOutput::Pending(proposal.clone()));
                    self.after_promise(now, promised, &proposal, out);
                }
                let epoch = current.id();
                self.send(from, EpochMessage::Accepted { epoch, ballot }, out);
            }
        }
    }

    /// Effects of a promise, in this order: freeze at the first one, stop serving if the proposal
    /// removes this node (docs/protocol/leases.md#stop-at-the-own-answer), persist. `StopServing`
    /// is ordered once in a configuration. At the first promise the own snapshot may complete a
    /// sync. The caller has promised the ballot, and answers afterwards.
    fn after_promise(
        &mut self,
        now: Now,
        promised: BallotOrder,
        proposal: &SharedEpoch,
        out: &mut EpochOutbox,
    ) {
        if promised == BallotOrder::First {
            out.push(EpochOutput::Freeze(self.current().id()));
            self.restart_patience(now);
            self.own_snapshot_counts();
        }
        if !proposal.is_member(self.me) && !self.stopped {
            self.stopped = true;
            out.push(EpochOutput::StopServing);
        }
        self.persist(out);
        if promised == BallotOrder::First {
            self.may_be_ready(out);
        }
    }

    /// Asks the lease machine about the members that the message removes, and keeps the message
    /// until [`on_consent`](Self::on_consent). An open question of the same peer and kind is
    /// replaced. At [`CONSENTS_MAX`] the oldest question is dropped as well. Both are counted as
    /// `consents_dropped`, and their proposers get no answer.
    fn ask_consent(&mut self, waiting: ConsentQuery, out: &mut EpochOutbox) {
        let (key, why) = (waiting.key(), waiting.key().1);
        let removed = match &waiting {
            ConsentQuery::Withhold(asked) => asked.removed.clone(),
            ConsentQuery::Seal(asked) => self.current().removed_by(&asked.proposal),
        };
        let before = self.consents.waiting.len();
        self.consents.waiting.retain(|_, other| other.key() != key);
        if self.consents.waiting.len() >= CONSENTS_MAX {
            self.consents.waiting.pop_first();
        }
        self.stats.consents_dropped += (before - self.consents.waiting.len()) as u64;
        self.queries += 1;
        let query = self.queries;
        self.consents.waiting.insert(query, waiting);
        out.push(EpochOutput::AskConsent { query, removed, why });
    }

    /// The lease of `id` ended early: asks the lease machine again for each peer that was told that
    /// it runs, so that the proposer need not wait for it. A node that leaves in order releases its
    /// lease while others propose its removal. An open question of a peer is asked again instead of
    /// the answered one, because it is newer. Does nothing if no peer asked about `id`.
    pub(super) fn released(&mut self, id: ReplicaId, out: &mut EpochOutbox) {
        let mut newest = self.consents.leased.clone();
        for query in self.consents.waiting.values() {
            if let ConsentQuery::Withhold(asked) = query {
                newest.insert(asked.from, asked.clone());
            }
        }
        for asked in newest.into_values().filter(|asked| asked.removed.contains(&id)) {
            self.ask_consent(ConsentQuery::Withhold(asked), out);
        }
    }

    /// The lease machine has answered: sends `Withheld` (whatever ballot is promised), or refuses
    /// the `Seal` because a lease promise still runs (checked first) or a higher ballot was
    /// promised meanwhile, or seals. Lease promises with no time left do not count as running.
    /// Ignored if the question was dropped, replaced, or of an earlier configuration.
    pub(super) fn on_consent(
        &mut self,
        now: Now,
        query: u64,
        mut remaining: Vec<Remaining>,
        out: &mut EpochOutbox,
    ) {
        remaining.retain(|(_, left)| !left.is_zero());
        match self.consents.waiting.remove(&query) {
            None => {} // given up, or of an earlier configuration
            Some(ConsentQuery::Withhold(asked)) => {
                let WithholdRequest { from, ballot, .. } = asked;
                if remaining.is_empty() {
                    self.consents.leased.remove(&from);
                } else {
                    self.consents.leased.insert(from, asked);
                }
                let epoch = self.current().id();
                self.send(from, EpochMessage::Withheld { epoch, ballot, remaining }, out);
            }
            Some(ConsentQuery::Seal(asked)) if !remaining.is_empty() => {
                self.refuse(&asked, BallotRefusal::Leased(remaining), out);
            }
            // Another ballot may have been promised while the lease machine was asked.
            Some(ConsentQuery::Seal(asked)) if self.refuses(&asked, out) => {}
            Some(ConsentQuery::Seal(asked)) => self.seal(now, &asked, out),
        }
    }
}
