//! Checks that the program accepts the command lines in README.md and `docs/`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;

/// Info strings of blocks that contain command lines.
const SHELL: [&str; 4] = ["", "console", "sh", "bash"];
/// Tokens that end a command.
const BETWEEN: [&str; 5] = ["|", "||", "&&", "&", ";"];

fn pages() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![top.join("README.md")];
    let mut folders = vec![top.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Command lines of a page with their line numbers: the text after `$ `, and in blocks without it all lines that begin
/// with `wirelane` or `sudo wirelane`. A `\` at the end continues a line.
fn command_lines(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, _)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let block: Vec<(&str, usize)> =
            lines.by_ref().take_while(|(line, _)| !line.trim_start().starts_with("```")).collect();
        if SHELL.contains(&info.split([' ', ',']).next().unwrap_or_default()) {
            commands_of(&block, &mut found);
        }
    }
    found
}

/// Adds the command lines of a block.
fn commands_of(block: &[(&str, usize)], found: &mut Vec<(usize, String)>) {
    let starts = ["wirelane ", "sudo wirelane "];
    let has_prompts = block.iter().any(|(line, _)| line.starts_with("$ "));
    let mut continued = false;
    for (line, at) in block {
        let typed = if has_prompts { line.strip_prefix("$ ") } else { Some(*line) };
        let text = match typed {
            _ if continued => line,
            Some(typed) if has_prompts || starts.iter().any(|start| typed.starts_with(start)) => typed,
            _ => continue,
        };
        let part = text.strip_suffix('\\');
        match found.last_mut() {
            Some((_, command)) if continued => command.push_str(part.unwrap_or(text)),
            _ => found.push((*at, part.unwrap_or(text).to_owned())),
        }
        continued = part.is_some();
    }
}

/// The words of each `wirelane` command in a command line.
fn commands(line: &str) -> Vec<Vec<String>> {
    // `;` ends a command even without a blank before it.
    let spaced = line.replace("; ", " ; ");
    let words = shlex::split(&spaced).unwrap_or_else(|| panic!("quotes do not match: {line}"));
    let commands = words.split(|word| BETWEEN.contains(&word.as_str()));
    commands
        .filter_map(|words| {
            let start = words.iter().position(|word| word == "wirelane" || word.ends_with("/wirelane"))?;
            let before = &words[..start];
            let is_run = before.iter().all(|word| word == "sudo" || word.contains('='));
            let of_it = words[start..].iter().take_while(|word| !is_redirection(word)).cloned();
            is_run.then(|| of_it.collect())
        })
        .collect()
}

fn is_redirection(word: &str) -> bool {
    word.trim_start_matches(|digit: char| digit.is_ascii_digit()).starts_with(['>', '<'])
}

#[test]
fn command_lines_in_the_documents_are_accepted() {
    let mut checked = 0;
    let mut refused = Vec::new();
    for page in pages() {
        for (at, line) in command_lines(&fs::read_to_string(&page).unwrap()) {
            for words in commands(&line) {
                checked += 1;
                match crate::Command::command().try_get_matches_from(&words) {
                    Ok(_) => {}
                    Err(error) if !error.use_stderr() => {}
                    Err(error) => refused.push(format!("{}:{at}: {line}\n{error}", page.display())),
                }
            }
        }
    }
    assert!(checked > 20, "only {checked} command lines were found");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn words_of_commands_are_found_in_pipes_and_behind_sudo() {
    let line = "FILE=a sudo wirelane record -i eth1 -w - 2>/dev/null | tcpdump -r -; wirelane query 'a b' > out # why";
    let expected: [&[&str]; 2] =
        [&["wirelane", "record", "-i", "eth1", "-w", "-"], &["wirelane", "query", "a b"]];
    assert_eq!(commands(line), expected);
    let page = "```console\n$ sudo wirelane a \\\n  b\nwirelane printed\n```\nwirelane text\n```toml\nwirelane x\n```\n";
    assert_eq!(command_lines(page), [(2, "sudo wirelane a   b".to_owned())]);
    assert_eq!(command_lines("```\nsudo wirelane a\necho\n```\n"), [(2, "sudo wirelane a".to_owned())]);
}
