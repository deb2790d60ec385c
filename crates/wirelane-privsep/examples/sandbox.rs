//! Enters the sandbox and shows that files can no longer be opened. Run it as root to see the user change, too.
use std::fs::File;

use wirelane_privsep::{Identity, Result, Sandbox, Work};

fn main() -> Result<()> {
    println!("before: /etc/passwd can be opened: {}", File::open("/etc/passwd").is_ok());
    Sandbox::new(Work::Capture).identity(Identity::unprivileged()?).apply()?;
    println!("after: /etc/passwd can be opened: {}", File::open("/etc/passwd").is_ok());
    Ok(())
}
