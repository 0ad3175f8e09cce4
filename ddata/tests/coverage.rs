//! Checks by name that tests exist for every behaviour of Pekko's replicated data (`p01_…` from its
//! tests of one process, `m01_…` from those of several), every known failure that concerns this
//! package, every fault injection and every coverage mark, or that this file has a reason why not.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Behaviours without a test under their number, and the reason.
const NOT_HERE: [(&str, &str); 4] = [
    ("p22", "no pruning: a departed replica's dots stay; that no value changes is `m24_…`"),
    ("p23", "no pruning: that late data of a departed replica change nothing is `m24_…`"),
    ("p24", "no pruning markers, no obsolete times"),
    ("p25", "no pruning markers, no owner of a pruning"),
];

/// Numbers of the known failures of other implementations that concern replicated data.
const KNOWN_FAILURES: [u32; 12] = [9, 12, 13, 15, 16, 17, 25, 28, 32, 33, 36, 40];

/// The Rust sources below a directory of this package, by path.
fn sources(below: &str) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut open) = (BTreeMap::new(), vec![root.join(below)]);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// The names of all tests of this package.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in sources("src").into_values().chain(sources("tests").into_values()) {
        let mut is_test = false;
        for line in source.lines().map(str::trim) {
            is_test |= line == "#[test]";
            let Some(rest) = line.strip_prefix("fn ") else { continue };
            if std::mem::take(&mut is_test) {
                names.insert(rest.split('(').next().unwrap().to_owned());
            }
        }
    }
    names
}

/// The numbers of behaviours at the beginning of a test's name: `p04_to_p06_…`, `m11_m12_…`.
fn behaviours(test: &str) -> Vec<String> {
    let (mut all, mut last, mut range) = (Vec::new(), None::<(char, u32)>, false);
    for word in test.split('_') {
        let letter = word.chars().next().filter(|letter| matches!(letter, 'p' | 'm'));
        let number = word.get(1..).filter(|digits| digits.len() == 2).and_then(|d| d.parse().ok());
        match (letter, number, last) {
            (Some(letter), Some(number), Some((_, from))) if range => {
                all.extend((from + 1..=number).map(|n| format!("{letter}{n:02}")));
                range = false;
            }
            (Some(letter), Some(number), _) => {
                all.push(format!("{letter}{number:02}"));
                last = Some((letter, number));
            }
            _ if word == "to" && last.is_some() => range = true,
            _ => break,
        }
    }
    all
}

#[test]
fn every_behaviour_of_ddata_has_a_numbered_test_or_a_reason() {
    let tested: BTreeSet<String> = tests().iter().flat_map(|test| behaviours(test)).collect();
    let numbers = |letter, last| (1..=last).map(move |n| format!("{letter}{n:02}"));
    let all: BTreeSet<String> = numbers('p', 60).chain(numbers('m', 28)).collect();
    let excused: BTreeSet<String> = NOT_HERE.iter().map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<_> =
        all.iter().filter(|n| !tested.contains(*n) && !excused.contains(*n)).collect();
    assert!(missing.is_empty(), "neither a test nor a reason: {missing:?}");
    let both: Vec<_> = excused.intersection(&tested).collect();
    assert!(both.is_empty(), "both a test and a reason: {both:?}");
    assert!(tested.is_subset(&all), "no such behaviour: {:?}", tested.difference(&all));
}

#[test]
fn every_known_failure_of_ddata_has_a_numbered_test() {
    let tests = tests();
    for number in KNOWN_FAILURES {
        let name = format!("known_failure_{number:02}_");
        assert!(tests.iter().any(|test| test.starts_with(&name)), "no test {name}…");
    }
}

/// The part of `source` between two texts.
fn between<'a>(source: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, rest) = source.split_once(begin).unwrap_or_else(|| panic!("no {begin:?}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no {end:?}")).0
}

#[test]
fn every_fault_is_caught_by_a_suite_or_a_scenario() {
    let (src, tests) = (sources("src"), sources("tests/suites"));
    let declared = between(&src["src/fault_injection.rs"], "pub enum ReplicatorFault {\n", "\n}");
    let variant = |line: &str| Some(line.trim().strip_suffix(',')?.to_owned());
    let bugs: Vec<String> = declared.lines().filter_map(variant).collect();
    assert!(bugs.len() >= 24, "{bugs:?}");
    let hunted = between(&tests["tests/suites/canaries.rs"], "\ncanaries! {\n", "\n}");
    // Without spaces, because rustfmt breaks long calls.
    let directed: String = tests["tests/suites/directed.rs"].split_whitespace().collect();
    for bug in bugs {
        let by_suite = hunted.contains(&format!(": {bug} by "));
        let by_hand = directed.contains(&format!("FaultInjection::with(ReplicatorFault::{bug})"));
        assert!(by_suite || by_hand, "no test catches {bug}");
        assert!(by_suite != by_hand, "a suite and a scenario catch {bug}: one is enough");
    }
}

/// The marks in a source: quoted names of two words with a dot between them.
fn marks(source: &str) -> BTreeSet<String> {
    let is_mark = |text: &&str| {
        let word = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
        text.split('.').count() == 2 && text.chars().all(word) && !text.starts_with('.')
    };
    source.split('"').skip(1).step_by(2).filter(is_mark).map(str::to_owned).collect()
}

#[test]
fn every_mark_of_the_suites_is_demanded_by_a_suite() {
    let sources = sources("tests/suites");
    let set = marks(&sources["tests/suites/run.rs"]);
    let demanded = marks(&sources["tests/suites/suites.rs"]);
    assert!(set.len() > 20, "{set:?}");
    let forgotten: Vec<_> = set.iter().filter(|mark| !demanded.contains(*mark)).collect();
    assert!(forgotten.is_empty(), "no suite must hit {forgotten:?}");
    assert!(demanded.is_subset(&set), "never set: {:?}", demanded.difference(&set));
}

#[test]
fn every_mark_in_the_code_is_checked_by_a_test() {
    let (src, tests) = (sources("src"), sources("tests"));
    let named = |source: &str, what: &str| -> Vec<String> {
        let ends = source.split(what).skip(1).filter_map(|rest| rest.split_once(')'));
        ends.map(|(name, _)| name.to_owned()).collect()
    };
    let hit: BTreeSet<String> = src.values().flat_map(|s| named(s, "cov_mark::hit!(")).collect();
    let checked = src.values().chain(tests.values()).flat_map(|s| named(s, "cov_mark::check!("));
    let checked: BTreeSet<String> = checked.collect();
    assert!(!hit.is_empty());
    let unchecked: Vec<_> = hit.difference(&checked).collect();
    assert!(unchecked.is_empty(), "reached by chance only: {unchecked:?}");
}

#[test]
fn test_names_are_parsed_into_behaviours() {
    assert_eq!(behaviours("p04_to_p06_floors"), ["p04", "p05", "p06"]);
    assert_eq!(behaviours("m11_m12_each_change"), ["m11", "m12"]);
    assert_eq!(behaviours("m28_the_loads_to_p60_come"), ["m28"]);
    assert_eq!(behaviours("majorities_and_p01"), Vec::<String>::new());
}
