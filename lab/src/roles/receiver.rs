//! The receiver: counts the packets that the sensor's machine passes on.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A packet count of a device.
#[derive(Debug)]
pub struct Counting {
    file: PathBuf,
    before: u64,
}

impl Counting {
    /// Starts to count. `sysfs` is that of the device's network namespace.
    pub fn begin(sysfs: &Path, device: &str) -> Result<Counting> {
        let file = sysfs.join("class/net").join(device).join("statistics/rx_packets");
        let before = read(&file)?;
        Ok(Counting { file, before })
    }

    /// Number of packets since the start.
    pub fn end(self) -> Result<u64> {
        let now = read(&self.file)?;
        now.checked_sub(self.before).with_context(|| format!("{} goes backwards", self.file.display()))
    }
}

fn read(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    text.trim().parse().with_context(|| format!("{} is no number", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_in_between_is_counted() {
        let sysfs = tempfile::tempdir().unwrap();
        let folder = sysfs.path().join("class/net/rx/statistics");
        fs::create_dir_all(&folder).unwrap();
        let write = |text: &str| fs::write(folder.join("rx_packets"), text).unwrap();
        write("7\n");
        let counting = || Counting::begin(sysfs.path(), "rx").unwrap();
        let counted = counting();
        write("1007\n");
        assert_eq!(counted.end().unwrap(), 1000);
        let backwards = counting();
        write("0\n");
        assert!(backwards.end().unwrap_err().to_string().contains("backwards"));
        let gone = counting();
        fs::remove_dir_all(&folder).unwrap();
        assert!(gone.end().unwrap_err().to_string().contains("class/net/rx"));
        assert!(Counting::begin(sysfs.path(), "rx").is_err());
    }
}
