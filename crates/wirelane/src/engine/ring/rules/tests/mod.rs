//! Compiled rule sets in the kernel, against the reference.

mod kernel;
mod million;
