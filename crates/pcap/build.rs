//! Compiles the steering programs of shared groups, and says where Debian and its descendants have libraries of this
//! machine's kind.

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most processes that share a group; `names.rs` says the same.
const MOST_SHARES: u32 = 4;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/share.bpf.c");
    println!("cargo:rerun-if-changed=../../include");
    println!("cargo:rerun-if-env-changed=CLANG");
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    println!("cargo:rustc-env=WIRELANE_MULTIARCH={architecture}-linux-gnu");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut list = String::from("&[\n");
    for shares in 2..=MOST_SHARES {
        for share in 0..shares {
            let object = out.join(format!("share-{share}-of-{shares}.bpf.o"));
            compile(share, shares, &object);
            writeln!(list, "    ({share}, {shares}, include_bytes!({object:?})),")
                .expect("writing to a String does not fail");
        }
    }
    list.push(']');
    std::fs::write(out.join("shares.rs"), list).expect("OUT_DIR is writable");
}

fn compile(share: u32, shares: u32, object: &Path) {
    let status = Command::new(find_clang())
        .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-I", "../../include"])
        .args([format!("-DSHARE={share}"), format!("-DSHARES={shares}")])
        .args(["-c", "src/share.bpf.c", "-o"])
        .arg(object)
        .status()
        .expect("clang runs");
    assert!(status.success(), "src/share.bpf.c could not be compiled to BPF");
}

/// As in `crates/datapath/build.rs`, which has been built before and says what to do where there is none.
fn find_clang() -> PathBuf {
    if let Some(clang) = env::var_os("CLANG") {
        return clang.into();
    }
    let runs = |name: &str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    ["clang-19", "clang"].into_iter().find(|name| runs(name)).unwrap_or("clang").into()
}
