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

/// Stands in the generated script for the command that prints the devices: the generator knows fixed words only.
const MARK: &str = "WIRELANE_DEVICES";
/// That command; a shell runs it when it completes a device.
const DEVICES: &str = "wirelane devices --names 2>/dev/null";
/// Functions of the script for Bash.
const BASH: &str = include_str!("completions.bash");

/// Runs the command; `definition` is the whole command line's.
pub fn run(args: &Args, definition: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut marked(definition), "wirelane", &mut script);
    let script = String::from_utf8(script)?;
    out::print(match args.shell {
        Shell::Bash => {
            let words = format!("COMPREPLY=($(compgen -W \"{MARK}\" -- \"${{cur}}\"))");
            let script = script.replace(&words, "_wirelane_devices \"${cur}\"");
            BASH.to_owned() + &script.replace("complete -F _wirelane ", "complete -F _wirelane_joined ")
        }
        Shell::Zsh => {
            // Behind the last comma of a list.
            let devices = format!("{{compset -P \"*,\"; compadd -- ${{(f)\"$({DEVICES})\"}}}}");
            script.replace(&format!("({MARK})"), &devices)
        }
        Shell::Fish => {
            let devices = format!("(__fish_complete_list , '{DEVICES}')");
            script.replace(&format!("{MARK}\\t''"), &devices)
        }
        _ => script.replace(MARK, &format!("$({DEVICES})")),
    })
}

/// The command line with marks for the values that are devices.
fn marked(command: clap::Command) -> clap::Command {
    let is_device = |arg: &clap::Arg| {
        arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.starts_with("DEV")))
    };
    command
        .mut_args(move |arg| if is_device(&arg) { arg.value_parser([MARK]) } else { arg })
        .mut_subcommands(marked)
}
