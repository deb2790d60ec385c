//! Shows the rules of a running capture, and their counters.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use wirelane::control::{self, Client, Position, Purpose};
use wirelane::escape::to_json;
use wirelane::{ExactLine, Hits};
use wirelane_monitor::out;
use wirelane_monitor::rules::{lines, summary, table};

use super::running::connect;
use crate::instance::Which;
use wirelane_screen::table::{Table, amount, printable};

/// List the active rules with their counters
#[derive(clap::Args, Debug)]
pub struct List {
    /// Show them again at every interval, until Ctrl-C
    #[arg(long)]
    watch: bool,

    /// Seconds from one time to the next
    #[arg(long, value_name = "SECONDS", value_parser = super::interval, default_value = "1", requires = "watch")]
    interval: Duration,

    /// Show exact-match rules too, each on every device that has it
    #[arg(long, alias = "precise")]
    exact: bool,

    #[command(flatten)]
    which: Which,
}

/// Runs `list`.
///
/// # Errors
/// The error of the capture.
pub fn list(args: &List) -> Result<()> {
    let mut client = connect(&args.which)?;
    loop {
        let stats = client.stats()?;
        let exact = if args.exact { all_exact(&mut client)? } else { Vec::new() };
        out::print(if args.which.json {
            lines(&stats, &exact)?
        } else {
            table(&stats, &exact) + &summary(&stats)
        })?;
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(args.interval);
        if !args.which.json {
            out::print("\n")?;
        }
    }
}

fn all_exact(client: &mut Client) -> Result<Vec<ExactLine>> {
    let mut all = Vec::new();
    let mut from = Some(Position::default());
    while let Some(position) = from {
        let (lines, next) = client.exact(position)?;
        all.extend(lines);
        from = next;
    }
    all.sort_by_key(|line| (line.rule.id, line.device));
    Ok(all)
}

/// A rule in `--json`.
#[derive(Serialize)]
struct Line<'a> {
    exact: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(flatten)]
    wildcard: Option<&'a RuleLine>,
    #[serde(flatten)]
    rule: Option<&'a ExactLine>,
}

/// The last JSON object.
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

fn lines(stats: &RuleStats, exact: &[ExactLine]) -> Result<String> {
    let mut text = String::new();
    for line in exact {
        let device = stats.devices.get(line.device).map(String::as_str);
        let line = Line { exact: true, device, wildcard: None, rule: Some(line) };
        text += &(to_json(&line)? + "\n");
    }
    for line in &stats.rules {
        let line = Line { exact: false, device: None, wildcard: Some(line), rule: None };
        text += &(to_json(&line)? + "\n");
    }
    Ok(text + &to_json(&Last::of(stats))? + "\n")
}

/// The rules as a table.
fn table(stats: &RuleStats, exact: &[ExactLine]) -> String {
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
        let conditions: Vec<String> = rule.conditions.iter().map(ToString::to_string).collect();
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

/// The rules with the most hits, for the end of a capture.
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

/// Text below the table.
fn summary(stats: &RuleStats) -> String {
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

/// A named set as a line.
pub fn of_set(set: &SetLine) -> String {
    let (what, plural) = if set.of == "flow" { ("flow", "s") } else { ("address", "es") };
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
        "set {}: {} {what}{}, {} KiB in the kernel{wrong}",
        printable(&set.name),
        amount(set.entries),
        if set.entries == 1 { "" } else { plural },
        amount(set.bytes.div_ceil(1024)),
    )
}

/// The patterns of a name as a line.
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

/// A plug-in as a line, with a second line if it was disabled.
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

/// Time since the last hit.
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

/// Runs `stats`.
///
/// # Errors
/// The error of the capture.
pub fn stats(which: &Which) -> Result<()> {
    let stats = connect(which)?.stats()?;
    if which.json {
        return out::print(to_json(&stats)? + "\n");
    }
    let hits = stats.rules.iter().map(|line| line.hits).fold(Hits::default(), Hits::and);
    out::print(format!(
        "{}wildcard rules were hit {} times ({} bytes)\n",
        summary(&stats),
        amount(hits.packets),
        amount(hits.bytes)
    ))
}

/// A capture in `--json`.
#[derive(Serialize)]
struct InstanceLine {
    #[serde(flatten)]
    status: control::Status,
    here: bool,
    socket: std::path::PathBuf,
}

/// Runs `instances`.
///
/// # Errors
/// If the captures cannot be listed.
pub fn instances(json: bool) -> Result<()> {
    #[derive(Serialize)]
    struct Last {
        r#final: bool,
        instances: usize,
    }
    let all = control::instances(Purpose::Rules)?;
    if json {
        let last = Last { r#final: true, instances: all.len() };
        let mut text = String::new();
        for instance in all {
            let line = InstanceLine { status: instance.status, here: instance.here, socket: instance.path };
            text += &(to_json(&line)? + "\n");
        }
        return out::print(text + &to_json(&last)? + "\n");
    }
    if all.is_empty() {
        return out::print("no capture is running whose rules you can change\n");
    }
    let mut table = Table::new(["CAPTURE", "engine", "devices", "network namespace"]).words_from(1);
    for instance in all {
        let status = &instance.status;
        table.row([
            format!("{} {}", printable(&status.command), status.pid),
            status.engine.clone(),
            printable(&status.devices.join(",")).into_owned(),
            if instance.here { "this one".into() } else { format!("another ({})", status.namespace) },
        ]);
    }
    out::print(table.to_string())
}
