//! `wirelane rules state`: maps of plug-ins and of the steering program.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use wirelane::control::Purpose;
use wirelane::escape::to_json;
use wirelane_monitor::out;
use wirelane_monitor::rules::entry as text;
use wirelane_screen::table::printable;

use crate::instance::Which;

/// Show the maps of plug-ins and of the steering program
///
/// Keys and values by the names of their fields in the program's source, arrays of bytes in hexadecimal digits. Maps with a
/// value of each CPU show all of them. While packets flow, entries are read one after the other.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The plug-in, or steering-program; without: list the maps
    #[arg(requires = "map")]
    program: Option<String>,

    /// Its map
    map: Option<String>,

    #[command(flatten)]
    which: Which,
}

/// Runs `state`.
///
/// # Errors
/// If the capture does not have the map, or the error of the capture.
pub fn run(args: &Args) -> Result<()> {
    let json = args.which.json;
    let (status, mut client) = args.which.connect(Purpose::Rules)?;
    let (mut entries, mut next) = (0, None);
    let Some((program, map)) = args.program.as_ref().zip(args.map.as_ref()) else {
        for (program, map) in &status.maps {
            out::print(if json {
                to_json(&json!({"program": program, "map": map}))? + "\n"
            } else {
                format!("{} {}\n", printable(program), printable(map))
            })?;
        }
        return end(json, status.maps.len());
    };
    if !status.maps.iter().any(|(own, name)| (own, name) == (program, map)) {
        bail!(
            "the capture has no map '{}' of '{}' ('wirelane rules state' lists its maps)",
            printable(map),
            printable(program)
        );
    }
    loop {
        let (page, after) = client.state(program, map, next)?;
        entries += page.len();
        let line =
            |entry: &Value| if json { to_json(entry).map(|line| line + "\n") } else { Ok(text(entry)) };
        out::print(page.iter().map(line).collect::<Result<String, _>>()?)?;
        if after.is_none() {
            return end(json, entries);
        }
        next = after;
    }
}

/// The last line.
fn end(json: bool, entries: usize) -> Result<()> {
    if json { out::print(to_json(&json!({"final": true, "entries": entries}))? + "\n") } else { Ok(()) }
}
