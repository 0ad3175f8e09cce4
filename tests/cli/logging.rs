//! The tool's log: filtered by `RUST_LOG`, on stderr, as text or JSON.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Running, ostraca, watch};
use crate::waits::SOON;

/// An `ostraca node` process; killed when dropped, and at the latest after [`SOON`].
struct Node(Child);

impl Node {
    fn start(filter: Option<&str>, options: &[&str]) -> Self {
        let mut command = ostraca();
        command.arg("node").args(options).stderr(Stdio::piped());
        command.envs(filter.map(|filter| ("RUST_LOG", filter)));
        let node = Self(command.spawn().expect("it starts"));
        let id = Pid::from_child(&node.0);
        std::thread::spawn(move || {
            std::thread::sleep(SOON);
            let _ = kill_process(id, Signal::KILL); // it may have ended
        });
        node
    }

    /// Terminates the node once it has started, and returns all its log lines.
    fn log(&mut self) -> Vec<String> {
        let log = BufReader::new(self.0.stderr.take().expect("piped")).lines();
        let mut lines = Vec::new();
        for line in log {
            let line = line.expect("UTF-8");
            if line.contains("cluster.alone") {
                kill_process(Pid::from_child(&self.0), Signal::TERM).expect("our child process");
            }
            lines.push(line);
        }
        lines
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

#[test]
fn rust_log_filters_events() {
    for (options, is_json) in [(&[][..], false), (&["--log", "json"], true)] {
        let lines = Node::start(Some("ostraca::node::start=info"), options).log();
        let wanted = ["node.listening", "cluster.alone"];
        assert!(
            lines.iter().all(|line| wanted.iter().any(|word| line.contains(word))),
            "{lines:#?}"
        );
        assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
        assert!(lines.iter().all(|line| line.starts_with('{') == is_json), "{lines:#?}");
    }
}

#[test]
fn port_scan_is_logged_at_info() {
    let mut command = ostraca();
    command.args(["node", "--log", "json"]);
    let mut node = Running::of(command);
    watch(&node);
    let line = node.tells(&["node.listening"]);
    let from = line.find("/ip4/127.0.0.1/tcp/").expect("an address") + "/ip4/127.0.0.1/tcp/".len();
    let port: String = line[from..].chars().take_while(char::is_ascii_digit).collect();
    let port: u16 = port.parse().expect("a port");
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it reads");
    let line = node.tells(&["net.handshake_failed"]);
    assert!(line.contains("\"level\":\"INFO\""), "{line}");
}

#[test]
fn default_log_has_named_events() {
    let lines = Node::start(None, &["--log", "json"]).log();
    let rooms = ["cluster.", "ddata.", "management.", "net.", "node.", "sharding."];
    for line in &lines {
        let event: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let name = event["fields"]["message"].as_str().unwrap_or_default();
        assert!(rooms.iter().any(|room| name.starts_with(room)), "{line}");
    }
    assert!(lines.iter().any(|line| line.contains("cluster.alone")), "{lines:#?}");
}
