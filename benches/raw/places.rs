//! Placement of two processes on separate cores, like two hosts.
//!
//! The kernel puts a process that another one wakes on the same core or on an idle one. A round
//! trip costs two context switches in the first case, and two interrupts of a sleeping core in the
//! second, several times as much. So round trips are compared with a fixed placement.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// While this value lives, this process runs on the first half of its available cores, and the
/// other processes on the second half.
pub(crate) struct Places {
    all: CpuSet,
    others: Vec<u32>,
}

impl Places {
    /// Pins the processes. `None` if there is only one core, or the system does not permit it.
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

/// Pins all threads of a process; threads that it starts later inherit the setting.
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
