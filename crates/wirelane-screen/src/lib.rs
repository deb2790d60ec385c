//! Screens of the `wirelane` command: live views on a terminal, and tables of text.
//!
//! ```text
//! workers, exports -> TopModel of count, flows, http, voip, probe -> terminal::Top -> standard output
//! ledger --------------------------------------------------------->
//! ```
pub mod count;
pub mod devices;
pub mod flows;
pub mod groups;
pub mod http;
pub mod packet;
pub mod probe;
pub mod table;
pub mod terminal;
pub mod tune;
pub mod voip;
pub mod warnings;
