//! State of one shard at one region, and the region's rules of moves
//! (docs/protocol/sharding.md#rules-of-the-region). The state machine takes facts and returns
//! [`Step`]s. It knows neither time, nor the coordinator's state, nor other shards.

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_ddata::id::ReplicaId;

use super::payload::{self, PayloadCandidate};
use super::port::Reach;
use crate::sharding::bug::{Bug, Canary};
pub use crate::sharding::gate::Run;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::wire::{HostShard, ReleaseShard, Released};

/// A decision that names this region as home and waits for predecessors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// The predecessors: each may host the shard up to this generation.
    pub after: BTreeMap<RegionId, Generation>, // ≤ regions
    /// The coordinator that sent the `Host`; it gets the confirmation.
    pub asked_by: ReplicaId,
}

/// The last `Released` accepted from another region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Heard {
    /// Generation below which the sender hosts nothing.
    pub reached: Generation,
    /// The highest generation at which the sender hosted.
    pub last: Generation,
    /// The payload of that last tenure.
    pub payload: Option<Bytes>,
    /// The highest generation that the sender knew when that tenure ended.
    pub sealed: Generation,
}

/// Verdict on a `Released` that another region sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// This region has already started after that tenure: confirm to the sender.
    Taken,
    /// The release is late or belongs to a superseded decision. The sender repeats it while it is
    /// needed.
    Nothing,
    /// The release is recorded as evidence.
    Counts,
}

/// An action that follows from a fact about the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Start the shard with this payload.
    Start { payload: Option<Bytes> },
    /// Continue the running shard under the new generation.
    Adopt,
    /// Stop the entities, then report with [`Shard::drained`].
    Drain,
    /// Send `Released` to the home of the decision.
    Release { to: RegionId, word: Released },
    /// Send `Drained` to a coordinator, because the decision has no home.
    Drained { to: ReplicaId, reached: Generation },
    /// Confirm `Hosted` at `max_gen` to the coordinator.
    Confirm { to: ReplicaId },
    /// Send `Hosted` at `at` to a region, so that it drops the payload which it keeps.
    Confirmed { to: RegionId, at: Generation },
    /// Count the messages of this payload as lost: another region may have handled them.
    Discard { from: RegionId, payload: Bytes },
}

/// One shard at this region. It is created by the first message about the shard and kept for the
/// life of the process, because `max_gen` must outlive every late message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shard {
    max_gen: Generation,
    home: Option<RegionId>, // of the decision `max_gen`
    run: Run,
    pend: Option<Pending>,
    last: Generation,
    kept: Option<Bytes>,
    sealed: Generation, // `max_gen` when the last tenure ended; no release was sent before
    heard: BTreeMap<RegionId, Heard>, // ≤ regions
    /// The latest decision that named this region without a tenure following. If this region exited
    /// before the next home has its release, the region would count as a possible host.
    named: Option<Generation>,
    confirmed: Generation, // another region hosted at it, after the last tenure here
    /// The coordinator whose `Release` drains the shard. It gets `Drained` if there is no home.
    released_by: Option<ReplicaId>,
}

/// The context in which a fact about the shard is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge<'a> {
    pub(super) me: RegionId,
    pub(super) shard: ShardId,
    pub(super) installed: &'a Installed,
    pub(super) canary: Canary,
}

impl Judge<'_> {
    /// Returns `sealed` if the release of `region` proves that nobody else hosted between its last
    /// tenure and `sealed`: before it sealed its payload, no other region could count it as over
    /// (docs/protocol/sharding.md#a-member-vouches-for-named-regions).
    ///
    /// A removed region proves nothing, because others may have counted it as over before it sent
    /// any release. Neither does a payload sealed under a decision made before a forced
    /// configuration: later decisions may be lost, together with the regions that they named.
    fn vouched(&self, region: RegionId, sealed: Generation) -> Option<Generation> {
        let Judge { me, installed, canary, .. } = self;
        let is_in = region == *me || installed.members.contains(&region);
        let forced = installed.forced.as_ref();
        let stands = forced.is_none_or(|forced| sealed.term.number > forced.terms_above());
        (stands && (is_in || canary.has(Bug::RemovedVouches))).then_some(sealed)
    }
}

impl Shard {
    /// The highest generation received in a `Host` or `Release`. Messages below it are ignored.
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
    pub const fn run(&self) -> Run {
        self.run
    }

    /// The decision that waits for predecessors, if any.
    #[must_use]
    pub const fn pending(&self) -> Option<&Pending> {
        self.pend.as_ref()
    }

    /// The highest generation at which this region ever hosted the shard.
    #[must_use]
    pub const fn last(&self) -> Generation {
        self.last
    }

    /// The payload kept for the next home.
    #[must_use]
    pub const fn kept(&self) -> Option<&Bytes> {
        self.kept.as_ref()
    }

    /// Whether this region was named as home without hosting, and no later home has confirmed that
    /// it heard so.
    #[must_use]
    pub fn owes_word(&self) -> bool {
        self.run == Run::Idle && self.pend.is_none() && self.named.is_some()
    }

    /// The predecessors that are not over yet.
    #[must_use]
    pub fn awaited(&self, installed: &Installed) -> Vec<RegionId> {
        let after = self.pend.iter().flat_map(|pend| &pend.after);
        let open =
            after.filter(|(id, last)| !self.is_over(**id, **last, installed, Canary::none()));
        open.map(|(id, _)| *id).collect()
    }

    /// Host rule (docs/protocol/sharding.md#host-only-raises): only a generation above `max_gen`
    /// counts; otherwise a late `Host` could start the shard beside its new home. The caller has
    /// checked the epoch.
    pub(super) fn host(&mut self, from: ReplicaId, word: HostShard, judge: Judge<'_>) -> Vec<Step> {
        let HostShard { generation, after, .. } = word;
        let late = judge.canary.has(Bug::HostBelowMax) && self.run == Run::Idle;
        if generation > self.max_gen || (late && generation < self.max_gen) {
            self.max_gen = generation;
            self.home = Some(judge.me);
            self.pend = Some(Pending { after: after.iter().collect(), asked_by: from });
            return self.judge(judge);
        }
        match self.run {
            Run::Hosting(h) if h == generation && generation == self.max_gen => {
                vec![Step::Confirm { to: from }]
            }
            _ => Vec::new(),
        }
    }

    /// Whether a predecessor is over (docs/protocol/sharding.md#when-a-predecessor-is-over): it was
    /// removed, it released above its entry, or this region hosts above its entry.
    fn is_over(
        &self,
        listed: RegionId,
        last: Generation,
        installed: &Installed,
        canary: Canary,
    ) -> bool {
        // `out` is conclusive: the caller compared the epoch when the `Host` came, and epochs only
        // rise.
        let out = !installed.members.contains(&listed);
        let heard = self.heard.get(&listed);
        let released =
            heard.is_some_and(|heard| heard.reached > last || canary.has(Bug::AnyReleased));
        out || released || matches!(self.run, Run::Hosting(h) if h > last)
    }

    /// Start or adoption, once every predecessor is over
    /// (docs/protocol/sharding.md#guarded-start-and-adoption). This is the only way to host;
    /// hosting earlier could give the shard two hosts.
    pub(super) fn judge(&mut self, judge: Judge<'_>) -> Vec<Step> {
        let Some(pend) = &self.pend else { return Vec::new() };
        let Judge { installed, canary, .. } = judge;
        let over = pend.after.iter().all(|(id, last)| self.is_over(*id, *last, installed, canary));
        let waived = canary.has(Bug::StartWithoutReleased)
            || (canary.has(Bug::AdoptUnguarded) && matches!(self.run, Run::Hosting(_)));
        if !(over || waived) || matches!(self.run, Run::Draining(_)) {
            return Vec::new();
        }
        let Some(pend) = self.pend.take() else { return Vec::new() };
        let heard = std::mem::take(&mut self.heard);
        let mut steps = match self.run {
            Run::Hosting(_) => vec![Step::Adopt],
            _ => self.start(&pend, &heard, judge),
        };
        self.run = Run::Hosting(self.max_gen);
        self.last = self.max_gen;
        (self.kept, self.sealed) = (None, Generation::NEVER);
        (self.named, self.confirmed) = (None, Generation::NEVER);
        steps.push(Step::Confirm { to: pend.asked_by });
        steps.extend(heard.keys().map(|id| Step::Confirmed { to: *id, at: self.last }));
        steps
    }

    /// Starts the shard with one payload (docs/protocol/sharding.md#a-start-takes-one-payload).
    fn start(
        &mut self,
        pend: &Pending,
        heard: &BTreeMap<RegionId, Heard>,
        judge: Judge<'_>,
    ) -> Vec<Step> {
        let mut candidates: Vec<PayloadCandidate> = Vec::new();
        let sealed = judge.vouched(judge.me, self.sealed);
        let own = PayloadCandidate::told(judge.me, self.last, self.kept.take(), sealed);
        let own_counts = self.last > Generation::NEVER && !judge.canary.has(Bug::OwnPayloadLeftOut);
        candidates.extend(own_counts.then_some(own));
        for (id, listed) in &pend.after {
            let released = heard.get(id).filter(|heard| heard.reached > *listed);
            candidates.extend(match released {
                Some(heard) if heard.last == Generation::NEVER => None,
                Some(heard) => {
                    let by_listed = judge.canary.has(Bug::PayloadByListed);
                    let key = if by_listed { *listed } else { heard.last };
                    let sealed = judge.vouched(*id, heard.sealed);
                    Some(PayloadCandidate::told(*id, key, heard.payload.clone(), sealed))
                }
                None if judge.canary.has(Bug::RemovedDoesNotCount) => None,
                None => Some(PayloadCandidate::removed(*id, *listed)),
            });
        }
        let (payload, discarded) = payload::choose(candidates, judge.canary);
        let mut steps = vec![Step::Start { payload }];
        let discard = |carried: PayloadCandidate| {
            carried.payload.map(|payload| Step::Discard { from: carried.from, payload })
        };
        steps.extend(discarded.into_iter().filter_map(discard));
        steps
    }

    /// Release rule (docs/protocol/sharding.md#release-drains): a newer `Release` raises `max_gen`,
    /// so that no late `Host` restarts the shard, and drains what runs. A late one stops nothing.
    pub(super) fn release(
        &mut self,
        from: ReplicaId,
        word: ReleaseShard,
        judge: Judge<'_>,
    ) -> Vec<Step> {
        let ReleaseShard { generation, to, listed, .. } = word;
        let canary = judge.canary;
        let idle = self.run == Run::Idle;
        if canary.has(Bug::LateReleaseStops) && generation < self.max_gen {
            return self.drain(judge);
        }
        let ignored = canary.has(Bug::IdleIgnoresRelease) && idle && self.last < generation;
        if ignored || to == Some(judge.me) {
            return Vec::new();
        }
        let lowers = canary.has(Bug::ReleaseLowers) && generation < self.max_gen;
        if generation > self.max_gen || lowers {
            self.max_gen = generation;
            (self.home, self.pend, self.released_by) = (to, None, Some(from));
            let in_vain = listed > self.last && listed >= self.confirmed;
            self.named = self.named.max(in_vain.then_some(listed));
            // Evidence of superseded decisions. A region that keeps a payload sends it again to the
            // next home.
            self.heard.retain(|_, heard| heard.reached > generation);
            return match self.run {
                Run::Idle => self.say_released(judge),
                Run::Hosting(_) => self.drain(judge),
                Run::Draining(_) => Vec::new(),
            };
        }
        let repeat = generation == self.max_gen && idle && self.pend.is_none();
        if repeat && !canary.has(Bug::RepeatUnanswered) {
            self.released_by = Some(from);
            return self.say_released(judge);
        }
        Vec::new()
    }

    fn drain(&mut self, judge: Judge<'_>) -> Vec<Step> {
        let Run::Hosting(at) = self.run else { return Vec::new() };
        self.run = Run::Draining(at);
        let mut steps = vec![Step::Drain];
        if judge.canary.has(Bug::ReleasedBeforeDrained) {
            steps.extend(self.say_released(judge));
        }
        steps
    }

    /// Reports that this region hosts nothing below `max_gen`: to the home of the decision or,
    /// without a home, to the coordinator that asked.
    pub(super) fn say_released(&mut self, judge: Judge<'_>) -> Vec<Step> {
        let reached = self.max_gen;
        if judge.canary.has(Bug::ReleaseDoesNotRaise) {
            self.max_gen = self.last;
        }
        match (self.home, self.released_by) {
            (Some(to), _) if to == judge.me => Vec::new(),
            (Some(to), _) => {
                let Judge { shard, installed, .. } = judge;
                let cluster = installed.epoch.generation;
                let (last, payload, sealed) = (self.last, self.kept.clone(), self.sealed);
                let word = Released { shard, reached, last, payload, sealed, cluster };
                vec![Step::Release { to, word }]
            }
            (None, Some(to)) => vec![Step::Drained { to, reached }],
            (None, None) => Vec::new(),
        }
    }

    /// The last entity has ended (docs/protocol/sharding.md#release-after-last-stop). The region
    /// answers only now, because the next home starts as soon as the release arrives.
    pub(super) fn drained(&mut self, payload: Option<Bytes>, judge: Judge<'_>) -> Vec<Step> {
        if !matches!(self.run, Run::Draining(_)) {
            return Vec::new();
        }
        self.run = Run::Idle;
        (self.kept, self.sealed) = (payload, self.max_gen);
        if self.pend.is_some() { self.judge(judge) } else { self.say_released(judge) }
    }

    /// Handles a `Released` of another region.
    pub(super) fn released(
        &mut self,
        from: RegionId,
        word: Released,
        judge: Judge<'_>,
    ) -> Vec<Step> {
        let Released { reached, last, payload, sealed, .. } = word;
        if judge.canary.has(Bug::PayloadTakenAgain)
            && let (Run::Hosting(_), Some(payload)) = (self.run, &payload)
        {
            return vec![Step::Start { payload: Some(payload.clone()) }];
        }
        match self.news(from, reached) {
            News::Taken => vec![Step::Confirmed { to: from, at: self.last }],
            News::Nothing => Vec::new(),
            News::Counts => {
                self.heard.insert(from, Heard { reached, last, payload, sealed });
                self.judge(judge)
            }
        }
    }

    /// Judges a `Released` from `from` with this `reached`.
    pub(super) fn news(&self, from: RegionId, reached: Generation) -> News {
        // This also holds after the shard has left: the first confirmation may be lost, and no
        // other region would repeat it.
        if self.pend.is_none() && self.last > Generation::NEVER && reached <= self.last {
            return News::Taken;
        }
        let known = self.heard.get(&from).map_or(Generation::NEVER, |heard| heard.reached);
        if (self.pend.is_none() && reached <= self.max_gen) || reached < known {
            return News::Nothing;
        }
        News::Counts
    }

    /// The payload of that region's tenure, if it is here already.
    pub(super) fn brought(&self, from: RegionId, last: Generation) -> Option<&Bytes> {
        self.heard.get(&from).filter(|heard| heard.last == last)?.payload.as_ref()
    }

    /// Handles `Hosted`: some region hosts at `at`. A payload of an earlier tenure was taken or is
    /// useless, so it is dropped, and a decision below `at` that named this region needs no further
    /// answer.
    pub(super) fn confirmed(&mut self, at: Generation, canary: Canary) {
        let over = at > self.last || (canary.has(Bug::KeptDroppedOnEqual) && at == self.last);
        if over && self.run == Run::Idle {
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

    /// Takes the kept payload because no region will fetch it any longer. It is [`Reach::Unsent`]
    /// if the decision that ended the tenure is still the newest and names no home, because a
    /// payload is sent to homes only.
    pub(super) fn forsake(&mut self) -> Option<(Reach, Bytes)> {
        let unsent = self.home.is_none() && self.max_gen == self.sealed;
        let reach = if unsent { Reach::Unsent } else { Reach::Sent };
        self.kept.take().map(|payload| (reach, payload))
    }

    /// The region is out. The caller has stopped all entities; nothing starts again.
    pub(super) fn over(&mut self) {
        *self = Self { max_gen: self.max_gen, home: self.home, last: self.last, ..Self::default() };
    }
}
