//! A second process that runs this program, and executes the commands that it reads line by line.

use std::error::Error;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Timeout of any command.
const PATIENCE: Duration = Duration::from_secs(120);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A process that is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(args: &[&str]) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or("no stdin")?;
        let said = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        Ok(Self { child, orders, said })
    }

    pub(crate) async fn order(&mut self, order: &str) -> Outcome<()> {
        Ok(self.orders.write_all(format!("{order}\n").as_bytes()).await?)
    }

    pub(crate) async fn line(&mut self) -> Outcome<String> {
        let line = tokio::time::timeout(PATIENCE, self.said.next_line()).await??;
        line.ok_or_else(|| "a process has ended".into())
    }
}
