//! Which engine captures, and why.

use std::sync::Arc;

use wirelane_privsep::cleanup::CleanupProcess;
use wirelane_privsep::{Capability, Error as Privsep, Sandbox};

use crate::control::Service;
use crate::device::Selected;
use crate::engine::{packet, xsk};
use crate::exits;
use crate::filter;
use crate::kernel;
use crate::live::LiveCapture;
use crate::settings::{Engine, Settings, ZeroCopy};
use crate::sockets::SocketCapture;
use crate::{Error, Result};

/// What [`start`] has started.
pub(crate) enum Started {
    /// The ring engine.
    Ring(LiveCapture),
    /// An engine of sockets, and why it was taken where that was left to us.
    Sockets(SocketCapture, Option<String>),
}

/// Starts the engine that is asked for, or the best that works; with the socket at which the program answers, where it is
/// to have one.
///
/// # Errors
/// What the engine says; what `ring` says where `auto` finds none that works.
pub(crate) fn start(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
) -> Result<(Started, Option<Service>)> {
    if settings.engine != Engine::Xsk {
        let only_xsk = |option| Err(Error::BadOption { option, reason: "only --engine xsk has this".into() });
        if settings.zero_copy != ZeroCopy::Never {
            return only_xsk("--zero-copy");
        }
        if settings.busy_poll.is_some() {
            return only_xsk("--busy-poll");
        }
    }
    if let (false, Engine::Xsk | Engine::Packet) = (settings.exits.is_empty(), settings.engine) {
        return Err(Error::BadOption {
            option: "--exits",
            reason: "only --engine ring sends packets on: the others judge them when they have passed".into(),
        });
    }
    if let (true, Engine::Xsk | Engine::Packet) = (settings.device_wide, settings.engine) {
        return Err(Error::BadOption {
            option: "--device-wide",
            reason: "only --engine ring keeps packets from others: the rest judge them when they have passed"
                .into(),
        });
    }
    if let (false, Engine::Xsk | Engine::Packet) = (settings.plugins.is_empty(), settings.engine) {
        return Err(Error::BadOption {
            option: "--plugin",
            reason: "only --engine ring asks plug-ins: they run in the kernel, and the others judge packets behind it"
                .into(),
        });
    }
    if let (true, Engine::Xsk | Engine::Packet) = (settings.streams.is_some(), settings.engine) {
        return Err(Error::BadOption {
            option: "--analysis",
            reason: "only --engine ring measures RTP in the kernel; leave the option out, or use 'user'"
                .into(),
        });
    }
    if let (true, Engine::Xsk | Engine::Packet) = (settings.flows.is_some(), settings.engine) {
        return Err(Error::BadOption {
            option: "--cache",
            reason: "only --engine ring makes flows in the kernel: use --cache user with the others".into(),
        });
    }
    if let (true, Engine::Xsk | Engine::Packet) = (settings.http.is_some(), settings.engine) {
        return Err(Error::BadOption {
            option: "--analysis",
            reason: "only --engine ring looks at HTTP in the kernel: use --analysis user with the others"
                .into(),
        });
    }
    exits::look_up(&settings.exits, &selected)?;
    // A mistake in the expression is said before anything is put on a device.
    for one in &selected {
        filter::for_device(&settings.filter, &one.device)?;
    }
    let cleanup = &crate::cleanup::for_capture(settings, &selected);
    // Before rights are given up, which the engine does.
    let service = if settings.service { Service::open(cleanup)? } else { None };
    let started = match settings.engine {
        Engine::Ring => ring(settings, selected, confinement, cleanup).map(Started::Ring),
        Engine::Xsk => {
            xsk(settings, selected, confinement, cleanup).map(|capture| Started::Sockets(capture, None))
        }
        Engine::Packet => {
            packet(settings, selected, confinement, cleanup).map(|capture| Started::Sockets(capture, None))
        }
        Engine::Auto => match ring(settings, selected.clone(), confinement, cleanup) {
            Ok(live) => Ok(Started::Ring(live)),
            Err(why)
                if !is_refusal(&why)
                    || settings.device_wide
                    || settings.flows.is_some()
                    || settings.http.is_some()
                    || settings.streams.is_some()
                    || !settings.exits.is_empty()
                    || !settings.plugins.is_empty() =>
            {
                Err(why)
            }
            Err(why) => {
                // Where the other cannot do it either, what the first one says is what helps.
                let Ok(capture) = packet(settings, selected, confinement, cleanup) else { return Err(why) };
                let reason = format!("engine ring does not work here: {why}");
                tracing::warn!("capturing by engine packet, because {reason}");
                Ok(Started::Sockets(capture, Some(reason)))
            }
        },
    };
    Ok((started?, service))
}

fn ring(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
    cleanup: &Arc<CleanupProcess>,
) -> Result<LiveCapture> {
    wirelane_privsep::require(&Capability::CAPTURE, "capturing from a device")?;
    cleanup.prepare()?;
    LiveCapture::open(settings, selected, confinement, cleanup)
}

fn packet(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
    cleanup: &Arc<CleanupProcess>,
) -> Result<SocketCapture> {
    packet::check(settings)?;
    wirelane_privsep::require(&[Capability::NetRaw], "capturing through packet sockets")?;
    cleanup.prepare()?;
    packet::open(settings, selected, confinement, cleanup)
}

fn xsk(
    settings: &Settings,
    selected: Vec<Selected>,
    confinement: Option<&Sandbox>,
    cleanup: &Arc<CleanupProcess>,
) -> Result<SocketCapture> {
    xsk::check(settings, &selected)?;
    wirelane_privsep::require(&Capability::CAPTURE, "capturing through AF_XDP sockets")?;
    cleanup.prepare()?;
    xsk::open(settings, selected, confinement, cleanup)
}

/// Whether the kernel does not let us, or cannot: what makes another engine worth trying. What the user could put
/// right by another option or another device is not.
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
