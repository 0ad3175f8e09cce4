//! Unit tests of the grantor; each covers one rule of docs/protocol/leases.md.

use ostraca_ddata::clock::WallTime;
use ostraca_ddata::replicator::epoch::{EpochSettings, LEASE_MAX, MembershipChange};

use super::*;

const ME: ReplicaId = ReplicaId::new(1);
const P: ReplicaId = ReplicaId::new(2);
const T_Q: u64 = 5_000;

fn ms(millis: u64) -> Now {
    Now { mono: Instant::from_nanos(millis * 1_000_000), wall: WallTime::default() }
}

fn founded(lease: LeaseSettings) -> Arc<Epoch> {
    let settings = EpochSettings { lease, ..EpochSettings::default() };
    let members = (1..=3).map(ReplicaId::new).collect();
    let id = EpochId { generation: 1, number: 1 };
    Arc::new(Epoch::founding(id, members, settings).expect("well formed"))
}

fn after(epoch: &Epoch, join: &[u64], leave: &[u64]) -> Arc<Epoch> {
    let ids = |ids: &[u64]| ids.iter().copied().map(ReplicaId::new).collect();
    let change =
        MembershipChange { join: ids(join), leave: ids(leave), ..MembershipChange::default() };
    Arc::new(epoch.next(&change).expect("a member is left"))
}

/// A grantor that started and installed its configuration at 0 ms. The tests begin at 100,000 ms,
/// when all waits have passed.
struct Probe {
    grantor: Grantor,
    epoch: Arc<Epoch>,
}

impl Probe {
    fn new() -> Self {
        Self::with(LeaseSettings::default())
    }

    fn with(lease: LeaseSettings) -> Self {
        let epoch = founded(lease);
        let mut grantor = Grantor::new(ME, ms(0), MembershipFaultInjection::none());
        grantor.installed(ms(0), &epoch);
        Self { grantor, epoch }
    }

    /// Sends heartbeat `number` of `from` in the installed configuration; returns whether it was
    /// granted.
    fn beat(&mut self, millis: u64, from: ReplicaId, number: u64) -> bool {
        let beat = Heartbeat { epoch: self.epoch.id(), number };
        let answer = self.grantor.beat(ms(millis), from, beat, Some(self.epoch.id()));
        assert!(answer.is_none_or(|answer| answer == LeaseMessage::Granted(beat)));
        answer.is_some()
    }

    fn install(&mut self, millis: u64, epoch: Arc<Epoch>) {
        self.grantor.installed(ms(millis), &epoch);
        self.epoch = epoch;
    }

    /// Remaining time of the promise to `id` in milliseconds, as answered to the configuration
    /// machine.
    fn left(&mut self, millis: u64, id: ReplicaId) -> u128 {
        let left = self.grantor.consent(ms(millis), &[id]);
        left.iter().map(|(_, left)| left.as_millis()).sum()
    }
}

#[test]
fn a_promise_runs_from_the_receipt_for_t_q() {
    let mut probe = Probe::new();
    assert!(probe.beat(100_000, P, 1));
    assert_eq!(probe.left(101_000, P), 4_000);
    assert_eq!(probe.left(105_000, P), 0);
}

#[test]
fn late_heartbeat_of_a_delayed_thread_shortens_no_promise() {
    let mut probe = Probe::new();
    assert!(probe.beat(104_000, P, 2));
    assert!(probe.beat(101_000, P, 1), "its thread read the clock before, and got the lock later");
    assert_eq!(probe.left(105_000, P), 4_000);
}

#[test]
fn sealed_voter_grants_nothing_until_next_install() {
    let mut probe = Probe::new();
    let beat = Heartbeat { epoch: probe.epoch.id(), number: 1 };
    assert_eq!(probe.grantor.beat(ms(100_000), P, beat, None), None);
    assert_eq!(probe.grantor.beat(ms(100_000), ME, beat, None), None, "not to itself either");
    let next = after(&probe.epoch, &[4], &[]);
    probe.install(100_001, next);
    assert!(probe.beat(100_002, P, 2));
}

#[test]
fn a_heartbeat_of_another_configuration_grants_nothing() {
    let mut probe = Probe::new();
    let next = after(&probe.epoch, &[4], &[]);
    let (old, new) = (probe.epoch.id(), next.id());
    for (named, unsealed) in [(new, old), (old, new)] {
        let beat = Heartbeat { epoch: named, number: 1 };
        assert_eq!(probe.grantor.beat(ms(100_000), P, beat, Some(unsealed)), None);
    }
    assert_eq!(probe.grantor.stats().refused, 2);
}

#[test]
fn strangers_are_granted_nothing_and_only_voters_grant() {
    let mut probe = Probe::new();
    assert!(!probe.beat(100_000, ReplicaId::new(9), 1));
    let mut bystander = Grantor::new(ReplicaId::new(9), ms(0), MembershipFaultInjection::none());
    bystander.installed(ms(0), &probe.epoch);
    let beat = Heartbeat { epoch: probe.epoch.id(), number: 1 };
    assert_eq!(bystander.beat(ms(100_000), P, beat, Some(probe.epoch.id())), None);
}

#[test]
fn no_consent_to_carried_over_members_after_install() {
    let mut probe = Probe::new();
    let next = after(&probe.epoch, &[4], &[]);
    probe.install(100_000, next);
    assert_eq!(probe.left(100_000, P), u128::from(T_Q), "though this grantor promised it nothing");
    assert_eq!(probe.left(100_000, ReplicaId::new(4)), 0, "a new member holds no older lease");
    assert_eq!(probe.left(105_000, P), 0);
}

#[test]
fn after_skipped_configurations_all_count_as_carried_over() {
    let mut probe = Probe::new();
    let skipped = after(&probe.epoch, &[4], &[]);
    probe.install(100_000, after(&skipped, &[5], &[]));
    for id in [2, 4, 5] {
        assert_eq!(probe.left(100_000, ReplicaId::new(id)), u128::from(T_Q), "{id}");
    }
}

#[test]
fn no_consent_until_t_q_after_restart() {
    let epoch = founded(LeaseSettings::default());
    let mut probe =
        Probe { grantor: Grantor::new(ME, ms(100_000), MembershipFaultInjection::none()), epoch };
    let epoch = probe.epoch.clone();
    probe.install(100_000, epoch);
    let next = after(&probe.epoch, &[4], &[]);
    probe.install(100_000, next);
    assert_eq!(probe.left(102_000, ReplicaId::new(4)), 3_000, "new members wait, too");
    assert_eq!(probe.left(105_000, ReplicaId::new(4)), 0);
}

#[test]
fn named_member_is_granted_nothing_for_twice_t_q() {
    let mut probe = Probe::new();
    assert!(probe.beat(100_000, P, 1));
    let left = probe.grantor.consent(ms(101_000), &[P]);
    assert_eq!(left, [(P, Duration::from_millis(4_000))]);
    assert!(!probe.beat(101_001, P, 2));
    // The proposer has waited and asks again; with T_q a heartbeat could have been granted in
    // between.
    assert!(!probe.beat(106_001, P, 7));
    assert_eq!(probe.left(106_100, P), 0);
    assert!(!probe.beat(116_099, P, 16), "each question restarts the 2·T_q");
    assert!(probe.beat(116_100, P, 17), "unused for 2·T_q");
}

#[test]
fn longest_lease_does_not_overflow() {
    let lease = LeaseSettings { duration: LEASE_MAX, ..LeaseSettings::default() };
    let mut probe = Probe::with(lease);
    assert!(probe.left(100_000, P) > 0);
    assert!(!probe.beat(100_001, P, 1), "it was named for removal");
}

#[test]
fn next_configuration_ends_the_refusal_of_named_members() {
    let mut probe = Probe::new();
    probe.grantor.consent(ms(100_000), &[P]);
    assert!(!probe.beat(100_001, P, 1));
    let next = after(&probe.epoch, &[4], &[]);
    probe.install(100_002, next);
    assert!(probe.beat(100_003, P, 2));
}

#[test]
fn promise_to_itself_binds_the_grantor() {
    let mut probe = Probe::new();
    assert!(probe.beat(100_000, ME, 1));
    assert_eq!(probe.left(102_000, ME), 3_000);
}

#[test]
fn down_member_is_granted_nothing_and_its_promise_expires() {
    let mut probe = Probe::new();
    assert!(probe.beat(100_000, P, 1));
    probe.grantor.down(P);
    assert!(!probe.beat(101_000, P, 2));
    assert_eq!(probe.left(101_000, P), 4_000);
}

#[test]
fn not_down_restores_grants_unless_released_or_dead() {
    let mut probe = Probe::new();
    probe.grantor.down(P);
    probe.grantor.not_down(P);
    assert!(probe.beat(100_000, P, 1));
    probe.grantor.release(P, 1);
    probe.grantor.not_down(P);
    assert!(!probe.beat(101_000, P, 1));
    probe.grantor.proven_dead(P);
    probe.grantor.not_down(P);
    assert!(!probe.beat(102_000, P, 1));
    assert_eq!(probe.left(106_000, P), 0);
}

#[test]
fn release_ends_the_promise_and_refuses_heartbeats() {
    let mut probe = Probe::new();
    let next = after(&probe.epoch, &[], &[3]);
    probe.install(100_000, next);
    assert!(probe.beat(100_001, P, 7));
    assert!(probe.grantor.release(P, 7));
    assert!(!probe.grantor.release(P, 7), "a repeated release is not news");
    assert_eq!(probe.left(100_002, P), 0, "despite the recent install");
    assert!(!probe.beat(100_003, P, 6) && !probe.beat(100_003, P, 7));
    assert_eq!(probe.grantor.stats().nonsense, 0);
    assert!(!probe.beat(100_004, P, 8), "a release is final");
    assert_eq!(probe.grantor.stats().nonsense, 1);
}

#[test]
fn proof_of_death_ends_the_promise_if_configured() {
    for (restart_is_proof, left) in [(true, 0), (false, u128::from(T_Q))] {
        let mut probe = Probe::with(LeaseSettings { restart_is_proof, ..LeaseSettings::default() });
        assert!(probe.beat(100_000, P, 1));
        assert_eq!(probe.grantor.proven_dead(P), restart_is_proof);
        assert!(!probe.grantor.proven_dead(P), "a repeated proof is not news");
        assert_eq!(probe.left(100_000, P), left);
        let mut probe = Probe::with(LeaseSettings { restart_is_proof, ..LeaseSettings::default() });
        probe.grantor.proven_dead(P);
        assert_eq!(probe.beat(100_000, P, 1), !restart_is_proof, "a heartbeat still in transit");
    }
}

#[test]
fn without_leases_nothing_is_granted_and_nothing_is_refused() {
    let mut probe = Probe::with(LeaseSettings { enabled: false, ..LeaseSettings::default() });
    assert!(!probe.beat(1, P, 1));
    assert_eq!(probe.left(1, P), 0);
}

#[test]
fn longer_t_q_of_previous_configuration_is_waited_for() {
    let long = Duration::from_secs(9);
    let mut probe = Probe::with(LeaseSettings { duration: long, ..LeaseSettings::default() });
    let short = founded(LeaseSettings::default());
    let next = Epoch::founding(
        probe.epoch.id().next(),
        short.members().to_vec(),
        EpochSettings::default(),
    );
    probe.install(100_000, Arc::new(next.expect("well formed")));
    assert_eq!(probe.left(100_000, P), 9_000);
}

#[test]
fn install_drops_state_of_departed_members() {
    let mut probe = Probe::new();
    assert!(probe.beat(100_000, P, 1));
    probe.grantor.down(P);
    let next = after(&probe.epoch, &[], &[2]);
    probe.install(100_001, next);
    probe.grantor.release(P, 9);
    probe.grantor.consent(ms(100_002), &[P]);
    let Grantor { promises, named, grant_refusals, .. } = &probe.grantor;
    assert!(promises.is_empty() && named.is_empty() && grant_refusals.is_empty());
}
