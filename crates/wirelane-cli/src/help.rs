//! The short help (-h) of each command: examples, then the command's own options, in at most 30 lines; the list of commands
//! by purpose; and the page of the options that all captures share ('wirelane help capture').

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write as _;

use clap::{Arg, Args as _, Command};

use crate::source::SourceArgs;

/// Maximum number of lines of a short help.
pub const LINES: usize = 30;
/// Maximum width of its lines.
const WIDTH: usize = 80;
/// Maximum number of examples in it.
const EXAMPLES: usize = 5;
/// Options that captures share and that everybody needs.
const BASIC: [&str; 4] = ["interface", "read", "packets", "json"];
/// Options that only some of the captures have, with the same meaning.
const WORKERS: [&str; 3] = ["workers", "steering", "balance"];

/// Commands by purpose.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Look and keep", &["devices", "count", "packets", "groups", "record", "query", "report", "ship"]),
    ("Analyse", &["flows", "http", "voip", "probe", "monitor", "check"]),
    ("Control", &["status", "reload", "rules", "tune"]),
    (
        "Send, measure, other tools",
        &["send", "receive", "testbed", "run", "extcap", "completions", "man", "help"],
    ),
];

/// The commands with their descriptions, by purpose, except one.
fn groups(definition: &Command, without: &str) -> String {
    let mut text = String::new();
    for (purpose, names) in GROUPS {
        let _ = writeln!(text, "{purpose}:");
        for name in names.iter().filter(|name| **name != without) {
            let about = match definition.find_subcommand(name).and_then(Command::get_about) {
                Some(about) if *name != "help" => about.to_string(),
                _ => "Print the help of a command; 'help capture': options of captures".to_owned(),
            };
            let _ = writeln!(text, "{}", clipped(&format!("  {name:<12}{about}")));
        }
    }
    text
}

/// The definition with the commands by purpose in its own help.
pub fn grouped(definition: Command) -> Command {
    let commands = groups(&definition, "");
    let braces = commands.replace('{', "(").replace('}', ")");
    definition.help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\nCommands:\n\n{braces}\nOptions:\n{{options}}{{after-help}}"
    ))
}

/// The help that these words ask for, if it is one of this module.
pub fn asked(mut definition: Command, words: &[OsString]) -> Option<String> {
    definition.build();
    let words: Vec<&str> = words.iter().skip(1).map(|word| word.to_str().unwrap_or_default()).collect();
    if words == ["help", "capture"] {
        return capture(&definition);
    }
    let end = words.iter().position(|word| *word == "-h")?;
    let mut command = &definition;
    let mut name = "wirelane".to_owned();
    for word in words[..end].iter().filter(|word| !word.starts_with('-')) {
        // Further words are values of options.
        let Some(inner) = command.find_subcommand(word) else { break };
        command = inner;
        let _ = write!(name, " {word}");
    }
    Some(if name == "wirelane" { overview(&definition) } else { short(command, &name) })
}

/// The short help of the program: 'help' is in its first line.
fn overview(definition: &Command) -> String {
    format!(
        "Usage: wirelane COMMAND [OPTIONS] (COMMAND -h; help COMMAND; help capture)\n{}",
        groups(definition, "help")
    )
}

/// The page of the options that captures share: those of 'count' without its own.
fn capture(definition: &Command) -> Option<String> {
    let about = "Options of all commands that capture or read files: count, packets, record, flows, http, voip, probe, receive";
    let command = definition.find_subcommand("count")?.clone().name("COMMAND").bin_name("wirelane COMMAND");
    let shared = shared();
    let mut command = command.mut_args(|arg| {
        let hidden = arg.is_hide_set() || !shared.contains(arg.get_id().as_str());
        arg.hide(hidden)
    });
    command = command
        .long_about(about)
        .after_long_help("")
        .override_usage("wirelane COMMAND [OPTIONS] [EXPRESSION]...");
    Some(format!("{}\n", command.render_long_help().to_string().trim_end()))
}

/// Names of the options that captures share.
fn shared() -> HashSet<String> {
    let definition = SourceArgs::augment_args(Command::new("capture"));
    let names = definition.get_arguments().map(|arg| arg.get_id().to_string());
    names.chain(WORKERS.map(str::to_owned)).collect()
}

/// The short help of a command with this full name.
pub fn short(command: &Command, name: &str) -> String {
    let mut text = String::new();
    if let Some(about) = command.get_about() {
        let _ = writeln!(text, "{}\n", clipped(&about.to_string()));
    }
    let long = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let examples = examples(&long);
    if !examples.is_empty() {
        let _ = writeln!(text, "Examples:\n{examples}");
    }
    let usage = command.clone().bin_name(name).render_usage().to_string();
    let _ = writeln!(text, "{}\n", usage.lines().next().unwrap_or_default());
    let captures = command.get_arguments().any(|arg| arg.get_id() == "filter_file");
    let common = if captures { shared() } else { HashSet::new() };
    let mut rows: Vec<String> = Vec::new();
    let visible: Vec<&Arg> =
        command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help").collect();
    let basic = visible.iter().filter(|arg| captures && BASIC.contains(&arg.get_id().as_str()));
    let own = visible.iter().filter(|arg| !common.contains(arg.get_id().as_str()));
    rows.extend(basic.chain(own).map(|arg| row(arg)));
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
    {
        let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
        rows.push(clipped(&format!("  {:<12}{}", inner.get_name(), about)));
    }
    // The end has three lines.
    let room = LINES.saturating_sub(text.lines().count() + 3);
    let left_out = rows.len().saturating_sub(room);
    rows.truncate(room);
    rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
    let more = if left_out > 0 { format!("{left_out} more options, ") } else { String::new() };
    let _ = write!(text, "\n{name} --help: {more}all details");
    if captures {
        text.push_str("\nwirelane help capture: options of all captures");
    }
    text.push('\n');
    text
}

/// The first examples of a long help.
fn examples(long: &str) -> String {
    let lines = long.lines().skip_while(|line| *line != "Examples:").skip(1);
    let mut text = String::new();
    let mut shown = 0;
    let mut lines = lines.take_while(|line| line.starts_with("  ")).peekable();
    while let Some(line) = lines.next() {
        let continues = lines.peek().is_some_and(|next| next.starts_with("   "));
        if continues {
            // One of several lines is in the long help.
            while lines.next_if(|next| next.starts_with("   ")).is_some() {}
            continue;
        }
        let _ = writeln!(text, "{line}");
        shown += 1;
        if shown == EXAMPLES {
            break;
        }
    }
    text
}

/// An option on one line.
fn row(arg: &Arg) -> String {
    let values: Vec<&str> = arg.get_value_names().into_iter().flatten().map(|name| name.as_str()).collect();
    let takes = arg.get_action().takes_values();
    let value = match (takes, values.first()) {
        (true, Some(value)) if arg.is_positional() => format!("{value} "),
        (true, Some(value)) => format!(" {value}"),
        _ => String::new(),
    };
    let names = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, Some(long)) => format!("    --{long}"),
        (None, None) => String::new(),
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let column = format!("  {names}{value}");
    clipped(&format!("{column:<30} {}", first_clause(&help)))
}

/// A text up to the end of its first sentence or clause.
fn first_clause(text: &str) -> &str {
    let ends = [". ", "; ", ": ", " (", ", as in", ", which"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    &text[..end]
}

/// A line, cut before a word that does not fit.
fn clipped(line: &str) -> String {
    if line.chars().count() <= WIDTH {
        return line.to_owned();
    }
    let start: String = line.chars().take(WIDTH - 3).collect();
    let end = start.rfind(' ').unwrap_or(start.len());
    format!("{}...", start[..end].trim_end_matches([' ', ',']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn short_helps_have_30_lines_of_80_columns_and_begin_with_examples() {
        let mut definition = crate::Command::command();
        definition.build();
        let mut pages = vec![("wirelane".to_owned(), overview(&definition))];
        let mut commands: Vec<(String, Command)> = vec![("wirelane".to_owned(), definition)];
        while let Some((name, command)) = commands.pop() {
            for inner in
                command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
            {
                let name = format!("{name} {}", inner.get_name());
                pages.push((name.clone(), short(inner, &name)));
                commands.push((name, inner.clone()));
            }
        }
        assert!(pages.len() > 25, "{}", pages.len());
        for (name, page) in &pages {
            assert!(page.lines().count() <= LINES, "{name}:\n{page}");
            let long: Vec<&str> = page.lines().filter(|line| line.chars().count() > WIDTH).collect();
            assert!(long.is_empty(), "{name}: {long:?}");
            let begins_with_examples = page.lines().nth(2) == Some("Examples:");
            let of_captures = page.contains("wirelane help capture");
            assert!(begins_with_examples || !of_captures || name == "wirelane", "{name}:\n{page}");
        }
    }

    #[test]
    fn each_command_is_in_one_group() {
        let mut definition = crate::Command::command();
        definition.build();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut all: Vec<&str> = definition
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn the_page_of_captures_has_their_options() {
        let mut definition = crate::Command::command();
        definition.build();
        let page = capture(&definition).unwrap();
        let foreign = ["--load", "-n...", "wirelane count"];
        assert!(foreign.iter().all(|text| !page.contains(text)), "{page}");
        for option in
            ["--interface", "--engine", "--ring-size", "--rules", "--duration", "--user", "EXPRESSION"]
        {
            assert!(page.contains(option), "{option}: {page}");
        }
    }
}
