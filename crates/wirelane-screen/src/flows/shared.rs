//! State that the threads of a run share with the live view.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wirelane_analysis::flows::{FlowCache, Totals};
use wirelane_export::flows::OutputCounts;

use super::{BUSIEST, Busy};

/// What one worker has told last.
#[derive(Default)]
struct Told {
    live: usize,
    room: usize,
    ended: Totals,
    unsampled: u64,
    busiest: Vec<Busy>,
}

/// What everybody has told last.
#[derive(Default)]
pub struct Now {
    /// Flows that go on.
    pub live: usize,
    /// Flows that there is room for.
    pub room: usize,
    /// Those that have ended.
    pub ended: Totals,
    /// Packets that sampling has left out.
    pub unsampled: u64,
    /// Those that carry most, in that order.
    pub busiest: Vec<Busy>,
    /// What became of flows at the outputs.
    pub outputs: Vec<OutputCounts>,
}

/// Where the threads of a run leave it.
pub struct Shared {
    interval: Duration,
    workers: Mutex<Vec<Told>>,
    outputs: Mutex<Vec<OutputCounts>>,
}

impl Shared {
    /// For a screen that is drawn at this interval.
    pub fn new(interval: Duration) -> Shared {
        Shared { interval, workers: Mutex::default(), outputs: Mutex::default() }
    }

    /// What became of flows at the outputs, by now.
    pub fn outputs(&self, counts: Vec<OutputCounts>) {
        *self.outputs.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// All of it.
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

/// One worker's side.
pub struct Watcher {
    shared: Arc<Shared>,
    worker: usize,
    looked: Instant,
}

impl Watcher {
    /// Of this worker, to be called with its flows at the end of each batch.
    pub fn of(shared: &Arc<Shared>, worker: usize) -> wirelane_export::pipeline::flows::Watcher {
        let mut watcher = Watcher { shared: Arc::clone(shared), worker, looked: Instant::now() };
        Box::new(move |cache, unsampled| watcher.look(cache, unsampled))
    }

    /// Tells what there is to tell, if an interval has passed since.
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
