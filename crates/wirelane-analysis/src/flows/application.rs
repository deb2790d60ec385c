//! Application protocol of a flow, from payload prefixes (`bpf/lib/application.h`) or ports.

use wirelane_bpf::flow::Flow;

use super::FlowRecord;

/// Protocol, port, name: registered ports (IANA) that hardly any other protocol uses. A port is a hint, not a proof.
const PORTS: &[(u8, u16, &str)] = &[
    (6, 20, "FTP_DATA"),
    (6, 21, "FTP_CONTROL"),
    (6, 22, "SSH"),
    (6, 23, "Telnet"),
    (6, 25, "SMTP"),
    (6, 53, "DNS"),
    (17, 53, "DNS"),
    (17, 67, "DHCP"),
    (17, 68, "DHCP"),
    (17, 69, "TFTP"),
    (6, 80, "HTTP"),
    (6, 88, "Kerberos"),
    (17, 88, "Kerberos"),
    (6, 110, "POP3"),
    (17, 123, "NTP"),
    (17, 137, "NetBIOS"),
    (17, 138, "NetBIOS"),
    (6, 139, "NetBIOS"),
    (6, 143, "IMAP"),
    (17, 161, "SNMP"),
    (17, 162, "SNMP"),
    (6, 179, "BGP"),
    (6, 389, "LDAP"),
    (6, 443, "TLS"),
    (17, 443, "QUIC"),
    (6, 445, "SMBv23"),
    (6, 465, "SMTPS"),
    (17, 500, "IPSec"),
    (17, 514, "Syslog"),
    (17, 546, "DHCPV6"),
    (17, 547, "DHCPV6"),
    (6, 636, "LDAPS"),
    (6, 853, "DoH_DoT"),
    (6, 873, "RSYNC"),
    (6, 993, "IMAPS"),
    (6, 995, "POPS"),
    (6, 1433, "MsSQL-TDS"),
    (6, 1883, "MQTT"),
    (17, 1900, "SSDP"),
    (17, 2055, "NetFlow"),
    (17, 2152, "GTP_U"),
    (6, 3306, "MySQL"),
    (6, 3389, "RDP"),
    (17, 3478, "STUN"),
    (17, 4500, "IPSec"),
    (17, 4739, "IPFIX"),
    (17, 4789, "VXLAN"),
    (6, 5060, "SIP"),
    (17, 5060, "SIP"),
    (17, 5353, "MDNS"),
    (17, 5355, "LLMNR"),
    (6, 5432, "PostgreSQL"),
    (6, 6379, "Redis"),
    (17, 6343, "sFlow"),
    (6, 9418, "Git"),
];

/// Names of detected applications, by the numbers of [`Flow::application`] from 1 on; as in nDPI, if it has one.
const RECOGNISED: [&str; 23] = [
    "TLS",
    "DTLS",
    "HTTP",
    "HTTP2",
    "SSH",
    "DNS",
    "MDNS",
    "LLMNR",
    "QUIC",
    "SIP",
    "RTSP",
    "STUN",
    "BitTorrent",
    "SMBv1",
    "SMBv23",
    "RDP",
    "NTP",
    "DHCP",
    "MQTT",
    "SMTP",
    "PostgreSQL",
    "SSDP",
    "BGP",
];

/// Names that only ports indicate, by numbers from 65 on. They are exported: add new ones at the end. All are less than
/// 128: nfdump 1.7.1 takes the bytes of an id for part of a name, which has to be UTF-8.
const BY_PORT: [&str; 28] = [
    "FTP_DATA",
    "FTP_CONTROL",
    "Telnet",
    "TFTP",
    "Kerberos",
    "POP3",
    "NetBIOS",
    "IMAP",
    "SNMP",
    "LDAP",
    "SMTPS",
    "IPSec",
    "Syslog",
    "DHCPV6",
    "LDAPS",
    "DoH_DoT",
    "RSYNC",
    "IMAPS",
    "POPS",
    "MsSQL-TDS",
    "NetFlow",
    "GTP_U",
    "MySQL",
    "IPFIX",
    "VXLAN",
    "Redis",
    "sFlow",
    "Git",
];

/// Number of the first name that only ports indicate.
const FIRST_BY_PORT: u8 = 65;

/// Evidence for an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// First bytes of a payload: certain.
    Payload,
    /// A registered port: a hint, not a proof.
    Port,
}

/// Application protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Application {
    /// Number, which is stable: see [`applications`].
    pub number: u8,
    /// Name, as in nDPI if it has one.
    pub name: &'static str,
    /// Evidence.
    pub by: Evidence,
}

/// Numbers and names of all applications: those that are detected, and those of ports.
pub fn applications() -> impl Iterator<Item = (u8, &'static str)> {
    let by_port = (FIRST_BY_PORT..).zip(BY_PORT);
    (1..).zip(RECOGNISED).chain(by_port)
}

impl FlowRecord {
    /// Application protocol: detected in the first bytes of either direction if certain, otherwise derived from the
    /// ports.
    pub fn application(&self) -> Option<Application> {
        let seen = |flow: &Flow| match flow.application {
            0 => None,
            number => Some((number, *RECOGNISED.get(usize::from(number) - 1)?)),
        };
        if let Some((number, name)) = seen(&self.flow).or_else(|| seen(self.reverse.as_ref()?)) {
            return Some(Application { number, name, by: Evidence::Payload });
        }
        let name = at_ports(self.key.proto, self.source_port(), self.destination_port())?;
        let (number, name) = applications().find(|(_, known)| *known == name)?;
        Some(Application { number, name, by: Evidence::Port })
    }
}

/// Name of the application on one of these ports; `None` if uncertain: the ports are unknown, or belong to two
/// applications. The destination port takes precedence.
fn at_ports(protocol: u8, source_port: u16, destination_port: u16) -> Option<&'static str> {
    let at = |port: u16| {
        PORTS.iter().find(|(proto, known, _)| (*proto, *known) == (protocol, port)).map(|(_, _, name)| *name)
    };
    match (at(source_port), at(destination_port)) {
        (Some(one), Some(other)) if one != other => None,
        (source, destination) => destination.or(source),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use wirelane_bpf::flow::{EndReason, FlowKey, applications as c};

    use super::*;

    #[test]
    fn a_port_names_its_application_in_both_directions() {
        assert_eq!(at_ports(17, 40_000, 53), Some("DNS"));
        assert_eq!(at_ports(17, 53, 40_000), Some("DNS"));
        assert_eq!(at_ports(17, 53, 53), Some("DNS"));
        assert_eq!(at_ports(6, 22, 80), None, "one of them is wrong");
        assert_eq!(at_ports(6, 40_000, 40_001), None);
        assert_eq!(at_ports(17, 1, 80), None, "HTTP is no UDP");
    }

    #[test]
    fn every_name_has_one_number_and_every_port_a_name_that_has_one() {
        let (numbers, names): (HashSet<u8>, HashSet<&str>) = applications().unzip();
        assert_eq!((numbers.len(), names.len()), (RECOGNISED.len() + BY_PORT.len(), numbers.len()));
        assert!(RECOGNISED.len() < usize::from(FIRST_BY_PORT));
        for (_, port, name) in PORTS {
            assert!(names.contains(name), "{port}: {name}");
        }
        assert_eq!(RECOGNISED[usize::from(c::TLS) - 1], "TLS");
        assert_eq!(RECOGNISED[usize::from(c::BITTORRENT) - 1], "BitTorrent");
        assert_eq!(RECOGNISED.len(), usize::from(c::BGP));
    }

    #[test]
    fn bytes_count_for_more_than_ports() {
        let key = FlowKey { l3: 4, proto: 6, dst_port: 443u16.to_be(), ..FlowKey::default() };
        let mut record = FlowRecord { key, flow: Flow::default(), reverse: None, reason: EndReason::Idle };
        let tls = Application { number: 1, name: "TLS", by: Evidence::Port };
        assert_eq!(record.application(), Some(tls));
        record.reverse = Some(Flow { application: c::SSH, ..Flow::default() });
        let ssh = Application { number: 5, name: "SSH", by: Evidence::Payload };
        assert_eq!(record.application(), Some(ssh));
        record.flow.application = c::TLS;
        assert_eq!(record.application(), Some(Application { by: Evidence::Payload, ..tls }));
    }
}
