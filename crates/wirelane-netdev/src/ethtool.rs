//! Properties that drivers report through ethtool (linux/ethtool.h). All of them are optional: many virtual devices
//! report nothing, and then the value here is `None`.

use std::os::fd::OwnedFd;

use serde::Serialize;

use super::netlink::{text, u32_at, u64_at};
use super::sys;

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;

// linux/net_tstamp.h
const SOF_TIMESTAMPING_RX_HARDWARE: u32 = 1 << 2;
const HWTSTAMP_FILTER_ALL: i32 = 1;

const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;
/// Room for a driver's own counters. The kernel fills in as many as there are by then, whatever the room
/// (net/ethtool/ioctl.c, ethtool_get_stats()), so it is for more than any driver has.
const MOST_COUNTERS: usize = 16 * 1024;

/// Bytes of `struct ethtool_drvinfo`, `ethtool_channels`, `ethtool_link_settings`.
const DRVINFO: usize = 196;
const CHANNELS: usize = 36;
const LINK_SETTINGS: usize = 48;
/// Bytes of `struct ethtool_ts_info`.
const TS_INFO: usize = 44;

/// Offset of `link_mode_masks_nwords` in `struct ethtool_link_settings`.
const NWORDS: usize = 15;

/// Whether a link sends and receives at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplex {
    /// One direction at a time.
    Half,
    /// Both at once.
    Full,
}

/// Receive timestamping by the card's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardStamps {
    /// The card has no such clock.
    None,
    /// The card has a clock, and can stamp packets of PTP only.
    Ptp,
    /// The card has a clock, `/dev/ptp<clock>`, but it does not stamp all received packets.
    Off {
        /// Number of its clock.
        clock: u32,
    },
    /// The clock stamps all received packets.
    On {
        /// Number of its clock.
        clock: u32,
    },
}

/// Name and bus address that a driver reports.
pub(super) struct DriverInfo {
    pub(super) driver: Option<String>,
    pub(super) bus_info: Option<String>,
}

/// Queries drivers of devices in the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Ethtool(OwnedFd);

impl Ethtool {
    pub(super) fn open() -> std::io::Result<Ethtool> {
        sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map(Ethtool)
    }

    /// Name of the driver and bus address, as in `0000:00:1f.6`.
    pub(super) fn driver(&self, name: &str) -> Option<DriverInfo> {
        let answer = self.ask::<DRVINFO>(name, ETHTOOL_GDRVINFO)?;
        let field = |start: usize| Some(text(&answer[start..start + 32])).filter(|text| !text.is_empty());
        Some(DriverInfo { driver: field(4), bus_info: field(4 + 3 * 32) })
    }

    /// Number of active RX queues: receive-only channels and combined channels. `None` if the driver reports neither.
    pub(super) fn rx_queues(&self, name: &str) -> Option<u32> {
        let answer = self.ask::<CHANNELS>(name, ETHTOOL_GCHANNELS)?;
        let (rx, combined) = (u32_at(&answer, 20)?, u32_at(&answer, 32)?);
        rx.checked_add(combined).filter(|queues| *queues > 0)
    }

    /// Speed in Mbit/s and duplex, each where known.
    pub(super) fn link(&self, name: &str) -> (Option<u32>, Option<Duplex>) {
        // The first request returns the length of the three bit masks behind the struct, as a negative number.
        let Some(first) = self.ask::<LINK_SETTINGS>(name, ETHTOOL_GLINKSETTINGS) else {
            return (None, None);
        };
        let words = (first[NWORDS] as i8).unsigned_abs();
        let mut command = vec![0; LINK_SETTINGS + 3 * 4 * usize::from(words)];
        command[..4].copy_from_slice(&ETHTOOL_GLINKSETTINGS.to_ne_bytes());
        command[NWORDS] = words;
        if sys::ethtool(&self.0, name, &mut command).is_err() {
            return (None, None);
        }
        // SPEED_UNKNOWN is all ones; some drivers report 0 while the link is down.
        let speed = u32_at(&command, 4).filter(|speed| !matches!(*speed, 0 | u32::MAX));
        let duplex = match command[8] {
            0 => Some(Duplex::Half),
            1 => Some(Duplex::Full),
            _ => None,
        };
        (speed, duplex)
    }

    /// The card's clock, and whether it stamps received packets.
    pub(super) fn card_stamps(&self, name: &str) -> CardStamps {
        let Some(answer) = self.ask::<TS_INFO>(name, ETHTOOL_GET_TS_INFO) else { return CardStamps::None };
        let capabilities = u32_at(&answer, 4).unwrap_or(0);
        let index = u32_at(&answer, 8).unwrap_or(u32::MAX) as i32;
        let Ok(clock) = u32::try_from(index) else { return CardStamps::None };
        if capabilities & SOF_TIMESTAMPING_RX_HARDWARE == 0 {
            return CardStamps::None;
        }
        match sys::hardware_stamps(&self.0, name) {
            Ok(HWTSTAMP_FILTER_ALL) => CardStamps::On { clock },
            // The receive filters that the driver has.
            _ if u32_at(&answer, 28).unwrap_or(0) & (1 << HWTSTAMP_FILTER_ALL) == 0 => CardStamps::Ptp,
            _ => CardStamps::Off { clock },
        }
    }

    /// The driver's own counters (ethtool -S).
    pub(super) fn own_counters(&self, name: &str) -> Option<Vec<u64>> {
        let (answer, count) = self.list(name, ETHTOOL_GSTATS, 8, 4, 8)?;
        (0..count).map(|counter| u64_at(&answer, 8 + counter * 8)).collect()
    }

    /// Their names, in the same order.
    pub(super) fn names_of_own_counters(&self, name: &str) -> Option<Vec<String>> {
        let (answer, count) = self.list(name, ETHTOOL_GSTRINGS, 12, 8, ETH_GSTRING_LEN)?;
        Some(answer[12..].chunks_exact(ETH_GSTRING_LEN).take(count).map(text).collect())
    }

    /// The answer to a command whose struct has a head, with the number of entries at an offset, and entries.
    fn list(
        &self,
        name: &str,
        command: u32,
        head: usize,
        at: usize,
        entry: usize,
    ) -> Option<(Vec<u8>, usize)> {
        let mut buffer = vec![0; head + MOST_COUNTERS * entry];
        buffer[..4].copy_from_slice(&command.to_ne_bytes());
        if command == ETHTOOL_GSTRINGS {
            buffer[4..8].copy_from_slice(&ETH_SS_STATS.to_ne_bytes());
        }
        sys::ethtool(&self.0, name, &mut buffer).ok()?;
        let count = u32_at(&buffer, at)? as usize;
        (count <= MOST_COUNTERS).then_some((buffer, count))
    }

    fn ask<const SIZE: usize>(&self, name: &str, command: u32) -> Option<[u8; SIZE]> {
        let mut buffer = [0; SIZE];
        buffer[..4].copy_from_slice(&command.to_ne_bytes());
        sys::ethtool(&self.0, name, &mut buffer).ok()?;
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_such_device_is_no_answer() {
        let ethtool = Ethtool::open().unwrap();
        assert!(ethtool.driver("no-such-dev").is_none());
        assert!(ethtool.rx_queues("a-name-longer-than-any-device-has").is_none());
        assert_eq!(ethtool.link("no-such-dev"), (None, None));
        assert_eq!((ethtool.own_counters("no-such-dev"), ethtool.own_counters("lo")), (None, None));
    }
}
