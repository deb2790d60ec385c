//! Rule options shared by all capturing commands: the rules, and their limits.

use std::path::PathBuf;

use anyhow::Result;
use wirelane::rules::RuleSet;
use wirelane::{Builder, Error, RulesCapacity};

use crate::source::CAPTURE;
use wirelane_screen::table::printable;

/// The rules of a capture.
#[derive(clap::Args, Debug)]
pub struct RuleArgs {
    /// Rule file in TOML: which packets are delivered, how much of them, and what is counted ('wirelane rules --help'
    /// has an example). 'wirelane rules' changes the rules while the capture runs
    #[arg(long, value_name = "FILE", help_heading = CAPTURE)]
    pub rules: Option<PathBuf>,

    /// Capacity for rules that are added while the capture runs, also without --rules: a number of exact-match rules, or
    /// any of exact=N,rules=N,nodes=N,classes=N, and sets=MIB for named sets. Default: twice what FILE needs, and
    /// enough for ordinary rules; for named sets up to a quarter of the memory
    #[arg(long, alias = "rules-room", value_name = "N|NAME=N,...", value_parser = rules_capacity, conflicts_with = "read", help_heading = CAPTURE)]
    pub rules_capacity: Option<RulesCapacity>,

    /// The devices that rules may send packets to (mirror = "DEV", or action = "redirect" and to = "DEV"), at most 8 with
    /// commas, also rules that come while the capture runs. Takes tc ('--hook auto' is 'tc' then)
    #[arg(long = "mirror-to", alias = "exits", value_name = "DEV,...", value_delimiter = ',', conflicts_with = "read", help_heading = CAPTURE)]
    pub egress_devices: Vec<String>,

    /// Apply the rules to the device: packets that they drop reach neither the host nor other captures, as long as this
    /// one runs. EXPRESSION only selects the packets that the rules see. What counts passes on
    #[arg(long, conflicts_with = "read", help_heading = CAPTURE)]
    pub device_wide: bool,

    /// Your own BPF program as a condition of rules (plugin = "NAME"), up to four: an object file, compiled from a
    /// source that includes wirelane/plugin.h. It runs in the kernel (engine 'ring')
    #[arg(long = "plugin", value_name = "NAME=FILE.bpf.o", value_parser = plugin, help_heading = CAPTURE)]
    pub plugins: Vec<PluginArg>,

    /// Disable a plug-in, in the lane where it is too slow, that takes more than this time per packet on average; a number
    /// without a unit is in nanoseconds
    #[arg(long, value_name = "TIME", default_value = "5us", value_parser = crate::values::plugin_budget, help_heading = CAPTURE)]
    pub plugin_budget: u32,

    /// The command's own rules, without a rule file: which packets are delivered besides flows that are made in the
    /// kernel, and rules that evaluate plug-ins for every packet.
    #[arg(skip)]
    own: Option<RuleSet>,

    /// Whether something depends on the command's own rules, so that they must not be changed.
    #[arg(skip)]
    fixed: bool,
}

/// A value of --plugin.
#[derive(Clone, Debug)]
pub struct PluginArg {
    name: String,
    file: PathBuf,
}

fn plugin(text: &str) -> std::result::Result<PluginArg, String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok(PluginArg { name: name.to_owned(), file: file.into() })
        }
        _ => Err("write NAME=FILE.bpf.o: the name by which rules ask for it, and its object file".into()),
    }
}

/// The value of --rules-capacity.
fn rules_capacity(text: &str) -> std::result::Result<RulesCapacity, String> {
    let mut room = RulesCapacity::default();
    for part in text.split(',') {
        let (name, number) = part.split_once('=').unwrap_or(("exact", part));
        let number = number.trim().parse().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| format!("'{part}' has no number of at least 1"))?;
        match name.trim() {
            "exact" | "precise" => room.exact = number,
            "rules" => room.rules = number,
            "nodes" => room.nodes = number,
            "classes" => room.classes = number,
            "sets" => room.sets = number,
            other => return Err(format!("'{other}' is not one of exact, rules, nodes, classes and sets")),
        }
    }
    Ok(room)
}

impl RuleArgs {
    /// Sets the rules for delivered packets, with ids from 1. No other process can change them.
    pub fn decide(&mut self, rules: RuleSet) {
        self.own = Some(rules);
        self.fixed = true;
    }

    /// Whether rules may be changed while the capture runs.
    pub fn are_changeable(&self) -> bool {
        !self.fixed
    }

    /// The names of the plug-ins, in the order of the capture.
    pub fn plugin_names(&self) -> Vec<String> {
        self.plugins.iter().map(|plugin| plugin.name.clone()).collect()
    }

    /// Also loads these plug-ins, by names and files, before those of the command line. They are evaluated for every
    /// packet, or as in the rule file.
    ///
    /// # Errors
    /// If the rule file does not evaluate one of them; the fault of the file.
    pub fn ask(&mut self, plugins: Vec<(String, PathBuf)>) -> Result<()> {
        let given = std::mem::take(&mut self.plugins);
        let own = plugins.iter().map(|(name, file)| PluginArg { name: name.clone(), file: file.clone() });
        self.plugins = own.chain(given).collect();
        let Some(file) = &self.rules else {
            let own = self.own.get_or_insert_default();
            let others = own.rules.len();
            let rule = |(place, (name, _)): (usize, &(String, PathBuf))| {
                format!("[[rule]]\nid = {}\nplugin = \"{name}\"\naction = \"none\"\n", others + place + 1)
            };
            let rules: String = plugins.iter().enumerate().map(rule).collect();
            own.rules.extend(RuleSet::parse(&rules)?.rules);
            return Ok(());
        };
        let names = self.plugin_names();
        let asked = RuleSet::read_for(file, Some(&self.egress_devices), Some(&names))?.plugins();
        let Some((name, _)) = plugins.iter().find(|(name, _)| !asked.contains(name)) else { return Ok(()) };
        let file = printable(&file.display().to_string()).into_owned();
        let reason = format!(
            "{file} has no rule that asks the plug-in '{name}', which the probe has: nothing would be counted"
        );
        Err(Error::BadOption { option: "--rules", reason }.into())
    }

    /// The rules for reading a file, for which packets are not sent on and plug-ins do not run.
    ///
    /// # Errors
    /// The fault of the rules.
    pub fn for_file(&self) -> Result<Option<RuleSet>> {
        let cannot = |option, reason: String| Err(Error::BadOption { option, reason }.into());
        if !self.plugins.is_empty() {
            let reason = "plug-ins run in the kernel, not on files: leave the option out";
            return cannot("--plugin", reason.into());
        }
        let Some(file) = &self.rules else { return Ok(None) };
        let rules = RuleSet::read_for(file, Some(&[]), None)?;
        if let Some(parameter) = rules.parameters.first() {
            let reason = parameter.mistake("plug-ins and steering programs run in the kernel, not on files");
            return cannot("--rules", reason.to_string());
        }
        match rules.plugins().first() {
            None => Ok(Some(rules)),
            Some(name) => cannot(
                "--rules",
                format!(
                    "{} asks the plug-in '{name}', and plug-ins run in the kernel, not on files",
                    printable(&file.display().to_string())
                ),
            ),
        }
    }

    /// The rules of the file, for a live capture; `None`: there is no file.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn of_file(&self) -> Result<Option<RuleSet>> {
        let names = self.plugin_names();
        let read = |file: &PathBuf| RuleSet::read_for(file, Some(&self.egress_devices), Some(&names));
        Ok(self.rules.as_ref().map(read).transpose()?)
    }

    /// The settings of a capture with these rules.
    ///
    /// # Errors
    /// The fault of the rules.
    pub fn apply(&self, mut builder: Builder) -> Result<Builder> {
        if let Some(rules) = self.of_file()? {
            builder = builder.rules(rules);
        } else if let Some(rules) = &self.own {
            builder = builder.rules(rules.clone());
        }
        if !self.egress_devices.is_empty() {
            builder = builder.egress_devices(&self.egress_devices);
        }
        for PluginArg { name, file } in &self.plugins {
            builder = builder.plugin(name, file);
        }
        builder = builder.plugin_budget(self.plugin_budget).device_wide(self.device_wide);
        if let Some(room) = self.rules_capacity {
            builder = builder.rules_capacity(room);
        }
        Ok(builder)
    }
}
