//! Builds a [`Suite`] from the tables of the file, or reports each mistake with its position.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use wirelane_netdev::allowed_cpus;
use wirelane_probe::Mistakes;
use wirelane_probe::placed::{At, mistakes, read};

use super::conclusion;
use super::raw::{self, Raw};
use super::{Chart, LONGEST, MOST_TRIALS, Method, Napi, Published, Quantity, Suite};
use crate::duts::Duts;
use crate::schedule;

/// Engines that `--engine` accepts, and that a suite can name.
pub(crate) const ENGINES: [&str; 4] = ["auto", "ring", "xsk", "packet"];
pub(crate) const MOST_PPS: f64 = 1e9;
pub(crate) const MOST_LOOPS: u32 = 100_000_000;

pub(super) fn parse(text: &str, path: &Path, sensors: &Duts) -> Result<Suite, Mistakes> {
    let fail = |found| Err(mistakes(text, path, found));
    if text.len() > LONGEST {
        return fail(vec![(0, format!("this has {} bytes, and a suite {LONGEST} at most", text.len()))]);
    }
    let raw: Raw = match read(text) {
        Ok(raw) => raw,
        Err(fault) => return fail(vec![(fault.at.unwrap_or(0), fault.reason)]),
    };
    let mut check = Check { found: Vec::new() };
    let suite = check.suite(raw, sensors);
    if check.found.is_empty() {
        // All repetitions have the same number of trials.
        let once = Suite { repetitions: 1, ..suite.clone() };
        let trials = schedule::trials(&once, sensors).len() * suite.repetitions as usize;
        if trials > MOST_TRIALS {
            check
                .found
                .push((0, format!("this comes to {trials} trials; a suite has {MOST_TRIALS} at most")));
        }
    }
    if check.found.is_empty() { Ok(suite) } else { fail(check.found) }
}

pub(super) struct Check {
    pub(super) found: Vec<(usize, String)>,
}

impl Check {
    pub(super) fn fault<T>(&mut self, value: &At<T>, reason: impl Into<String>) {
        self.found.push((value.start, reason.into()));
    }

    /// Values of a list: at least one, each unique and allowed.
    pub(super) fn list<T: Clone + PartialEq + Display>(
        &mut self,
        list: Option<At<Vec<At<T>>>>,
        default: &[T],
        allowed: &str,
        is_allowed: impl Fn(&T) -> bool,
    ) -> Vec<T> {
        let Some(list) = list else { return default.to_vec() };
        if list.value.is_empty() {
            self.fault(&list, format!("the list is empty; give {allowed}, or leave it out"));
        }
        let mut values: Vec<T> = Vec::new();
        for one in list.value {
            if !is_allowed(&one.value) {
                self.fault(&one, format!("{} is not allowed here; give {allowed}", one.value));
            } else if values.contains(&one.value) {
                self.fault(&one, format!("{} is here twice", one.value));
            }
            values.push(one.value);
        }
        values
    }

    pub(super) fn within<T: Copy + PartialOrd + Display>(
        &mut self,
        value: Option<At<T>>,
        default: T,
        from: T,
        to: T,
    ) -> T {
        let Some(value) = value else { return default };
        if !(from..=to).contains(&value.value) {
            self.fault(&value, format!("{} is not from {from} to {to}", value.value));
        }
        value.value
    }

    fn suite(&mut self, mut raw: Raw, sensors: &Duts) -> Suite {
        let name = raw.name.value.clone();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(is_plain) {
            let wanted = "a name is up to 64 letters, digits, '-', '_' and '.', and becomes a folder's";
            self.fault(&raw.name, wanted);
        }
        let known = sensors.names();
        let allowed = format!("adapters by their names: {}", known.join(", "));
        let list = At { start: raw.sensors.start, value: std::mem::take(&mut raw.sensors.value) };
        let named = self.list(Some(list), &[], &allowed, |name| known.iter().any(|known| known == name));
        let traffic = self.traffic(std::mem::take(&mut raw.traffic));
        let replays = traffic.replay.is_some();
        let duration = raw.duration.as_ref().map_or(Duration::from_secs(1), |text| {
            let wanted = "a length of time from \"50ms\" to \"1h\"";
            match humantime::parse_duration(&text.value) {
                Ok(time) if (Duration::from_millis(50)..=Duration::from_secs(3600)).contains(&time) => time,
                _ => {
                    self.fault(text, format!("give {wanted}"));
                    Duration::from_secs(1)
                }
            }
        });
        if let (true, Some(duration)) = (replays, &raw.duration) {
            self.fault(duration, "a capture takes the time that it takes; leave out 'duration'");
        }
        let rates = self.rates(&raw, replays, duration);
        let workers_start = raw.workers.as_ref().map(|at| at.start);
        let workers =
            self.list(raw.workers.take(), &[1], "numbers of workers, 1 to 64", |n| (1..=64).contains(n));
        let injector = std::mem::take(&mut raw.injector_cores).map_or_else(
            || vec![0],
            |cores| {
                if cores.value.is_empty() {
                    self.fault(&cores, "name one core at least, or leave it out");
                }
                cores.value
            },
        );
        // The cores of agents are not known here.
        let is_here = raw.injector.is_none() && raw.sensor.is_none();
        let wanted = if is_here { workers.iter().copied().max().unwrap_or(1) } else { 1 };
        let default = || default_cores(&allowed_cpus(), if is_here { &injector } else { &[0] }, wanted);
        let cores = self.cores(raw.cores.take(), default);
        let napi = raw.napi.take().map_or_else(
            || vec![Napi::Inline],
            |napi| {
                let once = |at: usize| !napi.value.0[..at].contains(&napi.value.0[at]);
                if napi.value.0.is_empty() || !(0..napi.value.0.len()).all(once) {
                    self.fault(&napi, "name where NAPI works, each place once, or leave it out");
                }
                napi.value.0
            },
        );
        if traffic.merges() && napi.iter().any(|napi| *napi != Napi::Inline) {
            let reason = "NAPI in threads takes GRO on a veth pair, which would merge segments of TCP and packets of captures: \
                          leave out 'napi'";
            self.found.push((raw.name.start, reason.into()));
        }
        if traffic.merges() && traffic.method == Method::Kernel {
            let reason = "method \"kernel\" takes GRO on a veth pair, which would merge segments of TCP: leave out 'method'";
            self.found.push((raw.name.start, reason.into()));
        }
        if (replays || traffic.web || !traffic.calls.is_empty()) && injector.len() > 1 {
            self.found.push((raw.name.start, "a capture is replayed from one core, and so are calls".into()));
        }
        if let Some(devices) = raw.devices.as_ref().filter(|_| !traffic.calls.is_empty()) {
            self.fault(devices, "calls come in on one device: leave out 'devices', or 'calls'");
        }
        let per_core = raw.per_core.as_ref().is_some_and(|one| *one.get_ref());
        let asked = [raw.queues.as_ref().map(|at| at.start), workers_start];
        for start in asked.into_iter().flatten().filter(|_| per_core) {
            self.found.push((start, "'per-core' says how many: leave one of them out".into()));
        }
        let engines = raw.engines;
        let reference =
            self.list(raw.reference.take(), &[], "sensors of this suite", |name| named.contains(name));
        let devices = self.devices(raw.devices, &named, sensors);
        let named_seats = (raw.injector.take(), raw.sensor.take(), raw.receiver.take());
        let first = named_seats.0.as_ref().or(named_seats.1.as_ref()).map(|agent_device| agent_device.start);
        let (agent_devices, receiver) = self.agent_devices(named_seats);
        let suite = Suite {
            agent_devices,
            receiver,
            title: raw.title.unwrap_or_else(|| name.clone()),
            name,
            about: raw.about,
            sensors: named,
            traffic,
            loops: self
                .list(raw.loops, &[0], &format!("loops, 0 to {MOST_LOOPS}"), |loops| *loops <= MOST_LOOPS),
            cores,
            injector,
            workers,
            queues: self.list(raw.queues, &[1], "numbers of RX queues, 1 to 64", |n| (1..=64).contains(n)),
            per_core,
            engines: self.list(engines, &["auto".to_owned()], &ENGINES.join(", "), |name| {
                ENGINES.contains(&name.as_str())
            }),
            devices,
            napi,
            nice: self.within(raw.nice, 0, -20, 19),
            tries: self.within(raw.tries, 1, 1, 10),
            overload: raw.overload,
            reference,
            entries: self.list(raw.entries, &[], "numbers of rules or entries, 1 to 10000000", |n| {
                (1..=10_000_000).contains(n)
            }),
            buffer: self.buffer(raw.buffer),
            repetitions: self.within(raw.repetitions, 1, 1, 1000),
            duration,
            charts: raw
                .chart
                .into_iter()
                .map(|chart| Chart {
                    quantity: chart.value.quantity,
                    over: chart.value.over,
                    loops: chart.value.loops,
                })
                .collect(),
            rates,
            published: raw.published.into_iter().map(|one| self.published(one)).collect(),
            findings: raw.findings,
            conclusions: Vec::new(),
        };
        let mut suite = suite;
        for one in raw.conclusion {
            let fault = |at: usize, reason: String| self.found.push((at, reason));
            suite.conclusions.extend(conclusion::Raw::check(one, &suite.sensors, fault));
        }
        if let (Some(reason), Some(at)) = (suite.not_remote(), first) {
            self.found.push((at, reason.into()));
        }
        suite
    }

    /// Several devices require sensors whose command names them.
    fn devices(
        &mut self,
        raw: Option<At<raw::OneOrMore<u32>>>,
        named: &[String],
        sensors: &Duts,
    ) -> Vec<u32> {
        let Some(raw) = raw else { return vec![1] };
        let counts = raw.value.0.clone();
        let is_new = |at: usize| (1..=8).contains(&counts[at]) && !counts[..at].contains(&counts[at]);
        if counts.is_empty() || !(0..counts.len()).all(is_new) {
            self.fault(&raw, "give a number of devices, 1 to 8, or a list of such numbers, each once");
            return vec![1];
        }
        let one = |name: &&String| sensors.get(name).is_some_and(|adapter| !adapter.asks_for(&["devices"]));
        match named.iter().find(one) {
            Some(name) if counts.iter().any(|count| *count > 1) => {
                self.fault(&raw, format!("{name} is for one device: its adapter has no {{devices}}"));
            }
            _ => {}
        }
        counts
    }

    /// Ring sizes are powers of two.
    fn buffer(&mut self, raw: Option<At<u32>>) -> u32 {
        let start = raw.as_ref().map_or(0, |raw| raw.start);
        let buffer = self.within(raw, 4, 1, 1024);
        if !buffer.is_power_of_two() && (1..=1024).contains(&buffer) {
            self.found.push((start, format!("a buffer is a power of two of MiB, which {buffer} is not")));
        }
        buffer
    }

    /// Sets of cores of the sensor; without any in the suite, the default.
    fn cores(
        &mut self,
        raw: Option<At<Vec<At<Vec<usize>>>>>,
        default: impl FnOnce() -> Vec<usize>,
    ) -> Vec<Vec<usize>> {
        let Some(raw) = raw else { return vec![default()] };
        if raw.value.is_empty() {
            self.fault(&raw, "give sets of cores, as in [[1], [1, 2]], or leave it out");
        }
        for set in &raw.value {
            let mut sorted = set.value.clone();
            sorted.sort_unstable();
            sorted.dedup();
            if sorted.is_empty() || sorted.len() != set.value.len() {
                self.fault(set, "a set of cores has one or more, each once");
            }
        }
        raw.value.into_iter().map(|set| set.value).collect()
    }

    fn published(&mut self, raw: At<raw::Published>) -> Published {
        let mut raw = raw.value;
        let mut points = Vec::new();
        if raw.points.value.is_empty() {
            self.fault(&raw.points, "give points, as in [[1, 1326000]]");
        }
        for point in std::mem::take(&mut raw.points.value) {
            match point.value[..] {
                [x, y] if x.is_finite() && y.is_finite() && (0.0..1e12).contains(&y) => points.push((x, y)),
                _ => self.fault(&point, "a point is two numbers: where on the axis, and how much"),
            }
        }
        if raw.quantity == Quantity::Cpu && points.iter().any(|(_, y)| *y > 1e9) {
            self.fault(&raw.points, "CPU time is in nanoseconds per packet");
        }
        Published { name: raw.name, quantity: raw.quantity, points }
    }
}

/// Cores of `there` that the generator leaves free: one for each worker, or else one. Its own, if there is no other.
fn default_cores(there: &[usize], injector: &[usize], workers: usize) -> Vec<usize> {
    let mut free: Vec<usize> = there.iter().copied().filter(|core| !injector.contains(core)).collect();
    free.truncate(if free.len() < workers { 1 } else { workers });
    if free.is_empty() { vec![there.first().copied().unwrap_or(0)] } else { free }
}

#[cfg(test)]
mod tests {
    use super::super::Rate;
    use super::*;

    fn parse(text: &str) -> Result<Suite, Vec<String>> {
        let sensors = Duts::shipped();
        super::parse(text, Path::new("b.toml"), &sensors)
            .map_err(|mistakes| mistakes.0.iter().map(ToString::to_string).collect())
    }

    const LEAST: &str = "name = \"a\"\nsensors = [\"tcpdump\"]\n";

    #[test]
    fn what_is_left_out_has_a_value() {
        let suite = parse(&format!("{LEAST}rates = [1000]\n")).unwrap();
        assert_eq!(
            (suite.title.as_str(), suite.repetitions, suite.duration),
            ("a", 1, Duration::from_secs(1))
        );
        assert_eq!((suite.traffic.sizes.as_slice(), suite.traffic.flows), (&[60][..], 4096));
        assert_eq!((suite.rates, suite.loops, suite.workers), (vec![Rate::Pps(1000.0)], vec![0], vec![1]));
    }

    #[test]
    fn the_example_is_a_suite() {
        let suite = parse(include_str!("../../../examples/suites/passed-on.toml")).unwrap();
        assert!(suite.receiver && suite.charts[0].quantity == Quantity::PassedOn);
    }

    #[test]
    fn a_sweep_has_both_ends() {
        let suite = parse(&format!(
            "{LEAST}sweep = {{ from = 50000, to = 1500000, steps = 21 }}\nsearch = [0, 0.005]\nfull-speed = true\n"
        ));
        let rates = suite.unwrap().rates;
        assert_eq!(rates.len(), 23);
        assert_eq!((&rates[0], &rates[20]), (&Rate::Pps(50_000.0), &Rate::Pps(1_500_000.0)));
        assert_eq!((&rates[10], &rates[21]), (&Rate::Pps(775_000.0), &Rate::Full));
        assert_eq!(rates[22], Rate::Search(vec![0.005, 0.0]));
    }

    #[test]
    fn a_capture_comes_at_speeds() {
        let text =
            format!("{LEAST}speeds = [\"max\", \"10x\"]\n[traffic]\nreplay = \"a.pcap\"\npasses = 3\n");
        let suite = parse(&text).unwrap();
        assert_eq!(suite.rates, [Rate::Speed("max".into()), Rate::Speed("10x".into())]);
        assert_eq!((suite.traffic.sizes, suite.traffic.passes), (vec![], 3));
    }

    #[test]
    fn mistakes_have_places_and_say_what_is_allowed() {
        // "@" stands for the required lines.
        for (text, place, words) in [
            ("sensors = []\n", "1:1", "missing field `name`"),
            ("name = \"a\"\nsensors = [\"tcpdmp\"]\nrates = [1]", "2:12", "tcpdump"),
            ("name = \"a/b\"\nsensors = [\"tcpdump\"]\nrates = [1]", "1:8", "letters"),
            ("name = \"a\"\nsensors = []\nrates = [1]", "2:11", "empty"),
            ("name = \"a\"\nsensors = [\"tcpdump\", \"tcpdump\"]\nrates = [1]", "2:23", "twice"),
            ("@", "1:8", "how fast"),
            ("@rates = [-1]", "3:10", "packets a second"),
            ("@rates = [1]\nrate = 3", "4:1", "unknown field `rate`"),
            ("@search = [2]", "3:11", "part"),
            ("@search = []", "3:10", "losses"),
            ("@sweep = {from = 9, to = 8, steps = 3}", "3:9", "higher"),
            ("@sweep = {from = 7, to = 8, steps = 1}", "3:36", "1000"),
            ("@rates = [1]\ncores = [[1, 1]]", "4:10", "once"),
            ("@rates = [1]\nworkers = [65]", "4:12", "1 to 64"),
            ("@rates = [1]\nengines = [\"dna\"]", "4:12", "ring"),
            ("@rates = [1]\nqueues = [2]\nper-core = true", "4:10", "per-core"),
            ("@rates = [1]\nduration = \"1y\"", "4:12", "1h"),
            ("@rates = [1]\nspeeds = [\"max\"]", "4:10", "replay"),
            ("@rates = [1]\nnapi = \"poll\"", "4:8", "threads-first"),
            ("@rates = [1]\n[traffic]\nsizes = [54]", "5:10", "60 to 65535"),
            ("@rates = [1]\n[traffic]\nreplay = \"a\"", "1:8", "speeds"),
            ("@rates = [1]\n[traffic]\npasses = 2", "5:10", "replay"),
            ("@rates = [1]\n[traffic]\ncalls = [0]", "5:10", "1 to 1000000"),
            ("@rates = [1]\n[traffic]\ncalls = [1]\nflows = 2", "5:9", "of their own"),
            ("@rates = [1]\ninjector-cores = [0, 1]\n[traffic]\ncalls = [1]", "1:8", "one core"),
            ("name = ", "1:8", ""),
        ] {
            let found = parse(&text.replace('@', LEAST)).unwrap_err();
            assert!(
                found[0].contains(&format!("b.toml:{place}:")) && found[0].contains(words),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn all_mistakes_are_told_in_their_order() {
        let found = parse("name = \"a/b\"\nsensors = [\"none\"]\nrates = [0]\nbuffer = 0\n").unwrap_err();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains(":1:") && found[3].contains("4:10"), "{found:?}");
    }

    #[test]
    fn each_worker_has_a_core_where_there_are_enough() {
        for (there, injector, workers, cores) in [
            (&[0][..], &[0][..], 1, &[0][..]),
            (&[0, 1], &[0], 1, &[1]),
            (&[0, 1], &[0], 8, &[1]),
            (&[0, 1], &[1], 1, &[0]),
            (&[0, 1, 2, 3], &[0], 3, &[1, 2, 3]),
            (&[0, 2, 4, 6, 8], &[0, 4], 2, &[2, 6]),
        ] {
            assert_eq!(default_cores(there, injector, workers), cores, "{there:?} {injector:?} {workers}");
        }
    }

    #[test]
    fn a_suite_that_never_ends_is_refused() {
        let text = format!("{LEAST}sweep = {{ from = 1000, to = 2000, steps = 1000 }}\nrepetitions = 1000\n");
        assert!(parse(&text).unwrap_err()[0].contains("1000000 trials"));
    }
}
