//! Positions in rule files, and the mistakes found there.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;

use super::super::Mistake;

/// Maximum number of mistakes that are listed.
const LISTED: usize = 100;

/// A line and a column in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// Index into [`Mistakes::files`].
    pub file: u32,
    /// Line from 1; 0 for the file as a whole.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// A text that is being read, with the offsets of its lines.
pub(super) struct Lines<'t> {
    file: u32,
    text: Cow<'t, str>,
    starts: Vec<usize>,
    /// Number of characters before each [`BLOCK`] of the text: a text may be a single line with a million positions.
    before: Vec<usize>,
}

/// Bytes per block; characters within a block are counted when a column is requested.
const BLOCK: usize = 256;

impl<'t> Lines<'t> {
    /// The lines of this file's text.
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

    /// Number of characters that begin before this byte.
    fn characters(&self, at: usize) -> usize {
        let block = at / BLOCK;
        self.before[block] + begun(&self.text.as_bytes()[block * BLOCK..at])
    }

    /// The position of the byte at this offset; the end of the text for a larger offset.
    pub fn place(&self, at: usize) -> Position {
        let at = at.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= at);
        let column = 1 + self.characters(at) - self.characters(self.starts[line - 1]);
        Position { file: self.file, line: count(line), column: count(column) }
    }
}

/// Number of characters that begin in these bytes: every byte that is not of the form 10xxxxxx begins one.
fn begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| (**byte & 0xc0) != 0x80).count()
}

/// A number of lines or columns as `u32`. Files are limited to far less than 4 GiB.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The mistakes found in all files.
#[derive(Default)]
pub(super) struct Mistakes {
    files: Vec<PathBuf>,
    found: Vec<(Position, String)>,
    unlisted: usize,
    /// Some text is not valid TOML. Missing or misplaced fields may be a consequence of that.
    unreadable: bool,
    /// Lines that are not valid TOML, by file and line number. Further mistakes in these lines are consequential and
    /// are not listed.
    unreadable_lines: HashSet<(u32, u32)>,
}

impl Mistakes {
    /// Registers a file, and returns its position as a whole. Its lines are `Lines::new(place.file, ..)`.
    pub fn file(&mut self, path: PathBuf) -> Position {
        self.files.push(path);
        Position { file: count(self.files.len() - 1), line: 0, column: 0 }
    }

    /// Adds a mistake.
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

    /// Adds a TOML syntax error.
    pub fn add_unreadable(&mut self, place: Position, reason: impl Into<String>) {
        self.unreadable = true;
        self.add(place, reason);
        self.unreadable_lines.insert((place.file, place.line));
    }

    /// Adds a mistake that may be a consequence of a TOML syntax error; ignored if there is one.
    pub fn add_if_readable(&mut self, place: Position, reason: impl Into<String>) {
        if !self.unreadable {
            self.add(place, reason);
        }
    }

    /// Returns the value, or adds the error as a mistake.
    pub fn take<T>(&mut self, place: Position, result: Result<T, impl Into<String>>) -> Option<T> {
        result.map_err(|reason| self.add(place, reason)).ok()
    }

    /// Whether there are no mistakes so far.
    pub fn none(&self) -> bool {
        self.found.is_empty()
    }

    /// A position as text, for a mistake elsewhere that refers to it.
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

    /// All mistakes, sorted by position.
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

    /// File, line and column of a position, as in a [`Mistake`].
    pub fn place(&self, place: Position) -> (PathBuf, usize, usize) {
        let Mistake { path, line, column, .. } = self.mistake(place, String::new());
        (path, line, column)
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
