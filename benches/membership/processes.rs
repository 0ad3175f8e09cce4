//! Time until processes on loopback form one cluster: all start at once, three of them are seeds,
//! and all settings have their defaults.

use std::error::Error;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ostraca::cluster::member::Address;
use ostraca::prelude::*;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::runtime::Runtime;

/// The argument with which this program runs as a member.
const MEMBER: &str = "--member";
const SIZES: [usize; 2] = [5, 10];
const SEEDS: usize = 3;
const RUNS: usize = 5;
const GOAL: Duration = Duration::from_secs(2);
/// Maximum time until the processes form one cluster.
const PATIENCE: Duration = Duration::from_secs(120);

type Failed = Box<dyn Error>;

/// Runs as a member if this process was started as one; returns whether it was.
pub(crate) fn serves() -> Result<bool, Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [first, count, listen, seeds @ ..] = args.as_slice() else { return Ok(false) };
    if first != MEMBER {
        return Ok(false);
    }
    Runtime::new()?.block_on(member(count.parse()?, listen, seeds))?;
    Ok(true)
}

async fn member(count: usize, listen: &str, seeds: &[String]) -> Result<(), Failed> {
    let mut config = Config::default();
    config.net.listen = vec![listen.parse()?];
    config.cluster.seeds =
        seeds.iter().map(|seed| Address::new(seed.as_str())).collect::<Result<_, _>>()?;
    let node = Node::start(config).await?;
    println!("listening");
    let mut events = node.cluster().events();
    loop {
        let view = node.cluster().state().await?;
        if view.up() == count && view.unreachable.is_empty() {
            break;
        }
        events.next().await.ok_or("the node has stopped")?;
    }
    println!("one");
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?; // until the bench closes the pipe
    Ok(())
}

/// Measures and prints the table.
pub(crate) fn figures() -> Result<(), Failed> {
    println!("\nprocesses on loopback, {RUNS} times each; from the start until each process sees");
    println!("all of them Up, and until the last one listens\n");
    println!(
        "{:>9} {:>9} {:>9} {:>12} {:>8}",
        "processes", "median s", "worst s", "listening s", "goal s"
    );
    let runtime = Runtime::new()?;
    for count in SIZES {
        let mut all = Vec::new();
        for _ in 0..RUNS {
            let formed = async { tokio::time::timeout(PATIENCE, form(count)).await };
            all.push(runtime.block_on(formed)??);
        }
        all.sort_unstable();
        let [(_, listening), (median, _), (worst, _)] =
            [RUNS / 2, RUNS / 2, RUNS - 1].map(|index| all[index]);
        let [median, worst, listening, goal] =
            [median, worst, listening, GOAL].map(|span| span.as_secs_f64());
        println!("{count:>9} {median:>9.3} {worst:>9.3} {listening:>12.3} {goal:>8.1}");
    }
    Ok(())
}

/// Time until the processes form one cluster, and until all of them listen.
async fn form(count: usize) -> Result<(Duration, Duration), Failed> {
    let addresses = free_addresses(count)?;
    let begun = Instant::now();
    let mut members = Vec::new();
    for address in &addresses {
        members.push(Member::start(count, address, &addresses[..SEEDS])?);
    }
    for member in &mut members {
        member.says("listening").await?;
    }
    let listening = begun.elapsed();
    for member in &mut members {
        member.says("one").await?;
    }
    Ok((begun.elapsed(), listening))
}

/// Loopback addresses whose ports were free.
fn free_addresses(count: usize) -> Result<Vec<String>, Failed> {
    let held =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    let address = |listener: &TcpListener| {
        Ok(format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr()?.port()))
    };
    held.iter().map(address).collect()
}

/// A child process that is killed when this value is dropped.
struct Member {
    _child: Child,
    says: Lines<BufReader<ChildStdout>>,
}

impl Member {
    fn start(count: usize, listen: &str, seeds: &[String]) -> Result<Self, Failed> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([MEMBER, &count.to_string(), listen])
            .args(seeds)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let says = child.stdout.take().ok_or("a member has no output")?;
        Ok(Self { _child: child, says: BufReader::new(says).lines() })
    }

    async fn says(&mut self, word: &str) -> Result<(), Failed> {
        let said = self.says.next_line().await?;
        if said.as_deref() == Some(word) {
            Ok(())
        } else {
            Err(format!("a member said {said:?}").into())
        }
    }
}
