//! Invalid input about guarded groups: more of them than a replica keeps, and guards of other keys.

use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::request::{ReplicatorRequest, RequestError, WriteConsistency as To};
use ostraca_ddata::replicator::wire::{Body, EntryContent, Nack, WireGuard};
use ostraca_ddata::types::Term;

use crate::bare::{Bare, insert, peer};
use crate::cluster::secs;
use crate::input::{entry, junk, nacks, other, pushed, set, write};

#[test]
fn groups_beyond_ten_thousand_are_refused() {
    let mut bare = Bare::of(3);
    let term = Term { number: 1, owner: peer(1) };
    for n in 0..10_050 {
        let group = Group::new(&format!("g{n:05}-"));
        bare.hear(1, Body::Fence { request: n, group, term, held: vec![] });
    }
    assert_eq!(bare.replicator.promises().len(), 10_000);
    let answers: Vec<_> = bare.sent().into_iter().map(|(_, body)| body).collect();
    assert!(answers.iter().all(|body| matches!(body, Body::Promised { .. })));
    assert_eq!(answers.len(), 10_000, "fences of further groups get no answer and time out");
    let fence = ReplicatorRequest::Fence { group: Group::new("new"), term, within: secs(1) };
    let refused = bare.now(fence).unwrap_err();
    assert_eq!(refused, RequestError::TooManyGroups { limit: 10_000 });
    assert!(refused.to_string().contains("10000 groups"), "{refused}");
    let guarded = bare.now(insert("g00042-k", "tea", To::Local));
    assert_eq!(guarded, Err(RequestError::Guarded { group: Group::new("g00042-") }));
    assert!(bare.now(insert("k", "tea", To::Local)).is_ok());
}

#[test]
fn guard_of_a_group_without_the_key_is_refused() {
    let mut entries = pushed(&mut other(1), set("k", "tea"));
    entries[0].guard = Some(WireGuard { group: Group::new("g"), term: None });
    let mut bare = Bare::of(3);
    bare.hear(1, write(entries));
    assert_eq!(nacks(&mut bare), [(0, Nack::Undecodable)]);
    for n in 0..20_000 {
        let mut junk = entry(&format!("g{n}-k"), "or-set", EntryContent::Delta(junk()));
        junk.guard = Some(WireGuard { group: Group::new(&format!("g{n}-")), term: None });
        bare.hear(1, write(vec![junk]));
    }
    assert!(bare.now(set("g7-k", "tea")).is_ok(), "a refused entry makes no group known");
}
