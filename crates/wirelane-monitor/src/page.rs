//! The page of a report as a file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::out;

/// Output of the page: opened before any query, so that the user does not wait for a page that cannot be written.
pub enum Page {
    /// Standard output.
    Standard,
    /// A file with its path.
    File(File, PathBuf),
}

impl Page {
    /// Opens the output; `-` is standard output. An existing file is replaced only with `overwrite`.
    ///
    /// # Errors
    /// The file exists, is a link, or cannot be written.
    pub fn open(path: &Path, overwrite: bool) -> Result<Page> {
        if path.as_os_str() == "-" {
            return Ok(Page::Standard);
        }
        // A report contains private addresses and names, and is only for its owner. A link planted under its name must
        // not lead to another file.
        let mut options = OpenOptions::new();
        options.write(true).truncate(false).create(overwrite).create_new(!overwrite);
        options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        match options.open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                bail!("{} is a symbolic link, which is not followed", path.display())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{} is there already: --overwrite replaces it", path.display())
            }
            opened => {
                Ok(Page::File(opened.with_context(|| format!("writing {}", path.display()))?, path.into()))
            }
        }
    }

    /// The page's absolute path, without symbolic links; `None`: it has none.
    pub fn place(&self) -> Option<PathBuf> {
        match self {
            Page::Standard => None,
            Page::File(_, path) => path.canonicalize().ok(),
        }
    }

    /// Removes the file if there will be no page, unless it may have existed before.
    pub fn give_up(&self, overwrite: bool) {
        if let (Page::File(_, path), false) = (self, overwrite) {
            // A file that cannot be removed is empty, and the reported error contains the reason.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Writes the page.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(self, page: &str) -> Result<()> {
        match self {
            Page::Standard => out::print(page),
            Page::File(mut file, path) => {
                let written = file.set_len(0).and_then(|()| file.write_all(page.as_bytes()));
                written.and_then(|()| file.sync_all()).with_context(|| format!("writing {}", path.display()))
            }
        }
    }
}
