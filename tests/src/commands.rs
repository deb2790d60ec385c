//! Every command that reads a network, for tests of their common properties.

use std::fs;
use std::path::Path;

use anyhow::Result;

/// A probe configuration that uses every part of a packet.
pub const PROBE: &str = "interval = \"1s\"\n[[measurement]]\nname = \"all\"\nkey = [\"src\", \"application\"]\n\
    values = [\"packets\", \"bytes\", \"lengths\", \"gaps\", \"flows\", \"segments\", \"top-dst\", \"distinct-dst\"]\n\
    [[measurement]]\nname = \"sources\"\nkey = [\"src\"]\nvalues = [\"packets\", \"macs\", \"entropy\"]\n";
/// A probe configuration that is measured in the kernel.
const KERNEL_PROBE: &str = "[[measurement]]\nname = \"all\"\nkey = [\"src\"]\nvalues = [\"packets\", \"bytes\"]\nanalysis = \"kernel\"\n";

/// Commands that capture, with their options, without the device; files that they need and write are in `folder`.
///
/// # Errors
/// If a file cannot be written.
pub fn capturing(folder: &Path) -> Result<Vec<Vec<String>>> {
    for (name, text) in [("probe.toml", PROBE), ("kernel.toml", KERNEL_PROBE)] {
        fs::write(folder.join(name), text)?;
    }
    let path = |name: &str| folder.join(name).display().to_string();
    let (probe, kernel, recording) = (path("probe.toml"), path("kernel.toml"), path("out.pcapng"));
    let store = path("store.db");
    let commands: [&[&str]; 14] = [
        &["count"],
        &["count", "--workers", "2", "--engine", "packet"],
        &["count", "--engine", "xsk", "--exclusive"],
        &["packets"],
        &["record", "-w", &recording, "--overwrite"],
        &["flows"],
        &["flows", "--cache", "kernel", "--store", &store],
        &["http"],
        &["http", "--analysis", "kernel"],
        &["voip"],
        &["voip", "--analysis", "kernel"],
        &["probe", &probe],
        &["probe", &kernel],
        &["receive"],
    ];
    Ok(commands.map(|words| words.iter().map(|word| (*word).to_owned()).collect()).into())
}

/// Commands that read a file, with the options that read the most of it, without the file.
///
/// # Errors
/// If a file cannot be written.
pub fn reading(folder: &Path) -> Result<Vec<Vec<String>>> {
    let probe = folder.join("probe.toml");
    fs::write(&probe, PROBE)?;
    let probe = probe.display().to_string();
    let commands: [&[&str]; 10] = [
        &["count"],
        &["packets"],
        &["record", "-w", "/dev/null"],
        &["record", "-w", "/dev/null", "--format", "pcap", "-s", "60"],
        &["flows", "--biflow", "--inner"],
        &["flows"],
        &["http", "--inner"],
        &["voip", "--heuristic"],
        &["receive"],
        &["probe", &probe],
    ];
    Ok(commands.map(|words| words.iter().map(|word| (*word).to_owned()).collect()).into())
}
