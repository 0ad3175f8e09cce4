//! Restarts of node processes: the only member of a cluster, and nodes without data directories
//! when no member of their cluster is left.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::waits::SOON;
use crate::{Running, ostraca, run, said, watch};

fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback has ports")).collect();
    held.iter().map(|held| held.local_addr().expect("bound").port()).collect()
}

fn on(dir: &Path) -> Running {
    let mut command = ostraca();
    command
        .args(["node", "--log", "json"])
        .env("OSTRACA__NET__DATA_DIR", dir)
        .env("OSTRACA__NET__LISTEN", "[\"/ip4/127.0.0.1/tcp/0\"]");
    let running = Running::of(command);
    watch(&running);
    running
}

/// Returns the cluster that a log line names.
fn cluster(line: &str) -> String {
    let (_, after) = line.split_once("\"cluster\":\"").expect("a cluster is named");
    after.split('"').next().expect("it ends").to_owned()
}

#[test]
fn lone_node_keeps_its_cluster_after_stop_and_kill() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut clusters = BTreeSet::new();
    for signal in [Signal::TERM, Signal::KILL, Signal::KILL, Signal::TERM, Signal::INT] {
        let mut node = on(dir.path());
        clusters.insert(cluster(&node.tells(&["cluster.belongs"])));
        node.tells(&["cluster.member", "\"what\":\"up\""]);
        node.signal(signal);
        let ended = node.child.wait().expect("our child process");
        assert_eq!(ended.success(), signal != Signal::KILL, "{signal:?}");
    }
    assert_eq!(clusters.len(), 1, "each life belongs to the same cluster");
}

#[test]
fn copied_directory_waits_for_recover_force() {
    let (dir, copy) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("another"));
    // An orderly stop: after a kill the node may not have stored that it is the only member.
    let mut node = on(dir.path());
    node.tells(&["cluster.member", "\"what\":\"up\""]);
    node.signal(Signal::TERM);
    node.child.wait().expect("our child process");
    for file in ["identity.key", "lock", "membership"] {
        std::fs::copy(dir.path().join(file), copy.path().join(file)).expect("copied");
    }
    let mut node = on(copy.path());
    node.tells(&["WARN", "its data directory is a copy"]);
    let socket = copy.path().join("control.sock");
    let here = ["--socket", socket.to_str().expect("UTF-8")];
    let (answer, _) = said(&run(&[&["members"], &here[..]].concat()));
    assert!(answer.contains("belongs to no cluster: "), "{answer}");
    assert!(answer.contains("ostraca recover --force"), "{answer}");
    let forced = run(&[&["recover", "--force"], &here[..]].concat());
    assert!(forced.status.success(), "{}", said(&forced).1);
    node.tells(&["cluster.member", "\"what\":\"up\""]);
}

/// Nodes that a supervisor restarts, each at an address of its own.
struct Deployment {
    dir: TempDir,
    ports: Vec<u16>,
    nodes: Vec<Child>,
}

impl Deployment {
    fn start(count: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut all = Self { dir, ports: free_ports(count), nodes: Vec::new() };
        for place in 0..count {
            let node = all.node(place);
            all.nodes.push(node);
        }
        all
    }

    fn address(&self, place: usize) -> String {
        format!("/ip4/127.0.0.1/tcp/{}", self.ports[place])
    }

    fn node(&self, place: usize) -> Child {
        let seeds: Vec<String> = (0..self.ports.len()).map(|it| self.address(it)).collect();
        let log = self.dir.path().join(format!("{place}.log"));
        let log = File::options().create(true).append(true).open(log).expect("a log");
        ostraca()
            .arg("node")
            .env("OSTRACA__CLUSTER__SEEDS", format!("{seeds:?}"))
            .env("OSTRACA__NET__LISTEN", format!("[{:?}]", self.address(place)))
            .stderr(Stdio::from(log))
            .spawn()
            .expect("it starts")
    }

    fn kill_and_start(&mut self, place: usize) {
        self.nodes[place].kill().expect("it runs");
        self.nodes[place].wait().expect("our child process");
        self.nodes[place] = self.node(place);
    }

    /// Restarts nodes that have ended.
    fn supervise(&mut self) {
        for place in 0..self.nodes.len() {
            if self.nodes[place].try_wait().expect("our child process").is_some() {
                self.nodes[place] = self.node(place);
            }
        }
    }

    /// Returns the cluster once every node sees all nodes as Up in the same one.
    fn agreed(&self) -> Option<String> {
        let mut clusters = BTreeSet::new();
        for place in 0..self.ports.len() {
            let asked = run(&["members", "--json", "--node", &self.address(place)]);
            let all: serde_json::Value = serde_json::from_slice(&asked.stdout).ok()?;
            let members = all["members"].as_array()?;
            let up = members.iter().filter(|member| member["status"] == "Up").count();
            if (up, members.len()) != (self.ports.len(), self.ports.len()) {
                return None;
            }
            clusters.insert(all["cluster"].as_str()?.to_owned());
        }
        clusters.pop_first().filter(|_| clusters.is_empty())
    }

    #[track_caller]
    fn agree(&mut self, supervised: bool) -> String {
        let until = Instant::now() + SOON;
        loop {
            if let Some(cluster) = self.agreed() {
                return cluster;
            }
            if supervised {
                self.supervise();
            }
            if Instant::now() >= until {
                let places = 0..self.ports.len();
                let log = |place| {
                    let log = self.dir.path().join(format!("{place}.log"));
                    std::fs::read_to_string(log).unwrap_or_default()
                };
                panic!("never one cluster:\n{}", places.map(log).collect::<String>());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill(); // it may have ended
            let _ = node.wait();
        }
    }
}

/// Kills and restarts the nodes one after the other.
fn redeployed(count: usize, pause: Duration, supervised: bool) {
    let mut all = Deployment::start(count);
    all.agree(supervised);
    for place in 0..count {
        all.kill_and_start(place);
        std::thread::sleep(pause);
    }
    all.agree(supervised);
}

#[test]
fn two_ephemeral_nodes_redeployed_in_turn_form_a_cluster() {
    redeployed(2, Duration::from_secs(1), false);
}

#[test]
fn three_ephemeral_nodes_redeployed_in_turn_form_a_cluster() {
    redeployed(3, Duration::from_millis(500), true);
    redeployed(3, Duration::from_millis(1_500), true);
}

#[test]
fn five_ephemeral_nodes_redeployed_in_turn_form_a_cluster() {
    redeployed(5, Duration::from_secs(1), true);
}

/// A cluster of nodes with data directories, each with a control socket there.
struct Stored {
    dirs: Vec<TempDir>,
    ports: Vec<u16>,
}

impl Stored {
    fn new(count: usize) -> Self {
        let dirs = (0..count).map(|_| tempfile::tempdir().expect("a directory")).collect();
        Self { dirs, ports: free_ports(count) }
    }

    fn start(&self) -> Vec<Running> {
        let address = |port: &u16| format!("/ip4/127.0.0.1/tcp/{port}");
        let seeds: Vec<String> = self.ports.iter().map(address).collect();
        let start = |place: usize| {
            let mut command = ostraca();
            command
                .args(["node", "--log", "json"])
                .env("OSTRACA__NET__DATA_DIR", self.dirs[place].path())
                .env("OSTRACA__NET__LISTEN", format!("[{:?}]", seeds[place]))
                .env("OSTRACA__CLUSTER__SEEDS", format!("{seeds:?}"));
            let running = Running::of(command);
            watch(&running);
            running
        };
        (0..self.ports.len()).map(start).collect()
    }

    /// Asks the node at `place`. Returns the exit code, stdout and stderr.
    fn ask(&self, place: usize, arguments: &[&str]) -> (i32, String, String) {
        let socket = self.dirs[place].path().join("control.sock");
        let socket = socket.to_str().expect("UTF-8");
        let output = run(&[arguments, &["--socket", socket]].concat());
        let (answer, errors) = said(&output);
        (output.status.code().expect("it ended by itself"), answer, errors)
    }

    /// Waits until every node sees all nodes as Up in one cluster, and returns that cluster.
    #[track_caller]
    fn agree(&self) -> String {
        let until = Instant::now() + SOON;
        loop {
            let mut clusters = BTreeSet::new();
            let mut seen = Vec::new();
            for place in 0..self.ports.len() {
                let (_, answer, errors) = self.ask(place, &["members", "--json"]);
                let all: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
                let members = all["members"].as_array().cloned().unwrap_or_default();
                let up = members.iter().filter(|member| member["status"] == "Up").count();
                clusters.extend(all["cluster"].as_str().map(str::to_owned));
                seen.push((up == self.ports.len(), answer + &errors));
            }
            match clusters.pop_first() {
                Some(cluster) if clusters.is_empty() && seen.iter().all(|(up, _)| *up) => {
                    return cluster;
                }
                _ => assert!(Instant::now() < until, "never one cluster: {seen:#?}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn killed_cluster_says_how_to_start_again() {
    let remedy = "delete the file `membership`";
    let all = Stored::new(3);
    let nodes = all.start();
    let former = all.agree();
    for node in &nodes {
        node.signal(Signal::KILL);
    }
    drop(nodes); // waits for their ends

    let mut nodes = all.start();
    for node in &mut nodes {
        let line = node.tells(&["cluster.notice", "WARN", "has no member left"]);
        assert!(line.contains(remedy) && line.contains(&former), "{line}");
    }
    for place in 0..3 {
        let (code, answer, errors) = all.ask(place, &["members"]);
        assert_eq!(code, 0, "{errors}");
        assert!(answer.contains("has no member left") && answer.contains(remedy), "{answer}");
        for order in [&["recover"][..], &["recover", "--force"]] {
            let (code, answer, errors) = all.ask(place, order);
            assert_eq!((code, answer.as_str()), (1, ""), "{errors}");
            assert!(errors.contains(&format!("remembers cluster {former}")), "{errors}");
            assert!(errors.contains(remedy), "{errors}");
        }
    }

    for node in &mut nodes {
        node.signal(Signal::TERM);
        node.child.wait().expect("our child process");
    }
    for dir in &all.dirs {
        std::fs::remove_file(dir.path().join("membership")).expect("it is there");
    }
    let _nodes = all.start();
    assert_ne!(all.agree(), former, "they found a new cluster");
}
