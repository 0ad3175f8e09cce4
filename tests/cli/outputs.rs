//! Forms of output: JSON of every command, `--watch`, completions, man pages, and the variables
//! that name a node.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::asking::{ended, json, node_at, settings, start};
use crate::waits::SOON;
use crate::{ostraca, run, said, watch};

#[test]
fn commands_without_a_node_print_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (code, answer, _) = ended(&run(&["config", "--defaults", "--json"]));
    let defaults = json(&answer);
    assert_eq!((code, &defaults["management"]["remote"]), (0, &"read".into()));
    assert_eq!(defaults["cluster"]["shutdown"]["cluster-leave"]["timeout"], "5s");

    std::fs::write(path("node.toml"), "[cluster]\nseeds = [\"10.0.0.1:1\"]\n").expect("written");
    let (code, answer, _) = ended(&run(&["config", "--check", &path("node.toml"), "--json"]));
    let checked = json(&answer);
    assert_eq!((code, &checked["file"]), (0, &path("node.toml").into()));
    assert!(checked["warnings"].is_array(), "{checked}");

    let file = path("node.toml");
    let file = file.as_str();
    for order in [["--check", "--json", file], ["--json", file, "--check"]] {
        let again = ended(&run(&[&["config"], &order[..]].concat()));
        assert_eq!(again, (0, answer.clone(), String::new()), "{order:?}");
    }
    for wrong in [&["--check"][..], &[file], &["--defaults", file], &["--check", "--defaults"]] {
        let (code, answer, errors) = ended(&run(&[&["config"], wrong].concat()));
        assert_eq!((code, answer.as_str()), (2, ""), "{wrong:?}: {errors}");
    }

    let secret = json(&ended(&run(&["secret", "--json"])).1);
    assert_eq!(secret["secret"].as_str().map(str::len), Some(64));
    let made = json(&ended(&run(&["secret", "--json", "--out", &path("secret")])).1);
    assert_eq!(made["file"], path("secret"));

    let plot = path("plot.svg");
    let sim = ["sim", "--nodes", "3", "--changes", "2", "--json", "--plot", &plot];
    let figures = json(&ended(&run(&sim)).1);
    assert_eq!((&figures["nodes"], &figures["changes"]), (&3.into(), &2.into()));
    let trips = figures["one_way_trips"].as_f64().expect("a figure");
    assert!(trips >= figures["bound"]["one_way_trips"].as_f64().expect("a figure"), "{figures}");
}

#[test]
fn file_names_need_not_be_utf8() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
    let [secret, file, pages] = [path(b"secret\xff"), path(b"node\xff.toml"), path(b"man\xff")];
    std::fs::write(&file, "").expect("written");
    let commands = [
        (&["secret", "--json", "--out"][..], &secret),
        (&["config", "--check", "--json"], &file),
        (&["man", "--json", "--out"], &pages),
    ];
    for (arguments, path) in commands {
        let (code, answer, errors) =
            ended(&ostraca().args(arguments).arg(path).output().expect("runs"));
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        assert!(json(&answer).to_string().contains('\u{fffd}'), "{answer}");
    }
    assert!(secret.exists() && pages.join("ostraca.1").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_set_prints_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let set = ["data", "set", "motd", "hi", "--json", "--socket", &socket];
    let (code, answer, _) = ended(&run(&set));
    assert_eq!(code, 0);
    assert_eq!(json(&answer), json("{\"set\":\"motd\",\"consistency\":\"local\"}"));
    node.stop().await;
}

#[test]
fn members_watch_prints_an_object_for_each_change() {
    let (_dir, file) = settings();
    let mut node = start(&file);
    node.tells(&["cluster.member", "\"what\":\"up\""]);
    let mut command = ostraca();
    command.args(["members", "--watch", "--json", "--config"]).arg(&file).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || json(&lines.next().expect("a line").expect("UTF-8"));
    assert_eq!(next()["preparing_for_shutdown"], false);
    let config = file.to_str().expect("UTF-8");
    assert!(run(&["prepare-shutdown", "--yes", "--config", config]).status.success());
    let until = Instant::now() + SOON;
    while next()["preparing_for_shutdown"] != true {
        assert!(Instant::now() < until, "it is never shown");
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("our child process");
    assert!(child.wait().expect("our child process").success());
}

/// The tool reports the pause at most 8 s after it begins; the test waits for its exit.
#[test]
fn data_watch_reports_a_node_that_pauses_later() {
    let (_dir, file) = settings();
    let mut node = start(&file);
    node.tells(&["cluster.member", "\"what\":\"up\""]);
    let mut command = ostraca();
    command.args(["data", "watch", "motd", "--config"]).arg(&file);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.next().expect("a line").expect("UTF-8").ends_with("holds nothing"));
    watch(&node);
    kill_process(Pid::from_child(&node.child), Signal::STOP).expect("our child process");
    let output = child.wait_with_output().expect("it ends");
    let (_, errors) = said(&output);
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(errors.contains("stopped (SIGSTOP, a debugger) or overloaded"), "{errors}");
}

#[test]
fn completions_and_man_pages_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, answer, errors) = ended(&run(&["completions", shell]));
        assert_eq!((code, errors.as_str()), (0, ""), "{shell}");
        assert!(answer.contains("stop-shards") && answer.contains("majority"), "{shell}");
    }
    let (code, answer, _) = ended(&run(&["man"]));
    assert_eq!(code, 0);
    assert!(answer.contains(".TH ostraca 1") && answer.contains("stop\\-shards"), "{answer}");
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().to_str().expect("UTF-8");
    assert!(run(&["man", "--out", out]).status.success());
    assert_eq!(run(&["man", "--json"]).status.code(), Some(2), "a page has no form in JSON");
    let (code, _, errors) = ended(&run(&["man", "--out", "/dev/null"]));
    assert_eq!(code, 1);
    assert!(errors.contains("man pages can't be written to /dev/null: "), "{errors}");
    for page in ["ostraca.1", "ostraca-node.1", "ostraca-data-get.1", "ostraca-stop-shards.1"] {
        assert!(dir.path().join(page).exists(), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_variables_name_the_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let file = dir.path().join("node.toml");
    let text = format!("[management]\ncontrol-socket = {socket:?}\n");
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("UTF-8");
    let members = |variables: &[(&str, &str)], options: &[&str]| {
        let mut command = ostraca();
        command.args(["members", "--json"]).args(options).envs(variables.iter().copied());
        ended(&command.output().expect("it runs"))
    };
    for variable in [("OSTRACA_CONFIG", file), ("OSTRACA_SOCKET", &socket)] {
        assert_eq!(members(&[variable], &[]).0, 0, "{variable:?}");
    }
    let both = [("OSTRACA_CONFIG", file), ("OSTRACA_SOCKET", "/nowhere/s")];
    let (code, _, errors) = members(&both, &[]);
    assert_eq!(code, 2);
    assert!(errors.contains("both OSTRACA_CONFIG and OSTRACA_SOCKET are set"), "{errors}");
    assert_eq!(members(&both, &["--socket", &socket]).0, 0, "an option chooses");
    assert_eq!(members(&both, &["--config", file]).0, 0, "an option chooses");
    let at = node.addresses()[0].to_string();
    let at = at.split("/p2p/").next().expect("a part");
    let host_port = at.replace("/ip4/", "").replace("/tcp/", ":");
    assert_eq!(members(&both[..1], &["--node", &host_port]).0, 0, "{host_port}");
    node.stop().await;
}
