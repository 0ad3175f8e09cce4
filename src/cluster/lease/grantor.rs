//! The grantor's side of the hosting lease: promises to holders, and how long they still run when
//! the configuration machine asks for consent to a removal (docs/protocol/leases.md#the-grantor).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, LeaseSettings, Remaining};

use super::{Heartbeat, LeaseMessage};
use crate::cluster::fault_injection::{MembershipFault, MembershipFaultInjection};

/// Reason why a member is granted nothing as long as it is a member. A later reason replaces
/// `Down`; `Dead` replaces `Released`, but nothing replaces `Dead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantRefusal {
    /// It announced that it no longer serves; its last heartbeat had this number, which is used
    /// only to count nonsense. No promise to it runs.
    Released(u64),
    /// Its process is proven dead. No promise to it runs.
    Dead,
    /// Gossip marks it Down. Its running promise must still expire. The only reason that can be
    /// withdrawn ([`Grantor::not_down`]).
    Down,
}

/// Counters of a grantor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantorStats {
    /// Number of granted heartbeats.
    pub granted: u64,
    /// Heartbeats that were not granted, for any reason, the nonsense ones and those before the
    /// first configuration included.
    pub refused: u64,
    /// Refused heartbeats of the installed configuration with a number above that of their sender's
    /// release. A correct peer sends none.
    pub nonsense: u64,
    /// Questions of the configuration machine about removals, also before the first configuration.
    pub questions: u64,
}

/// The promises of this voter. They are kept in memory only: see [`Grantor::new`].
///
/// It is not a [`Machine`](ostraca_ddata::machine::Machine): it answers within the call and has no
/// deadline of its own. The owner of the Replicator calls it.
///
/// It ignores messages about incarnations that are not members of the installed configuration, and
/// every message before the first configuration. An install drops the state of nodes that are no
/// longer members.
#[derive(Clone, Debug)]
pub struct Grantor {
    me: ReplicaId,
    fault_injection: MembershipFaultInjection,
    booted: Instant,
    epoch: Option<Arc<Epoch>>,
    installed_at: Instant,
    /// T_q of this configuration or of the previous one, whichever is longer.
    wait: Duration,
    /// Members to which voters of the configuration before may have made promises that are unknown
    /// here. They are not consented to for `wait` after the install.
    carried: BTreeSet<ReplicaId>, // ≤ members
    promises: BTreeMap<ReplicaId, Instant>, // end on the own clock; ≤ members
    named: BTreeMap<ReplicaId, Instant>,    // for removal: no grants until then; ≤ members
    grant_refusals: BTreeMap<ReplicaId, GrantRefusal>, // ≤ members
    stats: GrantorStats,
}

impl Grantor {
    /// The grantor of incarnation `me`, started at `now`. Wait after start
    /// (docs/protocol/leases.md#wait-after-start): promises are not stored, so it consents to no
    /// removal until T_q has passed. T_q is then that of the installed or of the previous
    /// configuration, whichever is longer; zero if both have leases disabled.
    #[must_use]
    pub fn new(me: ReplicaId, now: Now, fault_injection: MembershipFaultInjection) -> Self {
        Self {
            me,
            fault_injection,
            booted: now.mono,
            epoch: None,
            installed_at: now.mono,
            wait: Duration::ZERO,
            carried: BTreeSet::new(),
            promises: BTreeMap::new(),
            named: BTreeMap::new(),
            grant_refusals: BTreeMap::new(),
            stats: GrantorStats::default(),
        }
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> &GrantorStats {
        &self.stats
    }

    /// The Replicator installed this configuration in the current step. Starts the wait after an
    /// install anew, with the members carried over from the configuration before (all members if
    /// this one does not directly follow the one known here, or is the first). Members that were
    /// named for removal may be granted leases again. Promises to members that stay go on, and so
    /// do releases, proofs of death and Down marks. A repeated install counts like any other that
    /// does not directly follow.
    pub fn installed(&mut self, now: Now, epoch: &Arc<Epoch>) {
        let before = self.epoch.replace(epoch.clone());
        // New members are known only if this configuration directly follows the previous one.
        // Otherwise every member counts as carried over
        // (docs/protocol/leases.md#wait-after-install).
        let known = before.as_ref().filter(|before| before.id().next() == epoch.id());
        let is_carried = |id: &ReplicaId| known.is_none_or(|before| before.is_member(*id));
        self.carried = epoch.members().iter().copied().filter(is_carried).collect();
        if before.is_none() && self.fault_injection.has(MembershipFault::ConsentAfterRestart) {
            self.carried.clear();
        }
        self.wait = before.as_ref().map_or(Duration::ZERO, |before| promise_time(before.lease()));
        self.wait = self.wait.max(promise_time(epoch.lease()));
        self.installed_at = now.mono;
        self.named.clear(); // a configuration that contains them is installed, or they are out
        let stays = |id: &ReplicaId| epoch.is_member(*id);
        self.promises.retain(|id, _| stays(id));
        self.grant_refusals.retain(|id, _| stays(id));
    }

    /// Handles a heartbeat. `unsealed`: the epoch of which the Replicator is, at this moment, a
    /// member and not sealed. The caller sends the returned grant to `from`. A granted heartbeat
    /// renews the promise to `from`: it runs for T_q from `now`, and never ends earlier than before.
    /// Callers read the clock before they have the lock, so `now` may be earlier than at a call
    /// before; a promise that became shorter would end before a lease that it has granted.
    ///
    /// `None`, and nothing but counters changes, if the heartbeat is of another configuration, this
    /// node is no voter or `from` no member of it, leases are disabled, `from` is released, dead or
    /// Down, this voter has sealed, or `from` was named for removal less than 2·T_q ago.
    pub fn beat(
        &mut self,
        now: Now,
        from: ReplicaId,
        beat: Heartbeat,
        unsealed: Option<EpochId>,
    ) -> Option<LeaseMessage> {
        let Some(settings) = self.grants_to(now, from, beat, unsealed) else {
            self.stats.refused += 1;
            return None;
        };
        self.stats.granted += 1;
        let until = now.mono + settings.duration;
        let promise = self.promises.entry(from).or_insert(until);
        *promise = until.max(*promise);
        Some(LeaseMessage::Granted(beat))
    }

    /// The lease settings if the heartbeat is granted; `None` as for [`beat`](Self::beat). Counts a
    /// heartbeat beyond its sender's release as nonsense.
    fn grants_to(
        &mut self,
        now: Now,
        from: ReplicaId,
        beat: Heartbeat,
        unsealed: Option<EpochId>,
    ) -> Option<LeaseSettings> {
        let epoch = self.epoch.as_ref()?;
        let same = beat.epoch == epoch.id()
            || self.fault_injection.has(MembershipFault::LeaseOverTwoEpochs);
        let fits = same && epoch.is_voter(self.me) && epoch.is_member(from);
        if !fits || !epoch.lease().enabled {
            return None;
        }
        if let Some(grant_refusals) = self.grant_refusals.get(&from) {
            let again =
                matches!(grant_refusals, GrantRefusal::Released(last) if beat.number > *last);
            self.stats.nonsense += u64::from(again);
            return None;
        }
        let named = self.named.get(&from).is_some_and(|until| now.mono < *until);
        let sealed = unsealed != Some(epoch.id());
        let refused = match (sealed, named) {
            (true, true) => !self.fault_injection.has(MembershipFault::AckAfterConsent),
            (true, false) => !self.fault_injection.has(MembershipFault::SealedGrants),
            (false, named) => named,
        };
        (!refused).then(|| epoch.lease().clone())
    }

    /// `from` has stopped serving, and its last heartbeat had this number: its promise ends, and it
    /// is never granted a lease again. Returns whether this is news; earlier answers of
    /// [`consent`](Self::consent) about `from` are stale then, also if no promise ran. `false` if
    /// `from` is not a member (nothing is kept then), or was released or proven dead before. A
    /// repeated release replaces the number.
    pub fn release(&mut self, from: ReplicaId, number: u64) -> bool {
        self.is_member(from)
            && self.grant_refusals.get(&from) != Some(&GrantRefusal::Dead)
            && self.silence(from, GrantRefusal::Released(number))
    }

    /// A new incarnation holds the lock of `dead` on the same file within the same boot, so the
    /// process of `dead` has ended: its promise ends. Ignored unless `restart-is-proof` is set in
    /// the installed configuration, and before the first one. Returns whether this is news, as
    /// [`release`](Self::release) does: `false` also after a release, which it replaces.
    pub fn proven_dead(&mut self, dead: ReplicaId) -> bool {
        let is_proof = self.epoch.as_ref().is_some_and(|epoch| epoch.lease().restart_is_proof);
        is_proof && self.is_member(dead) && self.silence(dead, GrantRefusal::Dead)
    }

    /// Ends the promise to `id`, for the reason `why`, which must not be `Down`. Returns whether
    /// the member was neither released nor dead before.
    fn silence(&mut self, id: ReplicaId, why: GrantRefusal) -> bool {
        self.promises.remove(&id);
        let before = self.grant_refusals.insert(id, why);
        !matches!(before, Some(GrantRefusal::Released(_) | GrantRefusal::Dead))
    }

    /// Gossip marks `id` Down: it is granted nothing from now on, and its running promise is left
    /// to expire. Changes nothing if the member is released or dead, or is not a member of the
    /// installed configuration: a later configuration with it must be told again.
    pub fn down(&mut self, id: ReplicaId) {
        if self.is_member(id) {
            self.grant_refusals.entry(id).or_insert(GrantRefusal::Down);
        }
    }

    /// Gossip no longer marks `id` Down, because the gossip state of this node was replaced. The
    /// member is granted leases as before, unless it is released or dead.
    ///
    /// This is safe: Down only prevents new promises, and [`consent`](Self::consent) does not
    /// depend on it.
    pub fn not_down(&mut self, id: ReplicaId) {
        if self.grant_refusals.get(&id) == Some(&GrantRefusal::Down) {
            self.grant_refusals.remove(&id);
        }
    }

    /// The configuration machine asks how long the promises to these members still run. A member
    /// that is missing in the answer is consented to: no lease of it can be valid. For 2·T_q from
    /// now on these members are granted nothing, whatever the answer; a repeated question extends
    /// that, and the next install ends it
    /// (docs/protocol/leases.md#withheld-members-get-no-grant). T_q would be too short: it would
    /// end just before the proposer, which waited for the leases, asks again.
    ///
    /// The answer lists each member once, in the order of ids, if its time is not zero. Nodes that
    /// are not members are ignored, so they are consented to. Empty before the first configuration,
    /// also within the wait after start.
    pub fn consent(&mut self, now: Now, removed: &[ReplicaId]) -> Vec<Remaining> {
        self.stats.questions += 1;
        let Some(epoch) = self.epoch.clone() else { return Vec::new() };
        let members = removed.iter().copied().filter(|id| epoch.is_member(*id));
        let members: BTreeSet<_> = members.collect();
        let remaining = members.iter().map(|id| (*id, self.remaining(now, *id)));
        let remaining = remaining.filter(|(_, left)| !left.is_zero()).collect();
        let until = now.mono + epoch.lease().duration.saturating_mul(2);
        self.named.extend(members.into_iter().map(|id| (id, until)));
        remaining
    }

    /// How long the lease of this member may still be valid; zero if it is released or dead.
    /// Otherwise until the latest of three times: the end of its promise, the end of the wait after
    /// the install if it was carried over, and the end of the wait after the start of this grantor.
    fn remaining(&self, now: Now, id: ReplicaId) -> Duration {
        let own = self.fault_injection.has(MembershipFault::OwnRemovalGoesOn)
            || self.fault_injection.has(MembershipFault::StopsAtAccept);
        match self.grant_refusals.get(&id) {
            Some(GrantRefusal::Released(_) | GrantRefusal::Dead) => return Duration::ZERO,
            Some(GrantRefusal::Down) | None => {}
        }
        if (own && id == self.me) || self.fault_injection.has(MembershipFault::NoRefusal) {
            return Duration::ZERO;
        }
        let mut until = self.promises.get(&id).copied().unwrap_or_default();
        if self.carried.contains(&id)
            && !self.fault_injection.has(MembershipFault::ConsentAfterInstall)
        {
            until = until.max(self.installed_at + self.wait);
        }
        if !self.fault_injection.has(MembershipFault::ConsentAfterRestart) {
            until = until.max(self.booted + self.wait);
        }
        until - now.mono
    }

    fn is_member(&self, id: ReplicaId) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| epoch.is_member(id))
    }
}

/// Duration of a promise in this configuration; zero if leases are disabled.
const fn promise_time(settings: &LeaseSettings) -> Duration {
    if settings.enabled { settings.duration } else { Duration::ZERO }
}

#[cfg(test)]
#[path = "grantor_tests.rs"]
mod tests;
