//! Which messages a searching node accepts from which nodes.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings};

use super::cluster_search::is_lost;
use super::port::ResumeRefusal;
use super::*;
use crate::cluster::gossip::wire::COUNTER_MAX;
use crate::cluster::wire::{Foundation, FoundingBallot, FoundingMemory, InitAnswer};

const CLUSTER: ClusterId = ClusterId(7);

/// Numbers that differ by a multiple of ten are incarnations of one peer.
fn node(number: u8) -> NodeId {
    let peer = PeerKey::new([number % 10; 32]);
    NodeId { peer, incarnation: ReplicaId::new(u64::from(number)) }
}

fn address(number: u8) -> Address {
    Address::new(format!("/ip4/10.0.0.{number}/tcp/1")).expect("short")
}

fn member(number: u8) -> Member {
    Member::joining(node(number), address(number % 10), u64::from(number))
}

/// A foundation with these founders, the oldest first.
fn foundation(cluster: ClusterId, founders: &[u8]) -> Foundation {
    foundation_of(cluster, founders.iter().map(|number| member(*number)).collect())
}

fn foundation_of(cluster: ClusterId, founders: Vec<Member>) -> Foundation {
    let members = founders.iter().map(Member::incarnation).collect();
    let id = EpochId { generation: 1, number: 1 };
    let settings = EpochSettings { cluster: cluster.0, ..EpochSettings::default() };
    let epoch = Epoch::founding(id, members, settings).expect("founders");
    let mut founders = founders.into_iter();
    let oldest = founders.next().expect("a founder");
    let by = oldest.incarnation();
    let mut gossip = Gossip::found(cluster, oldest).expect("within bounds");
    for member in founders {
        gossip.admit_member(by, member).expect("within bounds");
    }
    gossip.promote(by, &super::configuration_proposals::ages(&epoch));
    Foundation { gossip: Arc::new(gossip), epoch: Arc::new(epoch) }
}

/// Node 1; the other seeds are 2 and 3.
struct Bench(Membership);

impl Bench {
    fn new(memory: Memory) -> Self {
        Self::on(None, memory)
    }

    fn on(directory: Option<u64>, memory: Memory) -> Self {
        Self::with_seeds([1, 2, 3].map(address).to_vec(), directory, memory)
    }

    fn with_seeds(seeds: Vec<Address>, directory: Option<u64>, memory: Memory) -> Self {
        Self::incarnation(1, seeds, directory, memory)
    }

    /// This incarnation of node 1.
    fn incarnation(
        number: u8,
        seeds: Vec<Address>,
        directory: Option<u64>,
        memory: Memory,
    ) -> Self {
        Self(Membership::new(MembershipSetup {
            me: node(number),
            address: address(1),
            config: ClusterConfig { seeds, ..ClusterConfig::default() },
            settings: ComparedSettings::default(),
            memory,
            directory,
            seed: 1,
            fault_injection: MembershipFaultInjection::none(),
        }))
    }

    /// Handles an input; returns the messages that are then sent to node `to`.
    fn tell(&mut self, input: MembershipInput, to: u8) -> Vec<ClusterMessage> {
        let mut out = Outbox::new();
        self.0.handle(Now::default(), input, &mut out);
        let said = out.drain().filter_map(|output| match output {
            MembershipOutput::Send { to: receiver, message } if receiver == node(to) => {
                Some(message)
            }
            _ => None,
        });
        said.collect()
    }

    fn up(&mut self, number: u8) -> Vec<ClusterMessage> {
        let (node, addresses) = (node(number), vec![address(number % 10)]);
        self.tell(MembershipInput::Up { node, addresses, cluster: None }, number)
    }

    fn says(&mut self, number: u8, message: ClusterMessage) -> Vec<ClusterMessage> {
        let from = node(number);
        self.tell(MembershipInput::Message { from, message, waited: Duration::ZERO }, number)
    }

    fn calls(&mut self, number: u8, settings: ComparedSettings) -> Vec<ClusterMessage> {
        let what = InitAnswer::Member(CLUSTER);
        self.says(number, ClusterMessage::InitJoinAnswer { what, settings })
    }
}

fn joins(said: &[ClusterMessage]) -> bool {
    matches!(said, [ClusterMessage::Join { .. }])
}

#[test]
fn refusal_of_an_unproven_peer_is_ignored() {
    let mut bench = Bench::new(Memory::default());
    let mut stopped = |input| {
        bench.tell(input, 2);
        bench.0.stopped()
    };
    assert_eq!(stopped(MembershipInput::Tick), None);
    let stranger = MembershipInput::Quarantined(node(2).peer);
    assert_eq!(stopped(stranger.clone()), None, "it has not proved that it knows the secret");
    let (node, addresses) = (node(2), vec![address(2)]);
    assert_eq!(stopped(MembershipInput::Up { node, addresses, cluster: None }), None);
    assert_eq!(stopped(MembershipInput::Closed(node)), None);
    assert_eq!(stopped(stranger), Some(StopReason::Removed), "it was connected before");
}

#[test]
fn invitation_of_a_compatible_member_is_accepted() {
    let mut bench = Bench::new(Memory::default());
    assert!(bench.calls(4, ComparedSettings::default()).is_empty(), "it is not connected");
    bench.up(4);
    let must = vec![("lanes".to_owned(), "other".to_owned())];
    let others = ComparedSettings { must, ..ComparedSettings::default() };
    assert!(bench.calls(4, others).is_empty());
    assert!(joins(&bench.calls(4, ComparedSettings::default())));
    let gossip = foundation(CLUSTER, &[4, 1]).gossip;
    bench.says(5, ClusterMessage::Welcome { gossip: gossip.clone() });
    assert!(bench.0.gossip().is_none(), "node 5 was not asked");
    bench.says(4, ClusterMessage::Welcome { gossip });
    assert_eq!(bench.0.gossip().map(Gossip::cluster), Some(CLUSTER));
}

#[test]
fn lost_link_to_the_asked_member_tries_the_next_one() {
    let mut bench = Bench::new(Memory::default());
    bench.up(2);
    bench.up(3);
    assert!(joins(&bench.calls(2, ComparedSettings::default())));
    assert!(bench.calls(3, ComparedSettings::default()).is_empty(), "node 2 has not answered");
    assert!(joins(&bench.tell(MembershipInput::Closed(node(2)), 3)));
}

#[test]
fn invitation_of_another_cluster_is_ignored() {
    let memory = Memory { cluster: Some(ClusterId(8)), ..Memory::default() };
    let mut bench = Bench::new(memory);
    bench.up(4);
    assert!(bench.calls(4, ComparedSettings::default()).is_empty());
    let gossip = foundation(CLUSTER, &[4, 1]).gossip;
    bench.says(4, ClusterMessage::Welcome { gossip });
    assert!(bench.0.gossip().is_none());
}

/// Node 4 has admitted node 1, which has not learned of it.
#[test]
fn gossiping_node_is_asked_by_a_searching_node() {
    let mut bench = Bench::new(Memory::default());
    bench.up(4);
    let state = || ClusterMessage::Gossip(foundation(CLUSTER, &[4]).gossip);
    let said = bench.says(4, state());
    assert!(matches!(said[..], [ClusterMessage::InitJoin { .. }]), "{said:?}");
    assert!(bench.says(4, state()).is_empty(), "it is not asked again before the next round");
}

#[test]
fn inviting_nodes_do_not_displace_seeds() {
    let mut bench = Bench::new(Memory::default());
    for number in 10..250 {
        let (node, addresses) = (node(number), vec![address(number)]);
        bench.tell(MembershipInput::Up { node, addresses, cluster: None }, number);
        bench.says(number, ClusterMessage::GossipStatus(foundation(CLUSTER, &[4]).gossip.status()));
    }
    bench.up(2);
    assert!(joins(&bench.calls(2, ComparedSettings::default())));
    let gossip = foundation(CLUSTER, &[2, 1]).gossip;
    bench.says(2, ClusterMessage::Welcome { gossip });
    assert!(bench.0.gossip().is_some());
}

#[test]
fn founded_is_accepted_from_seeds_of_the_own_cluster() {
    let founded = |cluster| ClusterMessage::Founded(foundation(cluster, &[2, 1]));
    let mut bench = Bench::new(Memory::default());
    bench.up(4);
    bench.says(4, founded(CLUSTER));
    assert!(bench.0.gossip().is_none(), "not at a seed's address");
    let mut remembers = Bench::new(Memory { cluster: Some(CLUSTER), ..Memory::default() });
    remembers.up(2);
    remembers.says(2, founded(ClusterId(8)));
    assert!(remembers.0.gossip().is_none(), "another cluster");
    remembers.says(2, founded(CLUSTER));
    assert!(remembers.0.gossip().is_some());
    bench.up(2);
    bench.says(2, founded(CLUSTER));
    assert!(bench.0.gossip().is_some());
}

#[test]
fn foundation_with_counters_that_jump_is_refused() {
    let mut bench = Bench::new(Memory::default());
    bench.up(2);
    let oldest = Member { since: COUNTER_MAX, ..member(2) };
    bench.says(2, ClusterMessage::Founded(foundation_of(CLUSTER, vec![oldest, member(1)])));
    assert!(bench.0.gossip().is_none());
    bench.says(2, ClusterMessage::Founded(foundation(CLUSTER, &[2, 1])));
    assert!(bench.0.gossip().is_some());
}

/// The proposer would put it into the foundation, which no seed would then accept.
#[test]
fn promise_with_a_revision_that_jumps_is_ignored() {
    let mut bench = Bench::new(Memory::default());
    bench.up(2);
    let seeds = [1, 2, 3].map(address).into_iter().collect();
    let (asking, settings) = (Box::new(member(2)), ComparedSettings::default());
    let asks = ClusterMessage::InitJoin { member: asking, settings, seeds, cluster: None };
    let said = bench.says(2, asks);
    let ballot = said.iter().find_map(|message| match message {
        ClusterMessage::FoundingPrepare(ballot) => Some(*ballot),
        _ => None,
    });
    let ballot = ballot.expect("two of three seeds agree");
    bench.tell(MembershipInput::Persisted, 2);
    let mut promises = |revision| {
        let mut member = Box::new(member(2));
        member.hosting.revision = revision;
        bench.says(2, ClusterMessage::FoundingPromise { ballot, member, accepted: None })
    };
    assert!(promises(COUNTER_MAX).is_empty());
    let said = promises(1);
    assert!(matches!(said[..], [ClusterMessage::FoundingAccept { .. }]), "{said:?}");
}

/// Node 1 has voted for the foundation and is a member now: it stores the foundation, and sends it
/// to founders.
#[test]
fn foundation_is_stored_and_sent_to_its_founders() {
    let voted = |cluster, founders: &[u8]| {
        let ballot = FoundingBallot { number: 1, proposer: node(2).incarnation };
        let accepted = Some((ballot, foundation(cluster, founders)));
        let founding = Some(FoundingMemory { promised: ballot, accepted });
        Memory { founding, ..Memory::default() }
    };
    let entered = |memory: Memory| {
        let mut bench = Bench::new(memory);
        bench.up(2);
        bench.calls(2, ComparedSettings::default());
        let mut out = Outbox::new();
        let message = ClusterMessage::Welcome { gossip: foundation(CLUSTER, &[2, 1]).gossip };
        let welcome = MembershipInput::Message { from: node(2), message, waited: Duration::ZERO };
        bench.0.handle(Now::default(), welcome, &mut out);
        let written = out.drain().find_map(|output| match output {
            MembershipOutput::Persist(memory) => Some(memory),
            _ => None,
        });
        written.expect("the cluster is stored")
    };
    let none = entered(voted(ClusterId(8), &[2, 3]));
    assert_eq!((none.cluster, none.founded), (Some(CLUSTER), None), "it was not decided");
    let memory = entered(voted(CLUSTER, &[2, 3]));
    assert_eq!(memory.founded, Some(foundation(CLUSTER, &[2, 3])));

    let mut bench = Bench::new(memory);
    let mut is_told = |number: u8| {
        bench.up(number);
        let seeds = [1, 2, 3].map(address).into_iter().collect();
        let (member, settings) = (Box::new(member(number)), ComparedSettings::default());
        let asks = ClusterMessage::InitJoin { member, settings, seeds, cluster: None };
        let said = bench.says(number, asks);
        said.iter().any(|message| matches!(message, ClusterMessage::Founded(_)))
    };
    assert!(!is_told(13), "a later incarnation of 3");
    assert!(is_told(3));
}

#[test]
fn restarted_founders_without_quorum_are_lost() {
    let cases: [(&[u8], &[u8], bool); 7] = [
        (&[1, 2, 3], &[1, 2, 3], false),
        (&[1, 2, 3], &[1, 2, 13], false),
        (&[1, 2, 3], &[1, 12, 13], true),
        (&[1, 2, 3], &[4, 5], false), // no founder has restarted
        (&[1, 2], &[1, 12], false),   // the older one is a quorum
        (&[2, 1], &[1, 12], true),
        (&[2], &[12, 3], true),
    ];
    for (founders, promisers, expected) in cases {
        let promisers: Vec<Member> = promisers.iter().map(|number| member(*number)).collect();
        let lost = is_lost(&foundation(CLUSTER, founders), &promisers);
        assert_eq!(lost, expected, "{founders:?} {promisers:?}");
    }
}

/// The directory was restored in place from a backup: its evidence is outdated, and the cluster is
/// alive. This node never resumes beside it, even if that member does not admit it.
#[test]
fn sole_evidence_yields_to_a_member_that_answers() {
    let first = EpochId { generation: 5, number: 3 };
    let epoch = Epoch::founding(first, vec![ReplicaId::new(77)], EpochSettings::default());
    let sole = Some(SoleMemberEvidence { epoch: epoch.expect("one").into(), directory: 4 });
    let memory = || Memory { cluster: Some(CLUSTER), sole: sole.clone(), ..Memory::default() };
    let founds = |bench: &mut Bench, until: u64| {
        let mut out = Outbox::new();
        for seconds in 0..=until {
            let mono = Now::default().mono + Duration::from_secs(seconds);
            bench.0.handle(Now { mono, ..Now::default() }, MembershipInput::Tick, &mut out);
            bench.0.handle(Now { mono, ..Now::default() }, MembershipInput::Persisted, &mut out);
        }
        out.drain().any(|output| matches!(output, MembershipOutput::Found(_)))
    };
    let mut answered = Bench::on(Some(4), memory());
    answered.up(2);
    let said = answered.calls(2, ComparedSettings::default());
    assert!(said.iter().any(|message| matches!(message, ClusterMessage::Join { .. })), "{said:?}");
    assert!(!founds(&mut answered, 120));
    assert!(founds(&mut Bench::on(Some(4), memory()), 2), "no node answers");
    assert!(!founds(&mut Bench::on(Some(5), memory()), 120), "a copied directory");
    assert!(
        !founds(&mut Bench::on(None, memory()), 120),
        "no lock proves that the former process ended"
    );
}

/// Node 1, the only seed, was killed when its vote was on disk, and the founding was not.
#[test]
fn copied_vote_of_a_lone_founder_does_not_resume() {
    let seeds = || vec![address(1)];
    let mut founder = Bench::with_seeds(seeds(), Some(4), Memory::default());
    let mut out = Outbox::new();
    founder.0.handle(Now::default(), MembershipInput::Tick, &mut out);
    for _ in 0..2 {
        founder.0.handle(Now::default(), MembershipInput::Persisted, &mut out);
    }
    let has_voted = |memory: &Memory| {
        let accepted = memory.founding.as_ref().and_then(|votes| votes.accepted.as_ref());
        accepted.is_some() && memory.cluster.is_none()
    };
    let voted = out.drain().find_map(|output| match output {
        MembershipOutput::Persist(memory) if has_voted(&memory) => Some(memory),
        _ => None,
    });
    let voted = voted.expect("the vote is stored before the cluster");
    let restarted = |directory: u64| {
        let mut successor = Bench::incarnation(11, seeds(), Some(directory), voted.clone());
        let mut out = Outbox::new();
        for input in [MembershipInput::Tick, MembershipInput::Persisted] {
            successor.0.handle(Now::default(), input, &mut out);
        }
        let founds = out.drain().any(|output| matches!(output, MembershipOutput::Found(_)));
        (founds, successor.0.waits_for())
    };
    assert_eq!(restarted(4), (true, None), "the same directory");
    let (founds, waits_for) = restarted(5);
    let is_copied = matches!(
        waits_for,
        Some(OperatorNotice::NotResumed { because: ResumeRefusal::Copied, .. })
    );
    assert!(!founds && is_copied, "{waits_for:?}");
}

/// Nodes 1 and 2 are the seeds, and node 2 is listed with two addresses, at both of which it has
/// answered.
fn with_seed_listed_twice(directory: Option<u64>, memory: Memory) -> Bench {
    let alias = Address::new("/ip4/10.0.1.2/tcp/1").expect("short");
    let seeds = vec![address(1), address(2), alias.clone()];
    let mut bench = Bench::with_seeds(seeds, directory, memory);
    let addresses = vec![address(2), alias];
    bench.tell(MembershipInput::Up { node: node(2), addresses, cluster: None }, 2);
    let (what, settings) = (InitAnswer::Searching, ComparedSettings::default());
    bench.says(2, ClusterMessage::InitJoinAnswer { what, settings });
    bench
}

#[test]
fn seed_listed_twice_is_neither_dialled_nor_silent() {
    let mut bench = with_seed_listed_twice(None, Memory::default());
    assert_eq!(bench.0.waits_for(), None);
    let mut out = Outbox::new();
    bench.0.handle(Now::default(), MembershipInput::Tick, &mut out);
    assert!(!out.drain().any(|output| matches!(output, MembershipOutput::Dial(_))));
}

#[test]
fn seed_listed_twice_does_not_delay_a_succession() {
    let first = EpochId { generation: 5, number: 3 };
    let epoch = Epoch::founding(first, vec![ReplicaId::new(77)], EpochSettings::default());
    let sole = Some(SoleMemberEvidence { epoch: epoch.expect("one").into(), directory: 4 });
    let memory = Memory { cluster: Some(CLUSTER), sole, ..Memory::default() };
    let mut bench = with_seed_listed_twice(Some(4), memory);
    let mut out = Outbox::new();
    for input in [MembershipInput::Tick, MembershipInput::Persisted] {
        bench.0.handle(Now::default(), input, &mut out);
    }
    assert!(out.drain().any(|output| matches!(output, MembershipOutput::Found(_))));
}

/// Without the refusal, the deadline of the resumption would stay in the past.
#[test]
fn evidence_without_a_successor_is_refused_once() {
    let last = EpochId { generation: u64::MAX / 2, number: 3 };
    let epoch = Epoch::founding(last, vec![ReplicaId::new(77)], EpochSettings::default());
    let sole = Some(SoleMemberEvidence { epoch: epoch.expect("one").into(), directory: 4 });
    let memory = Memory { cluster: Some(CLUSTER), sole, ..Memory::default() };
    let mut machine = Bench::on(Some(4), memory).0;
    let because = ResumeRefusal::NoSuccessor(last);
    let refused = OperatorNotice::NotResumed { cluster: CLUSTER, because };
    let mut out = Outbox::new();
    for seconds in 0..=3 {
        let mono = Now::default().mono + Duration::from_secs(seconds);
        let now = Now { mono, ..Now::default() };
        if seconds == 3 {
            let order = MembershipInput::Command(MembershipCommand::Recover);
            machine.handle(now, order, &mut out);
        }
        machine.handle(now, MembershipInput::Tick, &mut out);
        assert!(machine.next_deadline() > Some(mono), "after {seconds} s");
    }
    assert_eq!(machine.waits_for(), Some(refused.clone()));
    let is_notice =
        |output: &MembershipOutput| *output == MembershipOutput::Notice(refused.clone());
    assert_eq!(out.drain().filter(is_notice).count(), 1);
}
