//! The machine as seen by a capture: shared caches and nodes of CPUs, the CPUs that this process may use, and their
//! load.
//!
//! Everything is read below a root folder, `/` on a live machine; a recorded tree works as well. Information that a
//! kernel or a container hides is absent and not an error: a machine without NUMA has no nodes, and one without
//! hyper-threads has cores without siblings.
//!
//! ```text
//! sys/devices/system/cpu/online, isolated, nohz_full
//! sys/devices/system/cpu/cpuN/topology/thread_siblings_list, physical_package_id
//! sys/devices/system/cpu/cpuN/cache/indexK/level, type, shared_cpu_list
//! sys/devices/system/node/nodeN/cpulist, distance
//! proc/self/status (Cpus_allowed_list), proc/self/cgroup -> sys/fs/cgroup/.../cpuset.cpus.effective
//! proc/stat, twice
//! ```

mod card;
pub mod cpulist;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod load;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

pub use crate::ethtool_set::{Channels, RingSize, Rss};
pub use card::{Card, CardQueue, Offload};
pub use cpulist::CpuSet;
pub use load::LoadSample;

use crate::{Error, Result};

/// The CPUs that this process may run on.
pub fn allowed_cpus() -> Vec<usize> {
    crate::sys::affinity(0).map_or_else(|_| vec![0], |cpus| cpus.into_iter().collect())
}

/// A CPU with more load than this from other tasks is avoided.
pub const BUSY: f64 = 0.5;

/// A logical CPU that is online.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub cpu: usize,
    /// The socket.
    pub package: Option<u32>,
    /// The CPUs of the same physical core (hyper-threads), including this one.
    pub siblings: CpuSet,
    /// The CPUs that share its second-level cache, including this one; empty if the kernel does not report them.
    pub l2: CpuSet,
    /// The CPUs that share its third-level cache, including this one; empty if the kernel does not report them.
    pub l3: CpuSet,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Whether it was removed from the scheduler at boot (isolcpus).
    pub isolated: bool,
    /// Whether it runs without timer ticks (nohz_full).
    pub nohz_full: bool,
    /// Whether this process may run on it.
    pub allowed: bool,
    /// The share of its time, from 0 to 1, that it was busy during the measurement.
    pub busy: Option<f64>,
}

/// Proximity of two CPUs, the closest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Closeness {
    /// The same CPU.
    Same,
    /// Hyper-threads of one physical core.
    Core,
    /// CPUs that share a second-level cache.
    L2,
    /// CPUs that share a third-level cache.
    L3,
    /// CPUs that share a NUMA node (or, on a machine without nodes, a socket).
    Node,
    /// CPUs on different nodes.
    Machine,
}

impl std::fmt::Display for Closeness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Closeness::Same => "the same CPU",
            Closeness::Core => "a hyper-thread of the same core",
            Closeness::L2 => "shares its second-level cache",
            Closeness::L3 => "shares its third-level cache",
            Closeness::Node => "on the same NUMA node",
            Closeness::Machine => "on another NUMA node",
        })
    }
}

/// The CPUs of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// The online CPUs, by number.
    pub cpus: Vec<Cpu>,
    /// For each NUMA node its distance to each node (ACPI SLIT: 10 is the node itself).
    pub distances: BTreeMap<u32, Vec<u32>>,
    /// Whether irqbalance runs, which moves interrupts on its own.
    pub irqbalance: bool,
}

impl Topology {
    /// Reads the CPUs below `root`, without their load.
    ///
    /// # Errors
    /// [`Error::Io`] if the list of online CPUs cannot be read.
    pub fn read(root: &Path) -> Result<Topology> {
        let cpu_folder = root.join("sys/devices/system/cpu");
        let path = cpu_folder.join("online");
        let text = fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let online = cpulist::parse(&text).filter(|set| !set.is_empty()).ok_or_else(|| Error::Io {
            path,
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, "not a list of CPUs"),
        })?;
        let isolated = list(&cpu_folder.join("isolated"));
        // On kernels without nohz_full the file contains "(null)", which does not parse as a list.
        let nohz_full = list(&cpu_folder.join("nohz_full"));
        let allowed = allowed(root, &online);
        let (nodes, distances) = nodes(root);
        let cpus = online
            .iter()
            .map(|&cpu| {
                let folder = cpu_folder.join(format!("cpu{cpu}"));
                let topology = folder.join("topology");
                let siblings = list(&topology.join("thread_siblings_list"));
                let (l2, l3) = caches(&folder.join("cache"), &online);
                Cpu {
                    cpu,
                    package: number(&topology.join("physical_package_id")),
                    siblings: with(&siblings & &online, cpu),
                    l2,
                    l3,
                    node: nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|(node, _)| *node),
                    isolated: isolated.contains(&cpu),
                    nohz_full: nohz_full.contains(&cpu),
                    allowed: allowed.contains(&cpu),
                    busy: None,
                }
            })
            .collect();
        Ok(Topology { cpus, distances, irqbalance: runs(root, "irqbalance") })
    }

    /// Reads this machine, and measures its load for `watch` (not at all if that is zero).
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn live(watch: Duration) -> Result<Topology> {
        let root = Path::new("/");
        let mut topology = Topology::read(root)?;
        if !watch.is_zero() {
            let look = || LoadSample::parse(&fs::read_to_string("/proc/stat").unwrap_or_default());
            let before = look();
            std::thread::sleep(watch);
            topology.set_load(&look().busy_since(&before));
        }
        Ok(topology)
    }

    /// Stores the load of each CPU.
    pub fn set_load(&mut self, busy: &BTreeMap<usize, f64>) {
        for cpu in &mut self.cpus {
            cpu.busy = busy.get(&cpu.cpu).copied();
        }
    }

    /// The CPU with this number, if it is online.
    pub fn cpu(&self, cpu: usize) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&cpu, |one| one.cpu).ok().map(|at| &self.cpus[at])
    }

    /// Proximity of two CPUs; CPUs that are not online are far.
    pub fn closeness(&self, one: usize, other: usize) -> Closeness {
        let (Some(a), Some(b)) = (self.cpu(one), self.cpu(other)) else { return Closeness::Machine };
        // On a machine without nodes, the socket takes their place.
        let same_node = match (a.node, b.node) {
            (Some(a), Some(b)) => a == b,
            _ => a.package == b.package,
        };
        match () {
            () if one == other => Closeness::Same,
            () if a.siblings.contains(&other) => Closeness::Core,
            () if a.l2.contains(&other) => Closeness::L2,
            () if a.l3.contains(&other) => Closeness::L3,
            () if same_node => Closeness::Node,
            () => Closeness::Machine,
        }
    }

    /// The distance of a CPU from a NUMA node: 0 if the CPU is on that node or the nodes are unknown.
    pub fn distance(&self, cpu: &Cpu, node: Option<u32>) -> u32 {
        let (Some(of), Some(to)) = (cpu.node, node) else { return 0 };
        if of == to {
            return 0;
        }
        // A machine without a distance table has one distance: far.
        let told = self.distances.get(&of).and_then(|row| {
            // The row has a column for each online node, in order.
            let column = self.distances.keys().position(|node| *node == to)?;
            row.get(column).copied()
        });
        told.unwrap_or(20).max(1)
    }
}

/// The CPUs that this process may run on: its own mask, within the cpuset of its control group.
fn allowed(root: &Path, online: &CpuSet) -> CpuSet {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| cpulist::parse(line.strip_prefix("Cpus_allowed_list:")?))
        .unwrap_or_else(|| online.clone());
    let mask = &mask & online;
    match cpuset(root) {
        Some(cpuset) if !cpuset.is_disjoint(&mask) => &mask & &cpuset,
        _ => mask,
    }
}

/// The CPUs of the control group (cgroups(7), version 2), or of the nearest ancestor that has a cpuset.
fn cpuset(root: &Path) -> Option<CpuSet> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let top = root.join("sys/fs/cgroup");
    let mut folder = top.join(own.trim_start_matches('/'));
    while folder.starts_with(&top) {
        if let Ok(text) = fs::read_to_string(folder.join("cpuset.cpus.effective")) {
            return cpulist::parse(&text).filter(|set| !set.is_empty());
        }
        folder.pop();
    }
    None
}

/// NUMA nodes with their CPUs, and the distances of all nodes.
fn nodes(root: &Path) -> (BTreeMap<u32, CpuSet>, BTreeMap<u32, Vec<u32>>) {
    let (mut cpus, mut distances) = (BTreeMap::new(), BTreeMap::new());
    for entry in fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(node) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok()) else {
            continue;
        };
        cpus.insert(node, list(&entry.path().join("cpulist")));
        let row = fs::read_to_string(entry.path().join("distance")).unwrap_or_default();
        distances.insert(node, row.split_whitespace().filter_map(|word| word.parse().ok()).collect());
    }
    (cpus, distances)
}

/// The CPUs that share the second- and third-level cache.
fn caches(folder: &Path, online: &CpuSet) -> (CpuSet, CpuSet) {
    let (mut l2, mut l3) = (CpuSet::new(), CpuSet::new());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let kind = fs::read_to_string(entry.path().join("type")).unwrap_or_default();
        if kind.trim() == "Instruction" {
            continue;
        }
        let shared = &list(&entry.path().join("shared_cpu_list")) & online;
        match number::<u32>(&entry.path().join("level")) {
            Some(2) => l2 = shared,
            Some(3) => l3 = shared,
            _ => {}
        }
    }
    (l2, l3)
}

/// Whether a process of this name runs.
fn runs(root: &Path, name: &str) -> bool {
    fs::read_dir(root.join("proc")).into_iter().flatten().flatten().any(|entry| {
        entry.file_name().to_string_lossy().starts_with(|first: char| first.is_ascii_digit())
            && fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    })
}

fn list(path: &Path) -> CpuSet {
    fs::read_to_string(path).ok().and_then(|text| cpulist::parse(&text)).unwrap_or_default()
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn with(mut set: CpuSet, cpu: usize) -> CpuSet {
    set.insert(cpu);
    set
}
