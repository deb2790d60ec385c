//! The file of `wirelane monitor`: its sections are the options of other commands, by their names.
//!
//! Each key is checked by the command that has the option, so that both accept the same values. All mistakes are
//! collected, with their positions.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use wirelane::Error;
use wirelane::rules::Mistake;

/// Maximum size of a file in bytes.
const LARGEST: u64 = 1 << 20;
/// Similarity from which a known key is suggested for an unknown one.
const SIMILAR: f64 = 0.75;

/// Refusal of a section that one may expect: what is exported belongs to its analysis.
const EXPORT: &str = "there is no section 'export': collectors and files are keys of their analysis, as in [flows] export = \
                      [\"ipfix://192.0.2.1:4739\"]";

/// A key with its value.
struct Key {
    name: String,
    /// Offsets of the key and of its value.
    at: usize,
    value_at: usize,
    value: Value,
}

/// A value, as far as options have any.
#[derive(Debug)]
pub enum Value {
    /// true or false.
    Truth(bool),
    /// A text or a number.
    Word(String),
    /// A list of texts or numbers.
    List(Vec<String>),
    /// A type that no option has; what is expected instead.
    Other(&'static str),
}

/// A section: the options of one command.
struct Section {
    name: String,
    at: usize,
    keys: Vec<Key>,
}

/// A section, or a key of it with its value, and where it is: for comparisons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the section.
    pub section: String,
    /// Name of the key; `None`: the section itself.
    pub key: Option<String>,
    /// The value, in one spelling.
    pub value: String,
    /// Line and column, from 1.
    pub line: usize,
    /// See [`Entry::line`].
    pub column: usize,
}

/// A file, its sections, and the mistakes found so far.
pub struct Site {
    path: PathBuf,
    text: String,
    sections: Vec<Section>,
    mistakes: Vec<(usize, String)>,
}

/// Mistakes in a file, each with its position.
#[derive(Debug)]
pub struct Mistakes(Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Mistake::listed(&self.0))
    }
}

impl std::error::Error for Mistakes {}

/// Options of a section that a command has under another name, by the key: [store] and [metrics].
pub type Names = BTreeMap<&'static str, &'static str>;

impl Site {
    /// Reads a file. `known`: names of the sections.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path, known: &[&str]) -> Result<Site> {
        let shown = || path.display().to_string();
        let size = std::fs::metadata(path).with_context(shown)?.len();
        if size > LARGEST {
            let reason = format!("the file has {size} bytes; a configuration has at most {LARGEST}");
            return Err(Mistakes(vec![Mistake { path: path.to_owned(), line: 0, column: 0, reason }]).into());
        }
        let text = std::fs::read_to_string(path).with_context(shown)?;
        let mut site = Site { path: path.to_owned(), text, sections: Vec::new(), mistakes: Vec::new() };
        site.parse(known);
        Ok(site)
    }

    fn parse(&mut self, known: &[&str]) {
        let (root, faults) = DeTable::parse_recoverable(&self.text);
        let mut mistakes: Vec<(usize, String)> = faults
            .iter()
            .map(|fault| (fault.span().map_or(0, |span| span.start), fault.message().to_owned()))
            .collect();
        for (name, node) in root.get_ref() {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            let DeValue::Table(table) = node.get_ref() else {
                let reason = if known.contains(&name) {
                    format!("expected a section: [{name}]")
                } else {
                    format!(
                        "'{}' stands before any section; there are {}",
                        name.escape_debug(),
                        sections(known)
                    )
                };
                mistakes.push((at, reason));
                continue;
            };
            if name == "export" {
                mistakes.push((at, EXPORT.to_owned()));
                continue;
            }
            if !known.contains(&name) {
                mistakes.push((at, unknown("section", name, known.iter().copied(), &sections(known))));
                continue;
            }
            let key = |(key, node): (&Spanned<_>, &Spanned<DeValue<'_>>)| -> Key {
                let name: &std::borrow::Cow<'_, str> = key.get_ref();
                Key {
                    name: name.to_string(),
                    at: key.span().start,
                    value_at: node.span().start,
                    value: parsed(node.get_ref()),
                }
            };
            let keys = table.iter().map(key).collect();
            self.sections.push(Section { name: name.to_owned(), at, keys });
        }
        self.mistakes = mistakes;
    }

    /// All sections and keys.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for section in &self.sections {
            let mut add = |key: Option<&Key>, at| {
                let Mistake { line, column, .. } = self.at(at, String::new());
                let value = key.map(|key| format!("{:?}", key.value)).unwrap_or_default();
                let (section, key) = (section.name.clone(), key.map(|key| key.name.clone()));
                entries.push(Entry { section, key, value, line, column });
            };
            add(None, section.at);
            section.keys.iter().for_each(|key| add(Some(key), key.at));
        }
        entries
    }

    /// Whether the file has this section.
    pub fn has(&self, name: &str) -> bool {
        self.section(name).is_some()
    }

    /// Whether the file has more than one of these sections.
    pub fn has_several(&self, names: &[&str]) -> bool {
        names.iter().filter(|name| self.has(name)).count() > 1
    }

    fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Adds a mistake at a key of a section or of [capture], or at the section where they have no such key.
    pub fn mistake(&mut self, section: &str, key: &str, reason: impl Into<String>) {
        let found = self.section(section);
        let sections = found.into_iter().chain(self.section("capture"));
        let key = sections.flat_map(|section| &section.keys).find(|one| one.name == key);
        let at = key.map(|key| key.value_at).or(found.map(|found| found.at)).unwrap_or(0);
        self.mistakes.push((at, reason.into()));
    }

    /// Converts the keys of a section to words of the command line. `known`: names of its keys; `words`: those of a key with
    /// this value, or what is wrong with it.
    pub fn words(
        &mut self,
        section: &str,
        known: &[&str],
        words: impl Fn(&str, &Value) -> std::result::Result<Vec<String>, String>,
    ) -> Vec<String> {
        let (mut all, mut mistakes) = (Vec::new(), Vec::new());
        for key in self.section(section).map(|section| section.keys.as_slice()).unwrap_or_default() {
            if !known.contains(&key.name.as_str()) {
                let where_all = "'wirelane monitor --help' says which keys there are";
                mistakes.push((key.at, unknown("key", &key.name, known.iter().copied(), where_all)));
                continue;
            }
            match words(&key.name, &key.value) {
                Ok(these) => all.extend(these),
                Err(reason) => mistakes.push((key.value_at, format!("{}: {reason}", key.name))),
            }
        }
        self.mistakes.extend(mistakes);
        all
    }

    /// Removes a key that is not an option from its section, as `filter` from [capture], and returns its text.
    pub fn take_text(&mut self, section: &str, key: &str) -> Option<String> {
        let section = self.sections.iter_mut().find(|one| one.name == section)?;
        let at = section.keys.iter().position(|one| one.name == key)?;
        let key = section.keys.remove(at);
        match key.value {
            Value::Word(word) => Some(word),
            _ => {
                self.mistakes.push((key.value_at, format!("{}: expected a text", key.name)));
                None
            }
        }
    }

    /// Adds an error of the command that has parsed a section.
    pub fn refused(&mut self, section: &str, reason: &str) {
        let at = self.section(section).map_or(0, |section| section.at);
        self.mistakes.push((at, format!("[{section}]: {reason}")));
    }

    /// An error of the set-up of a section, at the key that it names.
    pub fn placed(&self, section: &str, names: &Names, error: anyhow::Error) -> anyhow::Error {
        let Some(Error::BadOption { option, reason }) = error.downcast_ref() else { return error };
        let long = option.trim_start_matches('-');
        let renamed = names.iter().find(|(_, option)| **option == long).map(|(key, _)| *key);
        let key = renamed.unwrap_or(long);
        let places = [section, "store", "metrics", "capture"];
        let found = places.iter().find_map(|name| {
            let section = self.section(name)?;
            section.keys.iter().find(|one| one.name == key)
        });
        let at = found.map(|key| key.value_at).or(self.section(section).map(|section| section.at));
        let mistake = self.at(at.unwrap_or(0), format!("{key}: {reason}"));
        Mistakes(vec![mistake]).into()
    }

    /// The mistakes as a usage error, in the order of the text.
    ///
    /// # Errors
    /// There are mistakes.
    pub fn checked(&mut self) -> Result<()> {
        if self.mistakes.is_empty() {
            return Ok(());
        }
        self.mistakes.sort();
        self.mistakes.dedup();
        let mistakes: Vec<Mistake> =
            self.mistakes.iter().map(|(at, reason)| self.at(*at, reason.clone())).collect();
        Err(Mistakes(mistakes).into())
    }

    fn at(&self, at: usize, reason: String) -> Mistake {
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Mistake { path: self.path.clone(), line, column, reason }
    }
}

/// The value of a key.
fn parsed(value: &DeValue<'_>) -> Value {
    let word = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        _ => None,
    };
    match value {
        DeValue::Boolean(truth) => Value::Truth(*truth),
        DeValue::Array(list) => {
            let words: Option<Vec<String>> = list.iter().map(|one| word(one.get_ref())).collect();
            words.map_or(Value::Other("a list of texts or numbers"), Value::List)
        }
        DeValue::Table(_) | DeValue::Datetime(_) => {
            Value::Other("a text, a number, true or false, or a list")
        }
        other => word(other).map_or(Value::Other("a text"), Value::Word),
    }
}

/// Text for an unknown section or key.
fn unknown<'k>(what: &str, name: &str, known: impl Iterator<Item = &'k str>, all: &str) -> String {
    let near = known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let name = name.escape_debug();
    match near {
        Some((_, near)) => format!("unknown {what} '{name}'; did you mean '{near}'?"),
        None => format!("unknown {what} '{name}'; {all}"),
    }
}

fn sections(known: &[&str]) -> String {
    known.iter().map(|name| format!("[{name}]")).collect::<Vec<_>>().join(", ")
}

/// The text of a value, or of a list of several.
pub fn value(words: &[String]) -> String {
    match words {
        [word] => one(word),
        words => format!("[{}]", words.iter().map(|word| one(word)).collect::<Vec<_>>().join(", ")),
    }
}

/// An integer if the word is the usual spelling of one, else a text.
fn one(word: &str) -> String {
    match word.parse::<i64>() {
        Ok(number) if number.to_string() == word => word.to_owned(),
        _ => quoted(word),
    }
}

/// A basic string of TOML.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => quoted += &format!("\\u{:04X}", u32::from(char)),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}
