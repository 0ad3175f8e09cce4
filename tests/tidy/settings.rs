//! Checks that every setting has an effect: code outside the settings' own files reads it, or a
//! node refuses all values except its default (src/config/refused.rs).

use super::NONE;
use super::files::{before_tests, library_code};
use super::lexer::{Token, lex};

/// Fields that the file of their struct reads in a method that other code calls.
const READ_BY_METHOD: &[(&str, &str, &str)] = &[
    ("Downing", "stable_after", "timing"),
    ("Downing", "down_all_when_unstable", "timing"),
    ("Downing", "down_removal_margin", "removal_margin"),
    ("Downing", "wait_without_quorum", "waits_without_quorum"),
    ("Downing", "static_quorum", "strategy"),
    ("Downing", "keep_majority", "strategy"),
    ("Downing", "keep_oldest", "strategy"),
    ("Downing", "oldest", "strategy"),
    ("Downing", "quorum_leader", "strategy"),
    ("Downing", "majority_leader", "strategy"),
    ("Downing", "leader_roles", "strategy"),
    ("Downing", "role_leader_roles", "strategy"),
    ("Downing", "auto_down", "strategy"),
    ("NetLimits", "lane_bytes_max", "lane_bytes_max"),
    ("Management", "control_socket", "socket"),
    ("ShardingConfig", "allocation_strategy", "strategy"),
    ("ShardingConfig", "least_shard", "strategy"),
    ("ShardingConfig", "least_shard_rounds", "strategy"),
    ("ShardingConfig", "consistent_hashing", "strategy"),
    ("PassivationConfig", "segmented", "policy"),
    ("PassivationConfig", "least_frequently_used", "policy"),
];

/// Fields that are only checked: a node refuses all values except one.
const REFUSED_ELSEWHERE: &[(&str, &str)] = &[
    ("ShardingConfig", "state_store_mode"),
    ("Downing", "trust_downing"),
    ("ConstantRate", "frequency"),
    ("ConstantRate", "number_of_entities"),
];

/// The file that lists refused settings.
const REFUSED: &str = "src/config/refused.rs";

/// A source file without its tests.
struct Source<'a> {
    path: &'a str,
    tokens: Vec<Token<'a>>,
}

#[test]
fn every_setting_is_read_or_refused() {
    let files = library_code();
    let files: Vec<(&str, &str)> = files.iter().map(|file| (&*file.path, &*file.text)).collect();
    let (found, complaints) = without_effect(&files);
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    assert!(found >= 200, "only {found} settings were found: does the scan still see them?");
    let unlisted = effects::unlisted(&files);
    assert!(unlisted.is_empty(), "\n{}", unlisted.join("\n"));
}

/// Returns the number of settings and those that no code reads.
fn without_effect(files: &[(&str, &str)]) -> (usize, Vec<String>) {
    let all: Vec<Source<'_>> = files.iter().map(|(path, text)| source(path, text)).collect();
    let (mut found, mut complaints) = (0, Vec::new());
    for file in &all {
        for (settings, fields) in structs(&file.tokens) {
            for (line, field) in fields {
                found += 1;
                if !has_effect(&all, file, settings, field) {
                    let path = file.path;
                    complaints.push(format!(
                        "{path}:{line}: nothing reads {settings}::{field}: give it an effect, \
                         refuse it in {REFUSED}, or remove it"
                    ));
                }
            }
        }
    }
    (found, complaints)
}

fn source<'a>(path: &'a str, text: &'a str) -> Source<'a> {
    Source { path, tokens: lex(before_tests(text)) }
}

/// Files that declare and check settings; a read there is not an effect.
fn is_of_settings(path: &str) -> bool {
    path.ends_with("config.rs") || path.contains("/config/") || path.ends_with("/settings.rs")
}

fn has_effect(all: &[Source<'_>], of: &Source<'_>, settings: &str, field: &str) -> bool {
    if settings == "Overrides" {
        return reads(of, &["overrides", ".", field]); // an override replaces the setting of its name
    }
    if REFUSED_ELSEWHERE.contains(&(settings, field)) {
        return true;
    }
    let method = READ_BY_METHOD.iter().find(|(of, it, _)| (*of, *it) == (settings, field));
    if let Some((.., method)) = method {
        let calls = |file: &&Source<'_>| reads(file, &[".", method, "("]);
        return reads(of, &["self", ".", field])
            && all.iter().filter(|file| !is_of_settings(file.path)).any(|file| calls(&file));
    }
    all.iter().any(|file| {
        (file.path == REFUSED || !is_of_settings(file.path)) && reads_field(file, field)
    })
}

fn reads(file: &Source<'_>, words: &[&str]) -> bool {
    file.tokens
        .windows(words.len())
        .any(|found| found.iter().map(|it| it.text).eq(words.iter().copied()))
}

/// Whether the text reads `.field`: neither a call nor the target of an assignment.
fn reads_field(file: &Source<'_>, field: &str) -> bool {
    let text = |at: usize| file.tokens.get(at).map_or("", |token| token.text);
    (1..file.tokens.len()).any(|at| {
        let is_assigned = text(at + 1) == "=" && !matches!(text(at + 2), "=" | ">");
        text(at - 1) == "." && text(at) == field && text(at + 1) != "(" && !is_assigned
    })
}

/// Returns the structs of settings with their fields and lines: those that derive
/// `DocumentedFields`.
fn structs<'a>(tokens: &[Token<'a>]) -> Vec<(&'a str, Vec<(usize, &'a str)>)> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if tokens[at].text != "DocumentedFields"
            || tokens.get(at + 1).is_none_or(|it| it.text != ")")
        {
            continue; // a `use` of the derive
        }
        let rest = &tokens[at..];
        let Some(name) = rest.iter().position(|token| token.text == "struct") else { continue };
        let Some(open) = rest[name..].iter().position(|token| token.text == "{") else { continue };
        found.push((rest[name + 1].text, fields(&rest[name + open + 1..])));
    }
    found
}

/// Returns the public fields up to the brace that closes the struct.
fn fields<'a>(tokens: &[Token<'a>]) -> Vec<(usize, &'a str)> {
    let body = tokens.iter().take_while(|token| token.text != "}").collect::<Vec<_>>();
    let named = body.windows(3).filter(|it| it[0].text == "pub" && it[2].text == ":");
    named.map(|it| (it[1].line, it[1].text)).collect()
}

#[test]
fn setting_that_nothing_reads_is_found() {
    let settings = "#[derive(Clone, DocumentedFields)]\npub struct Limits {\n    pub most: usize,\n}\n\
                    impl Limits { fn check(&self) -> bool { self.most > 0 } }";
    let complaints = |reader: &str| {
        without_effect(&[("src/net/config.rs", settings), ("src/net/hub.rs", reader)]).1
    };
    assert_eq!(complaints("fn f(limits: &Limits) -> usize { limits.most }"), NONE);
    let unread = [
        "fn f() {}",
        "fn f(limits: &mut Limits) { limits.most = 3; }",
        "fn f(limits: &Limits) -> usize { limits.most() }",
        "// limits.most\n",
        "#[cfg(test)]\nmod tests { fn f(limits: &Limits) -> usize { limits.most } }",
    ];
    for reader in unread {
        let found = complaints(reader);
        assert_eq!(found.len(), 1, "{reader}");
        assert!(
            found[0].starts_with("src/net/config.rs:3: nothing reads Limits::most"),
            "{found:?}"
        );
    }
}

#[path = "effects.rs"]
mod effects;
