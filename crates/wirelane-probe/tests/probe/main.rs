//! The probe over generated capture files, and over the corpus.

mod alarms;
mod applications;
mod corpus;
mod exact;
mod kernel;
mod mistakes;
mod ready;
mod recordings;
mod reload;
mod set;
mod traffic;
