//! Version of the running kernel, for messages and for features that cannot be probed.

use std::fs;

/// Whether the running kernel is this version or a later one; `true` if the version cannot be read.
pub fn at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_none_or(|running| running >= (major, minor))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_versions() {
        assert_eq!(super::version("6.1.0-28-amd64\n"), Some((6, 1)));
        assert_eq!(super::version("6.18-rc3"), Some((6, 18)));
        assert_eq!(super::version("unknown"), None);
    }
}
