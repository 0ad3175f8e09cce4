//! Messages about many shards, with the longest numbers possible, fit the limit of a lane. A longer
//! message would be dropped, and so would each repetition.

use super::*;

const SHARDS: u32 = 1_000;

/// Half of the smallest message limit of a lane.
const WORDS: usize = 4 << 10;

/// A generation near the maximum, so that its encoding has the greatest length.
fn far(number: u64, seq: u64) -> Generation {
    let term = Term { number: Term::NUMBER_MAX - 9 + number, owner: ReplicaId::new(u64::MAX - 1) };
    Generation::new(term, u64::MAX - 9 + seq)
}

const OTHER: ReplicaId = ReplicaId::new(u64::MAX - 2);

fn shards() -> impl Iterator<Item = ShardId> {
    let last = SHARDS_MAX - SHARDS;
    (last..SHARDS_MAX).map(ShardId::new)
}

/// A region that hosts all shards; the members' ids have the longest encoding.
fn hosting() -> (Bench, Vec<RegionOutput>) {
    let cut = PayloadPartSizes { words: WORDS, whole: 4, ..PayloadPartSizes::default() };
    let config = RegionConfig { shards: SHARDS_MAX, cut, ..RegionConfig::default() };
    let mut bench = Bench::with(config, ShardingFaultInjection::none());
    let members = installed(1, 1..=5).members.into_iter().chain([RegionId::new(OTHER)]);
    let epoch = EpochId { generation: 1, number: 2 };
    let installed = Installed { epoch, members: members.collect(), forced: None };
    bench.tell(RegionInput::Installed(installed));
    let out = bench.order(hosts(far(1, 1)));
    (bench, out)
}

fn hosts(generation: Generation) -> ToRegion {
    let epoch = EpochId { generation: 1, number: 1 };
    let word = |shard| HostShard { shard, generation, after: Predecessors::default(), epoch };
    ToRegion::Host(shards().map(word).collect())
}

fn releases(generation: Generation, to: Option<ReplicaId>) -> ToRegion {
    let to = to.map(RegionId::new);
    let listed = Generation::NEVER;
    let word = |shard| ReleaseShard { shard, generation, to, listed };
    ToRegion::Release(shards().map(word).collect())
}

fn drained(bench: &mut Bench) -> Vec<RegionOutput> {
    let payload = || Some(Bytes::from_static(b"a payload that is fetched"));
    let drained = |shard| RegionInput::Drained { shard, payload: payload() };
    bench.batch(shards().map(drained).collect())
}

fn registers(bench: &mut Bench) -> Vec<RegionOutput> {
    let mut out = bench.tell(RegionInput::CoordinatorAt(Some(COORDINATOR)));
    let term = Term { number: 1, owner: COORDINATOR };
    out.extend(bench.order(ToRegion::RegisterAck { term, homes: RouteTable::default() }));
    out
}

/// Number of shards in the messages to `to` that `of` counts. Asserts that there are several such
/// messages and that each fits.
fn named(
    out: &[RegionOutput],
    to: ReplicaId,
    of: impl Fn(&ShardingMessage) -> Option<usize>,
) -> usize {
    let (mut named, mut messages) = (0, 0);
    for (_, word) in sent(out).iter().filter(|(id, _)| *id == to.get()) {
        let bytes = rmp_serde::to_vec_named(word).expect("it encodes").len();
        assert!(bytes <= WORDS, "{bytes} bytes");
        if let Some(shards) = of(word) {
            (named, messages) = (named + shards, messages + 1);
        }
    }
    assert!(messages > 1, "{messages} messages");
    named
}

fn to_coordinator(
    of: impl Fn(&ToCoordinator) -> Option<usize>,
) -> impl Fn(&ShardingMessage) -> Option<usize> {
    move |word| match word {
        ShardingMessage::Coordinator(word) => of(word),
        ShardingMessage::Region(_) => None,
    }
}

fn to_region(
    of: impl Fn(&ToRegion) -> Option<usize>,
) -> impl Fn(&ShardingMessage) -> Option<usize> {
    move |word| match word {
        ShardingMessage::Region(word) => of(word),
        ShardingMessage::Coordinator(_) => None,
    }
}

#[test]
fn confirmations_and_registrations_fit_the_limit() {
    let (mut bench, out) = hosting();
    let confirmed = to_coordinator(|word| match word {
        ToCoordinator::Hosted(shards) => Some(shards.len()),
        _ => None,
    });
    assert_eq!(named(&out, COORDINATOR, confirmed), SHARDS as usize);
    let registered = to_coordinator(|word| match word {
        ToCoordinator::Register { hosted, .. } => Some(hosted.len()),
        _ => None,
    });
    assert_eq!(named(&registers(&mut bench), COORDINATOR, registered), SHARDS as usize);
}

/// The slow handlers are listed in each message.
#[test]
fn registrations_with_slow_handlers_fit_the_limit() {
    let (mut bench, _) = hosting();
    bench.tell(RegionInput::SlowHandlers(shards().collect()));
    let registered = to_coordinator(|word| match word {
        ToCoordinator::Register { hosted, slow, .. } => {
            assert_eq!(slow.len(), WORDS / 2 / SHARD_BYTES, "half of a message");
            Some(hosted.len())
        }
        _ => None,
    });
    assert_eq!(named(&registers(&mut bench), COORDINATOR, registered), SHARDS as usize);
}

#[test]
fn confirmations_to_regions_fit_the_limit() {
    let (mut bench, _) = hosting();
    let word = |shard| Released {
        shard,
        reached: far(1, 1),
        last: g(1),
        payload: None,
        sealed: Generation::NEVER,
        cluster: 1,
    };
    let word = ToRegion::Released(shards().map(word).collect());
    let out = bench.hear(OTHER.get(), word);
    let taken = to_region(|word| match word {
        ToRegion::Hosted(shards) => Some(shards.len()),
        _ => None,
    });
    assert_eq!(named(&out, OTHER, taken), SHARDS as usize);
}

#[test]
fn announcements_of_long_payloads_fit_the_limit() {
    let (mut bench, _) = hosting();
    bench.order(releases(far(2, 2), Some(OTHER)));
    let mut out = drained(&mut bench);
    let announced = || {
        to_region(|word| match word {
            ToRegion::Carries(words) => Some(words.len()),
            _ => None,
        })
    };
    assert_eq!(named(&out, OTHER, announced()), SHARDS as usize);
    out = bench.wait().expect("the announcements are repeated").1;
    assert_eq!(named(&out, OTHER, announced()), SHARDS as usize);
}

#[test]
fn drained_and_home_requests_fit_the_limit() {
    let (mut bench, _) = hosting();
    registers(&mut bench);
    bench.order(releases(far(2, 2), None));
    let out = drained(&mut bench);
    let ended = to_coordinator(|word| match word {
        ToCoordinator::Drained(shards) => Some(shards.len()),
        _ => None,
    });
    assert_eq!(named(&out, COORDINATOR, ended), SHARDS as usize);
    let out = bench.batch(vec![RegionInput::Heirs { any: true }, RegionInput::Leave]);
    let asked = to_coordinator(|word| match word {
        ToCoordinator::GetShardHome(shards) => Some(shards.len()),
        _ => None,
    });
    assert_eq!(named(&out, COORDINATOR, asked), SHARDS as usize);
}

#[test]
fn final_announcements_of_homes_fit_the_limit() {
    let (mut bench, _) = hosting();
    bench.order(releases(far(2, 2), Some(OTHER)));
    drained(&mut bench);
    bench.hear(OTHER.get(), ToRegion::Hosted(shards().map(|shard| (shard, far(2, 2))).collect()));
    let out = bench.tell(RegionInput::Leave);
    assert!(out.contains(&RegionOutput::Left));
    let told = to_region(|word| match word {
        ToRegion::Announce(routes) => Some(routes.len()),
        _ => None,
    });
    assert_eq!(named(&out, OTHER, &told), SHARDS as usize);
    assert_eq!(named(&out, ReplicaId::new(3), told), SHARDS as usize);
}

#[test]
fn stop_and_home_requests_fit_the_limit() {
    let (mut bench, _) = hosting();
    registers(&mut bench);
    let within = Duration::from_secs(9);
    let out = bench.tell(RegionInput::Stop { shards: shards().collect(), within });
    let stops = to_coordinator(|word| match word {
        ToCoordinator::Stop(shards) => Some(shards.len()),
        _ => None,
    });
    assert_eq!(named(&out, COORDINATOR, stops), SHARDS as usize);
    let out = bench.batch(shards().map(RegionInput::Wanted).collect());
    let asked = to_coordinator(|word| match word {
        ToCoordinator::GetShardHome(shards) => Some(shards.len()),
        _ => None,
    });
    assert_eq!(named(&out, COORDINATOR, asked), SHARDS as usize);
}
