//! Reading the maps of plug-ins and steering programs (`wirelane/state.h`) while a capture runs.

use std::sync::Arc;

use crate::engine::ring::group_config::UserPrograms;
use crate::engine::ring::program::State;
use crate::error::{Error, Result};

/// The name of a capture's steering program among its programs with maps.
pub const STEERING_PROGRAM: &str = "steering-program";

/// The maps of a capture's plug-ins and of its steering program, for use on any thread ([`crate::Capture::state`]). They are the
/// same for all devices of the capture, and can be read after its end.
#[derive(Clone, Debug)]
pub struct StateReader(Arc<[(String, State)]>);

/// An entry of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateEntry {
    /// The key, as the program wrote it.
    pub key: Vec<u8>,
    /// The value; of a map with values of each CPU, all of them by CPU number.
    pub values: Vec<Vec<u8>>,
}

impl StateReader {
    /// The maps of these programs.
    pub(crate) fn of(programs: &UserPrograms) -> StateReader {
        let steering = programs.steering.iter().map(|program| (STEERING_PROGRAM.to_owned(), program));
        let plugins = programs.plugins.iter().map(|plugin| (plugin.name.clone(), &plugin.program));
        StateReader(
            steering.chain(plugins).map(|(name, program)| (name, Arc::clone(program.state()))).collect(),
        )
    }

    /// Each map: the name of its plug-in, or [`STEERING_PROGRAM`], and its own.
    pub fn maps(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.flat_map(|(program, state)| state.iter().map(move |map| (program.as_str(), map.name.as_str())))
    }

    /// All entries of a map; in an array also those that were never written. While packets flow, entries are read one after
    /// the other: their numbers need not be of one moment, and an entry may appear twice or not at all if others are removed
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::BadOption`] if there is no such map, or the error that the kernel returned.
    pub fn read(&self, program: &str, map: &str) -> Result<Vec<StateEntry>> {
        let of_program =
            self.0.iter().filter(|(name, _)| name == program).flat_map(|(_, state)| state.iter());
        let Some(found) = of_program.into_iter().find(|one| one.name == map) else {
            let known: Vec<String> = self.maps().map(|(program, map)| format!("{program} {map}")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::BadOption {
                option: "state",
                reason: format!("{program} has no map '{map}'; there are: {known}"),
            });
        };
        found.entries()
    }
}
