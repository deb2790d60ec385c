//! Choices in the live view by keys: sorting, sums, filter, pause.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ratatui::Frame;
use wirelane::Ledger;

use super::devices::Devices;
use super::names::Names;
use super::shared::Shared;
use super::sums::{GROUPING, GROUPINGS, Key as SumKey, Row, WINDOWS};
use super::view::{View, draw, ends_of};
use crate::terminal::{self, Controls, Effect, Key};

/// Columns by which rows are sorted.
pub const COLUMNS: [&str; 5] = ["2 s", "10 s", "40 s", "packets", "bytes"];

/// State of the view.
#[derive(Default)]
pub struct Told {
    /// The last interval.
    pub live: View,
    /// Snapshot that is shown while the view is paused.
    still: Option<View>,
    /// Index of the grouping.
    pub grouping: usize,
    /// Index of the column by which rows are sorted, in descending order.
    pub sort: usize,
    /// Number of rows above the first one on the screen.
    pub scrolled: usize,
    /// Help and filter.
    pub controls: Controls,
    /// Names of hosts and ports, if they are shown.
    pub names: Option<Arc<Names>>,
    devices: Devices,
    /// End of the last interval, since the start.
    last: Duration,
    /// Flows at each output at the end of the last interval.
    outputs_before: BTreeMap<String, u64>,
}

/// The state of the view, and what the threads of the run share with it.
pub struct TopModel {
    shared: Arc<Shared>,
    told: Mutex<Told>,
}

impl TopModel {
    /// The state at the start. `names`: names of hosts and ports, if they are shown.
    pub fn new(shared: Arc<Shared>, names: Option<Arc<Names>>) -> TopModel {
        let live = View { balances: true, ..View::default() };
        TopModel { shared, told: Mutex::new(Told { live, names, ..Told::default() }) }
    }

    /// Locks the state.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl terminal::View for terminal::Shown<TopModel> {
    fn draw(&self, frame: &mut Frame<'_>) {
        draw(frame, &self.model.told(), &self.title, self.message.as_ref());
    }
}

impl terminal::TopModel for TopModel {
    fn interval(&self, ledger: &Ledger, elapsed: Duration) {
        let now = self.shared.now(elapsed);
        let mut told = self.told();
        let seconds = elapsed.saturating_sub(told.last).as_secs_f64().max(1e-9);
        let outputs = now.outputs.into_iter().map(|counts| {
            let before = told.outputs_before.insert(counts.target.clone(), counts.flows).unwrap_or(0);
            (counts.flows.saturating_sub(before) as f64 / seconds, counts)
        });
        let outputs = outputs.collect();
        let ended = now.ended.flows.saturating_sub(told.live.ended.flows);
        told.live = View {
            elapsed,
            lines: told.devices.lines(ledger, seconds),
            ledger: ledger.total,
            balances: ledger.balances(),
            live: now.live,
            room: now.room,
            ended: now.ended,
            ended_per_s: ended as f64 / seconds,
            unsampled: now.unsampled,
            rows: now.rows,
            outputs,
        };
        told.last = elapsed;
    }

    fn typed(&self, key: Key) -> Effect {
        let mut told = self.told();
        if let Some(effect) = told.controls.typed(key) {
            return effect;
        }
        let rows = key.rows();
        match key {
            Key::Letter('p') => {
                told.still = if told.still.is_some() { None } else { Some(told.live.clone()) };
            }
            Key::Letter('s') => told.sort = (told.sort + 1) % COLUMNS.len(),
            Key::Letter('g') => (told.grouping, told.scrolled) = ((told.grouping + 1) % GROUPINGS, 0),
            Key::Letter(letter @ ('f' | 'h' | 'c' | 'a')) => {
                let grouping = GROUPING.iter().position(|name| name.starts_with(letter)).unwrap_or(0);
                (told.grouping, told.scrolled) = (grouping, 0);
            }
            _ if rows != 0 => {
                let last = told.rows().len().saturating_sub(1);
                told.scrolled = told.scrolled.saturating_add_signed(rows).min(last);
            }
            _ => return Effect::Nothing,
        }
        Effect::Redraw
    }
}

impl Told {
    /// The contents that are shown.
    pub fn view(&self) -> &View {
        self.still.as_ref().unwrap_or(&self.live)
    }

    /// Whether the view is paused.
    pub fn stands_still(&self) -> bool {
        self.still.is_some()
    }

    /// The rows of the grouping, with the filter's text, in their order. Flows are shown while they have traffic.
    pub fn rows(&self) -> Vec<&Row> {
        let shown = |row: &&Row| {
            let goes_on = self.grouping != 0 || row.rates[WINDOWS.len() - 1] > 0.0 || row.key == SumKey::Rest;
            goes_on && {
                let [one, other] = ends_of(row, self.names.as_deref());
                self.controls.admits([&*one, &*other, row.application])
            }
        };
        let mut rows: Vec<&Row> = self.view().rows[self.grouping].iter().filter(shown).collect();
        let number = |row: &Row| match self.sort {
            3 => row.packets as f64,
            4 => row.bytes as f64,
            window => row.rates[window.min(WINDOWS.len() - 1)],
        };
        // Rows with the same number keep their order.
        rows.sort_by(|a, b| number(b).total_cmp(&number(a)).then_with(|| b.bytes.cmp(&a.bytes)));
        rows.sort_by_key(|row| row.key == SumKey::Rest);
        rows
    }
}
