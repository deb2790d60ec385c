//! Data of a process from `/proc`.

use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::{Lab, sys};

/// True if the calling test has a process of its own, which tests that measure or change their process need. Otherwise
/// runs `test` (its full name, as in `processes::nothing_leaks`) in a new process, and returns false after it has
/// passed there.
///
/// # Panics
/// If the test cannot be run that way, or fails.
pub fn in_own_process(test: &str) -> bool {
    const MARK: &str = "WIRELANE_TEST_IN_OWN_PROCESS";
    if env::var_os(MARK).is_some_and(|name| name == test) {
        return true;
    }
    let program = env::current_exe().expect("the running test has a program");
    let output = Command::new(program)
        .args([test, "--exact", "--test-threads=1", "--show-output"])
        .env(MARK, test)
        .output()
        .expect("the running test can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    // Indented: scripts/test counts the lines of the outer run only.
    assert!(
        output.status.success() && text.contains("test result: ok. 1 passed"),
        "{test} in a process of its own: {}",
        format!("{text}{}", String::from_utf8_lossy(&output.stderr)).replace('\n', "\n  ")
    );
    for line in text.lines().filter(|line| line.starts_with("left out: ")) {
        println!("{line}");
    }
    false
}

/// Number of open file descriptors of a process.
///
/// # Errors
/// If the process does not exist or belongs to another user.
pub fn open_descriptors(pid: u32) -> Result<usize> {
    let folder = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&folder).with_context(|| folder.clone())?.count())
}

/// Ids of the BPF links that a process holds, in the order of its descriptors.
///
/// # Errors
/// If the process does not exist or belongs to another user.
pub fn bpf_links(pid: u32) -> Result<Vec<u32>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut links = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.clone())? {
        // The descriptor may have been closed meanwhile.
        let Ok(info) = fs::read_to_string(entry?.path()) else { continue };
        links.extend(
            info.lines().filter_map(|line| line.strip_prefix("link_id:")?.trim().parse::<u32>().ok()),
        );
    }
    Ok(links)
}

/// Process ids of the brokers of the captures on a lab's receiver (`crates/wirelane-privsep/src/broker/`): they are
/// in its network namespace.
///
/// # Panics
/// If `/proc` or the namespace cannot be read.
pub fn brokers(lab: &Lab) -> Vec<u32> {
    let namespace = &lab.receiver().namespace;
    let theirs = lab.exec(namespace, &["readlink", "/proc/self/ns/net"]).expect("the namespace is there");
    let entries = fs::read_dir("/proc").expect("/proc is there");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse::<u32>().ok());
    pids.filter(|pid| {
        // Processes may end meanwhile.
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let namespace = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        comm.trim() == "wl-broker" && namespace.to_str() == Some(theirs.trim())
    })
    .collect()
}

/// CPU time of a process, user and system together, all threads, in steps of 10 ms.
///
/// # Errors
/// If the process does not exist.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = parse_cpu_ticks(&stat).with_context(|| format!("{path} cannot be read: {stat}"))?;
    Ok(Duration::from_millis(ticks * 1000 / sys::clock_ticks()))
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// If the process does not exist.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| path.clone())?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .with_context(|| format!("{path} has no VmRSS: the process has ended"))?;
    Ok(kib * 1024)
}

/// utime + stime, fields 14 and 15 (proc_pid_stat(5)). The name in field 2 may hold spaces and brackets.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 100 0 0 0 12 30 0 0 20 0 1 0 100 1 1";
        assert_eq!(parse_cpu_ticks(stat), Some(42));
        assert_eq!(parse_cpu_ticks("7 (short) S 1"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let me = std::process::id();
        let before = open_descriptors(me).unwrap();
        assert!(before >= 3);
        assert!(resident_bytes(me).unwrap() > 4096);
        assert!(cpu_time(me).is_ok());
        assert!(cpu_time(u32::MAX).is_err());
    }
}
