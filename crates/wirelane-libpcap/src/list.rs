//! Adds virtual devices to the list of `pcap_findalldevs()`.

use std::ffi::{CString, c_char};

use wirelane::{Device, LinkType};

use crate::abi::Interface;

/// Appends the virtual devices of every device with several RX queues. The entries are freed by the system's
/// `pcap_freealldevs()`, with free(3), like its own entries.
///
/// # Safety
/// `list` is null or the first entry of a list of the system's libpcap, and the caller allows changing it.
pub(crate) unsafe fn append(list: *mut Interface) {
    let Ok(devices) = Device::list() else { return };
    let mut last = list;
    // An empty list: there is no device to capture from, and no entry to append to.
    if last.is_null() {
        return;
    }
    // SAFETY: entries of the list, each valid up to the null pointer at its end.
    while !unsafe { (*last).next }.is_null() {
        // SAFETY: as above.
        last = unsafe { (*last).next };
    }
    for device in devices.iter().filter(|device| device.rx_queues.len() > 1 && device.up) {
        if device.link_type == LinkType::Other {
            continue;
        }
        for queue in &device.rx_queues {
            let text = format!("RX queue {} of {} (Wirelane)", queue.queue, device.name);
            // PCAP_IF_UP, PCAP_IF_RUNNING; PCAP_IF_CONNECTION_STATUS_NOT_APPLICABLE.
            let flags = 0x02 | (u32::from(device.carrier) * 0x04) | 0x30;
            let Some(entry) = entry(&queue.virtual_device, &text, flags) else { return };
            // SAFETY: the last entry of the list.
            unsafe { (*last).next = entry };
            last = entry;
        }
    }
}

/// An entry in memory from malloc(3); `None` if out of memory.
fn entry(name: &str, description: &str, flags: u32) -> Option<*mut Interface> {
    let name = duplicate(name)?;
    let description = duplicate(description)?;
    // SAFETY: takes a size.
    let entry = unsafe { libc::malloc(size_of::<Interface>()) }.cast::<Interface>();
    if entry.is_null() {
        return None;
    }
    let value =
        Interface { next: std::ptr::null_mut(), name, description, addresses: std::ptr::null_mut(), flags };
    // SAFETY: memory of this size, aligned for every type.
    unsafe { entry.write(value) };
    Some(entry)
}

fn duplicate(text: &str) -> Option<*mut c_char> {
    let text = CString::new(text).ok()?;
    // SAFETY: a string that ends with a zero.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    (!copy.is_null()).then_some(copy)
}
