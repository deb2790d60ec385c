//! Names of probes: whoever reads the rows of many stores distinguishes them by these.

use std::io;

/// Largest length of a name in bytes: a DNS name has no more.
const MOST: usize = 253;

/// The default name of a probe: the name of this host.
///
/// # Errors
/// If the kernel does not give the name, or it is not a valid name of a probe.
pub fn host_name() -> io::Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    probe_name(name.trim())
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, format!("the host's name: {why}")))
}

/// Checks the name of a probe: a DNS name, or the like.
///
/// # Errors
/// The reason why the name is invalid.
pub fn probe_name(name: &str) -> Result<String, String> {
    let is_valid =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'@');
    if name.is_empty() || name.len() > MOST || !name.bytes().all(is_valid) {
        return Err(format!(
            "'{name}' is not a name of a probe: expected 1 to {MOST} letters, digits and - _ . : @"
        ));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_probes_are_those_of_hosts() {
        for name in ["a", "probe-1.example.net", "eth1@2", "2001:db8::1", &"x".repeat(MOST)] {
            assert_eq!(probe_name(name).as_deref(), Ok(name));
        }
        for wrong in ["", "a b", "a'b", "a\n", "\u{e9}", &"x".repeat(MOST + 1)] {
            assert!(probe_name(wrong).is_err(), "{wrong:?}");
        }
    }
}
