//! Reads rule files.
//!
//! ```text
//!  text -> node.rs: TOML, or words, as a tree with places -.-> lists.rs   addresses: written out, in files, in CSV (table.rs)
//!                                                           |-> rule.rs    [[rule]]
//!                                                           |-> sets.rs    [[sets]], also from files
//!                                                           |-> patterns.rs  [[patterns]], the same way
//!                                                           `-> exact.rs [[exact]], also from CSV
//!                                                           |   `-> values.rs: numbers, ranges, names, flags
//!                                                           `-> parameters.rs [plugins.NAME.parameters]
//! ```
//!
//! All files are read before they are converted, so that a list may be used in any of them. Reading continues after a
//! mistake: the mistake is appended to the list of mistakes (`position.rs`), and the faulty item is skipped. Rules are
//! returned only if there are no mistakes.

mod exact;
mod files;
mod lists;
mod node;
mod parameters;
mod patterns;
mod position;
mod rule;
mod sets;
mod table;
mod values;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::files::{Folder, LARGEST_RULES};
use self::node::{Entry, Node, Value};
use self::position::{Lines, Mistakes, Position};
use super::check::Which;
use super::names::{nearest, shown};
use super::{Addresses, ExactRule, Policy, Rule, RuleSet};
use crate::{Error, Result};

/// Maximum number of rule files, includes counted.
const MOST_FILES: usize = 256;

/// The top-level keys of a rule file.
const TOP: &[&str] =
    &["default", "include", "lists", "rule", "exact", "sets", "patterns", "plugins", "steering-program"];

impl RuleSet {
    /// Reads a rule file, with the files that it names.
    ///
    /// # Errors
    /// [`Error::Rules`] with every mistake in these files.
    pub fn read(path: impl AsRef<Path>) -> Result<RuleSet> {
        let mut reader = Reader::default();
        reader.load(path.as_ref().to_owned(), None);
        reader.finish()
    }

    /// Reads a rule file for a capture with these egress devices (`Builder::egress_devices`) and these
    /// plug-ins (`Builder::plugin`): a rule that sends packets to another device, or uses another plug-in, is
    /// reported as a mistake with its position. `None`: any name is accepted.
    ///
    /// # Errors
    /// As [`RuleSet::read`].
    pub fn read_for(
        path: impl AsRef<Path>,
        egress_devices: Option<&[String]>,
        plugins: Option<&[String]>,
    ) -> Result<RuleSet> {
        let (egress_devices, plugins) =
            (egress_devices.map(<[String]>::to_vec), plugins.map(<[String]>::to_vec));
        let mut reader = Reader { egress_devices, plugins, ..Reader::default() };
        reader.load(path.as_ref().to_owned(), None);
        reader.finish()
    }

    /// Reads the rules of a text that is not a rule file and has other tables, which are ignored here. Its `[[rule]]`
    /// tables have conditions only, and a unique name: they select packets and have no action. They can refer to lists,
    /// sets and patterns of the text. Evaluation continues after each of them, and their ids are their positions in the
    /// text, from 1.
    ///
    /// # Errors
    /// [`Error::Rules`] with every mistake in the text, under `path`.
    pub fn parse_conditions(text: &str, path: &Path) -> Result<RuleSet> {
        let mut reader = Reader { conditions_only: true, ..Reader::default() };
        let place = reader.mistakes.file(path.to_owned());
        reader.take(place, text.to_owned(), Folder::Nowhere);
        reader.finish()
    }

    /// Reads the text of a rule file, which cannot name other files.
    ///
    /// # Errors
    /// [`Error::Rules`] with every mistake in it.
    ///
    /// ```
    /// # use wirelane_rules::{Action, RuleSet};
    /// let set = RuleSet::parse(
    ///     r#"
    ///     default = "drop"
    ///
    ///     [[rule]]
    ///     id = 10
    ///     host = ["192.0.2.0/24", "2001:db8::/32"]
    ///     not.port = 22
    ///     action = "pass"
    ///     "#,
    /// )?;
    /// assert_eq!(set.rules[0].action, Action::Pass);
    /// # Ok::<(), wirelane_rules::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<RuleSet> {
        let mut reader = Reader::default();
        let place = reader.mistakes.file(PathBuf::new());
        reader.take(place, text.to_owned(), Folder::Nowhere);
        reader.finish()
    }
}

impl Rule {
    /// Reads a rule from words, as in `id=7 host=192.0.2.0/24 not.port=22,80 action=drop`: the fields of `[[rule]]`, with
    /// commas between alternatives.
    ///
    /// # Errors
    /// [`Error::Rules`], with line 1 and the columns of the mistakes.
    pub fn from_words(words: &str) -> Result<Rule> {
        let set = of_words(words, |reader, document, node| reader.rule(document, node))?;
        one(set.rules)
    }
}

impl ExactRule {
    /// Reads a rule from words, as in `id=7 src=192.0.2.1 dst=198.51.100.2 protocol=udp action=drop idle=60`: the fields
    /// of `[[exact]]`.
    ///
    /// # Errors
    /// [`Error::Rules`], with line 1 and the columns of the mistakes.
    pub fn from_words(words: &str) -> Result<ExactRule> {
        let set = of_words(words, |reader, document, node| reader.exact(document, node))?;
        one(set.exact)
    }
}

/// The set with the one rule that `read` makes of words.
fn of_words(words: &str, read: impl Fn(&mut Reader, &Document, &Node)) -> Result<RuleSet> {
    let mut reader = Reader { sets_elsewhere: true, ..Reader::default() };
    let place = reader.mistakes.file(PathBuf::new());
    let lines = Lines::new(place.file, words.to_owned());
    match Node::of_words(words) {
        Ok(node) => read(&mut reader, &Document { lines, folder: Folder::Nowhere }, &node),
        Err((at, reason)) => reader.mistakes.add(lines.place(at), reason),
    }
    reader.finish()
}

fn one<T>(mut rules: Vec<T>) -> Result<T> {
    // A reader that found no mistake has made a rule of the words.
    rules.pop().ok_or(Error::Rules { mistakes: Vec::new() })
}

/// A parsed text.
struct Document {
    lines: Lines<'static>,
    /// Folder of the files that the text names.
    folder: Folder,
}

impl Document {
    fn place(&self, node: &Node) -> Position {
        self.lines.place(node.span.start)
    }
}

/// State of reading: the rules so far, and the data needed to read more.
#[derive(Default)]
struct Reader {
    set: RuleSet,
    /// Position of each rule of `set`.
    rules_at: Vec<Position>,
    exact_at: Vec<Position>,
    sets_at: Vec<Position>,
    patterns_at: Vec<Position>,
    /// Names of sets and patterns that have mistakes.
    faulty_sets: Vec<String>,
    /// The capture that will use the rules has further sets and patterns.
    sets_elsewhere: bool,
    /// Devices that rules may send packets to; `None`: any.
    egress_devices: Option<Vec<String>>,
    /// Plug-ins that rules may use; `None`: any.
    plugins: Option<Vec<String>>,
    /// Rules have conditions only; unknown tables are ignored.
    conditions_only: bool,
    default_at: Option<Position>,
    /// By name; `None`: the list has mistakes.
    lists: BTreeMap<String, (Option<Arc<Addresses>>, Position)>,
    /// Lists that are named by their files.
    file_lists: HashMap<PathBuf, Arc<Addresses>>,
    documents: Vec<(Document, Node)>,
    /// Rule files that are being read, the outermost first, by their canonical paths.
    open: Vec<PathBuf>,
    /// Canonical paths of all files read so far. A file that is named twice is read once.
    loaded: HashSet<PathBuf>,
    mistakes: Mistakes,
}

impl Reader {
    /// Reads a rule file; `included`: position of the include in another file.
    fn load(&mut self, path: PathBuf, included: Option<Position>) {
        let canonical = path.canonicalize().unwrap_or_else(|_| path.clone());
        let circle = self.open.contains(&canonical);
        if !circle && !self.loaded.insert(canonical.clone()) {
            return;
        }
        let file = self.mistakes.file(path.clone());
        let text = if circle {
            Err("includes itself".to_owned())
        } else if self.loaded.len() > MOST_FILES {
            Err(format!("is one file too many: {MOST_FILES} can be read"))
        } else {
            files::read(&path, LARGEST_RULES)
        };
        match (text, included) {
            (Ok(text), _) => {
                self.open.push(canonical);
                self.take(file, text, Folder::of(&path));
                self.open.pop();
            }
            (Err(reason), None) => self.mistakes.add(file, reason),
            (Err(reason), Some(place)) => {
                self.mistakes.add(place, format!("{} {reason}", files::name(&path)));
            }
        }
    }

    /// Parses the text of a rule file, and loads the files that it includes.
    fn take(&mut self, file: Position, text: String, folder: Folder) {
        let (node, faults) = Node::of_toml(&text);
        let document = Document { lines: Lines::new(file.file, text), folder };
        for (at, reason) in faults {
            self.mistakes.add_unreadable(document.lines.place(at), reason);
        }
        if let Some(Entry { node, .. }) = node.entry("include").filter(|_| !self.conditions_only) {
            for element in node.elements() {
                let path = values::text(element).and_then(|name| document.folder.file(name));
                let place = document.place(element);
                if let Some(path) = self.mistakes.take(place, path) {
                    self.load(path, Some(place));
                }
            }
        }
        self.documents.push((document, node));
    }

    /// Converts all parsed documents to rules.
    fn finish(mut self) -> Result<RuleSet> {
        let documents = std::mem::take(&mut self.documents);
        for (document, node) in &documents {
            if let Some(Entry { node, .. }) = node.entry("lists") {
                self.lists(document, node);
            }
        }
        for (document, node) in &documents {
            self.top(document, node);
        }
        self.check();
        if !self.mistakes.none() {
            return Err(Error::Rules { mistakes: self.mistakes.finish() });
        }
        self.set.rules.sort_by_key(|rule| rule.id);
        Ok(self.set)
    }

    /// Reads the top-level fields of a file, except those that were read before.
    fn top(&mut self, document: &Document, node: &Node) {
        for Entry { key, at, node } in node.entries() {
            match key.as_str() {
                "lists" => {}
                "rule" if self.conditions_only => self.tables(document, key, node, Reader::conditions),
                "sets" => self.tables(document, key, node, Reader::named_set),
                "patterns" => self.tables(document, key, node, Reader::patterns),
                _ if self.conditions_only => {}
                "include" => {}
                "default" => self.policy(document, node),
                "rule" => self.tables(document, key, node, Reader::rule),
                "plugins" => self.plugins_table(document, node),
                "steering-program" => self.program_table(document, node, None),
                "exact" | "precise" => self.tables(document, key, node, Reader::exact),
                // The fields under an unreadable table header appear here.
                _ => {
                    let reason = unknown(key, TOP);
                    self.mistakes.add_if_readable(document.lines.place(*at), reason);
                }
            }
        }
    }

    /// Reports an unknown field.
    fn unknown(&mut self, document: &Document, key: &str, at: usize, known: &[&str]) {
        self.mistakes.add(document.lines.place(at), unknown(key, known));
    }

    fn policy(&mut self, document: &Document, node: &Node) {
        let place = document.place(node);
        let policy = values::word(node, &[("pass", Policy::Pass), ("drop", Policy::Drop)]);
        let Some(policy) = self.mistakes.take(place, policy) else { return };
        match self.default_at {
            Some(first) if policy != self.set.default => {
                let first = self.mistakes.name(first);
                self.mistakes
                    .add(place, format!("{first} says otherwise: one file says what the default is"));
            }
            _ => {
                self.set.default = policy;
                self.default_at = Some(place);
            }
        }
    }

    /// Reads each table of an array of tables, such as `[[rule]]`.
    fn tables(
        &mut self,
        document: &Document,
        key: &str,
        node: &Node,
        read: impl Fn(&mut Reader, &Document, &Node),
    ) {
        for element in node.elements() {
            match element.value {
                Value::Table(_) if matches!(node.value, Value::List(_)) => read(self, document, element),
                _ => {
                    let place = document.place(element);
                    self.mistakes.add(place, format!("this is {}: write [[{key}]]", element.kind()));
                }
            }
        }
    }

    /// Reports the faults of the finished set, found by the same checks as for sets that are not from a file.
    fn check(&mut self) {
        // References to sets that could not be read are checked once these are corrected.
        let elsewhere = self.sets_elsewhere || !self.faulty_sets.is_empty();
        let mut faults = self.set.faults(elsewhere);
        if !elsewhere {
            faults.extend(self.set.unknown_hits(|_| false));
        }
        for fault in faults {
            let (place, other) = match fault.rule {
                None => (Position { file: 0, line: 0, column: 0 }, None),
                Some(which) => (self.at(which), fault.other.map(|other| self.at(other))),
            };
            let reason = match other {
                Some(other) => {
                    let what = match fault.rule {
                        Some(Which::Named(_)) => "at",
                        Some(Which::Patterns(_)) => "by the patterns at",
                        _ => "by the rule at",
                    };
                    format!("{} {what} {}", fault.reason, self.mistakes.name(other))
                }
                None => fault.reason,
            };
            self.mistakes.add(place, reason);
        }
    }

    /// The position of a rule of the set.
    fn at(&self, which: Which) -> Position {
        match which {
            Which::Wildcard(index) => self.rules_at[index],
            Which::Exact(index) => self.exact_at[index],
            Which::Named(index) => self.sets_at[index],
            Which::Patterns(index) => self.patterns_at[index],
        }
    }
}

/// Error message for an unknown field, with a suggestion.
fn unknown(key: &str, known: &[&str]) -> String {
    let hint = match nearest(key, known) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!("expected one of {}", known.join(", ")),
    };
    format!("unknown field '{}'; {hint}", shown(key))
}
