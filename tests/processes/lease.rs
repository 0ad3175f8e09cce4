//! The downing strategy `lease-majority` on processes with an external lease: a partition into
//! halves, and a crash of the holder. Skipped with a message without the privileges for namespaces.

use std::collections::BTreeSet;
use std::time::Instant;

use ostraca::cluster::config::DowningStrategyName;
use tempfile::TempDir;

use crate::cluster::{Hosts, agree, ids, lose, serves_nothing};
use crate::hosts;
use crate::member::Running;
use crate::outside::{Entry, Outside, incarnation};

const HOSTS: usize = 4;
const SEEDS: usize = 3;

/// A cluster of four members, with their external lease.
struct Four {
    hosts: Hosts,
    all: Vec<Running>,
    outside: Outside,
    _dir: TempDir,
}

impl Four {
    async fn start(test: &str) -> Option<Self> {
        let seeds: Vec<_> = (0..SEEDS).map(|host| hosts::order(host).listen).collect();
        let mut hosts = Hosts::new(test, HOSTS, &seeds).await?;
        let dir = tempfile::tempdir().expect("a directory");
        let journal = dir.path().join("lease");
        for order in &mut hosts.orders {
            order.downing = DowningStrategyName::LeaseMajority;
            order.lease = Some(journal.clone());
        }
        let mut all = hosts.start_all().await;
        agree(&mut all).await;
        Some(Self { hosts, all, outside: Outside::in_file(journal), _dir: dir })
    }
}

/// Whether the entries contain one of kind `was` for any of the members.
fn are_among(entries: &[Entry], members: &BTreeSet<String>, was: fn(String) -> Entry) -> bool {
    let mut them = members.iter().map(|id| was(incarnation(id).to_owned()));
    them.any(|entry| entries.contains(&entry))
}

fn is_of(members: &[Running], owner: &str) -> bool {
    members.iter().any(|member| incarnation(&member.me) == owner)
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_majority_keeps_the_half_that_holds_the_lease() {
    let test = "lease_majority_keeps_the_half_that_holds_the_lease";
    let Some(Four { hosts, all, outside, _dir }) = Four::start(test).await else { return };
    let mut halves = all;
    assert!(halves[0].writes().await);
    assert_eq!(outside.entries(), [], "no member acquires the lease without need");
    hosts.network.partition(&[0, 1], &[2, 3]);
    let split_at = Instant::now();
    let owner = outside.is_held().await;
    eprintln!("the lease was taken after {:?}", split_at.elapsed());

    let others = halves.split_off(2);
    let is_first = is_of(&halves, &owner);
    let (mut staying, mut going) = if is_first { (halves, others) } else { (others, halves) };
    assert!(is_of(&staying, &owner));
    let gone = ids(&going);
    lose(&mut staying, &gone).await;
    for member in &mut going {
        serves_nothing(member).await;
    }
    agree(&mut staying).await;
    eprintln!("its half continued alone after {:?}", split_at.elapsed());
    assert!(staying[0].writes().await);
    for member in going {
        let end = member.ends().await;
        assert!(end.reason.starts_with("Membership"), "{end:?}");
        assert!(end.removed.is_empty(), "the half without the lease removes none: {end:?}");
    }
    eprintln!("the other half had ended after {:?}", split_at.elapsed());
    agree(&mut staying).await;
    let entries = outside.entries();
    assert!(are_among(&entries, &gone, Entry::Refused), "they were refused: {entries:?}");
    assert!(!are_among(&entries, &gone, Entry::Granted), "{entries:?}");

    hosts.network.heal();
    let empty = if is_first { [2, 3] } else { [0, 1] };
    for host in empty {
        staying.push(hosts.start(host).await);
    }
    agree(&mut staying).await;
    assert_eq!(staying[3].reads().await, 2, "no acknowledged write was lost");
}

/// The remaining members have a quorum and serve, but remove the dead holder only after its
/// external lease has expired.
#[tokio::test(flavor = "multi_thread")]
async fn lease_majority_removes_a_dead_holder_after_lease_expiry() {
    let test = "lease_majority_removes_a_dead_holder_after_lease_expiry";
    let Some(Four { hosts: _hosts, mut all, outside, _dir }) = Four::start(test).await else {
        return;
    };
    let killed = all.remove(3);
    let first = BTreeSet::from([killed.me.clone()]);
    killed.peer.kill().await;
    lose(&mut all, &first).await;
    agree(&mut all).await;
    let owner = outside.is_held().await;
    let at = all.iter().position(|member| incarnation(&member.me) == owner);
    let holder = all.remove(at.expect("a member that lives"));
    let second = BTreeSet::from([holder.me.clone()]);
    holder.peer.kill().await;

    let rest = ids(&all);
    let is_refused = |entries: &[Entry]| are_among(entries, &rest, Entry::Refused);
    outside.until("the others were refused", is_refused).await;
    // Wait for repeated refusals, because a configuration without the holder could not be installed
    // before its hosting lease has expired.
    let asked = |entries: &[Entry]| {
        let refused =
            |entry: &&Entry| are_among(std::slice::from_ref(*entry), &rest, Entry::Refused);
        entries.iter().filter(refused).count() >= 3
    };
    outside.until("the others were refused three times", asked).await;
    for member in &mut all {
        let view = member.view().await;
        assert!(view.serves && view.known.is_superset(&second), "{view:?}");
        assert!(member.writes().await);
    }
    outside.runs_out();
    lose(&mut all, &second).await;
    agree(&mut all).await;
    let entries = outside.entries();
    assert!(are_among(&entries, &rest, Entry::Granted), "{entries:?}");
    assert!(all[0].writes().await);
}
