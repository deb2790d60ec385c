//! Describes a configuration in words.

use std::fmt::Write as _;

use wirelane_bpf::sketch::Distinct;

use super::{
    Action, ActionKind, Alarm, Analysis, Config, Field, Location, Measurement, Recording, Schedule, Switch,
    Threshold, When,
};
use crate::cell::Shape;

const SECOND: u64 = 1_000_000_000;
/// Memory of two halves of 65,536 names with their conversations, in MiB.
const NAMES_MIB: usize = 11;

fn time(ns: u64) -> String {
    humantime::format_duration(std::time::Duration::from_nanos(ns)).to_string()
}

/// Text of several lines: the measurements, their errors and memory, and the actions on alarms.
pub fn describe(config: &Config) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(text, "intervals of {}, by the time of packets (UTC)", time(config.interval_ns));
    let capture = &config.capture;
    let from = if capture.devices.is_empty() { capture.read.as_slice() } else { capture.devices.as_slice() };
    if !from.is_empty() {
        // Names can contain any characters, and are written to a terminal.
        let names: Vec<String> = from.iter().map(|name| name.escape_debug().to_string()).collect();
        let _ = writeln!(text, "packets of {}, unless the command line names others", names.join(", "));
    }
    if let Some(filter) = &capture.filter {
        let _ = writeln!(text, "filter: {}", filter.escape_debug());
    }
    for rule in &config.rules.rules {
        let conditions = rule.asks();
        let all = if conditions.is_empty() { "all packets".to_owned() } else { conditions.join(" and ") };
        let _ = writeln!(text, "rule {}: {all}", rule.name.as_deref().unwrap_or_default());
    }
    for plugin in &config.plugins {
        let _ = writeln!(text, "plug-in {}: {}", plugin.name, plugin.file.escape_debug());
    }
    for measurement in &config.measurements {
        text += &measured(config, measurement);
    }
    let whole = config.whole().unwrap_or_default();
    if !whole.rules.is_empty() {
        let names: Vec<&str> = whole.rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
        let _ = writeln!(
            text,
            "beside the sums of the kernel, packets of these rules are delivered: {}",
            names.join(", ")
        );
    }
    for alarm in &config.alarms {
        text += &alarmed(config, alarm);
    }
    for action in &config.actions {
        let _ = writeln!(text, "action {}: {}", action.name, done(config, action));
    }
    for schedule in &config.schedules {
        let when = when(schedule.when);
        let what = kind(config, schedule);
        let _ = writeln!(text, "schedule {}: {when} {what}", schedule.name);
    }
    text
}

fn measured(config: &Config, of: &Measurement) -> String {
    if let Some(plugin) = of.plugin {
        let counters = if of.counters.is_empty() { "all of them".into() } else { of.counters.join(", ") };
        let name = &config.plugins[plugin].name;
        let off = if of.active { "" } else { "; not active at first" };
        return format!("measurement {}: counters of plug-in {name}: {counters}{off}\n", of.name);
    }
    let packets = match of.rule.and_then(|rule| config.rules.rules[rule].name.as_deref()) {
        Some(rule) => format!("packets of rule {rule}"),
        None => "all packets".to_owned(),
    };
    let by = if of.key.is_empty() {
        String::new()
    } else {
        let fields: Vec<&str> = of.key.iter().map(|field| field.name()).collect();
        format!(" by {} (up to {} keys a worker, the rest in 'other')", fields.join(", "), of.keys)
    };
    let values: Vec<&str> = of.values.iter().map(|value| value.name()).collect();
    let mut text = format!("measurement {}: {packets}{by}: {}\n", of.name, values.join(", "));
    let auto = if of.analysis == Analysis::Auto { "auto: " } else { "" };
    let where_from = match config.place(of) {
        Location::Kernel => format!("{auto}in the kernel"),
        Location::Workers(Some(why)) if of.analysis == Analysis::Auto => {
            format!("{auto}in the workers, as {why}")
        }
        Location::Workers(_) => format!("{auto}in the workers"),
    };
    let bytes = Shape::new(of, config.interval_ns).most_bytes(of.keys);
    let _ = write!(text, "  analysis {where_from}; up to {} KiB a worker", bytes.div_ceil(1024));
    if of.values.iter().any(|value| value.distinct().is_some()) {
        let percent = 100.0 * Distinct::error(of.precision);
        let _ = write!(text, "; distinct values have a standard error of {percent:.2} %");
    }
    if of.values.iter().any(|value| value.top().is_some()) {
        let _ = write!(text, "; each of the top keys is shown with what may be too much");
    }
    if of.key.contains(&Field::Application) {
        let _ = write!(text, "; the names of conversations take up to {NAMES_MIB} MiB more in each");
    }
    text + if of.active { "\n" } else { "; not active at first\n" }
}

/// Times of a schedule in words.
pub(crate) fn when(times: When) -> String {
    match times {
        When::Every(ns) => format!("every {}", time(ns)),
        When::At { second, days } => {
            let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"].into_iter().enumerate();
            let names: Vec<&str> =
                names.filter(|(bit, _)| days & 1 << bit != 0).map(|(_, name)| name).collect();
            let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
            format!("at {hour:02}:{minute:02}:{second:02} UTC on {}", names.join(", "))
        }
    }
}

/// Changes that a schedule makes, in words.
pub(crate) fn kind(config: &Config, schedule: &Schedule) -> String {
    let mut what = switched(config, &schedule.switch);
    if schedule.flush {
        what.insert(0, "shows totals and begins them anew".into());
    }
    what.join(", ")
}

/// Conditions that raise and clear an alarm, in words.
pub(crate) fn threshold(alarm: &Alarm) -> String {
    match alarm.threshold {
        Threshold::Above(above, clear) => format!("above {above}, cleared at {clear} or below"),
        Threshold::Below(below, clear) => format!("below {below}, cleared at {clear} or above"),
        Threshold::Rises(percent, least) => {
            format!("{percent} % over the mean of {} intervals before, and at least {least}", alarm.over)
        }
        Threshold::Falls(percent, least) => {
            format!(
                "{percent} % under the mean of {} intervals before, if that was at least {least}",
                alarm.over
            )
        }
    }
}

fn alarmed(config: &Config, alarm: &Alarm) -> String {
    let when = threshold(alarm);
    let actions: Vec<&str> = alarm.actions.iter().map(|place| config.actions[*place].name.as_str()).collect();
    let actions = if actions.is_empty() { "nothing else is done".to_owned() } else { actions.join(", ") };
    let measurement = &config.measurements[alarm.measurement].name;
    format!(
        "alarm {}: {} of {measurement} {when}; raised after {}, cleared after {} intervals in a row; {actions}{}\n",
        alarm.name,
        alarm.value_name(),
        alarm.raise_after,
        alarm.clear_after,
        if alarm.active { "" } else { "; not active at first" }
    )
}

fn done(config: &Config, action: &Action) -> String {
    let what = match &action.kind {
        ActionKind::Log => "a line on standard error".to_owned(),
        ActionKind::Run { words, timeout_ns } => {
            let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            format!("runs {}, for {} at most", words.join(" "), time((*timeout_ns).max(SECOND / 1000)))
        }
        ActionKind::Switch(switch) => switched(config, switch).join(", "),
        ActionKind::Record(recording) => recorded(config, recording),
        ActionKind::Export(target) => format!("is exported to {}", target.name().escape_debug()),
    };
    let on = match (action.on_raise, action.on_clear) {
        (true, true) => "raised or cleared",
        (true, false) => "raised",
        _ => "cleared",
    };
    format!("{what}, when an alarm is {on}")
}

fn recorded(config: &Config, of: &Recording) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let rule = of.rule.and_then(|rule| config.rules.rules[rule].name.as_deref());
    let packets = rule.map_or_else(
        || "the packets of its measurement".to_owned(),
        |rule| format!("packets of rule {rule}"),
    );
    format!(
        "records {packets} from {} before to {} after it in {}{}, up to {} each, {} at once and {} in all, and none within {} \
         of the one before (of the same alarm); of what was before as much as {} a worker hold",
        time(of.before_ns),
        time(of.after_ns),
        of.folder.escape_debug(),
        if of.digest { ", with a SHA-256 digest" } else { "" },
        mib(of.most),
        of.at_once,
        of.files,
        time(of.cool_down_ns),
        mib(of.buffer as u64)
    )
}

fn switched(config: &Config, switch: &Switch) -> Vec<String> {
    let measurement = |place: &usize| config.measurements[*place].name.as_str();
    let alarm = |place: &usize| config.alarms[*place].name.as_str();
    let rule = |place: &usize| config.rules.rules[*place].name.as_deref().unwrap_or_default();
    let on: Vec<&str> = switch
        .measurements_on
        .iter()
        .map(measurement)
        .chain(switch.alarms_on.iter().map(alarm))
        .chain(switch.rules_on.iter().map(rule))
        .collect();
    let off: Vec<&str> = switch
        .measurements_off
        .iter()
        .map(measurement)
        .chain(switch.alarms_off.iter().map(alarm))
        .chain(switch.rules_off.iter().map(rule))
        .collect();
    let named =
        |verb: &str, names: Vec<&str>| (!names.is_empty()).then(|| format!("{verb} {}", names.join(", ")));
    let retimed = switch.retimed.iter();
    let retimed = retimed.map(|(place, times)| format!("{} {}", config.schedules[*place].name, when(*times)));
    let retimed: Vec<String> = retimed.collect();
    let times = (!retimed.is_empty()).then(|| format!("has from then on {}", retimed.join(", ")));
    [named("activates", on), named("deactivates", off), times].into_iter().flatten().collect()
}
