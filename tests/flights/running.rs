//! The built example: nodes as processes with real sockets, its report in JSON, and its exit codes.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// Path of the built example.
fn program() -> PathBuf {
    example("flights")
}

/// Path of a built example; `cargo test` builds examples into a folder beside that of the tests.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this test");
    let folder = this.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let program = folder.join("examples").join(name);
    assert!(program.exists(), "{program:?} is missing: cargo build --example {name}");
    program
}

#[test]
fn examples_log_by_rust_log_and_as_json_on_request() {
    let counters = |filter: Option<&str>, options: &[&str]| {
        let mut command = Command::new(example("counters"));
        command.env_remove("RUST_LOG").args(options);
        let output = command.envs(filter.map(|filter| ("RUST_LOG", filter))).output();
        let output = output.expect("it starts");
        assert!(output.status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_eq!(counters(None, &[]), "", "logs although RUST_LOG is not set");
    let logged = counters(Some("ostraca::node=info"), &["--log", "json"]);
    let lines: Vec<Value> =
        logged.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().all(|line| line["level"] != "DEBUG"), "{logged}");
    let listening = lines.iter().filter(|line| line["fields"]["message"] == "node.listening");
    assert_eq!(listening.count(), 3, "{logged}");
}

fn run(options: &[&str]) -> (Output, Value) {
    let output = Command::new(program()).args(options).arg("--json").output().expect("it starts");
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output, report)
}

/// Checks the totals of the sample against those counted with awk (command:
/// examples/data/README.md).
fn is_the_sample(report: &Value) {
    let totals = json!({
        "flights": 33_678, "aircraft": 3_514, "airlines": 16, "airports": 103, "cancelled": 826,
        "miles": 35_002_073, "arrived": 32_729, "delay": 224_341,
    });
    assert_eq!(report["totals"], totals);
    assert_eq!(report["verdict"], "exact");
    assert_eq!(report["busiest_aircraft"][0]["tailnum"], "N722MQ");
    assert_eq!(report["busiest_aircraft"][0]["flights"], 67);
    let delayed = json!({ "origin": "LGA", "dest": "ATL", "delay": 10_794, "arrived": 1_035 });
    assert_eq!(report["most_delayed_routes"][0], delayed);
    assert_eq!(report["problems"]["not_available"]["tailnum"]["count"], 268);
    assert_eq!(report["problems"]["malformed"], 0);
    for nothing in ["dead_letters", "differences"] {
        let all = &report[nothing];
        assert!(all == &json!({}) || all == &json!([]), "{nothing}: {all}");
    }
    for none in ["disorder", "failures", "lost_states"] {
        assert_eq!(report[none], 0, "{none}");
    }
}

fn nodes(report: &Value) -> Vec<&str> {
    let nodes = report["nodes"].as_object().expect("a report");
    nodes.keys().map(String::as_str).collect()
}

#[test]
fn sample_totals_match_an_independent_count() {
    let (output, report) = run(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    is_the_sample(&report);
    assert_eq!(report["fed"]["unanswered"], json!({}));
    assert_eq!(nodes(&report), ["node-1", "node-2", "node-3"]);
    let entities = |of_type: &str| -> u64 {
        let nodes = report["nodes"].as_object().expect("a report").values();
        nodes.map(|node| node["entities"][of_type].as_u64().expect("a number")).sum()
    };
    assert_eq!(["aircraft", "airline", "airport"].map(entities), [3_514, 16, 103]);
}

#[test]
fn nodes_that_join_and_leave_midway_lose_nothing() {
    let (output, report) = run(&["--add-node", "--drain"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    is_the_sample(&report);
    let acts: Vec<&str> = report["acts"]
        .as_array()
        .expect("a report")
        .iter()
        .map(|act| act["act"].as_str().expect("a name"))
        .collect();
    assert_eq!(acts, ["add-node", "drain"]);
    assert_eq!(nodes(&report).len(), 3, "one node joined and one left");
    assert!(nodes(&report).contains(&"node-4"), "it joined in the middle");
}

#[test]
fn killed_node_leaves_named_gaps_and_no_duplicates() {
    let (output, report) = run(&["--crash"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(report["verdict"], "missing-as-asked");
    assert_eq!(nodes(&report).len(), 2);
    let differences = report["differences"].as_array().expect("a report");
    let of_aircraft = differences.iter().filter(|one| one["kind"] == "aircraft");
    let missing: u64 = of_aircraft
        .map(|one| {
            let flights = |of: &str| one[of].as_u64().expect("a number");
            flights("flights_expected").checked_sub(flights("flights_counted")).expect("no surplus")
        })
        .sum();
    let counted = report["totals"]["flights"].as_u64().expect("a number");
    assert_eq!(counted + missing, 33_678, "exactly the missing flights are named");
    assert!(missing > 0, "the killed node had a third of the aircraft");
}

#[test]
fn bad_lines_are_skipped_and_other_files_are_refused() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = "dep_time,arr_delay,carrier,tailnum,origin,dest,distance\n\
                517,11,UA,N1,EWR,IAH,1400\noh\n554,NA,UA,N1,EWR,IAH,x\n555,2,UA,N1,EWR,EWR,9\n";
    file.write_all(text.as_bytes()).expect("a temporary file");
    let path = file.path().to_str().expect("plain");
    let (output, report) = run(&["--nodes", "1", "--csv", path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&report["totals"]["flights"], &report["verdict"]), (&json!(2), &json!("exact")));
    let lines = report["problems"]["named"].as_array().expect("a report");
    assert_eq!([&lines[0]["line"], &lines[1]["line"]], [3, 4]);
    let (output, _) = run(&["--csv", "Cargo.toml"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("nycflights13"), "{said}");
    let (output, _) = run(&["--nodes", "1", "--drain"]);
    assert_eq!(output.status.code(), Some(2), "draining the only node is refused");
}

/// The first half of a gzip file.
fn cut_short() -> tempfile::NamedTempFile {
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights-sample.csv.gz");
    let bytes = std::fs::read(sample).expect("the sample exists");
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&bytes[..100_000]).expect("a temporary file");
    file
}

#[test]
fn incomplete_input_ends_with_exit_code_3() {
    let file = cut_short();
    let mut command = Command::new(program());
    let command = command.args(["--nodes", "1", "--csv"]).arg(file.path());
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("The rest of the file can't be read"), "{text}");
    assert!(text.contains("INCOMPLETE: the file may have more flights"), "{text}");
}

#[test]
fn control_characters_of_the_input_are_escaped() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    let text = "dep_time,arr_delay,carrier,tailnum,origin,dest,distance\n\
                517,11,UA,N\u{1b}[31m1,E\u{202e}WR,IAH,1400\n";
    file.write_all(text.as_bytes()).expect("a temporary file");
    let mut command = Command::new(program());
    let command = command.args(["--nodes", "1", "--csv"]).arg(file.path());
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    assert!(text.contains("N\\u{1b}[31m1") && text.contains("E\\u{202e}WR"), "{text}");
}

#[test]
fn interrupt_ends_a_wait_for_a_pipe_without_writer() {
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a pipe");
    let mut command = Command::new(program());
    let mut child = command.arg("--csv").arg(&pipe).spawn().expect("it starts");
    let id = rustix::process::Pid::from_child(&child);
    while !handles_interrupts(child.id()) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it is ours");
    assert_eq!(child.wait().expect("it is ours").code(), Some(130));
}

/// Whether the process has a handler for SIGINT, according to `/proc`.
fn handles_interrupts(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("Linux");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16).expect("hex");
    caught & (1 << (rustix::process::Signal::INT.as_raw() - 1)) != 0
}
