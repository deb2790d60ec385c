//! Trials of a suite, and their order.

use crate::duts::Duts;
use crate::suite::{Napi, Rate, Suite};

/// Conditions shared by all repetitions of a trial.
#[derive(Clone, Debug, PartialEq)]
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

    /// Name in results, by which a resumed suite finds it.
    pub fn key(&self) -> String {
        let list = self.cores.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
        let optional = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        format!(
            "{} size={} rate={} loops={} cores={list} workers={} queues={} engine={}",
            self.sensor,
            optional(self.size.map(|size| size.to_string())),
            self.rate.name(),
            optional(self.loops.map(|loops| loops.to_string())),
            optional(self.workers.map(|workers| workers.to_string())),
            self.queues,
            optional(self.engine.clone()),
        ) + &self.calls.map_or(String::new(), |calls| format!(" calls={calls}"))
            + &self.entries.map_or(String::new(), |entries| format!(" entries={entries}"))
            + &self.napi.map_or(String::new(), |napi| format!(" napi={}", napi.name()))
    }
}

/// Each of these values, or `None` if they have no effect.
fn each<T: Clone>(values: &[T], matters: bool) -> Vec<Option<T>> {
    if matters { values.iter().cloned().map(Some).collect() } else { vec![None] }
}

/// All trials. Repetitions are outermost and sensors innermost, so that slow changes of a machine affect all sensors
/// alike.
pub fn trials(suite: &Suite, sensors: &Duts) -> Vec<Trial> {
    let mut all = Vec::new();
    let traffic = &suite.traffic;
    let sizes: Vec<Option<u16>> = match traffic.replay.is_some() || traffic.web {
        true => vec![None],
        false => traffic.sizes.iter().copied().map(Some).collect(),
    };
    let calls = each(&traffic.calls, !traffic.calls.is_empty());
    let entries = each(&suite.entries, !suite.entries.is_empty());
    let napi = each(&suite.napi, suite.napi.len() > 1);
    for repetition in 1..=suite.repetitions {
        for queues in suite.topologies() {
            for napi in &napi {
                for size in &sizes {
                    for (calls, entries) in
                        calls.iter().flat_map(|calls| entries.iter().map(move |entries| (calls, entries)))
                    {
                        for rate in &suite.rates {
                            let traffic = Traffic {
                                queues,
                                napi: *napi,
                                size: *size,
                                calls: *calls,
                                entries: *entries,
                                rate,
                            };
                            cases(suite, sensors, &traffic, |case| all.push(Trial { case, repetition }));
                        }
                    }
                }
            }
        }
    }
    all
}

/// Conditions shared by all sensors.
struct Traffic<'a> {
    queues: u32,
    napi: Option<Napi>,
    size: Option<u16>,
    calls: Option<u32>,
    entries: Option<u32>,
    rate: &'a Rate,
}

/// Cases of each sensor under this traffic. A setting that a sensor does not support has only one case.
fn cases(suite: &Suite, sensors: &Duts, traffic: &Traffic<'_>, mut add: impl FnMut(Case)) {
    let adapters: Vec<_> = suite.sensors.iter().filter_map(|name| sensors.get(name)).collect();
    for (first_load, load) in suite.loops.iter().enumerate() {
        for (cores, workers) in suite.sets(traffic.queues) {
            for adapter in &adapters {
                let loaded = adapter.asks_for(&["loops", "load-program"]);
                let told = suite.traffic.flows_as_entries || adapter.asks_for(&["entries"]);
                if !loaded && first_load > 0 || !told && traffic.entries != suite.entries.first().copied() {
                    continue;
                }
                for workers in each(&workers, adapter.asks_for(&["workers"])) {
                    for engine in each(&suite.engines, adapter.asks_for(&["engine"])) {
                        add(Case {
                            sensor: adapter.name.clone(),
                            size: traffic.size,
                            rate: traffic.rate.clone(),
                            loops: loaded.then_some(*load),
                            cores: cores.clone(),
                            workers,
                            queues: traffic.queues,
                            engine,
                            calls: traffic.calls,
                            entries: traffic.entries.filter(|_| told),
                            napi: traffic.napi,
                        });
                    }
                }
            }
        }
    }
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
