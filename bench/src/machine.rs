//! What the results were measured on, without names of hosts or users.

use std::fs;
use std::process::Command;

use crate::receiver::{Receiver, version};

/// The machine and what ran on it.
#[derive(Clone, Debug)]
pub struct Machine {
    lines: Vec<(&'static str, String)>,
    started: Stat,
}

/// CPU time since boot, in ticks (proc_stat(5)).
#[derive(Clone, Copy, Debug, Default)]
struct Stat {
    total: u64,
    steal: u64,
}

impl Machine {
    /// Looks at this machine, at the start of a run.
    pub fn look(receivers: &[Receiver]) -> Machine {
        let cpu = read("/proc/cpuinfo");
        let model = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()))
            .unwrap_or("unknown");
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let hypervisor = if cpu.contains(" hypervisor") { "a virtual machine" } else { "not virtual" };
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        let governor =
            if governor.is_empty() { "none (no frequency scaling visible)".into() } else { governor };
        let mut lines = vec![
            ("date", command("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
            ("CPU", format!("{model}, {cores} cores, {hypervisor}")),
            ("kernel", format!("{} {}", read("/proc/sys/kernel/osrelease"), command("uname", &["-m"]))),
            ("governor", governor),
            ("clock source", read("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
            ("BPF JIT", read("/proc/sys/net/core/bpf_jit_enable")),
            ("mitigations", mitigations()),
            ("load at the start", read("/proc/loadavg")),
        ];
        for receiver in receivers {
            if let Some(version) = version(*receiver) {
                lines.push(("peer", version));
            }
        }
        Machine { lines, started: stat() }
    }

    /// The description, with the load and the stolen time of the run until now.
    pub fn describe(&self) -> String {
        let now = stat();
        let (total, steal) = (now.total - self.started.total, now.steal - self.started.steal);
        let share = 100.0 * steal as f64 / total.max(1) as f64;
        let mut lines = self.lines.clone();
        lines.push(("load at the end", read("/proc/loadavg")));
        lines.push(("stolen by the host", format!("{share:.1} % of CPU time during the run")));
        lines.iter().map(|(name, value)| format!("{name:<20}{value}\n")).collect()
    }
}

/// A folder's name for a run of now: the date and the kernel.
pub fn folder() -> String {
    let kernel: String = read("/proc/sys/kernel/osrelease")
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' })
        .collect();
    format!("{}-{kernel}", command("date", &["-u", "+%Y-%m-%d"]))
}

fn mitigations() -> String {
    let mut active: Vec<String> = fs::read_dir("/sys/devices/system/cpu/vulnerabilities")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?;
            let name = entry.file_name().into_string().ok()?;
            (!state.starts_with("Not affected")).then(|| format!("{name}: {}", state.trim()))
        })
        .collect();
    active.sort();
    active.join("; ")
}

fn stat() -> Stat {
    let text = read("/proc/stat");
    let fields: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guest times are within user.
    Stat { total: fields.iter().take(8).sum(), steal: fields.get(7).copied().unwrap_or(0) }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn command(program: &str, arguments: &[&str]) -> String {
    Command::new(program)
        .args(arguments)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}
