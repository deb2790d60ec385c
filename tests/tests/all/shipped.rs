//! The shipped program: linking and contents.

use std::collections::BTreeMap;
use std::path::Path;

use object::elf::{
    DF_1_NOW, DF_1_PIE, DT_FLAGS_1, DT_RPATH, DT_RUNPATH, DT_TEXTREL, ET_DYN, FileHeader64, PF_W, PF_X,
    PT_GNU_RELRO, PT_GNU_STACK, PT_LOAD,
};
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _};
use wirelane_tests::{repository, wirelane_binary};

/// The program is position-independent (PIE), relocated data is read-only before it starts (RELRO, BIND_NOW), no
/// segment is both writable and executable, and C code has stack protection.
/// Battery: S10
#[test]
fn the_program_is_hardened() {
    // The release is linked with the same settings; WIRELANE_BIN names another program to check.
    assert_hardened(&wirelane_binary().unwrap());
}

fn assert_hardened(path: &Path) {
    let name = path.display();
    let bytes = std::fs::read(path).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let (endian, header): (_, &FileHeader64<Endianness>) = (file.endian(), file.elf_header());
    assert_eq!(header.e_type(endian), ET_DYN, "{name} has a fixed address");
    let segments = header.program_headers(endian, &*bytes).unwrap();
    let of_type = |kind| segments.iter().filter(move |segment| segment.p_type(endian) == kind);
    for segment in of_type(PT_LOAD).chain(of_type(PT_GNU_STACK)) {
        let flags = segment.p_flags(endian);
        assert!(flags & (PF_W | PF_X) != PF_W | PF_X, "{name} has memory that is writable and executable");
    }
    assert_eq!(of_type(PT_GNU_STACK).count(), 1, "{name} does not say that its stack is no code");
    assert_eq!(of_type(PT_GNU_RELRO).count(), 1, "{name} has no RELRO");
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, &*bytes).unwrap()).unwrap();
    let value = |tag| dynamic.iter().find(|entry| entry.tag(endian) == tag).map(|entry| entry.val(endian));
    let flags = value(DT_FLAGS_1).unwrap_or(0);
    assert!(flags & DF_1_NOW.0 != 0, "{name} is bound as it runs: RELRO is not full");
    assert!(flags & DF_1_PIE.0 != 0, "{name} is not position-independent");
    for tag in [DT_RPATH, DT_RUNPATH, DT_TEXTREL] {
        assert_eq!(value(tag), None, "{name} has a dynamic entry {tag}");
    }
    let checker = object::NameOrOrdinal::Name(&b"__stack_chk_fail"[..]);
    assert!(
        file.imports().unwrap().any(|import| import.unwrap().name() == checker),
        "{name}: its C code has no stack protector"
    );
}

/// Every file with `unsafe` is in `scripts/unsafe-leaves`, and every entry there has some. The number of each crate is
/// printed.
/// Battery: S10
#[test]
fn unsafe_is_listed() {
    let list = std::fs::read_to_string(repository().join("scripts/unsafe-leaves")).unwrap();
    let entries =
        list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    let mut found: BTreeMap<&str, usize> = entries.map(|entry| (entry, 0)).collect();
    let words = ["{", "fn", "impl", "extern", "trait"].map(|word| ["unsafe", word].join(" "));
    let output = std::process::Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(repository())
        .output()
        .unwrap();
    let mut crates: BTreeMap<String, usize> = BTreeMap::new();
    for file in String::from_utf8(output.stdout).unwrap().lines() {
        // A removed file may still be in the index.
        let Ok(text) = std::fs::read_to_string(repository().join(file)) else { continue };
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let number = code.filter(|line| words.iter().any(|word| line.contains(word.as_str()))).count();
        if number == 0 {
            continue;
        }
        let of = |entry: &str| file == entry || entry.ends_with('/') && file.starts_with(entry);
        let entry = found.iter_mut().find(|(entry, _)| of(entry));
        let (_, count) =
            entry.unwrap_or_else(|| panic!("{file} has unsafe and is not in scripts/unsafe-leaves"));
        *count += number;
        let parts = file.split('/').take(if file.starts_with("crates/") { 2 } else { 1 });
        *crates.entry(parts.collect::<Vec<_>>().join("/")).or_default() += number;
    }
    println!("{crates:?}");
    for (entry, number) in &found {
        assert!(*number > 0, "{entry} in scripts/unsafe-leaves has no unsafe");
    }
    assert!(found.len() > 20, "{found:?}");
}

/// Allowed licences of dependencies; if a dependency offers several, one of them has to be allowed.
const LICENCES: [&str; 12] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    // Of data: the certificate authorities of webpki-roots.
    "CDLA-Permissive-2.0",
    "LGPL-2.1-only",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Dependencies come from the one registry, with checksums, and have licences that are compatible with ours.
/// Battery: S10
#[test]
fn dependencies_are_pinned_and_freely_licensed() {
    let lock = std::fs::read_to_string(repository().join("Cargo.lock")).unwrap();
    let mut external = 0;
    for package in lock.split("[[package]]").skip(1) {
        let source = package.lines().find_map(|line| line.strip_prefix("source = "));
        let Some(source) = source else { continue };
        assert!(source.starts_with("\"registry+https://github.com/rust-lang/crates.io-index"), "{package}");
        assert!(package.contains("\nchecksum = \""), "{package}");
        external += 1;
    }
    assert!(external > 50, "{external} dependencies: the lock file is not read right");

    let output = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .current_dir(repository())
        .output()
        .unwrap();
    if !output.status.success() {
        // A build does not fetch packages for other systems, and without a network they are not available.
        println!("left out: licences ({})", String::from_utf8_lossy(&output.stderr).trim());
        return;
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence) {
            wrong.push(format!("{} {}: {licence}", package["name"], package["version"]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All dependencies have the same features for the program and for the tests, or cargo builds them twice: see
/// tests/Cargo.toml.
#[test]
fn dependencies_are_built_once_for_program_and_tests() {
    // The complete list, once with dependencies of tests and once without, each with its features.
    let tree = |edges: &str| {
        let output = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["tree", "--workspace", "--offline", "--locked", "--prefix", "none"])
            .args(["--edges", edges, "--format", "{p} {f}"])
            .current_dir(repository())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        // Repeated entries are marked.
        let lines = text.lines().map(|line| line.trim_end_matches(" (*)").to_owned());
        lines.collect::<std::collections::BTreeSet<String>>()
    };
    let (program, tests) = (tree("normal"), tree("normal,dev"));
    assert!(program.iter().any(|line| line.starts_with("parquet v")), "{program:#?}");
    let others: Vec<&String> = program.difference(&tests).collect();
    assert!(others.is_empty(), "built once more for the tests, with other features: {others:#?}");
}

/// Reads `MIT OR (Apache-2.0 AND Zlib)` and the old `MIT/Apache-2.0`; brackets with alternatives of a conjunction are
/// read correctly only if every part is allowed.
fn is_allowed(licence: &str) -> bool {
    let all =
        |part: &str| part.split(" AND ").all(|one| LICENCES.contains(&one.trim_matches(['(', ')', ' '])));
    let conjunction_of_choices = |text: &str| {
        text.split(" AND ")
            .all(|part| part.split(" OR ").any(|one| LICENCES.contains(&one.trim_matches(['(', ')', ' ']))))
    };
    licence.replace('/', " OR ").split(" OR ").any(all)
        || conjunction_of_choices(&licence.replace('/', " OR "))
}

#[test]
fn licence_expressions_are_read() {
    for allowed in [
        "MIT",
        "MIT OR GPL-3.0",
        "Apache-2.0/MIT",
        "(MIT OR GPL-3.0) AND Unicode-3.0",
        "MIT AND BSD-3-Clause",
    ] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in ["GPL-3.0", "none", "MIT AND GPL-3.0", "(GPL-2.0 OR GPL-3.0) AND MIT"] {
        assert!(!is_allowed(refused), "{refused}");
    }
}
