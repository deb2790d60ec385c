//! A capture program for devices that come up during a capture and match one of its patterns.
//!
//! ```text
//!   the capture, without rights              broker, with CAP_NET_ADMIN and CAP_BPF
//!     attach to device 17, egress  -------->    checks the name of device 17 against the patterns
//!     keeps the link               <--------    attaches the program that was registered, the link
//! ```
//! At the start the programs are loaded and their groups join, but no device has them. A program tells its devices
//! apart by their index, which leads to a slot (`wl_slots` in bpf/maps.h), and the slot takes the place of the RX queue
//! in everything that is counted. Other processes neither find nor join such an instance: its programs have names of
//! their own.
//!
//! An attacker who takes over the capture can have the program attached to any device that matches a pattern, as the
//! user asked.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use serde::{Deserialize, Serialize};
use wirelane_netdev::netlink::Client;
use wirelane_netdev::{Device, Link, Pattern, Selector};
use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Channel, Kind, Registration, Reply, Task};

use super::attach;
use super::instance::Instance;
use crate::error::{Error, Result};
use crate::hook::Hook;

/// Slots of an instance: one for each device, and slot 0 for all further ones.
pub(crate) const SLOTS: usize = 128;
/// Maximum time to wait for the broker.
const LIMIT: Duration = Duration::from_secs(5);

/// The links of an instance to its devices.
#[derive(Debug)]
pub(crate) struct Many {
    slots: MapHandle,
    state: Mutex<Links>,
}

#[derive(Debug)]
struct Links {
    /// The program for the next device.
    program: OwnedFd,
    /// By index of the device.
    links: Vec<(u32, OwnedFd)>,
}

impl Many {
    /// No links yet. `slots`: the map that the program reads.
    pub(super) fn new(program: BorrowedFd<'_>, slots: MapHandle) -> Result<Many> {
        let program = hold(program)?;
        Ok(Many { slots, state: Mutex::new(Links { program, links: Vec::new() }) })
    }

    fn lock(&self) -> MutexGuard<'_, Links> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program for the next device.
    pub(super) fn program(&self) -> Result<OwnedFd> {
        hold(self.lock().program.as_fd())
    }

    /// Replaces the program on all devices.
    pub(super) fn replace(&self, old: &OwnedFd, new: BorrowedFd<'_>, device: &Device) -> Result<()> {
        let mut state = self.lock();
        // A link whose device has gone stays until the maintenance thread learns of it.
        let is_attached = |link: &OwnedFd| attach::device_of(link).is_ok_and(|ifindex| ifindex != 0);
        for (_, link) in state.links.iter().filter(|(_, link)| is_attached(link)) {
            attach::replace(link, old, new, device)?;
        }
        state.program = hold(new)?;
        Ok(())
    }

    /// Gives a device its slot, before the program is attached to it.
    fn describe(&self, ifindex: u32, slot: usize) -> Result<()> {
        let (key, value) = (ifindex.to_ne_bytes(), (slot as u32).to_ne_bytes());
        self.slots.update(&key, &value, MapFlags::ANY).map_err(|e| Error::bpf("numbering a new device", e))
    }

    /// Keeps the link to a device, to which `registered` is attached.
    fn keep(&self, ifindex: u32, link: OwnedFd, registered: &OwnedFd, device: &Device) -> Result<()> {
        let mut state = self.lock();
        let [old, new] = [registered, &state.program].map(|program| attach::program_id(program.as_fd()));
        if old? != new? {
            attach::replace(&link, registered, state.program.as_fd(), device)?;
        }
        state.links.push((ifindex, link));
        Ok(())
    }

    /// Detaches the program from a device that has left the network namespace; false if it was not attached.
    fn forget(&self, ifindex: u32) -> bool {
        let removed = self.lock().links.extract_if(.., |(known, _)| *known == ifindex).count();
        // The entry is missing if the program was never attached.
        let _ = self.slots.delete(&ifindex.to_ne_bytes());
        removed > 0
    }
}

fn hold(program: BorrowedFd<'_>) -> Result<OwnedFd> {
    program.try_clone_to_owned().map_err(|e| Error::kernel("holding a program", e))
}

/// The instances of a capture for new devices, and the right to attach them.
#[derive(Debug)]
pub(crate) struct Attacher {
    /// The program that was registered, and where it is now.
    places: Vec<(Hook, OwnedFd, Arc<Instance>)>,
    _registration: Registration,
    /// `None`: the broker has ended, or did not answer in time.
    channel: Option<Channel>,
    next_slot: usize,
    /// Whether received packets of a loopback device suffice, as all its packets are.
    one_way_loopback: bool,
}

impl Attacher {
    /// Registers the programs of these instances with the broker.
    ///
    /// # Errors
    /// As [`Broker::register`].
    pub(crate) fn register(
        instances: Vec<Arc<Instance>>,
        patterns: &[Selector],
        one_way_loopback: bool,
        broker: &Arc<Broker>,
    ) -> Result<Attacher> {
        let places = instances
            .into_iter()
            .map(|instance| Ok((instance.hook, instance.program()?, instance)))
            .collect::<Result<Vec<_>>>()?;
        let recipe = Recipe {
            patterns: patterns.iter().map(Selector::to_string).collect(),
            egress: places.iter().map(|(hook, ..)| *hook == Hook::Egress).collect(),
        };
        let programs: Vec<_> = places.iter().map(|(_, program, _)| program.as_fd()).collect();
        let (_registration, channel) = broker.register_service(&KIND, &recipe, &programs, LIMIT)?;
        Ok(Attacher { places, _registration, channel: Some(channel), next_slot: 1, one_way_loopback })
    }

    /// Whether the next device gets a slot of its own.
    pub(crate) fn has_slot(&self) -> bool {
        self.next_slot < SLOTS
    }

    /// Attaches the programs to a device, on ingress only where it is a loopback device and the direction was not chosen.
    /// The next slot is its own, even if an error is returned.
    ///
    /// # Errors
    /// The error that the kernel returned; [`io::ErrorKind::UnexpectedEof`] where the broker has ended.
    pub(crate) fn attach(&mut self, name: &str, ifindex: u32, loopback: bool) -> Result<()> {
        let slot = if self.has_slot() { self.next_slot } else { 0 };
        self.next_slot += usize::from(slot != 0);
        let device = Device::of_pattern(name);
        for (hook, program, instance) in &self.places {
            let egress = *hook == Hook::Egress;
            let Some(many) = instance.many().filter(|_| !(egress && loopback && self.one_way_loopback))
            else {
                continue;
            };
            if slot != 0 {
                many.describe(ifindex, slot)?;
            }
            let link = ask(&mut self.channel, &Request { ifindex, egress });
            let doing = || format!("attaching the capture program to {name} at {hook}");
            let link = link.map_err(|source| Error::kernel(doing(), source))?;
            many.keep(ifindex, link, program, &device)?;
        }
        Ok(())
    }

    /// Detaches the programs from a device; false if none was attached.
    pub(crate) fn detach(&self, ifindex: u32) -> bool {
        let all = self.places.iter().filter_map(|(.., instance)| instance.many());
        all.filter(|many| many.forget(ifindex)).count() > 0
    }
}

fn ask(channel: &mut Option<Channel>, request: &Request) -> io::Result<OwnedFd> {
    let asked = channel.as_ref().map(|channel| channel.send(request).and_then(|()| channel.receive()));
    match asked {
        Some(Ok((0, Some(link)))) => Ok(link),
        Some(Ok((errno @ 1.., None))) => Err(io::Error::from_raw_os_error(errno)),
        // A late answer would be taken for the answer to the next request.
        _ => {
            *channel = None;
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the process with the right to it has ended"))
        }
    }
}

/// The registered programs, whose descriptors come in the order of `egress`.
#[derive(Debug, Serialize, Deserialize)]
struct Recipe {
    patterns: Vec<String>,
    egress: Vec<bool>,
}

/// A device to attach a program to.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    ifindex: u32,
    egress: bool,
}

/// Attaching a registered program to devices that match a pattern, as a task of a broker.
pub(crate) const KIND: Kind = Kind {
    name: "new devices",
    capabilities: &[Capability::NetAdmin, Capability::Bpf],
    prepare: Kind::nothing,
    read: |task, descriptors| {
        let recipe: Recipe = serde_json::from_slice(task).ok()?;
        let pattern = |text: &String| {
            let selectors = Selector::parse_list_with(text, |_| false).ok()?;
            selectors.iter().map(|selector| Pattern::new(selector).ok()).collect::<Option<Vec<_>>>()
        };
        let patterns = recipe.patterns.iter().map(pattern).collect::<Option<Vec<_>>>()?.concat();
        let same = recipe.egress.len() == descriptors.len();
        let programs = recipe.egress.into_iter().zip(descriptors).collect();
        same.then(|| Box::new(Service { patterns, programs }) as Box<dyn Task>)
    },
};

/// The broker's side.
struct Service {
    patterns: Vec<Pattern>,
    /// Whether it is for transmitted packets, and the program.
    programs: Vec<(bool, OwnedFd)>,
}

impl Task for Service {
    fn serve(&mut self, request: &[u8]) -> Option<Reply> {
        let Request { ifindex, egress } = serde_json::from_slice(request).ok()?;
        let (_, program) = self.programs.iter().find(|(of_egress, _)| *of_egress == egress)?;
        let attached = self.attach(program, ifindex, egress);
        let errno = attached.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO));
        Reply::new(&errno, attached.ok())
    }
}

impl Service {
    fn attach(&self, program: &OwnedFd, ifindex: u32, egress: bool) -> io::Result<OwnedFd> {
        let link = Link::by_index(&mut Client::open(libc::NETLINK_ROUTE)?, ifindex)?;
        let link = link.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        if !self.patterns.iter().any(|pattern| pattern.matches(&link.name)) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let hook = if egress { Hook::Egress } else { Hook::Ingress };
        attach::create_link(program.as_fd(), ifindex, hook)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn read(recipe: &str, programs: usize) -> Option<Box<dyn Task>> {
        let programs = (0..programs).map(|_| File::open("/dev/null").unwrap().into());
        (KIND.read)(recipe.as_bytes(), programs.collect())
    }

    #[test]
    fn only_devices_that_match_a_pattern_are_attached() {
        let program: OwnedFd = File::open("/dev/null").unwrap().into();
        let attach = |pattern: &str, ifindex| {
            let selectors = Selector::parse_list_with(pattern, |_| false).unwrap();
            let patterns = selectors.iter().map(|selector| Pattern::new(selector).unwrap()).collect();
            let service = Service { patterns, programs: Vec::new() };
            service.attach(&program, ifindex, false).unwrap_err().raw_os_error()
        };
        // Device 1 of a network namespace is its loopback device.
        assert_eq!(attach("veth*,eth?", 1), Some(libc::EPERM));
        assert_eq!(attach("any", u32::MAX >> 1), Some(libc::ENODEV));
        // The device matches; the descriptor is no program.
        assert_ne!(attach("l*", 1), Some(libc::EPERM));
    }

    #[test]
    fn tasks_and_requests_that_were_not_registered_violate_the_protocol() {
        let recipe = r#"{"patterns":["veth*"],"egress":[false]}"#;
        assert!(read(recipe, 2).is_none() && read(recipe, 0).is_none() && read("{}", 0).is_none());
        assert!(read(r#"{"patterns":["veth["],"egress":[false]}"#, 1).is_none());
        let mut task = read(recipe, 1).unwrap();
        assert!(task.serve(br#"{"ifindex":1,"egress":true}"#).is_none());
        assert!(task.serve(b"1").is_none());
        assert!(task.serve(br#"{"ifindex":1,"egress":false}"#).is_some());
    }
}
