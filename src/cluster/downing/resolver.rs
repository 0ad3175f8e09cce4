//! Timing of downing: a strategy decides once membership and reachability have been stable for long
//! enough, or unstable for too long (docs/protocol/membership.md#stable-view). Also handles the
//! request for an external lease.
//!
//! [`DowningResolver`] is a pure state machine: it gets views and times, and emits
//! [`ResolverOrder`]s.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::NodeId;

use super::view::View;
use super::{DowningDecision, DowningStrategy, LeaseMajority, Resolution, Trust, resolve};
use crate::cluster::member::Status;

/// Time settings of a [`DowningResolver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the view must be stable before a decision.
    pub stable_after: Duration,
    /// All members are downed if some stay unreachable for `stable_after` plus this time without a
    /// stable view; `None`: never.
    pub down_all_after: Option<Duration>,
    /// Time for each candidate that precedes this node, before this node acts in its place. It must
    /// be longer than the time until a lost node holds no lease and a configuration without it is
    /// decided.
    pub turn: Duration,
}

/// Output of a [`DowningResolver`]: an order to the membership machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolverOrder {
    /// Propose to remove the members to be downed; stop if this node is among them. The order is
    /// repeated after another `stable_after` while they are still members.
    Resolve(Resolution),
    /// Earlier orders no longer apply: by the present view no member must be downed, or another
    /// node acts. Do not propose them again; a proposal in progress may still be decided. Not sent
    /// once all members are reachable again: the receiver must drop members that have become
    /// reachable by itself. Never follows an order of `down-all-when-unstable` alone.
    Withdraw,
    /// Request the lease and report the answer to [`DowningResolver::lease_answered`].
    AcquireLease,
    /// Release the lease at its provider.
    ReleaseLease,
}

/// Answer of the lease provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// This side holds the lease.
    Granted,
    /// The other side holds the lease, or the provider cannot tell.
    Denied,
}

/// Maximum number of members that act one after the other in place of the leader. It is unlikely
/// that more of them lack a link to a quorum.
const TURNS: usize = 8;

/// Observes the views of one node and decides when to act.
#[derive(Clone, Debug)]
pub struct DowningResolver {
    strategy: DowningStrategy,
    trust: Trust,
    timing: Timing,
    view: Option<View>,
    since: BTreeMap<NodeId, Instant>, // unreachable members
    quiet_since: Instant,             // since the last change that is not minor, or order
    unchanged_since: Instant,         // since the last change that is not minor
    /// First change of reachability since the last order or decision without an action; `None`
    /// if there was none, and while no member that could be downed is unreachable.
    unquiet_since: Option<Instant>,
    has_work: bool,           // a member that could be downed is unreachable
    decided: bool,            // the present view leads to no action, except at `turn_at`
    ordered: bool,            // an earlier order is not withdrawn; not set by `down_all`
    turn_at: Option<Instant>, // when this node acts in the leader's place
    lease: DowningLeaseState,
}

/// State of the external lease; always `Absent` unless the strategy is `lease-majority`.
#[derive(Clone, Debug)]
enum DowningLeaseState {
    Absent,
    /// A minority gives the majority time to request the lease first. A change of the view that is
    /// not minor ends this state.
    Waiting {
        at: Instant,
    },
    /// The answer is awaited; at `until` it counts as a refusal.
    Asked {
        until: Instant,
    },
    Held {
        /// Members that were downed by this lease and were members at the last view.
        downed: BTreeSet<NodeId>, // ≤ members
        /// Set once nothing is left to do with the lease; a new order clears it.
        release_at: Option<Instant>,
    },
}

impl DowningResolver {
    /// A resolver without a view.
    #[must_use]
    pub const fn new(strategy: DowningStrategy, trust: Trust, timing: Timing) -> Self {
        Self {
            strategy,
            trust,
            timing,
            view: None,
            since: BTreeMap::new(),
            quiet_since: Instant::from_nanos(0),
            unchanged_since: Instant::from_nanos(0),
            unquiet_since: None,
            has_work: false,
            decided: false,
            ordered: false,
            turn_at: None,
            lease: DowningLeaseState::Absent,
        }
    }

    /// Sets a new view. Must be called after every change of the view while a member is
    /// unreachable, and once after the last became reachable; [`poll`](Self::poll) must follow. A
    /// view that differs is decided about anew; only a change that is not minor (`ViewChange`)
    /// restarts the time for which the view must be stable, cancels the turn of this node and ends
    /// the wait of a minority for the lease. So after a minor change a decision may be due at once.
    /// An equal view changes nothing. Gives no order; one that was given is not withdrawn here.
    ///
    /// The resolver computes for how long members have been unreachable from the times of these
    /// calls, and ignores the durations in the view. A member that was reachable in between starts
    /// anew.
    pub fn observe(&mut self, now: Instant, mut view: View) {
        view.unreachable.values_mut().for_each(|silent| *silent = Duration::ZERO);
        let change = ViewChange::between(self.view.as_ref(), &view);
        if change != ViewChange::Minor {
            (self.quiet_since, self.unchanged_since, self.turn_at) = (now, now, None);
            if matches!(self.lease, DowningLeaseState::Waiting { .. }) {
                self.lease = DowningLeaseState::Absent;
            }
        }
        if change == ViewChange::Reachability {
            self.unquiet_since.get_or_insert(now);
        }
        self.has_work = has_work(&view);
        if !self.has_work {
            self.unquiet_since = None;
        }
        self.since.retain(|node, _| view.unreachable.contains_key(node));
        for node in view.unreachable.keys() {
            self.since.entry(*node).or_insert(now);
        }
        self.reckon_release(now, &view);
        if self.view.as_ref() != Some(&view) {
            self.decided = false;
            self.view = Some(view);
        }
    }

    /// Returns the next order, if any. Must be called until it returns `None`, after every
    /// [`observe`](Self::observe) and at [`next_deadline`](Self::next_deadline). A due release of
    /// the lease comes first, then `down-all-when-unstable`, which applies in every state of the
    /// lease and leaves a request open. No decision is made while the lease is requested or waited
    /// for; a request without an answer counts as refused at its time limit.
    pub fn poll(&mut self, now: Instant) -> Option<ResolverOrder> {
        if self.is_to_release(now) {
            self.lease = DowningLeaseState::Absent;
            return Some(ResolverOrder::ReleaseLease);
        }
        if self.down_all_at().is_some_and(|at| now >= at) {
            return self.down_all(now);
        }
        match self.lease {
            DowningLeaseState::Waiting { at } if now >= at => Some(self.ask(now)),
            DowningLeaseState::Asked { until } if now >= until => self.refused(now),
            DowningLeaseState::Waiting { .. } | DowningLeaseState::Asked { .. } => None,
            DowningLeaseState::Absent | DowningLeaseState::Held { .. } => {
                let is_due = self.decide_at().is_some_and(|at| now >= at);
                if is_due { self.decide(now) } else { None }
            }
        }
    }

    /// Time of the next [`poll`](Self::poll) without another input, perhaps in the past; `None` if
    /// only a new view can lead to an order. That poll need not give an order.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_lease = match self.lease {
            DowningLeaseState::Waiting { at } => Some(at),
            DowningLeaseState::Asked { until } => Some(until),
            DowningLeaseState::Absent => self.decide_at(),
            DowningLeaseState::Held { release_at, .. } => {
                [release_at, self.decide_at()].into_iter().flatten().min()
            }
        };
        [of_lease, self.down_all_at()].into_iter().flatten().min()
    }

    /// Handles the answer to [`ResolverOrder::AcquireLease`]. Decides at once, stable or not, about
    /// the present view, not the one that led to the request; a refusal may down this side. A
    /// granted lease that leads to no order is held, and released after `release_after`. A lease
    /// granted too late, after its time limit, is released at once. All other answers without a
    /// request are ignored, also a second grant while the lease is held.
    pub fn lease_answered(&mut self, now: Instant, answer: LeaseAnswer) -> Option<ResolverOrder> {
        match (&self.lease, answer) {
            (DowningLeaseState::Asked { .. }, LeaseAnswer::Granted) => {
                let release_at = Some(now + self.lease_settings().release_after);
                self.lease = DowningLeaseState::Held { downed: BTreeSet::new(), release_at };
                self.decide(now)
            }
            (DowningLeaseState::Asked { .. }, LeaseAnswer::Denied) => self.refused(now),
            (DowningLeaseState::Held { .. }, _) | (_, LeaseAnswer::Denied) => None,
            (_, LeaseAnswer::Granted) => Some(ResolverOrder::ReleaseLease),
        }
    }

    /// The provider reports that the lease was lost: a later decision requests it again. Orders
    /// that were given remain, and nothing is released. Ignored unless the lease is held.
    pub fn lease_lost(&mut self) {
        if matches!(self.lease, DowningLeaseState::Held { .. }) {
            self.lease = DowningLeaseState::Absent;
        }
    }

    // ── times ──

    /// Time of the next decision; `None` if no member that could be downed is unreachable. After a
    /// decision without an action: the turn of this node, if any. Under `auto-down`, instead of a
    /// stable view: when the first unreachable member has been so for long enough.
    fn decide_at(&self) -> Option<Instant> {
        let view = self.view.as_ref().filter(|_| self.has_work)?;
        if self.decided {
            return self.turn_at;
        }
        let DowningStrategy::AutoDown(strategy) = &self.strategy else {
            return Some(self.quiet_since + self.timing.stable_after);
        };
        let downable = view.downable().filter_map(|node| self.since.get(&node));
        downable.min().map(|since| *since + strategy.after)
    }

    /// When all members are downed for want of a stable view; `None` if the setting or the strategy
    /// excludes that, no member is unreachable or an order was given since, or this node is Exiting
    /// or Down.
    fn down_all_at(&self) -> Option<Instant> {
        let on_top = self.timing.down_all_after.filter(|_| self.strategy.weighs_sides())?;
        // Each node stops itself. An Exiting node leaves anyway, and must not remove the others.
        let stops = |view: &View| view.downable().any(|node| node == view.own);
        if !self.view.as_ref().is_some_and(stops) {
            return None;
        }
        self.unquiet_since.map(|since| since + self.timing.stable_after + on_top)
    }

    fn is_to_release(&self, now: Instant) -> bool {
        matches!(self.lease, DowningLeaseState::Held { release_at: Some(at), .. } if now >= at)
    }

    // ── decisions ──

    /// Resolves the present view and acts on it, or first requests the lease that the decision
    /// needs. Only the responsible node requests it, a minority after its delay; on other nodes the
    /// decision leads to no action ([`leave_it`](Self::leave_it)). A held lease counts as granted.
    /// Does nothing if no member that could be downed is unreachable. Does not check the time.
    fn decide(&mut self, now: Instant) -> Option<ResolverOrder> {
        let view = self.dated(now)?;
        if !has_work(&view) {
            return None;
        }
        let resolution = resolve(&self.strategy, self.trust, &view);
        let after = match resolution.decision {
            _ if matches!(self.lease, DowningLeaseState::Held { .. }) => None,
            DowningDecision::AcquireLeaseAndDownUnreachable { after } => Some(after),
            DowningDecision::AcquireLeaseAndDownIndirectlyConnected => Some(Duration::ZERO),
            _ => None,
        };
        match after {
            Some(_) if !resolution.responsible => self.leave_it(now),
            Some(Duration::ZERO) => Some(self.ask(now)),
            Some(after) => {
                self.lease = DowningLeaseState::Waiting { at: now + after };
                None
            }
            None => self.act(now, &view, resolution),
        }
    }

    /// Orders the resolution if this node acts: it is responsible, or its whole side ends with it
    /// (`DownReachable`, `DownAll`), or its turn has come in place of the members that precede it;
    /// then the order names it as responsible. Before its turn it notes the time and returns at
    /// most a withdrawal. Does the same as [`leave_it`](Self::leave_it) if no member must be downed
    /// or another node acts. A node beyond [`TURNS`] never takes a turn.
    ///
    /// An order restarts the timers ([`restart`](Self::restart)), also those of all unreachable
    /// members if the quorum overruled the strategy.
    fn act(
        &mut self,
        now: Instant,
        view: &View,
        mut resolution: Resolution,
    ) -> Option<ResolverOrder> {
        // A decision that ends a whole side applies to each of its nodes, and each node applies it
        // to itself: without a configuration the leader cannot tell the others.
        let goes = matches!(
            resolution.decision,
            DowningDecision::DownReachable | DowningDecision::DownAll
        ) && resolution.down.contains(&view.own);
        let is_own = resolution.down.contains(&view.own) || resolution.down.is_empty();
        let turn = resolution.turn.filter(|turn| *turn <= TURNS);
        if let Some(turn) = turn.filter(|_| !resolution.responsible && !is_own) {
            let turns = self.timing.turn.saturating_mul(u32::try_from(turn).unwrap_or(u32::MAX));
            let at = self.unchanged_since + self.timing.stable_after + turns;
            if now < at {
                let withdrawn = self.leave_it(now);
                self.turn_at = Some(at);
                return withdrawn;
            }
            resolution.responsible = true;
        }
        if resolution.down.is_empty() || !(resolution.responsible || goes) {
            return self.leave_it(now);
        }
        (self.ordered, self.decided) = (true, false);
        self.restart(now, &resolution.down);
        if resolution.overruled.is_some() {
            // Members other than those may be due as well; all of them are evaluated again.
            self.since.values_mut().for_each(|since| *since = now);
        }
        Some(ResolverOrder::Resolve(resolution))
    }

    /// Records that the present view leads to no action: there is no decision until the view
    /// changes. Cancels the turn of this node (a caller may set it again), stops the timer of
    /// `down-all-when-unstable` until the next change of reachability, schedules the release of a
    /// held lease unless that is scheduled, and withdraws an earlier order if there is one.
    fn leave_it(&mut self, now: Instant) -> Option<ResolverOrder> {
        (self.decided, self.turn_at, self.unquiet_since) = (true, None, None);
        if let (
            DowningLeaseState::Held { release_at, .. },
            DowningStrategy::LeaseMajority(settings),
        ) = (&mut self.lease, &self.strategy)
        {
            release_at.get_or_insert(now + settings.release_after);
        }
        std::mem::take(&mut self.ordered).then_some(ResolverOrder::Withdraw)
    }

    /// Orders the end of all members, also where this side has a quorum; each node orders it, and
    /// stops itself. `None` before the first view.
    fn down_all(&mut self, now: Instant) -> Option<ResolverOrder> {
        let view = self.view.as_ref()?;
        let down: BTreeSet<NodeId> = view.downable().collect();
        self.restart(now, &down);
        let decision = DowningDecision::DownAll;
        let (overruled, turn) = (None, None);
        Some(ResolverOrder::Resolve(Resolution {
            decision,
            overruled,
            down,
            responsible: true,
            turn,
        }))
    }

    /// Gives the order time to take effect; otherwise it is repeated. Restarts the timers of the
    /// view and of the members in `down`, stops that of `down-all-when-unstable`, cancels the turn,
    /// and keeps a held lease until the members in `down` are removed. `unchanged_since` remains,
    /// so a turn that has come once is not waited for again.
    fn restart(&mut self, now: Instant, down: &BTreeSet<NodeId>) {
        (self.quiet_since, self.turn_at) = (now, None);
        self.unquiet_since = None;
        self.since.iter_mut().filter(|(node, _)| down.contains(node)).for_each(|(_, at)| *at = now);
        if let DowningLeaseState::Held { downed, release_at } = &mut self.lease {
            downed.extend(down);
            *release_at = None;
        }
    }

    /// Requests the lease. Only for `lease-majority`: panics with another strategy.
    fn ask(&mut self, now: Instant) -> ResolverOrder {
        self.lease = DowningLeaseState::Asked { until: now + self.lease_settings().acquire_within };
        ResolverOrder::AcquireLease
    }

    /// Handles a refused lease, which is no longer awaited in any case: downs this side, and the
    /// indirectly connected members. Under [`Trust::Configuration`], a side that must not end
    /// itself decides again after `stable_after` instead, and may request the lease then. Does
    /// nothing if no member that could be downed is unreachable. Only the node that asked orders
    /// this: other nodes of the side wait for their own decision.
    fn refused(&mut self, now: Instant) -> Option<ResolverOrder> {
        self.lease = DowningLeaseState::Absent;
        let view = self.dated(now).filter(has_work)?;
        if self.trust == Trust::Configuration && view.may_not_end_itself() {
            // Neither side can continue without the other: request the lease again later.
            self.restart(now, &BTreeSet::new());
            return None;
        }
        let resolution = Resolution {
            decision: DowningDecision::DownReachable,
            overruled: None,
            down: self.strategy.down_without_lease(&view),
            responsible: view.leads(None),
            turn: None,
        };
        self.act(now, &view, resolution)
    }

    /// The present view with the time for which members have been unreachable; `None` before the
    /// first view.
    fn dated(&self, now: Instant) -> Option<View> {
        let mut view = self.view.clone()?;
        for (node, silent) in &mut view.unreachable {
            *silent = now - self.since[node];
        }
        Some(view)
    }

    // ── the lease ──

    /// The settings of `lease-majority`; panics with another strategy.
    fn lease_settings(&self) -> &LeaseMajority {
        match &self.strategy {
            DowningStrategy::LeaseMajority(settings) => settings,
            other => unreachable!("{other:?} never asks for a lease"),
        }
    }

    /// Schedules the release of the lease: `release_after` after the last member downed by it was
    /// removed, or after no member that could be downed is unreachable any longer. Forgets downed
    /// members that `view` lacks. Does nothing if no lease is held or its release is scheduled
    /// already; only an order cancels a scheduled release.
    fn reckon_release(&mut self, now: Instant, view: &View) {
        let DowningStrategy::LeaseMajority(LeaseMajority { release_after: after, .. }) =
            self.strategy
        else {
            return;
        };
        let DowningLeaseState::Held { downed, release_at: release_at @ None } = &mut self.lease
        else {
            return;
        };
        downed.retain(|node| view.members.iter().any(|member| member.node == *node));
        if downed.is_empty() || !has_work(view) {
            *release_at = Some(now + after);
        }
    }
}

/// Whether a member that could be downed is unreachable. Unreachable Exiting and Down members do
/// not count.
fn has_work(view: &View) -> bool {
    !view.unreachable.is_empty() && view.downable().any(|node| !view.is_reachable(node))
}

/// Effect of a new view on the timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViewChange {
    /// A member became reachable or unreachable. The removal of an unreachable member does not
    /// count.
    Reachability,
    /// A member became Up, Exiting or Down, or appears with this status. Also the first view if no
    /// member is unreachable.
    Membership,
    /// Changes that do not restart the time of a stable view: members that became Joining, WeaklyUp
    /// or Leaving, removals, and changes of other parts of the view, such as `seen`, records among
    /// members that were unreachable already, or voters. Also no change at all.
    Minor,
}

impl ViewChange {
    /// Classifies the change; a change of reachability takes precedence. The first view counts as a
    /// change.
    fn between(before: Option<&View>, after: &View) -> Self {
        let Some(before) = before else {
            let calm = after.unreachable.is_empty();
            return if calm { Self::Membership } else { Self::Reachability };
        };
        let lost = after.unreachable.keys().any(|node| !before.unreachable.contains_key(node));
        let found = before
            .unreachable
            .keys()
            .any(|node| !after.unreachable.contains_key(node) && after.member(*node).is_some());
        if lost || found {
            return Self::Reachability;
        }
        let weighty = |status| matches!(status, Status::Up | Status::Exiting | Status::Down);
        let was: BTreeMap<NodeId, Status> =
            before.members.iter().map(|member| (member.node, member.status)).collect();
        let moved = after
            .members
            .iter()
            .any(|member| weighty(member.status) && was.get(&member.node) != Some(&member.status));
        if moved { Self::Membership } else { Self::Minor }
    }
}
