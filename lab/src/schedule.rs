//! Trials of a suite, and their order.

use std::fmt::Display;

use crate::duts::Duts;
use crate::suite::{Named, Napi, Rate, Suite};

/// Conditions shared by all repetitions of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// Name of the adapter.
    pub sensor: String,
    /// Bytes of a frame; `None` with a capture.
    pub size: Option<u16>,
    /// Rate.
    pub rate: Rate,
    /// Loops per packet; `None`: the sensor does not support a load.
    pub loops: Option<u32>,
    /// Cores of the sensor.
    pub cores: Vec<usize>,
    /// Number of workers; `None`: not configurable in the sensor.
    pub workers: Option<usize>,
    /// RX queues.
    pub queues: u32,
    /// Engine; `None`: not configurable in the sensor.
    pub engine: Option<String>,
    /// Number of calls; `None`: other traffic.
    pub calls: Option<u32>,
    /// Number of rules, or of entries of a set; `None`: not varied.
    pub entries: Option<u32>,
    /// NAPI context, if the suite has several; `None`: the only one.
    pub napi: Option<Napi>,
    /// Number of devices, if the suite has several numbers; `None`: the only one.
    pub devices: Option<u32>,
}

/// A trial, or a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Conditions.
    pub case: Case,
    /// Number of the repetition, from 1.
    pub repetition: u32,
}

impl Case {
    /// Whether the sensor shares cores with the generator, on one machine.
    pub fn shares_cores(&self, suite: &Suite) -> bool {
        suite.agent_devices.is_none() && self.cores.iter().any(|core| suite.injector.contains(core))
    }

    /// Its NAPI context.
    pub fn napi_in(&self, suite: &Suite) -> Napi {
        self.napi.unwrap_or(suite.napi[0])
    }

    /// Conditions by their names in results; `None`: not varied, or not supported by the sensor.
    pub fn conditions(&self) -> [(&'static str, Option<String>); 11] {
        fn text(value: Option<impl Display>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        let cores: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
        [
            ("size", text(self.size)),
            ("rate", Some(self.rate.name())),
            ("loops", text(self.loops)),
            ("cores", Some(cores.join("+"))),
            ("workers", text(self.workers)),
            ("queues", text(Some(self.queues))),
            ("engine", self.engine.clone()),
            ("calls", text(self.calls)),
            ("entries", text(self.entries)),
            ("napi", self.napi.map(|napi| napi.name())),
            ("devices", text(self.devices)),
        ]
    }

    /// Name in results, by which a resumed suite finds it.
    pub fn key(&self) -> String {
        let mut key = self.sensor.clone();
        for (name, value) in self.conditions() {
            match value {
                Some(value) => key += &format!(" {name}={value}"),
                None if ["calls", "entries", "napi", "devices"].contains(&name) => {}
                None => key += &format!(" {name}=-"),
            }
        }
        key
    }
}

/// Each of these values, or `None` if they have no effect.
fn each<T: Clone>(values: &[T], matters: bool) -> Vec<Option<T>> {
    if matters { values.iter().cloned().map(Some).collect() } else { vec![None] }
}

/// Each case with each of the values; the last dimension varies fastest.
fn vary<T>(cases: Vec<Case>, values: &[T], set: impl Fn(&mut Case, &T)) -> Vec<Case> {
    let with = |case: &Case, value| {
        let mut case = case.clone();
        set(&mut case, value);
        case
    };
    cases.iter().flat_map(|case| values.iter().map(move |value| with(case, value))).collect()
}

/// All trials. Repetitions are outermost and sensors innermost, so that slow changes of a machine affect all sensors
/// alike.
pub fn trials(suite: &Suite, sensors: &Duts) -> Vec<Trial> {
    let traffic = &suite.traffic;
    let cases = vary(vec![Case::default()], &suite.topologies(), |case, queues| case.queues = *queues);
    let cases = vary(cases, &each(&suite.napi, suite.napi.len() > 1), |case, napi| case.napi = *napi);
    let devices = each(&suite.devices, suite.devices.len() > 1);
    let cases = vary(cases, &devices, |case, devices| case.devices = *devices);
    let has_sizes = traffic.replay.is_none() && !traffic.web;
    let cases = vary(cases, &each(&traffic.sizes, has_sizes), |case, size| case.size = *size);
    let cases =
        vary(cases, &each(&traffic.calls, !traffic.calls.is_empty()), |case, calls| case.calls = *calls);
    let entries = each(&suite.entries, !suite.entries.is_empty());
    let cases = vary(cases, &entries, |case, entries| case.entries = *entries);
    let cases = vary(cases, &suite.rates, |case, rate| case.rate = rate.clone());
    let cases: Vec<Case> = cases.iter().flat_map(|case| of_sensors(suite, sensors, case)).collect();
    let repeated = |repetition| cases.iter().map(move |case| Trial { case: case.clone(), repetition });
    (1..=suite.repetitions).flat_map(repeated).collect()
}

/// Cases of each sensor under this traffic. A setting that a sensor does not support has only one case.
fn of_sensors(suite: &Suite, sensors: &Duts, traffic: &Case) -> Vec<Case> {
    let adapters: Vec<_> = suite.sensors.iter().filter_map(|name| sensors.get(name)).collect();
    let mut all = Vec::new();
    for (first_load, load) in suite.loops.iter().enumerate() {
        for (cores, workers) in suite.sets(traffic.queues) {
            for adapter in &adapters {
                let loaded = adapter.asks_for(&["loops", "load-program"]);
                let told = suite.traffic.flows_as_entries || adapter.asks_for(&["entries"]);
                if !loaded && first_load > 0 || !told && traffic.entries != suite.entries.first().copied() {
                    continue;
                }
                let case = Case {
                    sensor: adapter.name.clone(),
                    loops: loaded.then_some(*load),
                    cores: cores.clone(),
                    entries: traffic.entries.filter(|_| told),
                    ..traffic.clone()
                };
                let workers = each(&workers, adapter.asks_for(&["workers"]));
                let cases = vary(vec![case], &workers, |case, workers| case.workers = *workers);
                let engines = each(&suite.engines, adapter.asks_for(&["engine"]));
                all.extend(vary(cases, &engines, |case, engine| case.engine.clone_from(engine)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn schedule(rest: &str) -> Vec<Trial> {
        let text = format!("name = \"a\"\nsensors = [\"tcpdump\", \"wirelane-count\"]\n{rest}");
        let sensors = Duts::shipped();
        trials(&Suite::parse(&text, Path::new("b"), &sensors).unwrap(), &sensors)
    }

    #[test]
    fn sensors_take_turns_and_repetitions_come_last() {
        let trials = schedule("rates = [1000, 2000]\nrepetitions = 2\ncores = [[1]]\n");
        let order: Vec<String> = trials
            .iter()
            .map(|trial| format!("{} {} {}", trial.repetition, trial.case.rate.name(), trial.case.sensor))
            .collect();
        let expected = [
            "1 1000 tcpdump",
            "1 1000 wirelane-count",
            "1 2000 tcpdump",
            "1 2000 wirelane-count",
            "2 1000 tcpdump",
            "2 1000 wirelane-count",
            "2 2000 tcpdump",
            "2 2000 wirelane-count",
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn what_a_sensor_cannot_be_told_makes_no_trials() {
        let rest = "rates = [1000]\nloops = [0, 1000]\nworkers = [1, 2, 4]\nengines = [\"ring\", \"packet\"]\ncores = [[1]]\n";
        let trials = schedule(rest);
        let of = |name: &str| trials.iter().filter(|trial| trial.case.sensor == name).count();
        assert_eq!((of("tcpdump"), of("wirelane-count")), (1, 12));
        let keys: BTreeSet<String> = trials.iter().map(|trial| trial.case.key()).collect();
        assert_eq!(keys.len(), 13);
        assert!(
            keys.contains("tcpdump size=60 rate=1000 loops=- cores=1 workers=- queues=1 engine=-"),
            "{keys:?}"
        );
        assert!(keys.contains(
            "wirelane-count size=60 rate=1000 loops=1000 cores=1 workers=4 queues=1 engine=packet"
        ));
    }

    #[test]
    fn each_core_may_be_one_more_queue_and_worker() {
        let trials = schedule("rates = [1000]\ncores = [[1, 2], [1], [2, 3]]\nper-core = true\n");
        let keys: Vec<String> = trials.iter().map(|trial| trial.case.key()).collect();
        let of = |cores: &str, number: usize| {
            [
                format!("tcpdump size=60 rate=1000 loops=- cores={cores} workers=- queues={number} engine=-"),
                format!(
                    "wirelane-count size=60 rate=1000 loops=0 cores={cores} workers={number} queues={number} \
                     engine=auto"
                ),
            ]
        };
        assert_eq!(keys, [of("1", 1), of("1+2", 2), of("2+3", 2)].concat());
    }

    #[test]
    fn numbers_of_calls_take_turns() {
        let trials = schedule("rates = [1000]\ncores = [[1]]\n[traffic]\ncalls = [10, 20]\n");
        let keys: Vec<String> = trials.iter().map(|trial| trial.case.key()).collect();
        assert_eq!(keys.len(), 4);
        assert_eq!(
            keys[2],
            "tcpdump size=214 rate=1000 loops=- cores=1 workers=- queues=1 engine=- calls=20"
        );
    }

    #[test]
    fn dimensions_of_the_traffic_are_every_sensors() {
        let trials = schedule(
            "rates = [1000]\nqueues = [1, 2]\ncores = [[1], [1, 2]]\n[traffic]\nsizes = [60, 1514]\n",
        );
        assert_eq!(trials.len(), 2 * 2 * 2 * 2);
    }
}
