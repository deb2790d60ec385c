//! The rows of a screen, from the top.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use wirelane::ledger::Counters;

use crate::table::amount;

/// A screen that is drawn row by row.
pub struct Page<'f, 'b> {
    /// Frame that is drawn on.
    pub frame: &'f mut Frame<'b>,
    /// Area of the frame.
    pub area: Rect,
    /// The next row.
    pub row: u16,
}

impl<'f, 'b> Page<'f, 'b> {
    /// An empty page.
    pub fn new(frame: &'f mut Frame<'b>) -> Page<'f, 'b> {
        let area = frame.area();
        Page { frame, area, row: 0 }
    }

    /// A page on a part of the frame.
    pub fn within(frame: &'f mut Frame<'b>, area: Rect) -> Page<'f, 'b> {
        Page { frame, area, row: 0 }
    }

    /// Area of the next row from this column on; `None` if there is no space.
    pub fn place(&self, column: u16) -> Option<Rect> {
        let height = self.area.height.checked_sub(self.row)?.min(1);
        let width = self.area.width.checked_sub(column)?;
        (height > 0 && width > 0)
            .then(|| Rect::new(self.area.x + column, self.area.y + self.row, width, height))
    }

    /// Width in columns.
    pub fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    /// Remaining rows, except this many.
    pub fn left_but(&self, rows: usize) -> usize {
        usize::from(self.area.height).saturating_sub(usize::from(self.row) + rows)
    }

    /// Draws a row with escaped text.
    pub fn text(&mut self, text: &str, style: Style) {
        if let Some(place) = self.place(0) {
            self.frame.render_widget(Paragraph::new(Line::styled(text.to_owned(), style)), place);
        }
        self.row = self.row.saturating_add(1);
    }

    /// Draws a reversed row with text at both ends; the left text is cut if necessary.
    pub fn header(&mut self, left: &str, right: &str) {
        let apart = usize::from(!right.is_empty());
        let left = cut(left, self.width().saturating_sub(right.len() + apart));
        let gap = self.width().saturating_sub(left.chars().count() + right.len());
        self.text(&format!("{left}{:gap$}{right}", ""), header());
    }

    /// Draws the first row: title, elapsed time, state, and keys.
    pub fn title(&mut self, left: &str, elapsed: Duration, state: &str) {
        let seconds = elapsed.as_secs();
        let time = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        self.header(left, &format!("{time}  {state}?: keys  q ends"));
    }
}

/// The ledger, on as many rows of this width as necessary.
pub fn ledger_rows(c: &Counters, balances: bool, width: usize) -> Vec<String> {
    let mut words: Vec<String> = [
        ("seen", c.seen),
        ("filtered", c.filtered),
        ("absorbed", c.absorbed),
        ("shed", c.shed),
        ("lost", c.lost),
        ("delivered", c.delivered),
        ("analysed", c.analysed),
        ("in flight", c.in_flight),
        ("bytes", c.bytes),
    ]
    .iter()
    .map(|(name, number)| format!("{name} {}", amount(*number)))
    .collect();
    words.push(format!("missed {}", c.nic_missed.map_or_else(|| "-".into(), amount)));
    if !balances {
        words.push("IT DOES NOT BALANCE".into());
    }
    let mut rows = vec!["ledger".to_owned()];
    for word in words {
        match rows.last_mut() {
            Some(row) if row.chars().count() + 2 + word.chars().count() <= width => {
                *row += &format!("  {word}")
            }
            _ => rows.push(format!("        {word}")),
        }
    }
    rows
}

/// Style of headers.
pub fn header() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// A text in at most this many columns, with a mark if it is cut.
pub fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(columns.saturating_sub(1)).collect();
    if columns > 0 {
        short.push('…');
    }
    short
}

/// The rows that a terminal of this size shows.
#[cfg(test)]
pub fn drawn(view: &impl super::View, columns: u16, rows: u16) -> Vec<String> {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
    (0..rows).map(|y| row(y).trim_end().to_owned()).collect()
}
