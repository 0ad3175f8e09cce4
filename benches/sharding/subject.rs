//! The measured entity and its messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca::prelude::*;
use ostraca::sharding::entity::BoxError;
use ostraca::sharding::ids::EntityId;
use serde::{Deserialize, Serialize};

use crate::Error;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    Add(u64),
    /// 100 bytes when encoded: see [`note`].
    Note {
        number: u64,
        text: String,
    },
    Get(Reply<u64>),
    /// Counts a visit; answers the number of visits since the first life, and the node.
    Visit(Reply<(u64, u64)>),
}

/// Makes a message of 100 bytes.
pub(crate) fn note(number: u64) -> Command {
    Command::Note { number: number | 1 << 40, text: "x".repeat(70) }
}

/// 16 bytes of state.
#[derive(Default)]
pub(crate) struct Subject {
    sum: u64,
    visits: u64,
}

impl Entity for Subject {
    type Message = Command;

    async fn handle(&mut self, command: Command, cx: &mut Context<'_, Self>) {
        match command {
            Command::Add(n) => self.sum += n,
            Command::Note { number, text } => {
                std::hint::black_box((number, text));
                self.sum += 1;
            }
            Command::Get(reply) => reply.send(self.sum),
            Command::Visit(reply) => {
                self.visits += 1;
                reply.send((self.visits, cx.node().replica().get()));
            }
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        rmp_serde::to_vec(&(self.sum, self.visits)).ok()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        (self.sum, self.visits) = rmp_serde::from_slice(state)?;
        Ok(())
    }
}

pub(crate) async fn start(node: &Node, name: &str) -> Result<ShardRegion<Subject>, Error> {
    let sharding = node.sharding();
    let region = sharding.start(name, |_| Subject::default()).await?;
    sharding.wait_until_registered(name).await?;
    Ok(region)
}

/// Like [`start`], and counts the instances that begin.
pub(crate) async fn start_counted(
    node: &Node,
    name: &str,
) -> Result<(ShardRegion<Subject>, Arc<AtomicU64>), Error> {
    let (sharding, begun) = (node.sharding(), Arc::<AtomicU64>::default());
    let counts = begun.clone();
    let begins = move |_: &EntityId| {
        counts.fetch_add(1, Ordering::Relaxed);
        Subject::default()
    };
    let region = sharding.start(name, begins).await?;
    sharding.wait_until_registered(name).await?;
    Ok((region, begun))
}

/// Returns one entity in each shard.
pub(crate) fn one_per_shard(region: &ShardRegion<Subject>) -> Vec<EntityRef<Subject>> {
    let mut found = std::collections::BTreeMap::new();
    for number in 0_u64.. {
        let entity = region.entity(&format!("entity-{number}"));
        found.entry(entity.shard()).or_insert(entity);
        if found.len() == crate::SHARDS as usize {
            break;
        }
    }
    found.into_values().collect()
}
