use wirelane::Record;

use super::*;

#[test]
fn intervals_keep_their_beat_and_leave_out_what_was_missed() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
    assert_eq!(after(at(1.0), at(1.0), second), at(2.0));
    assert_eq!(after(at(1.0), at(1.3), second), at(2.0));
    assert_eq!(after(at(1.0), at(4.6), second), at(5.0), "no intervals of no length after a stall");
    assert_eq!(after(at(1.0), at(2.0), second), at(3.0));
    assert!(after(at(1.0), at(3.0), Duration::from_nanos(1)) > at(3.0));
}

/// Panics at the third record.
struct Doomed(u32);

impl Handler for Doomed {
    type Error = anyhow::Error;

    fn record(&mut self, _: &Record<'_>) -> Result<()> {
        self.0 += 1;
        if self.0 == 3 {
            // Panics without a message on standard error.
            std::panic::resume_unwind(Box::new("a handler's bug"));
        }
        Ok(())
    }
}

struct Silent;

impl Reporter for Silent {
    fn ready(&mut self, _: &Capture) -> Result<()> {
        Ok(())
    }
    fn interval(&mut self, _: &Ledger, _: Duration) -> Result<()> {
        Ok(())
    }
}

/// A capture file of ten packets.
fn ten_packets() -> tempfile::NamedTempFile {
    let mut pcap: Vec<u8> =
        [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for _ in 0..10 {
        pcap.extend([1u32, 2, 32, 32].into_iter().flat_map(u32::to_le_bytes).chain([0; 32]));
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pcap).unwrap();
    file
}

/// No limits, and reports at this interval.
fn limits(interval: Duration) -> Limits {
    Limits {
        interval,
        duration: None,
        packets: None,
        on_hangup: OnHangup::End,
        live: None,
        devices_may_end: false,
    }
}

/// The run ends with a failure, so that the program exits with status 1, and with a ledger that balances.
/// Battery: F5
#[test]
fn a_handler_that_panics_ends_the_run_with_its_ledger() {
    let file = ten_packets();
    let capture = Capture::open_file(file.path()).unwrap();
    let limits = limits(Duration::from_secs(1));
    let outcome = run(capture, &limits, |_| Ok(Doomed(0)), &mut Silent).unwrap();
    assert!(outcome.failure.unwrap().to_string().contains("a worker panicked"));
    assert!(outcome.ledger.balances(), "{:?}", outcome.ledger);
    assert_eq!(outcome.ledger.total.analysed, 3);
}

/// Waits at its first record until it is let go.
struct Hung(std::sync::Arc<AtomicBool>);

impl Handler for Hung {
    type Error = anyhow::Error;

    fn record(&mut self, _: &Record<'_>) -> Result<()> {
        while !self.0.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Lets the worker go once two intervals in succession had no progress.
struct Watching(std::sync::Arc<AtomicBool>, u32);

impl Reporter for Watching {
    fn ready(&mut self, _: &Capture) -> Result<()> {
        Ok(())
    }
    fn load(&mut self, workers: &[WorkerLoad]) {
        let all = workers.iter().all(|worker| worker.progress);
        self.1 = if all { 0 } else { self.1 + 1 };
        if self.1 == 2 {
            self.0.store(true, Ordering::Release);
        }
    }
    fn interval(&mut self, _: &Ledger, _: Duration) -> Result<()> {
        Ok(())
    }
}

/// The run ends because intervals say that the worker makes no progress.
#[test]
fn a_worker_that_hangs_makes_no_progress() {
    let file = ten_packets();
    let capture = Capture::open_file(file.path()).unwrap();
    let limits = limits(Duration::from_millis(5));
    let go = std::sync::Arc::new(AtomicBool::new(false));
    let mut reporter = Watching(std::sync::Arc::clone(&go), 0);
    let outcome = run(capture, &limits, |_| Ok(Hung(std::sync::Arc::clone(&go))), &mut reporter).unwrap();
    assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
    assert_eq!(outcome.ledger.total.analysed, 10);
}
