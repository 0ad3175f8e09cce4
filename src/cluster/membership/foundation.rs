//! Founding protocol: the seeds agree on one cluster, once
//! (docs/protocol/membership.md#founding-majority).
//!
//! It decides a single value by Lamport's Synod (*The Part-Time Parliament*, 1998). A proposer gets
//! its ballot promised by a majority of the seeds. It proposes the value accepted with the highest
//! ballot among their answers, or else a cluster of all promising seeds. The cluster is founded
//! once a majority has accepted. Split votes delay the decision, but can neither block it nor found
//! two clusters. With a data directory, every vote is durable before it is sent.
//!
//! **Jump rule.** A ballot whose number exceeds the highest known number by more than [`JUMP_MAX`]
//! is neither promised nor accepted, and its number is ignored. Each attempt increments the number
//! by one and takes tenths of a second, so an honest proposer is never that far ahead. Without the
//! rule, one ballot near the maximum number would leave none above it, and no seed could found a
//! cluster.
//!
//! The module depends on neither connections nor timers, and treats the gossip state as an opaque
//! value.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::NodeId;

use crate::cluster::fault_injection::{MembershipFault, MembershipFaultInjection};
use crate::cluster::member::Member;
use crate::cluster::wire::{ClusterMessage, Foundation, FoundingBallot, FoundingMemory};

/// Maximum number of a ballot. A higher one must always exist.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Maximum distance of a ballot number above the highest known number.
const JUMP_MAX: u64 = 1 << 32;

/// Identifies a voter: its address in the seed list, or its peer key if the seeds are found
/// by one DNS name.
pub(super) type VoterKey = String;

/// Acceptor and proposer of one seed. The seed asks itself like the others, by the same messages.
///
/// The caller must make [`memory`](Self::memory) durable before it sends an answer of the acceptor,
/// and must check that the sender votes and that a foundation is well formed.
#[derive(Clone, Debug)]
pub(super) struct Founding {
    me: NodeId,
    /// Votes needed for a decision: a majority of the voters.
    majority: usize,
    fault_injection: MembershipFaultInjection,
    /// State of the acceptor; it survives a restart on disk, the attempt does not.
    pub(super) memory: FoundingMemory,
    /// Highest known ballot number. A restart knows only that of the promised ballot.
    heard: u64,
    attempt: Option<FoundingAttempt>, // `None`: this seed proposes nothing now
}

/// One ballot of this seed as a proposer.
#[derive(Clone, Debug)]
struct FoundingAttempt {
    ballot: FoundingBallot,
    promised: BTreeMap<VoterKey, Box<Member>>, // ≤ voters
    /// The foundation with the highest ballot that a promise reported as accepted.
    adopted: Option<(FoundingBallot, Foundation)>,
    /// Set once, by [`Founding::propose`]: from then on promises are ignored.
    proposed: Option<Foundation>,
    accepted: BTreeSet<VoterKey>, // ≤ voters
}

/// Consequence of an answer for the proposer.
#[derive(Debug, PartialEq)]
pub(super) enum FoundingStep {
    /// Wait for more answers. Also for an answer that does not matter: of another ballot, late, or
    /// repeated.
    Wait,
    /// A majority has promised, and this accepted foundation must be proposed.
    Adopted(Foundation),
    /// A majority has promised, and none of them has accepted a foundation. Returned again for each
    /// further promise until a foundation is proposed, as is `Adopted`.
    Free,
    /// A majority has accepted: the cluster is founded.
    Founded(Foundation),
    /// A voter has promised a higher ballot: this attempt is over, try again later with a higher
    /// number.
    Overtaken,
}

impl Founding {
    /// A seed without an attempt. `voter_count` is the number of voters with this one, at least 1;
    /// `memory` is that of an earlier incarnation, or empty.
    pub(super) fn new(
        me: NodeId,
        voter_count: usize,
        memory: FoundingMemory,
        fault_injection: MembershipFaultInjection,
    ) -> Self {
        let heard = memory.promised.number;
        Self { me, majority: voter_count / 2 + 1, fault_injection, memory, heard, attempt: None }
    }

    pub(super) const fn majority(&self) -> usize {
        self.majority
    }

    /// Reduces the number of voters, because some seeds turned out to be this node itself. Other
    /// nodes count more voters among the same nodes and need at least as many votes, so any two
    /// majorities still share a node. A higher number than before changes nothing. An open attempt
    /// that has enough answers now takes its step with the next answer.
    pub(super) fn set_fewer_voters(&mut self, voter_count: usize) {
        self.majority = self.majority.min(voter_count / 2 + 1);
    }

    // ── the acceptor ──

    /// Answers a request for a promise with a promise that reports the accepted foundation, or with
    /// a refusal that names the promised ballot if `ballot` is below it (by number, then proposer)
    /// or jumps. The promised ballot itself is promised again. A promise to another proposer does
    /// not end an open attempt of this seed. `me` is this seed as a founder.
    pub(super) fn prepare(&mut self, ballot: FoundingBallot, me: Member) -> ClusterMessage {
        if !self.hear(ballot) || ballot < self.memory.promised {
            return self.refusal(ballot);
        }
        self.memory.promised = ballot;
        let accepted = self.memory.accepted.clone();
        ClusterMessage::FoundingPromise { ballot, member: Box::new(me), accepted }
    }

    /// Answers a request to accept: accepts unless `ballot` is below the promised one or jumps.
    /// Needs no promise before. Raises the promise to `ballot`, and replaces a foundation accepted
    /// earlier, also one of the same ballot.
    pub(super) fn accept(
        &mut self,
        ballot: FoundingBallot,
        foundation: Foundation,
    ) -> ClusterMessage {
        let is_below = ballot < self.memory.promised
            && !self.fault_injection.has(MembershipFault::FoundingBelowPromise);
        if !self.hear(ballot) || is_below {
            return self.refusal(ballot);
        }
        self.memory.promised = ballot.max(self.memory.promised);
        self.memory.accepted = Some((ballot, foundation));
        ClusterMessage::FoundingAccepted(ballot)
    }

    const fn refusal(&self, ballot: FoundingBallot) -> ClusterMessage {
        ClusterMessage::FoundingRefused { ballot, promised: self.memory.promised }
    }

    /// Whether the number of this ballot satisfies the jump rule ([`JUMP_MAX`]) and is at most
    /// [`NUMBER_MAX`].
    pub(super) fn is_near(&self, ballot: FoundingBallot) -> bool {
        ballot.number <= self.heard.saturating_add(JUMP_MAX).min(NUMBER_MAX)
    }

    /// Records the number of a ballot if it [is near](Self::is_near); returns whether it is. A
    /// lower number than the highest known one is near, and changes nothing.
    fn hear(&mut self, ballot: FoundingBallot) -> bool {
        let is_near = self.is_near(ballot);
        if is_near {
            self.heard = self.heard.max(ballot.number);
        }
        is_near
    }

    // ── the proposer ──

    /// Starts an attempt with the number after the highest known one, in place of an open attempt.
    /// Returns the request to send to every seed, including this one. Changes nothing in the
    /// acceptor's memory: this seed promises its ballot only by that request.
    pub(super) fn begin(&mut self) -> ClusterMessage {
        self.heard += 1;
        let ballot = FoundingBallot { number: self.heard, proposer: self.me.incarnation };
        self.attempt = Some(FoundingAttempt {
            ballot,
            promised: BTreeMap::new(),
            adopted: None,
            proposed: None,
            accepted: BTreeSet::new(),
        });
        ClusterMessage::FoundingPrepare(ballot)
    }

    /// Whether this node has an open attempt.
    pub(super) const fn is_trying(&self) -> bool {
        self.attempt.is_some()
    }

    /// Ends the attempt, if one is open. Its late answers are ignored; voters keep what they
    /// promised.
    pub(super) fn give_up(&mut self) {
        self.attempt = None;
    }

    /// The request of the present phase, to be sent to the seeds and repeated; `None` without an
    /// attempt. Asks for acceptance once a foundation is proposed, before that for a promise.
    pub(super) fn question(&self) -> Option<ClusterMessage> {
        let attempt = self.attempt.as_ref()?;
        Some(match &attempt.proposed {
            None => ClusterMessage::FoundingPrepare(attempt.ballot),
            Some(foundation) => ClusterMessage::FoundingAccept {
                ballot: attempt.ballot,
                foundation: foundation.clone(),
            },
        })
    }

    /// The members that have promised, in the order of their keys; none without an attempt.
    pub(super) fn promisers(&self) -> Vec<Member> {
        let promised = self.attempt.iter().flat_map(|attempt| attempt.promised.values());
        promised.map(|member| Member::clone(member)).collect()
    }

    /// Counts a promise for the open attempt, once per voter; the last one of a voter replaces its
    /// member. Returns `Wait` below a majority, for another ballot, and once a foundation is
    /// proposed: such a promise is not recorded. From a majority on `Adopted` if any promise, also
    /// an earlier one, reported an accepted foundation, otherwise `Free`.
    pub(super) fn promise(
        &mut self,
        key: VoterKey,
        ballot: FoundingBallot,
        member: Box<Member>,
        accepted: Option<(FoundingBallot, Foundation)>,
    ) -> FoundingStep {
        let majority = self.majority;
        let ignores = self.fault_injection.has(MembershipFault::FoundingIgnoresAccepted);
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.ballot == ballot) else {
            return FoundingStep::Wait;
        };
        if attempt.proposed.is_some() {
            return FoundingStep::Wait;
        }
        if accepted.as_ref().map(|(of, _)| of) > attempt.adopted.as_ref().map(|(of, _)| of) {
            attempt.adopted = accepted;
        }
        attempt.promised.insert(key, member);
        match &attempt.adopted {
            _ if attempt.promised.len() < majority => FoundingStep::Wait,
            Some((_, foundation)) if !ignores => FoundingStep::Adopted(foundation.clone()),
            _ => FoundingStep::Free,
        }
    }

    /// Proposes a foundation; the caller has seen a majority of promises, which is not checked.
    /// Each ballot proposes only one: a second call keeps the first. Returns the request to send;
    /// `None` without an attempt.
    pub(super) fn propose(&mut self, foundation: Foundation) -> Option<ClusterMessage> {
        let attempt = self.attempt.as_mut()?;
        attempt.proposed.get_or_insert(foundation);
        self.question()
    }

    /// Counts an acceptance for the open attempt, once per voter. `Founded` from a majority on, for
    /// each further acceptance again, because the attempt stays open; `Wait` before, for another
    /// ballot, and if nothing is proposed yet.
    pub(super) fn accepted(&mut self, key: VoterKey, ballot: FoundingBallot) -> FoundingStep {
        let majority = self.majority;
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.ballot == ballot) else {
            return FoundingStep::Wait;
        };
        let Some(foundation) = &attempt.proposed else { return FoundingStep::Wait };
        attempt.accepted.insert(key);
        if attempt.accepted.len() < majority {
            return FoundingStep::Wait;
        }
        FoundingStep::Founded(foundation.clone())
    }

    /// Handles the refusal of `ballot` by a voter that has promised `promised`, whose number is
    /// recorded unless it jumps, also without an attempt. `Overtaken` if this refers to the open
    /// attempt and `promised` is higher: one such refusal ends the attempt. Otherwise `Wait`: a
    /// refusal that names a jump or no higher ballot ends nothing.
    pub(super) fn refused(
        &mut self,
        ballot: FoundingBallot,
        promised: FoundingBallot,
    ) -> FoundingStep {
        let is_near = self.hear(promised);
        let mine = self.attempt.as_ref().is_some_and(|attempt| attempt.ballot == ballot);
        if !mine || !is_near || promised <= ballot {
            return FoundingStep::Wait;
        }
        self.attempt = None;
        FoundingStep::Overtaken
    }
}

#[cfg(all(test, feature = "canaries"))]
#[path = "founding_tests.rs"]
mod tests;

#[cfg(test)]
mod jump_tests {
    use ostraca_ddata::id::{PeerKey, ReplicaId};

    use super::*;
    use crate::cluster::member::Address;

    fn seed() -> (Founding, Member) {
        let node = NodeId { peer: PeerKey::new([1; 32]), incarnation: ReplicaId::new(1) };
        let address = Address::new("/dns4/a/tcp/1").expect("short");
        let memory = FoundingMemory::default();
        let founding = Founding::new(node, 2, memory, MembershipFaultInjection::none());
        (founding, Member::joining(node, address, 1))
    }

    fn ballot(number: u64) -> FoundingBallot {
        FoundingBallot { number, proposer: ReplicaId::new(2) }
    }

    #[test]
    fn ballot_that_jumps_is_not_promised() {
        let (mut founding, me) = seed();
        for number in [JUMP_MAX + 1, NUMBER_MAX, u64::MAX] {
            let answer = founding.prepare(ballot(number), me.clone());
            let promised = FoundingBallot::default();
            let refused = ClusterMessage::FoundingRefused { ballot: ballot(number), promised };
            assert_eq!(answer, refused);
        }
        let answer = founding.prepare(ballot(JUMP_MAX), me);
        assert!(matches!(answer, ClusterMessage::FoundingPromise { .. }), "{answer:?}");
        founding.begin();
        let own = founding.attempt.as_ref().map(|attempt| attempt.ballot.number);
        assert_eq!(own, Some(JUMP_MAX + 1), "above all promised ballots");
    }

    #[test]
    fn refusal_that_names_a_jump_is_ignored() {
        let (mut founding, _) = seed();
        let ClusterMessage::FoundingPrepare(own) = founding.begin() else { panic!("a prepare") };
        assert_eq!(founding.refused(own, ballot(NUMBER_MAX)), FoundingStep::Wait);
        assert!(founding.is_trying());
        assert_eq!(founding.refused(own, ballot(9)), FoundingStep::Overtaken);
        let ClusterMessage::FoundingPrepare(next) = founding.begin() else { panic!("a prepare") };
        assert_eq!(next.number, 10);
    }
}
