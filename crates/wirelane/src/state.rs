//! Reading the maps of plug-ins and steering programs (`wirelane/state.h`) while a capture runs.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::engine::ring::group_config::UserPrograms;
use crate::engine::ring::program::{Layout, State, StateMap};
use crate::error::{Error, Result};

/// The name of a capture's steering program among its programs with maps.
pub const STEERING_PROGRAM: &str = "steering-program";

/// The maps of a capture's plug-ins and of its steering program, for use on any thread ([`crate::Capture::state`]). They are the
/// same for all devices of the capture, and can be read after its end.
#[derive(Clone, Debug, Default)]
pub struct StateReader(Arc<[(String, State)]>);

/// An entry of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateEntry {
    /// The key, as the program wrote it.
    pub key: Vec<u8>,
    /// The value; of a map with values of each CPU, all of them by CPU number.
    pub values: Vec<Vec<u8>>,
    shown: Value,
}

impl StateEntry {
    /// An entry of a map with keys and values of these layouts.
    pub(crate) fn new(
        key: Vec<u8>,
        values: Vec<Vec<u8>>,
        (keys, of_values): &(Layout, Layout),
    ) -> StateEntry {
        let mut all = values.iter().map(|value| of_values.shown(value));
        let shown = match values.len() {
            1 => json!({"key": keys.shown(&key), "value": all.next()}),
            _ => json!({"key": keys.shown(&key), "values": all.collect::<Value>()}),
        };
        StateEntry { key, values, shown }
    }

    pub(crate) fn into_json(self) -> Value {
        self.shown
    }

    /// The entry as JSON, by the names of fields in the program's source: `key`, and `value` or, with a value of each CPU,
    /// `values`. Arrays of bytes are hexadecimal digits.
    pub fn json(&self) -> &Value {
        &self.shown
    }
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
    /// [`Error::BadOption`] if the capture does not have the map, or the error that the kernel returned.
    pub fn read(&self, program: &str, map: &str) -> Result<Vec<StateEntry>> {
        let (mut all, mut next) = self.page(program, map, None)?;
        while next.is_some() {
            let (page, after) = self.page(program, map, next)?;
            all.extend(page);
            next = after;
        }
        Ok(all)
    }

    /// Some entries of a map, from the beginning or from the position at which another page ended; and the position of the
    /// next page.
    ///
    /// # Errors
    /// As [`StateReader::read`].
    pub fn page(
        &self,
        program: &str,
        map: &str,
        from: Option<u32>,
    ) -> Result<(Vec<StateEntry>, Option<u32>)> {
        let of_program = self.0.iter().filter(|(name, _)| name == program);
        let found: Option<&StateMap> =
            of_program.flat_map(|(_, state)| state.iter()).find(|one| one.name == map);
        let Some(found) = found else {
            let known: Vec<String> = self.maps().map(|(program, map)| format!("{program} {map}")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::BadOption {
                option: "state",
                reason: format!("{program} has no map '{map}'; there are: {known}"),
            });
        };
        found.page(from)
    }
}
