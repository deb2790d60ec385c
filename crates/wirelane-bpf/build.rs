//! Compiles the packet functions (`bpf/lib/`) twice: once natively with `native/` into a static library, and once to BPF,
//! with a Rust skeleton for each program. Each `bpf/*.bpf.c` is built; nothing needs to be listed here.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let bpf = manifest.join("bpf");
    println!("cargo:rerun-if-changed={}", bpf.display());
    for folder in ["native", "include"] {
        println!("cargo:rerun-if-changed={}", manifest.join(folder).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");

    build_native(&manifest.join("native"), &bpf);
    build_programs(&manifest, &bpf, &out);
    generate_bindings(&manifest.join("native"), &bpf, &out);
}

/// Generates structs, constants and native functions for Rust. A struct `wl_flow_key` is `FlowKey` in Rust.
fn generate_bindings(native: &Path, bpf: &Path, out: &Path) {
    #[derive(Debug)]
    struct Names;
    impl bindgen::callbacks::ParseCallbacks for Names {
        fn item_name(&self, item: bindgen::callbacks::ItemInfo<'_>) -> Option<String> {
            if matches!(item.kind, bindgen::callbacks::ItemKind::Function | bindgen::callbacks::ItemKind::Var)
            {
                return None;
            }
            let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
            Some(
                item.name
                    .strip_prefix("wl_")?
                    .split('_')
                    .filter(|part| !part.is_empty())
                    .map(capital)
                    .collect(),
            )
        }
    }
    let bindings = bindgen::Builder::default()
        .header(native.join("abi.h").to_str().expect("the package's path is UTF-8"))
        .clang_args(["-std=gnu11", "-Wno-undefined-internal", "-fparse-all-comments"])
        .clang_args([format!("-I{}", bpf.display()), format!("-I{}", native.display())])
        .clang_args(machine_headers(triple().1))
        .allowlist_type("wl_.*|plugin_rule")
        .allowlist_function("wl_native_.*")
        .allowlist_var("(WL|PLUGIN|STATE)_.*")
        // Types of the kernel programs only, which are not shared.
        .blocklist_type("wl_rule_work|wl_lane")
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_eq(true)
        .derive_hash(true)
        .derive_ord(true)
        .explicit_padding(true)
        .parse_callbacks(Box::new(Names))
        .generate()
        .unwrap_or_else(|error| panic!("bindgen could not read native/abi.h: {error}"));
    let mut text = bindings.to_string();
    // The kernel's names of integer types are replaced by Rust's.
    for (theirs, ours) in ["u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"]
        .map(|name| (format!("__{name}"), name.replace('s', "i")))
    {
        let lines = text.lines().filter(|line| !line.starts_with(&format!("pub type {theirs} =")));
        text = lines.map(|line| line.replace(&theirs, &ours) + "\n").collect();
    }
    // Text is bytes, regardless of the signedness of char on this machine.
    text = text.replace("::std::os::raw::c_char", "u8");
    // The kernel compares every byte of a key; and user space must not read unwritten bytes.
    assert!(!text.contains("__bindgen_padding"), "a shared struct has padding that is no field:\n{text}");
    fs::write(out.join("abi.rs"), text).expect("OUT_DIR is writable");
}

/// Builds the packet functions for engines without a kernel program, for fuzzing and for the tests.
fn build_native(native: &Path, bpf: &Path) {
    let mut build = cc::Build::new();
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        instrument(&mut build);
    } else {
        harden(&mut build);
    }
    build
        .file(native.join("native.c"))
        .file(native.join("native_flow.c"))
        .file(native.join("native_http.c"))
        .file(native.join("native_rtp.c"))
        .file(native.join("native_rules.c"))
        .file(native.join("native_shed.c"))
        .file(native.join("native_sketch.c"))
        .include(bpf)
        .flag("-std=gnu11")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .flag_if_supported("-Wno-unused-function")
        // A parser is useless at -O0, and the debug profile runs all tests.
        .opt_level(2)
        .compile("wirelane_native");
}

/// Hardening: the code parses untrusted packets. Some distributions' compilers enable these options by default, others
/// do not.
fn harden(build: &mut cc::Build) {
    build
        .flag_if_supported("-fstack-protector-strong")
        .flag_if_supported("-fstack-clash-protection")
        .flag("-U_FORTIFY_SOURCE")
        .flag("-D_FORTIFY_SOURCE=2");
}

/// Instrumentation for cargo-fuzz (fuzz/): libFuzzer's coverage, ASan and UBSan in the C code too. Their runtimes are
/// part of the fuzz target, except UBSan's, so its findings end the target by a trap.
fn instrument(build: &mut cc::Build) {
    build
        .compiler(find_clang())
        .flag("-fsanitize=address,undefined,fuzzer-no-link")
        .flag("-fsanitize-trap=undefined")
        .flag("-fno-omit-frame-pointer")
        .debug(true);
}

fn build_programs(manifest: &Path, bpf: &Path, out: &Path) {
    let clang = find_clang();
    let arguments = bpf_arguments(manifest, bpf);
    let mut modules = String::new();
    for source in programs(bpf) {
        let name = source
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(".bpf.c"))
            .expect("programs() returns *.bpf.c only")
            .to_owned();
        let skeleton = out.join(format!("{name}.skel.rs"));
        let mut builder = SkeletonBuilder::new();
        builder.source(&source).obj(out.join(format!("{name}.bpf.o"))).clang(&clang).clang_args(&arguments);
        if let Err(error) = builder.build_and_generate(&skeleton) {
            panic!("{} could not be built for BPF: {error:?}", source.display());
        }
        writeln!(
            modules,
            "/// Skeleton of `bpf/{name}.bpf.c`.\n\
             #[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, clippy::allow_attributes, \
             clippy::allow_attributes_without_reason, reason = \"generated by libbpf-cargo\")]\n\
             pub mod {name} {{\n    include!(concat!(env!(\"OUT_DIR\"), \"/{name}.skel.rs\"));\n}}"
        )
        .expect("writing to a String does not fail");
    }
    fs::write(out.join("skeletons.rs"), modules).expect("OUT_DIR is writable");
}

fn programs(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .expect("bpf/ is missing from the package")
        .map(|entry| entry.expect("bpf/ is readable").path())
        .filter(|path| path.to_str().is_some_and(|path| path.ends_with(".bpf.c")))
        .collect();
    found.sort();
    found
}

fn bpf_arguments(manifest: &Path, bpf: &Path) -> Vec<String> {
    let (target_define, triple) = triple();
    // libbpf-sys is a dependency with `links = "bpf"`, so cargo reports the location of its bpf/bpf_helpers.h.
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    let mut arguments = vec![
        "-Wall".into(),
        "-Werror".into(),
        "-Wno-unused-function".into(),
        "-mcpu=v3".into(),
        format!("-D__TARGET_ARCH_{target_define}"),
        format!("-I{}", bpf.display()),
        format!("-I{libbpf}"),
        // The objects are part of the program, whose bytes do not depend on the folder that it is built in.
        format!("-ffile-prefix-map={}=.", manifest.display()),
        format!("-ffile-prefix-map={libbpf}=libbpf"),
        "-fdebug-compilation-dir=.".into(),
    ];
    arguments.extend(machine_headers(triple));
    arguments
}

/// Options for the headers of the target machine.
fn machine_headers(triple: &str) -> [String; 2] {
    // The second is the folder that Debian uses for cross builds.
    [format!("-idirafter/usr/include/{triple}"), format!("-idirafter/usr/{triple}/include")]
}

/// The target machine: its names in libbpf's headers and in Debian's folders.
fn triple() -> (&'static str, &'static str) {
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => ("x86", "x86_64-linux-gnu"),
        Ok("aarch64") => ("arm64", "aarch64-linux-gnu"),
        Ok(other) => panic!("Wirelane's kernel programs are built for x86_64 and aarch64, not for {other}"),
        Err(_) => unreachable!("cargo sets CARGO_CFG_TARGET_ARCH"),
    }
}

/// `$CLANG` if it is set, otherwise the first of clang-19 and clang that runs.
fn find_clang() -> PathBuf {
    let runs = |clang: &Path| {
        Command::new(clang).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    if let Some(clang) = env::var_os("CLANG") {
        let clang = PathBuf::from(clang);
        assert!(runs(&clang), "$CLANG is {}, which cannot be run", clang.display());
        return clang;
    }
    ["clang-19", "clang"].iter().map(PathBuf::from).find(|clang| runs(clang)).unwrap_or_else(|| {
        panic!(
            "no clang found to compile the kernel programs to BPF: install Debian's package clang-19 \
             (apt install clang-19), or name a compiler in $CLANG"
        )
    })
}
