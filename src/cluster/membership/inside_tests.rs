//! A node in a cluster: restarts of others that prove a death, gossip that waited in the inbox, and
//! settings at their limits.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings, LEASE_MAX, LeaseSettings};

use super::*;
use crate::cluster::config::{Downing, FailureDetector, HostingLease};
use crate::cluster::gossip::tests::{CLUSTER, id, joiner, node, state};
use crate::cluster::gossip::wire::COUNTER_MAX;
use crate::cluster::member::Status;

/// A in a cluster of A to C, with A's own settings and the lease settings of the configuration.
fn member_of_three(config: ClusterConfig, agreed: LeaseSettings) -> Membership {
    let mut machine = Membership::new(MembershipSetup {
        me: node(1),
        address: joiner(1, 1).address,
        config,
        settings: ComparedSettings::default(),
        memory: Memory::default(),
        directory: None,
        seed: 1,
        fault_injection: MembershipFaultInjection::none(),
    });
    let inside = JoinedState::new(&mut machine.core, Now::default(), state("A B C"));
    machine.stage = MembershipStage::Inside(Box::new(inside));
    let settings = EpochSettings { lease: agreed, ..EpochSettings::default() };
    let members = (1..=3).map(ReplicaId::new).collect();
    let epoch = Epoch::founding(EpochId { generation: 1, number: 1 }, members, settings);
    let installed = MembershipInput::Installed(Arc::new(epoch.expect("well formed")));
    machine.handle(Now::default(), installed, &mut Outbox::new());
    machine
}

#[test]
fn configuration_decides_whether_a_restart_is_proof() {
    for (own, agreed) in [(true, true), (true, false), (false, true), (false, false)] {
        let lease = HostingLease { restart_is_proof: own, ..HostingLease::default() };
        let config = ClusterConfig { lease, ..ClusterConfig::default() };
        let of_all = LeaseSettings { restart_is_proof: agreed, ..LeaseSettings::default() };
        let mut machine = member_of_three(config, of_all);
        let again = NodeId { incarnation: ReplicaId::new(99), ..node(2) };
        let restart = MembershipInput::NewIncarnation { old: node(2), node: again, is_proof: true };
        machine.handle(Now::default(), restart, &mut Outbox::new());
        let gossip = machine.gossip().expect("A is in a cluster");
        let status = gossip.member(id('B')).map(|member| member.status);
        let expected = if agreed { Status::Down } else { Status::Up };
        assert_eq!(status, Some(expected), "own {own}, agreed {agreed}");
    }
}

#[test]
fn gossip_older_than_its_time_to_live_is_dropped() {
    for limit in [1, 5].map(Duration::from_secs) {
        let config = ClusterConfig { gossip_time_to_live: limit, ..ClusterConfig::default() };
        let mut machine = member_of_three(config, LeaseSettings::default());
        let mut news = machine.gossip().expect("A is in a cluster").clone();
        let newcomer = Member { since: news.next_stamp(), ..joiner(6, 6) };
        news.admit_member(id('B'), newcomer).expect("a valid join");
        let message = ClusterMessage::Gossip(Arc::new(news));
        for (waited, is_accepted) in [(limit + Duration::from_millis(1), false), (limit, true)] {
            let input =
                MembershipInput::Message { from: node(2), message: message.clone(), waited };
            machine.handle(Now::default(), input, &mut Outbox::new());
            let gossip = machine.gossip().expect("A is in a cluster");
            let is_known = gossip.contains(ReplicaId::new(6));
            assert_eq!((is_known, machine.stats().late), (is_accepted, 1), "after {waited:?}");
        }
    }
}

/// C has not been in a configuration, and reaches no member. After a restart it would search again
/// only with a data directory.
#[test]
fn verdict_ends_only_newcomers_with_a_data_directory() {
    for (directory, expected) in [(Some(4), Some(StopReason::DownedItself)), (None, None)] {
        let mut machine = Membership::new(MembershipSetup {
            me: node(3),
            address: joiner(3, 3).address,
            config: ClusterConfig::default(),
            settings: ComparedSettings::default(),
            memory: Memory::default(),
            directory,
            seed: 1,
            fault_injection: MembershipFaultInjection::none(),
        });
        let lost = state("A B Cj; C>A C>B");
        let inside = JoinedState::new(&mut machine.core, Now::default(), lost);
        machine.stage = MembershipStage::Inside(Box::new(inside));
        for second in 0..10 {
            let mono = Instant::from_nanos(second * 1_000_000_000);
            let now = Now { mono, ..Now::default() };
            machine.handle(now, MembershipInput::Tick, &mut Outbox::new());
        }
        assert_eq!(machine.stopped(), expected, "directory {directory:?}");
    }
}

/// The state of the stranger is not merged, but its own entry is taken from it.
#[test]
fn adopted_stranger_does_not_use_up_the_stamps() {
    for (since, is_adopted) in [(COUNTER_MAX, false), (6, true)] {
        let mut machine = member_of_three(ClusterConfig::default(), LeaseSettings::default());
        let theirs = Gossip::found(CLUSTER, joiner(6, since)).expect("a valid founder");
        let message = ClusterMessage::Gossip(Arc::new(theirs));
        let heard = MembershipInput::Message { from: node(6), message, waited: Duration::ZERO };
        machine.handle(Now::default(), heard, &mut Outbox::new());
        let gossip = machine.gossip().expect("A is in a cluster");
        let found = (gossip.contains(ReplicaId::new(6)), gossip.next_stamp() <= 7);
        assert_eq!(found, (is_adopted, true), "since {since}");
    }
}

/// C knows no living member and searches for its cluster again.
#[test]
fn welcome_with_counters_that_jump_is_ignored() {
    for (since, is_taken) in [(COUNTER_MAX, false), (9, true)] {
        let mut machine = Membership::new(MembershipSetup {
            me: node(3),
            address: joiner(3, 3).address,
            config: ClusterConfig::default(),
            settings: ComparedSettings::default(),
            memory: Memory::default(),
            directory: Some(1),
            seed: 1,
            fault_injection: MembershipFaultInjection::none(),
        });
        let inside = JoinedState::new(&mut machine.core, Now::default(), state("Ad Bd Cj"));
        machine.stage = MembershipStage::Inside(Box::new(inside));
        let mut theirs = Gossip::found(CLUSTER, joiner(9, since)).expect("a valid founder");
        theirs.admit_member(ReplicaId::new(9), joiner(3, 3)).expect("a valid join");
        let says =
            |message| MembershipInput::Message { from: node(9), message, waited: Duration::ZERO };
        let (what, settings) = (InitAnswer::Member(CLUSTER), ComparedSettings::default());
        let addresses = vec![joiner(1, 1).address];
        for (second, input) in [
            (0, MembershipInput::Tick),
            (4, MembershipInput::Tick),
            (4, MembershipInput::Up { node: node(9), addresses, cluster: None }),
            (4, says(ClusterMessage::InitJoinAnswer { what, settings })),
            (4, says(ClusterMessage::Welcome { gossip: Arc::new(theirs) })),
        ] {
            let mono = Instant::from_nanos(second * 1_000_000_000);
            machine.handle(Now { mono, ..Now::default() }, input, &mut Outbox::new());
        }
        let gossip = machine.gossip().expect("C is in a cluster");
        assert_eq!(gossip.contains(ReplicaId::new(9)), is_taken, "since {since}");
    }
}

#[test]
fn longest_times_of_settings_do_not_overflow() {
    let longest = Duration::MAX;
    let failure_detector = FailureDetector {
        heartbeat_interval: longest,
        min_std_deviation: longest,
        acceptable_heartbeat_pause: longest,
        expected_response_after: longest,
        indirect_probe_timeout: longest,
        ..FailureDetector::default()
    };
    let downing = Downing {
        stable_after: Some(longest),
        wait_without_quorum: Some(longest),
        ..Downing::default()
    };
    let lease = HostingLease {
        duration: longest,
        heartbeat_interval: longest / 2,
        stop_after: longest,
        ..HostingLease::default()
    };
    let config = ClusterConfig {
        gossip_interval: longest,
        prune_gossip_tombstones_after: longest,
        seed_node_timeout: longest,
        retry_unsuccessful_join_after: longest,
        allow_weakly_up_members: longest,
        failure_detector,
        downing,
        lease,
        ..ClusterConfig::default()
    };
    let agreed = LeaseSettings { duration: LEASE_MAX, ..LeaseSettings::default() };
    let mut machine = member_of_three(config, agreed);
    let address = joiner(2, 2).address;
    let heard = ClusterMessage::HeartbeatAnswer(1);
    let inputs = [
        MembershipInput::Up { node: node(2), addresses: vec![address.clone()], cluster: None },
        MembershipInput::Tick,
        MembershipInput::Message { from: node(2), message: heard, waited: Duration::ZERO },
        MembershipInput::Closed(node(2)),
        MembershipInput::DialRefused { address, node: Some(node(2)) },
        MembershipInput::Tick,
    ];
    for (input, second) in inputs.into_iter().zip(1..) {
        let mono = Instant::from_nanos(second * 1_000_000_000);
        machine.handle(Now { mono, ..Now::default() }, input, &mut Outbox::new());
    }
    assert!(machine.stopped().is_none() && machine.next_deadline().is_some());
}
