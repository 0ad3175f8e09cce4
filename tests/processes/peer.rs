//! A node in a process of its own, as a test holds it: orders go in line by line, news come out.

use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libp2p::{Multiaddr, PeerId};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::served::{self, ORDER, Order};

/// Ten times and more what anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// See the module's page. Dropping it kills the process.
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) address: Multiaddr,
    process: Pid,
    orders: ChildStdin,
    told: Lines<BufReader<ChildStdout>>,
    child: Child,
}

/// A peer at one moment, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// Messages received, each the next of its sender's.
    pub(crate) received: u64,
    /// Messages received out of turn: repeated, lost before, or reordered.
    pub(crate) disordered: u64,
    /// Messages to others that are not acknowledged.
    pub(crate) unacknowledged: u64,
    /// Messages sent a second time.
    pub(crate) resent: u64,
    /// Peers that are linked.
    pub(crate) linked: usize,
}

impl Peer {
    /// Starts a peer, on the host that the command line leads to (empty: this one).
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
            .expect("it starts");
        let orders = child.stdin.take().expect("piped");
        let mut told = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = next(&mut told, "ready").await;
        let address: Multiaddr = address.parse().expect("its address");
        let process = i32::try_from(child.id().expect("it runs")).ok().and_then(Pid::from_raw);
        let id = served::peer_of(&address);
        Self { id, address, process: process.expect("an id"), orders, told, child }
    }

    pub(crate) async fn order(&mut self, order: &str) {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.expect("it takes orders");
    }

    /// Waits until it tells this word; the rest of what it tells. What comes before is forgotten.
    pub(crate) async fn tells(&mut self, word: &str) -> String {
        next(&mut self.told, word).await
    }

    /// Waits until it tells one of these words, and says which. What comes before is forgotten.
    pub(crate) async fn tells_one_of(&mut self, words: &[&str]) -> usize {
        next_of(&mut self.told, words).await.0
    }

    /// Asks what is answered with this word; `Err` is what it tells at its end instead.
    pub(crate) async fn asks(&mut self, what: &str) -> Result<String, String> {
        // An error: it has ended, which it has told before.
        let _ = self.orders.write_all(format!("{what}\n").as_bytes()).await;
        let (which, rest) = next_of(&mut self.told, &[what, "ended"]).await;
        if which == 0 { Ok(rest) } else { Err(rest) }
    }

    /// Waits until its process has ended.
    pub(crate) async fn exits(&mut self) -> ExitStatus {
        let exit = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        exit.expect("it does not end").expect("it is ours")
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Dials that peer whenever there is no connection; waits until both have said Hello.
    pub(crate) async fn keeps(&mut self, other: &mut Self) {
        self.order(&format!("keep {}", other.address)).await;
        self.tells(&format!("up {}", other.id)).await;
        other.tells(&format!("up {}", self.id)).await;
    }

    pub(crate) async fn status(&mut self) -> Status {
        self.order("status").await;
        let told = self.tells("status").await;
        let mut figures = told.split(' ').map(|figure| figure.parse::<u64>().expect("a number"));
        let mut figure = || figures.next().expect("five of them");
        Status {
            received: figure(),
            disordered: figure(),
            unacknowledged: figure(),
            resent: figure(),
            linked: figure() as usize,
        }
    }

    /// Waits until its status is like that.
    pub(crate) async fn becomes(&mut self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.status().await;
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}: {status:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().await.expect("it is dead");
    }

    /// Stops it where it stands; returns when it stands.
    pub(crate) async fn pause(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.process.as_raw_pid());
        let until = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&stat).expect("it is there");
            let state = text.rsplit(") ").next().and_then(|rest| rest.chars().next());
            if state == Some('T') {
                return;
            }
            assert!(Instant::now() < until, "it does not stop");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process, signal).expect("it is there");
    }
}

async fn next(told: &mut Lines<BufReader<ChildStdout>>, word: &str) -> String {
    next_of(told, &[word]).await.1
}

/// Which of the words is told next, and the rest of the line.
async fn next_of(told: &mut Lines<BufReader<ChildStdout>>, words: &[&str]) -> (usize, String) {
    let mut heard = Vec::new();
    let found = async {
        while let Some(line) = told.next_line().await.expect("it talks") {
            // The harness of the tests writes its own beginnings of lines.
            let Some((_, news)) = line.split_once("@ ") else { continue };
            for (which, word) in words.iter().enumerate() {
                if let Some(rest) = news.strip_prefix(word) {
                    return (which, rest.trim().to_owned());
                }
            }
            heard.push(news.to_owned());
        }
        panic!("it ended instead of telling {words:?}");
    };
    match tokio::time::timeout(PATIENCE, found).await {
        Ok(found) => found,
        Err(_) => panic!("never told {words:?}, but {heard:?}"),
    }
}
