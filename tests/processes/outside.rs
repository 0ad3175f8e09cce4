//! [`Outside`]: provider of a lease outside of the cluster, as a database would be. It is a journal
//! file under a lock, which all processes can access during a network partition.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use futures::future::BoxFuture;
use ostraca::node::downing_lease::{DowningLease, LeaseError, LeaseName};
use rustix::fs::{FlockOperation, flock};

use crate::waits;

/// An entry of the journal; owners are incarnations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Granted(String),
    Refused(String),
    Returned(String),
    /// The lease has expired.
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

/// The lease provider, which each process opens on the same journal.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    journal: PathBuf,
}

/// Holder of the lease after these entries.
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

/// The incarnation in a node's name.
pub(crate) fn incarnation(node: &str) -> &str {
    node.rsplit('/').next().unwrap_or(node)
}

impl Outside {
    pub(crate) const fn in_file(journal: PathBuf) -> Self {
        Self { journal }
    }

    /// Appends the entry that `act` derives from all entries so far. Returns all entries.
    fn add(&self, act: impl FnOnce(&[Entry]) -> Option<Entry>) -> io::Result<Vec<Entry>> {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).read(true).append(true).open(&self.journal)?;
        flock(&file, FlockOperation::LockExclusive)?; // until the file is closed
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut entries: Vec<Entry> = text.lines().map(Entry::parse).collect();
        if let Some(entry) = act(&entries) {
            writeln!(file, "{entry}")?;
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Lets the lease expire.
    pub(crate) fn runs_out(&self) {
        self.add(|_| Some(Entry::RanOut)).expect("the journal is writable");
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.add(|_| None).expect("the journal is readable")
    }

    /// Waits until the lease is held. Returns the holder.
    pub(crate) async fn is_held(&self) -> String {
        let entries = self.until("the lease is held", |entries| holder(entries).is_some()).await;
        holder(&entries).expect("the condition was met").to_owned()
    }

    /// Waits until the entries meet a condition.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
        waits::until(what, async || self.entries(), |entries| is_so(entries)).await
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
