//! Our own SQL functions: networks and times.
//!
//! `network(address, bits4, bits6)` is the network that contains an address, as text, and `in_network(address, network)`
//! whether the network contains the address. Text that is not an address is not in any network. `step(time, seconds)` is
//! the beginning of the step that contains a time. `text REGEXP pattern` is that of the crate `regex`. `floor(x)` is
//! in SQLite only if it was built with its mathematical functions.

use std::net::IpAddr;

use regex::Regex;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::{Connection, Error, Result};

use super::cell::{parse_time, time};

/// A network: its address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// The network with this prefix length that contains an address; too long a prefix length is limited to the full
    /// address.
    pub(super) fn of(address: IpAddr, bits: u8) -> Network {
        let (address, bits) = match address {
            IpAddr::V4(address) => {
                let bits = bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                (IpAddr::from((u32::from(address) & mask).to_be_bytes()), bits)
            }
            IpAddr::V6(address) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                (IpAddr::from((u128::from(address) & mask).to_be_bytes()), bits)
            }
        };
        Network { address, bits }
    }

    /// Parses `10.0.0.0/8`, or an address alone.
    pub(super) fn parse(text: &str) -> Option<Network> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
        (bits <= most).then(|| Network::of(address, bits))
    }

    /// The first address of the network.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// The last address of the network.
    pub(super) fn last(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let rest = u32::MAX.checked_shr(u32::from(self.bits)).unwrap_or(0);
                IpAddr::from((u32::from(address) | rest).to_be_bytes())
            }
            IpAddr::V6(address) => {
                let rest = u128::MAX.checked_shr(u32::from(self.bits)).unwrap_or(0);
                IpAddr::from((u128::from(address) | rest).to_be_bytes())
            }
        }
    }

    /// Whether the network is a single address.
    pub(super) fn is_one(&self) -> bool {
        self.bits == if self.address.is_ipv4() { 32 } else { 128 }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && Network::of(address, self.bits) == *self
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Registers the functions.
pub(super) fn register(connection: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("network", 3, flags, network)?;
    connection.create_scalar_function("in_network", 2, flags, in_network)?;
    connection.create_scalar_function("step", 2, flags, step)?;
    connection.create_scalar_function("regexp", 2, flags, regexp)?;
    connection.create_scalar_function("floor", 1, flags, |context| {
        Ok(context.get::<Option<f64>>(0)?.map(f64::floor))
    })?;
    Ok(())
}

/// An argument that is an address; `None`: it is another text, or NULL.
fn address(context: &Context<'_>) -> Option<IpAddr> {
    context.get_raw(0).as_str().ok()?.parse().ok()
}

/// An error of a function.
type Wrong = Box<dyn std::error::Error + Send + Sync>;

fn wrong(message: String) -> Error {
    Error::UserFunctionError(message.into())
}

fn network(context: &Context<'_>) -> Result<Option<String>> {
    let bits = |at: usize, most: i64| match context.get::<i64>(at)? {
        bits @ 0.. if bits <= most => Ok(bits as u8),
        bits => Err(wrong(format!("network(): {bits} bits, of 0 to {most}"))),
    };
    let (four, six) = (bits(1, 32)?, bits(2, 128)?);
    let bits = |address: &IpAddr| if address.is_ipv4() { four } else { six };
    Ok(address(context).map(|address| Network::of(address, bits(&address)).to_string()))
}

fn in_network(context: &Context<'_>) -> Result<Option<bool>> {
    let Ok(text) = context.get_raw(1).as_str() else { return Ok(None) };
    let network = Network::parse(text).ok_or_else(|| {
        wrong(format!("in_network(): '{text}' is not a network: expected 10.0.0.0/8 or 2001:db8::/32"))
    })?;
    Ok(address(context).map(|address| network.contains(address)))
}

fn regexp(context: &Context<'_>) -> Result<Option<bool>> {
    // Compiled once for a pattern that is a constant.
    let pattern = context.get_or_create_aux(0, |value| -> std::result::Result<Regex, Wrong> {
        let pattern = value.as_str()?;
        Regex::new(pattern).map_err(|error| {
            let error = error.to_string();
            format!("REGEXP '{pattern}': {}", error.lines().last().unwrap_or_default()).into()
        })
    })?;
    Ok(context.get_raw(1).as_str().ok().map(|text| pattern.is_match(text)))
}

fn step(context: &Context<'_>) -> Result<Option<String>> {
    let Ok(text) = context.get_raw(0).as_str() else { return Ok(None) };
    let seconds = context.get::<i64>(1)?;
    let us = parse_time(text).ok_or_else(|| wrong(format!("step(): '{text}' is not a time")))?;
    match seconds.checked_mul(1_000_000) {
        Some(length @ 1..) => Ok(Some(time(us - us.rem_euclid(length), ' '))),
        _ => Err(wrong(format!("step(): {seconds} is not a number of seconds"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_contain_their_own() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("::/0", "ffff::", "1.2.3.4"),
        ] {
            let network = Network::parse(network).unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network}");
            assert!(!network.contains(outside.parse().unwrap()), "{network}");
        }
        assert_eq!(Network::parse("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        for (network, last) in [
            ("10.1.2.3/8", "10.255.255.255"),
            ("192.0.2.1", "192.0.2.1"),
            ("0.0.0.0/0", "255.255.255.255"),
            ("2001:db8::/33", "2001:db8:7fff:ffff:ffff:ffff:ffff:ffff"),
            ("::1", "::1"),
        ] {
            assert_eq!(Network::parse(network).unwrap().last().to_string(), last, "{network}");
        }
        for wrong in ["10.0.0.0/33", "x/8", "10.0.0.0/", "::/129", "10.0.0/8", ""] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }
}
