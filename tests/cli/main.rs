//! The `ostraca` binary as a shell runs it: output and exit codes.

mod asking;
mod ending;
mod json_output;
mod logging;
#[path = "../fixtures/memory_log.rs"]
mod memory_log;
mod names;
mod orders;
mod outputs;
mod recovering;
mod remote;
mod restarts;
mod serving;
#[path = "../fixtures/waits.rs"]
mod waits;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use waits::SOON;

fn ostraca() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostraca"));
    for variable in ["RUST_LOG", "OSTRACA_CONFIG", "OSTRACA_SOCKET"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    ostraca().args(arguments).output().expect("it runs")
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (text(&output.stdout), text(&output.stderr))
}

fn check(file: &Path) -> Output {
    run(&["config", "--check", file.to_str().expect("UTF-8")])
}

#[test]
fn printed_defaults_are_valid_settings() {
    let output = run(&["config", "--defaults"]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("node.toml");
    std::fs::write(&file, &output.stdout).expect("it is written");
    let checked = check(&file);
    let (answer, errors) = said(&checked);
    assert!(output.status.success() && checked.status.success(), "{errors}");
    assert!(answer.ends_with("node.toml: a node starts with these settings\n"), "{answer}");
}

#[test]
fn settings_in_the_docs_are_valid() {
    let page = include_str!("../../docs/configuration.md");
    let (_, from) = page.split_once("```toml\n").expect("the page shows a file");
    let (shown, _) = from.split_once("```").expect("the file ends");
    let dir = tempfile::tempdir().expect("a directory");
    let (file, secret) = (dir.path().join("node.toml"), dir.path().join("secret"));
    std::fs::write(&secret, run(&["secret"]).stdout).expect("it is written");
    let shown = shown.replace("/run/secrets/cluster", secret.to_str().expect("UTF-8"));
    std::fs::write(&file, shown).expect("it is written");
    let checked = check(&file);
    assert!(checked.status.success(), "{}", said(&checked).1);
}

#[test]
fn settings_accept_every_allocation_strategy() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("node.toml");
    for name in ["least-shard", "least-shard-rounds", "consistent-hashing", "external"] {
        let text = format!("[cluster.sharding.types.orders]\nallocation-strategy = \"{name}\"\n");
        std::fs::write(&file, text).expect("it is written");
        let checked = check(&file);
        assert!(checked.status.success(), "{name}: {}", said(&checked).1);
    }
}

#[test]
fn wrong_settings_error_names_file_and_setting() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("node.toml");
    let wrong = [
        ("[cluster]\ngosip-interval = \"1s\"", "did you mean gossip-interval?"),
        ("[cluster.sharding]\nstate-store-mode = \"persistence\"", "needs a journal"),
        ("[net]\nlisten = [\"/ip4/0.0.0.0/tcp/1\"]", "ostraca secret --out cluster.secret"),
        ("[net]\ncluster-secret-file = \"/nowhere\"", "because: No such file"),
        ("[net]\ncluster-secret-file = \"/dev/null\"", "because: the secret has 0 bytes"),
        ("[net]\nlisten = []", "net.listen is empty: no other node could dial this one"),
    ];
    for (text, expected) in wrong {
        std::fs::write(&file, text).expect("it is written");
        let output = check(&file);
        let (answer, errors) = said(&output);
        assert_eq!((output.status.code(), answer.as_str()), (Some(1), ""), "{text}");
        assert!(errors.starts_with("error: ") && errors.contains(expected), "{errors}");
        assert!(errors.contains("/node.toml: "), "it names the file: {errors}");
        let node = run(&["node", "--config", file.to_str().expect("UTF-8")]);
        assert_eq!((node.status.code(), said(&node).1), (Some(1), errors), "the same at a start");
    }
    let secret = "k7".repeat(32);
    let twice = format!("[net]\ncluster-secret = {secret:?}\ncluster-secret-file = \"/nowhere\"");
    std::fs::write(&file, twice).expect("it is written");
    let (_, errors) = said(&check(&file));
    assert!(errors.contains("both net.cluster-secret and net.cluster-secret-file"), "{errors}");
    assert_eq!(run(&["config"]).status.code(), Some(2), "which of the two?");
}

#[test]
fn config_check_reads_settings_from_a_pipe() {
    for (text, code) in [("nonsense = 1", 1), ("[cluster]\ndirect-limit = 7\n", 0)] {
        let mut command = ostraca();
        command.args(["config", "--check", "/dev/stdin"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut pipe = child.stdin.take().expect("piped");
        pipe.write_all(text.as_bytes()).expect("it reads");
        drop(pipe);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(code), "{text}: {:?}", said(&output));
    }
}

#[test]
fn several_wrong_settings_are_reported_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("node.toml");
    let several = [
        (
            "[cluster]\ngosip-interval = \"1s\"\n[net]\nlisten = [\"localhost:1\"]\n",
            ["did you mean gossip-interval?", "found \"localhost:1\", which is not an address"],
        ),
        (
            "[cluster]\ngossip-interval = \"0s\"\n[ddata]\ndurable.keys = [\"motd*\"]\n",
            ["cluster.gossip-interval is 0s", "this release has no durable store"],
        ),
    ];
    for (text, expected) in several {
        std::fs::write(&file, text).expect("it is written");
        let output = check(&file);
        let (_, errors) = said(&output);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("2 settings are wrong:"), "{errors}");
        assert!(expected.iter().all(|part| errors.contains(part)), "{errors}");
    }
}

#[test]
fn secret_file_is_new_and_for_its_user_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, file) = (dir.path().join("cluster.secret"), dir.path().join("node.toml"));
    let name = path.to_str().expect("UTF-8");
    assert!(run(&["secret", "--out", name]).status.success());
    let about = std::fs::metadata(&path).expect("it is made");
    assert_eq!((about.permissions().mode() & 0o777, about.len()), (0o600, 65));
    let again = run(&["secret", "--out", name]);
    let (_, errors) = said(&again);
    assert_eq!(again.status.code(), Some(1), "{errors}");
    assert!(errors.contains("exists already and was left alone"), "{errors}");
    std::fs::write(&file, format!("[net]\ncluster-secret-file = {name:?}\n")).expect("written");
    for (mode, code, part) in [
        (0o600, 0, "a node starts with these settings"),
        (0o644, 0, "warning: net.cluster-secret-file"),
        (0o660, 1, "other users may write the secret"),
    ] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("our file");
        let output = check(&file);
        let (answer, errors) = said(&output);
        assert_eq!(output.status.code(), Some(code), "{mode:o}: {errors}");
        assert!((answer + &errors).contains(part), "{mode:o}");
    }
}

#[test]
fn generated_secret_is_new_and_accepted_by_a_node() {
    let [first, second] = [(); 2].map(|()| run(&["secret"]).stdout);
    assert_eq!(first.len(), 65, "32 bytes in hex, and a line end");
    assert_ne!(first, second);
    let dir = tempfile::tempdir().expect("a directory");
    let (secret, file) = (dir.path().join("cluster.secret"), dir.path().join("node.toml"));
    std::fs::write(&secret, first).expect("it is written");
    let text = format!(
        "[net]\nlisten = [\"/ip4/0.0.0.0/tcp/1\"]\ncluster-secret-file = {:?}\n",
        secret.to_str().expect("UTF-8")
    );
    std::fs::write(&file, text).expect("it is written");
    assert!(check(&file).status.success());
}

#[test]
fn a_simulated_cluster_prints_figures_and_draws_a_plot() {
    let dir = tempfile::tempdir().expect("a directory");
    let plot = dir.path().join("plot.svg");
    let plot_text = plot.to_str().expect("UTF-8");
    let simulate = ["sim", "--nodes", "30", "--seed", "7", "--loss", "0.01", "--plot", plot_text];
    let figures = || {
        let (answer, errors) = said(&run(&simulate));
        assert!(errors.is_empty(), "a progress line is for terminals: {errors}");
        let real_time = answer.lines().last().expect("lines").to_owned();
        answer.replace(&real_time, "")
    };
    let first = figures();
    assert!(first.contains("30 replicas, WriteLocal, 1ms one way, 1 % lost, seed 7"), "{first}");
    assert!(
        first.contains("all have it, mean of changes, ms")
            && first.contains("in one-way trips; bound")
    );
    assert_eq!(first, figures(), "the same arguments, the same figures");
    let drawn = std::fs::read_to_string(plot).expect("it is drawn");
    assert!(drawn.starts_with("<svg") && drawn.matches("<polyline").count() >= 10, "{drawn}");
}

#[test]
fn invalid_simulation_names_allowed_values() {
    for (arguments, expected) in [
        (["--nodes", "1"], "the number of nodes is 1; it must be 2 to 10000"),
        (["--loss", "1.5"], "the loss is 1.5; it must be a share of messages"),
        (["--one-way", "fast"], "write 500us, 1ms or 10s"),
    ] {
        let output = run(&[&["sim"], &arguments[..]].concat());
        let (_, errors) = said(&output);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    let unwritten = run(&["sim", "--nodes", "3", "--plot", "/nowhere/plot.svg"]);
    let (_, errors) = said(&unwritten);
    assert!(!unwritten.status.success() && errors.contains("/nowhere/plot.svg"), "{errors}");
}

/// An `ostraca node` process with its log; killed when dropped.
struct Running {
    child: Child,
    log: std::io::Lines<BufReader<ChildStderr>>,
}

impl Running {
    /// Starts a node with this seed that listens on `address`.
    fn start(seed: &str, address: &str) -> Self {
        let mut command = ostraca();
        command
            .args(["node", "--log", "json"])
            .env("OSTRACA__CLUSTER__SEEDS", format!("[{seed:?}]"))
            .env("OSTRACA__NET__LISTEN", format!("[{address:?}]"));
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let log = BufReader::new(child.stderr.take().expect("piped")).lines();
        Self { child, log }
    }

    /// Reads the log up to a line that contains all `words`, and returns that line. Without the
    /// watchdog ([`watch`]) a missing line would block for ever.
    fn tells(&mut self, words: &[&str]) -> String {
        let mut lines = Vec::new();
        for line in self.log.by_ref() {
            let line = line.expect("UTF-8");
            assert!(line.starts_with('{') && line.ends_with('}'), "no JSON: {line}");
            let is_it = words.iter().all(|word| line.contains(word));
            if is_it {
                return line;
            }
            lines.push(line);
        }
        panic!("it ended before {words:?}: {}", lines.join("\n"));
    }

    /// Sends a signal once the process has a handler for it; before that the signal would kill it.
    fn signal(&self, signal: Signal) {
        let until = Instant::now() + SOON;
        while signal != Signal::KILL && !self.handles(signal) {
            assert!(Instant::now() < until, "it handles no {signal:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&self.child), signal).expect("our child process");
    }

    /// Whether the process has a handler for the signal, read from `/proc`.
    fn handles(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("Linux");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16).expect("hex");
        caught & (1 << (signal.as_raw() - 1)) != 0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// Kills a process that still runs after [`SOON`], so that a reader reaches the end of its log.
fn watch(process: &Running) {
    let id = Pid::from_child(&process.child);
    std::thread::spawn(move || {
        std::thread::sleep(SOON);
        let _ = kill_process(id, Signal::KILL); // it may have ended
    });
}

#[test]
fn two_nodes_form_a_cluster_and_leave_on_signal() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let seed = format!("/ip4/127.0.0.1/tcp/{}", port.expect("loopback has ports").port());
    let mut first = Running::start(&seed, &seed);
    watch(&first);
    first.tells(&["cluster.member", "\"what\":\"up\""]);
    let mut second = Running::start(&seed, "/ip4/127.0.0.1/tcp/0");
    watch(&second);
    second.tells(&["ddata.installed", "\"members\":2"]);
    first.tells(&["cluster.member", "\"what\":\"up\""]);
    second.signal(Signal::TERM);
    second.tells(&["node.ended"]);
    assert!(second.child.wait().expect("our child process").success());
    first.tells(&["cluster.member", "\"what\":\"removed\""]);
    first.signal(Signal::INT);
    first.tells(&["node.ended"]);
    assert!(first.child.wait().expect("our child process").success());
}

/// A file that is read twice would be empty the second time.
#[test]
fn secret_can_be_read_from_a_pipe() {
    let dir = tempfile::tempdir().expect("a directory");
    let secret = format!("{}\n", "k7".repeat(32));
    let settings = |name: &str, file: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("[net]\ncluster-secret-file = {file:?}\n")).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let path = dir.path().join("secret");
    let mut options = std::fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(secret.as_bytes())).expect("it is written");
    let regular = settings("tool.toml", path.to_str().expect("UTF-8"));
    let piped = settings("node.toml", "/dev/stdin");
    let with_pipe = |arguments: &[&str]| {
        let mut command = ostraca();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    let feed = |child: &mut Child| {
        let mut pipe = child.stdin.take().expect("piped");
        let _ = pipe.write_all(secret.as_bytes()); // a command that reads another file may have ended
    };
    let ended = |arguments: &[&str]| {
        let mut child = with_pipe(arguments).stderr(Stdio::piped()).spawn().expect("it starts");
        feed(&mut child);
        let output = child.wait_with_output().expect("it ends");
        let (answer, errors) = said(&output);
        (output.status.code(), answer, errors)
    };

    let (code, answer, errors) = ended(&["config", "--check", &piped]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(answer.contains("a node starts with these settings"), "{answer}");

    let mut node = Running::of(with_pipe(&["node", "--log", "json", "--config", &piped]));
    feed(&mut node.child);
    watch(&node);
    let line = node.tells(&["node.listening"]);
    let (_, address) = line.split_once("/ip4/").expect("an address");
    let address = format!("/ip4/{}", address.split("/p2p/").next().expect("a part"));
    node.tells(&["cluster.member", "\"what\":\"up\""]);
    for config in [&regular, &piped] {
        let (code, answer, errors) = ended(&["members", "--node", &address, "--config", config]);
        assert_eq!(code, Some(0), "{config}: {errors}");
        assert!(answer.contains(": 1 member, all have seen this"), "{answer}");
    }
    node.signal(Signal::TERM);
    assert!(node.child.wait().expect("our child process").success());
}

#[test]
fn node_reads_settings_from_a_pipe() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let settings = format!("[net]\ndata-dir = {:?}\n", data.to_str().expect("UTF-8"));
    let mut command = ostraca();
    command.args(["node", "--log", "json", "--config", "/dev/stdin"]).stdin(Stdio::piped());
    let mut node = Running::of(command);
    watch(&node);
    let mut pipe = node.child.stdin.take().expect("piped");
    pipe.write_all(settings.as_bytes()).expect("it reads");
    drop(pipe);
    node.tells(&["management.listening", "data/control.sock"]);
    assert!(data.join("identity.key").exists(), "the node uses the directory");
    node.signal(Signal::TERM);
    assert!(node.child.wait().expect("our child process").success());
}
