//! Processes by id and start time, and the folder of files that running processes share.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use crate::{Error, Result};

/// The folder of root's processes: journals of changed settings, control sockets.
pub const RUN_FOLDER: &str = "/run/wirelane";

/// [`RUN_FOLDER`], created if it does not exist.
///
/// # Errors
/// [`Error::Kernel`] if it cannot be created.
pub fn run_folder() -> Result<PathBuf> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(RUN_FOLDER);
    made.map_err(|source| {
        let action =
            format!("making {RUN_FOLDER} for the journal (only root can, unless it is there already)");
        Error::kernel(action, source)
    })?;
    Ok(PathBuf::from(RUN_FOLDER))
}

/// A process. Its start time distinguishes it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// The process id.
    pub pid: u32,
    /// Start time in clock ticks since boot; 0 if it cannot be read.
    pub start: u64,
}

impl ProcessId {
    /// The calling process.
    pub fn this() -> ProcessId {
        ProcessId::of(std::process::id())
    }

    /// The process that has this id now.
    pub fn of(pid: u32) -> ProcessId {
        let start = stat_of(pid).ok().and_then(|stat| started(&stat)).unwrap_or(0);
        ProcessId { pid, start }
    }

    /// Whether the process still runs.
    pub fn lives(self) -> bool {
        match stat_of(self.pid) {
            Ok(stat) => started(&stat) == Some(self.start),
            // With the mount options hidepid=2,gid=N, /proc hides other users' processes from a process that may not
            // trace them and is not in that group, such as a broker. A process that cannot be inspected counts
            // as running.
            Err(_) => i32::try_from(self.pid)
                .ok()
                .and_then(rustix::process::Pid::from_raw)
                .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)),
        }
    }
}

fn stat_of(pid: u32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/stat"))
}

/// Start time of a process (proc_pid_stat(5), field 22); `None` if it has ended.
fn started(stat: &str) -> Option<u64> {
    // The name in field 2 may hold spaces and brackets. Field 3 is the state: a zombie has ended.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}
