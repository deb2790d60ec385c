//! Passes the library folder of Debian and its descendants for this architecture to the compiler.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    println!("cargo:rustc-env=WIRELANE_MULTIARCH={architecture}-linux-gnu");
}
