//! Details of one device, with a line per requested RX queue.

use std::fmt::Write;

use wirelane::device::{Device, Duplex, Irq, RxQueue, Selected, XdpFeatures};

use super::table::{Style, speed, state};
use crate::table::{printable, wrap};

/// Width of the names on the left.
const NAMES: usize = 15;

/// All details of a device.
pub fn detail(selected: &Selected, style: Style) -> String {
    let device = &selected.device;
    let mut text = format!("{}\n", style.bold(&printable(&device.name)));
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<NAMES$}{}", wrap(value, 2 + NAMES));
    };
    line("state", &format!("{}, index {}", state(device), device.ifindex));
    line("driver", &driver(device));
    if let Some(mac) = device.mac {
        line("address", &mac.to_string());
    }
    line("speed", &link(device));
    line("MTU", &format!("{} bytes", device.mtu));
    line("NUMA node", &device.numa_node.map_or_else(|| "not known".to_owned(), |node| node.to_string()));
    line("XDP attached", &attached(device));
    line("XDP modes", &modes(device.xdp_features));
    line("threaded NAPI", threaded(device));
    line("counters", &counters(device));
    let others: Vec<String> = device
        .irqs
        .iter()
        .filter(|irq| !device.rx_queues.iter().any(|queue| queue.irqs.contains(irq)))
        .map(irq)
        .collect();
    if !others.is_empty() {
        line("other IRQs", &others.join("; "));
    }
    let active = device.rx_queues.len();
    line("RX queues", &format!("{active} of at most {}", device.max_rx_queues.max(active as u32)));
    for queue in device.rx_queues.iter().filter(|queue| selected.queues.contains(&queue.queue)) {
        let name = printable(&queue.virtual_device);
        // After a long name the facts begin a little further right.
        let width = (NAMES - 2).max(name.chars().count() + 1);
        let _ = writeln!(text, "    {name:<width$}{}", wrap(&facts(queue), 4 + width));
    }
    text
}

fn driver(device: &Device) -> String {
    let driver = device.driver.as_deref().map_or("not known".into(), printable);
    match device.bus_info.as_deref() {
        Some(bus) => format!("{driver} at {}", printable(bus)),
        None => driver.into_owned(),
    }
}

fn link(device: &Device) -> String {
    let speed =
        device.speed_mbps.map_or_else(|| "not known".to_owned(), |mbps| format!("{}b/s", speed(mbps)));
    match device.duplex {
        Some(Duplex::Full) => format!("{speed}, full duplex"),
        Some(Duplex::Half) => format!("{speed}, half duplex"),
        None => speed,
    }
}

fn attached(device: &Device) -> String {
    if device.xdp.is_empty() {
        return "none".to_owned();
    }
    let programs = device.xdp.iter().map(|program| {
        let name = match program.name.as_deref() {
            Some(name) => format!("'{}'", printable(name)),
            None => "a program (its name needs CAP_SYS_ADMIN)".to_owned(),
        };
        format!("{name} id {}, {}", program.id, program.mode)
    });
    programs.collect::<Vec<_>>().join("; ")
}

fn modes(features: Option<XdpFeatures>) -> String {
    let Some(features) = features else {
        return "generic; whether native works, this kernel does not tell (Linux 6.3 does)".to_owned();
    };
    let known = [
        (features.native, "native"),
        (features.zero_copy, "AF_XDP zero copy"),
        (features.offload, "offloaded"),
        (features.multi_buffer, "packets in several buffers"),
        (features.redirect, "redirect from"),
        (features.redirect_target, "redirect to"),
        (features.rx_timestamp, "receive timestamp"),
        (features.rx_hash, "receive hash"),
        (features.rx_vlan_tag, "VLAN tag"),
    ];
    let mut modes = vec!["generic"];
    modes.extend(known.iter().filter(|(has, _)| *has).map(|(_, name)| *name));
    modes.join(", ")
}

fn threaded(device: &Device) -> &'static str {
    match device.threaded_napi {
        Some(true) => "on",
        Some(false) => "off",
        None => "not known (sysfs shows another network namespace)",
    }
}

fn counters(device: &Device) -> String {
    let statistics = &device.statistics;
    format!(
        "{} packets received, {} dropped, {} missed by the device",
        statistics.rx_packets,
        statistics.rx_dropped,
        statistics.missed()
    )
}

fn facts(queue: &RxQueue) -> String {
    let mut facts: Vec<String> = queue.irqs.iter().map(irq).collect();
    if let Some(napi) = queue.napi_id {
        facts.push(format!("NAPI {napi}"));
    }
    if let Some(thread) = queue.napi_thread {
        facts.push(format!("polled by thread {thread}"));
    }
    if facts.is_empty() { "no IRQ of its own".to_owned() } else { facts.join(", ") }
}

fn irq(irq: &Irq) -> String {
    let cpus = irq.effective_cpus.as_ref().or(irq.cpus.as_ref());
    let on = cpus.map_or_else(String::new, |cpus| format!(" on CPU {cpus}"));
    format!("IRQ {} {}{on}", irq.irq, printable(&irq.name))
}
