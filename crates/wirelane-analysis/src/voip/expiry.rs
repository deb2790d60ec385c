//! Passing time, lack of memory, and the end: which calls and streams are handed out, and when.
//!
//! Calls and streams end at multiples of [`LOOK_EVERY_NS`] on the clock of the packets, before the first packet of that
//! time: the result depends on the packets and their order only, and not on who processes which of them.

use super::call::Ending;
use super::media::{ALONE, CANDIDATES};
use super::monitor::{Monitor, OVER, QUIET, TALKING, WAITING};

/// Interval of checks for calls and streams that are over.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// Time without an update after which a call's last packet is looked up before the call is evicted.
const STALE_NS: u64 = 1_000_000_000;

impl Monitor {
    /// Lists of calls, and the time without packets after which a call in each is over.
    fn patience(&self) -> [(u8, u64); 4] {
        let settings = &self.settings;
        [
            (OVER, settings.linger_ns),
            (WAITING, settings.waiting_ns),
            (QUIET, settings.quiet_ns),
            (TALKING, settings.talking_ns),
        ]
    }

    /// The call of a list that was touched first.
    fn first_call(&self, list: u8) -> Option<u32> {
        self.silence.range((list, 0, 0)..=(list, u64::MAX, u32::MAX)).next().map(|(_, _, at)| *at)
    }

    /// Whether calls and streams have to be checked before a packet of this time.
    pub(super) fn is_due(&self, ts_ns: u64) -> bool {
        ts_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS
    }

    /// Ends the calls and streams that are over before a packet of this time.
    pub(super) fn pass(&mut self, ts_ns: u64) {
        if self.is_due(ts_ns) {
            let last_ns = ts_ns - ts_ns % LOOK_EVERY_NS;
            while let Some(at_ns) = self.next_look_ns().filter(|at_ns| *at_ns <= last_ns) {
                // The remaining results are handed out with the next packets.
                if self.tick_at(at_ns) {
                    return;
                }
            }
            self.looked_ns = last_ns;
        }
    }

    /// Makes the time of a packet the current one.
    pub(super) fn arrive(&mut self, ts_ns: u64) {
        self.pass(ts_ns);
        self.now_ns = self.now_ns.max(ts_ns);
    }

    /// Time of the next check that finds something.
    fn next_look_ns(&self) -> Option<u64> {
        let calls = self.patience().into_iter().filter_map(|(list, patience_ns)| {
            let call = self.calls.get(self.first_call(list)?)?;
            Some(call.touched_ns.saturating_add(patience_ns))
        });
        let streams = [CANDIDATES, ALONE].into_iter().filter_map(|list| {
            let stream = self.streams.get(self.streams.first(list)?)?;
            Some(stream.touched_ns.saturating_add(self.settings.stream_ns))
        });
        let due_ns = calls.chain(streams).chain(self.early_until_ns()).min()?;
        let next_ns = due_ns.checked_add(1)?.checked_next_multiple_of(LOOK_EVERY_NS)?;
        Some(next_ns.max(self.looked_ns.saturating_add(LOOK_EVERY_NS)))
    }

    /// Advances the time, also without packets, and hands out finished calls and streams. True: [`Monitor::finished`]
    /// is full; take it and call this again.
    #[must_use = "there may be more to hand out"]
    pub fn tick(&mut self, now_ns: u64) -> bool {
        let is_full = self.tick_at(now_ns);
        if !is_full {
            self.looked_ns = self.now_ns - self.now_ns % LOOK_EVERY_NS;
        }
        is_full
    }

    fn tick_at(&mut self, now_ns: u64) -> bool {
        self.now_ns = self.now_ns.max(now_ns);
        self.packets_before(self.now_ns);
        let is_full = self.end_what_is_over();
        self.packets_before(u64::MAX);
        is_full
    }

    fn end_what_is_over(&mut self) -> bool {
        self.release(false);
        for (list, patience_ns) in self.patience() {
            while let Some(at) = self.first_call(list) {
                let Some(call) = self.calls.get(at) else { break };
                if self.finished.is_full() {
                    return true;
                }
                if self.now_ns.saturating_sub(call.touched_ns) <= patience_ns {
                    break;
                }
                if list != OVER && self.is_heard(at, patience_ns) {
                    continue;
                }
                self.end_call(at, Ending::Ended);
            }
        }
        for list in [CANDIDATES, ALONE] {
            while let Some(at) = self.streams.first(list) {
                let Some(stream) = self.streams.get(at) else { break };
                if self.finished.is_full() {
                    return true;
                }
                if self.now_ns.saturating_sub(stream.touched_ns) <= self.settings.stream_ns {
                    break;
                }
                self.end_stream(at, Ending::Ended);
            }
        }
        false
    }

    /// Whether a call is still heard, although its place in the list is that of an older packet.
    fn is_heard(&mut self, at: u32, patience_ns: u64) -> bool {
        let Some(last_ns) = self.last_heard_ns(at) else { return false };
        if self.now_ns.saturating_sub(last_ns) > patience_ns {
            return false;
        }
        self.place(at, last_ns);
        true
    }

    /// Time of the last packet of a call, wherever its streams are measured.
    fn last_heard_ns(&mut self, at: u32) -> Option<u64> {
        let streams = self.calls.get(at)?.streams.clone();
        let mut last_ns = 0;
        for at in streams {
            self.look_offloaded(at);
            self.look_lent(at);
            last_ns = last_ns.max(self.streams.get(at).map_or(0, |stream| stream.rtp.last_ns));
        }
        let call = self.calls.get_mut(at)?;
        if !call.state.is_over() {
            call.last_ns = call.last_ns.max(last_ns);
        }
        Some(call.last_ns)
    }

    /// The call of a list that has been silent longest.
    fn most_silent(&mut self, list: u8) -> Option<u32> {
        loop {
            let at = self.first_call(list)?;
            let touched_ns = self.calls.get(at)?.touched_ns;
            match self.last_heard_ns(at) {
                // Each call is moved once a second at most.
                Some(last_ns) if last_ns.saturating_sub(touched_ns) >= STALE_NS => self.place(at, last_ns),
                _ => return Some(at),
            }
        }
    }

    /// Hands out the least important entry. False: there are no entries.
    pub(super) fn evict(&mut self) -> bool {
        if let Some(at) = self.streams.first(CANDIDATES) {
            self.end_stream(at, Ending::Resources);
        } else if let Some(at) = self.first_call(OVER).or_else(|| self.most_silent(WAITING)) {
            self.end_call(at, Ending::Resources);
        } else if let Some(at) = self.streams.first(ALONE) {
            self.end_stream(at, Ending::Resources);
        } else if let Some(at) = self.most_silent(QUIET).or_else(|| self.most_silent(TALKING)) {
            self.end_call(at, Ending::Resources);
        } else {
            return false;
        }
        true
    }

    /// Hands out everything at the end of the capture, in steps. True: [`Monitor::finished`] is full; take it and call
    /// this again.
    #[must_use = "there may be more to hand out"]
    pub fn flush(&mut self) -> bool {
        self.end_of_buffers();
        self.leave_rules();
        self.release(true);
        for list in [OVER, WAITING, QUIET, TALKING] {
            while let Some(at) = self.first_call(list) {
                if self.finished.is_full() {
                    return true;
                }
                self.end_call(at, if list == OVER { Ending::Ended } else { Ending::Forced });
            }
        }
        for list in [CANDIDATES, ALONE] {
            while let Some(at) = self.streams.first(list) {
                if self.finished.is_full() {
                    return true;
                }
                self.end_stream(at, Ending::Forced);
            }
        }
        false
    }
}
