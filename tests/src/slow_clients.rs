//! Many connections of clients that do not finish their requests.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::numbers::LIMIT;

/// Raises this process's limit of descriptors, which children inherit that are started later.
///
/// # Panics
/// If the limit cannot be raised that far.
pub fn allow_descriptors(least: u64) {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < least) {
        let maximum = now.maximum.map(|maximum| maximum.max(least));
        setrlimit(Resource::Nofile, Rlimit { current: Some(least), maximum }).unwrap();
    }
}

/// Connections of so many clients, made by `connect`, with pauses: a full queue of the server refuses a client's SYN, which
/// is sent again after a second.
pub fn crowd<T>(clients: usize, mut connect: impl FnMut(usize) -> T) -> Vec<T> {
    let client = |number: usize| {
        if number.is_multiple_of(32) {
            std::thread::sleep(Duration::from_millis(5));
        }
        connect(number)
    };
    (0..clients).map(client).collect()
}

/// Number of connections that the server has not closed.
fn open_connections<T: AsFd>(clients: &[T]) -> usize {
    let mut polls: Vec<PollFd<'_>> =
        clients.iter().map(|client| PollFd::new(client, PollFlags::RDHUP)).collect();
    poll(&mut polls, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    polls.iter().filter(|one| one.revents().is_empty()).count()
}

/// Waits until the server has closed all connections but `most`; returns the number of open ones.
///
/// # Panics
/// If it keeps more.
pub fn settled<T: AsFd>(clients: &[T], most: usize) -> usize {
    let end = Instant::now() + LIMIT;
    loop {
        let open = open_connections(clients);
        if open <= most {
            return open;
        }
        assert!(Instant::now() < end, "{open} of {} connections are open, not {most}", clients.len());
        std::thread::sleep(Duration::from_millis(20));
    }
}
