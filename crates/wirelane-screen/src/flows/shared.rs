//! State that the threads of a run share with the live view.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wirelane_analysis::flows::{FlowCache, Totals};
use wirelane_export::flows::OutputCounts;

use super::{BUSIEST, Busy};

/// The last report of one worker.
#[derive(Default)]
struct Told {
    live: usize,
    room: usize,
    ended: Totals,
    unsampled: u64,
    busiest: Vec<Busy>,
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
    /// The busiest flows, in descending order.
    pub busiest: Vec<Busy>,
    /// Results of flows at the outputs.
    pub outputs: Vec<OutputCounts>,
}

/// State that the threads of a run update.
pub struct Shared {
    interval: Duration,
    workers: Mutex<Vec<Told>>,
    outputs: Mutex<Vec<OutputCounts>>,
}

impl Shared {
    /// For a live view with this interval.
    pub fn new(interval: Duration) -> Shared {
        Shared { interval, workers: Mutex::default(), outputs: Mutex::default() }
    }

    /// Sets the current results of flows at the outputs.
    pub fn outputs(&self, counts: Vec<OutputCounts>) {
        *self.outputs.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// A snapshot of the state.
    pub fn now(&self) -> Now {
        let mut now = Now {
            outputs: self.outputs.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..Now::default()
        };
        for told in self.workers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            now.live += told.live;
            now.room += told.room;
            now.ended.flows += told.ended.flows;
            for (sum, more) in now.ended.by_reason.iter_mut().zip(told.ended.by_reason) {
                *sum += more;
            }
            now.unsampled += told.unsampled;
            now.busiest.extend_from_slice(&told.busiest);
        }
        let per_s = |busy: &Busy| busy.flow.wire_bytes as f64 / busy.seconds;
        now.busiest.sort_by(|one, other| per_s(other).total_cmp(&per_s(one)));
        now
    }
}

/// Callback of one worker.
pub struct Watcher {
    shared: Arc<Shared>,
    worker: usize,
    looked: Instant,
}

impl Watcher {
    /// The callback of this worker, to be called with its flows at the end of each batch.
    pub fn of(shared: &Arc<Shared>, worker: usize) -> wirelane_export::pipeline::flows::Watcher {
        let mut watcher = Watcher { shared: Arc::clone(shared), worker, looked: Instant::now() };
        Box::new(move |cache, unsampled| watcher.look(cache, unsampled))
    }

    /// Updates the shared state, if an interval has passed since the last update.
    fn look(&mut self, cache: &mut FlowCache, unsampled: u64) {
        let since = self.looked.elapsed();
        if since < self.shared.interval {
            return;
        }
        self.looked = Instant::now();
        let seconds = since.as_secs_f64().max(1e-9);
        let busiest = cache.busiest(BUSIEST).into_iter().map(|flow| Busy { flow, seconds }).collect();
        let told =
            Told { live: cache.len(), room: cache.capacity(), ended: *cache.totals(), unsampled, busiest };
        let mut workers = self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if workers.len() <= self.worker {
            workers.resize_with(self.worker + 1, Told::default);
        }
        workers[self.worker] = told;
    }
}
