//! Start of a node: identity, replicated data, transport, membership, in this order.
//!
//! [`PartsWithoutMembership`] holds the parts that every node has. [`Node::start`] adds membership
//! to it; [`Node::listen`] does not, for tests of the transport and the Replicator. *Tools* are
//! programs that ask a node by its control socket or, as *clients* of the transport, over the
//! network.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use libp2p::Multiaddr;
use ostraca_ddata::data::Registry;
use ostraca_ddata::durable::StoreError;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::log_throttle::LogThrottle;
use ostraca_ddata::replicator::ReplicatorParameters;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_util::context::TokioContext;

use super::Node;
use super::admin_server::{self, AdminServer};
use super::builder::NodeBuilder;
use super::clock::Clock;
use super::cluster::watchers::Watchers;
use super::cluster::{Cluster, JoinsBy};
use super::control::dialler::{Dialler, bare};
use super::control::environment::{ControlEnvironment, RemovalReaction};
use super::control::machine::{Control, ControlInbox};
use super::control::memory::{self, MemoryWriter};
use super::control::{ControlPart, MemoryError};
use super::data::ControlHandle;
use super::downing_lease::{DowningLease, LeaseName, LeaseRequester};
use super::event_pump::{ConnectedNodes, EventPump, MembershipHandles, PendingDisconnects};
use super::inbox::{Inbox, InboxLimits};
use super::lanes::Lanes;
use super::lease::LeaseDeadline;
use super::names::NodeNames;
use super::parts::{self, InNode, ReplicatorPart, ReplicatorSetup};
use super::routes;
use super::sharding::region_registry::RegionRegistry;
use super::sharding::{self, Sharding};
use super::shutdown::CoordinatedShutdown;
use super::stall::StallMonitor;
use super::teardown::{self, DataParts, NodeParts, RunningParts};
use crate::cluster::config::Leases;
use crate::cluster::fault_injection::MembershipFaultInjection;
use crate::cluster::member::Address;
use crate::cluster::membership::Membership;
use crate::cluster::membership::port::{self, Memory};
use crate::cluster::wire::ComparedSettings;
use crate::config::{Config, InvalidConfig};
use crate::management::Handles;
use crate::management::config::{Remote, SocketPath};
use crate::management::server::Server;
use crate::management::socket::{BoundSocket, SocketError};
use crate::net::config::SecretError;
use crate::net::handle::{self, Net, Runtimes};
use crate::net::identity::{Identity, IdentityError};
use crate::net::swarm;
use crate::net::wire::PROTOCOL_VERSION;
use crate::runtime::OwnRuntime;
use crate::sharding::machines::Machines;
use crate::sharding::region::PayloadPartSizes;

/// Error of [`Node::start`] and [`Node::listen`]. No part of the node runs: parts that had started
/// end when they are dropped, perhaps shortly after the error is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings are invalid or contradict each other.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The cluster secret cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The node's identity cannot be loaded.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The membership file in the data directory cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The node cannot listen for peers.
    #[error(transparent)]
    Net(#[from] swarm::NetStartError),
    /// The durable data cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node cannot listen for tools on the control socket that is set.
    #[error(transparent)]
    Management(#[from] SocketError),
    /// The address at which other nodes would dial this node exceeds the limit for members.
    #[error("{address} is too long to be a member's address: set a shorter one in net.advertise")]
    Address {
        /// The address that is too long.
        address: Multiaddr,
    },
    /// The operating system started no thread for a part of the node.
    #[error("the system started no thread: raise the limit of this user or cgroup")]
    Thread(#[source] io::Error),
}

/// The parts of a node without membership.
struct PartsWithoutMembership {
    identity: Arc<Identity>,
    clock: Clock,
    net_cell: Arc<OnceLock<Net>>,
    net: Net,
    net_events: mpsc::UnboundedReceiver<handle::NetEvent>,
    data: ReplicatorPart,
    runtime: OwnRuntime,
    inbox: ControlInbox,
    region_registry: Arc<RegionRegistry>,
    lease: LeaseDeadline,
    sharding: Sharding,
    shutdown: CoordinatedShutdown,
    remote: Remote,
}

impl Node {
    /// Starts a node, which then joins a cluster through its seeds or, without seeds, founds one of
    /// its own, unless `wait-for-join` is set or its data directory names a cluster. Does not wait
    /// for that: [`Cluster::wait_until_up`] waits until the node is a member. The program's tasks
    /// and entities run on the current runtime.
    ///
    /// # Errors
    /// [`StartError`], whose messages say what to do.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = Node::start(Config::default()).await?;
    /// node.cluster().wait_until_up().await?;
    /// let visits = Key::<PNCounter>::new("visits");
    /// let within = secs(3);
    /// node.replicator().update(&visits, WriteMajority::within(within), |n| n.increment()).await?;
    /// node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::builder(config).start().await
    }

    /// Builder of a node with what settings cannot express: the program's own data types, and the
    /// lease of a downing strategy. Checks and starts nothing.
    pub fn builder(config: Config) -> NodeBuilder {
        NodeBuilder::new(config)
    }

    /// Starts a node with membership, the program's data types and, for `lease-majority`, its
    /// provider of the lease. In this order: reads the secret, checks the settings, loads the
    /// identity, which locks the data directory, and the membership file, binds the control socket,
    /// starts the parts without membership, chooses the node's address, starts membership, and
    /// serves tools. The first error ends the start; the parts that run end when they are dropped.
    /// Tools that connect to the socket earlier wait.
    pub(super) async fn start_with(
        mut config: Config,
        types: Registry,
        provider: Option<Arc<dyn DowningLease>>,
    ) -> Result<Self, StartError> {
        for warning in config.net.read_secret()? {
            tracing::warn!("net.secret_readable: {warning}");
        }
        for warning in config.check_with(provider.is_some())? {
            tracing::warn!("cluster.settings: {warning}");
        }
        let identity = Arc::new(Identity::load(config.net.data_dir.as_deref())?);
        let memory = config.net.data_dir.as_deref().map(memory::load).transpose()?;
        let for_tools = admin_server::start_threads().map_err(StartError::Thread)?;
        // A socket belongs to the runtime on which it is created.
        let binding = TokioContext::new(control_socket(&config), for_tools.handle().clone());
        let socket = binding.await?;
        let base =
            PartsWithoutMembership::start(&config, identity, types, HasMembership::Yes).await?;
        let address = own_address(&config, base.net.addresses(), base.net.listening())?;
        let memory = memory.unwrap_or_default();
        let has_cluster = memory.cluster.is_some();
        if !has_cluster && config.cluster.seeds.is_empty() && !config.cluster.wait_for_join {
            tracing::info!(
                %address,
                "cluster.alone: no seeds are set, so this node founds a cluster of its own"
            );
        }
        let node = base.join(config, address, memory, provider)?;
        let clients = node.net().clients();
        let tools = AdminServer::serve(for_tools, socket, clients, &node.management());
        node.ending.set_tools(tools);
        Ok(node)
    }

    /// Starts a node that connects with every admitted peer but belongs to no cluster, so that only
    /// `Local` operations work. Its handles for the cluster and for sharding behave as after the
    /// end of membership. It serves no tools and reads no membership file. For tests and examples
    /// of the transport and the Replicator.
    ///
    /// # Errors
    /// [`StartError`], whose messages say what to do. Of the settings only those that this release
    /// does not implement are refused here, before the secret is read; ranges are not checked.
    pub async fn listen(mut config: Config) -> Result<Self, StartError> {
        config.check_implemented()?; // `start` checks ranges as well, and logs warnings
        config.net.read_secret()?;
        let identity = Arc::new(Identity::load(config.net.data_dir.as_deref())?);
        let base =
            PartsWithoutMembership::start(&config, identity, Registry::new(), HasMembership::No)
                .await?;
        base.inbox.close();
        base.region_registry.end();
        let watchers = Watchers::new();
        watchers.end();
        base.finish(None, None, watchers, JoinsBy::Itself) // it joins no cluster
    }
}

/// Whether the Replicator gets an inbox of the control part to report configurations to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HasMembership {
    Yes,
    No,
}

impl PartsWithoutMembership {
    /// Starts the Replicator, which reads its durable data, and then the transport, which listens
    /// from then on. Tasks of the program and lanes of entities will run on the current runtime,
    /// the Replicator and its lanes on one of their own. Also creates the handle for sharding and
    /// the shutdown, which has no task yet. Errors in this order: `Thread`, `Store`, `Net`.
    async fn start(
        config: &Config,
        identity: Arc<Identity>,
        registry: Registry,
        membership: HasMembership,
    ) -> Result<Self, StartError> {
        let me = identity.node_id();
        let parameters = ReplicatorParameters {
            me: me.incarnation,
            config: config.ddata.clone(),
            registry,
            seed: rand::random(),
            fault_injection: FaultInjection::none(),
        };
        let (clock, inbox) = (Clock::start(), Inbox::new(InboxLimits::default()));
        let control = ControlHandle { me: me.incarnation, inbox: inbox.clone() };
        let (region_registry, lease) =
            (Arc::<RegionRegistry>::default(), LeaseDeadline::none(clock));
        let runtime = OwnRuntime::start("ostraca-data", 1).map_err(StartError::Thread)?;
        let net_cell = Arc::new(OnceLock::new());
        region_registry.set_names(NodeNames::new(Arc::downgrade(&net_cell)));
        let node = InNode {
            sibling: Some(control).filter(|_| membership == HasMembership::Yes),
            region_registry: region_registry.clone(),
            clock,
            // The lock of the data directory, and the runtime of the tasks that rely on it.
            alive: Arc::new((identity.clone(), runtime.clone())),
            runtime: runtime.handle().clone(),
            heartbeat_net: Some(Arc::downgrade(&net_cell)),
        };
        let setup = ReplicatorSetup::new(parameters);
        let data = parts::start_in_node(setup, Lanes::new(net_cell.clone()), node).await?;
        let for_lanes = Runtimes { user: Handle::current(), data: runtime.handle().clone() };
        let receiver = data.receiver.clone();
        let (net, net_events) = Net::start_on(&config.net, &identity, receiver, for_lanes).await?;
        let _ = net_cell.set(net.clone()); // set once, here
        tracing::info!(node = %me, addresses = ?net.addresses(), "node.listening");
        let shutdown = CoordinatedShutdown::new(config.shutdown.clone());
        let sharding_setup = sharding::ShardingSetup {
            me: me.incarnation,
            config,
            net: net_cell.clone(),
            inbox: inbox.clone(),
            lease: lease.clone(),
            clock,
            region_registry: region_registry.clone(),
            replicator: data.handle.clone(),
            shutdown: shutdown.observer(),
        };
        let sharding = Sharding::new(sharding_setup);
        Ok(Self {
            identity,
            clock,
            net_cell,
            net,
            net_events,
            data,
            runtime,
            inbox,
            region_registry,
            lease,
            sharding,
            shutdown,
            remote: config.management.remote,
        })
    }

    /// Starts the control part, with membership and the sharding machines, and then the parts that
    /// need it. `address` is this node's address as a member, and `memory` what an earlier life of
    /// this peer has stored. The lease requester is started first, with every `provider`, whatever
    /// the downing strategy. The first input of the machines is a tick, without which they would
    /// have no deadline. Fails only with [`StartError::Thread`].
    fn join(
        self,
        config: Config,
        address: Address,
        memory: Memory,
        provider: Option<Arc<dyn DowningLease>>,
    ) -> Result<Node, StartError> {
        let requester = provider.map(|provider| self.start_lease_requester(&config, provider));
        let me = routes::to_cluster(self.identity.node_id()).expect("identities are ed25519 keys");
        let mut cluster = config.cluster;
        bare_seeds(&mut cluster.seeds);
        let joins_by = if cluster.seeds.is_empty() { JoinsBy::Itself } else { JoinsBy::Seeds };
        let stops = cluster.run_coordinated_shutdown_when_down;
        let settings = settings(&config.net.cluster_name, &cluster.downing.strategy);
        let (seed, fault_injection) = (rand::random(), MembershipFaultInjection::none());
        // The machines use it only for removals that waited for no lease.
        let removal_margin = cluster.downing.removal_margin(Leases::Off);
        // Differs in a copy of the data directory, so that a copied node is not taken for this one.
        let directory = self.identity.lock().map(|(_, inode)| inode);
        let setup = port::MembershipSetup {
            me,
            address,
            config: cluster,
            settings,
            memory,
            directory,
            seed,
            fault_injection,
        };
        let watchers = Watchers::new();
        let dialling = Dialler::new(self.net.clone(), self.inbox.clone());
        let dir = config.net.data_dir.as_deref().map(Path::to_owned);
        let runtime = self.runtime.handle();
        let environment = ControlEnvironment {
            me,
            lanes: Lanes::new(self.net_cell.clone()),
            data: self.data.facts.clone(),
            inbox: self.inbox.clone(),
            net: self.net.clone(),
            dialling: dialling.clone(),
            watchers: watchers.clone(),
            lease: self.lease.clone(),
            asking: requester,
            memory: dir.map(|dir| MemoryWriter::start(dir, self.inbox.clone(), runtime).0),
            shutdown: self.shutdown.clone(),
            on_removal: if stops { RemovalReaction::ShutDown } else { RemovalReaction::Stay },
            region_registry: self.region_registry.clone(),
            clock: self.clock,
            not_sent: LogThrottle::default(),
            never_fits: LogThrottle::default(),
            last: None,
        };
        let part_sizes = PayloadPartSizes::within(config.net.limits.message_bytes_max);
        let sharding_machines = Machines::new(me.incarnation, removal_margin).cutting(part_sizes);
        let machine = Control::new(Membership::new(setup), sharding_machines);
        // A machine has no deadline before its first input. This one fits into the empty inbox.
        let _ = self.inbox.fact(port::MembershipInput::Tick.into());
        let control = ControlPart::start(machine, environment, self.identity.clone())
            .map_err(StartError::Thread)?;
        self.finish(Some(control), Some(dialling), watchers, joins_by)
    }

    /// Starts the task that acquires the lease of `lease-majority` when membership orders it. The
    /// default name of the lease is that of the cluster with `-downing`; its owner is this
    /// incarnation.
    fn start_lease_requester(
        &self,
        config: &Config,
        provider: Arc<dyn DowningLease>,
    ) -> LeaseRequester {
        let settings = &config.cluster.downing.lease_majority;
        let default_name = || format!("{}-downing", config.net.cluster_name);
        let name = settings.lease_name.clone().unwrap_or_else(default_name);
        let lease = LeaseName { name, owner: self.identity.node_id().to_string() };
        LeaseRequester::start(provider, lease, settings.acquire_within, self.inbox.clone())
    }

    /// Starts the parts that need all others (stall monitor and event pump), and adds the node's
    /// own tasks to the shutdown. `control` and `dialling` are `None` without membership; the
    /// shutdown then leaves no cluster. The node keeps the administration server out until
    /// [`RunningParts::set_tools`]. Fails only with [`StartError::Thread`], before it starts
    /// anything.
    fn finish(
        self,
        control: Option<ControlPart>,
        dialling: Option<Dialler>,
        watchers: Arc<Watchers>,
        joins_by: JoinsBy,
    ) -> Result<Node, StartError> {
        let Self { identity, net, net_events, data, runtime, inbox, shutdown, .. } = self;
        let Self { region_registry, lease, sharding, clock, remote, .. } = self; // the other fields
        let stall_monitor = StallMonitor::start(Handle::current(), &region_registry, clock)
            .map_err(StartError::Thread)?;
        let ReplicatorPart { handle: replicator, receiver: _, facts, events, running } = data;
        let me = routes::to_cluster(net.me()).expect("identities are ed25519 keys");
        let cluster = Cluster::new(me, inbox.clone(), watchers, joins_by, clock);
        if control.is_some() {
            teardown::leave_in_order(&shutdown, &cluster, &sharding);
        }
        let (up_sender, up) = watch::channel(ConnectedNodes::new());
        let membership = dialling.map(|dialling| MembershipHandles { inbox, dialling });
        let pump = EventPump {
            facts: facts.clone(),
            up: up_sender,
            net_events,
            events,
            membership,
            region_registry,
            lane_broken_after: sharding.lane_broken_after(),
            shutdown: shutdown.clone(),
            pending_disconnects: PendingDisconnects::default(),
            said: std::collections::BTreeMap::new(),
        };
        let listening = tokio::spawn(pump.listen());
        let rest = DataParts {
            running,
            net: net.clone(),
            listening,
            identity: identity.clone(), // parts and node keep the directory's lock to their ends
            runtime,
        };
        let parts = NodeParts { control, rest: Some(rest), ..NodeParts::default() };
        let ending = RunningParts::new(parts);
        teardown::end_parts(&shutdown, &ending);
        let (handles, _identity) = (Handles::of(&cluster, &replicator, &sharding), identity);
        let management = Server::new(handles, remote);
        Ok(Node {
            net,
            replicator,
            cluster,
            lease,
            sharding,
            shutdown,
            facts,
            management,
            up,
            ending,
            stall_monitor,
            _identity,
        })
    }
}

/// Binds the socket to which tools connect, without serving it. Only a socket whose path is set
/// prevents the start when it cannot be bound; the default one in the data directory causes a
/// warning. `None` then, if the path is set to be empty, and if neither a path nor a data directory
/// is set.
async fn control_socket(config: &Config) -> Result<Option<BoundSocket>, SocketError> {
    let (path, bound) = match config.management.place(config.net.data_dir.as_deref()) {
        None => return Ok(None),
        Some(SocketPath::Set(path)) => (path.clone(), BoundSocket::make(&path).await?),
        Some(SocketPath::Beside(path)) => match BoundSocket::make(&path).await {
            Ok(bound) => (path, bound),
            Err(error) => {
                tracing::warn!("management.no_socket: {error}");
                return Ok(None);
            }
        },
    };
    tracing::info!(socket = %path.display(), "management.listening");
    Ok(Some(bound))
}

/// Settings that the members of a cluster compare with those of a joining node. A node with another
/// value of a `must` is refused; another value of a `should` is logged.
fn settings(cluster_name: &str, strategy: &impl fmt::Display) -> ComparedSettings {
    let pair = |name: &str, value: String| (name.to_owned(), value);
    ComparedSettings {
        must: vec![
            pair("protocol", PROTOCOL_VERSION.to_string()),
            pair("cluster-name", cluster_name.to_owned()),
            pair("state-store-mode", "ddata".to_owned()),
        ],
        should: vec![pair("downing-strategy", strategy.to_string())],
    }
}

/// Removes the peer id at the end of each seed, because members' addresses have none. A seed that
/// is no multiaddr, or only a peer id, stays as it is. Seeds that become equal are all kept.
fn bare_seeds(seeds: &mut Vec<Address>) {
    let bared = |seed: &Address| seed.as_str().parse().ok().and_then(|seed| bare(&seed).ok());
    *seeds = seeds.iter().map(|seed| bared(seed).unwrap_or_else(|| seed.clone())).collect();
}

/// Address at which other nodes dial this node. Of `net.advertise`, if set: an address that is also
/// a seed, else the first. Otherwise an address that is also a seed; else the first that is not a
/// loopback address; else the first.
///
/// Peers are told the `announced` addresses: the advertised ones, if set. `listening` are all on
/// which the transport listens, loopback ones included. All are compared without their peer ids,
/// and the result has none.
///
/// # Errors
/// [`StartError::Address`] if the chosen address is too long; no other is tried.
///
/// # Panics
/// Without any address, which [`Config::check`] prevents.
fn own_address(
    config: &Config,
    announced: &[Multiaddr],
    listening: &[Multiaddr],
) -> Result<Address, StartError> {
    let mut seeds = config.cluster.seeds.clone();
    bare_seeds(&mut seeds);
    let is_seed = |at: &&Multiaddr| bare(at).is_ok_and(|at| seeds.contains(&at));
    let is_remote = |at: &&Multiaddr| !crate::net::address::is_loopback(at);
    let chosen = match config.net.advertise.first() {
        Some(_) => announced.iter().find(is_seed).or_else(|| announced.first()),
        None => {
            let seed = announced.iter().chain(listening).find(is_seed);
            seed.or_else(|| announced.iter().find(is_remote)).or(announced.first())
        }
    };
    let address = chosen.expect("Config::check requires an address to listen on or to advertise");
    bare(address).map_err(|_| StartError::Address { address: address.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of advertised addresses, the seeds, all addresses (the advertised ones first), and
    /// the expected address of the node.
    const ADDRESSES: [(usize, &[&str], &[&str], &str); 6] = [
        (0, &[], &["/ip4/127.0.0.1/tcp/1"], "/ip4/127.0.0.1/tcp/1"),
        (0, &[], &["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1"], "/ip4/10.0.0.1/tcp/1"),
        (
            0,
            &["/ip4/127.0.0.1/tcp/1"],
            &["/ip4/10.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1"],
            "/ip4/127.0.0.1/tcp/1",
        ),
        (
            2,
            &["/ip4/10.0.0.2/tcp/1"],
            &["/dns4/a.example/tcp/1", "/ip4/10.0.0.2/tcp/1"],
            "/ip4/10.0.0.2/tcp/1",
        ),
        (1, &["/ip4/10.0.0.9/tcp/1"], &["/dns4/a.example/tcp/1"], "/dns4/a.example/tcp/1"),
        (1, &[], &["/ip4/127.0.0.1/tcp/1"], "/ip4/127.0.0.1/tcp/1"),
    ];

    #[test]
    fn member_address_is_the_one_that_others_dial() {
        for (advertised, seeds, all, expected) in ADDRESSES {
            let parse = |text: &&str| text.parse::<Multiaddr>().expect("valid");
            let mut config = Config::default();
            config.net.advertise = all.iter().take(advertised).map(parse).collect();
            let seed = |text: &&str| Address::new(*text).expect("short");
            config.cluster.seeds = seeds.iter().map(seed).collect();
            let peer = libp2p::PeerId::from_bytes(&[0, 1, 9]).expect("an identity hash");
            let named = |text: &&str| parse(text).with_p2p(peer).expect("it has no peer id yet");
            let all: Vec<Multiaddr> = all.iter().map(named).collect();
            let address = own_address(&config, &all, &all).expect("short");
            assert_eq!(address.as_str(), expected, "{all:?}");
        }
    }

    #[test]
    fn seed_address_is_preferred_when_listening_on_all_interfaces() {
        let parse = |text: &str| text.parse::<Multiaddr>().expect("valid");
        let told = [parse("/ip4/10.0.0.1/tcp/1")];
        let listening = [parse("/ip4/127.0.0.1/tcp/1"), parse("/ip4/10.0.0.1/tcp/1")];
        let mut config = Config::default();
        let address = |config: &Config| own_address(config, &told, &listening).expect("short");
        assert_eq!(address(&config).as_str(), "/ip4/10.0.0.1/tcp/1");
        config.cluster.seeds = vec![Address::new("/ip4/127.0.0.1/tcp/1").expect("short")];
        assert_eq!(address(&config).as_str(), "/ip4/127.0.0.1/tcp/1");
    }

    #[test]
    fn peer_ids_are_removed_from_seeds() {
        let peer = libp2p::PeerId::from_bytes(&[0, 1, 9]).expect("an identity hash");
        let bare = Address::new("/ip4/10.0.0.1/tcp/1").expect("short");
        let named = Address::new(format!("{bare}/p2p/{peer}")).expect("short");
        let mut seeds = vec![bare.clone(), named];
        bare_seeds(&mut seeds);
        assert_eq!(seeds, [bare.clone(), bare]);
    }
}
