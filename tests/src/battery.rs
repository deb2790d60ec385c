//! The battery: the loads, faults, hostile inputs and security boundaries that the project has to hold, each with the
//! tests that check it.
//!
//! A test names the items that it checks in its doc comment, on a line of its own: `/// Battery: L5, F8`. The table in
//! `tests/BATTERY.md` is made from [`ITEMS`] and these lines by `scripts/battery`; `scripts/battery L5` runs the tests of
//! an item, the long ones included.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

mod items;

pub use items::ITEMS;

/// A property that the project has to hold.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// A letter for its kind (load, fault, input, security) and a number.
    pub code: &'static str,
    /// The claim, which its tests disprove if it is false.
    pub claim: &'static str,
}

/// A test that names an item.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Test {
    /// The source file, relative to the repository.
    pub file: PathBuf,
    /// The name of the function.
    pub name: String,
    /// True if `make test` leaves it out (`#[ignore]`).
    pub long: bool,
}

const MARK: &str = "/// Battery:";

/// Tests by the codes that they name, in the order of their files.
///
/// # Errors
/// If a mark names an unknown code or does not precede a test, or a file cannot be read.
pub fn tests(repository: &Path) -> Result<BTreeMap<String, Vec<Test>>> {
    let mut found: BTreeMap<String, Vec<Test>> = BTreeMap::new();
    for folder in ["crates", "lab", "tests"] {
        for file in sources(&repository.join(folder))? {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let short = file.strip_prefix(repository)?.to_owned();
            for (codes, name, long) in marked(&text).with_context(|| short.display().to_string())? {
                for code in codes {
                    let test = Test { file: short.clone(), name: name.clone(), long };
                    found.entry(code).or_default().push(test);
                }
            }
        }
    }
    found.values_mut().for_each(|tests| tests.sort());
    Ok(found)
}

/// Rust sources below a folder, without build outputs.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !folder.exists() {
        return Ok(files);
    }
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Marks of a source: codes, the test, whether it is ignored.
fn marked(text: &str) -> Result<Vec<(Vec<String>, String, bool)>> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(rest) = line.strip_prefix(MARK) else { continue };
        let codes: Vec<String> = rest.split(',').map(|code| code.trim().to_owned()).collect();
        for code in &codes {
            ensure!(ITEMS.iter().any(|item| item.code == code), "line {}: unknown item '{code}'", at + 1);
        }
        // Attributes and the rest of the comment up to the function.
        let head = lines[at + 1..].iter().take_while(|line| line.starts_with("//") || line.starts_with('#'));
        let head: Vec<&str> = head.copied().collect();
        let function = lines.get(at + 1 + head.len()).copied().unwrap_or_default();
        let name = function.strip_prefix("fn ").and_then(|rest| rest.split_once('(')).map(|(name, _)| name);
        match name {
            Some(name) if head.contains(&"#[test]") => {
                let long = head.iter().any(|line| line.starts_with("#[ignore"));
                found.push((codes, name.to_owned(), long));
            }
            _ => bail!("line {}: '{line}' is not above a #[test] function", at + 1),
        }
    }
    Ok(found)
}

/// The table of `tests/BATTERY.md`.
///
/// # Errors
/// Errors of [`tests`], and if an item has no test.
pub fn table(repository: &Path) -> Result<String> {
    let tests = tests(repository)?;
    let without: Vec<&str> =
        ITEMS.iter().map(|item| item.code).filter(|code| !tests.contains_key(*code)).collect();
    ensure!(without.is_empty(), "no test has 'Battery: CODE' for {}", without.join(", "));
    let mut text = HEAD.to_owned();
    for (letter, title) in [('L', "Load"), ('F', "Faults"), ('I', "Input"), ('S', "Security")] {
        writeln!(text, "\n## {title}\n\n| code | claim | tests |\n| --- | --- | --- |")?;
        for item in ITEMS.iter().filter(|item| item.code.starts_with(letter)) {
            let mut cell = String::new();
            let mut file = Path::new("");
            for test in &tests[item.code] {
                if test.file != file {
                    file = &test.file;
                    write!(cell, "{}`{}`: ", if cell.is_empty() { "" } else { "; " }, file.display())?;
                } else {
                    cell += ", ";
                }
                write!(cell, "`{}`{}", test.name, if test.long { " (long)" } else { "" })?;
            }
            writeln!(text, "| {} | {} | {cell} |", item.code, item.claim)?;
        }
    }
    Ok(text)
}

const HEAD: &str = "\
# The battery

The loads, faults, hostile inputs and security boundaries that this project has to hold, with the tests that check
them. This file is made by `scripts/battery` from `tests/src/battery/items.rs` and from the lines `Battery: CODE` in the
doc comments of tests. `make test` fails where it is out of date, and where an item has no test.

`scripts/battery L5` runs the tests of an item, also those that `make test` leaves out (long).
";

#[cfg(test)]
mod tests {
    use super::marked;

    #[test]
    fn marks_are_read_with_their_tests() {
        let text = "/// Does a thing.\n/// Battery: L1, S12\n#[test]\n#[ignore = \"long\"]\nfn name() {}\n";
        assert_eq!(
            marked(text).unwrap(),
            [(vec!["L1".to_owned(), "S12".to_owned()], "name".to_owned(), true)]
        );
        assert!(!marked("    /// Battery: L1\n    #[test]\n    fn name() {}").unwrap()[0].2);
    }

    #[test]
    fn wrong_marks_are_errors() {
        for wrong in [
            "/// Battery: L1\nfn name() {}",
            "/// Battery: L1\n\n#[test]\nfn name() {}",
            "/// Battery: L1\n#[test]\nstruct Name;",
            "/// Battery: L99\n#[test]\nfn name() {}",
            "/// Battery:\n#[test]\nfn name() {}",
        ] {
            assert!(marked(wrong).is_err(), "{wrong}");
        }
    }
}
