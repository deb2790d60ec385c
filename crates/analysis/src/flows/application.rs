//! What speaks at a port.

/// Protocol, port, name: registered ports (IANA) at which hardly anything else is met. A port is a hint and no proof.
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

/// The name, as nDPI has it where it has one, of what speaks at one of these ports; `None` where that is not certain:
/// the ports are unknown, or speak for two. The destination's counts, then the source's.
pub fn application(protocol: u8, source_port: u16, destination_port: u16) -> Option<&'static str> {
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
    use super::*;

    #[test]
    fn a_port_names_its_application_in_both_directions() {
        assert_eq!(application(17, 40_000, 53), Some("DNS"));
        assert_eq!(application(17, 53, 40_000), Some("DNS"));
        assert_eq!(application(17, 53, 53), Some("DNS"));
        assert_eq!(application(6, 22, 80), None, "one of them is wrong");
        assert_eq!(application(6, 40_000, 40_001), None);
        assert_eq!(application(17, 1, 80), None, "HTTP is no UDP");
    }
}
