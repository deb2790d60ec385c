//! Mistakes in rule files, with their positions.

use std::fmt;
use std::path::PathBuf;

/// One mistake in a rule file, or in a file that it includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file; empty where the text did not come from one.
    pub path: PathBuf,
    /// Line, from 1; 0 where the mistake is nowhere in particular.
    pub line: usize,
    /// Column in characters, from 1; 0 as above.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Mistake {
    /// All of them, one a line.
    pub fn listed(mistakes: &[Mistake]) -> String {
        mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        let path = if path.is_empty() { "rules" } else { &path };
        // A path is as good as anybody's input, and goes to a terminal.
        write!(f, "{}", path.escape_debug())?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.reason)
    }
}
