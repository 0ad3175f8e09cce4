//! The grantor's side: promises to holders, and how long they still run when the configuration
//! machine asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, LeaseSettings, Remaining};

use super::{Beat, LeaseMessage};
use crate::cluster::bug::{Bug, Canary};

/// Why a member is granted nothing, as long as it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silenced {
    /// It serves no more, by its own word; its last heartbeat had this number.
    Released(u64),
    /// Its process is dead, and that is proven.
    Dead,
    /// It is Down. Its lease runs until it ends.
    Down,
}

/// What a grantor counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantorStats {
    /// Heartbeats acked.
    pub granted: u64,
    /// Heartbeats not acked, for whatever reason.
    pub refused: u64,
    /// Heartbeats above the number of their sender's own release; not acked, no correct peer
    /// sends them.
    pub nonsense: u64,
    /// Questions of the configuration machine.
    pub questions: u64,
}

/// This voter's promises. Not on disk: see [`Grantor::new`].
///
/// No Machine: it is asked and answers in the same step, beside the Replicator, and waits for
/// nothing.
#[derive(Clone, Debug)]
pub struct Grantor {
    me: ReplicaId,
    canary: Canary,
    booted: Instant,
    epoch: Option<Arc<Epoch>>,
    installed_at: Instant,
    /// T_q, or that of the epoch before, if longer.
    wait: Duration,
    carried: BTreeSet<ReplicaId>,            // ≤ members
    promises: BTreeMap<ReplicaId, Instant>,  // on the own clock; ≤ members
    named: BTreeMap<ReplicaId, Instant>,     // for removal: granted nothing until then; ≤ members
    silenced: BTreeMap<ReplicaId, Silenced>, // ≤ members
    stats: GrantorStats,
}

impl Grantor {
    /// The grantor of incarnation `me`, started now. It has forgotten what it promised before, if
    /// it did: it consents to nothing until T_q has passed.
    #[must_use]
    pub fn new(me: ReplicaId, now: Now, canary: Canary) -> Self {
        Self {
            me,
            canary,
            booted: now.mono,
            epoch: None,
            installed_at: now.mono,
            wait: Duration::ZERO,
            carried: BTreeSet::new(),
            promises: BTreeMap::new(),
            named: BTreeMap::new(),
            silenced: BTreeMap::new(),
            stats: GrantorStats::default(),
        }
    }

    /// What was counted so far.
    #[must_use]
    pub const fn stats(&self) -> &GrantorStats {
        &self.stats
    }

    /// The Replicator installed this configuration, in this step.
    pub fn installed(&mut self, now: Now, epoch: &Arc<Epoch>) {
        let before = self.epoch.replace(epoch.clone());
        // Only of the direct successor is it known who is new in it.
        let known = before.as_ref().filter(|before| before.id().next() == epoch.id());
        let is_carried = |id: &ReplicaId| known.is_none_or(|before| before.is_member(*id));
        self.carried = epoch.members().iter().copied().filter(is_carried).collect();
        if before.is_none() && self.canary.has(Bug::ConsentAfterRestart) {
            self.carried.clear();
        }
        self.wait = before.as_ref().map_or(Duration::ZERO, |before| promise_time(before.lease()));
        self.wait = self.wait.max(promise_time(epoch.lease()));
        self.installed_at = now.mono;
        self.named.clear(); // a configuration that contains them is installed, or they are out
        let stays = |id: &ReplicaId| epoch.is_member(*id);
        self.promises.retain(|id, _| stays(id));
        self.silenced.retain(|id, _| stays(id));
    }

    /// A heartbeat came. `unsealed`: the epoch in which the Replicator is, in this very step, a
    /// member that is not sealed. Send what is answered back to `from`.
    pub fn beat(
        &mut self,
        now: Now,
        from: ReplicaId,
        beat: Beat,
        unsealed: Option<EpochId>,
    ) -> Option<LeaseMessage> {
        let Some(settings) = self.grants_to(now, from, beat, unsealed) else {
            self.stats.refused += 1;
            return None;
        };
        self.stats.granted += 1;
        self.promises.insert(from, now.mono + settings.duration);
        Some(LeaseMessage::Granted(beat))
    }

    fn grants_to(
        &mut self,
        now: Now,
        from: ReplicaId,
        beat: Beat,
        unsealed: Option<EpochId>,
    ) -> Option<LeaseSettings> {
        let epoch = self.epoch.as_ref()?;
        let same = beat.epoch == epoch.id() || self.canary.has(Bug::LeaseOverTwoEpochs);
        let fits = same && epoch.is_voter(self.me) && epoch.is_member(from);
        if !fits || !epoch.lease().enabled {
            return None;
        }
        if let Some(silenced) = self.silenced.get(&from) {
            let again = matches!(silenced, Silenced::Released(last) if beat.number > *last);
            self.stats.nonsense += u64::from(again);
            return None;
        }
        let named = self.named.get(&from).is_some_and(|until| now.mono < *until);
        let sealed = unsealed != Some(epoch.id());
        let refused = match (sealed, named) {
            (true, true) => !self.canary.has(Bug::AckAfterConsent),
            (true, false) => !self.canary.has(Bug::SealedGrants),
            (false, named) => named,
        };
        (!refused).then(|| epoch.lease().clone())
    }

    /// `from` serves no more, and its last heartbeat had this number: its promise is void. Says
    /// whether that is news: what [`consent`](Self::consent) answered about it is stale then.
    pub fn release(&mut self, from: ReplicaId, number: u64) -> bool {
        self.is_member(from)
            && self.silenced.get(&from) != Some(&Silenced::Dead)
            && self.silence(from, Silenced::Released(number))
    }

    /// A new incarnation holds the lock of `dead` on the same file of the same boot. Void unless
    /// `restart-is-proof` is set in the configuration. Says whether that is news, as
    /// [`release`](Self::release) does.
    pub fn proven_dead(&mut self, dead: ReplicaId) -> bool {
        let is_proof = self.epoch.as_ref().is_some_and(|epoch| epoch.lease().restart_is_proof);
        is_proof && self.is_member(dead) && self.silence(dead, Silenced::Dead)
    }

    /// Voids the promise to `id`. Says whether it stood until now.
    fn silence(&mut self, id: ReplicaId, why: Silenced) -> bool {
        self.promises.remove(&id);
        let before = self.silenced.insert(id, why);
        !matches!(before, Some(Silenced::Released(_) | Silenced::Dead))
    }

    /// Gossip says that `id` is Down: it is granted nothing any more, and its promise runs out.
    pub fn down(&mut self, id: ReplicaId) {
        if self.is_member(id) {
            self.silenced.entry(id).or_insert(Silenced::Down);
        }
    }

    /// Gossip no longer says so: this node's state was another cluster's view, which it lost. It is
    /// granted as before.
    ///
    /// (Down only keeps promises from being made, and [`consent`](Self::consent) does not look at it:
    /// whatever happens with this step happens without the rule, too.)
    pub fn not_down(&mut self, id: ReplicaId) {
        if self.silenced.get(&id) == Some(&Silenced::Down) {
            self.silenced.remove(&id);
        }
    }

    /// The configuration machine asks: how long do the promises to these still run? Whoever is
    /// not listed holds none. From now on, for 2·T_q, they are granted nothing: T_q would end
    /// just before the proposer, having waited for the leases, asks again.
    pub fn consent(&mut self, now: Now, removed: &[ReplicaId]) -> Vec<Remaining> {
        self.stats.questions += 1;
        let Some(epoch) = self.epoch.clone() else { return Vec::new() };
        let members = removed.iter().copied().filter(|id| epoch.is_member(*id));
        let members: BTreeSet<_> = members.collect();
        let remaining = members.iter().map(|id| (*id, self.remaining(now, *id)));
        let remaining = remaining.filter(|(_, left)| !left.is_zero()).collect();
        let until = now.mono + 2 * epoch.lease().duration;
        self.named.extend(members.into_iter().map(|id| (id, until)));
        remaining
    }

    /// How long nobody may count on the end of this member's lease.
    fn remaining(&self, now: Now, id: ReplicaId) -> Duration {
        let own = self.canary.has(Bug::OwnRemovalGoesOn) || self.canary.has(Bug::StopsAtAccept);
        match self.silenced.get(&id) {
            Some(Silenced::Released(_) | Silenced::Dead) => return Duration::ZERO,
            Some(Silenced::Down) | None => {}
        }
        if (own && id == self.me) || self.canary.has(Bug::NoRefusal) {
            return Duration::ZERO;
        }
        let mut until = self.promises.get(&id).copied().unwrap_or_default();
        if self.carried.contains(&id) && !self.canary.has(Bug::ConsentAfterInstall) {
            until = until.max(self.installed_at + self.wait);
        }
        if !self.canary.has(Bug::ConsentAfterRestart) {
            until = until.max(self.booted + self.wait);
        }
        until - now.mono
    }

    fn is_member(&self, id: ReplicaId) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| epoch.is_member(id))
    }
}

/// How long a promise of this configuration runs.
const fn promise_time(settings: &LeaseSettings) -> Duration {
    if settings.enabled { settings.duration } else { Duration::ZERO }
}

#[cfg(test)]
#[path = "grantor_tests.rs"]
mod tests;
