//! Assignment of CPUs to queues and workers.
//!
//! The unit is a pair: the CPU that fills a ring and the CPU that empties it, as close to each other as the machine
//! allows, and never the same one unless there is only one. Pairs are taken from the card's NUMA node first, from idle
//! CPUs, and from core 0 last, on which unplaced tasks and interrupts run.

use std::collections::BTreeMap;

use super::plan::{Polling, Wishes, WorkerPlace};
use wirelane_netdev::topology::{BUSY, Card, Closeness, Cpu, CpuSet, Topology};

/// The maximum number of workers of a capture.
const MOST_WORKERS: usize = wirelane_bpf::instance::MAX_WORKERS;

/// A queue and the CPU that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    /// Index of its card.
    pub(super) card: usize,
    pub(super) queue: u32,
    pub(super) core: Option<usize>,
    pub(super) reason: String,
}

/// Placement of all queues and workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) lanes: Vec<Lane>,
    pub(super) workers: Vec<WorkerPlace>,
    /// The reason for the number of lanes.
    pub(super) why_so_many: String,
    pub(super) notes: Vec<String>,
}

/// Places queues and workers.
pub(super) fn place(topology: &Topology, cards: &[Card], wishes: &Wishes) -> Places {
    let mut placer = Placer::new(topology, cards);
    let (counts, why_so_many) = placer.queues(wishes);
    // Round-robin over the cards, so that the first worker of each card is placed before the second of any.
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut lanes: Vec<Lane> = (0..most)
        .flat_map(|nth| (0..cards.len()).map(move |card| (nth, card)))
        .filter(|(nth, card)| nth < &counts[*card])
        .map(|(nth, card)| Lane {
            card,
            queue: cards[card].queues.get(nth).map_or(nth as u32, |queue| queue.queue),
            core: None,
            reason: String::new(),
        })
        .collect();
    let count = wishes.workers.unwrap_or(lanes.len().min(placer.usable.len() / 2)).clamp(1, MOST_WORKERS);
    // Queues that are not moved.
    if wishes.polling.is_none() {
        for lane in &mut lanes {
            let queue = cards[lane.card].queues.iter().find(|queue| queue.queue == lane.queue);
            lane.core = queue.and_then(|queue| queue.served_on());
            if let Some(core) = lane.core {
                lane.reason = "that is where it is served now".into();
                placer.take(core);
            }
        }
    }
    let movable: Vec<bool> = cards.iter().map(|card| can_move(card, wishes)).collect();
    let mut workers: Vec<WorkerPlace> = Vec::new();
    if !wishes.cores.is_empty() {
        // Reading a ring costs about as much as filling it, and each worker reads its share of the queues.
        let share = lanes.len().div_ceil(count).max(1);
        for worker in 0..count {
            let core = wishes.cores[worker % wishes.cores.len()];
            (0..share).for_each(|_| placer.give(core));
            workers.push(WorkerPlace { worker, core, reason: "as asked for".into() });
        }
        for (index, lane) in
            lanes.iter_mut().enumerate().filter(|(_, lane)| lane.core.is_none() && movable[lane.card])
        {
            let feeds = &workers[index % workers.len()];
            (lane.core, lane.reason) = placer.server_near(lane.card, feeds);
        }
    }
    for worker in workers.len()..count {
        let lane = (!lanes.is_empty()).then(|| worker % lanes.len());
        if let Some(lane) = lane.filter(|_| worker < lanes.len()).map(|lane| &mut lanes[lane])
            && lane.core.is_none()
            && movable[lane.card]
            && let Some((serves, works, reason)) =
                placer.pair(lane.card).or_else(|| placer.crossed_pair(lane.card))
        {
            lane.core = Some(serves);
            lane.reason = reason;
            workers.push(WorkerPlace {
                worker,
                core: works,
                reason: placer.beside(works, serves, lane.queue, &cards[lane.card].device),
            });
            continue;
        }
        workers.push(placer.worker(worker, lane.map(|lane| &lanes[lane])));
    }
    for lane in lanes.iter_mut().filter(|lane| lane.core.is_none()) {
        if movable[lane.card] {
            (lane.core, lane.reason) = placer.server(lane.card);
        } else {
            lane.reason =
                "wherever its packets come from: it has no interrupt and no thread to be bound".into();
        }
    }
    let mut notes = placer.notes;
    notes.extend(crowded(count, topology.cpus.iter().filter(|cpu| cpu.allowed).count()));
    Places { lanes, workers, why_so_many, notes }
}

/// A note for more workers than CPUs, which works but gains nothing.
pub fn crowded(workers: usize, cpus: usize) -> Option<String> {
    (workers > cpus).then(|| format!("there are more workers ({workers}) than CPUs ({cpus}): some share one"))
}

/// Whether the CPUs that serve a card's queues can be chosen: by its interrupts, or by threads.
fn can_move(card: &Card, wishes: &Wishes) -> bool {
    let Some(polling) = wishes.polling else { return false };
    // A capture creates the NAPI instances that threads need.
    !card.is_virtual() || polling != Polling::Interrupt && wishes.as_it_is
}

/// State of the placement: the usable CPUs, and the load given to each.
struct Placer<'a> {
    topology: &'a Topology,
    cards: &'a [Card],
    usable: Vec<&'a Cpu>,
    /// Load per CPU: the number of its queues and workers, or of its queues and of those that its workers read.
    given: BTreeMap<usize, usize>,
    /// CPUs that serve queues.
    serving: CpuSet,
    notes: Vec<String>,
}

impl<'a> Placer<'a> {
    fn new(topology: &'a Topology, cards: &'a [Card]) -> Placer<'a> {
        let usable = topology.cpus.iter().filter(|cpu| cpu.allowed).collect();
        let (given, serving) = (BTreeMap::new(), CpuSet::new());
        Placer { topology, cards, usable, given, serving, notes: Vec::new() }
    }

    /// The number of queues of each card, and the reason.
    fn queues(&self, wishes: &Wishes) -> (Vec<usize>, String) {
        if wishes.as_it_is {
            let counts = self.cards.iter().map(|card| card.queues.len()).collect();
            return (counts, "they stay as they are".into());
        }
        let counts = (0..self.cards.len())
            .map(|card| {
                let card_of = &self.cards[card];
                // A virtual device's peer determines its queues, and fewer of them gain nothing.
                if card_of.is_virtual() {
                    return card_of.queues.len().max(1);
                }
                let most = card_of.most_queues().max(1) as usize;
                let room = match wishes.workers {
                    Some(workers) => {
                        // A queue that shares its CPU gains nothing.
                        let left = self.usable.len().saturating_sub(workers).max(1);
                        workers.min(left).div_ceil(self.cards.len())
                    }
                    None => self.comfortable_pairs(card) / self.cards_beside(card),
                };
                room.clamp(1, most.min(MOST_WORKERS))
            })
            .collect();
        let why = match wishes.workers {
            Some(workers) => {
                format!("for {workers} workers: each reads a queue of its own, where there are enough")
            }
            None => {
                "as many as the card's node has pairs of CPUs, to serve a queue and to read it".to_owned()
            }
        };
        (counts, why)
    }

    /// Number of idle pairs on the card's node, without core 0 if other pairs are left.
    fn comfortable_pairs(&self, card: usize) -> usize {
        let idle = |cpu: &&&Cpu| self.rank(cpu, card).0 == (false, false, 0);
        let near = self.usable.iter().filter(idle).count();
        let spared = self.usable.iter().filter(idle).filter(|cpu| !self.is_zero(cpu)).count();
        if spared >= 2 { spared / 2 } else { near / 2 }.max(1)
    }

    fn cards_beside(&self, card: usize) -> usize {
        self.cards.iter().filter(|other| other.node == self.cards[card].node).count().max(1)
    }

    /// Whether the CPU belongs to the first core: unplaced interrupts and tasks run there.
    fn is_zero(&self, cpu: &Cpu) -> bool {
        cpu.siblings.contains(&0)
    }

    /// The cost of a CPU for a card, lower is better: first other users of the CPU, then the distance to the card's
    /// memory.
    fn rank(&self, cpu: &Cpu, card: usize) -> ((bool, bool, u32), bool, usize) {
        let node = self.cards.get(card).and_then(|card| card.node);
        let busy = cpu.busy.is_some_and(|busy| busy > BUSY);
        let far = self.topology.distance(cpu, node);
        ((cpu.isolated || cpu.nohz_full, busy, far), self.is_zero(cpu), cpu.cpu)
    }

    fn free(&self) -> impl Iterator<Item = &'a Cpu> {
        self.usable.iter().copied().filter(|cpu| !self.given.contains_key(&cpu.cpu))
    }

    fn give(&mut self, cpu: usize) {
        *self.given.entry(cpu).or_default() += 1;
    }

    /// Assigns a CPU to a queue.
    fn take(&mut self, cpu: usize) {
        self.serving.insert(cpu);
        self.give(cpu);
    }

    /// Two free CPUs for a queue and its worker: the serving one, the working one, and the reason for the first.
    fn pair(&mut self, card: usize) -> Option<(usize, usize, String)> {
        let free: Vec<_> = self.free().map(|cpu| (cpu, self.rank(cpu, card))).collect();
        let mut best = None;
        for (at, (one, a)) in free.iter().enumerate() {
            for (other, b) in &free[at + 1..] {
                let close = self.topology.closeness(one.cpu, other.cpu);
                // The worse of the two decides; closeness breaks ties.
                let cost = (a.0.max(b.0), a.0.min(b.0), close, a.1 || b.1, one.cpu, other.cpu);
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, (one.cpu, other.cpu)));
                }
            }
        }
        let (serves, works) = best?.1;
        self.take(serves);
        self.give(works);
        Some((serves, works, self.why(serves, card)))
    }

    /// A pair if no CPU is free: each CPU serves one queue and reads another one before any serves two, so that both
    /// kinds of work are spread. A queue's worker is still on another CPU than the queue.
    fn crossed_pair(&mut self, card: usize) -> Option<(usize, usize, String)> {
        if self.free().next().is_some() {
            return None;
        }
        let load = |cpu: usize| self.given.get(&cpu).copied().unwrap_or(0);
        let serves = self
            .usable
            .iter()
            .min_by_key(|cpu| (load(cpu.cpu), self.serving.contains(&cpu.cpu), self.rank(cpu, card)))?
            .cpu;
        let works = self
            .usable
            .iter()
            .filter(|cpu| cpu.cpu != serves)
            .min_by_key(|cpu| {
                (load(cpu.cpu), self.topology.closeness(serves, cpu.cpu), self.rank(cpu, card))
            })?
            .cpu;
        self.take(serves);
        self.give(works);
        Some((serves, works, "shared: every CPU has something to do already".into()))
    }

    /// A CPU for a worker that reads this queue before others.
    fn worker(&mut self, worker: usize, lane: Option<&Lane>) -> WorkerPlace {
        let card = lane.map_or(0, |lane| lane.card);
        let near = lane.and_then(|lane| lane.core);
        let close = |cpu: &Cpu| near.map_or(Closeness::Same, |near| self.topology.closeness(near, cpu.cpu));
        // A worker without a queue to be close to gets a core without other users before it shares one.
        let crowded =
            |cpu: &Cpu| near.is_none() && cpu.siblings.iter().any(|one| self.given.contains_key(one));
        let cost = |cpu: &Cpu| {
            // Closeness to the queue's CPU outweighs closeness to the card: the ring is in that CPU's caches.
            let ((taken, busy, far), zero, number) = self.rank(cpu, card);
            (taken, busy, close(cpu), far, crowded(cpu), zero, number)
        };
        let free = self.free().min_by_key(|cpu| cost(cpu)).map(|cpu| cpu.cpu);
        // No CPU is free: share with other workers rather than with a queue, and with few rather than with many.
        let shared = |cpu: &&&Cpu| {
            let load = self.given.get(&cpu.cpu).copied().unwrap_or(0);
            (Some(cpu.cpu) == near, self.serving.contains(&cpu.cpu), load, cost(cpu))
        };
        let core = free.or_else(|| self.usable.iter().min_by_key(shared).map(|cpu| cpu.cpu)).unwrap_or(0);
        let reason = match (lane.zip(near), free.is_some()) {
            _ if self.usable.len() == 1 => "there is only one CPU".to_owned(),
            (Some((lane, near)), true) => self.beside(core, near, lane.queue, &self.cards[card].device),
            (None, true) => self.why(core, card),
            (_, false) if self.serving.contains(&core) => {
                "shared with a queue: every CPU has something to do already".to_owned()
            }
            (_, false) => "shared with another worker: every CPU has something to do already".to_owned(),
        };
        self.give(core);
        WorkerPlace { worker, core, reason }
    }

    /// A CPU for a queue: the one with the least to do, and of these the closest to the worker that the queue feeds. The
    /// worker's own CPU is taken only if there is no other.
    fn server_near(&mut self, card: usize, feeds: &WorkerPlace) -> (Option<usize>, String) {
        let load = |cpu: usize| self.given.get(&cpu).copied().unwrap_or(0);
        let cost = |cpu: &&&Cpu| {
            let ((taken, busy, far), zero, number) = self.rank(cpu, card);
            let close = self.topology.closeness(cpu.cpu, feeds.core);
            (cpu.cpu == feeds.core, load(cpu.cpu), taken, busy, close, far, zero, number)
        };
        let Some(cpu) = self.usable.iter().min_by_key(cost).map(|cpu| cpu.cpu) else {
            return (None, "no CPU is allowed".into());
        };
        let shared = if load(cpu) > 0 { "shared, as every CPU has something to do: " } else { "" };
        self.take(cpu);
        let close = self.topology.closeness(cpu, feeds.core);
        (Some(cpu), format!("{shared}beside CPU {} of worker {}: {close}", feeds.core, feeds.worker))
    }

    /// A CPU for a queue without a dedicated worker.
    fn server(&mut self, card: usize) -> (Option<usize>, String) {
        if let Some(cpu) = self.free().min_by_key(|cpu| self.rank(cpu, card)).map(|cpu| cpu.cpu) {
            self.take(cpu);
            return (Some(cpu), self.why(cpu, card));
        }
        let load = |cpu: &&&Cpu| {
            let count = self.given.get(&cpu.cpu).copied().unwrap_or(0);
            (!self.serving.contains(&cpu.cpu), count, self.rank(cpu, card))
        };
        let Some(cpu) = self.usable.iter().min_by_key(load).map(|cpu| cpu.cpu) else {
            return (None, "no CPU is allowed".into());
        };
        self.take(cpu);
        let reason = match self.usable.len() {
            1 => "there is only one CPU",
            _ => "shared: every CPU has something to do already",
        };
        (Some(cpu), reason.into())
    }

    /// The reason for a CPU, in relation to a card.
    fn why(&self, cpu: usize, card: usize) -> String {
        let Some(cpu) = self.topology.cpu(cpu) else { return String::new() };
        let mut parts = Vec::new();
        match (cpu.node, self.cards.get(card).and_then(|card| card.node)) {
            (Some(own), Some(of)) if own == of => parts.push(format!("on NUMA node {of}, as the card is")),
            (Some(own), Some(of)) => parts.push(format!("NUMA node {of} of the card is full: on node {own}")),
            _ => {}
        }
        match cpu.busy {
            Some(busy) if busy > BUSY => {
                parts.push(format!("{:.0} % busy, but no idle one is left", busy * 100.0))
            }
            Some(busy) => parts.push(format!("{:.0} % busy", busy * 100.0)),
            None => {}
        }
        if self.is_zero(cpu) {
            parts.push("core 0, since no other is left".into());
        }
        if parts.is_empty() { "free".to_owned() } else { parts.join(", ") }
    }

    /// The reason for a worker's CPU, in relation to a queue.
    fn beside(&self, core: usize, near: usize, queue: u32, device: &str) -> String {
        let close = self.topology.closeness(core, near);
        match close {
            Closeness::Same => format!("the only CPU, with {device}@{queue}"),
            _ => format!("beside CPU {near}, which serves {device}@{queue}: {close}"),
        }
    }
}
