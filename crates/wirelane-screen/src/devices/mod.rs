//! Devices as text: a table of all, the details of one, and the kernel's features.

mod detail;
mod table;

pub use detail::detail;
pub use table::{Style, kernel, table};
