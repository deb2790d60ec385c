//! Interrupts, NUMA node and threaded NAPI: properties that only sysfs and procfs show.
//!
//! sysfs shows the network namespace in which it was mounted, which is another one after `nsenter --net`. [`Sysfs::of`]
//! therefore returns `None` unless the device in sysfs is the same one: then all of this is absent, and a capture works
//! without it. [`Sysfs::under`] reads a recorded tree.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::MacAddress;

/// An interrupt of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Irq {
    /// Its number, as in `/proc/interrupts`.
    pub irq: u32,
    /// Its name in that file, which the driver chose: `eth1-TxRx-0`.
    pub name: String,
    /// The CPUs that the interrupt is allowed on, as a list like `0-3,8`.
    pub cpus: Option<String>,
    /// The CPUs that the interrupt is delivered to, if the kernel reports them.
    pub effective_cpus: Option<String>,
}

/// A device's folder in sysfs.
#[derive(Clone, Debug)]
pub struct Sysfs {
    /// The root of the tree, `/` on a live machine.
    root: PathBuf,
    folder: PathBuf,
}

impl Sysfs {
    /// The folder, if it belongs to this very device.
    pub fn of(name: &str, ifindex: u32, mac: Option<MacAddress>) -> Option<Sysfs> {
        let sysfs = Sysfs::under(Path::new("/"), name);
        let folder = &sysfs.folder;
        // Another namespace may use the same name and index; the MAC address distinguishes the devices.
        let same_index = read_number(&folder.join("ifindex")) == Some(i64::from(ifindex));
        let same_mac = mac.is_none_or(|mac| read(&folder.join("address")) == Some(mac.to_string()));
        (same_index && same_mac).then_some(sysfs)
    }

    /// The folder of the device with this name in the tree below `root`, whether or not it exists.
    pub fn under(root: &Path, name: &str) -> Sysfs {
        Sysfs { root: root.to_owned(), folder: root.join("sys/class/net").join(name) }
    }

    /// A file of the device, as in `threaded` or `queues/rx-0/rps_cpus`.
    pub fn file(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// The NUMA node that the device is attached to, according to its own bus device or the parent of that (a virtio
    /// device is attached to a PCI device).
    pub fn numa_node(&self) -> Option<u32> {
        let device = fs::canonicalize(self.folder.join("device")).ok()?;
        [Some(device.as_path()), device.parent()]
            .into_iter()
            .flatten()
            .find_map(|folder| read_number(&folder.join("numa_node")))
            .and_then(|node| u32::try_from(node).ok())
    }

    /// Number of active RX queues.
    pub fn rx_queues(&self) -> Option<u32> {
        let names = fs::read_dir(self.folder.join("queues")).ok()?;
        let rx = names.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-"));
        u32::try_from(rx.count()).ok().filter(|count| *count > 0)
    }

    /// Whether NAPI polls in kernel threads (Documentation/networking/napi.rst).
    pub fn threaded_napi(&self) -> Option<bool> {
        read_number(&self.folder.join("threaded")).map(|value| value != 0)
    }

    /// The interrupts of the device, by number.
    pub fn irqs(&self) -> Vec<Irq> {
        let Ok(device) = fs::canonicalize(self.folder.join("device")) else {
            return Vec::new();
        };
        // A virtio device's vectors belong to the PCI device that carries it, and to no other device. On other buses
        // the parent may be a bridge or a multi-port card, whose interrupts are not this device's.
        let on_virtio = fs::canonicalize(device.join("subsystem")).is_ok_and(|bus| bus.ends_with("virtio"));
        let owner = if on_virtio { device.parent().unwrap_or(&device) } else { &device };
        let mut numbers: Vec<u32> = match fs::read_dir(owner.join("msi_irqs")) {
            Ok(entries) => {
                entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
            }
            // One line interrupt, and no vectors.
            Err(_) => {
                read_number(&owner.join("irq")).and_then(|irq| u32::try_from(irq).ok()).into_iter().collect()
            }
        };
        numbers.retain(|irq| *irq != 0);
        numbers.sort_unstable();
        let names = irq_names(&fs::read_to_string(self.root.join("proc/interrupts")).unwrap_or_default());
        numbers
            .into_iter()
            // A vector without a name is allocated but not in use.
            .filter_map(|irq| {
                Some(describe(&self.root, irq, names.iter().find(|(of, _)| *of == irq)?.1.clone()))
            })
            .collect()
    }
}

fn describe(root: &Path, irq: u32, name: String) -> Irq {
    let folder = root.join(format!("proc/irq/{irq}"));
    Irq {
        irq,
        name,
        cpus: read(&folder.join("smp_affinity_list")),
        effective_cpus: read(&folder.join("effective_affinity_list")).filter(|list| !list.is_empty()),
    }
}

/// Number and name of every interrupt in `/proc/interrupts`.
fn irq_names(table: &str) -> Vec<(u32, String)> {
    let mut lines = table.lines();
    let cpus = lines.next().map_or(0, |head| head.split_whitespace().count());
    lines
        .filter_map(|line| {
            let (irq, rest) = line.split_once(':')?;
            // After the counts: the controller, its number and trigger in one or two words, then the name.
            let name = rest.split_whitespace().skip(cpus + 1).last()?;
            Some((irq.trim().parse().ok()?, name.to_owned()))
        })
        .collect()
}

/// The RX queue that an interrupt serves, parsed from its name; `None` if the name does not contain it. Drivers choose
/// these names, so the result is for display and suggestions; if the kernel reports the queue itself (netdev.rs), that
/// is used instead.
pub fn queue_of_irq(irq_name: &str, device: &str) -> Option<u32> {
    served(irq_name, device).and_then(|(queue, receives)| receives.then_some(queue))
}

/// Whether an interrupt serves a queue, according to its name, be it for sending alone.
pub fn is_of_queue(irq_name: &str, device: &str) -> bool {
    served(irq_name, device).is_some()
}

/// The queue of an interrupt, and whether it receives.
fn served(irq_name: &str, device: &str) -> Option<(u32, bool)> {
    // mlx5 and ena add the PCI address: mlx5_comp3@pci:0000:5e:00.0
    let name = irq_name.split('@').next().unwrap_or(irq_name);
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (before, number) = name.split_at(name.len() - digits);
    let number = number.parse().ok()?;
    let own = before.to_ascii_lowercase();
    // The name of the device may itself contain any of these words.
    let kind = own.rsplit_once(&device.to_ascii_lowercase()).map_or(own.as_str(), |(_, kind)| kind);
    let sends_only = kind.contains("tx") && !kind.contains("rx") || kind.contains("output");
    let receives =
        kind.contains("rx") || kind.contains("input") || kind.contains("comp") || kind.contains("queue");
    // igb and ixgbe after a rename, stmmac and others: `eth1-0`
    let bare = own.ends_with(&format!("{}-", device.to_ascii_lowercase()));
    (sends_only || receives || bare).then_some((number, !sends_only))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn read_number(path: &Path) -> Option<i64> {
    read(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_proc_interrupts() {
        let table = "           CPU0       CPU1       \n  4:          0          9  IO-APIC   4-edge      ttyS0\n \
             38:          0       3841 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\n\
             NMI:          0          0   Non-maskable interrupts\nERR:          0\n";
        assert_eq!(irq_names(table), [(4, "ttyS0".to_owned()), (38, "virtio2-input.0".to_owned())]);
        assert_eq!(irq_names(""), []);
    }

    #[test]
    fn queues_are_read_from_the_names_that_drivers_give() {
        let table = [
            ("eth1-TxRx-3", "eth1", Some(3)),
            ("i40e-eth1-TxRx-12", "eth1", Some(12)),
            ("eth1-rx-0", "eth1", Some(0)),
            ("eth1-tx-0", "eth1", None),
            ("virtio0-input.2", "eth1", Some(2)),
            ("virtio0-output.2", "eth1", None),
            ("virtio0-config", "eth1", None),
            ("mlx5_comp7@pci:0000:5e:00.0", "eth1", Some(7)),
            ("mlx5_async0@pci:0000:5e:00.0", "eth1", None),
            ("eth1-Tx-Rx-1@pci:0000:00:05.0", "eth1", Some(1)),
            ("eth1-1", "eth1", Some(1)),
            ("eth1", "eth1", None),
            ("txrx0-tx-4", "txrx0", None),
        ];
        for (name, device, queue) in table {
            assert_eq!(queue_of_irq(name, device), queue, "{name}");
        }
    }

    #[test]
    fn sysfs_of_another_device_is_not_used() {
        assert!(Sysfs::of("lo", 99, None).is_none());
        assert!(Sysfs::of("lo", 1, Some(MacAddress([2, 0, 0, 0, 0, 1]))).is_none());
        assert!(Sysfs::of("no-such-dev", 1, None).is_none());
    }
}
