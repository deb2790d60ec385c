//! Devices that come up during a capture and match one of its patterns.
//!
//! A socket receives the kernel's messages about links (`RTMGRP_LINK`), so a look without changes is one system call.
//! Both sockets are opened before: a process that has given up its rights may still use them.

use std::collections::{BTreeMap, HashMap, HashSet};

use netlink_sys::{Socket, SocketAddr};

use super::LinkType;
use super::link::{Link, list};
use super::netlink::{Client, messages};
use super::selector::{Pattern, Selector};
use crate::{Error, Result};

/// A device that is up, matches a pattern, and has not been reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// The first pattern that it matches, as the user wrote it.
    pub pattern: String,
    /// Whether the device existed at the start: it was down, or had another name.
    pub existed: bool,
    /// The link-layer type of its packets.
    pub link_type: LinkType,
    /// Whether it is a loopback device: packets that are sent on it are received on it.
    pub loopback: bool,
}

/// Changes since the last look.
#[derive(Debug, Default)]
pub struct Changes {
    /// New arrivals, by index.
    pub arrivals: Vec<Arrival>,
    /// Indices and names of reported arrivals that have left the network namespace.
    pub gone: Vec<(u32, String)>,
}

/// Reports each arrival once, for the network namespace in which it was opened.
pub struct Arrivals {
    events: Socket,
    route: Client,
    patterns: Vec<Pattern>,
    /// Devices that existed when this was opened, and have not been deleted.
    existed: HashSet<u32>,
    /// Names of the reported devices by index.
    reported: HashMap<u32, String>,
    /// Whether messages may be missing, so that all devices have to be listed.
    incomplete: bool,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals").field("patterns", &self.patterns).finish_non_exhaustive()
    }
}

impl Arrivals {
    /// Opens the sockets. No privilege is needed.
    ///
    /// # Errors
    /// [`Error::BadSelector`] for a selector that is not a pattern; [`Error::Kernel`] if the kernel does not open a
    /// netlink socket, or does not list the devices.
    pub fn open(patterns: &[Selector]) -> Result<Arrivals> {
        let failed = |source| Error::kernel("listening for new network devices", source);
        let patterns = patterns.iter().map(Pattern::new).collect::<Result<_>>()?;
        let mut events = Socket::new(libc::NETLINK_ROUTE as isize).map_err(failed)?;
        events.bind(&SocketAddr::new(0, libc::RTMGRP_LINK as u32)).map_err(failed)?;
        let mut route = Client::open(libc::NETLINK_ROUTE).map_err(failed)?;
        let existed = list(&mut route).map_err(failed)?.iter().map(|link| link.ifindex).collect();
        // The patterns were expanded before the socket was opened: the first look finds what came in between.
        let (reported, incomplete, buffer) = (HashMap::new(), true, Vec::new());
        Ok(Arrivals { events, route, patterns, existed, reported, incomplete, buffer })
    }

    /// The changes since the last look. Devices that `is_captured` accepts, by their index, are no arrivals.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not answer.
    pub fn look(&mut self, is_captured: impl Fn(u32) -> bool) -> Result<Changes> {
        let failed = |source| Error::kernel("listening for new network devices", source);
        // By index, each as the last message about it says.
        let (mut links, mut gone) = (BTreeMap::new(), Vec::new());
        loop {
            self.buffer.clear();
            // As large as the kernel makes a message about a link with many virtual functions.
            self.buffer.reserve(64 * 1024);
            match self.events.recv(&mut self.buffer, libc::MSG_DONTWAIT) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                // The socket's buffer was too small for the messages since the last look.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.incomplete = true,
                Err(error) => return Err(failed(error)),
            }
            for (kind, body) in messages(&self.buffer) {
                // Messages of a bridge about its ports have its address family: a port that leaves is not deleted.
                let Some(link) = Link::read(body).filter(|_| body.first() == Some(&0)) else { continue };
                if kind == libc::RTM_DELLINK {
                    self.existed.remove(&link.ifindex);
                    gone.extend(self.reported.remove_entry(&link.ifindex));
                    links.remove(&link.ifindex);
                } else if kind == libc::RTM_NEWLINK {
                    links.insert(link.ifindex, link);
                }
            }
        }
        if std::mem::take(&mut self.incomplete) {
            let all = list(&mut self.route).map_err(failed)?;
            links = all.into_iter().map(|link| (link.ifindex, link)).collect();
            self.existed.retain(|ifindex| links.contains_key(ifindex));
            gone.extend(self.reported.extract_if(|ifindex, _| !links.contains_key(ifindex)));
        }
        let arrivals = links
            .into_values()
            .filter(|link| link.is_up() && !is_captured(link.ifindex))
            .filter_map(|link| self.report(link))
            .collect();
        Ok(Changes { arrivals, gone })
    }

    fn report(&mut self, link: Link) -> Option<Arrival> {
        let pattern = self.patterns.iter().find(|pattern| pattern.matches(&link.name))?;
        let existed = self.existed.contains(&link.ifindex);
        let ifindex = link.ifindex;
        let arrival = Arrival {
            pattern: pattern.to_string(),
            existed,
            ifindex,
            link_type: link.link_type(),
            loopback: link.is_loopback(),
            name: link.name,
        };
        self.reported.insert(ifindex, arrival.name.clone()).is_none().then_some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(patterns: &str) -> Arrivals {
        Arrivals::open(&Selector::parse_list_with(patterns, |_| false).unwrap()).unwrap()
    }

    #[test]
    fn a_device_is_reported_once_by_its_first_pattern() {
        let mut arrivals = arrivals("eth*,l?,any");
        let found = arrivals.look(|_| false).unwrap().arrivals;
        let lo = Arrival {
            name: "lo".into(),
            ifindex: 1,
            pattern: "l?".into(),
            existed: true,
            link_type: LinkType::Ethernet,
            loopback: true,
        };
        assert!(found.contains(&lo) || !Link::find("lo").unwrap().unwrap().is_up(), "{found:?}");
        let again = arrivals.look(|_| false).unwrap();
        assert!(!again.arrivals.contains(&lo) && again.gone.is_empty(), "{again:?}");
    }

    #[test]
    fn a_captured_device_is_no_arrival() {
        assert_eq!(arrivals("lo,l*").look(|ifindex| ifindex == 1).unwrap().arrivals, []);
    }
}
