//! Changing the rules of a running capture.

use std::path::PathBuf;

use anyhow::{Result, bail};
use wirelane::control::{Client, Purpose};
use wirelane::rules::{ExactFields, ExactRule, Rule, RuleSet};
use wirelane_monitor::rules::add_all;

use super::changed;
use crate::instance::Which;

/// Connects to the selected capture.
///
/// # Errors
/// If no capture, or more than one, matches.
pub fn connect(which: &Which) -> Result<Client> {
    Ok(which.connect(Purpose::Rules)?.1)
}

/// Add rules
///
/// A rule is given in words, as in a rule file with commas between alternatives: id=7 src=192.0.2.0/24,198.51.100.1
/// not.port=22 action=drop. Or all rules of a file are added (its default does not count). If one of them cannot be
/// added, none is; but of exact-match rules of a large file those that have been added by then stay.
#[derive(clap::Args, Debug)]
pub struct Add {
    /// The rule: id=N, conditions, action=pass|drop|count|redirect|none, and modifiers
    #[arg(value_name = "FIELD=VALUE", required_unless_present = "file", conflicts_with = "file")]
    words: Vec<String>,

    /// It is an exact-match rule: found by hash, fit for a million
    #[arg(long, alias = "precise", conflicts_with = "file")]
    exact: bool,

    /// Add the rules of this rule file
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    #[command(flatten)]
    which: Which,
}

/// Runs `add`.
///
/// # Errors
/// The fault of the rules, or the error of the capture.
pub fn add(args: &Add) -> Result<()> {
    let mut client = None;
    let set = match &args.file {
        Some(file) => {
            let client = client.insert(connect(&args.which)?);
            let set = super::read_for(file, &client.status()?)?;
            if !set.sets.is_empty() {
                bail!(
                    "named sets come with all rules at once: use 'wirelane rules load', or add the rules without [[sets]]"
                );
            }
            if !set.patterns.is_empty() {
                bail!(
                    "patterns come with all rules at once: use 'wirelane rules load', or add the rules without [[patterns]]"
                );
            }
            set
        }
        None => {
            let words = args.words.join(" ");
            let mut set = RuleSet::default();
            if args.exact {
                set.exact.push(ExactRule::from_words(&words)?);
            } else {
                set.rules.push(Rule::from_words(&words)?);
            }
            set
        }
    };
    let mut client = client.map_or_else(|| connect(&args.which), Ok)?;
    changed(add_all(&mut client, set)?, args.which.json)
}

/// Remove rules, and the exact-match rules that they inserted
#[derive(clap::Args, Debug)]
pub struct Del {
    /// Ids of rules, exact or not; with --exact: the fields of an exact-match rule, as in src=192.0.2.1 dst-port=53
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,

    /// Remove the exact-match rule with these fields
    #[arg(long, alias = "precise")]
    exact: bool,

    #[command(flatten)]
    which: Which,
}

/// Runs `del`.
///
/// # Errors
/// If the arguments are not ids or fields, there are no such rules, or the capture reports an error.
pub fn del(args: &Del) -> Result<()> {
    let mut client = connect(&args.which)?;
    let change = if args.exact {
        client.remove(Vec::new(), vec![fields(&args.ids.join(" "))?])?
    } else {
        client.remove(ids(&args.ids)?, Vec::new())?
    };
    if change.removed == 0 {
        bail!("no such rule ('wirelane rules list' shows the existing ones)");
    }
    changed(change, args.which.json)
}

fn ids(words: &[String]) -> Result<Vec<u32>> {
    let id = |word: &String| match word.parse() {
        Ok(id) if id > 0 => Ok(id),
        _ => Err(wirelane::Error::BadOption {
            option: "ID",
            reason: format!(
                "'{}' is not a rule's id; fields of an exact-match rule need --exact",
                word.escape_debug()
            ),
        }),
    };
    let all: Vec<&str> = words.iter().flat_map(|word| word.split(',')).collect();
    Ok(all.into_iter().map(|word| id(&word.to_owned())).collect::<std::result::Result<_, _>>()?)
}

/// Parses the fields in these words. Other parts of a rule are filled in.
fn fields(words: &str) -> Result<ExactFields> {
    Ok(ExactRule::from_words(&format!("{words} id=1 action=none"))?.fields)
}
