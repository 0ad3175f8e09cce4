//! The stage of a node that is in a cluster: the gossip state, and the parts that read or change
//! it.
//!
//! Inputs change the state. The consequences for this node and for other nodes are computed once
//! after each batch of inputs, in `settle`, which only `tick` calls. A method that returns an
//! optional [`StopReason`] returns `None` while the node goes on; else its caller stops the node.

mod resolution;

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::{Epoch, ProposalOutcome};

use super::admission::{self, GossipChange};
use super::cluster_search::SearchResult;
use super::configuration_proposals::Proposer;
use super::dissemination::Dissemination;
use super::failure_observation::{FailureHandler, view};
use super::notifier::Notifier;
use super::orphan_recovery::OrphanRecovery;
use super::port::{MembershipCommand, OperatorNotice, StopReason};
use super::quarantine::Quarantine;
use super::recovery::{GivenUp, reached};
use super::seed_invitation::{self, SeedInviter};
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::events::ClusterState;
use crate::cluster::gossip::exchange::GossipRefused;
use crate::cluster::gossip::targets::StateOrigin;
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::{Address, Status};
use crate::cluster::reachability::ReachabilityStatus;
use crate::cluster::wire::{ClusterMessage, Foundation};

/// Interval and maximum duration of the requests by which a removed node asks the other members to
/// confirm its removal.
const ASK_OUT_EVERY: Duration = Duration::from_millis(200);
const ASK_OUT_FOR: Duration = Duration::from_secs(3);
/// A node that does not lead considers a newly connected newcomer after this delay.
const FOLLOWERS_LOOK: Duration = Duration::from_secs(1);
/// Minimum interval between evaluations of the seen set and of connections while a member is
/// unreachable. In a large cluster every message may change them, and each evaluation visits all
/// members.
const SIGNS_EVERY: Duration = Duration::from_millis(100);

/// The state of a node in a cluster.
#[derive(Debug)]
pub(super) struct JoinedState {
    gossip: Gossip,
    dissemination: Dissemination,
    failures: FailureHandler,
    proposer: Proposer,
    notifier: Notifier,
    quarantine: Quarantine,
    /// Search for a cluster, in case no remaining member knows this node.
    orphan_recovery: OrphanRecovery,
    seed_inviter: SeedInviter,
    /// Set while this node, removed after an orderly leave, waits until a member confirms it.
    exit_confirmation: Option<ExitConfirmation>,
    /// An input changed something: `settle` is due at once and computes the consequences.
    is_unsettled: bool,
    /// Next time to check whether a proposal is needed.
    look_at: Option<Instant>,
    /// Next time to evaluate the seen set and the connections.
    signs_at: Option<Instant>,
    /// Members that an operator gave up.
    given_up: GivenUp,
    /// Time from which the strategy's next decision against this side stops it; no deadline. `None`
    /// without such a decision since the last quorum or installed configuration.
    ends_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct ExitConfirmation {
    ask_at: Instant,
    until: Instant,
}

impl JoinedState {
    /// Enters the cluster with this state, which this node has seen now, and announces what it
    /// hosts. Messages and notifications follow with the next [`tick`](Self::tick).
    pub(super) fn new(core: &mut MembershipCore, now: Now, gossip: Gossip) -> Self {
        let mut inside = Self {
            dissemination: Dissemination::new(core, now, &gossip),
            gossip,
            failures: FailureHandler::new(core, now),
            proposer: Proposer::default(),
            notifier: Notifier::default(),
            quarantine: Quarantine::default(),
            orphan_recovery: OrphanRecovery::default(),
            seed_inviter: SeedInviter::new(core, now),
            exit_confirmation: None,
            is_unsettled: true,
            look_at: None,
            signs_at: None,
            given_up: GivenUp::default(),
            ends_at: None,
        };
        inside.gossip.see(core.me.incarnation);
        inside.dissemination.changed(StateOrigin::Heard);
        inside.host(core);
        inside
    }

    pub(super) const fn gossip(&self) -> &Gossip {
        &self.gossip
    }

    /// Whether no deciding member has been reachable for so long that this node searches again.
    pub(super) const fn is_recovering(&self) -> bool {
        self.orphan_recovery.is_searching()
    }

    /// The last state published to subscribers; without members before the first tick.
    pub(super) const fn told(&self) -> &Arc<ClusterState> {
        self.notifier.told()
    }

    /// The earliest deadline of all parts; the start of the clock while something is unsettled.
    pub(super) fn next_deadline(&self) -> Instant {
        if self.is_unsettled {
            return Instant::default();
        }
        let others = [
            self.proposer.next_deadline(),
            self.notifier.next_deadline(),
            self.orphan_recovery.next_deadline(),
            self.seed_inviter.next_deadline(),
            self.given_up.next_deadline(),
            self.look_at,
            self.signs_at,
            self.exit_confirmation.map(|confirmation| confirmation.ask_at.min(confirmation.until)),
            Some(self.failures.next_deadline()),
        ];
        others.into_iter().flatten().fold(self.dissemination.next_deadline(), Instant::min)
    }

    fn changed_by_me(&mut self) {
        self.dissemination.changed(StateOrigin::Own);
        self.is_unsettled = true;
    }

    // ── time ──

    /// Performs what is due in all parts, with one order of the strategy at most, then computes the
    /// consequences, then gossips what is due. A reason to stop ends the call at once; those of
    /// `confirm_exit` and `seek` come first.
    pub(super) fn tick(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        if let Some(why) = self.confirm_exit(core, now, out).or_else(|| self.seek(core, now, out)) {
            return Some(why);
        }
        self.notifier.tick(now, out);
        if self.given_up.tick(core, now, &self.gossip, out) {
            self.notifier.spared = self.given_up.nodes();
        }
        if self.seed_inviter.begin_round(now) && self.has_quorum(core) {
            let leads = self.told().leader == Some(core.me);
            self.seed_inviter.call(core, now, &self.gossip, leads, out);
        }
        if self.failures.tick(core, now, &mut self.gossip, out) {
            self.changed_by_me();
        }
        if let Some(order) = self.failures.resolve(core, now, out)
            && let Some(why) = self.resolved(core, now, &order, out)
        {
            return Some(why);
        }
        let why = self.settle(core, now, out);
        if why.is_none() {
            self.dissemination.tick(core, now, &self.gossip, out);
        }
        why
    }

    /// Computes the consequences of all changes, and sends them: follows the installed
    /// configuration, updates the failure detector, proposes, notifies the other parts, gossips,
    /// and stores known addresses. Without a change it only considers proposals and tombstones that
    /// are due, an exit after the drain, and a regained quorum. Stops the node without sending if
    /// it is Down, and after sending if it may leave as the last one.
    fn settle(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        let me = core.me.incarnation;
        self.is_unsettled |= self.signs_at.is_some_and(|at| now.mono >= at);
        if core.pending.take_if(|pending| now.mono >= pending.until).is_some() {
            self.is_unsettled = true;
        }
        let mut news = self.is_unsettled || self.dissemination.has_news();
        if news && Proposer::follow(core, &mut self.gossip) {
            self.dissemination.changed(StateOrigin::Heard);
        }
        if self.gossip.member(me).is_some_and(|own| own.status == Status::Down) {
            return Some(StopReason::Downed);
        }
        if core.drained {
            self.exit(core);
        }
        if self.ends_at.is_some() && self.has_quorum(core) {
            self.ends_at = None; // enough members have returned
        }
        self.dissemination.forget(core, now, &mut self.gossip);
        news |= self.dissemination.has_news();
        if news {
            self.signs_at = None;
            self.orphan_recovery.observe(core, now, &self.gossip);
            self.seed_inviter.observe(now, &self.gossip);
            self.failures.observe(core, now, &mut self.gossip, out);
        }
        let dues = [self.proposer.next_deadline(), self.look_at];
        let is_due = dues.into_iter().flatten().any(|at| now.mono >= at);
        if news || is_due {
            self.look_at = None;
        }
        if (news || is_due) && self.proposer.consider(core, now, &mut self.gossip, out) {
            self.dissemination.changed(StateOrigin::Own);
        }
        if news || self.dissemination.has_news() {
            self.notifier.tell(core, now, &self.gossip, out);
            self.dissemination.flush(core, now, &self.gossip, out);
            core.remember_members(&self.gossip, out);
        }
        self.is_unsettled = false;
        self.last_one_out(core)
    }

    // ── links ──

    /// A node is connected; `cluster` is the one that it announced, and another one is only
    /// reported. A removed node is then informed, and nothing else happens. Otherwise its peer no
    /// longer counts as refusing. A seed that is no member is invited, on a side with a quorum. A
    /// Joining or WeaklyUp member, or any member while newcomers wait, has proposals considered: in
    /// the next tick by the leader, after [`FOLLOWERS_LOOK`] by another member.
    pub(super) fn up(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        node: NodeId,
        cluster: Option<ClusterId>,
        out: &mut MembershipOutbox,
    ) {
        let ours = self.gossip.cluster();
        if let Some(theirs) = cluster.filter(|theirs| *theirs != ours) {
            core.say(now, OperatorNotice::ForeignCluster { node, ours, theirs }, out);
        }
        if !self.gossip.contains(node.incarnation)
            && self.gossip.is_removed(node.incarnation, u64::MAX)
        {
            return self.notifier.dismiss(core, now, node, out);
        }
        self.quarantine.clear(node.peer);
        self.orphan_recovery.up(core, node, out);
        if self.seed_inviter.is_called(core, node, &self.gossip) && self.has_quorum(core) {
            seed_invitation::invite(core, node, &self.gossip, out);
        }
        self.at_a_members_address(core, now, node, out);
        self.watched(core, now, out, |monitor, orders| monitor.connected(now.mono, node, orders));
        self.relinked(now, node);
        let waits = |status| matches!(status, Status::Joining | Status::WeaklyUp);
        let is_missed = |status| waits(status) || self.proposer.has_newcomers();
        if self.gossip.member(node.incarnation).is_some_and(|member| is_missed(member.status)) {
            // A connected newcomer may be added, or was omitted from an earlier proposal. Followers
            // wait, because in a mass join every newcomer connects with all other nodes.
            let leads = self.told().leader == Some(core.me);
            let at = if leads { now.mono } else { now.mono + FOLLOWERS_LOOK };
            self.look_at = Some(self.look_at.map_or(at, |first| first.min(at)));
        }
    }

    /// These addresses belong to this node.
    pub(super) fn add_own(&mut self, addresses: &[Address]) {
        self.seed_inviter.add_own(addresses);
    }

    /// Reports each member (or this node) whose address another peer answers at. This counts as a
    /// refused connection to that member, even if the notice is dropped: evidence, but not proof.
    /// Another incarnation of the same peer and the node's own address in gossip do not count.
    fn at_a_members_address(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        let own = self.gossip.member(node.incarnation).map(|member| member.address.clone());
        let addresses = core.links.addresses(node).cloned().unwrap_or_default();
        if addresses.iter().all(|address| Some(address) == own.as_ref()) {
            return;
        }
        let mut taken = Vec::new();
        for address in addresses.into_iter().filter(|address| Some(address) != own.as_ref()) {
            let own_one = (address == core.address).then_some(core.me);
            let members = self.notifier.at(&address).chain(own_one);
            let others: Vec<_> = members.filter(|member| member.peer != node.peer).collect();
            taken.extend(others.into_iter().map(|member| (member, address.clone())));
        }
        for (member, address) in taken {
            core.say(now, OperatorNotice::AddressTaken { address, member, by: node }, out);
            self.refused(core, now, member, out);
        }
    }

    /// The last connection with a node was closed. Without a refused dial this accuses nobody.
    pub(super) fn closed(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        self.notifier.closed(node, out);
        self.orphan_recovery.closed(core, now, node, out);
        self.watched(core, now, out, |monitor, orders| monitor.closed(now.mono, node, orders));
        self.relinked(now, node);
    }

    /// A member was connected or disconnected: has the strategy look again, within [`SIGNS_EVERY`],
    /// while gossip contains any verdict. Does nothing for nodes that are not members.
    fn relinked(&mut self, now: Now, node: NodeId) {
        if self.gossip.lists(node) && !self.gossip.reachability().is_all_reachable() {
            self.signs_at.get_or_insert(now.mono + SIGNS_EVERY);
        }
    }

    /// A peer refuses this node as removed; if it is no member, that is nonsense. Either way, stops
    /// the node (`out_for_good`) if it must believe the recorded refusals (see [`Quarantine`]).
    pub(super) fn quarantined(
        &mut self,
        core: &mut MembershipCore,
        by: PeerKey,
    ) -> Option<StopReason> {
        if !self.quarantine.record(&self.gossip, by) {
            core.stats.nonsense += 1;
        }
        let (me, epoch) = (core.me.incarnation, core.installed.as_deref());
        self.quarantine.is_out(me, epoch, &self.gossip).then(|| self.out_for_good(core))
    }

    /// A dial of `node` was refused, or another peer answers in its place.
    pub(super) fn refused(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        self.watched(core, now, out, |monitor, orders| monitor.refused(now.mono, node, orders));
    }

    /// A former incarnation of a peer has ended, or at least no process listens for it. With a
    /// proof of death that the configuration accepts (before the first one, this node's setting),
    /// the member is marked Terminated and Down; otherwise it counts as closed and refused, even if
    /// a link remains. Ignored if `old` is this node or no member.
    pub(super) fn new_incarnation(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        (old, _new): (NodeId, NodeId),
        is_proof: bool,
        out: &mut MembershipOutbox,
    ) {
        // If another peer claims a member's incarnation, this tells nothing about the member.
        if !self.gossip.lists(old) || old == core.me {
            return;
        }
        // Lease settings belong to the configuration
        // (docs/protocol/leases.md#lease-settings-belong-to-the-configuration).
        let own = core.config.lease.restart_is_proof;
        let proves = core.installed.as_ref().map_or(own, |epoch| epoch.lease().restart_is_proof);
        if !(is_proof && proves) {
            self.closed(core, now, old, out);
            return self.refused(core, now, old, out);
        }
        let (me, id) = (core.me.incarnation, old.incarnation);
        let accused = self.gossip.accuse(me, id, ReachabilityStatus::Terminated);
        let downed = self.gossip.move_to(me, id, Status::Down).unwrap_or(false);
        if accused || downed {
            self.changed_by_me();
        }
    }

    /// Passes an event to the failure detector, and announces what it changed in gossip.
    fn watched(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
        feed: impl FnOnce(
            &mut crate::cluster::failure_detector::Monitor,
            &mut ostraca_ddata::machine::Outbox<crate::cluster::failure_detector::MonitorOrder>,
        ),
    ) {
        if self.failures.with(core, now, &mut self.gossip, out, feed) {
            self.changed_by_me();
        }
    }

    // ── messages ──

    /// Handles a message; `waited` is its time in the inbox, by which late gossip is dropped.
    /// `Leave` and `Down` count only from members, Down ones too, and are nonsense from others;
    /// heartbeats and joins are answered for any node. Messages of the search are ignored unless
    /// this node searches again, those of the founding always; neither counts as nonsense.
    pub(super) fn message(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        message: ClusterMessage,
        waited: Duration,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        use ClusterMessage as M;
        match message {
            M::Heartbeat(sequence) => core.send(from, M::HeartbeatAnswer(sequence), out),
            M::HeartbeatAnswer(sequence) => self.watched(core, now, out, |monitor, orders| {
                monitor.answered(now.mono, from, sequence, orders);
            }),
            M::ProbeAsk { subject, probe } => self.watched(core, now, out, |monitor, orders| {
                monitor.probe_asked(now.mono, from, subject, probe, orders);
            }),
            M::Probed { subject, probe } => self.watched(core, now, out, |monitor, orders| {
                monitor.vouched(now.mono, from, subject, probe, orders);
            }),
            M::Gossip(_)
            | M::GossipDelta(_)
            | M::GossipDigest(_)
            | M::GossipStatus(_)
            | M::GossipSeen(_) => {
                return self.heard(core, now, from, &message, waited, out);
            }
            M::InitJoin { settings, cluster, .. } => {
                admission::answer(core, now, &self.gossip, from, &settings, cluster, out);
            }
            M::Join { member, settings } => {
                let asks = (from, *member, &settings);
                if admission::join(core, now, &mut self.gossip, asks, out) == GossipChange::Changed
                {
                    self.changed_by_me();
                }
            }
            M::Leave(id) if self.gossip.lists(from) => self.leave(core, id),
            M::Down(id) if self.gossip.lists(from) => self.down(core, id, out),
            M::YouAreOut { removed } => return self.on_you_are_out(core, from, removed),
            M::InitJoinAnswer { .. } | M::Welcome { .. } | M::JoinRefused { .. }
                if self.orphan_recovery.is_searching() =>
            {
                let entry = self.orphan_recovery.answered(core, now, from, message, out)?;
                return self.found(core, now, (from, entry), out);
            }
            // Late answers to requests sent before this node was in the cluster.
            M::InitJoinAnswer { .. }
            | M::Welcome { .. }
            | M::JoinRefused { .. }
            | M::FoundingPrepare(_)
            | M::FoundingPromise { .. }
            | M::FoundingAccept { .. }
            | M::FoundingAccepted(_)
            | M::FoundingRefused { .. }
            | M::Founded(_) => {}
            M::Leave(_) | M::Down(_) => core.stats.nonsense += 1,
        }
        None
    }

    /// Handles gossip; drops it as `late` if it waited longer than `gossip-time-to-live`. Stops the
    /// node if the state shows that this incarnation was removed. Refused gossip is counted. A
    /// removed sender is informed. Unless this node searches again, a Down sender is told so each
    /// time, and an unknown one may be adopted. A foreign cluster is reported.
    fn heard(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        message: &ClusterMessage,
        waited: Duration,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        if waited > core.config.gossip_time_to_live {
            core.stats.late += 1;
            return None;
        }
        let (me, seen) = (core.me.incarnation, self.gossip.seen().len());
        match self.dissemination.receive(core, now, &mut self.gossip, from, message, out) {
            Ok(()) => {
                // A change of the seen set matters once all members have seen the state, or while a
                // member is unreachable.
                let is_seen = self.gossip.seen().len() != seen;
                self.is_unsettled |=
                    self.dissemination.has_news() || is_seen && self.gossip.converged(me);
                if is_seen && !self.gossip.reachability().is_all_reachable() {
                    self.signs_at.get_or_insert(now.mono + SIGNS_EVERY);
                }
                return None;
            }
            Err(GossipRefused::Removed(_)) => return Some(self.out_for_good(core)),
            Err(why) => {
                core.stats.refused(&why);
                match why {
                    GossipRefused::ForeignCluster { ours, theirs } => {
                        core.say(
                            now,
                            OperatorNotice::ForeignCluster { node: from, ours, theirs },
                            out,
                        );
                    }
                    GossipRefused::SenderRemoved(_) => {
                        self.notifier.dismiss(core, now, from, out);
                    }
                    // A node that searches for its cluster got that gossip from members that are
                    // gone.
                    GossipRefused::Stranger(_) if self.orphan_recovery.is_searching() => {}
                    GossipRefused::Stranger(id) if self.gossip.contains(id) => {
                        core.send(from, ClusterMessage::YouAreOut { removed: false }, out);
                    }
                    GossipRefused::Stranger(_) => self.strange(core, from, message, out),
                    _ => {}
                }
            }
        }
        None
    }

    /// Handles gossip of an unknown node, which may have been admitted by a member that failed
    /// before others learned of it: adopts it by its whole state if [`admission::adopt`] allows, or
    /// asks for its state after a delta or a digest. Merges nothing.
    fn strange(
        &mut self,
        core: &mut MembershipCore,
        from: NodeId,
        message: &ClusterMessage,
        out: &mut MembershipOutbox,
    ) {
        use ClusterMessage as M;
        match message {
            M::Gossip(theirs) => {
                let change = admission::adopt(core, &mut self.gossip, from, theirs);
                if change == GossipChange::Changed {
                    self.changed_by_me();
                }
            }
            // Its whole state shows whether that is the case.
            M::GossipDelta(_) | M::GossipDigest(_) => {
                core.send(from, M::GossipStatus(self.gossip.ask_for_all()), out);
            }
            _ => {}
        }
    }

    /// A node reports that this node is Down or removed: stops it at once, also if its own state
    /// differs. Counted as nonsense if the sender is not a member here; a Down member is believed.
    fn on_you_are_out(
        &self,
        core: &mut MembershipCore,
        from: NodeId,
        removed: bool,
    ) -> Option<StopReason> {
        if !self.gossip.lists(from) {
            core.stats.nonsense += 1;
            return None;
        }
        Some(if removed { self.out_for_good(core) } else { StopReason::Downed })
    }

    /// The reason for a stop after a removal: `Left` for an Exiting node, otherwise `Removed`.
    fn out_for_good(&self, core: &MembershipCore) -> StopReason {
        let own = self.gossip.member(core.me.incarnation).map(|own| own.status);
        if own == Some(Status::Exiting) { StopReason::Left } else { StopReason::Removed }
    }

    // ── no remaining member knows this node ──

    /// Searches for the cluster again if this node has long been lost ([`OrphanRecovery`]). An
    /// Exiting node only waits for its removal, so it stops then as `Left`.
    fn seek(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        let own = self.gossip.member(core.me.incarnation).map(|own| own.status);
        if own == Some(Status::Exiting) && self.orphan_recovery.is_over(now) {
            return Some(StopReason::Left);
        }
        let entry = self.orphan_recovery.tick(core, now, &self.gossip, out)?;
        self.found(core, now, (core.me, entry), out)
    }

    /// The search has a result: stops, or takes the state that `from` sent. If `from` is a member
    /// here that is not Down, the state is merged like gossip; otherwise it replaces that of this
    /// node. A state with counters that jump is refused, and the search goes on.
    fn found(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        (from, entry): (NodeId, SearchResult),
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        let gossip = match entry {
            SearchResult::Welcome(gossip)
            | SearchResult::Found(Foundation { gossip, .. })
            | SearchResult::Succeeded(Foundation { gossip, .. }, _) => gossip,
            SearchResult::Stop(why) => return Some(why),
        };
        let sponsor = self.gossip.member(from.incarnation);
        if sponsor.is_some_and(|sponsor| sponsor.status != Status::Down) {
            let state = ClusterMessage::Gossip(gossip);
            return self.heard(core, now, from, &state, Duration::ZERO, out);
        }
        if self.gossip.check_jumps_of_state(&gossip).is_err() {
            core.stats.nonsense += 1;
            return None;
        }
        self.begin_anew(core, now, &gossip, out);
        None
    }

    /// Replaces the gossip state by that of the admitting member, which must contain this node. The
    /// records of this node about other members are kept. Proposals, refusals by peers, the search
    /// and unsent gossip are forgotten; the failure detector, the strategy, seed invitations,
    /// given-up members, a waiting exit and `ends_at` go on.
    fn begin_anew(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        state: &Gossip,
        out: &mut MembershipOutbox,
    ) {
        let mut gossip = state.clone();
        gossip.resume(core.me.incarnation, &self.gossip);
        self.dissemination = Dissemination::new(core, now, &gossip);
        self.gossip = gossip;
        self.notifier.replace_state(&self.gossip, out);
        (self.proposer, self.quarantine) = (Proposer::default(), Quarantine::default());
        self.orphan_recovery = OrphanRecovery::default();
        self.changed_by_me();
        self.host(core);
    }

    // ── commands, leaving and exit ──

    /// Carries a command out. `Join` and `Recover` have no effect here; `Host` announces what the
    /// caller has recorded in the core.
    pub(super) fn command(
        &mut self,
        core: &mut MembershipCore,
        command: &MembershipCommand,
        out: &mut MembershipOutbox,
    ) {
        match command {
            MembershipCommand::Leave(id) => self.leave(core, *id),
            MembershipCommand::Down(id) => self.down(core, *id, out),
            MembershipCommand::PrepareForFullShutdown => {
                if self.gossip.prepare_for_full_shutdown(core.me.incarnation) {
                    self.changed_by_me();
                }
            }
            MembershipCommand::Host { .. } => self.host(core),
            MembershipCommand::Drained => self.exit(core),
            MembershipCommand::Join(_) | MembershipCommand::Recover => {}
        }
    }

    /// Announces the entity types that this node hosts, if they have changed.
    fn host(&mut self, core: &MembershipCore) {
        let (types, draining) = (core.hosting.entity_types.clone(), core.hosting.draining);
        if self.gossip.host(core.me.incarnation, types, draining) {
            self.changed_by_me();
        }
    }

    /// Marks a member Leaving; does nothing if it is unknown, or already Leaving or later.
    fn leave(&mut self, core: &MembershipCore, id: ReplicaId) {
        if self.gossip.move_to(core.me.incarnation, id, Status::Leaving).unwrap_or(false) {
            self.changed_by_me();
        }
    }

    /// Marks a member Down and tells it once; does nothing if it is unknown or Down. If it is this
    /// node, the node stops in the next tick, without gossip about it.
    fn down(&mut self, core: &mut MembershipCore, id: ReplicaId, out: &mut MembershipOutbox) {
        if !self.gossip.move_to(core.me.incarnation, id, Status::Down).unwrap_or(false) {
            return;
        }
        if let Some(node) = self.gossip.member(id).map(|member| member.node)
            && node != core.me
        {
            core.send(node, ClusterMessage::YouAreOut { removed: false }, out);
        }
        self.changed_by_me();
    }

    /// Nothing runs here any longer: a Leaving node becomes Exiting, any other does not yet.
    fn exit(&mut self, core: &MembershipCore) {
        let me = core.me.incarnation;
        let leaves = self.gossip.member(me).is_some_and(|own| own.status == Status::Leaving);
        if leaves && self.gossip.move_to(me, me, Status::Exiting).unwrap_or(false) {
            self.changed_by_me();
        }
    }

    /// An Exiting node that is the only member of the configuration may leave without consent of
    /// others, unless a promotable newcomer waits, reachable or not. All ordered writes must be
    /// durable: its next start resumes the cluster by the sole-member evidence.
    fn last_one_out(&self, core: &MembershipCore) -> Option<StopReason> {
        let me = core.me.incarnation;
        let exits = self.gossip.member(me).is_some_and(|own| own.status == Status::Exiting);
        let alone = core.installed.as_ref().is_some_and(|epoch| *epoch.members() == [me]);
        let is_durable = core.durable == core.ordered;
        (exits && alone && is_durable && self.gossip.promotable().is_empty())
            .then_some(StopReason::Left)
    }

    /// A configuration without this node was installed here. An Exiting node first waits for a
    /// confirmation, for [`ASK_OUT_FOR`] from the last call at most; any other stops at once.
    pub(super) fn excluded(&mut self, core: &MembershipCore, now: Now) -> Option<StopReason> {
        if self.out_for_good(core) == StopReason::Removed {
            return Some(StopReason::Removed);
        }
        // If no remaining member has this configuration, the others could not continue: they must
        // confirm it first.
        self.exit_confirmation =
            Some(ExitConfirmation { ask_at: now.mono, until: now.mono + ASK_OUT_FOR });
        None
    }

    /// While an excluded node waits: sends its gossip status repeatedly, because a member that has
    /// removed this node answers `YouAreOut`, which stops it. Stops it as `Left` after the time.
    fn confirm_exit(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        let confirmation = self.exit_confirmation?;
        if now.mono >= confirmation.until {
            return Some(StopReason::Left);
        }
        if now.mono >= confirmation.ask_at {
            self.exit_confirmation =
                Some(ExitConfirmation { ask_at: now.mono + ASK_OUT_EVERY, ..confirmation });
            let stays = |id: ReplicaId| core.installed.as_ref().is_some_and(|e| e.is_member(id));
            let staying = self.gossip.members().filter(|member| stays(member.incarnation()));
            for node in staying.map(|member| member.node).collect::<Vec<_>>() {
                core.send(node, ClusterMessage::GossipStatus(self.gossip.status()), out);
            }
        }
        None
    }

    // ── configurations ──

    /// The configuration in the core was installed, after `previous`: proposals are considered
    /// anew, and `ends_at` is cleared. If it is forced (or a successor) and contains this node,
    /// members given up are kept in reach, because gossip will drop them, in `settle`.
    pub(super) fn installed(&mut self, core: &MembershipCore, now: Now, previous: Option<&Epoch>) {
        if let (Some(before), Some(epoch)) = (previous, core.installed.as_deref())
            && epoch.is_forced()
            && epoch.is_member(core.me.incarnation)
        {
            // In later configurations, only members that were kept by mistake may not know of it.
            let mut gone = before.removed_by(epoch);
            gone.retain(|id| epoch.is_forced_after(before) || epoch.kept().contains(id));
            self.given_up.add(core, now, &self.gossip, &gone);
            self.given_up.spare(core, now, self.notifier.departed(), &gone);
            self.notifier.spared = self.given_up.nodes();
        }
        self.proposer.installed(now, previous, core.installed.as_deref());
        self.ends_at = None;
        self.is_unsettled = true;
    }

    /// Something other than gossip changed: everything is evaluated again.
    pub(super) const fn unsettle(&mut self) {
        self.is_unsettled = true;
    }

    pub(super) fn outcome(&mut self, now: Now, outcome: &ProposalOutcome) {
        self.proposer.outcome(now, outcome);
        self.is_unsettled = true;
    }

    /// Whether this node reaches a quorum of the configuration, and is on the side with a quorum
    /// according to its downing view. `false` before the first configuration.
    fn has_quorum(&self, core: &MembershipCore) -> bool {
        let Some(epoch) = core.installed.as_deref() else { return false };
        epoch.is_quorum(&reached(core, epoch, &self.gossip), FaultInjection::none())
            && view(core, &self.gossip).holds_quorum()
    }
}
