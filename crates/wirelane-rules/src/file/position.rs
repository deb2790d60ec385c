//! Positions in rule files, and the mistakes found there.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;

use super::super::Mistake;

/// The most mistakes that are listed; nobody mends more at once.
const LISTED: usize = 100;

/// A line and a column of one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// Which of [`Mistakes::files`].
    pub file: u32,
    /// From 1; 0 for the file as a whole.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

/// A text that is being read, and the starts of its lines.
pub(super) struct Lines<'t> {
    file: u32,
    text: Cow<'t, str>,
    starts: Vec<usize>,
    /// Characters before each [`BLOCK`] of the text: a text may be one line, with a million places in it.
    before: Vec<usize>,
}

/// Bytes of which the characters are counted when a column is asked for.
const BLOCK: usize = 256;

impl<'t> Lines<'t> {
    /// Of this file's text.
    pub fn new(file: u32, text: impl Into<Cow<'t, str>>) -> Lines<'t> {
        let text = text.into();
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = [0].into_iter().chain(ends.map(|(at, _)| at + 1)).collect();
        let mut before = vec![0];
        for block in text.as_bytes().chunks(BLOCK) {
            before.push(before[before.len() - 1] + begun(block));
        }
        Lines { file, text, starts, before }
    }

    /// How many characters begin before this byte.
    fn characters(&self, at: usize) -> usize {
        let block = at / BLOCK;
        self.before[block] + begun(&self.text.as_bytes()[block * BLOCK..at])
    }

    /// The place of the byte at this offset; of the end, where it is beyond.
    pub fn place(&self, at: usize) -> Position {
        let at = at.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= at);
        let column = 1 + self.characters(at) - self.characters(self.starts[line - 1]);
        Position { file: self.file, line: count(line), column: count(column) }
    }
}

/// How many characters begin in these bytes: those that are not of the form 10xxxxxx begin one.
fn begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| (**byte & 0xc0) != 0x80).count()
}

/// A number of lines or columns. Files are limited far below 4 GiB.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// What is wrong, in all files.
#[derive(Default)]
pub(super) struct Mistakes {
    files: Vec<PathBuf>,
    found: Vec<(Position, String)>,
    unlisted: usize,
    /// Some text is not even TOML. What is missing, or in the wrong table, may be so only for that.
    unreadable: bool,
    /// Lines that are not TOML, by file and number. What was made of them anyway is wrong, too, and says nothing new.
    unreadable_lines: HashSet<(u32, u32)>,
}

impl Mistakes {
    /// A place for mistakes in this file as a whole. Lines of it are `Lines::new(place.file, ..)`.
    pub fn file(&mut self, path: PathBuf) -> Position {
        self.files.push(path);
        Position { file: count(self.files.len() - 1), line: 0, column: 0 }
    }

    /// Something is wrong here.
    pub fn add(&mut self, place: Position, reason: impl Into<String>) {
        if self.unreadable_lines.contains(&(place.file, place.line)) {
            return;
        }
        if self.found.len() < LISTED {
            self.found.push((place, reason.into()));
        } else {
            self.unlisted += 1;
        }
    }

    /// The text is not TOML.
    pub fn add_unreadable(&mut self, place: Position, reason: impl Into<String>) {
        self.unreadable = true;
        self.add(place, reason);
        self.unreadable_lines.insert((place.file, place.line));
    }

    /// Something is wrong here that is no mistake of its own where some text is not even TOML.
    pub fn add_if_readable(&mut self, place: Position, reason: impl Into<String>) {
        if !self.unreadable {
            self.add(place, reason);
        }
    }

    /// What went well, or the mistake that it was.
    pub fn take<T>(&mut self, place: Position, result: Result<T, impl Into<String>>) -> Option<T> {
        result.map_err(|reason| self.add(place, reason)).ok()
    }

    /// Whether there are none so far.
    pub fn none(&self) -> bool {
        self.found.is_empty()
    }

    /// A place in words, for a mistake elsewhere that has to do with it.
    pub fn name(&self, place: Position) -> String {
        let Mistake { path, line, column, .. } = self.mistake(place, String::new());
        let path = path.display().to_string();
        let path = path.escape_debug();
        if path.clone().next().is_none() {
            format!("{line}:{column}")
        } else {
            format!("{path}:{line}:{column}")
        }
    }

    /// All of them, in the order of the files.
    pub fn finish(mut self) -> Vec<Mistake> {
        let mut found = std::mem::take(&mut self.found);
        found.sort_by_key(|(place, _)| *place);
        let last = found.last().map(|(place, _)| Position { line: 0, column: 0, ..*place });
        let mut mistakes: Vec<Mistake> =
            found.into_iter().map(|(place, reason)| self.mistake(place, reason)).collect();
        if let (Some(place), 1..) = (last, self.unlisted) {
            mistakes.push(self.mistake(place, format!("and {} mistakes more", self.unlisted)));
        }
        mistakes
    }

    fn mistake(&self, place: Position, reason: String) -> Mistake {
        Mistake {
            path: self.files.get(place.file as usize).cloned().unwrap_or_default(),
            line: place.line as usize,
            column: place.column as usize,
            reason,
        }
    }
}
