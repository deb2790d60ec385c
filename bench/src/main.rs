//! `wirelane-bench`: receivers in turn on the same generator, in one interleaved run.
//!
//! ```text
//! options -> run: for each round, setup, load, receiver
//!              bed        two namespaces, a veth pair, NAPI where the setup wants it
//!              trial      a receiver's process, the generator's process, and the account of every packet
//!              search     trials at chosen rates: the highest without loss
//!              cost       parts of a kernel program by themselves
//!              flow_caches  flows made in the kernel: cost, and parts that come up
//!              voip       RTP of calls, in the kernel and in user space
//!              http       HTTP logs side by side
//!              flow_rates   flow probes side by side
//!              stored     the store of flows: written, asked
//!              patterns   payloads searched, beside the crate that makes the automata
//!              libpcap    programs of libpcap's, on ours and the system's
//!              study      RX queues, workers, congestion, skew, sharing, rules
//!         -> summary -> report, csv, chart    in bench/results/DATE-KERNEL-PROCESSOR/
//! ```
//!
//! Receivers are processes, ours and others' alike, so that their CPU time is measured in the same way. Those that
//! no tool of the system brings are small ones in `receive`.

mod bed;
mod chart;
mod cost;
mod csv;
mod flow_caches;
mod flow_rates;
mod flows;
mod generate;
mod http;
mod libpcap;
mod options;
mod overload;
mod patterns;
mod probes;
mod readme;
mod receive;
mod receiver;
mod report;
mod run;
mod running;
mod skel;
mod stored;
mod study;
mod summary;
mod trial;
mod voip;

use std::env;
use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use machine::Machine;
use options::Options;
use run::Measured;
use summary::Line;
use trial::Tools;
use wirelane_testbed::{machine, process, search};

#[derive(Parser)]
#[command(name = "wirelane-bench", args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(clap::Subcommand)]
enum Command {
    /// One of the small receivers that ours is held against; ends at SIGTERM
    #[command(hide = true)]
    Receive(receive::Args),
    /// The generator of socket buffers inside the kernel
    #[command(hide = true)]
    Generate(generate::Args),
    /// The generator of flows that differ in size, or that end
    #[command(hide = true)]
    Flows(flows::Args),
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match &cli.command {
        Some(Command::Receive(args)) => return receive::run(args),
        Some(Command::Generate(args)) => return generate::run(args),
        Some(Command::Flows(args)) => return flows::run(args),
        None => {}
    }
    let options = cli.options.check()?;
    let tools = tools(&options)?;
    let machine = Machine::describe();
    let measured = run::run(&options, &tools)?;
    let lines = summary::summarise(&measured.trials);
    let studies = study::summary::summarise(&measured.studied.points, options.disturbed);
    let page = report::page(&options, &machine, &measured, &lines)
        + &study::report::page(&options, &machine, &studies, &measured.studied);
    let mut out = stdout().lock();
    out.write_all(page.as_bytes()).context("writing to standard output")?;
    let folder = write(&options, &machine, &measured, &lines, &studies, &page)?;
    writeln!(out, "\nwritten to {}", folder.display()).context("writing to standard output")?;
    if options.readme {
        readme::update(&wirelane_tests::repository(), &folder, &|below| readme::News {
            receivers: readme::section(&options, &machine, &lines, &measured.loss_free, below),
            studies: study::short::section(false, &studies, &options, &machine, below),
            rules: study::short::section(true, &studies, &options, &machine, below),
        })?;
        writeln!(out, "{} has the new figures", readme::PAGE).context("writing to standard output")?;
    }
    let ours: Vec<&str> = measured
        .failed
        .iter()
        .filter(|(receiver, _)| receiver.is_ours())
        .map(|(_, message)| message.as_str())
        .chain(
            measured.flow_rates.failed.iter().filter(|(ours, _)| *ours).map(|(_, message)| message.as_str()),
        )
        .chain(measured.http.failed.iter().filter(|(ours, _)| *ours).map(|(_, message)| message.as_str()))
        .chain(measured.studied.failed.iter().filter(|(ours, _)| *ours).map(|(_, message)| message.as_str()))
        .collect();
    ensure!(ours.is_empty(), "{} trials of ours failed: {}", ours.len(), ours.join("; "));
    Ok(())
}

/// This program, and `wirelane` beside it or where `WIRELANE_BIN` says.
fn tools(options: &Options) -> Result<Tools> {
    let bench = env::current_exe().context("finding this program")?;
    let wirelane =
        env::var_os("WIRELANE_BIN").map_or_else(|| bench.with_file_name("wirelane"), PathBuf::from);
    ensure!(
        wirelane.exists(),
        "{} has not been built: run 'make bench', which builds it, or set WIRELANE_BIN",
        wirelane.display()
    );
    let text = |path: &Path| {
        let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
        ensure!(!text.contains(char::is_whitespace), "{text}: a path with blanks cannot be used here");
        Ok(text.to_owned())
    };
    Ok(Tools { wirelane: text(&wirelane)?, bench: text(&bench)?, buffer: options.buffer })
}

/// Writes all results to a folder and returns its name.
fn write(
    options: &Options,
    machine: &Machine,
    measured: &Measured,
    lines: &[Line],
    studies: &[study::summary::Line],
    page: &str,
) -> Result<PathBuf> {
    let folder = options.out.clone().unwrap_or_else(|| {
        let results = wirelane_tests::repository().join("bench/results");
        unused(&results, &machine.run_name())
    });
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let machine_text = serde_json::to_string_pretty(machine)? + "\n";
    let files = [
        ("README.md", page.to_owned()),
        ("machine.json", machine_text),
        ("trials.csv", csv::trials(&measured.trials, &measured.search_trials, &measured.flow_rates)),
        ("summary.csv", csv::summary(lines)),
        ("loss-free.csv", csv::loss_free(&measured.loss_free)),
        ("patterns.csv", patterns::csv(&measured.searched)),
        ("libpcap.csv", libpcap::report::csv(&measured.compared)),
        ("flow-caches.csv", flow_caches::csv(&measured.flow_caches)),
        ("voip.csv", voip::csv(&measured.voip)),
        ("http.csv", http::csv(&measured.http)),
        ("flow-rates.csv", flow_rates::csv(&measured.flow_rates)),
        ("store.csv", stored::csv(&measured.stored)),
    ];
    for (file, text) in files {
        let path = folder.join(file);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    for load in options.loads() {
        let file = chart::file_name(load);
        let caption =
            format!("{}-byte frames, {}, full speed, {}", load.size, load.method.label(), machine.date);
        chart::write(&folder.join(file), lines, load, &caption)?;
    }
    flow_caches::chart(&folder.join("flow-caches.svg"), &measured.flow_caches, &machine.date)?;
    if !measured.studied.points.is_empty() {
        for (file, text) in [
            ("studies.csv", study::csv::points(&measured.studied.points)),
            ("studies-summary.csv", study::csv::summary(studies)),
        ] {
            let path = folder.join(file);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
    }
    let on = format!(
        "{}, {} cores, Linux {}, {}{}",
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.date,
        if options.disturbed { "; disturbed trials count too" } else { "" }
    );
    for one in study::Study::ALL {
        study::chart::write(&folder.join(study::chart::file_name(one)), one, studies, &on)?;
    }
    Ok(folder)
}

/// The folder of this name, or the first of NAME-2, NAME-3 and so on that is not there yet: no run takes the place of
/// another one.
fn unused(results: &Path, name: &str) -> PathBuf {
    let numbered = (2..).map(|number| results.join(format!("{name}-{number}")));
    let free = std::iter::once(results.join(name)).chain(numbered).find(|folder| !folder.exists());
    free.unwrap_or_else(|| results.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_run_has_a_folder_of_its_own() {
        let results = env::temp_dir().join(format!("wirelane-bench-folders-{}", std::process::id()));
        assert_eq!(unused(&results, "day"), results.join("day"));
        fs::create_dir_all(results.join("day")).unwrap();
        assert_eq!(unused(&results, "day"), results.join("day-2"));
        fs::create_dir_all(results.join("day-2")).unwrap();
        assert_eq!(unused(&results, "day"), results.join("day-3"));
        fs::remove_dir_all(results).unwrap();
    }
}
