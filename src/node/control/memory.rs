//! What membership remembers from one life of the node to the next: one small file in the data
//! directory, replaced as a whole.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::machine::ControlInbox;
use crate::cluster::gossip::wire::{GOSSIP_BYTES_MAX, GossipDecodeError, decode, encode};
use crate::cluster::membership::port::{Input, Memory};
use crate::net::identity::write_durably;

const FILE: &str = "membership";

/// After a write that failed, the next attempt waits this long.
const AGAIN: Duration = Duration::from_secs(1);

/// What a former life has left can't be used. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// It can't be read.
    #[error("cannot read {path:?}: let the user that runs the node own it (`chown`)")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It holds something else.
    #[error(
        "{path:?} is damaged: restore it from a backup, or start with an empty data directory, \
         and the node joins as a new one; without its memory a seed might found a second cluster, \
         so do that only while the others run"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        source: GossipDecodeError,
    },
}

/// Reads what a former life has left; nothing at the first start.
pub(crate) fn load(dir: &Path) -> Result<Memory, MemoryError> {
    let path = dir.join(FILE);
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
        Err(source) => return Err(MemoryError::Unreadable { path, source }),
    };
    decode(&bytes).map_err(|source| MemoryError::Malformed { path, source })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let most = u64::try_from(GOSSIP_BYTES_MAX).unwrap_or(u64::MAX) + 1; // one more is refused
    std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes what membership orders, in order, off its thread; membership hears of each.
pub(crate) struct Writing {
    orders: mpsc::UnboundedSender<Memory>, // ≤ a few: membership waits for each
}

impl Writing {
    /// The task ends with the last order, when this is dropped.
    pub(crate) fn start(
        dir: PathBuf,
        inbox: ControlInbox,
        runtime: &Handle,
    ) -> (Self, JoinHandle<()>) {
        let (orders, mut receiver) = mpsc::unbounded_channel::<Memory>();
        let task = runtime.spawn(async move {
            while let Some(memory) = receiver.recv().await {
                write(&dir, encode(&memory), || receiver.is_closed()).await;
                let _ = inbox.fact(Input::Persisted.into()); // it has ended
            }
        });
        (Self { orders }, task)
    }

    /// Orders a write.
    pub(crate) fn write(&self, memory: Memory) {
        let _ = self.orders.send(memory); // refused only when the runtime ends, and all with it
    }
}

/// Tries until it is written, since nothing that relies on it may be said before; or until nobody
/// waits for it any more.
async fn write(dir: &Path, bytes: Vec<u8>, is_over: impl Fn() -> bool) {
    loop {
        let (to, these) = (dir.to_owned(), bytes.clone());
        let why = match spawn_blocking(move || write_durably(&to, FILE, &these)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(
            ?dir,
            why,
            "node.memory_not_written: membership waits for it; make room, or let this user write"
        );
        if is_over() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::gossip::ClusterId;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(load(dir.path()).expect("nothing yet"), Memory::default());
        for cluster in [None, Some(ClusterId(7)), Some(ClusterId(8))] {
            let memory = Memory { cluster, ..Memory::default() };
            write_durably(dir.path(), FILE, &encode(&memory)).expect("written");
            assert_eq!(load(dir.path()).expect("readable"), memory);
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn what_is_damaged_is_refused_and_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE);
        for damaged in [&b""[..], b"\xc1", &[0; 64]] {
            std::fs::write(&path, damaged).expect("written");
            let error = load(dir.path()).expect_err("damaged");
            assert!(matches!(error, MemoryError::Malformed { .. }), "{error}");
            assert_eq!(std::fs::read(&path).expect("it is there"), damaged);
        }
        std::fs::remove_file(&path).expect("it is there");
        std::fs::create_dir(&path).expect("made");
        assert!(matches!(load(dir.path()), Err(MemoryError::Unreadable { .. })));
    }
}
