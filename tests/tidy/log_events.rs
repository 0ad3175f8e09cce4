//! Checks that docs/logging.md lists every log event of the sources with its levels, and no other
//! event.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{before_tests, library_code, read};
use super::lexer::lex;
use super::{NONE, up_to_the_bracket};

const PAGE: &str = "docs/logging.md";

const LEVELS: [(&str, &str); 5] = [
    ("error", "ERROR"),
    ("warn", "WARN"),
    ("info", "INFO"),
    ("debug", "DEBUG"),
    ("trace", "TRACE"),
];

/// Levels of events for which the page must state an action.
const ACTION_LEVELS: [&str; 2] = ["ERROR", "WARN"];

/// Places of the calls that log each event, by event and level.
type Events = BTreeMap<String, BTreeMap<&'static str, String>>;

/// A row of a table of events.
struct Row<'a> {
    line: usize,
    event: &'a str,
    levels: BTreeSet<&'a str>,
    meaning: &'a str,
    action: &'a str,
}

#[test]
fn every_log_event_has_a_row_with_its_levels() {
    let mut events = Events::new();
    let mut wrong = Vec::new();
    for file in library_code() {
        add_events(&file.path, &file.text, &mut events);
        wrong.extend(other_calls(&file.path, &file.text));
    }
    let page = read(PAGE);
    wrong.extend(differences(&events, &rows(&page)));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let found = events.len();
    assert!(found >= 100, "only {found} events were found: does the scan still see them?");
}

/// Adds the events that a file logs. The name of an event is its message up to the first colon.
fn add_events(path: &str, text: &str, events: &mut Events) {
    let text = before_tests(text);
    for (macro_name, level) in LEVELS {
        let call = format!("{}::{macro_name}!(", "tracing");
        for (at, _) in text.match_indices(&call) {
            let before = &text[..at];
            if before.rsplit('\n').next().is_some_and(|line| line.contains("//")) {
                continue; // in a comment
            }
            let arguments = up_to_the_bracket(&text[at + call.len()..]);
            let message = arguments.rsplit('"').nth(1).unwrap_or_default();
            let event = message.split(':').next().unwrap_or_default().to_owned();
            let line = before.matches('\n').count() + 1;
            events.entry(event).or_default().entry(level).or_insert(format!("{path}:{line}"));
        }
    }
}

/// Finds log calls in a form that [`add_events`] does not see.
fn other_calls(path: &str, text: &str) -> Vec<String> {
    let tokens = lex(before_tests(text));
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let is_level = |word: &str| LEVELS.iter().any(|(macro_name, _)| *macro_name == word);
    let calls = (0..tokens.len()).filter(|at| {
        let is_qualified = *at >= 2 && word(at - 1) == "::" && word(at - 2) == "tracing";
        let is_call = word(at + 1) == "!";
        is_call && (is_level(word(*at)) && !is_qualified || word(*at) == "event" && is_qualified)
    });
    let complain = |at: usize| {
        let (line, name) = (tokens[at].line, word(at));
        format!("{path}:{line}: {name}!: log by `tracing::error!`, `warn!`, `info!`, `debug!` only")
    };
    calls.map(complain).collect()
}

/// The rows of a page's tables of events: event in backticks, levels, meaning, action.
fn rows(page: &str) -> Vec<Row<'_>> {
    let rows = page.lines().enumerate().filter_map(|(at, line)| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix('|')?.split(" | ").collect();
        let [event, levels, meaning, action] = cells[..] else { return None };
        Some(Row {
            line: at + 1,
            event: event.strip_suffix('`')?,
            levels: levels.split(", ").collect(),
            meaning: meaning.trim(),
            action: action.trim(),
        })
    });
    rows.collect()
}

fn differences(events: &Events, rows: &[Row<'_>]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    for Row { line, event, levels, meaning, action } in rows {
        let place = format!("{PAGE}:{line}: {event}");
        if let Some(first) = listed.insert(event, *line) {
            wrong.push(format!("{place}: has a row in line {first} already"));
        }
        let Some(logged) = events.get(*event) else {
            wrong.push(format!("{place}: no code logs it: remove the row"));
            continue;
        };
        let logged_levels: BTreeSet<&str> = logged.keys().copied().collect();
        if logged_levels != *levels {
            wrong.push(format!("{place}: the row has {levels:?}, the code {logged:?}"));
        }
        if meaning.is_empty() || action.is_empty() {
            wrong.push(format!("{place}: state a meaning and an action, if only `none`"));
        }
        if *action == "none" && ACTION_LEVELS.iter().any(|level| levels.contains(level)) {
            wrong.push(format!("{place}: state an action, or lower the level to INFO"));
        }
    }
    let missing = events.iter().filter(|(event, _)| !listed.contains_key(event.as_str()));
    wrong.extend(missing.map(|(event, calls)| format!("{PAGE}: no row for {event}: {calls:?}")));
    wrong
}

// ── Each rule can fail ──

/// A source in which `log::` stands for the crate of the log macros, so that this file has no calls.
fn source(text: &str) -> String {
    text.replace("log::", concat!("trac", "ing::"))
}

#[test]
fn log_events_are_read_from_calls() {
    let text = source(
        "fn f() {\n    log::warn!(%a, \"net.a: (b) {c}: d\");\n    \
         log::info!(\n        b = \"x\",\n        \"net.a: e \\\n         f\"\n    );\n    \
         // log::info!(\"net.comment\")\nlog::debug!(\"net.b\");\n}\n\
         #[cfg(test)]\nmod tests {\n    fn f() { log::info!(\"net.test\"); }\n}",
    );
    let mut events = Events::new();
    add_events("a.rs", &text, &mut events);
    let place = |line: usize| format!("a.rs:{line}");
    let a = BTreeMap::from([("WARN", place(2)), ("INFO", place(3))]);
    let b = BTreeMap::from([("DEBUG", place(9))]);
    assert_eq!(events, Events::from([("net.a".to_owned(), a), ("net.b".to_owned(), b)]));
}

#[test]
fn log_calls_in_another_form_are_found() {
    assert_eq!(other_calls("a.rs", &source("log::info!(\"net.a\"); println!(\"b\");")), NONE);
    for call in ["warn!(\"net.a\")", "other::info!(\"net.a\")", "log::event!(Level::INFO)"] {
        assert_eq!(other_calls("a.rs", &source(call)).len(), 1, "{call}");
    }
}

#[test]
fn differences_of_page_and_sources_are_found() {
    let mut events = Events::new();
    let text = "log::warn!(\"net.a: b\"); log::info!(\"net.a\"); log::info!(\"net.b\");";
    add_events("a.rs", &source(text), &mut events);
    let a = "| `net.a` | INFO, WARN | it failed | restart it |\n";
    let b = "| `net.b` | INFO | it began | none |\n";
    let wrong = |page: &str| differences(&events, &rows(page));
    let fine =
        format!("| event | level | meaning | action |\n|---|---|---|---|\n{a}{b}| x | y |\n");
    assert_eq!(wrong(&fine), NONE);
    let pages = [
        (a.to_owned(), "no row for net.b"),
        (format!("{fine}| `net.c` | INFO | it ended | none |\n"), "net.c: no code logs it"),
        (format!("{fine}{b}"), "net.b: has a row in line 4 already"),
        (fine.replace("INFO, WARN", "WARN"), "net.a: the row has {\"WARN\"}"),
        (fine.replace("restart it", "none"), "net.a: state an action"),
        (fine.replace("it began", ""), "net.b: state a meaning"),
        (fine.replace("none", ""), "net.b: state a meaning"),
    ];
    for (page, expected) in pages {
        let found = wrong(&page);
        assert_eq!(found.len(), 1, "{expected}: {found:?}");
        assert!(found[0].contains(expected), "{expected}: {found:?}");
    }
}
