//! Cost of the whole capture program by what is asked of it: a running capture is driven by BPF_PROG_TEST_RUN, and its
//! workers read the packets between the measurements.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use wirelane::rules::RuleSet;
use wirelane::{Builder, Clock, FlowTimeouts, KernelFlows, Watermarks, Worker};
use wirelane_tests::Lab;

use super::driven::Driven;
use super::table::{Table, spread};
use crate::calls::datagram;
use crate::summary::Spread;

/// Runs of a measurement: their packets fit the ring.
const REPEAT: u32 = 100_000;
const RING: usize = 32 << 20;
const MEASUREMENTS: usize = 15;
/// Five terms that refuse the packet, the last one too.
const REFUSING: &str = "tcp or icmp or arp or ip6 or udp port 53";
/// Rules, of which the last has the packet.
const RULES: u32 = 1000;

/// A case: its name, its target in nanoseconds, and the case that the target is added to.
struct Case {
    name: &'static str,
    target: f64,
    beyond: Option<usize>,
    build: fn(Builder) -> Builder,
}

const CASES: [Case; 8] = [
    Case { name: "plain, a time stamp per packet", target: 60.0, beyond: None, build: |builder| builder },
    Case {
        name: "plain, --clock batch",
        target: 35.0,
        beyond: None,
        build: |builder| builder.clock(Clock::Batch),
    },
    Case {
        name: "refused by a filter of five terms",
        target: 15.0,
        beyond: Some(0),
        build: |builder| builder.filter(REFUSING),
    },
    Case {
        name: "passed by a filter of five terms",
        target: f64::NAN,
        beyond: Some(0),
        build: |builder| builder.filter("tcp or icmp or arp or ip6 or udp port 9"),
    },
    Case {
        name: "steered by flow to 4 workers",
        target: 20.0,
        beyond: Some(0),
        build: |builder| builder.workers(4),
    },
    Case {
        name: "with congestion control, of a known flow",
        target: f64::NAN,
        beyond: Some(0),
        build: |builder| builder.congestion_control(Some(Watermarks::default())),
    },
    Case { name: "added to a flow in the kernel", target: 95.0, beyond: None, build: flows },
    Case { name: "the last of 1,000 wildcard rules", target: 80.0, beyond: Some(0), build: wildcard_rules },
];

fn flows(builder: Builder) -> Builder {
    let timeouts =
        FlowTimeouts { active_ns: 60_000_000_000, idle_ns: 15_000_000_000, ended_ns: 2_000_000_000 };
    builder.kernel_flows(KernelFlows {
        entries: KernelFlows::ENTRIES,
        timeouts,
        sampling: 1,
        intervals: None,
        whole: 0,
        deliver: false,
    })
}

fn wildcard_rules(builder: Builder) -> Builder {
    let mut text = String::new();
    for number in 1..=RULES {
        let network = RULES - number;
        let [high, low] = [network >> 8, network & 255];
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "[[rule]]\nid = {number}\nsrc = \"10.{high}.{low}.0/24\"\ndst-port = \"1-{}\"\naction = \"pass\"",
            1000 + number
        );
    }
    match RuleSet::parse(&text) {
        Ok(rules) => builder.rules(rules),
        Err(error) => unreachable!("rules of our own: {error}"),
    }
}

/// A running capture, and its workers.
struct Running {
    driven: Driven,
    workers: Vec<Worker>,
}

impl Running {
    fn open(lab: &Lab, case: &Case) -> Result<Running> {
        let mut driven = Driven::open(lab, |builder| (case.build)(builder.ring_size(RING)).exclusive(true))?;
        let workers = driven.capture.workers();
        Ok(Running { driven, workers })
    }

    /// Nanoseconds of a run.
    fn measure(&mut self, frame: &[u8]) -> Result<f64> {
        let ns = self.driven.time(frame, REPEAT)?;
        for worker in &mut self.workers {
            while let Some(batch) = worker.next_batch(Duration::ZERO)? {
                if batch.count() == 0 {
                    break;
                }
            }
        }
        Ok(ns)
    }
}

/// Measures all cases in turns.
pub(super) fn measure() -> Result<Vec<Table>> {
    let frame = datagram([(Ipv4Addr::new(10, 0, 0, 1), 4096), (Ipv4Addr::new(10, 0, 0, 2), 9)], &[0; 18]);
    let mut values = [const { Vec::new() }; CASES.len()];
    for _ in 0..MEASUREMENTS {
        for (case, values) in CASES.iter().zip(&mut values) {
            // Each capture has the device for itself.
            let lab = Lab::new(1)?;
            let mut running = Running::open(&lab, case)?;
            // The first run warms up.
            running.measure(&frame)?;
            values.push(running.measure(&frame)?);
            let ledger = running.driven.capture.ledger()?;
            ensure!(
                ledger.total.lost == 0 && ledger.total.seen == 2 * u64::from(REPEAT),
                "{}: {:?}",
                case.name,
                ledger.total
            );
        }
    }
    let mut table = Table::new(
        "The capture program",
        "60-byte UDP, warm, nanoseconds of a packet, test run included. 'Beyond' is the median's difference to the \
         plain program with a time stamp; a target is for the difference where there is one.",
        &["packet", "median", "spread", "beyond", "target"],
    );
    let spreads = values
        .map(|values| Spread::of(values).context("one measurement at least"))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    for (case, one) in CASES.iter().zip(&spreads) {
        let beyond =
            case.beyond.map_or(String::new(), |base| format!("{:.0}", one.median - spreads[base].median));
        let target = if case.target.is_nan() { String::new() } else { format!("{:.0}", case.target) };
        let [median, ends] = spread(*one, 0);
        table.row(&[&case.name, &median, &ends, &beyond, &target]);
    }
    Ok(vec![table])
}
