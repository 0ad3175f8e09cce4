//! One node: configurations, lease, and a membership that proposes at random.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ostraca::cluster::fault_injection::MembershipFault;
use ostraca::cluster::lease::{
    Grantor, HolderInput, HolderOutput, LeaseConfig, LeaseHolder, LeaseMessage,
};
use ostraca::cluster::singleton::{
    Candidacy, Singleton, SingletonInput, SingletonMember, SingletonMessage, SingletonOutput,
    SingletonState,
};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::{
    AcceptorState, Epoch, EpochConfig, EpochId, EpochInput, EpochMessage, EpochOutput,
    EpochSettings, Epochs, MembershipChange,
};
use ostraca_ddata::sim::{Boot, Effects, NodeIndex, Process};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Weakened;

/// Maximum number of lives of one place.
const LIVES: u64 = 1_000_000;
const KNOCK_EVERY: Duration = Duration::from_millis(700);
const GOSSIP_EVERY: Duration = Duration::from_millis(500);
/// Interval of the singleton's repeated requests.
const RETRY: Duration = Duration::from_secs(1);

/// Settings that all nodes of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) places: usize,
    pub(crate) founders: usize,
    pub(crate) propose_every: Duration,
    /// Share of proposals that remove a member.
    pub(crate) removals: f64,
    /// Share of restarts after which the process votes for its earlier life.
    pub(crate) kept: f64,
    /// Time after which a voter treats its seal as abandoned.
    pub(crate) patience: Duration,
    /// Role of each place towards the singleton; empty if there is no singleton.
    pub(crate) candidacies: Vec<Candidacy>,
    /// Probability, at each gossip, that a candidate stops or resumes being one.
    pub(crate) toggles: f64,
    /// Probability, at each proposal, that this node's view of a member changes between Down and
    /// available.
    pub(crate) rumours: f64,
    pub(crate) weakened: Weakened,
}

impl Weather {
    fn epochs(&self, me: ReplicaId, seed: u64) -> Epochs {
        let config = EpochConfig { abandoned_after: self.patience, ..EpochConfig::default() };
        let mut epochs = Epochs::new(me, config, seed, FaultInjection::none());
        // Membership, which is not in this model, lets everybody in and reaches nobody: a
        // configuration is then taken from any of them.
        let lives = (0..PLACES_MAX).flat_map(|place| (0..=60).map(move |life| id_of(place, life)));
        let known = EpochInput::Known(lives.map(|id| (id, false)).collect());
        epochs.handle(Now::default(), known, &mut Outbox::new());
        epochs
    }
}

/// State that outlives a process: the number of lives that each place had, and its disk.
pub(crate) struct Shared {
    /// No member is removed except at its own request.
    pub(crate) quiet: bool,
    places: Vec<(u64, Option<(ReplicaId, AcceptorState)>)>,
}

impl Shared {
    pub(crate) fn new(places: usize) -> Self {
        Self { quiet: false, places: vec![(0, None); places] }
    }

    fn next_life(&mut self, place: usize) -> ReplicaId {
        self.places[place].0 += 1;
        id_of(place, self.places[place].0)
    }
}

/// Places of a world, at most.
const PLACES_MAX: usize = 16;

pub(crate) fn id_of(place: usize, life: u64) -> ReplicaId {
    ReplicaId::new((place as u64 + 1) * LIVES + life)
}

fn place_of(id: ReplicaId) -> usize {
    (id.get() / LIVES) as usize - 1
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Epoch(EpochMessage),
    /// With the sender's wall clock, which the receiver must not trust.
    Lease(LeaseMessage, WallTime),
    /// A joiner's request to be admitted; it proves that the place's earlier lives have ended.
    Knock,
    /// Answer to `Knock`; carries only the sender's configuration id.
    Heard,
    Singleton(SingletonMessage),
    /// Gossip: the sender's role towards the singleton.
    Candidacy(Candidacy),
}

#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    from: ReplicaId,
    /// `None`: the process that currently runs at the place.
    to: Option<ReplicaId>,
    epoch: Option<EpochId>,
    body: Body,
}

#[derive(Debug)]
pub(crate) enum Event {
    Installed(Arc<Epoch>),
    Sealed,
    /// The node holds a lease for the first time in its life.
    Served(ReplicaId),
    /// An instance of the singleton has started.
    Started,
}

/// Actions that a directed test requests.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Propose(MembershipChange),
    Release,
}

pub(crate) struct Node {
    place: usize,
    me: ReplicaId,
    weather: Weather,
    shared: Rc<RefCell<Shared>>,
    rng: SmallRng,
    epochs: Epochs,
    grantor: Grantor,
    /// `None` for a restarted voter: it votes for its earlier life and hosts nothing.
    holder: Option<LeaseHolder>,
    waiting: BTreeSet<ReplicaId>,
    inputs: VecDeque<EpochInput>,
    propose_at: Option<Instant>,
    knock_at: Option<Instant>,
    restore: Option<AcceptorState>,
    served: bool,
    leaving: bool,
    released: bool,
    stop_at_accept: bool,
    pub(super) singleton: Option<Singleton>,
    /// While false, a place configured as a candidate reports itself as none.
    hosting: bool,
    /// Members that gossip calls Down in this node's view.
    down: BTreeSet<ReplicaId>,
    heard: BTreeMap<ReplicaId, Candidacy>,
    gossip_at: Option<Instant>,
    /// The time at which the stopping instance ends.
    stopped_at: Option<Instant>,
}

impl Node {
    pub(crate) fn new(boot: &Boot<'_, ()>, weather: Weather, shared: Rc<RefCell<Shared>>) -> Self {
        let place = boot.node.get();
        let mut rng = SmallRng::seed_from_u64(boot.seed);
        let disk = shared.borrow().places[place].1.clone();
        let kept = disk.filter(|_| boot.incarnation > 1 && rng.random_bool(weather.kept));
        let me = kept.as_ref().map(|(id, _)| *id);
        let me = me.unwrap_or_else(|| shared.borrow_mut().next_life(place));
        let fault_injection = weather.weakened.rule;
        let sings = kept.is_none() && !weather.candidacies.is_empty();
        Self {
            place,
            me,
            singleton: sings.then(|| Singleton::new(me, RETRY, fault_injection)),
            hosting: true,
            down: BTreeSet::new(),
            heard: BTreeMap::new(),
            gossip_at: None,
            stopped_at: None,
            released: false,
            epochs: weather.epochs(me, boot.seed),
            grantor: Grantor::new(me, boot.now, fault_injection),
            holder: kept
                .is_none()
                .then(|| LeaseHolder::new(me, LeaseConfig::default(), fault_injection)),
            restore: kept.map(|(_, state)| state),
            weather,
            shared,
            rng,
            waiting: BTreeSet::new(),
            inputs: VecDeque::new(),
            propose_at: None,
            knock_at: None,
            served: false,
            leaving: false,
            stop_at_accept: false,
        }
    }

    /// This node's state, for a failure report.
    pub(crate) fn story(&self, now: Instant) -> String {
        let Self { me, epochs, leaving, singleton, .. } = self;
        let epoch = epochs.installed().map(|epoch| (epoch.id(), epoch.members().to_vec()));
        let (member, sealed, serves) = (epochs.is_member(), epochs.sealed(), self.serves(now));
        format!(
            "{me}: {epoch:?} member {member} sealed {sealed} serves {serves} leaving {leaving}\n\
             {singleton:?}\n"
        )
    }

    pub(crate) fn me(&self) -> ReplicaId {
        self.me
    }

    /// The number of the installed configuration.
    pub(crate) fn installed(&self) -> u64 {
        self.epochs.id().map_or(0, |id| id.number)
    }

    pub(crate) fn serves(&self, now: Instant) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.serves(now))
    }

    fn send(&self, to: ReplicaId, body: Body, fx: &mut Effects<Self>) {
        let envelope = Envelope { from: self.me, to: Some(to), epoch: self.epochs.id(), body };
        fx.send(NodeIndex::new(place_of(to)), 0, envelope);
    }

    fn soon(&mut self, now: Now, mean: Duration) -> Option<Instant> {
        Some(now.mono + mean.mul_f64(self.rng.random_range(0.1..2.0)))
    }

    // ── singleton ───────────────────────────────────────────────────────────────────────────

    /// Whether this place has an instance that may begin a message.
    pub(crate) fn hosts(&self, now: Instant) -> bool {
        let here = |one: &Singleton| {
            matches!(one.running(), SingletonState::Yes | SingletonState::Stopping)
        };
        let outlives = self.weather.weakened.rule.has(MembershipFault::OutlivesLease);
        self.singleton.as_ref().is_some_and(here) && (outlives || self.serves(now))
    }

    fn sing(&mut self, now: Now, input: SingletonInput, fx: &mut Effects<Self>) {
        let Some(singleton) = &mut self.singleton else { return };
        let mut out = Outbox::new();
        singleton.handle(now, input, &mut out);
        for output in out.drain().collect::<Vec<_>>() {
            match output {
                SingletonOutput::Send { to, message } => {
                    self.send(to, Body::Singleton(message), fx);
                }
                SingletonOutput::Start => {
                    fx.mark("started");
                    fx.emit(Event::Started);
                }
                SingletonOutput::Stop => {
                    let takes = Duration::from_millis(self.rng.random_range(0..3_000));
                    self.stopped_at = Some(now.mono + takes);
                }
            }
        }
    }

    fn candidacy(&self) -> Candidacy {
        match self.weather.candidacies[self.place] {
            Candidacy::Candidate if self.leaving || !self.hosting => Candidacy::NotNow,
            candidacy => candidacy,
        }
    }

    fn members_changed(&mut self, now: Now, fx: &mut Effects<Self>) {
        let Some(epoch) = self.epochs.installed().filter(|_| self.singleton.is_some()).cloned()
        else {
            return;
        };
        let candidacy_of = |id: ReplicaId| {
            let heard = self.heard.get(&id).copied().unwrap_or(Candidacy::NotNow);
            if id == self.me { self.candidacy() } else { heard }
        };
        let peer = |id: &ReplicaId| SingletonMember { id: *id, candidacy: candidacy_of(*id) };
        let members = epoch.members().iter().map(peer).collect();
        self.sing(now, SingletonInput::Members(members), fx);
    }

    fn gossip(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.gossip_at = self.soon(now, GOSSIP_EVERY);
        self.hosting ^= self.rng.random_bool(self.weather.toggles);
        self.hosting |= self.shared.borrow().quiet;
        for place in (0..self.weather.places).filter(|place| *place != self.place) {
            let body = Body::Candidacy(self.candidacy());
            let envelope = Envelope { from: self.me, to: None, epoch: self.epochs.id(), body };
            fx.send(NodeIndex::new(place), 0, envelope);
        }
        self.members_changed(now, fx);
    }

    fn release_once_idle(&mut self, now: Now, fx: &mut Effects<Self>) {
        let idle = |one: &Singleton| {
            matches!(one.running(), SingletonState::No | SingletonState::Finished)
        };
        if self.leaving && !self.released && self.singleton.as_ref().is_none_or(idle) {
            self.released = true;
            fx.mark("released");
            self.hold(now, HolderInput::Release, fx);
        }
    }

    // ── configurations ──────────────────────────────────────────────────────────────────────

    fn tell(&mut self, now: Now, input: EpochInput, fx: &mut Effects<Self>) {
        self.inputs.push_back(input);
        while let Some(input) = self.inputs.pop_front() {
            let mut out = Outbox::new();
            self.epochs.handle(now, input, &mut out);
            for output in out.drain().collect::<Vec<_>>() {
                self.perform(now, output, fx);
            }
        }
        if self.stop_at_accept && self.epochs.state().accepted.is_some() {
            self.stop_at_accept = false;
            self.hold(now, HolderInput::StopServing, fx);
        }
    }

    fn perform(&mut self, now: Now, output: EpochOutput, fx: &mut Effects<Self>) {
        match output {
            EpochOutput::Send { to, message } => self.send(to, Body::Epoch(message), fx),
            EpochOutput::Persist(state) => {
                self.shared.borrow_mut().places[self.place].1 = Some((self.me, state));
            }
            EpochOutput::Freeze(_) => fx.emit(Event::Sealed),
            EpochOutput::PullSnapshot { epoch, of } => {
                self.inputs.push_back(EpochInput::SnapshotMerged { epoch, of });
            }
            EpochOutput::PullState { epoch, from } => {
                self.inputs.push_back(EpochInput::StateMerged { epoch, from });
            }
            EpochOutput::Installed(epoch) => {
                self.stop_at_accept = false;
                self.grantor.installed(now, &epoch);
                self.waiting.retain(|id| !epoch.is_member(*id) && !epoch.left().contains(id));
                fx.emit(Event::Installed(epoch.clone()));
                self.hold(now, HolderInput::Installed(epoch), fx);
                self.members_changed(now, fx);
            }
            EpochOutput::AskConsent { query, removed, .. } => {
                let remaining = self.grantor.consent(now, &removed);
                self.inputs.push_front(EpochInput::Consent { query, remaining });
            }
            EpochOutput::StopServing if self.weather.weakened.stops_at_accept => {
                self.stop_at_accept = true;
            }
            EpochOutput::StopServing => self.hold(now, HolderInput::StopServing, fx),
            EpochOutput::Excluded(_) => {
                self.hold(now, HolderInput::Excluded, fx);
                self.knock_at = self.soon(now, KNOCK_EVERY);
            }
            EpochOutput::Synced(_)
            | EpochOutput::StopPulls
            | EpochOutput::Outcome(_)
            | EpochOutput::Declined { .. }
            | EpochOutput::Pending(_) => {}
        }
    }

    /// A removed process ends once a member of a configuration without it has installed that
    /// configuration; a new process then starts at its place. If only removed members knew of the
    /// decision and ended, the cluster could not continue.
    fn next_life(&mut self, now: Now, fx: &mut Effects<Self>) {
        fx.mark("new life");
        let fault_injection = self.weather.weakened.rule;
        self.me = self.shared.borrow_mut().next_life(self.place);
        let seed = self.rng.random();
        self.epochs = self.weather.epochs(self.me, seed);
        self.grantor = Grantor::new(self.me, now, fault_injection);
        self.holder = Some(LeaseHolder::new(self.me, LeaseConfig::default(), fault_injection));
        self.singleton =
            self.singleton.is_some().then(|| Singleton::new(self.me, RETRY, fault_injection));
        self.stopped_at = None;
        self.down.clear();
        self.waiting.clear();
        self.inputs.clear();
        (self.served, self.leaving, self.stop_at_accept) = (false, false, false);
        self.released = false;
        self.knock_at = self.soon(now, KNOCK_EVERY);
    }

    // ── lease ───────────────────────────────────────────────────────────────────────────────

    fn hold(&mut self, now: Now, input: HolderInput, fx: &mut Effects<Self>) {
        let Some(holder) = &mut self.holder else { return };
        let mut out = Outbox::new();
        holder.handle(now, input, &mut out);
        for output in out.drain().collect::<Vec<_>>() {
            match output {
                HolderOutput::Send { to, message } => {
                    self.send(to, Body::Lease(message, now.wall), fx);
                }
                HolderOutput::Held { .. } => {
                    if !std::mem::replace(&mut self.served, true) {
                        fx.emit(Event::Served(self.me));
                    }
                    self.sing(now, SingletonInput::LeaseHeld, fx);
                }
                HolderOutput::Lapsed => fx.mark("lapsed"),
                HolderOutput::Stop => {
                    fx.mark("stopped");
                    self.sing(now, SingletonInput::LeaseOver, fx);
                }
            }
        }
    }

    fn lease(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: LeaseMessage,
        sent: WallTime,
        fx: &mut Effects<Self>,
    ) {
        match message {
            LeaseMessage::Beat(beat) => {
                let votes = self.epochs.is_voter() && !self.epochs.sealed();
                let unsealed = self.epochs.id().filter(|_| votes);
                let now =
                    if self.weather.weakened.grants_from_sending { as_of(now, sent) } else { now };
                if let Some(answer) = self.grantor.beat(now, from, beat, unsealed) {
                    self.send(from, Body::Lease(answer, now.wall), fx);
                }
            }
            LeaseMessage::Granted(beat) => self.hold(now, HolderInput::Granted { from, beat }, fx),
            LeaseMessage::Release { number } => {
                if self.grantor.release(from, number) {
                    self.tell(now, EpochInput::Released(from), fx);
                }
            }
        }
    }

    // ── membership ──────────────────────────────────────────────────────────────────────────

    fn propose(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.propose_at = self.soon(now, self.weather.propose_every);
        let Some(epoch) = self.epochs.installed().filter(|_| self.epochs.is_member()).cloned()
        else {
            return;
        };
        self.rumour(&epoch, fx);
        let mut change = MembershipChange::default();
        let joining = self.waiting.iter().copied().filter(|_| self.rng.random_bool(0.8));
        change.join.extend(joining);
        if self.holder.is_some()
            && !self.leaving
            && !self.shared.borrow().quiet
            && self.rng.random_bool(0.05)
        {
            self.leaving = epoch.members().len() > 1;
            self.members_changed(now, fx);
            self.release_once_idle(now, fx);
        }
        let quiet = self.shared.borrow().quiet;
        if self.leaving {
            change.leave.extend(self.released.then_some(self.me));
        } else if !quiet && epoch.members().len() > 2 && self.rng.random_bool(self.weather.removals)
        {
            for _ in 0..self.rng.random_range(1..=2) {
                let gone = epoch.members()[self.rng.random_range(0..epoch.members().len())];
                let probed = self.rng.random_bool(0.2);
                if probed { &mut change.lost } else { &mut change.leave }.push(gone);
            }
        }
        if !change.is_empty() {
            self.tell(now, EpochInput::Propose(change), fx);
        }
    }

    /// Changes this node's view of a member: a suspicion of gossip may be withdrawn later.
    fn rumour(&mut self, epoch: &Epoch, fx: &mut Effects<Self>) {
        let rumours = self.weather.rumours;
        if rumours == 0.0 || !self.rng.random_bool(rumours) {
            return;
        }
        let of = epoch.members()[self.rng.random_range(0..epoch.members().len())];
        if self.down.remove(&of) {
            fx.mark("not down");
            self.grantor.not_down(of);
        } else {
            fx.mark("down");
            self.down.insert(of);
            self.grantor.down(of);
        }
    }

    fn knock(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.knock_at = None;
        if self.epochs.is_member() {
            return;
        }
        self.knock_at = self.soon(now, KNOCK_EVERY);
        for place in (0..self.weather.places).filter(|place| *place != self.place) {
            let epoch = self.epochs.id();
            let envelope = Envelope { from: self.me, to: None, epoch, body: Body::Knock };
            fx.send(NodeIndex::new(place), 0, envelope);
        }
    }

    /// A joiner's earlier lives held the same lock file, so they are dead.
    fn knocked(&mut self, now: Now, from: ReplicaId, fx: &mut Effects<Self>) {
        let Some(epoch) = self.epochs.installed() else { return };
        if !epoch.is_member(from) && !epoch.left().contains(&from) {
            self.waiting.retain(|other| place_of(*other) != place_of(from) || *other > from);
            self.waiting.insert(from);
        }
        let earlier = |id: &ReplicaId| place_of(*id) == place_of(from) && *id < from;
        let dead: Vec<_> = epoch.members().iter().copied().filter(earlier).collect();
        for id in dead {
            if self.grantor.proven_dead(id) {
                self.tell(now, EpochInput::Released(id), fx);
            }
        }
    }
}

/// The grantor's time at which the heartbeat was sent, if all wall clocks were right.
fn as_of(now: Now, sent: WallTime) -> Now {
    let (here, there) = (now.wall.as_millis(), sent.as_millis());
    let shift = |ms: u64| ms.min(3_600_000) * 1_000_000;
    let nanos = now.mono.as_nanos() + shift(there.saturating_sub(here));
    let nanos = nanos.saturating_sub(shift(here.saturating_sub(there)));
    Now { mono: Instant::from_nanos(nanos), wall: now.wall }
}

impl Process for Node {
    type Message = Envelope;
    type Command = Command;
    type Event = Event;
    type Disk = ();

    fn started(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.propose_at = self.soon(now, self.weather.propose_every);
        self.gossip_at = self.singleton.is_some().then_some(now.mono);
        if let Some(state) = self.restore.take() {
            fx.mark("restarted voter");
            self.tell(now, EpochInput::Restore(state), fx);
        } else if self.me == id_of(self.place, 1) && self.place < self.weather.founders {
            let members = (0..self.weather.founders).map(|place| id_of(place, 1)).collect();
            let first = EpochId { generation: 1, number: 1 };
            let epoch = Epoch::founding(first, members, EpochSettings::default());
            self.tell(now, EpochInput::Found(Arc::new(epoch.expect("well formed"))), fx);
        } else {
            self.knock_at = self.soon(now, KNOCK_EVERY);
        }
    }

    fn message(&mut self, now: Now, _: NodeIndex, envelope: Envelope, fx: &mut Effects<Self>) {
        let Envelope { from, to, epoch: id, body } = envelope;
        if to.is_some_and(|to| to != self.me) {
            return;
        }
        let theirs = |epoch: &Arc<Epoch>| id >= Some(epoch.id()) && epoch.is_member(from);
        if self.epochs.is_excluded() && self.epochs.installed().is_some_and(theirs) {
            return self.next_life(now, fx);
        }
        match body {
            Body::Epoch(message) => self.tell(now, EpochInput::Message { from, message }, fx),
            Body::Lease(message, sent) => {
                self.lease(now, from, message, sent, fx);
                self.tell(now, EpochInput::PeerEpoch { from, id }, fx);
            }
            Body::Knock => {
                self.knocked(now, from, fx);
                self.send(from, Body::Heard, fx);
                self.tell(now, EpochInput::PeerEpoch { from, id }, fx);
            }
            Body::Heard => self.tell(now, EpochInput::PeerEpoch { from, id }, fx),
            Body::Singleton(message) => {
                self.sing(now, SingletonInput::Message { from, message }, fx);
            }
            Body::Candidacy(candidacy) => {
                let known = self.epochs.installed().is_some_and(|epoch| epoch.is_member(from));
                if known && self.heard.insert(from, candidacy) != Some(candidacy) {
                    self.members_changed(now, fx);
                }
                self.tell(now, EpochInput::PeerEpoch { from, id }, fx);
            }
        }
    }

    fn command(&mut self, now: Now, command: Command, fx: &mut Effects<Self>) {
        match command {
            Command::Propose(change) => self.tell(now, EpochInput::Propose(change), fx),
            Command::Release => self.hold(now, HolderInput::Release, fx),
        }
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now.mono);
        if due(self.epochs.next_deadline()) {
            self.tell(now, EpochInput::Tick, fx);
        }
        if due(self.holder.as_ref().and_then(Machine::next_deadline)) {
            self.hold(now, HolderInput::Tick, fx);
        }
        if due(self.propose_at) {
            self.propose(now, fx);
        }
        if due(self.knock_at) {
            self.knock(now, fx);
        }
        if due(self.gossip_at) {
            self.gossip(now, fx);
        }
        if due(self.stopped_at) {
            self.stopped_at = None;
            self.sing(now, SingletonInput::Stopped, fx);
        }
        if due(self.singleton.as_ref().and_then(Machine::next_deadline)) {
            self.sing(now, SingletonInput::Tick, fx);
        }
        self.release_once_idle(now, fx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let holder = self.holder.as_ref().and_then(Machine::next_deadline);
        let epochs = self.epochs.next_deadline();
        let singleton = self.singleton.as_ref().and_then(Machine::next_deadline);
        let own = [self.propose_at, self.knock_at, self.gossip_at, self.stopped_at];
        own.into_iter().chain([epochs, holder, singleton]).flatten().min()
    }

    fn digest(message: &Envelope) -> Option<u64> {
        let kind = match &message.body {
            Body::Epoch(_) => 1,
            Body::Lease(LeaseMessage::Beat(beat), _) => 2 + 8 * beat.number,
            Body::Lease(LeaseMessage::Granted(beat), _) => 3 + 8 * beat.number,
            Body::Lease(LeaseMessage::Release { number }, _) => 4 + 8 * number,
            Body::Knock | Body::Heard => 5,
            Body::Candidacy(candidacy) => 6 + 8 * *candidacy as u64,
            Body::Singleton(SingletonMessage::HandOverToMe { number }) => 7 + 32 * number,
            Body::Singleton(SingletonMessage::HandOverDone { number }) => 15 + 32 * number,
            Body::Singleton(_) => 23,
        };
        Some(message.from.get().rotate_left(32) ^ kind)
    }
}
