//! The libraries in other builds: under AddressSanitizer, and twice in different folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use wirelane_tests::libpcap::compile;
use wirelane_tests::{Capture, corpus, repository};

/// The drop-in built with AddressSanitizer; `None`, after a message, if there is no nightly Rust.
fn sanitized(test: &str, folder: &Path) -> Option<PathBuf> {
    let nightly = Command::new("rustc").args(["+nightly", "--version"]).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        println!("left out: {test} (no nightly Rust)");
        return None;
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = Command::new("cargo");
    cargo.args(["+nightly", "build", "--quiet", "-p", "wirelane-libpcap-dropin", "--target", &target]);
    cargo.arg("--target-dir").arg(folder).current_dir(repository());
    // Variables that the cargo that runs this test sets for its own toolchain.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC"] {
        cargo.env_remove(name);
    }
    cargo.env("RUSTFLAGS", "-Zsanitizer=address");
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    Some(folder.join(target).join("debug/libwirelane_libpcap_dropin.so"))
}

/// A program that reads all captures and hands odd strings to the library, both instrumented.
/// Battery: S10
#[test]
#[ignore = "builds the library with a sanitizer: make test-all"]
fn the_c_interface_is_clean_under_address_sanitizer() {
    const NAME: &str = "the_c_interface_is_clean_under_address_sanitizer";
    let Some(corpus) = corpus(NAME) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = sanitized(NAME, &repository().join("target/address-sanitizer")) else { return };
    let program = compile("offline", folder.path(), &["-fsanitize=address"]).unwrap();
    std::os::unix::fs::symlink(library, folder.path().join("libpcap.so.0.8")).unwrap();
    let (mut captures, mut files) = (Capture::all(&corpus).unwrap(), Vec::new());
    captures.retain(|capture| ["malformed", "fileformat", "decode", "encap"].contains(&&*capture.category));
    for capture in captures {
        let path = folder.path().join(&capture.id);
        fs::write(&path, capture.bytes().unwrap()).unwrap();
        files.push(path);
    }
    let mut command = Command::new(program);
    // Differing instrumentations of program and library are detected by a symbol whose only purpose is that check.
    command.env("ASAN_OPTIONS", "detect_leaks=0:verify_asan_link_order=0");
    let output = command.env("LD_LIBRARY_PATH", folder.path()).args(&files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("AddressSanitizer"), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    assert!(text.contains("files") && !text.starts_with("0 files"), "{text}");
}

/// The same with an instrumented program and the library as released.
/// Battery: S10
#[test]
fn odd_strings_and_hostile_files_do_the_c_interface_no_harm() {
    const NAME: &str = "odd_strings_and_hostile_files_do_the_c_interface_no_harm";
    let Some(corpus) = corpus(NAME) else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compile("offline", folder.path(), &["-fsanitize=address"]).unwrap();
    let library = wirelane_tests::libpcap::built("libwirelane_libpcap_dropin.so").unwrap();
    std::os::unix::fs::symlink(library, folder.path().join("libpcap.so.0.8")).unwrap();
    let mut files = Vec::new();
    for capture in Capture::all(&corpus).unwrap() {
        if ["malformed", "fileformat"].contains(&&*capture.category) {
            let path = folder.path().join(&capture.id);
            fs::write(&path, capture.bytes().unwrap()).unwrap();
            files.push(path);
        }
    }
    let mut command = Command::new(program);
    command.env("ASAN_OPTIONS", "detect_leaks=0").env("LD_LIBRARY_PATH", folder.path()).args(&files);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("AddressSanitizer"), "{}: {said}", output.status);
}

/// The optimised library from two copies of the sources in different folders has the same bytes.
/// Battery: S10
#[test]
#[ignore = "builds twice with optimisation: make test-all"]
fn what_is_built_twice_has_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let build = |name: &str| {
        let copy = folder.path().join(name);
        fs::create_dir(&copy).unwrap();
        let copying = format!("git ls-files -z | xargs -0 cp --parents -dt '{}'", copy.display());
        let status = Command::new("sh").args(["-c", &copying]).current_dir(repository()).status().unwrap();
        assert!(status.success());
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--quiet", "--release", "--locked", "-p", "wirelane-libpcap-dropin"]);
        cargo.arg("--target-dir").arg(copy.join("target")).current_dir(&copy);
        assert!(cargo.status().unwrap().success());
        fs::read(copy.join("target/release/libwirelane_libpcap_dropin.so")).unwrap()
    };
    let (one, other) = (build("one"), build("other-place"));
    let differ = one.iter().zip(&other).position(|(one, other)| one != other);
    assert!(one == other, "{} and {} bytes, the first difference at {differ:?}", one.len(), other.len());
}
