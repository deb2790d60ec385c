//! The programs of `examples/steering/`, with matching traffic; compiled as their README says.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use wirelane_tests::frames::{self, ethernet, udp};
use wirelane_tests::{LabOptions, program_object, repository, require_root};

use super::{Bench, HOOKS, end, word};

fn tagged(id: u16, payload: &[u8]) -> Vec<u8> {
    // With priority bits, which do not belong to the id.
    ethernet(0x8100, &[&(0xa000 | id).to_be_bytes(), &[8, 0], payload].concat())
}

/// A frame of a virtual network in a VXLAN tunnel between two hosts (RFC 7348).
fn vxlan(network: u8, frame: &[u8]) -> Vec<u8> {
    let header = [8, 0, 0, 0, 0, 0, network, 0];
    let outer = udp([10, 0, 0, 1], [10, 0, 0, 2], (50_000, 4789), &[&header, frame].concat());
    ethernet(0x0800, &outer)
}

/// Both directions of a conversation between two clients' addresses, one packet each.
fn conversation(a: [u8; 4], b: [u8; 4]) -> [Vec<u8>; 2] {
    [udp(a, b, (40_000, 53), b"question"), udp(b, a, (53, 40_000), b"answer")]
}

fn arp() -> Vec<u8> {
    ethernet(0x0806, &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2])
}

/// Sends these frames so many times from the lab's sender.
fn replay(bench: &Bench, frames: &[Vec<u8>], times: u64) {
    frames::replay(&bench.lab, bench.folder.path(), frames, times).unwrap();
}

#[test]
fn the_example_keeps_tenants_together() {
    if !require_root("the_example_keeps_tenants_together") {
        return;
    }
    let bench = Bench::new(LabOptions::default());
    let [there, back] = conversation([192, 168, 0, 1], [192, 168, 0, 2]);
    let mut tenants = Vec::new();
    // To workers 1, 1, 2 of 4 by virtual network, and 3, 0 by VLAN; the inner packets are identical.
    for packet in [&there, &back] {
        tenants.extend([1, 5, 2].map(|network| vxlan(network, &ethernet(0x0800, packet))));
        tenants.extend([7, 4092].map(|id| tagged(id, packet)));
    }
    tenants.push(arp());
    for hook in HOOKS {
        let child = bench.count("tenant", &["--hook", hook, "--workers", "4"]);
        replay(&bench, &tenants, 10);
        let got = end(child);
        assert_eq!((got.seen, got.filtered), (110, 10), "{hook}");
        assert_eq!(got.workers, [20, 40, 20, 20], "{hook}");

        let child = bench.count("tenant", &["--hook", hook, "--workers", "4"]);
        replay(&bench, &[ethernet(0x0800, &there), ethernet(0x0800, &back)], 15);
        let mut got = end(child);
        got.workers.sort_unstable();
        assert_eq!((got.seen, got.filtered, got.workers), (30, 0, vec![0, 0, 0, 30]), "{hook}: one flow");
    }
}

#[test]
fn the_example_keeps_clients_together() {
    if !require_root("the_example_keeps_clients_together") {
        return;
    }
    let bench = Bench::new(LabOptions::default());
    let (server, far) = ([192, 0, 2, 1], [198, 51, 100, 1]);
    let mut frames = vec![arp()];
    for (a, b) in [
        ([10, 0, 0, 5], server),
        ([10, 0, 0, 5], far),
        ([10, 9, 9, 6], far),
        ([10, 0, 0, 7], [10, 0, 0, 4]),
        (server, far),
    ] {
        frames.extend(conversation(a, b).map(|packet| ethernet(0x0800, &packet)));
    }
    for hook in HOOKS {
        let child = bench.count("client", &["--hook", hook, "--workers", "4"]);
        replay(&bench, &frames, 10);
        let got = end(child);
        assert_eq!((got.seen, got.filtered), (110, 30), "{hook}");
        assert_eq!(got.workers, [20, 40, 20, 0], "{hook}");
    }
}

/// The README's commands yield the tested programs: the same bytes, except for the folder name in them.
#[test]
fn the_examples_are_compiled_as_their_readme_says() {
    let clang = ["clang-19", "clang"].into_iter().find_map(|name| {
        let path = String::from_utf8(Command::new("which").arg(name).output().ok()?.stdout).ok()?;
        (!path.trim().is_empty()).then(|| path.trim().to_owned())
    });
    let Some(clang) = clang else {
        println!("left out: the_examples_are_compiled_as_their_readme_says (no clang)");
        return;
    };
    let root = repository();
    let folder = tempfile::tempdir().unwrap();
    for name in ["include", "examples"] {
        symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join("bin")).unwrap();
    symlink(clang, folder.path().join("bin/clang-19")).unwrap();
    let path = format!("{}/bin:{}", word(folder.path()), std::env::var("PATH").unwrap());
    let readme = fs::read_to_string(root.join("examples/steering/README.md")).unwrap();
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("clang-19 ")).collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    for (command, name) in commands.into_iter().zip(["tenant", "client"]) {
        let source = fs::read_to_string(root.join(format!("examples/steering/{name}.bpf.c"))).unwrap();
        assert!(source.contains(&format!(" *\t{command}\n")), "{name}.bpf.c does not say '{command}'");
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(&folder)
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let made = fs::read(folder.path().join(format!("{name}.bpf.o"))).unwrap();
        let (made, tested) = (code(&made), code(program_object(name).unwrap()));
        assert!(!made.is_empty() && made == tested, "{name}: other code than the tests'");
    }
}

/// The instructions of an object file.
fn code(bytes: &[u8]) -> Vec<u8> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(bytes).unwrap();
    file.section_by_name(".text").unwrap().data().unwrap().to_vec()
}
