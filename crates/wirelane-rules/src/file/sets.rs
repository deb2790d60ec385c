//! `[[sets]]`: named sets of addresses or flows.
//!
//! Addresses are written as those of a condition: as literals, in lists, in files. Flows are written as literals, in a
//! plain file with one flow per line, or in a CSV file whose first row names the columns.

use std::net::IpAddr;
use std::sync::Arc;

use super::files::{self, LARGEST_LIST};
use super::node::{Entry, Node};
use super::position::{Lines, Mistakes, Position};
use super::rule::protocol;
use super::table::Csv;
use super::values::{self, text, word};
use super::{Document, Reader};
use crate::named::{Entries, Flow, NamedSet};
use crate::names::shown;

/// Keys of `[[sets]]`.
const KNOWN: &[&str] = &["name", "of", "entries", "false-positives", "confirm"];
/// The columns of a CSV file of flows.
const COLUMNS: [&str; 5] = ["src", "dst", "src-port", "dst-port", "protocol"];

/// Element type of a set.
#[derive(Clone, Copy)]
enum Kind {
    Address,
    Flow,
}

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
                "of" => {
                    let kinds = [("address", Kind::Address), ("flow", Kind::Flow)];
                    kind = self.mistakes.take(here, word(node, &kinds));
                }
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
        let entries = match (kind, entries) {
            (Some(Kind::Address), Some(list)) => self.addresses(document, list).map(Entries::Address),
            (Some(Kind::Flow), Some(list)) => self.flows(document, list),
            _ => None,
        };
        let Some(((name, share), entries)) = name.zip(share).zip(entries) else {
            // The name of a faulty set is registered, or each use of it would be reported as another mistake.
            self.faulty_sets.extend(name.map(str::to_owned));
            return;
        };
        self.set.sets.push(NamedSet { name: name.to_owned(), entries, false_positives: share, confirm });
        self.sets_at.push(place);
    }

    /// Reads flows: literals, and flows from files.
    fn flows(&mut self, document: &Document, node: &Node) -> Option<Entries> {
        if node.elements().is_empty() {
            self.mistakes.add(document.place(node), "the list is empty: no packet is of no flow");
            return None;
        }
        let (mut flows, mut whole) = (Vec::new(), true);
        for element in node.elements() {
            let place = document.place(element);
            let Some(text) = self.mistakes.take(place, text(element)) else {
                whole = false;
                continue;
            };
            let read = match text.strip_prefix('@') {
                Some(name) => self.flow_file(document, name, place, &mut flows),
                None => self.mistakes.take(place, text.parse()).map(|flow| flows.push(flow)),
            };
            whole &= read.is_some();
        }
        whole.then(|| Entries::Flow(Arc::new(flows.into_iter().collect())))
    }

    /// Reads the flows in a file, which is named at `place`.
    fn flow_file(
        &mut self,
        document: &Document,
        name: &str,
        place: Position,
        flows: &mut Vec<Flow>,
    ) -> Option<()> {
        if !name.contains(['.', '/']) {
            let reason = format!(
                "'@{}' is not a file of flows: lists hold addresses, and the path of a file contains . or /",
                shown(name)
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
        let before = flows.len();
        if csv {
            rows(&content, file, &mut self.mistakes, flows)
        } else {
            plain(&content, file, &mut self.mistakes, flows)
        }?;
        if flows.len() == before {
            self.mistakes.add(file, "has no flow in it");
            return None;
        }
        Some(())
    }
}

/// Reads a plain file: one flow per line, comments from `#` or `;` to the end of the line.
fn plain(content: &str, file: Position, mistakes: &mut Mistakes, flows: &mut Vec<Flow>) -> Option<()> {
    let lines = Lines::new(file.file, content);
    let mut whole = true;
    for line in content.lines() {
        let text = line.split(['#', ';']).next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        match text.parse() {
            Ok(flow) => flows.push(flow),
            Err(reason) => {
                // The line borrows from `content`, so its offset is the difference of the pointers.
                mistakes.add(lines.place(text.as_ptr().addr() - content.as_ptr().addr()), reason);
                whole = false;
            }
        }
    }
    whole.then_some(())
}

/// Reads a CSV file: one flow per row, with the column names in the first row.
fn rows(content: &str, file: Position, mistakes: &mut Mistakes, flows: &mut Vec<Flow>) -> Option<()> {
    let mut csv = Csv::new(content, file.file);
    if !csv.advance() {
        mistakes.add(file, "is empty: the first row has the names of the columns");
        return None;
    }
    let names: Vec<String> = csv.fields().map(|name| name.trim().to_owned()).collect();
    let column = |wanted: &str| names.iter().position(|name| name == wanted);
    let columns = COLUMNS.map(column);
    let [Some(src), Some(dst), src_port, dst_port, Some(proto)] = columns else {
        let reason =
            format!("the first row names the columns: {}; ports may be left out", COLUMNS.join(", "));
        mistakes.add(csv.place(0), reason);
        return None;
    };
    let mut whole = true;
    while csv.advance() {
        let field = |number: usize| csv.field(number).unwrap_or_default().trim();
        let address = |number| {
            let read = field(number).parse::<IpAddr>();
            read.map_err(|_| (number, format!("'{}' is not an address", shown(field(number)))))
        };
        let port = |number: Option<usize>| match number.map(|number| (number, field(number))) {
            None | Some((_, "")) => Ok(0),
            Some((at, text)) => values::number(&Node::of_word(text), 0..=0xffff)
                .map(|port| port as u16)
                .map_err(|reason| (at, reason)),
        };
        let read = || {
            let one = (address(src)?, port(src_port)?);
            let other = (address(dst)?, port(dst_port)?);
            let range = protocol(&Node::of_word(field(proto))).map_err(|reason| (proto, reason))?;
            if range.start() != range.end() {
                return Err((proto, "a flow has one protocol, and no range of them".to_owned()));
            }
            Flow::between(one, other, *range.start()).map_err(|reason| (src, reason))
        };
        match read() {
            Ok(flow) => flows.push(flow),
            Err((at, reason)) => {
                mistakes.add(csv.place(at), reason);
                whole = false;
            }
        }
    }
    whole.then_some(())
}
