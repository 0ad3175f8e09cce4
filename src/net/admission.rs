//! Admission: who may talk. Pure: facts in, a verdict out.
//!
//! The transport has said who the peer is; here it shows that it knows the secret, belongs to the
//! same cluster, and means this life of this node. (spec/transport.md, "Admission")

use std::collections::BTreeSet;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use libp2p::{Multiaddr, PeerId};
use sha2::Sha256;

use super::config::{Config, Secret};
use super::identity::incarnation;
use super::secrets::Secrets;
use super::wire::{
    ADDRESSES_MAX, ClientHello, ClientWelcome, Facts, Greeting, Hello, Nonce, PROTOCOL_VERSION,
    Proof, Refusal, Welcome,
};
use super::{Class, NodeId, address, frame};

/// The oldest version that is still spoken.
pub const OLDEST_VERSION: u16 = 1;

/// The longest cluster name, in bytes.
pub const CLUSTER_NAME_MAX: usize = 128;

const ADDRESS_BYTES_MAX: usize = 160;

/// What this node judges others by, and tells them about itself. A snapshot: the hub makes another
/// one when something changes.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Who this node is.
    pub peer: PeerId,
    /// What it tells.
    pub facts: Facts,
    /// The secrets of the cluster and of its tools.
    pub secret: Option<Secrets>,
    /// If not empty: only these may talk.
    pub allowed: Arc<BTreeSet<PeerId>>,
    /// Incarnations that were removed from the cluster. Membership, which adds them, bounds their number.
    pub quarantined: Arc<BTreeSet<NodeId>>,
    /// It is about to stop and opens no more lanes.
    pub stopping: bool,
}

/// Which opening a proof belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// Who opens.
    pub opener: PeerId,
    /// Who accepts.
    pub acceptor: PeerId,
    /// The opener's nonce.
    pub opener_nonce: &'a Nonce,
    /// The acceptor's nonce.
    pub acceptor_nonce: &'a Nonce,
    /// What the lane carries.
    pub class: Class,
    /// Which of the lane's substreams this is.
    pub generation: u64,
}

/// Who proves. What one role says is no proof in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens the lane.
    Opener,
    /// Accepts it.
    Acceptor,
}

/// Which call of a client a proof belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Who calls.
    pub client: PeerId,
    /// Whom.
    pub node: PeerId,
    /// The client's nonce.
    pub client_nonce: &'a Nonce,
    /// The node's nonce.
    pub node_nonce: &'a Nonce,
}

/// Who proves in a call. Neither's proof is one of the other, nor of either [`Role`] on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// Calls.
    Client,
    /// Is called.
    Node,
}

impl Standing {
    /// This node, by its settings and identity; tells where it is dialled
    /// (at most [`ADDRESSES_MAX`]).
    #[must_use]
    pub fn new(
        config: &Config,
        identity: &super::identity::Identity,
        addresses: &[Multiaddr],
    ) -> Self {
        let NodeId { peer, incarnation } = identity.node_id();
        let addresses = addresses.iter().map(ToString::to_string);
        let facts = Facts {
            version: PROTOCOL_VERSION,
            cluster: config.cluster_name.clone(),
            cluster_id: None,
            incarnation,
            incarnation_nonce: Some(identity.incarnation_nonce()),
            boot: identity.boot().map(str::to_owned),
            lock: identity.lock(),
            addresses: addresses
                .filter(|address| address.len() <= ADDRESS_BYTES_MAX)
                .take(ADDRESSES_MAX)
                .collect(),
            message_bytes_max: u32::try_from(config.limits.message_bytes_max).unwrap_or(u32::MAX),
            frame_bytes_max: u32::try_from(frame::bytes_max(&config.limits)).ok(),
        };
        Self {
            peer,
            facts,
            secret: config.secret.clone(),
            allowed: Arc::new(config.allowed_peers.iter().copied().collect()),
            quarantined: Arc::default(),
            stopping: false,
        }
    }

    /// The proof with which this node opens a lane: by the first secret of the cluster; none without
    /// one.
    #[must_use]
    pub fn prove(&self, role: Role, opening: &Opening<'_>) -> Option<Proof> {
        prove_by(self.secret.as_ref()?.cluster().first(), role, opening)
    }

    /// The secret of the cluster, if there is any, by which a peer has proven itself on a lane.
    fn proven(
        &self,
        role: Role,
        opening: &Opening<'_>,
        proof: Option<&Proof>,
    ) -> Result<Option<Secret>, Refusal> {
        let secrets = self.secret.iter().flat_map(Secrets::cluster);
        self.common_secret(secrets, |secret| mac(secret, role, opening), proof)
    }

    /// The one of `secrets` by which the other side has proven itself; `None` if neither side has any.
    fn common_secret<'a>(
        &self,
        mut secrets: impl Iterator<Item = &'a Secret>,
        mac: impl Fn(&Secret) -> Hmac<Sha256>,
        proof: Option<&Proof>,
    ) -> Result<Option<Secret>, Refusal> {
        match (&self.secret, proof) {
            (None, None) => Ok(None),
            (Some(_), Some(proof)) => secrets
                .find(|secret| mac(secret).verify_slice(&proof.0).is_ok()) // in constant time
                .map(|secret| Some(secret.clone()))
                .ok_or(Refusal::Secret),
            _ => Err(Refusal::Secret),
        }
    }

    /// Judges what an opener says, in an order that tells nothing to who has not proven itself.
    ///
    /// # Errors
    /// The [`Refusal`] to answer with.
    pub fn judge_hello(
        &self,
        from: PeerId,
        nonce: &Nonce,
        hello: &Hello,
    ) -> Result<Opener, Refusal> {
        check_version(hello.facts.version)?;
        let opening = Opening {
            opener: from,
            acceptor: self.peer,
            opener_nonce: &hello.nonce,
            acceptor_nonce: nonce,
            class: hello.class,
            generation: hello.generation,
        };
        let secret = self.proven(Role::Opener, &opening, hello.proof.as_ref())?;
        let node = self.judge_node(from, &hello.facts)?;
        let current = self.facts.incarnation;
        if hello.to.is_some_and(|to| to != current) {
            return Err(Refusal::WrongIncarnation { current });
        }
        if self.stopping {
            return Err(Refusal::Stopping);
        }
        Ok(Opener { node, secret })
    }

    /// Judges what an acceptor answers to `hello`, which this node has said after `greeting`.
    ///
    /// # Errors
    /// The [`Refusal`] that this node would give the other: the lane must not be used.
    pub fn judge_welcome(
        &self,
        from: PeerId,
        greeting: &Greeting,
        hello: &Hello,
        welcome: &Welcome,
    ) -> Result<NodeId, Refusal> {
        check_version(welcome.facts.version)?;
        let opening = Opening {
            opener: self.peer,
            acceptor: from,
            opener_nonce: &hello.nonce,
            acceptor_nonce: &greeting.nonce,
            class: hello.class,
            generation: hello.generation,
        };
        self.proven(Role::Acceptor, &opening, welcome.proof.as_ref())?;
        let node = self.judge_node(from, &welcome.facts)?;
        if hello.to.is_some_and(|to| to != node.incarnation) {
            return Err(Refusal::WrongIncarnation { current: node.incarnation });
        }
        let (accepted, first) = (welcome.accepted, hello.first_unacknowledged);
        if accepted.saturating_add(1) < first {
            return Err(Refusal::Gap { accepted, first });
        }
        Ok(node)
    }

    /// The proof with which this process calls: by the secret that it dials with; none without one.
    #[must_use]
    pub fn prove_call(&self, party: Party, call: &Call<'_>) -> Option<Proof> {
        let (_, secret) = self.secret.as_ref()?.dialling()?;
        prove_call_by(Some(secret), party, call)
    }

    /// The secret of the cluster or of its tools by which a peer has proven itself in a call.
    fn proven_call(
        &self,
        party: Party,
        call: &Call<'_>,
        proof: Option<&Proof>,
    ) -> Result<Option<Secret>, Refusal> {
        let secrets = self.secret.iter().flat_map(Secrets::accepted).map(|(_, secret)| secret);
        self.common_secret(secrets, |secret| mac_of_call(secret, party, call), proof)
    }

    /// Judges what a client says, as [`judge_hello`](Self::judge_hello) judges a node. Returns the
    /// secret by which the client has proven itself, for the answer.
    ///
    /// # Errors
    /// The [`Refusal`] to answer with.
    pub fn judge_client(
        &self,
        from: PeerId,
        nonce: &Nonce,
        hello: &ClientHello,
    ) -> Result<Option<Secret>, Refusal> {
        check_version(hello.version)?;
        let call =
            Call { client: from, node: self.peer, client_nonce: &hello.nonce, node_nonce: nonce };
        let secret = self.proven_call(Party::Client, &call, hello.proof.as_ref())?;
        self.judge_peer(from, &hello.cluster)?;
        if self.stopping { Err(Refusal::Stopping) } else { Ok(secret) }
    }

    /// Judges what a node answers to `hello`, which this client has said after `greeting`.
    ///
    /// # Errors
    /// The [`Refusal`] that a node would get: nothing must be said to it.
    pub fn judge_client_welcome(
        &self,
        node: PeerId,
        greeting: &Greeting,
        hello: &ClientHello,
        welcome: &ClientWelcome,
    ) -> Result<(), Refusal> {
        check_version(welcome.version)?;
        let call = Call {
            client: self.peer,
            node,
            client_nonce: &hello.nonce,
            node_nonce: &greeting.nonce,
        };
        self.proven_call(Party::Node, &call, welcome.proof.as_ref())?;
        self.judge_peer(node, &welcome.cluster)
    }

    fn judge_node(&self, peer: PeerId, facts: &Facts) -> Result<NodeId, Refusal> {
        self.judge_peer(peer, &facts.cluster)?;
        let own = facts.incarnation_nonce.map(|nonce| incarnation(&peer, &nonce));
        if own != Some(facts.incarnation) {
            return Err(Refusal::FalseIncarnation);
        }
        let node = NodeId { peer, incarnation: facts.incarnation };
        if self.quarantined.contains(&node) { Err(Refusal::Quarantined) } else { Ok(node) }
    }

    fn judge_peer(&self, peer: PeerId, cluster: &str) -> Result<(), Refusal> {
        if cluster != self.facts.cluster {
            return Err(Refusal::ClusterName { theirs: self.facts.cluster.clone() });
        }
        if !self.allowed.is_empty() && !self.allowed.contains(&peer) {
            return Err(Refusal::NotAllowed);
        }
        Ok(())
    }
}

/// A node that may open a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// The node.
    pub node: NodeId,
    /// The secret by which it has proven itself; the answer is proven by the same.
    pub secret: Option<Secret>,
}

/// The proof of that role by one secret; none without one.
#[must_use]
pub fn prove_by(secret: Option<&Secret>, role: Role, opening: &Opening<'_>) -> Option<Proof> {
    Some(Proof(mac(secret?, role, opening).finalize().into_bytes().into()))
}

/// The proof of that party by one secret; none without one.
#[must_use]
pub fn prove_call_by(secret: Option<&Secret>, party: Party, call: &Call<'_>) -> Option<Proof> {
    Some(Proof(mac_of_call(secret?, party, call).finalize().into_bytes().into()))
}

/// Whether this release speaks that version.
///
/// # Errors
/// [`Refusal::Version`] if not.
pub const fn check_version(version: u16) -> Result<(), Refusal> {
    if version < OLDEST_VERSION || version > PROTOCOL_VERSION {
        return Err(Refusal::Version { theirs: PROTOCOL_VERSION });
    }
    Ok(())
}

fn mac(secret: &Secret, role: Role, opening: &Opening<'_>) -> Hmac<Sha256> {
    let label = match role {
        Role::Opener => b"ostraca/1/opener\0\0",
        Role::Acceptor => b"ostraca/1/acceptor",
    };
    let peers = [opening.opener, opening.acceptor];
    let mut mac = begun(secret, label, peers, [opening.opener_nonce, opening.acceptor_nonce]);
    mac.update(&[opening.class as u8]);
    mac.update(&opening.generation.to_be_bytes());
    mac
}

fn mac_of_call(secret: &Secret, party: Party, call: &Call<'_>) -> Hmac<Sha256> {
    let label = match party {
        Party::Client => b"ostraca/1/client\0\0",
        Party::Node => b"ostraca/1/called\0\0",
    };
    begun(secret, label, [call.client, call.node], [call.client_nonce, call.node_nonce])
}

/// Labels are of one length, and every part that may vary in length stands behind its length, so
/// that no two openings or calls read alike.
fn begun(
    secret: &Secret,
    label: &[u8; 18],
    peers: [PeerId; 2],
    nonces: [&Nonce; 2],
) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes any length");
    mac.update(label);
    for peer in peers {
        let bytes = peer.to_bytes();
        mac.update(&(bytes.len() as u64).to_be_bytes());
        mac.update(&bytes);
    }
    nonces.iter().for_each(|nonce| mac.update(&nonce.0));
    mac
}

/// Says whether these settings may be started with.
///
/// # Errors
/// [`ConfigError`], whose sentences say what to set.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    let len = config.cluster_name.len();
    if len == 0 || len > CLUSTER_NAME_MAX {
        return Err(ConfigError::ClusterName { len });
    }
    let in_memory = config.secret.as_ref();
    let has_secret = in_memory.is_some_and(|secrets| !secrets.cluster().is_empty())
        || config.secret_file.is_some();
    let has_clients_secret = in_memory.is_some_and(|secrets| !secrets.client().is_empty())
        || config.client_secret_file.is_some();
    if has_clients_secret && !has_secret && !config.listen.is_empty() {
        return Err(ConfigError::ClientSecretAlone);
    }
    if has_clients_secret && config.private_network {
        return Err(ConfigError::PrivateWithClientSecret);
    }
    if config.private_network && !has_secret {
        return Err(ConfigError::PrivateWithoutSecret);
    }
    let closed = has_secret || !config.allowed_peers.is_empty() || config.insecure;
    match config.listen.iter().find(|listen| !address::is_loopback(listen)) {
        Some(open) if !closed => Err(ConfigError::Open { listen: open.clone() }),
        _ => Ok(()),
    }
}

/// Checks that the secret's file, if there is one, has been read: without it anybody could join.
///
/// # Errors
/// [`ConfigError::UnreadSecret`].
pub const fn check_secret_is_read(config: &Config) -> Result<(), ConfigError> {
    let is_read = config.secret_file.is_none() && config.client_secret_file.is_none();
    if is_read { Ok(()) } else { Err(ConfigError::UnreadSecret) }
}

/// Settings that a node does not start with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Anybody could join.
    #[error(
        "listening on {listen} without a secret would let anybody who reaches it join the \
         cluster. Make a secret with `ostraca secret --out cluster.secret` and name that file as \
         net.cluster-secret-file on every node; or list the nodes in net.allowed-peers; or listen \
         on 127.0.0.1; or, if the network is closed by other means, set net.insecure = true"
    )]
    Open {
        /// The first address that is not loopback.
        listen: Multiaddr,
    },
    /// Who starts the transport by hand reads the secret first.
    #[error("the files of secrets are not read yet: call Config::read_secret first")]
    UnreadSecret,
    /// A private network is one that shares a secret.
    #[error(
        "net.private-network needs a secret to be private by: set net.cluster-secret-file, or \
         drop it"
    )]
    PrivateWithoutSecret,
    /// Without a secret of the cluster anybody may join, so that one for tools protects nothing.
    #[error(
        "net.client-secret-file is set on a node without a secret of the cluster: set \
         net.cluster-secret-file as well"
    )]
    ClientSecretAlone,
    /// A peer without a secret of the cluster cannot enter its private network.
    #[error(
        "net.client-secret-file has no use with net.private-network, which tools enter with the \
         cluster's secret: drop one of them"
    )]
    PrivateWithClientSecret,
    /// The name is missing or too long.
    #[error("net.cluster-name has {len} bytes: give it 1 to {CLUSTER_NAME_MAX}")]
    ClusterName {
        /// Its length, in bytes.
        len: usize,
    },
}
