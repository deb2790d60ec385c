//! Our own SQL functions: addresses and networks.
//!
//! `network(address, bits4, bits6)` is the network that contains an address, as text, and
//! `in_network(address, network)` whether the network contains the address. Text that is not an address is not in any
//! network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::cast::{as_int64_array, as_string_array};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;

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

/// Registers the functions in a session.
pub(super) fn register(session: &SessionContext) {
    let text = DataType::Utf8;
    session.register_udf(create_udf(
        "network",
        vec![text.clone(), DataType::Int64, DataType::Int64],
        text.clone(),
        Volatility::Immutable,
        Arc::new(network),
    ));
    session.register_udf(contained());
}

/// Whether an address is in a network.
pub(super) fn contained() -> ScalarUDF {
    let (text, function) = (DataType::Utf8, Arc::new(in_network));
    create_udf("in_network", vec![text.clone(), text], DataType::Boolean, Volatility::Immutable, function)
}

/// The value at a row of a column.
fn at(values: &StringArray, row: usize) -> Option<&str> {
    values.is_valid(row).then(|| values.value(row))
}

fn bits(value: i64, most: i64) -> Result<u8> {
    match value {
        0.. if value <= most => Ok(value as u8),
        _ => Err(DataFusionError::Execution(format!("network(): {value} bits, of 0 to {most}"))),
    }
}

fn network(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let (addresses, four, six) =
        (as_string_array(&arrays[0])?, as_int64_array(&arrays[1])?, as_int64_array(&arrays[2])?);
    let mut networks = Vec::with_capacity(addresses.len());
    for row in 0..addresses.len() {
        let address = at(addresses, row).and_then(|address| address.parse::<IpAddr>().ok());
        networks.push(match address {
            None => None,
            Some(address @ IpAddr::V4(_)) => {
                Some(Network::of(address, bits(four.value(row), 32)?).to_string())
            }
            Some(address) => Some(Network::of(address, bits(six.value(row), 128)?).to_string()),
        });
    }
    Ok(ColumnarValue::Array(Arc::new(StringArray::from(networks)) as ArrayRef))
}

fn in_network(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let (addresses, networks) = (as_string_array(&arrays[0])?, as_string_array(&arrays[1])?);
    let mut known: HashMap<&str, Network> = HashMap::new();
    let mut answers = Vec::with_capacity(addresses.len());
    for row in 0..addresses.len() {
        let Some(text) = at(networks, row) else {
            answers.push(None);
            continue;
        };
        let network = match known.get(text) {
            Some(network) => *network,
            None => {
                let network = Network::parse(text).ok_or_else(|| {
                    DataFusionError::Execution(format!(
                        "in_network(): '{text}' is not a network: expected 10.0.0.0/8 or 2001:db8::/32"
                    ))
                })?;
                known.insert(text, network);
                network
            }
        };
        let address = at(addresses, row).and_then(|address| address.parse().ok());
        answers.push(address.map(|address| network.contains(address)));
    }
    Ok(ColumnarValue::Array(Arc::new(BooleanArray::from(answers)) as ArrayRef))
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
