//! Choice of the engine, with its reason.

use std::sync::Arc;

use wirelane_privsep::broker::Broker;
use wirelane_privsep::{Capability, Error as Privsep, Sandbox};

use crate::backend::Backend;
use crate::egress_devices;
use crate::engine::{packet, xsk};
use crate::error::{Error, Result};
use crate::kernel;
use crate::live::LiveCapture;
use crate::settings::{Engine, Settings, ZeroCopy};
use crate::sockets::SocketCapture;
use wirelane_control::Service;
use wirelane_filter as filter;
use wirelane_netdev::Selected;

/// A feature that not every engine has.
struct Feature {
    option: &'static str,
    /// Whether the settings request the feature.
    asked: fn(&Settings) -> bool,
    engines: &'static [Engine],
    /// Error text where another engine captures.
    refusal: &'static str,
}

const ONLY_RING: &[Engine] = &[Engine::Ring];
const ONLY_XSK: &[Engine] = &[Engine::Xsk];

/// Features that not every engine has, with the engines that have them.
const FEATURES: [Feature; 8] = [
    Feature {
        option: "--zero-copy",
        asked: |settings| settings.zero_copy != ZeroCopy::Never,
        engines: ONLY_XSK,
        refusal: "only --engine xsk has this",
    },
    Feature {
        option: "--busy-poll",
        asked: |settings| settings.busy_poll.is_some(),
        engines: ONLY_XSK,
        refusal: "only --engine xsk has this",
    },
    Feature {
        option: "--mirror-to",
        asked: |settings| !settings.egress_devices.is_empty(),
        engines: ONLY_RING,
        refusal: "only --engine ring sends packets on: the others evaluate rules after packets have passed",
    },
    Feature {
        option: "--device-wide",
        asked: |settings| settings.device_wide,
        engines: ONLY_RING,
        refusal: "only --engine ring keeps packets from others: the others evaluate rules after packets have passed",
    },
    Feature {
        option: "--plugin",
        asked: |settings| !settings.plugins.is_empty(),
        engines: ONLY_RING,
        refusal: "only --engine ring runs plug-ins: they run in the kernel, and the others evaluate rules in the worker",
    },
    Feature {
        option: "--analysis",
        asked: |settings| settings.streams.is_some(),
        engines: ONLY_RING,
        refusal: "only --engine ring measures RTP in the kernel; leave the option out, or use 'user'",
    },
    Feature {
        option: "--cache",
        asked: |settings| settings.flows.is_some(),
        engines: ONLY_RING,
        refusal: "only --engine ring makes flows in the kernel: use --cache user with the others",
    },
    Feature {
        option: "--analysis",
        asked: |settings| settings.http.is_some(),
        engines: ONLY_RING,
        refusal: "only --engine ring looks at HTTP in the kernel: use --analysis user with the others",
    },
];

/// Refuses requested features that this engine does not have.
fn check(settings: &Settings, engine: Engine) -> Result<()> {
    let missing = |feature: &&Feature| (feature.asked)(settings) && !feature.engines.contains(&engine);
    match FEATURES.iter().find(missing) {
        Some(&Feature { option, refusal, .. }) => {
            Err(Error::BadOption { option, reason: refusal.to_owned() })
        }
        None => Ok(()),
    }
}

/// Starts the requested engine, or the best that works; with the socket at which the program answers, if one is
/// requested.
///
/// # Errors
/// The engine's error; that of `ring` where `auto` finds no engine that works.
pub(crate) fn start(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
) -> Result<(Box<dyn Backend>, Option<Service>)> {
    // The best engine is tried first, and the others only where they have all requested features.
    let first = if settings.engine == Engine::Auto { Engine::Ring } else { settings.engine };
    check(settings, first)?;
    egress_devices::look_up(&settings.egress_devices, &selected)?;
    // Report an error in the expression before anything is attached to a device.
    for one in &selected {
        filter::for_device(&settings.filter, one.device.link_type, &one.device.name)?;
    }
    let broker = &crate::broker::for_capture(settings, &selected, confinement.is_some());
    // Before the engine gives up rights.
    let open = |purpose| Service::open(broker, purpose, settings.shared_socket.as_ref());
    let service = settings.service.map(open).transpose()?.flatten();
    let backend: Box<dyn Backend> = match settings.engine {
        Engine::Ring => Box::new(ring(settings, selected, confinement, broker)?),
        Engine::Xsk => Box::new(xsk(settings, selected, confinement, broker)?),
        Engine::Packet => Box::new(packet(settings, selected, confinement, broker, None)?),
        Engine::Auto => match ring(settings, selected.clone(), confinement, broker) {
            Ok(live) => Box::new(live),
            Err(why) if !is_refusal(&why) || check(settings, Engine::Packet).is_err() => return Err(why),
            Err(why) => {
                let reason = format!("engine ring does not work here: {why}");
                let sockets = packet(settings, selected, confinement, broker, Some(reason.clone()));
                // If the other engine fails too, the first error is the helpful one.
                let Ok(capture) = sockets else { return Err(why) };
                tracing::warn!("capturing with engine packet, because {reason}");
                Box::new(capture)
            }
        },
    };
    Ok((backend, service))
}

fn ring(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
    broker: &Arc<Broker>,
) -> Result<LiveCapture> {
    wirelane_privsep::require(&Capability::CAPTURE, "capturing from a device")?;
    broker.prepare()?;
    LiveCapture::open(settings, selected, confinement, broker)
}

fn packet(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
    broker: &Arc<Broker>,
    reason: Option<String>,
) -> Result<SocketCapture> {
    packet::check(settings)?;
    wirelane_privsep::require(&[Capability::NetRaw], "capturing through packet sockets")?;
    broker.prepare()?;
    SocketCapture::start(packet::open(settings, selected)?, reason, settings, confinement, broker)
}

fn xsk(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
    broker: &Arc<Broker>,
) -> Result<SocketCapture> {
    xsk::check(settings, &selected)?;
    wirelane_privsep::require(&Capability::CAPTURE, "capturing through AF_XDP sockets")?;
    broker.prepare()?;
    SocketCapture::start(xsk::open(settings, selected, broker)?, None, settings, confinement, broker)
}

/// Whether the kernel refuses us or lacks a feature, so that another engine is worth trying. False for errors that the
/// user can fix by another option or device.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Privsep(Privsep::MissingCapability { .. } | Privsep::UserNamespace { .. }) => true,
        Error::Bpf { source, .. } => {
            source.kind() == libbpf_rs::ErrorKind::PermissionDenied || kernel::without_types().is_some()
        }
        other => other.kernel_error().is_some_and(|source| {
            matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
        }),
    }
}
