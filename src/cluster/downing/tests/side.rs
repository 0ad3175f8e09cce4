//! Contradictory records: the removed members, of which there must be as few as possible.

use super::{name, names, node, split};
use crate::cluster::downing::{DowningStrategy, KeepMajority, Resolution, Trust, View, resolve};

/// The view of `own`. Members of its side in `unseen` are connected with it but have not seen the
/// present state; members in `apart` are neither.
fn seen_by(row: &str, own: char, unseen: &str, apart: &str) -> View {
    let mut view = split(row).view_of(0, node(own));
    view.seen.retain(|node| !unseen.contains(name(*node)) && !apart.contains(name(*node)));
    view.connected.retain(|node| !apart.contains(name(*node)));
    view
}

fn resolved(view: &View) -> Resolution {
    let strategy = DowningStrategy::KeepMajority(KeepMajority::default());
    resolve(&strategy, Trust::Configuration, view)
}

/// Description, row, observing members, `unseen`, `apart`, and the members to remove. Empty: the
/// observer waits.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const DEAF: &str = "A B C D E F G ;A>D B>D C>D E>D F>D D>A D>B D>C D>E D>G =E";

const ROWS: &[Row] = &[
    ("a deaf member goes alone", "A B C ;A>B C>B B>A B>C =B", "AC", "B", "", "B"),
    ("also if it has died", "A B C ;A>B C>B B>A B>C =B", "AC", "", "B", "B"),
    ("it waits if it learns of that", "A B C ;A>B C>B B>A B>C =B", "B", "", "", ""),
    ("of seven, for all observers", DEAF, "ABCEFG", "D", "", "D"),
    ("also if it has died", DEAF, "ABCEFG", "", "D", "D"),
    (
        "two died after they had accused",
        "A B C D E ;C>A C>D D>B A>C A>D B>C B>D =A",
        "ABE",
        "",
        "CD",
        "C D",
    ),
    (
        "the first to find many dead stays",
        "A B C D E F G ;A>E A>F A>G E>F =A",
        "ABCD",
        "",
        "EFG",
        "E F G",
    ),
    ("of a pair the other one", "A B C ;A>B B>A =A", "A", "", "", "B"),
    ("of a pair the other one", "A B C ;A>B B>A =A", "B", "", "", "A"),
    ("of a pair the younger one", "A B C ;A>B B>A =A", "C", "", "", "A"),
    ("the last of two", "A B ;A>B B>A =A", "A", "B", "", "B"),
    ("a pair that can't be spared", "A B C | D E ;B>C C>B =A", "A", "", "DE", "D E"),
    ("three in a ring, each the next", "A B C ;A>B B>C C>A =A", "A", "", "", "B"),
    ("three in a ring, each the next", "A B C ;A>B B>C C>A =A", "B", "", "", "C"),
    ("three in a ring, each the next", "A B C ;A>B B>C C>A =A", "C", "", "", "A"),
    ("a member accused by two waits", "A B C D ;B>A C>A A>B =B", "A", "", "", ""),
    ("and goes by their records", "A B C D ;B>A C>A A>B =B", "BCD", "", "", "A"),
    ("a mere accuser stays", "A B C D E ;A>B A>C =A", "ADE", "", "", "B C"),
    ("records of a Down member do not count", "A B *C D ;C>A C>B A>C =A", "ABD", "", "", ""),
    ("a connected newcomer stays", "A +C B ;A>B B>A B>C C>B =A", "A", "", "B", "B"),
];

#[test]
fn contradictory_records_remove_few_members() {
    let mut wrong = Vec::new();
    for (sentence, row, looking, unseen, apart, expected) in ROWS {
        for own in looking.chars() {
            let resolution = resolved(&seen_by(row, own, unseen, apart));
            let goes = names(&resolution.down);
            if goes != *expected {
                wrong.push(format!("{sentence}: {row} as {own} sees it: {resolution:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// C has seen the present state, although there is no link to it at the moment.
#[test]
fn record_of_a_dead_member_does_not_remove_a_newcomer() {
    let mut view = seen_by("A +C B ;A>B B>A B>C C>B =A", 'A', "", "B");
    view.connected.clear();
    assert_eq!(names(&resolved(&view).down), "B");
    view.seen.remove(&node('C'));
    assert_eq!(names(&resolved(&view).down), "B C", "no sign of C");
}

/// Nodes with the same view agree on the leader: a member that is accused only by removed members
/// does not lead a side of its own.
#[test]
fn one_remaining_member_acts() {
    for own in "ABCEFG".chars() {
        let acts = resolved(&seen_by(DEAF, own, "D", "")).responsible;
        assert_eq!(acts, own == 'A', "{own}");
    }
}
