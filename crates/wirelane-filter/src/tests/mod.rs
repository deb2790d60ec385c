//! The translator and the interpreter compared to libpcap.
//!
//! ```text
//! rejected    what does not compile, and where the error points
//! translate   each instruction of classic BPF, and what cannot be translated
//! generated   expressions of all primitives, over every capture of the corpus: equal to libpcap's verdicts
//! hostile     cut packets, lengths that lie, and steps that no translator would make
//! kernel      the kernel's compilation of the interpreter, equal to the native one
//! generator   makes the expressions
//! ```

mod generated;
mod generator;
mod hostile;
mod kernel;
mod rejected;
mod translate;

use wirelane_testing::{Dice, packets};
