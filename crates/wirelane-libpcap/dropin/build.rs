//! Sets libpcap's soname: programs linked with libpcap load the library by that name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
}
