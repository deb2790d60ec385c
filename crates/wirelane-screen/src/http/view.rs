//! Layout of the live view. All external text is escaped.

use ratatui::Frame;
use ratatui::style::{Color, Style};
use wirelane_export::calendar::shown_clock;

use super::{COLUMNS, GROUPING, Told, TopModel};
use crate::table::{amount, counted, printable, rate};
use crate::terminal::{self, Page, cut, ledger_rows};

/// Keys of this screen.
const KEYS: &[(&str, &str)] = &[
    ("t", "transactions, the latest first"),
    ("h u c r", "sum by host, URL, client, result (status)"),
    ("s", "sort sums by the next column"),
    ("p", "pause, and go on"),
    ("j k, arrows", "scroll; page keys, Home and End, too"),
];

impl terminal::View for terminal::Shown<TopModel> {
    fn draw(&self, frame: &mut Frame<'_>) {
        let told = self.model.told();
        let mut page = Page::new(frame);
        let paused = if told.stands_still() { "PAUSED  " } else { "" };
        page.title(&format!("wirelane http  {}", printable(&self.title)), self.elapsed, paused);
        for row in ledger_rows(&self.ledger, self.balances, page.width()) {
            page.text(&row, Style::new());
        }
        let all = &told.now().all;
        let per_s = all.requests as f64 / self.elapsed.as_secs_f64().max(1e-9);
        let text = format!(
            "http    {} ({}/s), {} failed, {} bytes, {:.1} ms on average",
            counted(all.requests, "transaction"),
            rate(per_s),
            amount(all.errors),
            amount(all.bytes),
            all.mean_ms()
        );
        page.text(&text, Style::new());
        let rows = page.left_but(told.controls.bottom_rows(self.message.as_ref()) + 1);
        match told.grouping {
            None => page.transactions(&told, rows),
            Some(grouping) => page.sums(&told, grouping, rows),
        }
        page.bottom(&told.controls, self.message.as_ref(), KEYS);
    }
}

/// Which rows are shown: `1 to 20 of 33`.
fn shown(first: usize, rows: usize, all: usize) -> String {
    if all <= rows {
        amount(all as u64)
    } else {
        format!("{} to {} of {all}", first + 1, all.min(first + rows))
    }
}

/// Each section takes its header and this many rows.
impl Page<'_, '_> {
    fn transactions(&mut self, told: &Told, rows: usize) {
        let lines = told.lines();
        let first = told.scrolled.min(lines.len().saturating_sub(rows.min(lines.len())));
        let title = format!(
            "{:<8} {:<21} {:<7} {:>4} {:>7} {:>8} URL",
            "time", "client", "method", "", "bytes", "ms"
        );
        self.header(&title, &shown(first, rows, lines.len()));
        for line in lines.iter().skip(first).take(rows) {
            let status = line.status.map_or_else(|| "-".into(), |status| status.to_string());
            let bytes = if line.bytes < 1_000_000 { amount(line.bytes) } else { rate(line.bytes as f64) };
            let text = format!(
                "{:<8} {:<21} {:<7} {status:>4} {bytes:>7} {:>8.1} {}",
                &shown_clock(line.start_ns)[..8],
                line.client,
                cut(&printable(&line.method), 7),
                line.ms,
                printable(&line.url)
            );
            let style = match line.status {
                Some(200..=399) => Style::new(),
                _ => Style::new().fg(Color::Red),
            };
            let width = self.width();
            self.text(&cut(&text, width), style);
        }
    }

    fn sums(&mut self, told: &Told, grouping: usize, rows: usize) {
        let sums = told.sums();
        let first = told.scrolled.min(sums.len().saturating_sub(rows.min(sums.len())));
        let mark = |column: usize| match told.sort == column {
            true => format!("{}v", COLUMNS[column]),
            false => COLUMNS[column].to_owned(),
        };
        let numbers = |[a, b, c, d]: [String; 4]| format!("{a:>10}{b:>9}{c:>16}{d:>10}");
        let title = numbers([0, 1, 2, 3].map(mark));
        let which = shown(first, rows, sums.len());
        let name = self.width().saturating_sub(47 + which.len()).clamp(10, 90);
        self.header(&format!("{:<name$} {title}", GROUPING[grouping]), &which);
        for (text, sum) in sums.iter().skip(first).take(rows) {
            let numbers = numbers([
                amount(sum.requests),
                amount(sum.errors),
                amount(sum.bytes),
                format!("{:.1}", sum.mean_ms()),
            ]);
            self.text(&format!("{:<name$} {numbers}", cut(&printable(text), name)), Style::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use wirelane::ledger::Counters;

    use super::*;
    use crate::http::Line;
    use crate::terminal::{Key, TopModel as _, drawn};

    fn view() -> terminal::Shown<TopModel> {
        let model = TopModel::default();
        for number in 0..40u64 {
            let line = Line {
                start_ns: number * 1_000_000_000,
                client: "192.0.2.9:40000".into(),
                method: "G\u{1b}[2JET".into(),
                status: [Some(200), Some(404), None][(number % 3) as usize],
                bytes: 100,
                ms: 2.0,
                url: format!("web\u{9b}/page{number}?q"),
            };
            let names = ["web", "web/page", "192.0.2.9", "200"].map(str::to_owned);
            model.told().live.add(line, names);
        }
        let (title, ledger) = ("eth1  engine ring".into(), Counters { seen: 780, ..Counters::default() });
        let elapsed = Duration::from_secs(20);
        terminal::Shown { title, elapsed, ledger, balances: true, model: Arc::new(model), message: None }
    }

    /// Battery: S6
    #[test]
    fn transactions_and_sums_are_shown_and_nothing_steers_the_terminal() {
        let view = view();
        let rows = drawn(&view, 80, 24);
        println!("{}", rows.join("\n"));
        assert!(rows[0].ends_with("00:00:20  ?: keys  q ends"), "{rows:#?}");
        assert_eq!(rows[3], "http    40 transactions (2/s), 26 failed, 4,000 bytes, 2.0 ms on average");
        assert!(rows[4].ends_with("1 to 19 of 40") && rows[5].contains("page39"), "{rows:#?}");
        view.model.typed(Key::Letter('h'));
        let rows = drawn(&view, 80, 24);
        assert!(
            rows[5].starts_with("web ") && rows[5].ends_with("        40       26           4,000       2.0"),
            "{rows:#?}"
        );
        view.model.typed(Key::Letter('t'));
        for key in [Key::Letter('/'), Key::Letter('4'), Key::Letter('0'), Key::Letter('4'), Key::Enter] {
            view.model.typed(key);
        }
        assert_eq!(view.model.told().lines().len(), 13);
        for key in [Key::End, Key::Letter('u'), Key::Letter('?')] {
            view.model.typed(key);
            for columns in (1..140).step_by(9) {
                for rows in (1..40).step_by(4) {
                    let text = drawn(&view, columns, rows).join("\n");
                    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
                }
            }
        }
    }
}
