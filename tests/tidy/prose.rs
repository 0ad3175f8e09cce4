//! Plain language, as far as it can be counted: habits of comments, short doc comments, names of
//! types, files and tests. CONTRIBUTING.md has the rules; these figures are only a ceiling.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{File, library_code, library_sources, sources};

/// Counts a habit in one comment line.
type Count = fn(&str) -> usize;

/// Habits that make comments hard to read.
const HABITS: [(&str, Count); 5] = [
    ("a person for a thing (who, whom, whoever)", persons),
    ("a sentence that begins with a what-clause", what_clauses),
    ("`is to` for must, will or can", modals),
    ("`no more` for no longer", no_more),
    ("`stands`, `says`, `the word` for a fact", metaphors),
];

/// Names of types that are declared in more than one file; may only fall.
const TYPES_TWICE_MAX: usize = 2;
/// Files named by a bare participle; may only fall.
const PARTICIPLES_MAX: usize = 5;
/// Most characters of a test's name.
const TEST_NAME_MAX: usize = 60;

#[test]
fn comments_keep_clear_of_habits_that_hide_the_subject() {
    let sources = library_sources();
    let comments: Vec<(String, &str)> = sources.iter().flat_map(comments).collect();
    assert!(comments.len() >= 10_000, "only {} comments were found", comments.len());
    for (habit, count) in HABITS {
        let found = comments.iter().filter(|(_, line)| count(line) > 0);
        at_most(0, habit, found.map(|(place, line)| format!("{place}: {line}")));
    }
}

#[test]
fn doc_comments_have_more_than_three_words() {
    let sources = library_sources();
    let short = sources.iter().flat_map(|file| short_docs(&file.path, &file.text));
    at_most(0, "doc comments of three words or fewer", short);
}

#[test]
fn names_of_types_mean_one_thing() {
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let sources = library_code();
    for file in &sources {
        for name in file.code().lines().filter_map(declared_type) {
            files.entry(name).or_default().insert(&file.path);
        }
    }
    let twice = files.iter().filter(|(_, files)| files.len() > 1);
    let twice: Vec<String> = twice.map(|(name, files)| format!("{name}: {files:?}")).collect();
    at_most(TYPES_TWICE_MAX, "names of types in more than one file", twice);
}

#[test]
fn files_are_named_after_things() {
    let paths = library_sources().into_iter().map(|file| file.path);
    let named = paths.filter(|path| is_participle(path));
    at_most(PARTICIPLES_MAX, "files named by a participle", named);
}

#[test]
fn names_of_tests_are_short_claims() {
    let sources = sources();
    let names = sources.iter().flat_map(|file| test_names(&file.text));
    let long = names.clone().filter(|name| name.len() > TEST_NAME_MAX).map(str::to_owned);
    at_most(0, "names of tests with more than 60 characters", long);
    let persons = names.filter(|name| names_a_person(name)).map(str::to_owned);
    at_most(0, "names of tests with who or what", persons);
}

fn at_most(most: usize, of: &str, found: impl IntoIterator<Item = String>) {
    let found: Vec<String> = found.into_iter().collect();
    let count = found.len();
    assert!(count <= most, "{count} {of}, at most {most}:\n{}", found.join("\n"));
}

// ── The rules ──

/// Comment lines with something in them, and their places.
fn comments(File { path, text }: &File) -> Vec<(String, &str)> {
    let lines = text.lines().enumerate();
    let comments = lines.filter_map(|(at, line)| {
        let rest = line.trim_start().strip_prefix("//")?;
        let said = rest.strip_prefix(['/', '!']).unwrap_or(rest).trim();
        (!said.is_empty()).then(|| (format!("{path}:{}", at + 1), said))
    });
    comments.collect()
}

fn words(line: &str) -> Vec<String> {
    let parts = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '\'');
    parts.filter(|part| !part.is_empty()).map(str::to_ascii_lowercase).collect()
}

fn persons(line: &str) -> usize {
    let is_person =
        |word: &&String| matches!(word.as_str(), "who" | "whom" | "whoever" | "whomever");
    words(line).iter().filter(is_person).count()
}

fn what_clauses(line: &str) -> usize {
    let begins = |at: usize| {
        at == 0
            || line[..at].ends_with([' ']) && {
                line[..at].trim_end().ends_with(['.', ';', ':', '('])
            }
    };
    line.match_indices("What ").filter(|(at, _)| begins(*at)).count()
}

fn modals(line: &str) -> usize {
    let words = words(line);
    let is_modal = |three: &&[String]| {
        matches!(three[0].as_str(), "is" | "are" | "was" | "were")
            && three[1] == "to"
            && three[2] != "blame"
    };
    words.windows(3).filter(is_modal).count()
}

fn no_more(line: &str) -> usize {
    let words = words(line);
    let is_habit = |at: &usize| {
        matches!(words[*at].as_str(), "no" | "any")
            && words.get(at + 1).is_some_and(|word| word == "more")
            && words.get(at + 2).is_none_or(|word| word != "than")
    };
    (0..words.len()).filter(is_habit).count()
}

fn metaphors(line: &str) -> usize {
    let words = words(line);
    let is_habit = |at: &usize| match words[*at].as_str() {
        "stands" | "says" => true,
        "the" => words.get(at + 1).is_some_and(|word| word == "word" || word == "words"),
        "a" => words.get(at + 1).is_some_and(|word| word == "word"),
        _ => false,
    };
    (0..words.len()).filter(is_habit).count()
}

fn short_docs(path: &str, text: &str) -> Vec<String> {
    let (mut found, mut doc) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        if let Some(said) = line.trim_start().strip_prefix("///") {
            doc.push(said.trim());
            continue;
        }
        let said = doc.join(" ");
        if !doc.is_empty() && said.split_whitespace().count() <= 3 {
            found.push(format!("{path}:{at}: {said}"));
        }
        doc.clear();
    }
    found
}

/// The type that a line declares. Associated types have the names that their traits give them.
fn declared_type(line: &str) -> Option<&str> {
    if line.starts_with(' ') && line.trim_start().starts_with("type ") {
        return None;
    }
    let line = line.trim_start();
    let rest = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (kind, rest) = rest.split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "type");
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

fn is_participle(path: &str) -> bool {
    path.trim_end_matches(".rs").trim_end_matches("/mod").ends_with("ing")
}

/// The names of the functions that have an attribute `#[test]` or `#[tokio::test]`.
fn test_names(text: &str) -> Vec<&str> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test") || line.starts_with("#[tokio::test");
        let signature = line.strip_prefix("async ").unwrap_or(line);
        if let Some(rest) = signature.strip_prefix("fn ").filter(|_| is_test) {
            names.extend(rest.split('(').next());
            is_test = false;
        }
    }
    names
}

fn names_a_person(name: &str) -> bool {
    name.split('_').any(|word| matches!(word, "who" | "whom" | "whoever" | "what"))
}

// ── Each rule can fail ──

#[test]
fn each_habit_is_counted() {
    let examples: [(Count, [&str; 2], &str); 5] = [
        (persons, ["Who leaves waits.", "told to whoever asks"], "The whole node waits."),
        (what_clauses, ["What was held goes.", "It ends. What is left goes."], "Tells What ends."),
        (modals, ["It is to be seen.", "They were to answer."], "It is next to the others."),
        (no_more, ["It is there no more.", "Not any more"], "no more than 3"),
        (metaphors, ["It stands in the table.", "by an operator's a word"], "It has two words."),
    ];
    for (count, bad, good) in examples {
        for line in bad {
            assert_eq!(count(line), 1, "{line}");
        }
        assert_eq!(count(good), 0, "{good}");
    }
    let text = "//! One\n\n///\nlet a = 1; // no\n  // Two".to_owned();
    let file = File { path: "a.rs".to_owned(), text };
    let expected = [("a.rs:1".to_owned(), "One"), ("a.rs:5".to_owned(), "Two")];
    assert_eq!(comments(&file), expected);
}

#[test]
fn short_doc_comments_are_found() {
    let text = "/// Which.\nfn a() {}\n/// Returns the first\n/// one.\nfn b() {}";
    assert_eq!(short_docs("a.rs", text), ["a.rs:1: Which."]);
}

#[test]
fn declarations_of_types_are_found() {
    for line in ["struct A;", "pub enum A {", "    pub(crate) type A<T> = B<T>;", "trait A: B {"] {
        assert_eq!(declared_type(line), Some("A"), "{line}");
    }
    let others =
        ["fn struct_of() {}", "/// enum A", "let a = A;", "pub fn a() {}", "    type A = B;"];
    for line in others {
        assert_eq!(declared_type(line), None, "{line}");
    }
}

#[test]
fn files_named_by_participles_are_found() {
    assert!(is_participle("src/a/leaving.rs") && is_participle("src/a/leaving/mod.rs"));
    assert!(!is_participle("src/a/shutdown.rs") && !is_participle("src/leaving/port.rs"));
}

#[test]
fn names_of_tests_are_found() {
    let text = "#[test]\nfn a() {}\nfn b() {}\n#[tokio::test(x)]\n#[cfg(unix)]\nasync fn c() {}";
    assert_eq!(test_names(text), ["a", "c"]);
    assert!(names_a_person("who_leaves_waits") && names_a_person("as_what_was"));
    assert!(!names_a_person("whole_nodes_wait"));
}
