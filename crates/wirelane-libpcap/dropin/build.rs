//! Gives the library libpcap's soname: what was linked with libpcap loads it by that name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
}
