//! Every option of an analysis is a key, or the guide says why it has none.

use clap::builder::PossibleValue;
use clap::{Arg, CommandFactory as _};

use super::print::{PRINTING, config};
use super::{ANALYSES, OTHERS, plan};

/// Options without a long name: a filter, what has a key of another name, and letters of tcpdump's without an effect.
const SHORT: [&str; 5] = ["filter", "config", "rotate_millions", "_no_names", "_unbuffered"];
/// Values of which at least one is accepted by each option that has a value.
const VALUES: [&str; 17] = [
    "1",
    "1s",
    "1MB",
    "8192",
    "zstd",
    "50,90",
    "bandwidth",
    "host",
    "127.0.0.1:9464",
    "json:out.json",
    "file:out.json",
    "hep://192.0.2.1:9060",
    "ipfix://192.0.2.1:4739",
    "name=file.bpf.o",
    "off",
    "exact=1",
    "eth1",
];

/// Options that this one needs.
fn needed(name: &str, long: &str) -> Option<&'static str> {
    Some(match (name, long) {
        (_, "metrics-cert" | "metrics-key" | "metrics-token-file" | "metrics-token-env") => {
            "--metrics=127.0.0.1:9464"
        }
        (_, long) if long.starts_with("store-") => "--store=folder",
        ("record", "keep-files" | "keep-size") => "--rotate-packets=100",
        ("voip", "all-messages") => "--export=hep://192.0.2.1:9060",
        ("voip", "with-audio") => "--save-calls=folder",
        _ => return None,
    })
}

/// The values to try with an option; an option without values has one that is empty.
fn values(arg: &Arg) -> Vec<String> {
    if !arg.get_action().takes_values() {
        return vec![String::new()];
    }
    let named = arg.get_possible_values();
    let named: Vec<&str> = named.iter().map(PossibleValue::get_name).collect();
    let values = if named.is_empty() { &VALUES[..] } else { &named };
    values.iter().map(|value| format!("={value}")).collect()
}

#[test]
fn every_option_of_an_analysis_is_a_key_or_an_exception_of_the_guide() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/monitor.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (site, probe) = (folder.path().join("site.toml"), folder.path().join("probe.toml"));
    std::fs::write(
        &probe,
        "[[measurement]]\nname = \"all\"\nanalysis = \"kernel\"\nvalues = [\"packets\"]\n",
    )
    .unwrap();
    let probe = probe.to_str().unwrap();
    for name in ANALYSES {
        let whole = crate::Command::command();
        let command = whole.find_subcommand(name).unwrap();
        let printed = |words: &[&str]| {
            let line = ["wirelane", name].into_iter().chain(words.iter().copied());
            let matches = whole.clone().try_get_matches_from(line).map_err(|error| error.to_string())?;
            config(name, matches.subcommand_matches(name).unwrap(), &[]).map_err(|error| error.to_string())
        };
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long() else {
                assert!(SHORT.contains(&arg.get_id().as_str()), "{name}: {} has no key", arg.get_id());
                continue;
            };
            if PRINTING.contains(&long) || OTHERS.contains(&long) {
                assert!(guide.contains(&format!("`--{long}`")), "the guide has no reason for --{long}");
                continue;
            }
            let mut base = match name {
                "record" if long != "write" => vec!["--write=file.pcapng"],
                "probe" if long == "cache-entries" => vec![probe],
                "probe" if !["config", "ready"].contains(&long) => vec!["--ready=bandwidth"],
                "flows" if long == "cache-entries" => vec!["--cache=kernel"],
                "http" if long == "kernel-directions" => vec!["--analysis=kernel"],
                "voip" if long == "streams" => vec!["--analysis=kernel"],
                _ => vec![],
            };
            if !["interface", "read"].contains(&long) {
                base.push("--interface=eth0");
            }
            base.extend(needed(name, long));
            let without = printed(&base);
            let attempt = |value: String| {
                let option = format!("--{long}{value}");
                let text = printed(&[&base[..], &[option.as_str()]].concat())?;
                if without.as_ref() == Ok(&text) {
                    return Err(format!("{option} is not in the file"));
                }
                std::fs::write(&site, &text).unwrap();
                plan(&site).map(|_| ()).map_err(|error| format!("{text}{error}"))
            };
            let failed: Result<Vec<String>, ()> =
                values(arg).into_iter().map(|value| attempt(value).err().ok_or(())).collect();
            if let Ok(refusals) = failed {
                panic!("{name} --{long} has no key that is accepted, and is no exception: {refusals:#?}");
            }
        }
    }
}
