//! The user that a process of root becomes.

use std::ffi::CString;
use std::path::Path;

use caps::{CapSet, Capability};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{self, AccessFlags, Gid, Group, Uid, User};

use super::refused;
use crate::capability::Privileges;
use crate::{Error, Result};

/// The accounts that are tried if sudo names no user.
const UNPRIVILEGED: [&str; 2] = ["wirelane", "nobody"];

/// The conventional number of `nobody`, which the kernel reports for users that it cannot map (`fs.overflowuid`).
const NOBODY: u32 = 65534;

/// A user with their groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Identity {
    /// The user that root becomes if no user is named: the user who called sudo (`SUDO_UID`, `SUDO_GID`), otherwise the
    /// account `wirelane` if it exists, otherwise `nobody`, with the number 65534 if there are no accounts.
    ///
    /// `None`: the user stays the same. The process is not root's, or is root only in another user namespace, or it
    /// cannot change its user because CAP_SETUID or CAP_SETGID has been taken from it.
    ///
    /// # Errors
    /// [`Error::Kernel`] if accounts cannot be read; [`Error::BadOption`] if `SUDO_UID` has no account, and `SUDO_GID`
    /// is not set.
    pub fn unprivileged() -> Result<Option<Identity>> {
        if !unistd::geteuid().is_root() || !Privileges::current()?.in_initial_user_namespace() {
            return Ok(None);
        }
        let may = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
        if !may(Capability::CAP_SETUID) || !may(Capability::CAP_SETGID) {
            return Ok(None);
        }
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
        if let Some(uid) = number("SUDO_UID").filter(|uid| *uid != 0) {
            return Identity::of_number(uid, number("SUDO_GID")).map(Some);
        }
        for name in UNPRIVILEGED {
            if let Some(user) = found(User::from_name(name))? {
                return Identity::of(&user).map(Some);
            }
        }
        // A container may have no accounts at all.
        Ok(Some(Identity::numbered(NOBODY, Gid::from_raw(NOBODY))))
    }

    /// The user with this name or number. `None` for the user that the process has already.
    ///
    /// # Errors
    /// [`Error::BadOption`] if there is no such user, or the process is not root's and cannot become another user.
    pub fn named(name: &str) -> Result<Option<Identity>> {
        let user = match name.parse() {
            Ok(uid) => found(User::from_uid(Uid::from_raw(uid)))?,
            Err(_) => found(User::from_name(name))?,
        };
        let user = user.ok_or_else(|| wrong(format!("there is no user '{name}'")))?;
        if user.uid == unistd::geteuid() {
            return Ok(None);
        }
        if !unistd::geteuid().is_root() {
            return Err(wrong(format!("only root can become '{name}'; leave the option out")));
        }
        Identity::of(&user).map(Some)
    }

    /// The number of the group with this name or number; `None`: there is none.
    ///
    /// # Errors
    /// [`Error::Kernel`] if groups cannot be read.
    pub fn group(name: &str) -> Result<Option<u32>> {
        if let Ok(number) = name.parse() {
            return Ok(Some(number));
        }
        let group = Group::from_name(name).map_err(refused("reading groups"))?;
        Ok(group.map(|group| group.gid.as_raw()))
    }

    /// The name, or the number of a user without a name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The user id and the group id.
    pub fn ids(&self) -> (u32, u32) {
        (self.uid.as_raw(), self.gid.as_raw())
    }

    fn of(user: &User) -> Result<Identity> {
        let name =
            CString::new(user.name.as_str()).map_err(|_| wrong("a user's name has a zero in it".into()))?;
        let groups = unistd::getgrouplist(&name, user.gid).map_err(refused("reading a user's groups"))?;
        Ok(Identity { name: user.name.clone(), uid: user.uid, gid: user.gid, groups })
    }

    fn numbered(uid: u32, gid: Gid) -> Identity {
        Identity { name: uid.to_string(), uid: Uid::from_raw(uid), gid, groups: vec![gid] }
    }

    fn of_number(uid: u32, gid: Option<u32>) -> Result<Identity> {
        let uid = Uid::from_raw(uid);
        let user = found(User::from_uid(uid))?;
        match (user, gid) {
            (Some(user), gid) => {
                let of_user = Identity::of(&user)?;
                Ok(Identity { gid: gid.map_or(of_user.gid, Gid::from_raw), ..of_user })
            }
            (None, Some(gid)) => Ok(Identity::numbered(uid.as_raw(), Gid::from_raw(gid))),
            (None, None) => {
                Err(wrong(format!("SUDO_UID is {uid}, who has no account, and SUDO_GID is missing")))
            }
        }
    }

    /// Whether this user may write to a file, or create files in a folder. Called as root, for another user.
    pub(super) fn may_write(&self, place: &Path) -> bool {
        may_write_as(place, self.uid.as_raw(), self.gid.as_raw())
    }

    /// Becomes this user: real, effective and saved ids.
    pub(super) fn assume(&self) -> Result<()> {
        let becoming = format!("becoming the user '{}'", self.name);
        let failed = |errno: nix::Error| Error::kernel(becoming.clone(), errno.into());
        unistd::setgroups(&self.groups).map_err(failed)?;
        unistd::setresgid(self.gid, self.gid, self.gid).map_err(failed)?;
        unistd::setresuid(self.uid, self.uid, self.uid).map_err(failed)
    }
}

/// Result of an account lookup. Several error numbers mean that there are no accounts or no such account (getpwnam(3),
/// ERRORS).
fn found(searched: nix::Result<Option<User>>) -> Result<Option<User>> {
    match searched {
        Err(nix::Error::ENOENT | nix::Error::ESRCH | nix::Error::EBADF | nix::Error::EPERM) => Ok(None),
        searched => searched.map_err(refused("reading the accounts")),
    }
}

/// Checks access as another user, in a separate thread: the identity for file access is per thread, and changing it
/// clears the capabilities that override permissions. Groups beyond the first are not considered.
pub(super) fn may_write_as(place: &Path, uid: u32, gid: u32) -> bool {
    let ask = || {
        // Root would keep its capabilities when it becomes root.
        if uid == 0 && caps::clear(None, CapSet::Effective).is_err() {
            return false;
        }
        unistd::setfsgid(Gid::from_raw(gid));
        unistd::setfsuid(Uid::from_raw(uid));
        let mode = match place.is_dir() {
            true => AccessFlags::W_OK | AccessFlags::X_OK,
            false => AccessFlags::W_OK,
        };
        // Opening a file that does not exist reports the error.
        match unistd::faccessat(AT_FDCWD, place, mode, AtFlags::AT_EACCESS) {
            Ok(()) | Err(nix::Error::ENOENT) => true,
            Err(_) => false,
        }
    };
    std::thread::scope(|scope| scope.spawn(ask).join()).unwrap_or(false)
}

fn wrong(reason: String) -> Error {
    Error::BadOption { option: "--user", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number() {
        if !unistd::geteuid().is_root() {
            println!("left out: users_are_found_by_name_and_by_number (needs root)");
            return;
        }
        let nobody = Identity::named("nobody").unwrap().unwrap();
        assert_eq!(Identity::named(&nobody.uid.to_string()).unwrap(), Some(nobody));
        assert_eq!(Identity::named("root").unwrap(), None);
        let error = Identity::named("no such user").unwrap_err().to_string();
        assert!(error.contains("no user 'no such user'"), "{error}");
    }

    #[test]
    fn whether_somebody_else_may_write_is_asked_as_them() {
        if !unistd::geteuid().is_root() {
            println!("left out: whether_somebody_else_may_write_is_asked_as_them (needs root)");
            return;
        }
        use std::os::unix::fs::{PermissionsExt, chown};
        let nobody = Identity::named("nobody").unwrap().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let open =
            |mode| std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        open(0o755);
        assert!(!nobody.may_write(folder.path()));
        assert!(may_write_as(folder.path(), 0, 0));
        open(0o777);
        assert!(nobody.may_write(folder.path()));
        open(0o700);
        chown(folder.path(), Some(nobody.uid.as_raw()), None).unwrap();
        assert!(nobody.may_write(folder.path()));
        assert!(!may_write_as(folder.path(), 0, 0), "root without capabilities");
        assert!(nobody.may_write(Path::new("/dev/null")));
        // The thread that asked has ended together with its identity: this one still has all rights.
        assert!(std::fs::write(folder.path().join("file"), b"x").is_ok());
    }
}
