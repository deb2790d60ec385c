//! `wirelane count --top`: rates, history and ledger of each virtual device.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::widgets::{Paragraph, Sparkline};
use wirelane::Ledger;
use wirelane::ledger::Counters;

use crate::table::{amount, counted, printable, rate};
use crate::terminal::{self, Controls, Effect, Key, Page, cut};

/// Maximum intervals in a sparkline.
const HISTORY: usize = 300;
/// Columns by which rows are sorted.
const COLUMNS: [&str; 5] = ["name", "packet/s", "bit/s", "packets", "lost"];
/// Keys of this screen.
const KEYS: &[(&str, &str)] = &[
    ("s", "sort by the next column: name, packet/s, bit/s, packets, lost"),
    ("p", "pause, and go on"),
    ("j k, arrows", "scroll; page keys, Home and End, too"),
];

/// A virtual device.
#[derive(Clone, Debug, Default)]
struct Line {
    name: String,
    counters: Counters,
    pps: f64,
    bps: f64,
    history: VecDeque<u64>,
}

/// State of the view.
#[derive(Debug, Default)]
pub struct Told {
    lines: Vec<Line>,
    still: Option<Vec<Line>>,
    last: Duration,
    sort: usize,
    scrolled: usize,
    controls: Controls,
}

/// The shared state.
#[derive(Debug, Default)]
pub struct TopModel(Mutex<Told>);

impl TopModel {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl terminal::TopModel for TopModel {
    fn interval(&self, ledger: &Ledger, elapsed: Duration) {
        let mut told = self.told();
        let seconds = elapsed.saturating_sub(told.last).as_secs_f64().max(1e-9);
        told.last = elapsed;
        let known = std::mem::take(&mut told.lines).into_iter().map(|line| (line.name.clone(), line));
        let mut known: BTreeMap<String, Line> = known.collect();
        let lines = ledger.virtual_devices.iter().map(|device| {
            let name = device.name();
            let mut line = known.remove(&name).unwrap_or_else(|| Line { name, ..Line::default() });
            let since = device.counters.since(&line.counters);
            line.counters = device.counters;
            (line.pps, line.bps) = (since.analysed as f64 / seconds, since.bytes as f64 * 8.0 / seconds);
            line.history.push_back(line.pps.round() as u64);
            if line.history.len() > HISTORY {
                line.history.pop_front();
            }
            line
        });
        told.lines = lines.collect();
    }

    fn typed(&self, key: Key) -> Effect {
        let mut told = self.told();
        if let Some(effect) = told.controls.typed(key) {
            return effect;
        }
        let rows = key.rows();
        match key {
            Key::Letter('s') => told.sort = (told.sort + 1) % COLUMNS.len(),
            Key::Letter('p') => {
                told.still = if told.still.is_some() { None } else { Some(told.lines.clone()) };
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
    fn rows(&self) -> Vec<&Line> {
        let lines = self.still.as_ref().unwrap_or(&self.lines);
        let mut rows: Vec<&Line> =
            lines.iter().filter(|line| self.controls.admits([line.name.as_str()])).collect();
        let number = |line: &Line| match self.sort {
            1 => line.pps,
            2 => line.bps,
            3 => line.counters.analysed as f64,
            4 => line.counters.lost as f64,
            // By name: in the order of the ledger.
            _ => 0.0,
        };
        rows.sort_by(|a, b| number(b).total_cmp(&number(a)));
        rows
    }
}

impl terminal::View for terminal::Shown<TopModel> {
    fn draw(&self, frame: &mut Frame<'_>) {
        let told = self.model.told();
        let mut page = Page::new(frame);
        let paused = if told.still.is_some() { "PAUSED  " } else { "" };
        page.title(&format!("wirelane count  {}", printable(&self.title)), self.elapsed, paused);
        for row in terminal::ledger_rows(&self.ledger, self.balances, page.width()) {
            page.text(&row, Style::new());
        }
        let rows = page.left_but(told.controls.bottom_rows(self.message.as_ref()));
        page.lines(&told, rows);
        page.bottom(&told.controls, self.message.as_ref(), KEYS);
    }
}

impl Page<'_, '_> {
    /// A header, virtual devices, and their sum.
    fn lines(&mut self, told: &Told, rows: usize) {
        const NUMBERS: usize = 9 + 8 + 16 + 10 + 10;
        let all = told.rows();
        let longest = all.iter().map(|line| printable(&line.name).chars().count()).max().unwrap_or(0);
        let name = longest.clamp(14, self.width().saturating_sub(NUMBERS).max(14));
        let mark = |column: usize| match told.sort == column {
            true => format!("{}v", COLUMNS[column]),
            false => COLUMNS[column].to_owned(),
        };
        let numbers = |[a, b, c, d, e]: [String; 5]| format!("{a:>9}{b:>8}{c:>16}{d:>10}{e:>10}");
        let title = numbers([mark(1), mark(2), mark(3), mark(4), "shed".into()]);
        let past = (name + NUMBERS + 2) as u16;
        let history = if self.width() >= usize::from(past) + 15 { "packet/s before" } else { "" };
        self.header(&format!("{:<name$}{title}", "virtual device"), history);
        let shown = rows.saturating_sub(2);
        let first = told.scrolled.min(all.len().saturating_sub(shown.min(all.len())));
        let cells = |pps, bps, c: &Counters| {
            numbers([rate(pps), rate(bps), amount(c.analysed), amount(c.lost), amount(c.shed)])
        };
        for line in all.iter().skip(first).take(shown) {
            if let Some(place) = self.place(past) {
                let from = line.history.len().saturating_sub(usize::from(place.width));
                let past: Vec<u64> = line.history.iter().skip(from).copied().collect();
                let drawn = Sparkline::default().data(&past).style(Style::new().fg(Color::Cyan));
                self.frame.render_widget(drawn, place);
            }
            let text = format!(
                "{:<name$}{}",
                cut(&printable(&line.name), name),
                cells(line.pps, line.bps, &line.counters)
            );
            if let Some(place) = self.place(0) {
                let place = Rect { width: place.width.min(past - 1), ..place };
                self.frame.render_widget(Paragraph::new(text), place);
            }
            self.row = self.row.saturating_add(1);
        }
        if rows < 2 {
            return;
        }
        let mut total = Counters::default();
        for line in &all {
            total.analysed += line.counters.analysed;
            total.lost += line.counters.lost;
            total.shed += line.counters.shed;
        }
        let sum = |number: &dyn Fn(&Line) -> f64| all.iter().map(|line| number(line)).sum::<f64>();
        let last = all.len().min(first + shown);
        let which = match (first, last == all.len()) {
            (0, true) => counted(all.len() as u64, "line"),
            _ => format!("{} to {last} of {}", first + 1, all.len()),
        };
        let text = cells(sum(&|line| line.pps), sum(&|line| line.bps), &total);
        self.header(&format!("{:<name$}{text}", cut(&which, name)), "");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::terminal::{TopModel as _, drawn};

    fn view() -> terminal::Shown<TopModel> {
        let line = |queue: u32, analysed: u64| Line {
            name: format!("enp130s0f1np1@{queue}"),
            counters: Counters { analysed, lost: 2, ..Counters::default() },
            pps: analysed as f64,
            bps: 0.0,
            history: [1, 8].into(),
        };
        let lines = (0..40).map(|queue| line(queue, u64::from(queue))).collect();
        let model = TopModel(Mutex::new(Told { lines, ..Told::default() }));
        let title = "eth1  engine ring".into();
        let (ledger, elapsed) = (Counters { seen: 780, ..Counters::default() }, Duration::from_secs(3723));
        terminal::Shown { title, elapsed, ledger, balances: true, model: Arc::new(model), message: None }
    }

    #[test]
    fn lines_are_sorted_scrolled_and_summed() {
        let view = view();
        let rows = drawn(&view, 80, 24);
        println!("{}", rows.join("\n"));
        assert!(rows[0].ends_with("01:02:03  ?: keys  q ends") && rows[1].starts_with("ledger  seen 780"));
        assert!(rows.iter().any(|row| row.starts_with("enp130s0f1np1@0 ")), "{rows:#?}");
        assert!(rows[23].starts_with("1 to ") && rows[23].contains("      780        80 "), "{rows:#?}");
        view.model.typed(Key::Letter('s'));
        assert!(drawn(&view, 80, 24)[4].starts_with("enp130s0f1np1@39 "));
        view.model.typed(Key::End);
        assert!(drawn(&view, 160, 24)[22].starts_with("enp130s0f1np1@0 "));
        view.model.typed(Key::Letter('p'));
        view.model.told().lines.clear();
        assert!(drawn(&view, 80, 24)[0].contains("PAUSED") && drawn(&view, 80, 24)[22].starts_with("enp"));
        for columns in (1..140).step_by(9) {
            for rows in (1..40).step_by(4) {
                drawn(&view, columns, rows);
            }
        }
    }
}
