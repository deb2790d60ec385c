//! Version of the running kernel, and the warnings in its log.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Major and minor number of the running kernel, as in 6.1.
///
/// # Errors
/// If `/proc` cannot be read, or its version does not start with two numbers.
pub fn kernel_version() -> Result<(u32, u32)> {
    let path = "/proc/sys/kernel/osrelease";
    let release = std::fs::read_to_string(path).context(path)?;
    parse(&release).with_context(|| format!("{path} says {release}"))
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Words with which the kernel begins a report about a fault of its own.
const REPORTS: [&str; 7] =
    ["WARNING:", "BUG:", "Oops", "general protection", "stall", "lockup", "unable to handle"];
/// Number of lines taken of a report that has no end mark.
const REPORT_LINES: usize = 60;
/// Words in a report that concerns captures. The kernel's log is shared by the whole machine, and others write to it
/// too.
const OURS: [&str; 6] = ["bpf", "xdp", "tcx", "veth", "wl_", "wirelane"];

/// The kernel's log from a moment on.
#[derive(Debug)]
pub struct KernelLog {
    /// First lines of earlier reports. Each line of the log has its time, so no two are the same; their further lines
    /// may still be written.
    known: Vec<String>,
}

impl KernelLog {
    /// Starts watching the log. Needs root.
    ///
    /// # Errors
    /// If `dmesg` does not work.
    pub fn begin() -> Result<KernelLog> {
        Ok(KernelLog { known: reports(&log()?).iter().map(|report| report[0].to_owned()).collect() })
    }

    /// Reports that the kernel has written since then about BPF and the devices of the tests: warnings, oopses, stalls.
    ///
    /// # Errors
    /// If `dmesg` does not work.
    pub fn complaints(&self) -> Result<Vec<String>> {
        Ok(self.complaints_in(&log()?))
    }

    fn complaints_in(&self, log: &str) -> Vec<String> {
        let is_ours = |text: &String| OURS.iter().any(|word| text.to_lowercase().contains(word));
        let new =
            reports(log).into_iter().filter(|report| !self.known.iter().any(|first| first == report[0]));
        new.map(|report| report.join("\n")).filter(is_ours).collect()
    }
}

fn log() -> Result<String> {
    let output = Command::new("dmesg").output().context("starting dmesg")?;
    ensure!(output.status.success(), "dmesg: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The reports in a log, each at least one line.
fn reports(log: &str) -> Vec<Vec<&str>> {
    let mut found: Vec<Vec<&str>> = Vec::new();
    let mut open = false;
    for line in log.lines() {
        let begins = REPORTS.iter().any(|word| line.contains(word));
        match found.last_mut().filter(|report| open && report.len() < REPORT_LINES) {
            Some(report) => report.push(line),
            None if begins => found.push(vec![line]),
            None => continue,
        }
        open = !line.contains("---[ end");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_several_distributions_are_read() {
        assert_eq!(parse("6.1.0-50-amd64"), Some((6, 1)));
        assert_eq!(parse("6.12.107+deb13-amd64\n"), Some((6, 12)));
        assert_eq!(parse("7.2-rc1"), Some((7, 2)));
        assert_eq!(parse("next"), None);
    }

    #[test]
    fn reports_that_concern_us_are_found() {
        let before = "[1.0] WARNING: CPU: 0 at kernel/bpf/core.c:1\n[1.1] ---[ end trace 0 ]---\n";
        let since = "[3.0] WARNING: CPU: 1 at fs/ext4/inode.c:7\n[3.1] RIP: ext4_write\n[3.2] ---[ end trace 0 ]---\n\
                     [4.0] veth0: entered promiscuous mode\n\
                     [5.0] BUG: unable to handle page fault\n[5.1] RIP: 0010:bpf_prog_1f_wirelane_in+0x1\n";
        let first_lines = |log| reports(log).iter().map(|report| report[0].to_owned()).collect();
        let found = KernelLog { known: Vec::new() }.complaints_in(since);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("page fault") && found[0].contains("wirelane_in"), "{found:?}");
        let log = KernelLog { known: first_lines(before) };
        assert_eq!(log.known.len(), 1);
        assert_eq!(log.complaints_in(&format!("{before}{since}")), found);
        assert!(log.complaints_in(before).is_empty());
        // A report that was being written at the start counts as earlier.
        let begun = "[7.0] BUG: soft lockup\n";
        let log = KernelLog { known: first_lines(begun) };
        assert!(log.complaints_in(&format!("{begun}[7.1] xdp_do_generic\n")).is_empty());
    }

    #[test]
    fn the_log_of_this_machine_can_be_read() {
        if crate::require_root("the_log_of_this_machine_can_be_read") {
            KernelLog::begin().unwrap().complaints().unwrap();
        }
    }
}
