//! Moves entries of a card's RSS table while a capture runs.
//!
//! ```text
//! capture, without rights                          broker, with CAP_NET_ADMIN
//! balance::table: which entries  -- request -->    checks it; journal, then the table
//!                                <-- answer ---
//! ends, or is killed             -- end ------>    puts the table back
//! ```
//! The table belongs to the machine, so it is journalled like all changes of tuning, with the capture as the owner of the
//! change: if the broker is killed too, the next capture on the device restores the table, or `wirelane tune restore`.

mod change;
mod service;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Channel};

use self::service::Registered;
pub use self::service::{Answer, EntryMove, KIND};
use super::apply;
use super::hold::{Held, Hold};
use super::journal::{By, Identity, Journal, Owner, TABLE};
use super::setting::{Setting, table_of};
use super::system::{LiveSystem, System as _};
use crate::{Error, Result};
use wirelane_netdev::Device;
use wirelane_netdev::ethtool_set::EthtoolSet;

/// Timeout of the broker's answers: never reached, because answers are read once they have arrived.
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
    channel: Channel,
    _held: Held,
}

impl TableHold {
    /// Registers moves among these queues of a table. To be called before rights are given up.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if another capture moves entries of this table; otherwise the error of the journal or the
    /// kernel.
    pub fn take(device: &Device, table: &[u32], queues: &[u32], broker: &Arc<Broker>) -> Result<TableHold> {
        wirelane_privsep::require(&[Capability::NetAdmin], "moving entries of an RSS table")?;
        let identity = Identity::of(device)?;
        let mut journal = Journal::create(&identity.path(), &identity)?;
        let held = hold(device, identity, &mut journal, table, queues, broker);
        journal.finish()?;
        held
    }

    /// Requests moves, up to [`EntryMove::MOST`]. The answer arrives later; until then no other request may be sent.
    ///
    /// # Errors
    /// If the broker has ended.
    pub fn ask(&mut self, moves: &[EntryMove]) -> io::Result<()> {
        self.channel.send(&&moves[..moves.len().min(EntryMove::MOST)])
    }

    /// The answer, if it has arrived.
    ///
    /// # Errors
    /// If the broker has ended.
    pub fn answer(&mut self) -> io::Result<Option<Answer>> {
        self.channel.received()
    }
}

fn hold(
    device: &Device,
    identity: Identity,
    journal: &mut Journal,
    table: &[u32],
    queues: &[u32],
    broker: &Arc<Broker>,
) -> Result<TableHold> {
    let failed = |source| Error::kernel("reading the RSS table", source);
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
    // If they could not be undone, the broker restores the original value.
    let left =
        journal.entries.iter().find(|entry| entry.by == By::Capture && entry.what == Setting::RssTable);
    let original = left.map_or(now, |entry| entry.old.clone());
    let hold = Hold { path: identity.path(), identity, owner: Owner::this(TABLE) };
    let task = Registered { hold, queues: queues.to_vec(), table: table.to_vec(), original };
    let (registration, channel) = broker.register_service(&KIND, &task, &[], LIMIT)?;
    journal.hold(&task.hold.owner)?;
    Ok(TableHold { channel, _held: Held { hold: task.hold, registration } })
}
