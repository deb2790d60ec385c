//! The table of all devices and the list of kernel features, for people, in 80 columns.

use std::fmt::Write;

use wirelane::device::Device;
use wirelane::{Feature, KernelFeatures};

use crate::table::{printable, wrap};

/// Whether to use colour.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Whether headings are bold and missing features yellow.
    pub colour: bool,
}

impl Style {
    /// Bold, for headings.
    pub(super) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Yellow, for missing features.
    fn notice(self, text: &str) -> String {
        self.wrap("33", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// All devices, one per line.
pub fn table(devices: &[Device], style: Style) -> String {
    let head = ["DEVICE", "STATE", "DRIVER", "SPEED", "MTU", "NUMA", "RX QUEUES", "XDP", "IRQS"];
    let rows: Vec<[String; 9]> = devices.iter().map(row).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    let line = |cells: &[&str]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        line.trim_end().to_owned()
    };
    let _ = writeln!(text, "{}", style.bold(&line(&head)));
    for row in &rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        let _ = writeln!(text, "{}", line(&cells));
    }
    text
}

fn row(device: &Device) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        printable(&device.name).into_owned(),
        state(device).to_owned(),
        or_dash(device.driver.as_deref().map(|driver| printable(driver).into_owned())),
        or_dash(device.speed_mbps.map(speed)),
        device.mtu.to_string(),
        or_dash(device.numa_node.map(|node| node.to_string())),
        queues(device),
        xdp(device),
        match device.irqs.len() {
            0 => "-".to_owned(),
            irqs => irqs.to_string(),
        },
    ]
}

/// `up`, `no link` or `down`.
pub(super) fn state(device: &Device) -> &'static str {
    match (device.up, device.carrier) {
        (true, true) => "up",
        (true, false) => "no link",
        (false, _) => "down",
    }
}

/// `100M`, `2.5G`: bits per second.
pub(super) fn speed(mbps: u32) -> String {
    if mbps < 1000 {
        return format!("{mbps}M");
    }
    let gbps = f64::from(mbps) / 1000.0;
    format!("{gbps}G")
}

/// The queues in the form that `-i` accepts: `eth1@0`, `eth1@0-3`.
fn queues(device: &Device) -> String {
    let name = printable(&device.name);
    match device.rx_queues.len() {
        0 => "-".to_owned(),
        1 => format!("{name}@0"),
        count => format!("{name}@0-{}", count - 1),
    }
}

/// The attached XDP programs, else the best supported mode (`native?`: the kernel does not report it). Every device
/// supports generic XDP, so only better modes are shown.
fn xdp(device: &Device) -> String {
    if !device.xdp.is_empty() {
        let modes: Vec<String> =
            device.xdp.iter().map(|program| format!("{} in use", program.mode)).collect();
        return modes.join(", ");
    }
    match device.xdp_features {
        None => "native?".to_owned(),
        Some(features) if features.zero_copy => "native, 0-copy".to_owned(),
        Some(features) if features.native => "native".to_owned(),
        Some(_) => "generic".to_owned(),
    }
}

/// Present and missing kernel features, and the effect of missing ones.
pub fn kernel(kernel: &KernelFeatures, style: Style) -> String {
    let mut text = format!("{}\n", style.bold(&format!("Linux {}", printable(&kernel.release))));
    let privileges = "privileges to capture";
    let titles = kernel.features.iter().map(|feature| feature.title.len());
    let width = titles.chain([privileges.len()]).max().unwrap_or(0);
    for Feature { title, present, note, .. } in &kernel.features {
        let word = match present {
            Some(true) => "yes".to_owned(),
            Some(false) => style.notice("no"),
            None => style.notice("?"),
        };
        let _ = write!(text, "  {title:<width$}  {word}");
        // "no" and "?" are padded by hand: colour codes would count as columns.
        let taken = if *present == Some(false) { 2 } else { 1 };
        if !note.is_empty() {
            let indent = 2 + width + 2 + 5;
            text.push_str(&" ".repeat(5 - taken));
            text.push_str(&wrap(note, indent));
        }
        text.push('\n');
    }
    if kernel.missing_capabilities.is_empty() {
        let _ = writeln!(text, "  {privileges:<width$}  yes");
    } else {
        let _ = write!(text, "  {privileges:<width$}  {}   ", style.notice("no"));
        let note = format!(
            "missing {}: run it with sudo, or grant them to a group; 'wirelane count' says how",
            kernel.missing_capabilities.join(", ")
        );
        let _ = writeln!(text, "{}", wrap(&note, 2 + width + 2 + 5));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style { colour: false };

    fn feature(present: Option<bool>, note: &str) -> Feature {
        Feature { feature: "some_feature", title: "some feature", present, note: note.to_owned() }
    }

    fn sample() -> KernelFeatures {
        KernelFeatures {
            release: "6.18.44".to_owned(),
            features: vec![
                feature(Some(true), ""),
                feature(Some(false), &"a long explanation of what its absence means ".repeat(4)),
                feature(None, "not known: asking needs CAP_NET_ADMIN"),
            ],
            missing_capabilities: vec!["CAP_BPF".to_owned(), "CAP_NET_ADMIN".to_owned()],
        }
    }

    #[test]
    fn what_is_missing_is_named_within_80_columns() {
        let text = kernel(&sample(), PLAIN);
        let words: Vec<&str> = text.split_whitespace().collect();
        let running = words.join(" ");
        assert!(running.contains("missing CAP_BPF, CAP_NET_ADMIN"), "{text}");
        assert!(running.contains("a long explanation"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\u{1b}'));
        assert!(kernel(&sample(), Style { colour: true }).contains("\u{1b}[33mno\u{1b}[0m"));
    }

    #[test]
    fn speeds_are_short() {
        for (mbps, text) in [(10, "10M"), (1000, "1G"), (2500, "2.5G"), (10_000, "10G"), (400_000, "400G")] {
            assert_eq!(speed(mbps), text);
        }
    }

    #[test]
    fn the_table_of_this_machine_keeps_its_columns() {
        let devices = Device::list().unwrap();
        let text = table(&devices, PLAIN);
        assert_eq!(text.lines().count(), devices.len() + 1);
        let head = text.lines().next().unwrap();
        let column = head.find("RX QUEUES").unwrap();
        for line in text.lines().skip(1) {
            let name = line.split_whitespace().next().unwrap();
            assert!(line[column..].starts_with(&format!("{name}@0")), "{text}");
        }
    }
}
