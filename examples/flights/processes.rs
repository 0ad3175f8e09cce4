//! The node processes from the parent's side: it starts, queries, drains and kills them.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Failed;
use crate::member::{Arguments, NodeReport};

/// Time limit for a node to start, to answer, or to leave.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A node process and its pipes.
struct Process {
    name: String,
    report: NodeReport, // the last one
    child: Child,
    asks: ChildStdin,
    says: Lines<BufReader<ChildStdout>>,
}

/// All node processes. Dropping this kills them.
pub(crate) struct Processes {
    secret: NamedTempFile,
    log: &'static str,
    running: Vec<Process>,
    started: usize,
    /// Last reports of nodes that have left.
    gone: Vec<NodeReport>,
}

impl Processes {
    /// Starts `count` nodes: one that founds the cluster, and others that join it.
    pub(crate) async fn start(count: usize, log: &'static str) -> Result<Self, Failed> {
        let mut bytes = [0; 32];
        SysRng.try_fill_bytes(&mut bytes)?;
        let mut secret = NamedTempFile::new()?; // readable by this user only
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        secret.write_all(text.as_bytes())?;
        let mut nodes = Self { secret, log, running: Vec::new(), started: 0, gone: Vec::new() };
        nodes.add().await?;
        let joining: Vec<_> = (1..count).map(|_| nodes.begin()).collect::<Result<_, _>>()?;
        for process in joining {
            nodes.running.push(process.ready().await?);
        }
        Ok(nodes)
    }

    /// Arguments with which a further node joins these.
    pub(crate) fn arguments(&self) -> Arguments {
        let seeds = self.running.iter().map(|process| process.report.address.clone()).collect();
        Arguments { secret_file: self.secret.path().to_owned(), seeds }
    }

    /// Starts a further node, and waits until it serves.
    pub(crate) async fn add(&mut self) -> Result<(), Failed> {
        let process = self.begin()?.ready().await?;
        self.running.push(process);
        Ok(())
    }

    /// Starts a further node, and waits until shards have moved to it.
    pub(crate) async fn add_and_fill(&mut self) -> Result<(), Failed> {
        self.add().await?;
        let newest = self.running.last_mut().ok_or("no node runs")?;
        let filling = async {
            while newest.ask().await?.shards.values().all(|shards| *shards == 0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<(), Failed>(())
        };
        let filled = tokio::time::timeout(PATIENCE, filling).await;
        filled.map_err(|_| format!("{} has got no shard within {PATIENCE:?}", self.started))?
    }

    /// Makes a node leave gracefully, and waits for its end.
    pub(crate) async fn drain(&mut self, node: u64) -> Result<(), Failed> {
        let process = self.take(node)?;
        process.signal(Signal::TERM)?;
        self.gone.push(process.ended().await?);
        Ok(())
    }

    /// Kills a node with SIGKILL.
    pub(crate) async fn kill(&mut self, node: u64) -> Result<(), Failed> {
        let mut process = self.take(node)?;
        process.signal(Signal::KILL)?;
        process.child.wait().await?;
        Ok(())
    }

    /// Queries all nodes. Returns their reports by name.
    pub(crate) async fn reports(&mut self) -> Result<BTreeMap<String, NodeReport>, Failed> {
        let mut reports = BTreeMap::new();
        for process in &mut self.running {
            reports.insert(process.name.clone(), process.ask().await?);
        }
        Ok(reports)
    }

    /// Last reports of the nodes that have left gracefully.
    pub(crate) fn last_reports(&self) -> &[NodeReport] {
        &self.gone
    }

    /// Stops all nodes gracefully.
    pub(crate) async fn stop(&mut self) -> Result<(), Failed> {
        for process in &self.running {
            process.signal(Signal::TERM)?;
        }
        for process in std::mem::take(&mut self.running) {
            self.gone.push(process.ended().await?);
        }
        Ok(())
    }

    fn take(&mut self, node: u64) -> Result<Process, Failed> {
        let at = self.running.iter().position(|process| process.report.node == node);
        let at = at.ok_or_else(|| format!("node {node} is none of those that were started"))?;
        Ok(self.running.remove(at))
    }

    fn begin(&mut self) -> Result<Process, Failed> {
        let Arguments { secret_file, seeds } = self.arguments();
        self.started += 1;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--log", self.log, "node", "--secret-file"])
            .arg(secret_file)
            .args(seeds.iter().flat_map(|seed| ["--seed", seed]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let asks = child.stdin.take().ok_or("no way to ask a node")?;
        let says = child.stdout.take().ok_or("no way to hear a node")?;
        let says = BufReader::new(says).lines();
        let name = format!("node-{}", self.started);
        Ok(Process { name, report: NodeReport::default(), child, asks, says })
    }
}

impl Process {
    async fn ready(mut self) -> Result<Self, Failed> {
        self.report = self.next().await?;
        Ok(self)
    }

    async fn ask(&mut self) -> Result<NodeReport, Failed> {
        self.asks.write_all(b"\n").await?;
        self.report = self.next().await?;
        Ok(self.report.clone())
    }

    async fn next(&mut self) -> Result<NodeReport, Failed> {
        let line = tokio::time::timeout(PATIENCE, self.says.next_line()).await;
        let line = line.map_err(|_| format!("{} says nothing for {PATIENCE:?}", self.name))??;
        let line = line.ok_or_else(|| format!("{} has ended: see its log above", self.name))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits for the graceful end of the process. Returns its last report.
    async fn ended(mut self) -> Result<NodeReport, Failed> {
        let report = self.next().await?;
        drop(self.asks); // otherwise the process waits for another line
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = status.map_err(|_| format!("{} does not end", self.name))??;
        match status.success() {
            true => Ok(report),
            false => Err(format!("{} ended with {status}", self.name).into()),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Failed> {
        let id = self.child.id().ok_or_else(|| format!("{} has ended", self.name))?;
        let id = Pid::from_raw(i32::try_from(id)?).ok_or("no process id")?;
        Ok(kill_process(id, signal)?)
    }
}
