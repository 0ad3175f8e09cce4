//! Three nodes in one process that share counter entities: `cargo run --example counters`
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

mod logging;
use ostraca::cluster::member::Address;
use ostraca::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Default)]
struct Counter(i64);

#[derive(Serialize, Deserialize)]
enum Command {
    Add(i64),
    Get(Reply<i64>),
}

impl Entity for Counter {
    type Message = Command;

    async fn handle(&mut self, command: Command, _: &mut Context<'_, Self>) {
        match command {
            Command::Add(n) => self.0 += n,
            Command::Get(reply) => reply.send(self.0),
        }
    }
}

type Failed = Box<dyn std::error::Error>;
async fn start(seeds: &[Address]) -> Result<(Node, ShardRegion<Counter>), Failed> {
    let mut config = Config::default();
    config.cluster.seeds = seeds.to_vec();
    let node = Node::start(config).await?;
    let counters = node.sharding().start("counter", |_id| Counter::default()).await?;
    node.sharding().wait_until_registered("counter").await?; // from now on this node gets shards
    Ok((node, counters))
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    logging::begin(); // to stderr, as RUST_LOG says
    let (first, here) = start(&[]).await?;
    let seed = [Address::new(first.addresses()[0].to_string())?];
    let (second, there) = start(&seed).await?;
    let (third, _) = start(&seed).await?;
    for n in 0..30 {
        here.entity(&format!("counter-{}", n % 10)).tell(Command::Add(n))?;
    }
    for id in (0..10).map(|n| format!("counter-{n}")) {
        let value = here.entity(&id).ask(Command::Get).await?; // after the messages told from here
        assert_eq!(there.entity(&id).ask(Command::Get).await?, value);
        println!("{id} = {value}");
    }
    println!("{} live on the first node, {} on the second", here.entities(), there.entities());
    third.stop().await; // its counters start anew on other nodes, because they hand over no state
    println!("counter-7 = {}", there.entity("counter-7").ask(Command::Get).await?);
    second.stop().await;
    first.stop().await;
    Ok(())
}
