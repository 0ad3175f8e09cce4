//! Limits of the control socket: an invalid request, an idle caller or a slow reader affects only
//! its own connection.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use ostraca::management::client::{AdminRequestError, Client};
use ostraca::management::server::Server;
use ostraca::management::wire::{
    AdminRequest, AdminResponse, ConsistencyLevel, Packed, RefusalReason, ValueContent,
};
use ostraca::node::StartError;
use ostraca::prelude::*;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::waits::{SOON, soon};

fn config(socket: &Path) -> Config {
    let mut config = Config::default();
    config.management.control_socket = Some(socket.to_owned());
    config
}

async fn node() -> (TempDir, PathBuf, Node) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let node = Node::start(config(&socket)).await.expect("it starts");
    (dir, socket, node)
}

async fn refusal(node: &Config) -> String {
    match Node::start(node.clone()).await {
        Err(error @ StartError::Management(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

async fn can_be_asked(socket: &Path) {
    let mut client = Client::connect(socket).await.expect("it listens");
    let answer = client.ask(&AdminRequest::Members, SOON).await.expect("it answers");
    assert!(matches!(answer, AdminResponse::Members(_)), "{answer:?}");
}

/// Sends these bytes, closes the sending side, and returns everything that the server sends.
async fn answer_to(socket: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).await.expect("it listens");
    let _ = stream.write_all(bytes).await; // the server may have closed the connection
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await; // a reset also ends the connection
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_request_affects_only_its_connection() {
    let (_dir, socket, node) = node().await;
    let mut watching = Client::connect(&socket).await.expect("it listens").watch("k").await;
    let watching = watching.as_mut().expect("it is asked");
    assert_eq!(watching.next().await.expect("told"), None);
    let contains = |answer: &[u8], text: &str| {
        String::from_utf8_lossy(answer).contains(text).then_some(()).ok_or(())
    };
    let garbage = answer_to(&socket, b"GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(contains(&garbage, "the announced frame"), Ok(()), "{garbage:?}");
    let oversized = answer_to(&socket, &(1_u32 << 21).to_be_bytes()).await;
    assert_eq!(contains(&oversized, "too_long"), Ok(()), "{oversized:?}");
    for half in [&b"\0\0"[..], b"\0\0\0\x09\x81", b""] {
        assert_eq!(answer_to(&socket, half).await, b"", "{half:?}");
    }
    let mut later = vec![0, 0, 0, 6];
    later.extend(b"\xa5evict");
    later.extend(b"\0\0\0\x08\xa7members");
    let answers = answer_to(&socket, &later).await;
    for expected in ["not_understood", "converged"] {
        assert_eq!(contains(&answers, expected), Ok(()), "one after the other: {answers:?}");
    }
    can_be_asked(&socket).await;
    let value = Packed::new(&1).expect("it has a form");
    let set = AdminRequest::Set { key: "k".to_owned(), value, level: ConsistencyLevel::Local };
    let mut client = Client::connect(&socket).await.expect("it listens");
    client.ask(&set, SOON).await.expect("it is set");
    assert!(watching.next().await.expect("told").is_some(), "it was there all the time");
    node.stop().await;
    assert!(matches!(
        watching.next().await,
        Err(AdminRequestError::Ended | AdminRequestError::Frame(_))
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_idle_connections_block_no_caller() {
    let (_dir, socket, node) = node().await;
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(UnixStream::connect(&socket).await.expect("it listens"));
    }
    can_be_asked(&socket).await;
    let mut byte = [0];
    let evicted = soon(idle[0].read(&mut byte)).await;
    assert!(matches!(evicted, Ok(0) | Err(_)), "the longest idle one is evicted: {evicted:?}");
    drop(idle);
    can_be_asked(&socket).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_watcher_receives_the_latest_value() {
    let (_dir, _socket, node) = node().await;
    let (data, key) = (node.replicator(), Key::<LWWRegister<String>>::new("k"));
    let filler = "x".repeat(8 << 10);
    let (near, far) = tokio::io::duplex(1 << 10); // a buffer smaller than one value
    let server: Server = node.management();
    let serving = tokio::spawn(async move { server.serve(far).await });
    let mut watching = Client::over(near).watch("k").await.expect("it is asked");
    for n in 0..200 {
        let value = format!("{n} {filler}");
        data.update(&key, WriteLocal, move |it| it.set(&value)).await.expect("made");
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&199) {
        let next = soon(watching.next()).await;
        let Some(told) = next.expect("told") else { continue };
        let Ok(ValueContent::Register(Some(value))) = told.content() else { panic!("{told:?}") };
        let text: String = value.decode().expect("a text");
        let (n, _) = text.split_once(' ').expect("a number first");
        seen.push(n.parse::<u32>().expect("a number"));
    }
    assert!(seen.len() < 20, "nothing was kept but the last: {seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
    drop(watching);
    soon(serving).await.expect("no panic"); // the server notices the end
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_beyond_the_limit_is_refused() {
    let (_dir, socket, node) = node().await;
    let mut watching = Vec::new();
    for n in 0..17 {
        let client = Client::connect(&socket).await.expect("it listens");
        let mut watch = client.watch("k").await.expect("it is asked");
        let told = watch.next().await;
        match told {
            Ok(None) if n < 16 => watching.push(watch),
            Err(AdminRequestError::Refused(why)) if n == 16 && why.why == RefusalReason::Busy => {
                assert!(why.text.contains("16 connections of this node watch"), "{why}");
                let next = soon(watch.next()).await;
                assert!(matches!(next, Err(AdminRequestError::Ended)), "{next:?}");
            }
            other => panic!("{n}: {other:?}"),
        }
    }
    can_be_asked(&socket).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socket_is_private_and_replaces_only_a_stale_socket() {
    let (dir, socket, node) = node().await;
    let mode = std::fs::metadata(&socket).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let error = refusal(&config(&socket)).await;
    assert!(error.contains("another node or process serves the control socket"), "{error}");
    can_be_asked(&socket).await;
    node.stop().await;
    assert!(!socket.exists());

    drop(UnixListener::bind(&socket).expect("as a killed node leaves it behind"));
    assert!(socket.exists());
    let node = Node::start(config(&socket)).await.expect("it replaces that");
    can_be_asked(&socket).await;
    drop(node); // stops without a shutdown
    assert!(!socket.exists());

    std::fs::write(&socket, "precious").expect("it is written");
    let error = refusal(&config(&socket)).await;
    assert!(error.contains("is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&socket).expect("untouched"), "precious");

    let error = refusal(&config(&dir.path().join("nowhere/s"))).await;
    assert!(error.contains("can't be read: create it"), "{error}");
    let open = dir.path().join("open");
    std::fs::create_dir(&open).expect("it is made");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).expect("our file");
    let error = refusal(&config(&open.join("s"))).await;
    assert!(error.contains("has mode 777: `chmod go-w` it"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_starts_without_an_unconfigured_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let deep = dir.path().join("d".repeat(120));
    let mut config = Config::default();
    config.net.data_dir = Some(deep.clone());
    let node = Node::start(config).await.expect("its path is too long, and that is a warning");
    assert!(!deep.join("control.sock").exists());
    let mut config = Config::default();
    config.net.data_dir = Some(dir.path().join("data"));
    config.management.control_socket = Some(PathBuf::new());
    let other = Node::start(config).await.expect("it starts");
    assert!(!dir.path().join("data/control.sock").exists(), "none was wanted");
    node.stop().await;
    other.stop().await;
}
