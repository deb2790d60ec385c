//! The plan: changes on a card and the placement of queues and workers, each with its reason. A pure function of its
//! inputs.

use serde::Serialize;

use super::apply::Change;
use super::place::{Places, place};
use super::setting::{Setting, hex, table_text};
use wirelane_netdev::topology::{Card, CpuSet, Topology, cpulist};

/// The way of packets from a queue to the program that captures them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Polling {
    /// The queue's interrupt starts polling, on the CPU that it is bound to.
    Interrupt,
    /// A kernel thread for each queue, woken by the interrupt (threaded NAPI).
    Threaded,
    /// A kernel thread for each queue that never sleeps, if the kernel supports it (Linux 6.19).
    Busy,
}

impl std::fmt::Display for Polling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Polling::Interrupt => "interrupt",
            Polling::Threaded => "threaded",
            Polling::Busy => "busy",
        })
    }
}

/// Options of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Number of workers; by default one for each RX queue.
    pub workers: Option<usize>,
    /// CPUs of the workers, round-robin; if given, only queues are placed.
    pub cores: Vec<usize>,
    /// Polling mode of the queues; `None` keeps the current one.
    pub polling: Option<Polling>,
    /// Whether the number of queues, rings, offloads and RSS stay the same: only CPUs are chosen.
    pub as_it_is: bool,
}

/// The CPU that handles the packets of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuePlace {
    /// The device.
    pub device: String,
    /// The RX queue.
    pub queue: u32,
    /// The CPU; `None` if it is neither known nor can be chosen.
    pub core: Option<usize>,
    /// The reason.
    pub reason: String,
}

/// The CPU of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerPlace {
    /// The worker, from 0.
    pub worker: usize,
    /// The CPU.
    pub core: usize,
    /// The reason.
    pub reason: String,
}

/// The changes of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DevicePlan {
    /// The device.
    pub device: String,
    /// Changes to make, in this order. Settings that have the right value already are omitted.
    pub changes: Vec<Change>,
}

/// The proposed changes and placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The changes of each device.
    pub devices: Vec<DevicePlan>,
    /// The CPU of each RX queue in use.
    pub queues: Vec<QueuePlace>,
    /// The CPU of each worker.
    pub workers: Vec<WorkerPlace>,
    /// Additional notes for the user.
    pub notes: Vec<String>,
}

/// Sufficient number of descriptors of a ring: larger rings exceed the caches.
const RING: u32 = 4096;
/// The repeated pattern that makes the Toeplitz hash the same for both directions (Woo and Park, 2012).
const SYMMETRIC: [u8; 2] = [0x6d, 0x5a];
/// Offloads that merge or alter packets before they are captured.
const HARMFUL: [(&str, &str); 5] = [
    ("rx-lro", "the card merges packets into larger ones"),
    ("rx-gro-hw", "the card merges packets into larger ones"),
    ("rx-gro", "the stack merges packets before tc sees them"),
    ("rx-gro-list", "the stack merges packets before tc sees them"),
    ("rx-vlan-hw-parse", "the card takes VLAN tags out of packets; generic XDP then never sees them"),
];

/// Proposes a plan for capturing on these cards.
pub fn plan(topology: &Topology, cards: &[Card], wishes: &Wishes) -> Plan {
    let places = place(topology, cards, wishes);
    let mut notes = places.notes.clone();
    let devices = cards
        .iter()
        .enumerate()
        .map(|(index, card)| {
            let mut changes = Vec::new();
            if !wishes.as_it_is {
                changes.extend(card_changes(card, &places, index));
            }
            changes.extend(polling_changes(card, &places, index, wishes, &mut notes));
            DevicePlan { device: card.device.clone(), changes }
        })
        .collect();
    if topology.irqbalance && wishes.polling.is_some() {
        notes.push(
            "irqbalance runs and will move interrupts again: stop it, or ban these interrupts (IRQBALANCE_BANNED_CPULIST)"
                .into(),
        );
    }
    let queues = places
        .lanes
        .iter()
        .map(|lane| QueuePlace {
            device: cards[lane.card].device.clone(),
            queue: lane.queue,
            core: lane.core,
            reason: lane.reason.clone(),
        })
        .collect();
    Plan { devices, queues, workers: places.workers, notes }
}

/// Changes of queues, rings, offloads and RSS.
fn card_changes(card: &Card, places: &Places, index: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut change = |what: Setting, now: String, new: String, reason: String| {
        if now != new {
            changes.push(Change { what, now: Some(now), new, reason });
        }
    };
    let queues = places.lanes.iter().filter(|lane| lane.card == index).count() as u32;
    let table = card.rss.as_ref().filter(|_| queues > 0).map(|rss| {
        let even: Vec<u32> = (0..rss.table.len() as u32).map(|entry| entry % queues).collect();
        let reason = format!("every queue of {queues} gets the same share of flows");
        (table_text(&rss.table), table_text(&even), reason)
    });
    // A table that was set explicitly keeps the queues that it names from being disabled; a default table follows the
    // number of queues by itself.
    let set_by_hand = |now: &str| !now.starts_with("even ");
    let first = table.clone().filter(|(now, ..)| set_by_hand(now) && (queues as usize) < card.queues.len());
    if let Some((now, new, reason)) = first {
        change(Setting::RssTable, now, new, reason);
    }
    if let Some(channels) = card.channels.filter(|channels| channels.rx_queues() != queues) {
        let text = |of: &wirelane_netdev::topology::Channels| {
            format!("rx {} tx {} combined {}", of.rx.0, of.tx.0, of.combined.0)
        };
        let reason = places.why_so_many.clone();
        change(Setting::Channels, text(&channels), text(&channels.with_rx(queues)), reason);
    }
    if let Some(ring) = card.ring {
        // A larger ring was set on purpose and stays.
        let new = ring.most.min(RING).max(ring.now);
        let reason = format!("room for bursts: {new} descriptors, and no more than caches hold");
        change(Setting::RxRing, ring.now.to_string(), new.to_string(), reason);
    }
    for (name, harm) in HARMFUL {
        let found = card.offloads.iter().find(|offload| offload.name == name);
        if found.is_some_and(|offload| offload.on && !offload.fixed) {
            change(Setting::Offload { name: name.into() }, "on".into(), "off".into(), harm.into());
        }
    }
    if let Some((now, new, reason)) =
        table.filter(|(now, ..)| !set_by_hand(now) || queues as usize >= card.queues.len())
    {
        change(Setting::RssTable, now, new, reason);
    }
    if let Some(rss) = &card.rss
        && !rss.key.is_empty()
        && rss.toeplitz
        && !rss.symmetric
    {
        let key: Vec<u8> = SYMMETRIC.iter().copied().cycle().take(rss.key.len()).collect();
        let reason = "both directions of a conversation come on one queue, in order".into();
        change(Setting::RssKey, hex(&rss.key), hex(&key), reason);
    }
    changes
}

/// Changes of interrupts, threads and their CPUs.
fn polling_changes(
    card: &Card,
    places: &Places,
    index: usize,
    wishes: &Wishes,
    notes: &mut Vec<String>,
) -> Vec<Change> {
    let Some(polling) = wishes.polling else { return Vec::new() };
    let mut changes = Vec::new();
    let device = &card.device;
    let lanes: Vec<_> = places.lanes.iter().filter(|lane| lane.card == index).collect();
    // Without busy-polling threads in the kernel, programs have to busy-poll themselves.
    let mut threads = match polling {
        Polling::Interrupt => false,
        Polling::Threaded => true,
        Polling::Busy => card.busy_threads,
    };
    if threads && card.threaded.is_none() {
        notes.push(format!(
            "{device}: /sys does not show it (does it show another network namespace? 'ip netns exec' mounts a fitting \
             one), so there is no switching to threads; interrupts are bound instead"
        ));
        threads = false;
    }
    if threads && !wishes.as_it_is && card.is_virtual() {
        notes.push(format!(
            "{device} has no interrupts, and what threads could poll only while a capture runs: ask for them with the \
             capture, by --polling {polling}"
        ));
        threads = false;
    }
    match (polling, card.threaded) {
        (Polling::Busy, _) if threads => {
            changes.extend(lanes.iter().map(|lane| Change {
                what: Setting::QueueThread { queue: lane.queue },
                now: None,
                new: "busy-poll".into(),
                reason: "a kernel thread polls the queue all the time, without interrupts".into(),
            }));
        }
        (Polling::Threaded, Some(false)) if threads => changes.push(Change {
            what: Setting::Threaded,
            now: Some("0".into()),
            new: "1".into(),
            reason: "a kernel thread for each queue, which can be placed and is scheduled fairly".into(),
        }),
        (Polling::Interrupt, Some(true)) => changes.push(Change {
            what: Setting::Threaded,
            now: Some("1".into()),
            new: "0".into(),
            reason: "interrupts do the work themselves, without a switch to a thread".into(),
        }),
        _ => {}
    }
    for lane in &lanes {
        let known = card.queues.iter().find(|queue| queue.queue == lane.queue);
        if let Some(queue) = known.filter(|queue| !wishes.as_it_is && !queue.rps_cpus.is_empty()) {
            changes.push(Change {
                what: Setting::Rps { queue: lane.queue },
                now: Some(cpulist::format(&queue.rps_cpus)),
                new: String::new(),
                reason: "it hands packets on to other CPUs before generic XDP and tc see them".into(),
            });
        }
        let Some(core) = lane.core else { continue };
        let new = core.to_string();
        let mut bind = |what: Setting, now: Option<&CpuSet>, reason: String| {
            let now = now.filter(|set| !set.is_empty()).map(cpulist::format);
            if now.as_ref() != Some(&new) {
                changes.push(Change { what, now, new: new.clone(), reason });
            }
        };
        if threads {
            let now = known.filter(|queue| queue.thread.is_some()).map(|queue| &queue.thread_cpus);
            bind(Setting::ThreadAffinity { queue: lane.queue }, now, lane.reason.clone());
        }
        if let Some((irq, cpus)) = known.and_then(|queue| Some((queue.irq?, &queue.irq_cpus))) {
            let reason = match threads {
                true => format!("queue {}: it wakes the thread there", lane.queue),
                false => format!("queue {}: {}", lane.queue, lane.reason),
            };
            bind(Setting::IrqAffinity { irq }, Some(cpus), reason);
        }
    }
    if polling == Polling::Busy && !card.busy_threads && !wishes.as_it_is {
        notes.push(
            "this kernel has no threads that poll all the time (Linux 6.19): interrupts stay masked instead \
             while a program polls"
                .into(),
        );
        for (what, now, new) in [
            (Setting::DeferHardIrqs, card.defer_hard_irqs, 2),
            (Setting::GroFlushTimeout, card.gro_flush_timeout, 200_000),
        ] {
            if let Some(now) = now.filter(|now| *now < new) {
                let reason = "interrupts stay masked between two polls of a busy program".to_owned();
                changes.push(Change { what, now: Some(now.to_string()), new: new.to_string(), reason });
            }
        }
    }
    changes
}
