//! Captures yield the CPU to other programs, unless they record or have the device for themselves.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture};
use wirelane_tests::{Lab, require_root};

/// Policy of sched(7) of a thread that yields.
const BATCH: &str = "3";
const OTHER: &str = "0";

/// Nice values and policies of the threads that handle packets and results: `/proc/PID/task/TID/stat`, fields 19 and 41.
fn priorities(pid: u32) -> BTreeSet<(String, i32, String)> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let of_thread = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (head, fields) = stat.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        // The first field behind the name is the third.
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let handles = ["wl-worker", "wl-export", "wl-store", "wl-results"];
        handles
            .iter()
            .any(|prefix| name.starts_with(prefix))
            .then(|| (name, fields[16].parse().unwrap(), fields[38].to_owned()))
    };
    std::fs::read_dir(tasks).unwrap().filter_map(of_thread).collect()
}

fn own_nice() -> i32 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    stat.rsplit_once(") ").unwrap().1.split_whitespace().nth(16).unwrap().parse().unwrap()
}

#[test]
fn captures_yield_to_the_programs_of_the_host_unless_they_record() {
    if !require_root("captures_yield_to_the_programs_of_the_host_unless_they_record") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = &lab.receiver().device;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, export, priority) = (path("all.pcapng"), format!("file:{}", path("flows.json")), "--priority");
    let cases: [(&[&str], bool); 7] = [
        (&["count"], true),
        (&["flows", "--export", &export], true),
        (&["http"], true),
        (&["http", priority, "normal"], false),
        (&["count", "--exclusive"], false),
        (&["record", "-w", &file], false),
        (&["record", "--overwrite", "-w", &file, priority, "low"], true),
    ];
    // The nice value of the tests themselves.
    let own = own_nice();
    for (words, yields) in cases {
        let (nice, policy) = if yields { (own.max(10), BATCH) } else { (own, OTHER) };
        let child = capture(&lab, &[words, &["-i", device, "--json"]].concat()).unwrap();
        // The worker starts after the capture is ready.
        let deadline = Instant::now() + LIMIT;
        let threads = loop {
            let threads = priorities(child.pid());
            if threads.iter().any(|(name, ..)| name.starts_with("wl-worker")) {
                break threads;
            }
            assert!(Instant::now() < deadline, "{words:?} has no worker: {threads:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        for (name, is_nice, is_policy) in &threads {
            assert_eq!((*is_nice, &is_policy[..]), (nice, policy), "{words:?}: {name}");
        }
        assert!(child.terminate(LIMIT).unwrap().status.success(), "{words:?}");
    }
}
