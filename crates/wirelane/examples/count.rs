//! Counts what arrives on a device or virtual device for a second, with two workers.
use std::time::Duration;
use std::{env, thread};

use wirelane::{Builder, Result, Selector, Worker};

fn main() -> Result<()> {
    let device = env::args().nth(1).unwrap_or_else(|| "eth1@0-3".to_owned());
    let mut capture = Builder::new(Selector::parse_list(&device)?).workers(2).snap_len(128).open()?;
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> =
            capture.workers().into_iter().map(|worker| scope.spawn(|| count(worker))).collect();
        thread::sleep(Duration::from_secs(1));
        capture.stop()?;
        for (number, worker) in workers.into_iter().enumerate() {
            let (packets, bytes) = worker.join().expect("a worker does not panic")?;
            println!("worker {number}: {packets} packets, {bytes} bytes");
        }
        Ok(())
    })?;
    let total = capture.close()?.total;
    println!("seen {} = lost {} + analysed {}", total.seen, total.lost, total.analysed);
    Ok(())
}

/// Takes records until the capture is stopped and all that it delivered has been seen.
fn count(mut worker: Worker) -> Result<(u64, u64)> {
    let (mut packets, mut bytes) = (0, 0);
    while let Some(batch) = worker.next_batch(Duration::from_millis(100))? {
        for record in batch {
            packets += 1;
            bytes += u64::from(record.wire_len());
        }
    }
    Ok((packets, bytes))
}
