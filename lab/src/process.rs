//! Values from `/proc` about processes and the machine.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// CPU time that all threads of a process have used, from the scheduler's own count in nanoseconds
/// (Documentation/scheduler/sched-stats.rst in the kernel tree).
pub fn run_time(pid: u32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut total = 0;
    for entry in fs::read_dir(&folder).with_context(|| folder.clone())?.flatten() {
        // A thread may end between the listing and the reading.
        if let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) {
            let first = text.split_whitespace().next().context("schedstat is empty")?;
            total += first.parse::<u64>().context("schedstat has no number")?;
        }
    }
    Ok(Duration::from_nanos(total))
}

/// CPU time of several processes.
pub fn run_times(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| run_time(*pid)).sum()
}

/// CPU time of these processes in user space and in the kernel, in seconds (`utime` and `stime` of proc_pid_stat(5)).
/// The kernel divides it by clock ticks.
pub fn user_and_system(pids: &[u32]) -> Result<[f64; 2]> {
    let mut sums = [0.0; 2];
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
        // The name may contain blanks; the state after it is the third field.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11);
        for (sum, field) in sums.iter_mut().zip(fields) {
            // USER_HZ is 100 in all values that Linux exports.
            *sum += field.parse::<f64>().with_context(|| path.clone())? / 100.0;
        }
    }
    Ok(sums)
}

/// Child processes.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |number: &u32| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    numbers.filter(|number| parent(number) == Some(pid)).collect()
}

/// Sends a signal to a process.
pub fn signal(signal: Signal, pid: u32) -> Result<()> {
    kill(Pid::from_raw(i32::try_from(pid)?), signal).with_context(|| format!("process {pid}"))
}

/// Waits until a process has an AF_PACKET socket that receives, seen from its own network namespace.
pub fn wait_for_packet_socket(pid: u32, timeout: Duration) -> Result<()> {
    let path = format!("/proc/{pid}/net/packet");
    let end = Instant::now() + timeout;
    loop {
        let sockets = fs::read_to_string(&path).with_context(|| format!("{path}: it has ended"))?;
        if sockets.lines().skip(1).any(is_running_socket) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "no packet socket within {timeout:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `sk RefCnt Type Proto Iface R Rmem User Inode`: bound to all protocols (0003) and running.
fn is_running_socket(line: &str) -> bool {
    let mut fields = line.split_whitespace().skip(3);
    fields.next() == Some("0003") && fields.nth(1) == Some("1")
}

/// Waits until a process no longer uses its CPU: until `quiet` has passed in which it ran less than 5 % of the
/// time. A process that never sleeps reaches `most`.
pub fn wait_until_idle(pid: u32, quiet: Duration, most: Duration) -> Result<()> {
    wait_until_all_idle(&[pid], quiet, most)
}

/// Waits in the same way for several processes together.
pub fn wait_until_all_idle(pids: &[u32], quiet: Duration, most: Duration) -> Result<()> {
    let start = Instant::now();
    let (mut since, mut used) = (start, run_times(pids)?);
    while start.elapsed() < most && since.elapsed() < quiet {
        std::thread::sleep(Duration::from_millis(10));
        let now = run_times(pids)?;
        if (now - used) * 20 > since.elapsed() {
            (since, used) = (Instant::now(), now);
        }
    }
    Ok(())
}

/// CPU time of one core at a moment, in clock ticks (proc_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreTime {
    idle: u64,
    steal: u64,
    interrupts: u64,
    total: u64,
}

impl CoreTime {
    /// Reads the current values.
    pub fn now(core: usize) -> Result<CoreTime> {
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        parse_stat(&text, core).with_context(|| format!("/proc/stat has no core {core}"))
    }

    /// Fraction of the time since `before` in which the core worked, and fraction that the hypervisor took.
    pub fn shares(&self, before: &CoreTime) -> (f64, f64) {
        let total = self.total.saturating_sub(before.total).max(1) as f64;
        let steal = self.steal.saturating_sub(before.steal) as f64 / total;
        let idle = self.idle.saturating_sub(before.idle) as f64 / total;
        ((1.0 - idle - steal).max(0.0), steal)
    }

    /// Fraction of the time since `before` that the core spent in interrupts, including soft ones.
    pub fn interrupted(&self, before: &CoreTime) -> f64 {
        let total = self.total.saturating_sub(before.total).max(1) as f64;
        self.interrupts.saturating_sub(before.interrupts) as f64 / total
    }
}

fn parse_stat(text: &str, core: usize) -> Option<CoreTime> {
    let name = format!("cpu{core}");
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&name))?;
    // user nice system idle iowait irq softirq steal; guest times are included in user and nice.
    let values: Vec<u64> =
        line.split_whitespace().skip(1).take(8).map_while(|field| field.parse().ok()).collect();
    Some(CoreTime {
        idle: values.get(3)? + values.get(4)?,
        steal: *values.get(7)?,
        interrupts: values.get(5)? + values.get(6)?,
        total: values.iter().sum(),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn times_of_a_core_are_read() {
        let before = parse_stat("cpu  0 0 0 0 0 0 0 0\ncpu1 10 1 20 60 3 0 4 2 1 0\n", 1).unwrap();
        assert_eq!(before, CoreTime { idle: 63, steal: 2, interrupts: 4, total: 100 });
        let after = CoreTime { idle: 73, steal: 12, interrupts: 29, total: 200 };
        assert!((after.interrupted(&before) - 0.25).abs() < 1e-9);
        let (busy, steal) = after.shares(&before);
        assert!((busy - 0.8).abs() < 1e-9 && (steal - 0.1).abs() < 1e-9, "{busy} {steal}");
        assert!(parse_stat("cpu 1 2 3 4 5 6 7 8\ncpu10 1 2 3 4 5 6 7 8\n", 1).is_none());
        assert!(parse_stat("cpu1 1 2 3", 1).is_none());
    }

    #[test]
    fn sockets_that_receive_are_told_from_others() {
        assert!(is_running_socket("00000000c64b8c9f 3      3    0003   2     1 0      0      38261"));
        assert!(!is_running_socket("00000000c64b8c9f 3      3    0003   2     0 0      0      38261"));
        assert!(!is_running_socket("00000000c64b8c9f 3      3    0000   0     1 0      0      38261"));
    }

    #[test]
    fn children_are_found_and_their_times_add_up() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let me = std::process::id();
        assert!(children(me).contains(&child.id()));
        assert!(children(child.id()).is_empty());
        assert!(run_times(&[me, child.id()]).unwrap() >= run_time(child.id()).unwrap());
        assert!(user_and_system(&[me, child.id()]).unwrap().iter().all(|time| (0.0..1e6).contains(time)));
        signal(Signal::SIGKILL, child.id()).unwrap();
        child.wait().unwrap();
        assert!(signal(Signal::SIGKILL, child.id()).is_err());
    }

    #[test]
    fn working_costs_time_and_sleeping_does_not() {
        let me = std::process::id();
        let (before, start) = (run_time(me).unwrap(), Instant::now());
        // Threads of other tests may end meanwhile, with their time; and a busy machine may run other processes first.
        while run_time(me).unwrap() <= before {
            assert!(start.elapsed() < Duration::from_secs(20), "working costs no time");
        }
        assert!(run_time(u32::MAX).is_err());
    }
}
