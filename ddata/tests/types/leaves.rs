//! Flags, counters and registers are leaves: they have no removal records, and every repair is a
//! delta.

use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::delta::Repair;
use ostraca_ddata::types::edit::{Author, Edit, EditError};
use ostraca_ddata::types::{Causal, DataType, Flag, GCounter, LWWRegister, MVRegister, PNCounter};

/// Far more writes than a set or a map keeps removal records.
const WRITES: u64 = 10_000;

const fn author(replica: u64, time: u64) -> Author {
    Author::new(ReplicaId::new(replica), HybridTimestamp::from_raw(time))
}

/// Applies the repair of `from` for `to`, which must be a delta that brings `to` up to date.
fn catch_up<T: DataType>(from: &Causal<T>, to: &Causal<T>) -> Causal<T> {
    assert_eq!(from.state().records(), 0);
    let (mut repaired, mut merged) = (to.clone(), to.clone());
    match from.repair(to.context()) {
        Repair::Delta(repair) => {
            repaired.apply(&repair).expect("the peer has the required context");
        }
        Repair::Nothing => assert!(to.context().includes(from.context())), // a flag that is on
        Repair::Full => panic!("by delta"),
    }
    merged.merge(from);
    assert_eq!((repaired.encode(), repaired.state().records()), (merged.encode(), 0));
    repaired
}

/// Every source (written, decoded or merged) must repair every replica that lacks changes by a
/// delta.
fn is_repaired_by_delta<T: DataType>(
    write: impl Fn(&mut Edit<'_, T>) -> Result<(), EditError> + Copy,
) {
    let (mut a, mut b) = (Causal::<T>::new(), Causal::<T>::new());
    a.edit(author(1, 1), write).unwrap();
    b.merge(&a);
    let early = b.clone();
    for n in 0..WRITES {
        a.edit(author(1, 2 + n), write).unwrap();
    }
    for n in 0..10 {
        b.edit(author(2, 2 + n), write).unwrap(); // concurrent
    }
    let b_repaired = catch_up(&a, &b);
    assert_eq!(catch_up(&b, &a), b_repaired);
    a.merge(&b);
    let read = Causal::<T>::decode(&a.encode()).unwrap();
    for source in [&a, &read, &b_repaired] {
        assert_eq!(catch_up(source, &early), a);
        assert_eq!(catch_up(source, &Causal::new()), a);
    }
    b.merge(&a);
    b.delete(author(2, 2 * WRITES));
    assert_eq!(catch_up(&b, &a), b);
}

#[test]
fn a_flag_is_repaired_by_delta() {
    is_repaired_by_delta::<Flag>(|flag| flag.switch_on().map(drop));
}

#[test]
fn a_growing_counter_is_repaired_by_delta() {
    is_repaired_by_delta::<GCounter>(|counter| counter.increment(1));
}

#[test]
fn a_counter_is_repaired_by_delta() {
    is_repaired_by_delta::<PNCounter>(|counter| counter.increment());
}

#[test]
fn a_register_is_repaired_by_delta() {
    is_repaired_by_delta::<LWWRegister<u8>>(|register| register.set(&7));
}

#[test]
fn a_register_of_siblings_is_repaired_by_delta() {
    is_repaired_by_delta::<MVRegister<u8>>(|register| register.set(&7));
}

/// The repair leaves out the content that the peer has. A replica that has seen less would drop the
/// replaced content and never receive its replacement, which is an acknowledged write.
#[test]
fn repair_is_refused_by_replica_that_has_seen_less() {
    type Siblings = Causal<MVRegister<u8>>;
    let (mut a, mut c) = (Siblings::new(), Siblings::new());
    a.edit(author(1, 1), |register| register.set(&1)).unwrap();
    let mut bystander = a.clone();
    let mut peer = a.clone();
    peer.edit(author(2, 2), |register| register.set(&2)).unwrap();
    c.edit(author(3, 3), |register| register.set(&3)).unwrap();
    let mut all = peer.clone();
    all.merge(&c);

    let Repair::Delta(for_peer) = all.repair(peer.context()) else { panic!("by delta") };
    let refused = bystander.apply(&for_peer).unwrap_err();
    assert_eq!(refused.context, *bystander.context());
    assert_eq!(bystander, a, "refused: nothing was changed");
    assert_eq!((catch_up(&all, &peer), catch_up(&all, &bystander)), (all.clone(), all));
}
