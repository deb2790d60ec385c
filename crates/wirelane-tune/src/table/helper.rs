//! The helper: the process that sets the RSS table for a capture that has given up the right to do so, and restores it.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::change::{Advance, Standing};
use super::message::{Answer, EntryMove, REQUEST, check, read_request};
use super::stream;
use crate::apply::{self, Undoing};
use crate::journal::{By, Identity, Journal, Owner};
use crate::setting::{Setting, table_of, table_text};
use crate::system::LiveSystem;
use crate::{Error, Result};
use wirelane_netdev::netlink::Client;
use wirelane_netdev::{Device, Link};

/// Minimum interval between two changes of the table.
const SHORTEST: Duration = Duration::from_secs(1);
/// Number of changes allowed at first, and the time after which one more is allowed.
const AT_FIRST: u32 = 30;
const ONE_MORE: Duration = Duration::from_secs(60);

/// Configuration of the helper, fixed before the fork.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) device: Device,
    pub(super) identity: Identity,
    /// The queues among which entries may be moved.
    pub(super) queues: Vec<u32>,
    /// The current table.
    pub(super) table: Vec<u32>,
    /// The value to restore.
    pub(super) original: String,
}

/// Serves until the capture ends.
pub(super) fn serve(task: &Task, mut socket: UnixStream) {
    let answer = |socket: &UnixStream, number, answer: Answer| stream::send(socket, &answer.bytes(number));
    if answer(&socket, 0, Answer::Ready(std::process::id())).is_err() {
        return;
    }
    let mut standing = Standing {
        what: Setting::RssTable,
        original: task.original.clone(),
        now: table_text(&task.table),
        change: None,
    };
    let mut allowance = Allowance::new(Instant::now());
    let mut request = [0; REQUEST];
    // The stream ends with the capture, however it ends.
    while socket.read_exact(&mut request).is_ok() {
        let (number, verdict) = match read_request(&request) {
            Some((number, moves)) => (number, task.carry_out(&mut standing, &mut allowance, &moves)),
            None => (0, Answer::Nonsense),
        };
        if answer(&socket, number, verdict).is_err() {
            break;
        }
    }
    let verdict = task.put_back().unwrap_or(Answer::NotRestored);
    // A killed capture no longer reads this answer.
    let _ = answer(&socket, u32::MAX, verdict);
}

impl Task {
    /// Opens the device, which may have been renamed since.
    fn system(&self) -> Result<LiveSystem> {
        let failed = |source| Error::kernel("looking for the device", source);
        let mut client = Client::open(libc::NETLINK_ROUTE).map_err(failed)?;
        let link = Link::by_index(&mut client, self.device.ifindex).map_err(failed)?;
        let name = link.map_or_else(|| self.device.name.clone(), |link| link.name);
        LiveSystem::open(Device { name, ..self.device.clone() })
    }

    fn carry_out(&self, standing: &mut Standing, allowance: &mut Allowance, moves: &[EntryMove]) -> Answer {
        let Some(table) = table_of(&standing.now, self.table.len()) else { return Answer::Nonsense };
        let Some(new) = check(&table, &self.queues, moves) else { return Answer::Nonsense };
        if !allowance.take(Instant::now()) {
            return Answer::Later;
        }
        let path = self.identity.path();
        let made = self.system().and_then(|system| {
            let mut journal = Journal::create(&path, &self.identity)?;
            standing.advance(&system, &mut journal, &table_text(&new))
        });
        match made {
            Ok(Advance::Made) => Answer::Moved,
            Ok(Advance::Foreign) => Answer::Foreign,
            Ok(Advance::Refused(error)) => Answer::Refused(errno(error.as_ref())),
            Err(Error::Io { source, .. } | Error::Kernel { source, .. }) => {
                Answer::Refused(errno(Some(&source)))
            }
            Err(_) => Answer::Refused(0),
        }
    }

    fn put_back(&self) -> Result<Answer> {
        let Some(mut journal) = Journal::find(&self.identity.path(), &self.identity)? else {
            return Ok(Answer::Restored);
        };
        journal.release(&Owner::of_table(std::process::id()))?;
        let steps = apply::undo(&self.system()?, &mut journal, By::Capture)?;
        journal.finish()?;
        let ours = steps.iter().filter(|step| step.what == Setting::RssTable);
        Ok(ours.fold(Answer::Restored, |worst, step| match (&step.outcome, worst) {
            (Undoing::Refused { .. } | Undoing::Held { .. }, _) => Answer::NotRestored,
            (Undoing::Foreign { .. }, Answer::Restored) => Answer::LeftAlone,
            _ => worst,
        }))
    }
}

fn errno(error: Option<&io::Error>) -> u32 {
    error.and_then(io::Error::raw_os_error).map_or(0, |errno| errno as u32)
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
    use super::*;

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
