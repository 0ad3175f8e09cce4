//! Unit tests of the holder; each covers one rule of docs/protocol/leases.md.

use ostraca_ddata::clock::WallTime;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings, LeaseSettings, MembershipChange};
use proptest::prelude::*;

use super::*;

const ME: u64 = 1;

fn ms(millis: u64) -> Now {
    Now { mono: Instant::from_nanos(millis * 1_000_000), wall: WallTime::default() }
}

fn founded(members: u64, enabled: bool) -> Arc<Epoch> {
    let lease = LeaseSettings { enabled, ..LeaseSettings::default() };
    let settings = EpochSettings { lease, ..EpochSettings::default() };
    let members = (1..=members).map(ReplicaId::new).collect();
    let id = EpochId { generation: 1, number: 1 };
    Arc::new(Epoch::founding(id, members, settings).expect("well formed"))
}

fn without(epoch: &Epoch, gone: u64) -> Arc<Epoch> {
    let change =
        MembershipChange { lost: vec![ReplicaId::new(gone)], ..MembershipChange::default() };
    Arc::new(epoch.next(&change).expect("a member is left"))
}

/// A holder and all outputs so far.
struct Probe {
    holder: LeaseHolder,
    out: Vec<HolderOutput>,
}

impl Probe {
    fn of(epoch: &Arc<Epoch>) -> Self {
        let holder = LeaseHolder::new(
            ReplicaId::new(ME),
            LeaseConfig::default(),
            MembershipFaultInjection::none(),
        );
        let mut probe = Self { holder, out: Vec::new() };
        probe.tell(0, HolderInput::Installed(epoch.clone()));
        probe
    }

    fn tell(&mut self, millis: u64, input: HolderInput) {
        let mut out = Outbox::new();
        self.holder.handle(ms(millis), input, &mut out);
        self.out.extend(out.drain());
    }

    /// The newest heartbeat of the holder.
    fn beat(&self) -> Heartbeat {
        let beat = |output: &HolderOutput| match output {
            HolderOutput::Send { message: LeaseMessage::Beat(beat), .. } => Some(*beat),
            _ => None,
        };
        self.out.iter().rev().find_map(beat).expect("a heartbeat was sent")
    }

    fn granted(&mut self, millis: u64, from: u64, beat: Heartbeat) {
        self.tell(millis, HolderInput::Granted { from: ReplicaId::new(from), beat });
    }

    /// End of serving in milliseconds, found with the check that precedes each message.
    fn serves_until(&self) -> u64 {
        (0..100_000).find(|at| !self.holder.serves(ms(*at).mono)).expect("leases end")
    }
}

/// T_p of the default settings, rounded up to milliseconds.
const HELD: u64 = 4_901;

#[test]
fn lease_counts_from_sending_even_if_grants_are_late() {
    let mut probe = Probe::of(&founded(3, true));
    let beat = probe.beat();
    probe.granted(3_000, 1, beat);
    assert_eq!(probe.serves_until(), 0, "one of three is no quorum");
    probe.granted(4_000, 2, beat);
    assert_eq!(probe.serves_until(), HELD);
    assert!(matches!(probe.out.last(), Some(HolderOutput::Held { .. })));
}

#[test]
fn grant_after_the_end_gives_no_lease() {
    let mut probe = Probe::of(&founded(3, true));
    let beat = probe.beat();
    probe.granted(3_000, 1, beat);
    probe.granted(5_000, 2, beat);
    assert!(!probe.holder.serves(ms(5_000).mono));
    assert!(!probe.out.iter().any(|output| matches!(output, HolderOutput::Held { .. })));
}

#[test]
fn lease_counts_from_the_oldest_grant_of_its_quorum() {
    let mut probe = Probe::of(&founded(3, true));
    let first = probe.beat();
    probe.tell(1_000, HolderInput::Tick);
    let second = probe.beat();
    assert_ne!(first.number, second.number);
    probe.granted(1_100, 1, second);
    probe.granted(1_100, 2, first);
    assert_eq!(probe.serves_until(), HELD);
    probe.granted(1_200, 3, second);
    assert_eq!(probe.serves_until(), 1_000 + HELD);
}

#[test]
fn own_grant_counts_only_from_the_own_grantor() {
    let mut probe = Probe::of(&founded(1, true));
    assert_eq!(probe.serves_until(), 0);
    let to_itself =
        HolderOutput::Send { to: ReplicaId::new(ME), message: LeaseMessage::Beat(probe.beat()) };
    assert!(probe.out.contains(&to_itself));
    let beat = probe.beat();
    probe.granted(1, ME, beat);
    assert_eq!(probe.serves_until(), HELD);
}

#[test]
fn half_of_the_voters_hold_a_lease_only_with_the_tiebreaker() {
    for (voters, held) in [([1, 2], HELD), ([2, 3], 0)] {
        let mut probe = Probe::of(&founded(4, true));
        let beat = probe.beat();
        for from in voters {
            probe.granted(1, from, beat);
        }
        assert_eq!(probe.serves_until(), held, "{voters:?}");
    }
}

#[test]
fn grants_of_two_configurations_are_not_counted_together() {
    let epoch = founded(3, true);
    let mut probe = Probe::of(&epoch);
    let old = probe.beat();
    probe.granted(1, 1, old);
    probe.tell(10, HolderInput::Installed(without(&epoch, 3)));
    probe.granted(11, 2, old);
    assert_eq!((probe.serves_until(), probe.holder.stats().stray), (0, 1));
    let new = probe.beat();
    assert!(new.number > old.number);
    probe.granted(12, 2, new);
    assert_eq!(probe.serves_until(), 0, "one of two voters");
    probe.granted(13, 1, new);
    assert_eq!(probe.serves_until(), 10 + HELD);
}

#[test]
fn a_lease_of_the_old_configuration_runs_on_in_the_new_one() {
    let epoch = founded(3, true);
    let mut probe = Probe::of(&epoch);
    let beat = probe.beat();
    probe.granted(1, 1, beat);
    probe.granted(1, 2, beat);
    probe.tell(2_000, HolderInput::Installed(without(&epoch, 3)));
    assert_eq!(probe.serves_until(), HELD);
}

#[test]
fn stray_grants_are_ignored() {
    let mut probe = Probe::of(&founded(2, true));
    let beat = probe.beat();
    probe.granted(1, 9, beat);
    probe.granted(1, 1, Heartbeat { number: 77, ..beat });
    assert_eq!((probe.serves_until(), probe.holder.stats().stray), (0, 2));
    assert_eq!(probe.holder.stats().granted, 0);
}

#[test]
fn stopped_node_serves_again_only_in_a_new_configuration() {
    let epoch = founded(3, true);
    let mut probe = Probe::of(&epoch);
    let beat = probe.beat();
    probe.granted(1, 1, beat);
    probe.granted(1, 2, beat);
    probe.tell(100, HolderInput::StopServing);
    assert_eq!(probe.serves_until(), 0);
    assert_eq!(probe.out.last(), Some(&HolderOutput::Lapsed));
    probe.granted(101, 3, beat);
    assert_eq!(probe.serves_until(), 0, "late acks change nothing");
    probe.tell(200, HolderInput::Installed(without(&epoch, 3)));
    let beat = probe.beat();
    probe.granted(201, 1, beat);
    probe.granted(201, 2, beat);
    assert_eq!(probe.serves_until(), 200 + HELD);
}

/// A stopped node is granted nothing, even if other members are alive. Forced recovery needs the
/// time since which it is idle.
#[test]
fn idle_time_of_a_stopped_node_is_known() {
    let idle = |probe: &Probe| {
        let since = probe.holder.idle_since().expect("it is a member");
        since.as_nanos().div_ceil(1_000_000)
    };
    let epoch = founded(3, true);
    let mut probe = Probe::of(&epoch);
    assert_eq!(idle(&probe), 0, "installed at 0, nothing granted yet");
    let beat = probe.beat();
    probe.granted(1, 1, beat);
    probe.granted(1, 2, beat);
    assert_eq!(idle(&probe), HELD);
    probe.tell(100, HolderInput::StopServing);
    assert_eq!((probe.serves_until(), idle(&probe)), (0, HELD));
    probe.tell(9_000, HolderInput::Installed(without(&epoch, 3)));
    assert_eq!(idle(&probe), 9_000, "grants may follow in this configuration");
    probe.tell(9_100, HolderInput::Release);
    assert_eq!(probe.holder.idle_since(), None, "it stopped serving by itself");
    let never = LeaseHolder::new(
        ReplicaId::new(ME),
        LeaseConfig::default(),
        MembershipFaultInjection::none(),
    );
    assert_eq!(never.idle_since(), None);
}

#[test]
fn a_removed_incarnation_never_serves_again() {
    let epoch = founded(3, true);
    let mut probe = Probe::of(&epoch);
    let out = without(&epoch, ME);
    probe.tell(10, HolderInput::Installed(out));
    probe.tell(10, HolderInput::Excluded);
    let beats = probe.holder.stats().beats;
    probe.tell(5_000, HolderInput::Installed(epoch));
    probe.tell(6_000, HolderInput::Tick);
    assert_eq!((probe.holder.stats().beats, probe.serves_until()), (beats, 0));
}

#[test]
fn release_ends_the_lease_and_is_repeated() {
    let mut probe = Probe::of(&founded(2, true));
    let beat = probe.beat();
    probe.granted(1, 1, beat);
    probe.granted(1, 2, beat);
    probe.tell(500, HolderInput::Release);
    assert_eq!(probe.serves_until(), 0);
    probe.granted(501, 1, beat);
    assert_eq!(probe.serves_until(), 0, "a late ack revives nothing");
    probe.tell(1_500, HolderInput::Tick);
    let message = LeaseMessage::Release { number: beat.number };
    let releases = probe.out.iter().filter(
        |output| matches!(output, HolderOutput::Send { message: sent, .. } if *sent == message),
    );
    assert_eq!(releases.count(), 4, "twice to two voters");
    assert_eq!(probe.beat(), beat, "no heartbeat follows");
}

/// Otherwise it would send heartbeats once a configuration contains it, and its removal would wait
/// for the promises.
#[test]
fn release_outside_is_sent_once_a_configuration_has_the_node() {
    let epoch = founded(3, true);
    let others = without(&epoch, ME);
    let mut probe = Probe::of(&others);
    probe.tell(10, HolderInput::Release);
    probe.tell(20, HolderInput::Installed(others));
    assert!(probe.out.is_empty(), "no voter knows the node");
    probe.tell(30, HolderInput::Installed(epoch));
    probe.tell(1_030, HolderInput::Tick);
    let message = LeaseMessage::Release { number: 0 };
    let release = |to| HolderOutput::Send { to: ReplicaId::new(to), message };
    assert_eq!(probe.out, [1, 2, 3, 1, 2, 3].map(release));
    assert_eq!(probe.holder.stats().beats, 0);
}

#[test]
fn short_lapse_pauses_and_long_lapse_stops() {
    let mut probe = Probe::of(&founded(1, true));
    let beat = probe.beat();
    probe.granted(1, ME, beat);
    let was_output = |probe: &Probe, it: &HolderOutput| probe.out.iter().any(|out| out == it);
    assert!(!was_output(&probe, &HolderOutput::Lapsed));
    probe.tell(4_902, HolderInput::Tick);
    assert!(was_output(&probe, &HolderOutput::Lapsed) && !was_output(&probe, &HolderOutput::Stop));
    let beat = probe.beat();
    probe.granted(5_000, ME, beat);
    assert!(probe.holder.serves(ms(5_000).mono), "only paused");
    probe.tell(9_900, HolderInput::Tick);
    probe.tell(19_900, HolderInput::Tick);
    assert!(was_output(&probe, &HolderOutput::Stop));
    assert_eq!(probe.holder.stats().lapses, 2);
}

#[test]
fn clock_decides_even_if_no_timer_fired() {
    let mut probe = Probe::of(&founded(1, true));
    let beat = probe.beat();
    probe.granted(1, ME, beat);
    // The process was paused: no tick since the grant.
    assert!(!probe.holder.serves(ms(60_000).mono));
}

#[test]
fn without_leases_members_serve_without_heartbeats() {
    let epoch = founded(2, false);
    let mut probe = Probe::of(&epoch);
    assert_eq!(probe.out, [HolderOutput::Held { until: FOREVER }]);
    assert!(probe.holder.serves(ms(1_000_000).mono));
    assert_eq!(probe.holder.next_deadline(), None);
    probe.tell(1, HolderInput::Installed(without(&epoch, ME)));
    assert!(!probe.holder.serves(ms(2).mono));
    assert_eq!(probe.out.last(), Some(&HolderOutput::Lapsed));
}

#[test]
fn enabling_leases_ends_unleased_serving() {
    let mut probe = Probe::of(&founded(1, false));
    assert!(probe.holder.serves(ms(1).mono));
    probe.tell(2, HolderInput::Installed(founded(1, true)));
    assert!(!probe.holder.serves(ms(2).mono));
    let beat = probe.beat();
    probe.granted(3, ME, beat);
    assert_eq!(probe.serves_until(), 2 + HELD);
}

#[test]
fn awaited_heartbeats_are_bounded() {
    let epoch = founded(2, true);
    let mut probe = Probe::of(&epoch);
    for at in 1..1_000 {
        probe.tell(at * 1_000, HolderInput::Tick);
    }
    assert_eq!(probe.holder.sent.len(), BEATS_MAX);
    assert_eq!(probe.holder.stats().beats, 1_000);
}

proptest! {
    /// The fast computation agrees with the definition: the latest time that satisfies the tie
    /// rule.
    #[test]
    fn quorum_since_is_the_latest_time_with_a_quorum(
        members in 1_u64..8, times in proptest::collection::vec(proptest::option::of(0_u64..5), 8),
    ) {
        let epoch = founded(members, true);
        let acked: BTreeMap<_, _> = (1..=members)
            .filter_map(|id| Some((ReplicaId::new(id), Instant::from_nanos(times[id as usize - 1]?))))
            .collect();
        let by_definition = (0..5).rev().map(Instant::from_nanos).find(|since| {
            let voters = acked.iter().filter(|(_, at)| *at >= since).map(|(id, _)| *id).collect();
            epoch.is_quorum(&voters, FaultInjection::none())
        });
        prop_assert_eq!(quorum_since(&epoch, &acked), by_definition);
    }
}
