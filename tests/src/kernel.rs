//! Which kernel the tests run on.

use anyhow::{Context, Result};

/// Major and minor number of the running kernel, as in 6.1.
///
/// # Errors
/// Where `/proc` does not tell, or tells something that does not start with two numbers.
pub fn kernel_version() -> Result<(u32, u32)> {
    let path = "/proc/sys/kernel/osrelease";
    let release = std::fs::read_to_string(path).context(path)?;
    parse(&release).with_context(|| format!("{path} says {release}"))
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_several_distributions_are_read() {
        assert_eq!(parse("6.1.0-50-amd64"), Some((6, 1)));
        assert_eq!(parse("6.12.107+deb13-amd64\n"), Some((6, 12)));
        assert_eq!(parse("7.2-rc1"), Some((7, 2)));
        assert_eq!(parse("next"), None);
    }
}
