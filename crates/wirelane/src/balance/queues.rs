//! Load-adaptive RX queues: moves entries of the card's RSS table, by the load of each queue in this capture.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Moved;
use super::table::TablePlanner;
use crate::engine::ring::instance::Instance;
use crate::engine::ring::tallies::read_tally;
use crate::engine::sockets::Part;
use crate::error::Result;
use crate::settings::Settings;
use wirelane_netdev::{Device, Selected};
use wirelane_privsep::broker::Broker;
use wirelane_tune::table::{self, Answer, TableHold};

/// Source of the RX queues' packet counts.
#[derive(Debug)]
pub(crate) enum Counts {
    /// The tallies of this group.
    Ring(Arc<Instance>, usize),
    /// The sockets of this part.
    Sockets(Arc<dyn Part>),
}

impl Counts {
    /// Packets of each of these queues so far.
    fn of(&self, queues: &[u32]) -> Result<Vec<u64>> {
        match self {
            Counts::Ring(instance, group) => {
                let slots = if instance.per_cpu { instance.lanes } else { 1 };
                let of = |queue: u32| -> u64 {
                    (0..slots)
                        .map(|lane| lane * instance.queues + queue as usize)
                        .map(|slot| read_tally(instance, *group, slot).seen)
                        .sum()
                };
                // A queue that the instance cannot tell apart has no counts.
                let known = |queue: &u32| (*queue as usize) < instance.queues;
                Ok(queues.iter().map(|queue| if known(queue) { of(*queue) } else { 0 }).collect())
            }
            Counts::Sockets(part) => {
                let lines = part.account(false)?.lines;
                let of = |queue: &u32| {
                    lines.iter().filter(|line| line.queue == *queue).map(|line| line.seen).sum()
                };
                Ok(queues.iter().map(of).collect())
            }
        }
    }
}

/// The controller of one device's RSS table.
#[derive(Debug)]
pub(crate) struct TableBalancer {
    device: String,
    counts: Counts,
    planner: TablePlanner,
    /// `None` once entries cannot move any more.
    hold: Option<TableHold>,
    /// Entries that have been requested and not been confirmed.
    asked: u64,
    moved: Arc<Moved>,
}

impl TableBalancer {
    /// Takes hold of the device's RSS table, where these settings request it. To be called before rights are given up.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] where the device has no such table, where it has one RX queue only, or where
    /// another capture moves entries.
    pub(crate) fn of(
        settings: &Settings,
        selected: &Selected,
        counts: Counts,
        broker: &Arc<Broker>,
    ) -> Result<Option<(TableBalancer, Arc<Moved>)>> {
        if !settings.moves_entries() {
            return Ok(None);
        }
        let device = &selected.device;
        let table = table::table(device)?;
        let some = (!selected.is_whole_device()).then_some(&selected.queues[..]);
        let Some(planner) = TablePlanner::new(&table, some) else {
            let needs =
                "an RSS table that names at least two of the RX queues that are captured (see ethtool -x)";
            return Err(table::cannot(&device.name, needs).into());
        };
        let hold = TableHold::take(&Device::open(&device.name)?, &table, planner.queues(), broker)?;
        tracing::info!(
            "{}: {} entries of the RSS table, moved among RX queues {:?}",
            device.name,
            table.len(),
            planner.queues()
        );
        let moved = Arc::new(Moved::of_a_table());
        let balancer = TableBalancer {
            device: device.name.clone(),
            counts,
            planner,
            hold: Some(hold),
            asked: 0,
            moved: Arc::clone(&moved),
        };
        Ok(Some((balancer, moved)))
    }

    /// Reads the load once, and makes the moves that follow from it.
    pub(super) fn look(&mut self) {
        let Some(hold) = &mut self.hold else { return };
        let answer = hold.answer().map_err(|error| gone(&error));
        let Err(end) = answer.and_then(|answer| self.look_after(answer)) else { return };
        tracing::warn!("{}: {end}: no entry of the RSS table moves any more", self.device);
        // This also restores the moved entries, as far as they are still ours.
        self.hold = None;
    }

    /// One look after the broker has answered; an error says why no entry can move any more.
    fn look_after(&mut self, answer: Option<Answer>) -> std::result::Result<(), String> {
        match answer {
            None => {}
            Some(Answer::Moved) => {
                self.planner.moved();
                // Relaxed: a counter that orders no other data.
                self.moved.entries.fetch_add(self.asked, Ordering::Relaxed);
                tracing::info!("{}: {} entries of the RSS table have moved", self.device, self.asked);
            }
            Some(Answer::Later) => self.planner.not_moved(),
            Some(Answer::Foreign) => return Err("the RSS table was changed by somebody else".into()),
            Some(Answer::Refused(errno)) => return Err(reason(errno)),
        }
        let counts = self.counts.of(self.planner.queues()).map_err(|error| error.to_string())?;
        let moves = self.planner.look(&counts);
        if let (false, Some(hold)) = (moves.is_empty(), &mut self.hold) {
            self.asked = moves.len() as u64;
            hold.ask(&moves).map_err(|error| gone(&error))?;
        }
        Ok(())
    }
}

fn gone(error: &std::io::Error) -> String {
    format!("the broker, which sets the RSS table (wl-broker), is gone ({error})")
}

fn reason(errno: i32) -> String {
    match errno {
        1.. => format!("the RSS table cannot be set: {}", std::io::Error::from_raw_os_error(errno)),
        _ => "the driver leaves the RSS table as it is without saying why".into(),
    }
}
