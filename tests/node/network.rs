//! [`Network`]: a network in memory. It delivers every message in order, except to and from nodes
//! that are cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use libp2p::PeerId;
use ostraca::ddata::id::ReplicaId;
use ostraca::net::{Inbound, NodeId, Receiver, TrafficClass};
use ostraca::node::message_sender::{MessageSender, NotSent};
use tokio::sync::mpsc;

type Envelope = (NodeId, TrafficClass, Vec<u8>);

#[derive(Default)]
struct State {
    ends: BTreeMap<ReplicaId, mpsc::UnboundedSender<Envelope>>,
    cut: BTreeSet<ReplicaId>,
}

/// Handle to the simulated network.
#[derive(Clone, Default)]
pub(crate) struct Network(Arc<Mutex<State>>);

impl Network {
    /// The interface by which `node` sends.
    pub(crate) fn port(&self, node: NodeId) -> Port {
        Port { me: node, network: self.clone() }
    }

    /// Starts delivery to `node`.
    pub(crate) fn connect(&self, node: NodeId, receiver: Arc<dyn Receiver>) {
        let (sender, mut envelopes) = mpsc::unbounded_channel::<Envelope>();
        self.0.lock().expect("no test panics under it").ends.insert(node.incarnation, sender);
        tokio::spawn(async move {
            while let Some((from, class, body)) = envelopes.recv().await {
                let inbound = Inbound { from, class, fields: &[], body: &body };
                while receiver.receive(inbound).is_err() {
                    receiver.pause(class);
                    receiver.ready(class).await;
                }
                if envelopes.is_empty() {
                    receiver.pause(class);
                }
            }
        });
    }

    /// Cuts `node` off: drops all messages to and from it.
    pub(crate) fn cut(&self, node: NodeId) {
        self.0.lock().expect("no test panics under it").cut.insert(node.incarnation);
    }

    /// Ends the cut of `node`.
    pub(crate) fn heal(&self, node: NodeId) {
        self.0.lock().expect("no test panics under it").cut.remove(&node.incarnation);
    }
}

/// The sending interface of one node.
pub(crate) struct Port {
    me: NodeId,
    network: Network,
}

impl MessageSender for Port {
    fn send(&mut self, to: ReplicaId, class: TrafficClass, message: &[u8]) -> Result<(), NotSent> {
        let state = self.network.0.lock().expect("no test panics under it");
        if state.cut.contains(&to) || state.cut.contains(&self.me.incarnation) {
            return Err(NotSent::NoLink);
        }
        let end = state.ends.get(&to).ok_or(NotSent::NoLink)?;
        end.send((self.me, class, message.to_vec())).map_err(|_| NotSent::NoLink)
    }
}

/// Id of the node with this number.
pub(crate) fn node_id(number: u8) -> NodeId {
    let peer = PeerId::from_bytes(&[0, 1, number]).expect("an identity hash");
    NodeId { peer, incarnation: ReplicaId::new(u64::from(number)) }
}
