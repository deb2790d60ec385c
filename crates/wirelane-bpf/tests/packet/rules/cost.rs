//! Cost of rules in the kernel. The figures are printed and not asserted, because machines are shared.

use libbpf_rs::{ProgramInput, ProgramMut};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::rules::{Facts, Rule, dim, verdict};

use super::model::{Condition, ModelRule, flatten};
use super::probe::Probe;
use crate::build::{ethernet, ipv4, udp};

fn median(program: &ProgramMut<'_>, packet: &[u8]) -> u128 {
    let mut runs: Vec<u128> = (0..9)
        .map(|_| {
            let input = ProgramInput { data_in: Some(packet), repeat: 100_000, ..Default::default() };
            program.test_run(input).expect("BPF_PROG_TEST_RUN works").duration.as_nanos()
        })
        .collect();
    runs.sort_unstable();
    runs[runs.len() / 2]
}

/// Rules with a prefix, a protocol and a port each; the packet matches the last of them.
fn rules(count: u32) -> Vec<ModelRule> {
    (0..count)
        .map(|at| {
            let prefix = 10 << 24 | (count - 1 - at) << 8;
            let port = if at + 1 == count { 443 } else { 1000 + at % 50 };
            let is = |dim: usize, low: u32, high: u32| Condition {
                dim,
                ranges: vec![(4, low.into()..=high.into())],
                negated: false,
            };
            ModelRule {
                rule: Rule { id: at + 1, slot: at, verdict: verdict::DROP, ..Rule::default() },
                clauses: vec![vec![
                    is(dim::SRC, prefix, prefix + 255),
                    is(dim::PROTO, 17, 17),
                    is(dim::DST_PORT, port, port),
                ]],
            }
        })
        .collect()
}

#[test]
fn evaluating_is_measured() {
    let Some(probe) = Probe::load("cost of rules", [16384, 16384, 1]) else { return };
    let packet = ethernet(0x0800, &ipv4(17, &udp(1000, 443, b"payload of a packet")));
    let facts = Facts { now_ns: 1, wire_len: packet.len() as u32, ..Facts::default() };
    let mut costs = Vec::new();
    for count in [1, 100, 1000, 4096] {
        let flat = flatten(&rules(count), verdict::PASS, &[]);
        probe.use_set(&flat);
        let evaluated = probe.evaluate(LinkType::Ethernet, &packet, false, &facts);
        assert_eq!(evaluated.rule_id, count, "the packet meets the last rule");
        let (parse, all) = (
            median(&probe.skel.progs.wl_rules_cost, &packet),
            median(&probe.skel.progs.wl_rules_probe, &packet),
        );
        println!(
            "{count} rules ({} nodes, {} classes): {all} ns, of which parsing and the test run {parse} ns",
            flat.nodes.len(),
            flat.classes.len()
        );
        costs.push(all);
    }
    // The cost of rules is that of the fields that they ask for, and not of their number.
    assert!(costs.iter().all(|cost| *cost < 10 * costs[0]), "{costs:?} ns per packet for 1 to 4096 rules");
}
