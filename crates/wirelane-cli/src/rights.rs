//! Dropping of privileges after set-up.

use std::path::{Path, PathBuf};

use anyhow::Result;
use wirelane::sandbox::{Identity, Sandbox, Work};

/// Heading of the help.
const RIGHTS: &str = "Privileges after set-up";

/// Output that the command continues to write.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The file, or the first of several; '-' is standard output.
    pub path: &'a Path,
    /// Whether the written data is read again.
    pub read_back: bool,
}

/// The options of every command that touches packets.
#[derive(clap::Args, Debug)]
pub struct RightsArgs {
    /// User to become when started by root. Default: the caller of sudo, else the account 'wirelane', else 'nobody'.
    /// 'root' stays root, without capabilities
    #[arg(long, value_name = "NAME", help_heading = RIGHTS)]
    user: Option<String>,

    /// Drop no privileges: same user, all capabilities, files and system calls. For debugging
    #[arg(long, conflicts_with = "user", help_heading = RIGHTS)]
    keep_rights: bool,

    /// TCP ports that the command connects to later.
    #[arg(skip)]
    pub tcp_ports: Vec<u16>,

    /// Whether terminal settings are changed, and restored at the end.
    #[arg(skip)]
    pub terminal: bool,
    /// Whether connections are accepted, on a socket that listens before.
    #[arg(skip)]
    pub serves: bool,
    /// Whether names are resolved later.
    #[arg(skip)]
    pub resolves: bool,
    /// Files that are reopened after they were renamed.
    #[arg(skip)]
    pub logs: Vec<PathBuf>,
    /// Files that are read again when they are replaced.
    #[arg(skip)]
    pub reads: Vec<PathBuf>,
    /// Folders in which the command creates folders and files later.
    #[arg(skip)]
    pub trees: Vec<PathBuf>,
    /// Folders that the command reads later.
    #[arg(skip)]
    pub sources: Vec<PathBuf>,
    /// Environment variables with secrets, which programs of the user do not inherit.
    #[arg(skip)]
    pub secrets: Vec<String>,
}

impl RightsArgs {
    /// Adds what another analysis of the same capture needs.
    pub fn include(&mut self, other: &mut RightsArgs) {
        self.tcp_ports.append(&mut other.tcp_ports);
        self.logs.append(&mut other.logs);
        self.reads.append(&mut other.reads);
        self.trees.append(&mut other.trees);
        self.sources.append(&mut other.sources);
        self.serves |= other.serves;
    }

    /// The TCP ports that exports connect to, and the files that they open again, to be added to.
    pub fn exports(&mut self) -> (&mut Vec<u16>, &mut Vec<PathBuf>) {
        (&mut self.tcp_ports, &mut self.logs)
    }

    /// Adds a store that the command writes: its retention reads what was shipped.
    pub fn stores(&mut self, folder: Option<&PathBuf>) {
        self.trees.extend(folder.cloned());
        self.sources.extend(folder.cloned());
    }

    /// The same options for shipping: reading and writing `store` with its `state`, connecting to `ports`. `resolves`: hosts
    /// are looked up meanwhile.
    #[cfg(feature = "ship")]
    pub fn shipping(
        &self,
        store: &Path,
        state: &Path,
        ports: impl Iterator<Item = u16>,
        resolves: bool,
    ) -> RightsArgs {
        RightsArgs {
            user: self.user.clone(),
            keep_rights: self.keep_rights,
            tcp_ports: ports.collect(),
            terminal: false,
            serves: false,
            resolves,
            logs: Vec::new(),
            trees: vec![store.to_owned(), state.to_owned()],
            reads: Vec::new(),
            sources: vec![store.to_owned()],
            secrets: Vec::new(),
        }
    }

    /// Whom the command becomes; `None`: nobody else.
    ///
    /// # Errors
    /// If there is no such user.
    pub fn identity(&self) -> Result<Option<Identity>> {
        Ok(match (&self.user, self.keep_rights) {
            (_, true) => None,
            (Some(name), _) => Identity::named(name)?,
            (None, _) => Identity::unprivileged()?,
        })
    }

    /// Sandbox for this work, which writes to `output`; `None`: no restrictions.
    ///
    /// # Errors
    /// If there is no such user.
    pub fn confinement(&self, work: Work, output: Option<Output<'_>>) -> Result<Option<Sandbox>> {
        if self.keep_rights {
            return Ok(None);
        }
        let mut confinement = Sandbox::new(work).identity(self.identity()?).connects(&self.tcp_ports);
        confinement = confinement.terminal(self.terminal).serves(self.serves);
        confinement = confinement.resolves(self.resolves);
        for tree in &self.trees {
            confinement = confinement.tree(tree);
        }
        for path in &self.reads {
            confinement = confinement.read_again(path);
        }
        for source in &self.sources {
            confinement = confinement.reads(source);
        }
        for log in &self.logs {
            confinement = confinement.log(log);
        }
        Ok(Some(match output {
            Some(output) if output.path.as_os_str() != "-" => {
                confinement.output(output.path).read_back(output.read_back)
            }
            _ => confinement,
        }))
    }
}
