//! Devices in the words of Wireshark's extcap protocol (extcap(4)).

use anyhow::{Result, bail};
use wirelane::filter::Filter;
use wirelane::{Device, LinkType, Selector, linktype};

/// The configurable options, in the protocol's form.
pub const CONFIG: &str = "\
arg {number=0}{call=--direction}{display=Direction}{type=selector}{tooltip=Which packets of the device}\n\
value {arg=0}{value=rx}{display=Received}{default=true}\n\
value {arg=0}{value=tx}{display=Sent}{default=false}\n\
value {arg=0}{value=both}{display=Both}{default=false}\n\
arg {number=1}{call=--snap-length}{display=Bytes of each packet}{type=unsigned}{default=0}\
{tooltip=0 keeps all of them}\n";

/// The devices in the protocol's form: every RX queue, and the whole device if it has several.
pub fn interfaces(devices: &[Device]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("extcap {{version={version}}}{{display=Wirelane}}\n");
    for device in devices.iter().filter(|device| device.up && device.link_type != LinkType::Other) {
        let name = &device.name;
        // Braces would end a value.
        if name.contains(['{', '}']) {
            continue;
        }
        if let [_, .., last] = device.rx_queues.as_slice() {
            let all = format!("{name}@0-{}", last.queue);
            text.push_str(&format!(
                "interface {{value={all}}}{{display=Wirelane: all RX queues of {name}}}\n"
            ));
        }
        for queue in &device.rx_queues {
            let (value, queue) = (&queue.virtual_device, queue.queue);
            text.push_str(&format!(
                "interface {{value={value}}}{{display=Wirelane: RX queue {queue} of {name}}}\n"
            ));
        }
    }
    text
}

/// The device with this name, which is one.
///
/// # Errors
/// If no device, or more than one, matches.
pub fn device(name: &str) -> Result<Device> {
    let selectors = Selector::parse_list(name)?;
    let [selector] = selectors.as_slice() else { bail!("'{name}' is several devices") };
    Ok(selector.resolve()?.device)
}

/// Link type of a device, in the protocol's form.
pub fn link_type(device: &Device) -> &'static str {
    match device.link_type {
        LinkType::Raw => "dlt {number=101}{name=RAW}{display=Raw IP}\n",
        _ => "dlt {number=1}{name=EN10MB}{display=Ethernet}\n",
    }
}

/// Checks a filter expression for this device.
///
/// # Errors
/// The mistake in the expression.
pub fn check(expression: &str, device: &Device) -> Result<(), wirelane::Error> {
    let link = linktype::number(device.link_type).unwrap_or(linktype::ETHERNET);
    Ok(Filter::compile(expression, link).map(drop)?)
}
