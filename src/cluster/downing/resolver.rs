//! When a strategy is asked: after membership and reachability have been quiet long enough, or
//! unquiet too long; and the conversation about a lease.
//!
//! Fed with views and points of time, answers with [`Order`]s; sends nothing, downs nobody itself.
//! Spec: spec/membership.md, *Downing*; spec/reference/pekko-cluster.md §2.8, §5.3.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::NodeId;

use super::view::View;
use super::{Decision, LeaseMajority, Resolution, Strategy, Trust, resolve};
use crate::cluster::member::Status;

/// How long things must be quiet, and how long they may be unquiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Quiet time before a decision.
    pub stable_after: Duration,
    /// Everybody goes if members stay unreachable for `stable_after` and this long on top without
    /// ever being quiet; `None`: never.
    pub down_all_after: Option<Duration>,
    /// How long each that is nearer to leading has, before the next acts in its place: longer than it
    /// takes until who is lost holds no lease and a configuration without it is decided.
    pub turn: Duration,
}

/// What the membership machine is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Propose to remove those that are to be downed; stop if this node is among them. Repeated
    /// after another quiet time while they are still there.
    Resolve(Resolution),
    /// What was ordered before no longer holds: by what is seen now nobody is to go, or it is for
    /// another node to say. It need not be proposed again; what is under way may be decided.
    Withdraw,
    /// Ask for the lease; tell [`Resolver::lease_answered`].
    AcquireLease,
    /// Give the lease back.
    ReleaseLease,
}

/// What the lease's provider said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// This side has it.
    Granted,
    /// The other side has it, or nobody can tell.
    Denied,
}

/// How many may act in the leader's place, one after the other: so many without a link to a quorum
/// are not expected.
const TURNS: usize = 8;

/// Watches one node's views and says when to act on them.
#[derive(Clone, Debug)]
pub struct Resolver {
    strategy: Strategy,
    trust: Trust,
    timing: Timing,
    view: Option<View>,
    since: BTreeMap<NodeId, Instant>, // unreachable members
    quiet_since: Instant,             // since what was seen or ordered last
    unchanged_since: Instant,         // since what was seen last
    unquiet_since: Option<Instant>,
    has_work: bool,           // somebody is unreachable in it who could be downed
    decided: bool,            // the present view leads to nothing
    ordered: bool,            // and what an earlier one led to is not withdrawn
    turn_at: Option<Instant>, // when this node acts, if nobody else does
    lease: Lease,
}

#[derive(Clone, Debug)]
enum Lease {
    Absent,
    /// A minority lets the majority go first.
    Waiting {
        at: Instant,
    },
    Asked {
        until: Instant,
    },
    Held {
        downed: BTreeSet<NodeId>, // ≤ members
        release_at: Option<Instant>,
    },
}

impl Resolver {
    /// A resolver that has seen nothing yet.
    #[must_use]
    pub const fn new(strategy: Strategy, trust: Trust, timing: Timing) -> Self {
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
            lease: Lease::Absent,
        }
    }

    /// Takes a new view; to be called after every change of members, reachability or seen.
    ///
    /// How long members have been unreachable is reckoned here from one call to the next; what
    /// the view says of it is not read.
    pub fn observe(&mut self, now: Instant, mut view: View) {
        view.unreachable.values_mut().for_each(|silent| *silent = Duration::ZERO);
        let change = Change::between(self.view.as_ref(), &view);
        if change != Change::Minor {
            (self.quiet_since, self.unchanged_since, self.turn_at) = (now, now, None);
            if matches!(self.lease, Lease::Waiting { .. }) {
                self.lease = Lease::Absent;
            }
        }
        if change == Change::Reachability {
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

    /// What is to be done now, if anything. To be called until it says nothing, after every
    /// [`observe`](Self::observe) and at [`next_deadline`](Self::next_deadline).
    pub fn poll(&mut self, now: Instant) -> Option<Order> {
        if self.is_to_release(now) {
            self.lease = Lease::Absent;
            return Some(Order::ReleaseLease);
        }
        if self.down_all_at().is_some_and(|at| now >= at) {
            return self.down_all(now);
        }
        match self.lease {
            Lease::Waiting { at } if now >= at => Some(self.ask(now)),
            Lease::Asked { until } if now >= until => self.refused(now),
            Lease::Waiting { .. } | Lease::Asked { .. } => None,
            Lease::Absent | Lease::Held { .. } => {
                let is_due = self.decide_at().is_some_and(|at| now >= at);
                if is_due { self.decide(now) } else { None }
            }
        }
    }

    /// When to [`poll`](Self::poll) next, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_lease = match self.lease {
            Lease::Waiting { at } => Some(at),
            Lease::Asked { until } => Some(until),
            Lease::Absent => self.decide_at(),
            Lease::Held { release_at, .. } => {
                [release_at, self.decide_at()].into_iter().flatten().min()
            }
        };
        [of_lease, self.down_all_at()].into_iter().flatten().min()
    }

    /// Takes the answer to [`Order::AcquireLease`]. Judged by the present view, not by the one
    /// that led to the question; a grant that comes too late is given back.
    pub fn lease_answered(&mut self, now: Instant, answer: LeaseAnswer) -> Option<Order> {
        match (&self.lease, answer) {
            (Lease::Asked { .. }, LeaseAnswer::Granted) => {
                let release_at = Some(now + self.lease_settings().release_after);
                self.lease = Lease::Held { downed: BTreeSet::new(), release_at };
                self.decide(now)
            }
            (Lease::Asked { .. }, LeaseAnswer::Denied) => self.refused(now),
            (Lease::Held { .. }, _) | (_, LeaseAnswer::Denied) => None,
            (_, LeaseAnswer::Granted) => Some(Order::ReleaseLease),
        }
    }

    /// The provider says that the lease is gone.
    pub fn lease_lost(&mut self) {
        if matches!(self.lease, Lease::Held { .. }) {
            self.lease = Lease::Absent;
        }
    }

    // ── when ──

    fn decide_at(&self) -> Option<Instant> {
        let view = self.view.as_ref().filter(|_| self.has_work)?;
        if self.decided {
            return self.turn_at;
        }
        let Strategy::AutoDown(strategy) = &self.strategy else {
            return Some(self.quiet_since + self.timing.stable_after);
        };
        let downable = view.downable().filter_map(|node| self.since.get(&node));
        downable.min().map(|since| *since + strategy.after)
    }

    fn down_all_at(&self) -> Option<Instant> {
        let on_top = self.timing.down_all_after.filter(|_| self.strategy.weighs_sides())?;
        self.unquiet_since.map(|since| since + self.timing.stable_after + on_top)
    }

    fn is_to_release(&self, now: Instant) -> bool {
        matches!(self.lease, Lease::Held { release_at: Some(at), .. } if now >= at)
    }

    // ── what ──

    fn decide(&mut self, now: Instant) -> Option<Order> {
        let view = self.dated(now)?;
        if !has_work(&view) {
            return None;
        }
        let resolution = resolve(&self.strategy, self.trust, &view);
        let after = match resolution.decision {
            _ if matches!(self.lease, Lease::Held { .. }) => None,
            Decision::AcquireLeaseAndDownUnreachable { after } => Some(after),
            Decision::AcquireLeaseAndDownIndirectlyConnected => Some(Duration::ZERO),
            _ => None,
        };
        match after {
            Some(_) if !resolution.responsible => self.leave_it(now),
            Some(Duration::ZERO) => Some(self.ask(now)),
            Some(after) => {
                self.lease = Lease::Waiting { at: now + after };
                None
            }
            None => self.act(now, &view, resolution),
        }
    }

    fn act(&mut self, now: Instant, view: &View, mut resolution: Resolution) -> Option<Order> {
        // What ends a whole side every node on it does by its own view: without a configuration
        // there is no other way to tell it.
        let goes = matches!(resolution.decision, Decision::DownReachable | Decision::DownAll)
            && resolution.down.contains(&view.own);
        let is_own = resolution.down.contains(&view.own) || resolution.down.is_empty();
        let turn = resolution.turn.filter(|turn| *turn <= TURNS);
        if let Some(turn) = turn.filter(|_| !resolution.responsible && !is_own) {
            let turns: Duration = std::iter::repeat_n(self.timing.turn, turn).sum();
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
            // Somebody else than those may have been due; all are judged anew then.
            self.since.values_mut().for_each(|since| *since = now);
        }
        Some(Order::Resolve(resolution))
    }

    /// The present view leads to nothing.
    fn leave_it(&mut self, now: Instant) -> Option<Order> {
        (self.decided, self.turn_at, self.unquiet_since) = (true, None, None);
        if let (Lease::Held { release_at, .. }, Strategy::LeaseMajority(settings)) =
            (&mut self.lease, &self.strategy)
        {
            release_at.get_or_insert(now + settings.release_after);
        }
        std::mem::take(&mut self.ordered).then_some(Order::Withdraw)
    }

    fn down_all(&mut self, now: Instant) -> Option<Order> {
        let view = self.view.as_ref()?;
        let down: BTreeSet<NodeId> = view.downable().collect();
        self.restart(now, &down);
        let decision = Decision::DownAll;
        let (overruled, turn) = (None, None);
        Some(Order::Resolve(Resolution { decision, overruled, down, responsible: true, turn }))
    }

    /// Gives what was ordered the time to happen; if it does not, it is ordered again.
    fn restart(&mut self, now: Instant, down: &BTreeSet<NodeId>) {
        (self.quiet_since, self.turn_at) = (now, None);
        self.unquiet_since = None;
        self.since.iter_mut().filter(|(node, _)| down.contains(node)).for_each(|(_, at)| *at = now);
        if let Lease::Held { downed, release_at } = &mut self.lease {
            downed.extend(down);
            *release_at = None;
        }
    }

    fn ask(&mut self, now: Instant) -> Order {
        self.lease = Lease::Asked { until: now + self.lease_settings().acquire_within };
        Order::AcquireLease
    }

    fn refused(&mut self, now: Instant) -> Option<Order> {
        self.lease = Lease::Absent;
        let view = self.dated(now).filter(has_work)?;
        if self.trust == Trust::Configuration && view.may_not_end_itself() {
            // Neither side can go on without the other's word: asks again later.
            self.restart(now, &BTreeSet::new());
            return None;
        }
        let resolution = Resolution {
            decision: Decision::DownReachable,
            overruled: None,
            down: self.strategy.down_without_lease(&view),
            responsible: view.leads(None),
            turn: None,
        };
        self.act(now, &view, resolution)
    }

    /// The present view, with the time that members have been unreachable.
    fn dated(&self, now: Instant) -> Option<View> {
        let mut view = self.view.clone()?;
        for (node, silent) in &mut view.unreachable {
            *silent = now - self.since[node];
        }
        Some(view)
    }

    // ── the lease ──

    fn lease_settings(&self) -> &LeaseMajority {
        match &self.strategy {
            Strategy::LeaseMajority(settings) => settings,
            other => unreachable!("{other:?} never asks for a lease"),
        }
    }

    /// The lease is held until some time after the last one that it downed is removed, or everybody
    /// is back.
    fn reckon_release(&mut self, now: Instant, view: &View) {
        let Strategy::LeaseMajority(LeaseMajority { release_after: after, .. }) = self.strategy
        else {
            return;
        };
        let Lease::Held { downed, release_at: release_at @ None } = &mut self.lease else { return };
        downed.retain(|node| view.members.iter().any(|member| member.node == *node));
        if downed.is_empty() || !has_work(view) {
            *release_at = Some(now + after);
        }
    }
}

/// Whether anybody is unreachable who could be downed.
fn has_work(view: &View) -> bool {
    !view.unreachable.is_empty() && view.downable().any(|node| !view.is_reachable(node))
}

/// What a new view means for the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Somebody became reachable or unreachable.
    Reachability,
    /// Somebody became Up, Exiting or Down.
    Membership,
    /// Nothing that a decision must wait for: joins, leaves, removals.
    Minor,
}

impl Change {
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
