//! Admission: decides which peers may open a lane or call as a client.
//!
//! The encrypted connection has already authenticated the peer id. This module checks that the peer
//! proves the cluster secret, names the same cluster, is on the allow-list if there is one, and
//! addresses the current incarnation of this node. It does no I/O: [`handshake`](super::handshake)
//! passes in the messages and sends the verdict. A judgement changes no state and neither counts
//! nor logs. [`check`] applies the same policy to the configuration at the start.

use std::collections::BTreeSet;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use libp2p::{Multiaddr, PeerId};
use sha2::Sha256;

use super::config::{NetConfig, Secret};
use super::identity::incarnation;
use super::secrets::Secrets;
use super::wire::{
    ADDRESSES_MAX, ClientHello, ClientWelcome, Greeting, Hello, LaneRefusal, NodeInfo, Nonce,
    PROTOCOL_VERSION, Proof, Welcome,
};
use super::{NodeId, TrafficClass, address, frame};

/// Oldest protocol version that this release accepts.
pub const OLDEST_VERSION: u16 = 1;

/// Maximum length of a cluster name, in bytes.
pub const CLUSTER_NAME_MAX: usize = 128;

/// Maximum length of an address that is told to peers, in bytes. Longer ones are left out.
const ADDRESS_BYTES_MAX: usize = 160;

/// Admission state: the identity, secrets and lists by which this node judges peers, and the facts
/// that it tells them. An immutable snapshot; the connection manager publishes a new one when
/// something changes.
#[derive(Clone, Debug)]
pub struct AdmissionState {
    /// Peer id of this node.
    pub peer: PeerId,
    /// Facts that this node tells peers about itself.
    pub facts: NodeInfo,
    /// Secrets of the cluster and of its clients. `None`: no proof is asked for, and a peer that
    /// sends one is refused. Without a secret among them, every peer is refused.
    pub secret: Option<Secrets>,
    /// Allow-list. If it is not empty, only these peers are admitted, nodes as well as clients.
    pub allowed: Arc<BTreeSet<PeerId>>,
    /// Incarnations that were removed from the cluster and must not return. Membership adds them
    /// and bounds their number.
    pub quarantined: Arc<BTreeSet<NodeId>>,
    /// Whether this node is shutting down and admits no further lanes and clients.
    pub stopping: bool,
}

/// The opening of a lane that a proof is bound to
/// (docs/protocol/transport.md#proofs-bind-roles-and-nonces). Both nonces are part of it, so that a
/// recorded proof cannot be replayed.
#[derive(Clone, Copy, Debug)]
pub struct LaneProofContext<'a> {
    /// Peer that opens the lane.
    pub opener: PeerId,
    /// Peer that accepts the lane.
    pub acceptor: PeerId,
    /// Nonce drawn by the opener.
    pub opener_nonce: &'a Nonce,
    /// Nonce drawn by the acceptor.
    pub acceptor_nonce: &'a Nonce,
    /// Traffic class of the lane.
    pub class: TrafficClass,
    /// Generation of the substream within the lane.
    pub generation: u64,
}

/// Role of the prover on a lane. The role is part of the proof, so that a peer cannot reflect the
/// other side's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProverRole {
    /// The peer that opens the lane.
    Opener,
    /// The peer that accepts it.
    Acceptor,
}

/// The call of a client that a proof is bound to.
#[derive(Clone, Copy, Debug)]
pub struct ClientProofContext<'a> {
    /// Peer id of the client.
    pub client: PeerId,
    /// Peer id of the called node.
    pub node: PeerId,
    /// Nonce drawn by the client.
    pub client_nonce: &'a Nonce,
    /// Nonce drawn by the node.
    pub node_nonce: &'a Nonce,
}

/// Role of the prover in a client's call. The labels differ from each other and from those of both
/// [`ProverRole`]s, so that a proof for a call never opens a lane
/// (docs/protocol/transport.md#client-secrets-open-no-lane).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProverRole {
    /// The client proves itself to the node.
    Client,
    /// The called node proves itself to the client.
    Node,
}

impl AdmissionState {
    /// Builds the state from the settings and the identity. `addresses` are those where this node
    /// is dialled; the first [`ADDRESSES_MAX`] of at most 160 bytes are told to peers, which may be
    /// none. The node is not stopping, has no cluster id and quarantines nobody yet. The settings
    /// must have been checked, and their files of secrets read; neither is checked here.
    #[must_use]
    pub fn new(
        config: &NetConfig,
        identity: &super::identity::Identity,
        addresses: &[Multiaddr],
    ) -> Self {
        let NodeId { peer, incarnation } = identity.node_id();
        let addresses = addresses.iter().map(ToString::to_string);
        let facts = NodeInfo {
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

    /// Computes this node's proof for a lane in the given role, with the first secret of the
    /// cluster. `None` if the node has no secret of the cluster. An acceptor proves with the
    /// opener's secret instead ([`prove_by`]).
    #[must_use]
    pub fn prove(&self, role: ProverRole, opening: &LaneProofContext<'_>) -> Option<Proof> {
        prove_by(self.secret.as_ref()?.cluster().first(), role, opening)
    }

    /// Verifies a peer's proof on a lane, which must be made with a secret of the cluster. Returns
    /// that secret; see [`common_secret`](Self::common_secret) for nodes and peers without one.
    fn proven(
        &self,
        role: ProverRole,
        opening: &LaneProofContext<'_>,
        proof: Option<&Proof>,
    ) -> Result<Option<Secret>, LaneRefusal> {
        let secrets = self.secret.iter().flat_map(Secrets::cluster);
        self.common_secret(secrets, |secret| mac(secret, role, opening), proof)
    }

    /// Returns the first of `secrets` that the proof was made with; `Ok(None)` if
    /// [`secret`](Self::secret) is `None` and the peer has sent no proof. Fails with
    /// [`LaneRefusal::Secret`] if only one of both is given, and if no secret matches, also because
    /// `secrets` is empty. Compares in constant time.
    fn common_secret<'a>(
        &self,
        mut secrets: impl Iterator<Item = &'a Secret>,
        mac: impl Fn(&Secret) -> Hmac<Sha256>,
        proof: Option<&Proof>,
    ) -> Result<Option<Secret>, LaneRefusal> {
        match (&self.secret, proof) {
            (None, None) => Ok(None),
            (Some(_), Some(proof)) => secrets
                .find(|secret| mac(secret).verify_slice(&proof.0).is_ok()) // in constant time
                .map(|secret| Some(secret.clone()))
                .ok_or(LaneRefusal::Secret),
            _ => Err(LaneRefusal::Secret),
        }
    }

    /// Judges an opener's `Hello`; `nonce` is the one of this node's greeting. The checks are
    /// ordered so that a peer without a valid proof learns at most the protocol version
    /// (docs/protocol/transport.md#verdicts-tell-strangers-nothing): version, proof, cluster name,
    /// allow-list, incarnation, quarantine, the incarnation that it wants to reach (none: any), and
    /// last whether this node is stopping. The connection manager judges afterwards whether another
    /// peer has the incarnation, and whether a later one of the peer is known.
    ///
    /// # Errors
    /// The [`LaneRefusal`] to send to the opener. `WrongIncarnation` tells this node's own one.
    pub fn judge_hello(
        &self,
        from: PeerId,
        nonce: &Nonce,
        hello: &Hello,
    ) -> Result<Opener, LaneRefusal> {
        check_version(hello.facts.version)?;
        let opening = LaneProofContext {
            opener: from,
            acceptor: self.peer,
            opener_nonce: &hello.nonce,
            acceptor_nonce: nonce,
            class: hello.class,
            generation: hello.generation,
        };
        let secret = self.proven(ProverRole::Opener, &opening, hello.proof.as_ref())?;
        let node = self.judge_node(from, &hello.facts)?;
        // Messages for an earlier incarnation must not reach this one, which lacks that state
        // (docs/protocol/transport.md#lanes-are-for-one-incarnation).
        let current = self.facts.incarnation;
        if hello.to.is_some_and(|to| to != current) {
            return Err(LaneRefusal::WrongIncarnation { current });
        }
        if self.stopping {
            return Err(LaneRefusal::Stopping);
        }
        Ok(Opener { node, secret })
    }

    /// Judges the acceptor's `Welcome` in answer to this node's `hello`, which followed `greeting`,
    /// by the same checks in the same order as an opener's hello, up to the quarantine. Then it is
    /// refused if the acceptor is not the incarnation that the hello names, if any, and last if it
    /// lacks messages that this node no longer buffers ([`LaneRefusal::Gap`]). Whether this node is
    /// stopping does not count, nor which of the cluster's secrets the proof was made with.
    ///
    /// # Errors
    /// The [`LaneRefusal`] that describes the problem. It is not sent; the lane must not be used.
    pub fn judge_welcome(
        &self,
        from: PeerId,
        greeting: &Greeting,
        hello: &Hello,
        welcome: &Welcome,
    ) -> Result<NodeId, LaneRefusal> {
        check_version(welcome.facts.version)?;
        let opening = LaneProofContext {
            opener: self.peer,
            acceptor: from,
            opener_nonce: &hello.nonce,
            acceptor_nonce: &greeting.nonce,
            class: hello.class,
            generation: hello.generation,
        };
        self.proven(ProverRole::Acceptor, &opening, welcome.proof.as_ref())?;
        let node = self.judge_node(from, &welcome.facts)?;
        if hello.to.is_some_and(|to| to != node.incarnation) {
            return Err(LaneRefusal::WrongIncarnation { current: node.incarnation });
        }
        let (accepted, first) = (welcome.accepted, hello.first_unacknowledged);
        if accepted.saturating_add(1) < first {
            return Err(LaneRefusal::Gap { accepted, first });
        }
        Ok(node)
    }

    /// Computes this process's proof for a client's call, with the secret that it dials with: the
    /// first of the cluster or, in a process without one, the first of the clients. `None` without
    /// a secret. A node answers with the client's secret instead ([`prove_call_by`]).
    #[must_use]
    pub fn prove_call(
        &self,
        party: ClientProverRole,
        call: &ClientProofContext<'_>,
    ) -> Option<Proof> {
        let (_, secret) = self.secret.as_ref()?.dialling()?;
        prove_call_by(Some(secret), party, call)
    }

    /// Verifies a peer's proof in a call. Returns the matching secret, of the cluster or of its
    /// clients, as [`common_secret`](Self::common_secret) does.
    fn proven_call(
        &self,
        party: ClientProverRole,
        call: &ClientProofContext<'_>,
        proof: Option<&Proof>,
    ) -> Result<Option<Secret>, LaneRefusal> {
        let secrets = self.secret.iter().flat_map(Secrets::accepted).map(|(_, secret)| secret);
        self.common_secret(secrets, |secret| mac_of_call(secret, party, call), proof)
    }

    /// Judges a client's hello, in this order: version, proof, cluster name, allow-list, and last
    /// whether this node is stopping. Returns the secret of the client's proof, with which the
    /// answer must be proven; `None` if neither side has a secret. Whether there is room for the
    /// client, and whether its key is that of a known node, is judged later. The quarantine, which
    /// is about incarnations, does not count.
    ///
    /// # Errors
    /// The [`LaneRefusal`] to send to the client.
    pub fn judge_client(
        &self,
        from: PeerId,
        nonce: &Nonce,
        hello: &ClientHello,
    ) -> Result<Option<Secret>, LaneRefusal> {
        check_version(hello.version)?;
        let call = ClientProofContext {
            client: from,
            node: self.peer,
            client_nonce: &hello.nonce,
            node_nonce: nonce,
        };
        let secret = self.proven_call(ClientProverRole::Client, &call, hello.proof.as_ref())?;
        self.judge_peer(from, &hello.cluster)?;
        if self.stopping { Err(LaneRefusal::Stopping) } else { Ok(secret) }
    }

    /// Judges a node's answer to this client's `hello`, which followed `greeting`, in this order:
    /// version, proof, cluster name and the client's own allow-list.
    ///
    /// # Errors
    /// The [`LaneRefusal`] that describes the problem. It is not sent; the stream must not be used.
    pub fn judge_client_welcome(
        &self,
        node: PeerId,
        greeting: &Greeting,
        hello: &ClientHello,
        welcome: &ClientWelcome,
    ) -> Result<(), LaneRefusal> {
        check_version(welcome.version)?;
        let call = ClientProofContext {
            client: self.peer,
            node,
            client_nonce: &hello.nonce,
            node_nonce: &greeting.nonce,
        };
        self.proven_call(ClientProverRole::Node, &call, welcome.proof.as_ref())?;
        self.judge_peer(node, &welcome.cluster)
    }

    /// Judges the facts of a node that has proven the secret: first as
    /// [`judge_peer`](Self::judge_peer) does; then its incarnation must be the hash of its peer id
    /// and the nonce that it tells ([`LaneRefusal::FalseIncarnation`], also without a nonce), and
    /// last must not be quarantined ([`LaneRefusal::Quarantined`]).
    fn judge_node(&self, peer: PeerId, facts: &NodeInfo) -> Result<NodeId, LaneRefusal> {
        self.judge_peer(peer, &facts.cluster)?;
        let own = facts.incarnation_nonce.map(|nonce| incarnation(&peer, &nonce));
        if own != Some(facts.incarnation) {
            return Err(LaneRefusal::FalseIncarnation);
        }
        let node = NodeId { peer, incarnation: facts.incarnation };
        if self.quarantined.contains(&node) { Err(LaneRefusal::Quarantined) } else { Ok(node) }
    }

    /// Judges a node or client that has proven the secret: it must name this cluster
    /// ([`LaneRefusal::ClusterName`], which tells the peer this node's) and then be on the
    /// allow-list, unless that is empty ([`LaneRefusal::NotAllowed`]).
    fn judge_peer(&self, peer: PeerId, cluster: &str) -> Result<(), LaneRefusal> {
        if cluster != self.facts.cluster {
            return Err(LaneRefusal::ClusterName { theirs: self.facts.cluster.clone() });
        }
        if !self.allowed.is_empty() && !self.allowed.contains(&peer) {
            return Err(LaneRefusal::NotAllowed);
        }
        Ok(())
    }
}

/// A node that may open a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// The node as it has identified itself.
    pub node: NodeId,
    /// The secret of its proof; `None` if neither side has one. The answer is proven with the same
    /// one, because during a replacement the two sides prefer different secrets
    /// (docs/protocol/transport.md#answer-by-the-secret-that-was-used).
    pub secret: Option<Secret>,
}

/// Computes a proof for a lane with one secret; `None` without a secret.
#[must_use]
pub fn prove_by(
    secret: Option<&Secret>,
    role: ProverRole,
    opening: &LaneProofContext<'_>,
) -> Option<Proof> {
    Some(Proof(mac(secret?, role, opening).finalize().into_bytes().into()))
}

/// Computes a proof for a call with one secret; `None` without a secret.
#[must_use]
pub fn prove_call_by(
    secret: Option<&Secret>,
    party: ClientProverRole,
    call: &ClientProofContext<'_>,
) -> Option<Proof> {
    Some(Proof(mac_of_call(secret?, party, call).finalize().into_bytes().into()))
}

/// Checks that this release supports the protocol version: [`OLDEST_VERSION`] to
/// [`PROTOCOL_VERSION`].
///
/// # Errors
/// [`LaneRefusal::Version`] if it does not, also if the version is a later one.
pub const fn check_version(version: u16) -> Result<(), LaneRefusal> {
    if version < OLDEST_VERSION || version > PROTOCOL_VERSION {
        return Err(LaneRefusal::Version { theirs: PROTOCOL_VERSION });
    }
    Ok(())
}

/// The MAC of a lane's proof: role, peers, nonces, class and generation.
fn mac(secret: &Secret, role: ProverRole, opening: &LaneProofContext<'_>) -> Hmac<Sha256> {
    let label = match role {
        ProverRole::Opener => b"ostraca/1/opener\0\0",
        ProverRole::Acceptor => b"ostraca/1/acceptor",
    };
    let peers = [opening.opener, opening.acceptor];
    let mut mac = begun(secret, label, peers, [opening.opener_nonce, opening.acceptor_nonce]);
    mac.update(&[opening.class as u8]);
    mac.update(&opening.generation.to_be_bytes());
    mac
}

/// The MAC of a call's proof: role, peers and nonces.
fn mac_of_call(
    secret: &Secret,
    party: ClientProverRole,
    call: &ClientProofContext<'_>,
) -> Hmac<Sha256> {
    let label = match party {
        ClientProverRole::Client => b"ostraca/1/client\0\0",
        ClientProverRole::Node => b"ostraca/1/called\0\0",
    };
    begun(secret, label, [call.client, call.node], [call.client_nonce, call.node_nonce])
}

/// Starts a MAC with label, peers and nonces, the opener or client first. All labels have the same
/// length and every part of variable length is preceded by its length, so that two different
/// openings or calls never have the same encoding.
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

/// Checks that a node may start with these settings. No open listener without a secret
/// (docs/protocol/transport.md#no-open-listener-without-a-secret): otherwise any peer that reaches
/// the port could join. An allow-list or `insecure` replaces the secret. A file that is set counts
/// as a secret, although it may not be read yet. An empty list of listen addresses is accepted
/// here.
///
/// # Errors
/// The first [`NetConfigError`] that applies, in this order: `ClusterName`; `ClientSecretAlone`,
/// not for a process that does not listen, which is a client; `PrivateWithClientSecret`;
/// `PrivateWithoutSecret`; `Open`.
pub fn check(config: &NetConfig) -> Result<(), NetConfigError> {
    let len = config.cluster_name.len();
    if len == 0 || len > CLUSTER_NAME_MAX {
        return Err(NetConfigError::ClusterName { len });
    }
    let in_memory = config.secret.as_ref();
    let has_secret = in_memory.is_some_and(|secrets| !secrets.cluster().is_empty())
        || config.secret_file.is_some();
    let has_clients_secret = in_memory.is_some_and(|secrets| !secrets.client().is_empty())
        || config.client_secret_file.is_some();
    if has_clients_secret && !has_secret && !config.listen.is_empty() {
        return Err(NetConfigError::ClientSecretAlone);
    }
    if has_clients_secret && config.private_network {
        return Err(NetConfigError::PrivateWithClientSecret);
    }
    if config.private_network && !has_secret {
        return Err(NetConfigError::PrivateWithoutSecret);
    }
    let closed = has_secret || !config.allowed_peers.is_empty() || config.insecure;
    match config.listen.iter().find(|listen| !address::is_loopback(listen)) {
        Some(open) if !closed => Err(NetConfigError::Open { listen: open.clone() }),
        _ => Ok(()),
    }
}

/// Checks that the files of secrets were read: without the secret, any peer could join. Reading
/// them unsets the settings of the files.
///
/// # Errors
/// [`NetConfigError::UnreadSecret`] if a file of secrets is set but was not read.
pub const fn check_secret_is_read(config: &NetConfig) -> Result<(), NetConfigError> {
    let is_read = config.secret_file.is_none() && config.client_secret_file.is_none();
    if is_read { Ok(()) } else { Err(NetConfigError::UnreadSecret) }
}

/// Settings that a node must not start with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetConfigError {
    /// The node would listen beyond loopback while every peer could join.
    #[error(
        "listening on {listen} without a secret would let anybody who reaches it join the \
         cluster. Make a secret with `ostraca secret --out cluster.secret` and name that file as \
         net.cluster-secret-file on every node; or list the nodes in net.allowed-peers; or listen \
         on 127.0.0.1; or, if the network is closed by other means, set net.insecure = true"
    )]
    Open {
        /// The first listen address that is not loopback.
        listen: Multiaddr,
    },
    /// The transport was started directly, without reading the files of secrets first.
    #[error("the files of secrets are not read yet: call Config::read_secret first")]
    UnreadSecret,
    /// A private network is set without the secret that would be its key.
    #[error(
        "net.private-network needs a secret to be private by: set net.cluster-secret-file, or \
         drop it"
    )]
    PrivateWithoutSecret,
    /// The clients have a secret but the cluster has none: any peer could join, so the clients'
    /// secret would protect nothing.
    #[error(
        "net.client-secret-file is set on a node without a secret of the cluster: set \
         net.cluster-secret-file as well"
    )]
    ClientSecretAlone,
    /// Clients have a secret of their own in a private network, which only holders of the cluster's
    /// secret can enter.
    #[error(
        "net.client-secret-file has no use with net.private-network, which tools enter with the \
         cluster's secret: drop one of them"
    )]
    PrivateWithClientSecret,
    /// The cluster name is empty or too long.
    #[error("net.cluster-name has {len} bytes: give it 1 to {CLUSTER_NAME_MAX}")]
    ClusterName {
        /// Length of the name, in bytes.
        len: usize,
    },
}
