//! Control groups with a memory limit, and what the kernel says about the memory of what runs in them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group of the test's own with a memory limit; removed when it is dropped.
#[derive(Debug)]
pub struct ControlGroup {
    folder: PathBuf,
    /// Names of the files of this version.
    files: &'static Files,
}

#[derive(Debug)]
struct Files {
    root: &'static str,
    limit: &'static str,
    /// Counts processes that the kernel killed for memory.
    events: &'static str,
    /// The most bytes that were charged at a time.
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
    /// `None`, with a word on why, where this machine lets nobody make one.
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

    /// A command that runs in the group from its start on.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let procs = self.folder.join("cgroup.procs");
        let enter = format!("echo $$ >{} && exec \"$0\" \"$@\"", procs.display());
        let mut command = Command::new("sh");
        command.args(["-c", &enter]).arg(program);
        command
    }

    /// Processes that the kernel killed in it for memory.
    ///
    /// # Panics
    /// Where the kernel does not tell.
    pub fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.files.events)).unwrap();
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .expect("a count of killed processes");
        count.trim().parse().unwrap()
    }

    /// The most memory that was charged to it at a time, in bytes, page cache included; `None` on kernels before 5.19
    /// with version 2.
    pub fn peak(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.files.peak)).ok()?.trim().parse().ok()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Fails where it was never made, or on a process that is still there, whose own test has failed then.
        let _ = fs::remove_dir(&self.folder);
    }
}
