//! The kernel threads that poll a device's queues (threaded NAPI, Documentation/networking/napi.rst).

use std::fs;

use super::Device;
use super::irq::is_of_queue;

/// RX queue and process id of each polling thread of a device; empty where NAPI is not threaded.
///
/// From Linux 6.8 on the kernel reports them, if the driver has registered the instance of each queue (virtio_net does
/// not in 6.12). Otherwise threads are identified by their names, `napi/DEVICE-ID`; ids are assigned in the order in
/// which drivers add their queues, so they map to the queues if there are exactly as many. Drivers with instances for
/// sending alone (igb with one queue) have an interrupt for each instance, in the same order. Other drivers have as many
/// as the maximum number of queues. A device of the same name in another network namespace adds more threads, and then the mapping is
/// unknown.
pub fn of_device(device: &Device) -> Vec<(u32, u32)> {
    if device.rx_queues.iter().any(|queue| queue.napi_id.is_some()) {
        let told = device.rx_queues.iter().filter_map(|queue| Some((queue.queue, queue.napi_thread?)));
        // Ids are those of the initial pid namespace: in another one they may belong to other processes.
        let is_napi = |pid: u32| comm(pid).is_some_and(|comm| comm.starts_with("napi/"));
        return told.filter(|(_, pid)| is_napi(*pid)).collect();
    }
    if device.threaded_napi != Some(true) {
        return Vec::new();
    }
    let mut named: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((id_of(&comm(pid)?, &device.name)?, pid))
        })
        .collect();
    named.sort_unstable();
    let threads: Vec<u32> = named.into_iter().map(|(_, pid)| pid).collect();
    by_order(device, &threads)
}

/// RX queue and thread, of threads in the order of their instances.
fn by_order(device: &Device, threads: &[u32]) -> Vec<(u32, u32)> {
    let queues = || device.rx_queues.iter();
    let of_queues: Vec<u32> =
        device.irqs.iter().filter(|irq| is_of_queue(&irq.name, &device.name)).map(|irq| irq.irq).collect();
    if threads.len() != device.rx_queues.len() && threads.len() == of_queues.len() {
        let thread_of = |irq: u32| of_queues.iter().position(|one| *one == irq).map(|at| threads[at]);
        return queues()
            .filter_map(|queue| Some((queue.queue, queue.irqs.iter().find_map(|irq| thread_of(irq.irq))?)))
            .collect();
    }
    // Some drivers (virtio_net) have instances for unused queues too.
    if threads.len() != device.rx_queues.len() && threads.len() != device.max_rx_queues as usize {
        return Vec::new();
    }
    queues().zip(threads).map(|(queue, pid)| (queue.queue, *pid)).collect()
}

fn comm(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned())
}

/// The NAPI id in a thread's name. Send-only instances have none, which shows as 0.
fn id_of(comm: &str, device: &str) -> Option<u32> {
    let id = comm.strip_prefix("napi/")?.strip_prefix(device)?.strip_prefix('-')?;
    id.parse().ok().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RxQueue;
    use crate::irq::{Irq, queue_of_irq};

    /// A device with these interrupts, numbered from 20, and so many RX queues.
    fn device(queues: u32, most: u32, names: &[&str]) -> Device {
        let irqs: Vec<Irq> = names
            .iter()
            .zip(20..)
            .map(|(name, irq)| Irq { irq, name: (*name).to_owned(), cpus: None, effective_cpus: None })
            .collect();
        let queue = |queue: u32| {
            let serves = |irq: &&Irq| queue_of_irq(&irq.name, "eth1") == Some(queue);
            RxQueue { irqs: irqs.iter().filter(serves).cloned().collect(), ..RxQueue::new("eth1", queue) }
        };
        let rx_queues = (0..queues).map(queue).collect();
        Device { rx_queues, max_rx_queues: most, irqs: irqs.clone(), ..Device::empty("eth1") }
    }

    #[test]
    fn threads_in_order_are_those_of_the_queues() {
        let igb = device(1, 8, &["eth1", "eth1-rx-0", "eth1-tx-0"]);
        assert_eq!(by_order(&igb, &[70, 71]), [(0, 70)]);
        let igb = device(2, 8, &["eth1", "eth1-TxRx-0", "eth1-TxRx-1"]);
        assert_eq!(by_order(&igb, &[70, 71]), [(0, 70), (1, 71)]);
        assert_eq!(by_order(&igb, &[70, 71, 72]), [], "one too many: of another device of this name");
        let names =
            ["virtio0-config", "virtio0-input.0", "virtio0-output.0", "virtio0-input.1", "virtio0-output.1"];
        assert_eq!(by_order(&device(1, 2, &names), &[70, 71]), [(0, 70)]);
    }

    #[test]
    fn threads_are_known_by_their_names() {
        assert_eq!(id_of("napi/eth1-8193", "eth1"), Some(8193));
        assert_eq!(id_of("napi/eth10-8193", "eth1"), None);
        assert_eq!(id_of("napi/eth1-0", "eth1"), None);
        assert_eq!(id_of("ksoftirqd/0", "eth1"), None);
    }
}
