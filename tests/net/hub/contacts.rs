//! Tests of the events about dialled addresses and about links that come back.

use super::*;

impl TestNode {
    async fn answered(&mut self) -> (NodeId, Multiaddr) {
        self.event("a node answers", |event| match event {
            NetEvent::Answered { node, address } => Some((node, address)),
            _ => None,
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dial_is_answered_at_first_contact_and_on_a_live_link() {
    let (mut a, mut b) = (TestNode::start(&quick()).await, TestNode::start(&quick()).await);
    let address = b.net.listening()[0].clone();
    for _ in 0..2 {
        a.net.dial(address.clone());
        assert_eq!(a.answered().await, (b.id(), address.clone()));
    }
    assert_eq!(b.up().await, a.id());
    b.net.dial(a.net.listening()[0].clone());
    assert_eq!(b.answered().await, (a.id(), a.net.listening()[0].clone()));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_dials_itself_gets_its_own_answer() {
    let mut a = TestNode::start(&quick()).await;
    let own = a.net.listening()[0].clone();
    a.net.dial(own.clone());
    assert_eq!(a.answered().await, (a.id(), own));
}

#[tokio::test(flavor = "multi_thread")]
async fn dial_without_a_listener_is_refused() {
    let mut a = TestNode::start(&quick()).await;
    let b = TestNode::start(&quick()).await;
    let nobody = b.net.listening()[0].clone();
    b.net.stop().await;
    a.net.dial(nobody.clone());
    let refused = a.event("it is refused", |event| match event {
        NetEvent::DialRefused { peer, address, .. } => Some((peer, address)),
        NetEvent::Answered { node, .. } => panic!("{node} answers"),
        _ => None,
    });
    assert_eq!(refused.await, (None, nobody));
}

#[tokio::test(flavor = "multi_thread")]
async fn returning_node_is_reported_up_again() {
    let (mut a, mut b, proxy) = behind_a_proxy(&quick()).await;
    assert_eq!((a.up().await, b.up().await), (b.id(), a.id()));
    proxy.cut();
    for host in [&mut a, &mut b] {
        let closed = |event| if let NetEvent::Closed { node } = event { Some(node) } else { None };
        let node = host.event("the link is gone", closed).await;
        assert_eq!(host.up().await, node);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn later_contact_learns_the_cluster_id() {
    let (mut a, b) = (TestNode::start(&quick()).await, TestNode::start(&quick()).await);
    b.net.belongs_to(77);
    let known = |event| match event {
        NetEvent::Up { facts, .. } => Some(facts.cluster_id),
        _ => None,
    };
    a.keep(&b);
    assert_eq!(a.event("a node is up", known).await, Some(77));
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_link_without_address_dials_where_peer_answered() {
    let proxy = Proxy::start().await;
    // The address that it tells leads nowhere, because the transport does not resolve names.
    let told: Multiaddr = "/dns4/b.example/tcp/4001".parse().expect("an address");
    let of_b = NetConfig { advertise: vec![told], ..quick() };
    let (mut a, b) = (TestNode::start(&quick()).await, TestNode::start(&of_b).await);
    proxy.lead_to(b.port());
    a.net.dial(proxy.address.clone());
    assert_eq!(a.up().await, b.id());
    a.net.keep(b.id().peer, Vec::new());
    proxy.cut();
    let closed = |event| if let NetEvent::Closed { node } = event { Some(node) } else { None };
    assert_eq!(a.event("the link is gone", closed).await, b.id());
    assert_eq!(a.up().await, b.id());
}

/// A listening socket that belongs to no node.
fn bystander() -> (std::net::TcpListener, Multiaddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("bound").port();
    (listener, format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address"))
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed to `event`")]
fn is_closed(event: NetEvent) -> Option<NodeId> {
    if let NetEvent::Closed { node } = event { Some(node) } else { None }
}

/// An admitted peer tells the address of another service in `Hello`. Neither bulk, which has a
/// connection of its own elsewhere, nor a kept link that is down may make this node connect to that
/// address.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_told_in_hello_are_never_dialled() {
    let (victim, address) = bystander();
    let hostile = NetConfig { advertise: vec![address], ..quick() };
    let (mut a, h) = (TestNode::start(&quick()).await, TestNode::start(&hostile).await);
    h.keep(&a);
    assert_eq!(a.up().await, h.id());
    a.net.keep(h.id().peer, Vec::new());
    a.send(h.id().incarnation, TrafficClass::Bulk, b"bulk");
    eventually("bulk arrives", async || !h.inbox.take().is_empty()).await;
    let node = h.id();
    h.net.stop().await;
    assert_eq!(a.event("the link is gone", is_closed).await, node);
    a.send(node.incarnation, TrafficClass::Control, b"undelivered");
    // A dial would have begun long before the lane is abandoned.
    let given_up = |event| matches!(event, NetEvent::LaneBroken { .. }).then_some(());
    a.event("the lane is given up", given_up).await;
    let connected = victim.accept().expect_err("a connection");
    assert_eq!(connected.kind(), std::io::ErrorKind::WouldBlock);
}

/// The peer's address comes from membership, so the link is dialled there again, whatever address
/// the peer tells.
#[tokio::test(flavor = "multi_thread")]
async fn cut_link_to_named_address_comes_back() {
    let (victim, told) = bystander();
    let proxy = Proxy::start().await;
    let of_b = NetConfig { advertise: vec![told], ..quick() };
    let (mut a, b) = (TestNode::start(&quick()).await, TestNode::start(&of_b).await);
    proxy.lead_to(b.port());
    a.net.keep(b.id().peer, vec![proxy.address.clone()]);
    assert_eq!(a.up().await, b.id());
    for _ in 0..3 {
        proxy.cut();
        assert_eq!(a.event("the link is gone", is_closed).await, b.id());
        assert_eq!(a.up().await, b.id());
    }
    let connected = victim.accept().expect_err("a connection");
    assert_eq!(connected.kind(), std::io::ErrorKind::WouldBlock);
}

/// No node dials a joiner before it is a member, so it must dial the seed again itself.
#[tokio::test(flavor = "multi_thread")]
async fn joiner_redials_its_seed_after_a_cut() {
    let proxy = Proxy::start().await;
    let (mut joiner, mut seed) = (TestNode::start(&quick()).await, TestNode::start(&quick()).await);
    proxy.lead_to(seed.port());
    for _ in 0..3 {
        joiner.net.dial(proxy.address.clone());
        assert_eq!((joiner.up().await, seed.up().await), (seed.id(), joiner.id()));
        proxy.cut();
        assert_eq!(joiner.event("the link is gone", is_closed).await, seed.id());
        assert_eq!(seed.event("the link is gone", is_closed).await, joiner.id());
    }
}
