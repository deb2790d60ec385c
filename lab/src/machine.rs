//! Description of the measuring machine, without anything that identifies it.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Day of the measurement, YYYY-MM-DD, UTC.
    pub date: String,
    /// Kernel release.
    pub kernel: String,
    /// Preemption model and build, from the kernel's version string.
    pub kernel_version: String,
    /// Model of the processor.
    pub cpu: String,
    /// Number of online cores.
    pub cores: usize,
    /// Caches of core 0, as in "L1d 48K, L2 2048K".
    pub caches: String,
    /// Whether it runs under a hypervisor, according to the processor.
    pub hypervisor: bool,
    /// Frequency governor of core 0; `None`: not configurable.
    pub governor: Option<String>,
    /// Whether the kernel compiles BPF programs.
    pub bpf_jit: Option<String>,
    /// Clock source of the kernel.
    pub clocksource: Option<String>,
    /// Mitigations of processor vulnerabilities: those that are not "Not affected".
    pub mitigations: Vec<String>,
    /// Versions of the system programs that were compared.
    pub programs: Vec<String>,
}

impl Machine {
    /// Describes this machine. Values that cannot be read are empty.
    pub fn describe() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
        };
        let optional = |path: &str| Some(read(path)).filter(|text| !text.is_empty());
        Machine {
            date: output("date", &["-u", "+%F"]),
            kernel: read("/proc/sys/kernel/osrelease"),
            kernel_version: read("/proc/sys/kernel/version"),
            cpu: [field("model name"), field("CPU part")].join(" ").trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            caches: caches(),
            hypervisor: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            governor: optional("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            bpf_jit: optional("/proc/sys/net/core/bpf_jit_enable"),
            clocksource: optional("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            mitigations: mitigations(),
            programs: ["tcpdump", "dumpcap", "netsniff-ng"].into_iter().filter_map(version).collect(),
        }
    }

    /// One line: processor, kernel and date.
    pub fn short(&self) -> String {
        format!("{}, {} cores, Linux {}, {}", self.cpu, self.cores, self.kernel, self.date)
    }

    /// Lines for people.
    pub fn text(&self) -> String {
        let list = |items: &[String]| if items.is_empty() { "none".into() } else { items.join("; ") };
        format!(
            "date         {}\nkernel       {} {}\nprocessor    {}, {} cores{}\ncaches       {}\ngovernor     {}\n\
             BPF JIT      {}\nclocksource  {}\nmitigations  {}\nprograms     {}\n",
            self.date,
            self.kernel,
            self.kernel_version,
            self.cpu,
            self.cores,
            if self.hypervisor { ", under a hypervisor" } else { "" },
            self.caches,
            self.governor.as_deref().unwrap_or("not for this machine to choose"),
            self.bpf_jit.as_deref().unwrap_or("unknown"),
            self.clocksource.as_deref().unwrap_or("unknown"),
            list(&self.mitigations),
            list(&self.programs),
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// First line of a program's output with --version.
fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
}

fn caches() -> String {
    let folder = "/sys/devices/system/cpu/cpu0/cache";
    let mut found = Vec::new();
    for index in 0..8 {
        let file = |name: &str| read(&format!("{folder}/index{index}/{name}"));
        let kind = match file("type").as_str() {
            "Data" => "d",
            "Instruction" => "i",
            "Unified" => "",
            _ => continue,
        };
        found.push(format!("L{}{kind} {}", file("level"), file("size")));
    }
    found.join(", ")
}

fn mitigations() -> Vec<String> {
    let folder = "/sys/devices/system/cpu/vulnerabilities";
    let mut found: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), read(&entry.path().to_string_lossy()))
        })
        .filter(|(_, state)| state != "Not affected")
        .map(|(name, state)| format!("{name}: {state}"))
        .collect();
    found.sort();
    found
}
