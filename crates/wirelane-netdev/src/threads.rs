//! The kernel threads that poll a device's queues (threaded NAPI, Documentation/networking/napi.rst).

use std::fs;

use super::Device;

/// RX queue and process id of each polling thread of a device; empty where NAPI is not threaded.
///
/// From Linux 6.8 on the kernel reports them, if the driver has registered the instance of each queue (virtio_net does
/// not in 6.12). Otherwise threads are identified by their names, `napi/DEVICE-ID`; ids are assigned in the order in
/// which drivers add their queues, so they map to the queues if there are exactly as many, or as many as the maximum
/// number of queues. A device of the same name in another network namespace adds more threads, and then the mapping is
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
    // Some drivers (virtio_net) have instances for unused queues too.
    if named.len() != device.rx_queues.len() && named.len() != device.max_rx_queues as usize {
        return Vec::new();
    }
    device.rx_queues.iter().zip(named).map(|(queue, (_, pid))| (queue.queue, pid)).collect()
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

    #[test]
    fn threads_are_known_by_their_names() {
        assert_eq!(id_of("napi/eth1-8193", "eth1"), Some(8193));
        assert_eq!(id_of("napi/eth10-8193", "eth1"), None);
        assert_eq!(id_of("napi/eth1-0", "eth1"), None);
        assert_eq!(id_of("ksoftirqd/0", "eth1"), None);
    }
}
