//! Counters of a sensor, extracted from its output.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Packet counts that the sensor reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// `{ regex = "..." }` or `{ json = ["/pointer"] }`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    regex: Option<String>,
    json: Option<Vec<String>>,
}

/// Source of a counter.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Raw")]
pub(super) enum Extractor {
    /// The number in the first group of the last match.
    Regex(Regex),
    /// Sum of the values at these pointers in the last line of JSON; a leading minus subtracts. The first must be
    /// present, absent others count as 0.
    Json(Vec<String>),
}

/// Sources of all counters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Extractors {
    seen: Option<Extractor>,
    captured: Option<Extractor>,
    analysed: Option<Extractor>,
    lost: Option<Extractor>,
    aside: Option<Extractor>,
}

impl TryFrom<Raw> for Extractor {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Extractor, String> {
        let is_pointer = |one: &String| one.trim_start_matches('-').starts_with('/');
        match (raw.regex, raw.json) {
            (Some(regex), None) => {
                let regex = Regex::new(&regex).map_err(|error| error.to_string())?;
                match regex.captures_len() - 1 {
                    1 => Ok(Extractor::Regex(regex)),
                    groups => Err(format!("the number is one group in brackets, and there are {groups}")),
                }
            }
            (None, Some(pointers)) if !pointers.is_empty() && pointers.iter().all(is_pointer) => {
                Ok(Extractor::Json(pointers))
            }
            _ => Err("give { regex = \"...\" } or { json = [\"/pointer\"] }".into()),
        }
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
    /// Whether they tell how many packets were captured.
    pub(super) fn are_complete(&self) -> bool {
        self.captured.is_some() || self.seen.is_some() && self.lost.is_some()
    }

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
