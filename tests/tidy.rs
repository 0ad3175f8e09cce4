//! Rules of the source tree that can be checked by reading files. Each rule has one test, and one
//! that shows that the rule can fail.
//!
//! A rule is a pure function from a file's path and text to violations. It uses only std and a
//! small lexer. Rules that clippy can check are in the `clippy.toml` files.

use files::{read, root, sources};
use lexer::{lex, paths};

#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/glossary.rs"]
mod glossary;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/log_events.rs"]
mod log_events;
#[path = "tidy/packages.rs"]
mod packages;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/settings.rs"]
mod settings;
#[path = "tidy/tables.rs"]
mod tables;

const LINES_MAX: usize = 800;

/// Files longer than [`LINES_MAX`] with their lengths. Entries may shrink or be removed, but never
/// grow.
const LONG_FILES: &[(&str, usize)] = &[];

const EMPTY_NAMES: &[&str] =
    &["util", "utils", "common", "helper", "helpers", "manager", "managers"];

/// A module group: its folder, its files (or their folder, with a slash), and the modules that it
/// must never use.
struct Room {
    below: &'static str,
    name: &'static str,
    files: &'static [&'static str],
    never: &'static [&'static str],
}

const DDATA: &str = "ddata/src/";

const ROOMS: &[Room] = &[
    Room {
        below: DDATA,
        name: "foundation",
        files: &["machine.rs", "clock.rs", "id.rs", "fault_injection.rs", "log_throttle.rs"],
        never: &["causal", "types", "data", "key", "replicator", "durable"],
    },
    Room {
        below: DDATA,
        name: "types",
        files: &["causal.rs", "causal/", "types.rs", "types/"],
        never: &["data", "key", "replicator", "durable"],
    },
    Room {
        below: DDATA,
        name: "values",
        files: &["data.rs", "data/", "key.rs"],
        never: &["replicator", "durable"],
    },
    Room {
        below: DDATA,
        name: "simulator",
        files: &["sim.rs", "sim/"],
        never: &["causal", "types", "data", "replicator"],
    },
    Room {
        below: "src/",
        name: "the transport",
        files: &["net/"],
        never: &["cluster", "sharding", "node"],
    },
    Room {
        below: "src/",
        name: "membership",
        files: &["cluster/"],
        never: &["net", "sharding", "node"],
    },
    Room {
        below: "src/",
        name: "sharding",
        files: &["sharding/coordinator/", "sharding/region/", "sharding/store.rs"],
        never: &["net", "cluster", "node"],
    },
    Room {
        below: "src/",
        name: "sharding's policies",
        files: &["sharding/"],
        never: &["net", "node"],
    },
];

/// Folders that contain only machines and the types that these use.
const PURE: &[&str] = &[
    DDATA,
    "src/cluster/",
    "src/sharding/coordinator/",
    "src/sharding/region/",
    "src/sharding/machines/",
];

// ── The rules ──

#[test]
fn no_source_file_is_longer_than_800_lines() {
    demand(|path, text| too_long(path, text, LONG_FILES));
    for (path, _) in LONG_FILES {
        assert!(root().join(path).exists(), "{path} is gone: take it out of LONG_FILES");
    }
}

#[test]
fn every_source_file_opens_with_a_module_comment() {
    demand(unopened);
}

#[test]
fn no_file_is_named_after_nothing_in_particular() {
    demand(|path, _| badly_named(path));
}

#[test]
fn dependencies_between_rooms_point_one_way() {
    demand(wrong_arrows);
}

#[test]
fn machines_touch_no_network_no_disk_no_thread_and_no_runtime() {
    demand(impure);
}

#[test]
fn nothing_is_left_for_later() {
    demand(unfinished);
}

#[test]
fn every_event_of_the_log_has_a_name_that_stays() {
    demand(unnamed_events);
}

#[test]
fn logs_never_panic_on_a_closed_pipe() {
    let is_program = |path: &str| {
        (path.starts_with("src/") || path.starts_with("examples/")) && !path.contains("tests")
    };
    demand(|path, text| if is_program(path) { panicking_logs(path, text) } else { Vec::new() });
}

#[test]
fn no_test_is_switched_off() {
    demand(ignored);
}

#[test]
fn the_readme_names_one_test_command() {
    assert_eq!(test_commands(&read("README.md")), ["cargo test --workspace"]);
}

/// The README shows the example that is compiled, without the setup of its log.
#[test]
fn the_readme_shows_its_example_as_it_is() {
    let example = read("examples/counters.rs");
    let code = &example[example.find("use ").expect("the example uses the library")..];
    let code: String = code
        .lines()
        .filter(|line| !line.contains("logging::"))
        .fold(String::new(), |shown, line| shown + line + "\n");
    let shown = format!("```rust\n{code}```");
    let is_shown = read("README.md").contains(&shown);
    assert!(is_shown, "copy examples/counters.rs, from its first `use`, into README.md");
    assert!(example.lines().count() <= 60, "the smallest useful program");
}

/// Applies `rule` to every source file and fails with all violations.
fn demand(rule: impl Fn(&str, &str) -> Vec<String>) {
    let complaints: Vec<String> =
        sources().iter().flat_map(|file| rule(&file.path, &file.text)).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn too_long(path: &str, text: &str, exceptions: &[(&str, usize)]) -> Vec<String> {
    let lines = text.lines().count();
    let allowed = exceptions.iter().find(|(file, _)| *file == path).map(|(_, allowed)| *allowed);
    match allowed {
        None if lines > LINES_MAX => {
            vec![format!("{path}: {lines} lines, at most {LINES_MAX}: cut it by reason to change")]
        }
        Some(allowed) if lines > allowed => {
            vec![format!("{path}: grew from {allowed} to {lines} lines: cut it")]
        }
        Some(allowed) if lines < allowed => {
            vec![format!(
                "{path}: down to {lines} lines: write that in LONG_FILES (over 800) or drop it"
            )]
        }
        _ => Vec::new(),
    }
}

fn unopened(path: &str, text: &str) -> Vec<String> {
    let first = text.lines().next().unwrap_or_default();
    if first.strip_prefix("//!").is_some_and(|words| !words.trim().is_empty()) {
        return Vec::new();
    }
    vec![format!("{path}:1: open with `//! what this is for, what it must never know`")]
}

fn badly_named(path: &str) -> Vec<String> {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let bad = stem.split('/').filter(|part| EMPTY_NAMES.contains(part));
    bad.map(|part| format!("{path}: `{part}` says nothing: name it after what is inside")).collect()
}

fn wrong_arrows(path: &str, text: &str) -> Vec<String> {
    let Some(room) = room_of(path) else { return Vec::new() };
    let wrong = paths(&lex(text)).into_iter().filter_map(|(line, segments)| {
        // Nested modules may have the name of another group.
        let ambiguous = room.below != DDATA && segments.first() == Some(&"super");
        let inside = inside_crate(&segments).filter(|_| !ambiguous);
        let named = inside.filter(|first| room.never.contains(first))?;
        Some(format!(
            "{path}:{line}: names `{named}`, which {} must not know: hand it in, or move the code",
            room.name
        ))
    });
    wrong.collect()
}

fn room_of(path: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| {
        let Some(file) = path.strip_prefix(room.below) else { return false };
        let is_in = |place: &&str| match place.ends_with('/') {
            true => file.starts_with(*place),
            false => file == *place,
        };
        room.files.iter().any(is_in)
    })
}

/// The group that a path inside the crate leads to; `None` for paths into other crates.
fn inside_crate<'a>(segments: &[&'a str]) -> Option<&'a str> {
    let from_root = match segments {
        ["crate" | "ostraca_ddata" | "ostraca", rest @ ..] => rest,
        ["super", ..] => {
            let up = segments.iter().take_while(|segment| **segment == "super").count();
            &segments[up..]
        }
        _ => return None,
    };
    from_root.first().copied()
}

fn impure(path: &str, text: &str) -> Vec<String> {
    let pure = PURE.iter().find_map(|pure| path.strip_prefix(pure));
    let Some(file) = pure else { return Vec::new() };
    let in_sim = file.starts_with("sim/") || file.contains("/tests/");
    let foreign = paths(&lex(text)).into_iter().filter_map(|(line, segments)| {
        let named = match segments[..] {
            [word @ ("tokio" | "async" | "await"), ..] => word.to_owned(),
            [word, ..] if word.starts_with("libp2p") => word.to_owned(),
            ["std" | "core", "net", ..] => "std::net".to_owned(),
            ["std", part @ ("fs" | "thread"), ..] if !in_sim => format!("std::{part}"),
            _ => return None,
        };
        Some(format!(
            "{path}:{line}: `{named}`: a machine does no I/O; make it an input and an output"
        ))
    });
    foreign.collect()
}

fn unfinished(path: &str, text: &str) -> Vec<String> {
    let later = [concat!("FIX", "ME"), concat!("TO", "DO")];
    let notes = text.lines().enumerate().flat_map(|(at, line)| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let found = words.filter(move |word| later.contains(word));
        found.map(move |word| (at + 1, word.to_owned()))
    });
    let tokens = lex(text);
    let stubs = tokens
        .windows(2)
        .filter(|pair| matches!(pair[0].text, "todo" | "unimplemented") && pair[1].text == "!");
    let stubs = stubs.map(|pair| (pair[0].line, format!("{}!", pair[0].text)));
    let all = notes.chain(stubs);
    all.map(|(line, what)| format!("{path}:{line}: `{what}`: do it now, or leave it out")).collect()
}

/// Finds log calls without an event name: `group.what_happened`, then a colon and the remedy.
/// Operators search logs for these names.
fn unnamed_events(path: &str, text: &str) -> Vec<String> {
    let levels = ["error", "warn", "info", "debug", "trace"];
    let calls = levels.iter().flat_map(|level| {
        let call = format!("{}::{level}!(", "tracing");
        text.match_indices(&call).map(|(at, call)| at + call.len()).collect::<Vec<_>>()
    });
    let unnamed = calls.filter_map(|at| {
        let call = up_to_the_bracket(&text[at..]);
        let said = call.rsplit('"').nth(1).unwrap_or_default();
        let name = said.split(':').next().unwrap_or_default();
        let is_word = |word: &str| {
            !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        let named = name.split_once('.').is_some_and(|(room, what)| is_word(room) && is_word(what));
        let line = text[..at].matches('\n').count() + 1;
        (!named)
            .then(|| format!("{path}:{line}: {said:?} names no event: begin it with `room.what`"))
    });
    unnamed.collect()
}

/// The arguments of a call: the text before the closing bracket.
fn up_to_the_bracket(text: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

/// Finds subscribers that can panic: tracing-subscriber reports a failed write by `eprintln!`,
/// which panics if stderr is closed.
fn panicking_logs(path: &str, text: &str) -> Vec<String> {
    let built = text.matches("tracing_subscriber::fmt()").count();
    let quiet = text.matches(".log_internal_errors(false)").count();
    let complaint =
        format!("{path}: each tracing_subscriber::fmt() needs log_internal_errors(false)");
    if built > quiet { vec![complaint] } else { Vec::new() }
}

fn ignored(path: &str, text: &str) -> Vec<String> {
    let tokens = lex(text);
    let mut lines: Vec<usize> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let attribute =
            token.text == "#" && tokens.get(at + 1).is_some_and(|next| next.text == "[");
        if attribute {
            let words = tokens[at..].iter().take_while(|token| token.text != "]");
            lines.extend(words.filter(|word| word.text == "ignore").map(|word| word.line));
        }
    }
    let fences = text.lines().enumerate().filter(|(_, line)| {
        let doc = line.trim_start().trim_start_matches(['/', '!', ' ']);
        doc.strip_prefix("```")
            .is_some_and(|info| info.split(',').any(|word| word.trim() == "ignore"))
    });
    lines.extend(fences.map(|(at, _)| at + 1));
    let complain =
        |line| format!("{path}:{line}: `ignore`: a test that does not run proves nothing");
    lines.into_iter().map(complain).collect()
}

/// The test commands of the README. `.ci/run` uses the only one; any other number is an error.
fn test_commands(readme: &str) -> Vec<&str> {
    readme.lines().filter(|line| line.starts_with("cargo test --workspace")).collect()
}

// ── Each rule can fail ──

#[test]
fn a_file_of_801_lines_is_refused_and_an_exception_only_shrinks() {
    let long = "\n".repeat(801);
    assert_eq!(too_long("a.rs", &long[1..], &[]), NONE);
    assert_eq!(too_long("a.rs", &long, &[]).len(), 1);
    assert_eq!(too_long("a.rs", &long, &[("a.rs", 801)]), NONE);
    assert_eq!(too_long("a.rs", &long, &[("a.rs", 800)]).len(), 1);
    assert_eq!(too_long("a.rs", &long, &[("a.rs", 802)]).len(), 1);
    assert_eq!(too_long("a.rs", &long, &[("b.rs", 801)]).len(), 1);
}

#[test]
fn a_file_that_opens_with_anything_else_is_refused() {
    assert_eq!(unopened("a.rs", "//! Adds.\n"), NONE);
    for text in ["", "//!\n", "// Adds.\n", "\n//! Adds.\n", "use std::fmt;\n//! Adds.\n"] {
        assert_eq!(unopened("a.rs", text).len(), 1, "{text:?}");
    }
}

#[test]
fn a_name_that_fits_anything_is_refused_for_files_and_folders() {
    for path in ["src/utils.rs", "tests/common/mod.rs", "src/helpers.rs", "src/net/manager.rs"] {
        assert_eq!(badly_named(path).len(), 1, "{path}");
    }
    assert_eq!(badly_named("src/net/commons_lane.rs"), NONE);
}

#[test]
fn an_arrow_against_the_house_is_refused_however_it_is_written() {
    let upward = [
        ("causal.rs", "use crate::replicator::Epoch;"),
        ("types/or_set.rs", "use crate::{causal::Dot, replicator};"),
        ("types/or_set.rs", "use crate::{\n  causal::{Dot, Store},\n  data::Value as Erased,\n};"),
        ("types/mod.rs", "fn f() { super::key::Key::default(); }"),
        ("types/lww/mod.rs", "fn f(_: &super::super::replicator::Fence) {}"),
        ("machine.rs", "pub use crate::types::Flag;"),
        ("data.rs", "use ostraca_ddata::replicator::Input;"),
        ("sim/network.rs", "use crate::types::GSet;"),
        ("sim/mod.rs", "use crate::replicator::Replicator;"),
    ];
    for (file, text) in upward {
        assert_eq!(wrong_arrows(&format!("{DDATA}{file}"), text).len(), 1, "{file}: {text}");
    }
    assert_eq!(wrong_arrows("src/cluster/member_order.rs", "use crate::net::NodeId;").len(), 1);
    assert_eq!(
        wrong_arrows("src/net/connection_manager/mod.rs", "use crate::node::Node;").len(),
        1
    );
}

#[test]
fn an_arrow_with_the_house_is_let_through() {
    let downward = [
        ("replicator/store.rs", "use crate::{data::Value, types::Flag};"),
        ("types/or_set.rs", "use crate::causal::Dot; //! not crate::replicator"),
        ("types/or_set.rs", "/* crate::replicator */ const A: &str = \"crate::replicator\";"),
        ("types/or_set.rs", "use other::{replicator, data}; fn f(data: &[u8]) { data.len(); }"),
        ("sim/mod.rs", "use crate::{clock::Now, machine::Machine};"),
    ];
    for (file, text) in downward {
        assert_eq!(wrong_arrows(&format!("{DDATA}{file}"), text), NONE, "{file}: {text}");
    }
    assert_eq!(wrong_arrows("src/node/mod.rs", "use crate::{cluster, net};"), NONE);
    assert_eq!(wrong_arrows("src/net/link.rs", "use ostraca_ddata::clock::Now;"), NONE);
}

#[test]
fn io_is_refused_inside_ddata_and_membership_only() {
    let doors = [
        "use tokio::sync::mpsc;",
        "use libp2p_identity::PeerId;",
        "use std::net::IpAddr;",
        "use std::{fmt, fs::File};",
        "fn f() { ::std::thread::yield_now(); }",
        "async fn f() {}",
    ];
    for text in doors {
        assert_eq!(impure("ddata/src/replicator/write.rs", text).len(), 1, "{text}");
        assert_eq!(impure("src/cluster/gossip.rs", text).len(), 1, "{text}");
        assert_eq!(impure("src/node/driver.rs", text), NONE, "{text}");
    }
    assert_eq!(impure("ddata/src/a.rs", "use std::fmt; // as tokio does, on std::net"), NONE);
}

#[test]
fn the_simulator_may_use_disk_and_threads_but_no_network() {
    assert_eq!(impure("ddata/src/sim/seeds.rs", "use std::{fs, thread};"), NONE);
    assert_eq!(impure("ddata/src/sim/seeds.rs", "use std::net::TcpStream;").len(), 1);
}

#[test]
fn a_note_for_later_is_refused_in_prose_and_in_code() {
    let later = [
        concat!("// FIX", "ME: overflows"),
        concat!("/// TO", "DO(name) explain"),
        "fn f() { todo!(\"later\") }",
        "fn f() { unimplemented![] }",
        "fn f() { std::todo !() }",
    ];
    for text in later {
        assert_eq!(unfinished("a.rs", text).len(), 1, "{text}");
    }
    assert_eq!(unfinished("a.rs", "// todo!() is refused\nlet todo = \"todo!()\";"), NONE);
}

#[test]
fn an_ignored_test_is_refused_in_every_spelling() {
    let off = [
        "#[ignore]\nfn t() {}",
        "#[ignore = \"slow\"] fn t() {}",
        "#[cfg_attr(debug_assertions, ignore)] fn t() {}",
        "/// ```ignore\n/// f();\n/// ```",
        "//! ```rust,ignore",
    ];
    for text in off {
        assert_eq!(ignored("a.rs", text).len(), 1, "{text}");
    }
    assert_eq!(ignored("a.rs", "// #[ignore]\n#[test] fn we_ignore() { let ignore = [1]; }"), NONE);
}

#[test]
fn log_that_panics_on_a_closed_pipe_is_found() {
    let built = "tracing_subscriber::fmt().with_target(false)";
    assert_eq!(panicking_logs("a.rs", built).len(), 1);
    assert_eq!(panicking_logs("a.rs", &format!("{built}.log_internal_errors(false)")), NONE);
}

#[test]
fn an_event_without_a_name_is_found() {
    let event = |said: &str| format!("{}::warn!(%peer, {said:?});", "tracing");
    for said in ["something happened", "net", "net.Broken", "net.", "{error}: net.x"] {
        assert_eq!(unnamed_events("a.rs", &event(said)).len(), 1, "{said}");
    }
    for said in ["net.lane_broken", "net.violation: the lane was cut off"] {
        assert_eq!(unnamed_events("a.rs", &event(said)), NONE, "{said}");
    }
}

#[test]
fn a_readme_without_the_test_command_or_with_two_is_refused() {
    let command = "cargo test --workspace";
    assert_eq!(test_commands("Run `cargo test --workspace`.\n    cargo test"), Vec::<&str>::new());
    assert_eq!(test_commands(&format!("```sh\n{command}\n{command}\n```")), [command, command]);
}

const NONE: Vec<String> = Vec::new();
