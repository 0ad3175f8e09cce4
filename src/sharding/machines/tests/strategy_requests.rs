//! Tests of strategies that answer later: a strategy of the program, and `external`, which waits
//! for pins.

use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::port;
use ostraca_ddata::replicator::request::{ReplicatorRequest, RequestId, Update, WriteConsistency};
use ostraca_ddata::replicator::{self, Replicator};

use super::*;
use crate::sharding::allocation::pins::{self, PinsKey, PinsRequest, Wanted};
use crate::sharding::allocation::{Allocations, StrategyAnswer, StrategyRequest};
use crate::sharding::config::AllocationStrategyName;

const HERE: RegionId = RegionId::new(ME);
const THERE: RegionId = RegionId::new(OTHER);
const NOBODY: RegionId = RegionId::new(ReplicaId::new(99));
const MS: Duration = Duration::from_millis(1);

/// An active coordinator of a type with the program's strategy `strategy`, or with the configured
/// one.
fn acting(
    strategy: Option<&str>,
    name: AllocationStrategyName,
    members: &[u64],
) -> (Bench, Vec<ShardingOutput>) {
    acting_by(strategy, Settings { allocation_strategy: name, ..Settings::default() }, members)
}

fn acting_by(
    strategy: Option<&str>,
    settings: Settings,
    members: &[u64],
) -> (Bench, Vec<ShardingOutput>) {
    let mut bench = Bench { shards: settings.number_of_shards, ..Bench::new() };
    let (entity_type, settings, extractor) = (counter(), Box::new(settings), "xxh3".into());
    let (strategy, hosts) = (strategy.map(Into::into), Hosts::Shards);
    let started =
        bench.tell(ShardingInput::Start { entity_type, settings, extractor, strategy, hosts });
    let (id, term) = fence(&bench.up(members, |_| {})).expect("it takes a term");
    let mut told = started;
    told.extend(bench.act(id, term));
    (bench, told)
}

fn own() -> Bench {
    acting_with(&[1])
}

fn acting_with(members: &[u64]) -> Bench {
    acting(Some("mine"), AllocationStrategyName::default(), members).0
}

impl Bench {
    fn want(&mut self, shards: &[u32]) -> Vec<ShardingOutput> {
        let shards = shards.iter().copied().map(ShardId::new).collect();
        let message = ToCoordinator::GetShardHome(shards);
        let word = MachineMessage::Sharding(ShardingMessage::Coordinator(message));
        self.tell(ShardingInput::Message { from: ME, entity_type: counter(), word })
    }

    fn advise(
        &mut self,
        number: u64,
        advice: Result<StrategyAnswer, Arc<str>>,
    ) -> Vec<ShardingOutput> {
        self.tell(ShardingInput::Advised { entity_type: counter(), number, advice })
    }

    /// The Replicator acknowledges the write among these outputs.
    fn written(&mut self, outputs: &[ShardingOutput]) {
        let id = outputs.iter().find_map(|output| match output {
            ShardingOutput::Ask { id, ask: StoreRequest::Write { .. }, .. } => Some(*id),
            _ => None,
        });
        let id = id.expect("a write is pending");
        let Machines { types, with, .. } = &mut self.machines;
        let of_type = types.get_mut(&counter()).expect("it is started");
        of_type.answered(self.now, id, |_| StoreAnswer::Written, with, &mut self.out);
    }

    fn home(&mut self, number: u64, home: RegionId) -> Vec<ShardingOutput> {
        self.advise(number, Ok(StrategyAnswer::Home(home)))
    }
}

/// Numbers of the questions for homes, with their shards.
fn homes(outputs: &[ShardingOutput]) -> Vec<(u64, u32)> {
    let asked = outputs.iter().filter_map(|output| match output {
        ShardingOutput::Consult { number, asked: StrategyRequest::Home { shard, .. }, .. } => {
            Some((*number, shard.get()))
        }
        _ => None,
    });
    asked.collect()
}

fn moves(outputs: &[ShardingOutput]) -> Vec<u64> {
    let asked = outputs.iter().filter_map(|output| match output {
        ShardingOutput::Consult { number, asked: StrategyRequest::Moves { .. }, .. } => {
            Some(*number)
        }
        _ => None,
    });
    asked.collect()
}

fn failures(outputs: &[ShardingOutput]) -> Vec<&str> {
    let failed = outputs.iter().filter_map(|output| match output {
        ShardingOutput::StrategyFailed { why, .. } => Some(&**why),
        _ => None,
    });
    failed.collect()
}

/// Homes in the writes among the outputs.
fn written(outputs: &[ShardingOutput]) -> Vec<(u32, Option<RegionId>)> {
    let cells = outputs.iter().filter_map(|output| match output {
        ShardingOutput::Ask { ask: StoreRequest::Write { cells, .. }, .. } => Some(cells),
        _ => None,
    });
    cells.flatten().map(|(shard, home)| (shard.get(), home.region)).collect()
}

/// Reasons of the decisions among the outputs.
fn reasons(outputs: &[ShardingOutput]) -> Vec<&str> {
    let steps = outputs.iter().filter_map(|output| match output {
        ShardingOutput::Step { step, .. }
            if step.what == crate::sharding::decision_history::DecisionStepKind::Decided =>
        {
            Some(&*step.of.why)
        }
        _ => None,
    });
    steps.collect()
}

#[test]
fn program_strategy_is_asked_one_shard_at_a_time() {
    let mut bench = own();
    let asked = bench.want(&[3, 4]);
    let [
        ShardingOutput::Consult {
            number, asked: StrategyRequest::Home { shard, asker, seen }, ..
        },
    ] = &asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!((*number, shard.get(), *asker), (1, 3, Some(HERE)));
    assert_eq!(seen.regions.keys().collect::<Vec<_>>(), [&HERE]);
    assert_eq!(bench.want(&[5]), [], "one at a time");
    let next = bench.home(1, HERE);
    assert_eq!((written(&next), homes(&next)), (vec![(3, Some(HERE))], vec![(2, 4)]));
    assert_eq!(reasons(&next), ["mine"]);
    assert_eq!(homes(&bench.home(2, HERE)), [(3, 5)]);
}

#[test]
fn late_answer_is_ignored_and_the_next_shard_is_asked() {
    let mut bench = own();
    assert_eq!(homes(&bench.want(&[3, 4])), [(1, 3)]);
    let over = bench.pass(5_000 * MS);
    assert_eq!((failures(&over), homes(&over)), (vec!["it has not answered within 5s"], vec![]));
    assert_eq!(written(&bench.home(1, HERE)), [], "too late");
    let asked = homes(&bench.pass(100 * MS));
    let [(number, 4)] = asked[..] else { panic!("the other shard comes first: {asked:?}") };
    let next = bench.home(number, HERE);
    assert_eq!((written(&next), homes(&next)), (vec![(4, Some(HERE))], vec![(number + 1, 3)]));
}

#[test]
fn failing_strategy_backs_off_and_warns_once_a_minute() {
    let mut bench = own();
    let mut asked = homes(&bench.want(&[3]));
    let mut complaints = 0;
    for pause in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
        let [(number, 3)] = asked[..] else { panic!("{asked:?}") };
        complaints += failures(&bench.advise(number, Err("no".into()))).len();
        assert_eq!(homes(&bench.pass((pause - 1) * MS)), []);
        asked = homes(&bench.pass(MS));
    }
    assert_eq!(complaints, 1);
    let next = bench.home(asked[0].0, HERE);
    assert_eq!(written(&next), [(3, Some(HERE))]);
    let [(number, 4)] = homes(&bench.want(&[4]))[..] else { panic!("it is asked at once") };
    bench.advise(number, Err("no".into()));
    assert_eq!(homes(&bench.pass(100 * MS)).len(), 1, "the pause is short again");
}

#[test]
fn question_costs_only_changes_since_the_last() {
    const SHARDS: u32 = 10_000;
    let settings = Settings { number_of_shards: SHARDS, preallocate: true, ..Settings::default() };
    let (mut bench, mut told) = acting_by(Some("mine"), settings, &[1]);
    let mut asked = 0;
    while let Some(ShardingOutput::Consult {
        number,
        asked: StrategyRequest::Home { seen, .. },
        ..
    }) = told.iter().find(|output| matches!(output, ShardingOutput::Consult { .. }))
    {
        if asked % 1_000 == 0 {
            assert_eq!(seen.homes().count(), asked, "the snapshot has all chosen homes");
        }
        asked += 1;
        let number = *number;
        drop(told); // a strategy that has answered holds no snapshot
        let next = bench.home(number, HERE);
        told = bench.hold(next);
    }
    assert_eq!(asked, SHARDS as usize);
    let drawn = bench.machines.of(&counter()).expect("it is started").drawn();
    assert!((1..10).contains(&drawn), "{drawn} snapshots were built from scratch");
}

#[test]
fn snapshot_held_by_a_strategy_never_changes() {
    let mut bench = own();
    let [ShardingOutput::Consult { number, asked: StrategyRequest::Home { seen, .. }, .. }] =
        &bench.want(&[3, 4])[..]
    else {
        panic!("it is asked")
    };
    let (number, kept, then) = (*number, Arc::clone(seen), Allocations::clone(seen));
    let told = bench.home(number, HERE);
    let Some(ShardingOutput::Consult { asked: StrategyRequest::Home { seen, .. }, .. }) =
        told.first()
    else {
        panic!("{told:?}")
    };
    assert_eq!(seen.homes().collect::<Vec<_>>(), [(ShardId::new(3), HERE)]);
    assert_eq!(*kept, then);
}

#[test]
fn unknown_region_as_answer_changes_nothing() {
    let mut bench = own();
    assert_eq!(homes(&bench.want(&[3])), [(1, 3)]);
    let told = bench.home(1, NOBODY);
    assert_eq!((written(&told), failures(&told).len()), (vec![], 1), "{told:?}");
    assert_eq!(homes(&bench.pass(100 * MS)), [(2, 3)]);
}

#[test]
fn moves_as_answer_for_a_home_are_reported_as_such() {
    let mut bench = own();
    assert_eq!(homes(&bench.want(&[3])), [(1, 3)]);
    let told = bench.advise(1, Ok(StrategyAnswer::Moves(BTreeMap::new())));
    assert_eq!(failures(&told), ["it answered no home for shard 3, but moves"]);
}

#[test]
fn answer_to_a_former_coordinator_is_ignored() {
    let mut bench = own();
    assert_eq!(homes(&bench.want(&[3])), [(1, 3)]);
    bench.tell(ShardingInput::LeaseLost);
    assert_eq!(written(&bench.home(1, HERE)), []);
    let (id, term) = fence(&bench.tell(ShardingInput::LeaseHeld)).expect("it takes the next term");
    bench.act(id, term);
    assert_eq!(written(&bench.home(1, HERE)), [], "also once the next coordinator is active");
    let [(number, 3)] = homes(&bench.want(&[3]))[..] else { panic!("it is asked anew") };
    assert!(number > 1);
    assert_eq!(written(&bench.home(number, HERE)), [(3, Some(HERE))]);
}

#[test]
fn moves_take_one_question_and_invalid_ones_are_dropped() {
    let mut bench = own();
    let asked = bench.pass(10_000 * MS);
    let [number] = moves(&asked)[..] else { panic!("{asked:?}") };
    assert_eq!(moves(&bench.pass(4_000 * MS)), [0; 0]);
    let nonsense = BTreeMap::from([(ShardId::new(3), HERE), (ShardId::new(4), NOBODY)]);
    let told = bench.advise(number, Ok(StrategyAnswer::Moves(nonsense)));
    assert_eq!((written(&told), failures(&told).len()), (vec![], 0));
    let again = moves(&bench.pass(10_000 * MS));
    let [number] = again[..] else { panic!("{again:?}") };
    assert_eq!(failures(&bench.advise(number, Err("no".into()))), ["no"]);
    assert_eq!(moves(&bench.pass(100 * MS)).len(), 1, "asked again after a pause");
}

#[test]
fn rebalance_interval_is_the_pause_between_questions() {
    for interval in [2, 8].map(Duration::from_secs) {
        let settings = Settings { rebalance_interval: interval, ..Settings::default() };
        let (mut bench, _) = acting_by(Some("mine"), settings, &[1]);
        // The registration of the region brings the first question forward, so only the later ones
        // show the interval.
        let mut asked = moves(&bench.pass(interval));
        for _ in 0..2 {
            let [number] = asked[..] else { panic!("{interval:?}: {asked:?}") };
            bench.advise(number, Ok(StrategyAnswer::Moves(BTreeMap::new())));
            assert_eq!(moves(&bench.pass(interval - MS)), [0; 0], "{interval:?}");
            asked = moves(&bench.pass(MS));
        }
        assert_eq!(asked.len(), 1, "{interval:?}");
    }
}

/// The coordinator is active, and the other node's region is registered.
fn own_with_another() -> Bench {
    let mut bench = acting_with(&[1, 2]);
    bench.hear(ToCoordinator::Register {
        proxy: false,
        hosted: Vec::new(),
        highest: Generation::NEVER,
        agreed: agreed(1_000),
        slow: Vec::new(),
    });
    bench
}

impl Bench {
    /// Delivers a message of the other node's region.
    fn hear(&mut self, message: ToCoordinator) -> Vec<ShardingOutput> {
        let word = MachineMessage::Sharding(ShardingMessage::Coordinator(message));
        self.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word })
    }

    /// Acknowledges all writes at once, and returns all outputs.
    fn hold(&mut self, mut told: Vec<ShardingOutput>) -> Vec<ShardingOutput> {
        let mut all = Vec::new();
        while !written(&told).is_empty() {
            self.written(&told);
            all.append(&mut told);
            told = self.tell(ShardingInput::Tick);
        }
        all.extend(told);
        all
    }

    /// The strategy places these shards there.
    fn place(&mut self, shards: &[u32], at: RegionId) {
        let mut told = self.want(shards);
        while let [(number, _)] = homes(&told)[..] {
            let next = self.home(number, at);
            told = self.hold(next);
        }
    }
}

#[test]
fn region_of_an_older_program_as_answer_is_a_failure() {
    let mut bench = own_with_another();
    let mut state = (*bench.machines.with.state).clone();
    let other = Arc::make_mut(state.members.get_mut(&OTHER).expect("a member"));
    other.app_version = "2".to_owned();
    bench.tell(ShardingInput::State(Arc::new(state)));
    assert_eq!(homes(&bench.want(&[3])), [(1, 3)]);
    let told = bench.home(1, HERE);
    assert_eq!((written(&told), failures(&told).len()), (vec![], 1), "{told:?}");
    assert_eq!(homes(&bench.pass(100 * MS)), [(2, 3)]);
    assert_eq!(written(&bench.home(2, THERE)), [(3, Some(THERE))]);
}

#[test]
fn leaving_node_waits_for_no_failing_strategy() {
    let mut bench = own_with_another();
    bench.place(&[3], THERE);
    let [(number, 3)] = homes(&bench.hear(ToCoordinator::Leaving))[..] else {
        panic!("it is asked first")
    };
    bench.want(&[4]);
    let told = bench.advise(number, Err("no".into()));
    assert_eq!(written(&told), [(3, Some(HERE))], "but not the new shard 4");
    let why = "its region leaves: the program's strategy has failed, and time is short: fewest \
               shards: 0";
    assert_eq!(reasons(&told), [why]);
}

/// The shard was stopped, and the leaving node keeps messages for its next home.
#[test]
fn kept_payload_of_a_leaver_waits_for_no_failing_strategy() {
    let mut bench = own_with_another();
    bench.place(&[3], THERE);
    let told = bench.hear(ToCoordinator::Stop(vec![(ShardId::new(3), 1)]));
    bench.hold(told);
    let coordinator = bench.machines.types[&counter()].coordinator().expect("it is started");
    let home = coordinator.record(ShardId::new(3)).expect("it is decided").home().clone();
    assert_eq!(home.region, None);
    bench.hear(ToCoordinator::Drained(vec![(ShardId::new(3), home.generation)]));
    bench.hear(ToCoordinator::Leaving);
    let told = bench.hear(ToCoordinator::GetShardHome(vec![ShardId::new(3)]));
    let [(number, 3)] = homes(&told)[..] else { panic!("it is asked first: {told:?}") };
    let told = bench.advise(number, Err("no".into()));
    assert_eq!(written(&told), [(3, Some(HERE))]);
}

#[test]
fn leaving_node_waits_3_s_in_total_for_a_slow_strategy() {
    const SHARDS: u32 = 400;
    let mut bench = own_with_another();
    bench.place(&(0..SHARDS).collect::<Vec<_>>(), THERE);
    let left = bench.now.mono;
    let mut told = bench.hear(ToCoordinator::Leaving);
    told.extend(bench.want(&[700]));
    let (mut asked, mut homes_of) = (Vec::new(), BTreeMap::new());
    for _ in 0..10 {
        let [(number, shard)] = homes(&told)[..] else { break };
        asked.push(shard);
        let mut late = bench.pass(1_000 * MS);
        late.extend(bench.home(number, HERE));
        told = bench.hold(late);
        homes_of.extend(written(&told));
    }
    assert_eq!(asked, [0, 1, 2, 700], "one after the other, a second each");
    let whole: BTreeMap<u32, _> = (0..SHARDS).chain([700]).map(|id| (id, Some(HERE))).collect();
    assert_eq!(homes_of, whole);
    let coordinator = bench.machines.types[&counter()].coordinator().expect("it is started");
    let why = |shard: u32| {
        let mut of_shard = coordinator.remembered().of_shard(ShardId::new(shard));
        let last = of_shard.find(|entry| entry.to == Some(HERE)).expect("it is remembered");
        ((last.begun - left).as_secs(), &*last.why)
    };
    assert_eq!(why(1), (2, "its region leaves: mine"));
    let late = "its region leaves: the program's strategy took over 3s for it: fewest shards: 2";
    assert_eq!(why(2), (3, late), "the late answer for that shard is ignored");
    assert_eq!(why(SHARDS - 1).0, 3);
    assert_eq!(why(700), (4, "mine"), "a shard of no leaving node waits for the strategy");
    assert!(
        bench.machines.next_deadline() > Some(bench.now.mono),
        "no deadline repeats without end"
    );
}

#[test]
fn old_answer_is_ignored_while_a_newer_question_is_open() {
    let mut bench = own_with_another();
    assert_eq!(homes(&bench.want(&[3, 4])), [(1, 3)]);
    bench.pass(5_000 * MS);
    let [(number, 4)] = homes(&bench.pass(100 * MS))[..] else { panic!("the other one") };
    let told = bench.home(1, THERE);
    assert_eq!((written(&told), homes(&told)), (vec![], vec![]), "for shard 3, and too late");
    let told = bench.home(number, HERE);
    assert_eq!(written(&told), [(4, Some(HERE))], "the newer question is still open");
    assert_eq!(homes(&told), [(number + 1, 3)], "and shard 3 still needs a home");
}

#[test]
fn old_moves_are_ignored_while_a_newer_question_is_open() {
    let mut bench = own_with_another();
    bench.place(&[3, 4], HERE);
    let [old] = moves(&bench.pass(10_000 * MS))[..] else { panic!("it is time to look") };
    bench.pass(5_000 * MS);
    let [new] = moves(&bench.pass(100 * MS))[..] else { panic!("it is asked again") };
    let away = |shard| Ok(StrategyAnswer::Moves(BTreeMap::from([(ShardId::new(shard), THERE)])));
    assert_eq!(written(&bench.advise(old, away(3))), []);
    assert_eq!(written(&bench.advise(new, away(4))), [(4, Some(THERE))]);
}

/// A replica's answer to a read after this change of an empty map of pins.
fn pinned(wanted: &Wanted) -> ReplicatorReply {
    let (config, registry, fault_injection) =
        (ReplicatorConfig::default(), Default::default(), Default::default());
    let setup =
        replicator::ReplicatorParameters { me: ME, config, registry, seed: 1, fault_injection };
    let (mut replica, mut out, wanted) = (Replicator::new(setup), Outbox::new(), wanted.clone());
    let key = PinsKey::new(&counter());
    let change = move |map: &mut ostraca_ddata::types::edit::Edit<'_, pins::Pins>| {
        pins::change(map, &wanted)
    };
    let request = port::ReplicatorInput::Request {
        id: RequestId(1),
        request: ReplicatorRequest::Update(Update::new(key.key(), WriteConsistency::Local, change)),
    };
    replica.handle(Now::default(), request, &mut out);
    let value = out.drain().find_map(|output| match output {
        port::ReplicatorOutput::Reply {
            reply: Ok(ReplicatorReply::Updated { value, .. }), ..
        } => value,
        _ => None,
    });
    ReplicatorReply::Got { value: Some(value.expect("it is made")), context: Default::default() }
}

fn to(address: &str) -> Option<Address> {
    Some(Address::new(address).expect("short"))
}

fn asks(outputs: &[ShardingOutput]) -> Vec<(u64, PinsRequest)> {
    let asks = outputs.iter().filter_map(|output| match output {
        ShardingOutput::AskPins { id, ask, .. } => Some((*id, *ask)),
        _ => None,
    });
    asks.collect()
}

#[test]
fn no_home_before_the_pins_of_a_majority_are_read() {
    let (mut bench, told) = acting(None, AllocationStrategyName::External, &[1]);
    let [(watched, PinsRequest::Watch), (catch, PinsRequest::Catch { .. })] = asks(&told)[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!(written(&bench.want(&[3, 4])), []);
    let got = ReplicatorReply::Got { value: None, context: Default::default() };
    let told = bench.tell(ShardingInput::Answered { id: catch, reply: Ok(got) });
    let [(read, PinsRequest::Read)] = asks(&told)[..] else { panic!("{told:?}") };
    let (here, gone) = (to("/ip4/10.0.0.1/tcp/1"), to("/ip4/10.0.0.9/tcp/1"));
    let reply = Ok(pinned(&Wanted::from([(ShardId::new(3), here), (ShardId::new(4), gone)])));
    let told = bench.tell(ShardingInput::Answered { id: read, reply });
    assert_eq!(written(&told), [(3, Some(HERE)), (4, Some(HERE))]);
    let waits = "pinned to /ip4/10.0.0.9/tcp/1, where no region may host, so here until one may";
    assert_eq!(reasons(&told), ["pinned", waits]);
    let told = bench.pass(50 * MS);
    let waiting = told.iter().filter(|output| matches!(output, ShardingOutput::PinsAbsent { .. }));
    assert_eq!(waiting.count(), 1, "{told:?}");
    let ReplicatorReply::Got { value: Some(value), .. } = pinned(&Wanted::new()) else {
        unreachable!()
    };
    let key = PinsKey::new(&counter()).key().name().clone();
    let notice = SubscriptionNotice::Changed { key, value, before: None };
    bench.tell(ShardingInput::Noticed { id: watched, notice });
    assert_eq!(bench.pass(10_000 * MS), [], "no shard is pinned now");
}

#[test]
fn without_a_majority_the_local_pins_choose_homes() {
    let (mut bench, told) = acting(None, AllocationStrategyName::External, &[1]);
    let (catch, _) = asks(&told)[1];
    let late = Err(RequestError::Timeout(Default::default()));
    let told = bench.tell(ShardingInput::Answered { id: catch, reply: late });
    let [(read, PinsRequest::Read)] = asks(&told)[..] else { panic!("{told:?}") };
    bench.want(&[3]);
    let got = ReplicatorReply::Got { value: None, context: Default::default() };
    let told = bench.tell(ShardingInput::Answered { id: read, reply: Ok(got) });
    assert_eq!(written(&told), [(3, Some(HERE))]);
    assert_eq!(reasons(&told), ["pinned nowhere, so where it was asked for"]);
    let again = asks(&bench.pass(1_000 * MS));
    assert!(matches!(again[..], [(_, PinsRequest::Catch { .. })]), "{again:?}");
}

#[test]
fn open_request_about_pins_ends_with_its_coordinator() {
    let (mut bench, told) = acting(None, AllocationStrategyName::External, &[1]);
    let (catch, _) = asks(&told)[1];
    bench.tell(ShardingInput::LeaseLost);
    let late = Err(RequestError::Timeout(Default::default()));
    let mut told = bench.tell(ShardingInput::Answered { id: catch, reply: late });
    told.extend(bench.pass(1_000 * MS));
    assert!(asks(&told).is_empty(), "{told:?}");
}
