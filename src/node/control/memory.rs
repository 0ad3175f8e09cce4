//! The membership file: a small file in the data directory that preserves membership's state across
//! restarts of the node. Each write replaces the whole file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::machine::ControlInbox;
use crate::cluster::gossip::wire::{GOSSIP_BYTES_MAX, GossipDecodeError, decode, encode};
use crate::cluster::membership::port::{MembershipInput, Memory};
use crate::net::identity::write_durably;

/// Name of the file in the data directory.
const FILE: &str = "membership";

/// Pause before a failed write is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// Why the membership file cannot be used. No part of the node was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The file cannot be read.
    #[error("cannot read {path:?}: let the user that runs the node own it (`chown`)")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content of the file cannot be decoded.
    #[error(
        "{path:?} is damaged: restore it from a backup, or start with an empty data directory, \
         and the node joins as a new one; without its memory a seed might found a second cluster, \
         so do that only while the others run"
    )]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Error of the decoder.
        source: GossipDecodeError,
    },
}

/// Reads the membership file. Returns the empty state if there is none, as at the first start, or
/// if the directory does not exist. Blocks.
///
/// # Errors
/// [`MemoryError`]; an empty file, or one longer than [`GOSSIP_BYTES_MAX`], is malformed, and a
/// directory of that name unreadable. The file is kept as it is.
pub(crate) fn load(dir: &Path) -> Result<Memory, MemoryError> {
    let path = dir.join(FILE);
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
        Err(source) => return Err(MemoryError::Unreadable { path, source }),
    };
    decode(&bytes).map_err(|source| MemoryError::Malformed { path, source })
}

/// Reads at most one byte more than the decoder accepts, so that it refuses a longer file.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let most = u64::try_from(GOSSIP_BYTES_MAX).unwrap_or(u64::MAX) + 1; // a longer file is refused
    std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Handle to the task that writes the file for membership, in order, and reports each order with
/// [`MembershipInput::Persisted`] once the file is on disk.
pub(crate) struct MemoryWriter {
    orders: mpsc::UnboundedSender<Memory>, // a few at most: membership waits for each write
}

impl MemoryWriter {
    /// Starts the task on `runtime`. Once the handle is dropped, it carries out the queued orders
    /// and ends; a write that fails then is neither repeated nor reported.
    pub(crate) fn start(
        dir: PathBuf,
        inbox: ControlInbox,
        runtime: &Handle,
    ) -> (Self, JoinHandle<()>) {
        let (orders, mut receiver) = mpsc::unbounded_channel::<Memory>();
        let task = runtime.spawn(async move {
            while let Some(memory) = receiver.recv().await {
                if write(&dir, encode(&memory), || receiver.is_closed()).await {
                    let _ = inbox.fact(MembershipInput::Persisted.into()); // fails after the end
                }
            }
        });
        (Self { orders }, task)
    }

    /// Orders the task to write the file, and returns immediately. No order replaces an earlier
    /// one. Does nothing after the runtime's end.
    pub(crate) fn write(&self, memory: Memory) {
        let _ = self.orders.send(memory); // fails only if the runtime has ended
    }
}

/// Repeats the write, a second after each failure, until it succeeds, because membership must send
/// no message that relies on the state before. Logs each failure. Gives up after a failure if
/// `is_over`, that is, the handle was dropped; the first attempt is made in any case. Returns
/// whether the file is on disk.
async fn write(dir: &Path, bytes: Vec<u8>, is_over: impl Fn() -> bool) -> bool {
    loop {
        let (to, these) = (dir.to_owned(), bytes.clone());
        let why = match spawn_blocking(move || write_durably(&to, FILE, &these)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(
            ?dir,
            why,
            "node.memory_not_written: membership waits for this write; free disk space, or permit \
             this user to write"
        );
        if is_over() {
            return false;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::gossip::ClusterId;
    use crate::node::inbox::InboxLimits;

    #[test]
    fn written_state_is_read_back_and_leaves_no_other_files() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(load(dir.path()).expect("nothing yet"), Memory::default());
        for cluster in [None, Some(ClusterId(7)), Some(ClusterId(8))] {
            let memory = Memory { cluster, ..Memory::default() };
            write_durably(dir.path(), FILE, &encode(&memory)).expect("written");
            assert_eq!(load(dir.path()).expect("readable"), memory);
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }

    #[tokio::test]
    async fn abandoned_write_is_not_reported_as_done() {
        let dir = tempfile::tempdir().expect("a directory");
        let inbox = ControlInbox::new(InboxLimits::default());
        let missing = dir.path().join("missing");
        let (writer, task) = MemoryWriter::start(missing, inbox.clone(), &Handle::current());
        writer.write(Memory::default());
        drop(writer);
        task.await.expect("the task gives up");
        assert_eq!(inbox.waiting().facts, 0);
    }

    #[test]
    fn damaged_file_is_rejected_and_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE);
        for damaged in [&b""[..], b"\xc1", &[0; 64]] {
            std::fs::write(&path, damaged).expect("written");
            let error = load(dir.path()).expect_err("damaged");
            assert!(matches!(error, MemoryError::Malformed { .. }), "{error}");
            assert_eq!(std::fs::read(&path).expect("the file was kept"), damaged);
        }
        std::fs::remove_file(&path).expect("the file was kept");
        std::fs::create_dir(&path).expect("made");
        assert!(matches!(load(dir.path()), Err(MemoryError::Unreadable { .. })));
    }
}
