//! Other builds: the libraries under AddressSanitizer, libraries and program twice in different folders.

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

/// tcpdump of the system over all captures, with the instrumented library: it prints, filters and copies every packet
/// that it does with the system's library.
/// Battery: S10
#[test]
#[ignore = "builds the library with a sanitizer: make test-all"]
fn tcpdump_is_clean_with_the_library_under_address_sanitizer() {
    const NAME: &str = "tcpdump_is_clean_with_the_library_under_address_sanitizer";
    let Some(corpus) = corpus(NAME) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = sanitized(NAME, &repository().join("target/address-sanitizer")) else { return };
    std::os::unix::fs::symlink(library, folder.path().join("libpcap.so.0.8")).unwrap();
    let runtime = Command::new("cc").arg("-print-file-name=libasan.so").output().unwrap().stdout;
    let runtime = String::from_utf8(runtime).unwrap();
    let (file, copy) = (folder.path().join("in"), folder.path().join("out"));
    let (mut files, mut packets) = (0, 0);
    for capture in Capture::all(&corpus).unwrap() {
        fs::write(&file, capture.bytes().unwrap()).unwrap();
        // The bytes that tcpdump copies, and its number of packets that match.
        let copied = |ours: bool| {
            let _ = fs::remove_file(&copy);
            let mut command = Command::new("tcpdump");
            command.args(["-Z", "root", "-r"]).arg(&file).arg("-w").arg(&copy).arg("ip or ip6 or not tcp");
            if ours {
                // Memory that is in use at exit is no fault of the library: tcpdump does not free it.
                command.env("ASAN_OPTIONS", "detect_leaks=0:verify_asan_link_order=0");
                command.env("LD_PRELOAD", runtime.trim()).env("LD_LIBRARY_PATH", folder.path());
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code().is_some_and(|code| code < 2), "{}: {said}", capture.id);
            assert!(!said.contains("AddressSanitizer"), "{}: {said}", capture.id);
            fs::read(&copy).unwrap_or_default()
        };
        let (ours, theirs) = (copied(true), copied(false));
        files += 1;
        packets += u64::from(!theirs.is_empty());
        assert!(ours == theirs, "{}: {} bytes, not {}", capture.id, ours.len(), theirs.len());
    }
    println!("{files} files, {packets} copied");
    assert!(packets > 500, "{packets} of {files} files were copied");
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

/// The optimised library and program from two copies of the sources in different folders have the same bytes. The
/// program is built without the store, whose third-party crates take most of the time.
/// Battery: S10
#[test]
#[ignore = "builds twice with optimisation: make test-all"]
fn what_is_built_twice_has_the_same_bytes() {
    const BUILT: [&str; 2] = ["libwirelane_libpcap_dropin.so", "wirelane"];
    let folder = tempfile::tempdir().unwrap();
    let build = |name: &str| {
        let copy = folder.path().join(name);
        fs::create_dir(&copy).unwrap();
        let copying = format!("git ls-files -z | xargs -0 cp --parents -dt '{}'", copy.display());
        let status = Command::new("sh").args(["-c", &copying]).current_dir(repository()).status().unwrap();
        assert!(status.success());
        let mut cargo = Command::new(copy.join("scripts/cargo-release"));
        cargo.args(["--quiet", "--locked", "--no-default-features"]);
        cargo.args(["-p", "wirelane-libpcap-dropin", "-p", "wirelane-cli"]);
        // Neither the tests' compiler with more lints nor their target folder.
        cargo.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CARGO_TARGET_DIR").current_dir(&copy);
        assert!(cargo.status().unwrap().success());
        BUILT.map(|name| fs::read(copy.join("target/release").join(name)).unwrap())
    };
    for (name, (one, other)) in BUILT.iter().zip(build("one").iter().zip(&build("other-place"))) {
        let differ = one.iter().zip(other).position(|(one, other)| one != other);
        let (first, second) = (one.len(), other.len());
        assert!(one == other, "{name}: {first} and {second} bytes, the first difference at {differ:?}");
        println!("{name}: {first} equal bytes");
    }
}
