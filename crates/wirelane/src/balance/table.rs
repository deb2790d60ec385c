//! Plans moves of RSS table entries from the load of each queue.
//!
//! The load of an entry is not counted: a card only reports the queue of a packet. So each entry has an estimate, and
//! the load of a queue is divided among its entries in proportion to their estimates, look by look. All entries of a
//! queue begin with equal estimates. Each move is then a measurement: light entries that leave a busy queue reduce its
//! load by little, so the estimates of the remaining entries grow and those of the moved ones shrink, until an
//! elephant's entry has a far larger estimate or is alone. (Fitting a table to its margins: iterative proportional
//! fitting, Deming and Stephan, 1940.)

use super::plan;
use super::{FEWEST_PACKETS, REST};
use wirelane_tune::table::EntryMove;

/// Looks at a table before more entries of it move: a first one, of which a part was before the move, and those that
/// are counted.
const LOOKS: u32 = 3;
/// An estimate is in these fractions of a packet, so that a small share does not round to 0.
const PARTS: u64 = 64;

/// State of the planner.
#[derive(Debug)]
enum Stage {
    /// Number of looks at the table as it is.
    Watching(u32),
    /// Moves have been requested: the table after them, and the moved entries. Looks do not count until the outcome is
    /// known.
    Asked(Vec<u16>, Vec<usize>),
}

/// The planner for one device's RSS table.
#[derive(Debug)]
pub(crate) struct TablePlanner {
    /// The queues among which entries move, in order.
    queues: Vec<u32>,
    /// The entries that may move, by their indices in the card's table.
    entries: Vec<u32>,
    /// For each entry, the index of its queue in `queues`.
    table: Vec<u16>,
    /// For each entry, its estimated load per look, in fractions of a packet.
    loads: Vec<u64>,
    /// For each entry, the number of plans for which it rests after a move.
    resting: Vec<u8>,
    /// Count of each queue at the last look.
    counted: Vec<u64>,
    /// Packets of each queue since the last change of the table.
    came: Vec<u64>,
    stage: Stage,
}

impl TablePlanner {
    /// A planner for this table and all of its queues or only `some`; `None` where fewer than two are left.
    pub(crate) fn new(table: &[u32], some: Option<&[u32]>) -> Option<TablePlanner> {
        let captured = |queue: &u32| some.is_none_or(|some| some.contains(queue));
        let mut queues: Vec<u32> = table.iter().copied().filter(captured).collect();
        queues.sort_unstable();
        queues.dedup();
        // The plan has queue indices of 16 bits.
        if !(2..=usize::from(u16::MAX)).contains(&queues.len()) {
            return None;
        }
        let (entries, places): (Vec<u32>, Vec<u16>) = table
            .iter()
            .enumerate()
            .filter_map(|(entry, queue)| Some((entry as u32, queues.binary_search(queue).ok()? as u16)))
            .unzip();
        Some(TablePlanner {
            loads: vec![0; entries.len()],
            resting: vec![0; entries.len()],
            counted: vec![0; queues.len()],
            came: vec![0; queues.len()],
            // The counts may have begun long before this.
            stage: Stage::Watching(0),
            queues,
            entries,
            table: places,
        })
    }

    /// The queues among which entries move, in order.
    pub(crate) fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// Reads the counts of the queues once, and returns the moves that follow from them.
    pub(crate) fn look(&mut self, counts: &[u64]) -> Vec<EntryMove> {
        let since: Vec<u64> =
            counts.iter().zip(&self.counted).map(|(now, last)| now.saturating_sub(*last)).collect();
        self.counted.copy_from_slice(counts);
        let Stage::Watching(looks) = &mut self.stage else { return Vec::new() };
        *looks += 1;
        if *looks == 1 {
            return Vec::new();
        }
        self.came.iter_mut().zip(since).for_each(|(sum, one)| *sum += one);
        if *looks < LOOKS || self.came.iter().sum::<u64>() < FEWEST_PACKETS {
            return Vec::new();
        }
        let counted = u64::from(*looks - 1);
        self.weigh(counted);
        self.came.fill(0);
        self.stage = Stage::Watching(1);
        self.resting.iter_mut().for_each(|plans| *plans = plans.saturating_sub(1));
        let resting = &self.resting;
        let plan = plan::plan(&self.loads, &self.table, self.queues.len(), |entry| resting[entry] > 0);
        let steps = &plan.moves[..plan.moves.len().min(EntryMove::MOST)];
        if steps.is_empty() {
            return Vec::new();
        }
        let mut table = self.table.clone();
        steps.iter().for_each(|step| table[step.bucket] = step.worker as u16);
        let moves = steps
            .iter()
            .map(|step| EntryMove { entry: self.entries[step.bucket], queue: self.queues[step.worker] })
            .collect();
        self.stage = Stage::Asked(table, steps.iter().map(|step| step.bucket).collect());
        moves
    }

    /// Divides the load of each queue over `looks` looks among its entries.
    fn weigh(&mut self, looks: u64) {
        for (place, came) in self.came.iter().enumerate() {
            let its: Vec<usize> =
                (0..self.table.len()).filter(|entry| usize::from(self.table[*entry]) == place).collect();
            let sum: u64 = its.iter().map(|entry| self.loads[*entry]).sum();
            let brought = came * PARTS / looks;
            for entry in &its {
                let load = &mut self.loads[*entry];
                let share = match sum {
                    0 => brought / its.len() as u64,
                    _ => (u128::from(brought) * u128::from(*load) / u128::from(sum)) as u64,
                };
                // An entry without packets for a while may get some again: keep its estimate above 0.
                *load = share.max(1);
            }
        }
    }

    /// The requested moves have been made.
    pub(crate) fn moved(&mut self) {
        if let Stage::Asked(table, entries) = std::mem::replace(&mut self.stage, Stage::Watching(0)) {
            self.table = table;
            entries.into_iter().for_each(|entry| self.resting[entry] = REST);
        }
        self.came.fill(0);
    }

    /// The requested moves have not been made.
    pub(crate) fn not_moved(&mut self) {
        self.stage = Stage::Watching(0);
        self.came.fill(0);
    }
}
