//! The structure of the source tree: allowed dependencies between crates, and imports between the folders of a crate.
//!
//! `cargo test -p wirelane-tests structure -- --nocapture` prints the figures.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Levels: a crate depends on crates of lower levels only. Crates of level 1 share nothing except `wirelane-bpf`.
const LEVELS: &[(&str, u8)] = &[
    ("wirelane-bpf", 0),
    ("wirelane-afxdp", 1),
    ("wirelane-filter", 1),
    ("wirelane-netdev", 1),
    ("wirelane-pcapng", 1),
    ("wirelane-privsep", 1),
    ("wirelane-rules", 1),
    ("wirelane-control", 2),
    ("wirelane-send", 2),
    ("wirelane-tune", 2),
    ("wirelane", 3),
    ("wirelane-analysis", 4),
    ("wirelane-libpcap", 4),
    ("wirelane-libpcap-dropin", 5),
    ("wirelane-libpcap-preload", 5),
    ("wirelane-probe", 5),
    ("wirelane-export", 6),
    ("wirelane-store", 7),
    ("wirelane-ship", 8),
    ("wirelane-screen", 8),
    ("wirelane-monitor", 9),
    ("wirelane-cli", 10),
];

/// A crate for tests of crates of level 1, which name it as a feature that no other crate enables.
const FOR_TESTS: &str = "wirelane-testing";

/// Measurements and tests; no crate of the product depends on them.
const LAB: &[&str] = &["wirelane-lab", "wirelane-tests"];

/// Largest number of upward imports between the folders of a crate.
const MOST_BACK_UP: usize = 10;

struct Package {
    name: String,
    folder: PathBuf,
    /// Crates of the workspace in its dependencies, except those for tests.
    needs: BTreeSet<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<&str> = all.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let package = |package: &Value| {
        let needs = package["dependencies"].as_array().unwrap().iter();
        let needs = needs.filter(|needed| needed["kind"] != "dev" && needed["path"].is_string());
        Package {
            name: package["name"].as_str().unwrap().to_owned(),
            folder: Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned(),
            needs: needs
                .map(|needed| needed["name"].as_str().unwrap())
                .filter(|needed| names.contains(needed))
                .map(str::to_owned)
                .collect(),
        }
    };
    all.iter().map(package).collect()
}

fn level(name: &str) -> Option<u8> {
    LEVELS.iter().find(|(known, _)| *known == name).map(|(_, level)| *level)
}

#[test]
fn crates_depend_on_lower_levels_only() {
    let mut wrong = Vec::new();
    for Package { name, needs, .. } in packages() {
        if name == FOR_TESTS || LAB.contains(&name.as_str()) {
            continue;
        }
        let Some(own) = level(&name) else {
            wrong.push(format!("{name} has no level: give it one in LEVELS"));
            continue;
        };
        for needed in needs.iter().filter(|needed| *needed != FOR_TESTS) {
            match level(needed) {
                None => wrong.push(format!("{name} depends on {needed}, which is no crate of the product")),
                Some(level) if level >= own => {
                    wrong.push(format!("{name} (level {own}) depends on {needed} (level {level})"));
                }
                Some(1..) if own == 1 => wrong.push(format!("{name} shares {needed} with others of level 1")),
                Some(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Publishable crates have the metadata that a registry shows.
#[test]
fn crates_of_the_library_describe_themselves() {
    let mut wrong = Vec::new();
    for Package { name, folder, .. } in packages() {
        if level(&name).is_none_or(|level| level > 3) {
            continue;
        }
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for needed in ["description = ", "readme = ", "keywords = ", "categories = "] {
            if !manifest.contains(needed) {
                wrong.push(format!("{name}: Cargo.toml has no {needed}"));
            }
        }
        if !folder.join("README.md").exists() {
            wrong.push(format!("{name} has no README.md"));
        }
        let root = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
        if !root.starts_with("//! ") {
            wrong.push(format!("{name}: src/lib.rs does not begin by saying what the crate is"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A package has its licences, its README, and every file that its code includes, so that it builds by itself.
#[test]
fn packages_have_all_that_they_need() {
    let mut wrong = Vec::new();
    for Package { name, folder, .. } in packages() {
        if level(&name).is_none() {
            continue;
        }
        let output = Command::new(env!("CARGO"))
            .args(["package", "--list", "--allow-dirty", "--offline", "--quiet"])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let files: BTreeSet<&Path> = text.lines().map(Path::new).collect();
        let may_have = ["README.md", "bpf/capture_xdp.bpf.c", "LICENSE-GPL-2.0"];
        let has = may_have.into_iter().filter(|file| folder.join(file).exists());
        for needed in ["LICENSE-MIT", "LICENSE-APACHE"].into_iter().chain(has) {
            if !files.contains(Path::new(needed)) {
                wrong.push(format!("{name}: the package has no {needed}"));
            }
        }
        let is_code =
            |file: &&&Path| file.extension().is_some_and(|end| end == "rs") && !file.starts_with("tests");
        for file in files.iter().filter(is_code) {
            let text = fs::read_to_string(folder.join(file)).unwrap();
            let included = ["include_str!(\"", "include_bytes!(\""].map(|call| text.split(call).skip(1));
            for path in included.into_iter().flatten().filter_map(|rest| Some(rest.split_once('"')?.0)) {
                let found = folder.join(file).parent().unwrap().join(path).canonicalize().unwrap();
                if !found.strip_prefix(&folder).is_ok_and(|path| files.contains(path)) {
                    wrong.push(format!(
                        "{name}: {} includes {path}, which is not in the package",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The Rust files of a crate without its tests: module path (`engine::ring`) and text.
fn modules(source: &Path) -> Vec<(Vec<String>, String)> {
    fn visit(folder: &Path, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for entry in entries {
            let name = entry.file_stem().unwrap().to_str().unwrap().to_owned();
            if name.ends_with("tests") || name == "testing" || name == "main" {
                continue;
            }
            if entry.is_dir() {
                path.push(name);
                visit(&entry, path, found);
                path.pop();
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let mut module = path.clone();
                if name != "mod" && name != "lib" {
                    module.push(name);
                }
                let text = fs::read_to_string(&entry).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
                found.push((module, code.join("\n")));
            }
        }
    }
    let mut found = Vec::new();
    visit(source, &mut Vec::new(), &mut found);
    found
}

/// The paths that a `use` tree names: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let inside = rest.rsplit_once('}').map_or(rest, |(inside, _)| inside);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[start..]);
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.flat_map(leaves).map(|leaf| format!("{prefix}{leaf}")).collect()
}

/// Imports between the top modules of a crate, by paths that begin with `crate::` or `super::`.
fn arrows(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules(source);
    let tops: BTreeSet<String> = modules.iter().filter_map(|(path, _)| path.first().cloned()).collect();
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, code) in &modules {
        let Some(own) = path.first() else { continue };
        let mut import = |tree: &str, above: usize| {
            let tree: String = tree.chars().filter(|character| !character.is_whitespace()).collect();
            for leaf in leaves(&tree) {
                let supers = leaf.split("::").take_while(|part| *part == "super").count();
                let rest: Vec<&str> = leaf.split("::").skip(supers).collect();
                // With `super::` in a submodule, the top module is its own unless the path reaches the root.
                if above + supers < path.len() && above + supers > 0 {
                    continue;
                }
                if let Some(top) = rest.first().filter(|top| tops.contains(**top) && *top != own) {
                    arrows.entry(own.clone()).or_default().insert((*top).to_owned());
                }
            }
        };
        for (word, above) in [("crate::", 0), ("super::", 1)] {
            for (at, _) in code.match_indices(word) {
                let before = code[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let rest = &code[at + word.len()..];
                let plain = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
                let end = match plain.map(|end| (end, &rest[end..])) {
                    Some((end, tail)) if tail.starts_with('{') => end + tail.find(';').unwrap_or(tail.len()),
                    Some((end, _)) => end,
                    None => rest.len(),
                };
                import(&rest[..end], above);
            }
        }
    }
    arrows
}

/// Upward imports in an order of the modules that has few of them: modules without imports go to the bottom, those that
/// no module imports to the top, and if there are neither, the one with the most outgoing minus incoming imports.
fn back_up(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<(String, String)> {
    let mut left: BTreeSet<&String> = arrows.keys().chain(arrows.values().flatten()).collect();
    let (mut top, mut bottom) = (Vec::new(), Vec::new());
    while !left.is_empty() {
        let out =
            |one: &String| arrows.get(one).map_or(0, |to| to.iter().filter(|to| left.contains(to)).count());
        let into = |one: &String| {
            left.iter().filter(|from| arrows.get(**from).is_some_and(|to| to.contains(one))).count()
        };
        if let Some(sink) = left.iter().copied().find(|one| out(one) == 0) {
            bottom.push(sink);
            left.remove(sink);
        } else {
            let source = left.iter().copied().find(|one| into(one) == 0);
            let most = left.iter().copied().max_by_key(|one| out(one) as isize - into(one) as isize);
            let next = source.or(most).unwrap();
            top.push(next);
            left.remove(next);
        }
    }
    top.extend(bottom.into_iter().rev());
    let place: BTreeMap<&String, usize> = top.iter().enumerate().map(|(at, one)| (*one, at)).collect();
    let all = arrows.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    all.filter(|(from, to)| place[from] > place[to]).map(|(from, to)| (from.clone(), to.clone())).collect()
}

#[test]
fn folders_of_a_crate_have_few_imports_that_run_back_up() {
    let mut wrong = Vec::new();
    for Package { name, folder, .. } in packages() {
        if level(&name).is_none() {
            continue;
        }
        let source = folder.join("src");
        let lines: usize = modules(&source).iter().map(|(_, code)| code.lines().count()).sum();
        let arrows = arrows(&source);
        let back = back_up(&arrows);
        let count: usize = arrows.values().map(BTreeSet::len).sum();
        println!("{name}: {lines} lines, {count} imports between its folders, {} back up", back.len());
        if back.len() > MOST_BACK_UP {
            wrong.push(format!("{name}: {back:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn imports_are_read_and_ordered() {
    assert_eq!(leaves("a::{b,c::{d,e},f}"), ["a::b", "a::c::d", "a::c::e", "a::f"]);
    let arrow = |pairs: &[(&str, &str)]| {
        let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in pairs {
            arrows.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        arrows
    };
    assert!(back_up(&arrow(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    assert_eq!(back_up(&arrow(&[("a", "b"), ("b", "c"), ("c", "b")])).len(), 1);
    let source = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a.rs", "use super::b::B;\n// use crate::c::C;\n"),
        ("b.rs", "use crate::{c::{C, D}, Error};\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
        ("c.rs", "fn f() -> crate::a::A {}\n"),
    ] {
        fs::write(source.path().join(file), text).unwrap();
    }
    assert_eq!(arrows(source.path()), arrow(&[("a", "b"), ("b", "c"), ("c", "a")]));
}
