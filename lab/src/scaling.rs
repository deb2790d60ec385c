//! Scaling with devices and cores: measured, or by a model where the machine has too few cores.
//!
//! A core takes one packet in the CPU time of sensor and NAPI threads per packet. The model assumes that further devices change
//! that time by one factor, and that each further core adds one share of it: the contention of the Universal Scalability Law
//! (Gunther 2007), without its second parameter, which two numbers of cores do not determine. Both come from the results of
//! one device with more cores and of more devices with one core. The result of several devices with several cores is in neither:
//! its difference from the model is the error.

use crate::suite::{Quantity, Suite};
use crate::summary::Line;

/// Packets of several devices and cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// Packets per second, relative to one device with one core.
    pub ratio: f64,
    /// The numbers, and their origin.
    pub words: String,
    /// Whether more may be possible: a core of the sensor was the generator's, too.
    pub is_least: bool,
}

/// The scaling to so many devices and cores.
///
/// # Errors
/// Results are missing: the reason.
pub fn scaled(
    suite: &Suite,
    lines: &[Line],
    sensor: &str,
    devices: u32,
    cores: usize,
) -> Result<Scaled, String> {
    let lines: Vec<&Line> = lines.iter().filter(|line| line.case.sensor == sensor).collect();
    let find = |devices: u32, cores: usize, quantity: Quantity| {
        let mut lines =
            lines.iter().filter(|line| of_devices(line) == devices && line.case.cores.len() == cores);
        lines.find_map(|line| line.value(quantity)).map(|spread| spread.median).filter(|value| *value > 0.0)
    };
    // The caches of a core that the generator has, too, are colder, and its time is shared.
    let is_shared = |cores: usize| {
        lines.iter().any(|line| line.case.cores.len() == cores && line.case.shares_cores(suite))
    };
    let one = find(1, 1, Quantity::Captured).ok_or("no result of one device with one core")?;
    if let Some(all) = find(devices, cores, Quantity::Captured) {
        let words = format!(
            "{:.0} kpps from {devices} devices with {cores} cores, {:.0} kpps from one with one core, {:.2} times",
            all / 1e3,
            one / 1e3,
            all / one
        );
        return Ok(Scaled { ratio: all / one, words, is_least: is_shared(cores) });
    }
    let cpu = |devices, cores| find(devices, cores, Quantity::Cpu);
    let single = cpu(1, 1).ok_or("no result of one device with one core")?;
    // The largest number of cores that one device was measured with.
    let most = lines.iter().map(|line| line.case.cores.len()).max().unwrap_or(1);
    let shared = cpu(1, most).filter(|_| most > 1).ok_or("no result of one device with more cores")?;
    let further = cpu(devices, 1).ok_or(format!("no result of {devices} devices with one core"))?;
    let each_device = further / single;
    let each_core = ((shared / single - 1.0) / (most - 1) as f64).max(0.0);
    let model = |cores: usize| single * each_device * (1.0 + each_core * (cores - 1) as f64);
    let measured = cpu(devices, most).ok_or(format!("no result of {devices} devices with {most} cores"))?;
    let error = model(most) / measured - 1.0;
    let ratio = cores as f64 * single / model(cores);
    let is_least = is_shared(most);
    let bound = if is_least {
        "; one of the cores was the generator's, too, so that more may be possible"
    } else {
        ""
    };
    let words = format!(
        "by a model, {ratio:.2} times: a packet takes {single:.0} ns of a core, {each_device:.2} times that with {devices} devices, and \
         {:.1} % more with each further core; for {devices} devices with {most} cores, which are not among its parameters, it predicts {:.0} ns, and \
         {measured:.0} ns are measured: an error of {:+.1} %{bound}",
        each_core * 100.0,
        model(most),
        error * 100.0
    );
    Ok(Scaled { ratio, words, is_least })
}

fn of_devices(line: &Line) -> u32 {
    line.case.devices.unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::duts::Duts;
    use crate::machine::Machine;
    use crate::results::{Results, Row};
    use crate::schedule;
    use crate::summary::summarise;
    use crate::trial::Measured;

    const TEXT: &str = "name = \"a\"\nsensors = [\"wirelane-devices\"]\nfull-speed = true\ndevices = [1, 4]\n\
                        cores = [[1], [1, 2]]\nper-core = true\n";

    /// Results of which a packet takes `cpu(devices, cores)` nanoseconds, and each core takes a million packets.
    fn lines(suite: &Suite, cpu: impl Fn(u32, usize) -> Option<f64>) -> Vec<Line> {
        let sensors = Duts::shipped();
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::begin(&folder.path().join("r"), TEXT, &Machine::describe()).unwrap();
        for trial in schedule::trials(suite, &sensors) {
            let cores = trial.case.cores.len();
            let Some(cpu) = cpu(trial.case.devices.unwrap(), cores) else { continue };
            let captured = cores as u64 * 1_000_000;
            let measured = Measured {
                offered: captured,
                captured,
                duration_s: 1.0,
                sensor_cpu_s: cpu * captured as f64 / 1e9,
                ..Measured::default()
            };
            let (case, rate) = (trial.case.key(), trial.case.rate.name());
            results.add(Row { case, repetition: 1, rate, search: String::new(), measured }).unwrap();
        }
        summarise(suite, &sensors, &results).unwrap().lines
    }

    #[test]
    fn more_devices_and_cores_follow_from_what_was_measured() {
        let suite = Suite::parse(TEXT, Path::new("b"), &Duts::shipped()).unwrap();
        // A packet of four devices takes a quarter more, and with a second core a tenth more.
        let cpu = |devices: u32, cores: usize| {
            1000.0 * if devices == 4 { 1.25 } else { 1.0 } * if cores == 2 { 1.1 } else { 1.0 }
        };
        let all = lines(&suite, |devices, cores| Some(cpu(devices, cores)));
        let model = scaled(&suite, &all, "wirelane-devices", 4, 4).unwrap();
        assert!((model.ratio - 4.0 / (1.25 * 1.3)).abs() < 1e-9, "{model:?}");
        assert!(model.words.ends_with("an error of +0.0 %"), "{}", model.words);
        let measured = scaled(&suite, &all, "wirelane-devices", 4, 2).unwrap();
        assert_eq!(measured.ratio, 2.0);
        assert!(!measured.words.contains("model"), "{}", measured.words);
        // The result of four devices with two cores is a tenth more than the model predicts.
        let more = lines(&suite, |devices, cores| {
            Some(cpu(devices, cores) * if devices == 4 && cores == 2 { 1.1 } else { 1.0 })
        });
        assert!(
            scaled(&suite, &more, "wirelane-devices", 4, 4).unwrap().words.contains("an error of -9.1 %")
        );
        for missing in [(1, 1), (1, 2), (4, 1), (4, 2)] {
            let fewer =
                lines(&suite, |devices, cores| ((devices, cores) != missing).then(|| cpu(devices, cores)));
            assert!(
                scaled(&suite, &fewer, "wirelane-devices", 4, 4).unwrap_err().contains("no result of"),
                "{missing:?}"
            );
        }
    }
}
