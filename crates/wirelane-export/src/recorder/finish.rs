//! The finisher: a thread that makes whole files durable, renames them, removes the oldest, and reports them. A disk
//! may take seconds for that, and no packet waits for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::counts::Shared;
use super::keep::Ring;
use super::part::{Directory, PartFile};
use crate::Error;

/// Maximum files that wait to be finished. Beyond that, their writers wait.
const WAITING: usize = 16;

/// Callback with the path of every finished file.
pub type OnFinished = Box<dyn FnMut(&Path) + Send>;

/// State change of a file.
#[derive(Debug)]
pub(crate) enum Event {
    /// Another file is being written.
    Opened,
    /// The file was removed, because it was empty.
    Discarded,
    /// The file is complete, with this size and number of packets.
    Whole { part: PartFile, bytes: u64, packets: u64 },
}

/// State of the finisher.
struct Finisher {
    shared: Arc<Shared>,
    /// Directory of the newest file; `None` if files are never removed.
    directory: Option<Arc<Directory>>,
    ring: Ring,
    /// Number of files that are being written, and the maximum size of each.
    open: u64,
    open_bytes: u64,
    on_finished: Option<OnFinished>,
}

/// Starts the thread. It ends when all senders are dropped.
pub(crate) fn start(
    shared: Arc<Shared>,
    directory: Option<Arc<Directory>>,
    ring: Ring,
    open_bytes: u64,
    on_finished: Option<OnFinished>,
) -> std::io::Result<(SyncSender<Event>, JoinHandle<()>)> {
    let (events, inbox) = sync_channel(WAITING);
    let finisher = Finisher { shared, directory, ring, open: 0, open_bytes, on_finished };
    let thread =
        std::thread::Builder::new().name("wl-finisher".into()).spawn(move || finisher.run(&inbox))?;
    Ok((events, thread))
}

impl Finisher {
    fn run(mut self, inbox: &Receiver<Event>) {
        for event in inbox {
            match event {
                Event::Opened => self.open += 1,
                Event::Discarded => self.open -= 1,
                Event::Whole { part, bytes, packets } => {
                    self.open -= 1;
                    self.finish(part, bytes, packets);
                }
            }
            self.make_room();
        }
    }

    fn finish(&mut self, part: PartFile, bytes: u64, packets: u64) {
        let name = part.name().to_owned();
        if let Some(directory) = &mut self.directory {
            // The directory may have been created again.
            *directory = part.directory();
        }
        match part.finish() {
            Ok(path) => {
                self.shared.counts.files.add(1);
                self.ring.add(name, bytes);
                if let Some(on_finished) = &mut self.on_finished {
                    on_finished(&path);
                }
            }
            Err(error) => {
                // Packets that cannot be found, or may not be on the disk, are not recorded.
                if matches!(error, Error::Vanished { .. } | Error::Sync { .. }) {
                    self.shared.take_back(packets);
                }
                self.shared.failed(&error.to_string());
                tracing::warn!("{error}");
            }
        }
    }

    fn make_room(&mut self) {
        let Some(directory) = &self.directory else { return };
        while let Some(name) = self.ring.excess(self.open, self.open.saturating_mul(self.open_bytes)) {
            match directory.remove(&name) {
                Ok(()) => self.shared.counts.removed.add(1),
                // A post-rotate command may have moved the file, which is allowed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    let text = format!(
                        "{} is to be removed and cannot be: {error}",
                        directory.path_of(&name).display()
                    );
                    tracing::warn!("{text}");
                    self.shared.failed(&text);
                }
            }
        }
    }
}
