//! Targeted faults, known as "buggify": after a chosen step of the protocol, the node
//! that took it crashes, pauses or is partitioned.
//!
//! A crash happens only if a majority of the newest configuration, and of every proposal accepted
//! after it, stays alive; otherwise the cluster could make no progress
//! (docs/protocol/configurations.md#both-quorums-while-a-change-is-open).

use std::time::Duration;

use ostraca_ddata::sim::{DiskFate, Fault, NodeIndex, RandomStream, SimulationView};

use crate::chain::Chain;
use crate::node::{Event, Node};

/// The targeted faults of a run. The default causes none.
#[derive(Debug, Default)]
pub struct Strikes {
    chance: Option<RandomStream>,
    probability: f64,
    /// Number of chosen steps so far.
    pub count: u64,
}

const MS: Duration = Duration::from_millis(1);

impl Strikes {
    pub fn new(seed: u64, probability: f64) -> Self {
        Self { chance: Some(RandomStream::split(seed, "strikes", 0)), probability, count: 0 }
    }

    /// Ends the targeted faults.
    pub fn end(&mut self) {
        self.probability = 0.0;
    }

    /// The fault that follows this event at the node, if any.
    pub fn after(
        &mut self,
        view: &SimulationView<'_, Node>,
        node: NodeIndex,
        event: &Event,
        chain: &Chain,
    ) -> Option<Fault> {
        let weight = match event {
            Event::Installed(_) | Event::Synced | Event::Outcome(_) => 1.0,
            Event::Replied(_, Ok(_)) | Event::Made(..) => 0.05,
            _ => return None,
        };
        let chance = self.chance.as_mut()?;
        if !chance.chance(self.probability * weight) {
            return None;
        }
        self.count += 1;
        let span = chance.span(10 * MS, 8_000 * MS);
        match chance.below(4) {
            0 => {
                let id = view.process(node)?.id();
                let down = Some(span);
                let disk = *chance.pick(&[DiskFate::Kept, DiskFate::Kept, DiskFate::Lost]);
                let survives = chain.survives(view, Some(id));
                survives.then_some(Fault::Crash { node, disk, down })
            }
            1 => Some(Fault::Pause { node, span }),
            2 => Some(Fault::isolate(node, view.nodes(), span)),
            _ => {
                let other = NodeIndex::new(chance.index(view.nodes()));
                let links = vec![ostraca_ddata::sim::LinkSet { from: vec![node], to: vec![other] }];
                Some(Fault::Cut { links, span: Some(span) })
            }
        }
    }
}
