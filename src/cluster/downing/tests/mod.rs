//! Decision tables. A row is a split of the cluster: sides are separated by `|`, and a member is a
//! letter with a mark: `+A` Joining, `^A` WeaklyUp, `-A` Leaving, `!A` Exiting, `*A` Down, `~A` Up
//! and crashed. After `;` follow further records (`A>B`: A reports B as unreachable) and the
//! tiebreaker of the configuration (`=A`). The expectation contains one decision per side.
//!
//! The members are those of Pekko's tests: addresses in the order of the letters, ages A5 B4 C3 D2
//! E1 F5 G6 (E is the oldest), role1 = B D, role2 = C D, role3 = A B D.

mod config;
mod custom;
mod enumeration;
mod matrix;
mod resolver;
mod side;
mod strategies;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};

use super::{DowningDecision, DowningStrategy, UnreachableRecord, View, VoterSet};
use crate::cluster::member::{Address, Member, Status};

pub(super) fn node(name: char) -> NodeId {
    let number = name as u8;
    NodeId { peer: PeerKey::new([number; 32]), incarnation: ReplicaId::new(u64::from(number)) }
}

pub(super) fn name(node: NodeId) -> char {
    char::from(node.peer.as_bytes()[0])
}

pub(super) fn names(nodes: &BTreeSet<NodeId>) -> String {
    let names: Vec<String> = nodes.iter().map(|node| name(*node).to_string()).collect();
    names.join(" ")
}

/// A member of Pekko's fixture.
pub(super) fn member(name: char, status: Status) -> Member {
    let up_number = match name {
        'A' | 'F' => 5,
        'B' => 4,
        'C' => 3,
        'D' => 2,
        'E' => 1,
        _ => 6,
    };
    let roles = [("role1", "BD"), ("role2", "CD"), ("role3", "ABD")];
    let has = roles.into_iter().filter(|(_, members)| members.contains(name));
    let mut member = Member::joining(node(name), Address::new(name).unwrap(), 0);
    member.roles = has.map(|(role, _)| role.to_owned()).collect();
    member.status = status;
    member.up_number = (status > Status::WeaklyUp).then_some(up_number);
    member
}

/// A parsed row of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Split {
    pub(super) sides: Vec<Vec<Member>>,
    dead: BTreeSet<NodeId>,
    records: BTreeSet<UnreachableRecord>,
    tiebreaker: Option<NodeId>,
}

pub(super) fn split(row: &str) -> Split {
    let (sides, more) = row.split_once(';').unwrap_or((row, ""));
    let mut split = Split::default();
    for side in sides.split('|') {
        let members = side.split_whitespace().map(|token| {
            let (name, status) = parse_member(token);
            if token.starts_with('~') {
                split.dead.insert(node(name));
            }
            member(name, status)
        });
        split.sides.push(members.collect());
    }
    for token in more.split_whitespace() {
        let letters: Vec<char> = token.chars().collect();
        match letters[..] {
            [observer, '>', subject] => {
                let record = UnreachableRecord { observer: node(observer), subject: node(subject) };
                split.records.insert(record);
            }
            ['=', tiebreaker] => split.tiebreaker = Some(node(tiebreaker)),
            _ => panic!("`{token}` is neither a record nor a tiebreaker"),
        }
    }
    split
}

/// Accepts the marks of this module, and Pekko's marks behind the letter.
fn parse_member(token: &str) -> (char, Status) {
    let name = token.chars().find(char::is_ascii_uppercase).expect("a member is a letter");
    let status = match token.replace(name, "").as_str() {
        "" | "~" => Status::Up,
        "+" | "j" => Status::Joining,
        "^" | "w" => Status::WeaklyUp,
        "-" | "l" => Status::Leaving,
        "!" | "x" => Status::Exiting,
        "*" | "d" => Status::Down,
        other => panic!("`{other}` marks no status"),
    };
    (name, status)
}

impl Split {
    /// The view of the first member of a side. As in Pekko's tables, that member reports all
    /// members of other sides as unreachable, and its side has seen the present state. All members
    /// of a side are connected.
    pub(super) fn view(&self, side: usize) -> View {
        self.view_of(side, self.sides[side][0].node)
    }

    /// The view of `own`, a member of that side.
    pub(super) fn view_of(&self, side: usize, own: NodeId) -> View {
        let observer = self.sides[side][0].node;
        let others = self.sides.iter().enumerate().filter(|(other, _)| *other != side);
        let cut = others.flat_map(|(_, members)| members).map(|member| member.node);
        let mut records = self.records.clone();
        records.extend(cut.map(|subject| UnreachableRecord { observer, subject }));
        let subjects = records.iter().map(|record| (record.subject, Duration::from_secs(60)));
        let unreachable: BTreeMap<_, _> = subjects.filter(|(node, _)| *node != own).collect();
        let members: Vec<Member> = self.sides.iter().flatten().cloned().collect();
        let voters = members.iter().filter(|member| member.status > Status::WeaklyUp);
        let electorate = self.tiebreaker.map(|tiebreaker| VoterSet {
            voters: voters.map(|member| member.node).collect(),
            tiebreaker,
        });
        let seen: BTreeSet<NodeId> = self.sides[side].iter().map(|member| member.node).collect();
        let connected = seen.iter().copied().filter(|node| *node != own).collect();
        View { own, members, unreachable, records, seen, connected, electorate, pending: None }
    }

    /// Indices of the sides whose first member has not crashed.
    pub(super) fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.sides.len()).filter(|side| !self.dead.contains(&self.sides[*side][0].node))
    }
}

/// Checks a strategy against rows of (description, split, decision of each living side).
#[track_caller]
pub(super) fn table(strategy: &DowningStrategy, rows: &[(&str, &str, &[DowningDecision])]) {
    let mut wrong = Vec::new();
    for (sentence, row, expected) in rows {
        let split = split(row);
        let answers: Vec<DowningDecision> =
            split.living().map(|side| strategy.decide(&split.view(side))).collect();
        if answers != *expected {
            wrong.push(format!("{sentence}: {row}\n  is {answers:?}\n  not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Compares with the contents of `file`; `UPDATE_EXPECT=1` rewrites the file.
#[track_caller]
pub(super) fn expect(file: &str, actual: &str, expected: &str) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let folder = std::path::Path::new(file!()).parent().unwrap();
        std::fs::write(folder.join(file), actual).unwrap();
        return;
    }
    let differs = actual.lines().zip(expected.lines()).find(|(is, was)| is != was);
    assert_eq!(differs, None, "{file}: (is, was); read the diff after UPDATE_EXPECT=1");
    assert_eq!(actual.len(), expected.len(), "{file}");
}
