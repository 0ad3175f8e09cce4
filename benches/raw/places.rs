//! Two sides on cores of their own, as two hosts are.
//!
//! The kernel puts a process that another one wakes on the same core or on an idle one, as it sees
//! fit: a round trip costs two switches in the first case, and two interrupts of a sleeping core in
//! the second, several times as much. Round trips are compared where both sides have no choice.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// While this lives, this process runs on the first half of the cores that it may use, and the others
/// on the second half.
pub(crate) struct Places {
    all: CpuSet,
    others: Vec<u32>,
}

impl Places {
    /// `None`: there is one core only, or the system does not let this process choose.
    pub(crate) fn apart(others: Vec<u32>) -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
        let (here, there) = cores.split_at(cores.len() / 2);
        if here.is_empty() {
            return None;
        }
        let places = Self { all, others };
        let is_done = put(std::process::id(), &set(here)).is_some()
            && places.others.iter().all(|other| put(*other, &set(there)).is_some());
        is_done.then_some(places)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for process in self.others.iter().copied().chain([std::process::id()]) {
            let _ = put(process, &self.all); // it may have ended
        }
    }
}

fn set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    set
}

/// All threads of a process that have not ended meanwhile; those that they start later inherit it.
fn put(process: u32, cores: &CpuSet) -> Option<()> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let name = thread.ok()?.file_name();
        let thread = name.to_str()?.parse().ok().and_then(Pid::from_raw)?;
        match sched_setaffinity(Some(thread), cores) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(_) => return None,
        }
    }
    Some(())
}
