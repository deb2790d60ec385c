//! Parameters of plug-ins and of the steering program (`STATE_PARAMETER()` of `wirelane/state.h`), as rule files set them. Their
//! names and types are known once the programs are read: when a capture starts.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::RuleSet;
use super::mistake::Mistake;
use super::names::shown;
use super::plugins::no_plugin;
use crate::{Error, Result};

/// A parameter that a rule file sets.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Parameter {
    /// Name of the plug-in; `None`: the steering program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// Name of the parameter.
    pub name: String,
    /// Its value.
    pub value: ParameterValue,
    /// Where a rule file sets it: file, line and column, as in [`Mistake`].
    #[serde(skip)]
    pub at: (PathBuf, usize, usize),
}

/// Value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParameterValue {
    /// Of an integer.
    Number(i64),
    /// Of a `packet_bool`.
    Truth(bool),
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterValue::Number(number) => number.fmt(f),
            ParameterValue::Truth(truth) => truth.fmt(f),
        }
    }
}

/// Without the place.
impl PartialEq for Parameter {
    fn eq(&self, other: &Parameter) -> bool {
        self.is_same(other) && self.value == other.value
    }
}

impl Parameter {
    /// Whether both are values of the same parameter.
    pub fn is_same(&self, other: &Parameter) -> bool {
        (&self.plugin, &self.name) == (&other.plugin, &other.name)
    }

    /// A mistake at this parameter.
    pub fn mistake(&self, reason: &str) -> Mistake {
        let (path, line, column) = self.at.clone();
        let of = self
            .plugin
            .as_ref()
            .map_or("the steering program".to_owned(), |name| format!("plug-in '{}'", shown(name)));
        Mistake { path, line, column, reason: format!("parameter '{}' of {of}: {reason}", shown(&self.name)) }
    }
}

impl RuleSet {
    /// The parameters of a plug-in; `None`: of the steering program.
    pub fn parameters_of<'a>(&'a self, plugin: Option<&'a str>) -> impl Iterator<Item = &'a Parameter> {
        self.parameters.iter().filter(move |one| one.plugin.as_deref() == plugin)
    }

    /// Checks that a capture with these plug-ins, and with a steering program or without, has all programs whose parameters
    /// are set.
    ///
    /// # Errors
    /// [`Error::Rules`] with every parameter of another program.
    pub fn check_parameters(&self, plugins: &[String], steering_program: bool) -> Result<()> {
        let reason = |one: &Parameter| match &one.plugin {
            Some(name) => (!plugins.contains(name)).then(|| no_plugin(name, plugins)),
            None => (!steering_program)
                .then(|| "the capture has none: start it with --steering-program FILE.bpf.o".to_owned()),
        };
        refuse(self.parameters.iter().filter_map(|one| Some(one.mistake(&reason(one)?))).collect())
    }

    /// Checks that the set has no parameters but those that its capture was started with: they are constants of the running
    /// program.
    ///
    /// # Errors
    /// [`Error::Rules`] with every other parameter or value.
    pub fn check_fixed_parameters(&self, started: &[Parameter]) -> Result<()> {
        let changed = self.parameters.iter().filter(|one| !started.contains(one));
        let mistake = |one: &Parameter| {
            let now = started.iter().find(|other| other.is_same(one));
            let now = now.map_or("not set".to_owned(), |now| format!("{}", now.value));
            one.mistake(&format!("is {now} since the capture started; start the capture again to change it"))
        };
        refuse(changed.map(mistake).collect())
    }
}

/// An error with these mistakes, if there are any.
///
/// # Errors
/// [`Error::Rules`].
pub fn refuse(mistakes: Vec<Mistake>) -> Result<()> {
    if mistakes.is_empty() { Ok(()) } else { Err(Error::Rules { mistakes }) }
}
