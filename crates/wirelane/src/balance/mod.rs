//! Load-adaptive steering: moves load from busy to idle workers or RX queues while packets flow.
//!
//! If flows are steered, buckets of the flow hash move between workers: lanes count the packets of each bucket
//! (`bpf/balance.h`, which also explains why a move does not reorder a flow). A few times a second the capture's
//! maintenance thread reads the counts, smooths them, and changes the group's table.
//!
//! If RX queues are steered, the card does the steering, and entries of its RSS table move between RX queues
//! (`queues.rs`, and `table.rs` for estimating the load of entries, which are not counted). [`plan`] is the same for
//! both.

mod plan;
pub(crate) mod queues;
mod table;
#[cfg(test)]
mod table_tests;

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use wirelane_bpf::instance::{BUCKETS, Balance, Group};

use self::queues::TableBalancer;
use crate::engine::ring::instance::Instance;

/// Looks for which a bucket rests after a move: its load on the new worker is measured first.
const REST: u8 = 3;
/// Packets in one look below which the load is unknown.
const FEWEST_PACKETS: u64 = 1_000;

/// Counts of adaptive steering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BalanceReport {
    /// Moved buckets.
    pub moves: u64,
    /// Buckets with a worker of their own now, because each brings a worker's fair share or more.
    pub elephants: u64,
    /// Moved entries of cards' RSS tables, between RX queues; `None` where buckets move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
}

/// [`BalanceReport`], shared between the maintenance thread, which writes it, and its readers.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    moves: AtomicU64,
    elephants: AtomicU64,
    entries: AtomicU64,
    /// Whether entries of an RSS table move, instead of buckets.
    table: bool,
}

impl Moved {
    /// Counts for a card's RSS table.
    fn of_a_table() -> Moved {
        Moved { table: true, ..Moved::default() }
    }

    /// Adds the counts of one device to a report.
    fn add_to(&self, report: &mut BalanceReport) {
        // Relaxed: counters that order no other data.
        report.moves += self.moves.load(Ordering::Relaxed);
        report.elephants += self.elephants.load(Ordering::Relaxed);
        if self.table {
            *report.entries.get_or_insert(0) += self.entries.load(Ordering::Relaxed);
        }
    }

    /// The report over all devices; `None` where no load can move.
    pub(crate) fn report(all: &[Arc<Moved>]) -> Option<BalanceReport> {
        (!all.is_empty()).then(|| {
            let mut report = BalanceReport::default();
            all.iter().for_each(|moved| moved.add_to(&mut report));
            report
        })
    }
}

/// Load controller of one device.
#[derive(Debug)]
pub(crate) enum Controller {
    /// Buckets of flows, between workers.
    Buckets(Balancer),
    /// Entries of the card's RSS table, between RX queues.
    Table(Box<TableBalancer>),
}

impl Controller {
    /// Reads the load once, and makes the moves that follow from it.
    pub(crate) fn look(&mut self) {
        match self {
            Controller::Buckets(balancer) => balancer.look(),
            Controller::Table(balancer) => balancer.look(),
        }
    }
}

/// The controller of one group on one device.
#[derive(Debug)]
pub(crate) struct Balancer {
    instance: Arc<Instance>,
    group: usize,
    workers: usize,
    /// The counts at the last look, by lane and bucket.
    counted: Vec<u32>,
    /// Smoothed packets per look, by bucket, in sixteenths.
    loads: Vec<u64>,
    resting: Vec<u8>,
    moved: Arc<Moved>,
}

impl Balancer {
    /// A controller for a group that has just joined.
    pub(crate) fn new(instance: Arc<Instance>, group: usize, workers: usize, moved: Arc<Moved>) -> Balancer {
        let counted = vec![0; instance.lanes * BUCKETS];
        Balancer {
            instance,
            group,
            workers,
            counted,
            loads: vec![0; BUCKETS],
            resting: vec![0; BUCKETS],
            moved,
        }
    }

    /// Reads the load once, and makes the moves that follow from it.
    fn look(&mut self) {
        let mut came = vec![0u64; BUCKETS];
        for lane in 0..self.instance.lanes {
            let start = self.instance.balance(self.group, lane) + offset_of!(Balance, packets);
            for pair in 0..BUCKETS / 2 {
                // Two counters per word. The lane adds to them meanwhile; each is read whole.
                let word =
                    self.instance.balances.word(start + pair * 8).load(Ordering::Relaxed).to_ne_bytes();
                for (half, bytes) in word.as_chunks::<4>().0.iter().enumerate() {
                    let (bucket, count) = (pair * 2 + half, u32::from_ne_bytes(*bytes));
                    let last = &mut self.counted[lane * BUCKETS + bucket];
                    came[bucket] += u64::from(count.wrapping_sub(*last));
                    *last = count;
                }
            }
        }
        if came.iter().sum::<u64>() < FEWEST_PACKETS {
            return;
        }
        for (load, came) in self.loads.iter_mut().zip(&came) {
            *load = (*load + came * 16) / 2;
        }
        self.resting.iter_mut().for_each(|looks| *looks = looks.saturating_sub(1));
        let table = self.table();
        let resting = &self.resting;
        let plan = plan::plan(&self.loads, &table, self.workers, |bucket| resting[bucket] > 0);
        for step in &plan.moves {
            self.send(step.bucket, step.worker as u16);
            self.resting[step.bucket] = REST;
        }
        // Relaxed: counters that order no other data.
        self.moved.moves.fetch_add(plan.moves.len() as u64, Ordering::Relaxed);
        self.moved.elephants.store(plan.elephants.len() as u64, Ordering::Relaxed);
    }

    fn word(&self, bucket: usize) -> &AtomicU64 {
        let start = self.group * size_of::<Group>() + offset_of!(Group, buckets);
        self.instance.groups.word(start + bucket / 4 * 8)
    }

    fn table(&self) -> Vec<u16> {
        (0..BUCKETS)
            .map(|bucket| {
                let word = self.word(bucket).load(Ordering::Relaxed).to_ne_bytes();
                let at = bucket % 4 * 2;
                u16::from_ne_bytes([word[at], word[at + 1]])
            })
            .collect()
    }

    /// Steers a bucket to a worker from now on.
    fn send(&self, bucket: usize, worker: u16) {
        // Only this thread writes the table of a group that has joined. Relaxed: a lane that sees the new worker later
        // uses the old one until then.
        let word = self.word(bucket);
        let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        let at = bucket % 4 * 2;
        bytes[at..at + 2].copy_from_slice(&worker.to_ne_bytes());
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}
