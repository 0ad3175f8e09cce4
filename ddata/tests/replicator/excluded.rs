//! A replica that was removed: what it has under way ends at once, and what others ask it or what
//! it asks others as one that is no member counts for nothing.

use std::sync::Arc;

use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::config::Config;
use ostraca_ddata::replicator::epoch::{Change, Epoch, EpochMessage, EpochSettings};
use ostraca_ddata::replicator::port::Output;
use ostraca_ddata::replicator::request::{Request, RequestError, WriteConsistency as To};
use ostraca_ddata::replicator::wire::Body;
use ostraca_ddata::types::Term;

use crate::bare::{Bare, epoch_id, get, insert, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, first_epoch, secs};

fn fence(number: u64) -> Request {
    let term = Term { number, owner: peer(0) };
    Request::Fence { group: Group::new("g-"), term, within: secs(3) }
}

#[test]
fn what_an_excluded_replica_has_under_way_ends_at_once_and_says_why() {
    let mut bare = Bare::of(5);
    let ids = [
        bare.ask(insert("k", "tea", WRITE_MAJORITY)),
        bare.ask(get("k", READ_MAJORITY)),
        bare.ask(fence(1)),
        bare.ask(Request::FlushChanges { within: secs(3) }),
    ];
    assert!(ids.iter().all(|id| bare.answer(*id).is_none()), "they wait");
    let leave = vec![peer(0)];
    let next = first_epoch(5).next(&Change { leave, ..Change::default() }).unwrap();
    let epoch = next.id();
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: Arc::new(next) }));
    assert!(bare.others.contains(&Output::Excluded(epoch)));
    for id in ids {
        assert_eq!(bare.answer(id), Some(Err(RequestError::Excluded { epoch })));
    }
    assert_eq!(bare.replicator.stats().requests_pending, 0);
    let refused = bare.now(insert("k", "milk", WRITE_MAJORITY));
    assert_eq!(refused, Err(RequestError::NotJoined), "and nothing begins any more");
    assert!(bare.now(insert("k", "rum", To::Local)).is_ok());
    bare.sent();
    bare.pass(secs(60));
    let asked =
        |body: &Body| matches!(body, Body::Read { .. } | Body::Fence { .. } | Body::Compare { .. });
    assert!(!bare.sent().iter().any(|(_, body)| asked(body)), "it asks nobody anything");
}

#[test]
fn a_fence_of_who_is_no_member_is_not_promised() {
    let mut bare = Bare::of(3);
    bare.members(4, &[], &[]); // 3 is known and in no configuration
    let ask = |n| {
        let (group, term) = (Group::new("g-"), Term { number: 1, owner: peer(n) });
        Body::Fence { request: 1, group, term, held: vec![] }
    };
    bare.hear_in(peer(3), Some(epoch_id()), ask(3));
    assert_eq!((bare.replicator.promises(), bare.replicator.stats().strangers), (vec![], 1));
    bare.hear_in(peer(2), Some(epoch_id()), ask(2));
    assert_eq!(bare.replicator.promises().len(), 1);
}

#[test]
fn a_refusal_of_who_is_no_voter_ends_no_fence() {
    let mut bare = Bare::of(3);
    bare.members(4, &[], &[]);
    let id = bare.ask(fence(1));
    let current = Term { number: 9, owner: peer(3) };
    bare.hear_in(peer(3), Some(epoch_id()), Body::NotPromised { request: id.0, current });
    assert_eq!(bare.answer(id), None);
    bare.hear(2, Body::NotPromised { request: id.0, current });
    assert_eq!(bare.answer(id), Some(Err(RequestError::Fenced { current, nowhere: false })));
}

/// The others may have died right after they decided it: without this nobody says anything.
#[test]
fn a_joiner_that_knows_a_configuration_tells_it_to_whoever_is_in_it() {
    let mut bare = Bare::joining(Config::default());
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: of_the_others() }));
    assert!(!bare.replicator.epochs().is_member());
    bare.sent();
    bare.pass(secs(10));
    let tells = |(to, body): &(_, _)| match body {
        Body::Epoch(EpochMessage::Install { epoch }) => *to == peer(1) && *epoch == of_the_others(),
        _ => false,
    };
    let sent = bare.sent();
    assert!(sent.iter().any(tells), "{sent:?}");
    assert!(sent.len() <= 20, "now and then: {}", sent.len());
}

fn of_the_others() -> Arc<Epoch> {
    let settings = EpochSettings::default();
    Arc::new(Epoch::founding(epoch_id(), vec![peer(1)], settings).unwrap())
}
