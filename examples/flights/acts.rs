//! Disturbances of the cluster while flights stream through it: a node joins, leaves or crashes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ostraca::prelude::*;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::Failed;
use crate::processes::{PATIENCE, Processes};

/// A disturbance of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Act {
    /// A further node joins and gets its share of the shards.
    AddNode,
    /// The node of the coordinators leaves gracefully.
    Drain,
    /// The node of the coordinators is killed.
    Crash,
}

/// A disturbance that has ended.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Played {
    pub(crate) act: Act,
    /// Number of the flight at which it began.
    pub(crate) at_row: u64,
    /// Number of flights that were fed while it lasted.
    pub(crate) rows_meanwhile: u64,
    pub(crate) seconds: f64,
}

/// Handles that a disturbance needs.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) nodes: Arc<Mutex<Processes>>,
    pub(crate) cluster: Cluster,
    pub(crate) sharding: Sharding,
}

impl Stage {
    async fn play(self, act: Act) -> Result<(), Failed> {
        let mut nodes = self.nodes.lock().await;
        if act == Act::AddNode {
            return nodes.add_and_fill().await;
        }
        let node = self.coordinates().await?;
        match act {
            Act::Crash => nodes.kill(node).await?,
            _ => nodes.drain(node).await?,
        }
        drop(nodes);
        let removed = tokio::time::timeout(PATIENCE, self.removed(node)).await;
        removed.map_err(|_| format!("node {node} is still a member after {PATIENCE:?}"))?
    }

    /// The node on which the coordinators run. Waits if there is none for a moment: between two
    /// coordinators, or while the machine is too busy to renew a lease.
    async fn coordinates(&self) -> Result<u64, Failed> {
        let known = async {
            loop {
                let types = self.sharding.types().await?;
                if let Some(node) = types.iter().find_map(|view| view.coordinator) {
                    return Ok(node.get());
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let late = |_| format!("no coordinator is known after {PATIENCE:?}");
        tokio::time::timeout(PATIENCE, known).await.map_err(late)?
    }

    async fn removed(&self, node: u64) -> Result<(), Failed> {
        let mut events = self.cluster.events();
        let is_member = || {
            let members = self.cluster.members();
            members.iter().any(|member| member.node.incarnation.get() == node)
        };
        while is_member() {
            events.next().await.ok_or("the feeder's node has stopped")?;
        }
        Ok(())
    }
}

/// Schedule of the disturbances, which are spread evenly over the file. Each has a stretch of
/// flights: the first half is fed at full speed, the second half slowly, so that the disturbance
/// ends before the file does, even if the file is short.
pub(crate) struct Play {
    stage: Stage,
    stretch: u64,                 // flights
    coming: VecDeque<(u64, Act)>, // ≤ 3
    now: Option<Scene>,
    pub(crate) over: Vec<Played>, // ≤ 3
}

struct Scene {
    act: Act,
    at_row: u64,
    ends: JoinHandle<(Result<(), Failed>, Duration)>,
}

/// Speed at which the next flight is fed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speed {
    /// Full speed, without a disturbance.
    Full,
    /// Full speed, during a disturbance.
    Disturbed,
    /// With pauses, because a disturbance takes long.
    Slow,
}

/// Approximate number of pauses in the second half of a stretch.
const PAUSES: u64 = 300;

const PAUSE: Duration = Duration::from_millis(10);

impl Play {
    pub(crate) fn new(stage: Stage, acts: &[Act], rows: u64) -> Self {
        let stretch = rows / (acts.len() as u64 + 1);
        let coming = (1..).map(|part| part * stretch).zip(acts.iter().copied()).collect();
        Self { stage, stretch, coming, now: None, over: Vec::new() }
    }

    /// Called before each flight: begins and ends disturbances. Waits for the end of one whose
    /// stretch is used up.
    pub(crate) async fn before(&mut self, row: u64) -> Result<Speed, Failed> {
        if self.now.as_ref().is_some_and(|scene| {
            scene.ends.is_finished() || row.saturating_sub(scene.at_row) >= self.stretch
        }) {
            self.finish(row).await?;
        }
        if self.now.is_none()
            && self.coming.front().is_some_and(|(at_row, _)| *at_row <= row)
            && let Some((_, act)) = self.coming.pop_front()
        {
            let (stage, began) = (self.stage.clone(), Instant::now());
            let ends = tokio::spawn(async move { (stage.play(act).await, began.elapsed()) });
            self.now = Some(Scene { act, at_row: row, ends });
        }
        let Some(scene) = &self.now else { return Ok(Speed::Full) };
        let fed = row.saturating_sub(scene.at_row);
        if fed < self.stretch / 2 {
            return Ok(Speed::Disturbed);
        }
        if fed.is_multiple_of((self.stretch / 2 / PAUSES).max(1)) {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Speed::Slow)
    }

    /// Waits for the end of the present disturbance.
    pub(crate) async fn finish(&mut self, row: u64) -> Result<(), Failed> {
        let Some(Scene { act, at_row, ends }) = self.now.take() else { return Ok(()) };
        let (outcome, took) = ends.await?;
        outcome.map_err(|why| format!("{act:?} failed: {why}"))?;
        let (rows_meanwhile, seconds) = (row.saturating_sub(at_row), took.as_secs_f64());
        self.over.push(Played { act, at_row, rows_meanwhile, seconds });
        Ok(())
    }
}
