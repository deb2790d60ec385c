//! State that the threads of a run share with the live view.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wirelane_analysis::flows::{FlowCache, Totals};
use wirelane_export::flows::OutputCounts;

use super::sums::{GROUPINGS, Row, Sums};

/// The last report of one worker.
#[derive(Default)]
struct Told {
    live: usize,
    room: usize,
    ended: Totals,
    unsampled: u64,
    sums: Sums,
}

/// The last reports of all threads.
#[derive(Default)]
pub struct Now {
    /// Active flows.
    pub live: usize,
    /// Capacity in flows.
    pub room: usize,
    /// Totals of ended flows.
    pub ended: Totals,
    /// Packets skipped by sampling.
    pub unsampled: u64,
    /// Traffic in each grouping.
    pub rows: [Vec<Row>; GROUPINGS],
    /// Results of flows at the outputs.
    pub outputs: Vec<OutputCounts>,
}

/// State that the threads of a run update.
pub struct Shared {
    interval: Duration,
    /// Start of the clock of the sums.
    start: Instant,
    workers: Mutex<Vec<Arc<Mutex<Told>>>>,
    outputs: Mutex<Vec<OutputCounts>>,
}

impl Shared {
    /// For a live view with this interval.
    pub fn new(interval: Duration) -> Shared {
        Shared { interval, start: Instant::now(), workers: Mutex::default(), outputs: Mutex::default() }
    }

    /// Sets the current results of flows at the outputs.
    pub fn outputs(&self, counts: Vec<OutputCounts>) {
        *self.outputs.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// A snapshot of the state. `age`: time since the capture began.
    pub fn now(&self, age: Duration) -> Now {
        let mut now = Now {
            outputs: self.outputs.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..Now::default()
        };
        let mut sums = Sums::default();
        for told in self.workers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let told = told.lock().unwrap_or_else(PoisonError::into_inner);
            now.live += told.live;
            now.room += told.room;
            now.ended.flows += told.ended.flows;
            for (sum, more) in now.ended.by_reason.iter_mut().zip(told.ended.by_reason) {
                *sum += more;
            }
            now.unsampled += told.unsampled;
            sums.join(&told.sums);
        }
        now.rows = sums.rows(self.start.elapsed().as_secs_f64(), age);
        now
    }
}

/// Callback of one worker.
pub struct Watcher {
    shared: Arc<Shared>,
    told: Arc<Mutex<Told>>,
    looked: Instant,
}

impl Watcher {
    /// The callback of a worker, to be called with its flows at the end of each batch.
    pub fn of(shared: &Arc<Shared>) -> wirelane_export::pipeline::flows::Watcher {
        let told = Arc::<Mutex<Told>>::default();
        shared.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&told));
        let mut watcher = Watcher { shared: Arc::clone(shared), told, looked: Instant::now() };
        Box::new(move |cache, unsampled| watcher.look(cache, unsampled))
    }

    /// Updates the shared state, if an interval has passed since the last update.
    fn look(&mut self, cache: &mut FlowCache, unsampled: u64) {
        let since = self.looked.elapsed();
        if since < self.shared.interval {
            return;
        }
        self.looked = Instant::now();
        let now = self.shared.start.elapsed().as_secs_f64();
        let busiest = cache.busiest(usize::MAX);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.sums.add(&busiest, now, since.as_secs_f64().max(1e-9));
        (told.live, told.room, told.ended) = (cache.len(), cache.capacity(), *cache.totals());
        told.unsampled = unsampled;
    }
}
