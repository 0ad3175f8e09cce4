//! [`Dialler`]: carries out membership's orders to dial peers, and resolves host names.
//!
//! Addresses of members and seeds contain no peer id; the answering node proves its identity. If a
//! name resolves to several addresses, each is dialled, and an answer is reported under the address
//! that membership knows. Names of members are resolved again after failures, because a name may be
//! registered later or change its address.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::id::{NodeId, ReplicaId};
use tokio::runtime::Handle;

use super::super::routes;
use super::machine::ControlInbox;
use crate::cluster::member::{Address, InvalidAddress};
use crate::cluster::membership::port::MembershipInput;
use crate::net::address::{self, ResolveError};
use crate::net::handle::Net;

/// Maximum number of resolved addresses that are being dialled. Beyond it the oldest entry is
/// removed, and an answer from there is reported under the resolved address instead of the name.
const NAMES_MAX: usize = 4_096;

/// Time for which a refusal explains that seeds do not answer: the interval of the transport's
/// warning.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// First and longest pause before a member's name that could not be resolved is tried again; it
/// doubles in between.
const ASKED_AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Resolves a name: the system's resolver, or a test's function.
type Resolve = dyn Fn(Multiaddr) -> ResolveFuture + Send + Sync;
type ResolveFuture = BoxFuture<'static, Result<Vec<Multiaddr>, ResolveError>>;

/// Dials peers for membership. Clones share their state. No method waits for the network or for a
/// name; orders to the transport are only queued.
///
/// Tasks that wait for the resolver hold only weak references, because the transport ends when the
/// last [`Net`] is dropped, and a name may never be resolved.
#[derive(Clone)]
pub(crate) struct Dialler(Arc<DialState>);

struct DialState {
    net: Net,
    inbox: ControlInbox,
    runtime: Handle,
    resolve: Arc<Resolve>,
    table: Mutex<DialTable>,
}

/// A member whose link is kept up. There is one entry for each peer, that of the incarnation that
/// was kept last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeptPeer {
    incarnation: ReplicaId,
    /// The address, if it does not begin with an IP address; `None` as well if it is malformed.
    name: Option<Multiaddr>,
    /// Whether a task is resolving the name, its pauses included, or the name is of a form that
    /// cannot be resolved. While this is set, no task is started.
    is_asked: bool,
}

#[derive(Default)]
struct DialTable {
    kept: BTreeMap<PeerId, KeptPeer>, // ≤ members
    /// Each resolved address that is dialled, and the one that membership ordered to dial; the
    /// oldest first; ≤ [`NAMES_MAX`].
    names: VecDeque<(Multiaddr, Address)>,
    /// Time of the last refusal with a reason.
    refused_at: Option<Instant>,
}

impl Dialler {
    /// Creates the dialler, which resolves names on the tokio runtime of the caller. Panics outside
    /// of one.
    pub(crate) fn new(net: Net, inbox: ControlInbox) -> Self {
        let resolve = |name: Multiaddr| async move { address::resolve(&name).await }.boxed();
        Self::resolving_by(Arc::new(resolve), net, inbox)
    }

    /// Like [`new`](Self::new), with another resolver.
    fn resolving_by(resolve: Arc<Resolve>, net: Net, inbox: ControlInbox) -> Self {
        let (runtime, table) = (Handle::current(), Mutex::default());
        Self(Arc::new(DialState { net, inbox, runtime, resolve, table }))
    }

    /// Dials an address once, without expecting a certain peer. An address that does not begin with
    /// an IP address is resolved first, by a task of its own for each call. A malformed address is
    /// reported to membership as [`MembershipInput::DialRefused`] within the call.
    pub(crate) fn dial(&self, address: Address) {
        match address.as_str().parse::<Multiaddr>() {
            Ok(at) if address::host(&at).is_some() => {
                self.lock().take(&at); // an earlier dial by name may never have an outcome
                self.0.net.dial(at);
            }
            Ok(name) => {
                let (answer, rest) = ((self.0.resolve)(name), Arc::downgrade(&self.0));
                self.0.runtime.spawn(async move {
                    let answer = answer.await;
                    if let Some(rest) = rest.upgrade() {
                        Self(rest).dial_resolved(answer, &address);
                    }
                });
            }
            Err(_) => self.refused(address),
        }
    }

    /// Dials each of the addresses to which `address` was resolved, so there may be as many
    /// outcomes, or reports the dial as refused if it was not resolved. It is not resolved again.
    fn dial_resolved(&self, answer: Result<Vec<Multiaddr>, ResolveError>, address: &Address) {
        match answer {
            Ok(found) => {
                for at in found {
                    self.lock().remember(at.clone(), address.clone());
                    self.0.net.dial(at);
                }
            }
            Err(error) => {
                tracing::debug!(%address, %error, "node.unresolved");
                self.refused(address.clone());
            }
        }
    }

    /// Reports to membership that a dial failed, of no known node.
    fn refused(&self, address: Address) {
        // Fails only after membership's end.
        let _ = self.0.inbox.fact(MembershipInput::DialRefused { address, node: None }.into());
    }

    /// Returns the address under which membership ordered a dial, given the dialled one, and
    /// forgets their relation: call this once for each outcome. For any other address, such as one
    /// that needed no resolution, returns that address without its peer id, or `None` if it is too
    /// long or nothing else.
    pub(crate) fn take_ordered_address(&self, at: &Multiaddr) -> Option<Address> {
        let named = self.lock().take(at);
        named.or_else(|| bare(at).ok())
    }

    /// Records that a peer has just refused this node and stated the reason.
    pub(crate) fn was_refused(&self) {
        self.lock().refused_at = Some(Instant::now());
    }

    /// Whether a peer refused this node within the last [`REFUSED_FOR`].
    pub(crate) fn is_refused(&self) -> bool {
        self.lock().refused_at.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    /// Keeps the link to a member up, until [`release`](Self::release). Replaces the incarnation
    /// and address that were kept for the peer before, even by an earlier incarnation. If the
    /// address does not begin with an IP address, the transport dials addresses that it knows
    /// already, and a task resolves this one, unless one is already resolving it for the same
    /// incarnation, or has found it unsupported. The same holds for a malformed address, but
    /// without a task. A task for the replaced name or incarnation ends at its next answer.
    pub(crate) fn keep(&self, node: NodeId, address: &Address) {
        let node = routes::to_net(node);
        let at = address.as_str().parse::<Multiaddr>().ok();
        let (at, name) = match at {
            Some(at) if address::host(&at).is_some() => (Some(at), None),
            name => (None, name),
        };
        let mut table = self.lock();
        let is_same = |kept: &&KeptPeer| kept.incarnation == node.incarnation && kept.name == name;
        let before = table.kept.get(&node.peer).filter(is_same);
        let is_asked = before.is_some_and(|kept| kept.is_asked);
        table.kept.insert(node.peer, KeptPeer { incarnation: node.incarnation, name, is_asked });
        self.0.net.keep(node.peer, at.into_iter().collect()); // for a name: at known addresses
        drop(table);
        self.ask(node.peer);
    }

    /// Called when a dial that expected this peer has failed: resolves the peer's name again,
    /// because the address may have changed. Does nothing in the cases in which `ask` does nothing.
    pub(crate) fn not_reached(&self, peer: PeerId) {
        self.ask(peer);
    }

    /// Starts a task that resolves a kept peer's name. Does nothing if the peer is not kept, if it
    /// has no name, or if a task is resolving the name or has found that its form is unsupported.
    fn ask(&self, peer: PeerId) {
        let mut table = self.lock();
        let Some(kept) = table.kept.get_mut(&peer) else { return };
        if let Some(name) = kept.name.clone().filter(|_| !kept.is_asked) {
            kept.is_asked = true;
            let node = crate::net::NodeId { peer, incarnation: kept.incarnation };
            let (resolve, rest) = (self.0.resolve.clone(), Arc::downgrade(&self.0));
            self.0.runtime.spawn(find(resolve, rest, node, name));
        }
    }

    /// Handles the resolver's answer for a kept peer: the transport dials the found addresses from
    /// now on, in place of those of earlier calls. Returns whether to try again: only after an
    /// error. Ignores the answer and returns `false` if the peer is no longer kept with this
    /// incarnation and name. A name of an unsupported form is never tried again: `is_asked` stays
    /// set until the peer is kept with another name or incarnation.
    fn found(
        &self,
        node: crate::net::NodeId,
        name: &Multiaddr,
        answer: Result<Vec<Multiaddr>, ResolveError>,
    ) -> bool {
        let mut table = self.lock();
        let kept = table.kept.get_mut(&node.peer);
        let is_this = |kept: &&mut KeptPeer| {
            kept.incarnation == node.incarnation && kept.name.as_ref() == Some(name)
        };
        let Some(kept) = kept.filter(is_this) else { return false };
        match answer {
            Ok(found) => {
                kept.is_asked = false;
                self.0.net.keep(node.peer, found);
                false
            }
            Err(error) => {
                tracing::debug!(%node, %name, %error, "node.unresolved");
                !matches!(error, ResolveError::Unsupported { .. }) // trying again is of no use
            }
        }
    }

    /// The incarnation of a peer to which a link is kept; `None` if none is kept.
    pub(crate) fn kept(&self, peer: PeerId) -> Option<crate::net::NodeId> {
        let incarnation = self.lock().kept.get(&peer)?.incarnation;
        Some(crate::net::NodeId { peer, incarnation })
    }

    /// Stops dialling a node; an open link stays. Does nothing if the node is not kept, or another
    /// incarnation of its peer is, earlier or later. A task that resolves its name ends at its next
    /// answer. Dials of single addresses continue.
    pub(crate) fn release(&self, node: NodeId) {
        let node = routes::to_net(node);
        let mut table = self.lock();
        // A later incarnation of the peer may be kept by now.
        if table.kept.get(&node.peer).is_some_and(|kept| kept.incarnation == node.incarnation) {
            table.kept.remove(&node.peer);
            self.0.net.release(node.peer);
        }
    }

    /// Closes the link to a node that was removed for ever, and refuses it from now on, kept or
    /// not. Another incarnation of its peer stays kept.
    pub(crate) fn forget(&self, node: NodeId) {
        self.release(node);
        self.0.net.forget(routes::to_net(node));
    }

    fn lock(&self) -> MutexGuard<'_, DialTable> {
        // The program's code never runs under the lock, so the table is consistent after a panic.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries to resolve a name, with growing pauses, until it succeeds, its form turns out to be
/// unsupported, the node is no longer kept under this name, or the last dialler was dropped. The
/// last three are noticed only after an answer of the resolver, which has a time limit of its own.
/// `rest` is weak, so that the task keeps no transport alive.
async fn find(
    resolve: Arc<Resolve>,
    rest: Weak<DialState>,
    node: crate::net::NodeId,
    name: Multiaddr,
) {
    let (mut pause, longest) = ASKED_AGAIN;
    loop {
        let answer = resolve(name.clone()).await;
        let dialling = rest.upgrade().map(Dialler);
        if !dialling.is_some_and(|dialling| dialling.found(node, &name, answer)) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

impl DialTable {
    /// Remembers that `at` is dialled for `address`, in place of an earlier address. At
    /// [`NAMES_MAX`] other entries, first removes the oldest one.
    fn remember(&mut self, at: Multiaddr, address: Address) {
        self.take(&at);
        if self.names.len() >= NAMES_MAX {
            self.names.pop_front();
        }
        self.names.push_back((at, address));
    }

    /// Forgets for which address `at` is dialled, and returns that one.
    fn take(&mut self, at: &Multiaddr) -> Option<Address> {
        let place = self.names.iter().position(|(known, _)| known == at)?;
        self.names.remove(place).map(|(_, address)| address)
    }
}

/// Converts an address to a member's address, without a peer id at its end. Fails if it is too
/// long, or if nothing is left of it.
pub(crate) fn bare(address: &Multiaddr) -> Result<Address, InvalidAddress> {
    let mut address = address.clone();
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    Address::new(address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::super::super::inbox::{Inbox, InboxLimits};
    use crate::net::config::NetConfig;
    use crate::net::handle::NetEvent;
    use crate::net::identity::Identity;
    use crate::net::{Busy, Inbound, Receiver, TrafficClass};
    use crate::waits::{eventually, soon};

    /// A receiver that accepts every message.
    struct Taker;

    impl Receiver for Taker {
        fn receive(&self, _: Inbound<'_>) -> Result<(), Busy> {
            Ok(())
        }

        fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
            std::future::ready(()).boxed()
        }
    }

    struct TestHost {
        net: Net,
        events: mpsc::UnboundedReceiver<NetEvent>,
        _identity: Identity,
    }

    impl TestHost {
        async fn start() -> Self {
            let identity = Identity::load(None).expect("an identity");
            let started = Net::start(&NetConfig::default(), &identity, Arc::new(Taker)).await;
            let (net, events) = started.expect("a free port");
            Self { net, events, _identity: identity }
        }

        fn node(&self) -> NodeId {
            routes::to_cluster(self.net.me()).expect("an ed25519 key")
        }

        /// Waits for the next node that is up. Failed dials of kept peers are reported to
        /// `dialling`.
        async fn up(&mut self, dialling: &Dialler) -> crate::net::NodeId {
            let up = async {
                loop {
                    match self.events.recv().await.expect("the transport runs") {
                        NetEvent::Up { node, .. } => return node,
                        NetEvent::DialRefused { peer: Some(peer), .. } => {
                            dialling.not_reached(peer);
                        }
                        _ => {}
                    }
                }
            };
            soon(up).await
        }

        /// Creates a dialler whose resolver gives the result of `answer` for the number of the
        /// query, from 0.
        fn dialling(
            &self,
            answer: impl Fn(usize) -> Option<Multiaddr> + Send + Sync + 'static,
        ) -> (Dialler, Arc<AtomicUsize>) {
            let asked = Arc::<AtomicUsize>::default();
            let count = asked.clone();
            let resolve = move |name: Multiaddr| {
                let found = answer(count.fetch_add(1, Ordering::SeqCst));
                let answer = found.map(|found| vec![found]);
                std::future::ready(answer.ok_or(ResolveError::Nothing { seed: name })).boxed()
            };
            let inbox = Inbox::new(InboxLimits::default());
            (Dialler::resolving_by(Arc::new(resolve), self.net.clone(), inbox), asked)
        }
    }

    impl Dialler {
        /// Number of running tasks that resolve a name.
        fn tasks(&self) -> usize {
            Arc::weak_count(&self.0)
        }
    }

    fn name() -> Address {
        Address::new("/dns4/b.example/tcp/4001").expect("short")
    }

    #[tokio::test]
    async fn member_is_dialled_once_its_name_resolves() {
        let (mut a, b) = (TestHost::start().await, TestHost::start().await);
        let there = b.net.listening()[0].clone();
        let (dialling, asked) = a.dialling(move |nth| (nth >= 2).then(|| there.clone()));
        dialling.keep(b.node(), &name());
        assert_eq!(a.up(&dialling).await, b.net.me());
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn failed_dial_resolves_the_name_again() {
        let (mut a, b) = (TestHost::start().await, TestHost::start().await);
        let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr();
        let stale = format!("/ip4/127.0.0.1/tcp/{}", gone.expect("bound").port());
        let stale: Multiaddr = stale.parse().expect("an address");
        let there = b.net.listening()[0].clone();
        let at = move |nth| Some(if nth == 0 { stale.clone() } else { there.clone() });
        let (dialling, _) = a.dialling(at);
        dialling.keep(b.node(), &name());
        assert_eq!(a.up(&dialling).await, b.net.me());
    }

    #[tokio::test]
    async fn release_ends_the_resolving_of_a_name() {
        let (a, b) = (TestHost::start().await, TestHost::start().await);
        // Release before the first answer, and between two queries.
        for least in [0, 1] {
            let (dialling, asked) = a.dialling(|_| None);
            dialling.keep(b.node(), &name());
            dialling.keep(b.node(), &name());
            dialling.not_reached(b.net.me().peer);
            eventually("the name is queried", async || asked.load(Ordering::SeqCst) >= least).await;
            assert_eq!(dialling.tasks(), 1, "repeated orders start one task only");
            dialling.release(b.node());
            eventually("no task queries the name", async || dialling.tasks() == 0).await;
        }
    }

    /// A dropped node does not notify its tasks, so these must not keep its transport alive.
    #[tokio::test]
    async fn resolving_a_name_keeps_no_transport_alive() {
        let (mut a, b) = (TestHost::start().await, TestHost::start().await);
        let (dialling, asked) = a.dialling(|_| None);
        dialling.keep(b.node(), &name());
        eventually("the name is queried", async || asked.load(Ordering::SeqCst) > 0).await;
        drop((dialling, a.net));
        let ended = async { while a.events.recv().await.is_some() {} };
        soon(ended).await; // the transport ends
        eventually("no task queries the name", async || Arc::strong_count(&asked) == 1).await;
    }

    /// A member's address may be of a form that this release cannot resolve.
    #[tokio::test]
    async fn unsupported_name_is_queried_once() {
        let (a, b) = (TestHost::start().await, TestHost::start().await);
        let inbox = Inbox::new(InboxLimits::default());
        let dialling = Dialler::new(a.net.clone(), inbox);
        dialling.keep(b.node(), &Address::new("/dnsaddr/b.example").expect("short"));
        eventually("no task queries the name", async || dialling.tasks() == 0).await;
        dialling.not_reached(b.net.me().peer);
        assert_eq!(dialling.tasks(), 0, "it must not be queried again");
    }

    #[test]
    fn member_address_contains_no_peer_id() {
        let peer = PeerId::from_bytes(&[0, 1, 9]).expect("an identity hash");
        for text in ["/ip4/127.0.0.1/tcp/4001", "/dns4/a.example/tcp/4001"] {
            let address: Multiaddr = text.parse().expect("valid");
            let named = address.clone().with_p2p(peer).expect("it has no peer id yet");
            for given in [address, named] {
                assert_eq!(bare(&given), Address::new(text));
            }
        }
        let nothing = Multiaddr::empty().with_p2p(peer).expect("it has no peer id yet");
        assert_eq!(bare(&nothing), Err(InvalidAddress { len: 0 }));
    }

    #[tokio::test]
    async fn dial_of_an_ip_address_forgets_an_earlier_name() {
        let (a, b) = (TestHost::start().await, TestHost::start().await);
        let there = b.net.listening()[0].clone();
        let (dialling, _) = a.dialling(|_| None);
        dialling.dial_resolved(Ok(vec![there.clone()]), &name());
        dialling.dial(bare(&there).expect("short"));
        assert_eq!(dialling.take_ordered_address(&there), bare(&there).ok());
    }

    #[test]
    fn oldest_of_too_many_names_is_forgotten() {
        let at = |port: u16| -> Multiaddr {
            format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("valid")
        };
        let mut table = DialTable::default();
        let last = u16::try_from(NAMES_MAX).expect("small");
        for port in (1..=last).rev() {
            table.remember(at(port), name());
        }
        table.remember(at(last), name()); // again: now it is the newest
        assert_eq!(table.names.len(), NAMES_MAX);
        table.remember(at(0), name());
        assert_eq!(table.names.len(), NAMES_MAX);
        let oldest = last - 1;
        assert_eq!(table.take(&at(oldest)), None);
        for port in (0..=last).filter(|port| *port != oldest) {
            assert_eq!(table.take(&at(port)), Some(name()), "{port}");
        }
    }
}
