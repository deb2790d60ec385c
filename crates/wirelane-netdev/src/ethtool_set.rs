//! Settings through ethtool (linux/ethtool.h): channels, rings, offloads, RSS.

use std::io;
use std::os::fd::OwnedFd;

use serde::Serialize;

use super::netlink::{text, u32_at};
use super::sys;

const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_SRINGPARAM: u32 = 0x11;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;

const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
const ETH_RSS_HASH_TOP: u8 = 1;
const ETH_RXFH_INDIR_NO_CHANGE: u32 = u32::MAX;
const RXH_XFRM_SYM_XOR: u8 = 1;
const RXH_XFRM_NO_CHANGE: u8 = 0xff;

/// Bytes of `struct ethtool_channels` and, by chance, of `struct ethtool_ringparam`.
const NUMBERS: usize = 36;
/// Bytes of `struct ethtool_rxfh` without its tail.
const RXFH: usize = 24;
/// Upper limit of accepted tables and keys, in entries and bytes.
const LONGEST: usize = 64 * 1024;

/// Numbers of channels (ethtool -l).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// Receive-only channels: current number and maximum.
    pub rx: (u32, u32),
    /// Send-only channels.
    pub tx: (u32, u32),
    /// Combined channels.
    pub combined: (u32, u32),
}

/// Descriptors of each RX queue (ethtool -g).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RingSize {
    /// Current number.
    pub now: u32,
    /// Maximum number.
    pub most: u32,
}

/// The card's choice of the RX queue of a packet (ethtool -x).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// The queue for each value of the low bits of the hash.
    pub table: Vec<u32>,
    /// The key of the Toeplitz hash; empty if the driver does not report it.
    pub key: Vec<u8>,
    /// Whether the hash function is Toeplitz.
    pub toeplitz: bool,
    /// Whether the card combines addresses and ports so that both directions have the same hash (Linux 6.8).
    pub symmetric: bool,
}

/// A feature of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadState {
    /// The kernel's name of the feature: `rx-gro`.
    pub name: String,
    /// Whether it is on.
    pub on: bool,
    /// Whether it is requested: the kernel or the driver may leave it off for the time being.
    pub requested: bool,
    /// Whether it cannot be changed.
    pub fixed: bool,
}

/// Reads and sets the settings of one device of the network namespace in which it was opened.
#[derive(Debug)]
pub struct EthtoolSet {
    socket: OwnedFd,
    device: String,
}

impl EthtoolSet {
    /// Opens a socket for the device with this name, which need not exist.
    ///
    /// # Errors
    /// The kernel's error; the same applies to all functions here.
    pub fn open(device: &str) -> io::Result<EthtoolSet> {
        let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        Ok(EthtoolSet { socket, device: device.to_owned() })
    }

    /// The numbers of channels. `Unsupported` if the driver has none.
    pub fn channels(&self) -> io::Result<Channels> {
        let answer = self.ask(ETHTOOL_GCHANNELS, NUMBERS)?;
        let at = |now, most| (number(&answer, now), number(&answer, most));
        let channels = Channels { rx: at(20, 4), tx: at(24, 8), combined: at(32, 16) };
        if channels.most_rx() == 0 { Err(unsupported()) } else { Ok(channels) }
    }

    /// Sets the numbers of channels; needs CAP_NET_ADMIN, as all setters do.
    pub fn set_channels(&self, channels: &Channels) -> io::Result<()> {
        // The other fields, such as the number of other channels, stay as they are.
        let mut command = self.ask(ETHTOOL_GCHANNELS, NUMBERS)?;
        put(&mut command, 0, ETHTOOL_SCHANNELS);
        put(&mut command, 20, channels.rx.0);
        put(&mut command, 24, channels.tx.0);
        put(&mut command, 32, channels.combined.0);
        self.run(&mut command)
    }

    /// Descriptors of each RX queue.
    pub fn rx_ring(&self) -> io::Result<RingSize> {
        let answer = self.ask(ETHTOOL_GRINGPARAM, NUMBERS)?;
        let ring = RingSize { most: number(&answer, 4), now: number(&answer, 20) };
        if ring.most == 0 { Err(unsupported()) } else { Ok(ring) }
    }

    /// Sets the descriptors of each RX queue.
    pub fn set_rx_ring(&self, descriptors: u32) -> io::Result<()> {
        let mut command = self.ask(ETHTOOL_GRINGPARAM, NUMBERS)?;
        put(&mut command, 0, ETHTOOL_SRINGPARAM);
        put(&mut command, 20, descriptors);
        self.run(&mut command)
    }

    /// All features of the device, in the kernel's order.
    pub fn offloads(&self) -> io::Result<Vec<OffloadState>> {
        let names = self.feature_names()?;
        let words = names.len().div_ceil(32);
        let mut command = vec![0; 8 + words * 16];
        put(&mut command, 0, ETHTOOL_GFEATURES);
        put(&mut command, 4, words as u32);
        self.run(&mut command)?;
        let bit = |feature: usize, field: usize| {
            let word = number(&command, 8 + feature / 32 * 16 + field * 4);
            word & (1 << (feature % 32)) != 0
        };
        // struct ethtool_get_features_block: available, requested, active, never_changed.
        let state = |(feature, name): (usize, String)| OffloadState {
            on: bit(feature, 2),
            requested: bit(feature, 1),
            fixed: !bit(feature, 0) || bit(feature, 3),
            name,
        };
        Ok(names.into_iter().enumerate().map(state).filter(|state| !state.name.is_empty()).collect())
    }

    /// Switches a feature on or off.
    pub fn set_offload(&self, name: &str, on: bool) -> io::Result<()> {
        let names = self.feature_names()?;
        let feature = names.iter().position(|one| one == name).ok_or_else(unsupported)?;
        let words = names.len().div_ceil(32);
        let mut command = vec![0; 8 + words * 8];
        put(&mut command, 0, ETHTOOL_SFEATURES);
        put(&mut command, 4, words as u32);
        // struct ethtool_set_features_block: valid, requested.
        let block = 8 + feature / 32 * 8;
        put(&mut command, block, 1 << (feature % 32));
        put(&mut command, block + 4, u32::from(on) << (feature % 32));
        self.run(&mut command)
    }

    /// The RSS table, key and hash.
    pub fn rss(&self) -> io::Result<Rss> {
        // The first request returns the lengths of table and key.
        let first = self.ask(ETHTOOL_GRSSH, RXFH)?;
        let (entries, key) = (number(&first, 8) as usize, number(&first, 12) as usize);
        if entries == 0 || entries > LONGEST || key > LONGEST {
            return Err(unsupported());
        }
        let mut answer = vec![0; RXFH + entries * 4 + key];
        put(&mut answer, 0, ETHTOOL_GRSSH);
        put(&mut answer, 8, entries as u32);
        put(&mut answer, 12, key as u32);
        self.run(&mut answer)?;
        Ok(Rss {
            table: (0..entries).map(|entry| number(&answer, RXFH + entry * 4)).collect(),
            key: answer[RXFH + entries * 4..].to_vec(),
            toeplitz: answer[16] == ETH_RSS_HASH_TOP,
            symmetric: answer[17] & RXH_XFRM_SYM_XOR != 0 && answer[17] != RXH_XFRM_NO_CHANGE,
        })
    }

    /// Sets the table. An empty one makes the driver spread packets evenly, which is its default.
    pub fn set_rss_table(&self, table: &[u32]) -> io::Result<()> {
        let mut command = vec![0; RXFH];
        put(&mut command, 8, table.len() as u32);
        command.extend(table.iter().flat_map(|queue| queue.to_ne_bytes()));
        self.set_rss(command)
    }

    /// Sets the key of the Toeplitz hash.
    pub fn set_rss_key(&self, key: &[u8]) -> io::Result<()> {
        let mut command = vec![0; RXFH];
        put(&mut command, 8, ETH_RXFH_INDIR_NO_CHANGE);
        put(&mut command, 12, key.len() as u32);
        command.extend_from_slice(key);
        self.set_rss(command)
    }

    fn set_rss(&self, mut command: Vec<u8>) -> io::Result<()> {
        put(&mut command, 0, ETHTOOL_SRSSH);
        // Kernels before 6.8 have a reserved byte at this offset, which must be zero.
        command[17] = RXH_XFRM_NO_CHANGE;
        match self.run(&mut command) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                command[17] = 0;
                self.run(&mut command)
            }
            other => other,
        }
    }

    fn feature_names(&self) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: the mask of requested sets, then the count of each.
        let mut command = vec![0; 20];
        put(&mut command, 0, ETHTOOL_GSSET_INFO);
        command[8..16].copy_from_slice(&(1u64 << ETH_SS_FEATURES).to_ne_bytes());
        self.run(&mut command)?;
        let count = number(&command, 16) as usize;
        if count == 0 || count > LONGEST {
            return Err(unsupported());
        }
        let mut command = vec![0; 12 + count * ETH_GSTRING_LEN];
        put(&mut command, 0, ETHTOOL_GSTRINGS);
        put(&mut command, 4, ETH_SS_FEATURES);
        put(&mut command, 8, count as u32);
        self.run(&mut command)?;
        Ok(command[12..].chunks_exact(ETH_GSTRING_LEN).map(text).collect())
    }

    fn ask(&self, command: u32, size: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; size];
        put(&mut buffer, 0, command);
        self.run(&mut buffer)?;
        Ok(buffer)
    }

    fn run(&self, command: &mut [u8]) -> io::Result<()> {
        sys::ethtool(&self.socket, &self.device, command)
    }
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

fn number(bytes: &[u8], offset: usize) -> u32 {
    u32_at(bytes, offset).unwrap_or(0)
}

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_features_and_neither_channels_nor_rings() {
        let lo = EthtoolSet::open("lo").unwrap();
        let offloads = lo.offloads().unwrap();
        let gro = offloads.iter().find(|state| state.name == "rx-gro").unwrap();
        assert!(!gro.fixed, "{gro:?}");
        assert!(offloads.iter().any(|state| state.name == "loopback" && state.on && state.fixed));
        assert!(lo.channels().is_err() && lo.rx_ring().is_err() && lo.rss().is_err());
        assert!(lo.set_offload("no-such-feature", true).is_err());
    }
}
