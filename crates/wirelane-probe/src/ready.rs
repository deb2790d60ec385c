//! Ready-made configurations, in the program and as files in `examples/probes/`.

/// Names and texts.
pub const READY: [(&str, &str); 8] = [
    ("arp-spoofing", include_str!("../../../examples/probes/arp-spoofing.toml")),
    ("bandwidth", include_str!("../../../examples/probes/bandwidth.toml")),
    ("dns-amplification", include_str!("../../../examples/probes/dns-amplification.toml")),
    ("microbursts", include_str!("../../../examples/probes/microbursts.toml")),
    ("one-way", include_str!("../../../examples/probes/one-way.toml")),
    ("port-scan", include_str!("../../../examples/probes/port-scan.toml")),
    ("retransmissions", include_str!("../../../examples/probes/retransmissions.toml")),
    ("syn-flood", include_str!("../../../examples/probes/syn-flood.toml")),
];

/// Text of the configuration with this name.
pub fn ready(name: &str) -> Option<&'static str> {
    READY.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
