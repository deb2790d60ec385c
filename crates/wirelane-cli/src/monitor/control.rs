//! [control]: a socket at a fixed path, to which others than root and the monitor's user can connect.

use std::path::PathBuf;

use anyhow::Result;
use wirelane::Error;
use wirelane::control::SharedSocket;
use wirelane::sandbox::Identity;

/// Keys of the section.
#[derive(clap::Args, Debug)]
pub struct ControlArgs {
    /// Path of the socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Group of the socket
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,

    /// Mode of the socket, in octal digits
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<u32>,
}

impl ControlArgs {
    /// The socket, if the section has one.
    ///
    /// # Errors
    /// A usage error: a key without the socket, or a group that does not exist.
    pub fn socket(&self) -> Result<Option<SharedSocket>> {
        let wrong = |option, reason: String| Error::BadOption { option, reason }.into();
        let Some(path) = self.socket.clone() else {
            let other = self.group.as_ref().map(|_| "group").or(self.mode.map(|_| "mode"));
            return match other {
                Some(key) => Err(wrong(key, "expected socket = \"PATH\" beside it".to_owned())),
                None => Ok(None),
            };
        };
        if !path.is_absolute() {
            return Err(wrong("socket", "expected a path that begins with /".to_owned()));
        }
        let group = match &self.group {
            Some(name) => match Identity::group(name)? {
                Some(group) => Some(group),
                None => return Err(wrong("group", format!("there is no group '{}'", name.escape_debug()))),
            },
            None => None,
        };
        let mode = self.mode.unwrap_or(if group.is_some() { 0o660 } else { 0o600 });
        Ok(Some(SharedSocket { path, group, mode }))
    }
}

/// The mode of a socket: its owner reads and writes.
fn mode(text: &str) -> std::result::Result<u32, String> {
    let expected = || "expected octal digits, as in \"0600\", \"0660\" or \"0666\"".to_owned();
    let mode = u32::from_str_radix(text, 8).map_err(|_| expected())?;
    if mode & !0o666 == 0 && mode & 0o600 == 0o600 { Ok(mode) } else { Err(expected()) }
}
