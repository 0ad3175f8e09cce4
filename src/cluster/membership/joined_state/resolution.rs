//! Resolutions of the downing strategy: the members that the next proposal removes, and the end of
//! a side that the strategy stops.

use ostraca_ddata::clock::Now;
use ostraca_ddata::id::NodeId;

use super::JoinedState;
use crate::cluster::config::DowningStrategyName;
use crate::cluster::downing::{DowningDecision, LeaseAnswer, ResolverOrder};
use crate::cluster::fault_injection::MembershipFault;
use crate::cluster::gossip::targets::StateOrigin;
use crate::cluster::member::Status;
use crate::cluster::membership::orphan_recovery::is_newcomer;
use crate::cluster::membership::port::{OperatorNotice, StopReason};
use crate::cluster::membership::{MembershipCore, MembershipOutbox};

impl JoinedState {
    /// Handles the answer of the downing lease (`None`: the lease was lost, which leads to nothing
    /// here): acts on the resolution that it leads to, if any, at once and not in the next tick.
    /// Returns the reason if this node must stop.
    pub(in crate::cluster::membership) fn downing_lease(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        answer: Option<LeaseAnswer>,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        let order = self.failures.lease(core, now, answer, out)?;
        self.resolved(core, now, &order, out)
    }

    /// Whether the end of this side is postponed, for an operator or until other members return.
    /// With `false` the caller stops the node. With leases, nothing is served on a side without a
    /// quorum, so that waiting does no harm.
    ///
    /// Returns `false` without leases or an installed configuration, if this side has a quorum, and
    /// under `down-all`, `static-quorum` and `lease-majority`. (`lease-majority` does not wait: a
    /// waiting side would request the lease again, get it once the other side releases it, and keep
    /// it from that side.) Otherwise the first call starts the time `wait-without-quorum` (default:
    /// zero), and later calls do not restart it (a quorum or a new configuration ends it, see
    /// `ends_at`): returns `true`, with a notice, until it is over.
    fn waits_without_quorum(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> bool {
        use DowningStrategyName as S;
        let downing = &core.config.downing;
        let ends = matches!(downing.strategy, S::DownAll | S::StaticQuorum | S::LeaseMajority);
        let leased = core.installed.as_ref().is_some_and(|epoch| epoch.lease().enabled);
        if ends || !leased || self.has_quorum(core) {
            return false;
        }
        let until = *self.ends_at.get_or_insert(now.mono + downing.waits_without_quorum());
        let ends_in = until - now.mono;
        let waits = !ends_in.is_zero();
        if waits {
            core.say(now, OperatorNotice::WithoutQuorum { ends_in }, out);
        }
        waits
    }

    /// Handles an order of the resolver. Returns a reason only if this node must stop now.
    ///
    /// - A decision clears the victims of the earlier one, whether or not this node is responsible;
    ///   only `DownTargets` keeps them. `Withdraw` clears them. The orders about the lease have
    ///   been sent already and change nothing here.
    /// - If this node is among the members to down, it removes no others. It stops, unless it waits
    ///   without a quorum, or is a newcomer without a data directory: that one goes on unchanged,
    ///   and searches again as an orphan.
    /// - Otherwise, only the responsible node acts; on others nothing more changes. Members of the
    ///   installed configuration become victims of the next proposal; a node outside of it becomes
    ///   Down in gossip at once, because no configuration can remove it. If the decision sets
    ///   records aside, the victims that are connected and not accused by this node are also
    ///   recorded as `heard`.
    pub(super) fn resolved(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        order: &ResolverOrder,
        out: &mut MembershipOutbox,
    ) -> Option<StopReason> {
        let resolution = match order {
            ResolverOrder::Resolve(resolution) => resolution,
            ResolverOrder::Withdraw => {
                self.proposer.spare_all();
                return None;
            }
            ResolverOrder::AcquireLease | ResolverOrder::ReleaseLease => return None,
        };
        let me = core.me.incarnation;
        if resolution.decision != DowningDecision::DownTargets {
            self.proposer.spare_all(); // DownTargets only adds members
        }
        if resolution.down.contains(&core.me) {
            if core.directory.is_none() && is_newcomer(me, core.installed.as_deref(), &self.gossip)
            {
                return None; // it hosts nothing and has no vote: it searches for the cluster again
            }
            let waits = self.waits_without_quorum(core, now, out);
            return (!waits).then_some(StopReason::DownedItself);
        }
        if resolution.responsible {
            let epoch = core.installed.as_ref();
            let victims = resolution.down.iter().map(|node| node.incarnation);
            let (inside, outside): (Vec<_>, Vec<_>) =
                victims.partition(|id| epoch.is_some_and(|epoch| epoch.is_member(*id)));
            if core.fault_injection.has(MembershipFault::RemovedByVerdict)
                && self.gossip.remove(me, &inside)
            {
                self.dissemination.changed(StateOrigin::Own);
            }
            self.proposer.victims.extend(inside);
            if resolution.overrules_indirect() {
                let is_heard = |node: &&NodeId| {
                    core.links.is_up(**node)
                        && self.gossip.reachability().verdict(me, node.incarnation).is_none()
                };
                let heard = resolution.down.iter().filter(is_heard);
                self.proposer.heard.extend(heard.map(|node| node.incarnation));
            }
            for id in outside {
                // It is in no configuration, so none can remove it.
                if self.gossip.move_to(me, id, Status::Down).unwrap_or(false) {
                    self.dissemination.changed(StateOrigin::Own);
                }
            }
            self.is_unsettled = true;
        }
        None
    }
}
