//! The kernel threads that poll a device's queues (threaded NAPI, Documentation/networking/napi.rst).

use std::fs;

use crate::device::Device;

/// RX queue and process id of each polling thread of a device; empty where NAPI is not threaded.
///
/// From Linux 6.8 on the kernel tells. Before, threads are known by their names, `napi/DEVICE-ID`; ids are given
/// in the order in which drivers add their queues, so they stand for the queues where there are as many.
pub(crate) fn of_device(device: &Device) -> Vec<(u32, u32)> {
    let told: Vec<(u32, u32)> =
        device.rx_queues.iter().filter_map(|queue| Some((queue.queue, queue.napi_thread?))).collect();
    if !told.is_empty() || device.rx_queues.iter().any(|queue| queue.napi_id.is_some()) {
        return told;
    }
    let mut named: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
            Some((id_of(comm.trim(), &device.name)?, pid))
        })
        .collect();
    named.sort_unstable();
    if named.len() != device.rx_queues.len() {
        return Vec::new();
    }
    device.rx_queues.iter().zip(named).map(|(queue, (_, pid))| (queue.queue, pid)).collect()
}

/// The NAPI id in a thread's name. Instances that only send have none, which shows as 0.
fn id_of(comm: &str, device: &str) -> Option<u32> {
    let id = comm.strip_prefix("napi/")?.strip_prefix(device)?.strip_prefix('-')?;
    id.parse().ok().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_known_by_their_names() {
        assert_eq!(id_of("napi/eth1-8193", "eth1"), Some(8193));
        assert_eq!(id_of("napi/eth10-8193", "eth1"), None);
        assert_eq!(id_of("napi/eth1-0", "eth1"), None);
        assert_eq!(id_of("ksoftirqd/0", "eth1"), None);
    }
}
