//! The `xsk` engine: AF_XDP sockets, one per RX queue (Documentation/networking/af_xdp.rst).
//!
//! ```text
//!  mod.rs      a device's sockets over one memory, and the program that feeds them
//!  program.rs  the XDP program: attached by a link, told what to do, its counters
//!  source.rs   a worker: the sockets of its queues; records made where packets lie
//! ```
//!
//! The sockets, their rings and their memory are the crate `wirelane-afxdp`.
//!
//! A packet that a socket receives never reaches the host stack. A socket receives the packets of one queue only, and
//! has one reader, so steering is by queue and there are no more workers than queues.

mod program;
mod source;

use std::sync::Arc;

use wirelane_afxdp::{FRAME, Mode, Purpose, Umem, XskSocket};

use self::program::{Config, MOST_QUEUES, Program};
use self::source::{End, Lane, Recipe, XskSource};
use crate::active_rules::{Evaluator, NativeRules};
use crate::engine::Source;
use crate::engine::ring::source::Shared;
use crate::engine::seed::machine_seed;
use crate::engine::sockets::{Account, Opened, Part, SocketLine, Started};
use crate::error::{Error, Result};
use crate::hook::HookPoint;
use crate::rules_startup;
use crate::settings::{Clock, Direction, HookChoice, Settings, Steering, ZeroCopy};
use crate::tally::DeviceTally;
use wirelane_filter::{self as filter, Filter};
use wirelane_netdev::{Device, Selected};
use wirelane_privsep::broker::Broker;

/// Refuses settings that the engine does not support.
///
/// # Errors
/// [`Error::BadOption`], which names an engine or option that works.
pub(crate) fn check(settings: &Settings, selected: &[Selected]) -> Result<()> {
    let cannot = |option, reason: &str| Err(Error::BadOption { option, reason: reason.into() });
    if settings.moves_buckets() {
        return cannot(
            "--balance",
            "engine xsk cannot move flows between workers: use --engine ring, or --steering queue, which moves \
             entries of the card's RSS table",
        );
    }
    if settings.congestion_control.is_some() {
        return cannot("--congestion-control", "engine xsk cannot refuse flows: use --engine ring");
    }
    if !settings.exclusive {
        return cannot(
            "--engine",
            "xsk takes the device's packets from the host's network stack (a login over it would hang): add --exclusive to \
             agree, or use --engine ring",
        );
    }
    if !matches!(settings.direction, Direction::Auto | Direction::Rx) {
        return cannot("--direction", "engine xsk gets received packets only: use --engine ring");
    }
    if matches!(settings.hook, HookChoice::Tc | HookChoice::Clsact) {
        return cannot("--hook", "engine xsk takes packets at XDP: native, generic or auto");
    }
    if settings.clock == Clock::Card {
        return cannot("--clock", "engine xsk does not ask the card for its time: use --engine ring");
    }
    if settings.share.is_some() {
        return cannot("share", "engine xsk has no shares of flows: use engine ring");
    }
    if settings.steering_program.is_some() {
        return cannot("--steering-program", "engine xsk cannot run one: use --engine ring");
    }
    if settings.steering != Steering::Queue && settings.workers > 1 {
        return cannot(
            "--steering",
            "engine xsk steers by RX queue only: add --steering queue, or use --engine ring",
        );
    }
    // Two packets' programs on one CPU would share the scratch memory of the filter.
    if !settings.filter.is_empty() && crate::kernel::is_realtime() {
        return Err(Error::Unsupported {
            what: "a filter under engine xsk".into(),
            needs: "a kernel without PREEMPT_RT (/sys/kernel/realtime says 1 here)".into(),
            instead: "--engine ring --hook native filters here".into(),
        });
    }
    for selected in selected {
        let Selected { device, queues, .. } = selected;
        if settings.workers > queues.len() {
            let reason = format!(
                "{} are more than the {} RX queue(s) of {}, each of which has one reader under engine xsk",
                settings.workers,
                queues.len(),
                device.name
            );
            return Err(Error::BadOption { option: "--workers", reason });
        }
        if let Some(queue) = queues.iter().find(|queue| **queue >= MOST_QUEUES) {
            let reason = format!("engine xsk serves RX queues 0 to {}, not {queue}", MOST_QUEUES - 1);
            return Err(Error::BadOption { option: "-i", reason });
        }
    }
    Ok(())
}

/// The sockets of one device, and their program.
#[derive(Debug)]
struct Sockets {
    // First, so that packets go to the host stack again before sockets end.
    program: Program,
    queues: Vec<u32>,
    workers: Vec<usize>,
    lanes: Vec<Arc<Lane>>,
    zero_copy: bool,
}

/// Opens the sockets of a capture.
///
/// # Errors
/// The errors of [`check`], or the error that the kernel returned.
pub(crate) fn open(settings: &Settings, selected: Vec<Selected>, broker: &Arc<Broker>) -> Result<Started> {
    check(settings, &selected)?;
    let count = settings.workers;
    let seed = machine_seed();
    let room = rules_startup::room(settings)?;
    let mut ends: Vec<Vec<End>> = (0..count).map(|_| Vec::new()).collect();
    let mut parts = Vec::new();
    for selected in selected {
        let sockets = Sockets::open(settings, &selected, broker)?;
        let rules = room.map(|room| NativeRules::new(&selected.device.name, count, room));
        let lines = sockets.queues.iter().max().map_or(1, |queue| *queue as usize + 1);
        let tallies: Vec<_> = (0..count).map(|_| Arc::new(DeviceTally::new(lines))).collect();
        for ((queue, worker), lane) in sockets.queues.iter().zip(&sockets.workers).zip(&sockets.lanes) {
            ends[*worker].push(End {
                lane: Arc::clone(lane),
                recipe: Recipe {
                    link: selected.device.link_type,
                    queue: *queue as u16,
                    inner: settings.inner,
                    snap_len: settings.snap_len,
                    seed,
                },
                device: parts.len() as u16,
                tally: Arc::clone(&tallies[*worker]),
                evaluate: rules.as_ref().map(|rules| Evaluator::new(Arc::clone(rules), *worker)),
            });
        }
        parts.push(Opened { selected, part: Arc::new(sockets), tallies, rules });
    }
    let sources = ends
        .into_iter()
        .map(|ends| {
            let shared = Arc::new(Shared::default());
            let source =
                XskSource::new(ends, Arc::clone(&shared), settings.busy_poll.is_some(), settings.immediate);
            (Box::new(source) as Box<dyn Source>, shared)
        })
        .collect();
    Ok(Started { engine: "xsk", parts, sources, stamps_utc: false })
}

impl Sockets {
    fn open(settings: &Settings, selected: &Selected, broker: &Arc<Broker>) -> Result<Sockets> {
        let Selected { device, queues, .. } = selected;
        let mut refused = None;
        for mode in Mode::to_try(settings.zero_copy) {
            match Sockets::open_in(settings, device, queues, mode, broker) {
                Err(e) if is_no(&e) => refused = refused.or(Some(e)),
                result => return result,
            }
        }
        let refused =
            refused.unwrap_or_else(|| Error::kernel("binding", std::io::ErrorKind::Unsupported.into()));
        if settings.zero_copy == ZeroCopy::Require {
            return Err(Error::Unsupported {
                what: format!("zero copy on {}", device.name),
                needs: format!("a driver that can ({refused})"),
                instead: "--zero-copy auto takes it where it is, and the kernel copies without it".into(),
            });
        }
        Err(refused)
    }

    fn open_in(
        settings: &Settings,
        device: &Device,
        queues: &[u32],
        mode: Mode,
        broker: &Arc<Broker>,
    ) -> Result<Sockets> {
        let config = Config { multi_buffer: mode.multi_buffer, stamp: settings.clock == Clock::Packet };
        let filter = filter::for_device(&settings.filter, device.link_type, &device.name)?;
        let program = Program::attach(device, settings.hook, config, broker)?;
        if filter.is_some() {
            program.set_filter(filter.as_ref())?;
        }
        // One ring of frames can wait for the worker, and the driver has as many to receive into.
        let bytes = settings.bytes_per_ring(queues.len()).max(64 * FRAME);
        let rx = (bytes / FRAME).next_power_of_two() as u32;
        let frames = 2 * rx;
        let umem = Arc::new(Umem::new(frames as usize * queues.len())?);
        let mut lanes: Vec<Arc<Lane>> = Vec::new();
        for (at, &queue) in queues.iter().enumerate() {
            let purpose = Purpose {
                device: &device.name,
                ifindex: device.ifindex,
                queue,
                rx,
                tx: 0,
                frames,
                shares: lanes.first().map(|lane| &lane.socket),
            };
            let socket = XskSocket::open(purpose, &umem, mode)?;
            for frame in 0..frames {
                let number = at as u64 * u64::from(frames) + u64::from(frame);
                socket.fill.write(frame, number * FRAME as u64);
            }
            socket.fill.submit(frames);
            // With zero copy, a driver that found no frame when the socket was bound looks again when it is woken: wake
            // it now, and not only when the worker first waits, or the card drops packets until then.
            if socket.fill.needs_wakeup() {
                socket.kick_rx();
            }
            if let Some(microseconds) = settings.busy_poll {
                socket.poll_busily(microseconds)?;
            }
            program.serve(queue, &socket)?;
            lanes.push(Arc::new(Lane::new(socket)));
        }
        let zero_copy = match lanes.first() {
            Some(lane) => lane.socket.is_zero_copy()?,
            None => false,
        };
        Ok(Sockets {
            program,
            queues: queues.to_vec(),
            // The same as the queue steering of the ring engine, so that a queue's worker does not depend on the
            // engine.
            workers: queues.iter().map(|queue| *queue as usize % settings.workers).collect(),
            lanes,
            zero_copy,
        })
    }
}

impl Part for Sockets {
    fn hook(&self) -> HookPoint {
        if self.program.native { HookPoint::XdpSocket } else { HookPoint::GenericXdpSocket }
    }

    fn queues(&self) -> &[u32] {
        &self.queues
    }

    fn zero_copy(&self) -> Option<bool> {
        Some(self.zero_copy)
    }

    fn accept(&self) -> Result<()> {
        self.program.set_active(true)
    }

    fn refuse(&self) -> Result<()> {
        self.program.set_active(false)
    }

    fn set_filter(&self, filter: Option<Filter>) -> Result<()> {
        self.program.set_filter(filter.as_ref())
    }

    fn attached_to(&self) -> Result<Option<u32>> {
        // A socket ends when its device leaves the network namespace, though the program moves with it.
        Ok(Some(self.program.device()?).filter(|index| *index == 0))
    }

    fn known_queues(&self) -> usize {
        self.queues.len()
    }

    fn account(&self, closed: bool) -> Result<Account> {
        let mut account = Account::default();
        let (mut ring_full, mut no_buffer, mut too_long, mut no_socket) = (0, 0, 0, 0);
        for ((&queue, &worker), lane) in self.queues.iter().zip(&self.workers).zip(&self.lanes) {
            let statistics = lane.socket.statistics()?;
            let delivered = lane.delivered();
            let tally = self.program.tally(queue)?;
            let lost = statistics.rx_ring_full + statistics.rx_dropped + tally.too_long + tally.no_socket;
            ring_full += statistics.rx_ring_full;
            no_buffer += statistics.rx_dropped;
            too_long += tally.too_long;
            no_socket += tally.no_socket;
            // While packets flow, some are between the program and the ring.
            let seen = if closed { tally.seen } else { delivered + lost };
            account.lines.push(SocketLine { queue, worker, seen, filtered: tally.filtered, lost, delivered });
        }
        account.causes.extend([
            ("ring_full", ring_full),
            ("no_buffer", no_buffer),
            ("too_long", too_long),
            ("no_socket", no_socket),
        ]);
        Ok(account)
    }
}

/// Whether the error means that a driver or its version does not support the request.
fn is_no(error: &Error) -> bool {
    let number = error.kernel_error().and_then(std::io::Error::raw_os_error);
    matches!(number, Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT))
}
