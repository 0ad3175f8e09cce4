//! One shard at one region: rules R1 to R5 of spec/sharding.md §5, as a struct that is told facts
//! and returns steps. Knows no clock, no coordinator's state, no other shard.

use std::collections::BTreeMap;

use bytes::Bytes;
use ostraca_ddata::id::ReplicaId;

use super::payload::{self, Carried};
use super::port::Reach;
use crate::sharding::bug::{Bug, Canary};
pub use crate::sharding::gate::Run;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::wire::{HostShard, ReleaseShard, Released};

/// A decision that names this region and waits for earlier hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// Who may still host, up to which generation.
    pub after: BTreeMap<RegionId, Generation>, // ≤ regions
    /// The coordinator that told of it.
    pub asked_by: ReplicaId,
}

/// What another region has said of its release.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Heard {
    /// It hosts nothing below.
    pub reached: Generation,
    /// The highest generation at which it hosted.
    pub last: Generation,
    /// What it carries.
    pub payload: Option<Bytes>,
    /// The highest generation that it had heard of when that stay ended.
    pub sealed: Generation,
}

/// What a release says that another region has just sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It was taken long ago: the sender is to be told.
    Taken,
    /// It is of a decision that is no more, or late; it is said again when it is needed.
    Nothing,
    /// It counts.
    Counts,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Start it, with what was carried here.
    Start { payload: Option<Bytes> },
    /// Go on with what runs, under the new generation.
    Adopt,
    /// Stop what runs, and say so when it has stopped.
    Drain,
    /// Say to the decision's home that nothing runs here.
    Release { to: RegionId, word: Released },
    /// Say to a coordinator that nothing runs here; there is no home.
    Drained { to: ReplicaId, reached: Generation },
    /// Confirm to the coordinator.
    Confirm { to: ReplicaId },
    /// Tell a region to drop what it keeps: the shard has lived here at `at`.
    Confirmed { to: RegionId, at: Generation },
    /// Messages that were carried and can't be taken: they may have been handled elsewhere.
    Discard { from: RegionId, payload: Bytes },
}

/// One shard at this region. Made at the first word about it and kept for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shard {
    max_gen: Generation,
    home: Option<RegionId>, // of the decision `max_gen`
    run: Run,
    pend: Option<Pending>,
    last: Generation,
    kept: Option<Bytes>,
    sealed: Generation, // `max_gen` when the last stay ended: it had released to nobody before
    heard: BTreeMap<RegionId, Heard>, // ≤ regions
    /// The latest decision that named this region, if it never lived here by that: if this region
    /// went before its release is heard, it would count as one that may have hosted.
    named: Option<Generation>,
    confirmed: Generation, // somebody else has hosted at it, after the last stay here
    /// Who told of the decision that drains it: told when there is no home.
    released_by: Option<ReplicaId>,
}

/// What judges a fact beside the shard itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge<'a> {
    pub(super) me: RegionId,
    pub(super) shard: ShardId,
    pub(super) installed: &'a Installed,
    pub(super) canary: Canary,
}

impl Judge<'_> {
    /// Up to where a region's word shows that nobody else has hosted since its last stay: as long
    /// as it had not sealed that, nobody could take it for over.
    ///
    /// One that is out vouches for nothing: others may have taken it for over before it said
    /// anything. Nor does what was sealed by a decision of before a recovery by force: later ones
    /// may be lost, and with them who was named.
    fn vouched(&self, region: RegionId, sealed: Generation) -> Option<Generation> {
        let Judge { me, installed, canary, .. } = self;
        let is_in = region == *me || installed.members.contains(&region);
        let forced = installed.forced.as_ref();
        let stands = forced.is_none_or(|forced| sealed.term.number > forced.terms_above());
        (stands && (is_in || canary.has(Bug::RemovedVouches))).then_some(sealed)
    }
}

impl Shard {
    /// The highest generation heard of; nothing below it counts.
    #[must_use]
    pub const fn max_gen(&self) -> Generation {
        self.max_gen
    }

    /// The home of the decision `max_gen`.
    #[must_use]
    pub const fn home(&self) -> Option<RegionId> {
        self.home
    }

    /// Whether it lives here.
    #[must_use]
    pub const fn run(&self) -> Run {
        self.run
    }

    /// What waits for earlier hosts.
    #[must_use]
    pub const fn pending(&self) -> Option<&Pending> {
        self.pend.as_ref()
    }

    /// The highest generation at which it ever lived here.
    #[must_use]
    pub const fn last(&self) -> Generation {
        self.last
    }

    /// What is kept for the next home.
    #[must_use]
    pub const fn kept(&self) -> Option<&Bytes> {
        self.kept.as_ref()
    }

    /// Whether whoever hosts it next is to hear from this region that it was named in vain, and
    /// nobody has confirmed that.
    #[must_use]
    pub fn owes_word(&self) -> bool {
        self.run == Run::Idle && self.pend.is_none() && self.named.is_some()
    }

    /// Who is waited for.
    #[must_use]
    pub fn awaited(&self, installed: &Installed) -> Vec<RegionId> {
        let after = self.pend.iter().flat_map(|pend| &pend.after);
        let open =
            after.filter(|(id, last)| !self.is_over(**id, **last, installed, Canary::none()));
        open.map(|(id, _)| *id).collect()
    }

    /// R1. The caller has checked the epoch.
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

    /// R2.
    fn is_over(
        &self,
        listed: RegionId,
        last: Generation,
        installed: &Installed,
        canary: Canary,
    ) -> bool {
        // The epoch was compared when the Host came, and only rises.
        let out = !installed.members.contains(&listed);
        let heard = self.heard.get(&listed);
        let released =
            heard.is_some_and(|heard| heard.reached > last || canary.has(Bug::AnyReleased));
        out || released || matches!(self.run, Run::Hosting(h) if h > last)
    }

    /// R3: the only way to host.
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

    /// Takes one payload.
    fn start(
        &mut self,
        pend: &Pending,
        heard: &BTreeMap<RegionId, Heard>,
        judge: Judge<'_>,
    ) -> Vec<Step> {
        let mut candidates: Vec<Carried> = Vec::new();
        let sealed = judge.vouched(judge.me, self.sealed);
        let own = Carried::told(judge.me, self.last, self.kept.take(), sealed);
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
                    Some(Carried::told(*id, key, heard.payload.clone(), sealed))
                }
                None if judge.canary.has(Bug::RemovedDoesNotCount) => None,
                None => Some(Carried::removed(*id, *listed)),
            });
        }
        let (payload, discarded) = payload::choose(candidates, judge.canary);
        let mut steps = vec![Step::Start { payload }];
        let discard = |carried: Carried| {
            carried.payload.map(|payload| Step::Discard { from: carried.from, payload })
        };
        steps.extend(discarded.into_iter().filter_map(discard));
        steps
    }

    /// R4.
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
            // Of decisions that are no more: who keeps a payload says it again to the next home.
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

    /// "I host nothing below `max_gen`": to its home or, without one, to who asked.
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

    /// R5: the last entity has ended.
    pub(super) fn drained(&mut self, payload: Option<Bytes>, judge: Judge<'_>) -> Vec<Step> {
        if !matches!(self.run, Run::Draining(_)) {
            return Vec::new();
        }
        self.run = Run::Idle;
        (self.kept, self.sealed) = (payload, self.max_gen);
        if self.pend.is_some() { self.judge(judge) } else { self.say_released(judge) }
    }

    /// Another region has released the shard to this one.
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

    /// What it means that a region has released everything below `reached`.
    pub(super) fn news(&self, from: RegionId, reached: Generation) -> News {
        // Also once it lives here no more: the confirmation may be lost, and nobody else gives it.
        if self.pend.is_none() && self.last > Generation::NEVER && reached <= self.last {
            return News::Taken;
        }
        let known = self.heard.get(&from).map_or(Generation::NEVER, |heard| heard.reached);
        if (self.pend.is_none() && reached <= self.max_gen) || reached < known {
            return News::Nothing;
        }
        News::Counts
    }

    /// The payload of a region's stay, if it is here already.
    pub(super) fn brought(&self, from: RegionId, last: Generation) -> Option<&Bytes> {
        self.heard.get(&from).filter(|heard| heard.last == last)?.payload.as_ref()
    }

    /// Somebody hosts it at `at`: what is kept of an earlier stay was taken, or is of no use, and who
    /// was named before that is waited for no more.
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

    /// Bytes of payloads that have come from others and wait here.
    pub(super) fn heard_bytes(&self) -> u64 {
        let payloads = self.heard.values().filter_map(|heard| heard.payload.as_ref());
        payloads.map(|payload| payload.len() as u64).sum()
    }

    /// Nobody will take what is kept here any more. It was sent nowhere if the decision that ended
    /// the stay is still the newest and names no home: only a home is sent the payload.
    pub(super) fn forsake(&mut self) -> Option<(Reach, Bytes)> {
        let unsent = self.home.is_none() && self.max_gen == self.sealed;
        let reach = if unsent { Reach::Unsent } else { Reach::Sent };
        self.kept.take().map(|payload| (reach, payload))
    }

    /// This region is out: whatever ran was stopped, and nothing starts.
    pub(super) fn over(&mut self) {
        *self = Self { max_gen: self.max_gen, home: self.home, last: self.last, ..Self::default() };
    }
}
