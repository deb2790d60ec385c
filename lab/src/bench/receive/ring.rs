//! Our receiver for studies: the ring engine on native XDP by the library, with workers, steering, congestion control,
//! rules, filters and an analysis of selectable cost.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wirelane::filter::Filter;
use wirelane::rules::RuleSet;
use wirelane::tune::Polling;
use wirelane::{
    Balance, Builder, Direction, Engine, HookChoice, Ledger, Selector, Steering, Watermarks, Worker,
    linktype, spin,
};
use wirelane_send::numbered;

use super::super::flows::{ELEPHANT, PACKETS_OF_A_FLOW, SKEWED_FLOWS, flow_of, skewed_flow_of};
use super::{Args, Counts, End};

/// Options of this receiver.
#[derive(clap::Args, Debug)]
pub struct RingArgs {
    /// Steer by RX queue instead of by flow
    #[arg(long)]
    by_queue: bool,
    /// How readers come to packets and cores
    #[arg(long, value_enum, default_value_t = Arrangement::Pinned)]
    arrangement: Arrangement,
    /// Buckets of flows move from busy to idle workers
    #[arg(long)]
    adaptive: bool,
    /// Congestion control, with its usual watermarks
    #[arg(long)]
    shed: bool,
    /// Loops to spin for each packet, as if it were analysed
    #[arg(long, default_value_t = 0)]
    load: u32,
    /// Tell how many flows were analysed whole; for packets of 'generate flows' whose flows end
    #[arg(long)]
    whole_flows: bool,
    /// Tell how many packets were analysed after a later one of their flow, and who had the elephant; for packets of
    /// 'generate flows --zipf'
    #[arg(long)]
    order: bool,
    /// Merge lanes by time stamp
    #[arg(long)]
    in_order: bool,
    /// Tell the time from a packet's stamp to the worker: of the first packet of each batch
    #[arg(long)]
    delay: bool,
    /// Rules in force from the first packet on
    #[arg(long)]
    rules: Option<PathBuf>,
    /// Which packets are wanted, as a tcpdump expression that the kernel evaluates by
    #[arg(long, default_value = "")]
    filter: String,
    /// The same evaluated by in the worker, once the packet is there
    #[arg(long, conflicts_with = "arrangement")]
    sieve: Option<String>,
    /// Leave packets to the host's stack too
    #[arg(long)]
    leave: bool,
}

/// Readers and cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrangement {
    /// A worker for each of --cores, on it
    Pinned,
    /// As many workers, on whatever core the scheduler chooses
    Unplaced,
    /// One worker behind a lock, and as many readers that copy its batches
    Lock,
    /// As many workers, and a kernel thread for each RX queue, all placed as 'wirelane tune' does
    Tuned,
}

/// Interval of readings of the workers' shares.
const LOOK: Duration = Duration::from_millis(50);

/// Time after the first packet by which the balance is expected to be stable.
const SETTLED: Duration = Duration::from_secs(2);

/// For each flow of skewed traffic: one more than the number of the latest packet that any worker has analysed.
type Latest = Vec<AtomicU64>;

pub(super) fn run(args: &Args, end: &End) -> Result<Counts> {
    let cores = if args.cores.is_empty() { &[0][..] } else { &args.cores };
    let options = &args.ring;
    let builder = Builder::new(Selector::parse_list(&args.device)?);
    let builder = match options.arrangement {
        Arrangement::Pinned => builder.workers(cores.len()).cores(cores.iter().copied()),
        Arrangement::Unplaced => builder.workers(cores.len()),
        Arrangement::Lock => builder.workers(1),
        Arrangement::Tuned => builder.workers(cores.len()).polling(Polling::Threaded).cores_auto(),
    };
    let builder = match &options.rules {
        Some(path) => builder.rules(RuleSet::read(path)?),
        None => builder,
    };
    let sieve = options.sieve.as_ref().map(|text| Filter::compile(text, linktype::ETHERNET)).transpose()?;
    let mut capture = builder
        .engine(Engine::Ring)
        .hook(HookChoice::Native)
        .direction(Direction::Rx)
        .in_order(options.in_order)
        .exclusive(!options.leave)
        .filter(&options.filter)
        .ring_size((args.buffer as usize) << 20)
        .steering(if options.by_queue { Steering::Queue } else { Steering::Flow })
        .balance(if options.adaptive { Balance::Adaptive } else { Balance::Static })
        .congestion_control(options.shed.then(Watermarks::default))
        .open()?;
    let mut workers = capture.workers();
    let shared = match options.arrangement {
        Arrangement::Lock => workers.pop().map(Mutex::new),
        _ => None,
    };
    let latest: Latest = (0..=SKEWED_FLOWS).map(|_| AtomicU64::new(0)).collect();
    let (analysed, looks) = std::thread::scope(|scope| -> Result<_> {
        let mut threads: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(|| analyse(worker, options, sieve.as_ref(), &latest)))
            .collect();
        if let Some(shared) = &shared {
            threads.extend(cores.iter().map(|_| scope.spawn(|| take_in_turn(shared, options))));
        }
        super::ready()?;
        let mut looks: Vec<(Instant, Vec<u64>)> = Vec::new();
        while !end.signal.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            let look = steered(&capture.ledger()?);
            // Periods without packets are skipped.
            if looks.last().is_none_or(|last| last.1 != look) {
                looks.push((Instant::now(), look));
            }
        }
        capture.stop()?;
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Analysed>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let analysed = threads.into_iter().map(join).collect::<Result<Vec<_>>>()?;
        Ok((analysed, looks))
    })?;
    let ledger = capture.close()?;
    ensure!(ledger.balances(), "the ledger does not balance: {ledger:?}");
    let total = &ledger.total;
    let can_filter = options.rules.is_some() || !options.filter.is_empty();
    ensure!(
        total.in_flight == 0
            && (can_filter || total.filtered == 0)
            && (options.rules.is_some() || total.absorbed == 0),
        "packets in columns where none can be: {ledger:?}"
    );
    let by_workers: u64 = analysed.iter().map(|one| one.packets).sum();
    ensure!(by_workers == total.analysed, "workers had {by_workers} packets: {ledger:?}");

    let steered = steered(&ledger);
    let all: u64 = steered.iter().sum();
    let since = |before: &[u64]| steered.iter().zip(before).map(|(all, before)| all - before).collect();
    let half = looks.iter().find(|look| look.1.iter().sum::<u64>() * 2 >= all);
    let steered_late = half.map_or_else(|| steered.clone(), |look| since(&look.1));
    let first = analysed.iter().filter_map(|one| one.first).min();
    let settled = looks.iter().find(|look| first.is_some_and(|first| look.0 >= first + SETTLED));
    let steered_settled = settled.map_or_else(Vec::new, |look| since(&look.1));
    let elephant = analysed.iter().enumerate().filter(|one| one.1.elephant > 0);
    let elephant = elephant.max_by_key(|one| one.1.elephant).map(|one| one.0);
    let rejected: u64 = analysed.iter().map(|one| one.rejected).sum();
    let mut figures = BTreeMap::new();
    if options.whole_flows {
        figures.extend(whole_flows(analysed.iter().map(|one| &*one.flows)).map(|part| ("flows whole", part)));
    }
    if options.order {
        let reordered: u64 = analysed.iter().map(|one| one.reordered).sum();
        let moves = ledger.balance.map_or(0, |balance| balance.moves);
        figures.extend([("reordered", reordered as f64), ("moves", moves as f64)]);
        let spreads = [
            ("busiest over mean, second half", imbalance(&steered_late)),
            ("the same but the elephant's worker", imbalance_aside(&steered_late, elephant)),
            ("busiest over mean, from 2 s on", imbalance(&steered_settled)),
            ("the same but the elephant's worker, from 2 s on", imbalance_aside(&steered_settled, elephant)),
        ];
        figures.extend(spreads.into_iter().filter_map(|(name, value)| Some((name, value?))));
    }
    if options.delay {
        let mut delays: Vec<u64> = analysed.iter().flat_map(|one| one.delays_ns.iter().copied()).collect();
        delays.sort_unstable();
        let at = |percent: usize| delays.get(delays.len().saturating_sub(1) * percent / 100).copied();
        let parts = [("delay p50, us", 50), ("delay p99, us", 99), ("delay max, us", 100)];
        figures.extend(parts.into_iter().filter_map(|(name, part)| Some((name, at(part)? as f64 / 1000.0))));
    }
    Ok(Counts {
        seen: Some(total.seen),
        received: total.analysed - rejected,
        lost: total.lost,
        filtered: total.filtered + rejected,
        absorbed: total.absorbed,
        shed: total.shed,
        figures,
    })
}

/// Fraction of flows that were analysed completely, of the flows in the second half of the packets, when the ring has
/// had time to fill, with at least one analysed packet. Each worker has its own packet counts by flow.
fn whole_flows<'a>(workers: impl Iterator<Item = &'a [u8]>) -> Option<f64> {
    let (mut touched, mut whole) = (0_u64, 0_u64);
    for flows in workers {
        let half = flows.len() / 2;
        touched += flows[half..].iter().filter(|packets| **packets > 0).count() as u64;
        whole +=
            flows[half..].iter().filter(|packets| u64::from(**packets) == PACKETS_OF_A_FLOW).count() as u64;
    }
    (touched > 0).then(|| whole as f64 / touched as f64)
}

/// Maximum divided by mean: 1 is even.
fn imbalance(steered: &[u64]) -> Option<f64> {
    let sum: u64 = steered.iter().sum();
    let most = *steered.iter().max()?;
    (sum > 0).then(|| most as f64 * steered.len() as f64 / sum as f64)
}

/// The same without the elephant's worker, since a flow cannot be divided: maximum of the others divided by their mean.
/// Only if the elephant alone exceeds the even share of a worker.
fn imbalance_aside(steered: &[u64], elephant: Option<usize>) -> Option<f64> {
    let elephant = elephant.filter(|worker| *worker < steered.len())?;
    if ELEPHANT * steered.len() as f64 <= 1.0 {
        return None;
    }
    let mut others = steered.to_vec();
    others.remove(elephant);
    imbalance(&others)
}

fn steered(ledger: &Ledger) -> Vec<u64> {
    ledger.workers.iter().map(|line| line.counters.seen).collect()
}

/// Results of one worker.
#[derive(Default)]
struct Analysed {
    packets: u64,
    /// Packets that the sieve rejected.
    rejected: u64,
    /// Time of its first batch.
    first: Option<Instant>,
    /// Packets of each flow, if flows end.
    flows: Vec<u8>,
    /// Packets of skewed traffic that arrived after a later one of their flow.
    reordered: u64,
    /// One more than the number of the elephant's last packet here; 0: no packet.
    elephant: u64,
    /// Delays from the time stamp to the worker, in nanoseconds.
    delays_ns: Vec<u64>,
}

fn analyse(
    mut worker: Worker,
    options: &RingArgs,
    sieve: Option<&Filter>,
    latest: &Latest,
) -> Result<Analysed> {
    worker.pin()?;
    let timebase = worker.timebase();
    let mut done = Analysed::default();
    while let Some(batch) = worker.next_batch(Duration::from_millis(100))? {
        if batch.is_empty() {
            continue;
        }
        done.first.get_or_insert_with(Instant::now);
        let mut measures_delay = options.delay;
        for record in batch {
            done.packets += 1;
            if std::mem::take(&mut measures_delay) {
                done.delays_ns.push(timebase.steady_now_ns().saturating_sub(timebase.steady_ns(&record)));
            }
            let wanted = |sieve: &Filter| sieve.accepts(record.data(), record.wire_len(), record.is_egress());
            if !sieve.is_none_or(wanted) {
                done.rejected += 1;
                continue;
            }
            spin(options.load);
            if options.whole_flows {
                let number = record.payload().and_then(numbered).context("a packet without a number")?;
                let flow = flow_of(number) as usize;
                if flow >= done.flows.len() {
                    // Rarely, and in large steps.
                    done.flows.resize((flow + 1).next_multiple_of(1 << 12), 0);
                }
                done.flows[flow] += 1;
            }
            if options.order {
                let number = record.payload().and_then(numbered).context("a packet without a number")?;
                let flow = skewed_flow_of(record.data()).context("a packet of no flow")?;
                done.reordered += u64::from(comes_late(&latest[flow], number));
                if flow == SKEWED_FLOWS {
                    done.elephant = number + 1;
                }
            }
        }
    }
    Ok(done)
}

/// Whether any worker has already analysed a packet of the flow with this number or a later one.
fn comes_late(latest: &AtomicU64, number: u64) -> bool {
    // In the order in which workers reach this point, which is all that a worker can know about another.
    latest.fetch_max(number + 1, Ordering::SeqCst) > number
}

/// One of several readers of a worker: it copies a batch, since the next owner of the lock releases it, and analyses
/// the copies while others read.
fn take_in_turn(shared: &Mutex<Worker>, options: &RingArgs) -> Result<Analysed> {
    let mut done = Analysed::default();
    let mut copies: Vec<u8> = Vec::new();
    loop {
        copies.clear();
        let mut packets = 0;
        {
            let mut worker = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(batch) = worker.next_batch(Duration::from_millis(100))? else { return Ok(done) };
            for record in batch {
                copies.extend_from_slice(record.data());
                packets += 1;
            }
        }
        if packets == 0 {
            continue;
        }
        done.first.get_or_insert_with(Instant::now);
        std::hint::black_box(&copies);
        for _ in 0..packets {
            spin(options.load);
        }
        done.packets += packets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imbalance_is_the_busiest_over_the_mean() {
        assert_eq!((imbalance(&[10, 10]), imbalance(&[30, 10])), (Some(1.0), Some(1.5)));
        assert_eq!((imbalance(&[0, 0]), imbalance(&[])), (None, None));
    }

    #[test]
    fn the_elephants_worker_stands_aside_where_it_cannot_but_have_more() {
        assert_eq!(imbalance_aside(&[400, 150, 300, 150], Some(0)), Some(1.5));
        assert_eq!(imbalance_aside(&[400, 200], Some(0)), None);
        assert_eq!(imbalance_aside(&[400, 150, 300, 150], None), None);
        assert_eq!(imbalance_aside(&[], Some(0)), None);
    }

    #[test]
    fn flows_of_the_second_half_are_whole_or_not() {
        let (one, other) = ([16, 3, 16, 0], [0, 0, 16, 15]);
        assert_eq!(whole_flows([&one[..], &other[..]].into_iter()), Some(2.0 / 3.0));
        assert_eq!(whole_flows([&[0_u8; 8][..]].into_iter()), None);
    }

    #[test]
    fn a_packet_comes_late_where_a_later_one_or_itself_came_before() {
        let latest = AtomicU64::new(0);
        let late: Vec<bool> = [0, 3, 2, 4, 4, 9].map(|number| comes_late(&latest, number)).to_vec();
        assert_eq!(late, [false, false, true, false, true, false]);
    }
}
