//! A replica that was removed, and messages of nodes that are no members: open requests of a
//! removed replica end at once, and questions and answers of non-members have no effect.

use std::sync::Arc;

use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Epoch, EpochMessage, EpochSettings, MembershipChange};
use ostraca_ddata::replicator::port::ReplicatorOutput;
use ostraca_ddata::replicator::request::{ReplicatorRequest, RequestError, WriteConsistency as To};
use ostraca_ddata::replicator::wire::Body;
use ostraca_ddata::types::Term;

use crate::bare::{Bare, epoch_id, get, insert, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, first_epoch, secs};

fn fence(number: u64) -> ReplicatorRequest {
    let term = Term { number, owner: peer(0) };
    ReplicatorRequest::Fence { group: Group::new("g-"), term, within: secs(3) }
}

#[test]
fn excluded_replica_ends_all_requests_at_once() {
    let mut bare = Bare::of(5);
    let ids = [
        bare.ask(insert("k", "tea", WRITE_MAJORITY)),
        bare.ask(get("k", READ_MAJORITY)),
        bare.ask(fence(1)),
        bare.ask(ReplicatorRequest::FlushChanges { within: secs(3) }),
    ];
    assert!(ids.iter().all(|id| bare.answer(*id).is_none()), "all requests are open");
    let leave = vec![peer(0)];
    let next =
        first_epoch(5).next(&MembershipChange { leave, ..MembershipChange::default() }).unwrap();
    let epoch = next.id();
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: Arc::new(next) }));
    assert!(bare.others.contains(&ReplicatorOutput::Excluded(epoch)));
    for id in ids {
        assert_eq!(bare.answer(id), Some(Err(RequestError::Excluded { epoch })));
    }
    assert_eq!(bare.replicator.stats().requests_pending, 0);
    let refused = bare.now(insert("k", "milk", WRITE_MAJORITY));
    assert_eq!(refused, Err(RequestError::NotJoined), "no new request starts");
    assert!(bare.now(insert("k", "rum", To::Local)).is_ok());
    bare.sent();
    bare.pass(secs(60));
    let asked =
        |body: &Body| matches!(body, Body::Read { .. } | Body::Fence { .. } | Body::Compare { .. });
    assert!(!bare.sent().iter().any(|(_, body)| asked(body)), "it sends no questions");
}

#[test]
fn fence_of_a_non_member_is_not_promised() {
    let mut bare = Bare::of(3);
    bare.members(4, &[], &[]); // node 3 is known, but in no configuration
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
fn refusal_of_a_non_voter_ends_no_fence() {
    let mut bare = Bare::of(3);
    bare.members(4, &[], &[]);
    let id = bare.ask(fence(1));
    let current = Term { number: 9, owner: peer(3) };
    bare.hear_in(peer(3), Some(epoch_id()), Body::NotPromised { request: id.0, current });
    assert_eq!(bare.answer(id), None);
    bare.hear(2, Body::NotPromised { request: id.0, current });
    assert_eq!(bare.answer(id), Some(Err(RequestError::Fenced { current, nowhere: false })));
}

/// The others may have crashed right after they decided the configuration. Without this message all
/// nodes would stay silent.
#[test]
fn joiner_sends_the_configuration_to_its_members() {
    let mut bare = Bare::joining(ReplicatorConfig::default());
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
    assert!(sent.len() <= 20, "too many messages in 10 s: {}", sent.len());
}

fn of_the_others() -> Arc<Epoch> {
    let settings = EpochSettings::default();
    Arc::new(Epoch::founding(epoch_id(), vec![peer(1)], settings).unwrap())
}
