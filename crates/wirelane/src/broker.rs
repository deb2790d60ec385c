//! The broker of a capture: its kinds of tasks and its rights.

use std::path::PathBuf;
use std::sync::Arc;

use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Kind};
use wirelane_privsep::forked::{Access, Rights};

use crate::engine::ring::{clsact, many, map_factory};
use crate::hook::Hook;
use crate::settings::{Engine, HookChoice, Settings};
use wirelane_netdev::{Selected, XdpMode};

static KINDS: [Kind; 8] = [
    clsact::KIND,
    wirelane_tune::polling::KIND,
    wirelane_tune::table::KIND,
    wirelane_tune::offloads::KIND,
    wirelane_tune::offloads::HOLD,
    wirelane_control::KIND,
    map_factory::MAPS,
    many::KIND,
];

/// The broker of a capture with these settings, which gives up its rights (`confined`) or keeps them. Starts nothing
/// yet.
pub(crate) fn for_capture(settings: &Settings, selected: &[Selected], confined: bool) -> Arc<Broker> {
    let changes = settings.polling.is_some() || settings.moves_entries();
    let journal = |one: &&Selected| changes || holds_offloads(settings, one);
    let devices = selected.iter().filter(journal).map(|one| one.device.name.clone()).collect();
    let socket = settings.is_managed() || settings.service.is_some();
    let shared = settings.shared_socket.as_ref().and_then(|socket| socket.path.parent()).map(PathBuf::from);
    let maps = confined && (settings.rules.is_some() || settings.flows.is_some());
    let bpf = maps || settings.arrivals().is_some();
    with(devices, socket, shared, bpf, selected.iter().any(|one| changes_offloads(settings, one)))
}

/// The broker of an operation that does not change device settings.
pub(crate) fn for_filters() -> Arc<Broker> {
    with(Vec::new(), false, None, false, false)
}

/// Whether a native program may turn offloads of the device off.
fn changes_offloads(settings: &Settings, selected: &Selected) -> bool {
    let native = |hook: &Option<Hook>| matches!(hook, None | Some(Hook::Xdp(XdpMode::Native)));
    let attached = settings.hooks(selected).is_ok_and(|hooks| hooks.iter().any(native));
    let xsk = settings.engine == Engine::Xsk && settings.hook != HookChoice::Generic;
    (attached || xsk) && !wirelane_tune::offloads::at_odds(&selected.device.name).is_empty()
}

/// Whether a generic program turns offloads of the device off, and the journal can be written.
fn holds_offloads(settings: &Settings, selected: &Selected) -> bool {
    // None of the hooks may be native in the end.
    let generic = |hook: &Option<Hook>| matches!(hook, None | Some(Hook::Xdp(XdpMode::Generic)));
    let attached = settings.hooks(selected).is_ok_and(|hooks| hooks.iter().any(generic));
    let xsk = settings.engine == Engine::Xsk && settings.hook != HookChoice::Native;
    (attached || xsk)
        && wirelane_tune::offloads::concerns(&selected.device)
        && wirelane_privsep::process::run_folder().is_ok()
}

/// `devices`: those whose settings are changed; `socket`: a control socket is opened; `shared`: folder of a further one;
/// `bpf`: maps are created later, or programs attached; `offloads`: some are requested again at the end.
fn with(
    devices: Vec<String>,
    socket: bool,
    shared: Option<PathBuf>,
    bpf: bool,
    offloads: bool,
) -> Arc<Broker> {
    Broker::new(&KINDS, !devices.is_empty() || socket || bpf || offloads, move || {
        let (mut capabilities, mut folders): (_, Vec<(PathBuf, Access)>) = match &devices[..] {
            [] => (vec![Capability::NetAdmin], Vec::new()),
            devices => wirelane_tune::rights::for_settings(devices)?,
        };
        capabilities.extend(bpf.then_some(Capability::Bpf));
        // A missing folder is reported when a socket is opened in it.
        let sockets = socket.then(wirelane_control::folder).and_then(Result::ok);
        folders.extend(sockets.into_iter().chain(shared.clone()).map(|folder| (folder, Access::Remove)));
        Rights::new(&capabilities, &folders)
    })
}
