//! The active rules of a capture and their counters, as text and as JSON.

mod checked;
mod explain;
mod running;
mod state;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;
use wirelane::escape::to_json;
use wirelane::rules::{ExactRule, PatternLine, Policy, SetLine};
use wirelane::{ExactLine, Hits, PluginLine, RuleLine, RuleStats, Searches};
use wirelane_screen::table::{Table, amount, counted, printable};

pub use checked::Checked;
pub use explain::Packet;
pub use running::{add_all, all_exact, instances};
pub use state::entry;

/// A wildcard rule in `--json`.
#[derive(Serialize)]
struct Wildcard<'a> {
    exact: bool,
    #[serde(flatten)]
    line: &'a RuleLine,
}

/// An exact-match rule in `--json`, with the name of its device.
#[derive(Serialize)]
struct Exact<'a> {
    exact: bool,
    device: Option<&'a str>,
    rule: &'a ExactRule,
    made: bool,
    age_s: u64,
    hits: Hits,
}

/// The last object.
#[derive(Serialize)]
struct Last<'a> {
    r#final: bool,
    version: u64,
    devices: &'a [String],
    default: Policy,
    rules: usize,
    exact: u64,
    exact_capacity: u64,
    exact_hits: Hits,
    exact_gone: Hits,
    rules_gone: Hits,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    sets: &'a [SetLine],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    patterns: &'a [PatternLine],
    searches: Searches,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    plugins: &'a [PluginLine],
}

impl<'a> Last<'a> {
    fn of(stats: &'a RuleStats) -> Last<'a> {
        Last {
            r#final: true,
            version: stats.version,
            devices: &stats.devices,
            default: stats.default,
            rules: stats.rules.len(),
            exact: stats.exact,
            exact_capacity: stats.exact_capacity,
            exact_hits: stats.exact_hits,
            exact_gone: stats.exact_gone,
            rules_gone: stats.rules_gone,
            sets: &stats.sets,
            patterns: &stats.patterns,
            searches: stats.searches,
            plugins: &stats.plugins,
        }
    }
}

/// The rules as JSON, a line each, and a last line of sums.
///
/// # Errors
/// Where a rule cannot be serialised.
pub fn lines(stats: &RuleStats, exact: &[ExactLine]) -> Result<String> {
    let mut text = String::new();
    for line in exact {
        let device = stats.devices.get(line.device).map(String::as_str);
        let ExactLine { rule, made, age_s, hits, .. } = line;
        let line = Exact { exact: true, device, rule, made: *made, age_s: *age_s, hits: *hits };
        text += &(to_json(&line)? + "\n");
    }
    for line in &stats.rules {
        text += &(to_json(&Wildcard { exact: false, line })? + "\n");
    }
    Ok(text + &to_json(&Last::of(stats))? + "\n")
}

/// The rules as people read them.
pub fn table(stats: &RuleStats, exact: &[ExactLine]) -> String {
    let mut table =
        Table::new(["RULE", "packets", "bytes", "last hit", "action", "conditions"]).words_from(4);
    for line in exact {
        let device = match &stats.devices[..] {
            [] | [_] => "",
            all => all.get(line.device).map_or("", String::as_str),
        };
        let made = if line.made { " made" } else { "" };
        let rule = &line.rule;
        table.row([
            format!("{} exact{made} {}", rule.id, printable(device)).trim_end().to_owned(),
            amount(line.hits.packets),
            amount(line.hits.bytes),
            ago(&line.hits),
            printable(&rule.does()).into_owned(),
            rule.fields.to_string(),
        ]);
    }
    for line in &stats.rules {
        let rule = &line.rule;
        let conditions = rule.asks();
        let conditions = if conditions.is_empty() { "all packets".to_owned() } else { conditions.join(", ") };
        let name = rule.name.as_deref().map(|name| format!(" {}", printable(name))).unwrap_or_default();
        table.row([
            format!("{}{name}", rule.id),
            amount(line.hits.packets),
            amount(line.hits.bytes),
            ago(&line.hits),
            printable(&rule.does()).into_owned(),
            shortened(&printable(&conditions)),
        ]);
    }
    table.to_string()
}

/// The rules that were hit most, for the end of a capture.
pub fn most_hit(stats: &RuleStats) -> String {
    const MOST: usize = 20;
    let mut hit = stats.clone();
    hit.rules.retain(|line| line.hits.packets > 0);
    hit.rules.sort_by_key(|line| std::cmp::Reverse(line.hits.packets));
    let more = hit.rules.len().saturating_sub(MOST);
    hit.rules.truncate(MOST);
    let more = if more > 0 { format!("and {more} other rules that were hit\n") } else { String::new() };
    let table = if hit.rules.is_empty() { String::new() } else { table(&hit, &[]) };
    format!("\n{table}{more}{}", summary(stats))
}

/// Below the table.
pub fn summary(stats: &RuleStats) -> String {
    let default = match stats.default {
        Policy::Pass => "pass",
        Policy::Drop => "drop",
    };
    let mut text = format!(
        "default: {default}; {}; {} (room for {}), hit by {}\n",
        counted(stats.rules.len() as u64, "wildcard rule"),
        counted(stats.exact, "exact-match rule"),
        amount(stats.exact_capacity),
        counted(stats.exact_hits.packets, "packet"),
    );
    stats.sets.iter().for_each(|set| text += &(of_set(set) + "\n"));
    stats.patterns.iter().for_each(|patterns| text += &(of_patterns(patterns) + "\n"));
    let Searches { packets, bytes, found, half } = stats.searches;
    if packets > 0 {
        text += &format!(
            "payloads searched: {}, {}; patterns found in {}; not searched to the end: {}\n",
            counted(packets, "packet"),
            counted(bytes, "byte"),
            amount(found),
            amount(half),
        );
    }
    stats.plugins.iter().for_each(|plugin| text += &of_plugin(plugin));
    let gone = stats.rules_gone.and(stats.exact_gone);
    if gone.packets > 0 {
        text += &format!("removed rules were hit by {}\n", counted(gone.packets, "packet"));
    }
    let refused: u64 = stats.rules.iter().map(|line| line.refused).sum();
    if refused > 0 {
        text += &format!("{} exact-match rules were not inserted: the table was full\n", amount(refused));
    }
    text
}

/// A named set in a line.
pub fn of_set(set: &SetLine) -> String {
    let (one, several) = match set.of.as_str() {
        "flow" => ("flow", "flows"),
        "network" => ("network", "networks"),
        "address-port" => ("address with port", "addresses with ports"),
        "address-port-protocol" => ("address with port and protocol", "addresses with ports and protocols"),
        _ => ("address", "addresses"),
    };
    let wrong = match (set.confirm, set.in_use) {
        (_, false) => ", not used by any rule".to_owned(),
        (true, _) => format!(", {} hash functions, confirmed: no false positives", set.hash_functions),
        (false, _) => {
            format!(
                ", {} hash functions, {:.4}% false positives expected",
                set.hash_functions,
                set.false_positives * 100.0
            )
        }
    };
    format!(
        "set {}: {} {}, {} KiB in the kernel{wrong}",
        printable(&set.name),
        amount(set.entries),
        if set.entries == 1 { one } else { several },
        amount(set.bytes.div_ceil(1024)),
    )
}

/// Patterns of a name in a line.
pub fn of_patterns(patterns: &PatternLine) -> String {
    format!(
        "patterns {}: {}, {} states, {} KiB{}",
        printable(&patterns.name),
        amount(patterns.patterns),
        amount(patterns.states),
        amount(patterns.bytes.div_ceil(1024)),
        if patterns.in_use { "" } else { ", not used by any rule" },
    )
}

/// A plug-in in a line, and in another one that it has been switched off.
fn of_plugin(plugin: &PluginLine) -> String {
    let name = printable(&plugin.name);
    let mut text = format!(
        "plug-in {name}: asked about {} packets, matched {}, {} ns each",
        amount(plugin.asked),
        amount(plugin.matched),
        amount(plugin.mean_ns()),
    );
    let counters: Vec<String> = plugin
        .counters
        .iter()
        .map(|(name, value)| format!("{} {}", printable(name), amount(*value)))
        .collect();
    if !counters.is_empty() {
        text += &format!("; {}", counters.join(", "));
    }
    if plugin.records + plugin.unwritten > 0 {
        text += &format!("; {} records, {} unwritten", amount(plugin.records), amount(plugin.unwritten));
    }
    text += "\n";
    if plugin.off > 0 {
        text += &format!(
            "plug-in {name}: disabled in {} lane{}, as it was too slow; not asked about {} packets\n",
            plugin.off,
            if plugin.off == 1 { "" } else { "s" },
            amount(plugin.refused)
        );
    }
    text
}

/// How long ago the last hit was.
fn ago(hits: &Hits) -> String {
    let Some(last) = hits.last_ns else { return "-".into() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let ago = Duration::from_nanos(u64::try_from(now.saturating_sub(last.into())).unwrap_or(u64::MAX));
    match ago.as_secs() {
        0..10 => format!("{:.1} s ago", ago.as_secs_f64()),
        10..600 => format!("{} s ago", ago.as_secs()),
        600..172_800 => format!("{} min ago", ago.as_secs() / 60),
        _ => format!("{} days ago", ago.as_secs() / 86_400),
    }
}

fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST - 3).chain("...".chars()).collect()
}
