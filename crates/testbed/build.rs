//! Compiles the analysis load of the kernel (`programs/load.bpf.c`) to BPF, once for each number of loops that there is: the
//! verifier wants to know it.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Loops per packet. More than 25,000 the verifier of Linux 6.1 would not walk beside the capture program.
const LOOPS: [u32; 6] = [0, 100, 1_000, 5_000, 10_000, 25_000];

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let include = here.join("../../include");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-changed=programs/load.bpf.c");
    println!("cargo:rerun-if-changed={}", include.display());
    let clang = env::var("CLANG").ok().unwrap_or_else(|| {
        let works = |name: &&str| {
            Command::new(name).arg("--version").output().is_ok_and(|told| told.status.success())
        };
        ["clang-19", "clang"].into_iter().find(works).expect("clang is needed: run scripts/setup").to_owned()
    });
    let mut list = String::from("&[\n");
    for loops in LOOPS {
        let object = out.join(format!("load-{loops}.bpf.o"));
        let status = Command::new(&clang)
            .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", &format!("-DLOOPS={loops}"), "-I"])
            .arg(&include)
            .arg("-c")
            .arg(here.join("programs/load.bpf.c"))
            .arg("-o")
            .arg(&object)
            .status()
            .expect("clang runs");
        assert!(status.success(), "programs/load.bpf.c could not be compiled to BPF");
        writeln!(list, "    ({loops}, include_bytes!({object:?})),")
            .expect("writing to a String does not fail");
    }
    list.push(']');
    fs::write(out.join("loads.rs"), list).expect("OUT_DIR is writable");
}
