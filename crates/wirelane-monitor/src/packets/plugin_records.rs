//! Records of plug-ins among those of packets.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use wirelane::Record;
use wirelane::escape::to_json;
use wirelane_screen::packet;
use wirelane_screen::table::printable;

use super::Shower;
use super::line::hex;

/// A record of a plug-in, with `--json`.
#[derive(Debug, Serialize)]
struct PluginRecord<'a> {
    record: &'static str,
    time: String,
    utc_ns: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    device: &'a str,
    queue: u16,
    plugin: &'a str,
    /// In hexadecimal digits.
    bytes: String,
}

impl Shower {
    /// Shows a record of a plug-in.
    pub(super) fn plugin_record(&mut self, record: &Record<'_>, utc_ns: u64) -> Result<()> {
        let Some((number, bytes)) = record.plugin() else { return Ok(()) };
        let plugin = self.plugins.get(number).map_or("", String::as_str);
        let (device, queue, bytes) = (self.names[record.device()].as_str(), record.queue(), hex(bytes));
        if self.style.json {
            let time = packet::date(utc_ns);
            let line = PluginRecord { record: "plug-in", time, utc_ns, device, queue, plugin, bytes };
            self.shown += &to_json(&line)?;
        } else {
            self.clock.write(&mut self.shown, utc_ns);
            let _ = write!(self.shown, "{}@{queue} plug-in {plugin} {bytes}", printable(device));
        }
        self.shown.push('\n');
        Ok(())
    }
}
