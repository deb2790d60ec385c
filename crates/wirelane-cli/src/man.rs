//! `wirelane man`: manual pages, from the same definition as `--help`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use wirelane_monitor::out;

/// Print wirelane's manual page, or write the pages of all commands
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Folder to write all pages to: wirelane.1, wirelane-count.1, and so on. It is made where it is not there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Examples:
  wirelane man | man -l -
  wirelane man --dir ~/.local/share/man/man1";

/// Runs the command; `definition` is the whole command line's.
pub fn run(args: &Args, mut definition: clap::Command) -> Result<()> {
    definition = definition.disable_help_subcommand(true);
    definition.build();
    let shown = || definition.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<String> = shown().map(|command| format!("wirelane-{}", command.get_name())).collect();
    let Some(folder) = &args.dir else {
        return out::print(page(definition.clone(), "wirelane", &names)?);
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for (command, name) in shown().zip(&names) {
        write(folder, name, &page(command.clone(), name, &["wirelane".to_owned()])?)?;
    }
    write(folder, "wirelane", &page(definition.clone(), "wirelane", &names)?)
}

fn write(folder: &Path, name: &str, page: &[u8]) -> Result<()> {
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, page).with_context(|| path.display().to_string())
}

/// One page. The text after the options in the help has a fixed layout, which is kept.
fn page(definition: clap::Command, name: &str, see_also: &[String]) -> io::Result<Vec<u8>> {
    let notes = definition.get_after_long_help().or(definition.get_after_help()).map(ToString::to_string);
    let has_commands = definition.has_subcommands();
    let man = Man::new(definition).title(name).section("1");
    let man = man.manual("Wirelane").source(concat!("wirelane ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    if let Some(notes) = notes {
        rest.control("SH", ["NOTES"]).control("nf", []).text([roman(notes)]).control("fi", []);
    }
    rest.control("SH", ["SEE ALSO"]);
    for (at, other) in see_also.iter().enumerate() {
        let comma = if at + 1 < see_also.len() { "," } else { "" };
        rest.text([bold(other), roman(format!("(1){comma}"))]);
    }
    page.write_all(rest.render().as_bytes())?;
    Ok(page)
}
