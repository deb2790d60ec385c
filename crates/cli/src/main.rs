//! The `wirelane` command.
mod send;

use clap::Parser;

#[derive(Parser)]
#[command(name = "wirelane", version)]
enum Command {
    Send(send::Args),
}

fn main() -> std::process::ExitCode {
    let Command::Send(args) = Command::parse();
    match send::run(args) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            tracing::debug!("{error:?}");
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("wirelane: {error:#}\n").as_bytes(),
            );
            std::process::ExitCode::FAILURE
        }
    }
}
