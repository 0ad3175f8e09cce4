//! Tests of registration, requests for homes, long drains, stop requests and the record of
//! decisions.

use super::*;

fn registers(hosted: &[(ShardId, Generation)], highest: Generation) -> (u64, ShardingMessage) {
    let hosted = hosted.to_vec();
    let word = ToCoordinator::Register {
        proxy: false,
        hosted,
        highest,
        agreed: AgreedSettings::default(),
        slow: Vec::new(),
    };
    (COORDINATOR.get(), ShardingMessage::Coordinator(word))
}

pub(super) fn found(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.tell(RegionInput::CoordinatorAt(Some(COORDINATOR)))
}

pub(super) fn ack(number: u64) -> ToRegion {
    let term = Term { number, owner: COORDINATOR };
    ToRegion::RegisterAck { term, homes: RouteTable::default() }
}

pub(super) fn asks(shards: &[u32]) -> (u64, ShardingMessage) {
    let shards = shards.iter().copied().map(ShardId::new).collect();
    let word = ToCoordinator::GetShardHome(shards);
    (COORDINATOR.get(), ShardingMessage::Coordinator(word))
}

#[test]
fn registration_repeats_until_acknowledged() {
    let mut bench = Bench::new();
    assert_eq!(sent(&found(&mut bench)), [registers(&[], Generation::NEVER)]);
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (2_000, vec![registers(&[], Generation::NEVER)]));
    assert!(bench.order(ack(1)).contains(&RegionOutput::Registered));
    assert!(bench.region.is_registered());
}

#[test]
fn audit_registration_lists_hosted_shards() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ack(1));
    bench.order(host(3, &[]));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (30_000, vec![registers(&[(SHARD, g(3))], g(3))]));
    assert!(!bench.order(ack(1)).contains(&RegionOutput::Registered), "registered already");
}

#[test]
fn here_causes_a_registration_at_once() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ToRegion::NotYet(RegistrationRefusal::Reading));
    let out = bench.hear(4, ToRegion::Here(Term { number: 2, owner: ReplicaId::new(4) }));
    assert_eq!(sent(&out)[0].0, 4);
    assert_eq!(bench.order(ToRegion::Here(Term { number: 1, owner: COORDINATOR })), []);
    assert_eq!(bench.order(ack(1)), [], "a superseded coordinator's answer is ignored");
    assert!(!bench.region.is_registered());
}

#[test]
fn unknown_homes_are_requested_together_until_known() {
    let mut bench = Bench::new();
    for shard in [1, 2, 3] {
        assert_eq!(bench.tell(RegionInput::Wanted(ShardId::new(shard))), []);
    }
    found(&mut bench);
    assert_eq!(sent(&bench.order(ack(1))), [asks(&[1, 2, 3])]);
    assert_eq!(bench.tell(RegionInput::Wanted(ShardId::new(2))), [], "requested already");
    let route = |shard, home| ShardRoute { shard: ShardId::new(shard), generation: g(1), home };
    let known = [route(1, Some(region(2))), route(2, None)];
    bench.order(ToRegion::Announce(known.into_iter().collect()));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (2_000, vec![asks(&[2, 3])]), "shard 2 has no home");
}

#[test]
fn long_drain_is_aborted_once_and_releases_at_its_end() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, out), (15_000, vec![RegionOutput::Abort(SHARD)]));
    assert_eq!((bench.wait(), bench.run()), (None, HostingPhase::Draining(g(1))));
    assert_eq!(sent(&bench.drained(None)), [says(2, sealed(2, released(2, 1, None)))]);
}

#[test]
fn start_is_remembered_with_duration_and_awaited_regions() {
    let mut bench = Bench::new();
    bench.order(host(3, &[(2, 2)]));
    bench.now.mono = bench.now.mono + Duration::from_millis(40);
    bench.hear(2, released(3, 2, None));
    let entry = bench.region.remembered().of_shard(SHARD).next().unwrap();
    let expected = (g(3), Some(Duration::from_millis(40)), vec![region(2)], Some(region(2)));
    assert_eq!((entry.generation, entry.settled, entry.awaited.clone(), entry.from), expected);
    assert_eq!(bench.steps, [DecisionStepKind::Told, DecisionStepKind::Started]);
}

#[test]
fn only_drains_of_hosted_shards_are_remembered() {
    let mut bench = Bench::new();
    bench.order(release(1, Some(2)));
    bench.order(host(2, &[]));
    bench.order(release(3, Some(2)));
    bench.now.mono = bench.now.mono + Duration::from_millis(7);
    bench.drained(None);
    bench.drained(None);
    bench.order(release(4, Some(3)));
    let decision_history = bench.region.remembered();
    let seen: Vec<_> =
        decision_history.iter().map(|entry| (entry.generation, entry.to, entry.drained)).collect();
    let took = Some(Duration::from_millis(7));
    assert_eq!(seen, [(g(2), Some(region(1)), None), (g(3), Some(region(2)), took)]);
    assert_eq!(
        bench.steps,
        [
            DecisionStepKind::Told,
            DecisionStepKind::Started,
            DecisionStepKind::Draining,
            DecisionStepKind::Drained
        ]
    );
}

#[test]
fn slow_start_is_reported_once_with_awaited_regions() {
    let mut bench = Bench::new();
    bench.order(host(4, &[(2, 2), (3, 3)]));
    bench.hear(3, released(4, 3, None));
    let slow = |out: Vec<RegionOutput>| {
        out.into_iter().find_map(|order| match order {
            RegionOutput::Slow(slow) => Some((slow.shards, slow.awaited)),
            _ => None,
        })
    };
    let told = (1..=60).filter_map(|_| {
        bench.now.mono = bench.now.mono + Duration::from_secs(1);
        slow(bench.order(host(4, &[(2, 2), (3, 3)]))) // repeated
    });
    assert_eq!(told.collect::<Vec<_>>(), [(vec![SHARD], vec![region(2)])]);
}

#[test]
fn a_thousand_releases_to_one_region_are_two_messages() {
    let mut bench = Bench::new();
    let word = |shard| ReleaseShard {
        shard: ShardId::new(shard),
        generation: g(2),
        to: Some(region(2)),
        listed: Generation::NEVER,
    };
    let out = bench.order(ToRegion::Release((0..1_000).map(word).collect()));
    let sent = sent(&out);
    let lengths = sent.iter().map(|(to, message)| match message {
        ShardingMessage::Region(ToRegion::Released(words)) if *to == 2 => words.len(),
        other => panic!("{other:?}"),
    });
    let lengths: Vec<usize> = lengths.collect();
    assert_eq!((lengths.len(), lengths.iter().sum()), (2, 1_000), "divided by length");
}

#[test]
fn stop_request_repeats_until_answered_or_expired() {
    let mut bench = Bench::new();
    let within = Duration::from_secs(9);
    let shards = vec![SHARD, ShardId::new(8)];
    bench.tell(RegionInput::Stop { shards: shards.clone(), within });
    bench.tell(RegionInput::CoordinatorAt(Some(COORDINATOR)));
    let wishes = |shards: &[ShardId]| shards.iter().map(|shard| (*shard, 1)).collect::<Vec<_>>();
    let asks = |out: &[RegionOutput], shards: &[ShardId]| {
        let word = ShardingMessage::Coordinator(ToCoordinator::Stop(wishes(shards)));
        sent(out).contains(&(COORDINATOR.get(), word))
    };
    assert!(asks(&bench.order(ack(1)), &shards), "as soon as it is registered");
    let out = bench.hear(3, ToRegion::Stopped(wishes(&shards)));
    assert!(!out.contains(&RegionOutput::Stopped), "3 is not the coordinator");
    let out = bench.order(ToRegion::Stopped(wishes(&[SHARD])));
    assert!(out.contains(&RegionOutput::Stopped));
    let (waited, out) = bench.wait().unwrap();
    assert!(waited == 2_000 && asks(&out, &[ShardId::new(8)]), "{waited}: {out:?}");
    let given_up =
        (0..9).find_map(|_| bench.wait()?.1.contains(&RegionOutput::Stopped).then_some(()));
    assert_eq!((given_up, bench.region.stopping().count()), (Some(()), 0));
    assert_eq!(bench.now.mono - Now::default().mono, within);
}

#[test]
fn answer_to_an_earlier_stop_does_not_end_a_later_one() {
    let mut bench = Bench::new();
    bench.tell(RegionInput::CoordinatorAt(Some(COORDINATOR)));
    bench.order(ack(1));
    let within = Duration::from_secs(9);
    for _ in 0..2 {
        bench.tell(RegionInput::Stop { shards: vec![SHARD], within });
    }
    let late = bench.order(ToRegion::Stopped(vec![(SHARD, 1)]));
    assert!(!late.contains(&RegionOutput::Stopped), "the shard may have started again");
    assert_eq!(bench.region.stopping().collect::<Vec<_>>(), [SHARD]);
    let out = bench.order(ToRegion::Stopped(vec![(SHARD, 2)]));
    assert!(out.contains(&RegionOutput::Stopped));
    assert_eq!(bench.region.stopping().count(), 0);
}

#[test]
fn unregistered_region_reports_after_10_s_then_each_minute() {
    for found_one in [false, true] {
        let mut bench = Bench::new();
        bench.tell(RegionInput::Wanted(SHARD)); // a message waits
        if found_one {
            found(&mut bench);
        }
        let (mut complaints, end) = (Vec::new(), bench.now.mono + Duration::from_secs(100));
        while bench.region.next_deadline().is_some_and(|at| at < end) {
            let (_, out) = bench.wait().expect("there is a deadline");
            complaints.extend(out.into_iter().filter_map(|order| match order {
                RegionOutput::Unregistered(complaint) => Some(complaint),
                _ => None,
            }));
        }
        let coordinator = found_one.then_some(COORDINATOR);
        let after = |secs| Unregistered { waited: Duration::from_secs(secs), coordinator };
        assert_eq!(complaints, [after(10), after(70)]);
        found(&mut bench);
        bench.order(ack(1));
        let (waited, out) = bench.wait().expect("its request for a home is repeated");
        assert!(waited <= 2_000 && !matches!(out[..], [RegionOutput::Unregistered(_), ..]));
    }
}

/// Shards with slow handlers in each registration among these orders.
fn reported(orders: &[RegionOutput]) -> Vec<Vec<ShardId>> {
    let slow = sent(orders).into_iter().filter_map(|(_, message)| match message {
        ShardingMessage::Coordinator(ToCoordinator::Register { slow, .. }) => Some(slow),
        _ => None,
    });
    slow.collect()
}

fn with_slow(shards: impl IntoIterator<Item = u32>) -> RegionInput {
    RegionInput::SlowHandlers(shards.into_iter().map(ShardId::new).collect())
}

#[test]
fn change_of_slow_handlers_is_reported_within_a_second() {
    let mut bench = Bench::new();
    assert_eq!(reported(&found(&mut bench)), [vec![]]);
    bench.order(ack(1));
    for slow in [vec![SHARD], vec![]] {
        let told = with_slow(slow.iter().map(|shard| shard.get()));
        let at_once = reported(&bench.tell(told.clone()));
        assert!(
            at_once.is_empty(),
            "a change is reported within a second, not at once: {at_once:?}"
        );
        let (waited, out) = bench.wait().unwrap();
        assert_eq!((waited, reported(&out)), (1_000, vec![slow.clone()]));
        bench.order(ack(1));
        bench.tell(told);
        let (waited, out) = bench.wait().unwrap();
        assert_eq!((waited, reported(&out)), (30_000, vec![slow]), "unchanged: only the audit");
        bench.order(ack(1));
    }
}

/// The acknowledgement answers a registration that did not name the handler yet.
#[test]
fn ack_does_not_delay_report_of_slow_handlers() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.tell(with_slow([SHARD.get()]));
    bench.order(ack(1));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, reported(&out)), (1_000, vec![vec![SHARD]]));
    bench.order(ack(1));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, reported(&out)), (30_000, vec![vec![SHARD]]), "told: only the audit");
}

/// The report is lost. The acknowledgement answers the registration before it.
#[test]
fn late_ack_does_not_hide_a_lost_report() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.tell(with_slow([SHARD.get()]));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, reported(&out)), (1_000, vec![vec![SHARD]]));
    bench.order(ack(1));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, reported(&out)), (2_000, vec![vec![SHARD]]), "repeated as unanswered");
    bench.order(ack(1));
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, reported(&out)), (30_000, vec![vec![SHARD]]), "told: only the audit");
}

#[test]
fn lost_acks_cause_at_most_three_more_registrations() {
    let mut bench = Bench::new();
    found(&mut bench);
    (0..10).for_each(|_| assert_eq!(bench.wait().unwrap().0, 2_000, "unanswered"));
    bench.tell(with_slow([SHARD.get()]));
    let waits: Vec<u64> = std::iter::repeat_with(|| {
        let (waited, _) = bench.wait().unwrap();
        bench.order(ack(1));
        waited
    })
    .take(6)
    .collect();
    assert_eq!(waits, [1_000, 2_000, 2_000, 2_000, 30_000, 30_000]);
}

#[test]
fn registration_names_at_most_1024_shards_with_slow_handlers() {
    let mut bench = Bench::new();
    bench.tell(with_slow(0..2_000));
    let expected: Vec<ShardId> = (0..1_024).map(ShardId::new).collect();
    assert_eq!(reported(&found(&mut bench)), [expected]);
}
