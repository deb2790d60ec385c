//! `[[exact]]`: exact-match rules, in TOML or in CSV.
//!
//! A table with `file` stands for the rows of a CSV file, whose first row has the names of fields. The values of the
//! table are the defaults for each row, and a row without an id gets the id of the previous row plus one.

use std::net::IpAddr;

use super::files::{self, LARGEST_LIST};
use super::node::{Entry, Node, Value};
use super::position::Position;
use super::rule::{Common, FIELDS, NO_ACTION, protocol};
use super::table::Csv;
use super::values::{self, number, text};
use super::{Document, Reader};
use crate::names::{nearest, shown};
use crate::{ExactFields, ExactRule, Then};

/// The other fields of an exact-match rule.
const OTHERS: &[&str] = &[
    "id",
    "both-ways",
    "action",
    "then",
    "truncate",
    "sample",
    "sample-by",
    "tag",
    "mirror",
    "to",
    "idle",
    "hard",
    "file",
];

/// An exact-match rule while it is read.
#[derive(Clone, Default)]
struct Draft {
    common: Common,
    fields: ExactFields,
    idle_s: u32,
    hard_s: u32,
}

impl Draft {
    /// Reads a field. `None`: unknown field name.
    fn read(&mut self, key: &str, node: &Node) -> Option<values::Read<()>> {
        if let Some(read) = self.common.read(key, node) {
            return Some(read);
        }
        let fields = &mut self.fields;
        Some(match key {
            "src" => address(node).map(|address| fields.src = Some(address)),
            "dst" => address(node).map(|address| fields.dst = Some(address)),
            "src-port" => number(node, 0..=0xffff).map(|port| fields.src_port = Some(port as u16)),
            "dst-port" => number(node, 0..=0xffff).map(|port| fields.dst_port = Some(port as u16)),
            "protocol" => one_protocol(node).map(|protocol| fields.protocol = Some(protocol)),
            "vlan" => values::exact_vlan(node).map(|vlan| fields.vlan = Some(vlan)),
            "mpls" => number(node, 0..=0xf_ffff).map(|label| fields.mpls = Some(label)),
            "tunnel" => number(node, 0..=u32::MAX).map(|id| fields.tunnel = Some(id)),
            "both-ways" => values::truth(node).map(|both| fields.both_ways = both),
            "idle" => values::seconds(node).map(|seconds| self.idle_s = seconds),
            "hard" => values::seconds(node).map(|seconds| self.hard_s = seconds),
            _ => return None,
        })
    }

    /// The finished rule.
    ///
    /// # Errors
    /// A message that names the missing field.
    fn finish(self) -> Result<ExactRule, String> {
        let sample = self.common.sample()?;
        let id = self.common.id.ok_or("the rule has no id")?;
        let action = self.common.action.ok_or(NO_ACTION)?;
        Ok(ExactRule {
            id,
            fields: self.fields,
            action,
            then: self.common.then.unwrap_or(Then::after(action)),
            truncate: self.common.truncate,
            sample,
            tag: self.common.tag,
            idle_s: self.idle_s,
            hard_s: self.hard_s,
            mirror: self.common.mirror,
            to: self.common.to,
        })
    }
}

impl Reader {
    /// Reads a table of `[[exact]]`.
    pub(super) fn exact(&mut self, document: &Document, node: &Node) {
        let place = document.place(node);
        if let Some(Entry { node: file, .. }) = node.entry("file") {
            self.exact_file(document, node, file);
            return;
        }
        let mut draft = Draft::default();
        if self.draft(document, node, &mut draft) {
            self.add_exact(draft, place);
        }
    }

    /// Reads the fields of a table; returns whether all are valid.
    fn draft(&mut self, document: &Document, node: &Node, draft: &mut Draft) -> bool {
        let mut whole = true;
        for Entry { key, at, node } in node.entries() {
            if key == "file" {
                continue;
            }
            match draft.read(key, node) {
                Some(read) => {
                    let read = read.and_then(|()| self.egress_device(key, node));
                    whole &= self.mistakes.take(document.place(node), read).is_some();
                }
                None => {
                    self.unknown(document, key, *at, &known());
                    whole = false;
                }
            }
        }
        whole
    }

    fn add_exact(&mut self, draft: Draft, place: Position) -> Option<u32> {
        match draft.finish() {
            Ok(rule) => {
                let id = rule.id;
                self.set.exact.push(rule);
                self.exact_at.push(place);
                Some(id)
            }
            Err(reason) => {
                self.mistakes.add_if_readable(place, reason);
                None
            }
        }
    }

    /// Reads the rows of a CSV file.
    fn exact_file(&mut self, document: &Document, table: &Node, file: &Node) {
        let place = document.place(file);
        let mut common = Draft::default();
        if !self.draft(document, table, &mut common) {
            return;
        }
        let path = text(file).and_then(|name| document.folder.file(name));
        let Some(path) = self.mistakes.take(place, path) else { return };
        let content =
            files::read(&path, LARGEST_LIST).map_err(|reason| format!("{} {reason}", files::name(&path)));
        let Some(content) = self.mistakes.take(place, content) else { return };
        let file = self.mistakes.file(path);
        let mut csv = Csv::new(&content, file.file);
        if !csv.advance() {
            self.mistakes.add(file, "is empty: the first row has the names of the columns");
            return;
        }
        let Some(columns) = self.columns(&csv) else { return };
        let mut id = common.common.id;
        while csv.advance() {
            let mut draft = common.clone();
            draft.common.id = id;
            let whole = self.row(&csv, &columns, &mut draft);
            // The ids continue even if this row is faulty.
            id = draft.common.id.and_then(|id| id.checked_add(1));
            if whole {
                self.add_exact(draft, csv.place(0));
            }
        }
    }

    /// The names of the columns, if all of them are names of fields.
    fn columns(&mut self, csv: &Csv<'_>) -> Option<Vec<String>> {
        let columns: Vec<String> = csv.fields().map(|name| name.trim().to_owned()).collect();
        let known: Vec<&str> = known().into_iter().filter(|name| *name != "file").collect();
        let mut whole = true;
        if columns.len() > known.len() {
            let reason = format!("there are {} columns, more than a rule has fields", columns.len());
            self.mistakes.add(csv.place(0), reason);
            return None;
        }
        for (number, name) in columns.iter().enumerate() {
            let reason = if !known.contains(&name.as_str()) {
                match nearest(name, &known) {
                    Some(near) => format!("no field is called '{}'; did you mean '{near}'?", shown(name)),
                    None => {
                        format!("no field is called '{}'; expected one of {}", shown(name), known.join(", "))
                    }
                }
            } else if columns[..number].contains(name) {
                format!("there is a column '{name}' already")
            } else {
                continue;
            };
            self.mistakes.add(csv.place(number), reason);
            whole = false;
        }
        whole.then_some(columns)
    }

    /// Reads the fields of a row. An empty field keeps the default.
    fn row(&mut self, csv: &Csv<'_>, columns: &[String], draft: &mut Draft) -> bool {
        let mut whole = true;
        for (column, value) in csv.fields().enumerate() {
            let value = value.trim();
            if value.is_empty() {
                continue;
            }
            let read = match columns.get(column) {
                Some(name) => {
                    let node = Node::of_word(value);
                    let read = draft.read(name, &node).expect("columns have names of fields");
                    read.and_then(|()| self.egress_device(name, &node))
                }
                None => Err("there is no column for this".to_owned()),
            };
            if let Err(reason) = read {
                self.mistakes.add(csv.place(column), reason);
                whole = false;
            }
            // Of the fields without a column only the first is reported: a row may have a million.
            if column >= columns.len() {
                break;
            }
        }
        whole
    }
}

fn known() -> Vec<&'static str> {
    OTHERS.iter().copied().chain(FIELDS.iter().map(|(name, _)| *name)).collect()
}

/// One address.
fn address(node: &Node) -> values::Read<IpAddr> {
    let text = text(node)?;
    text.trim().parse().map_err(|_| {
        format!("'{}' is not an address; an exact-match rule has no prefixes, ranges or lists", shown(text))
    })
}

/// One IP protocol, by number or name.
fn one_protocol(node: &Node) -> values::Read<u8> {
    let range = protocol(node)?;
    match &node.value {
        Value::Text(text) if range.start() != range.end() => {
            Err(format!("'{}' is a range; an exact-match rule has one protocol", shown(text)))
        }
        _ => Ok(*range.start()),
    }
}
