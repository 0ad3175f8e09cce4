//! A node has one name in its log, in JSON, in the program's handles and in `explain`.

use rustix::process::Signal;

use crate::asking::{Bell, ended, json, node_at, settings, start};
use crate::memory_log::MemoryLog;
use crate::run;

fn is_name(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    let parts = text.split_once('/');
    parts.is_some_and(|(key, life)| {
        (key.len(), life.len()) == (8, 16) && is_hex(key) && is_hex(life)
    })
}

/// The runtime has one thread, so that this test's thread-local subscriber receives all events of
/// the node.
#[tokio::test]
async fn node_has_one_name_in_log_handles_and_answers() {
    let log = MemoryLog::default();
    let to_log = tracing_subscriber::fmt().json().with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(to_log);
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let bells = node.sharding().start("bell", |_id| Bell).await.expect("it starts");
    bells.entity("big").ask(|reply| reply).await.expect("it rings");
    let me = node.cluster().me().to_string();
    assert!(is_name(&me), "{me}");
    let lines = log.text();
    let listening = lines.lines().find(|line| line.contains("node.listening")).expect("logged");
    assert_eq!(json(listening)["fields"]["node"], me.as_str());

    let ask = async |arguments: &[&str]| {
        let arguments = [arguments, &["--socket", &socket]].concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let asked = tokio::task::spawn_blocking(move || {
            run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        });
        ended(&asked.await.expect("no panic")).1
    };
    let members = json(&ask(&["members", "--json"]).await);
    assert_eq!((&members["me"], &members["members"][0]["node"]), (&me[..].into(), &me[..].into()));
    let shards = json(&ask(&["shards", "bell", "--json"]).await);
    assert_eq!(shards["regions"][0]["node"], me.as_str());
    assert_eq!(shards["coordinator"], me.as_str());
    let why = ask(&["explain", "entity", "bell", "big"]).await;
    assert!(why.contains(&format!("which lives on {me}\n")), "{why}");
    assert!(why.contains(&format!("coordinator on {me}: ")), "{why}");
    let of_node = ask(&["explain", "node", "bell", &me]).await;
    assert!(of_node.starts_with(&format!("node {me} of bell had a part in ")), "{of_node}");
    node.stop().await;
}

#[test]
fn log_and_members_agree_on_node_and_configuration() {
    let (_dir, file) = settings();
    let mut node = start(&file);
    let (mut up, mut installed) = (None, None);
    while up.is_none() || installed.is_none() {
        let fields = &json(&node.tells(&["\"fields\""]))["fields"];
        match fields["message"].as_str() {
            Some("cluster.member") if fields["what"] == "up" => up = Some(fields["node"].clone()),
            Some("ddata.installed") => installed = fields["epoch"].as_str().map(str::to_owned),
            _ => {}
        }
    }
    let config = file.to_str().expect("UTF-8");
    let (code, answer, _) = ended(&run(&["members", "--json", "--config", config]));
    let members = json(&answer);
    assert_eq!((code, Some(&members["me"])), (0, up.as_ref()));
    let (number, text) = (installed.expect("logged"), run(&["members", "--config", config]));
    let text = ended(&text).1;
    assert!(text.contains(&format!("configuration {number}: ")), "{text}");
    node.signal(Signal::TERM);
    assert!(node.child.wait().expect("our child process").success());
}
