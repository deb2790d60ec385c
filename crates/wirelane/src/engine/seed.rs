//! The seed of a capture's flow hash.

/// A seed that a sender cannot guess, so that it cannot aim its flows at one worker.
pub(crate) fn random_seed() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    // RandomState is seeded by the operating system; hashing nothing yields a value that depends on it alone.
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}
