//! Tests of the machines of one node, incarnation 1, alone or with members that are silent unless
//! the test sends their messages.

mod recovery;
mod strategy_requests;

use ostraca_ddata::id::{NodeId, PeerKey};
use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings, MembershipChange};
use ostraca_ddata::replicator::request::ReplicatorReply;
use ostraca_ddata::types::Term;

use super::*;
use crate::cluster::member::{Address, HostedTypes, Member};
use crate::cluster::name_set::NameSet;
use crate::cluster::singleton::SingletonMessage;
use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::coordinator::{Coordinator, CoordinatorPhase};
use crate::sharding::explanation::Topic;
use crate::sharding::home::ShardHome;
use crate::sharding::ids::{EntityId, Generation, ShardId};
use crate::sharding::region::{Reach, RegionOutput};
use crate::sharding::store::{StoreAnswer, StoreRequest};
use crate::sharding::wire::{
    HostShard, Predecessors, RegistrationRefusal, ReleaseShard, ShardingMessage, ToCoordinator,
    ToRegion,
};

const ME: ReplicaId = ReplicaId::new(1);
const OTHER: ReplicaId = ReplicaId::new(2);

fn counter() -> EntityType {
    EntityType::new("counter").expect("a name")
}

fn epoch(members: impl IntoIterator<Item = u64>) -> Arc<Epoch> {
    let id = EpochId { generation: 1, number: 1 };
    let members = members.into_iter().map(ReplicaId::new).collect();
    Arc::new(Epoch::founding(id, members, EpochSettings::default()).expect("distinct"))
}

struct Bench {
    machines: Machines,
    now: Now,
    out: ShardingOutbox,
    shards: u32, // of the type
}

impl Bench {
    fn new() -> Self {
        let machines = Machines::new(ME, Duration::from_secs(20));
        Self { machines, now: Now::default(), out: ShardingOutbox::new(), shards: 1_000 }
    }

    /// Handles one input and the ticks that follow from it. Returns the outputs.
    fn tell(&mut self, input: ShardingInput) -> Vec<ShardingOutput> {
        self.machines.handle(self.now, input, &mut self.out);
        for _ in 0..10 {
            if self.machines.next_deadline().is_some_and(|at| at <= self.now.mono) {
                self.machines.handle(self.now, ShardingInput::Tick, &mut self.out);
            }
        }
        self.out.drain().collect()
    }

    fn pass(&mut self, span: Duration) -> Vec<ShardingOutput> {
        self.now.mono = self.now.mono + span;
        self.tell(ShardingInput::Tick)
    }

    /// The coordinator reads no cells, writes the settings of the type, and becomes active.
    fn act(&mut self, id: u64, term: Term) -> Vec<ShardingOutput> {
        let fenced = ReplicatorReply::Fenced { term, values: Vec::new() };
        let read = self.tell(ShardingInput::Answered { id, reply: Ok(fenced) });
        let written = read.iter().find_map(|output| match output {
            ShardingOutput::Ask { id, ask: StoreRequest::Agree { agreed, .. }, .. } => {
                Some((*id, agreed.clone()))
            }
            _ => None,
        });
        let (id, says) = written.expect("it writes the settings of its node");
        assert_eq!(says, agreed(self.shards));
        let Machines { types, with, .. } = &mut self.machines;
        let of_type = types.get_mut(&counter()).expect("it is started");
        of_type.answered(self.now, id, |_| StoreAnswer::Written, with, &mut self.out);
        self.tell(ShardingInput::Tick)
    }

    fn start(&mut self) -> Vec<ShardingOutput> {
        let (entity_type, settings, extractor) = (counter(), Box::default(), "xxh3".into());
        let hosts = Hosts::Shards;
        self.tell(ShardingInput::Start { entity_type, settings, extractor, strategy: None, hosts })
    }

    /// All members are Up and host the type, and this node holds a lease. `change` adapts the
    /// state.
    fn up(
        &mut self,
        members: &[u64],
        change: impl FnOnce(&mut ClusterState),
    ) -> Vec<ShardingOutput> {
        let member = |number: u64| {
            let id = ReplicaId::new(number);
            let node = NodeId { peer: PeerKey::new([number as u8; 32]), incarnation: id };
            let address = Address::new(format!("/ip4/10.0.0.{number}/tcp/1")).expect("short");
            let entity_types = ["counter"].into_iter().collect();
            let hosting = HostedTypes { revision: 1, draining: false, entity_types };
            let joining = Member::joining(node, address, 0);
            (id, Arc::new(Member { status: Status::Up, hosting, ..joining }))
        };
        let members_of = members.iter().map(|number| member(*number)).collect();
        let mut state = ClusterState { members: members_of, ..ClusterState::default() };
        change(&mut state);
        let mut out = self.tell(ShardingInput::State(Arc::new(state)));
        out.extend(self.tell(ShardingInput::Installed(epoch(members.iter().copied()))));
        out.extend(self.tell(ShardingInput::LeaseHeld));
        out
    }
}

/// Settings of the type on a node that has it in so many shards.
fn agreed(shards: u32) -> AgreedSettings {
    let settings = Settings { number_of_shards: shards, ..Settings::default() };
    AgreedSettings::new(&settings, "xxh3")
}

fn fence(outputs: &[ShardingOutput]) -> Option<(u64, Term)> {
    outputs.iter().find_map(|output| match output {
        ShardingOutput::Ask { id, ask: StoreRequest::Fence { term, .. }, .. } => Some((*id, *term)),
        _ => None,
    })
}

#[test]
fn lone_node_coordinates_registers_and_offers_its_type() {
    let mut bench = Bench::new();
    let entity_types = BTreeSet::from(["counter".to_owned()]);
    assert_eq!(bench.start(), [ShardingOutput::Host { entity_types, draining: false }]);
    let (id, term) = fence(&bench.up(&[1], |_| {})).expect("it takes a term");
    assert_eq!(term, Term { number: 1, owner: ME });
    let acting = bench.act(id, term);
    assert!(acting.contains(&ShardingOutput::Acting { entity_type: counter(), term }));
    assert!(acting.contains(&ShardingOutput::Registered(counter())), "{acting:?}");
    assert_eq!(bench.tell(ShardingInput::LeaseHeld), [], "the lease was held before");
    assert_eq!(bench.start().len(), 1, "a second start only repeats the offer");
}

#[test]
fn refused_coordinator_is_replaced_at_a_higher_term() {
    let mut bench = Bench::new();
    bench.start();
    let (id, term) = fence(&bench.up(&[1], |_| {})).expect("it takes a term");
    bench.act(id, term);
    let highest = crate::sharding::ids::Generation::new(Term { number: 7, owner: OTHER }, 1);
    let message = ToCoordinator::Register {
        proxy: false,
        hosted: Vec::new(),
        highest,
        agreed: agreed(1_000),
        slow: Vec::new(),
    };
    let word = MachineMessage::Sharding(ShardingMessage::Coordinator(message));
    let refused = bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word });
    assert!(matches!(refused[..], [ShardingOutput::SteppedDown { .. }]), "{refused:?}");
    assert_eq!(fence(&refused), None);
    let again = bench.pass(Duration::from_secs(1));
    assert_eq!(fence(&again).map(|(_, term)| term), Some(Term { number: 8, owner: ME }));
}

#[test]
fn a_node_without_the_type_lets_others_coordinate_it() {
    let mut bench = Bench::new();
    bench.up(&[1, 2], |state| {
        let me = Arc::make_mut(state.members.get_mut(&ME).expect("it is there"));
        me.hosting.entity_types = NameSet::new();
    });
    let ask = MachineMessage::Singleton(SingletonMessage::HandOverToMe { number: 4 });
    let said =
        bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word: ask });
    let word = MachineMessage::Singleton(SingletonMessage::HandOverDone { number: 4 });
    assert_eq!(said, [ShardingOutput::Send { to: OTHER, entity_type: counter(), word }]);
    assert!(bench.machines.of(&counter()).is_some_and(|of_type| of_type.region().is_none()));
}

#[test]
fn messages_about_unknown_types_create_bounded_state() {
    let mut bench = Bench::new();
    let leaving = MachineMessage::Sharding(ShardingMessage::Coordinator(ToCoordinator::Leaving));
    let from = OTHER;
    let told = bench.tell(ShardingInput::Message { from, entity_type: counter(), word: leaving });
    assert_eq!((told, bench.machines.types().count()), (vec![], 0));
    let word = |number| match number {
        0 => MachineMessage::Singleton(SingletonMessage::Identify),
        _ => MachineMessage::Singleton(SingletonMessage::HandOverToMe { number }),
    };
    let identify =
        bench.tell(ShardingInput::Message { from, entity_type: counter(), word: word(0) });
    assert_eq!((identify, bench.machines.types().count()), (vec![], 0));
    for number in 0..=ENTITY_TYPES_MAX {
        let entity_type = EntityType::new(&format!("type-{number}")).expect("a name");
        bench.tell(ShardingInput::Message { from, entity_type, word: word(1) });
    }
    assert_eq!(bench.machines.types().count(), ENTITY_TYPES_MAX);
    assert_eq!(bench.machines.refused(), 2);
}

#[test]
fn types_of_peers_do_not_block_a_local_start() {
    let mut bench = Bench::new();
    for number in 0..ENTITY_TYPES_MAX {
        let entity_type = EntityType::new(&format!("type-{number}")).expect("a name");
        let word = MachineMessage::Singleton(SingletonMessage::HandOverToMe { number: 1 });
        bench.tell(ShardingInput::Message { from: OTHER, entity_type, word });
    }
    bench.start();
    assert_eq!(bench.machines.of(&counter()).and_then(TypeMachines::hosts), Some(Hosts::Shards));
}

/// Otherwise queries with long timeouts would use up [`QUERIES_MAX`].
#[test]
fn survey_does_not_wait_for_a_removed_member() {
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2], |_| {});
    let entity = EntityId::new("a").expect("an id");
    let question = ClusterQuery::Exists { entity, at: RegionId::new(OTHER) };
    let (entity_type, within) = (counter(), Duration::MAX);
    let ends = |out: &[ShardingOutput]| {
        out.iter().any(|it| matches!(it, ShardingOutput::Answered { id: 5, .. }))
    };
    let out = bench.tell(ShardingInput::Query { id: 5, entity_type, question, within });
    assert!(!ends(&out) && !ends(&bench.pass(Duration::from_secs(60))), "2 may answer");
    let mut out = bench.up(&[1], |_| {});
    out.extend(bench.pass(Duration::from_secs(1)));
    assert!(ends(&out), "2 is no member");
}

#[test]
fn query_does_not_ask_a_node_without_the_type() {
    let mut bench = Bench::new();
    bench.up(&[1], |state| {
        let me = Arc::make_mut(state.members.get_mut(&ME).expect("it is there"));
        me.hosting.entity_types = NameSet::new();
    });
    let question = ClusterQuery::Why(Topic::Shard(ShardId::new(3)));
    let (entity_type, within) = (counter(), Duration::MAX);
    let out = bench.tell(ShardingInput::Query { id: 5, entity_type, question, within });
    assert!(matches!(out[..], [ShardingOutput::Answered { id: 5, .. }]), "{out:?}");
}

#[test]
fn without_leases_removed_node_counts_for_the_margin() {
    let mut bench = Bench::new();
    let lease = ostraca_ddata::replicator::epoch::LeaseSettings {
        enabled: false,
        ..ostraca_ddata::replicator::epoch::LeaseSettings::default()
    };
    let id = EpochId { generation: 1, number: 1 };
    let settings = EpochSettings { lease, ..EpochSettings::default() };
    let first = Epoch::founding(id, vec![ME, OTHER], settings).expect("distinct");
    let next = first
        .next(&MembershipChange { lost: vec![OTHER], ..MembershipChange::default() })
        .expect("one is left");
    bench.tell(ShardingInput::Installed(Arc::new(first)));
    assert_eq!(bench.tell(ShardingInput::Installed(Arc::new(next))), []);
    assert_eq!(bench.pass(Duration::from_secs(19)), []);
    let removed = ShardingOutput::Removed(vec![(RegionId::new(OTHER), Departure::Unheard)]);
    assert_eq!(bench.pass(Duration::from_secs(1)), [removed]);
}

#[test]
fn with_leases_removed_node_is_over_at_once() {
    let mut bench = Bench::new();
    let first = epoch([1, 2]);
    let next = first
        .next(&MembershipChange { lost: vec![OTHER], ..MembershipChange::default() })
        .expect("one is left");
    bench.tell(ShardingInput::Installed(first));
    let removed = ShardingOutput::Removed(vec![(RegionId::new(OTHER), Departure::Unheard)]);
    assert_eq!(bench.tell(ShardingInput::Installed(Arc::new(next))), [removed]);
}

#[test]
fn removed_node_is_reported_as_stopped_if_it_left_in_order() {
    for (status, how) in
        [(Status::Exiting, Departure::Stopped), (Status::Leaving, Departure::Unheard)]
    {
        let mut bench = Bench::new();
        bench.up(&[1, 2], |state| {
            let member = state.members.get_mut(&OTHER).expect("a member");
            *member = Arc::new(Member { status, ..Member::clone(member) });
        });
        let change = MembershipChange { lost: vec![OTHER], ..MembershipChange::default() };
        let next = epoch([1, 2]).next(&change).expect("one is left");
        let removed = ShardingOutput::Removed(vec![(RegionId::new(OTHER), how)]);
        let told = bench.tell(ShardingInput::Installed(Arc::new(next)));
        assert!(told.contains(&removed), "{told:?}");
    }
}

#[test]
fn node_without_shards_or_membership_leaves_at_once() {
    let mut bench = Bench::new();
    assert_eq!(bench.tell(ShardingInput::Leave), [ShardingOutput::Left]);
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2], |_| {});
    let stop = ShardingOutput::Order { entity_type: counter(), order: RegionOutput::StopAll };
    assert!(bench.tell(ShardingInput::Out).contains(&stop));
    assert_eq!(bench.tell(ShardingInput::Leave), [ShardingOutput::Left]);
    assert_eq!(fence(&bench.tell(ShardingInput::LeaseHeld)), None, "the node has stopped for good");
}

#[test]
fn region_that_has_left_keeps_gates_and_takes_no_shard() {
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2], |_| {});
    assert!(
        bench.tell(ShardingInput::Leave).contains(&ShardingOutput::Left),
        "no coordinator has registered it"
    );
    let stop = ShardingOutput::Order { entity_type: counter(), order: RegionOutput::StopAll };
    assert!(!bench.tell(ShardingInput::Out).contains(&stop), "gates send late messages back");
    let generation = Generation::new(Term { number: 1, owner: OTHER }, 1);
    let id = EpochId { generation: 1, number: 1 };
    let host =
        HostShard { shard: ShardId::new(3), generation, after: Predecessors::default(), epoch: id };
    let word = MachineMessage::Sharding(ShardingMessage::Region(ToRegion::Host(vec![host])));
    bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word });
    let region = bench.machines.of(&counter()).and_then(TypeMachines::region);
    assert_eq!(region.map(|region| region.hosted().count()), Some(0));
}

/// The other node, which also hosts the type, drains.
fn other_drains(state: &mut ClusterState) {
    let mut other = state.members[&OTHER].as_ref().clone();
    other.hosting.draining = true;
    state.members.insert(OTHER, Arc::new(other));
}

/// A shard was hosted here and was stopped, and the region keeps its payload.
fn keeps(change: impl FnOnce(&mut ClusterState)) -> (Bench, ShardId) {
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2], change);
    let (shard, id) = (ShardId::new(3), EpochId { generation: 1, number: 1 });
    let at = |seq| Generation::new(Term { number: 1, owner: OTHER }, seq);
    let word = HostShard { shard, generation: at(1), after: Predecessors::default(), epoch: id };
    let release = ReleaseShard { shard, generation: at(2), to: None, listed: at(1) };
    for message in [ToRegion::Host(vec![word]), ToRegion::Release(vec![release])] {
        let word = MachineMessage::Sharding(ShardingMessage::Region(message));
        bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word });
    }
    let fact = RegionInput::Drained { shard, payload: Some(vec![1, 2].into()) };
    bench.tell(ShardingInput::Fact { entity_type: counter(), fact });
    (bench, shard)
}

#[test]
fn leaving_node_stays_while_its_payload_has_an_heir() {
    let (mut bench, _) = keeps(|_| {});
    assert!(!bench.tell(ShardingInput::Leave).contains(&ShardingOutput::Left));
    let mut state = (*bench.machines.with.state).clone();
    other_drains(&mut state);
    assert!(bench.tell(ShardingInput::State(Arc::new(state))).contains(&ShardingOutput::Left));
}

#[test]
fn payload_kept_by_the_last_host_counts_as_lost_once() {
    let (mut bench, shard) = keeps(other_drains);
    assert!(bench.tell(ShardingInput::Leave).contains(&ShardingOutput::Left));
    let mut told = bench.tell(ShardingInput::Out);
    told.extend(bench.tell(ShardingInput::Out));
    let orders = told.iter().filter_map(|output| match output {
        ShardingOutput::Order { order, .. } => Some(order.clone()),
        _ => None,
    });
    let from = RegionId::new(ME);
    let lost =
        RegionOutput::Discard { reach: Reach::Unsent, shard, from, payload: vec![1, 2].into() };
    assert_eq!(orders.collect::<Vec<_>>(), [lost], "and no `StopAll`: gates send messages back");
}

#[test]
fn full_shutdown_hands_nothing_over() {
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2], |state| state.preparing_for_shutdown = true);
    let stop = ShardingOutput::Order { entity_type: counter(), order: RegionOutput::StopAll };
    assert_eq!(bench.tell(ShardingInput::Leave), [stop, ShardingOutput::Left]);
}

#[test]
fn full_shutdown_ends_a_leaving_node_at_once() {
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2], |_| {});
    let shard = ShardId::new(3);
    let generation = Generation::new(Term { number: 1, owner: OTHER }, 1);
    let id = EpochId { generation: 1, number: 1 };
    let host = HostShard { shard, generation, after: Predecessors::default(), epoch: id };
    let word = MachineMessage::Sharding(ShardingMessage::Region(ToRegion::Host(vec![host])));
    bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word });
    assert!(!bench.tell(ShardingInput::Leave).contains(&ShardingOutput::Left), "it hosts a shard");
    let prepared = bench.up(&[1, 2], |state| state.preparing_for_shutdown = true);
    let stop = ShardingOutput::Order { entity_type: counter(), order: RegionOutput::StopAll };
    assert!(prepared.contains(&stop) && prepared.contains(&ShardingOutput::Left), "{prepared:?}");
}

#[test]
fn a_node_that_drains_says_so_and_goes_on_hosting() {
    let mut bench = Bench::new();
    bench.start();
    let entity_types = BTreeSet::from(["counter".to_owned()]);
    let host = |draining| ShardingOutput::Host { entity_types: entity_types.clone(), draining };
    assert_eq!(bench.tell(ShardingInput::Drain), [host(true)]);
    assert_eq!(
        bench.tell(ShardingInput::StopDraining),
        [host(false)],
        "the node takes shards again"
    );
    assert!(!bench.machines.is_draining());
    bench.tell(ShardingInput::Drain);
    assert!(bench.machines.is_draining());
    bench.tell(ShardingInput::Leave);
    assert_eq!(bench.tell(ShardingInput::StopDraining), [], "a node that leaves drains for good");
    assert!(bench.machines.is_draining());
}

#[test]
fn drain_of_a_stopping_node_does_not_end() {
    let mut bench = Bench::new();
    bench.start();
    let entity_types = BTreeSet::from(["counter".to_owned()]);
    let host = ShardingOutput::Host { entity_types, draining: true };
    assert_eq!(bench.tell(ShardingInput::PrepareToLeave), [host]);
    assert_eq!(bench.tell(ShardingInput::StopDraining), [], "the node does not leave yet");
    assert!(bench.machines.is_draining());
}

/// Node 2 has started the type again and coordinates, but the messages that announced it were lost.
#[test]
fn elsewhere_makes_the_proxy_ask_the_oldest() {
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2, 3], |state| {
        let me = Arc::make_mut(state.members.get_mut(&ME).expect("it is there"));
        me.hosting.entity_types = NameSet::new(); // 2 is the oldest that has the type
    });
    let third = ReplicaId::new(3);
    let mut hear =
        |word| bench.tell(ShardingInput::Message { from: third, entity_type: counter(), word });
    hear(MachineMessage::Singleton(SingletonMessage::Here));
    let elsewhere = ToRegion::NotYet(RegistrationRefusal::Elsewhere);
    let said = hear(MachineMessage::Sharding(ShardingMessage::Region(elsewhere)));
    let word = MachineMessage::Singleton(SingletonMessage::Identify);
    let asks = ShardingOutput::Send { to: OTHER, entity_type: counter(), word };
    assert!(said.contains(&asks), "{said:?}");
}

fn differs(shards: u32) -> MachineMessage {
    MachineMessage::Sharding(ShardingMessage::Region(ToRegion::NotYet(
        RegistrationRefusal::Differs(agreed(shards)),
    )))
}

/// Whether the last offer to membership contains the type; `None` without an offer.
fn offers(outputs: &[ShardingOutput]) -> Option<bool> {
    outputs.iter().rev().find_map(|output| match output {
        ShardingOutput::Host { entity_types, .. } => Some(!entity_types.is_empty()),
        _ => None,
    })
}

#[test]
fn settings_mismatch_disqualifies_until_the_node_is_alone() {
    let mut bench = Bench::new();
    bench.start();
    bench.up(&[1, 2], |state| {
        let me = Arc::make_mut(state.members.get_mut(&ME).expect("it is there"));
        me.hosting.entity_types = NameSet::new(); // the other is older, and coordinates
    });
    let here = MachineMessage::Singleton(SingletonMessage::Here);
    bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word: here });
    let hear = |bench: &mut Bench, shards| {
        let (from, entity_type) = (OTHER, counter());
        bench.tell(ShardingInput::Message { from, entity_type, word: differs(shards) })
    };
    let told = hear(&mut bench, 100);
    let complaint = |shards| ShardingOutput::Differs {
        entity_type: counter(),
        here: agreed(1_000),
        coordinator: Some(OTHER),
        there: agreed(shards),
    };
    assert!(told.contains(&complaint(100)), "{told:?}");
    assert_eq!(offers(&told), Some(false));
    assert_eq!(hear(&mut bench, 100), [], "reported once a minute");
    assert_eq!(hear(&mut bench, 200), [complaint(200)], "another difference");
    assert!(bench.pass(Duration::from_secs(60)).contains(&complaint(200)));
    let alone = bench.up(&[1, 2], |state| {
        state.members.remove(&OTHER);
    });
    assert_eq!(offers(&alone), Some(true));
}

#[test]
fn known_failure_14_other_settings_are_not_registered() {
    let mut bench = Bench::new();
    bench.start();
    let (id, term) = fence(&bench.up(&[1, 2], |_| {})).expect("it takes a term");
    bench.act(id, term);
    let highest = crate::sharding::ids::Generation::NEVER;
    let mut register = |agreed| {
        let message = ToCoordinator::Register {
            proxy: false,
            hosted: vec![],
            highest,
            agreed,
            slow: Vec::new(),
        };
        let word = MachineMessage::Sharding(ShardingMessage::Coordinator(message));
        bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word })
    };
    let no = ShardingOutput::Send { to: OTHER, entity_type: counter(), word: differs(1_000) };
    let other_role = AgreedSettings { coordinator_role: Some("web".into()), ..agreed(1_000) };
    let other_hash = AgreedSettings { extractor: "java".into(), ..agreed(1_000) };
    for wrong in [agreed(100), other_role, other_hash, AgreedSettings::default()] {
        assert_eq!(register(wrong.clone()), std::slice::from_ref(&no), "{wrong}");
    }
    assert!(!register(agreed(1_000)).contains(&no));
}

#[test]
fn mismatch_with_stored_settings_disqualifies_for_good() {
    let mut bench = Bench::new();
    bench.start();
    let (id, _) = fence(&bench.up(&[1], |_| {})).expect("it takes a term");
    let Machines { types, with, .. } = &mut bench.machines;
    let of_type = types.get_mut(&counter()).expect("it is started");
    let generation = Generation::NEVER;
    let home = ShardHome { generation, region: None, after: BTreeMap::new(), epoch: with_epoch() };
    let answer = StoreAnswer::Fenced(vec![(ShardId::new(3), home)], Some(agreed(100)), None);
    of_type.answered(bench.now, id, |_| answer, with, &mut bench.out);
    let told = bench.tell(ShardingInput::Tick);
    let (here, there) = (agreed(1_000), agreed(100));
    let complaint =
        ShardingOutput::Differs { entity_type: counter(), here, coordinator: None, there };
    assert!(told.contains(&complaint), "{told:?}");
    assert_eq!(offers(&told), Some(false));
    assert_eq!(fence(&bench.pass(Duration::from_secs(1))), None);
    let alone = bench.up(&[1], |state| state.unreachable.clear());
    assert_eq!((fence(&alone), offers(&alone)), (None, None), "the offer stays withdrawn");
}

const fn with_epoch() -> EpochId {
    EpochId { generation: 1, number: 1 }
}

#[test]
fn known_failure_42_coordinator_end_leaves_region_as_is() {
    let mut bench = Bench::new();
    bench.start();
    let (id, term) = fence(&bench.up(&[1, 2], |_| {})).expect("it takes a term");
    bench.act(id, term);
    let (shard, generation) = (ShardId::new(3), Generation::new(term, 2));
    let host = HostShard { shard, generation, after: Predecessors::default(), epoch: with_epoch() };
    let word = MachineMessage::Sharding(ShardingMessage::Region(ToRegion::Host(vec![host])));
    bench.tell(ShardingInput::Message { from: ME, entity_type: counter(), word });
    let told = bench.tell(ShardingInput::LeaseLost);
    let of_type = bench.machines.of(&counter()).expect("it is started");
    assert_eq!(of_type.coordinator().map(Coordinator::phase), Some(CoordinatorPhase::Off));
    assert_eq!(of_type.region().map(|region| region.hosted().count()), Some(1));
    let orders = told.iter().filter_map(|output| match output {
        ShardingOutput::Order { order, .. } => Some(order),
        _ => None,
    });
    let orders: Vec<_> = orders.collect();
    assert_eq!(orders, [&RegionOutput::Coordinated(false)]);
}
