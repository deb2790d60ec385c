//! Status of a running capture: what `wirelane status` asks for.
//!
//! ```text
//! exporting threads -> Board (counts, states of outputs) -.
//! workers -> run_loop (load) --------------------------------> Status -> the control socket (control.rs)
//! capture -> Ledger -------------------------------------'
//! ```

mod text;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wirelane_export::OutputState;

pub use text::text;

/// Time between two updates of a board.
const REST: Duration = Duration::from_millis(100);

/// Status of a running capture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Time since the start of the capture, in seconds.
    pub uptime_s: f64,
    /// `ring`, `xsk` or `packet`.
    pub engine: String,
    /// The ledger so far, with the fields of `--json`.
    pub ledger: serde_json::Value,
    /// Load of each worker.
    pub workers: Vec<WorkerLoad>,
    /// Each analysis, with its outputs.
    pub analyses: Vec<AnalysisStatus>,
    /// How often the configuration was read again and became active.
    pub reloads: u64,
    /// How often it was refused.
    pub reloads_refused: u64,
}

/// Load of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerLoad {
    /// Number of the worker, from 0.
    pub worker: usize,
    /// Part of the last interval in which it has handled packets, from 0 to 1.
    pub busy: f64,
    /// Whether it has looked for packets in the last interval.
    pub progress: bool,
}

/// Status of an analysis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnalysisStatus {
    /// Name of its section: `flows`.
    pub name: String,
    /// Results so far, by what they are: flows, transactions, calls, packets of a recording.
    pub counts: BTreeMap<String, u64>,
    /// State of each output.
    pub outputs: Vec<OutputState>,
}

/// Status of an analysis that its exporting thread updates, for the thread that answers requests.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<AnalysisStatus>>);

impl Board {
    /// The latest status, for the analysis with this name.
    pub fn status(&self, name: &str) -> AnalysisStatus {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        AnalysisStatus { name: name.to_owned(), ..status }
    }
}

/// The exporting thread's side of a board.
#[derive(Debug)]
pub struct BoardWriter {
    board: Board,
    told: Option<Instant>,
}

impl BoardWriter {
    /// The writer of this board.
    pub fn new(board: Board) -> BoardWriter {
        BoardWriter { board, told: None }
    }

    /// Updates the board, unless that was done a moment ago.
    pub fn update<const N: usize>(
        &mut self,
        counts: [(&'static str, u64); N],
        outputs: impl FnOnce() -> Vec<OutputState>,
    ) {
        if self.told.is_some_and(|told| told.elapsed() < REST) {
            return;
        }
        self.told = Some(Instant::now());
        let counts = counts.map(|(name, number)| (name.to_owned(), number)).into_iter().collect();
        let status = AnalysisStatus { name: String::new(), counts, outputs: outputs() };
        *self.board.0.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}
