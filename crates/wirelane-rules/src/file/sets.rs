//! `[[sets]]`: named sets of addresses, networks, addresses with ports, or flows.
//!
//! Addresses and networks are written as those of a condition: as literals, in lists, in files. Other entries are written
//! as literals, in a plain file with one entry per line, or in a CSV file whose first row names the columns.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use super::files::{self, LARGEST_LIST};
use super::node::{Entry, Node};
use super::position::{Lines, Mistakes, Position};
use super::rule::protocol;
use super::table::Csv;
use super::values::{self, text, word};
use super::{Document, Reader};
use crate::entries::{End, Flow};
use crate::names::shown;
use crate::{Entries, NamedSet, Networks};

/// Keys of `[[sets]]`.
const KNOWN: &[&str] = &["name", "of", "entries", "false-positives", "confirm"];

/// Element type of a set.
#[derive(Clone, Copy)]
enum Kind {
    Address,
    Network,
    AddressPort,
    AddressPortProtocol,
    Flow,
}

const KINDS: &[(&str, Kind)] = &[
    ("address", Kind::Address),
    ("network", Kind::Network),
    ("address-port", Kind::AddressPort),
    ("address-port-protocol", Kind::AddressPortProtocol),
    ("flow", Kind::Flow),
];

/// An entry with files of its own.
trait Element: FromStr<Err = String> {
    /// The name of an entry in messages.
    const NAME: &'static str;
    /// Several of them.
    const NAMES: &'static str;
    /// The columns of a CSV file.
    const COLUMNS: &'static [&'static str];

    /// The entry in a row.
    ///
    /// # Errors
    /// A mistake, and its column.
    fn of(row: &Row<'_>) -> Result<Self, (usize, String)>;
}

impl<const PROTOCOL: bool> Element for End<PROTOCOL> {
    const NAME: &'static str = if PROTOCOL { "address with port and protocol" } else { "address with port" };
    const NAMES: &'static str =
        if PROTOCOL { "addresses with ports and protocols" } else { "addresses with ports" };
    const COLUMNS: &'static [&'static str] =
        if PROTOCOL { &["address", "port", "protocol"] } else { &["address", "port"] };

    fn of(row: &Row<'_>) -> Result<Self, (usize, String)> {
        let number = if PROTOCOL { row.protocol("protocol")? } else { 0 };
        let (address, port) = (row.address("address")?, row.port("port")?);
        let port = port.ok_or_else(|| (row.column("port"), "there is no port in this row".to_owned()))?;
        End::at(address, port, number).map_err(|reason| (row.column("address"), reason))
    }
}

impl Element for Flow {
    const NAME: &'static str = "flow";
    const NAMES: &'static str = "flows";
    const COLUMNS: &'static [&'static str] = &["src", "dst", "src-port", "dst-port", "protocol"];

    fn of(row: &Row<'_>) -> Result<Self, (usize, String)> {
        // A protocol without ports has ports of 0.
        let one = (row.address("src")?, row.port("src-port")?.unwrap_or(0));
        let other = (row.address("dst")?, row.port("dst-port")?.unwrap_or(0));
        let number = row.protocol("protocol")?;
        Flow::between(one, other, number).map_err(|reason| (row.column("src"), reason))
    }
}

/// Columns that a file of flows may leave out.
const OPTIONAL: [&str; 2] = ["src-port", "dst-port"];

impl Reader {
    /// Reads a table of `[[sets]]`.
    pub(super) fn named_set(&mut self, document: &Document, node: &Node) {
        let place = document.place(node);
        let (mut name, mut kind, mut share) = (None, Some(Kind::Address), Some(NamedSet::FALSE_POSITIVES));
        let (mut entries, mut confirm) = (None, false);
        for Entry { key, at, node } in node.entries() {
            let here = document.place(node);
            match key.as_str() {
                "name" => name = self.mistakes.take(here, text(node)),
                "of" => kind = self.mistakes.take(here, word(node, KINDS)),
                "entries" => entries = Some(node),
                "false-positives" => share = self.mistakes.take(here, values::fraction(node)),
                "confirm" => {
                    let read = values::truth(node).map(|read| confirm = read);
                    self.mistakes.take(here, read);
                }
                _ => self.unknown(document, key, *at, KNOWN),
            }
        }
        if node.entry("name").is_none() {
            self.mistakes.add_if_readable(place, "the set has no name, by which rules could ask it");
        }
        if entries.is_none() {
            let reason = "the set has no entries: write entries = \"@list.txt\", or an array of them";
            self.mistakes.add_if_readable(place, reason);
        }
        let entries = kind.zip(entries).and_then(|(kind, list)| match kind {
            Kind::Address => self.addresses(document, list).map(Entries::Address),
            Kind::Network => {
                let addresses = self.addresses(document, list)?;
                Some(Entries::Network(Arc::new(Networks::from(Arc::unwrap_or_clone(addresses)))))
            }
            Kind::AddressPort => self.elements(document, list).map(Entries::AddressPort),
            Kind::AddressPortProtocol => self.elements(document, list).map(Entries::AddressPortProtocol),
            Kind::Flow => self.elements(document, list).map(Entries::Flow),
        });
        let Some(((name, share), entries)) = name.zip(share).zip(entries) else {
            // The name of a faulty set is registered, or each use of it would be reported as another mistake.
            self.faulty_sets.extend(name.map(str::to_owned));
            return;
        };
        self.set.sets.push(NamedSet { name: name.to_owned(), entries, false_positives: share, confirm });
        self.sets_at.push(place);
    }

    /// Reads entries: literals, and entries from files.
    fn elements<E: Element, A: FromIterator<E>>(
        &mut self,
        document: &Document,
        node: &Node,
    ) -> Option<Arc<A>> {
        if node.elements().is_empty() {
            self.mistakes.add(document.place(node), "the list is empty: nothing is in the set");
            return None;
        }
        let (mut entries, mut whole) = (Vec::new(), true);
        for element in node.elements() {
            let place = document.place(element);
            let Some(text) = self.mistakes.take(place, text(element)) else {
                whole = false;
                continue;
            };
            let read = match text.strip_prefix('@') {
                Some(name) => self.element_file(document, name, place, &mut entries),
                None => self.mistakes.take(place, text.parse()).map(|entry| entries.push(entry)),
            };
            whole &= read.is_some();
        }
        whole.then(|| Arc::new(entries.into_iter().collect()))
    }

    /// Reads the entries in a file, which is named at `place`.
    fn element_file<E: Element>(
        &mut self,
        document: &Document,
        name: &str,
        place: Position,
        entries: &mut Vec<E>,
    ) -> Option<()> {
        if !name.contains(['.', '/']) {
            let reason = format!(
                "'@{}' is not a file of {}: lists hold addresses, and the path of a file contains . or /",
                shown(name),
                E::NAMES
            );
            self.mistakes.add(place, reason);
            return None;
        }
        let path = self.mistakes.take(place, document.folder.file(name))?;
        let csv = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
        let content =
            files::read(&path, LARGEST_LIST).map_err(|reason| format!("{} {reason}", files::name(&path)));
        let content = self.mistakes.take(place, content)?;
        let file = self.mistakes.file(path);
        let before = entries.len();
        if csv {
            rows(&content, file, &mut self.mistakes, entries)
        } else {
            plain(&content, file, &mut self.mistakes, entries)
        }?;
        if entries.len() == before {
            self.mistakes.add(file, format!("has no {} in it", E::NAME));
            return None;
        }
        Some(())
    }
}

/// Reads a plain file: one entry per line, comments from `#` or `;` to the end of the line.
fn plain<E: Element>(
    content: &str,
    file: Position,
    mistakes: &mut Mistakes,
    entries: &mut Vec<E>,
) -> Option<()> {
    let lines = Lines::new(file.file, content);
    let mut whole = true;
    for line in content.lines() {
        let text = line.split(['#', ';']).next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        match text.parse() {
            Ok(entry) => entries.push(entry),
            Err(reason) => {
                // The line borrows from `content`, so its offset is the difference of the pointers.
                mistakes.add(lines.place(text.as_ptr().addr() - content.as_ptr().addr()), reason);
                whole = false;
            }
        }
    }
    whole.then_some(())
}

/// A row of a CSV file whose first row has the names of columns.
struct Row<'r> {
    csv: &'r Csv<'r>,
    names: &'r [String],
}

impl Row<'_> {
    /// The number of a column; past the last if there is none.
    fn column(&self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or(self.names.len())
    }

    fn field(&self, name: &str) -> (usize, &str) {
        let number = self.column(name);
        (number, self.csv.field(number).unwrap_or_default().trim())
    }

    fn address(&self, name: &str) -> Result<IpAddr, (usize, String)> {
        let (at, text) = self.field(name);
        text.parse().map_err(|_| (at, format!("'{}' is not an address", shown(text))))
    }

    /// A port; `None` if the field is empty.
    fn port(&self, name: &str) -> Result<Option<u16>, (usize, String)> {
        match self.field(name) {
            (_, "") => Ok(None),
            (at, text) => values::number(&Node::of_word(text), 0..=0xffff)
                .map(|port| Some(port as u16))
                .map_err(|reason| (at, reason)),
        }
    }

    fn protocol(&self, name: &str) -> Result<u8, (usize, String)> {
        let (at, text) = self.field(name);
        let range = protocol(&Node::of_word(text)).map_err(|reason| (at, reason))?;
        if range.start() != range.end() {
            return Err((at, "an entry has one protocol, and no range of them".to_owned()));
        }
        Ok(*range.start())
    }
}

/// Reads a CSV file: one entry per row, with the column names in the first row.
fn rows<E: Element>(
    content: &str,
    file: Position,
    mistakes: &mut Mistakes,
    entries: &mut Vec<E>,
) -> Option<()> {
    let mut csv = Csv::new(content, file.file);
    if !csv.advance() {
        mistakes.add(file, "is empty: the first row has the names of the columns");
        return None;
    }
    let names: Vec<String> = csv.fields().map(|name| name.trim().to_owned()).collect();
    let has = |column: &str| names.iter().any(|name| name == column);
    if E::COLUMNS.iter().any(|column| !has(column) && !OPTIONAL.contains(column)) {
        let mut reason = format!("the first row names the columns: {}", E::COLUMNS.join(", "));
        if E::COLUMNS.iter().any(|column| OPTIONAL.contains(column)) {
            reason.push_str("; ports may be left out");
        }
        mistakes.add(csv.place(0), reason);
        return None;
    }
    let mut whole = true;
    while csv.advance() {
        match E::of(&Row { csv: &csv, names: &names }) {
            Ok(entry) => entries.push(entry),
            Err((at, reason)) => {
                mistakes.add(csv.place(at), reason);
                whole = false;
            }
        }
    }
    whole.then_some(())
}
