//! Checks that every setting names a test of its effect (tests/tidy/effects.txt). A scan of the
//! code finds a setting that nothing reads, but not one that is read and changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::{source, structs};
use crate::{NONE, read};

const TABLE: &str = "tests/tidy/effects.txt";

/// Fields with the text after them, by file and name of their struct.
type Groups<'a> = BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, &'a str>>;

#[test]
fn every_setting_names_a_test_of_its_effect() {
    let table = read(TABLE);
    let (groups, mut complaints) = parse(&table);
    complaints.extend(differences(&groups, read));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Files with settings that the table does not name.
pub(super) fn unlisted(files: &[(&str, &str)]) -> Vec<String> {
    let table = read(TABLE);
    let listed: BTreeSet<&str> = parse(&table).0.into_keys().map(|(file, _)| file).collect();
    let missing = files.iter().filter(|(path, text)| {
        !listed.contains(path) && !structs(&source(path, text).tokens).is_empty()
    });
    missing.map(|(path, _)| format!("{path}: list its settings in {TABLE}")).collect()
}

fn parse(table: &str) -> (Groups<'_>, Vec<String>) {
    let (mut groups, mut complaints) = (Groups::new(), Vec::new());
    let mut group = None;
    for (at, line) in table.lines().enumerate() {
        let complaint = |what: &str| format!("{TABLE}:{}: {what}: {line}", at + 1);
        let words = line.trim().split_once(' ').map(|(first, rest)| (first, rest.trim()));
        match words {
            _ if line.starts_with('#') || line.trim().is_empty() => {}
            Some(head) if !line.starts_with(' ') => {
                groups.entry(head).or_default();
                group = Some(head);
            }
            Some((field, test)) => {
                let fields = group.and_then(|group| groups.get_mut(&group));
                if fields.is_none_or(|fields| fields.insert(field, test).is_some()) {
                    complaints.push(complaint("twice, or without a file"));
                }
            }
            None => complaints.push(complaint("a field needs a test, a head a file and a struct")),
        }
    }
    (groups, complaints)
}

/// Differences between the table and the sources, of which `read` returns the text.
fn differences(groups: &Groups<'_>, read: impl Fn(&str) -> String) -> Vec<String> {
    let mut complaints = Vec::new();
    let files: BTreeSet<&str> = groups.keys().map(|(file, _)| *file).collect();
    for file in files {
        let text = read(file);
        for (name, fields) in structs(&source(file, &text).tokens) {
            let Some(listed) = groups.get(&(file, name)) else {
                complaints.push(format!("{file}: {TABLE} lacks the struct {name}"));
                continue;
            };
            if name == "Overrides" {
                continue; // each replaces the setting of its name; settings.rs checks that
            }
            let declared: BTreeSet<&str> = fields.iter().map(|(_, field)| *field).collect();
            let named: BTreeSet<&str> = listed.keys().copied().collect();
            complaints.extend(declared.difference(&named).map(|field| {
                format!("{file}: name a test of the effect of {name}::{field} in {TABLE}")
            }));
            complaints.extend(
                named
                    .difference(&declared)
                    .map(|field| format!("{TABLE}: {file} declares no setting {name}::{field}")),
            );
        }
    }
    for ((file, name), fields) in groups {
        for (field, test) in fields {
            let setting = format!("{file} {name}::{field}");
            match test.split_once(' ') {
                Some(("section", section)) if groups.keys().any(|(_, name)| *name == section) => {}
                Some((path, test)) if path.ends_with(".rs") && is_test(&read(path), test) => {}
                _ => complaints.push(format!("{TABLE}: {setting}: there is no test `{test}`")),
            }
        }
    }
    complaints
}

/// Whether the text declares a test of that name.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let declares = |line: &str| {
        let signature = line.strip_prefix("async ").unwrap_or(line);
        let rest = signature.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with('('))
    };
    let is_attribute = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
    lines.iter().enumerate().any(|(at, line)| {
        let mut above = lines[..at].iter().rev().take_while(is_attribute);
        declares(line)
            && above.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn setting_without_a_test_of_its_effect_is_found() {
    let settings = "#[derive(Clone, DocumentedFields)]\npub struct Limits {\n  pub most: usize,\n  \
                    pub least: Least,\n}\n#[derive(DocumentedFields)]\npub struct Least {\n  \
                    pub bytes: usize,\n}\n";
    let tests = "#[test]\nfn most_is_kept() {}\n#[test]\nfn bytes_are_kept() {}\nfn no_test() {}";
    let found = |table: &str| {
        let (groups, mut complaints) = parse(table);
        let text = |path: &str| if path == "a.rs" { settings.to_owned() } else { tests.to_owned() };
        complaints.extend(differences(&groups, text));
        complaints
    };
    let right = "# why\na.rs Limits\n  most  b.rs most_is_kept\n  least  section Least\n\n\
                 a.rs Least\n  bytes  b.rs bytes_are_kept\n";
    assert_eq!(found(right), NONE);
    let wrong = [
        (
            right.replace("  bytes  b.rs bytes_are_kept\n", ""),
            "name a test of the effect of Least::bytes",
        ),
        (
            right.replace("  bytes  ", "  more  b.rs bytes_are_kept\n  bytes  "),
            "declares no setting Least::more",
        ),
        (right.replace("most_is_kept", "no_test"), "there is no test `b.rs no_test`"),
        (right.replace("most_is_kept", "most_is"), "there is no test `b.rs most_is`"),
        (right.replace("section Least", "section Other"), "there is no test `section Other`"),
        (right.replace("b.rs bytes_are_kept", "untested"), "there is no test `untested`"),
        (
            right.replace("  bytes  ", "  bytes  b.rs bytes_are_kept\n  bytes  "),
            "twice, or without a file",
        ),
        (
            "a.rs Limits\n  most  b.rs most_is_kept\n  least  b.rs bytes_are_kept\n".to_owned(),
            "lacks the",
        ),
    ];
    for (table, expected) in wrong {
        let complaints = found(&table);
        assert_eq!(complaints.len(), 1, "{expected}: {complaints:?}");
        assert!(complaints[0].contains(expected), "{complaints:?}");
    }
}
