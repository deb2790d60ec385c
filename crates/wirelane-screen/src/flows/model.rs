//! Choices in the live view by keys: sorting, sums, filter, pause.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ratatui::Frame;

use super::names::Names;
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
}

/// The shared state; see the module documentation.
#[derive(Default)]
pub struct Model(Mutex<Told>);

impl Model {
    /// The state at the start.
    pub fn new(names: Option<Arc<Names>>) -> Model {
        Model(Mutex::new(Told { names, ..Told::default() }))
    }

    /// Locks the state.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The view, as keys say.
pub struct Shown(pub Arc<Model>);

impl terminal::View for Shown {
    fn draw(&self, frame: &mut Frame<'_>) {
        draw(frame, &self.0.told());
    }
}

impl terminal::TopModel for Model {
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
