//! Removed nodes whose entities may still be running.
//!
//! With leases, the entities of a removed node have stopped by the time the configuration without
//! it is installed. Two cases need a wait: a configuration that no quorum of its predecessor
//! consented to, that is, a forced one or one of another cluster generation, and disabled leases,
//! where only `down-removal-margin` applies (docs/protocol/leases.md#removal-margin).

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::Epoch;

/// Knowledge about a node that is not in the next configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It announced that nothing runs on it any longer (Exiting).
    Stopped,
    /// Nothing is known: its entities may run on for a while.
    Unheard,
}

/// Nodes that were removed from the installed configuration and may still run something.
///
/// A singleton or shard must not start elsewhere while one of these nodes is pending, so its
/// starter treats them as members. A node is *pending* from its removal for the time that
/// [`installed`](Self::installed) chooses; nothing else ends that time.
#[derive(Clone, Debug)]
pub struct DepartedMembers {
    removal_margin: Duration,
    over_at: BTreeMap<ReplicaId, Instant>, // ≤ members removed within the longest wait
}

impl DepartedMembers {
    /// No pending nodes. `removal_margin` (`down-removal-margin`) is used only if leases are
    /// disabled.
    #[must_use]
    pub const fn new(removal_margin: Duration) -> Self {
        Self { removal_margin, over_at: BTreeMap::new() }
    }

    /// Records that configuration `next` was installed after `previous`. Each member that `next`
    /// leaves out and that `how` reports as [`Unheard`](Departure::Unheard) becomes pending: for
    /// the removal margin if leases are disabled in `previous`; otherwise for the duration of its
    /// promises if no quorum of `previous` consented to `next` (another generation, or another
    /// forced start).
    ///
    /// Nothing becomes pending in the usual case, leases and a consented configuration. A node that
    /// is pending already and left out again gets the new time in place of the old one; one that
    /// `next` contains stays pending. Also forgets entries whose time has passed.
    pub fn installed(
        &mut self,
        now: Now,
        previous: &Epoch,
        next: &Epoch,
        how: impl Fn(ReplicaId) -> Departure,
    ) {
        self.over_at.retain(|_, at| now.mono < *at);
        let is_same = previous.id().generation == next.id().generation;
        let consented = is_same && !next.is_forced_after(previous);
        let wait = match (previous.lease().enabled, consented) {
            (true, true) => return,
            (true, false) => previous.lease().duration,
            (false, _) => self.removal_margin,
        };
        let unheard = |id: &ReplicaId| how(*id) == Departure::Unheard;
        let removed = previous.removed_by(next).into_iter().filter(unheard);
        self.over_at.extend(removed.map(|id| (id, now.mono + wait)));
    }

    /// The nodes that may still run something, in the order of their ids. Correct without a call of
    /// [`installed`](Self::installed) in between: an entry ends exactly at its time.
    pub fn pending(&self, now: Now) -> impl Iterator<Item = ReplicaId> + '_ {
        self.over_at.iter().filter(move |(_, at)| now.mono < **at).map(|(id, _)| *id)
    }

    /// Earliest time at which a pending node stops being pending; `None` if none is pending.
    #[must_use]
    pub fn next_deadline(&self, now: Now) -> Option<Instant> {
        self.over_at.values().copied().filter(|at| now.mono < *at).min()
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::clock::WallTime;
    use ostraca_ddata::replicator::epoch::{
        EpochId, EpochSettings, LeaseSettings, MembershipChange,
    };

    use super::*;

    const MARGIN: Duration = Duration::from_secs(20);

    fn at(seconds: u64) -> Now {
        Now { mono: Instant::from_nanos(seconds * 1_000_000_000), wall: WallTime::default() }
    }

    fn founded(enabled: bool) -> Epoch {
        let lease = LeaseSettings { enabled, ..LeaseSettings::default() };
        let members = (1..=3).map(ReplicaId::new).collect();
        let settings = EpochSettings { lease, ..EpochSettings::default() };
        Epoch::founding(EpochId { generation: 1, number: 1 }, members, settings).expect("three")
    }

    fn without_one(epoch: &Epoch) -> Epoch {
        let change =
            MembershipChange { lost: vec![ReplicaId::new(1)], ..MembershipChange::default() };
        epoch.next(&change).expect("two are left")
    }

    fn pending_after(
        previous: &Epoch,
        next: &Epoch,
        seconds: u64,
        how: Departure,
    ) -> Vec<ReplicaId> {
        let mut departed_members = DepartedMembers::new(MARGIN);
        departed_members.installed(at(100), previous, next, |_| how);
        departed_members.pending(at(100 + seconds)).collect()
    }

    #[test]
    fn with_leases_removed_node_has_stopped_at_install() {
        let epoch = founded(true);
        let next = without_one(&epoch);
        assert_eq!(pending_after(&epoch, &next, 0, Departure::Unheard), []);
    }

    #[test]
    fn without_leases_removed_node_stops_after_the_margin() {
        let epoch = founded(false);
        let next = without_one(&epoch);
        assert_eq!(pending_after(&epoch, &next, 19, Departure::Unheard), [ReplicaId::new(1)]);
        assert_eq!(pending_after(&epoch, &next, 20, Departure::Unheard), []);
        assert_eq!(pending_after(&epoch, &next, 0, Departure::Stopped), []);
    }

    #[test]
    fn forced_installation_waits_for_one_lease() {
        let epoch = founded(true);
        let settings = EpochSettings::default();
        let id = EpochId { generation: 2, number: 1 };
        let survivor = vec![ReplicaId::new(2)];
        let forced = Epoch::founding(id, survivor, settings).expect("one");
        let both = [1, 3].map(ReplicaId::new);
        assert_eq!(pending_after(&epoch, &forced, 4, Departure::Unheard), both);
        assert_eq!(pending_after(&epoch, &forced, 5, Departure::Unheard), []);
    }

    /// Two operators forced one configuration each, with equal generations.
    #[test]
    fn second_forced_installation_of_a_generation_waits_too() {
        let epoch = founded(true);
        let id = ReplicaId::new;
        let forced = |by, kept: u64| epoch.forced(id(by), &[id(kept)].into(), 7).expect("a member");
        let mut both = [forced(1, 2), forced(3, 2)];
        both.sort_by_key(Epoch::id);
        let [lower, higher] = both;
        assert_eq!(lower.id().generation, higher.id().generation);
        assert_eq!(
            pending_after(&lower, &higher, 4, Departure::Unheard),
            lower.removed_by(&higher)
        );
        let change = MembershipChange { leave: vec![id(2)], ..MembershipChange::default() };
        let next = higher.next(&change).expect("one is left");
        assert_eq!(pending_after(&higher, &next, 0, Departure::Unheard), [], "by its quorum");
    }

    #[test]
    fn expired_entries_are_forgotten() {
        let (epoch, mut departed_members) = (founded(false), DepartedMembers::new(MARGIN));
        let next = without_one(&epoch);
        departed_members.installed(at(0), &epoch, &next, |_| Departure::Unheard);
        assert_eq!(departed_members.next_deadline(at(1)), Some(at(20).mono));
        departed_members.installed(at(30), &next, &next, |_| Departure::Unheard);
        assert!(departed_members.over_at.is_empty());
    }
}
