//! Export targets of flows, parsed from options.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use crate::{Error, Result};

/// Export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// NetFlow version 5: IPv4 only.
    Netflow5,
    /// NetFlow version 9 (RFC 3954).
    Netflow9,
    /// IPFIX (RFC 7011); in files as in RFC 5655.
    Ipfix,
    /// One JSON object per line.
    Json,
    /// Comma-separated values.
    Csv,
}

/// Transport of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP to the first of these addresses.
    Udp(Vec<SocketAddr>),
    /// TCP to one of these addresses; a broken connection is made again.
    Tcp(Vec<SocketAddr>),
    /// A file, or standard output (`-`).
    File(PathBuf),
}

/// An output of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The target as the user wrote it.
    pub name: String,
    /// Export format.
    pub format: Format,
    /// Transport.
    pub transport: Transport,
    /// Maximum bytes of a message.
    pub message: usize,
}

/// Payload that fits into an Ethernet frame after IPv6 and UDP headers, with space for a VLAN tag or a small tunnel.
const MESSAGE: usize = 1400;

impl Target {
    /// Parses a target: `ipfix://HOST[:PORT][?transport=tcp&message=BYTES]`, `netflow9://HOST[:PORT]`,
    /// `netflow5://HOST[:PORT]`, `file:PATH.ipfix`, `file:PATH.json`, `file:PATH.csv`. Resolves names.
    ///
    /// # Errors
    /// [`Error::Target`] with the fault and the expected form.
    pub fn parse(text: &str) -> Result<Target> {
        let wrong = |reason: String| Error::Target { target: text.to_owned(), reason };
        let shape = "write ipfix://HOST:PORT, netflow9://HOST:PORT, netflow5://HOST:PORT, or file:PATH with .ipfix, \
                     .json or .csv at its end";
        if let Some(path) = text.strip_prefix("file:") {
            let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
            let format = match extension {
                "ipfix" => Format::Ipfix,
                "json" | "jsonl" | "ndjson" => Format::Json,
                "csv" => Format::Csv,
                _ => return Err(wrong("the file's name must end in .ipfix, .json or .csv".into())),
            };
            let transport = Transport::File(path.into());
            return Ok(Target { name: text.to_owned(), format, transport, message: 65_535 });
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong(shape.into()))?;
        let (format, port) = match scheme {
            "ipfix" => (Format::Ipfix, 4739),
            "netflow9" => (Format::Netflow9, 2055),
            "netflow5" => (Format::Netflow5, 2055),
            other => return Err(wrong(format!("'{other}' is not known: {shape}"))),
        };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let place = place.trim_end_matches('/');
        let (mut tcp, mut message) = (false, MESSAGE);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("transport", "udp")) => tcp = false,
                Some(("transport", "tcp")) if format == Format::Ipfix => tcp = true,
                Some(("transport", "tcp")) => {
                    return Err(wrong("NetFlow uses UDP; use ipfix:// for TCP".into()));
                }
                Some(("message", bytes)) => match bytes.parse() {
                    Ok(bytes @ 512..=65_000) => message = bytes,
                    _ => return Err(wrong("message is a number of bytes from 512 to 65000".into())),
                },
                _ => {
                    return Err(wrong(format!(
                        "'{option}' is not known: there are transport=udp, transport=tcp and message=BYTES"
                    )));
                }
            }
        }
        let addresses = resolve(place, port).map_err(wrong)?;
        let transport = if tcp { Transport::Tcp(addresses) } else { Transport::Udp(addresses) };
        Ok(Target { name: text.to_owned(), format, transport, message })
    }

    /// The TCP ports that the target connects to.
    pub fn tcp_ports(&self) -> Vec<u16> {
        match &self.transport {
            Transport::Tcp(addresses) => addresses.iter().map(SocketAddr::port).collect(),
            _ => Vec::new(),
        }
    }
}

/// The addresses of `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`.
pub(crate) fn resolve(place: &str, port: u16) -> std::result::Result<Vec<SocketAddr>, String> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or("a ']' is missing after the IPv6 address")?;
            match behind.strip_prefix(':') {
                Some(number) => (host, number.parse().map_err(|_| format!("'{number}' is not a port"))?),
                None if behind.is_empty() => (host, port),
                None => return Err(format!("unexpected '{behind}' after the address: write [ADDRESS]:PORT")),
            }
        }
        None => match place.split_once(':') {
            Some((_, more)) if more.contains(':') => {
                return Err("write an IPv6 address in brackets: [2001:db8::1]:4739".into());
            }
            Some((host, number)) => (host, number.parse().map_err(|_| format!("'{number}' is not a port"))?),
            None => (place, port),
        },
    };
    if host.is_empty() || port == 0 {
        return Err("a collector has a host and a port that is not 0".into());
    }
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> =
        found.map_err(|error| format!("'{host}' cannot be looked up: {error}"))?.collect();
    if found.is_empty() { Err(format!("'{host}' has no address")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_with_their_defaults() {
        let target = Target::parse("ipfix://127.0.0.1").unwrap();
        assert_eq!(target.format, Format::Ipfix);
        assert_eq!(target.transport, Transport::Udp(vec!["127.0.0.1:4739".parse().unwrap()]));
        let target = Target::parse("ipfix://[::1]:99?transport=tcp&message=512").unwrap();
        assert_eq!(target.transport, Transport::Tcp(vec!["[::1]:99".parse().unwrap()]));
        assert_eq!((target.message, target.tcp_ports()), (512, vec![99]));
        let target = Target::parse("netflow5://127.0.0.1:9996/").unwrap();
        assert_eq!(target.transport, Transport::Udp(vec!["127.0.0.1:9996".parse().unwrap()]));
        let target = Target::parse("file:/tmp/x.ipfix").unwrap();
        assert_eq!(target.transport, Transport::File("/tmp/x.ipfix".into()));
    }

    #[test]
    fn what_cannot_be_a_target_says_what_could() {
        for (text, part) in [
            ("127.0.0.1:2055", "write ipfix://HOST:PORT"),
            ("sflow://127.0.0.1", "'sflow' is not known"),
            ("netflow9://127.0.0.1?transport=tcp", "use ipfix:// for TCP"),
            ("ipfix://127.0.0.1?transport=sctp", "'transport=sctp' is not known"),
            ("ipfix://127.0.0.1?message=9", "from 512 to 65000"),
            ("ipfix://127.0.0.1:x", "'x' is not a port"),
            ("ipfix://127.0.0.1:0", "not 0"),
            ("ipfix://", "a host and a port"),
            ("ipfix://2001:db8::1", "in brackets"),
            ("ipfix://[2001:db8::1", "']' is missing"),
            ("file:flows.txt", ".ipfix, .json or .csv"),
            ("ipfix://no.such.host.invalid", "cannot be looked up"),
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
    }
}
