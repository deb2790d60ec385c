//! The contents of a rule file, as `wirelane rules check` shows them.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use wirelane::rules::{PatternLine, RuleSet, SetLine};
use wirelane_screen::table::{counted, printable};

/// Contents of a rule file.
#[derive(Serialize)]
pub struct Checked {
    rules: usize,
    exact: usize,
    /// Capacities for `--rules-capacity`.
    nodes: usize,
    classes: usize,
    table_bytes: usize,
    /// Named sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sets: Vec<SetLine>,
    /// Patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    patterns: Vec<PatternLine>,
    /// Devices to which the rules send packets, for `--mirror-to`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    egress_devices: Vec<String>,
    /// Plug-ins that the rules evaluate, for `--plugin`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plugins: Vec<String>,
}

impl Checked {
    /// Reads and checks a rule file. `plugins`: those that the capture will have; empty: any.
    ///
    /// # Errors
    /// The mistakes of the file.
    pub fn read(file: &Path, plugins: &[String]) -> Result<Checked> {
        let rules = RuleSet::read_for(file, None, (!plugins.is_empty()).then_some(plugins))?;
        let room = rules.room()?;
        Ok(Checked {
            rules: rules.rules.len(),
            exact: rules.exact.len(),
            nodes: room.nodes,
            classes: room.classes,
            table_bytes: room.bytes(),
            sets: rules.set_lines(),
            patterns: rules.pattern_lines(),
            egress_devices: rules.egress_devices(),
            plugins: rules.plugins(),
        })
    }

    /// The contents of this file as text.
    pub fn text(&self, file: &Path) -> String {
        let sets = self.sets.iter().map(super::of_set);
        let lines = sets.chain(self.patterns.iter().map(super::of_patterns));
        let mut more: String = lines.map(|line| line + "\n").collect();
        let mut options = Vec::new();
        if !self.egress_devices.is_empty() {
            options.push(format!("--mirror-to {}", self.egress_devices.join(",")));
        }
        options.extend(self.plugins.iter().map(|name| format!("--plugin {name}=FILE.bpf.o")));
        if !options.is_empty() {
            let options = options.join(" ");
            more += &format!("for a capture that is started with {}\n", printable(&options));
        }
        format!(
            "{}: {}, {}; look-up tables of up to {} nodes and {} classes ({} KiB)\n{more}",
            printable(&file.display().to_string()),
            counted(self.rules as u64, "wildcard rule"),
            counted(self.exact as u64, "exact-match rule"),
            self.nodes,
            self.classes,
            self.table_bytes.div_ceil(1024)
        )
    }
}
