//! `management.remote`: the requests that a node accepts from clients on the network.

use ostraca::management::client::{AdminRequestError, Client};
use ostraca::management::config::Remote;
use ostraca::management::wire::{
    AdminRequest, AdminResponse, ConsistencyLevel, Packed, RefusalReason,
};
use ostraca::net::client::connect_as;
use ostraca::net::identity::Identity;
use ostraca::prelude::*;

use crate::waits::SOON;

async fn node(remote: Remote) -> Node {
    let mut config = Config::default();
    config.management.remote = remote;
    let node = Node::start(config).await.expect("it starts");
    node.cluster().wait_until_up().await.expect("it founds a cluster");
    node
}

/// Outcome for a client on the network: `Ok`, or the kind and text of the refusal.
async fn asked(
    node: &Node,
    request: &AdminRequest,
) -> Result<AdminResponse, (RefusalReason, String)> {
    let identity = Identity::load(None).expect("a new one");
    let (net, at) = (Config::default().net, &node.addresses()[0]);
    let stream = connect_as(&identity, &net, at, SOON).await.expect("it admits the client");
    match Client::over(stream).ask(request, SOON).await {
        Ok(answer) => Ok(answer),
        Err(AdminRequestError::Refused(refusal)) => Err((refusal.why, refusal.text)),
        Err(error) => panic!("{error}"),
    }
}

fn set() -> AdminRequest {
    let value = Packed::new(&1).expect("it has a form");
    AdminRequest::Set { key: "k".to_owned(), value, level: ConsistencyLevel::Local }
}

async fn keys(node: &Node) -> Vec<String> {
    let keys = node.replicator().keys("", None, 9).await.expect("it answers");
    keys.iter().map(|key| key.as_str().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_off_refuses_every_request() {
    let node = node(Remote::Off).await;
    let watch = AdminRequest::Watch { key: "k".to_owned() };
    let either = "\"read\" or \"all\"";
    for (request, allowed) in [(AdminRequest::Members, either), (watch, either), (set(), "\"all\"")]
    {
        let (why, text) = asked(&node, &request).await.expect_err("it is refused");
        assert_eq!(why, RefusalReason::Forbidden, "{request:?}");
        assert!(text.contains(&format!("set management.remote = {allowed} on")), "{text}");
    }
    let recover = asked(&node, &AdminRequest::Recover { force: false }).await;
    assert_eq!(
        recover.expect_err("it is refused").0,
        RefusalReason::OnlyHere,
        "no setting allows it"
    );
    assert!(keys(&node).await.is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_read_is_the_default_and_refuses_changes() {
    let node = node(Remote::default()).await;
    let answer = asked(&node, &AdminRequest::Members).await;
    assert!(matches!(answer, Ok(AdminResponse::Members(_))), "{answer:?}");
    let (why, text) = asked(&node, &set()).await.expect_err("it is refused");
    assert_eq!(why, RefusalReason::Forbidden);
    assert!(text.contains("set management.remote = \"all\""), "{text}");
    let recover = asked(&node, &AdminRequest::Recover { force: true }).await;
    assert_eq!(recover.expect_err("it is refused").0, RefusalReason::OnlyHere);
    assert!(keys(&node).await.is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_all_allows_changes_but_not_recover() {
    let node = node(Remote::All).await;
    assert_eq!(asked(&node, &set()).await, Ok(AdminResponse::Done));
    assert_eq!(keys(&node).await, ["k"]);
    for force in [false, true] {
        let recover = asked(&node, &AdminRequest::Recover { force }).await;
        assert_eq!(recover.expect_err("it is refused").0, RefusalReason::OnlyHere);
    }
    node.stop().await;
}
