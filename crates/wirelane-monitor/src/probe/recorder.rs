//! Recordings of packets around an event: which are begun, what workers catch for them, and their files.
//!
//! ```text
//!   controller: an event -> Recorder: within its bounds? -> Orders -> workers -> Caught -> a thread: by time -> file
//! ```
//!
//! Nobody waits for the thread or the disk. What is caught is in memory until its file is written, so the number of
//! recordings that go on at once is bounded, as their bytes are.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use wirelane::Interfaces;
use wirelane_export::{Direction, EventFile, EventFiles, EventPacket, Interface, clock};
use wirelane_probe::{Caught, Config, Head, Orders, Recorded};

use wirelane_screen::table::printable;

/// What became of recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recordings {
    /// Files that are whole.
    pub recordings: u64,
    /// Packets in them.
    pub recorded_packets: u64,
    /// Their bytes.
    pub recorded_bytes: u64,
    /// Recordings without a file, as it could not be written.
    pub recordings_failed: u64,
    /// Events without a recording, as too many went on, or as many as there may be had been made.
    pub recordings_refused: u64,
    /// Events without a recording, as one of the same alarm had been recorded a short time before.
    pub recordings_cooling: u64,
    /// Files that lack packets that came before the event: too many came for the buffer.
    pub recordings_cut: u64,
    /// Packets of recordings that were full.
    pub recordings_left_out: u64,
    /// Unfinished files that processes which had died have left, removed.
    pub recordings_cleared: u64,
}

/// Relaxed: numbers that are read when the thread has ended, but for `busy`, of which one too many does no harm.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    cut: AtomicU64,
    left_out: AtomicU64,
}

/// What the thread is told.
enum Message {
    /// A recording has begun, with this number.
    Begun(u64, Box<Job>),
    /// A worker's part of one.
    Caught(Caught),
    /// There are no more.
    End,
}

/// A recording.
struct Job {
    recorded: Recorded,
    /// Recordings of this action that go on.
    busy: Arc<AtomicUsize>,
}

/// What is known of an action.
#[derive(Default)]
struct ActionState {
    busy: Arc<AtomicUsize>,
    begun: u64,
    /// Of each alarm the event that was recorded last.
    last_ns: HashMap<String, u64>,
}

/// Folders that are open, before rights are given up.
pub struct Folders {
    files: HashMap<PathBuf, EventFiles>,
}

/// The recorder, at work.
pub struct Recorder {
    orders: Arc<Orders>,
    messages: mpsc::Sender<Message>,
    states: HashMap<usize, ActionState>,
    counts: Arc<Counts>,
    thread: JoinHandle<()>,
    sums: Recordings,
}

fn place(folder: &str) -> Result<PathBuf> {
    std::path::absolute(folder).with_context(|| format!("finding {}", printable(folder)))
}

impl Folders {
    /// Opens the folders of a configuration, and removes what dead processes have left there; `None` where it records
    /// nothing. `trees` has them then, too: the process goes on to write there.
    ///
    /// # Errors
    /// Where there is no such folder, and none can be made, or nothing can be made in it.
    pub fn open(
        config: &Config,
        owner: Option<(u32, u32)>,
        trees: &mut Vec<PathBuf>,
    ) -> Result<Option<Folders>> {
        let mut files = HashMap::new();
        for (_, recording) in config.recordings() {
            let folder = place(&recording.folder)?;
            if !files.contains_key(&folder) {
                files.insert(folder.clone(), EventFiles::open(&folder, owner)?);
                trees.push(folder);
            }
        }
        Ok((!files.is_empty()).then_some(Folders { files }))
    }

    /// Starts the thread that writes. To be called after rights have been given up: threads keep theirs.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(self, workers: usize, interfaces: Interfaces) -> Result<Recorder> {
        let (messages, inbox) = mpsc::channel();
        let caught = messages.clone();
        // Whoever catches does not wait, and where the thread has ended nothing is to be written any more.
        let orders = Orders::new(workers, Box::new(move |one| drop(caught.send(Message::Caught(one)))));
        let counts = Arc::new(Counts::default());
        let cleared = self.files.values().map(|files| files.cleared).sum();
        let writer = Writer {
            files: self.files,
            interfaces,
            workers,
            counts: Arc::clone(&counts),
            open: HashMap::new(),
        };
        let thread = std::thread::Builder::new().name("wl-recordings".into());
        let thread = thread.spawn(move || writer.run(&inbox)).context("starting the recorder's thread")?;
        let states = HashMap::new();
        let sums = Recordings { recordings_cleared: cleared, ..Recordings::default() };
        Ok(Recorder { orders: Arc::new(orders), messages, states, counts, thread, sums })
    }
}

impl Recorder {
    /// Where workers find what is to be caught.
    pub fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }

    /// Begins a recording, unless there are too many.
    pub fn record(&mut self, recorded: &Recorded) {
        let Recorded { action, recording, alarm, wanted } = recorded;
        let state = self.states.entry(*action).or_default();
        let last = state.last_ns.get(&alarm.alarm);
        if last.is_some_and(|last| alarm.end_ns.saturating_sub(*last) < recording.cool_down_ns) {
            self.sums.recordings_cooling += 1;
            return;
        }
        if state.begun >= recording.files || state.busy.load(Ordering::Relaxed) >= recording.at_once {
            if self.sums.recordings_refused == 0 {
                tracing::warn!("an event is not recorded, as there are as many recordings as there may be");
            }
            self.sums.recordings_refused += 1;
            return;
        }
        state.begun += 1;
        state.busy.fetch_add(1, Ordering::Relaxed);
        state.last_ns.insert(alarm.alarm.clone(), alarm.end_ns);
        let job = Box::new(Job { recorded: recorded.clone(), busy: Arc::clone(&state.busy) });
        let number = self.orders.post(*wanted);
        // What is caught before this comes is kept for it.
        let _ = self.messages.send(Message::Begun(number, job));
    }

    /// All workers have ended: the last files are written.
    pub fn finish(self) -> Recordings {
        let _ = self.messages.send(Message::End);
        let panicked = self.thread.join().is_err();
        if panicked {
            tracing::warn!("the thread that writes recordings panicked; this is a bug");
        }
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Recordings {
            recordings: number(&self.counts.done),
            recorded_packets: number(&self.counts.packets),
            recorded_bytes: number(&self.counts.bytes),
            recordings_failed: number(&self.counts.failed) + u64::from(panicked),
            recordings_cut: number(&self.counts.cut),
            recordings_left_out: number(&self.counts.left_out),
            ..self.sums
        }
    }
}

/// The thread's side.
struct Writer {
    files: HashMap<PathBuf, EventFiles>,
    interfaces: Interfaces,
    workers: usize,
    counts: Arc<Counts>,
    /// What has been caught so far, by the numbers of orders.
    open: HashMap<u64, (Option<Box<Job>>, Vec<Caught>)>,
}

impl Writer {
    fn run(mut self, inbox: &mpsc::Receiver<Message>) {
        for message in inbox {
            let number = match message {
                Message::Begun(number, job) => {
                    self.open.entry(number).or_default().0 = Some(job);
                    number
                }
                Message::Caught(caught) => {
                    let number = caught.order;
                    self.open.entry(number).or_default().1.push(caught);
                    number
                }
                Message::End => break,
            };
            let is_whole = |(job, caught): &(Option<Box<Job>>, Vec<Caught>)| {
                job.is_some() && caught.len() == self.workers
            };
            if self.open.get(&number).is_some_and(is_whole) {
                self.finish(number);
            }
        }
        let mut left: Vec<u64> = self.open.keys().copied().collect();
        left.sort_unstable();
        left.into_iter().for_each(|number| self.finish(number));
    }

    fn finish(&mut self, number: u64) {
        let Some((Some(job), caught)) = self.open.remove(&number) else { return };
        let alarm = &job.recorded.alarm;
        match self.write(&job.recorded, &caught) {
            Ok((file, packets)) => {
                self.counts.done.fetch_add(1, Ordering::Relaxed);
                self.counts.packets.fetch_add(packets, Ordering::Relaxed);
                self.counts.bytes.fetch_add(file.bytes, Ordering::Relaxed);
                let is_cut = caught.iter().any(|one| one.is_cut) || caught.len() < self.workers;
                self.counts.cut.fetch_add(u64::from(is_cut), Ordering::Relaxed);
                let left_out: u64 = caught.iter().map(|one| one.left_out).sum();
                self.counts.left_out.fetch_add(left_out, Ordering::Relaxed);
                tracing::info!("alarm {} is recorded in {}", alarm.alarm, file.name);
            }
            Err(error) => {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("alarm {} is not recorded: {}", alarm.alarm, printable(&format!("{error:#}")));
            }
        }
        job.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Writes a recording: all workers' packets in the order of their times.
    fn write(&mut self, recorded: &Recorded, caught: &[Caught]) -> Result<(EventFile, u64)> {
        let Recorded { recording, alarm, .. } = recorded;
        let mut packets: Vec<(&Head, &[u8])> = Vec::new();
        for one in caught {
            let mut rest = one.bytes.as_slice();
            for head in &one.heads {
                let (data, more) = rest
                    .split_at_checked(head.captured as usize)
                    .ok_or_else(|| anyhow!("a worker's packets have no bytes; this is a bug"))?;
                packets.push((head, data));
                rest = more;
            }
        }
        // Of one worker and time, as they came.
        packets.sort_by_key(|(head, _)| head.ts_ns);
        let mut ids: HashMap<(u16, u16), u32> = HashMap::new();
        let mut described = Vec::new();
        for (head, _) in &packets {
            let next = described.len() as u32;
            if let std::collections::hash_map::Entry::Vacant(entry) = ids.entry((head.device, head.queue)) {
                entry.insert(next);
                let interface = self.interfaces.get(head.device.into(), head.queue);
                described.push(interface.ok_or_else(|| anyhow!("a packet of no interface; this is a bug"))?);
            }
        }
        let interfaces: Vec<Interface<'_>> = described
            .iter()
            .map(|one| Interface {
                name: &one.name,
                description: &one.description,
                link_number: one.link_number,
                snap_len: one.snap_len,
                speed_bps: one.speed_bps,
                ..Interface::default()
            })
            .collect();
        let number = packets.len() as u64;
        let packets = packets.into_iter().map(|(head, data)| EventPacket {
            ts_ns: head.ts_ns,
            data,
            wire_len: head.wire_len,
            direction: head.egress.then_some(Direction::Outbound),
            interface: ids[&(head.device, head.queue)],
        });
        let label = format!("{}-{}", alarm.alarm, alarm.state.name());
        let folder = place(&recording.folder)?;
        let files = self.files.get_mut(&folder).ok_or_else(|| anyhow!("no such folder; this is a bug"))?;
        let file =
            files.write(alarm.end_ns, &label, &comment(recorded), &interfaces, packets, recording.digest)?;
        Ok((file, number))
    }
}

/// What a file says of its event.
fn comment(recorded: &Recorded) -> String {
    let Recorded { recording, alarm, .. } = recorded;
    let key = if alarm.key_text.is_empty() { String::new() } else { format!(" of {}", alarm.key_text) };
    let seconds = |ns: u64| ns as f64 / 1e9;
    let text = format!(
        "alarm {} {}{key}: {} {} of measurement {} at {} ({} UTC); packets from {} s before to {} s after",
        alarm.alarm,
        alarm.state.name(),
        alarm.value_name,
        alarm.value,
        alarm.measurement,
        alarm.time,
        clock(alarm.end_ns).trim_end(),
        seconds(recording.before_ns),
        seconds(recording.after_ns)
    );
    printable(&text).into_owned()
}

impl Recordings {
    /// As people read it.
    pub fn text(&self) -> String {
        use wirelane_screen::table::{amount, counted};
        let mut text = format!(
            "recordings: {} with {}, {} bytes",
            counted(self.recordings, "file"),
            counted(self.recorded_packets, "packet"),
            amount(self.recorded_bytes)
        );
        for (number, what) in [
            (self.recordings_failed, "failed"),
            (self.recordings_refused, "not begun as too many were"),
            (self.recordings_cooling, "not begun so soon after the one before"),
            (self.recordings_cut, "without all that was before the event"),
            (self.recordings_left_out, "packets left out of full ones"),
            (self.recordings_cleared, "unfinished files of dead processes removed"),
        ] {
            if number > 0 {
                text += &format!("; {} {what}", amount(number));
            }
        }
        text + "\n"
    }
}
