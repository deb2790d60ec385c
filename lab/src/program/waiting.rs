//! Captured packets that wait for their analysis: one queue for all threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Packets that a thread takes at once.
const BATCH: usize = 64;

/// The queue.
pub struct Waiting {
    state: Mutex<State>,
    more: Condvar,
    limit: usize,
}

#[derive(Default)]
struct State {
    packets: VecDeque<Vec<u8>>,
    /// Threads that sleep.
    idle: usize,
    is_closed: bool,
}

impl Waiting {
    /// A queue of at most `limit` packets.
    pub fn new(limit: usize) -> Waiting {
        Waiting { state: Mutex::default(), more: Condvar::new(), limit }
    }

    /// Adds a copy of the packet, if there is room.
    pub fn add(&self, packet: &[u8]) {
        let mut state = self.state();
        if state.packets.len() < self.limit {
            state.packets.push_back(packet.to_vec());
            if state.idle > 0 {
                self.more.notify_one();
            }
        }
    }

    /// Waits for packets, and takes some instead of those of `batch`; false: the queue is closed and empty.
    pub fn take(&self, batch: &mut Vec<Vec<u8>>) -> bool {
        batch.clear();
        let mut state = self.state();
        while state.packets.is_empty() && !state.is_closed {
            state.idle += 1;
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        let count = state.packets.len().min(BATCH);
        batch.extend(state.packets.drain(..count));
        count > 0
    }

    /// Ends the queue: what is in it can still be taken.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.more.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_with_room_is_taken_once() {
        let queue = Waiting::new(100);
        for number in 0..150_u8 {
            queue.add(&[number]);
        }
        queue.close();
        let take = || {
            let (mut all, mut batch) = (Vec::new(), Vec::new());
            while queue.take(&mut batch) {
                all.append(&mut batch);
            }
            all
        };
        let mut taken = std::thread::scope(|scope| {
            let takers = [scope.spawn(take), scope.spawn(take)];
            takers.map(|taker| taker.join().unwrap()).concat()
        });
        taken.sort();
        assert_eq!(taken, (0..100).map(|number| vec![number]).collect::<Vec<_>>());
    }
}
