//! One node of the exhaustive model: the real configuration machine, grantor and holder, data of
//! one token, and clocks that only order events.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ostraca::cluster::fault_injection::MembershipFault;
use ostraca::cluster::lease::{
    Grantor, HolderInput, HolderOutput, LeaseConfig, LeaseHolder, LeaseMessage, holding_time,
};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::fault_injection::ReplicatorFault;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::{
    Ballot, BallotRefusal, Epoch, EpochConfig, EpochId, EpochInput, EpochMessage, EpochOutput,
    EpochSettings, Epochs, LeaseSettings, MembershipChange, ProposalOutcome,
};

use super::Case;
use super::guard::{Guard, GuardEffects, GuardMessage, Guarded};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The time of every grantor: promises of an earlier life have expired.
const LONG_AFTER_BOOT: Instant = Instant::from_nanos(1_000_000_000_000);

/// Information that one node may receive from another. A body that was sent once may be received at
/// any later time, any number of times or never.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Body {
    Epoch(EpochMessage),
    Lease(LeaseMessage),
    /// A fact, not a message: the holder's leases from its heartbeats up to this one have ended.
    Over(u64),
    /// The snapshot that its sender froze for this configuration.
    Frozen(EpochId, Kept),
    /// The state of a sender that is synced for this configuration.
    State(EpochId, Kept),
    Guard(GuardMessage),
}

/// The data of a replica: the token, and the guarded value with the promised term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) token: bool,
    pub(super) guarded: Guarded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// Receives the message with this index among those sent to this node.
    Hear(u16),
    Propose,
    LosePatience,
    /// Acknowledges the token.
    Ack,
    /// Answers a read that began after the token was acknowledged, without the token.
    Lack,
    Beat,
    /// At the holder, the lease from its oldest running heartbeat ends.
    Expire,
    /// At a coordinator, the fencing read of its term begins.
    Fence,
    /// At a coordinator that has recovered, its decision is written.
    Decide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pull {
    Snapshot(EpochId, ReplicaId),
    State(EpochId),
}

/// Results of an event besides the new state.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) said: Vec<(ReplicaId, Body)>,
    pub(super) acked: bool,
    pub(super) lacked: bool,
    /// A coordinator acts from now on, knowing these decisions.
    pub(super) speaks: Option<(u8, u8)>,
    /// The event had no effect, so the search ignores it.
    pub(super) void: bool,
}

/// This node's own ballot and its phase, parsed from the essence of the machine.
#[derive(Clone, Default)]
struct Own {
    ballot: Option<String>,
    phase: Option<String>,
}

impl Own {
    fn asks(&self, ballot: Ballot, phases: &[&str]) -> bool {
        self.ballot == Some(format!("{ballot:?}"))
            && self.phase.as_deref().is_some_and(|phase| phases.contains(&phase))
    }
}

#[derive(Clone)]
pub(super) struct Node {
    pub(super) me: ReplicaId,
    pub(super) epochs: Epochs,
    all: Vec<ReplicaId>,
    token_moves: bool,
    guard: Option<Guard>,
    now: Instant,
    wishes: VecDeque<MembershipChange>,
    patience: u8,
    token: bool,
    /// The token came with this node's own acknowledgement; relevant only with
    /// `SnapshotBeforeLastAck`.
    token_acked: bool,
    epoch_fault: Option<ReplicatorFault>,
    acked: BTreeSet<EpochId>,
    lacked: BTreeSet<EpochId>,
    pulls: BTreeSet<Pull>,
    /// The node whose lease is modelled.
    leased: Option<ReplicaId>,
    grantor: Grantor,
    clock: Instant,
    /// The promises here may end once the leases from heartbeats up to this one have ended.
    protects: u64,
    /// The leases from heartbeats up to this one have ended.
    over: u64,
    /// The last granted heartbeat.
    granted: u64,
    /// This node was asked for its consent; relevant only with `AckAfterConsent`.
    consented: bool,
    holder: Option<LeaseHolder>,
    holder_clock: Instant,
    /// Sending time of each heartbeat, by number from 1.
    sent: Vec<Instant>,
    expired: u64,
    beats: u64,
    lease_fault: Option<MembershipFault>,
    stop_at_accept: bool,
    own: Own,
}

fn lease() -> LeaseSettings {
    LeaseSettings::default()
}

/// A node that membership has not let in.
pub(super) const STRANGER: ReplicaId = ReplicaId::new(99);
/// The number of every forged ballot, above all others of a search.
const FORGED_BALLOT: u64 = 1_000;

/// Messages of the stranger to a node: made-up configurations of a later cluster generation and of
/// this one, one to sync from, and a made-up ballot in the real one.
pub(super) fn forged(to: u64, real: &Arc<Epoch>) -> Vec<Body> {
    let made_up = |generation, number, members: Vec<ReplicaId>| {
        let id = EpochId { generation, number };
        Arc::new(Epoch::founding(id, members, EpochSettings::default()).expect("well formed"))
    };
    let (epoch, to) = (real.id(), ReplicaId::new(to));
    let ballot = Ballot { number: FORGED_BALLOT, node: STRANGER };
    let base = made_up(1, epoch.number + 5, vec![STRANGER]);
    let change = MembershipChange { join: vec![to], ..MembershipChange::default() };
    let proposal = Arc::new(base.next(&change).expect("one joins"));
    let same = Arc::new(real.next(&MembershipChange::default()).expect("the same members"));
    let messages = [
        EpochMessage::Install { epoch: made_up(2, 1, vec![STRANGER]) },
        EpochMessage::Install { epoch: made_up(1, epoch.number + 5, vec![STRANGER, to]) },
        EpochMessage::Sync { base, ballot, proposal, sealed: vec![STRANGER] },
        EpochMessage::Seal { epoch, ballot, proposal: same.clone() },
        EpochMessage::Accept { epoch, ballot, proposal: same },
    ];
    messages.map(Body::Epoch).into()
}

/// The first configuration.
pub(super) fn founding(members: u64) -> Arc<Epoch> {
    let id = EpochId { generation: 1, number: 1 };
    let ids = (1..=members).map(ReplicaId::new).collect();
    Arc::new(Epoch::founding(id, ids, EpochSettings::default()).expect("well formed"))
}

impl Node {
    pub(super) fn new(id: u64, case: &Case) -> Self {
        let me = ReplicaId::new(id);
        let plan = case.plan.iter().find(|plan| plan.node == id);
        let boot = Now { mono: Instant::default(), wall: WallTime::default() };
        let config = LeaseConfig { heartbeat_interval: MS, ..LeaseConfig::default() };
        let leased = case.holder.map(ReplicaId::new);
        let mut epochs = Epochs::new(me, EpochConfig::default(), 0, case.epoch_fault_injection());
        // Membership, which is not in this model, lets everybody in and reaches nobody: a
        // configuration is then taken from any of them.
        let known = (1..=case.nodes).map(|id| (ReplicaId::new(id), false)).collect();
        epochs.handle(boot, EpochInput::Known(known), &mut Outbox::new());
        Self {
            me,
            epochs,
            all: (1..=case.nodes).map(ReplicaId::new).collect(),
            token_moves: case.token,
            guard: (case.coordinators > 0)
                .then(|| Guard::new(me, case.coordinators, case.epoch_fault)),
            now: Instant::default(),
            wishes: plan.map(|plan| plan.wishes.clone().into()).unwrap_or_default(),
            patience: plan.map_or(0, |plan| plan.patience),
            token: false,
            token_acked: false,
            epoch_fault: case.epoch_fault,
            acked: BTreeSet::new(),
            lacked: BTreeSet::new(),
            pulls: BTreeSet::new(),
            leased,
            grantor: Grantor::new(me, boot, case.lease_fault_injection()),
            clock: Instant::default(),
            protects: 0,
            over: 0,
            granted: 0,
            consented: false,
            holder: (leased == Some(me))
                .then(|| LeaseHolder::new(me, config, case.lease_fault_injection())),
            holder_clock: LONG_AFTER_BOOT,
            sent: Vec::new(),
            expired: 0,
            beats: case.beats,
            lease_fault: case.lease_fault,
            stop_at_accept: false,
            own: Own::default(),
        }
    }

    /// Installs the first configuration, as if long ago.
    pub(super) fn found(&mut self, epoch: Arc<Epoch>) -> Effects {
        let mut fx = Effects::default();
        self.tell(0, EpochInput::Found(epoch), &mut fx);
        self.clock = LONG_AFTER_BOOT;
        (self.protects, self.expired) = (0, self.sent());
        self.holder_clock = self.holder_clock + lease().duration;
        fx.said.retain(|(_, body)| !matches!(body, Body::Lease(_))); // these were lost long ago
        let over = (self.expired > 0).then_some(Body::Over(self.expired));
        fx.said.extend(over.iter().flat_map(|over| self.all.iter().map(|to| (*to, over.clone()))));
        fx
    }

    pub(super) fn join_later(&mut self) {
        self.clock = LONG_AFTER_BOOT;
    }

    /// Everything that determines this node's next steps: two states with one essence behave alike.
    pub(super) fn essence(&self) -> String {
        if self.epochs.is_excluded() {
            let forged = self.is_misled();
            return format!("{} out {} {} {forged}", self.me, self.sent.len(), self.expired);
        }
        let token = (self.token, self.token_acked && self.snapshot_is_late());
        let rest = (self.wishes.len(), self.patience, token, &self.acked, &self.lacked);
        let lease = (self.promise(), self.expired, self.sent.len(), self.stop_at_accept);
        let mut text =
            format!("{} {} {rest:?} {lease:?} {:?}", self.me, self.epochs.essence(), self.pulls);
        if let Some(guard) = &self.guard {
            text += &guard.essence();
        }
        if let Some(holder) = &self.holder {
            let holder = format!("{holder:?}");
            text += &named(upto(&holder, ", beat_at:"), |at| self.holders(at));
        }
        text
    }

    /// Whether a replica's data travel with snapshots and states.
    fn data_moves(&self) -> bool {
        self.token_moves || self.guard.is_some()
    }

    fn snapshot_is_late(&self) -> bool {
        self.epoch_fault == Some(ReplicatorFault::SnapshotBeforeLastAck)
    }

    /// Whether a promise runs here, the last heartbeat whose lease must end before it may, the last
    /// granted heartbeat, and whether consent was asked for. A promise ends T_q after the last
    /// grant.
    fn promise(&self) -> (bool, u64, u64, bool) {
        let now = Now { mono: self.clock, wall: WallTime::default() };
        let leased = self.leased.as_slice();
        let runs = !self.grantor.clone().consent(now, leased).is_empty();
        let granted = if self.grants() { self.granted } else { 0 };
        (runs, if runs { self.protects } else { 0 }, granted, self.consented)
    }

    /// Whether this node grants: once sealed it grants no further lease in this configuration.
    fn grants(&self) -> bool {
        !self.epochs.sealed()
            || matches!(
                self.lease_fault,
                Some(MembershipFault::SealedGrants | MembershipFault::AckAfterConsent)
            )
    }

    /// Renames a time of the holder: a sending time of a heartbeat, or such a time plus T_p.
    fn holders(&self, at: u64) -> String {
        let at = Instant::from_nanos(at);
        let number = |at: Instant| self.sent.iter().position(|sent| *sent == at);
        if let Some(index) = number(at) {
            let is_over = (index as u64) < self.expired && !self.misjudges_time();
            return if is_over { "over".to_owned() } else { format!("#{index}") };
        }
        let end = self.sent.iter().position(|sent| *sent + held() == at);
        match end {
            _ if at + held() <= self.holder_clock => "over".to_owned(),
            _ if at <= self.holder_clock => "late".to_owned(), // only with a fault of time
            Some(index) => format!("#{index}+"),
            None => "longer".to_owned(), // likewise
        }
    }

    fn misjudges_time(&self) -> bool {
        matches!(
            self.lease_fault,
            Some(MembershipFault::LeaseFromAck | MembershipFault::NoDriftMargin)
        )
    }

    // ── queries of the search ──

    /// Whether this node believes a stranger.
    pub(super) fn is_misled(&self) -> bool {
        let installed = self.epochs.installed();
        let promise = self.epochs.state().promise;
        installed.is_some_and(|epoch| epoch.is_member(STRANGER))
            || promise.is_some_and(|promise| promise.number == FORGED_BALLOT)
    }

    pub(super) fn serves(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.serves(self.holder_clock))
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.len() as u64
    }

    /// The change that this node proposes next.
    pub(super) fn wish(&self) -> MembershipChange {
        self.wishes.front().cloned().unwrap_or_default()
    }

    pub(super) fn accepted(&self) -> Option<&(Ballot, Arc<Epoch>)> {
        self.epochs.state().accepted.as_ref()
    }

    /// The events that are possible here besides receiving a message; `known`: a majority has
    /// acknowledged the token.
    pub(super) fn own_events(&self, known: bool) -> Vec<Event> {
        let mut events = Vec::new();
        let epoch = self.epochs.id().filter(|_| self.token_moves && self.epochs.eligible());
        let mut may = |may: bool, event: Event| events.extend(may.then_some(event));
        may(!self.wishes.is_empty(), Event::Propose);
        may(self.patience > 0 && self.epochs.sealed(), Event::LosePatience);
        may(epoch.is_some_and(|id| !known && !self.acked.contains(&id)), Event::Ack);
        let lacks = known && !self.token;
        may(epoch.is_some_and(|id| lacks && !self.lacked.contains(&id)), Event::Lack);
        may(self.holder.is_some() && self.sent() <= self.beats, Event::Beat);
        may(self.expired < self.sent(), Event::Expire);
        let guard = self.guard.as_ref().filter(|_| self.epochs.is_member());
        may(guard.is_some_and(Guard::may_fence), Event::Fence);
        may(guard.is_some_and(Guard::may_decide), Event::Decide);
        events
    }

    /// Whether receiving this body can never again change anything that the search observes.
    ///
    /// A message of an earlier configuration would only be answered with the installed one, which
    /// the node that decided it has sent to all nodes concerned, in a message that remains
    /// receivable.
    pub(super) fn is_deaf_to(&self, body: &Body) -> bool {
        if self.epochs.is_excluded() && self.holder.is_none() {
            return !matches!(body, Body::Over(_));
        }
        let mine = self.epochs.id();
        let is_older = |id: EpochId| mine.is_some_and(|mine| id < mine);
        let two_epochs = self.lease_fault == Some(MembershipFault::LeaseOverTwoEpochs);
        match body {
            Body::Epoch(EpochMessage::Install { epoch }) => mine.is_some_and(|m| epoch.id() <= m),
            Body::Epoch(message) => {
                epoch_of(message).is_some_and(is_older) || self.needs_no(message)
            }
            Body::Lease(LeaseMessage::Beat(beat)) => {
                let is_mine = mine == Some(beat.epoch) && !self.grants();
                (is_mine || is_older(beat.epoch) || beat.number < self.granted) && !two_epochs
            }
            Body::Lease(LeaseMessage::Granted(beat)) => {
                let is_over = beat.number <= self.expired && !self.misjudges_time();
                is_over || is_older(beat.epoch) && !two_epochs
            }
            Body::Lease(LeaseMessage::Release { .. }) | Body::Over(_) => false,
            Body::Frozen(id, _) => {
                let ready = self.epochs.state().ready && mine == Some(*id);
                let synced = self.epochs.synced() && mine == Some(id.next());
                ready || synced || mine.is_some_and(|mine| id.next() < mine)
            }
            Body::State(id, _) => {
                let synced = self.epochs.synced() && mine == Some(*id);
                synced || is_older(*id)
            }
            Body::Guard(message) => {
                self.guard.as_ref().is_none_or(|guard| guard.is_deaf_to(message, mine))
            }
        }
    }

    /// Whether a message of this node's own configuration has no effect: an answer to a question
    /// that is no longer open, or a question that was already answered.
    fn needs_no(&self, message: &EpochMessage) -> bool {
        use EpochMessage as M;
        let two_proposers = self.epoch_fault == Some(ReplicatorFault::BallotWithoutNode); // of one ballot
        if epoch_of(message) != self.epochs.id() || self.epochs.id().is_none() || two_proposers {
            return false;
        }
        let state = self.epochs.state();
        let tries_again = self.patience > 0 || !self.wishes.is_empty();
        match message {
            M::Seal { ballot, .. } => state.promise == Some(*ballot),
            M::Accept { ballot, .. } => self.accepted().is_some_and(|(last, _)| last == ballot),
            M::Sealed { ballot, .. } => !self.own.asks(*ballot, &["Sealing"]),
            M::Accepted { ballot, .. } => {
                !self.own.asks(*ballot, &["Sealing", "Syncing", "Accepting"])
            }
            M::Synced { .. } => {
                let counts = self.own.phase.as_deref().is_some_and(|phase| phase != "Accepting");
                !tries_again && !counts
            }
            M::Refused { .. } => !tries_again,
            _ => false,
        }
    }

    /// Must be called after each step.
    fn look_at_attempt(&mut self) {
        let essence = self.epochs.essence();
        let attempt = essence.split_once("Attempt { ballot: ").map(|(_, attempt)| attempt);
        self.own.ballot = attempt.map(|attempt| upto(attempt, ", origin:").to_owned());
        let phase = attempt.and_then(|attempt| attempt.split_once(" phase: "));
        self.own.phase = phase.map(|(_, phase)| upto(phase, ",").to_owned());
    }

    // ── steps ──

    /// `beats`: the number of heartbeats that the holder has sent; `over`: the last heartbeat up to
    /// which the holder's leases have ended.
    pub(super) fn take(
        &mut self,
        event: Event,
        heard: Option<&(ReplicaId, Body)>,
        (beats, over): (u64, u64),
    ) -> Effects {
        let mut fx = Effects::default();
        let kept = self.kept();
        self.over = over;
        match event {
            Event::Hear(_) => {
                let (from, body) = heard.expect("a message comes with its event");
                self.hear(*from, body, beats, &mut fx);
            }
            Event::Propose => {
                let change = self.wishes.pop_front().unwrap_or_default();
                self.tell(beats, EpochInput::Propose(change), &mut fx);
                self.withhold_nothing(beats, &mut fx);
            }
            Event::LosePatience => {
                self.patience -= 1;
                self.now = self.now + 3_600 * SECOND;
                self.tell(beats, EpochInput::Tick, &mut fx);
                self.withhold_nothing(beats, &mut fx);
            }
            Event::Ack => {
                self.acked.extend(self.epochs.id());
                fx.acked = true;
                self.token_acked |= !self.token;
                self.token = true;
            }
            Event::Lack => {
                self.lacked.extend(self.epochs.id());
                fx.lacked = true;
            }
            Event::Beat => {
                let sent = self.sent();
                self.hold(HolderInput::Tick, &mut fx);
                fx.void |= self.sent() == sent;
            }
            Event::Expire => {
                let end = self.sent[self.expired as usize] + held();
                self.holder_clock = self.holder_clock.max(end);
                self.expired += 1;
                let over = Body::Over(self.expired);
                fx.said.extend(self.all.iter().map(|to| (*to, over.clone())));
            }
            Event::Fence => self.ask_guard(None, Guard::fence, &mut fx),
            Event::Decide => self.ask_guard(None, Guard::decide, &mut fx),
        }
        if self.kept() != kept {
            self.give_state(&mut fx);
        }
        if self.stop_at_accept && self.accepted().is_some() {
            self.stop_at_accept = false;
            self.hold(HolderInput::StopServing, &mut fx);
        }
        self.look_at_attempt();
        fx
    }

    /// Every voter answers at once that no lease runs. (Asking before the Seal only saves time: the
    /// Seal asks again, and a voter that answered a Withhold refuses only later grants.)
    fn withhold_nothing(&mut self, beats: u64, fx: &mut Effects) {
        let asked = |(to, body): &(ReplicaId, Body)| match body {
            Body::Epoch(EpochMessage::Withhold { epoch, ballot, .. }) => {
                Some((*to, *epoch, *ballot))
            }
            _ => None,
        };
        let all: Vec<_> = fx.said.iter().filter_map(asked).collect();
        fx.said.retain(|said| asked(said).is_none());
        for (from, epoch, ballot) in all {
            let message = EpochMessage::Withheld { epoch, ballot, remaining: Vec::new() };
            self.tell(beats, EpochInput::Message { from, message }, fx);
        }
    }

    fn hear(&mut self, from: ReplicaId, body: &Body, beats: u64, fx: &mut Effects) {
        match body {
            Body::Epoch(message) => {
                let message = message.clone();
                self.tell(beats, EpochInput::Message { from, message }, fx);
            }
            Body::Lease(LeaseMessage::Beat(beat)) => {
                let unsealed = self.epochs.id();
                let unsealed =
                    unsealed.filter(|_| self.epochs.is_member() && !self.epochs.sealed());
                let now = Now { mono: self.clock, wall: WallTime::default() };
                if let Some(granted) = self.grantor.beat(now, from, *beat, unsealed) {
                    self.protects = self.protects.max(beat.number);
                    self.granted = self.granted.max(beat.number);
                    fx.said.push((from, Body::Lease(granted)));
                }
            }
            Body::Lease(LeaseMessage::Granted(beat)) => {
                self.hold(HolderInput::Granted { from, beat: *beat }, fx);
            }
            Body::Frozen(epoch, kept) if self.pulls.contains(&Pull::Snapshot(*epoch, from)) => {
                self.learn(*kept);
                self.tell(beats, EpochInput::SnapshotMerged { epoch: *epoch, of: from }, fx);
            }
            Body::State(epoch, kept) if self.pulls.contains(&Pull::State(*epoch)) => {
                self.learn(*kept);
                self.tell(beats, EpochInput::StateMerged { epoch: *epoch, from }, fx);
            }
            Body::Guard(message) => {
                let message = *message;
                let hear = |guard: &mut Guard, epochs: &Epochs| guard.hear(from, message, epochs);
                self.ask_guard(Some(from), hear, fx);
            }
            // A body that was not pulled, or a fact.
            Body::Lease(LeaseMessage::Release { .. })
            | Body::Over(_)
            | Body::Frozen(..)
            | Body::State(..) => {}
        }
    }

    /// The data of this replica.
    fn kept(&self) -> Kept {
        let guarded = self.guard.as_ref().map(|guard| guard.data).unwrap_or_default();
        Kept { token: self.token, guarded }
    }

    fn learn(&mut self, kept: Kept) {
        self.token |= kept.token;
        if let Some(guard) = &mut self.guard {
            guard.data.merge(kept.guarded, self.epoch_fault);
        }
    }

    /// Gives the guard an input; its messages go to all nodes, this one included, and its answer to
    /// the node that asked.
    fn ask_guard(
        &mut self,
        from: Option<ReplicaId>,
        input: impl FnOnce(&mut Guard, &Epochs) -> GuardEffects,
        fx: &mut Effects,
    ) {
        let Some(guard) = &mut self.guard else { return };
        let GuardEffects { to_all, answer, speaks } = input(guard, &self.epochs);
        let to_all = to_all.into_iter();
        let to_all = to_all.flat_map(|it| self.all.iter().map(move |to| (*to, Body::Guard(it))));
        fx.said.extend(to_all);
        fx.said.extend(from.zip(answer).map(|(from, answer)| (from, Body::Guard(answer))));
        fx.speaks = fx.speaks.or(speaks);
    }

    /// Every node that pulls may receive the current state. In the first configuration no node
    /// pulls.
    fn give_state(&self, fx: &mut Effects) {
        let id = self.epochs.id().filter(|id| id.number > 1 && self.epochs.synced());
        let state = id.filter(|_| self.data_moves()).map(|id| Body::State(id, self.kept()));
        self.say_all(state.as_ref(), fx);
    }

    fn say_all(&self, body: Option<&Body>, fx: &mut Effects) {
        let others = self.all.iter().filter(|to| **to != self.me);
        fx.said
            .extend(body.into_iter().flat_map(|body| others.clone().map(|to| (*to, body.clone()))));
    }

    fn tell(&mut self, beats: u64, input: EpochInput, fx: &mut Effects) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut out = Outbox::new();
            self.now = self.now + SECOND; // longer than every retry interval
            let now = Now { mono: self.now, wall: WallTime::default() };
            self.epochs.handle(now, input, &mut out);
            for output in out.drain().collect::<Vec<_>>() {
                self.perform(beats, output, &mut inputs, fx);
            }
        }
    }

    fn perform(
        &mut self,
        beats: u64,
        output: EpochOutput,
        inputs: &mut VecDeque<EpochInput>,
        fx: &mut Effects,
    ) {
        match output {
            // Answered by a configuration that the node that decided it has sent to every node.
            EpochOutput::Send { message: EpochMessage::Ask { .. }, .. } => {}
            // Equivalent to proposing later, or to receiving the Seal later.
            EpochOutput::Outcome(ProposalOutcome::Refused { .. })
            | EpochOutput::Send {
                message: EpochMessage::Refused { why: BallotRefusal::Leased(_), .. },
                ..
            } => fx.void = true,
            EpochOutput::Send { to, message } => fx.said.push((to, Body::Epoch(message))),
            EpochOutput::Freeze(id) => {
                let token = self.token && !(self.token_acked && self.snapshot_is_late());
                let kept = Kept { token, ..self.kept() };
                let frozen = self.data_moves().then_some(Body::Frozen(id, kept));
                self.say_all(frozen.as_ref(), fx);
            }
            EpochOutput::PullSnapshot { epoch, of } if self.data_moves() => {
                self.pulls.insert(Pull::Snapshot(epoch, of));
            }
            EpochOutput::PullSnapshot { epoch, of } => {
                inputs.push_back(EpochInput::SnapshotMerged { epoch, of });
            }
            EpochOutput::PullState { epoch, .. } if self.data_moves() => {
                self.pulls.retain(|pull| matches!(pull, Pull::Snapshot(..)));
                self.pulls.insert(Pull::State(epoch));
            }
            EpochOutput::PullState { epoch, from } => {
                inputs.push_back(EpochInput::StateMerged { epoch, from });
            }
            EpochOutput::StopPulls => self.pulls.clear(),
            EpochOutput::Installed(epoch) => {
                let now = Now { mono: self.clock, wall: WallTime::default() };
                self.grantor.installed(now, &epoch);
                self.protects = self.protects.max(beats);
                self.consented = false;
                self.stop_at_accept = false;
                self.ask_guard(None, Guard::installed, fx);
                self.hold(HolderInput::Installed(epoch), fx);
            }
            EpochOutput::Synced(_) => self.give_state(fx),
            EpochOutput::AskConsent { query, removed, .. } => {
                let remaining = self.remaining(&removed);
                inputs.push_front(EpochInput::Consent { query, remaining });
            }
            EpochOutput::StopServing
                if self.lease_fault == Some(MembershipFault::StopsAtAccept) =>
            {
                self.stop_at_accept = true;
            }
            EpochOutput::StopServing => self.hold(HolderInput::StopServing, fx),
            EpochOutput::Excluded(_) => self.hold(HolderInput::Excluded, fx),
            EpochOutput::Outcome(_)
            | EpochOutput::Persist(_)
            | EpochOutput::Pending(_)
            | EpochOutput::Declined { .. } => {}
        }
    }

    /// Whether a promise still runs decides the answer; the remaining time is either T_q or zero.
    fn remaining(&mut self, removed: &[ReplicaId]) -> Vec<(ReplicaId, Duration)> {
        let Some(leased) = self.leased.filter(|id| removed.contains(id)) else { return Vec::new() };
        if self.protects <= self.over {
            self.clock = self.clock + lease().duration; // the grantor's time may be that late
            self.protects = 0;
        }
        self.consented = self.lease_fault == Some(MembershipFault::AckAfterConsent);
        let now = Now { mono: self.clock, wall: WallTime::default() };
        let running = self.grantor.consent(now, &[leased]);
        running.into_iter().map(|(id, _)| (id, lease().duration)).collect()
    }

    fn hold(&mut self, input: HolderInput, fx: &mut Effects) {
        let Some(holder) = &mut self.holder else { return };
        self.holder_clock = self.holder_clock + MS; // so no two heartbeats have one sending time
        let now = Now { mono: self.holder_clock, wall: WallTime::default() };
        let mut out = Outbox::new();
        holder.handle(now, input, &mut out);
        for output in out.drain() {
            if let HolderOutput::Send { to, message } = output {
                if let LeaseMessage::Beat(beat) = message
                    && self.sent.len() < beat.number as usize
                {
                    self.sent.push(self.holder_clock);
                }
                fx.said.push((to, Body::Lease(message)));
            }
        }
    }
}

/// T_p, the time for which a grant is valid at its holder.
fn held() -> Duration {
    holding_time(&lease())
}

/// The configuration that a message belongs to; `None` for `Install` and `Ask`.
fn epoch_of(message: &EpochMessage) -> Option<EpochId> {
    use EpochMessage as M;
    match message {
        M::Withhold { epoch, .. }
        | M::Withheld { epoch, .. }
        | M::Seal { epoch, .. }
        | M::Sealed { epoch, .. }
        | M::Refused { epoch, .. }
        | M::Synced { epoch }
        | M::Ping { epoch, .. }
        | M::Pong { epoch, .. }
        | M::Accept { epoch, .. }
        | M::Accepted { epoch, .. } => Some(*epoch),
        M::Sync { base, .. } => Some(base.id()),
        M::Install { .. } | M::Ask { .. } => None,
    }
}

fn upto<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).expect("the field is printed").0
}

/// The text with each `Instant(n)` in it replaced by a name.
fn named(text: &str, name: impl Fn(u64) -> String) -> String {
    let mut parts = text.split("Instant(");
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (at, rest) = part.split_once(')').expect("a number in brackets");
        named += &name(at.parse().expect("nanoseconds"));
        named += rest;
    }
    named
}
