//! Conditions of a forced recovery, and the treatment of given-up members.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings, LeaseSettings};

use super::*;
use crate::cluster::gossip::tests::{id, joiner, node, state};
use crate::cluster::lease::Heartbeat;

/// A day in milliseconds.
const DAY: u64 = 24 * 60 * 60 * 1_000;

/// The configuration of A to E.
fn epoch() -> Arc<Epoch> {
    let lease = LeaseSettings { enabled: true, ..LeaseSettings::default() };
    let settings = EpochSettings { lease, ..EpochSettings::default() };
    let members = (1..=5).map(ReplicaId::new).collect();
    let id = EpochId { generation: 1, number: 1 };
    Arc::new(Epoch::founding(id, members, settings).expect("well formed"))
}

/// Installs a configuration that B forced with A.
fn forced() -> MembershipInput {
    let kept = BTreeSet::from([id('A')]);
    let forced = epoch().forced(id('B'), &kept, 9_000).expect("B is a member");
    MembershipInput::Installed(Arc::new(forced))
}

fn address(number: u64) -> Address {
    joiner(number, number).address
}

fn up(number: u64) -> MembershipInput {
    MembershipInput::Up { node: node(number), addresses: vec![address(number)], cluster: None }
}

/// A in a cluster of A to E, whose configuration was installed at 0. B answers heartbeats.
struct Bench(Membership);

impl Bench {
    /// A bench in which A is connected with these members.
    fn new<const N: usize>(connected: [u64; N]) -> Self {
        let mut machine = Membership::new(MembershipSetup {
            me: node(1),
            address: address(1),
            config: ClusterConfig::default(),
            settings: ComparedSettings::default(),
            memory: Memory::default(),
            directory: None,
            seed: 1,
            fault_injection: MembershipFaultInjection::none(),
        });
        let inside = JoinedState::new(&mut machine.core, Now::default(), state("A B C D E"));
        machine.stage = MembershipStage::Inside(Box::new(inside));
        let mut bench = Self(machine);
        for number in connected {
            bench.tell(0, up(number));
        }
        bench.tell(0, MembershipInput::Installed(epoch()));
        bench.tell(0, MembershipInput::Tick);
        bench
    }

    fn tell(&mut self, millis: u64, input: MembershipInput) -> Vec<MembershipOutput> {
        let now = Now { mono: Instant::from_nanos(millis * 1_000_000), ..Now::default() };
        let mut out = Outbox::new();
        self.0.handle(now, input, &mut out);
        let out: Vec<MembershipOutput> = out.drain().collect();
        for output in &out {
            if let MembershipOutput::Send { to, message: ClusterMessage::Heartbeat(sequence) } =
                output
                && *to == node(2)
            {
                let message = ClusterMessage::HeartbeatAnswer(*sequence);
                let answer =
                    MembershipInput::Message { from: *to, message, waited: Duration::ZERO };
                self.0.handle(now, answer, &mut Outbox::new());
            }
        }
        out
    }

    fn recovery(&self, millis: u64) -> Result<recovery::RecoveryPlan, NotRecovered> {
        self.0.recovery(Instant::from_nanos(millis * 1_000_000))
    }

    /// The gossip state of A.
    fn state(&self) -> Gossip {
        self.0.gossip().expect("A is in a cluster").clone()
    }
}

/// A gossip message of B with this state.
fn heard(state: Gossip) -> MembershipInput {
    let message = ClusterMessage::Gossip(Arc::new(state));
    MembershipInput::Message { from: node(2), message, waited: Duration::ZERO }
}

fn dialled(out: &[MembershipOutput]) -> Vec<Address> {
    let dialled = |output: &MembershipOutput| match output {
        MembershipOutput::Dial(address) => Some(address.clone()),
        _ => None,
    };
    out.iter().filter_map(dialled).collect()
}

fn forgotten(out: &[MembershipOutput]) -> Vec<NodeId> {
    let forgotten = |output: &MembershipOutput| match output {
        MembershipOutput::Forget(node) => Some(*node),
        _ => None,
    };
    out.iter().filter_map(forgotten).collect()
}

fn is_told_that_it_is_out(out: &[MembershipOutput], number: u64) -> bool {
    let message = ClusterMessage::YouAreOut { removed: true };
    out.contains(&MembershipOutput::Send { to: node(number), message })
}

/// T_q is 5 s: by then, every voter that could grant a lease would have done so.
#[test]
fn recovery_with_quorum_needs_5_s_without_grants() {
    let mut bench = Bench::new([2, 3]);
    let quorum = Err(NotRecovered::Quorum { reached: 3, voters: 5 });
    let ids = |numbers: std::ops::RangeInclusive<u64>| numbers.map(ReplicaId::new).collect();
    let forces = Ok(recovery::RecoveryPlan {
        replaces: epoch().id(),
        kept: ids(1..=3),
        given_up: ids(4..=5),
    });
    assert_eq!(bench.recovery(4_999), quorum, "5 s since the installation");
    assert_eq!(bench.recovery(5_000), forces, "a proposal may be stuck");
    // For the first heartbeat, sent at 0: the lease lasts slightly more than 4.9 s.
    let beat = Heartbeat { epoch: epoch().id(), number: 1 };
    for from in [1, 2, 3].map(ReplicaId::new) {
        bench.tell(100, MembershipInput::Granted { from, beat });
    }
    assert_eq!(bench.recovery(4_900), Err(NotRecovered::Serves));
    for millis in [4_901, 5_000, 9_900] {
        assert_eq!(bench.recovery(millis), quorum, "after {millis} ms");
    }
    assert_eq!(bench.recovery(9_901), forces);
}

/// If no member is missing, no proposal can be stuck for good.
#[test]
fn recovery_is_refused_while_all_members_are_connected() {
    let bench = Bench::new([2, 3, 4, 5]);
    let quorum = Err(NotRecovered::Quorum { reached: 5, voters: 5 });
    assert_eq!(bench.recovery(DAY), quorum);
}

#[test]
fn recovery_without_quorum_does_not_wait_for_the_lease() {
    let bench = Bench::new([2]);
    let planned = bench.recovery(0).expect("two of five are no quorum");
    assert_eq!(planned.kept, [1, 2].map(ReplicaId::new));
}

/// The new member at the address is not a given-up one; the given-up process may be paused and
/// connects when it resumes.
#[test]
fn given_up_members_are_dialled_and_informed() {
    let mut bench = Bench::new([2]);
    bench.tell(0, forced());
    bench.tell(0, MembershipInput::Tick);
    assert!(dialled(&bench.tell(4_999, MembershipInput::Tick)).is_empty());
    assert_eq!(dialled(&bench.tell(5_000, MembershipInput::Tick)), [3, 4, 5].map(address));
    let mut news = bench.state();
    let newcomer = Member { address: address(4), since: news.next_stamp(), ..joiner(6, 6) };
    news.admit_member(id('B'), newcomer).expect("a valid join");
    bench.tell(6_000, heard(news));
    assert!(bench.state().contains(ReplicaId::new(6)));
    assert_eq!(dialled(&bench.tell(10_000, MembershipInput::Tick)), [3, 5].map(address));
    assert!(is_told_that_it_is_out(&bench.tell(11_000, up(4)), 4));
    let later = bench.tell(17_000, MembershipInput::Tick);
    assert!(forgotten(&later).is_empty(), "it is not refused before it is informed");
    assert_eq!(forgotten(&bench.tell(DAY, MembershipInput::Tick)), [3, 4, 5].map(node));
}

/// By gossip alone they were removed as usual, and would be refused soon after they were informed,
/// possibly while they are paused and consider themselves a quorum.
#[test]
fn given_up_members_are_not_refused_for_a_day() {
    for state_first in [false, true] {
        let mut bench = Bench::new([2, 3, 4, 5]);
        let mut news = bench.state();
        news.remove(id('B'), &[3, 4, 5].map(ReplicaId::new));
        let mut facts = [forced(), heard(news)];
        if state_first {
            facts.reverse();
        }
        let mut told = Vec::new();
        for fact in facts {
            told.extend(bench.tell(0, fact));
            told.extend(bench.tell(0, MembershipInput::Tick));
        }
        let is_told = [3, 4, 5].map(|number| is_told_that_it_is_out(&told, number));
        assert_eq!(is_told, [true; 3], "state first: {state_first}");
        let later = bench.tell(6_000, MembershipInput::Tick);
        assert!(forgotten(&later).is_empty(), "state first: {state_first}");
        let out = bench.tell(DAY, MembershipInput::Tick);
        assert_eq!(forgotten(&out), [3, 4, 5].map(node), "state first: {state_first}");
    }
}
