//! Compiles `programs/*.bpf.c` to BPF, with a Rust skeleton each.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // libbpf-sys is a dependency with `links = "bpf"`, so cargo tells where its bpf/bpf_helpers.h lies.
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    let triple = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "aarch64-linux-gnu",
        _ => "x86_64-linux-gnu",
    };
    let arguments = [
        "-Wall".to_owned(),
        "-Werror".to_owned(),
        "-mcpu=v3".to_owned(),
        format!("-I{libbpf}"),
        format!("-idirafter/usr/include/{triple}"),
    ];
    let clang = env::var_os("CLANG").map_or_else(|| PathBuf::from("clang-19"), PathBuf::from);
    println!("cargo:rerun-if-env-changed=CLANG");
    for name in ["count_drop", "redirect"] {
        let source = format!("programs/{name}.bpf.c");
        println!("cargo:rerun-if-changed={source}");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang(&clang)
            .clang_args(&arguments)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| {
                panic!("{source} could not be built for BPF (clang-19, or what $CLANG names): {error:?}")
            });
    }
}
