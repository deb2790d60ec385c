//! The broker of a capture: its kinds of tasks and its rights.

use std::path::PathBuf;
use std::sync::Arc;

use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Kind};
use wirelane_privsep::forked::{Access, Rights};

use crate::engine::ring::{clsact, many, map_factory};
use crate::settings::Settings;
use wirelane_netdev::Selected;

static KINDS: [Kind; 6] = [
    clsact::KIND,
    wirelane_tune::polling::KIND,
    wirelane_tune::table::KIND,
    wirelane_control::KIND,
    map_factory::MAPS,
    many::KIND,
];

/// The broker of a capture with these settings, which gives up its rights (`confined`) or keeps them. Starts nothing
/// yet.
pub(crate) fn for_capture(settings: &Settings, selected: &[Selected], confined: bool) -> Arc<Broker> {
    let changes = settings.polling.is_some() || settings.moves_entries();
    let devices = selected.iter().filter(|_| changes).map(|one| one.device.name.clone()).collect();
    let socket = settings.is_managed() || settings.service.is_some();
    let shared = settings.shared_socket.as_ref().and_then(|socket| socket.path.parent()).map(PathBuf::from);
    let maps = confined && (settings.rules.is_some() || settings.flows.is_some());
    with(devices, socket, shared, maps || settings.arrivals().is_some())
}

/// The broker of an operation that does not change device settings.
pub(crate) fn for_filters() -> Arc<Broker> {
    with(Vec::new(), false, None, false)
}

/// `devices`: those whose settings are changed; `socket`: a control socket is opened; `shared`: folder of a further one;
/// `bpf`: maps are created later, or programs attached.
fn with(devices: Vec<String>, socket: bool, shared: Option<PathBuf>, bpf: bool) -> Arc<Broker> {
    Broker::new(&KINDS, !devices.is_empty() || socket || bpf, move || {
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
