//! Latency of short asks to another process while a few other entities there get long messages.
//! Limit: the same asks without the long messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ostraca::prelude::*;

use crate::figures::{Row, Spans, span, times};
use crate::peers::{Peer, start};
use crate::subject::{Command, Subject};
use crate::{Error, RUN, RUNS};

/// Pause between two asks.
const PAUSE: Duration = Duration::from_millis(1);

/// Number of entities that get long messages, and bytes per message.
const LOADS: [(u64, usize); 2] = [(4, 4_000_000), (8, 100_000)];

type Entities = Vec<EntityRef<Subject>>;

pub(crate) async fn run() -> Result<(), Error> {
    let mut peer = Peer::start(&[]).await?;
    let node = start(&[&peer.address]).await?;
    peer.host("bulk").await?;
    let region = node.sharding().start_proxy::<Subject>("bulk").await?;
    for (loaded, bytes) in LOADS {
        let bulk: Entities = (0..loaded).map(|n| region.entity(&format!("bulk-{n}"))).collect();
        let shards: Vec<_> = bulk.iter().map(EntityRef::shard).collect();
        let small = |is_mate: bool| -> Entities {
            let all = (0_u64..).map(|n| region.entity(&format!("small-{n}")));
            all.filter(|entity| shards.contains(&entity.shard()) == is_mate).take(8).collect()
        };
        let of = format!("{loaded} x {} kB", bytes / 1_000);
        for (entities, which) in [(small(true), "a shard mate"), (small(false), "another shard")] {
            beside(&bulk, bytes, &entities, &format!("ask {which}, beside {of}")).await?;
        }
    }
    node.stop().await;
    Ok(())
}

async fn beside(bulk: &Entities, bytes: usize, to: &Entities, what: &str) -> Result<(), Error> {
    let alone = asks(to).await?;
    let (ends, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let senders = bulk.iter().map(|entity| {
        let (entity, ends, sent) = (entity.clone(), Arc::clone(&ends), Arc::clone(&sent));
        tokio::spawn(async move {
            let text = "x".repeat(bytes);
            while !ends.load(Ordering::Relaxed) {
                entity.tell_wait(Command::Note { number: 1, text: text.clone() }).await?;
                sent.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, TellError>(())
        })
    });
    let (senders, begun): (Vec<_>, _) = (senders.collect(), Instant::now());
    let loaded = asks(to).await?;
    let rate = sent.load(Ordering::Relaxed) as f64 * bytes as f64 / begun.elapsed().as_secs_f64();
    ends.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await??;
    }
    for (percent, goal) in [(50, "<= 10 x"), (99, "-")] {
        let (ours, limit) = (loaded.at(percent), alone.at(percent));
        let row = Row {
            what: &format!("{what}, p{percent}"),
            goal,
            ours: format!("{}, {:.0} MB/s beside", span(ours), rate / 1e6),
            limit: times(ours, limit, "alone"),
        };
        if percent == 50 { row.print() } else { row.print_below() }
    }
    Ok(())
}

/// Asks the entities in turn, one ask at a time.
async fn asks(entities: &Entities) -> Result<Spans, Error> {
    let (begun, mut spans) = (Instant::now(), Vec::new());
    for entity in entities {
        entity.ask(Command::Get).await?; // starts it
    }
    for entity in entities.iter().cycle() {
        if begun.elapsed() > RUN * RUNS as u32 {
            break;
        }
        let asked = Instant::now();
        let answer = entity.ask(Command::Get).await;
        spans.push(asked.elapsed());
        match answer {
            Ok(_) | Err(AskError::Timeout { .. }) => {} // counts with the time that it waited
            Err(why) => return Err(why.into()),
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Spans::of(spans))
}
