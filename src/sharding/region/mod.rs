//! The region of one entity type on one node: which shards live here, by rules R1 to R6 of
//! spec/sharding.md §5, and how the coordinator comes to know of it.
//!
//! Knows no user's message: those pass the gates, which learn from its outputs. Payloads are
//! bytes. What it has to say is joined into one message per receiver and batch of inputs.

mod intake;
mod leaving;
mod mail;
mod payload;
mod port;
mod recounting;
mod registration;
mod remembering;
mod shard;
mod stats;
mod stopping;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::types::Term;

pub use self::intake::Cut;
use self::intake::Intake;
use self::leaving::Leaving;
use self::mail::Mail;
pub use self::port::{Reach, RegionInput, RegionOutput, Standing};
use self::registration::Registration;
pub use self::registration::Unregistered;
pub use self::shard::{Heard, Pending, Run, Shard};
use self::shard::{Judge, News, Step};
pub use self::stats::RegionStats;
use self::stopping::Stopping;
use super::agreed::Agreed;
use super::bug::{Bug, Canary};
use super::ids::{Generation, RegionId, SHARDS_MAX, ShardId};
use super::installed::Installed;
use super::pace::Pace;
use super::remembered::{REMEMBERED_MAX, Ring, Step as Happened, What};
use super::repeat::{Pauses, Repeats};
use super::wire::{
    Carries, Fetch, HOSTED_BYTES, HostShard, NotYet, Part, ReleaseShard, Released, RouteTable,
    SHARD_BYTES, SLOW_SHARDS_MAX, ShardRoute, ToCoordinator, ToRegion, in_messages,
};

type Out = Outbox<RegionOutput>;

/// Times and limits of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// Shards of the type; words about others are dropped. At most [`SHARDS_MAX`].
    pub shards: u32,
    /// It hosts nothing and only routes.
    pub proxy: bool,
    /// Between two registrations, or questions for homes, that are not answered.
    pub retry: Duration,
    /// Between two audits.
    pub audit: Duration,
    /// How long a drain may take before entities are aborted.
    pub handoff_timeout: Duration,
    /// Between repetitions of a release whose payload nobody has taken yet.
    pub repeat: Pauses,
    /// How payloads are cut that don't fit one message.
    pub cut: Cut,
    /// `remembered-decisions`: with who was awaited and how long.
    pub remembered: usize,
}

impl Default for RegionConfig {
    fn default() -> Self {
        Self {
            shards: 1_000,
            proxy: false,
            retry: Duration::from_secs(2),
            audit: Duration::from_secs(30),
            handoff_timeout: Duration::from_secs(15),
            repeat: Pauses::default(),
            cut: Cut::default(),
            remembered: REMEMBERED_MAX,
        }
    }
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Region {
    me: RegionId,
    config: RegionConfig,
    agreed: Agreed,
    refused: Option<(ReplicaId, Agreed)>, // by which coordinator, and what that says
    canary: Canary,
    installed: Installed,
    shards: BTreeMap<ShardId, Shard>, // ≤ config.shards, for ever
    highest: Generation,              // heard of, routes included
    floor: Term,                      // decisions below count no more: they may be lost
    registration: Registration,
    slow: BTreeSet<ShardId>,   // with slow handlers; ≤ SLOW_SHARDS_MAX
    wanted: BTreeSet<ShardId>, // ≤ config.shards
    ask_at: Option<Instant>,
    mail: Mail,
    carrying: Repeats,
    intake: Intake,
    aborts: BTreeMap<ShardId, Instant>, // draining shards
    stopping: Stopping,
    coordinated: bool, // as it was told
    leaving: Option<Leaving>,
    heirs: bool,
    left: bool,
    over: bool,
    dirty: bool,
    ring: Ring,
    steps: Vec<Happened>, // of this batch
    pace: Pace,
    stats: RegionStats,
}

impl Region {
    /// The region on incarnation `me`. `canary` is [`Canary::none`] but in the suites.
    ///
    /// # Panics
    /// If the type has no shards, or more than [`SHARDS_MAX`].
    #[must_use]
    pub fn new(me: RegionId, config: RegionConfig, canary: Canary) -> Self {
        assert!((1..=SHARDS_MAX).contains(&config.shards), "1 to {SHARDS_MAX} shards");
        Self {
            me,
            config,
            agreed: Agreed::default(),
            refused: None,
            canary,
            installed: Installed::default(),
            shards: BTreeMap::new(),
            highest: Generation::NEVER,
            floor: Term::default(),
            registration: Registration::default(),
            slow: BTreeSet::new(),
            wanted: BTreeSet::new(),
            ask_at: None,
            mail: Mail::default(),
            carrying: Repeats::default(),
            intake: Intake::default(),
            aborts: BTreeMap::new(),
            stopping: Stopping::default(),
            coordinated: false,
            leaving: None,
            heirs: false,
            left: false,
            over: false,
            dirty: false,
            ring: Ring::new(config.remembered),
            steps: Vec::new(),
            pace: Pace::default(),
            stats: RegionStats::default(),
        }
    }

    /// The same, of a type of which this node says this.
    #[must_use]
    pub fn agreeing(self, agreed: Agreed) -> Self {
        Self { agreed, ..self }
    }

    /// The coordinator that registers this region not, and what it says of the type.
    #[must_use]
    pub const fn refused(&self) -> Option<&(ReplicaId, Agreed)> {
        self.refused.as_ref()
    }

    /// Nobody is left who refused it.
    pub(in crate::sharding) fn forget_refusal(&mut self) {
        self.refused = None;
    }

    /// How many shards its type has.
    #[must_use]
    pub const fn number_of_shards(&self) -> u32 {
        self.config.shards
    }

    /// What it knows of a shard; `None`: it was never told anything.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> Option<&Shard> {
        self.shards.get(&shard)
    }

    /// The length of a message with words about many shards, as far as they can be divided; bytes.
    pub(crate) const fn words_bytes_max(&self) -> usize {
        self.config.cut.words
    }

    /// Shards that live here, and those that are being drained.
    pub fn hosted(&self) -> impl Iterator<Item = (ShardId, Run)> + '_ {
        let running = self.shards.iter().filter(|(_, shard)| shard.run() != Run::Idle);
        running.map(|(id, shard)| (*id, shard.run()))
    }

    /// Shards with slow handlers, as the coordinator is told of them.
    pub fn with_slow_handlers(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.slow.iter().copied()
    }

    /// Payloads that are kept for a next home that has not confirmed yet.
    pub fn payloads(&self) -> impl Iterator<Item = &Bytes> {
        self.shards.values().filter_map(Shard::kept)
    }

    /// Bytes of payloads that have come and that no shard has started with: in part, or whole while
    /// others are waited for. At most the last payload of each shard and region; forgotten when a
    /// decision for another home comes, for they are kept where they come from.
    #[must_use]
    pub fn arriving(&self) -> u64 {
        let heard = self.shards.values().map(Shard::heard_bytes);
        heard.fold(self.intake.bytes(), u64::saturating_add)
    }

    /// The coordinator that knows this region, if any does, and the highest term it has heard of.
    #[must_use]
    pub fn registered_with(&self) -> (Option<ReplicaId>, Term) {
        let registration = &self.registration;
        let coordinator = registration.coordinator().filter(|_| registration.is_registered());
        (coordinator, registration.term())
    }

    /// Whether the coordinator knows this region: ready to serve.
    #[must_use]
    pub const fn is_registered(&self) -> bool {
        self.registration.is_registered()
    }

    /// Whether other nodes could take what is kept here, as it was told.
    #[must_use]
    pub const fn has_heirs(&self) -> bool {
        self.heirs
    }

    /// Whether nothing is left here, after [`RegionInput::Leave`] or [`RegionInput::Over`].
    #[must_use]
    pub const fn has_left(&self) -> bool {
        self.left || self.over
    }

    /// Whom a shard waits for before it starts here.
    #[must_use]
    pub fn awaited(&self, shard: ShardId) -> Vec<RegionId> {
        self.shards.get(&shard).map_or_else(Vec::new, |held| held.awaited(&self.installed))
    }

    /// The last decisions that concerned this region.
    #[must_use]
    pub const fn remembered(&self) -> &Ring {
        &self.ring
    }

    /// What was counted so far.
    #[must_use]
    pub const fn stats(&self) -> &RegionStats {
        &self.stats
    }

    fn message(&mut self, now: Now, from: ReplicaId, message: ToRegion, out: &mut Out) {
        if self.is_given_up(from, &message) {
            return;
        }
        match message {
            ToRegion::Here(term) => self.registration.invited(now.mono, from, term),
            ToRegion::RegisterAck { term, homes } => {
                self.learn(&homes, out);
                if self.registration.acked(now.mono, from, term, self.config.audit) {
                    self.refused = None;
                    self.ask_at = (!self.wanted.is_empty()).then_some(now.mono);
                    self.tell_that_it_leaves(now.mono);
                    self.stopping.again(now.mono);
                    out.push(RegionOutput::Registered);
                }
            }
            ToRegion::NotYet(why) => {
                self.stats.put_off += 1;
                self.registration.put_off(now.mono, from, self.config.retry);
                match why {
                    NotYet::Elsewhere => self.stats.misled += 1,
                    NotYet::Differs(theirs) if self.registration.coordinator() == Some(from) => {
                        self.refused = Some((from, theirs));
                    }
                    _ => {}
                }
            }
            ToRegion::Host(words) => {
                words.into_iter().for_each(|word| self.host(now, from, word, out));
            }
            ToRegion::Release(words) => {
                words.into_iter().for_each(|word| self.release(now, from, word, out));
            }
            ToRegion::Announce(homes) => self.learn(&homes, out),
            ToRegion::Released(words) => {
                words.into_iter().for_each(|word| self.released(now, from, word, out));
            }
            ToRegion::Hosted(confirmed) => {
                confirmed.into_iter().for_each(|(shard, at)| self.confirmed(shard, at));
            }
            ToRegion::Carries(words) => {
                words.into_iter().for_each(|word| self.carries(now, from, word, out));
            }
            ToRegion::Fetch(words) => {
                let mut given = BTreeSet::new(); // one window of each shard; ≤ config.shards
                for word in &words {
                    if self.shards.contains_key(&word.shard) && given.insert(word.shard) {
                        self.fetched(from, word);
                    }
                }
            }
            ToRegion::Part(part) => self.part(now, from, &part, out),
            ToRegion::Stopped(shards) => self.stopped(from, &shards, out),
            ToRegion::MayLeave(term) => self.may_leave(from, term),
            ToRegion::Recount { term, origin, first } => {
                self.recount(from, (term, origin), first);
            }
        }
    }

    /// Whether a word is about a shard that there can be.
    fn is_shard(&mut self, shard: ShardId) -> bool {
        let known = shard.get() < self.config.shards;
        self.stats.strange += u64::from(!known);
        known
    }

    /// Routes: they start, stop and raise nothing.
    fn learn(&mut self, homes: &RouteTable, out: &mut Out) {
        for route in homes.iter() {
            if self.is_shard(route.shard) {
                self.route(route, out);
            }
        }
    }

    fn route(&mut self, route: ShardRoute, out: &mut Out) {
        self.highest = self.highest.max(route.generation);
        if route.home.is_some() {
            self.wanted.remove(&route.shard);
        }
        out.push(RegionOutput::Route(route));
    }

    /// R1, not before this node has installed what the coordinator had.
    fn host(&mut self, now: Now, from: ReplicaId, word: HostShard, out: &mut Out) {
        let HostShard { shard, generation, epoch, .. } = word;
        if !self.is_shard(shard) || self.config.proxy || self.is_forgotten(from, generation) {
            return;
        }
        if self.left {
            // As if it were lost, for nobody would hand the shard over again; who leaves is given
            // none, and its shards go elsewhere.
            self.ask_to_leave(now.mono);
            return;
        }
        if epoch > self.installed.epoch && !self.canary.has(Bug::AbsentIsRemoved) {
            self.stats.too_early += 1; // it is said again
            return;
        }
        let known = self.shards.get(&shard).map(Shard::max_gen);
        if known.is_none_or(|known| generation > known) {
            self.route(ShardRoute { shard, generation, home: Some(self.me) }, out);
            self.remember_told(now, &word);
            self.is_named_again(now.mono);
        } else if known != Some(generation) {
            self.stats.stale += 1;
        }
        self.change(now, shard, out, |held, judge| held.host(from, word, judge));
    }

    /// R4.
    fn release(&mut self, now: Now, from: ReplicaId, word: ReleaseShard, out: &mut Out) {
        let ReleaseShard { shard, generation, to, .. } = word;
        if !self.is_shard(shard) || self.is_forgotten(from, generation) {
            return;
        }
        let known = self.shards.get(&shard).map_or(Generation::NEVER, Shard::max_gen);
        if generation > known {
            self.route(ShardRoute { shard, generation, home: to }, out);
            self.remember_release(now, &word);
        } else if generation < known {
            self.stats.stale += 1;
        }
        self.change(now, shard, out, |held, judge| held.release(from, word, judge));
    }

    /// R5 at the other end. Of members only: who is out has its word in no decision that counts.
    fn released(&mut self, now: Now, from: ReplicaId, word: Released, out: &mut Out) {
        if self.is_shard(word.shard) && !self.config.proxy && !self.is_ahead(word.cluster) {
            let from = RegionId::new(from);
            self.intake.superseded(word.shard, from, word.last);
            self.change(now, word.shard, out, |held, judge| held.released(from, word, judge));
        }
    }

    /// The same, with a payload that is to be fetched first. Of members only: what is left of
    /// others is nothing.
    fn carries(&mut self, now: Now, from: ReplicaId, word: Carries, out: &mut Out) {
        let from = RegionId::new(from);
        let Carries { shard, reached, last, length, sealed, cluster } = word;
        let is_member = self.installed.members.contains(&from);
        if !self.is_shard(shard) || self.config.proxy || !is_member || self.is_ahead(cluster) {
            return;
        }
        let held = self.shards.entry(shard).or_default();
        let brought = held.brought(from, last).filter(|brought| brought.len() as u64 == length);
        if held.news(from, reached) != News::Counts || brought.is_some() {
            let payload = brought.cloned();
            let word = Released { shard, reached, last, payload, sealed, cluster };
            self.change(now, shard, out, |held, judge| held.released(from, word, judge));
        } else if !self.intake.announced(now.mono, from, word) {
            self.stats.strange += 1;
        }
    }

    /// Somebody wants more of what is kept here.
    fn fetched(&mut self, from: ReplicaId, word: &Fetch) {
        let Fetch { shard, last, at } = *word;
        let held = self.shards.get(&shard).filter(|held| held.last() == last);
        let Some(kept) = held.and_then(Shard::kept) else { return };
        let Cut { part, window, .. } = self.config.cut;
        let begin = usize::try_from(at).map_or(kept.len(), |at| at.min(kept.len()));
        let end = begin.saturating_add(window.max(part)).min(kept.len());
        for from_here in (begin..end).step_by(part.max(1)) {
            let bytes = kept.slice(from_here..from_here.saturating_add(part.max(1)).min(end));
            let at = from_here as u64;
            self.mail.piece(RegionId::new(from), Part { shard, last, at, bytes });
        }
    }

    fn part(&mut self, now: Now, from: ReplicaId, part: &Part, out: &mut Out) {
        if let Some(whole) = self.intake.took(now.mono, RegionId::new(from), part) {
            self.stats.fetched += 1;
            self.released(now, from, whole, out);
        }
    }

    fn confirmed(&mut self, shard: ShardId, at: Generation) {
        if let Some(held) = self.shards.get_mut(&shard) {
            held.confirmed(at, self.canary);
            if held.kept().is_none() && !held.owes_word() {
                self.carrying.end(shard);
            }
        }
    }

    /// Applies a rule to a shard and does what follows.
    fn change(
        &mut self,
        now: Now,
        shard: ShardId,
        out: &mut Out,
        rule: impl FnOnce(&mut Shard, Judge<'_>) -> Vec<Step>,
    ) {
        let Self { me, installed, canary, .. } = self;
        let judge = Judge { me: *me, shard, installed, canary: *canary };
        let held = self.shards.entry(shard).or_default();
        let before = standing(shard, held);
        let steps = rule(held, judge);
        let after = standing(shard, held);
        self.intake.retain(shard, |from, reached| held.news(from, reached) == News::Counts);
        for step in steps {
            self.perform(now, shard, after, step, out);
        }
        self.keep_pace(now, before, after);
        if before != after {
            out.push(RegionOutput::Standing(after));
        }
    }

    fn perform(&mut self, now: Now, shard: ShardId, is: Standing, step: Step, out: &mut Out) {
        let generation = is.max_gen;
        match step {
            Step::Start { payload } => {
                self.stats.started += 1;
                self.carrying.end(shard);
                self.note_settled(now, shard, generation, What::Started);
                out.push(RegionOutput::Start { shard, generation, payload });
            }
            Step::Adopt => {
                self.stats.adopted += 1;
                self.note_settled(now, shard, generation, What::Adopted);
                out.push(RegionOutput::Adopt { shard, generation });
            }
            Step::Drain => {
                self.stats.drained += 1;
                self.aborts.insert(shard, now.mono + self.config.handoff_timeout);
                out.push(RegionOutput::Drain { shard, to: is.home });
            }
            Step::Release { to, word } => {
                if word.payload.is_some() && !self.carrying.contains(shard) {
                    self.carrying.begin(now.mono, shard, self.config.repeat);
                }
                self.say_released(to, word);
            }
            Step::Drained { to, reached } => self.mail.drained(to, shard, reached),
            Step::Confirm { to } => self.mail.confirm(to, shard, generation),
            Step::Confirmed { to, at } => self.mail.confirmed(to, shard, at),
            Step::Discard { from, payload } => {
                self.stats.discarded += 1;
                out.push(RegionOutput::Discard { reach: Reach::Sent, shard, from, payload });
            }
        }
    }

    /// What does not fit is fetched by who is told.
    fn say_released(&mut self, to: RegionId, word: Released) {
        let length = word.payload.as_ref().map_or(0, Bytes::len);
        if length <= self.config.cut.whole {
            return self.mail.released(to, word);
        }
        let Released { shard, reached, last, sealed, cluster, .. } = word;
        let length = length as u64;
        self.mail.carries(to, Carries { shard, reached, last, length, sealed, cluster });
    }

    fn on_drained(&mut self, now: Now, shard: ShardId, payload: Option<Bytes>, out: &mut Out) {
        if self.shards.contains_key(&shard) {
            self.aborts.remove(&shard);
            self.note_drained(now, shard);
            self.change(now, shard, out, |held, judge| held.drained(payload, judge));
            self.ask_for_home_of(now.mono, shard);
        }
    }

    fn install(&mut self, now: Now, installed: Installed, out: &mut Out) {
        let before = self.installed.epoch.generation;
        if !self.installed.install(installed) {
            return;
        }
        let generation = self.installed.epoch.generation;
        if generation > before {
            out.push(RegionOutput::ClusterGeneration(generation));
        }
        self.intake.keep_only(&self.installed.members);
        self.ask_to_leave(now.mono); // a home may be out
        let pending = self.shards.iter().filter(|(_, held)| held.pending().is_some());
        for shard in pending.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.change(now, shard, out, Shard::judge);
        }
    }

    /// A forced installation raises the generation of the cluster, and reaches one member after the
    /// other: who had it first may have given tokens of it before it released a shard to this one,
    /// which starts it once it has it too. It is said again.
    fn is_ahead(&mut self, cluster: u64) -> bool {
        let is_ahead = cluster > self.installed.epoch.generation;
        self.stats.too_early += u64::from(is_ahead);
        is_ahead
    }

    /// R6.
    fn stop_for_good(&mut self, out: &mut Out) {
        self.over = true;
        self.forsake(out);
        self.shards.values_mut().for_each(Shard::over);
        self.intake.clear();
        self.aborts.clear();
        self.mail = Mail::default();
        out.push(RegionOutput::StopAll);
    }

    /// What nobody has taken yet, nobody ever will. It is not said again either: a release without
    /// its payload would be another one.
    fn forsake(&mut self, out: &mut Out) {
        for (shard, held) in &mut self.shards {
            if let Some((reach, payload)) = held.forsake() {
                self.stats.discarded += 1;
                out.push(RegionOutput::Discard { reach, shard: *shard, from: self.me, payload });
            }
        }
        self.carrying.clear();
    }

    /// What is due, then everything said in this batch.
    fn work(&mut self, now: Now, out: &mut Out) {
        self.dirty = false;
        let late: Vec<ShardId> =
            self.aborts.iter().filter(|(_, at)| **at <= now.mono).map(|(id, _)| *id).collect();
        for shard in late {
            self.aborts.remove(&shard);
            self.stats.aborted += 1;
            out.push(RegionOutput::Abort(shard));
        }
        for shard in self.carrying.take_due(now.mono, self.config.repeat) {
            self.change(now, shard, out, Shard::say_released);
        }
        let coordinated = self.registration.is_registered();
        if std::mem::replace(&mut self.coordinated, coordinated) != coordinated {
            out.push(RegionOutput::Coordinated(coordinated));
        }
        self.register(now);
        self.complain(now, out);
        self.ask(now);
        self.leave(now, out);
        self.stop_others(now, out);
        self.look_for_slow(now, out);
        self.tell_steps(out);
        for (to, word) in self.intake.take_due(now.mono, self.config.cut.window) {
            self.mail.fetch(to, word);
        }
        self.mail.flush(self.config.cut, out);
    }

    fn register(&mut self, now: Now) {
        if let Some(to) = self.registration.take_due(now.mono, self.config.retry) {
            let hosted = self.shards.iter().filter_map(|(id, held)| match held.run() {
                Run::Idle => None,
                Run::Hosting(at) | Run::Draining(at) => Some((*id, at)),
            });
            let hosted: Vec<(ShardId, Generation)> = hosted.collect();
            // Who leaves is given no shard, also by a coordinator that has not heard so yet.
            let (proxy, highest) = (self.config.proxy || self.leaving.is_some(), self.highest);
            let mut parts = in_messages(hosted, self.config.cut.words, |_| HOSTED_BYTES);
            if parts.is_empty() {
                parts.push(Vec::new());
            }
            for hosted in parts {
                let (agreed, slow) = (self.agreed.clone(), self.slow.iter().copied().collect());
                let word = ToCoordinator::Register { proxy, hosted, highest, agreed, slow };
                self.mail.say(to, word);
            }
        }
    }

    /// What rebalancing leaves out has changed: the coordinator is to hear of it soon.
    fn note_slow_handlers(&mut self, now: Instant, mut shards: BTreeSet<ShardId>) {
        while shards.len() > SLOW_SHARDS_MAX {
            shards.pop_last();
        }
        if self.slow != shards {
            self.slow = shards;
            self.registration.changed(now);
        }
    }

    fn complain(&mut self, now: Now, out: &mut Out) {
        if self.left || self.wanted.is_empty() {
            self.registration.is_not_missed();
        } else if let Some(complaint) = self.registration.complain(now.mono) {
            out.push(RegionOutput::Unregistered(complaint));
        }
    }

    /// Asks for homes, again until they are known.
    fn ask(&mut self, now: Now) {
        if self.wanted.is_empty() {
            self.ask_at = None;
        }
        let due = self.ask_at.is_some_and(|at| at <= now.mono) && self.registration.is_registered();
        if let (true, Some(to)) = (due, self.registration.coordinator()) {
            self.ask_at = Some(now.mono + self.config.retry);
            let wanted = self.wanted.iter().copied().collect();
            for wanted in in_messages(wanted, self.config.cut.words, |_| SHARD_BYTES) {
                self.mail.say(to, ToCoordinator::GetShardHome(wanted));
            }
        }
    }
}

fn standing(shard: ShardId, held: &Shard) -> Standing {
    let (max_gen, home) = (held.max_gen(), held.home());
    Standing { shard, max_gen, home, pending: held.pending().is_some(), run: held.run() }
}

impl Machine for Region {
    type Input = RegionInput;
    type Output = RegionOutput;

    fn handle(&mut self, now: Now, input: RegionInput, out: &mut Out) {
        if self.over {
            return; // it hosts nothing ever again, and its word counts for nothing
        }
        match input {
            RegionInput::Tick => return self.work(now, out),
            RegionInput::Message { from, message } => self.message(now, from, message, out),
            RegionInput::Installed(installed) => self.install(now, installed, out),
            RegionInput::CoordinatorAt(place) => self.registration.found(now.mono, place),
            RegionInput::Wanted(shard) => {
                if self.is_shard(shard) && self.wanted.insert(shard) {
                    self.ask_at = Some(now.mono);
                }
            }
            RegionInput::Drained { shard, payload } => self.on_drained(now, shard, payload, out),
            RegionInput::Stop { shards, within } => self.wish_stop(now, shards, within),
            RegionInput::SlowHandlers(shards) => self.note_slow_handlers(now.mono, shards),
            RegionInput::Leave => self.begin_to_leave(now.mono),
            RegionInput::Heirs { any } => {
                self.heirs = any;
                self.ask_to_leave(now.mono);
            }
            RegionInput::Over => return self.stop_for_good(out),
            RegionInput::Forsaken => self.forsake(out),
        }
        self.dirty = true;
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.over {
            return None;
        }
        if self.dirty {
            return Some(Instant::default()); // right after this batch
        }
        let asks = self.ask_at.filter(|_| self.registration.is_registered());
        let leaves = self.leaves_at();
        let aborts = self.aborts.values().min().copied();
        let stops = self.stopping.next(self.registration.is_registered());
        [self.carrying.next(), self.registration.next(), asks, leaves, aborts, stops]
            .into_iter()
            .flatten()
            .min()
    }
}
