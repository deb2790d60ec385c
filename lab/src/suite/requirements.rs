//! Requirements of a suite that a machine lacks, checked before anything is started.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use super::Suite;
use crate::duts::Duts;

/// Resources of a machine that suites require.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Cores that are online and that this process may use.
    pub cores: Vec<usize>,
    /// Whether this process may create network namespaces.
    pub root: bool,
    /// Whether the kernel counts the run times of BPF programs, which costs each run two readings of a clock.
    pub program_statistics: bool,
}

impl Resources {
    /// Resources of this machine.
    pub fn here() -> Resources {
        let statistics = std::fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap_or_default();
        Resources {
            cores: wirelane_netdev::allowed_cpus(),
            root: nix::unistd::geteuid().is_root(),
            program_statistics: statistics.trim() == "1",
        }
    }

    /// Checks that BPF programs run as fast as they can.
    ///
    /// # Errors
    /// The setting to change.
    pub fn fast_programs(&self) -> Result<()> {
        ensure!(
            !self.program_statistics,
            "kernel.bpf_stats_enabled is 1, which makes every BPF program slower: sysctl -w kernel.bpf_stats_enabled=0"
        );
        Ok(())
    }
}

/// Checks that these programs are installed.
///
/// # Errors
/// The first missing program.
pub fn tools(programs: &[&str]) -> Result<()> {
    for program in programs {
        ensure!(
            crate::duts::find(program).is_some(),
            "the test-bed needs {program}: install it (iproute2, ethtool, util-linux; for web traffic nginx, wrk, tcpdump)"
        );
    }
    Ok(())
}

impl Suite {
    /// Checks that the suite can run on the machines of agents, which have these cores.
    ///
    /// # Errors
    /// The missing requirement, with advice.
    pub fn possible_remote(&self, injector: &[usize], sensor: &[usize], sensors: &Duts) -> Result<()> {
        let sets: Vec<usize> = self.cores.iter().flatten().copied().collect();
        for (role, asked, there, key) in
            [("injector", &self.injector, injector, "injector-cores"), ("sensor", &sets, sensor, "cores")]
        {
            if let Some(core) = asked.iter().find(|core| !there.contains(core)) {
                bail!(
                    "suite {} asks for core {core} of the {role}'s machine, and its agent gives these: {}; change '{key}'",
                    self.name,
                    list(there)
                );
            }
        }
        self.served(sensors)
    }

    fn served(&self, sensors: &Duts) -> Result<()> {
        for sensor in &self.sensors {
            let Some(adapter) = sensors.get(sensor) else { bail!("there is no adapter {sensor}") };
            adapter.serves(&self.loops)?;
        }
        Ok(())
    }

    /// Checks that the suite can run with these resources and the installed programs.
    ///
    /// # Errors
    /// The missing requirement, with advice.
    pub fn possible(&self, resources: &Resources, sensors: &Duts) -> Result<()> {
        ensure!(resources.root, "a test-bed makes network namespaces, which takes root: run it with sudo");
        resources.fast_programs()?;
        let name = &self.name;
        for core in self.injector.iter().chain(self.cores.iter().flatten()) {
            if !resources.cores.contains(core) {
                bail!(
                    "suite {name} asks for core {core}, and there are these: {}; change 'cores' or 'injector-cores'",
                    list(&resources.cores)
                );
            }
        }
        for set in &self.cores {
            // A set of all cores leaves no other core for the generator, and the sharing is obvious.
            if let Some(core) = set.iter().find(|core| self.injector.contains(core)) {
                ensure!(
                    set.len() == resources.cores.len(),
                    "suite {name} has the generator and the sensor both on core {core}: each slows the other, and neither is \
                     measured; take different ones in 'cores' and 'injector-cores'"
                );
            }
        }
        if let Some(file) = &self.traffic.replay {
            ensure!(Path::new(file).is_file(), "suite {name} replays {file}, which is no file here");
        }
        if self.traffic.web {
            tools(&["nginx", "wrk", "tcpdump"])?;
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

    fn suite(rest: &str) -> Suite {
        let text = format!("name = \"a\"\nsensors = [\"tcpdump\"]\nrates = [1000]\n{rest}");
        Suite::parse(&text, Path::new("b.toml"), &Duts::shipped()).unwrap()
    }

    fn refused(rest: &str, resources: &Resources) -> String {
        suite(rest).possible(resources, &Duts::shipped()).unwrap_err().to_string()
    }

    #[test]
    fn what_a_machine_lacks_is_named() {
        let resources = Resources { cores: vec![0, 1], root: true, program_statistics: false };
        assert!(
            refused("", &Resources { program_statistics: true, ..resources.clone() })
                .contains("bpf_stats_enabled=0")
        );
        assert!(refused("cores = [[1], [1, 2]]", &resources).contains("core 2, and there are these: 0, 1"));
        assert!(refused("injector-cores = [1]\ncores = [[1]]", &resources).contains("both on core 1"));
        assert!(refused("", &Resources { root: false, ..resources.clone() }).contains("sudo"));
        let text = "name = \"a\"\nsensors = [\"tcpdump\"]\n[traffic]\nreplay = \"/nonexistent.pcap\"\n";
        let suite = Suite::parse(text, Path::new("b.toml"), &Duts::shipped()).unwrap();
        let error = suite.possible(&resources, &Duts::shipped()).unwrap_err();
        assert!(error.to_string().contains("/nonexistent.pcap"), "{error}");
    }

    #[test]
    fn what_the_machines_of_agents_lack_is_named() {
        let suite = suite("injector-cores = [1]\ncores = [[0], [1, 2]]");
        let sensors = Duts::shipped();
        suite.possible_remote(&[1], &[0, 1, 2], &sensors).unwrap();
        let error = suite.possible_remote(&[0], &[0, 1, 2], &sensors).unwrap_err().to_string();
        assert!(
            error.contains("core 1 of the injector's machine") && error.contains("'injector-cores'"),
            "{error}"
        );
        let error = suite.possible_remote(&[1], &[0, 1], &sensors).unwrap_err().to_string();
        assert!(error.contains("core 2 of the sensor's machine, and its agent gives these: 0, 1"), "{error}");
    }
}
