//! `--print-config`: the file with which a monitor does what a command line does.

use anyhow::{Result, anyhow};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as _, Command, CommandFactory as _};
use wirelane::Error;
use wirelane_monitor::out;
use wirelane_monitor::site::{quoted, value};

use super::{ANALYSES, CaptureArgs, OTHERS, metrics_names, store_names};

/// Options without an effect on a monitor, which prints its ledger only.
pub(super) const PRINTING: [&str; 3] = ["json", "quiet", "print-config"];

/// Prints the file for the command line of this command. `settled`: keys of `[capture]` that a probe's configuration adds to
/// the options, with their values.
///
/// # Errors
/// An option that has no key.
pub fn run(name: &str, matches: &ArgMatches, settled: &[(&'static str, Vec<String>)]) -> Result<()> {
    let matches = matches.subcommand_matches(name).ok_or_else(|| anyhow!("not a command: {name}"))?;
    out::print(config(name, matches, settled)?)
}

/// The text of the file.
pub(super) fn config(
    name: &str,
    matches: &ArgMatches,
    settled: &[(&'static str, Vec<String>)],
) -> Result<String> {
    let name = ANALYSES.into_iter().find(|known| *known == name);
    let name = name.ok_or_else(|| anyhow!("a command without a section; this is a bug"))?;
    let given = |id: &str| {
        let known = matches.try_contains_id(id).is_ok_and(|is_there| is_there);
        known && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let capture = CaptureArgs::augment_args(Command::new("capture"));
    let is_capture = |long: &str| capture.get_arguments().any(|arg| arg.get_long() == Some(long));
    let names = [("store", store_names()), ("metrics", metrics_names())];
    let renamed = |long: &str| {
        names.iter().find_map(|(section, names)| {
            let (key, _) = names.iter().find(|(_, option)| **option == long)?;
            Some((*section, *key))
        })
    };
    let mut sections: [(&str, String); 4] =
        ["capture", name, "store", "metrics"].map(|name| (name, String::new()));
    let mut add = |section: &str, key: &str, value: &str| {
        let found = sections.iter_mut().find(|(name, _)| *name == section);
        found.into_iter().for_each(|(_, keys)| *keys += &format!("{key} = {value}\n"));
    };
    let command = crate::Command::command();
    let command = command.find_subcommand(name).ok_or_else(|| anyhow!("not a command: {name}"))?;
    // Behind --ready, the first word of the filter stands in the place of the configuration.
    let mut filter = Vec::new();
    for arg in command.get_arguments() {
        if !given(arg.get_id().as_str()) {
            continue;
        }
        let Some(long) = arg.get_long() else {
            let words = || words(arg, matches);
            match (arg.get_id().as_str(), arg.get_short()) {
                ("config", _) if !given("ready") => add(name, "config", &value(&words()?)),
                (_, None) => filter.extend(words()?),
                // A number without a unit is in millions of bytes.
                ("rotate_millions", _) => {
                    let unit =
                        |word: &String| if word.ends_with(|c: char| c.is_ascii_digit()) { "MB" } else { "" };
                    let words: Vec<String> =
                        words()?.iter().map(|word| format!("{word}{}", unit(word))).collect();
                    add(name, "rotate-size", &value(&words));
                }
                // Letters of tcpdump's, without an effect.
                _ => {}
            }
            continue;
        };
        if PRINTING.contains(&long) {
            continue;
        }
        if OTHERS.contains(&long) {
            let reason = format!("a monitor has nothing like --{long}: leave it out");
            return Err(Error::BadOption { option: "--print-config", reason }.into());
        }
        let value = match arg.get_action().takes_values() {
            false => "true".to_owned(),
            true => value(&words(arg, matches)?),
        };
        match renamed(long) {
            Some((section, key)) => add(section, key, &value),
            None if is_capture(long) => add("capture", long, &value),
            None => add(name, long, &value),
        }
    }
    if !filter.is_empty() {
        add("capture", "filter", &quoted(&filter.join(" ")));
    }
    for (key, words) in settled {
        if !given(key) && (*key != "filter" || filter.is_empty()) {
            add("capture", key, &value(words));
        }
    }
    let mut text = format!("# Configuration of 'wirelane monitor' with the options of 'wirelane {name}'.\n");
    for (section, keys) in sections {
        if section == name || !keys.is_empty() {
            text += &format!("\n[{section}]\n{keys}");
        }
    }
    Ok(text)
}

/// The values of an option as they were written.
fn words(arg: &Arg, matches: &ArgMatches) -> Result<Vec<String>> {
    let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    let text = |value: &std::ffi::OsStr| {
        let shown = value.display();
        value
            .to_str()
            .map(str::to_owned)
            .ok_or_else(|| anyhow!("{shown} is not UTF-8: a file cannot have it"))
    };
    values.map(text).collect()
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::super::{Part, plan};
    use super::*;
    use crate::{flows, http, record, voip};

    /// The file of a command line is accepted, and its options are those of the command line, to the last default.
    #[test]
    fn the_file_of_a_command_line_has_its_options() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("site.toml");
        let lines = [
            "record -i eth1 -w all.pcapng",
            "record -i eth1@0-3,eth2 -i eth3 -w all.pcapng --rotate-size 1GiB --keep-size 100GiB --compress zstd --workers 4 \
             --steering source -s 96 --no-promiscuous --cores 1,3 --congestion-control 50,90 --duration 10m -c 100",
            "record -r in.pcapng -w all.pcapng --post-rotate 'gzip \\\"$1\\\" \\\\ é' --overwrite",
            "flows -i eth1",
            "flows -i eth1 --quiet --export ipfix://192.0.2.1:4739 --export file:flows.json --biflow --workers 2 \
             --store flows.db --store-max-size 10GB --store-rotate 1m --memory 2GiB tcp port 80 and not 'net 10.0.0.0/8'",
            "flows -i eth1 --rules rules.toml --mirror-to eth2,eth3 --rules-capacity exact=10,rules=20 --hook tc --inner",
            "flows -i eth1 --cache kernel --cache-entries 8192 --output-rate 0 --json",
            "http -i eth1 --quiet --log combined:access.log --log json:http.json --user nobody -F filter.txt",
            "http -i eth1 --metrics 127.0.0.1:9464 --direction rx --interval 500ms port 80",
            "voip -i eth1 --quiet --export hep://192.0.2.1:9060 --save-calls calls --store calls.db udp",
        ];
        for line in lines {
            let words = shlex::split(&format!("wirelane {line}")).unwrap();
            let matches = crate::Command::command().try_get_matches_from(&words).unwrap();
            let (name, matches) = matches.subcommand().unwrap();
            let text = config(name, matches, &[]).unwrap();
            std::fs::write(&file, &text).unwrap();
            let plan = plan(&file).unwrap_or_else(|error| panic!("{line}\n{text}\n{error:#}"));
            let part = match &plan.parts[..] {
                [Part::Record(args)] => format!("{args:?}"),
                [Part::Flows(args)] => format!("{args:?}"),
                [Part::Http(args)] => format!("{args:?}"),
                [Part::Voip(args)] => format!("{args:?}"),
                _ => panic!("{line}\n{text}"),
            };
            // A monitor prints its ledger only, and has the metrics and its expression for all analyses.
            let printing = |words: &[String]| -> Vec<String> {
                let metrics = words.iter().position(|word| word == "--metrics");
                let mut words = words.to_vec();
                metrics.into_iter().for_each(|at| drop(words.drain(at..at + 2)));
                words.retain(|word| !["--json", "--quiet"].contains(&word.as_str()));
                words.insert(2, "--quiet".to_owned());
                words
            };
            let plain = printing(&words);
            let of_line = crate::Command::command().try_get_matches_from(&plain).unwrap();
            let of_line = of_line.subcommand_matches(name).unwrap();
            let direct = match name {
                "record" => format!("{:?}", record::Args::from_arg_matches(of_line).unwrap()),
                "flows" => format!("{:?}", flows::Args::from_arg_matches(of_line).unwrap()),
                "http" => format!("{:?}", http::Args::from_arg_matches(of_line).unwrap()),
                _ => format!("{:?}", voip::Args::from_arg_matches(of_line).unwrap()),
            };
            let joined = |text: &str| text.replace("\", \"", " ");
            assert_eq!(joined(&part), joined(&direct), "{line}\n{text}");
            let metrics = format!("{:?}", plan.capture.metrics);
            assert_eq!(metrics.contains("127.0.0.1:9464"), line.contains("--metrics"), "{metrics}");
        }
    }

    #[test]
    fn an_option_without_a_key_is_refused() {
        let words = ["wirelane", "flows", "-i", "eth1", "--csv", "--print-config"];
        let matches = crate::Command::command().try_get_matches_from(words).unwrap();
        let error = config("flows", matches.subcommand_matches("flows").unwrap(), &[]).unwrap_err();
        assert!(error.to_string().contains("nothing like --csv"), "{error}");
    }
}
