//! Counters of a sensor, extracted from its output.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use wirelane_probe::placed::At;

/// Packet counts that the sensor reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Packets that reached it, including lost ones, if it reports this.
    pub seen: Option<u64>,
    /// Captured packets.
    pub captured: u64,
    /// Analysed packets.
    pub analysed: u64,
    /// Lost packets.
    pub lost: u64,
    /// Packets that it filtered out.
    pub aside: u64,
    /// Packets that it selected, if this is checked.
    pub wanted: Option<u64>,
    /// Other numbers, by name.
    pub figures: BTreeMap<String, f64>,
}

impl Counts {
    /// Adds the counts of another process of the same sensor, which has no figures of its own.
    pub fn add(&mut self, other: &Counts) {
        self.seen = self.seen.zip(other.seen).map(|(one, two)| one + two);
        self.wanted = self.wanted.zip(other.wanted).map(|(one, two)| one + two);
        self.captured += other.captured;
        self.analysed += other.analysed;
        self.lost += other.lost;
        self.aside += other.aside;
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Raw {
    seen: Option<At<RawExtractor>>,
    captured: Option<At<RawExtractor>>,
    analysed: Option<At<RawExtractor>>,
    lost: Option<At<RawExtractor>>,
    aside: Option<At<RawExtractor>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawExtractor {
    regex: Option<String>,
    json: Option<Vec<String>>,
}

/// Source of a counter.
#[derive(Clone, Debug)]
pub(super) enum Extractor {
    /// The number in the first group of the last match.
    Regex(Regex),
    /// Sum of the values at these pointers in the last line of JSON; a leading minus subtracts. The first must be
    /// present, absent others count as 0.
    Json(Vec<String>),
}

/// Sources of all counters.
#[derive(Clone, Debug, Default)]
pub(super) struct Extractors {
    seen: Option<Extractor>,
    captured: Option<Extractor>,
    analysed: Option<Extractor>,
    lost: Option<Extractor>,
    aside: Option<Extractor>,
}

/// Parses the sources of counters; mistakes are added to `found`.
pub(super) fn extractors(raw: &At<Raw>, found: &mut Vec<(usize, String)>) -> Extractors {
    let start = raw.start;
    let raw = &raw.value;
    if raw.captured.is_none() && (raw.seen.is_none() || raw.lost.is_none()) {
        found.push((start, "give 'captured', or 'seen' and 'lost', of which it is the difference".into()));
    }
    let mut one = |raw: &Option<At<RawExtractor>>| {
        let at = raw.as_ref()?;
        match extractor(&at.value) {
            Ok(way) => Some(way),
            Err(reason) => {
                found.push((at.start, reason));
                None
            }
        }
    };
    Extractors {
        seen: one(&raw.seen),
        captured: one(&raw.captured),
        analysed: one(&raw.analysed),
        lost: one(&raw.lost),
        aside: one(&raw.aside),
    }
}

pub(super) fn extractor(raw: &RawExtractor) -> Result<Extractor, String> {
    match (&raw.regex, &raw.json) {
        (Some(regex), None) => {
            let regex = Regex::new(regex).map_err(|error| error.to_string())?;
            let groups = regex.captures_len() - 1;
            if groups == 1 {
                Ok(Extractor::Regex(regex))
            } else {
                Err(format!("the number is one group in brackets, and there are {groups}"))
            }
        }
        (None, Some(pointers))
            if !pointers.is_empty()
                && pointers.iter().all(|one| one.trim_start_matches('-').starts_with('/')) =>
        {
            Ok(Extractor::Json(pointers.clone()))
        }
        _ => Err("give { regex = \"...\" } or { json = [\"/pointer\"] }".into()),
    }
}

impl Extractor {
    pub(super) fn read(&self, name: &str, said: &str, json: Option<&Value>) -> Result<u64> {
        match self {
            Extractor::Regex(regex) => {
                let last = regex.captures_iter(said).last();
                let digits = last.as_ref().and_then(|groups| groups.get(1)).map(|group| group.as_str());
                let digits = digits.with_context(|| format!("no {name}: nothing matches {regex}"))?;
                digits.parse().with_context(|| format!("no {name}: {digits} is no number"))
            }
            Extractor::Json(pointers) => {
                let json = json.with_context(|| format!("no {name}: no line is JSON"))?;
                let mut sum = 0_u64;
                for (at, pointer) in pointers.iter().enumerate() {
                    let negative = pointer.strip_prefix('-');
                    match json.pointer(negative.unwrap_or(pointer)) {
                        Some(value) => {
                            let number =
                                value.as_u64().with_context(|| format!("no {name}: {pointer} is {value}"))?;
                            let next = if negative.is_some() {
                                sum.checked_sub(number)
                            } else {
                                sum.checked_add(number)
                            };
                            sum =
                                next.with_context(|| format!("no {name}: {pointer} is {number} of {sum}"))?;
                        }
                        None if at == 0 => bail!("no {name}: nothing at {pointer}"),
                        None => {}
                    }
                }
                Ok(sum)
            }
        }
    }
}

impl Extractors {
    pub(super) fn read(&self, said: &str) -> Result<Counts> {
        let json = last_json(said);
        let one = |name: &str, way: &Option<Extractor>| {
            way.as_ref().map(|way| way.read(name, said, json.as_ref())).transpose()
        };
        let seen = one("seen", &self.seen)?;
        let lost = one("lost", &self.lost)?.unwrap_or(0);
        let aside = one("aside", &self.aside)?.unwrap_or(0);
        let captured = match (one("captured", &self.captured)?, seen) {
            (Some(captured), _) => captured,
            (None, Some(seen)) => {
                ensure!(seen >= lost, "it has lost {lost} of {seen} packets that it has seen");
                seen - lost
            }
            (None, None) => bail!("nothing says what was captured"),
        };
        let analysed = one("analysed", &self.analysed)?.unwrap_or(captured);
        Ok(Counts { seen, captured, analysed, lost, aside, ..Counts::default() })
    }
}

/// The last line that is a JSON object.
pub(super) fn last_json(said: &str) -> Option<Value> {
    said.lines().rev().find_map(|line| serde_json::from_str(line).ok().filter(Value::is_object))
}
