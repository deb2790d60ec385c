//! The batteries of published measurements, as far as one machine with a veth pair can run them.

use std::path::Path;

use anyhow::{Result, bail};

use crate::battery::{Battery, Means, Rate};
use crate::sensors::Sensors;

/// Those that are shipped, in the order of their publication.
const SHIPPED: [(&str, &str); 11] = [
    ("tutorial-sizes", include_str!("../papers/tutorial-sizes.toml")),
    ("tutorial-flows", include_str!("../papers/tutorial-flows.toml")),
    ("tutorial-bloom", include_str!("../papers/tutorial-bloom.toml")),
    ("tutorial-rtp", include_str!("../papers/tutorial-rtp.toml")),
    ("imc10-table-2", include_str!("../papers/imc10-table-2.toml")),
    ("imc10-table-3", include_str!("../papers/imc10-table-3.toml")),
    ("pam12-figure-4", include_str!("../papers/pam12-figure-4.toml")),
    ("pam12-figure-5", include_str!("../papers/pam12-figure-5.toml")),
    ("pam12-figure-6", include_str!("../papers/pam12-figure-6.toml")),
    ("pam12-figure-7", include_str!("../papers/pam12-figure-7.toml")),
    ("zabala13-figures-6-to-9", include_str!("../papers/zabala13-figures-6-to-9.toml")),
];

/// How a battery is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As published, as far as the machine goes.
    Full,
    /// In minutes: fewer steps and repetitions, shorter trials.
    Quick,
}

/// The names of the batteries.
pub fn names() -> Vec<&'static str> {
    SHIPPED.iter().map(|(name, _)| *name).collect()
}

/// A battery, by its name: its text, and what of it this machine can run in this form.
///
/// # Errors
/// Where there is none of this name.
pub fn battery(name: &str, form: Form, means: &Means, sensors: &Sensors) -> Result<(&'static str, Battery)> {
    let Some((_, text)) = SHIPPED.iter().find(|(of, _)| *of == name) else {
        bail!("there is no battery {name}; there are {}", names().join(", "));
    };
    let mut battery = Battery::parse(text, Path::new(name), sensors)?;
    fit(&mut battery, means);
    if form == Form::Quick {
        quicken(&mut battery);
    }
    Ok((text, battery))
}

/// Sets of cores that the machine has. Of one as large as the machine the generator's core is part, the last one; larger
/// ones are left out.
fn fit(battery: &mut Battery, means: &Means) {
    let mut whole = means.cores.clone();
    whole.sort_by_key(|core| battery.injector.contains(core));
    let set = |set: &Vec<usize>| {
        if set.iter().all(|core| means.cores.contains(core)) {
            Some(set.clone())
        } else {
            (set.len() == whole.len()).then(|| whole.clone())
        }
    };
    let mut sets: Vec<Vec<usize>> = battery.cores.iter().filter_map(set).collect();
    sets.dedup();
    // All of them missing is for `possible` to say.
    if !sets.is_empty() {
        battery.cores = sets;
    }
}

/// Steps of a sweep in the quick form.
const QUICK_STEPS: usize = 6;

fn quicken(battery: &mut Battery) {
    battery.duration = battery.duration.min(std::time::Duration::from_millis(700));
    battery.repetitions = 1;
    let paced = battery.rates.iter().filter(|rate| matches!(rate, Rate::Pps(_))).count();
    if paced > QUICK_STEPS {
        let mut at = 0;
        let mut kept = 0;
        battery.rates.retain(|rate| {
            if !matches!(rate, Rate::Pps(_)) {
                return true;
            }
            // The ends, and what lies evenly between them.
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
        let sensors = Sensors::shipped();
        let means = Means { cores: vec![0, 1], root: true };
        let mut quick = std::time::Duration::ZERO;
        for name in names() {
            let (_, full) = battery(name, Form::Full, &means, &sensors).unwrap();
            full.possible(&means, &sensors).unwrap();
            assert_eq!(full.name, name);
            assert!(!full.title.is_empty() && !full.about.is_empty(), "{name}");
            let (_, short) = battery(name, Form::Quick, &means, &sensors).unwrap();
            let time =
                |battery: &Battery| crate::run::expected(battery, &schedule::trials(battery, &sensors));
            assert!(time(&short) <= time(&full), "{name}");
            quick += time(&short);
        }
        assert!(quick < std::time::Duration::from_secs(30 * 60), "the quick form takes {quick:?}");
        assert!(
            battery("table-9", Form::Full, &means, &sensors)
                .unwrap_err()
                .to_string()
                .contains("imc10-table-2")
        );
    }

    #[test]
    fn a_sweep_keeps_its_ends() {
        let sensors = Sensors::shipped();
        let text = "name = \"a\"\nsensors = [\"tcpdump\"]\nsweep = { from = 50000, to = 1500000, steps = 21 }\nfull-speed = true\n";
        let mut battery = Battery::parse(text, Path::new("b"), &sensors).unwrap();
        quicken(&mut battery);
        let names: Vec<String> = battery.rates.iter().map(Rate::name).collect();
        assert_eq!(names, ["50000", "340000", "630000", "920000", "1210000", "1500000", "full"]);
    }
}
