//! `management.remote`: the requests that a node accepts from clients on the network.

use ostraca::management::client::{AskError, Client};
use ostraca::management::config::Remote;
use ostraca::management::item::Item;
use ostraca::management::wire::{Answer, Level, Packed, Request, Why};
use ostraca::net::client::connect_as;
use ostraca::net::identity::Identity;
use ostraca::prelude::*;

use crate::SOON;

async fn node(remote: Remote) -> Node {
    let mut config = Config::default();
    config.management.remote = remote;
    let node = Node::start(config).await.expect("it starts");
    node.cluster().up().await.expect("it founds a cluster");
    node
}

/// Outcome for a client on the network: `Ok`, or the kind and text of the refusal.
async fn asked(node: &Node, request: &Request) -> Result<Answer, (Why, String)> {
    let identity = Identity::load(None).expect("a new one");
    let (net, at) = (Config::default().net, &node.addresses()[0]);
    let stream = connect_as(&identity, &net, at, SOON).await.expect("it admits the client");
    match Client::over(stream).ask(request, SOON).await {
        Ok(answer) => Ok(answer),
        Err(AskError::Refused(refusal)) => Err((refusal.why, refusal.text)),
        Err(error) => panic!("{error}"),
    }
}

fn set() -> Request {
    let value = Packed::new(&Item::Integer(1)).expect("it has a form");
    Request::Set { key: "k".to_owned(), value, level: Level::Local }
}

async fn keys(node: &Node) -> Vec<String> {
    let keys = node.replicator().keys("", None, 9).await.expect("it answers");
    keys.iter().map(|key| key.as_str().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_off_refuses_every_request() {
    let node = node(Remote::Off).await;
    let watch = Request::Watch { key: "k".to_owned() };
    let either = "\"read\" or \"all\"";
    for (request, allowed) in [(Request::Members, either), (watch, either), (set(), "\"all\"")] {
        let (why, text) = asked(&node, &request).await.expect_err("it is refused");
        assert_eq!(why, Why::Forbidden, "{request:?}");
        assert!(text.contains(&format!("set management.remote = {allowed} on")), "{text}");
    }
    let recover = asked(&node, &Request::Recover { force: false }).await;
    assert_eq!(recover.expect_err("it is refused").0, Why::OnlyHere, "no setting allows it");
    assert!(keys(&node).await.is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_read_is_the_default_and_refuses_changes() {
    let node = node(Remote::default()).await;
    let answer = asked(&node, &Request::Members).await;
    assert!(matches!(answer, Ok(Answer::Members(_))), "{answer:?}");
    let (why, text) = asked(&node, &set()).await.expect_err("it is refused");
    assert_eq!(why, Why::Forbidden);
    assert!(text.contains("set management.remote = \"all\""), "{text}");
    let recover = asked(&node, &Request::Recover { force: true }).await;
    assert_eq!(recover.expect_err("it is refused").0, Why::OnlyHere);
    assert!(keys(&node).await.is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_all_allows_changes_but_not_recover() {
    let node = node(Remote::All).await;
    assert_eq!(asked(&node, &set()).await, Ok(Answer::Done));
    assert_eq!(keys(&node).await, ["k"]);
    for force in [false, true] {
        let recover = asked(&node, &Request::Recover { force }).await;
        assert_eq!(recover.expect_err("it is refused").0, Why::OnlyHere);
    }
    node.stop().await;
}
