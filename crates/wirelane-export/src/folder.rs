//! Creates output folders without following symbolic links planted by another user.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::path::{Path, PathBuf};

/// Creates a folder with this mode, and its missing parents. `owner`: user and group of a created folder.
///
/// As the kernel's `fs.protected_symlinks` does in folders such as /tmp, it follows a symbolic link only if the link is
/// owned by root or the caller: otherwise another user could choose where a capture that runs as root creates files.
///
/// # Errors
/// The kernel's error, and `PermissionDenied` for such a link.
pub fn make(folder: &Path, mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    refuse_foreign_links(folder)?;
    if folder.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(folder)?;
    // A link may have been created between the check and the creation.
    refuse_foreign_links(folder)?;
    owner.map_or(Ok(()), |(uid, gid)| lchown(folder, Some(uid), Some(gid)))
}

/// Checks every existing component of a path.
fn refuse_foreign_links(path: &Path) -> io::Result<()> {
    // lstat(2) of "link/" follows the link; components have no such slash.
    let path: PathBuf = path.components().collect();
    for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
        let Ok(found) = fs::symlink_metadata(part) else { continue };
        if found.is_symlink() && !is_trusted(found.uid()) {
            let reason = format!(
                "{} is a symbolic link of user {}, and only links of root or of the user that started this program are \
                 followed: give the path of the folder itself",
                part.display(),
                found.uid()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
    }
    Ok(())
}

/// Whether this user may choose where files are created: root, the user of this process, and the caller of sudo.
fn is_trusted(uid: u32) -> bool {
    let own = rustix::process::geteuid();
    let caller = || std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    uid == 0 || uid == own.as_raw() || own.is_root() && caller() == Some(uid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn own_links_are_followed_and_those_of_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        make(&at("target/inner"), 0o750, None).unwrap();
        assert_eq!(fs::metadata(at("target/inner")).unwrap().permissions().mode() & 0o777, 0o750);
        symlink(at("target"), at("link")).unwrap();
        make(&at("link"), 0o700, None).unwrap();
        make(&at("link/new"), 0o700, None).unwrap();
        if !rustix::process::geteuid().is_root() {
            println!("left out: links of others, which only root can make");
            return;
        }
        lchown(at("link"), Some(4711), None).unwrap();
        for planted in ["link", "link/", "link/inner", "link/other"] {
            let error = make(&at(planted), 0o700, None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{planted}");
            assert!(error.to_string().contains("is a symbolic link of user 4711"), "{error}");
        }
        assert!(!at("target/other").exists());
        // A dangling link must not choose a location, either.
        symlink(at("nowhere"), at("dangling")).unwrap();
        lchown(at("dangling"), Some(4711), None).unwrap();
        make(&at("dangling/store"), 0o700, None).unwrap_err();
        assert!(!at("nowhere").exists());
    }
}
