//! Tests of a forced configuration: no coordinator starts before the leases of given-up members
//! have expired, and every member reports what it knows.

use super::*;
use crate::sharding::installed::Installed;

fn forced_after(before: &Epoch, kept: &[u64]) -> Arc<Epoch> {
    let kept = kept.iter().copied().map(ReplicaId::new).collect();
    Arc::new(before.forced(ME, &kept, 9).expect("a member"))
}

#[test]
fn no_coordinator_before_leases_of_given_up_nodes_expire() {
    let mut bench = Bench::new();
    bench.start();
    let (id, term) = fence(&bench.up(&[1, 2], |_| {})).expect("it takes a term");
    bench.act(id, term);
    let forced = forced_after(&epoch([1, 2]), &[]);
    let phase = |bench: &Bench| {
        let of_type = bench.machines.of(&counter()).expect("it is started");
        of_type.coordinator().map(Coordinator::phase)
    };
    assert_eq!(fence(&bench.tell(ShardingInput::Installed(forced.clone()))), None);
    assert_eq!(phase(&bench), Some(CoordinatorPhase::Off), "it stops deciding");
    for second in 1..5 {
        assert_eq!(fence(&bench.pass(Duration::from_secs(1))), None, "after {second} s");
        assert_eq!(phase(&bench), Some(CoordinatorPhase::Off));
    }
    let out = bench.pass(Duration::from_secs(2));
    let (id, taken) = fence(&out).expect("the leases have expired");
    let above = Installed::from(&*forced).forced.expect("it was forced").terms_above();
    assert_eq!(taken, Term { number: above + 1, owner: ME });
    assert!(taken > term);
    // The coordinator counts the knowledge of its own region before it becomes active.
    let fenced = ReplicatorReply::Fenced { term: taken, values: Vec::new() };
    bench.tell(ShardingInput::Answered { id, reply: Ok(fenced) });
    let Machines { types, with, .. } = &mut bench.machines;
    let of_type = types.get_mut(&counter()).expect("it is started");
    let id = bench_asked(of_type);
    of_type.answered(bench.now, id, |_| StoreAnswer::Written, with, &mut bench.out);
    let out = bench.tell(ShardingInput::Tick);
    let recorded = out.iter().find_map(|output| match output {
        ShardingOutput::Ask { ask: StoreRequest::Recover { recovered, .. }, .. } => {
            Some(recovered.origin)
        }
        _ => None,
    });
    assert_eq!(recorded, Some(forced.id()), "{out:?}");
}

/// Number of the pending request to the Replicator.
fn bench_asked(of_type: &TypeMachines) -> u64 {
    (0..100).find(|id| of_type.awaits(*id)).expect("a request is pending")
}

#[test]
fn node_without_the_type_answers_recount_once_installed() {
    let mut bench = Bench::new();
    bench.up(&[1, 2], |_| {});
    let forced = forced_after(&epoch([1, 2]), &[2]);
    let term = Term { number: 4, owner: OTHER };
    let ask = ToRegion::Recount { term, origin: forced.id(), first: None };
    let ask = || MachineMessage::Sharding(ShardingMessage::Region(ask.clone()));
    let asked = |bench: &mut Bench| {
        bench.tell(ShardingInput::Message { from: OTHER, entity_type: counter(), word: ask() })
    };
    assert_eq!(asked(&mut bench), [], "the configuration is not installed yet");
    bench.tell(ShardingInput::Installed(forced));
    let (hosted, told, highest) = Default::default();
    let counted = ToCoordinator::Counted { term, hosted, told, highest };
    let word = MachineMessage::Sharding(ShardingMessage::Coordinator(counted));
    assert_eq!(
        asked(&mut bench),
        [ShardingOutput::Send { to: OTHER, entity_type: counter(), word }]
    );
    assert_eq!(bench.machines.types().count(), 0, "the answer creates no machines");
}
