//! Collections of shipped suites: published measurements, as far as one machine with a veth pair can repeat them, and
//! our own benchmarks.

use std::path::Path;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::duts::Duts;
use crate::suite::{Rate, Resources, Suite};

/// A collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collection {
    /// Published measurements.
    Reproductions,
    /// Our own benchmarks.
    Benchmarks,
}

/// Extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As published, within the limits of the machine.
    Full,
    /// In minutes: fewer steps and repetitions, shorter trials.
    Quick,
}

impl Collection {
    /// Names and texts of its suites, sorted by name.
    fn shipped(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Collection::Reproductions => include!(concat!(env!("OUT_DIR"), "/reproductions.rs")),
            Collection::Benchmarks => include!(concat!(env!("OUT_DIR"), "/benchmarks.rs")),
        }
    }

    /// Title for people.
    pub fn title(self) -> &'static str {
        match self {
            Collection::Reproductions => "Published measurements",
            Collection::Benchmarks => "Benchmarks",
        }
    }

    /// Names of the suites.
    pub fn names(self) -> Vec<&'static str> {
        self.shipped().iter().map(|(name, _)| *name).collect()
    }

    /// Text of a suite, and the suite reduced to this machine and form.
    pub fn suite(
        self,
        name: &str,
        form: Form,
        resources: &Resources,
        sensors: &Duts,
    ) -> Result<(&'static str, Suite)> {
        let Some((_, text)) = self.shipped().iter().find(|(of, _)| *of == name) else {
            bail!("there is no suite {name}; there are {}", self.names().join(", "));
        };
        let mut suite = Suite::parse(text, Path::new(name), sensors)?;
        fit(&mut suite, resources);
        if form == Form::Quick {
            quicken(&mut suite);
            if self == Collection::Benchmarks {
                limit(&mut suite);
            }
        }
        Ok((text, suite))
    }
}

/// Maximum number of workers, RX queues and entries of a benchmark in the quick form; only the first size is used.
const QUICK_MOST: usize = 2;
const QUICK_ENTRIES: u32 = 1000;

fn limit(suite: &mut Suite) {
    suite.workers.retain(|count| *count <= QUICK_MOST);
    suite.queues.retain(|count| *count as usize <= QUICK_MOST);
    suite.entries.retain(|count| *count <= QUICK_ENTRIES);
    suite.traffic.sizes.truncate(1);
    suite.tries = 1;
}

/// Limits core sets to those of the machine. A set as large as the machine includes the generator's core as the last
/// one; larger sets are left out.
fn fit(suite: &mut Suite, resources: &Resources) {
    let mut whole = resources.cores.clone();
    whole.sort_by_key(|core| suite.injector.contains(core));
    let set = |set: &Vec<usize>| {
        if set.iter().all(|core| resources.cores.contains(core)) {
            Some(set.clone())
        } else {
            (set.len() == whole.len()).then(|| whole.clone())
        }
    };
    let mut sets: Vec<Vec<usize>> = suite.cores.iter().filter_map(set).collect();
    sets.dedup();
    // If all sets are missing, `possible` reports it.
    if !sets.is_empty() {
        suite.cores = sets;
    }
}

/// Steps of a sweep in the quick form.
const QUICK_STEPS: usize = 6;

fn quicken(suite: &mut Suite) {
    suite.duration = suite.duration.min(std::time::Duration::from_millis(700));
    suite.repetitions = 1;
    let paced = suite.rates.iter().filter(|rate| matches!(rate, Rate::Pps(_))).count();
    if paced > QUICK_STEPS {
        let mut at = 0;
        let mut kept = 0;
        suite.rates.retain(|rate| {
            if !matches!(rate, Rate::Pps(_)) {
                return true;
            }
            // The ends, and evenly distributed values between them.
            let keep = at * (QUICK_STEPS - 1) >= kept * (paced - 1);
            at += 1;
            kept += usize::from(keep);
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule;

    #[test]
    fn each_can_be_run_on_two_cores_and_is_quick_where_that_is_asked_for() {
        let sensors = Duts::shipped();
        let resources = Resources { cores: vec![0, 1], root: true, program_statistics: false };
        for collection in [Collection::Reproductions, Collection::Benchmarks] {
            let mut quick = std::time::Duration::ZERO;
            for name in collection.names() {
                let (_, full) = collection.suite(name, Form::Full, &resources, &sensors).unwrap();
                // Missing programs are not checked here.
                if !full.traffic.web {
                    full.possible(&resources, &sensors).unwrap();
                }
                assert_eq!(full.name, name);
                assert!(!full.title.is_empty() && !full.about.is_empty(), "{name}");
                let is_published = collection == Collection::Reproductions;
                assert_eq!(!full.conclusions.is_empty(), is_published, "{name}: conclusions to decide");
                let (_, short) = collection.suite(name, Form::Quick, &resources, &sensors).unwrap();
                let time = |suite: &Suite| {
                    let searched = suite.searches();
                    crate::run::expected(suite, &schedule::trials(suite, &sensors)).mul_f64(if searched {
                        0.5
                    } else {
                        1.0
                    })
                };
                assert!(time(&short) <= time(&full), "{name}");
                quick += time(&short);
            }
            let most = std::time::Duration::from_secs(if collection == Collection::Reproductions {
                30 * 60
            } else {
                90 * 60
            });
            assert!(quick < most, "the quick form takes {quick:?}");
        }
        let error = Collection::Reproductions.suite("table-9", Form::Full, &resources, &sensors).unwrap_err();
        assert!(error.to_string().contains("imc10-table-2"), "{error}");
    }

    #[test]
    fn a_sweep_keeps_its_ends() {
        let sensors = Duts::shipped();
        let text = "name = \"a\"\nsensors = [\"tcpdump\"]\nsweep = { from = 50000, to = 1500000, steps = 21 }\nfull-speed = true\n";
        let mut suite = Suite::parse(text, Path::new("b"), &sensors).unwrap();
        quicken(&mut suite);
        let names: Vec<String> = suite.rates.iter().map(Rate::name).collect();
        assert_eq!(names, ["50000", "340000", "630000", "920000", "1210000", "1500000", "full"]);
    }
}
