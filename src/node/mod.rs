//! A node: how its parts meet. Nobody else knows this room.
//!
//! | file | is |
//! |---|---|
//! | `driver`, `inbox` | the one loop that runs machines, and what waits for it |
//! | [`wiring`] | who hears whom: a pure function |
//! | [`parts`] | starting and stopping a part |
//! | [`replicator`] | the async handle of replicated data |
//! | [`outgoing`], `receiver` | the two seams to the network |
//! | [`disk`] | the durable store as a peer |

pub mod clock;
mod data;
pub mod disk;
mod driver;
mod fixed;
mod inbox;
mod lanes;
pub mod outgoing;
pub mod parts;
mod rarely;
mod receiver;
pub mod replicator;
mod replies;
pub mod wiring;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::bug::Canary;
use ostraca_ddata::data::Registry;
use ostraca_ddata::durable::StoreError;
use ostraca_ddata::replicator::Setup;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub use self::driver::{TURN_MAX, Turns};
pub use self::fixed::FixedError;
pub use self::inbox::{InboxLimits, Waiting};
use self::parts::{Facts, ReplicatorPart, ReplicatorSetup, Running};
use self::replicator::Replicator;
use self::wiring::{Event, Fact};
use crate::config::Config;
use crate::net::handle::{self, Net};
use crate::net::identity::{Identity, IdentityError};
use crate::net::swarm;
use crate::net::{Class, NodeId};

/// A running node.
///
/// Dropping it ends its tasks without saying goodbye; [`stop`](Self::stop) says it.
#[derive(Debug)]
pub struct Node {
    net: Net,
    replicator: Replicator,
    facts: Facts,
    running: Running,
    up: watch::Receiver<Up>,
    listening: JoinHandle<()>,
    _identity: Identity, // the last to go: its lock says that this incarnation lives
}

/// The nodes that were admitted, each in its present life.
type Up = BTreeMap<PeerId, NodeId>;

/// Why a node did not start. Nothing runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It can't be itself.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It can't listen.
    #[error(transparent)]
    Net(#[from] swarm::StartError),
    /// Its durable data can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Node {
    /// Starts a node that listens and talks to whoever is admitted, but belongs to no cluster yet:
    /// replicated data is served from this node alone until there is a configuration.
    ///
    /// # Errors
    /// [`StartError`], whose sentences say what to do.
    pub async fn listen(config: Config) -> Result<Self, StartError> {
        let identity = Identity::load(config.net.data_dir.as_deref())?;
        let me = identity.node_id();
        let machine = Setup {
            me: me.incarnation,
            config: config.ddata,
            registry: Registry::new(),
            seed: rand::random(),
            canary: Canary::none(),
        };
        let net_cell = Arc::new(OnceLock::new());
        let lanes = lanes::Lanes::new(net_cell.clone());
        let part = parts::start_replicator(ReplicatorSetup::new(machine), lanes).await?;
        let ReplicatorPart { handle, receiver, facts, events, running } = part;
        let (net, told) = Net::start(&config.net, &identity, receiver).await?;
        let _ = net_cell.set(net.clone()); // set once, here
        let (up, ups) = watch::channel(Up::new());
        let listening = tokio::spawn(listen(Ears { facts: facts.clone(), up, told, events }));
        tracing::info!(node = %me, addresses = ?net.addresses(), "node.listening");
        Ok(Self {
            net,
            replicator: handle,
            facts,
            running,
            up: ups,
            listening,
            _identity: identity,
        })
    }

    /// Who this is.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.net.me()
    }

    /// Where others dial this node; its peer id is part of each address.
    #[must_use]
    pub fn addresses(&self) -> &[Multiaddr] {
        self.net.addresses()
    }

    /// The replicated data.
    #[must_use]
    pub fn replicator(&self) -> Replicator {
        self.replicator.clone()
    }

    /// The transport.
    #[must_use]
    pub const fn net(&self) -> &Net {
        &self.net
    }

    /// Stops: requests that wait for others end with an error, what is queued is sent as far as
    /// peers take it, lanes are ended in order.
    pub async fn stop(self) {
        let Self { net, running, listening, .. } = self;
        if let Err(error) = running.stop().await {
            tracing::error!(%error, "node.stopped_late");
        }
        net.stop().await;
        listening.abort();
    }
}

/// Where the node's news come from, and go to.
struct Ears {
    facts: Facts,
    up: watch::Sender<Up>,
    told: mpsc::UnboundedReceiver<handle::Event>,
    events: mpsc::Receiver<Event>,
}

/// Passes on what the parts tell the node, until they are gone.
async fn listen(mut ears: Ears) {
    loop {
        tokio::select! {
            Some(event) = ears.told.recv() => ears.net(event),
            Some(event) = ears.events.recv() => ears.replicator(&event),
            else => return,
        }
    }
}

impl Ears {
    fn net(&self, event: handle::Event) {
        match event {
            handle::Event::Up { node, .. } => {
                tracing::info!(%node, "node.up");
                self.up.send_modify(|up| {
                    up.insert(node.peer, node);
                });
                self.facts.tell(Fact::LinkUp(node));
            }
            handle::Event::NewIncarnation { old, node, is_proof } => {
                tracing::info!(%old, %node, is_proof, "node.new_incarnation");
            }
            handle::Event::Closed { node } => tracing::info!(%node, "node.closed"),
            handle::Event::DialRefused { address, reason, .. } => {
                tracing::debug!(%address, reason, "node.dial_refused");
            }
            handle::Event::LaneBroken { node, class: Class::Data | Class::Bulk, .. } => {
                self.facts.tell(Fact::LinkUp(node));
            }
            handle::Event::Answered { .. } => {} // nobody waits for it yet
            handle::Event::LaneBroken { .. } | handle::Event::Refused { .. } => {} // logged by net
        }
    }

    fn replicator(&self, event: &Event) {
        // Without membership nobody holds a lease.
        if let Event::AskConsent { query, .. } = event {
            self.facts.tell(Fact::Consent { query: *query, remaining: Vec::new() });
        }
    }
}
