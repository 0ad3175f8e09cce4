//! The region of one entity type on one node: a machine that starts, drains and releases shards by
//! the rules of the region (docs/protocol/sharding.md#rules-of-the-region), and keeps the
//! coordinator informed of the shards that it hosts.
//!
//! The region sees no user messages: these pass the gates, which learn from the region's outputs.
//! Payloads are opaque bytes. Messages are collected and sent at the [`RegionInput::Tick`] that
//! ends a batch of inputs; other outputs come with the input that causes them.

mod decision_log;
mod outbound;
mod payload;
mod payload_transfers;
mod port;
mod recount;
mod registration;
mod shard;
mod shutdown;
mod stats;
mod stop_requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::types::Term;

use self::outbound::RegionOutboundBatch;
use self::payload_transfers::Intake;
pub use self::payload_transfers::PayloadPartSizes;
pub use self::port::{Reach, RegionInput, RegionOutput, ShardHostState};
use self::registration::Registration;
pub use self::registration::Unregistered;
pub use self::shard::{HostingPhase, LastReleased, PendingStart, RegionShard};
use self::shard::{ReleaseVerdict, ShardAction, ShardContext};
use self::shutdown::RegionShutdown;
pub use self::stats::RegionStats;
use self::stop_requests::Stopping;
use super::agreed_settings::AgreedSettings;
use super::decision_history::{
    DecisionHistory, DecisionStep as Happened, DecisionStepKind, REMEMBERED_MAX,
};
use super::fault_injection::{ShardingFault, ShardingFaultInjection};
use super::ids::{Generation, RegionId, SHARDS_MAX, ShardId};
use super::installed::Installed;
use super::repeat::{Pauses, Repeats};
use super::slow_decisions::SlowDecisionDetector;
use super::wire::{
    Fetch, HOSTED_BYTES, HostShard, PayloadPart, RegistrationRefusal, ReleaseShard, Released,
    ReleasedWithLongPayload, RouteTable, SHARD_BYTES, SLOW_SHARDS_MAX, ShardRoute, ToCoordinator,
    ToRegion, in_messages,
};

type RegionOutbox = Outbox<RegionOutput>;

/// Times and limits of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// Number of shards of the type, 1 to [`SHARDS_MAX`]. Default: 1,000.
    pub shards: u32,
    /// Whether the region only routes messages and hosts no shard.
    pub proxy: bool,
    /// Pause before an unanswered registration or request for homes is repeated. Default: 2 s.
    pub retry: Duration,
    /// Interval of the registrations that serve as audits. Default: 30 s.
    pub audit: Duration,
    /// Maximum duration of a drain. Entities that still run then are aborted. Default: 15 s.
    pub handoff_timeout: Duration,
    /// Pauses between repetitions of a release whose payload no region has taken yet.
    pub repeat: Pauses,
    /// Lengths of messages and of the parts of long payloads.
    pub cut: PayloadPartSizes,
    /// `remembered-decisions`: number of decisions that the region remembers. Default: 4,096.
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
            cut: PayloadPartSizes::default(),
            remembered: REMEMBERED_MAX,
        }
    }
}

/// State machine of a region, see the module's page. Phases of its end: `shutdown.rs`.
#[derive(Clone, Debug)]
pub struct Region {
    me: RegionId,
    config: RegionConfig,
    agreed: AgreedSettings,
    refused: Option<(ReplicaId, AgreedSettings)>, // coordinator, its settings; until an ack
    fault_injection: ShardingFaultInjection,
    installed: Installed,
    shards: BTreeMap<ShardId, RegionShard>, // ≤ config.shards; never removed
    highest: Generation,                    // received, routes included
    floor: Term, // decisions of lower terms are ignored: a forced recovery may have lost them
    registration: Registration,
    slow: BTreeSet<ShardId>,   // with slow handlers; ≤ SLOW_SHARDS_MAX
    wanted: BTreeSet<ShardId>, // messages wait for their homes; ≤ config.shards
    ask_at: Option<Instant>,   // when to ask for `wanted`, if registered then
    outbound: RegionOutboundBatch,
    carrying: Repeats, // shards whose `Released` is repeated
    intake: Intake,
    aborts: BTreeMap<ShardId, Instant>, // when to abort the drain of each draining shard
    stopping: Stopping,
    coordinated: bool, // value of the last `RegionOutput::Coordinated`
    leaving: Option<RegionShutdown>, // since the first `RegionInput::Leave`, for good
    heirs: bool,       // value of the last `RegionInput::Heirs`; `false` before it
    left: bool,        // `RegionOutput::Left` was output
    over: bool,        // since `RegionInput::Over`: only `after_stop` handles inputs
    dirty: bool,       // an input came since the last `work`, which is due at once
    decision_history: DecisionHistory,
    steps: Vec<Happened>, // of this batch
    slow_decisions: SlowDecisionDetector,
    stats: RegionStats,
}

impl Region {
    /// Creates the region on incarnation `me`. `fault_injection` is `none` except in test suites.
    ///
    /// # Panics
    /// If the type has no shards, or more than [`SHARDS_MAX`].
    #[must_use]
    pub fn new(
        me: RegionId,
        config: RegionConfig,
        fault_injection: ShardingFaultInjection,
    ) -> Self {
        assert!((1..=SHARDS_MAX).contains(&config.shards), "1 to {SHARDS_MAX} shards");
        Self {
            me,
            config,
            agreed: AgreedSettings::default(),
            refused: None,
            fault_injection,
            installed: Installed::default(),
            shards: BTreeMap::new(),
            highest: Generation::NEVER,
            floor: Term::default(),
            registration: Registration::default(),
            slow: BTreeSet::new(),
            wanted: BTreeSet::new(),
            ask_at: None,
            outbound: RegionOutboundBatch::default(),
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
            decision_history: DecisionHistory::new(config.remembered),
            steps: Vec::new(),
            slow_decisions: SlowDecisionDetector::default(),
            stats: RegionStats::default(),
        }
    }

    /// Sets the settings of the type on this node, which registrations carry.
    #[must_use]
    pub fn agreeing(self, agreed: AgreedSettings) -> Self {
        Self { agreed, ..self }
    }

    /// The coordinator that refuses this region because its settings differ, with these settings.
    #[must_use]
    pub const fn refused(&self) -> Option<&(ReplicaId, AgreedSettings)> {
        self.refused.as_ref()
    }

    /// Forgets the refusal, because the coordinator that refused is no longer there.
    pub(in crate::sharding) fn forget_refusal(&mut self) {
        self.refused = None;
    }

    /// Number of shards of the type.
    #[must_use]
    pub const fn number_of_shards(&self) -> u32 {
        self.config.shards
    }

    /// State of a shard; `None` if the region has received neither a decision nor a release of it.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> Option<&RegionShard> {
        self.shards.get(&shard)
    }

    /// Maximum length of a message about many shards, in bytes. Longer ones are divided.
    pub(crate) const fn words_bytes_max(&self) -> usize {
        self.config.cut.words
    }

    /// Shards that the region hosts or drains.
    pub fn hosted(&self) -> impl Iterator<Item = (ShardId, HostingPhase)> + '_ {
        let running = self.shards.iter().filter(|(_, shard)| shard.run() != HostingPhase::Idle);
        running.map(|(id, shard)| (*id, shard.run()))
    }

    /// Shards with slow handlers, as registrations report them.
    pub fn with_slow_handlers(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.slow.iter().copied()
    }

    /// Payloads that the region keeps until a next home confirms that it hosts the shard.
    pub fn payloads(&self) -> impl Iterator<Item = &Bytes> {
        self.shards.values().filter_map(RegionShard::kept)
    }

    /// Bytes of payloads, partial or whole, that have arrived and that no shard has started with.
    /// A decision for another home drops them, because their senders still keep them.
    #[must_use]
    pub fn arriving(&self) -> u64 {
        let heard = self.shards.values().map(RegionShard::heard_bytes);
        heard.fold(self.intake.bytes(), u64::saturating_add)
    }

    /// The coordinator that has registered this region, if any, and the highest term of any.
    #[must_use]
    pub fn registered_with(&self) -> (Option<ReplicaId>, Term) {
        let registration = &self.registration;
        let coordinator = registration.coordinator().filter(|_| registration.is_registered());
        (coordinator, registration.term())
    }

    /// Whether a coordinator has registered this region. Unchanged by [`RegionInput::Over`].
    #[must_use]
    pub const fn is_registered(&self) -> bool {
        self.registration.is_registered()
    }

    /// Whether other nodes could take the payloads kept here, by the last [`RegionInput::Heirs`].
    #[must_use]
    pub const fn has_heirs(&self) -> bool {
        self.heirs
    }

    /// Whether the region has [left](RegionOutput::Left), or has stopped by [`RegionInput::Over`].
    #[must_use]
    pub const fn has_left(&self) -> bool {
        self.left || self.over
    }

    /// Regions that must be over before the shard may start here.
    #[must_use]
    pub fn awaited(&self, shard: ShardId) -> Vec<RegionId> {
        self.shards.get(&shard).map_or_else(Vec::new, |held| held.awaited(&self.installed))
    }

    /// The most recent decisions that concerned this region.
    #[must_use]
    pub const fn remembered(&self) -> &DecisionHistory {
        &self.decision_history
    }

    /// Counters since the region was created.
    #[must_use]
    pub const fn stats(&self) -> &RegionStats {
        &self.stats
    }

    /// Handles a message, unless it is an order of a coordinator given up by force. A registration
    /// makes wanted homes, `Leaving` and stop requests due now; homes in an ignored acknowledgement
    /// are learned as well. Serves only the first `Fetch` about each shard in a message.
    fn message(&mut self, now: Now, from: ReplicaId, message: ToRegion, out: &mut RegionOutbox) {
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
                    RegistrationRefusal::Elsewhere => self.stats.misled += 1,
                    RegistrationRefusal::Differs(theirs)
                        if self.registration.coordinator() == Some(from) =>
                    {
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
                words.into_iter().for_each(|word| self.released_long(now, from, word, out));
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

    /// Whether the type has a shard of this number. Counts others as strange, at each call.
    fn is_shard(&mut self, shard: ShardId) -> bool {
        let known = shard.get() < self.config.shards;
        self.stats.strange += u64::from(!known);
        known
    }

    /// Announcements only route (docs/protocol/sharding.md#announcements-only-route): they start
    /// and stop no shard and raise no shard's generation.
    fn learn(&mut self, homes: &RouteTable, out: &mut RegionOutbox) {
        for route in homes.iter() {
            if self.is_shard(route.shard) {
                self.route(route, out);
            }
        }
    }

    /// Outputs a route, unjudged, to the gate, which ignores an old one and reports the shard again
    /// if messages still wait. A shard with a home, even an old one, is no longer wanted here.
    fn route(&mut self, route: ShardRoute, out: &mut RegionOutbox) {
        self.highest = self.highest.max(route.generation);
        if route.home.is_some() {
            self.wanted.remove(&route.shard);
        }
        out.push(RegionOutput::Route(route));
    }

    /// Host only raises (docs/protocol/sharding.md#host-only-raises); a repetition is confirmed if
    /// the shard is hosted. Ignored, in this order: for an unknown shard, by a proxy, if it
    /// [is forgotten](Self::is_forgotten), by a region that has left (it asks to leave again, so
    /// that the shard gets another home), and until the node has installed the coordinator's epoch
    /// (docs/protocol/sharding.md#no-host-before-its-epoch): a region absent from an older one may
    /// only not have joined there yet, and would be taken for removed. A leaving region takes the
    /// shard, and needs a new permission. An old order counts as stale and routes nothing.
    fn host(&mut self, now: Now, from: ReplicaId, word: HostShard, out: &mut RegionOutbox) {
        let HostShard { shard, generation, epoch, .. } = word;
        if !self.is_shard(shard) || self.config.proxy || self.is_forgotten(from, generation) {
            return;
        }
        if self.left {
            self.ask_to_leave(now.mono);
            return;
        }
        if epoch > self.installed.epoch && !self.fault_injection.has(ShardingFault::AbsentIsRemoved)
        {
            self.stats.too_early += 1; // the coordinator repeats the order
            return;
        }
        let known = self.shards.get(&shard).map(RegionShard::max_gen);
        if known.is_none_or(|known| generation > known) {
            self.route(ShardRoute { shard, generation, home: Some(self.me) }, out);
            self.remember_told(now, &word);
            self.is_named_again(now.mono);
        } else if known != Some(generation) {
            self.stats.stale += 1;
        }
        self.change(now, shard, out, |held, context| held.host(from, word, context));
    }

    /// Release drains (docs/protocol/sharding.md#release-drains): a region that hosts the shard
    /// drains it before it answers, so that the next home never starts beside a running entity. An
    /// idle one answers, also a repetition, in every phase and as a proxy. An old one is stale.
    fn release(&mut self, now: Now, from: ReplicaId, word: ReleaseShard, out: &mut RegionOutbox) {
        let ReleaseShard { shard, generation, to, .. } = word;
        if !self.is_shard(shard) || self.is_forgotten(from, generation) {
            return;
        }
        let known = self.shards.get(&shard).map_or(Generation::NEVER, RegionShard::max_gen);
        if generation > known {
            self.route(ShardRoute { shard, generation, home: to }, out);
            self.remember_release(now, &word);
        } else if generation < known {
            self.stats.stale += 1;
        }
        self.change(now, shard, out, |held, context| held.release(from, word, context));
    }

    /// Records the release of another region as evidence that it is over
    /// (docs/protocol/sharding.md#when-a-predecessor-is-over). A release counts even if its sender
    /// has been removed meanwhile: it has stopped the shard all the same. Any unfinished fetch of a
    /// payload of the same or an earlier tenure of the sender is dropped. Ignored by a proxy.
    fn released(&mut self, now: Now, from: ReplicaId, word: Released, out: &mut RegionOutbox) {
        if self.is_shard(word.shard) && !self.config.proxy && !self.is_ahead(word.cluster) {
            let from = RegionId::new(from);
            self.intake.superseded(word.shard, from, word.last);
            self.change(now, word.shard, out, |held, context| held.released(from, word, context));
        }
    }

    /// Handles the announcement of a release whose payload is too long for one message. A release
    /// that would count is handled only after its payload has been fetched. One that does not
    /// count, or whose payload is already here, is handled at once, like [`Released`].
    /// Announcements of removed regions are ignored: a payload that a removed region kept is lost.
    fn released_long(
        &mut self,
        now: Now,
        from: ReplicaId,
        word: ReleasedWithLongPayload,
        out: &mut RegionOutbox,
    ) {
        let from = RegionId::new(from);
        let ReleasedWithLongPayload { shard, reached, last, length, sealed, cluster } = word;
        let is_member = self.installed.members.contains(&from);
        if !self.is_shard(shard) || self.config.proxy || !is_member || self.is_ahead(cluster) {
            return;
        }
        let held = self.shards.entry(shard).or_default();
        let brought = held.brought(from, last).filter(|brought| brought.len() as u64 == length);
        if held.release_verdict(from, reached) != ReleaseVerdict::Counts || brought.is_some() {
            let payload = brought.cloned();
            let word = Released { shard, reached, last, payload, sealed, cluster };
            self.change(now, shard, out, |held, context| held.released(from, word, context));
        } else if !self.intake.announced(now.mono, from, word) {
            self.stats.strange += 1;
        }
    }

    /// Sends one window of parts, from the offset `at` on, to any region that fetches a payload.
    /// Sends nothing behind the end, or if the payload of exactly that tenure is not kept here.
    fn fetched(&mut self, from: ReplicaId, word: &Fetch) {
        let Fetch { shard, last, at } = *word;
        let held = self.shards.get(&shard).filter(|held| held.last() == last);
        let Some(kept) = held.and_then(RegionShard::kept) else { return };
        let PayloadPartSizes { part, window, .. } = self.config.cut;
        let begin = usize::try_from(at).map_or(kept.len(), |at| at.min(kept.len()));
        let end = begin.saturating_add(window.max(part)).min(kept.len());
        for from_here in (begin..end).step_by(part.max(1)) {
            let bytes = kept.slice(from_here..from_here.saturating_add(part.max(1)).min(end));
            let at = from_here as u64;
            self.outbound.part(RegionId::new(from), PayloadPart { shard, last, at, bytes });
        }
    }

    /// Takes a part of a fetched payload. With the last one it counts, and the release is handled.
    fn part(&mut self, now: Now, from: ReplicaId, part: &PayloadPart, out: &mut RegionOutbox) {
        if let Some(whole) = self.intake.took(now.mono, RegionId::new(from), part) {
            self.stats.fetched += 1;
            self.released(now, from, whole, out);
        }
    }

    /// Handles `Hosted` of any sender, about a known shard: drops the kept payload of a tenure
    /// below `at`. Ends the repetition of the release once the shard keeps none and owes no answer.
    fn confirmed(&mut self, shard: ShardId, at: Generation) {
        if let Some(held) = self.shards.get_mut(&shard) {
            held.confirmed(at, self.fault_injection);
            if held.kept().is_none() && !held.owes_word() {
                self.carrying.end(shard);
            }
        }
    }

    /// Applies a rule to a shard, which is created if it is unknown, and drops unfinished fetches
    /// of payloads whose release would no longer count. Then performs the resulting steps, and last
    /// outputs the shard's standing if it has changed.
    fn change(
        &mut self,
        now: Now,
        shard: ShardId,
        out: &mut RegionOutbox,
        rule: impl FnOnce(&mut RegionShard, ShardContext<'_>) -> Vec<ShardAction>,
    ) {
        let Self { me, installed, fault_injection, .. } = self;
        let context = ShardContext { me: *me, shard, installed, fault_injection: *fault_injection };
        let held = self.shards.entry(shard).or_default();
        let before = standing(shard, held);
        let steps = rule(held, context);
        let after = standing(shard, held);
        self.intake.retain(shard, |from, reached| {
            held.release_verdict(from, reached) == ReleaseVerdict::Counts
        });
        for step in steps {
            self.perform(now, shard, after, step, out);
        }
        self.keep_pace(now, before, after);
        if before != after {
            out.push(RegionOutput::Standing(after));
        }
    }

    /// Performs a step of a shard, and counts it. `is` is the shard's standing after the rule. Only
    /// a `Released` with a payload begins a repetition, unless one is under way.
    fn perform(
        &mut self,
        now: Now,
        shard: ShardId,
        is: ShardHostState,
        step: ShardAction,
        out: &mut RegionOutbox,
    ) {
        let generation = is.max_gen;
        match step {
            ShardAction::Start { payload } => {
                self.stats.started += 1;
                self.carrying.end(shard);
                self.note_settled(now, shard, generation, DecisionStepKind::Started);
                out.push(RegionOutput::Start { shard, generation, payload });
            }
            ShardAction::Adopt => {
                self.stats.adopted += 1;
                self.note_settled(now, shard, generation, DecisionStepKind::Adopted);
                out.push(RegionOutput::Adopt { shard, generation });
            }
            ShardAction::Drain => {
                self.stats.drained += 1;
                self.aborts.insert(shard, now.mono + self.config.handoff_timeout);
                out.push(RegionOutput::Drain { shard, to: is.home });
            }
            ShardAction::Release { to, word } => {
                if word.payload.is_some() && !self.carrying.contains(shard) {
                    self.carrying.begin(now.mono, shard, self.config.repeat);
                }
                self.send_released(to, word);
            }
            ShardAction::Drained { to, reached } => self.outbound.drained(to, shard, reached),
            ShardAction::Confirm { to } => {
                self.outbound.hosted_to_coordinator(to, shard, generation);
            }
            ShardAction::Confirmed { to, at } => self.outbound.hosted_to_region(to, shard, at),
            ShardAction::Discard { from, payload } => {
                self.stats.discarded += 1;
                out.push(RegionOutput::Discard { reach: Reach::Sent, shard, from, payload });
            }
        }
    }

    /// Sends a release. A payload that is too long for one message is only announced, and the
    /// receiver fetches it.
    fn send_released(&mut self, to: RegionId, word: Released) {
        let length = word.payload.as_ref().map_or(0, Bytes::len);
        if length <= self.config.cut.whole {
            return self.outbound.released(to, word);
        }
        let Released { shard, reached, last, sealed, cluster, .. } = word;
        let length = length as u64;
        self.outbound.released_long(
            to,
            ReleasedWithLongPayload { shard, reached, last, length, sealed, cluster },
        );
    }

    /// Ends the drain of a known shard: releases it with the payload, or tries what waits. If it
    /// does not drain, the payload is dropped, uncounted.
    fn on_drained(
        &mut self,
        now: Now,
        shard: ShardId,
        payload: Option<Bytes>,
        out: &mut RegionOutbox,
    ) {
        if self.shards.contains_key(&shard) {
            self.aborts.remove(&shard);
            self.note_drained(now, shard);
            self.change(now, shard, out, |held, context| held.drained(payload, context));
            self.ask_for_home_of(now.mono, shard);
        }
    }

    /// Installs a configuration if it is newer: outputs a raised cluster generation, drops fetches
    /// from removed regions, makes `Leaving` due, and tries pending starts again, because removed
    /// regions are over. The removal of this region has no effect: that is [`RegionInput::Over`].
    fn install(&mut self, now: Now, installed: Installed, out: &mut RegionOutbox) {
        let before = self.installed.epoch.generation;
        if !self.installed.install(installed) {
            return;
        }
        let generation = self.installed.epoch.generation;
        if generation > before {
            out.push(RegionOutput::ClusterGeneration(generation));
        }
        self.intake.keep_only(&self.installed.members);
        self.ask_to_leave(now.mono); // the configuration may have removed the home of a shard
        let pending = self.shards.iter().filter(|(_, held)| held.pending().is_some());
        for shard in pending.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.change(now, shard, out, RegionShard::try_pending);
        }
    }

    /// Whether a release must be ignored, and is counted as too early: its sender has installed a
    /// later cluster generation (docs/protocol/sharding.md#cluster-generation-before-start) than
    /// this region, and may have issued fencing tokens of it. The sender repeats the release until
    /// this region has installed that generation, too.
    fn is_ahead(&mut self, cluster: u64) -> bool {
        let is_ahead = cluster > self.installed.epoch.generation;
        self.stats.too_early += u64::from(is_ahead);
        is_ahead
    }

    /// A region without a lease hosts nothing
    /// (docs/protocol/sharding.md#a-region-without-a-lease-hosts-nothing): it stops for good,
    /// because others may start its shards. Discards kept payloads, then drops unsent messages.
    fn stop_for_good(&mut self, out: &mut RegionOutbox) {
        self.over = true;
        self.forsake(out);
        self.shards.values_mut().for_each(RegionShard::over);
        self.intake.clear();
        self.aborts.clear();
        self.outbound = RegionOutboundBatch::default();
        out.push(RegionOutput::StopAll);
    }

    /// Discards all kept payloads, because no region will take them any longer. The region does not
    /// repeat their releases: without its payload a release would claim that nothing was left.
    fn forsake(&mut self, out: &mut RegionOutbox) {
        for (shard, held) in &mut self.shards {
            if let Some((reach, payload)) = held.forsake() {
                self.stats.discarded += 1;
                out.push(RegionOutput::Discard { reach, shard: *shard, from: self.me, payload });
            }
        }
        self.carrying.clear();
    }

    /// Does the work that is due, in this order: aborts, repeated releases, `Coordinated`,
    /// registration, `Unregistered`, requests for homes, shutdown, stop requests, slow decisions,
    /// events, fetches. Then sends the messages of this batch.
    fn work(&mut self, now: Now, out: &mut RegionOutbox) {
        self.dirty = false;
        let late: Vec<ShardId> =
            self.aborts.iter().filter(|(_, at)| **at <= now.mono).map(|(id, _)| *id).collect();
        for shard in late {
            self.aborts.remove(&shard);
            self.stats.aborted += 1;
            out.push(RegionOutput::Abort(shard));
        }
        for shard in self.carrying.take_due(now.mono, self.config.repeat) {
            self.change(now, shard, out, RegionShard::say_released);
        }
        let coordinated = self.registration.is_registered();
        if std::mem::replace(&mut self.coordinated, coordinated) != coordinated {
            out.push(RegionOutput::Coordinated(coordinated));
        }
        self.register(now);
        self.complain(now, out);
        self.ask(now);
        self.leave(now, out);
        self.repeat_stop_requests(now, out);
        self.look_for_slow(now, out);
        self.tell_steps(out);
        for (to, word) in self.intake.take_due(now.mono, self.config.cut.window) {
            self.outbound.fetch(to, word);
        }
        self.outbound.flush(self.config.cut, out);
    }

    /// Registers, if that is due, in as many messages (at least one) as the hosted shards need,
    /// draining ones included. A region that leaves or has left registers as a proxy, so that a
    /// coordinator that does not know yet that it leaves gives it no shard.
    fn register(&mut self, now: Now) {
        if let Some(to) = self.registration.take_due(now.mono, self.config.retry) {
            let hosted = self.shards.iter().filter_map(|(id, held)| match held.run() {
                HostingPhase::Idle => None,
                HostingPhase::Hosting(at) | HostingPhase::Draining(at) => Some((*id, at)),
            });
            let hosted: Vec<(ShardId, Generation)> = hosted.collect();
            let (proxy, highest) = (self.config.proxy || self.leaving.is_some(), self.highest);
            let slow: Vec<ShardId> = self.slow.iter().copied().collect();
            let room = self.config.cut.words.saturating_sub(slow.len() * SHARD_BYTES);
            let mut parts = in_messages(hosted, room, |_| HOSTED_BYTES);
            if parts.is_empty() {
                parts.push(Vec::new());
            }
            for hosted in parts {
                let (agreed, slow) = (self.agreed.clone(), slow.clone());
                let word = ToCoordinator::Register { proxy, hosted, highest, agreed, slow };
                self.outbound.say(to, word);
            }
        }
    }

    /// Notes the shards with slow handlers, the lowest ones, as many as may take half of a message.
    /// If they have changed, the next registration is due soon.
    fn note_slow_handlers(&mut self, now: Instant, mut shards: BTreeSet<ShardId>) {
        let most = SLOW_SHARDS_MAX.min(self.config.cut.words / 2 / SHARD_BYTES);
        while shards.len() > most {
            shards.pop_last();
        }
        if self.slow != shards {
            self.slow = shards;
            self.registration.changed(now);
        }
    }

    /// Reports, from time to time, that homes are wanted and no coordinator registers this region.
    fn complain(&mut self, now: Now, out: &mut RegionOutbox) {
        if self.left || self.wanted.is_empty() {
            self.registration.is_not_missed();
        } else if let Some(complaint) = self.registration.complain(now.mono) {
            out.push(RegionOutput::Unregistered(complaint));
        }
    }

    /// Asks the coordinator that registered this region for all wanted homes, again after `retry`.
    fn ask(&mut self, now: Now) {
        if self.wanted.is_empty() {
            self.ask_at = None;
        }
        let due = self.ask_at.is_some_and(|at| at <= now.mono) && self.registration.is_registered();
        if let (true, Some(to)) = (due, self.registration.coordinator()) {
            self.ask_at = Some(now.mono + self.config.retry);
            let wanted = self.wanted.iter().copied().collect();
            for wanted in in_messages(wanted, self.config.cut.words, |_| SHARD_BYTES) {
                self.outbound.say(to, ToCoordinator::GetShardHome(wanted));
            }
        }
    }
}

fn standing(shard: ShardId, held: &RegionShard) -> ShardHostState {
    let (max_gen, home) = (held.max_gen(), held.home());
    ShardHostState { shard, max_gen, home, pending: held.pending().is_some(), run: held.run() }
}

impl Machine for Region {
    type Input = RegionInput;
    type Output = RegionOutput;

    fn handle(&mut self, now: Now, input: RegionInput, out: &mut RegionOutbox) {
        if self.over {
            return self.after_stop(input, out);
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
            RegionInput::Stop { shards, within } => self.request_stop(now, shards, within),
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
        let aborts = self.aborts.values().min().copied();
        let stops = self.stopping.next(self.registration.is_registered());
        [self.carrying.next(), self.registration.next(), asks, self.leaves_at(), aborts, stops]
            .into_iter()
            .flatten()
            .min()
    }
}
