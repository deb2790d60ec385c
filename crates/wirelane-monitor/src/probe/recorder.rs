//! Recordings of packets around an event: starting them, collecting the workers' packets, and writing their files.
//!
//! ```text
//!   controller: an event -> Recorder: within its bounds? -> Orders -> workers -> Caught -> a thread: by time -> file
//! ```
//!
//! No thread waits for the writing thread or the disk. Recorded packets are in memory until their file is written, so
//! the number of concurrent recordings is bounded, as their bytes are. An alarm is stored once its file is complete, whose
//! name is not known before.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use wirelane::Interfaces;
use wirelane_export::{Direction, EventFile, EventFiles, EventPacket, Interface, clock};
use wirelane_probe::{AlarmEvent, Caught, Config, Head, Orders, Recorded};

use wirelane_screen::table::printable;

/// Counts of recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recordings {
    /// Complete files.
    pub recordings: u64,
    /// Packets in these files.
    pub recorded_packets: u64,
    /// Bytes of these files.
    pub recorded_bytes: u64,
    /// Recordings without a file, because it could not be written.
    pub recordings_failed: u64,
    /// Events without a recording, because too many were active, or the maximum number had been made.
    pub recordings_refused: u64,
    /// Events without a recording, because an event of the same alarm was recorded shortly before.
    pub recordings_cooling: u64,
    /// Files without some of the packets before the event: there were too many for the buffer.
    pub recordings_cut: u64,
    /// Packets that were left out because a recording was full.
    pub recordings_left_out: u64,
    /// Unfinished files of dead processes that were removed.
    pub recordings_cleared: u64,
}

/// Relaxed: numbers that are read after the thread has ended, except `busy`, for which one too many does no harm.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    cut: AtomicU64,
    left_out: AtomicU64,
}

/// Messages to the writing thread.
enum Message {
    /// A recording has begun, with this number.
    Begun(u64, Box<Job>),
    /// One worker's part of a recording.
    Caught(Caught),
    /// The last message.
    End,
}

/// A recording.
struct Job {
    recorded: Recorded,
    /// Number of active recordings of this action.
    busy: Arc<AtomicUsize>,
}

/// State of an action.
#[derive(Default)]
struct ActionState {
    busy: Arc<AtomicUsize>,
    begun: u64,
    /// Time of the last recorded event of each alarm.
    last_ns: HashMap<String, u64>,
}

/// Folders opened before privileges are dropped.
pub struct Folders {
    files: HashMap<PathBuf, EventFiles>,
}

/// An alarm, and the path of its file, if there is one.
type Ended = (AlarmEvent, Option<String>);

/// Alarms with recordings that have begun.
struct Awaited {
    /// Alarm, number of its recordings that have not ended, and the path of its first complete file.
    alarms: Vec<(AlarmEvent, usize, Option<String>)>,
    /// Recordings that have ended.
    ended: mpsc::Receiver<Ended>,
}

impl Awaited {
    fn begun(&mut self, alarm: &AlarmEvent) {
        match self.alarms.iter_mut().find(|awaited| awaited.0 == *alarm) {
            Some((_, left, _)) => *left += 1,
            None => self.alarms.push((alarm.clone(), 1, None)),
        }
    }

    fn ended(&mut self) -> Vec<Ended> {
        for (alarm, path) in self.ended.try_iter() {
            if let Some((_, left, file)) = self.alarms.iter_mut().find(|awaited| awaited.0 == alarm) {
                *left -= 1;
                *file = file.take().or(path);
            }
        }
        self.alarms.extract_if(.., |awaited| awaited.1 == 0).map(|(alarm, _, file)| (alarm, file)).collect()
    }

    /// The rest, after the writing thread has ended.
    fn rest(mut self) -> Vec<Ended> {
        let mut ended = self.ended();
        // Only a panic leaves some.
        ended.extend(self.alarms.into_iter().map(|(alarm, _, file)| (alarm, file)));
        ended
    }
}

/// The running recorder.
pub struct Recorder {
    orders: Arc<Orders>,
    messages: mpsc::Sender<Message>,
    states: HashMap<usize, ActionState>,
    counts: Arc<Counts>,
    awaited: Awaited,
    thread: JoinHandle<()>,
    sums: Recordings,
}

fn place(folder: &str) -> Result<PathBuf> {
    std::path::absolute(folder).with_context(|| format!("finding {}", printable(folder)))
}

impl Folders {
    /// Opens the folders of a configuration, and removes unfinished files of dead processes; `None` if it does not
    /// record. Adds the folders to `trees`, because the process continues to write there.
    ///
    /// # Errors
    /// If a folder is missing and cannot be created, or no file can be created in it.
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

    /// Starts the writing thread. To be called after privileges are dropped: existing threads keep theirs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self, workers: usize, interfaces: Interfaces) -> Result<Recorder> {
        let (messages, inbox) = mpsc::channel();
        let caught = messages.clone();
        // Workers do not wait, and after the thread has ended nothing is written any more.
        let orders = Orders::new(workers, Box::new(move |one| drop(caught.send(Message::Caught(one)))));
        let counts = Arc::new(Counts::default());
        let cleared = self.files.values().map(|files| files.cleared).sum();
        let (ends, ended) = mpsc::channel();
        let writer = Writer {
            files: self.files,
            interfaces,
            workers,
            counts: Arc::clone(&counts),
            ends,
            open: HashMap::new(),
        };
        let thread = std::thread::Builder::new().name("wl-recordings".into());
        let thread = thread.spawn(move || writer.run(&inbox)).context("starting the recorder's thread")?;
        let states = HashMap::new();
        let sums = Recordings { recordings_cleared: cleared, ..Recordings::default() };
        let awaited = Awaited { alarms: Vec::new(), ended };
        Ok(Recorder { orders: Arc::new(orders), messages, states, counts, awaited, thread, sums })
    }
}

impl Recorder {
    /// Orders of recordings for the workers.
    pub fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }

    /// Begins a recording, unless there are too many; returns whether it has begun.
    pub fn record(&mut self, recorded: &Recorded) -> bool {
        let Recorded { action, recording, alarm, wanted } = recorded;
        let state = self.states.entry(*action).or_default();
        let last = state.last_ns.get(&alarm.alarm);
        if last.is_some_and(|last| alarm.end_ns.saturating_sub(*last) < recording.cool_down_ns) {
            self.sums.recordings_cooling += 1;
            return false;
        }
        if state.begun >= recording.files || state.busy.load(Ordering::Relaxed) >= recording.at_once {
            if self.sums.recordings_refused == 0 {
                tracing::warn!("an event is not recorded, as there are as many recordings as there may be");
            }
            self.sums.recordings_refused += 1;
            return false;
        }
        state.begun += 1;
        state.busy.fetch_add(1, Ordering::Relaxed);
        state.last_ns.insert(alarm.alarm.clone(), alarm.end_ns);
        let job = Box::new(Job { recorded: recorded.clone(), busy: Arc::clone(&state.busy) });
        let number = self.orders.post(*wanted);
        // Packets that workers recorded before this message arrives are kept for it.
        let _ = self.messages.send(Message::Begun(number, job));
        self.awaited.begun(alarm);
        true
    }

    /// Alarms of which all recordings have ended since the last call.
    pub fn ended(&mut self) -> Vec<Ended> {
        self.awaited.ended()
    }

    /// Writes the last files, after all workers have ended; returns their alarms, too.
    pub fn finish(self) -> (Recordings, Vec<Ended>) {
        let _ = self.messages.send(Message::End);
        let panicked = self.thread.join().is_err();
        if panicked {
            tracing::warn!("the thread that writes recordings panicked; this is a bug");
        }
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let recordings = Recordings {
            recordings: number(&self.counts.done),
            recorded_packets: number(&self.counts.packets),
            recorded_bytes: number(&self.counts.bytes),
            recordings_failed: number(&self.counts.failed) + u64::from(panicked),
            recordings_cut: number(&self.counts.cut),
            recordings_left_out: number(&self.counts.left_out),
            ..self.sums
        };
        (recordings, self.awaited.rest())
    }
}

/// The recorder in the thread.
struct Writer {
    files: HashMap<PathBuf, EventFiles>,
    interfaces: Interfaces,
    workers: usize,
    counts: Arc<Counts>,
    /// Receives each alarm of which a recording has ended.
    ends: mpsc::Sender<Ended>,
    /// Packets recorded so far, by order number.
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
        let path = match self.write(&job.recorded, &caught) {
            Ok((path, file, packets)) => {
                self.counts.done.fetch_add(1, Ordering::Relaxed);
                self.counts.packets.fetch_add(packets, Ordering::Relaxed);
                self.counts.bytes.fetch_add(file.bytes, Ordering::Relaxed);
                let is_cut = caught.iter().any(|one| one.is_cut) || caught.len() < self.workers;
                self.counts.cut.fetch_add(u64::from(is_cut), Ordering::Relaxed);
                let left_out: u64 = caught.iter().map(|one| one.left_out).sum();
                self.counts.left_out.fetch_add(left_out, Ordering::Relaxed);
                tracing::info!("alarm {} is recorded in {}", alarm.alarm, file.name);
                Some(path)
            }
            Err(error) => {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("alarm {} is not recorded: {}", alarm.alarm, printable(&format!("{error:#}")));
                None
            }
        };
        // Nobody receives it after a panic of the other side, which is reported there.
        let _ = self.ends.send((alarm.clone(), path));
        job.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Writes a recording: the packets of all workers, sorted by time. Returns its path, too, and the number of packets.
    fn write(&mut self, recorded: &Recorded, caught: &[Caught]) -> Result<(String, EventFile, u64)> {
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
        // Stable sort: packets of one worker with equal times keep their order.
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
        Ok((folder.join(&file.name).display().to_string(), file, number))
    }
}

/// Comment in a file about its event.
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
    /// The counts for people.
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
