//! The `packet` engine: AF_PACKET sockets with rings in memory (TPACKET_V3). Needs only CAP_NET_RAW.
//!
//! ```text
//!  mod.rs      a device's sockets: one group (PACKET_FANOUT), a socket per RX queue and worker
//!  classic.rs  the programs that steer and filter, in classic BPF
//!  socket.rs   one socket: its ring, its counters
//!  block.rs    the ring's blocks, and the packets in them
//!  order.rs    merging of sockets by time stamp
//!  source.rs   a worker: all sockets that lead to it
//!  record.rs   records made where packets lie
//! ```
//!
//! TPACKET does not report the RX queue of a packet, but the group's program can read it: so there is a socket per
//! queue (as there is a ring per lane), which identifies the queue. Steering by flow is done by that program too, since
//! the kernel's own hash is neither symmetric nor equal for fragments everywhere.

mod block;
mod classic;
mod order;
mod record;
mod socket;
mod source;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wirelane_bpf::layout::flags;

use self::block::Blocks;
use self::classic::{Demux, Filter};
use self::record::Recipe;
use self::socket::{MOST_SOCKETS, RingShape, Socket};
use self::source::{End, PacketSource};
use crate::active_rules::{Evaluator, NativeRules};
use crate::engine::Source;
use crate::engine::ring::source::Shared;
use crate::engine::sockets::{Account, Opened, Part, SocketLine, Started};
use crate::error::{Error, Result};
use crate::hook::HookPoint;
use crate::rules_startup;
use crate::settings::{Clock, Direction, HookChoice, Settings, Steering};
use crate::tally::DeviceTally;
use wirelane_filter::{InUse, View};
use wirelane_netdev::Selected;

/// Bytes that are captured for the parser even where the snap length is less: headers of ordinary packets.
const FOR_THE_PARSER: usize = 256;
/// Longest packet with a reinserted tag.
const LONGEST: usize = wirelane_bpf::instance::MAX_SNAP;

/// Refuses settings that the engine does not support.
///
/// # Errors
/// [`Error::BadOption`], which names an engine or option that works.
pub(crate) fn check(settings: &Settings) -> Result<()> {
    let cannot = |option, reason: &str| Err(Error::BadOption { option, reason: reason.into() });
    if settings.moves_buckets() {
        return cannot(
            "--balance",
            "engine packet cannot move flows between workers: use --engine ring, or --steering queue, which moves \
             entries of the card's RSS table",
        );
    }
    if settings.congestion_control.is_some() {
        return cannot("--congestion-control", "engine packet cannot refuse flows: use --engine ring");
    }
    if settings.exclusive {
        return cannot("--exclusive", "engine packet gets copies and cannot take packets: use --engine ring");
    }
    if settings.hook != HookChoice::Auto {
        return cannot("--hook", "engine packet has no hooks: leave the option out, or use --engine ring");
    }
    match settings.clock {
        Clock::Packet => {}
        Clock::Batch => {
            return cannot(
                "--clock",
                "engine packet has the kernel's time of each packet: leave the option out",
            );
        }
        Clock::Card => {
            return cannot("--clock", "engine packet does not know the card's time: use --engine ring");
        }
    }
    if settings.share.is_some() {
        return cannot("share", "engine packet has no shares of flows: use engine ring");
    }
    if settings.steering_program.is_some() {
        return cannot("--steering-program", "engine packet cannot run one: use --engine ring");
    }
    if !matches!(settings.steering, Steering::Flow | Steering::Queue) {
        return cannot("--steering", "engine packet steers by flow or queue only: use --engine ring");
    }
    if settings.inner && settings.workers > 1 && settings.steering == Steering::Flow {
        return cannot(
            "--inner",
            "engine packet cannot choose the worker by the headers inside tunnels: use --workers 1, or \
             --engine ring",
        );
    }
    Ok(())
}

/// The sockets of one device, in one direction.
#[derive(Debug)]
struct Sockets {
    egress: bool,
    queues: Vec<u32>,
    /// Sockets, each with its RX queue and its worker.
    sockets: Vec<(u32, usize, Arc<Socket>)>,
    filter: Filter,
    /// The filter expression that workers evaluate.
    wanted: Arc<InUse>,
    /// Set permanently once there was an expression, and where there are rules: then packets are captured whole, since
    /// an expression may read any byte, and rules read headers at large offsets.
    whole: AtomicBool,
    /// Whether sockets have to check the queue themselves: only some of the device's queues are captured.
    by_queue: bool,
}

/// Opens the sockets of a capture.
///
/// # Errors
/// The errors of [`check`], or the error that the kernel returned.
pub(crate) fn open(settings: &Settings, selected: Vec<Selected>) -> Result<Started> {
    check(settings)?;
    let count = settings.workers;
    let seed = crate::engine::seed::machine_seed();
    let room = rules_startup::room(settings)?;
    let mut ends: Vec<Vec<End>> = (0..count).map(|_| Vec::new()).collect();
    let mut parts = Vec::new();
    for selected in selected {
        let directions: &[bool] = match settings.direction_of(&selected)? {
            Direction::Tx => &[true],
            Direction::Both => &[false, true],
            Direction::Rx | Direction::Auto => &[false],
        };
        for &egress in directions {
            let sockets = Sockets::open(settings, &selected, egress)?;
            let rules = room.map(|room| NativeRules::new(&selected.device.name, count, room));
            let lines = sockets.queues.iter().max().map_or(1, |queue| *queue as usize + 1);
            let tallies: Vec<_> = (0..count).map(|_| Arc::new(DeviceTally::new(lines))).collect();
            for (queue, worker, socket) in &sockets.sockets {
                let recipe = Recipe {
                    link: selected.device.link_type,
                    queue: *queue as u16,
                    flags: if egress { flags::EGRESS } else { 0 },
                    inner: settings.inner,
                    snap_len: settings.snap_len,
                    seed,
                };
                let wanted = View::new(Arc::clone(&sockets.wanted));
                let evaluate = rules.as_ref().map(|rules| Evaluator::new(Arc::clone(rules), *worker));
                let blocks = Blocks::new(Arc::clone(socket));
                let device = parts.len() as u16;
                let tally = Arc::clone(&tallies[*worker]);
                ends[*worker].push(End::new(blocks, recipe, device, tally, wanted, evaluate));
            }
            parts.push(Opened { selected: selected.clone(), part: Arc::new(sockets), tallies, rules });
        }
    }
    let sources = ends
        .into_iter()
        .map(|ends| {
            let shared = Arc::new(Shared::default());
            let source = PacketSource::new(ends, Arc::clone(&shared), settings.immediate, settings.in_order);
            (Box::new(source) as Box<dyn Source>, shared)
        })
        .collect();
    Ok(Started { engine: "packet", parts, sources, stamps_utc: true })
}

impl Sockets {
    fn open(settings: &Settings, selected: &Selected, egress: bool) -> Result<Sockets> {
        let device = &selected.device;
        let queues = if egress { vec![0] } else { selected.queues.clone() };
        // With `queue` steering each queue has one worker; some workers may have no queue.
        let by_queue = settings.steering == Steering::Queue;
        let per_queue = if by_queue { 1 } else { settings.workers };
        let mut owners: Vec<(u32, usize)> = Vec::new();
        for &queue in &queues {
            for worker in 0..per_queue {
                let worker = if by_queue { queue as usize % settings.workers } else { worker };
                owners.push((queue, worker));
            }
        }
        let members = owners.len();
        if members > MOST_SOCKETS {
            return Err(Error::BadOption {
                option: "--workers",
                reason: format!("{} RX queues times {per_queue} workers are too many sockets", queues.len()),
            });
        }
        let shape = RingShape::of(settings.bytes_per_ring(members), settings.immediate);
        let mut sockets = Vec::new();
        for &(queue, worker) in &owners {
            sockets.push((queue, worker, Arc::new(Socket::open(&device.name, device.ifindex, shape)?)));
        }
        if let [(_, _, first), others @ ..] = &sockets[..]
            && !others.is_empty()
        {
            let group = first.found_group(members)?;
            for (_, _, socket) in others {
                socket.join_group(group, members)?;
            }
            let demux = Demux { link: device.link_type, egress, queues: &queues, workers: per_queue as u32 };
            first.choose_by(&demux.program())?;
        }
        let bytes = settings.snap_len.clamp(FOR_THE_PARSER, LONGEST) as u32;
        let wanted = wirelane_filter::for_device(&settings.filter, device.link_type, &device.name)?;
        Ok(Sockets {
            whole: AtomicBool::new(wanted.is_some() || settings.rules.is_some()),
            wanted: Arc::new(InUse::new(wanted)),
            egress,
            by_queue: !egress && !selected.is_whole_device(),
            filter: Filter { egress, queue: None, bytes },
            queues,
            sockets,
        })
    }
}

impl Part for Sockets {
    fn hook(&self) -> HookPoint {
        if self.egress { HookPoint::PacketSocketOut } else { HookPoint::PacketSocket }
    }

    fn queues(&self) -> &[u32] {
        &self.queues
    }

    fn zero_copy(&self) -> Option<bool> {
        None
    }

    fn accept(&self) -> Result<()> {
        for (queue, _, socket) in &self.sockets {
            // Relaxed: set and read under the capture's lock.
            let bytes = if self.whole.load(Ordering::Relaxed) { LONGEST as u32 } else { self.filter.bytes };
            let filter = Filter { queue: self.by_queue.then_some(*queue), bytes, ..self.filter };
            socket.filter(&filter.program())?;
        }
        Ok(())
    }

    fn refuse(&self) -> Result<()> {
        self.sockets.iter().try_for_each(|(_, _, socket)| socket.filter(&Filter::nothing()))
    }

    fn set_filter(&self, filter: Option<wirelane_filter::Filter>) -> Result<()> {
        // Packets that are already in the rings were captured up to the snap length.
        if filter.is_some() && !self.whole.swap(true, Ordering::Relaxed) {
            self.accept()?;
        }
        self.wanted.set(filter);
        Ok(())
    }

    fn attached_to(&self) -> Result<Option<u32>> {
        // A socket ends with its device, and when the device leaves the network namespace.
        Ok(None)
    }

    fn known_queues(&self) -> usize {
        // All packets are captured; those of new queues count for queue 0.
        usize::MAX >> 32
    }

    fn account(&self, _closed: bool) -> Result<Account> {
        let mut account = Account::default();
        let mut undescribed = 0;
        for (queue, worker, socket) in &self.sockets {
            let counts = socket.counts()?;
            undescribed += counts.undescribed.min(counts.lost);
            account.lines.push(SocketLine {
                queue: *queue,
                worker: *worker,
                seen: counts.seen,
                filtered: 0,
                lost: counts.lost,
                delivered: counts.seen - counts.lost,
            });
        }
        let lost: u64 = account.lines.iter().map(|line| line.lost).sum();
        account.causes.push(("ring_full", lost - undescribed));
        account.causes.push(("unknown_offload", undescribed));
        Ok(account)
    }
}
