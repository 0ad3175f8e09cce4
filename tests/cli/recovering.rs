//! Recovery by force: three nodes in this process, of which two die, and the tool on the last one.

use std::time::Duration;

use ostraca::cluster::member::Address;
use ostraca::management::client::{AdminRequestError, Client};
use ostraca::management::wire::{AdminRequest, RefusalReason};
use ostraca::net::client::connect_as;
use ostraca::net::identity::Identity;
use ostraca::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use crate::waits::{SOON, eventually, soon, until};
use crate::{run, said};

const ENTITIES: u64 = 30;

/// An entity that counts in memory only.
#[derive(Default)]
struct Counter(u64);

#[derive(Serialize, Deserialize)]
enum Ask {
    Add(Reply<u64>),
    Where(Reply<u64>),
}

impl Entity for Counter {
    type Message = Ask;

    async fn handle(&mut self, ask: Ask, cx: &mut Context<'_, Self>) {
        match ask {
            Ask::Add(reply) => {
                self.0 += 1;
                reply.send(self.0);
            }
            Ask::Where(reply) => reply.send(cx.node().replica().get()),
        }
    }
}

/// A node with its region and its socket.
struct Place {
    node: Node,
    region: ShardRegion<Counter>,
    socket: String,
}

/// Starts a node with a long `stop-after`, so that its entities keep their state until the
/// recovery.
async fn place(dir: &TempDir, name: &str, seeds: &[Multiaddr]) -> Place {
    let socket = dir.path().join(name);
    let mut config = Config::default();
    let address = |seed: &Multiaddr| Address::new(seed.to_string()).expect("short");
    config.cluster.seeds = seeds.iter().map(address).collect();
    config.cluster.downing.stable_after = Some(Duration::from_millis(300));
    config.cluster.downing.wait_without_quorum = Some(Duration::from_secs(1_800));
    config.cluster.lease.duration = Duration::from_secs(2);
    config.cluster.lease.heartbeat_interval = Duration::from_millis(250);
    config.cluster.lease.stop_after = Duration::from_secs(3_600);
    config.management.control_socket = Some(socket.clone());
    let node = Node::start(config).await.expect("it starts");
    soon(node.cluster().wait_until_up()).await.expect("it joins");
    let sharding = node.sharding();
    let region = sharding.start("counter", |_| Counter::default()).await.expect("it starts");
    soon(sharding.wait_until_registered("counter")).await.expect("it serves");
    Place { node, region, socket: socket.to_str().expect("UTF-8").to_owned() }
}

fn tool(place: &Place, arguments: &[&str]) -> (i32, String, String) {
    let output = run(&[arguments, &["--socket", &place.socket]].concat());
    let (answer, errors) = said(&output);
    (output.status.code().expect("it ended by itself"), answer, errors)
}

fn entity(number: u64) -> String {
    format!("counter-{number}")
}

/// Repeats a request until it is answered.
async fn answered(ask: impl AsyncFnMut() -> Option<u64>) -> u64 {
    until("it answers", ask, Option::is_some).await.expect("an answer")
}

async fn add(at: &Place, number: u64) -> u64 {
    let of = at.region.entity(&entity(number));
    answered(async || of.ask(Ask::Add).await.ok()).await
}

async fn home(at: &Place, number: u64) -> u64 {
    let of = at.region.entity(&entity(number));
    answered(async || of.ask(Ask::Where).await.ok()).await
}

/// Checks that `recover` is refused while a quorum exists, and to every caller except the control
/// socket.
async fn only_an_operator_on_its_host_is_heard(last: &Place, address: &Multiaddr) {
    let (code, answer, errors) = tool(last, &["recover", "--force"]);
    assert_eq!((code, answer.as_str()), (1, ""), "a quorum is there");
    assert!(errors.contains("there is nothing to recover"), "{errors}");
    assert!(errors.contains("`ostraca down NODE`"), "a command, for a reader at a shell: {errors}");
    let identity = Identity::load(None).expect("a new one");
    let config = Config::default();
    let called =
        connect_as(&identity, &config.net, address, SOON).await.expect("it admits the client");
    let refused = Client::over(called).ask(&AdminRequest::Recover { force: true }, SOON).await;
    let Err(AdminRequestError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert_eq!(why.why, RefusalReason::OnlyHere);

    let (near, far) = tokio::io::duplex(1 << 16); // a program's own server for tools
    let server = last.node.management();
    let serving = tokio::spawn(async move { server.serve(far).await });
    let refused = Client::over(near).ask(&AdminRequest::Recover { force: true }, SOON).await;
    let Err(AdminRequestError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert_eq!(why.why, RefusalReason::OnlyHere);
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_recovery_keeps_survivors_entity_state() {
    let dir = tempfile::tempdir().expect("a directory");
    let last = place(&dir, "a", &[]).await;
    let seeds = [last.node.addresses()[0].clone()];
    let (one, other) = (place(&dir, "b", &seeds).await, place(&dir, "c", &seeds).await);
    for number in 0..ENTITIES {
        for count in 1..=3 {
            assert_eq!(add(&last, number).await, count);
        }
    }
    let me = last.node.cluster().me();
    let mut own = Vec::new();
    for number in 0..ENTITIES {
        if home(&last, number).await == me.incarnation.get() {
            own.push(number);
        }
    }
    assert!(!own.is_empty() && own.len() < ENTITIES as usize, "{own:?}");

    only_an_operator_on_its_host_is_heard(&last, &seeds[0]).await;

    drop((one, other)); // stops both as a kill would
    eventually("its lease expires", async || !last.node.lease().serves()).await;
    eventually("both are unreachable", async || {
        last.node.cluster().state().await.expect("it runs").unreachable.len() == 2
    })
    .await;
    let (code, answer, errors) = tool(&last, &["recover"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(answer.starts_with("1 of 3 members would go on:\n"), "{answer}");
    assert!(answer.contains("  asked\n2 would be given up for ever:\n"), "{answer}");
    assert!(answer.contains("nothing was changed") && answer.contains("--force"), "{answer}");
    assert_eq!(last.node.cluster().members().len(), 3, "nothing was changed");

    let (code, answer, errors) = tool(&last, &["recover", "--force", "--json"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let told: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(told["forced"], true, "{told}");
    assert_eq!(told["kept"][0]["node"], me.to_string(), "{told}");
    assert_eq!(told["given_up"].as_array().map(Vec::len), Some(2), "{told}");
    for number in 0..ENTITIES {
        // An unanswered ask may have been handled, so the exact count is not known.
        let count = add(&last, number).await;
        assert_eq!(count > 3, own.contains(&number), "{} counts {count}", entity(number));
    }
    assert_eq!(last.node.cluster().stats().await.expect("it runs").forced, 1);
    let (code, _, errors) = tool(&last, &["recover", "--force"]);
    assert!(code == 1 && errors.contains("there is nothing to recover"), "{errors}");

    let joiner = place(&dir, "d", &seeds).await;
    for number in 0..ENTITIES {
        assert!(add(&joiner, number).await >= 1, "it answers, wherever it lives now");
    }
    let why = tool(&last, &["explain", "entity", "counter", &entity(own[0])]);
    assert!(why.1.contains("counted after a recovery by force"), "{}", why.1);
    joiner.node.stop().await;
    last.node.stop().await;
}
