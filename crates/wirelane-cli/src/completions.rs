//! `wirelane completions`: shell completion scripts, from the same definition as `--help`.

use anyhow::Result;
use clap_complete::Shell;

use wirelane_monitor::out;

/// Print a shell's completion script
///
/// 'make install' installs it in the shells' folders.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
For one user, in the shells' default folders:
  mkdir -p ~/.local/share/bash-completion/completions ~/.config/fish/completions
  cd ~/.local/share/bash-completion/completions
  wirelane completions bash > wirelane
  wirelane completions fish > ~/.config/fish/completions/wirelane.fish
For zsh, in a folder of $fpath:
  wirelane completions zsh > ~/.zfunc/_wirelane";

/// Runs the command; `definition` is the whole command line's.
pub fn run(args: &Args, mut definition: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, "wirelane", &mut script);
    out::print(script)
}
