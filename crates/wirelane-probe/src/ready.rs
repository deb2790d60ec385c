//! Ready-made configurations, in the program and as files in `examples/probes/`.

/// Names and texts.
pub const READY: [(&str, &str); 8] = [
    ("arp-spoofing", include_str!("../probes/arp-spoofing.toml")),
    ("bandwidth", include_str!("../probes/bandwidth.toml")),
    ("dns-amplification", include_str!("../probes/dns-amplification.toml")),
    ("microbursts", include_str!("../probes/microbursts.toml")),
    ("one-way", include_str!("../probes/one-way.toml")),
    ("port-scan", include_str!("../probes/port-scan.toml")),
    ("retransmissions", include_str!("../probes/retransmissions.toml")),
    ("syn-flood", include_str!("../probes/syn-flood.toml")),
];

/// Text of the configuration with this name.
pub fn ready(name: &str) -> Option<&'static str> {
    READY.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
