//! A process that gives up its rights with the library's sandbox and then tries an action, for
//! `tests/tests/all/confinement.rs`.
//!
//! `try-confined ATTEMPT FOLDER`: FOLDER is the only output that stays allowed. Prints `allowed`, or `refused: ` and
//! the kernel's error; a call that seccomp forbids kills it instead.

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapHandle, MapType};
use wirelane::privilege::Capability;
use wirelane::sandbox::{Identity, Sandbox, Work};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let attempt = arguments.next().context("usage: try-confined ATTEMPT FOLDER")?;
    let folder = arguments.next().context("usage: try-confined ATTEMPT FOLDER")?;
    let folder = Path::new(&folder);
    let confinement =
        Sandbox::new(Work::Capture).identity(Identity::unprivileged()?).output(&folder.join("out.pcapng"));
    if attempt == "threads" {
        let (tell, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        let refused = confinement.apply().err().context("confined beside another thread")?;
        drop(tell);
        println!("refused: {refused} {}", thread.join().is_ok());
        return Ok(());
    }
    let confinement = match attempt.as_str() {
        "keep" => confinement.keep(Capability::NetRaw),
        _ => confinement,
    };
    confinement.apply()?;
    match try_it(&attempt, folder)? {
        Ok(()) => println!("allowed"),
        Err(error) => println!("refused: {error}"),
    }
    Ok(())
}

fn try_it(attempt: &str, folder: &Path) -> Result<io::Result<()>> {
    Ok(match attempt {
        "nothing" => Ok(()),
        "keep" => {
            // The test inspects it from outside: this process may not even read its own status.
            println!("ready");
            io::stdin().read_line(&mut String::new()).map(drop)
        }
        "execve" => {
            nix::unistd::execv(&CString::new("/bin/true")?, &[c"true"]).map(|_| ()).map_err(Into::into)
        }
        "fork" => Command::new("/bin/true").status().map(drop),
        "socket" => std::net::UdpSocket::bind("127.0.0.1:0").map(drop),
        "ptrace" => nix::sys::ptrace::attach(nix::unistd::getppid()).map_err(Into::into),
        "bpf" => {
            let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
                ..Default::default()
            };
            MapHandle::create(MapType::Array, Some("wl_tried"), 4, 8, 1, &options)
                .map(drop)
                .map_err(io::Error::other)
        }
        "setuid" => nix::unistd::setuid(nix::unistd::Uid::from_raw(0)).map_err(Into::into),
        "shadow" => std::fs::read("/etc/shadow").map(drop),
        "other" => std::fs::read(folder.join("other.pcapng")).map(drop),
        "passwd" => std::fs::read("/etc/passwd").map(drop),
        "outside" => std::fs::write("/tmp/wirelane-try-confined", b"outside"),
        "inside" => {
            let part = folder.join("out.pcapng.part");
            std::fs::write(&part, b"inside").and_then(|()| std::fs::rename(&part, folder.join("out.pcapng")))
        }
        "thread" => std::thread::spawn(|| std::fs::read("/etc/passwd").is_err())
            .join()
            .map_err(|_| io::Error::other("a panic"))
            .map(drop),
        other => bail!("no such attempt: {other}"),
    })
}
