//! Moves entries of a card's RSS table while a capture runs.
//!
//! ```text
//! capture, without rights                          helper, with CAP_NET_ADMIN
//! balance::table: which entries  -- request -->    checks it; journal, then the table
//!                                <-- answer ---
//! ends, or is killed             -- end ------>    puts the table back, ends
//! ```
//! The table belongs to the machine, so it is journalled like all changes of tuning, and the helper is the owner of the
//! change: if the helper is killed too, the next capture on the device restores the table, or `wirelane tune restore`.

mod change;
mod helper;
mod message;
mod stream;

use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use wirelane_privsep::Capability;
use wirelane_privsep::forked::{self, Rights};

use self::helper::Task;
pub use self::message::{Answer, EntryMove};
use super::journal::{By, Identity, Journal, Owner};
use super::setting::{Setting, table_of};
use super::system::{LiveSystem, System as _};
use super::{apply, rights};
use crate::{Error, Result};
use wirelane_netdev::Device;
use wirelane_netdev::ethtool_set::EthtoolSet;

/// Timeout of the helper's answers at the start and at the end, where the capture has nothing else to do.
const LIMIT: Duration = Duration::from_secs(8);

/// The current RSS table of a device.
///
/// # Errors
/// [`Error::Unsupported`] if it has none.
pub fn table(device: &Device) -> Result<Vec<u32>> {
    let ethtool = EthtoolSet::open(&device.name)
        .map_err(|source| Error::kernel("opening a socket for ethtool", source))?;
    let rss =
        ethtool.rss().map_err(|_| cannot(&device.name, "a card that has an RSS table (see ethtool -x)"))?;
    Ok(rss.table)
}

/// The error for a device that lacks a feature that moving entries needs.
pub fn cannot(device: &str, needs: &str) -> Error {
    Error::Unsupported {
        what: format!("--balance adaptive with --steering queue on {device}"),
        needs: needs.into(),
        instead: "--balance static, or --steering flow, which moves flows between workers on any device"
            .into(),
    }
}

/// A capture's access to a device's RSS table. Dropping it restores the table.
#[derive(Debug)]
pub struct TableHold {
    device: String,
    socket: UnixStream,
    /// Number of the outstanding request.
    number: u32,
    /// The first bytes of an incomplete answer.
    partial: Vec<u8>,
}

impl TableHold {
    /// Starts the helper for moves among these queues of a table. To be called before rights are given up.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if another capture moves entries of this table; otherwise the error of the journal or the
    /// kernel.
    pub fn take(device: &Device, table: &[u32], queues: &[u32]) -> Result<TableHold> {
        wirelane_privsep::require(&[Capability::NetAdmin], "moving entries of an RSS table")?;
        let identity = Identity::of(device)?;
        let mut journal = Journal::create(&identity.path(), &identity)?;
        let held = hold(device, &identity, &mut journal, table, queues);
        journal.finish()?;
        held
    }

    /// Requests moves, up to [`EntryMove::MOST`]. The answer arrives later; until then no other request may be sent.
    ///
    /// # Errors
    /// If the helper has ended.
    pub fn ask(&mut self, moves: &[EntryMove]) -> io::Result<()> {
        // Not u32::MAX, which is the number of the last answer.
        self.number = (self.number + 1) % u32::MAX;
        stream::send(&self.socket, &message::request(self.number, moves))
    }

    /// The answer, if it has arrived.
    ///
    /// # Errors
    /// If the helper has ended.
    pub fn answer(&mut self) -> io::Result<Option<Answer>> {
        let mut buffer = [0; message::ANSWER];
        let missing = message::ANSWER - self.partial.len();
        match stream::receive(&self.socket, &mut buffer[..missing]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => self.partial.extend_from_slice(&buffer[..got]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        let Ok(whole) = <[u8; message::ANSWER]>::try_from(&self.partial[..]) else { return Ok(None) };
        self.partial.clear();
        match Answer::read(&whole) {
            Some((number, answer)) if number == self.number => Ok(Some(answer)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Makes the helper end, and returns its last answer.
    fn end(&mut self) -> io::Result<Answer> {
        self.socket.shutdown(std::net::Shutdown::Write)?;
        let mut last = Vec::new();
        self.socket.read_to_end(&mut last)?;
        let whole = last.last_chunk().and_then(Answer::read);
        whole.map(|(_, answer)| answer).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

fn hold(
    device: &Device,
    identity: &Identity,
    journal: &mut Journal,
    table: &[u32],
    queues: &[u32],
) -> Result<TableHold> {
    let failed = |source| Error::kernel("starting the process that sets the RSS table", source);
    // Undo the changes of killed captures.
    let system = LiveSystem::open(device.clone())?;
    apply::undo(&system, journal, By::Capture)?;
    if let Some(other) = journal.owners.iter().find(|owner| owner.holds(&Setting::RssTable)) {
        let needs = format!(
            "a table of which no other capture moves entries: process {} does, for all who capture there",
            other.pid
        );
        return Err(cannot(&device.name, &needs));
    }
    let now = system.get(&Setting::RssTable).map_err(failed)?;
    if table_of(&now, table.len()).as_deref() != Some(table) {
        return Err(failed(io::Error::other("its table was changed just now; try again")));
    }
    // If they could not be undone, this helper restores the original value.
    let left =
        journal.entries.iter().find(|entry| entry.by == By::Capture && entry.what == Setting::RssTable);
    let original = left.map_or(now, |entry| entry.old.clone());
    let task = Task {
        device: device.clone(),
        identity: identity.clone(),
        queues: queues.to_vec(),
        table: table.to_vec(),
        original,
    };
    let (capabilities, folders) = rights::for_table_of(&device.name)?;
    let rights = Rights::new(&capabilities, &folders)?;
    let (mut socket, its) = UnixStream::pair().map_err(failed)?;
    let keep = [its.as_raw_fd()];
    forked::start(c"wl-rss", rights, &keep, move || helper::serve(&task, its)).map_err(failed)?;
    // Set here, because the sandbox does not allow it later.
    socket.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    let mut hello = [0; message::ANSWER];
    socket.read_exact(&mut hello).map_err(failed)?;
    let Some((0, Answer::Ready(pid))) = Answer::read(&hello) else {
        return Err(failed(io::ErrorKind::InvalidData.into()));
    };
    journal.hold(&Owner::of_table(pid))?;
    Ok(TableHold { device: device.name.clone(), socket, number: 0, partial: Vec::new() })
}

impl Drop for TableHold {
    fn drop(&mut self) {
        let last = self.end();
        let device = &self.device;
        match last {
            Ok(Answer::Restored) => {}
            Ok(Answer::LeftAlone) => {
                tracing::warn!(
                    "{device}: the RSS table was changed by somebody else meanwhile: it is left alone"
                );
            }
            Ok(_) => tracing::warn!(
                "{device}: the RSS table could not be put back; 'wirelane tune restore -i {device}' tries again"
            ),
            Err(e) => tracing::warn!(
                "{device}: the process that sets the RSS table is gone ({e}); 'wirelane tune restore -i {device}' puts \
                 the table back"
            ),
        }
    }
}
