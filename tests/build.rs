//! Compiles the steering programs and plug-ins of the tests (`tests/programs/`) and of the examples (`examples/steering/`,
//! `examples/plugins/`) to BPF, into the test programs: the machines that these run on need no compiler.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Objects compiled with different options: name, source, options.
const VARIANTS: [(&str, &str, &[&str]); 26] = [
    ("constant_0", "constant", &["-DWORKER=0"]),
    ("constant_1", "constant", &["-DWORKER=1"]),
    ("constant_2", "constant", &["-DWORKER=2"]),
    ("constant_3", "constant", &["-DWORKER=3"]),
    ("constant_4", "constant", &["-DWORKER=4"]),
    ("constant_5", "constant", &["-DWORKER=5"]),
    ("constant_6", "constant", &["-DWORKER=6"]),
    ("constant_7", "constant", &["-DWORKER=7"]),
    ("constant_8", "constant", &["-DWORKER=8"]),
    ("plugin_0", "plugin_constant", &["-DNUMBER=0"]),
    ("plugin_1", "plugin_constant", &["-DNUMBER=1"]),
    ("plugin_2", "plugin_constant", &["-DNUMBER=2"]),
    ("plugin_3", "plugin_constant", &["-DNUMBER=3"]),
    ("plugin_4", "plugin_constant", &["-DNUMBER=4"]),
    ("plugin_5", "plugin_constant", &["-DNUMBER=5"]),
    ("plugin_6", "plugin_constant", &["-DNUMBER=6"]),
    ("plugin_beyond", "plugin_wild", &["-DBEYOND"]),
    ("plugin_wild_rule", "plugin_wild", &["-DRULE"]),
    ("plugin_turns_later", "plugin_turns", &["-DLATER"]),
    ("plugin_many_maps", "plugin_bad_map", &["-DMANY"]),
    ("plugin_ring_map", "plugin_bad_map", &["-DRING"]),
    ("plugin_program_map", "plugin_bad_map", &["-DPROGRAMS"]),
    ("plugin_pinned_map", "plugin_bad_map", &["-DPINNED"]),
    ("without_types", "number", &["-g0"]),
    ("other_byte_order", "number", &["-target", OTHER_BYTE_ORDER]),
    ("other_machine", "number", &["-target", "x86_64-linux-gnu"]),
];
const OTHER_BYTE_ORDER: &str = if cfg!(target_endian = "little") { "bpfeb" } else { "bpfel" };

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = here.join("..").canonicalize().expect("the repository's root");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-changed={}", root.join("include").display());
    let clang = find_clang();
    let mut names = Vec::new();
    let mut compile = |name: &str, source: &Path, options: &[&str]| {
        let status = Command::new(&clang)
            .current_dir(&root)
            .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-I", "include"])
            .args(options)
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(out.join(format!("{name}.bpf.o")))
            .status()
            .expect("clang runs");
        assert!(status.success(), "{} could not be compiled to BPF", source.display());
        names.push(name.to_owned());
    };
    for folder in ["tests/programs", "examples/steering", "examples/plugins"] {
        let folder = root.join(folder);
        println!("cargo:rerun-if-changed={}", folder.display());
        for (name, source) in sources(&folder) {
            let variants: Vec<_> = VARIANTS.iter().filter(|(_, of, _)| *of == name).collect();
            if !name.ends_with("constant") {
                compile(&name, &source, &[]);
            }
            for (name, _, options) in variants {
                compile(name, &source, options);
            }
        }
    }
    let mut list = String::from("&[\n");
    for name in &names {
        let object = out.join(format!("{name}.bpf.o"));
        writeln!(list, "    ({name:?}, include_bytes!({object:?})),")
            .expect("writing to a String does not fail");
    }
    list.push(']');
    fs::write(out.join("programs.rs"), list).expect("OUT_DIR is writable");
}

/// Source files of a folder with their names, sorted.
fn sources(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder is readable").path())
        .filter_map(|path| Some((path.file_name()?.to_str()?.strip_suffix(".bpf.c")?.to_owned(), path)))
        .collect();
    found.sort();
    found
}

/// `$CLANG` if it is set, else the first of clang-19 and clang that runs: as in `crates/wirelane-bpf/build.rs`, which
/// is built before this and whose error says what to install if neither runs.
fn find_clang() -> PathBuf {
    if let Some(clang) = env::var_os("CLANG") {
        return PathBuf::from(clang);
    }
    let runs = |clang: &PathBuf| {
        Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    ["clang-19", "clang"]
        .iter()
        .map(PathBuf::from)
        .find(runs)
        .expect("clang (install Debian's package clang-19)")
}
