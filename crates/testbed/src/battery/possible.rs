//! What a machine lacks for a battery, said before anything is started.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use super::Battery;
use crate::sensors::Sensors;

/// What a machine has, of what batteries ask.
#[derive(Clone, Debug)]
pub struct Means {
    /// Cores that are on line and that this process may run on.
    pub cores: Vec<usize>,
    /// Whether this process may make network namespaces.
    pub root: bool,
}

impl Means {
    /// This machine's.
    pub fn here() -> Means {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
        Means { cores: cores(list.trim()), root: nix::unistd::geteuid().is_root() }
    }
}

/// Whether these programs are here.
///
/// # Errors
/// Which one is not.
pub fn tools(programs: &[&str]) -> Result<()> {
    for program in programs {
        ensure!(
            crate::sensors::find(program).is_some(),
            "the test-bed needs {program}: install it (iproute2, ethtool, util-linux)"
        );
    }
    Ok(())
}

/// `0-3,8` (cpuset(7)).
fn cores(list: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(part).flatten().collect()
}

impl Battery {
    /// Whether it can be run on the machines of agents, which have these cores.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub fn possible_away(&self, injector: &[usize], sensor: &[usize], sensors: &Sensors) -> Result<()> {
        let sets: Vec<usize> = self.cores.iter().flatten().copied().collect();
        for (role, asked, there, key) in
            [("injector", &self.injector, injector, "injector-cores"), ("sensor", &sets, sensor, "cores")]
        {
            if let Some(core) = asked.iter().find(|core| !there.contains(core)) {
                bail!(
                    "battery {} asks for core {core} of the {role}'s machine, and its agent gives these: {}; change '{key}'",
                    self.name,
                    list(there)
                );
            }
        }
        self.served(sensors)
    }

    fn served(&self, sensors: &Sensors) -> Result<()> {
        for sensor in &self.sensors {
            let Some(adapter) = sensors.get(sensor) else { bail!("there is no adapter {sensor}") };
            for (_, workers) in self.beds().iter().flat_map(|queues| self.sets(*queues)) {
                adapter.serves(&self.loops, &workers)?;
            }
        }
        Ok(())
    }

    /// Whether it can be run with these means, and these programs.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub fn possible(&self, means: &Means, sensors: &Sensors) -> Result<()> {
        ensure!(means.root, "a test-bed makes network namespaces, which takes root: run it with sudo");
        let name = &self.name;
        for core in self.injector.iter().chain(self.cores.iter().flatten()) {
            if !means.cores.contains(core) {
                bail!(
                    "battery {name} asks for core {core}, and there are these: {}; change 'cores' or 'injector-cores'",
                    list(&means.cores)
                );
            }
        }
        for set in &self.cores {
            // A set of all cores there are has no other place for the generator, and says by itself what it shares.
            if let Some(core) = set.iter().find(|core| self.injector.contains(core)) {
                ensure!(
                    set.len() == means.cores.len(),
                    "battery {name} has the generator and the sensor both on core {core}: each slows the other, and neither is \
                     measured; take different ones in 'cores' and 'injector-cores'"
                );
            }
        }
        if let Some(file) = &self.traffic.replay {
            ensure!(Path::new(file).is_file(), "battery {name} replays {file}, which is no file here");
        }
        tools(&["ip", "ethtool", "setpriv", "unshare", "nsenter", "taskset", "chrt"])?;
        if self.receiver {
            tools(&["tc"])?;
        }
        self.served(sensors)
    }
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn battery(rest: &str) -> Battery {
        let text = format!("name = \"a\"\nsensors = [\"tcpdump\"]\nrates = [1000]\n{rest}");
        Battery::parse(&text, Path::new("b.toml"), &Sensors::shipped()).unwrap()
    }

    fn refused(rest: &str, means: &Means) -> String {
        battery(rest).possible(means, &Sensors::shipped()).unwrap_err().to_string()
    }

    #[test]
    fn what_a_machine_lacks_is_named() {
        let means = Means { cores: vec![0, 1], root: true };
        assert!(refused("cores = [[1], [1, 2]]", &means).contains("core 2, and there are these: 0, 1"));
        assert!(refused("injector-cores = [1]\ncores = [[1]]", &means).contains("both on core 1"));
        assert!(refused("", &Means { root: false, ..means.clone() }).contains("sudo"));
        let text = "name = \"a\"\nsensors = [\"tcpdump\"]\n[traffic]\nreplay = \"/nonexistent.pcap\"\n";
        let battery = Battery::parse(text, Path::new("b.toml"), &Sensors::shipped()).unwrap();
        let error = battery.possible(&means, &Sensors::shipped()).unwrap_err();
        assert!(error.to_string().contains("/nonexistent.pcap"), "{error}");
    }

    #[test]
    fn what_the_machines_of_agents_lack_is_named() {
        let battery = battery("injector-cores = [1]\ncores = [[0], [1, 2]]");
        let sensors = Sensors::shipped();
        battery.possible_away(&[1], &[0, 1, 2], &sensors).unwrap();
        let error = battery.possible_away(&[0], &[0, 1, 2], &sensors).unwrap_err().to_string();
        assert!(
            error.contains("core 1 of the injector's machine") && error.contains("'injector-cores'"),
            "{error}"
        );
        let error = battery.possible_away(&[1], &[0, 1], &sensors).unwrap_err().to_string();
        assert!(error.contains("core 2 of the sensor's machine, and its agent gives these: 0, 1"), "{error}");
    }

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(cores("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cores("0"), [0]);
    }
}
