//! State of one shard at one region, and the region's rules of moves
//! (docs/protocol/sharding.md#rules-of-the-region). The state machine takes facts and returns
//! [`ShardAction`]s, which the caller must perform in their order. It knows neither time, nor the
//! coordinator's state, nor other shards.
//!
//! Injected faults weaken single rules in tests. The comments describe the functions without them.

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_ddata::id::ReplicaId;

use super::payload::{self, PayloadCandidate};
use super::port::Reach;
use crate::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};
pub use crate::sharding::gate::HostingPhase;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::wire::{HostShard, ReleaseShard, Released};

/// A decision that names this region as home and waits for predecessors, or for the end of the
/// shard's drain here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingStart {
    /// The predecessors: each may host the shard up to this generation.
    pub after: BTreeMap<RegionId, Generation>, // ≤ regions
    /// The coordinator that sent the `Host`; it gets the confirmation.
    pub asked_by: ReplicaId,
}

/// The last `Released` accepted from another region. It is evidence for a pending decision, or for
/// one above `max_gen` that has not arrived yet. It is removed by the start or adoption, or by a
/// newer `Release` that is not below `reached`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LastReleased {
    /// Generation below which the sender hosts nothing.
    pub reached: Generation,
    /// The highest generation at which the sender hosted.
    pub last: Generation,
    /// The payload of that last tenure; `None` if it was empty or is no longer kept.
    pub payload: Option<Bytes>,
    /// The highest generation that the sender knew when that tenure ended.
    pub sealed: Generation,
}

/// Verdict on a `Released` that another region sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseVerdict {
    /// This region has already started after that tenure: confirm to the sender. Holds for ever,
    /// also after the shard has moved on.
    Taken,
    /// The release is late or belongs to a superseded decision. The sender repeats it while it is
    /// needed.
    Nothing,
    /// The release is recorded as evidence.
    Counts,
}

/// An action that follows from a fact about the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShardAction {
    /// Start the shard with this payload.
    Start { payload: Option<Bytes> },
    /// Continue the running shard under the new generation.
    Adopt,
    /// Stop the entities, then report with [`RegionShard::drained`].
    Drain,
    /// Send `Released` to the home of the decision, and repeat it while its payload is kept.
    /// Without a payload no repetition begins.
    Release { to: RegionId, word: Released },
    /// Send `Drained` to a coordinator, because the decision has no home.
    Drained { to: ReplicaId, reached: Generation },
    /// Confirm `Hosted` at `max_gen` to the coordinator.
    Confirm { to: ReplicaId },
    /// Send `Hosted` at `at` to a region, so that it drops the payload which it keeps.
    Confirmed { to: RegionId, at: Generation },
    /// Count the messages of this payload as lost: another region may have handled them. `from` is
    /// the region whose tenure left the payload, perhaps this one.
    Discard { from: RegionId, payload: Bytes },
}

/// One shard at this region. It is created by the first message about the shard and kept for the
/// life of the process, because `max_gen` must outlive every late message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegionShard {
    max_gen: Generation,    // only rises
    home: Option<RegionId>, // of the decision `max_gen`
    run: HostingPhase,
    /// Set while the decision `max_gen` names this region and it has not started or adopted it.
    pending_start: Option<PendingStart>,
    last: Generation, // `NEVER`: this region never hosted the shard
    /// The payload of the last tenure, until a start here takes it or a later tenure is confirmed.
    kept: Option<Bytes>,
    sealed: Generation, // `max_gen` when the last tenure ended; no release was sent before
    heard: BTreeMap<RegionId, LastReleased>, // ≤ regions
    /// The latest decision that named this region without a tenure following. If this region exited
    /// before the next home has its release, the region would count as a possible host.
    named: Option<Generation>,
    confirmed: Generation, // the highest at which another region hosted after the last tenure here
    /// The coordinator whose `Release` drains the shard. It gets `Drained` if there is no home.
    released_by: Option<ReplicaId>,
}

/// The context in which a fact about the shard is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardContext<'a> {
    pub(super) me: RegionId,
    pub(super) shard: ShardId,
    pub(super) installed: &'a Installed,
    pub(super) fault_injection: ShardingFaultInjection,
}

impl ShardContext<'_> {
    /// Returns `sealed` if the release of `region`, which may be this one, proves that nobody else
    /// hosted between its last tenure and `sealed`: before it sealed its payload, no other region
    /// could count it as over
    /// (docs/protocol/sharding.md#a-member-vouches-for-named-regions). Otherwise returns `None`.
    ///
    /// A removed region proves nothing, because others may have counted it as over before it sent
    /// any release; this region itself never counts as removed. Neither does a payload prove
    /// anything that was sealed under a decision made before a forced configuration: later
    /// decisions may be lost, together with the regions that they named.
    fn vouched(&self, region: RegionId, sealed: Generation) -> Option<Generation> {
        let ShardContext { me, installed, fault_injection, .. } = self;
        let is_in = region == *me || installed.members.contains(&region);
        let forced = installed.forced.as_ref();
        let stands = forced.is_none_or(|forced| sealed.term.number > forced.terms_above());
        (stands && (is_in || fault_injection.has(ShardingFault::RemovedVouches))).then_some(sealed)
    }
}

impl RegionShard {
    /// The highest generation received in a `Host` or `Release`. Orders below it are ignored.
    /// Routes and releases of other regions do not raise it.
    #[must_use]
    pub const fn max_gen(&self) -> Generation {
        self.max_gen
    }

    /// The home of the decision `max_gen`.
    #[must_use]
    pub const fn home(&self) -> Option<RegionId> {
        self.home
    }

    /// Whether the shard is idle, hosted or draining here.
    #[must_use]
    pub const fn run(&self) -> HostingPhase {
        self.run
    }

    /// The decision that waits for predecessors, if any.
    #[must_use]
    pub const fn pending(&self) -> Option<&PendingStart> {
        self.pending_start.as_ref()
    }

    /// The highest generation at which this region ever hosted the shard, or hosts it;
    /// [`Generation::NEVER`] if it never did.
    #[must_use]
    pub const fn last(&self) -> Generation {
        self.last
    }

    /// The payload kept for the next home; only while the shard is idle here.
    #[must_use]
    pub const fn kept(&self) -> Option<&Bytes> {
        self.kept.as_ref()
    }

    /// Whether this region was named as home without hosting, and no later home has confirmed that
    /// it heard so. False unless the shard is idle here without a pending decision.
    #[must_use]
    pub fn owes_word(&self) -> bool {
        self.run == HostingPhase::Idle && self.pending_start.is_none() && self.named.is_some()
    }

    /// The predecessors that are not over yet. None without a pending decision, or if that waits
    /// only for the end of the drain here.
    #[must_use]
    pub fn awaited(&self, installed: &Installed) -> Vec<RegionId> {
        let after = self.pending_start.iter().flat_map(|pending_start| &pending_start.after);
        let open = after.filter(|(id, last)| {
            !self.is_over(**id, **last, installed, ShardingFaultInjection::none())
        });
        open.map(|(id, _)| *id).collect()
    }

    /// Host rule (docs/protocol/sharding.md#host-only-raises): only a generation above `max_gen`
    /// counts; otherwise a late `Host` could start the shard beside its new home. It raises
    /// `max_gen`, makes this region the home, replaces a pending decision, and is carried out at
    /// once if all its predecessors are over and the shard does not drain. A drain goes on.
    ///
    /// A `Host` of the decision by which the shard is hosted here is confirmed to `from` again. Any
    /// other one is ignored, also the repetition of a decision that still waits, whose `asked_by`
    /// stays. The caller has checked the epoch. Evidence and the kept payload stay.
    pub(super) fn host(
        &mut self,
        from: ReplicaId,
        word: HostShard,
        context: ShardContext<'_>,
    ) -> Vec<ShardAction> {
        let HostShard { generation, after, .. } = word;
        let late = context.fault_injection.has(ShardingFault::HostBelowMax)
            && self.run == HostingPhase::Idle;
        if generation > self.max_gen || (late && generation < self.max_gen) {
            self.max_gen = generation;
            self.home = Some(context.me);
            self.pending_start =
                Some(PendingStart { after: after.iter().collect(), asked_by: from });
            return self.try_pending(context);
        }
        match self.run {
            HostingPhase::Hosting(h) if h == generation && generation == self.max_gen => {
                vec![ShardAction::Confirm { to: from }]
            }
            _ => Vec::new(),
        }
    }

    /// Whether a predecessor is over (docs/protocol/sharding.md#when-a-predecessor-is-over): it was
    /// removed, it released above its entry, or this region hosts above its entry; a shard that
    /// drains here proves nothing. Equal generations prove nothing. `listed` is the generation of
    /// the entry.
    fn is_over(
        &self,
        region: RegionId,
        listed: Generation,
        installed: &Installed,
        fault_injection: ShardingFaultInjection,
    ) -> bool {
        // `out` is conclusive: the caller compared the epoch when the `Host` came, and epochs only
        // rise.
        let out = !installed.members.contains(&region);
        let heard = self.heard.get(&region);
        let released = heard.is_some_and(|heard| {
            heard.reached > listed || fault_injection.has(ShardingFault::AnyReleased)
        });
        out || released || matches!(self.run, HostingPhase::Hosting(h) if h > listed)
    }

    /// Starts the idle shard, or adopts the running one, by the pending decision once every
    /// predecessor is over (docs/protocol/sharding.md#guarded-start-and-adoption). This is the only
    /// way to host; hosting earlier could give the shard two hosts.
    ///
    /// Does nothing without a pending decision, while a predecessor is not over, and during a
    /// drain, whose end tries again. Otherwise the shard is hosted at `max_gen`; the kept payload,
    /// `named`, `confirmed` and all evidence are dropped, and the actions confirm to the
    /// coordinator that asked and to each region whose release was recorded, predecessor or not.
    pub(super) fn try_pending(&mut self, context: ShardContext<'_>) -> Vec<ShardAction> {
        let Some(pending_start) = &self.pending_start else { return Vec::new() };
        let ShardContext { installed, fault_injection, .. } = context;
        let over = pending_start
            .after
            .iter()
            .all(|(id, last)| self.is_over(*id, *last, installed, fault_injection));
        let waived = fault_injection.has(ShardingFault::StartWithoutReleased)
            || (fault_injection.has(ShardingFault::AdoptUnguarded)
                && matches!(self.run, HostingPhase::Hosting(_)));
        if !(over || waived) || matches!(self.run, HostingPhase::Draining(_)) {
            return Vec::new();
        }
        let Some(pending_start) = self.pending_start.take() else { return Vec::new() };
        let heard = std::mem::take(&mut self.heard);
        let mut steps = match self.run {
            HostingPhase::Hosting(_) => vec![ShardAction::Adopt],
            _ => self.start(&pending_start, &heard, context),
        };
        self.run = HostingPhase::Hosting(self.max_gen);
        self.last = self.max_gen;
        (self.kept, self.sealed) = (None, Generation::NEVER);
        (self.named, self.confirmed) = (None, Generation::NEVER);
        steps.push(ShardAction::Confirm { to: pending_start.asked_by });
        steps.extend(heard.keys().map(|id| ShardAction::Confirmed { to: *id, at: self.last }));
        steps
    }

    /// Starts the shard with the payload of the latest tenure, perhaps none
    /// (docs/protocol/sharding.md#a-start-takes-one-payload). Candidates are the tenure of this
    /// region, if it ever hosted, and one for each predecessor: the tenure that it reported with a
    /// release above its entry, or, without such a release, a possible tenure of a removed region.
    /// A predecessor that reported that it never hosted is none.
    ///
    /// If a possible tenure of a removed region is the latest, starts without a payload and
    /// discards all others. Takes the kept payload. Payloads of regions that are no predecessors
    /// are dropped.
    fn start(
        &mut self,
        pending_start: &PendingStart,
        heard: &BTreeMap<RegionId, LastReleased>,
        context: ShardContext<'_>,
    ) -> Vec<ShardAction> {
        let mut candidates: Vec<PayloadCandidate> = Vec::new();
        let sealed = context.vouched(context.me, self.sealed);
        let own = PayloadCandidate::told(context.me, self.last, self.kept.take(), sealed);
        let own_counts = self.last > Generation::NEVER
            && !context.fault_injection.has(ShardingFault::OwnPayloadLeftOut);
        candidates.extend(own_counts.then_some(own));
        for (id, listed) in &pending_start.after {
            let released = heard.get(id).filter(|heard| heard.reached > *listed);
            candidates.extend(match released {
                Some(heard) if heard.last == Generation::NEVER => None,
                Some(heard) => {
                    let by_listed = context.fault_injection.has(ShardingFault::PayloadByListed);
                    let key = if by_listed { *listed } else { heard.last };
                    let sealed = context.vouched(*id, heard.sealed);
                    Some(PayloadCandidate::told(*id, key, heard.payload.clone(), sealed))
                }
                None if context.fault_injection.has(ShardingFault::RemovedDoesNotCount) => None,
                None => Some(PayloadCandidate::removed(*id, *listed)),
            });
        }
        let (payload, discarded) = payload::choose(candidates, context.fault_injection);
        let mut steps = vec![ShardAction::Start { payload }];
        let discard = |carried: PayloadCandidate| {
            carried.payload.map(|payload| ShardAction::Discard { from: carried.from, payload })
        };
        steps.extend(discarded.into_iter().filter_map(discard));
        steps
    }

    /// Release rule (docs/protocol/sharding.md#release-drains): a newer `Release` raises `max_gen`,
    /// so that no late `Host` restarts the shard, ends the pending decision, and drains what runs.
    /// An idle shard is answered at once; a drain under way goes on, and its end answers.
    ///
    /// Ignored, whatever its generation, if it names this region as the next home. A late one stops
    /// nothing. A repeated one is answered again, but only if the shard is idle. Evidence above the
    /// new generation stays. If a newer one lists this region above `last`, and no other region has
    /// hosted above that entry, `named` records that it was named in vain.
    pub(super) fn release(
        &mut self,
        from: ReplicaId,
        word: ReleaseShard,
        context: ShardContext<'_>,
    ) -> Vec<ShardAction> {
        let ReleaseShard { generation, to, listed, .. } = word;
        let fault_injection = context.fault_injection;
        let idle = self.run == HostingPhase::Idle;
        if fault_injection.has(ShardingFault::LateReleaseStops) && generation < self.max_gen {
            return self.drain(context);
        }
        let ignored = fault_injection.has(ShardingFault::IdleIgnoresRelease)
            && idle
            && self.last < generation;
        if ignored || to == Some(context.me) {
            return Vec::new();
        }
        let lowers = fault_injection.has(ShardingFault::ReleaseLowers) && generation < self.max_gen;
        if generation > self.max_gen || lowers {
            self.max_gen = generation;
            (self.home, self.pending_start, self.released_by) = (to, None, Some(from));
            let in_vain = listed > self.last && listed >= self.confirmed;
            self.named = self.named.max(in_vain.then_some(listed));
            // Evidence of superseded decisions. A region that keeps a payload sends it again to the
            // next home.
            self.heard.retain(|_, heard| heard.reached > generation);
            return match self.run {
                HostingPhase::Idle => self.say_released(context),
                HostingPhase::Hosting(_) => self.drain(context),
                HostingPhase::Draining(_) => Vec::new(),
            };
        }
        let repeat = generation == self.max_gen && idle && self.pending_start.is_none();
        if repeat && !fault_injection.has(ShardingFault::RepeatUnanswered) {
            self.released_by = Some(from);
            return self.say_released(context);
        }
        Vec::new()
    }

    /// Begins to drain a hosted shard. Does nothing if the shard is idle or drains already.
    fn drain(&mut self, context: ShardContext<'_>) -> Vec<ShardAction> {
        let HostingPhase::Hosting(at) = self.run else { return Vec::new() };
        self.run = HostingPhase::Draining(at);
        let mut steps = vec![ShardAction::Drain];
        if context.fault_injection.has(ShardingFault::ReleasedBeforeDrained) {
            steps.extend(self.say_released(context));
        }
        steps
    }

    /// Reports that this region hosts nothing below `max_gen`: to the home of the decision,
    /// together with a copy of the kept payload, which stays kept, or, without a home, to the
    /// coordinator that asked, without the payload. Reports nothing if this region is the home, or
    /// if there is neither a home nor such a coordinator. Changes nothing. The caller must know
    /// that nothing of the shard runs here.
    pub(super) fn say_released(&mut self, context: ShardContext<'_>) -> Vec<ShardAction> {
        let reached = self.max_gen;
        if context.fault_injection.has(ShardingFault::ReleaseDoesNotRaise) {
            self.max_gen = self.last;
        }
        match (self.home, self.released_by) {
            (Some(to), _) if to == context.me => Vec::new(),
            (Some(to), _) => {
                let ShardContext { shard, installed, .. } = context;
                let cluster = installed.epoch.generation;
                let (last, payload, sealed) = (self.last, self.kept.clone(), self.sealed);
                let word = Released { shard, reached, last, payload, sealed, cluster };
                vec![ShardAction::Release { to, word }]
            }
            (None, Some(to)) => vec![ShardAction::Drained { to, reached }],
            (None, None) => Vec::new(),
        }
    }

    /// The last entity has ended (docs/protocol/sharding.md#release-after-last-stop): seals the
    /// payload, and reports the release or tries the decision that names this region again. The
    /// region answers only now, because the next home starts as soon as the release arrives.
    ///
    /// Ignored, payload included, if the shard does not drain. If the decision that names this
    /// region still waits for a predecessor, nothing is sent, and the payload stays kept.
    pub(super) fn drained(
        &mut self,
        payload: Option<Bytes>,
        context: ShardContext<'_>,
    ) -> Vec<ShardAction> {
        if !matches!(self.run, HostingPhase::Draining(_)) {
            return Vec::new();
        }
        self.run = HostingPhase::Idle;
        (self.kept, self.sealed) = (payload, self.max_gen);
        if self.pending_start.is_some() {
            self.try_pending(context)
        } else {
            self.say_released(context)
        }
    }

    /// Handles a `Released` of another region by its [verdict](Self::release_verdict): confirms
    /// with this region's last tenure, ignores, or records it in place of the earlier one of that
    /// region (payload included) and tries the pending decision. The sender need not be a
    /// predecessor.
    pub(super) fn released(
        &mut self,
        from: RegionId,
        word: Released,
        context: ShardContext<'_>,
    ) -> Vec<ShardAction> {
        let Released { reached, last, payload, sealed, .. } = word;
        if context.fault_injection.has(ShardingFault::PayloadTakenAgain)
            && let (HostingPhase::Hosting(_), Some(payload)) = (self.run, &payload)
        {
            return vec![ShardAction::Start { payload: Some(payload.clone()) }];
        }
        match self.release_verdict(from, reached) {
            ReleaseVerdict::Taken => vec![ShardAction::Confirmed { to: from, at: self.last }],
            ReleaseVerdict::Nothing => Vec::new(),
            ReleaseVerdict::Counts => {
                self.heard.insert(from, LastReleased { reached, last, payload, sealed });
                self.try_pending(context)
            }
        }
    }

    /// Judges a `Released` from `from` with this `reached`. It is taken if no decision is pending
    /// and this region hosted at `reached` or later, in whatever phase the shard is now. Otherwise
    /// it counts if a decision is pending or `reached` is above `max_gen`, unless a release of that
    /// region with a higher `reached` is recorded; an equal one counts again. Changes nothing.
    pub(super) fn release_verdict(&self, from: RegionId, reached: Generation) -> ReleaseVerdict {
        // This also holds after the shard has left: the first confirmation may be lost, and no
        // other region would repeat it.
        if self.pending_start.is_none() && self.last > Generation::NEVER && reached <= self.last {
            return ReleaseVerdict::Taken;
        }
        let known = self.heard.get(&from).map_or(Generation::NEVER, |heard| heard.reached);
        if (self.pending_start.is_none() && reached <= self.max_gen) || reached < known {
            return ReleaseVerdict::Nothing;
        }
        ReleaseVerdict::Counts
    }

    /// The payload of that region's tenure `last`, if its release is recorded with a payload.
    pub(super) fn brought(&self, from: RegionId, last: Generation) -> Option<&Bytes> {
        self.heard.get(&from).filter(|heard| heard.last == last)?.payload.as_ref()
    }

    /// Handles `Hosted`: some region hosts at `at`. A payload of an earlier tenure was taken or is
    /// useless, so it is dropped if the shard is idle here, also while a decision is pending, and a
    /// decision below `at` that named this region needs no further answer, in any phase. A
    /// confirmation of this region's own last tenure, or of an earlier one, drops no payload.
    /// `max_gen` and the pending decision stay.
    pub(super) fn confirmed(&mut self, at: Generation, fault_injection: ShardingFaultInjection) {
        let over = at > self.last
            || (fault_injection.has(ShardingFault::KeptDroppedOnEqual) && at == self.last);
        if over && self.run == HostingPhase::Idle {
            self.kept = None;
        }
        self.named = self.named.filter(|named| at <= *named);
        if at > self.last {
            self.confirmed = self.confirmed.max(at);
        }
    }

    /// Total length of the payloads received from other regions that no start has taken yet.
    pub(super) fn heard_bytes(&self) -> u64 {
        let payloads = self.heard.values().filter_map(|heard| heard.payload.as_ref());
        payloads.map(|payload| payload.len() as u64).sum()
    }

    /// Takes the kept payload because no region will fetch it any longer; `None` if there is none.
    /// It is [`Reach::Unsent`] if the decision that ended the tenure is still the newest and names
    /// no home, because a payload is sent to homes only; otherwise [`Reach::Sent`], even if no
    /// release was sent. The rest of the shard's state stays.
    pub(super) fn forsake(&mut self) -> Option<(Reach, Bytes)> {
        let unsent = self.home.is_none() && self.max_gen == self.sealed;
        let reach = if unsent { Reach::Unsent } else { Reach::Sent };
        self.kept.take().map(|payload| (reach, payload))
    }

    /// The region is out: makes the shard idle and drops the pending decision, the payload and all
    /// evidence; `max_gen`, its home and `last` stay. The caller stops all entities and has
    /// discarded the kept payload; payloads in the evidence are not counted, because their senders
    /// keep them. Nothing starts again.
    pub(super) fn over(&mut self) {
        *self = Self { max_gen: self.max_gen, home: self.home, last: self.last, ..Self::default() };
    }
}
