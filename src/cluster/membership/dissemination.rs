//! Dissemination of the gossip state: changes at once, digests regularly
//! (docs/protocol/membership.md#eager-dissemination). The contents of the state do not matter here.
//!
//! Many nodes may change the state at the same time: when a node fails, all its observers accuse
//! it. If each node sent every merge of two such states to all, n changes would cost n³ messages.
//! Therefore a node sends a few of its changes at once and then one every [`PACE`]; it delays a
//! merge by about [`PACE`] and sends it only if no node of a lower incarnation has sent it
//! meanwhile (of n nodes with the same merge, about ln n send it); and it sends the whole state to
//! one peer at most once every [`PACE`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};

use super::state_history::StateHistory;
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::gossip::Gossip;
use crate::cluster::gossip::exchange::{GossipAnswer, GossipDigest, GossipRefused, Received};
use crate::cluster::gossip::merge::MergeRelation;
use crate::cluster::gossip::targets::{StateOrigin, Targeting, fanout, pace};
use crate::cluster::gossip::tombstones::Tombstones;
use crate::cluster::leader;
use crate::cluster::wire::ClusterMessage;

/// Time between two repair rounds, and how long they continue after the last change.
const REPAIR_EVERY: Duration = Duration::from_millis(100);
const REPAIR_FOR: Duration = Duration::from_secs(1);

/// Minimum time between two messages about changes, after `AT_ONCE` messages without delay. Also
/// the time for which a merge is delayed.
const PACE: Duration = Duration::from_millis(100);
const AT_ONCE: u32 = 4;

/// Schedules gossip and selects its receivers. The gossip state itself belongs to the caller, which
/// must call [`changed`](Self::changed) after each change that it makes, and [`flush`](Self::flush)
/// at the end of a batch of inputs.
#[derive(Debug)]
pub(super) struct Dissemination {
    targeting: Targeting,
    /// The state has changed since the last [`flush`](Self::flush), whether or not `news` is set.
    is_fresh: bool,
    /// A change that has not been sent yet; `Own` if any part of it is. A delayed merge is only in
    /// `merged_at`.
    news: Option<StateOrigin>,
    /// Set after a merge of two concurrent states; the result is sent at this time if no other node
    /// has sent it.
    merged_at: Option<Instant>,
    /// Time until which the sent changes have used the budget of one per [`PACE`]; in the past if
    /// none was sent lately. Answers, repair and regular gossip use none of it.
    paid_until: Instant,
    history: StateHistory,
    /// The state and its digest; `None` after a change. Its seen set may be older than that of the
    /// present state.
    shared: Option<(u64, Arc<Gossip>)>,
    whole_at: BTreeMap<ReplicaId, Instant>, // recent receivers of the whole state; ≤ members
    gossip_at: Instant,                     // next regular gossip
    repair_at: Option<Instant>, // next repair round; `None` once nothing has changed for a while
    repair_until: Instant,
    was_converged: bool, // at the last flush
    tombstones: Tombstones,
}

impl Dissemination {
    /// Starts with this state as the only known one and nothing to send. Regular gossip begins
    /// after one interval; the jitter keeps nodes that start together apart.
    pub(super) fn new(core: &mut MembershipCore, now: Now, gossip: &Gossip) -> Self {
        let config = &core.config;
        let targeting = Targeting {
            different_view_probability: config.gossip_different_view_probability,
            direct_limit: config.direct_limit,
            ..Targeting::default()
        };
        let first = core.jittered(core.config.gossip_interval);
        Self {
            targeting,
            is_fresh: false,
            news: None,
            merged_at: None,
            paid_until: now.mono,
            history: StateHistory::new(Arc::new(gossip.clone())),
            shared: None,
            whole_at: BTreeMap::new(),
            gossip_at: now.mono + first,
            repair_at: None,
            repair_until: now.mono,
            was_converged: false,
            tombstones: Tombstones::new(),
        }
    }

    /// Records a change of the state, to be sent by the next [`flush`](Self::flush). `Own` and
    /// `Heard` changes before the same message go out as `Own`.
    pub(super) fn changed(&mut self, news: StateOrigin) {
        self.mark_changed();
        self.news = Some(if self.news == Some(StateOrigin::Own) { StateOrigin::Own } else { news });
    }

    /// Records that the state differs from the cached one, without a message about it.
    fn mark_changed(&mut self) {
        self.shared = None;
        self.is_fresh = true;
    }

    /// Whether the state has changed since the last [`flush`](Self::flush), also by a merge whose
    /// message is delayed. `false` for a change that was flushed and still waits to be sent.
    pub(super) const fn has_news(&self) -> bool {
        self.is_fresh
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let others = [self.news.map(|_| self.tells_at()), self.merged_at, self.repair_at];
        others.into_iter().flatten().fold(self.gossip_at, Instant::min)
    }

    /// Earliest time of the next message about a change: now or earlier for the first [`AT_ONCE`]
    /// messages of a burst, then one per [`PACE`].
    fn tells_at(&self) -> Instant {
        let ahead = PACE * (AT_ONCE - 1);
        Instant::default() + self.paid_until.saturating_since(Instant::default() + ahead)
    }

    /// The digest and a shared copy of the state, made at the first call after a change. `gossip`
    /// must be the state that the last [`changed`](Self::changed) was about.
    fn shared(&mut self, gossip: &Gossip) -> &(u64, Arc<Gossip>) {
        self.shared.get_or_insert_with(|| (gossip.digest(), Arc::new(gossip.clone())))
    }

    fn digest(&mut self, gossip: &Gossip) -> u64 {
        self.shared(gossip).0
    }

    fn state(&mut self, gossip: &Gossip) -> ClusterMessage {
        ClusterMessage::Gossip(Arc::clone(&self.shared(gossip).1))
    }

    /// Sends what changed, after all inputs of a batch were handled: a change that is due, and, on
    /// the first convergence, the seen set. If the state has changed, takes it into the history and
    /// prolongs the repair by [`REPAIR_FOR`] from now; a repair round that is planned already keeps
    /// its time. A change that is not due is sent by a later `flush` or `tick`.
    pub(super) fn flush(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        if std::mem::take(&mut self.is_fresh) {
            let (digest, state) = self.shared(gossip).clone();
            self.history.push(digest, state);
            self.repair_until = now.mono + REPAIR_FOR;
            self.repair_at.get_or_insert(now.mono + REPAIR_EVERY);
            self.whole_at.retain(|_, at| now.mono < *at + PACE);
        }
        self.tell(core, now, gossip, out);
        self.tell_convergence(core, gossip, out);
    }

    /// Sends a change if it is due: to the eager receivers, and a seen set of this node alone to
    /// the leader, unless the leader is this node or one of the receivers. It uses the budget even
    /// if there is no receiver. A merge whose delay is over counts as an `Own` change. Does nothing
    /// before [`tells_at`](Self::tells_at); the change then waits, together with later ones.
    fn tell(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        let me = core.me.incarnation;
        if self.merged_at.is_some_and(|at| now.mono >= at) {
            self.merged_at = None;
            self.news = Some(StateOrigin::Own);
        }
        if now.mono < self.tells_at() {
            return;
        }
        let Some(news) = self.news.take() else { return };
        self.paid_until = self.paid_until.max(now.mono) + PACE;
        let eager = self.targeting.eager(gossip, me, news, &mut core.rng);
        if !eager.is_empty() {
            let message = self.news_of(core, gossip, eager.len());
            for target in &eager {
                send(core, gossip, *target, message.clone(), out);
            }
        }
        if let Some(leads) = leader::leader(gossip, me).filter(|id| *id != me)
            && !eager.contains(&leads)
        {
            let seen = ClusterMessage::GossipSeen(gossip.i_have_seen(me));
            send(core, gossip, leads, seen, out);
        }
    }

    /// The delta since the oldest kept state, or the whole state if that is not much longer or
    /// there is no delta. Counts it as sent to `targets` nodes.
    fn news_of(
        &mut self,
        core: &mut MembershipCore,
        gossip: &Gossip,
        targets: usize,
    ) -> ClusterMessage {
        if let Some(delta) = self.history.news(gossip) {
            core.stats.deltas_sent += targets as u64;
            ClusterMessage::GossipDelta(Arc::new(delta))
        } else {
            core.stats.states_sent += targets as u64;
            self.state(gossip)
        }
    }

    /// When convergence is reached since the last call, every node drops the earlier states as
    /// bases of deltas. The leader is the first to know that all members have seen the state, and
    /// sends them the seen set: the first ones in the order of gossip, at most
    /// [`Targeting::direct_limit`] of them, or the fanout if that is more. Does nothing while
    /// convergence lasts; it is reported again after it was lost.
    fn tell_convergence(
        &mut self,
        core: &mut MembershipCore,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        let me = core.me.incarnation;
        let converged = gossip.converged(me);
        if std::mem::replace(&mut self.was_converged, converged) == converged || !converged {
            return;
        }
        let digest = self.digest(gossip);
        self.history.all_have(digest);
        if leader::leader(gossip, me) == Some(me) {
            let limit = self.targeting.direct_limit.max(fanout(gossip.len()));
            let seen = gossip.seen_set();
            let others = gossip.members().map(|member| member.node).filter(|node| *node != core.me);
            for node in others.take(limit).collect::<Vec<_>>() {
                core.send(node, ClusterMessage::GossipSeen(seen.clone()), out);
            }
        }
    }

    /// Performs due work: delayed changes, repair, regular gossip. Repair and regular gossip each
    /// send one digest to one random member; if both are due, one digest serves both. Above the
    /// direct limit repair leaves the seen set out. Both are planned again even if nothing is sent,
    /// because there is no other member that this node does not accuse.
    pub(super) fn tick(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        self.tell(core, now, gossip, out);
        let regular = now.mono >= self.gossip_at;
        let repair = self.repair_at.is_some_and(|at| now.mono >= at);
        if !regular && !repair {
            return;
        }
        if repair {
            let goes_on = now.mono < self.repair_until;
            self.repair_at = goes_on.then(|| now.mono + core.jittered(REPAIR_EVERY));
        }
        if regular {
            let interval = pace(gossip, core.config.gossip_interval);
            self.gossip_at = now.mono + core.jittered(interval);
        }
        let me = core.me.incarnation;
        let Some(target) = self.targeting.regular(gossip, me, &mut core.rng) else { return };
        let (cluster, content) = (gossip.cluster(), self.digest(gossip));
        // In a large cluster the seen set is a long list: repair compares only the state.
        let asks = regular || gossip.len() <= self.targeting.direct_limit;
        let seen = asks.then(|| gossip.seen_digest());
        let digest = GossipDigest { cluster, content, seen };
        send(core, gossip, target, ClusterMessage::GossipDigest(digest), out);
    }

    /// Handles a received gossip message, and answers it. A change of `gossip` is recorded like one
    /// by [`changed`](Self::changed); a merge of two concurrent states is sent later, and only if
    /// no node of a lower incarnation sends it before. A state that the history knows as contained
    /// in this one is not merged, but answered with what the sender lacks. A digest or a seen set
    /// changes only the seen set, which is recorded nowhere here: the caller compares it. Other
    /// messages are ignored.
    ///
    /// # Errors
    /// As [`Gossip::receive`]. Nothing was merged or scheduled, and nothing is sent.
    pub(super) fn receive(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &mut Gossip,
        from: NodeId,
        message: &ClusterMessage,
        out: &mut MembershipOutbox,
    ) -> Result<(), GossipRefused> {
        let (me, peer) = (core.me.incarnation, from.incarnation);
        // Digest of the peer's present state.
        let mut theirs = None;
        let answer = match message {
            ClusterMessage::Gossip(state) => {
                let (content, own) = (state.digest(), self.digest(gossip));
                theirs = Some(content);
                let received = if content != own && self.history.knows(content) {
                    // Many peers send the same state: a contained one is not merged again.
                    let digest = GossipDigest { cluster: state.cluster(), content, seen: None };
                    gossip.receive_digest(peer, &digest, own, |_| true)?
                } else {
                    gossip.receive(me, peer, state)?
                };
                self.history.contains(content);
                self.leave_merge_to(me, peer, content == own);
                self.received(core, now, received)
            }
            ClusterMessage::GossipDelta(delta) => {
                let own = self.digest(gossip);
                let knows = |digest| self.history.knows(digest);
                let received = gossip.receive_delta((me, peer), delta, own, knows)?;
                self.leave_merge_to(me, peer, delta.content() == own);
                if received.answer != GossipAnswer::Status {
                    self.history.contains(delta.content());
                }
                self.received(core, now, received)
            }
            ClusterMessage::GossipDigest(digest) => {
                let own = self.digest(gossip);
                theirs = Some(digest.content);
                let knows = |digest| self.history.knows(digest);
                let received = gossip.receive_digest(peer, digest, own, knows)?;
                self.received(core, now, received)
            }
            ClusterMessage::GossipStatus(status) => {
                theirs = Some(status.content);
                gossip.compare(peer, status)?
            }
            ClusterMessage::GossipSeen(seen) => {
                let received = gossip.receive_seen(peer, seen)?;
                self.received(core, now, received)
            }
            _ => GossipAnswer::Nothing,
        };
        self.answer(core, now, gossip, (from, theirs), answer, out);
        Ok(())
    }

    /// Several nodes may have made the same merge. Of two that know of each other, only the one
    /// with the lower incarnation sends it: forgets the delayed merge if `peer` has the same state
    /// and the lower incarnation.
    fn leave_merge_to(&mut self, me: ReplicaId, peer: ReplicaId, is_same: bool) {
        if is_same && peer < me {
            self.merged_at = None;
        }
    }

    /// Sends an answer. `theirs` is the digest of the receiver's state, if known: `State` is sent
    /// as a delta to it where the history allows, otherwise as the whole state, unless that went to
    /// the same node within [`PACE`]; then nothing is sent, and a later round repairs it.
    fn answer(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &Gossip,
        (to, theirs): (NodeId, Option<u64>),
        answer: GossipAnswer,
        out: &mut MembershipOutbox,
    ) {
        let message = match answer {
            GossipAnswer::Nothing => return,
            GossipAnswer::Status => ClusterMessage::GossipStatus(gossip.status()),
            GossipAnswer::State => {
                if let Some(delta) = theirs.and_then(|base| self.history.news_since(gossip, base)) {
                    core.stats.deltas_sent += 1;
                    ClusterMessage::GossipDelta(Arc::new(delta))
                } else if self.may_send_whole(now, gossip, to) {
                    core.stats.states_sent += 1;
                    self.state(gossip)
                } else {
                    return;
                }
            }
            GossipAnswer::Seen => ClusterMessage::GossipSeen(gossip.seen_set()),
        };
        core.send(to, message, out);
    }

    /// Whether the whole state may be sent to this node now, as an answer; if so, records that it
    /// is. Nodes that are not members are not limited, and [`tell`](Self::tell) does not ask.
    fn may_send_whole(&mut self, now: Now, gossip: &Gossip, to: NodeId) -> bool {
        let id = to.incarnation;
        let was_sent = self.whole_at.get(&id).is_some_and(|at| now.mono < *at + PACE);
        if !was_sent && gossip.contains(id) {
            self.whole_at.insert(id, now.mono);
        }
        !was_sent
    }

    /// Counts and schedules a merge; returns the answer to send. A state taken over unchanged is a
    /// `Heard` change, and ends a delayed merge, which it contains. A merge of two concurrent
    /// states is sent after a random time of about [`PACE`]; one that waits already keeps its time.
    /// Does nothing if the state did not change.
    fn received(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        received: Received,
    ) -> GossipAnswer {
        match received.relation {
            MergeRelation::TheirsNewer => {
                core.stats.states_merged += 1;
                self.merged_at = None;
                self.changed(StateOrigin::Heard);
            }
            MergeRelation::Both => {
                core.stats.states_merged += 1;
                self.mark_changed();
                if self.merged_at.is_none() {
                    self.merged_at = Some(now.mono + core.jittered(PACE));
                }
            }
            MergeRelation::Same | MergeRelation::OursNewer => {}
        }
        received.answer
    }

    /// Drops tombstones older than `prune-gossip-tombstones-after`, if this node leads and has
    /// convergence, as a change of its own; a younger tombstone also keeps those of later removals.
    /// Must be called on every node and regularly, because the age of a tombstone counts from the
    /// first call that sees it.
    pub(super) fn forget(&mut self, core: &MembershipCore, now: Now, gossip: &mut Gossip) {
        let me = core.me.incarnation;
        let age = core.config.prune_gossip_tombstones_after;
        if gossip.tombstones().len() == 0 {
            return;
        }
        let due = self.tombstones.due(now.mono, gossip, age);
        let leads = |gossip: &Gossip| leader::leader(gossip, me) == Some(me);
        if let Some(stamp) = due.filter(|_| leads(gossip) && gossip.converged(me))
            && gossip.forget_up_to(me, stamp)
        {
            self.changed(StateOrigin::Own);
        }
    }
}

/// Sends to a member; drops the message if `to` is not one.
pub(super) fn send(
    core: &mut MembershipCore,
    gossip: &Gossip,
    to: ReplicaId,
    message: ClusterMessage,
    out: &mut MembershipOutbox,
) {
    if let Some(member) = gossip.member(to) {
        core.send(member.node, message, out);
    }
}

/// The nodes of these members; ids that are not members are left out.
pub(super) fn nodes(gossip: &Gossip, ids: &BTreeSet<ReplicaId>) -> BTreeSet<NodeId> {
    ids.iter().filter_map(|id| gossip.member(*id)).map(|member| member.node).collect()
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::machine::Outbox;

    use super::*;
    use crate::cluster::config::ClusterConfig;
    use crate::cluster::fault_injection::MembershipFaultInjection;
    use crate::cluster::gossip::tests::{id, joiner, node, state};
    use crate::cluster::membership::Membership;
    use crate::cluster::membership::port::{MembershipSetup, Memory};
    use crate::cluster::reachability::ReachabilityStatus;
    use crate::cluster::wire::ComparedSettings;

    /// B has made the same merge as A. If A is Down, no member accepts gossip of A.
    #[test]
    fn refused_delta_cancels_no_delayed_merge() {
        for (text, is_accepted) in [("A B C", true), ("Ad B C", false)] {
            let setup = MembershipSetup {
                me: node(2),
                address: joiner(2, 2).address,
                config: ClusterConfig::default(),
                settings: ComparedSettings::default(),
                memory: Memory::default(),
                directory: None,
                seed: 1,
                fault_injection: MembershipFaultInjection::none(),
            };
            let (mut core, now, mut out) =
                (Membership::new(setup).core, Now::default(), Outbox::new());
            let base = state(text);
            let mut merged = base.clone();
            assert!(merged.accuse(id('B'), id('C'), ReachabilityStatus::Unreachable));
            let delta = merged.delta(&base, vec![base.digest()]).expect("a small change");
            let message = ClusterMessage::GossipDelta(Arc::new(delta));
            let mut dissemination = Dissemination::new(&mut core, now, &merged);
            dissemination.merged_at = Some(now.mono + PACE);
            let from = node(1);
            let received =
                dissemination.receive(&mut core, now, &mut merged, from, &message, &mut out);
            assert_eq!(received.is_ok(), is_accepted, "{text}: {received:?}");
            assert_eq!(dissemination.merged_at.is_none(), is_accepted, "{text}");
        }
    }
}
