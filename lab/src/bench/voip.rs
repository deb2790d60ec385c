//! RTP of calls measured in the kernel and in user space: the cost of a packet, and from that the number of calls that
//! a core can process; and the cost in the kernel by the number of streams that are measured there.
//!
//! The capture program of a running capture is driven by BPF_PROG_TEST_RUN, packet by packet, with calls chosen at
//! random; its worker tracks the calls as `wirelane voip` does, by their SIP messages. The kernel reports the run time
//! of the program, and the scheduler that of the worker. The cost of a card's driver per packet is additional.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use wirelane::RulesCapacity;
use wirelane_analysis::voip::{Monitor, Settings};
use wirelane_tests::Lab;

use super::driven::Driven;
use super::table::Table;
use crate::calls::{End, datagram, ends, signalling};

/// Numbers of concurrent streams; a call has two.
const STREAMS: [u32; 4] = [100, 1000, 10_000, 40_000];
/// Packets of a measurement.
const PACKETS: u32 = 1_000_000;
const QUICK_PACKETS: u32 = 200_000;
/// Interval in which an idle worker checks its state; that of a command is 100 ms.
const LOOK: Duration = Duration::from_millis(10);
/// Packets per second of a call: 50 in each direction, of 20 ms.
const PER_CALL: f64 = 100.0;
/// Bytes of RTP payload of 20 ms.
const CODECS: [(&str, u8, usize); 2] = [("G.711", 0, 160), ("G.729", 18, 20)];

/// Runs all measurements; the worker has another core.
pub(super) fn measure(quick: bool) -> Result<Vec<Table>> {
    let lab = Lab::new(1)?;
    let packets = if quick { QUICK_PACKETS } else { PACKETS };
    let mut table = Table::new(
        "RTP of calls in the kernel and in user space",
        "Packets of 20 ms, of calls drawn at random; the capture program's time and the worker's, nanoseconds of a packet; calls of 100 \
         packets a second that a core carries by that, less what its driver takes.",
        &[
            "codec",
            "measured in",
            "streams",
            "rules",
            "came up, %",
            "program",
            "worker",
            "calls a core",
            "lost",
        ],
    );
    for codec in CODECS {
        for streams in STREAMS {
            for kernel in [true, false] {
                measure_one(&lab, codec, streams, kernel, packets, &mut table)?;
            }
        }
    }
    Ok(vec![table])
}

/// Time in nanoseconds that this thread has run on a core.
fn ran_ns() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    text.split(' ').next().and_then(|word| word.parse().ok()).context("/proc/thread-self/schedstat")
}

fn open(lab: &Lab, streams: Option<usize>) -> Result<Driven> {
    Driven::open(lab, |builder| {
        let builder = builder.ring_size(256 << 20).exclusive(true);
        let Some(streams) = streams else { return builder };
        let room = RulesCapacity { exact: 3 * streams + 1024, ..RulesCapacity::default() };
        builder.kernel_streams(streams).rules_capacity(room)
    })
}

/// One direction of a call.
struct Talker {
    way: [End; 2],
    ssrc: u32,
    seq: u16,
}

/// Establishes calls.
fn call_all(running: &Driven, calls: u32) -> Result<Vec<Talker>> {
    let mut talkers = Vec::new();
    for call in 0..calls {
        for message in signalling(call) {
            running.time(&message, 1)?;
        }
        let [caller, callee] = ends(call);
        for way in [[caller, callee], [callee, caller]] {
            talkers.push(Talker { way, ssrc: talkers.len() as u32 + 1, seq: 0 });
        }
    }
    Ok(talkers)
}

/// Next packet of a stream.
fn rtp(talker: &mut Talker, pt: u8, bytes: usize) -> Vec<u8> {
    talker.seq = talker.seq.wrapping_add(1);
    let mut payload = vec![0x80, pt];
    payload.extend(talker.seq.to_be_bytes());
    payload.extend((u32::from(talker.seq) * 160).to_be_bytes());
    payload.extend(talker.ssrc.to_be_bytes());
    payload.resize(12 + bytes, 0);
    datagram(talker.way, &payload)
}

/// Measures calls with this many streams, in the kernel or in user space.
fn measure_one(
    lab: &Lab,
    (codec, pt, bytes): (&str, u8, usize),
    streams: u32,
    kernel: bool,
    packets: u32,
    table: &mut Table,
) -> Result<()> {
    let mut running = open(lab, kernel.then_some(streams as usize))?;
    let mut monitor = Monitor::new(Settings { memory: 2 << 30, ..Settings::default() });
    if let Some(meter) = running.capture.meter() {
        monitor.measure_offloaded(meter);
    }
    let workers = running.capture.workers();
    // The worker has its own core, and reports its run time for the packets that were sent while `counted` was set.
    let counted = AtomicBool::new(false);
    let result = std::thread::scope(|scope| -> Result<_> {
        let counted = &counted;
        let readers: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let mut monitor = std::mem::replace(&mut monitor, Monitor::new(Settings::default()));
                scope.spawn(move || -> Result<(u64, Monitor)> {
                    let (mut ran, mut begun, time) = (0, 0, worker.timebase());
                    let mut counts = false;
                    while let Some(batch) = worker.next_batch(LOOK)? {
                        for record in batch {
                            let now = time.utc_ns(&record);
                            monitor.record(&record, now);
                        }
                        // Relaxed: no other data depends on this flag.
                        let now = counted.load(Ordering::Relaxed);
                        if now != counts {
                            let at = ran_ns()?;
                            (ran, begun, counts) = (if now { ran } else { ran + at - begun }, at, now);
                        }
                    }
                    Ok((ran, monitor))
                })
            })
            .collect();
        let catch_up = || -> Result<()> {
            for _ in 0..10_000 {
                let total = running.capture.ledger()?.total;
                if total.analysed >= total.delivered {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            anyhow::bail!("the worker does not keep up")
        };
        let mut talkers = call_all(&running, streams / 2)?;
        catch_up()?;
        // Streams begin in user space, and move to the kernel.
        for _ in 0..4 {
            for talker in &mut talkers {
                running.time(&rtp(talker, pt, bytes), 1)?;
            }
            catch_up()?;
        }
        let rules = running.capture.rule_stats()?.map_or(0, |stats| stats.exact);
        let before = running.capture.ledger()?.total;
        counted.store(true, Ordering::Relaxed);
        std::thread::sleep(4 * LOOK);
        let (mut state, mut ns) = (0x9e37_79b9_7f4a_7c15_u64, 0.0);
        for _ in 0..packets {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % talkers.len();
            ns += running.time(&rtp(&mut talkers[at], pt, bytes), 1)?;
        }
        catch_up()?;
        counted.store(false, Ordering::Relaxed);
        std::thread::sleep(4 * LOOK);
        running.capture.stop()?;
        let mut ran = 0;
        for reader in readers {
            let (its, mut monitor) =
                reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            while monitor.flush() {
                monitor.finished().drain().for_each(drop);
            }
            let total = running.capture.ledger()?.total;
            ensure!(
                monitor.counts().packets() == total.analysed + total.offloaded,
                "packets are missing: {:?} of {total:?}",
                monitor.counts()
            );
            ran += its;
        }
        Ok((ran, ns, rules, before))
    });
    let (ran, ns, rules, before) = result?;
    let total = running.capture.ledger()?.total;
    ensure!(running.capture.ledger()?.balances(), "{total:?}");
    // Nanoseconds of the program and of the worker per packet.
    let [program, worker] = [ns, ran as f64].map(|ns| ns / f64::from(packets));
    table.row(&[
        &codec,
        &if kernel { "kernel" } else { "user" },
        &streams,
        &rules,
        &format!("{:.3}", 100.0 * (total.delivered - before.delivered) as f64 / f64::from(packets)),
        &format!("{program:.0}"),
        &format!("{worker:.0}"),
        &format!("{:.0}", 1e9 / (program + worker) / PER_CALL),
        &total.lost,
    ]);
    Ok(())
}
