//! Settings that change while a probe runs: `alarm.flood.above=5000` is inserted into the text of the active
//! configuration, which is then parsed and validated like the file.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Config;

/// Type of a key's value, which decides how the value is written after '='.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Put between quotes.
    Text,
    Number,
    Truth,
    /// Words with commas.
    Words,
}

/// Keys that can be set, each with its kind and group.
type Keys = &'static [(&'static str, Kind, u8)];

/// Keys that can be set, for each kind of table. Keys with the same group number replace each other: setting one
/// removes another that is present.
const KEYS: [(&str, Keys); 3] = [
    ("measurement", &[("active", Kind::Truth, 0)]),
    (
        "alarm",
        &[
            ("active", Kind::Truth, 0),
            ("above", Kind::Number, 1),
            ("below", Kind::Number, 1),
            ("rises", Kind::Number, 1),
            ("falls", Kind::Number, 1),
            ("clear", Kind::Number, 0),
            ("least", Kind::Number, 0),
            ("over", Kind::Number, 0),
            ("raise-after", Kind::Number, 0),
            ("clear-after", Kind::Number, 0),
        ],
    ),
    ("schedule", &[("every", Kind::Text, 1), ("at", Kind::Text, 1), ("days", Kind::Words, 0)]),
];
/// Accepted forms of a setting, for messages.
const FORMS: &str =
    "expected interval=TIME, measurement.NAME.active=, alarm.NAME.KEY=, schedule.NAME.KEY= and flush";

/// Most bytes of a word.
const LONGEST_WORD: usize = 4096;

/// One assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Assignment {
    /// Text as the user wrote it.
    word: String,
    /// Kind and name of the table; `None`: the top level of the configuration.
    table: Option<(&'static str, String)>,
    key: &'static str,
    /// Keys that this key replaces.
    others: Vec<&'static str>,
    /// Value as TOML; empty: the key is removed.
    value: String,
}

/// Changes that are made together, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    assignments: Vec<Assignment>,
    flush: bool,
}

/// Result of applying changes to a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// Changed text.
    pub text: String,
    /// Configuration that was read from the changed text.
    pub config: Config,
    /// One bit per measurement that is switched on or off, by index.
    pub(crate) measurements: u64,
    /// Indices of alarms that are switched on or off.
    pub(crate) alarms: Vec<usize>,
    /// Indices of schedules whose times are set.
    pub(crate) schedules: Vec<usize>,
    /// Whether totals are shown and reset.
    pub(crate) flush: bool,
}

/// Replacement of a range of the text.
struct Edit<'a> {
    range: Range<usize>,
    text: String,
    of: &'a Assignment,
}

impl Changes {
    /// Reads assignments and `flush`, a word each.
    ///
    /// # Errors
    /// Reason why the first invalid word cannot be used, and the accepted forms.
    pub fn parse(words: &[String]) -> Result<Changes, String> {
        let mut changes = Changes::default();
        if words.is_empty() {
            return Err(format!("nothing to set; {FORMS}"));
        }
        for word in words {
            if word.len() > LONGEST_WORD {
                return Err(format!("a change has {LONGEST_WORD} bytes at most"));
            }
            if word == "flush" {
                changes.flush = true;
                continue;
            }
            let one = Assignment::parse(word).map_err(|why| format!("{}: {why}", word.escape_debug()))?;
            let same = |other: &Assignment| other.table == one.table && other.key == one.key;
            if changes.assignments.iter().any(same) {
                return Err(format!("{}: this is set twice", word.escape_debug()));
            }
            changes.assignments.push(one);
        }
        Ok(changes)
    }

    /// Applies the changes to the text of an active configuration; `path` is for messages.
    ///
    /// # Errors
    /// All mistakes of the changed text, in the same words as for a file, each with the assignment that caused it or
    /// with its position in the file. Nothing is changed then.
    pub fn apply(&self, text: &str, path: &Path) -> Result<Changed, String> {
        let mut edits = self.edits(text)?;
        edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
        if let Some(two) = edits.windows(2).find(|two| two[0].range.end > two[1].range.start) {
            let (one, other) = (&two[0].of.word, &two[1].of.word);
            return Err(format!(
                "{} and {} are about the same: give one",
                one.escape_debug(),
                other.escape_debug()
            ));
        }
        let (mut changed, mut from) = (String::new(), 0);
        let mut put: Vec<(Range<usize>, isize, &Assignment)> = Vec::new();
        for edit in &edits {
            changed += &text[from..edit.range.start];
            let start = changed.len();
            changed += &edit.text;
            let lines = |text: &str| text.matches('\n').count() as isize;
            put.push((start..changed.len(), lines(&edit.text) - lines(&text[edit.range.clone()]), edit.of));
            from = edit.range.end;
        }
        changed += &text[from..];
        let config = Config::parse(&changed, path).map_err(|mistakes| {
            let told = mistakes.0.into_iter().map(|mut mistake| {
                let at = offset(&changed, mistake.line, mistake.column);
                if let Some((.., of)) = put.iter().find(|(range, ..)| range.contains(&at)) {
                    return format!("{}: {}", of.word.escape_debug(), mistake.reason);
                }
                // Line numbers of the file, not of the changed text.
                let more: isize =
                    put.iter().filter(|(range, ..)| range.start <= at).map(|(_, more, _)| more).sum();
                mistake.line = mistake.line.saturating_add_signed(-more);
                mistake.to_string()
            });
            told.collect::<Vec<_>>().join("\n")
        })?;
        let active = |kind: &str| {
            let of_kind = self.assignments.iter().filter(move |one| one.key == "active");
            let kind = kind.to_owned();
            of_kind.filter_map(move |one| {
                one.table.as_ref().filter(|table| table.0 == kind).map(|table| &table.1)
            })
        };
        let measured = active("measurement")
            .filter_map(|name| config.measurements.iter().position(|one| one.name == *name));
        let measurements = measured.fold(0, |bits, place| bits | 1 << place);
        let alarmed =
            active("alarm").filter_map(|name| config.alarms.iter().position(|one| one.name == *name));
        let alarms = alarmed.collect();
        let of_schedules = self.assignments.iter().filter_map(|one| one.table.as_ref());
        let of_schedules = of_schedules.filter(|(kind, _)| *kind == "schedule");
        let timed =
            of_schedules.filter_map(|(_, name)| config.schedules.iter().position(|one| one.name == *name));
        let schedules = timed.collect();
        Ok(Changed { text: changed, config, measurements, alarms, schedules, flush: self.flush })
    }

    fn edits(&self, text: &str) -> Result<Vec<Edit<'_>>, String> {
        let whole = DeTable::parse(text).map_err(|error| error.message().to_owned())?;
        let whole = whole.get_ref();
        let edit = |of| edit(text, whole, of).transpose();
        self.assignments.iter().filter_map(edit).collect()
    }
}

impl Assignment {
    fn parse(word: &str) -> Result<Assignment, String> {
        let (place, value) = word.split_once('=').ok_or_else(|| format!("not a change; {FORMS}"))?;
        if place == "interval" {
            let value = written(Kind::Text, value)?;
            let others = Vec::new();
            return Ok(Assignment { word: word.to_owned(), table: None, key: "interval", others, value });
        }
        // Names may have dots in them.
        let parts = place.split_once('.').and_then(|(kind, rest)| Some((kind, rest.rsplit_once('.')?)));
        let (kind, (name, key)) = parts.ok_or_else(|| format!("unknown name; {FORMS}"))?;
        let of = KEYS.iter().find(|(known, _)| *known == kind);
        let (kind, keys) = of.ok_or_else(|| format!("unknown kind; {FORMS}"))?;
        let known = keys.iter().find(|(known, ..)| *known == key);
        let (key, is, group) = known.ok_or_else(|| {
            let names: Vec<&str> = keys.iter().map(|(name, ..)| *name).collect();
            format!("this cannot be set while it runs; of a {kind} can be: {}", names.join(", "))
        })?;
        let others = keys.iter().filter(|(other, _, its)| *its != 0 && its == group && other != key);
        Ok(Assignment {
            word: word.to_owned(),
            table: Some((kind, name.to_owned())),
            key,
            others: others.map(|(other, ..)| *other).collect(),
            value: written(*is, value)?,
        })
    }
}

/// A value as TOML.
fn written(kind: Kind, value: &str) -> Result<String, String> {
    // A JSON string is a valid TOML string, too.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE_".contains(&byte));
    match kind {
        _ if value.is_empty() => Ok(String::new()),
        Kind::Text => Ok(quoted(value)),
        Kind::Words => Ok(format!("[{}]", value.split(',').map(quoted).collect::<Vec<_>>().join(", "))),
        Kind::Truth if value == "true" || value == "false" => Ok(value.to_owned()),
        Kind::Truth => Err("give true or false".into()),
        Kind::Number if digits(value) => Ok(value.to_owned()),
        Kind::Number => Err("give a number".into()),
    }
}

/// Byte ranges of a key and its value in the text.
fn placed(table: &DeTable<'_>, name: &str) -> Option<(Range<usize>, Range<usize>)> {
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
    Some((key.span(), value.span()))
}

/// Edit of the text for an assignment; `None`: no change, as the key to remove is not present.
fn edit<'a>(text: &str, whole: &DeTable<'_>, of: &'a Assignment) -> Result<Option<Edit<'a>>, String> {
    let Assignment { word, table, key, others, value } = of;
    let word = word.escape_debug();
    let (table, behind, in_line) = match table {
        None => (whole, None, false),
        Some((kind, name)) => {
            let (named, is_in_line) =
                find(text, whole, kind, name).map_err(|why| format!("{word}: {why}"))?;
            (named, placed(named, "name"), is_in_line)
        }
    };
    let made = |range, text| Ok(Some(Edit { range, text, of }));
    let there = placed(table, key);
    if value.is_empty() {
        return match there {
            None => Ok(None),
            Some(_) if in_line => {
                Err(format!("{word}: this stands within braces, and cannot be taken out of them"))
            }
            Some((key, value)) => made(whole_line(text, key.start..value.end), String::new()),
        };
    }
    if let Some((_, at)) = there {
        return made(at, value.clone());
    }
    if let Some((key_at, value_at)) = others.iter().find_map(|other| placed(table, other)) {
        return made(key_at.start..value_at.end, format!("{key} = {value}"));
    }
    match behind {
        None => {
            // A byte order mark stays at the start of the text.
            let start = if text.starts_with('\u{feff}') { 3 } else { 0 };
            made(start..start, format!("{key} = {value}\n"))
        }
        Some((_, name)) if in_line => made(name.end..name.end, format!(", {key} = {value}")),
        Some((name, _)) => made(name.start..name.start, format!("{key} = {value}\n")),
    }
}

/// Range of a part of the text, extended to the whole line if nothing else is on it, so that removing a key leaves no
/// empty line.
fn whole_line(text: &str, part: Range<usize>) -> Range<usize> {
    let start = text[..part.start].rfind('\n').map_or(0, |end| end + 1);
    let end = text[part.end..].find('\n').map_or(text.len(), |end| part.end + end + 1);
    let is_blank = |text: &str| text.trim().is_empty();
    if is_blank(&text[start..part.start]) && is_blank(&text[part.end..end]) { start..end } else { part }
}

/// Table of a kind that has this name, and whether it is an inline table.
fn find<'v, 't>(
    text: &str,
    whole: &'v DeTable<'t>,
    kind: &str,
    name: &str,
) -> Result<(&'v DeTable<'t>, bool), String> {
    let all = whole.iter().find(|(key, _)| key.get_ref() == kind).map(|(_, value)| value.get_ref());
    let all: Vec<&Spanned<DeValue<'t>>> = match all {
        Some(DeValue::Array(all)) => all.iter().collect(),
        _ => Vec::new(),
    };
    let mut known = Vec::new();
    for one in all {
        let DeValue::Table(table) = one.get_ref() else { continue };
        let its = table.iter().find(|(key, _)| key.get_ref() == "name").map(|(_, value)| value.get_ref());
        let Some(DeValue::String(its)) = its else { continue };
        if its == name {
            return Ok((table, text.as_bytes().get(one.span().start) == Some(&b'{')));
        }
        known.push(its.to_string());
    }
    let list = if known.is_empty() {
        "none is defined".to_owned()
    } else {
        format!("defined: {}", known.join(", "))
    };
    Err(format!("unknown {kind}; {list}"))
}

/// Byte offset of a line and column.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let mut lines = text.split_inclusive('\n');
    let before: usize = lines.by_ref().take(line.saturating_sub(1)).map(str::len).sum();
    let within = lines.next().unwrap_or_default();
    before + within.chars().take(column.saturating_sub(1)).map(char::len_utf8).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::super::{Threshold, When};
    use super::*;

    const TEXT: &str = "\
# what is measured
[[measurement]]
name = \"all\"   # packets
values = [\"pps\"]

[[alarm]]
name = \"a.b\"
measurement = \"all\"
value = \"pps\"
above = 1000
clear = 500

[[schedule]]
name = \"night\"
at = \"22:00\"
days = [\"mon\"]
flush = true
";

    fn apply(text: &str, words: &[&str]) -> Result<Changed, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Changes::parse(&words)?.apply(text, Path::new("p.toml"))
    }

    #[test]
    fn what_is_set_is_in_the_text_and_the_rest_stays() {
        let words = ["interval=5s", "measurement.all.active=false", "alarm.a.b.above=2e3", "flush"];
        let changed = apply(TEXT, &words).unwrap();
        let config = &changed.config;
        assert_eq!(config.interval_ns, 5_000_000_000);
        assert!(!config.measurements[0].active && config.alarms[0].active);
        assert_eq!(config.alarms[0].threshold, Threshold::Above(2000.0, 500.0));
        assert_eq!((changed.measurements, &changed.alarms[..], changed.flush), (1, &[][..], true));
        let expected = format!("interval = \"5s\"\n{TEXT}")
            .replace("name = \"all\"", "active = false\nname = \"all\"")
            .replace("above = 1000", "above = 2e3");
        assert_eq!(changed.text, expected, "comments too");
        // A second set of changes, applied to the result of the first.
        let more =
            apply(&changed.text, &["interval=", "alarm.a.b.active=false", "alarm.a.b.clear="]).unwrap();
        assert_eq!(more.config.interval_ns, 1_000_000_000);
        assert_eq!(more.config.alarms[0].threshold, Threshold::Above(2000.0, 2000.0));
        assert!(!more.config.alarms[0].active && !more.config.measurements[0].active);
        assert_eq!((more.measurements, &more.alarms[..], more.flush), (0, &[0][..], false));
    }

    /// Found by the fuzz target `probe_set`: with intervals of 20 s, which have more than the most bins of 1 ms.
    #[test]
    fn another_interval_changes_no_measurement() {
        let text = format!("interval = \"20s\"\n{TEXT}");
        let before = Config::parse(&text, Path::new("p.toml")).unwrap();
        for word in ["interval=", "interval=1s", "interval=1h"] {
            let after = apply(&text, &[word, "flush"]).unwrap().config;
            assert_ne!(after.interval_ns, before.interval_ns);
            assert_eq!(
                (after.measurements, after.alarms),
                (before.measurements.clone(), before.alarms.clone())
            );
        }
    }

    #[test]
    fn what_comes_and_goes_leaves_nothing_behind() {
        let mut text = TEXT.to_owned();
        for _ in 0..10 {
            let words =
                ["interval=2s", "alarm.a.b.clear=", "measurement.all.active=false", "schedule.night.days="];
            text = apply(&text, &words).unwrap().text;
            assert!(
                !text.contains("clear") && text.starts_with("interval = \"2s\"\n# what is measured\n"),
                "{text}"
            );
            let words =
                ["interval=", "alarm.a.b.clear=500", "measurement.all.active=", "schedule.night.days=mon"];
            text = apply(&text, &words).unwrap().text;
        }
        let lines = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&text), lines(TEXT), "{text}");
    }

    #[test]
    fn what_excludes_another_takes_its_place() {
        let changed = apply(TEXT, &["schedule.night.every=10m", "schedule.night.days="]).unwrap();
        assert_eq!(changed.config.schedules[0].when, When::Every(600_000_000_000));
        let back = apply(&changed.text, &["schedule.night.at=06:30", "schedule.night.days=sat,sun"]).unwrap();
        assert_eq!(back.config.schedules[0].when, When::At { second: 23_400, days: 0x60 });
        let changed = apply(TEXT, &["alarm.a.b.rises=50", "alarm.a.b.clear=", "alarm.a.b.least=7"]).unwrap();
        assert_eq!(changed.config.alarms[0].threshold, Threshold::Rises(50.0, 7.0));
    }

    #[test]
    fn tables_within_braces_are_changed_too() {
        let text = "measurement = [{name = \"m\", values = [\"pps\"]}]\n\
                    alarm = [{name = 'x', measurement = \"m\", value = \"pps\", above = 3}]\n";
        let changed =
            apply(text, &["alarm.x.clear=2", "alarm.x.above=4", "measurement.m.active=false"]).unwrap();
        assert_eq!(changed.config.alarms[0].threshold, Threshold::Above(4.0, 2.0));
        assert!(!changed.config.measurements[0].active);
        let refused = apply(text, &["alarm.x.above="]).unwrap_err();
        assert!(refused.contains("within braces"), "{refused}");
    }

    #[test]
    fn mistakes_are_told_in_the_words_of_the_file() {
        for (words, what) in [
            (&[][..], "nothing to set; expected interval=TIME"),
            (&["faster"], "faster: not a change; expected interval=TIME"),
            (&["speed=1"], "speed=1: unknown name"),
            (&["rule.x.name=1"], "rule.x.name=1: unknown kind"),
            (&["measurement.all.keys=5"], "of a measurement can be: active"),
            (&["measurement.al.active=true"], "unknown measurement; defined: all"),
            (&["measurement.all.active=yes"], "give true or false"),
            (&["alarm.a.b.above=many"], "alarm.a.b.above=many: give a number"),
            (&["alarm.a.b.above=1.2.3"], "alarm.a.b.above=1.2.3: "),
            (&["alarm.a.b.above=-1"], "alarm.a.b.above=-1: give a number that is not negative"),
            (&["alarm.a.b.above=1", "alarm.a.b.above=2"], "alarm.a.b.above=2: this is set twice"),
            (&["alarm.a.b.above=1", "alarm.a.b.rises=2"], "are about the same: give one"),
            // The mistake is in a line that was not set: its position in the file is reported.
            (&["interval=2s", "alarm.a.b.above=400"], "p.toml:11:9: it would be cleared when it is raised"),
            (&["alarm.a.b.clear=1500"], "alarm.a.b.clear=1500: it would be cleared when it is raised"),
            (&["interval=5"], "interval=5: write a length of time as text"),
            (&["interval=1ms"], "interval=1ms: an interval is from \"10ms\" to \"1day\""),
            (&["schedule.night.every=1m"], "p.toml:16:8: only valid with at"),
            (&["schedule.night.at=25:00"], "schedule.night.at=25:00: write a time of the day"),
            (&["schedule.night.days=someday"], "schedule.night.days=someday: unknown variant `someday`"),
            (&["schedule.night.at="], "p.toml:13:1: no time: expected every"),
            (&["schedule.day.at=10:00"], "unknown schedule; defined: night"),
            (&["interval=\n[[rule]]"], "interval=\\n[[rule]]: write a length of time"),
            (&[&"x".repeat(5000)], "a change has 4096 bytes at most"),
        ] {
            let refused = apply(TEXT, words).unwrap_err();
            assert!(refused.contains(what), "{words:?}: {refused}");
        }
        // One invalid assignment rejects all of them, and all mistakes are reported.
        let refused = apply(TEXT, &["interval=1ms", "alarm.a.b.clear=-1", "flush"]).unwrap_err();
        assert!(refused.contains("interval=1ms: ") && refused.contains("alarm.a.b.clear=-1: "), "{refused}");
    }
}
