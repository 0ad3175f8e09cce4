//! The other processes of a benchmark: nodes, and the servers of the limits.

use ostraca::cluster::member::Address;
use ostraca::prelude::*;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::process::Process;
use crate::{Error, entities, limits, subject};

/// Argument with which this program runs as a peer; the number of workers follows.
pub(crate) const PEER: &str = "--peer";

/// Starts another process, with as many workers as this one.
pub(crate) fn process(what: &[&str]) -> Result<Process, Error> {
    let workers = tokio::runtime::Handle::current().metrics().num_workers().to_string();
    Process::start(&[&[PEER, &workers], what].concat())
}

pub(crate) async fn serve(args: &[String]) -> Result<(), Error> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["node", ref seeds @ ..] => node(seeds).await,
        ["echo"] => limits::echo().await,
        ["sink"] => limits::sink().await,
        ["answer"] => limits::answer().await,
        ["memory"] => entities::memory().await,
        _ => Err(format!("no such peer: {args:?}").into()),
    }
}

/// Starts a node in this process, and waits until it is up.
pub(crate) async fn start(seeds: &[&str]) -> Result<Node, Error> {
    let mut config = Config::default();
    config.cluster.seeds =
        seeds.iter().map(|seed| Address::new(*seed)).collect::<Result<_, _>>()?;
    let node = Node::start(config).await?;
    node.cluster().wait_until_up().await?;
    Ok(node)
}

async fn node(seeds: &[&str]) -> Result<(), Error> {
    let node = start(seeds).await?;
    println!("{} {}", node.addresses()[0], node.id().incarnation.get());
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        match words[..] {
            ["host", name] => {
                subject::start(&node, name).await?;
                println!("hosts");
            }
            ["leave"] => {
                node.stop().await;
                println!("left");
                return Ok(());
            }
            _ => return Err(format!("no order: {order:?}").into()),
        }
    }
    Ok(()) // the benchmark has ended
}

/// A node in another process.
pub(crate) struct Peer {
    pub(crate) process: Process,
    pub(crate) address: String,
    pub(crate) incarnation: u64,
}

impl Peer {
    /// Starts a node in another process and waits until it is up. Without a seed it founds a
    /// cluster.
    pub(crate) async fn start(seeds: &[&str]) -> Result<Self, Error> {
        let mut process = process(&[&["node"], seeds].concat())?;
        let line = process.line().await?;
        let (address, incarnation) = line.split_once(' ').ok_or("no address")?;
        let (address, incarnation) = (address.to_owned(), incarnation.parse()?);
        Ok(Self { process, address, incarnation })
    }

    /// Sends an order and waits until it is done.
    pub(crate) async fn order(&mut self, order: &str) -> Result<(), Error> {
        self.process.order(order).await?;
        self.process.line().await?;
        Ok(())
    }

    pub(crate) async fn host(&mut self, name: &str) -> Result<(), Error> {
        self.order(&format!("host {name}")).await
    }
}

/// A cluster of a node in this process and nodes in others. The first of the others is the oldest
/// member.
pub(crate) struct Cluster {
    pub(crate) node: Node,
    pub(crate) peers: Vec<Peer>,
}

impl Cluster {
    /// Starts a cluster with `others` other processes, at least one.
    pub(crate) async fn start(others: usize) -> Result<Self, Error> {
        let first = Peer::start(&[]).await?;
        let seed = first.address.clone();
        let mut peers = vec![first];
        while peers.len() < others {
            peers.push(Peer::start(&[&seed]).await?);
        }
        let node = start(&[&seed]).await?;
        Ok(Self { node, peers })
    }

    /// Starts an entity type on all nodes.
    pub(crate) async fn host(
        &mut self,
        name: &str,
    ) -> Result<ShardRegion<subject::Subject>, Error> {
        for peer in &mut self.peers {
            peer.host(name).await?;
        }
        subject::start(&self.node, name).await
    }

    /// Returns the ids of the other processes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.peers.iter().filter_map(|peer| peer.process.child.id()).collect()
    }

    pub(crate) async fn stop(self) {
        self.node.stop().await;
    }
}
