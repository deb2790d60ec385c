//! Keys of the file of a monitor as words of the command that has them as options.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use wirelane_monitor::site::{Names, Site, Value};

/// Words of the command line for a section. `options`: the command that has them; `taken`: whether a key of that
/// name belongs to this section; `names`: options whose keys have other names.
pub fn words(
    site: &mut Site,
    section: &str,
    options: &Command,
    taken: &dyn Fn(&str) -> bool,
    names: &Names,
) -> Vec<String> {
    let known: Vec<(&str, &Arg)> = options
        .get_arguments()
        .filter_map(|arg| {
            let long = arg.get_long()?;
            match names.iter().find(|(_, option)| **option == long) {
                Some((key, _)) => Some((*key, arg)),
                None => (names.is_empty() && taken(long)).then_some((long, arg)),
            }
        })
        .collect();
    let keys: Vec<&str> = known.iter().map(|(key, _)| *key).collect();
    site.words(section, &keys, |key, value| {
        let arg = known.iter().find(|(name, _)| *name == key).map(|(_, arg)| *arg);
        let words = of_key(arg.ok_or("an unknown key")?, value)?;
        check(options, &words).map(|()| words)
    })
}

/// The words of an option with this value.
fn of_key(arg: &Arg, value: &Value) -> std::result::Result<Vec<String>, String> {
    let long = arg.get_long().unwrap_or_default();
    let several = matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some();
    let with = |words: &[String]| words.iter().map(|word| format!("--{long}={word}")).collect();
    match (value, arg.get_action().takes_values()) {
        (Value::Truth(true), false) => Ok(vec![format!("--{long}")]),
        (Value::Truth(false), false) => Ok(Vec::new()),
        (_, false) => Err("expected true or false".into()),
        (Value::Truth(_), true) => Err(format!("expected {}, not true or false", shown_value(arg))),
        (Value::Word(word), true) => Ok(with(std::slice::from_ref(word))),
        (Value::List(words), true) if several => Ok(with(words)),
        (Value::List(_), true) => Err(format!("expected {}, not a list", shown_value(arg))),
        (Value::Other(expected), true) => Err(format!("expected {expected}")),
    }
}

/// The kind of an option's value, as its help shows it.
fn shown_value(arg: &Arg) -> String {
    arg.get_value_names().and_then(|names| names.first()).map_or("a value".into(), ToString::to_string)
}

/// Checks the values of one option.
fn check(options: &Command, words: &[String]) -> std::result::Result<(), String> {
    let line = std::iter::once(options.get_name().to_owned()).chain(words.iter().cloned());
    match options.clone().try_get_matches_from(line) {
        Err(error) if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) => {
            Err(reason(&error))
        }
        // Whether options fit together is checked when all are known.
        _ => Ok(()),
    }
}

/// The reason of an error, without the command's usage.
pub fn reason(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    match (error.kind(), error.get(ContextKind::ValidValue)) {
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(valid))) if !valid.is_empty() => {
            format!("expected one of {}", valid.join(", "))
        }
        _ => {
            let text = error.to_string();
            let lines = text.lines().take_while(|line| !line.is_empty() && !line.starts_with("Usage"));
            let text = lines.map(str::trim).collect::<Vec<_>>().join(" ");
            text.trim_start_matches("error: ").replace("--", "")
        }
    }
}
