//! The fuzz targets (`fuzz/`) over their seeds, and over seeds with a byte changed, as a fuzzer begins, in every run of
//! the tests. This also compiles the targets against the crates, as `fuzz/` does not belong to the workspace.

#![expect(unused_attributes, reason = "targets are programs without main()")]

use seeds::Target;
use wirelane_tests::{corpus, repository};

#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[path = "../../../fuzz/targets/agent.rs"]
mod agent;
#[path = "../../../fuzz/targets/battery.rs"]
mod battery;
#[path = "../../../fuzz/targets/capture_file.rs"]
mod capture_file;
#[path = "../../../fuzz/targets/control.rs"]
mod control;
#[path = "../../../fuzz/targets/defragment.rs"]
mod defragment;
#[path = "../../../fuzz/targets/extreme_times.rs"]
mod extreme_times;
#[path = "../../../fuzz/targets/filter.rs"]
mod filter;
#[path = "../../../fuzz/targets/http.rs"]
mod http;
#[path = "../../../fuzz/targets/metrics.rs"]
mod metrics;
#[path = "../../../fuzz/targets/packet.rs"]
mod packet;
#[path = "../../../fuzz/targets/probe.rs"]
mod probe;
#[path = "../../../fuzz/targets/probe_set.rs"]
mod probe_set;
#[path = "../../../fuzz/targets/rtcp.rs"]
mod rtcp;
#[path = "../../../fuzz/targets/rtp.rs"]
mod rtp;
#[path = "../../../fuzz/targets/rules.rs"]
mod rules;
#[path = "../../../fuzz/targets/sdp.rs"]
mod sdp;
#[path = "../../../fuzz/targets/second_opinion.rs"]
mod second_opinion;
#[path = "../../../fuzz/targets/selector.rs"]
mod selector;
#[path = "../../../fuzz/targets/sip.rs"]
mod sip;
#[path = "../../../fuzz/targets/voip.rs"]
mod voip;

const TARGETS: [Target; 20] = [
    ("agent", agent::one_input, 1),
    ("battery", battery::one_input, 1),
    ("capture_file", capture_file::one_input, 1),
    ("control", control::one_input, 1),
    ("defragment", defragment::one_input, 1),
    ("extreme_times", extreme_times::one_input, 1),
    ("filter", filter::one_input, 3),
    ("http", http::one_input, 1),
    ("metrics", metrics::one_input, 1),
    ("packet", packet::one_input, 1),
    ("probe", probe::one_input, 40),
    ("probe_set", probe_set::one_input, 1),
    ("rtcp", rtcp::one_input, 1),
    ("rtp", rtp::one_input, 1),
    ("rules", rules::one_input, 6),
    ("sdp", sdp::one_input, 1),
    ("second_opinion", second_opinion::one_input, 1),
    ("selector", selector::one_input, 1),
    ("sip", sip::one_input, 1),
    ("voip", voip::one_input, 1),
];

/// Targets that are tested by their crates, because of dependencies that other tests must not link: the SQL engine, and
/// functions with the names of libpcap's.
const OF_CRATES: [&str; 3] = ["pcap_abi", "sql", "store"];

#[test]
fn all_targets_are_here() {
    let targets = std::fs::read_dir(repository().join("fuzz/targets")).unwrap();
    let mut names: Vec<String> = targets
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(OF_CRATES.iter().all(|of_crate| names.iter().any(|name| name == of_crate)));
    names.retain(|name| !OF_CRATES.contains(&name.as_str()));
    assert_eq!(names, TARGETS.map(|(name, ..)| name));
}

/// Battery: I4
#[test]
fn seeds_and_seeds_with_a_byte_changed_do_no_harm() {
    let Some(corpus) = corpus("seeds_and_seeds_with_a_byte_changed_do_no_harm") else { return };
    seeds::run(&repository(), &corpus.join("captures"), &TARGETS);
}
