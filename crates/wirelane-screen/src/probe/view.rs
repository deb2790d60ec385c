//! Layout of the live view. All external text is escaped.

use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};
use wirelane_export::calendar::shown_clock;
use wirelane_probe::{Row, Shown};

use super::model::{Measured, Now, Told, TopModel};
use super::{cell, list};
use crate::table::{amount, printable, rate};
use crate::terminal::{self, Page, cut};

/// The whole view.
type View = terminal::Shown<TopModel>;

/// Keys of this screen.
const KEYS: &[(&str, &str)] = &[
    ("j k, arrows", "choose the measurement whose rows are shown"),
    ("s", "sort its rows by the next column"),
    ("p", "pause, and go on"),
];

/// Columns of a number.
const NUMBER: usize = 8;

impl terminal::View for View {
    fn draw(&self, frame: &mut Frame<'_>) {
        let told = self.model.told();
        let now = told.now();
        let mut page = Page::new(frame);
        let paused = if told.stands_still() { "PAUSED  " } else { "" };
        page.title(&format!("wirelane probe  {}", printable(&self.title)), self.elapsed, paused);
        page.text(&self.ledger(), Style::new());
        let bottom = told.controls.bottom_rows(self.message.as_ref());
        // Rows for the headers of measurements, rows and alarms.
        let free = page.left_but(3 + bottom);
        let alarms = now.raised.len().clamp(1, (free / 4).max(1));
        let measurements = now.measurements.len().clamp(1, ((free - alarms.min(free)) / 2).max(1));
        let rows = free.saturating_sub(alarms + measurements);
        page.measurements(now, told.looked_at(), measurements);
        page.rows(&told, rows);
        page.alarms(now, alarms);
        page.bottom(&told.controls, self.message.as_ref(), KEYS);
    }
}

impl View {
    fn ledger(&self) -> String {
        let ledger = &self.ledger;
        let mut text = format!(
            "ledger  lost {}  shed {}  missed {}  seen {}  analysed {}",
            amount(ledger.lost),
            amount(ledger.shed),
            ledger.nic_missed.map_or_else(|| "-".into(), amount),
            amount(ledger.seen),
            amount(ledger.analysed),
        );
        if ledger.absorbed > 0 {
            text += &format!("  absorbed {}", amount(ledger.absorbed));
        }
        if !self.balances {
            text += "  IT DOES NOT BALANCE";
        }
        text
    }
}

/// Each section takes its header and this many rows.
impl Page<'_, '_> {
    fn measurements(&mut self, now: &Now, looked_at: usize, rows: usize) {
        let name = if self.width() < 80 { 16 } else { 24 };
        // The history is right of the numbers, and takes the rest of the row.
        let past = name + 3 * (NUMBER + 1) + 2;
        let title = format!(
            "{:<name$} {:>NUMBER$} {:>NUMBER$} {:>NUMBER$}  history",
            "measurement", "packet/s", "bit/s", "keys"
        );
        self.header(&title, "");
        // The selected measurement is always visible.
        let first = (looked_at + 1).saturating_sub(rows);
        let from = self.row;
        for (at, one) in now.measurements.iter().enumerate().skip(first).take(rows) {
            let style = match (at == looked_at, now.is_active(one)) {
                (true, _) => Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
                (false, true) => Style::new(),
                (false, false) => Style::new().add_modifier(Modifier::DIM),
            };
            if let Some(place) = self.place(past as u16) {
                let from = one.past.len().saturating_sub(usize::from(place.width));
                let packets: Vec<u64> = one.past.iter().skip(from).copied().collect();
                let drawn = Sparkline::default().data(&packets).style(Style::new().fg(Color::Cyan));
                self.frame.render_widget(drawn, place);
            }
            let text = format!("{:<name$} {}", cut(&printable(&one.name), name), numbers(now, one));
            if let Some(mut place) = self.place(0) {
                place.width = place.width.min(past as u16 - 1);
                let line = Line::styled(text, style);
                self.frame.render_widget(Paragraph::new(line), place);
            }
            self.row = self.row.saturating_add(1);
        }
        self.row = from.saturating_add(rows as u16);
    }

    fn rows(&mut self, told: &Told, rows: usize) {
        let now = told.now();
        let from = self.row.saturating_add(1);
        let one = now.measurements.get(told.looked_at());
        match one.and_then(|one| one.last.as_ref()) {
            None => {
                let name =
                    one.map_or_else(|| "no measurement".into(), |one| printable(&one.name).into_owned());
                self.header(&name, "");
                self.text("no interval has ended in which it was active", Style::new());
            }
            Some(shown) => {
                let by = told.sort.and_then(|column| shown.columns.get(column)).or(shown.first.as_ref());
                let by = by.map_or(String::new(), |by| format!("by {by}"));
                self.header(&about(shown), &by);
                for line in table(shown, told, self.width()).iter().take(rows) {
                    self.text(line, Style::new());
                }
            }
        }
        self.row = from.saturating_add(rows as u16);
    }

    fn alarms(&mut self, now: &Now, rows: usize) {
        let raised = if now.all_raised == 0 {
            "no alarm is raised".to_owned()
        } else {
            format!("{} raised", amount(now.all_raised))
        };
        self.header("alarms", &raised);
        let mut all: Vec<_> = now.raised.values().collect();
        // The alarm that was raised last comes first.
        all.sort_by_key(|alarm| (std::cmp::Reverse(alarm.end_ns), &alarm.alarm, &alarm.key_text));
        for alarm in all.into_iter().take(rows) {
            let value =
                if alarm.value.fract() == 0.0 { amount(alarm.value as u64) } else { rate(alarm.value) };
            let time = &shown_clock(alarm.end_ns)[..8];
            let mut words = vec![time, &alarm.alarm, &alarm.key_text, &alarm.value_name, &value];
            words.retain(|word| !word.is_empty());
            let text = words.join(" ");
            self.text(&printable(&text), Style::new().fg(Color::Red));
        }
    }
}

/// The numbers of a measurement's last interval.
fn numbers(now: &Now, one: &Measured) -> String {
    let Some(last) = one.last.as_ref().filter(|_| now.is_active(one)) else {
        return format!("{:>width$}", "not active", width = 3 * NUMBER + 2);
    };
    let seconds = last.interval.end_ns.saturating_sub(last.interval.start_ns) as f64 / 1e9;
    let per_second = |n: f64| rate(if seconds > 0.0 { n / seconds } else { 0.0 });
    let (packets, bits) = (per_second(last.packets as f64), per_second(last.bytes as f64 * 8.0));
    let keys = last.keys.map_or_else(|| "-".into(), |keys| amount(keys as u64));
    format!("{packets:>NUMBER$} {bits:>NUMBER$} {keys:>NUMBER$}")
}

/// Summary line of a measurement.
fn about(shown: &Shown) -> String {
    let mut text = format!("{}: {} packets", printable(&shown.measurement), amount(shown.packets));
    if shown.without_key > 0 {
        text += &format!(", {} without key", amount(shown.without_key));
    }
    if let Some(entropy) = shown.entropy {
        text += &format!(", entropy {entropy:.3} bits");
    }
    text + &format!(", to {}", shown_clock(shown.interval.end_ns))
}

/// Text in place of rows.
fn nothing(told: &Told) -> String {
    let reason = if told.controls.filters() { "no row contains the text" } else { "no packet came" };
    reason.to_owned()
}

/// The rows of a measurement, with the columns that fit.
fn table(shown: &Shown, told: &Told, width: usize) -> Vec<String> {
    let other = shown.other.as_ref().map(|values| Row {
        key: serde_json::Map::new(),
        text: "other".into(),
        sum: shown.other_sum,
        values: values.clone(),
    });
    let mut rows: Vec<&Row> =
        shown.rows.iter().filter(|row| told.controls.admits([row.text.as_str()])).collect();
    if let Some(column) = told.sort.and_then(|column| shown.columns.get(column)) {
        let number = |row: &Row| row.values.get(column).and_then(serde_json::Value::as_f64).unwrap_or(-1.0);
        rows.sort_by(|a, b| number(b).total_cmp(&number(a)));
    }
    rows.extend(&other);
    let Some(first) = rows.first() else { return vec![nothing(told)] };
    let is_column = |name: &&String| first.values.get(*name).is_some_and(|value| cell(value).is_some());
    let columns: Vec<&String> = shown.columns.iter().filter(is_column).collect();
    let longest = rows.iter().map(|row| row.text.chars().count()).max().unwrap_or(0);
    let key = longest.min(width / 2);
    let widths: Vec<usize> = columns.iter().map(|name| name.len().max(11)).collect();
    let mut taken = key;
    let fit = widths.iter().take_while(|width_of| {
        taken += *width_of + 1;
        taken <= width
    });
    let fit = fit.count();
    let line = |text: &str, cells: &dyn Fn(usize) -> String| {
        let mut line = format!("{:<key$}", cut(&printable(text), key));
        for (place, width) in widths.iter().enumerate().take(fit) {
            line += &format!(" {:>width$}", cut(&cells(place), *width));
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![line("", &|place| columns[place].clone())];
    for row in &rows {
        lines.push(line(&row.text, &|place| {
            row.values.get(columns[place]).and_then(cell).unwrap_or_default()
        }));
    }
    for row in rows {
        for name in &shown.columns {
            let Some(value) = row.values.get(name).filter(|value| cell(value).is_none()) else { continue };
            let of = if row.text.is_empty() { String::new() } else { format!("{} ", row.text) };
            lines.push(cut(&printable(&format!("{of}{name}: {}", list(value))), width));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;
    use wirelane::ledger::Counters;
    use wirelane_probe::{AlarmEvent, Config, Event, Interval, State};

    use super::*;
    use crate::terminal::{Effect, Key, TopModel as _, drawn};

    /// Types letters; whether the screen was redrawn.
    fn typed(view: &View, letters: &str) -> bool {
        let redraws =
            letters.chars().filter(|letter| view.model.typed(Key::Letter(*letter)) == Effect::Redraw);
        redraws.count() > 0
    }

    const SECOND: u64 = 1_000_000_000;

    /// A result of a measurement by destination, in one second of the day.
    fn keyed(second: u64, rows: &[(&str, u64, u64)]) -> Event {
        let row = |(text, pps, sources): &(&str, u64, u64)| Row {
            key: serde_json::Map::new(),
            text: (*text).to_owned(),
            sum: (*pps, pps * 100),
            values: json!({"pps": *pps as f64, "distinct_src": sources, "lengths": {"64-127": pps}})
                .as_object()
                .unwrap()
                .clone(),
        };
        let packets = rows.iter().map(|row| row.1).sum();
        shown("keyed", second, packets, Some(rows.len()), rows.iter().map(row).collect())
    }

    fn shown(name: &str, second: u64, packets: u64, keys: Option<usize>, rows: Vec<Row>) -> Event {
        Event::Shown(Shown {
            measurement: name.to_owned(),
            total: false,
            start: String::new(),
            end: String::new(),
            packets,
            bytes: packets * 100,
            keys,
            without_key: u64::from(keys.is_some()) * 3,
            entropy: None,
            error_percent: None,
            rows,
            other: None,
            other_sum: (0, 0),
            columns: ["pps", "distinct_src", "lengths"].map(str::to_owned).to_vec(),
            first: Some("pps".to_owned()),
            interval: Interval { start_ns: second * SECOND, end_ns: (second + 1) * SECOND },
        })
    }

    fn alarm(key: &str, state: State) -> Event {
        Event::Alarm(AlarmEvent {
            alarm: "flood".to_owned(),
            measurement: "keyed".to_owned(),
            state,
            key: serde_json::Map::new(),
            key_text: key.to_owned(),
            value_name: "pps".into(),
            value: 1234.0,
            time: String::new(),
            end_ns: 3600 * SECOND,
        })
    }

    fn view() -> View {
        let text = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n\
            [[measurement]]\nname = \"keyed\"\nkey = [\"dst\"]\nvalues = [\"pps\"]\n\
            [[measurement]]\nname = \"never\"\nvalues = [\"pps\"]\nactive = false\n";
        let model = TopModel::new(&Config::parse(text, std::path::Path::new("p.toml")).unwrap());
        for second in 0..300 {
            let packets = if second % 2 == 0 { 1_000 } else { 8_000 };
            model.take(&[shown("all", second, packets, None, Vec::new())]);
        }
        model.take(&[keyed(
            299,
            &[("192.0.2.1", 900, 5), ("192.0.2.2", 20, 70), ("\u{1b}[2J\u{9b}31m", 3, 1)],
        )]);
        model.take(&[alarm("192.0.2.1", State::Raised), alarm("192.0.2.9", State::Raised)]);
        model.take(&[alarm("192.0.2.9", State::Cleared)]);
        View {
            title: "eth1  engine ring".into(),
            elapsed: Duration::from_secs(3723),
            ledger: Counters { seen: 5000, analysed: 4990, lost: 10, ..Counters::default() },
            balances: true,
            model: Arc::new(model),
            message: None,
        }
    }

    #[test]
    fn measurements_rows_alarms_and_losses_are_on_a_small_terminal() {
        let view = view();
        for (columns, rows) in [(60, 16), (80, 24), (120, 40)] {
            assert!(typed(&view, "j"), "the keyed one");
            let screen = drawn(&view, columns, rows);
            println!("{}", screen.join("\n"));
            let row = |begin: &str| {
                let found = screen.iter().find(|row| row.starts_with(begin));
                found.unwrap_or_else(|| panic!("no {begin:?} in {screen:#?}")).as_str()
            };
            assert!(
                screen[0].starts_with("wirelane probe  eth1")
                    && screen[0].ends_with("01:02:03  ?: keys  q ends")
            );
            assert!(
                row("ledger").starts_with("ledger  lost 10  shed 0  missed -  seen 5,000"),
                "{screen:#?}"
            );
            let words: Vec<&str> = row("all ").split_whitespace().take(4).collect();
            assert_eq!(words, ["all", "8.00k", "6.40M", "-"]);
            // The history: alternating low and high, up to the end of the row.
            let past: Vec<char> = row("all ").chars().rev().take(4).collect();
            assert!(past[0] == past[2] && past[1] == past[3] && past[0] > past[1], "{past:?}");
            assert!(row("never").ends_with("not active"));
            assert!(
                row("keyed: ").starts_with("keyed: 923 packets, 3 without key")
                    && row("keyed: ").ends_with("by pps")
            );
            assert!(row("192.0.2.1 ").contains("900") && row("192.0.2.1 ").contains(" 5"), "{screen:#?}");
            assert!(
                row("alarms").ends_with("1 raised") && row("01:00:00").ends_with("flood 192.0.2.1 pps 1,234")
            );
            typed(&view, "k");
        }
        assert!(drawn(&view, 80, 24).iter().any(|row| row.starts_with("all: 8,000 packets")));
    }

    #[test]
    fn rows_are_sorted_and_the_picture_is_stopped() {
        let view = view();
        typed(&view, "j");
        let order = |view: &View| -> Vec<String> {
            let rows = drawn(view, 80, 24).into_iter().filter(|row| row.starts_with("192.0.2."));
            rows.filter_map(|row| row.split_whitespace().next().map(str::to_owned)).take(2).collect()
        };
        assert_eq!(order(&view), ["192.0.2.1", "192.0.2.2"]);
        typed(&view, "ss");
        assert_eq!(order(&view), ["192.0.2.2", "192.0.2.1"]);
        assert!(drawn(&view, 80, 24).iter().any(|row| row.ends_with("by distinct_src")));
        typed(&view, "ss");
        assert_eq!(order(&view), ["192.0.2.1", "192.0.2.2"]);
        assert!(!typed(&view, "x"), "no key of ours");
        typed(&view, "p");
        view.model.take(&[keyed(300, &[("192.0.2.7", 1, 1)]), alarm("192.0.2.8", State::Raised)]);
        let still = drawn(&view, 80, 24);
        assert!(still[0].contains("PAUSED") && still.join("\n").contains("1 raised"), "{still:#?}");
        assert_eq!(order(&view), ["192.0.2.1", "192.0.2.2"]);
        typed(&view, "p");
        let goes_on = drawn(&view, 80, 24).join("\n");
        assert!(goes_on.contains("2 raised") && goes_on.contains("192.0.2.7 "), "{goes_on}");
        // A measurement missing in the last interval is not active.
        assert!(drawn(&view, 80, 24).iter().any(|row| row.starts_with("all ") && row.contains("not active")));
    }

    #[test]
    fn nothing_panics_at_any_size_and_nothing_steers_the_terminal() {
        let mut view = view();
        view.title = "e\u{1b}[2J".into();
        view.message = Some("\u{9b}31m".into());
        for number in 0..1000 {
            view.model.take(&[shown(&format!("more{number}"), 299, number, None, Vec::new())]);
            view.model.take(&[alarm(&format!("k{number}\u{1b}"), State::Raised)]);
        }
        for letters in ["", "j", "jjjjs", "kkk"] {
            typed(&view, letters);
            for columns in (1..140).step_by(9) {
                for rows in (1..40).step_by(3) {
                    let text = drawn(&view, columns, rows).join("\n");
                    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
                }
            }
        }
        let none =
            Config::parse("[[measurement]]\nname = \"a\"\nvalues = [\"pps\"]\n", std::path::Path::new("p"));
        view.model = Arc::new(TopModel::new(&none.unwrap()));
        assert!(drawn(&view, 80, 24).join("\n").contains("no interval has ended"));
    }
}
