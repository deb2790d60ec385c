//! Which rights a command keeps once it is set up.

use std::path::Path;

use anyhow::Result;
use wirelane::confine::{Confinement, Identity, Work};

/// Heading of the help.
const RIGHTS: &str = "Rights, once everything is set up";

/// The options of every command that touches packets.
#[derive(clap::Args, Debug)]
pub struct RightsArgs {
    /// User to become when started by root. Default: who called sudo, else the account 'wirelane', else 'nobody'. With
    /// 'root' the user stays, without capabilities
    #[arg(long, value_name = "NAME", help_heading = RIGHTS)]
    user: Option<String>,

    /// Give nothing up: same user, all capabilities, files and system calls. For finding faults
    #[arg(long, conflicts_with = "user", help_heading = RIGHTS)]
    keep_rights: bool,
}

impl RightsArgs {
    /// What is given up for this work, which writes to `output`; `None`: nothing.
    ///
    /// # Errors
    /// Where there is no such user.
    pub fn confinement(&self, work: Work, output: Option<&Path>) -> Result<Option<Confinement>> {
        if self.keep_rights {
            return Ok(None);
        }
        let identity = match &self.user {
            Some(name) => Identity::named(name)?,
            None => Identity::unprivileged()?,
        };
        let confinement = Confinement::new(work).identity(identity);
        Ok(Some(match output {
            Some(path) if path.as_os_str() != "-" => confinement.output(path),
            _ => confinement,
        }))
    }
}
