//! [`NodeNames`]: names of nodes for the log.
//!
//! The protocols identify nodes by their incarnations. An operator knows a node by the name that
//! `ostraca members` prints, which begins with its key.

use std::fmt;
use std::sync::{OnceLock, Weak};

use ostraca_ddata::id::ReplicaId;

use crate::net::handle::Net;

/// Names of nodes, as the transport knows them. It does not keep the transport alive.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeNames(Weak<OnceLock<Net>>);

/// A node in the log: its name, or its incarnation alone if the transport does not know it.
#[derive(Debug)]
pub(crate) struct NodeName<'a> {
    names: &'a NodeNames,
    incarnation: ReplicaId,
}

impl NodeNames {
    /// Names from a transport, which may start later.
    pub(crate) const fn new(net: Weak<OnceLock<Net>>) -> Self {
        Self(net)
    }

    /// The name of a node; looked up when it is formatted.
    pub(crate) const fn of(&self, incarnation: ReplicaId) -> NodeName<'_> {
        NodeName { names: self, incarnation }
    }

    /// The names of several nodes, in their order, joined by commas; `None` if there is no node.
    /// Looks them up now; an unknown node is listed by its incarnation.
    pub(crate) fn list(&self, all: impl IntoIterator<Item = ReplicaId>) -> Option<String> {
        let names: Vec<String> = all.into_iter().map(|it| self.of(it).to_string()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

impl fmt::Display for NodeName<'_> {
    /// Looks up the name now. Before the transport's start and after its end, as well as for a node
    /// that it does not know, that is the incarnation alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let net = self.names.0.upgrade();
        match net.as_deref().and_then(OnceLock::get) {
            Some(net) => f.write_str(&net.name_of(self.incarnation)),
            None => fmt::Display::fmt(&self.incarnation, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::net::config::NetConfig;
    use crate::net::identity::Identity;
    use crate::net::{Busy, Inbound, Receiver, TrafficClass};

    struct AcceptsAll;

    impl Receiver for AcceptsAll {
        fn receive(&self, _: Inbound<'_>) -> Result<(), Busy> {
            Ok(())
        }

        fn ready(&self, _: TrafficClass) -> futures::future::BoxFuture<'_, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test]
    async fn name_begins_with_the_key_once_the_transport_knows_it() {
        let unknown = ReplicaId::new(0xc0_ffee);
        let cell = Arc::<OnceLock<Net>>::default();
        let names = NodeNames::new(Arc::downgrade(&cell));
        assert_eq!(names.of(unknown).to_string(), "0000000000c0ffee");
        let identity = Identity::load(None).expect("a new one");
        let started = Net::start(&NetConfig::default(), &identity, Arc::new(AcceptsAll)).await;
        let (net, _events) = started.expect("a free port");
        let me = net.me();
        assert!(cell.set(net).is_ok(), "it was empty");
        assert_eq!(names.of(me.incarnation).to_string(), me.to_string());
        assert_eq!(names.of(unknown).to_string(), "0000000000c0ffee");
        let expected = format!("{me}, 0000000000c0ffee");
        assert_eq!(names.list([me.incarnation, unknown]), Some(expected));
        assert_eq!(names.list([]), None);
    }
}
