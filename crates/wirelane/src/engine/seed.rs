//! The seed of the flow hash.

use std::sync::OnceLock;

/// A seed that a sender cannot guess, so that it cannot aim its flows at one worker. All captures of the machine have
/// the same seed: both directions of a conversation, which pass different hooks and devices, meet at one worker.
///
/// The seed is taken from the random number that the kernel draws when it boots
/// (/proc/sys/kernel/random/boot_id). It protects against senders elsewhere; users of the machine can read it.
pub(crate) fn machine_seed() -> u32 {
    static SEED: OnceLock<u32> = OnceLock::new();
    *SEED.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Without /proc, all captures of this process have the same seed.
        fold(&boot).unwrap_or_else(random_number)
    })
}

/// The 32-bit words of a UUID, XORed; `None` if the text is not a UUID.
fn fold(uuid: &str) -> Option<u32> {
    let digits: String = uuid.trim().chars().filter(|&letter| letter != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some((0..4).fold(0, |seed, word| seed ^ (number >> (32 * word)) as u32))
}

/// A random number.
pub(crate) fn random_number() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    // RandomState is seeded by the operating system; hashing nothing yields a value that depends on it alone.
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_folded_and_other_texts_are_refused() {
        assert_eq!(fold("00000001-0000-0002-0000-000400000008\n"), Some(1 ^ 2 ^ 4 ^ 8));
        assert_eq!(fold("00000001-0000-0002-0000"), None);
        assert_eq!(fold(""), None);
        assert_eq!(machine_seed(), machine_seed());
    }
}
