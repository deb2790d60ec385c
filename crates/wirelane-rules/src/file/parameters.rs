//! `[plugins.NAME.parameters]` and `[steering-program.parameters]`: constants of users' programs.

use super::node::{Entry, Node, Value};
use super::{Document, Reader};
use crate::names::shown;
use crate::parameters::{Parameter, ParameterValue};
use crate::plugins::no_plugin;

/// Keys of `[plugins.NAME]` and `[steering-program]`.
const KNOWN: &[&str] = &["parameters"];

impl Reader {
    /// Reads the table `[plugins]`.
    pub(super) fn plugins_table(&mut self, document: &Document, node: &Node) {
        self.table(document, node, "[plugins.NAME.parameters]");
        for Entry { key, at, node } in node.entries() {
            match self.plugins.as_ref().filter(|known| !known.contains(key)) {
                Some(known) => {
                    let reason = no_plugin(key, known);
                    self.mistakes.add(document.lines.place(*at), reason);
                }
                None => self.program_table(document, node, Some(key)),
            }
        }
    }

    /// Reads the table of a program.
    pub(super) fn program_table(&mut self, document: &Document, node: &Node, plugin: Option<&str>) {
        let header = plugin.map_or("[steering-program.parameters]".to_owned(), |name| {
            format!("[plugins.{}.parameters]", shown(name))
        });
        self.table(document, node, &header);
        for Entry { key, at, node } in node.entries() {
            if key != "parameters" {
                self.unknown(document, key, *at, KNOWN);
                continue;
            }
            self.table(document, node, &header);
            for entry in node.entries() {
                self.parameter(document, entry, plugin);
            }
        }
    }

    fn parameter(&mut self, document: &Document, entry: &Entry, plugin: Option<&str>) {
        let place = document.place(&entry.node);
        let value = match entry.node.value {
            Value::Number(number) => Ok(ParameterValue::Number(number)),
            Value::Truth(truth) => Ok(ParameterValue::Truth(truth)),
            _ => Err(format!(
                "parameter '{}' is {}, not a number, true or false",
                shown(&entry.key),
                entry.node.kind()
            )),
        };
        let Some(value) = self.mistakes.take(place, value) else { return };
        let mut parameter = Parameter {
            plugin: plugin.map(str::to_owned),
            name: entry.key.clone(),
            value,
            at: Default::default(),
        };
        let said = parameter.mistake("");
        parameter.at = self.mistakes.place(place);
        match self.set.parameters.iter().position(|one| one.is_same(&parameter)) {
            Some(first) => {
                let (path, line, _) = &self.set.parameters[first].at;
                let reason = format!("{}is set at {}:{line}, too", said.reason, path.display());
                self.mistakes.add(place, reason);
            }
            None => self.set.parameters.push(parameter),
        }
    }

    /// Reports a node that is not a table.
    fn table(&mut self, document: &Document, node: &Node, header: &str) {
        if !matches!(node.value, Value::Table(_)) {
            self.mistakes.add(document.place(node), format!("this is {}: write {header}", node.kind()));
        }
    }
}
