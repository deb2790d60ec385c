//! Flows made in the kernel: what a packet costs that is added to a flow, and how many parts of flows come up for each
//! packet, by the number of flows and of entries. The capture program of a running capture is driven by
//! BPF_PROG_TEST_RUN.
//!
//! Packets of flows that are drawn at random, all alike likely, come one by one, each by a call of its own: some hundred
//! thousand a second. So parts end as in traffic, by other flows that need their places, by the grid of time, and when the
//! halves are turned over.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use plotters::prelude::*;
use serde::Serialize;
use wirelane::rules::RuleSet;
use wirelane::{Capture, Engine, FlowTimeouts, HookChoice, Intervals, KernelFlows};
use wirelane_tests::{Lab, ruled, timed_run};

use crate::summary::Spread;

/// Entries of a lane, and flows.
const ENTRIES: [usize; 4] = [128, 4096, 65_536, 1_048_576];
const FLOWS: [u32; 6] = [1, 100, 4096, 16_384, 131_072, 1_000_000];
/// Packets of each measurement.
const PACKETS: u32 = 1_000_000;
const QUICK_PACKETS: u32 = 200_000;
/// Runs of a measurement of cost, and measurements.
const REPEAT: u32 = 1_000_000;
const MEASUREMENTS: usize = 7;
/// The packet whose cost has a target.
const HIT: &str = "parsed, and added to a flow that is there";
/// The same for a probe, whatever it measures: parts end with its intervals.
const PROBED: &str = "the same by a probe's intervals of 1 s, however many its measurements";
/// And beside measurements that are made in the workers.
const BESIDE: &str = "the same, asked by two rules first whether it comes up for measurements in the workers";
/// Rules that the packet fits none of.
const WHOLE: &str = "[[rule]]\nid = 1\ntcp-flags = \"S/SA\"\naction = \"pass\"\n\
    [[rule]]\nid = 2\nprotocol = \"udp\"\nport = 53\naction = \"pass\"\n";

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Nanoseconds for the whole capture program, of a packet.
    pub costs: Vec<(&'static str, Spread)>,
    /// Parts that came up.
    pub points: Vec<Point>,
}

/// Parts of so many flows through a cache of so many entries.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Room of the lane.
    pub entries: usize,
    /// Flows, drawn at random.
    pub flows: u32,
    /// Packets.
    pub packets: u64,
    /// Packets a second.
    pub pps: u64,
    /// Parts that came up, through the ring and through memory.
    pub parts: u64,
    /// Of these, through the ring.
    pub written: u64,
    /// Packets that were lost, as the ring was full.
    pub lost: u64,
}

impl Point {
    /// Parts for each packet.
    pub fn per_packet(&self) -> f64 {
        self.parts as f64 / self.packets.max(1) as f64
    }
}

impl Measured {
    /// Nanoseconds of a packet that is added to a flow.
    pub fn hit(&self) -> Option<Spread> {
        self.costs.iter().find(|(label, _)| *label == HIT).map(|(_, ns)| *ns)
    }
}

/// A capture that runs, and its program.
struct Running {
    capture: Capture,
    program: u32,
}

impl Running {
    /// Of flows with so many entries, a probe's intervals, and rules whose packets come up; of whole packets, counted, with
    /// none.
    fn open(lab: &Lab, flows: Option<(usize, Option<Intervals>, &RuleSet)>) -> Result<Running> {
        // Native XDP is bound to its device and takes no test runs; generic XDP is the same program.
        let capture = ruled::open(lab, (Engine::Ring, HookChoice::Generic), |builder| {
            let builder = builder.ring_size(64 << 20).take(true);
            match flows {
                Some((entries, intervals, whole)) => {
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
                    })
                }
                None => builder.filter("less 1"),
            }
        })?;
        let end = lab.receiver();
        let shown = lab.exec(&end.namespace, &["ip", "-j", "link", "show", &end.device])?;
        let shown: serde_json::Value = serde_json::from_str(&shown).context("ip -j link show")?;
        let program = shown[0]["xdp"]["prog"]["id"].as_u64().context("no XDP program on the device")?;
        Ok(Running { capture, program: u32::try_from(program)? })
    }

    fn time(&self, frame: &[u8], repeat: u32) -> Result<f64> {
        Ok(timed_run(self.program, frame, repeat).context("BPF_PROG_TEST_RUN")?.as_nanos() as f64)
    }
}

/// Measures all of it on this core.
///
/// # Errors
/// Where the kernel refuses something, or packets are missing.
pub fn measure(core: usize, quick: bool) -> Result<Measured> {
    // A thread of its own, so that only it is pinned.
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            crate::receive::pin(core)?;
            measure_here(quick)
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure_here(quick: bool) -> Result<Measured> {
    let lab = Lab::new(1)?;
    let mut measured = Measured { costs: costs(&lab)?, points: Vec::new() };
    let packets = if quick { QUICK_PACKETS } else { PACKETS };
    for entries in ENTRIES {
        for flows in FLOWS {
            measured.points.push(point(&lab, entries, flows, packets)?);
        }
    }
    Ok(measured)
}

/// What a packet costs: one that no group wants, as its filter says, and one that is added to a flow, also for a probe.
fn costs(lab: &Lab) -> Result<Vec<(&'static str, Spread)>> {
    let mut values = [const { Vec::new() }; 4];
    let frame = frame(0);
    let (none, two) = (RuleSet::default(), RuleSet::parse(WHOLE)?);
    for _ in 0..MEASUREMENTS {
        let intervals = Some(Intervals::new(1_000_000_000));
        let kinds = [(None, &none), (intervals, &none), (intervals, &two)];
        let kinds = kinds.map(|(intervals, whole)| Some((KernelFlows::ENTRIES, intervals, whole)));
        for (flows, values) in std::iter::once(None).chain(kinds).zip(&mut values) {
            let running = Running::open(lab, flows)?;
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

fn point(lab: &Lab, entries: usize, flows: u32, packets: u32) -> Result<Point> {
    let mut running = Running::open(lab, Some((entries, None, &RuleSet::default())))?;
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
    Ok(Point {
        entries,
        flows,
        packets: cache.packets,
        pps: (f64::from(packets) / seconds) as u64,
        parts: cache.parts,
        written: cache.written,
        lost: ledger.total.lost,
    })
}

/// Ethernet, IPv4, UDP, 60 bytes, of this flow: its number is in the source's address.
fn frame(flow: u32) -> [u8; 60] {
    let mut packet = [0; 60];
    packet[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    packet[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
    packet[34..42].copy_from_slice(&[0x10, 0, 0, 9, 0, 26, 0, 0]);
    packet
}

/// As CSV.
pub fn csv(measured: &Measured) -> String {
    let mut text = "entries,flows,packets,pps,parts,written,lost,parts_per_packet\n".to_owned();
    for point in &measured.points {
        let Point { entries, flows, packets, pps, parts, written, lost } = point;
        let _ = writeln!(
            text,
            "{entries},{flows},{packets},{pps},{parts},{written},{lost},{:.5}",
            point.per_packet()
        );
    }
    text
}

/// For the run's page; nothing where nothing was measured.
pub fn page(measured: &Measured) -> String {
    if measured.points.is_empty() {
        return String::new();
    }
    let mut text = "\n## Flows made in the kernel\n\nThe whole capture program, warm, 60-byte frames, ns a packet (target of \
                    a packet that is added to a flow: 150):\n\n| packet | median | spread |\n| --- | --- | --- |\n"
        .to_owned();
    for (label, ns) in &measured.costs {
        let _ = writeln!(text, "| {label} | {:.0} | {:.0} to {:.0} |", ns.median, ns.low, ns.high);
    }
    text += "\nParts of flows that come up for each packet, flows drawn at random:\n\n| flows |";
    for entries in ENTRIES {
        let _ = write!(text, " {entries} entries |");
    }
    text += "\n| --- |";
    text += &" --- |".repeat(ENTRIES.len());
    for flows in FLOWS {
        let _ = write!(text, "\n| {flows} |");
        for entries in ENTRIES {
            let point = measured.points.iter().find(|point| (point.entries, point.flows) == (entries, flows));
            let _ =
                write!(text, " {} |", point.map_or("-".into(), |point| format!("{:.4}", point.per_packet())));
        }
    }
    let pps = measured.points.iter().map(|point| point.pps);
    let lost: u64 = measured.points.iter().map(|point| point.lost).sum();
    let _ = writeln!(
        text,
        "\n\nAt {} to {} packets/s, one call each; {lost} of them were lost. ![Parts for each packet](flow-caches.svg)",
        pps.clone().min().unwrap_or(0),
        pps.max().unwrap_or(0)
    );
    text
}

/// A chart of it; nothing where nothing was measured.
///
/// # Errors
/// Where the file cannot be written.
pub fn chart(path: &Path, measured: &Measured, caption: &str) -> Result<()> {
    if measured.points.is_empty() {
        return Ok(());
    }
    draw(path, measured, caption).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
}

fn draw(path: &Path, measured: &Measured, caption: &str) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, (760, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("Parts of flows for each packet: {caption}"), ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((1f64..1_000_000f64).log_scale(), (0.00001f64..1f64).log_scale())?;
    chart.configure_mesh().x_desc("flows").y_desc("parts for each packet").draw()?;
    let colours = [
        RGBColor(0xc0, 0x8a, 0x3e),
        RGBColor(0x60, 0x60, 0x60),
        RGBColor(0x2a, 0x6f, 0x97),
        RGBColor(0x3a, 0x7d, 0x44),
    ];
    for (entries, colour) in ENTRIES.into_iter().zip(colours) {
        let of = measured.points.iter().filter(|point| point.entries == entries);
        let line: Vec<(f64, f64)> = of.map(|point| (f64::from(point.flows), point.per_packet())).collect();
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(format!("{entries} entries"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}
