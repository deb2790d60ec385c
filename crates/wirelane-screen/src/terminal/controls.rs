//! Keys that all screens have: help, a filter, and the end.

use ratatui::style::{Color, Style};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::keys::{Effect, Key};
use super::page::Page;
use crate::table::printable;

/// Maximum characters of a filter.
const MOST: usize = 100;

/// Help, filter, and the last message of a screen.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    help: bool,
    editing: bool,
    filter: String,
    /// Result of the last key, shown until the next one.
    pub said: Option<String>,
}

impl Controls {
    /// Handles a key, if it is one of all screens: `?`, `/` and the text after it, `q`.
    pub fn typed(&mut self, key: Key) -> Option<Effect> {
        self.said = None;
        if self.help {
            self.help = false;
            return Some(Effect::Redraw);
        }
        if self.editing {
            match key {
                Key::Letter(letter) if self.filter.chars().count() < MOST => self.filter.push(letter),
                Key::Backspace => {
                    self.filter.pop();
                }
                Key::Enter => self.editing = false,
                Key::Escape => (self.editing, self.filter) = (false, String::new()),
                _ => {}
            }
            return Some(Effect::Redraw);
        }
        match key {
            Key::Letter('q') => Some(Effect::Quit),
            Key::Letter('?') => {
                self.help = true;
                Some(Effect::Redraw)
            }
            Key::Letter('/') => {
                self.editing = true;
                self.filter.clear();
                Some(Effect::Redraw)
            }
            _ => None,
        }
    }

    /// Whether a row is shown: it contains the filter's text, ignoring case.
    pub fn admits<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> bool {
        let wanted = self.filter.to_lowercase();
        wanted.is_empty() || texts.into_iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    /// Whether rows are filtered.
    pub fn filters(&self) -> bool {
        !self.filter.is_empty()
    }

    /// Rows at the bottom of the screen that [`Page::bottom`] draws. `message`: the last warning.
    pub fn bottom_rows(&self, message: Option<&String>) -> usize {
        usize::from(self.line().is_some()) + usize::from(self.said.is_some() || message.is_some())
    }

    /// The filter, as it is shown.
    fn line(&self) -> Option<String> {
        match (self.editing, self.filters()) {
            (true, _) => Some(format!("/{}_   Enter: apply  Esc: no filter", self.filter)),
            (false, true) => Some(format!("/{}   only rows with this text", self.filter)),
            (false, false) => None,
        }
    }
}

impl Page<'_, '_> {
    /// Draws the last rows: the filter, and the result of a key or the last warning. Then the help, if it was asked for.
    pub fn bottom(&mut self, controls: &Controls, message: Option<&String>, keys: &[(&str, &str)]) {
        let rows = controls.bottom_rows(message) as u16;
        self.row = self.area.height.saturating_sub(rows);
        if let Some(line) = controls.line() {
            self.text(&printable(&line), Style::new().fg(Color::Cyan));
        }
        if let Some(said) = controls.said.as_ref().or(message) {
            self.text(&printable(said), Style::new().fg(Color::Yellow));
        }
        if controls.help {
            self.help(keys);
        }
    }

    fn help(&mut self, keys: &[(&str, &str)]) {
        let all =
            [("/", "show only rows with a text"), ("?", "these keys"), ("q, Ctrl-C", "end the capture")];
        let before = keys.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).max(9);
        let mut text: Vec<String> =
            keys.iter().chain(&all).map(|(key, what)| format!(" {key:<before$}  {what} ")).collect();
        text.push(" any key closes this list ".to_owned());
        let width = text.iter().map(|row| row.chars().count()).max().unwrap_or(0) as u16 + 2;
        let height = text.len() as u16 + 2;
        let mut place = self.area;
        place.x += place.width.saturating_sub(width) / 2;
        place.y += place.height.saturating_sub(height) / 2;
        (place.width, place.height) = (width.min(place.width), height.min(place.height));
        self.frame.render_widget(Clear, place);
        self.frame
            .render_widget(Paragraph::new(text.join("\n")).block(Block::bordered().title(" keys ")), place);
    }
}
