//! Demonstration of replicated data: three processes change three values concurrently.
//!
//! `cargo run --release --example replicator` starts three nodes as separate processes, which
//! communicate over libp2p on loopback. Each adds to a set, counts up and down, and sets a
//! headline. One is paused for a while (SIGSTOP) and continued. At the end all three must hold the
//! same values; otherwise the exit code is 1.

mod logging;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use ostraca::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

type Error = Box<dyn std::error::Error + Send + Sync>;

const NODES: usize = 3;
const CHANGES: u64 = 40;
const PAUSE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

fn online() -> Key<ORSet<String>> {
    Key::new("online")
}

fn visits() -> Key<PNCounter> {
    Key::new("visits")
}

fn headline() -> Key<LWWRegister<String>> {
    Key::new("headline")
}

#[tokio::main]
async fn main() -> ExitCode {
    let child = logging::begin().into_iter().next();
    let outcome = match child {
        Some(name) => node(&name).await.map(|()| true),
        None => parent().await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say("error", &error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn say(who: &str, what: &str) {
    let _ = writeln!(std::io::stdout(), "{who:>6}  {what}"); // fails if stdout is closed
}

// ── A node process, which gets orders line by line ──

async fn node(name: &str) -> Result<(), Error> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let node = Node::listen(Config::default()).await?;
    let addresses: Vec<String> = node.addresses().iter().map(ToString::to_string).collect();
    answer("address", &addresses.join(" "));

    let peers = next_order(&mut orders, "peers").await?;
    let peers: Vec<Multiaddr> = peers.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    node.found_static(&peers).await?;
    answer("founded", "");

    let replicator = node.replicator();
    let watching = tokio::spawn(watch(replicator.clone()));
    next_order(&mut orders, "change").await?;
    change(name, &replicator).await?;
    answer("changed", "");

    while let Some(order) = orders.next_line().await? {
        match order.as_str() {
            "report" => answer("report", &report(&replicator).await?),
            _ => break,
        }
    }
    watching.abort();
    node.stop().await;
    Ok(())
}

/// Reports to the parent. Ignores a closed pipe.
fn answer(word: &str, rest: &str) {
    let _ = writeln!(std::io::stdout(), "{word} {rest}");
}

async fn next_order(
    orders: &mut Lines<BufReader<tokio::io::Stdin>>,
    word: &str,
) -> Result<String, Error> {
    let line = orders.next_line().await?.ok_or("the parent is gone")?;
    Ok(line.strip_prefix(word).ok_or_else(|| format!("{word} expected, not {line}"))?.trim().into())
}

/// Reports every change that this node sees.
async fn watch(replicator: Replicator) -> Result<(), Error> {
    let mut sets = replicator.subscribe(&online());
    let mut counts = replicator.subscribe(&visits());
    let mut headlines = replicator.subscribe(&headline());
    loop {
        tokio::select! {
            Some(Change::Changed(set)) = sets.next() => {
                answer("sees", &format!("{} online", set.len()));
            }
            Some(Change::Changed(visits)) = counts.next() => {
                answer("sees", &format!("{} visits", visits.value()));
            }
            Some(Change::Changed(line)) = headlines.next() => {
                answer("sees", &format!("headline: {}", line.get()?.unwrap_or_default()));
            }
            else => return Ok(()),
        }
    }
}

async fn change(name: &str, replicator: &Replicator) -> Result<(), Error> {
    let within = Duration::from_secs(10);
    for n in 0..CHANGES {
        let user = format!("{name}-{n}");
        replicator
            .update(&online(), WriteMajority::within(within), move |set| set.insert(&user))
            .await?;
        let more = i128::from(n % 5) - 1; // mostly up, sometimes down
        replicator.update(&visits(), WriteLocal, move |visits| visits.add(more)).await?;
        let text = format!("{name} has made {n} changes");
        replicator.update(&headline(), WriteLocal, move |line| line.set(&text)).await?;
        if n % 3 == 2 {
            let gone = format!("{name}-{}", n - 1);
            replicator.update(&online(), WriteLocal, move |set| set.remove(&gone)).await?;
        }
        tokio::time::sleep(Duration::from_millis(20)).await; // slow enough to watch
    }
    Ok(())
}

/// Formats all three values, as this node holds them, as one line: equal lines mean equal replicas.
async fn report(replicator: &Replicator) -> Result<String, Error> {
    let mut online = match replicator.get(&online(), ReadLocal).await? {
        Some(set) => set.iter().collect::<Result<Vec<String>, _>>()?,
        None => Vec::new(),
    };
    online.sort();
    let visits = replicator.get(&visits(), ReadLocal).await?.map_or(0, |visits| visits.value());
    let line = replicator.get(&headline(), ReadLocal).await?;
    let headline = line.map_or(Ok(None), |line| line.get())?.unwrap_or_default();
    let (count, last) = (online.len(), online.last().cloned().unwrap_or_default());
    let sum = online
        .iter()
        .flat_map(|user| user.bytes())
        .fold(0_u32, |sum, byte| sum.rotate_left(5) ^ u32::from(byte));
    Ok(format!("{visits} visits; {headline}; {count} online, the last is {last} (sum {sum:08x})"))
}

// ── The parent, which starts the nodes, pauses one, and compares all ──

struct Process {
    name: String,
    child: Child,
    orders: ChildStdin,
}

impl Process {
    fn start(name: &str, said: mpsc::Sender<(String, String)>) -> Result<Self, Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(name)
            .args(logging::passed_on())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or("no stdin")?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        tokio::spawn(listen(name.to_owned(), stdout, said));
        Ok(Self { name: name.to_owned(), child, orders })
    }

    async fn order(&mut self, line: &str) -> Result<(), Error> {
        self.orders.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(())
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<(), Error> {
        let id = self.child.id().ok_or("the process is gone")?;
        let id = rustix::process::Pid::from_raw(i32::try_from(id)?).ok_or("no process id")?;
        Ok(rustix::process::kill_process(id, signal)?)
    }
}

/// Forwards the reports of a node. Changes that it saw are printed at once.
async fn listen(name: String, stdout: ChildStdout, said: mpsc::Sender<(String, String)>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.strip_prefix("sees ") {
            Some(seen) => say(&name, seen),
            None => {
                if said.send((name.clone(), line)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits until `of` nodes have sent a report that begins with `word`.
async fn all_say(
    word: &str,
    of: usize,
    said: &mut mpsc::Receiver<(String, String)>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut answers = BTreeMap::new();
    let end = Instant::now() + PATIENCE;
    while answers.len() < of {
        let wait = end.saturating_duration_since(Instant::now());
        let next = tokio::time::timeout(wait, said.recv()).await;
        let next =
            next.map_err(|_| format!("not all nodes said \"{word}\" within {PATIENCE:?}"))?;
        let (name, line) = next.ok_or("all nodes are gone")?;
        if let Some(rest) = line.strip_prefix(word) {
            answers.insert(name, rest.trim().to_owned());
        }
    }
    Ok(answers)
}

async fn parent() -> Result<bool, Error> {
    let (said, mut answers) = mpsc::channel(64);
    let mut nodes = Vec::new();
    for name in ["alpha", "beta", "gamma"] {
        nodes.push(Process::start(name, said.clone())?);
    }
    drop(said);
    let addresses = all_say("address", NODES, &mut answers).await?;
    for (name, address) in &addresses {
        say(name, &format!("listens on {address}"));
    }
    for node in &mut nodes {
        let others = addresses.iter().filter(|(name, _)| **name != node.name);
        let others: Vec<&str> = others.map(|(_, address)| address.as_str()).collect();
        node.order(&format!("peers {}", others.join(" "))).await?;
    }
    all_say("founded", NODES, &mut answers).await?;
    say("", "three nodes, one configuration; changes from all sides");

    let paused = &nodes[2];
    let (stop, go_on) = (rustix::process::Signal::STOP, rustix::process::Signal::CONT);
    let name = paused.name.clone();
    for node in &mut nodes {
        node.order("change").await?;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    nodes[2].signal(stop)?;
    say("", &format!("{name} is paused (SIGSTOP): the others continue, a majority is enough"));
    let done = all_say("changed", NODES - 1, &mut answers).await?;
    say(
        "",
        &format!(
            "{} are done; {name} is still paused",
            done.into_keys().collect::<Vec<_>>().join(" and ")
        ),
    );
    tokio::time::sleep(PAUSE).await;
    nodes[2].signal(go_on)?;
    say("", &format!("{name} continues (SIGCONT), catches up and finishes"));
    all_say("changed", 1, &mut answers).await?;

    compare(&mut nodes, &mut answers).await
}

/// Asks all nodes until they agree.
async fn compare(
    nodes: &mut [Process],
    answers: &mut mpsc::Receiver<(String, String)>,
) -> Result<bool, Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        for node in &mut *nodes {
            node.order("report").await?;
        }
        let reports = all_say("report", NODES, answers).await?;
        let mut different: Vec<&String> = reports.values().collect();
        different.dedup();
        let equal = different.len() == 1;
        if equal || Instant::now() >= end {
            for (name, report) in &reports {
                say(name, report);
            }
            say("", if equal { "all three hold the same values" } else { "THE VALUES DIFFER" });
            for node in nodes {
                node.order("stop").await?;
                node.child.wait().await?;
            }
            return Ok(equal);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
