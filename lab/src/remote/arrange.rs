//! Settings of an agent's device that its managers choose, if the agent lets them: the number of RX queues, and where the
//! kernel takes packets from them (NAPI). All are set back when the manager or the agent is gone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use wirelane_netdev::ethtool_set::{Channels, EthtoolSet};
use wirelane_netdev::{Device, threads};

use crate::process;
use crate::roles::{DutOrder, napi};
use crate::suite::Napi;
use crate::watcher::Undo;

/// Maximum time of a card for its link to return after its queues were changed.
const LINK: Duration = Duration::from_secs(20);

/// A device, and its settings as they were.
#[derive(Debug)]
pub(super) struct Arranged {
    device: String,
    channels: Channels,
    threaded: String,
    /// Cores of its interrupts that were bound, by their numbers.
    interrupts: BTreeMap<u32, String>,
    /// NAPI threads in the order of RX queues; empty without threaded NAPI.
    threads: Vec<u32>,
    /// Commands that set everything back; `None`: nothing was changed yet.
    undo: Option<Undo>,
}

impl Arranged {
    /// Notes the settings of a device of this network namespace.
    pub(super) fn new(device: &str) -> Result<Arranged> {
        // Its name is a word of commands.
        let is_word = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        ensure!(
            device.chars().all(is_word),
            "the name of {device:?} has other characters than letters, digits and . _ - @"
        );
        let channels = EthtoolSet::open(device).and_then(|set| set.channels());
        let channels =
            channels.with_context(|| format!("{device} has no number of RX queues to set (ethtool -l)"))?;
        let threaded = fs::read_to_string(threaded(device)).context("NAPI in threads needs Linux 5.12")?;
        let (device, threads) = (device.to_owned(), Vec::new());
        Ok(Arranged { device, channels, threaded, interrupts: BTreeMap::new(), threads, undo: None })
    }

    /// Sets the number of RX queues and the context of NAPI. Call before the sensor starts.
    pub(super) fn arrange(&mut self, order: &DutOrder) -> Result<()> {
        if self.undo.is_none() {
            self.undo = Some(Undo::register(self.commands())?);
        }
        self.set_queues(order.queues)?;
        let wanted = if order.napi == Napi::Inline { self.threaded.trim() } else { "1" };
        let file = threaded(&self.device);
        if fs::read_to_string(&file)?.trim() != wanted {
            fs::write(&file, wanted).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn set_queues(&self, queues: u32) -> Result<()> {
        let device = &self.device;
        let set = EthtoolSet::open(device)?;
        let now = set.channels()?;
        ensure!(
            (1..=now.most_rx()).contains(&queues),
            "{device} has {} RX queues at most, and {queues} are asked for",
            now.most_rx()
        );
        let wanted = with_queues(now, queues);
        if wanted != now {
            set.set_channels(&wanted).with_context(|| format!("setting {queues} RX queues of {device}"))?;
            let state = Path::new("/sys/class/net").join(device).join("operstate");
            let end = Instant::now() + LINK;
            while fs::read_to_string(&state)?.trim() == "down" {
                ensure!(Instant::now() < end, "{device} has no link {LINK:?} after its queues were set");
                sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Places the interrupt and the thread of each RX queue on the cores of the sensor in turn. Call when it is ready:
    /// attaching a program may make new threads.
    pub(super) fn settle(&mut self, order: &DutOrder) -> Result<()> {
        let device = Device::open(&self.device)?;
        let core = |queue: u32| order.cores[queue as usize % order.cores.len()];
        let interrupts = || device.rx_queues.iter().flat_map(|queue| &queue.irqs);
        for irq in interrupts() {
            self.interrupts.entry(irq.irq).or_insert_with(|| irq.cpus.clone().unwrap_or_default());
        }
        let commands = self.commands();
        if let Some(undo) = &mut self.undo {
            undo.change(commands)?;
        }
        for queue in &device.rx_queues {
            for irq in &queue.irqs {
                let file = affinity(irq.irq);
                fs::write(&file, core(queue.queue).to_string())
                    .with_context(|| format!("binding {}: {}", irq.name, file.display()))?;
            }
        }
        self.threads.clear();
        if order.napi == Napi::Inline {
            return Ok(());
        }
        let mut found = threads::of_device(&device);
        found.sort_unstable();
        ensure!(
            found.len() == order.queues as usize,
            "{} has {} RX queues, and the threads of NAPI of {} are known",
            self.device,
            order.queues,
            found.len()
        );
        let first = napi::comes_first(order.napi, order.paced);
        for (queue, thread) in found {
            napi::place(thread, core(queue), first, 0)?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Commands that set everything back, in one line. Interrupts are last, since a driver binds them anew when its queues are
    /// set.
    fn commands(&self) -> String {
        let Channels { rx, tx, combined } = self.channels;
        let counts = [("rx", rx), ("tx", tx), ("combined", combined)];
        let counts = counts.iter().filter(|(_, (_, most))| *most > 0);
        let counts: String = counts.map(|(name, (count, _))| format!(" {name} {count}")).collect();
        let threaded = format!("echo {} >{}", self.threaded.trim(), threaded(&self.device).display());
        let mut commands = format!("ethtool -L {}{counts}; {threaded}", self.device);
        for (irq, cores) in &self.interrupts {
            commands += &format!("; echo {cores} >{}", affinity(*irq).display());
        }
        commands
    }

    /// CPU time of the threads of NAPI so far.
    pub(super) fn napi_time(&self) -> Result<Duration> {
        process::run_times(&self.threads)
    }
}

/// Channels with so many RX queues: combined ones, if the card has them.
fn with_queues(now: Channels, queues: u32) -> Channels {
    match now.combined.1 {
        0 => Channels { rx: (queues, now.rx.1), ..now },
        most => Channels { combined: (queues, most), rx: (0, now.rx.1), ..now },
    }
}

fn threaded(device: &str) -> PathBuf {
    Path::new("/sys/class/net").join(device).join("threaded")
}

fn affinity(irq: u32) -> PathBuf {
    PathBuf::from(format!("/proc/irq/{irq}/smp_affinity_list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_combined_channels_where_a_card_has_them() {
        let card = Channels { rx: (0, 0), tx: (0, 0), combined: (8, 16) };
        assert_eq!(with_queues(card, 2), Channels { combined: (2, 16), ..card });
        let veth = Channels { rx: (4, 4), tx: (4, 4), combined: (0, 0) };
        assert_eq!(with_queues(veth, 2), Channels { rx: (2, 4), ..veth });
        let either = Channels { rx: (2, 8), tx: (2, 8), combined: (0, 8) };
        assert_eq!(with_queues(either, 4), Channels { rx: (0, 8), tx: (2, 8), combined: (4, 8) });
    }

    #[test]
    fn a_device_without_queues_to_set_is_named() {
        assert!(Arranged::new("lo").unwrap_err().to_string().contains("lo has no number of RX queues"));
    }
}
