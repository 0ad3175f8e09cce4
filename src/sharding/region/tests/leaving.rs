//! A region that is to go: what it waits for, and whom it asks.

use super::life::{ack, asks, found};
use super::*;

fn may_leave(number: u64) -> ToRegion {
    ToRegion::MayLeave(Term { number, owner: COORDINATOR })
}

fn leaving() -> (u64, ShardingMessage) {
    (COORDINATOR.get(), ShardingMessage::Coordinator(ToCoordinator::Leaving))
}

/// It is registered, others could take what is kept here, and it is told to leave.
fn leaves() -> Bench {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ack(1));
    bench.tell(RegionInput::Heirs { any: true });
    let out = bench.tell(RegionInput::Leave);
    assert_eq!(out, [RegionOutput::Send { to: COORDINATOR, message: leaving().1 }]);
    bench
}

#[test]
fn a_region_that_leaves_has_left_when_its_shards_and_payloads_are_elsewhere() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ack(1));
    bench.order(host(1, &[]));
    assert_eq!(sent(&bench.tell(RegionInput::Leave)), [leaving()]);
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (2_000, vec![leaving()]));
    bench.order(release(2, Some(2)));
    assert!(!bench.drained(Some("m")).contains(&RegionOutput::Left), "it carries a payload");
    let out = bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
    // Whoever has not found the next coordinator yet hears of the move before this one is gone.
    let home = ShardRoute { shard: SHARD, generation: g(2), home: Some(region(2)) };
    let told = |to| says(to, ToRegion::Announce([home].into_iter().collect()));
    assert_eq!(sent(&out), [2, 3, 4, 5].map(told));
    assert_eq!(out.last(), Some(&RegionOutput::Left));
}

#[test]
fn what_the_last_host_keeps_without_a_next_home_is_discarded_once_when_its_node_is_out() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, None));
    bench.drained(Some("m"));
    assert_eq!(bench.tell(RegionInput::Leave), [RegionOutput::Left]);
    let (reach, from, payload) = (Reach::Unsent, region(1), Bytes::from_static(b"m"));
    let lost = RegionOutput::Discard { reach, shard: SHARD, from, payload };
    assert_eq!(bench.tell(RegionInput::Forsaken), [lost], "and nothing is stopped");
    assert_eq!(bench.tell(RegionInput::Forsaken), []);
    assert_eq!(sent(&bench.order(release(2, None))).len(), 1, "it still tells of its release");
}

#[test]
fn what_is_kept_of_a_shard_without_a_home_waits_for_one_as_long_as_somebody_could_take_it() {
    let stopped = || {
        let mut bench = Bench::new();
        found(&mut bench);
        bench.order(ack(1));
        bench.order(host(1, &[]));
        bench.order(release(2, None));
        bench.tell(RegionInput::Heirs { any: true });
        bench
    };
    let mut bench = stopped();
    assert_eq!(sent(&bench.tell(RegionInput::Leave)), [leaving()]);
    let drained = sent(&bench.drained(Some("m")));
    assert!(drained.contains(&asks(&[7])), "at once: {drained:?}");
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (2_000, vec![leaving(), asks(&[7])]));
    let word = sealed(2, released(3, 1, Some("m")));
    assert_eq!(sent(&bench.order(release(3, Some(2)))), [says(2, word)]);
    bench.order(may_leave(1));
    let out = bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(3))]));
    assert_eq!(out.last(), Some(&RegionOutput::Left));

    let mut bench = stopped();
    bench.drained(Some("m"));
    assert!(!bench.tell(RegionInput::Leave).contains(&RegionOutput::Left));
    let out = bench.tell(RegionInput::Heirs { any: false });
    assert!(out.contains(&RegionOutput::Left), "nobody is left: {out:?}");

    let mut bench = stopped();
    bench.drained(None);
    bench.tell(RegionInput::Leave);
    assert!(bench.order(may_leave(1)).contains(&RegionOutput::Left), "nothing is kept");
}

/// Gone unheard it would count as one that may have hosted, and what an earlier home holds as taken.
#[test]
fn who_was_named_in_vain_leaves_when_somebody_hosts_who_has_heard_of_it() {
    let named = || {
        let mut bench = Bench::new();
        found(&mut bench);
        bench.order(ack(1));
        bench.order(host(2, &[(2, 1)]));
        bench.tell(RegionInput::Heirs { any: true });
        let out = bench.tell(RegionInput::Leave);
        assert!(!out.contains(&RegionOutput::Left), "it is to host: {out:?}");
        bench.order(may_leave(1)); // that alone is not enough
        let out = bench.order(release_named(3, Some(3), 2));
        assert!(sent(&out).contains(&says(3, released(3, 0, None))), "{out:?}");
        assert!(!out.contains(&RegionOutput::Left), "{out:?}");
        bench
    };
    let has_left = |out: &[RegionOutput]| out.contains(&RegionOutput::Left);
    let mut bench = named();
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (200, vec![says(3, released(3, 0, None))]), "again");
    let at = |seq| ToRegion::Hosted(vec![(SHARD, g(seq))]);
    assert!(!has_left(&bench.hear(2, at(2))), "not above the decision that named it");
    assert!(has_left(&bench.hear(3, at(3))));

    let mut bench = named();
    bench.order(release_named(4, Some(4), 2));
    assert!(has_left(&bench.hear(3, at(3))), "also if the shard is on its way elsewhere by now");

    let mut bench = named();
    let out = bench.tell(RegionInput::Installed(installed(2, [1, 2, 4])));
    assert!(!has_left(&out), "there is to be another home: {out:?}");
    let out = bench.order(release_named(4, None, 2));
    assert!(!has_left(&out), "somebody may be told to take what is kept elsewhere: {out:?}");
    let mut waits = std::iter::repeat_with(|| bench.wait().unwrap().1);
    assert!(waits.by_ref().take(10).any(|out| sent(&out).contains(&asks(&[7]))));
    let out = bench.tell(RegionInput::Heirs { any: false });
    assert!(has_left(&out), "nobody can take anything: {out:?}");

    let mut bench = Bench::new();
    bench.tell(RegionInput::Heirs { any: true });
    bench.order(host(2, &[(2, 1)]));
    bench.order(release_named(3, Some(3), 2));
    bench.hear(3, at(3));
    bench.order(release_named(4, Some(4), 2)); // decided before its coordinator had heard of that
    let out = bench.tell(RegionInput::Leave);
    assert!(has_left(&out), "it was heard: {out:?}");

    let mut bench = Bench::new();
    bench.tell(RegionInput::Heirs { any: true });
    bench.order(host(1, &[]));
    bench.order(release_named(2, Some(2), 1));
    bench.tell(RegionInput::Leave);
    assert!(has_left(&bench.drained(None)), "who has hosted is no matter of words");
}

#[test]
fn a_region_that_leaves_without_a_coordinator_waits_instead_of_asking_all_the_time() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    assert_eq!(bench.tell(RegionInput::Leave), []);
    for _ in 0..3 {
        assert_eq!(bench.wait(), Some((2_000, vec![])));
    }
}

#[test]
fn an_idle_region_leaves_at_once() {
    let mut bench = Bench::new();
    assert_eq!(bench.tell(RegionInput::Leave), [RegionOutput::Left]);
    assert_eq!(bench.wait(), None);
}

#[test]
fn an_idle_region_that_leaves_says_so_and_takes_no_shard_any_more() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ack(1));
    let out = bench.tell(RegionInput::Leave);
    assert!(out.contains(&RegionOutput::Left));
    assert_eq!(sent(&out), [leaving()]);
    let out = bench.order(host(1, &[]));
    assert_eq!((sent(&out), bench.run()), (vec![leaving()], Run::Idle), "{out:?}");
    let out = bench.order(release(2, Some(2)));
    assert_eq!(sent(&out), [says(2, released(2, 0, None))], "the next home waits for its word");
}

/// A decision that names it may be under way: gone unheard it would count as carried out here.
#[test]
fn an_idle_region_leaves_when_the_coordinator_that_knows_it_says_that_no_decision_names_it() {
    let has_left = |out: &[RegionOutput]| out.contains(&RegionOutput::Left);
    let mut bench = leaves();
    assert_eq!(bench.order(may_leave(2)), [], "of a term that has not registered it");
    assert_eq!(bench.hear(4, may_leave(1)), [], "of another one");
    assert!(has_left(&bench.order(may_leave(1))));
    assert_eq!(bench.order(may_leave(1)), [], "once");

    let mut bench = leaves();
    bench.tell(RegionInput::CoordinatorAt(Some(ReplicaId::new(4))));
    assert_eq!(bench.order(may_leave(1)), [], "of one that another has followed");
    let registered = ToRegion::RegisterAck {
        term: Term { number: 2, owner: ReplicaId::new(4) },
        homes: RouteTable::default(),
    };
    let out = bench.hear(4, registered);
    assert!(sent(&out).contains(&(4, leaving().1)), "the next one is told as well: {out:?}");
    let word = ToRegion::MayLeave(Term { number: 2, owner: ReplicaId::new(4) });
    assert!(has_left(&bench.hear(4, word)));

    let mut bench = leaves();
    bench.order(host(2, &[(2, 1)]));
    assert_eq!(bench.order(may_leave(1)), [], "it is to host, by a decision of before");
    let out = bench.order(release_named(3, Some(3), 2));
    assert!(!has_left(&out), "who is told to host is to hear of it: {out:?}");
    assert!(has_left(&bench.hear(3, ToRegion::Hosted(vec![(SHARD, g(3))]))));

    let mut bench = leaves();
    bench.tell(RegionInput::Heirs { any: false });
    assert!(bench.region.has_left(), "nobody could take anything");
}

/// By a coordinator that it went to without that one's word.
#[test]
fn who_is_named_after_it_was_let_go_waits_for_another_word() {
    let mut bench = leaves();
    bench.order(host(1, &[]));
    bench.order(may_leave(1)); // too early by some fault
    bench.order(host(2, &[]));
    bench.order(release(3, None));
    assert!(!bench.drained(None).contains(&RegionOutput::Left));
    assert!(bench.order(may_leave(1)).contains(&RegionOutput::Left));
}

/// A coordinator that has not heard that it leaves would give it shards.
#[test]
fn who_leaves_registers_as_one_that_only_routes() {
    let mut bench = leaves();
    let out = bench.order(ToRegion::Here(Term { number: 2, owner: COORDINATOR }));
    let registers = |(_, word): &(u64, ShardingMessage)| {
        matches!(word, ShardingMessage::Coordinator(ToCoordinator::Register { proxy: true, .. }))
    };
    assert!(sent(&out).iter().any(registers), "{out:?}");
}

/// Of before that word was known, or none at all: it is not waited for until all is given up.
#[test]
fn a_region_leaves_though_a_coordinator_never_says_that_it_may() {
    let goes_after = |bench: &mut Bench| {
        let begun = bench.now.mono;
        while !bench.wait().expect("it is to leave").1.contains(&RegionOutput::Left) {}
        (bench.now.mono - begun).as_millis()
    };
    assert_eq!(goes_after(&mut leaves()), 5_000);

    let mut bench = leaves();
    (0..2).for_each(|_| drop(bench.wait()));
    bench.tell(RegionInput::CoordinatorAt(None));
    assert_eq!(goes_after(&mut bench), 6_000, "10 s while none knows it");

    let mut bench = leaves();
    (0..2).for_each(|_| drop(bench.wait()));
    bench.tell(RegionInput::CoordinatorAt(None));
    found(&mut bench);
    bench.order(ack(2));
    assert_eq!(goes_after(&mut bench), 5_000, "the next one has as long");

    let mut bench = leaves();
    bench.order(host(2, &[]));
    (0..3).for_each(|_| drop(bench.wait()));
    bench.order(release_named(3, None, 2));
    bench.drained(None);
    assert_eq!(goes_after(&mut bench), 5_000, "from when it has nothing else to do");
}

#[test]
fn who_was_never_known_to_a_coordinator_and_who_hosts_nothing_leaves_at_once() {
    let mut bench = Bench::new();
    bench.tell(RegionInput::Heirs { any: true });
    assert_eq!(bench.tell(RegionInput::Leave), [RegionOutput::Left], "nobody was asked");
    let mut bench = Bench::new();
    found(&mut bench);
    bench.tell(RegionInput::Heirs { any: true });
    bench.order(ToRegion::NotYet(NotYet::Differs(Agreed::default())));
    let out = bench.tell(RegionInput::Leave);
    assert!(out.contains(&RegionOutput::Left), "who was asked does not know it");
    let config = RegionConfig { proxy: true, ..RegionConfig::default() };
    let mut bench = Bench::with(config, Canary::none());
    found(&mut bench);
    bench.order(ack(1));
    bench.tell(RegionInput::Heirs { any: true });
    assert!(bench.tell(RegionInput::Leave).contains(&RegionOutput::Left), "it is given no shard");
}

/// It may have hosted, and have died before it could say so.
#[test]
fn what_is_kept_for_a_home_that_is_out_is_asked_for() {
    let mut bench = leaves();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    bench.drained(Some("m"));
    let out = bench.tell(RegionInput::Installed(installed(2, [1, 3, 4])));
    assert_eq!(sent(&out), [leaving(), asks(&[7])]);
    bench.order(may_leave(1));
    let out = bench.order(ToRegion::Hosted(vec![(SHARD, g(2))]));
    assert_eq!(out.last(), Some(&RegionOutput::Left));
}

/// Its home has crashed before it took it, and there is no other node.
#[test]
fn the_last_node_of_all_does_not_wait_with_what_it_keeps_for_a_home_that_is_out() {
    let mut bench = leaves();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    bench.drained(Some("m"));
    bench.tell(RegionInput::Installed(installed(2, [1])));
    assert!(!bench.region.has_left(), "somebody may join");
    let out = bench.tell(RegionInput::Heirs { any: false });
    assert!(out.contains(&RegionOutput::Left), "{out:?}");
}
