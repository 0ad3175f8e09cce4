//! The log of a test that runs in a process of its own, because the log belongs to the whole
//! process.

use std::io::Write;
use std::sync::{Mutex, MutexGuard};

use crate::waits::SOON;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn log() -> MutexGuard<'static, Vec<u8>> {
    LOG.lock().expect("no test panics under it")
}

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        log().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Additional warnings that an overloaded host may cause.
const OVERLOADED: [&str; 3] =
    ["node.slow_turn", "this node was stopped for", "cluster.lease_lapsed"];

/// The lines logged so far that contain all of these words.
pub(crate) fn lines(words: &[&str]) -> Vec<String> {
    let text = String::from_utf8(log().clone()).expect("UTF-8");
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    let of_load = |line: &&str| OVERLOADED.iter().any(|word| line.contains(word));
    text.lines().filter(|line| has_all(line) && !of_load(line)).map(str::to_owned).collect()
}

/// Runs the named test of a module again in a process of its own; inside that process, runs `what`.
pub(crate) async fn alone(module: &str, test: &str, what: impl Future<Output = ()>) {
    const ALONE: &str = "OSTRACA_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return what.await;
    }
    let name = format!("{module}::{test}");
    let this = std::env::current_exe().expect("this program");
    let mut run = tokio::process::Command::new(this);
    run.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").kill_on_drop(true);
    let output = tokio::time::timeout(4 * SOON, run.output()).await.expect("it hangs");
    let output = output.expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("1 passed"), "{name} is not the test's name: {told}");
}

pub(crate) fn begin_log() {
    tracing_subscriber::fmt()
        .with_env_filter("ostraca=debug")
        .with_ansi(false)
        .with_writer(|| Log)
        .init();
}
