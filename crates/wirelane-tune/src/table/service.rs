//! The task of the broker that sets the RSS table for a capture that has given up the right to do so, and restores it.
//!
//! An attacker may control the capture's end, so every request is checked against the values that were registered.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Kind, LogLine, Reply, Task};

use super::change::{Advance, Standing};
use crate::hold::{Hold, Release};
use crate::journal::Journal;
use crate::setting::{Setting, table_of, table_text};
use crate::system::LiveSystem;
use crate::{Error, Result};
use wirelane_netdev::Device;

/// Minimum interval between two changes of the table.
const SHORTEST: Duration = Duration::from_secs(1);
/// Number of changes allowed at first, and the time after which one more is allowed.
const AT_FIRST: u32 = 30;
const ONE_MORE: Duration = Duration::from_secs(60);

/// The move of a table entry to an RX queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryMove {
    /// The entry of the table.
    pub entry: u32,
    /// The new RX queue of the entry.
    pub queue: u32,
}

impl EntryMove {
    /// Maximum number of moves per request.
    pub const MOST: usize = 128;
}

/// The broker's answer to a request for moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The entries were moved.
    Moved,
    /// The entries were not moved: the table was set too often.
    Later,
    /// The entries were not moved: another process has changed the table.
    Foreign,
    /// The entries were not moved: the kernel's errno, or 0 without one.
    Refused(i32),
}

/// A table whose entries may be moved, as it is registered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Registered {
    pub(super) hold: Hold,
    /// The queues among which entries may be moved.
    pub(super) queues: Vec<u32>,
    /// The current table.
    pub(super) table: Vec<u32>,
    /// The value to restore.
    pub(super) original: String,
}

/// Moving entries of a table and restoring it, as a task of a broker.
pub const KIND: Kind = Kind {
    name: "RSS table",
    capabilities: &[Capability::NetAdmin],
    prepare: Kind::nothing,
    read: |task, descriptors| {
        let Registered { hold, queues, table, original } = serde_json::from_slice(task).ok()?;
        let standing = Standing { what: Setting::RssTable, original, now: table_text(&table), change: None };
        let mover = Mover {
            release: Release::of(hold.clone()),
            hold,
            queues,
            entries: table.len(),
            standing,
            allowance: Allowance::new(Instant::now()),
        };
        descriptors.is_empty().then(|| Box::new(mover) as Box<dyn Task>)
    },
};

struct Mover {
    hold: Hold,
    release: Release,
    queues: Vec<u32>,
    entries: usize,
    standing: Standing,
    allowance: Allowance,
}

impl Task for Mover {
    fn undo(&mut self, prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
        self.release.undo(prepared)
    }

    fn serve(&mut self, request: &[u8]) -> Option<Reply> {
        let moves: Vec<EntryMove> = serde_json::from_slice(request).ok()?;
        if moves.len() > EntryMove::MOST {
            return None;
        }
        let table = table_of(&self.standing.now, self.entries)?;
        let new = check(&table, &self.queues, &moves)?;
        Reply::new(&self.carry_out(&new), None)
    }
}

impl Mover {
    fn carry_out(&mut self, new: &[u32]) -> Answer {
        if !self.allowance.take(Instant::now()) {
            return Answer::Later;
        }
        let errno = |error: Option<&io::Error>| error.and_then(io::Error::raw_os_error).unwrap_or(0);
        match self.advance(new) {
            Ok(Advance::Made) => Answer::Moved,
            Ok(Advance::Foreign) => Answer::Foreign,
            Ok(Advance::Refused(error)) => Answer::Refused(errno(error.as_ref())),
            Err(Error::Io { source, .. }) => Answer::Refused(errno(Some(&source))),
            Err(error) => Answer::Refused(errno(error.kernel_error())),
        }
    }

    fn advance(&mut self, new: &[u32]) -> Result<Advance> {
        let Hold { identity, path, .. } = &self.hold;
        // The device may have been renamed since.
        let Some(device) = Device::with_index(identity.ifindex)? else {
            return Ok(Advance::Refused(Some(io::Error::from_raw_os_error(libc::ENODEV))));
        };
        let mut journal = Journal::create(path, identity)?;
        self.standing.advance(&LiveSystem::open(device)?, &mut journal, &table_text(new))
    }
}

/// The table after these moves; `None` unless each of them moves a different entry from one of these queues to another
/// of them.
pub(super) fn check(table: &[u32], queues: &[u32], moves: &[EntryMove]) -> Option<Vec<u32>> {
    let mut seen = BTreeSet::new();
    let mut new = table.to_vec();
    for one in moves {
        let place = new.get_mut(one.entry as usize)?;
        let sound = queues.contains(place) && queues.contains(&one.queue) && seen.insert(one.entry);
        if !sound {
            return None;
        }
        *place = one.queue;
    }
    (!moves.is_empty()).then_some(new)
}

/// Rate limit of table changes: enforced here, where the right is, and not only in the requesting process.
#[derive(Debug)]
struct Allowance {
    left: u32,
    last: Option<Instant>,
    /// Time at which the next change is added.
    next: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance { left: AT_FIRST, last: None, next: now + ONE_MORE }
    }

    fn take(&mut self, now: Instant) -> bool {
        while now >= self.next {
            self.left = (self.left + 1).min(AT_FIRST);
            self.next += ONE_MORE;
        }
        if self.left == 0 || self.last.is_some_and(|last| now < last + SHORTEST) {
            return false;
        }
        (self.left, self.last) = (self.left - 1, Some(now));
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_entries_of_these_queues_move_among_them() {
        let table = [0, 1, 2, 3, 0, 1, 2, 3];
        let to = |entry, queue| EntryMove { entry, queue };
        assert_eq!(check(&table, &[1, 3], &[to(1, 3), to(7, 1)]), Some(vec![0, 3, 2, 3, 0, 1, 2, 1]));
        let refused = [
            (vec![], "nothing"),
            (vec![to(8, 1)], "no such entry"),
            (vec![to(0, 1)], "an entry of another queue"),
            (vec![to(1, 2)], "to another queue"),
            (vec![to(1, 3), to(1, 1)], "one entry twice"),
        ];
        for (moves, why) in refused {
            assert_eq!(check(&table, &[1, 3], &moves), None, "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_request_moves_entries_of_other_queues(
            moves in prop::collection::vec((0u32..6, 0u32..6), 0..8),
        ) {
            let moves: Vec<EntryMove> =
                moves.into_iter().map(|(entry, queue)| EntryMove { entry, queue }).collect();
            if let Some(new) = check(&[0, 1, 2, 3], &[1, 2], &moves) {
                prop_assert_eq!((new[0], new[3]), (0, 3));
                prop_assert!(new[1..3].iter().all(|queue| [1, 2].contains(queue)));
            }
        }
    }

    #[test]
    fn the_table_is_set_once_a_second_thirty_times_and_then_once_a_minute() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        // Continuous requests for an hour.
        let tenths = |tenths: u64| start + Duration::from_millis(tenths * 100);
        let taken: Vec<u64> = (0..36_000).filter(|at| allowance.take(tenths(*at))).collect();
        assert!(taken.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{taken:?}");
        assert_eq!(taken.iter().filter(|at| **at < 600).count(), 30);
        assert_eq!(taken.len(), 30 + 59);
    }
}
