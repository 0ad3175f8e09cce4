//! A store of one lease outside of any cluster, as a database would be: a file that all processes
//! reach, whatever becomes of the network. It is a journal under a lock.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use ostraca::node::downing::{DowningLease, LeaseError, LeaseName};
use rustix::fs::{FlockOperation, flock};

use crate::peer::PATIENCE;

/// What came of a request; owners are incarnations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Granted(String),
    Refused(String),
    Returned(String),
    /// Nobody had heard of its holder for long.
    RanOut,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(owner) => write!(f, "granted {owner}"),
            Self::Refused(owner) => write!(f, "refused {owner}"),
            Self::Returned(owner) => write!(f, "returned {owner}"),
            Self::RanOut => write!(f, "ran-out"),
        }
    }
}

impl Entry {
    fn parse(line: &str) -> Self {
        match line.split_once(' ') {
            Some(("granted", owner)) => Self::Granted(owner.to_owned()),
            Some(("refused", owner)) => Self::Refused(owner.to_owned()),
            Some(("returned", owner)) => Self::Returned(owner.to_owned()),
            _ if line == "ran-out" => Self::RanOut,
            _ => panic!("no entry: {line:?}"),
        }
    }
}

/// The store, as each process opens it.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    journal: PathBuf,
}

/// Who has the lease after all that.
fn holder(entries: &[Entry]) -> Option<&str> {
    entries.iter().fold(None, |holder, entry| match entry {
        Entry::Granted(owner) => Some(owner.as_str()),
        Entry::Returned(owner) => holder.filter(|holder| *holder != owner.as_str()),
        Entry::RanOut => None,
        Entry::Refused(_) => holder,
    })
}

fn owner(lease: &LeaseName) -> String {
    incarnation(&lease.owner).to_owned()
}

/// Of a node's name.
pub(crate) fn incarnation(node: &str) -> &str {
    node.rsplit('/').next().unwrap_or(node)
}

impl Outside {
    pub(crate) const fn in_file(journal: PathBuf) -> Self {
        Self { journal }
    }

    /// Adds what `act` makes of all entries so far.
    fn add(&self, act: impl FnOnce(&[Entry]) -> Option<Entry>) -> io::Result<Vec<Entry>> {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).read(true).append(true).open(&self.journal)?;
        flock(&file, FlockOperation::LockExclusive)?; // until it is closed
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut entries: Vec<Entry> = text.lines().map(Entry::parse).collect();
        if let Some(entry) = act(&entries) {
            writeln!(file, "{entry}")?;
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The holder is given up for dead.
    pub(crate) fn runs_out(&self) {
        self.add(|_| Some(Entry::RanOut)).expect("it is written");
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.add(|_| None).expect("it is read")
    }

    /// Waits until somebody has the lease; who.
    pub(crate) async fn is_held(&self) -> String {
        let entries = self.until("somebody has it", |entries| holder(entries).is_some()).await;
        holder(&entries).expect("just seen").to_owned()
    }

    /// Waits until its entries are like that.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
        let until = Instant::now() + PATIENCE;
        loop {
            let entries = self.entries();
            if is_so(&entries) {
                return entries;
            }
            assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}: {entries:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl DowningLease for Outside {
    fn acquire(&self, lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>> {
        let (store, owner) = (self.clone(), owner(&lease));
        Box::pin(async move {
            let entries = store.add(|entries| {
                let is_free = holder(entries).is_none_or(|holder| holder == owner);
                let entry: fn(String) -> Entry =
                    if is_free { Entry::Granted } else { Entry::Refused };
                Some(entry(owner.clone()))
            })?;
            Ok(holder(&entries) == Some(owner.as_str()))
        })
    }

    fn release(&self, lease: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>> {
        let (store, owner) = (self.clone(), owner(&lease));
        Box::pin(async move {
            store.add(|_| Some(Entry::Returned(owner)))?;
            Ok(())
        })
    }
}
