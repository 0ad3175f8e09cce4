//! [`Peer`]: a test's handle to a peer process. Orders go in line by line, reports come out.

use std::process::{ExitStatus, Stdio};

use libp2p::{Multiaddr, PeerId};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::served::{self, ORDER, Order};
use crate::waits::{SOON, eventually, soon, until};

/// Handle to a peer process. Dropping it kills the process.
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) address: Multiaddr,
    process: Pid,
    orders: ChildStdin,
    told: Lines<BufReader<ChildStdout>>,
    child: Child,
}

/// Counters reported by a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// Number of received messages.
    pub(crate) received: u64,
    /// Messages received that were not the next one of their sender.
    pub(crate) disordered: u64,
    /// Messages sent that are not acknowledged.
    pub(crate) unacknowledged: u64,
    /// Number of messages sent again.
    pub(crate) resent: u64,
    /// Number of connected peers.
    pub(crate) linked: usize,
}

impl Peer {
    /// Starts a peer. `host` is the command prefix that enters a host (empty: this host).
    pub(crate) async fn start(host: &[String], order: &Order) -> Self {
        let this = std::env::current_exe().expect("this program");
        let again = ["--exact", "served::peer_process_starts_and_ends_with_its_test"];
        let line: Vec<String> = host.iter().cloned().chain([this.display().to_string()]).collect();
        let mut child = Command::new(&line[0])
            .args(&line[1..])
            .args(again)
            .arg("--nocapture")
            .env(ORDER, order.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the process starts");
        let orders = child.stdin.take().expect("piped");
        let mut told = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = next(&mut told, "ready").await;
        let address: Multiaddr = address.parse().expect("its address");
        let process = i32::try_from(child.id().expect("it runs")).ok().and_then(Pid::from_raw);
        let id = served::peer_of(&address);
        Self { id, address, process: process.expect("an id"), orders, told, child }
    }

    pub(crate) async fn order(&mut self, order: &str) {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.expect("the peer runs");
    }

    /// Waits for a report that begins with `word`, and returns its rest. Skips other reports.
    pub(crate) async fn tells(&mut self, word: &str) -> String {
        next(&mut self.told, word).await
    }

    /// Waits for a report that begins with one of `words`, and returns its index. Skips other
    /// reports.
    pub(crate) async fn tells_one_of(&mut self, words: &[&str]) -> usize {
        next_of(&mut self.told, words).await.0
    }

    /// Sends a query and returns the report that begins with the same word; `Err` is the peer's
    /// report of its end.
    pub(crate) async fn asks(&mut self, what: &str) -> Result<String, String> {
        // Fails if the peer has ended, which it has reported before.
        let _ = self.orders.write_all(format!("{what}\n").as_bytes()).await;
        let (which, rest) = next_of(&mut self.told, &[what, "ended"]).await;
        if which == 0 { Ok(rest) } else { Err(rest) }
    }

    /// Waits until the process has ended.
    pub(crate) async fn exits(&mut self) -> ExitStatus {
        soon(self.child.wait()).await.expect("a child of this process")
    }

    /// Sends SIGTERM to the process.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Makes the peer keep a connection to another one, and waits until both are connected.
    pub(crate) async fn keeps(&mut self, other: &mut Self) {
        self.order(&format!("keep {}", other.address)).await;
        self.tells(&format!("up {}", other.id)).await;
        other.tells(&format!("up {}", self.id)).await;
    }

    pub(crate) async fn status(&mut self) -> Status {
        self.order("status").await;
        let told = self.tells("status").await;
        let mut figures = told.split(' ').map(|figure| figure.parse::<u64>().expect("a number"));
        let mut figure = || figures.next().expect("five numbers");
        Status {
            received: figure(),
            disordered: figure(),
            unacknowledged: figure(),
            resent: figure(),
            linked: figure() as usize,
        }
    }

    /// Waits until the status meets a condition.
    pub(crate) async fn becomes(&mut self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        until(what, async || self.status().await, is_so).await
    }

    pub(crate) async fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().await.expect("the process has ended");
    }

    /// Pauses the process with SIGSTOP, and waits until it has stopped.
    pub(crate) async fn pause(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.process.as_raw_pid());
        eventually("the process stops", async || {
            let text = std::fs::read_to_string(&stat).expect("the process exists");
            text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
        .await;
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process, signal).expect("the process exists");
    }
}

async fn next(told: &mut Lines<BufReader<ChildStdout>>, word: &str) -> String {
    next_of(told, &[word]).await.1
}

/// Waits for a report that begins with one of `words`. Returns its index and the rest of the line.
async fn next_of(told: &mut Lines<BufReader<ChildStdout>>, words: &[&str]) -> (usize, String) {
    let mut heard = Vec::new();
    let found = async {
        while let Some(line) = told.next_line().await.expect("the output is readable") {
            // The test harness may write text at the beginning of a line.
            let Some((_, news)) = line.split_once("@ ") else { continue };
            for (which, word) in words.iter().enumerate() {
                if let Some(rest) = news.strip_prefix(word) {
                    return (which, rest.trim().to_owned());
                }
            }
            heard.push(news.to_owned());
        }
        panic!("the peer ended without reporting {words:?}");
    };
    match tokio::time::timeout(SOON, found).await {
        Ok(found) => found,
        Err(_) => panic!("the peer did not report {words:?}, but {heard:?}"),
    }
}
