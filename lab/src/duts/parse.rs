//! Text of an adapter, and its conversion.

use std::collections::BTreeMap;
use std::time::Duration;

use regex::Regex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use wirelane_probe::placed::At;

use super::counts::Extractors;
use super::files;
use super::{Adapter, PLACEHOLDERS, Processes, Ready, SIGNALS, Wanted, placeholders};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Raw {
    pub(super) like: Option<At<String>>,
    title: Option<String>,
    program: Option<At<String>>,
    package: Option<String>,
    command: Option<At<Vec<At<String>>>>,
    #[serde(default)]
    more: Vec<At<String>>,
    ready: Option<Ready>,
    #[serde(default, deserialize_with = "quiet")]
    quiet: Option<Duration>,
    stop: Option<At<String>>,
    ask: Option<Vec<At<String>>>,
    exact: Option<bool>,
    copies: Option<bool>,
    processes: Option<Processes>,
    stands_for: Option<u64>,
    prepare: Option<Vec<At<String>>>,
    flush: Option<String>,
    also_lost: Option<String>,
    figures: Option<At<BTreeMap<String, String>>>,
    wanted: Option<Wanted>,
    files: Option<At<BTreeMap<String, files::Raw>>>,
    counts: Option<At<Extractors>>,
}

/// `"packet-socket"`, or a table.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawReady {
    Word(String),
    Table(BTreeMap<String, String>),
}

impl Adapter {
    /// An adapter from its tables and `base`; mistakes are added to `found`.
    pub(super) fn checked(
        name: &str,
        text: &str,
        raw: Raw,
        base: Option<Adapter>,
        found: &mut Vec<(usize, String)>,
    ) -> Adapter {
        let base = base.unwrap_or_else(|| {
            let lacks = [
                ("program", raw.program.is_none()),
                ("command", raw.command.is_none()),
                ("ready", raw.ready.is_none()),
                ("quiet", raw.quiet.is_none()),
                ("counts", raw.counts.is_none()),
            ];
            // A wrong name for a base has been reported already.
            for (key, _) in lacks.iter().filter(|(_, lacks)| *lacks && raw.like.is_none()) {
                found.push((0, format!("missing field `{key}`")));
            }
            Adapter { stop: "TERM".to_owned(), ..Adapter::default() }
        });
        if let Some(command) = raw.command.as_ref().filter(|command| command.value.is_empty()) {
            found.push((command.start, "the command has no words".into()));
        }
        let command = raw.command.as_ref().map_or(&[][..], |command| &command.value[..]);
        let others = [&raw.ask, &raw.prepare].into_iter().flatten().flatten();
        for word in command.iter().chain(&raw.more).chain(others) {
            let known = PLACEHOLDERS.map(|(name, _)| name);
            for asked in placeholders(&word.value).into_iter().filter(|asked| !known.contains(asked)) {
                found.push((word.start, format!("there is no {{{asked}}}; there are {}", known.join(", "))));
            }
        }
        if let Some(stop) = raw.stop.as_ref().filter(|stop| !SIGNALS.contains(&stop.value.as_str())) {
            found.push((stop.start, format!("give one of the signals {}", SIGNALS.join(", "))));
        }
        let figures = raw.figures.map(|at| {
            let is_pointer = |pointer: &String| pointer.starts_with('/');
            if !at.value.values().all(is_pointer) {
                found.push((at.start, "a figure is a JSON pointer, as in \"/flows\"".into()));
            }
            at.value
        });
        let counts = raw.counts.map(|counts| {
            if !counts.value.are_complete() {
                let reason = "give 'captured', or 'seen' and 'lost', of which it is the difference";
                found.push((counts.start, reason.into()));
            }
            counts.value
        });
        let files = raw.files.map(|raw| files::files(raw, found));
        let words =
            |list: Vec<At<String>>| -> Vec<String> { list.into_iter().map(|word| word.value).collect() };
        let mut command = raw.command.map_or(base.command, |command| words(command.value));
        command.extend(words(raw.more));
        Adapter {
            title: raw.title.unwrap_or_else(|| name.to_owned()),
            name: name.to_owned(),
            program: raw.program.map_or(base.program, |program| program.value),
            package: raw.package.or(base.package),
            command,
            ready: raw.ready.unwrap_or(base.ready),
            quiet: raw.quiet.unwrap_or(base.quiet),
            stop: raw.stop.map_or(base.stop, |stop| stop.value),
            ask: raw.ask.map_or(base.ask, words),
            exact: raw.exact.unwrap_or(base.exact),
            copies: raw.copies.unwrap_or(base.copies),
            processes: raw.processes.or(base.processes),
            stands_for: raw.stands_for.unwrap_or(base.stands_for).max(1),
            prepare: raw.prepare.map_or(base.prepare, words),
            flush: raw.flush.unwrap_or(base.flush),
            also_lost: raw.also_lost.unwrap_or(base.also_lost),
            figures: figures.unwrap_or(base.figures),
            wanted: raw.wanted.or(base.wanted),
            files: files.unwrap_or(base.files),
            text: text.to_owned(),
            counts: counts.unwrap_or(base.counts),
        }
    }
}

fn quiet<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let time = humantime::parse_duration(&String::deserialize(from)?).ok();
    let time = time.filter(|time| *time <= Duration::from_secs(60));
    time.map(Some).ok_or_else(|| D::Error::custom("give a length of time up to \"60s\", as in \"300ms\""))
}

impl TryFrom<RawReady> for Ready {
    type Error = String;

    fn try_from(raw: RawReady) -> Result<Ready, String> {
        if let RawReady::Word(word) = &raw
            && word == "packet-socket"
        {
            return Ok(Ready::PacketSocket);
        }
        if let RawReady::Table(table) = &raw {
            match (table.len(), table.get("regex"), table.get("json")) {
                (1, Some(regex), None) => {
                    return Regex::new(regex).map(Ready::Says).map_err(|error| error.to_string());
                }
                (1, None, Some(pointer)) if pointer.starts_with('/') => {
                    return Ok(Ready::Json(pointer.clone()));
                }
                _ => {}
            }
        }
        Err("give \"packet-socket\", { regex = \"...\" } or { json = \"/pointer\" }".into())
    }
}
