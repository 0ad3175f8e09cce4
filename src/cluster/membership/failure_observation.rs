//! The failure detector and the downing strategy of a node: feeds them with the gossip state, and
//! applies their orders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca_ddata::machine::Outbox;
use ostraca_ddata::replicator::epoch::Epoch;
use rand::RngExt;

use super::dissemination::nodes;
use super::port::{MembershipOutput, OperatorNotice};
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::config::Leases;
use crate::cluster::downing::{
    self, DowningResolver, LeaseAnswer, Trust, UnreachableRecord, View, VoterSet,
};
use crate::cluster::failure_detector::{self, Monitor};
use crate::cluster::gossip::Gossip;
use crate::cluster::member::{Member, Status};
use crate::cluster::member_order::Ring;
use crate::cluster::reachability::ReachabilityStatus;
use crate::cluster::wire::ClusterMessage;

/// The failure detector and the downing strategy of one node.
///
/// Orders of the detector are carried out here: messages, notices, and verdicts in the row of this
/// node, the node's own records in the reachability table of gossip. Orders of the strategy are
/// returned, and the caller carries them out; only notices, counters and requests for the external
/// lease are handled here.
#[derive(Debug)]
pub(super) struct FailureHandler {
    pub(super) monitor: Monitor,
    resolver: DowningResolver,
    /// Whether another member was unreachable at the last [`observe`](Self::observe).
    was_troubled: bool,
    orders: Outbox<failure_detector::MonitorOrder>, // empty between calls
}

impl FailureHandler {
    /// A detector without members and a strategy without a view. With leases, the turn of a deputy
    /// is at least 2·T_q (twice the lease duration) by this node's settings, which later
    /// configurations do not change.
    pub(super) fn new(core: &mut MembershipCore, now: Now) -> Self {
        let config = &core.config;
        let leases = if config.lease.enabled { Leases::On } else { Leases::Off };
        let mut timing = config.downing.timing(leases);
        if config.lease.enabled {
            timing.turn = timing.turn.max(config.lease.duration.saturating_mul(2));
        }
        let resolver =
            DowningResolver::new(config.downing.strategy(), Trust::Configuration, timing);
        let seed = core.rng.random();
        let detector = core.config.failure_detector.clone();
        Self {
            monitor: Monitor::new(detector, core.me, now.mono, seed),
            resolver,
            was_troubled: false,
            orders: Outbox::new(),
        }
    }

    /// The next time at which [`tick`](Self::tick) or [`resolve`](Self::resolve) is due.
    pub(super) fn next_deadline(&self) -> Instant {
        let monitor = self.monitor.next_deadline();
        self.resolver.next_deadline().map_or(monitor, |at| at.min(monitor))
    }

    /// The gossip state, the seen set or the connections have changed: updates the monitored
    /// members and the view of the strategy. The strategy gets no view while no other member is
    /// unreachable, except for the one after the last became reachable. Newly monitored members get
    /// a heartbeat, and a pause of this process may be noticed here. Verdicts come only from
    /// [`tick`](Self::tick) and [`with`](Self::with), orders from [`resolve`](Self::resolve).
    pub(super) fn observe(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &mut Gossip,
        out: &mut MembershipOutbox,
    ) {
        let me = core.me.incarnation;
        let members: BTreeSet<NodeId> = gossip.members().map(|member| member.node).collect();
        let count = core.config.failure_detector.monitored_by_nr_of_members;
        let ring = nodes(gossip, &Ring::watched_by(gossip, me, count));
        let accused = nodes(gossip, &accused_by_others(gossip, me));
        self.with(core, now, gossip, out, |monitor, orders| {
            monitor.set_accused(accused);
            monitor.set_members(now.mono, members, &ring, orders);
        });
        let troubled = !gossip.unreachable_to(me).is_empty();
        if troubled || self.was_troubled {
            self.resolver.observe(now.mono, view(core, gossip));
        }
        self.was_troubled = troubled;
    }

    /// Lets time pass for the detector; does nothing before its deadline. Returns whether the
    /// gossip state changed, which the caller must announce. The strategy is asked by
    /// [`resolve`](Self::resolve).
    pub(super) fn tick(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &mut Gossip,
        out: &mut MembershipOutbox,
    ) -> bool {
        if now.mono < self.monitor.next_deadline() {
            return false;
        }
        self.with(core, now, gossip, out, |monitor, orders| monitor.tick(now.mono, orders))
    }

    /// The next order of the strategy that is due, if any; one per call. A decision is counted and
    /// reported, and a request for the external lease is sent, before this returns.
    pub(super) fn resolve(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<downing::ResolverOrder> {
        let order = self.resolver.poll(now.mono)?;
        Some(Self::ordered(core, now, order, out))
    }

    /// Handles the answer of the external lease's provider; `None` means that the lease was lost,
    /// and leads to no order. Otherwise the order that follows, if any, as for
    /// [`resolve`](Self::resolve).
    pub(super) fn lease(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        answer: Option<LeaseAnswer>,
        out: &mut MembershipOutbox,
    ) -> Option<downing::ResolverOrder> {
        let Some(answer) = answer else {
            self.resolver.lease_lost();
            return None;
        };
        let order = self.resolver.lease_answered(now.mono, answer)?;
        Some(Self::ordered(core, now, order, out))
    }

    /// Counts and reports a decision, also a repeated one, or passes a request for the external
    /// lease on; returns the order unchanged. `Withdraw` has no effect here.
    fn ordered(
        core: &mut MembershipCore,
        now: Now,
        order: downing::ResolverOrder,
        out: &mut MembershipOutbox,
    ) -> downing::ResolverOrder {
        match &order {
            downing::ResolverOrder::Resolve(resolution) => {
                core.stats.downings += 1;
                core.say(now, OperatorNotice::Downing(summary(resolution)), out);
            }
            downing::ResolverOrder::AcquireLease => {
                out.push(MembershipOutput::DowningLease { acquire: true });
            }
            downing::ResolverOrder::ReleaseLease => {
                out.push(MembershipOutput::DowningLease { acquire: false });
            }
            downing::ResolverOrder::Withdraw => {}
        }
        order
    }

    /// Feeds the monitor and carries its orders out; returns whether they changed the gossip state,
    /// that is, the row of this node. The caller must then announce the change. Each `Unreachable`
    /// order counts as an accusation, even if the row contains one already.
    pub(super) fn with(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &mut Gossip,
        out: &mut MembershipOutbox,
        feed: impl FnOnce(&mut Monitor, &mut Outbox<failure_detector::MonitorOrder>),
    ) -> bool {
        use failure_detector::MonitorOrder;
        feed(&mut self.monitor, &mut self.orders);
        let me = core.me.incarnation;
        let mut changed = false;
        for order in self.orders.drain() {
            match order {
                MonitorOrder::Heartbeat { to, sequence } => {
                    core.send(to, ClusterMessage::Heartbeat(sequence), out);
                }
                MonitorOrder::AskProbe { via, subject, probe } => {
                    core.send(via, ClusterMessage::ProbeAsk { subject, probe }, out);
                }
                MonitorOrder::TellProbed { to, subject, probe } => {
                    core.send(to, ClusterMessage::Probed { subject, probe }, out);
                }
                MonitorOrder::Unreachable { subject, .. } => {
                    core.stats.accusations += 1;
                    changed |=
                        gossip.accuse(me, subject.incarnation, ReachabilityStatus::Unreachable);
                }
                MonitorOrder::Reachable { subject } => {
                    changed |= gossip.acquit(me, subject.incarnation);
                }
                MonitorOrder::BadLink { subject, .. } => {
                    core.say(now, OperatorNotice::BadLink(subject), out);
                }
                MonitorOrder::Paused { gap } => core.say(now, OperatorNotice::Paused(gap), out),
            }
        }
        changed
    }
}

/// Members that other members report as unreachable or terminated; may contain `me`. Records of
/// Down members do not count.
fn accused_by_others(gossip: &Gossip, me: ReplicaId) -> BTreeSet<ReplicaId> {
    gossip.reachability().accused(|observer| observer != me && is_not_down(gossip, observer))
}

/// The records between members, without those of Down members.
fn records(gossip: &Gossip) -> BTreeSet<UnreachableRecord> {
    let node = |id: ReplicaId| gossip.member(id).map(|member| member.node);
    let counted = gossip.reachability().records().filter_map(|record| {
        let (observer, subject) = (node(record.observer)?, node(record.subject)?);
        let record = UnreachableRecord { observer, subject };
        is_not_down(gossip, observer.incarnation).then_some(record)
    });
    counted.collect()
}

fn is_not_down(gossip: &Gossip, id: ReplicaId) -> bool {
    gossip.member(id).is_some_and(|member| member.status != Status::Down)
}

/// The gossip state as a view for the downing strategy. All members are included, Down ones too,
/// and all records between members, except those of Down observers. The durations of the
/// unreachable members are zero: the resolver measures them. Voters that gossip does not contain
/// get a peer key of zeros, so that they count and are never reached. No electorate before the
/// first configuration.
pub(super) fn view(core: &MembershipCore, gossip: &Gossip) -> View {
    let me = core.me.incarnation;
    let node = |id: ReplicaId| gossip.member(id).map(|member| member.node);
    let unreachable = nodes(gossip, &gossip.unreachable_to(me));
    let electorate = |epoch: &Arc<Epoch>| {
        // A voter that gossip does not contain cannot answer.
        let nobody = |incarnation| NodeId { peer: PeerKey::new([0; 32]), incarnation };
        let named = |id: ReplicaId| node(id).unwrap_or_else(|| nobody(id));
        VoterSet {
            voters: epoch.voters().iter().map(|id| named(*id)).collect(),
            tiebreaker: named(epoch.tiebreaker()),
        }
    };
    View {
        own: core.me,
        members: gossip.members().map(|member| Member::clone(member)).collect(),
        unreachable: unreachable
            .into_iter()
            .map(|node| (node, Duration::ZERO))
            .collect::<BTreeMap<_, _>>(),
        records: records(gossip),
        seen: nodes(gossip, gossip.seen()),
        connected: gossip
            .members()
            .map(|member| member.node)
            .filter(|node| core.links.is_up(*node))
            .collect(),
        electorate: core.installed.as_ref().map(electorate),
        pending: core.pending.as_ref().map(|pending| electorate(&pending.epoch)),
    }
}

/// Members whose names a summary lists; of further ones it gives the number.
const NAMED_MAX: usize = 3;

/// A decision of the downing strategy for the log: the verdict and the members that it removes, the
/// first [`NAMED_MAX`] by name; and the verdict that a quorum of this side overruled, if any.
fn summary(resolution: &downing::Resolution) -> String {
    let downing::Resolution { decision, overruled, down, .. } = resolution;
    let mut removed: Vec<String> = down.iter().take(NAMED_MAX).map(NodeId::to_string).collect();
    if let Some(more) = down.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        removed.push(format!("{more} more"));
    }
    let removed = if removed.is_empty() { "no member".to_owned() } else { removed.join(", ") };
    match overruled {
        Some(verdict) => {
            format!(
                "{decision:?}, because this side has a quorum, instead of {verdict:?}: {removed}"
            )
        }
        None => format!("{decision:?}: {removed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::downing::{DowningDecision, Resolution};
    use crate::cluster::gossip::tests::{id, node, state};

    fn summary_of(down: u64, overruled: Option<DowningDecision>) -> String {
        let node = |n| NodeId { peer: PeerKey::new([0; 32]), incarnation: ReplicaId::new(n) };
        let down = (1..=down).map(node).collect();
        let decision = DowningDecision::DownUnreachable;
        summary(&Resolution { decision, overruled, down, responsible: true, turn: None })
    }

    #[test]
    fn downing_summary_names_three_members_at_most() {
        let one = summary_of(1, None);
        assert!(
            one.starts_with("DownUnreachable: ") && one.ends_with("/0000000000000001"),
            "{one}"
        );
        let five = summary_of(5, None);
        assert!(five.contains("/0000000000000003, 2 more"), "{five}");
        assert_eq!(summary_of(0, None), "DownUnreachable: no member");
        let overruled = summary_of(3, Some(DowningDecision::DownReachable));
        assert!(overruled.contains("instead of DownReachable: "), "{overruled}");
        assert!(overruled.ends_with("/0000000000000003"), "{overruled}");
    }

    /// Otherwise a member that accused another one and was declared dead would make that one
    /// indirectly connected.
    #[test]
    fn view_has_no_records_of_down_members() {
        let record = |observer: char, subject: char| {
            let [observer, subject] = [observer, subject].map(|name| node(id(name).get()));
            UnreachableRecord { observer, subject }
        };
        let expected = BTreeSet::from([record('A', 'C'), record('A', 'D')]);
        assert_eq!(records(&state("A B Cd D; C>A C>B A>C A>D")), expected);
    }
}
