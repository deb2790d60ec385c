//! Descriptions of machines in a few lines, expanded into trees like sysfs and procfs for the tests.
//!
//! ```text
//! cpus LIST                       online
//! siblings, l2, l3 LIST...        groups; "+N": CPU n and n+N are one, "+N" beyond the last: each is alone
//! node N LIST DISTANCE...
//! card DEV BUS node N             its place below sys/devices
//! queues DEV N irq FIRST name PREFIX   an interrupt for each, with queue i's on CPU i modulo the CPUs
//! file PATH TEXT
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::cpulist::{self, CpuSet};

/// Two sockets of four cores with hyper-threads.
pub const XEON_5520: &str = include_str!("fixtures/xeon-5520.txt");
/// One socket with eight groups of cores that share a cache.
pub const EPYC_7763: &str = include_str!("fixtures/epyc-7763.txt");
/// Two sockets of the Ice Lake generation.
pub const DUAL_ICELAKE: &str = include_str!("fixtures/dual-icelake.txt");
/// 80 arm64 cores without hyper-threads.
pub const ALTRA_Q80: &str = include_str!("fixtures/altra-q80.txt");
/// A virtual machine with two CPUs.
pub const VM: &str = include_str!("fixtures/vm-2-cores.txt");

/// Creates the tree that a manifest describes.
///
/// # Panics
/// If the manifest cannot be read, or the tree cannot be created.
pub fn tree(manifest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut cpus = CpuSet::new();
    for line in manifest.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["cpus", list] => {
                cpus = cpulist::parse(list).unwrap();
                write(root, "sys/devices/system/cpu/online", list);
                write(root, "sys/devices/system/cpu/isolated", "");
                write(root, "sys/devices/system/cpu/nohz_full", "(null)");
                for cpu in &cpus {
                    let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
                    write(root, &format!("{topology}/thread_siblings_list"), &cpu.to_string());
                    write(root, &format!("{topology}/physical_package_id"), "0");
                }
            }
            ["siblings", ..] => each(&words[1..], &cpus, |cpu, group| {
                write(root, &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), group);
            }),
            ["l2", ..] => each(&words[1..], &cpus, |cpu, group| cache(root, cpu, 2, group)),
            ["l3", ..] => each(&words[1..], &cpus, |cpu, group| cache(root, cpu, 3, group)),
            ["node", node, list, ..] => {
                write(root, &format!("sys/devices/system/node/node{node}/cpulist"), list);
                write(root, &format!("sys/devices/system/node/node{node}/distance"), &words[3..].join(" "));
            }
            ["card", device, bus, "node", node] => {
                // A virtio device is attached to a PCI device, which has the node and the interrupts.
                let pci = if bus.starts_with("virtio") { "0000:00:03.0" } else { bus };
                write(root, &format!("sys/devices/{pci}/numa_node"), node);
                let own = if bus == pci {
                    format!("sys/devices/{bus}")
                } else {
                    format!("sys/devices/{pci}/{bus}")
                };
                let kind = if bus == pci { "pci" } else { "virtio" };
                fs::create_dir_all(root.join("sys/bus").join(kind)).unwrap();
                fs::create_dir_all(root.join(&own)).unwrap();
                symlink(root.join("sys/bus").join(kind), root.join(&own).join("subsystem")).unwrap();
                let net = root.join("sys/class/net").join(device);
                fs::create_dir_all(&net).unwrap();
                symlink(root.join(&own), net.join("device")).unwrap();
                write(root, &format!("sys/class/net/{device}/threaded"), "0");
            }
            ["queues", device, count, "irq", first, "name", prefix] => {
                let (count, first): (usize, usize) = (count.parse().unwrap(), first.parse().unwrap());
                let columns: String = cpus.iter().map(|cpu| format!(" CPU{cpu}")).collect();
                let mut interrupts = format!("{columns}\n");
                for queue in 0..count {
                    let (irq, cpu) = (first + queue, queue % cpus.len());
                    write(root, &format!("sys/class/net/{device}/queues/rx-{queue}/rps_cpus"), "0");
                    let device_folder =
                        fs::canonicalize(root.join("sys/class/net").join(device).join("device"));
                    let device_folder = device_folder.unwrap();
                    let bus = device_folder.file_name().unwrap().to_string_lossy().into_owned();
                    let owner = if bus.starts_with("virtio") {
                        device_folder.parent().unwrap()
                    } else {
                        &device_folder
                    };
                    fs::create_dir_all(owner.join("msi_irqs")).unwrap();
                    fs::write(owner.join("msi_irqs").join(irq.to_string()), "msix\n").unwrap();
                    let counts = " 0".repeat(cpus.len());
                    interrupts += &format!("{irq}:{counts} IR-PCI-MSI {irq}-edge {prefix}{queue}\n");
                    write(root, &format!("proc/irq/{irq}/smp_affinity_list"), &cpu.to_string());
                    write(root, &format!("proc/irq/{irq}/effective_affinity_list"), &cpu.to_string());
                }
                write(root, "proc/interrupts", &interrupts);
            }
            ["file", path, ..] => write(root, path, &words[2..].join(" ")),
            _ => panic!("no such line in a manifest: {line}"),
        }
    }
    folder
}

/// Calls the function with each CPU and its group.
fn each(groups: &[&str], cpus: &CpuSet, mut told: impl FnMut(usize, &str)) {
    match groups {
        [one] if one.starts_with('+') => {
            let step: usize = one[1..].parse().unwrap();
            for cpu in cpus {
                let base = cpu % step;
                let group: CpuSet =
                    [base, base + step].into_iter().filter(|cpu| cpus.contains(cpu)).collect();
                told(*cpu, &cpulist::format(&group));
            }
        }
        _ => {
            for group in groups {
                cpulist::parse(group).unwrap().into_iter().for_each(|cpu| told(cpu, group));
            }
        }
    }
}

fn cache(root: &Path, cpu: usize, level: u32, group: &str) {
    let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{level}");
    write(root, &format!("{folder}/level"), &level.to_string());
    write(root, &format!("{folder}/type"), "Unified");
    write(root, &format!("{folder}/shared_cpu_list"), group);
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Card, Closeness, Topology};

    #[test]
    fn the_papers_machine_is_read_as_it_is_described() {
        let tree = tree(XEON_5520);
        let machine = Topology::read(tree.path()).unwrap();
        assert_eq!(machine.cpus.len(), 16);
        for (one, other, close) in [
            (0, 8, Closeness::Core),
            (2, 10, Closeness::Core),
            (0, 2, Closeness::L3),
            (0, 1, Closeness::Machine),
            (5, 5, Closeness::Same),
        ] {
            assert_eq!(machine.closeness(one, other), close, "{one} {other}");
        }
        let card = Card::read(tree.path(), "eth1").unwrap();
        assert_eq!((card.node, card.queues.len()), (Some(0), 8));
        assert_eq!((card.queues[3].irq, card.queues[3].served_on()), (Some(67), Some(3)));
        assert!(Card::read(tree.path(), "eth2").is_err());
        let far = machine.cpu(1).unwrap();
        assert_eq!((machine.distance(far, Some(0)), machine.distance(far, Some(1))), (21, 0));
    }

    #[test]
    fn the_other_machines_are_read_as_they_are() {
        let epyc = Topology::read(tree(EPYC_7763).path()).unwrap();
        assert_eq!(epyc.closeness(3, 67), Closeness::Core);
        assert_eq!(epyc.closeness(3, 7), Closeness::L3);
        assert_eq!(epyc.closeness(3, 8), Closeness::Node);
        let altra = Topology::read(tree(ALTRA_Q80).path()).unwrap();
        assert!(altra.cpus.iter().all(|cpu| cpu.siblings.len() == 1 && cpu.l3.is_empty()));
        assert_eq!(altra.closeness(3, 4), Closeness::Node);
        let vm_tree = tree(VM);
        let vm = Topology::read(vm_tree.path()).unwrap();
        assert!(vm.cpus.iter().all(|cpu| cpu.node.is_none() && !cpu.isolated && !cpu.nohz_full));
        let card = Card::read(vm_tree.path(), "eth1").unwrap();
        assert_eq!((card.node, card.queues[1].irq), (None, Some(31)));
        let epyc_card = Card::read(tree(EPYC_7763).path(), "eth1").unwrap();
        assert_eq!((epyc_card.queues.len(), epyc_card.queues[62].irq), (63, Some(262)));
    }

    #[test]
    fn only_what_this_process_may_use_is_allowed() {
        let manifest = "cpus 0-7\nfile proc/self/status Cpus_allowed_list: 0-5\nfile proc/self/cgroup 0::/a/b\n\
                        file sys/fs/cgroup/a/cpuset.cpus.effective 2-7\nfile sys/devices/system/cpu/isolated 3\n\
                        file sys/devices/system/cpu/nohz_full 4\nfile proc/77/comm irqbalance\n";
        let tree = tree(manifest);
        let machine = Topology::read(tree.path()).unwrap();
        let which = |of: fn(&crate::topology::Cpu) -> bool| -> Vec<usize> {
            machine.cpus.iter().filter(|cpu| of(cpu)).map(|cpu| cpu.cpu).collect()
        };
        assert_eq!(which(|cpu| cpu.allowed), [2, 3, 4, 5]);
        assert_eq!(which(|cpu| cpu.isolated), [3]);
        assert_eq!(which(|cpu| cpu.nohz_full), [4]);
        assert!(machine.irqbalance);
    }

    #[test]
    fn a_tree_without_cpus_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let error = Topology::read(empty.path()).unwrap_err().to_string();
        assert!(error.contains("sys/devices/system/cpu/online"), "{error}");
    }
}
