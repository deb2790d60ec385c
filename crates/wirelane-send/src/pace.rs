//! Rate control: when to send, and how many packets at once.
//!
//! The pacer is a schedule, not a timer: packet `n` is due at `n / rate` seconds after the start. For a given moment,
//! the pacer returns how many packets are due or how long to wait. Waiting for single packets would need a busy core at
//! high rates, so packets are sent in bursts of a given duration. A sender that falls behind may catch up, but only by
//! [`MOST_CATCH_UP`]: older packets are skipped, because sending them in a burst would not be the requested traffic any
//! more. Skipped packets show as a rate that was not reached.

use std::time::{Duration, Instant};

/// Maximum delay behind the schedule that a sender may catch up.
pub const MOST_CATCH_UP: Duration = Duration::from_millis(20);

/// The next step of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this many packets.
    Send(u64),
    /// Wait this long; no packet is due before.
    Wait(Duration),
}

/// Source of time; tests use their own clock.
pub trait Clock {
    /// Time since a fixed moment.
    fn now(&self) -> Duration;
    /// Sleeps for this time, or a little longer.
    fn sleep(&self, time: Duration);
}

/// The monotonic clock of the machine, starting at its creation.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that starts now.
    pub fn start() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// CLOCK_MONOTONIC in nanoseconds, the same clock as `bpf_ktime_get_ns`.
pub(super) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the answer; CLOCK_MONOTONIC always exists, so the call does not fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The schedule of one sending thread.
#[derive(Clone, Debug)]
pub struct Pacer {
    pps: f64,
    burst: u64,
    most: u64,
    /// Packets that were sent or skipped.
    position: u64,
    given_up: u64,
}

impl Pacer {
    /// A schedule of `pps` packets per second, in bursts of about `spacing`, of at most `most` packets.
    pub fn new(pps: f64, spacing: Duration, most: u64) -> Pacer {
        let burst = ((pps * spacing.as_secs_f64()) as u64).clamp(1, most);
        Pacer { pps, burst, most, position: 0, given_up: 0 }
    }

    /// The next step at `now`, counted from the start of the schedule. Packets of [`Step::Send`] count as sent.
    pub fn step(&mut self, now: Duration) -> Step {
        // The packet at position p is due at p / pps, so the packet at position 0 immediately.
        let due = (now.as_secs_f64() * self.pps) as u64 + 1;
        let oldest = due.saturating_sub((MOST_CATCH_UP.as_secs_f64() * self.pps) as u64 + self.burst);
        if self.position < oldest {
            self.given_up += oldest - self.position;
            self.position = oldest;
        }
        let ready = due.saturating_sub(self.position);
        if ready >= self.burst {
            let count = ready.min(self.most);
            self.position += count;
            return Step::Send(count);
        }
        let full_at = (self.position + self.burst - 1) as f64 / self.pps;
        // Rounding must not make this zero: the caller would spin.
        let wait = (full_at - now.as_secs_f64()).max(1e-6);
        Step::Wait(Duration::from_secs_f64(wait))
    }

    /// Packets that could not be sent in time and were skipped.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Returns packets of [`Step::Send`] that were not sent.
    pub fn return_unsent(&mut self, count: u64) {
        self.position -= count.min(self.position);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct FakeClock(Cell<Duration>);

    impl Clock for FakeClock {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn sleep(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    /// Runs a schedule for `time`; each packet takes `cost`. Returns the number of packets sent and the largest burst.
    fn run(pacer: &mut Pacer, time: Duration, cost: Duration) -> (u64, u64) {
        let clock = FakeClock(Cell::new(Duration::ZERO));
        let (mut sent, mut largest) = (0, 0);
        while clock.now() < time {
            match pacer.step(clock.now()) {
                Step::Send(count) => {
                    sent += count;
                    largest = largest.max(count);
                    clock.sleep(cost * count as u32);
                }
                Step::Wait(wait) => clock.sleep(wait),
            }
        }
        (sent, largest)
    }

    #[test]
    fn one_packet_at_a_time_at_low_rates() {
        let mut pacer = Pacer::new(10.0, Duration::from_micros(100), 256);
        let (sent, largest) = run(&mut pacer, Duration::from_secs(5), Duration::ZERO);
        assert_eq!((sent, largest), (50, 1));
        assert_eq!(pacer.given_up(), 0);
    }

    #[test]
    fn rates_hold_within_one_burst() {
        for pps in [0.5, 1.0, 999.0, 123_456.0, 1e6, 14.88e6] {
            let mut pacer = Pacer::new(pps, Duration::from_micros(100), 4096);
            let (sent, largest) = run(&mut pacer, Duration::from_secs(4), Duration::ZERO);
            let burst = (pps * 1e-4).max(1.0) + 1.0;
            assert!((sent as f64 - pps * 4.0).abs() <= burst, "{pps}: {sent}");
            assert!(largest as f64 <= burst + 1.0, "{pps}: burst of {largest}");
        }
    }

    #[test]
    fn the_first_packet_is_due_at_once() {
        assert_eq!(Pacer::new(1.0, Duration::ZERO, 1).step(Duration::ZERO), Step::Send(1));
    }

    #[test]
    fn a_slow_sender_gives_up_and_says_so() {
        // 1 Mpps requested, 0.5 Mpps possible.
        let mut pacer = Pacer::new(1e6, Duration::from_micros(100), 1024);
        let (sent, largest) = run(&mut pacer, Duration::from_secs(2), Duration::from_micros(2));
        assert!((990_000..=1_002_000).contains(&sent), "{sent}");
        assert!(largest <= 1024);
        let unmet = 2_000_000 - sent;
        assert!(pacer.given_up() <= unmet && unmet - pacer.given_up() <= 25_000, "{}", pacer.given_up());
    }

    #[test]
    fn a_short_stall_is_caught_up_and_a_long_one_is_not() {
        let mut pacer = Pacer::new(1000.0, Duration::ZERO, 1000);
        assert_eq!(pacer.step(Duration::ZERO), Step::Send(1));
        assert_eq!(pacer.step(Duration::from_millis(10)), Step::Send(10));
        assert_eq!(pacer.step(Duration::from_millis(1010)), Step::Send(21));
        assert_eq!(pacer.given_up(), 979);
    }

    #[test]
    fn what_was_not_sent_stays_due() {
        let mut pacer = Pacer::new(1000.0, Duration::ZERO, 1000);
        assert_eq!(pacer.step(Duration::from_millis(9)), Step::Send(10));
        pacer.return_unsent(4);
        assert_eq!(pacer.step(Duration::from_millis(9)), Step::Send(4));
    }
}
