//! Consequences of installed configurations, and proposals of the next one
//! (docs/protocol/membership.md#up-only-by-a-configuration).
//!
//! Every node marks members Up and removes them by the installed configuration alone. The leader
//! proposes the next configuration as soon as a change is needed; if it does not, the next member
//! in order does. (For decisions of the downing strategy, the resolver determines the order.) The
//! voters decide which of several proposals succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{
    Epoch, EpochId, MembershipChange, ProposalOutcome, ProposalRefusal,
};

use super::port::MembershipOutput;
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::fault_injection::MembershipFault;
use crate::cluster::gossip::Gossip;
use crate::cluster::leader;
use crate::cluster::member::Status;
use crate::cluster::reachability::ReachabilityStatus;

/// The nth member after the leader proposes `LEADER_FIRST` + n · `TURN` after it first wanted a
/// change; the leader proposes at once.
const LEADER_FIRST: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(500);
/// Delay before a refused change, or a removal that a decided configuration left out, is proposed
/// again.
const AGAIN: Duration = Duration::from_millis(500);

/// Number of configurations decided with unchanged members, although removals by downing were
/// proposed, that cause no delay. Each further one delays such removals: by 1 s, then twice as long
/// each time, up to `IN_VAIN_MAX`. Without it, where links are too bad for any attempt to complete,
/// repeated attempts would keep the cluster sealed and leave no time to nodes with better links
/// (docs/protocol/membership.md#removals-in-vain-back-off).
const IN_VAIN: u32 = 3;
const IN_VAIN_MAX: Duration = Duration::from_secs(30);

/// Delay before a proposal that removes a member proven dead is repeated; it doubles each time.
/// Voters that did not know of the proof may have reported a lease to wait for. It is repeated
/// `PRESS_TIMES` times at most.
const PRESS_FIRST: Duration = Duration::from_millis(200);
const PRESS_TIMES: u32 = 4;

/// A newcomer that has been reachable for this long is steady: unlikely to fail right after its
/// start. Before, it counts as failed in the check of [`only_as_many_as_may_die`], also if a
/// configuration has taken it in. Any other member of the configuration is steady as soon as it is
/// reachable and connected.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// A member of the configuration that is missing in gossip for this long is removed. The member
/// that admitted it has failed before it could gossip the news, and a living node would have
/// announced itself.
const UNLISTED_FOR: Duration = Duration::from_secs(5);

/// Number of ages per configuration: a power of two above the maximum number of members.
const POSITIONS: u64 = 1 << 14;
/// Maximum configuration number from which ages are computed.
const NUMBERS_MAX: u64 = (1 << 34) - 1;

const _: () = assert!(
    ostraca_ddata::replicator::epoch::MEMBERS_MAX < POSITIONS as usize
        && NUMBERS_MAX.saturating_mul(POSITIONS).saturating_add(POSITIONS)
            <= crate::cluster::gossip::wire::COUNTER_MAX,
    "ages stay below the maximum counter on the wire"
);

/// The age of each member, oldest first: the configuration number, at most [`NUMBERS_MAX`], then
/// the position in it.
///
/// The first configuration with a member gives it its lowest age. A node that learns of it by a
/// later configuration computes a higher age, and gossip keeps the lowest. In the view of one node,
/// ages always have the order of the configuration's member list, which is the order of joining
/// (docs/protocol/membership.md#ages-follow-the-configuration).
pub(super) fn ages(epoch: &Epoch) -> Vec<(ReplicaId, u64)> {
    let first = epoch.id().number.min(NUMBERS_MAX) * POSITIONS;
    epoch.members().iter().copied().zip(first..).collect()
}

/// The changes that this node wants in the next configuration, and their progress.
///
/// Only [`consider`](Self::consider) proposes. It must be called after each change of the gossip
/// state, of connections, or of the fields here, and at [`next_deadline`](Self::next_deadline).
#[derive(Debug, Default)]
pub(super) struct Proposer {
    /// Members whose removal the downing strategy has ordered and not withdrawn; ≤ members. One
    /// that is reachable again, or removed, is dropped by the next `consider`.
    pub(super) victims: BTreeSet<ReplicaId>,
    /// Victims that can reach this node: their first answer to the voters saves them once. Cleared
    /// only by [`spare_all`](Self::spare_all).
    pub(super) heard: BTreeSet<ReplicaId>,
    /// Victims of the last proposal that left the members unchanged, as long as they are
    /// unreachable members; the number of such proposals in a row; and the time until which these
    /// victims are not proposed again.
    kept: BTreeSet<ReplicaId>, // ≤ members
    in_vain: u32,
    kept_until: Instant,
    /// The changes that this node has proposed since the last configuration or final outcome. They
    /// are not proposed again, except by a repetition. Refused as `Busy`, they still count.
    proposed: MembershipChange,
    /// Time of the next repetition of the removal of a member proven dead, and the number of
    /// repetitions so far.
    press_at: Option<Instant>,
    pressed: u32,
    /// Time since which any change is wanted, in the present configuration. This node's turn counts
    /// from then.
    wanted_since: Option<Instant>,
    /// No proposal is made before this time, not even a repetition. A new configuration does not
    /// reset it.
    not_before: Instant,
    /// Time since which each Joining member has waited.
    waiting_since: BTreeMap<ReplicaId, Instant>, // ≤ members
    weakly_up_at: Option<Instant>, // only at the leader
    /// Time since which members of the configuration are missing in gossip.
    unlisted_since: BTreeMap<ReplicaId, Instant>, // ≤ members
    unlisted_at: Option<Instant>,
    turn_at: Option<Instant>, // end of a delay: this node's turn, `not_before` or `kept_until`
    /// Time since which each newcomer, a promotable member in no configuration, has been reachable.
    newcomers: BTreeMap<ReplicaId, Instant>, // ≤ members
    /// The same for newcomers that a configuration took in less than [`STEADY_AFTER`] ago.
    taken_in: BTreeMap<ReplicaId, Instant>, // ≤ members
    steady_at: Option<Instant>,
}

impl Proposer {
    /// The next time at which [`consider`](Self::consider) may decide otherwise without another
    /// input.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let all =
            [self.weakly_up_at, self.unlisted_at, self.turn_at, self.press_at, self.steady_at];
        all.into_iter().flatten().min()
    }

    /// Whether a newcomer, a promotable and reachable member in no configuration, was known when a
    /// member of the configuration last considered changes.
    pub(super) fn has_newcomers(&self) -> bool {
        !self.newcomers.is_empty()
    }

    /// The downing strategy has withdrawn its order or replaced it: its victims are no longer
    /// wanted, and `heard` is cleared as well. A proposal that is open already may still remove
    /// them. The delay of removals in vain remains.
    pub(super) fn spare_all(&mut self) {
        self.victims.clear();
        self.heard.clear();
    }

    /// A configuration was installed: nothing counts as proposed any longer, and the turn and the
    /// repetitions start anew with the next [`consider`](Self::consider). Added members stay
    /// newcomers for the check of steadiness. If the members are unchanged although victims were
    /// proposed, counts a removal in vain and holds these victims back ([`IN_VAIN`]). Victims and
    /// `not_before` remain.
    pub(super) fn installed(&mut self, now: Now, previous: Option<&Epoch>, epoch: Option<&Epoch>) {
        let has_same_members = previous.map(Epoch::members) == epoch.map(Epoch::members);
        if let (Some(previous), Some(epoch)) = (previous, epoch) {
            for id in epoch.removed_by(previous) {
                let since = self.newcomers.get(&id).copied().unwrap_or(now.mono);
                self.taken_in.insert(id, since);
            }
        }
        let victims = |id: &ReplicaId| self.victims.contains(id);
        let proposed: BTreeSet<_> = self.proposed.removed().filter(victims).collect();
        if has_same_members && !proposed.is_empty() {
            self.in_vain = self.in_vain.saturating_add(1);
            let doublings = self.in_vain.saturating_sub(IN_VAIN);
            let wait = AGAIN.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX));
            self.kept_until =
                now.mono + if doublings == 0 { Duration::ZERO } else { wait.min(IN_VAIN_MAX) };
            self.kept = proposed;
        }
        self.proposed = MembershipChange::default();
        (self.wanted_since, self.turn_at, self.press_at) = (None, None, None);
    }

    /// Takes the result of the open proposal. Nothing counts as proposed any longer, so wanted
    /// changes are proposed again: at once if another configuration came first or all of it was
    /// decided, otherwise (refused, or removals deferred) after `AGAIN`. After `Busy` all proposed
    /// changes still count, until the outcome of the running attempt or the next configuration. The
    /// caller then considers again.
    pub(super) fn outcome(&mut self, now: Now, outcome: &ProposalOutcome) {
        match outcome {
            ProposalOutcome::Refused { why: ProposalRefusal::Busy } => {
                self.not_before = now.mono + AGAIN;
            }
            ProposalOutcome::Decided { deferred, .. } => {
                self.proposed = MembershipChange::default();
                if !deferred.is_empty() {
                    self.not_before = now.mono + AGAIN;
                }
            }
            ProposalOutcome::Superseded { .. } => self.proposed = MembershipChange::default(),
            _ => {
                self.proposed = MembershipChange::default();
                self.not_before = now.mono + AGAIN;
            }
        }
        self.turn_at = Some(self.not_before);
    }

    /// Marks members Up and removes them according to the installed configuration, which need not
    /// contain this node: marks its Joining and WeaklyUp members Up, this node included, and
    /// removes those that it lists as left or barred, not all that it lacks, because these may be
    /// newcomers. Never removes this node. Returns whether the state changed; `false` without a
    /// configuration.
    pub(super) fn follow(core: &MembershipCore, gossip: &mut Gossip) -> bool {
        let Some(epoch) = &core.installed else { return false };
        let me = core.me.incarnation;
        let left: BTreeSet<ReplicaId> = epoch.left().iter().copied().collect();
        let gone = gossip.members().map(|member| member.incarnation());
        let gone: Vec<_> = gone.filter(|id| *id != me && left.contains(id)).collect();
        let waits = |id: ReplicaId| {
            gossip.member(id).is_some_and(|member| member.status.may_become(Status::Up))
        };
        let up: Vec<_> = ages(epoch).into_iter().filter(|(id, _)| waits(*id)).collect();
        (!gone.is_empty() || !up.is_empty()) && gossip.follow(me, &up, &gone)
    }

    /// Proposes the wanted changes if it is this node's turn. Returns whether the gossip state
    /// changed: the leader also marks members WeaklyUp here, whether or not it proposes. (The
    /// leader here is the first reachable member of the configuration.)
    ///
    /// Proposes nothing, in this order: if this node is not a member of the installed configuration
    /// (then only deadlines are dropped); if nothing is wanted, which ends the turn; before its
    /// turn and `not_before`; if a join is wanted, also a proposed one, before the sole-member
    /// evidence is off the disk; if all of it is proposed already. A proposal contains only changes
    /// that are not proposed yet. One with a `leave` of a member proven dead is repeated with all
    /// wanted changes, up to [`PRESS_TIMES`].
    #[expect(clippy::too_many_lines, reason = "the conditions of one proposal, in their order")]
    pub(super) fn consider(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        gossip: &mut Gossip,
        out: &mut MembershipOutbox,
    ) -> bool {
        let me = core.me.incarnation;
        (self.turn_at, self.weakly_up_at, self.unlisted_at) = (None, None, None);
        let Some(epoch) = core.installed.clone().filter(|epoch| epoch.is_member(me)) else {
            (self.press_at, self.steady_at) = (None, None);
            return false;
        };
        let unreachable = gossip.unreachable_to(me);
        let is_there = |id: &ReplicaId| gossip.contains(*id) && epoch.is_member(*id);
        self.victims.retain(|id| unreachable.contains(id) && gossip.contains(*id));
        self.kept.retain(|id| unreachable.contains(id) && is_there(id));
        if self.kept.is_empty() {
            self.in_vain = 0;
        }
        let voted: BTreeSet<ReplicaId> = epoch.members().iter().copied().collect();
        let ahead = leader::ahead_of(gossip, me, |id| voted.contains(&id));
        let leads = ahead == 0;
        let mut changed = self.take_up_weakly(core, now, gossip, leads);
        if leads && core.fault_injection.has(MembershipFault::UpWithoutConfiguration) {
            let age = gossip.next_up_number();
            let up: Vec<_> =
                gossip.promotable().iter().map(|m| m.incarnation()).zip(age..).collect();
            changed |= gossip.promote(me, &up);
        }
        self.take_stock(now, &epoch, gossip, &unreachable);
        let wanted = self.wanted(core, now, &epoch, gossip, &unreachable);
        self.turn_at = Some(self.kept_until).filter(|at| !self.kept.is_empty() && now.mono < *at);
        if wanted.is_empty() {
            (self.wanted_since, self.press_at) = (None, None);
            return changed;
        }
        let since = *self.wanted_since.get_or_insert(now.mono);
        let patience = match u32::try_from(ahead).unwrap_or(u32::MAX) {
            0 => Duration::ZERO,
            nth => LEADER_FIRST + TURN.saturating_mul(nth),
        };
        let at = (since + patience).max(self.not_before);
        if now.mono < at {
            self.turn_at = Some(self.turn_at.map_or(at, |first| first.min(at)));
            self.press_at = None;
            return changed;
        }
        if !wanted.join.is_empty() && !core.prepare_for_others(out) {
            return changed; // considered again once it is
        }
        let proven = |id: &ReplicaId| {
            gossip.reachability().worst(*id) == Some(ReachabilityStatus::Terminated)
        };
        let is_proven = wanted.leave.iter().any(proven);
        let new = without(wanted.clone(), &self.proposed);
        let is_pressed = self.press_at.is_some_and(|at| now.mono >= at);
        if !new.is_empty() {
            self.pressed = 0;
            self.propose(core, epoch.id(), new, out);
        } else if is_pressed {
            self.pressed += 1;
            self.propose(core, epoch.id(), wanted, out);
        } else {
            return changed;
        }
        let presses = is_proven && self.pressed < PRESS_TIMES;
        self.press_at = presses.then(|| now.mono + PRESS_FIRST * (1 << self.pressed));
        changed
    }

    /// Sends a proposal that is void once another configuration than `base` is installed, counts it
    /// as `proposed`, and adds its changes to the proposed ones.
    fn propose(
        &mut self,
        core: &mut MembershipCore,
        base: EpochId,
        change: MembershipChange,
        out: &mut MembershipOutbox,
    ) {
        self.proposed = std::mem::take(&mut self.proposed).and(&change);
        core.stats.proposed += 1;
        out.push(MembershipOutput::Propose { base, change });
    }

    /// All changes wanted now, whether or not they are proposed already. Empty if there are none.
    ///
    /// - `join`: promotable members that are reachable and connected (or this node), oldest stamp
    ///   first; fewer if members are not steady ([`only_as_many_as_may_die`]).
    /// - `leave`: Exiting and Down members, also those that are in no configuration yet, to bar
    ///   them; and victims that are both `heard` and `kept`.
    /// - `lost`: other victims, members that gossip has removed, and those unlisted for
    ///   `UNLISTED_FOR`.
    ///
    /// A kept victim is in neither before `kept_until`, unless it is proposed already; if it is
    /// Down or Exiting, that delays nothing. If every member of the configuration would be removed
    /// and none joins, this node is left out of `leave`.
    fn wanted(
        &self,
        core: &MembershipCore,
        now: Now,
        epoch: &Epoch,
        gossip: &Gossip,
        unreachable: &BTreeSet<ReplicaId>,
    ) -> MembershipChange {
        let me = core.me.incarnation;
        let there = |id: ReplicaId, node| {
            !unreachable.contains(&id) && (id == me || core.links.is_up(node))
        };
        let mut join: Vec<_> = gossip.promotable();
        join.retain(|m| there(m.incarnation(), m.node) && !epoch.is_member(m.incarnation()));
        join.sort_by_key(|member| member.since);
        let removed = |id: ReplicaId| !gossip.contains(id) && gossip.is_removed(id, u64::MAX);
        let is_missed = |id| {
            self.unlisted_since.get(&id).is_some_and(|since| now.mono >= *since + UNLISTED_FOR)
        };
        let waits = |id: &ReplicaId| {
            now.mono < self.kept_until
                && self.kept.contains(id)
                && !self.proposed.removed().any(|other| other == *id)
        };
        let is_victim = |id: &ReplicaId| self.victims.contains(id) && !waits(id);
        // It has answered this node before, but not all other members.
        let is_heard = |id: &ReplicaId| self.heard.contains(id) && self.kept.contains(id);
        let (mut leave, mut lost) = (Vec::new(), Vec::new());
        for &id in epoch.members() {
            match gossip.member(id).map(|member| member.status) {
                // A Down member was declared Down or is proven dead, so no voter probes it again.
                Some(Status::Exiting | Status::Down) => leave.push(id),
                Some(_) if is_victim(&id) && is_heard(&id) => leave.push(id),
                _ if is_victim(&id) || removed(id) || is_missed(id) => lost.push(id),
                _ => {}
            }
        }
        let join = join.into_iter().map(|member| member.incarnation()).collect();
        let answers =
            |id: ReplicaId| gossip.member(id).is_some_and(|member| there(id, member.node));
        let is_new = |id: ReplicaId| {
            let since = self.newcomers.get(&id).or_else(|| self.taken_in.get(&id));
            since.is_some_and(|since| now.mono < *since + STEADY_AFTER)
        };
        let is_steady = |id: ReplicaId| answers(id) && !is_new(id);
        let join = only_as_many_as_may_die(join, epoch, answers, is_steady);
        // The last members cannot all be removed by themselves: this node stays to the end.
        if join.is_empty() && leave.len() + lost.len() == epoch.members().len() {
            leave.retain(|id| *id != me);
        }
        // A member that departs before any configuration contained it may be in an open proposal,
        // possibly one unknown to this node. Only a configuration can record that it is out.
        let going = gossip.members().filter(|member| member.status.is_going());
        let going = going.map(|member| member.incarnation());
        leave.extend(going.filter(|id| !epoch.is_member(*id)));
        MembershipChange { join, leave, lost }
    }

    /// Records the members that are missing in gossip, and the newcomers, with the times since
    /// which they are.
    fn take_stock(
        &mut self,
        now: Now,
        epoch: &Epoch,
        gossip: &Gossip,
        unreachable: &BTreeSet<ReplicaId>,
    ) {
        self.miss(now, epoch, gossip);
        self.meet(now, epoch, gossip, unreachable);
    }

    /// Records since when members of the configuration are missing in gossip, and sets
    /// `unlisted_at`. A listed one is forgotten, so that its time begins anew.
    fn miss(&mut self, now: Now, epoch: &Epoch, gossip: &Gossip) {
        let unlisted = epoch.members().iter().copied().filter(|id| !gossip.contains(*id));
        let unlisted: BTreeSet<_> = unlisted.collect();
        self.unlisted_since.retain(|id, _| unlisted.contains(id));
        for id in unlisted {
            self.unlisted_since.entry(id).or_insert(now.mono);
        }
        let due = self.unlisted_since.values().map(|since| *since + UNLISTED_FOR);
        self.unlisted_at = due.filter(|at| *at > now.mono).min();
    }

    /// Records since when each newcomer has been reachable, connected or not, and sets `steady_at`.
    /// One that becomes unreachable, or a member of the configuration, is forgotten. Members taken
    /// in are forgotten once they are steady, even if they are unreachable.
    fn meet(
        &mut self,
        now: Now,
        epoch: &Epoch,
        gossip: &Gossip,
        unreachable: &BTreeSet<ReplicaId>,
    ) {
        let waits = gossip.promotable().into_iter().map(|member| member.incarnation());
        let new = |id: &ReplicaId| !epoch.is_member(*id) && !unreachable.contains(id);
        let new: BTreeSet<ReplicaId> = waits.filter(new).collect();
        self.newcomers.retain(|id, _| new.contains(id));
        for id in new {
            self.newcomers.entry(id).or_insert(now.mono);
        }
        self.taken_in.retain(|_, since| now.mono < *since + STEADY_AFTER);
        let all = self.newcomers.values().chain(self.taken_in.values());
        let due = all.map(|since| *since + STEADY_AFTER);
        self.steady_at = due.filter(|at| *at > now.mono).min();
    }

    /// Marks members WeaklyUp that have been Joining for `allow-weakly-up-members` as this node saw
    /// it. Returns whether it changed one. Only the leader does, and plans `weakly_up_at`; every
    /// member of the configuration measures. Unreachable members are skipped, but their time runs
    /// on; all are skipped during the preparation for a full shutdown.
    fn take_up_weakly(
        &mut self,
        core: &MembershipCore,
        now: Now,
        gossip: &mut Gossip,
        leads: bool,
    ) -> bool {
        let me = core.me.incarnation;
        let joining = gossip.members().filter(|member| member.status == Status::Joining);
        let joining: BTreeSet<_> = joining.map(|member| member.incarnation()).collect();
        self.waiting_since.retain(|id, _| joining.contains(id));
        for id in &joining {
            self.waiting_since.entry(*id).or_insert(now.mono);
        }
        if !leads || gossip.is_preparing_for_shutdown() {
            return false;
        }
        let patience = core.config.allow_weakly_up_members;
        let unreachable = gossip.unreachable_to(me);
        let mut changed = false;
        for (id, since) in &self.waiting_since {
            let at = *since + patience;
            if unreachable.contains(id) {
                continue;
            }
            if now.mono >= at {
                changed |= gossip.move_to(me, *id, Status::WeaklyUp).unwrap_or(false);
            } else {
                self.weakly_up_at = Some(self.weakly_up_at.map_or(at, |first| first.min(at)));
            }
        }
        changed
    }
}

/// Limits the newcomers of a proposal. If all members of the configuration answer, all newcomers
/// are accepted, steady or not; otherwise only so many that the steady ones among members and
/// newcomers would still be a quorum if all others failed at once. (Otherwise newcomers that fail
/// one after the other, each before the previous one could be removed, would outnumber the living
/// members.) The list is halved until it fits, so fewer than
/// possible may be left; the first ones of `join` remain, perhaps none.
fn only_as_many_as_may_die(
    mut join: Vec<ReplicaId>,
    epoch: &Epoch,
    answers: impl Fn(ReplicaId) -> bool,
    steady: impl Fn(ReplicaId) -> bool,
) -> Vec<ReplicaId> {
    if epoch.members().iter().all(|id| answers(*id)) {
        return join;
    }
    let all = epoch.members().iter().chain(&join).copied();
    let steady: BTreeSet<ReplicaId> = all.filter(|id| steady(*id)).collect();
    let lasts = |join: &[ReplicaId]| {
        let change = MembershipChange { join: join.to_vec(), ..MembershipChange::default() };
        epoch.next(&change).is_ok_and(|next| next.is_quorum(&steady, FaultInjection::none()))
    };
    while !join.is_empty() && !lasts(&join) {
        join.truncate(join.len() / 2); // each check costs time proportional to the configuration
    }
    join
}

/// The parts of `wanted` that are not in `proposed`. A removal counts as proposed whether as
/// `leave` or as `lost`.
fn without(wanted: MembershipChange, proposed: &MembershipChange) -> MembershipChange {
    let new = |ids: Vec<ReplicaId>, known: &[ReplicaId]| {
        ids.into_iter().filter(|id| !known.contains(id)).collect()
    };
    let going: Vec<ReplicaId> = proposed.removed().collect();
    MembershipChange {
        join: new(wanted.join, &proposed.join),
        leave: new(wanted.leave, &going),
        lost: new(wanted.lost, &going),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ostraca_ddata::machine::Outbox;
    use ostraca_ddata::replicator::epoch::EpochSettings;

    use super::*;
    use crate::cluster::config::ClusterConfig;
    use crate::cluster::fault_injection::MembershipFaultInjection;
    use crate::cluster::gossip::tests::{joiner, node, state};
    use crate::cluster::membership::Membership;
    use crate::cluster::membership::port::{MembershipSetup, Memory};
    use crate::cluster::wire::ComparedSettings;

    /// The leader A of the configuration of A to C, connected with B to I.
    struct Bench {
        core: MembershipCore,
        proposer: Proposer,
    }

    fn at(seconds: u64) -> Now {
        Now { mono: Instant::from_nanos(seconds * 1_000_000_000), ..Now::default() }
    }

    impl Bench {
        fn new() -> Self {
            let setup = MembershipSetup {
                me: node(1),
                address: joiner(1, 1).address,
                config: ClusterConfig::default(),
                settings: ComparedSettings::default(),
                memory: Memory::default(),
                directory: None,
                seed: 1,
                fault_injection: MembershipFaultInjection::none(),
            };
            let mut core = Membership::new(setup).core;
            for number in 2..=9 {
                core.links.up(node(number), Vec::new());
            }
            let (id, members) = (EpochId { generation: 1, number: 1 }, ids([1, 2, 3]));
            let epoch = Epoch::founding(id, members, EpochSettings::default());
            core.installed = Some(Arc::new(epoch.expect("three members")));
            Self { core, proposer: Proposer::default() }
        }

        /// The newcomers that A proposes at this time.
        fn proposed(&mut self, seconds: u64, gossip: &str) -> Vec<ReplicaId> {
            let (mut gossip, mut out) = (state(gossip), Outbox::new());
            self.proposer.consider(&mut self.core, at(seconds), &mut gossip, &mut out);
            let joins = out.drain().filter_map(|output| match output {
                MembershipOutput::Propose { change, .. } => Some(change.join),
                _ => None,
            });
            joins.flatten().collect()
        }

        fn installs(&mut self, seconds: u64, join: Vec<ReplicaId>) {
            let before = self.core.installed.clone().expect("A is a member");
            let change = MembershipChange { join, ..MembershipChange::default() };
            let epoch = Arc::new(before.next(&change).expect("they join"));
            self.core.installed = Some(epoch.clone());
            self.proposer.installed(at(seconds), Some(&*before), Some(&*epoch));
        }
    }

    fn ids(numbers: impl IntoIterator<Item = u64>) -> Vec<ReplicaId> {
        numbers.into_iter().map(ReplicaId::new).collect()
    }

    const SECOND_BATCH: &str = "A B C D E F Gj Hj Ij";

    /// A leader whose configuration took in D to F a second after their start.
    fn with_first_batch() -> Bench {
        let mut bench = Bench::new();
        assert_eq!(bench.proposed(0, "A B C Dj Ej Fj"), ids(4..=6));
        bench.installs(1, ids(4..=6));
        bench
    }

    /// If D to I died before D to F are removed, A to C would be no quorum of nine. A knows of the
    /// death of all of the first batch, or only of D's.
    #[test]
    fn deaths_of_two_batches_of_newcomers_leave_a_quorum() {
        for (closed, steady_at) in [(vec![4, 5, 6], 12), (vec![4], 10)] {
            let mut bench = with_first_batch();
            for number in &closed {
                bench.core.links.closed(node(*number));
            }
            for seconds in 2..steady_at {
                let proposed = bench.proposed(seconds, SECOND_BATCH);
                assert!(proposed.is_empty(), "{closed:?} closed, {seconds} s: {proposed:?}");
                assert!(bench.proposer.next_deadline().is_some());
            }
            assert_eq!(bench.proposed(steady_at, SECOND_BATCH), ids(7..=9), "{closed:?}");
        }
    }

    #[test]
    fn newcomers_join_at_once_while_all_members_answer() {
        assert_eq!(with_first_batch().proposed(2, SECOND_BATCH), ids(7..=9));
    }
}
