//! Lists of addresses: in the rule file, in plain files, in CSV files.
//!
//! A plain file has an address, a prefix or a range on each line, and comments from `#` or `;` to the end of the line,
//! the format of public block lists. A CSV file (RFC 4180, with `#` comments) has them in one column, selected by
//! number from 1 or by name in the first row.

use std::path::Path;
use std::sync::Arc;

use super::files::{self, Folder, LARGEST_LIST};
use super::node::{Entry, Node, Value};
use super::position::{Lines, Mistakes, Position};
use super::table::Csv;
use super::values::{self, number, text};
use super::{Document, Reader};
use crate::Addresses;
use crate::addresses::Part;
use crate::names::{nearest, shown};

/// The column of a CSV file that has the addresses.
pub(super) enum Column {
    /// Index from 0; the file has no header row.
    Number(usize),
    /// Name in the header row.
    Name(String),
}

impl Reader {
    /// Reads `[lists]` of a file.
    pub(super) fn lists(&mut self, document: &Document, node: &Node) {
        let Value::Table(entries) = &node.value else {
            self.mistakes.add(document.place(node), format!("'lists' is {}, not a table", node.kind()));
            return;
        };
        for Entry { key, at, node } in entries {
            let place = document.lines.place(*at);
            if let Some((_, first)) = self.lists.get(key) {
                let first = self.mistakes.name(*first);
                self.mistakes.add(place, format!("there is a list '{}' already, at {first}", shown(key)));
                continue;
            }
            if !is_name(key) {
                let reason = format!("'{}' cannot name a list: letters, digits, - and _ can", shown(key));
                self.mistakes.add(place, reason);
                continue;
            }
            // A list with mistakes is registered too, or each use of it would be reported as another mistake.
            let addresses = self.list(document, node).map(Into::into);
            self.lists.insert(key.clone(), (addresses, place));
        }
    }

    /// Reads the value of a list: addresses, or a table that names a file.
    fn list(&mut self, document: &Document, node: &Node) -> Option<Addresses> {
        let place = document.place(node);
        let (mut path, mut column) = (None, None);
        match &node.value {
            Value::Table(entries) => {
                for Entry { key, at, node } in entries {
                    match key.as_str() {
                        "file" => path = self.mistakes.take(document.place(node), text(node)),
                        "column" => {
                            column = Some(self.mistakes.take(document.place(node), read_column(node))?);
                        }
                        _ => {
                            let reason =
                                format!("unknown field '{}'; expected one of file, column", shown(key));
                            self.mistakes.add(document.lines.place(*at), reason);
                        }
                    }
                }
            }
            Value::List(_) | Value::Text(_) => return self.parts(document, node, false),
            _ => {
                let reason = format!("this is {}, not an array of addresses or a table", node.kind());
                self.mistakes.add(place, reason);
                return None;
            }
        }
        let Some(path) = path else {
            self.mistakes.add_if_readable(place, "the file is missing: write { file = \"list.txt\" }");
            return None;
        };
        let column = column.or_else(|| csv_column(Path::new(path)));
        self.file_list(&document.folder, path, column, place)
    }

    /// Reads addresses as the value of a field: literals, lists and files (`@name`, `@file.txt`).
    pub(super) fn addresses(&mut self, document: &Document, node: &Node) -> Option<Arc<Addresses>> {
        // A single list is shared, not copied.
        if let Value::Text(text) = &node.value
            && let Some(name) = text.strip_prefix('@')
        {
            return self.named(document, name, document.place(node));
        }
        self.parts(document, node, true).map(Into::into)
    }

    /// Reads addresses: literals, and lists and files if these are `allowed`.
    fn parts(&mut self, document: &Document, node: &Node, allowed: bool) -> Option<Addresses> {
        let one = std::slice::from_ref(node);
        let elements = match &node.value {
            Value::List(elements) if elements.is_empty() => {
                self.mistakes
                    .add(document.place(node), "the list is empty: no packet has one of no addresses");
                return None;
            }
            Value::List(elements) => elements,
            _ => one,
        };
        let (mut parts, mut lists, mut whole) = (Vec::new(), Vec::new(), true);
        for element in elements {
            let place = document.place(element);
            let Some(text) = self.mistakes.take(place, text(element)) else {
                whole = false;
                continue;
            };
            let read = match text.strip_prefix('@') {
                Some(name) if allowed => self.named(document, name, place).map(|list| lists.push(list)),
                Some(_) => {
                    self.mistakes
                        .add(place, "a list cannot have others in it: name both where they are used");
                    None
                }
                None => self.mistakes.take(place, text.trim().parse::<Part>()).map(|part| parts.push(part)),
            };
            whole &= read.is_some();
        }
        let parts: Addresses = parts.into_iter().collect();
        whole.then(|| Addresses::union(lists.iter().map(AsRef::as_ref).chain([&parts])))
    }

    /// The list `@name`, or the addresses of the file with this name.
    fn named(&mut self, document: &Document, name: &str, place: Position) -> Option<Arc<Addresses>> {
        if let Some((list, _)) = self.lists.get(name) {
            return list.clone();
        }
        if is_name(name) {
            let known: Vec<&str> = self.lists.keys().map(String::as_str).collect();
            let near = nearest(name, &known);
            let hint = near.map_or_else(
                || "write it under [lists], or the path of a file with a . or a /".to_owned(),
                |near| format!("did you mean '@{near}'?"),
            );
            self.mistakes.add(place, format!("there is no list '{}'; {hint}", shown(name)));
            return None;
        }
        let path = self.mistakes.take(place, document.folder.file(name))?;
        if let Some(list) = self.file_lists.get(&path) {
            return Some(list.clone());
        }
        let column = csv_column(&path);
        let list = Arc::new(self.file_list(&document.folder, name, column, place)?);
        self.file_lists.insert(path, list.clone());
        Some(list)
    }

    /// Reads the addresses in a file, which is named at `place`.
    fn file_list(
        &mut self,
        folder: &Folder,
        name: &str,
        column: Option<Column>,
        place: Position,
    ) -> Option<Addresses> {
        let path = self.mistakes.take(place, folder.file(name))?;
        let content =
            files::read(&path, LARGEST_LIST).map_err(|reason| format!("{} {reason}", files::name(&path)));
        let content = self.mistakes.take(place, content)?;
        let file = self.mistakes.file(path);
        let addresses = match column {
            None => plain(&content, file, &mut self.mistakes),
            Some(column) => csv(&content, &column, file, &mut self.mistakes),
        }?;
        if addresses.is_empty() {
            self.mistakes.add(file, "has no address in it");
            return None;
        }
        Some(addresses)
    }
}

/// Whether this names a list rather than a file.
fn is_name(name: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    !name.is_empty() && name.chars().all(allowed)
}

/// The default column of a file: the first if its extension is `.csv`; `None` for a plain file.
fn csv_column(path: &Path) -> Option<Column> {
    let ending = path.extension()?.to_str()?;
    ending.eq_ignore_ascii_case("csv").then_some(Column::Number(0))
}

fn read_column(node: &Node) -> values::Read<Column> {
    match &node.value {
        Value::Text(name) => Ok(Column::Name(name.clone())),
        _ => number(node, 1..=4096).map(|number| Column::Number(number as usize - 1)),
    }
}

fn plain(content: &str, file: Position, mistakes: &mut Mistakes) -> Option<Addresses> {
    let lines = Lines::new(file.file, content);
    let (mut parts, mut whole) = (Vec::new(), true);
    for line in content.lines() {
        let text = line.split(['#', ';']).next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        match text.parse::<Part>() {
            Ok(part) => parts.push(part),
            Err(reason) => {
                // The line borrows from `content`, so its offset is the difference of the pointers.
                mistakes.add(lines.place(text.as_ptr().addr() - content.as_ptr().addr()), reason);
                whole = false;
            }
        }
    }
    whole.then(|| parts.into_iter().collect())
}

fn csv(content: &str, column: &Column, file: Position, mistakes: &mut Mistakes) -> Option<Addresses> {
    let mut table = Csv::new(content, file.file);
    let column = match column {
        Column::Number(number) => *number,
        Column::Name(name) => {
            if !table.advance() {
                return Some(Addresses::default());
            }
            match table.fields().position(|known| known.trim() == name) {
                Some(number) => number,
                None => {
                    let known: Vec<String> = table.fields().map(shown).collect();
                    let reason = format!("there is no column '{}', but {}", shown(name), known.join(", "));
                    mistakes.add(table.place(0), reason);
                    return None;
                }
            }
        }
    };
    let (mut parts, mut whole) = (Vec::new(), true);
    while table.advance() {
        let part = match table.field(column) {
            Some(text) => text.trim().parse::<Part>(),
            None => Err(format!("there is no column {} in this row", column + 1)),
        };
        match part {
            Ok(part) => parts.push(part),
            Err(reason) => {
                mistakes.add(table.place(column), reason);
                whole = false;
            }
        }
    }
    whole.then(|| parts.into_iter().collect())
}
