//! Numbered packets: the generator's packets compared with those of a capture.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use wirelane::{FileOptions, FileSource, Record, Worker};
use wirelane_send::numbered;

use crate::{Child, Finished, Lab, wirelane_binary};

/// Time limit of every wait in a test.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Starts the program in a namespace of the lab.
pub fn wirelane(lab: &Lab, namespace: &str, words: &[&str]) -> Result<Child> {
    let binary = wirelane_binary()?;
    let binary = binary.to_str().context("the binary's path is UTF-8")?;
    lab.spawn(namespace, &[&[binary], words].concat())
}

/// Starts a capturing command on the lab's receiver and waits until it captures.
pub fn capture(lab: &Lab, words: &[&str]) -> Result<Child> {
    let mut child = wirelane(lab, &lab.receiver().namespace, words)?;
    child.wait_ready(LIMIT)?;
    Ok(child)
}

/// Reads a capture's intervals until packets have arrived.
pub fn until_packets_come(child: &Child) -> Result<()> {
    loop {
        let interval = child.next_json(LIMIT)?.context("the capture ended before packets came")?;
        if column(&interval, "analysed") > 0 {
            return Ok(());
        }
    }
}

/// Ends a capture by SIGTERM and returns its last object.
pub fn finish(child: Child) -> Result<serde_json::Value> {
    last_of(&child.terminate(LIMIT)?)
}

/// The last object of a successful command.
pub fn last_of(finished: &Finished) -> Result<serde_json::Value> {
    ensure!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    let last = finished.last_json()?;
    ensure!(last["final"] == true, "not a last object: {last}");
    Ok(last)
}

/// Sends numbered packets from the lab's sender through sockets, and asserts that all of them were sent.
pub fn send(lab: &Lab, packets: u64, options: &[&str]) -> Result<()> {
    let number = packets.to_string();
    let end = lab.sender();
    let words = [&["send", "-i", &end.device, "--packets", &number, "--method", "socket", "--json"], options]
        .concat();
    let last = last_of(&wirelane(lab, &end.namespace, &words)?.finish(LIMIT)?)?;
    ensure!(last["sent"] == packets, "the device sent {} of {packets}", last["sent"]);
    Ok(())
}

/// A column of a JSON object of the ledger.
pub fn column(object: &serde_json::Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}"))
}

/// The number in a record of the generator's packets; `None` for any other packet.
pub fn number_of(record: &Record<'_>) -> Option<u64> {
    record.payload().and_then(numbered)
}

/// The numbers of the generator's packets in a recording, in its order. Any other packet in it is an error, as is
/// damage.
pub fn in_file(file: &Path) -> Result<Vec<u64>> {
    let mut source = FileSource::open(file, FileOptions::as_written())?;
    let mut numbers = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO)? {
        for record in batch {
            numbers.push(number_of(&record).context("a packet that nobody sent is in the recording")?);
        }
    }
    Ok(numbers)
}

/// Distributes the sender's packets over RX queues by flow. A packet socket's frames go to the queue of the sender's
/// CPU, unless several queues have that CPU: then the hash chooses (net/core/dev.c, `get_xps_queue()`).
pub fn spread_by_hash(lab: &Lab, queues: u32) -> Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(32));
    let mask = (1u64 << cpus) - 1;
    let device = &lab.sender().device;
    for queue in 0..queues {
        let set = format!("echo {mask:x} > /sys/class/net/{device}/queues/tx-{queue}/xps_cpus");
        lab.exec(&lab.sender().namespace, &["sh", "-c", &set])?;
    }
    Ok(())
}

/// Reads records and calls `each` for every one, until the worker returns `None` or no record has arrived for `quiet`.
/// Returns their number.
pub fn drain(worker: &mut Worker, quiet: Duration, mut each: impl FnMut(&Record<'_>)) -> Result<u64> {
    let mut records = 0;
    loop {
        let Some(batch) = worker.next_batch(quiet)? else { return Ok(records) };
        let before = records;
        for record in batch {
            each(&record);
            records += 1;
        }
        if records == before {
            return Ok(records);
        }
    }
}
