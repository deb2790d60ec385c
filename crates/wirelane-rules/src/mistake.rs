//! Mistakes in rule files, with their positions.

use std::fmt;
use std::path::PathBuf;

/// One mistake in a rule file, or in a file that it includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Path of the file; empty if the text is not from a file.
    pub path: PathBuf,
    /// Line, from 1; 0 if the mistake has no position.
    pub line: usize,
    /// Column in characters, from 1; 0 if the mistake has no position.
    pub column: usize,
    /// Description of the mistake, and of the expected value.
    pub reason: String,
}

impl Mistake {
    /// The mistakes as text, one per line.
    pub fn listed(mistakes: &[Mistake]) -> String {
        mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        let path = if path.is_empty() { "rules" } else { &path };
        // Paths are untrusted input, and the text may be printed to a terminal.
        write!(f, "{}", path.escape_debug())?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.reason)
    }
}
