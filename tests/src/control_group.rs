//! Control groups with a memory limit, and the kernel's memory accounting of their processes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group with a memory limit; removed on drop.
#[derive(Debug)]
pub struct ControlGroup {
    folder: PathBuf,
    /// Names of the files of this cgroup version.
    files: &'static Files,
}

#[derive(Debug)]
struct Files {
    root: &'static str,
    limit: &'static str,
    /// File with the number of processes killed for memory.
    events: &'static str,
    /// File with the largest number of bytes charged at a time.
    peak: &'static str,
}

/// The two versions: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
const VERSIONS: [Files; 2] = [
    Files {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        events: "memory.oom_control",
        peak: "memory.max_usage_in_bytes",
    },
    Files { root: "/sys/fs/cgroup", limit: "memory.max", events: "memory.events", peak: "memory.peak" },
];

impl ControlGroup {
    /// `None`, after a message, if control groups cannot be created on this machine.
    pub fn limited(test: &str, bytes: u64) -> Option<ControlGroup> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("wltest-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        for files in &VERSIONS {
            let group = ControlGroup { folder: Path::new(files.root).join(&name), files };
            if fs::create_dir(&group.folder).is_ok()
                && fs::write(group.folder.join(files.limit), bytes.to_string()).is_ok()
            {
                return Some(group);
            }
        }
        println!("left out: {test} (no control group with a memory limit can be made)");
        None
    }

    /// A command that runs in the group from its start.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let procs = self.folder.join("cgroup.procs");
        let enter = format!("echo $$ >{} && exec \"$0\" \"$@\"", procs.display());
        let mut command = Command::new("sh");
        command.args(["-c", &enter]).arg(program);
        command
    }

    /// Number of processes in the group that the kernel killed for memory.
    ///
    /// # Panics
    /// If the kernel does not report it.
    pub fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.files.events)).unwrap();
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .expect("a count of killed processes");
        count.trim().parse().unwrap()
    }

    /// The largest memory charged to the group at a time, in bytes, page cache included; `None` on kernels before 5.19
    /// with version 2.
    pub fn peak(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.files.peak)).ok()?.trim().parse().ok()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Fails if the group was never created, or if a process is still in it, in which case its own test has failed.
        let _ = fs::remove_dir(&self.folder);
    }
}
