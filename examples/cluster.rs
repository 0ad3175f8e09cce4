//! Demonstration of membership: nodes join, leave, crash and restart.
//!
//! `cargo run --release --example cluster` starts three seeds as separate processes, which found a
//! cluster over libp2p on loopback, and joins it as a watcher. Then another node joins, one leaves
//! gracefully (SIGTERM), and one is killed (SIGKILL), found unreachable and removed when its lease
//! has expired. Another one is killed and restarted on the same data directory, which proves that
//! its old incarnation has ended, so that it rejoins without that wait. At the end all nodes stop.
//! This takes about 20 seconds.
//!
//! On a terminal the example shows a live table of the members with their status, unreachable
//! members, the leader and convergence. Piped, it prints a line for each event. The exit code is 1
//! if an expected event does not happen.

mod logging;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ostraca::cluster::member::Address;
use ostraca::prelude::*;
use rustix::process::Signal;
use tokio::process::{Child, Command};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Time limit of each step.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pause after each step, to show its result.
const VIEWING_TIME: Duration = Duration::from_secs(1);

/// Number of event lines below the table.
const LINES: usize = 12;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = logging::begin();
    let outcome = match &arguments[..] {
        [name, port, dir, seeds] => node(name, port, Path::new(dir), seeds).await,
        _ => watch().await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print(&format!("FAILED: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush()); // fails if stdout is closed
}

fn config(name: &str, port: &str, seeds: &str) -> Result<Config, Error> {
    let mut config = Config::default();
    config.net.listen = vec![format!("/ip4/127.0.0.1/tcp/{port}").parse()?];
    config.cluster.seeds = seeds.split(',').map(Address::new).collect::<Result<_, _>>()?;
    config.cluster.roles = [name.to_owned()].into(); // by which the watcher finds its name
    Ok(config)
}

// ── A node process, which runs until it gets a signal ──

async fn node(name: &str, port: &str, dir: &Path, seeds: &str) -> Result<(), Error> {
    let mut config = config(name, port, seeds)?;
    config.net.data_dir = Some(dir.to_owned());
    Node::start(config).await?.run_until_signal().await?;
    Ok(())
}

// ── The watcher, which starts the nodes and is a node itself ──

async fn watch() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let mut stage = Stage::new(dir.path());
    for name in ["alpha", "beta", "gamma"] {
        stage.start(name)?;
    }
    let watcher = Node::start(config("watcher", "0", &stage.seeds)?).await?;
    let screen = Arc::new(Screen::new(watcher.cluster()));
    let drawing = tokio::spawn(draw(screen.clone()));
    let played = play(&mut stage, &watcher, &screen).await;
    watcher.stop().await;
    drawing.await?;
    played
}

async fn play(stage: &mut Stage, watcher: &Node, screen: &Screen) -> Result<(), Error> {
    let cluster = watcher.cluster();
    screen.act("three seeds found a cluster, and this watcher joins it");
    until(&cluster, "four are Up", |view| view.up() == 4).await?;

    screen.act("delta joins");
    stage.start("delta")?;
    until(&cluster, "five are Up", |view| view.up() == 5).await?;

    screen.act("beta is asked to stop (SIGTERM): it leaves gracefully");
    let beta = stage.signal("beta", Signal::TERM)?;
    until(&cluster, "beta is removed", |view| view.members.len() == 4).await?;
    stage.ended("beta", beta).await?;

    screen.act("delta is killed (SIGKILL): it is removed when its lease has expired");
    stage.kill("delta").await?;
    until(&cluster, "delta is unreachable", |view| !view.unreachable.is_empty()).await?;
    until(&cluster, "delta is removed", |view| view.members.len() == 3).await?;

    screen.act("alpha is killed and restarted: its lock proves that the old process has ended");
    let before = id_of(&cluster, "alpha").ok_or("alpha is no member")?;
    stage.kill("alpha").await?;
    stage.start("alpha")?;
    let is_back = |view: &ClusterView| {
        let old = view.members.iter().any(|member| member.node == before);
        !old && view.up() == 3
    };
    until(&cluster, "alpha is back", is_back).await?;

    screen.act("all stop");
    cluster.prepare_for_full_shutdown().await?;
    for name in ["alpha", "gamma"] {
        let child = stage.signal(name, Signal::TERM)?;
        stage.ended(name, child).await?;
    }
    Ok(())
}

fn id_of(cluster: &Cluster, name: &str) -> Option<ostraca::ddata::id::NodeId> {
    cluster.members().iter().find(|member| self::name(member) == name).map(|member| member.node)
}

/// Waits until the cluster meets a condition, and then for [`VIEWING_TIME`].
async fn until(
    cluster: &Cluster,
    what: &str,
    is_so: impl Fn(&ClusterView) -> bool,
) -> Result<(), Error> {
    let mut events = cluster.events();
    let waiting = async {
        while !is_so(&cluster.state().await?) {
            events.next().await.ok_or("the watcher has stopped")?;
        }
        Ok::<(), Error>(())
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.map_err(|_| format!("not within {PATIENCE:?}: {what}"))??;
    tokio::time::sleep(VIEWING_TIME).await;
    Ok(())
}

/// The node processes, and the settings with which they are started.
struct Stage {
    dir: PathBuf,
    ports: BTreeMap<&'static str, u16>,
    seeds: String,
    running: BTreeMap<&'static str, Child>,
}

impl Stage {
    fn new(dir: &Path) -> Self {
        let names = ["alpha", "beta", "gamma", "delta"];
        let held: Vec<TcpListener> = names.iter().filter_map(|_| free_port()).collect();
        let port = |listener: &TcpListener| listener.local_addr().map_or(0, |at| at.port());
        let ports: BTreeMap<_, _> = names.into_iter().zip(held.iter().map(port)).collect();
        let seed = |name: &&str| format!("/ip4/127.0.0.1/tcp/{}", ports[*name]);
        let seeds = names[..3].iter().map(seed).collect::<Vec<_>>().join(",");
        Self { dir: dir.to_owned(), ports, seeds, running: BTreeMap::new() }
    }

    fn start(&mut self, name: &'static str) -> Result<(), Error> {
        let child = Command::new(std::env::current_exe()?)
            .args([name, &self.ports[name].to_string()])
            .arg(self.dir.join(name))
            .arg(&self.seeds)
            .args(logging::passed_on())
            .stdin(Stdio::null())
            .stdout(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()?;
        self.running.insert(name, child);
        Ok(())
    }

    /// Sends a signal that ends the process.
    fn signal(&mut self, name: &str, signal: Signal) -> Result<Child, Error> {
        let child = self.running.remove(name).ok_or("it does not run")?;
        let id = child.id().ok_or("the process is gone")?;
        let id = rustix::process::Pid::from_raw(i32::try_from(id)?).ok_or("no process id")?;
        rustix::process::kill_process(id, signal)?;
        Ok(child)
    }

    async fn kill(&mut self, name: &str) -> Result<(), Error> {
        self.signal(name, Signal::KILL)?.wait().await?;
        Ok(())
    }

    /// Waits until the process has ended successfully.
    async fn ended(&self, name: &str, mut child: Child) -> Result<(), Error> {
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        let status = ended.map_err(|_| format!("{name} does not end"))??;
        if status.success() { Ok(()) } else { Err(format!("{name} ended with {status}").into()) }
    }
}

fn free_port() -> Option<TcpListener> {
    TcpListener::bind("127.0.0.1:0").ok()
}

// ── Output ──

struct Screen {
    cluster: Cluster,
    began: Instant,
    is_terminal: bool,
    said: Mutex<VecDeque<String>>, // ≤ LINES
}

impl Screen {
    fn new(cluster: Cluster) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self { cluster, began: Instant::now(), is_terminal, said: Mutex::default() }
    }

    fn act(&self, title: &str) {
        self.say(&format!("── {title}"));
    }

    fn say(&self, line: &str) {
        let line = format!("{:6.2} s  {line}", self.began.elapsed().as_secs_f64());
        if !self.is_terminal {
            return print(&format!("{line}\n"));
        }
        let mut said = self.said.lock().expect("nobody panics under it");
        if said.len() == LINES {
            said.pop_front();
        }
        said.push_back(line);
    }

    fn table(&self, view: &ClusterView) -> String {
        let id = view.id.map_or("no cluster yet".to_owned(), |id| format!("cluster {id}"));
        let leader = view.leader.and_then(|leader| {
            view.members.iter().find(|member| member.node == leader).map(|member| name(member))
        });
        let agree = if view.converged { "all agree" } else { "not all have heard" };
        let mut out = format!("\x1b[2J\x1b[H  {id}   {} Up   {agree}\n\n", view.up());
        for member in &view.members {
            let name = name(member);
            let crown = if leader == Some(name) { "leads" } else { "" };
            let missed = view.unreachable.get(&member.node);
            let missed = missed.map_or(String::new(), |by| {
                let by = by.iter().filter_map(|node| {
                    view.members.iter().find(|member| member.node == *node).map(|m| self::name(m))
                });
                format!("not reached by {}", by.collect::<Vec<_>>().join(", "))
            });
            let (status, address) = (member.status.to_string(), member.address.to_string());
            let age = member.up_number.map_or("-".to_owned(), |age| age.to_string());
            let _ =
                writeln!(out, "  {name:8} {status:9} age {age:3} {address:26} {crown:6} {missed}");
        }
        out.push('\n');
        for line in self.said.lock().expect("nobody panics under it").iter() {
            let _ = writeln!(out, "  {line}");
        }
        out
    }
}

/// Updates the output at every event, until the watcher stops.
async fn draw(screen: Arc<Screen>) {
    let (mut events, mut state) = (screen.cluster.events(), ClusterState::default());
    while let Some(event) = events.next().await {
        state.apply(&event);
        if let Some(line) = line(&event, &state) {
            screen.say(&line);
        }
        if screen.is_terminal
            && let Ok(view) = screen.cluster.state().await
        {
            print(&screen.table(&view));
        }
    }
}

fn name(member: &Member) -> &str {
    member.roles.iter().next().unwrap_or("?")
}

fn line(event: &ClusterEvent, state: &ClusterState) -> Option<String> {
    Some(match event {
        ClusterEvent::MemberJoined(member) => format!("{} joins", name(member)),
        ClusterEvent::MemberWeaklyUp(member) => format!("{} is weakly up", name(member)),
        ClusterEvent::MemberUp(member) => format!("{} is Up", name(member)),
        ClusterEvent::MemberLeft(member) => format!("{} is Leaving", name(member)),
        ClusterEvent::MemberExited(member) => format!("{} is Exiting", name(member)),
        ClusterEvent::MemberDowned(member) => format!("{} is Down", name(member)),
        ClusterEvent::MemberRemoved { member, previous } => {
            format!("{} is removed (it was {previous})", name(member))
        }
        ClusterEvent::UnreachableMember(member) => format!("{} is unreachable", name(member)),
        ClusterEvent::ReachableMember(member) => format!("{} is reachable again", name(member)),
        ClusterEvent::LeaderChanged(Some(leader)) => {
            let member = state.members.get(&leader.incarnation);
            format!("{} leads", member.map_or("?", |member| name(member)))
        }
        ClusterEvent::LeaderChanged(None) => "nobody leads".to_owned(),
        ClusterEvent::ConvergenceChanged(true) => "all agree".to_owned(),
        ClusterEvent::PreparingForShutdown => "the cluster prepares to stop".to_owned(),
        _ => return None,
    })
}
