//! In-kernel flows: cost of a packet that is added to a flow, and number of flow parts per packet that are delivered to
//! user space, by the number of flows and of entries. The capture program of a running capture is driven by
//! BPF_PROG_TEST_RUN.
//!
//! Packets of flows with a uniform random distribution arrive one by one, each by a call of its own: some hundred
//! thousand per second. So parts end as in real traffic: by eviction, at time boundaries, and when the halves are
//! exchanged.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wirelane::rules::RuleSet;
use wirelane::{FlowTimeouts, Intervals, KernelFlows};
use wirelane_tests::Lab;

use super::driven::Driven;
use super::table::{Table, spread};
use crate::calls::datagram;
use crate::summary::Spread;

/// Entries of a lane, and numbers of flows.
const ENTRIES: [usize; 4] = [128, 4096, 65_536, 1_048_576];
const FLOWS: [u32; 6] = [1, 100, 4096, 16_384, 131_072, 1_000_000];
/// Packets of each measurement.
const PACKETS: u32 = 1_000_000;
const QUICK_PACKETS: u32 = 200_000;
/// Runs of a cost measurement, and number of measurements.
const REPEAT: u32 = 1_000_000;
const MEASUREMENTS: usize = 7;
/// Packet whose cost has a target.
const HIT: &str = "parsed, and added to a flow that is there";
/// The same for a probe with any number of measurements: parts end with its intervals.
const PROBED: &str = "the same by a probe's intervals of 1 s, however many its measurements";
/// The same with additional measurements in the workers.
const BESIDE: &str = "the same, asked by two rules first whether it comes up for measurements in the workers";
/// Rules that the packet does not match.
const WHOLE: &str = "[[rule]]\nid = 1\ntcp-flags = \"S/SA\"\naction = \"pass\"\n\
    [[rule]]\nid = 2\nprotocol = \"udp\"\nport = 53\naction = \"pass\"\n";

/// Opens a capture of flows with this many entries, the intervals of a probe, and rules whose packets are delivered;
/// `None`: a capture of counted packets.
fn open(lab: &Lab, flows: Option<(usize, Option<Intervals>, &RuleSet)>) -> Result<Driven> {
    Driven::open(lab, |builder| {
        let builder = builder.ring_size(64 << 20).exclusive(true);
        let Some((entries, intervals, whole)) = flows else { return builder.filter("less 1") };
        let (active_ns, idle_ns, ended_ns) = (60_000_000_000, 15_000_000_000, 2_000_000_000);
        let timeouts = FlowTimeouts { active_ns, idle_ns, ended_ns };
        let most = whole.rules.len() as u32;
        let builder = if most > 0 { builder.rules(whole.clone()) } else { builder };
        builder.kernel_flows(KernelFlows {
            entries,
            timeouts,
            sampling: 1,
            intervals,
            whole: most,
            deliver: false,
        })
    })
}

/// Runs all measurements.
pub(super) fn measure(quick: bool) -> Result<Vec<Table>> {
    let lab = Lab::new(1)?;
    let mut program = Table::new(
        "Flows made in the kernel: cost",
        "The whole capture program, warm, 60-byte frames, nanoseconds of a packet. The target of one that is added to a flow is 150.",
        &["packet", "median", "spread"],
    );
    for (label, ns) in costs(&lab)? {
        let [median, ends] = spread(ns, 0);
        program.row(&[&label, &median, &ends]);
    }
    let mut parts = Table::new(
        "Flows made in the kernel: parts",
        "Parts of flows that come up for each packet, flows drawn at random, one call a packet.",
        &["entries", "flows", "parts a packet", "packets/s", "parts", "through the ring", "packets", "lost"],
    );
    let packets = if quick { QUICK_PACKETS } else { PACKETS };
    for entries in ENTRIES {
        for flows in FLOWS {
            measure_parts(&lab, entries, flows, packets, &mut parts)?;
        }
    }
    Ok(vec![program, parts])
}

/// Cost of a packet that the filter of the only group rejects, and of one that is added to a flow, also for a probe.
fn costs(lab: &Lab) -> Result<Vec<(&'static str, Spread)>> {
    let mut values = [const { Vec::new() }; 4];
    let frame = frame(0);
    let (none, two) = (RuleSet::default(), RuleSet::parse(WHOLE)?);
    for _ in 0..MEASUREMENTS {
        let intervals = Some(Intervals::new(1_000_000_000));
        let kinds = [(None, &none), (intervals, &none), (intervals, &two)];
        let kinds = kinds.map(|(intervals, whole)| Some((KernelFlows::ENTRIES, intervals, whole)));
        for (flows, values) in std::iter::once(None).chain(kinds).zip(&mut values) {
            let running = open(lab, flows)?;
            values.push(running.time(&frame, REPEAT)?);
        }
    }
    let labels = ["parsed, and refused by a filter of two steps", HIT, PROBED, BESIDE];
    Ok(labels
        .into_iter()
        .zip(values)
        .filter_map(|(label, values)| Some((label, Spread::of(values)?)))
        .collect())
}

/// Parts of this many flows, chosen at random, through a cache of this many entries.
fn measure_parts(lab: &Lab, entries: usize, flows: u32, packets: u32, table: &mut Table) -> Result<()> {
    let mut running = open(lab, Some((entries, None, &RuleSet::default())))?;
    let workers = running.capture.workers();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let (seconds, parts) = std::thread::scope(|scope| -> Result<_> {
        let readers: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || -> Result<u64> {
                    let mut packets = 0;
                    while let Some(batch) = worker.next_batch(Duration::from_millis(100))? {
                        packets += batch
                            .filter_map(|record| record.flow())
                            .map(|part| part.flow.packets)
                            .sum::<u64>();
                    }
                    Ok(packets)
                })
            })
            .collect();
        let start = Instant::now();
        for _ in 0..packets {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            running.time(&frame(((state >> 33) % u64::from(flows)) as u32), 1)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        running.capture.stop()?;
        let mut parts = 0;
        for reader in readers {
            parts += reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok((seconds, parts))
    })?;
    let ledger = running.capture.ledger()?;
    let cache = ledger.flow_cache.context("the capture has a flow cache")?;
    ensure!(
        cache.packets == parts && ledger.total.seen == u64::from(packets) && ledger.balances(),
        "{entries} entries, {flows} flows: {parts} packets in parts, of {} in the ledger's {:?}",
        cache.packets,
        ledger.total
    );
    table.row(&[
        &entries,
        &flows,
        &format!("{:.5}", cache.parts as f64 / cache.packets.max(1) as f64),
        &((f64::from(packets) / seconds) as u64),
        &cache.parts,
        &cache.written,
        &cache.packets,
        &ledger.total.lost,
    ]);
    Ok(())
}

/// A UDP packet of 60 bytes of this flow: its number is in the source address.
fn frame(flow: u32) -> Vec<u8> {
    let source = Ipv4Addr::from(0x0a00_0000 + flow);
    datagram([(source, 4096), (Ipv4Addr::new(10, 0, 0, 2), 9)], &[0; 18])
}
