//! Tests of gossip, and a short notation for gossip states that the tests of membership use.
//!
//! The tests cover the behaviours of gossip that Akka's tests assert. Differences, and why:
//! - There is no empty state: a cluster always has its founder.
//! - Joining and WeaklyUp members: convergence waits for every member except Exiting and Down ones;
//!   a confirmed Exiting member needs no entry in the seen set.
//! - The seen set is cleared by a merge only if neither side had the result, otherwise the merge
//!   would not be idempotent.
//! - A Down member leads if there is no other member.
//! - There are no data centres.
//! - No particular nodes need the news that a member becomes Exiting: removal needs a quorum, not
//!   convergence.
//! - Unsubscribing and classes of events are implemented by the handle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crdts::VClock;
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};

use super::{ClusterId, Gossip, GossipContent};
use crate::cluster::member::{Address, Member, Status};
use crate::cluster::reachability::{Reachability, ReachabilityStatus};

mod delta;
mod exchange;
mod history;
mod known_failures;
mod laws;
mod tables;
mod targets;
mod wire;

pub(in crate::cluster) const CLUSTER: ClusterId = ClusterId(0xC1);

/// The member called `name`, a capital letter: A is replica 1.
pub(in crate::cluster) fn id(name: char) -> ReplicaId {
    assert!(name.is_ascii_uppercase(), "{name} is no name");
    ReplicaId::new(u64::from(name as u8 - b'A') + 1)
}

pub(in crate::cluster) fn node(number: u64) -> NodeId {
    let peer = PeerKey::new([number as u8; 32]);
    NodeId { peer, incarnation: ReplicaId::new(number) }
}

/// A node that asks to join; addresses are in the order of the numbers.
pub(in crate::cluster) fn joiner(number: u64, since: u64) -> Member {
    let address = Address::new(format!("/dns4/n{number:05}/tcp/7000")).unwrap();
    Member::joining(node(number), address, since)
}

/// Parses `"A Bj C; seen A B; A>B C>>B; role r A B"`: A and C are Up, B is Joining (w WeaklyUp, l
/// Leaving, x Exiting, d Down); A and B have seen it; A reports B as unreachable, C as terminated;
/// A and B have role r. Ages are in alphabetical order.
pub(in crate::cluster) fn state(text: &str) -> Gossip {
    let mut parts = text.split(';').map(str::trim);
    let members = parts.next().unwrap_or_default().split_whitespace().map(member);
    let mut members: BTreeMap<_, _> =
        members.map(|member| (member.incarnation(), Arc::new(member))).collect();
    let (mut seen, mut reachability) = (BTreeSet::new(), Reachability::new());
    for part in parts {
        if let Some(names) = part.strip_prefix("seen") {
            seen = names.split_whitespace().map(only).collect();
        } else if let Some(rest) = part.strip_prefix("role ") {
            let (role, names) = rest.split_once(' ').unwrap();
            for name in names.split_whitespace() {
                let member = Arc::make_mut(members.get_mut(&only(name)).unwrap());
                member.roles = member.roles.iter().chain([role]).collect();
            }
        } else {
            for record in part.split_whitespace() {
                let (observer, subject) = record.split_once('>').unwrap();
                let (subject, verdict) = match subject.strip_prefix('>') {
                    Some(subject) => (subject, ReachabilityStatus::Terminated),
                    None => (subject, ReachabilityStatus::Unreachable),
                };
                reachability.accuse(only(observer), only(subject), verdict);
            }
        }
    }
    let content = GossipContent {
        cluster: CLUSTER,
        members,
        reachability,
        tombstones: BTreeMap::new(),
        forgotten: 0,
        preparing_for_shutdown: false,
        version: VClock::new(),
    };
    Gossip { content: content.into(), seen }
}

fn only(name: &str) -> ReplicaId {
    id(name.chars().next().unwrap())
}

fn member(text: &str) -> Member {
    let status = match &text[1..] {
        "" => Status::Up,
        "j" => Status::Joining,
        "w" => Status::WeaklyUp,
        "l" => Status::Leaving,
        "x" => Status::Exiting,
        "d" => Status::Down,
        other => panic!("{other} is no status"),
    };
    let number = only(text).get();
    let age = !matches!(status, Status::Joining | Status::WeaklyUp);
    Member { status, up_number: age.then_some(number), ..joiner(number, number) }
}
