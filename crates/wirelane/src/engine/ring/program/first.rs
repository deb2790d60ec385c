//! The first program of an instance, loaded with all that its first group needs, so that joining does not load it anew.
//!
//! Until a group describes what it uses, other processes do not know of it and may load a program without it. So joining
//! uses what was loaded only if the program on the device is still this one, under the lock of programs.

use std::os::fd::BorrowedFd;

use libbpf_rs::{MapHandle, OpenMapMut};
use wirelane_bpf::filter::Step;
use wirelane_filter::Filter;
use wirelane_filter::instructions::Context;

use wirelane_bpf::instance::{FEW_GROUPS, MAX_GROUPS};

use super::super::filters::{self, Code};
use super::link;
use super::object::UserProgram;
use super::{Placed, Plugin, store, take_layout};
use crate::error::Result;

/// Parts of the capture program that a group needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    /// Bits of [`wirelane_bpf::instance::features`].
    pub(crate) features: u32,
    /// The program that steers.
    pub(crate) steering: Option<UserProgram>,
    /// Plug-ins that rules may call.
    pub(crate) plugins: Vec<Plugin>,
    /// The packets to capture; `None`: all packets.
    pub(crate) filter: Option<Filter>,
    /// Whether the group is one of so many that divide flows that they need all slots for groups.
    pub(crate) many_groups: bool,
}

impl Needs {
    /// Slots for groups of an instance that is made for these needs.
    pub(crate) fn group_slots(&self) -> usize {
        if self.many_groups { MAX_GROUPS } else { FEW_GROUPS }
    }

    /// All programs of users: the steering program, then plug-ins in their order.
    pub(super) fn programs(&self) -> impl Iterator<Item = &UserProgram> {
        self.steering.iter().chain(self.plugins.iter().map(|plugin| &plugin.program))
    }

    /// The program to blame if what was loaded is refused; `None`: it may be several.
    pub(crate) fn suspect(&self) -> Option<&UserProgram> {
        let mut programs = self.programs();
        programs.next().filter(|_| programs.next().is_none() && self.filter.is_none())
    }

    /// Whether the plain program with the features has all of it.
    pub(crate) fn is_plain(&self) -> bool {
        self.filter.is_none() && self.programs().next().is_none()
    }
}

/// The parts that are linked into the first program.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    placed: Vec<Placed>,
    codes: Vec<Code>,
}

impl Parts {
    /// The parts for a group with these needs; `None`: there are not as many slots.
    pub(crate) fn of(needs: &Needs) -> Option<Parts> {
        let mut placed: Vec<Placed> = Vec::new();
        for program in needs.programs() {
            let kind = program.kind();
            let of_kind = || placed.iter().filter(|one| one.kind == kind);
            if of_kind().any(|one| one.object == program.bytes()) {
                continue;
            }
            let place = of_kind().count() as u32;
            if place >= kind.places() {
                return None;
            }
            placed.push(Placed::new(program, place));
        }
        let code = |filter: &Filter| (filters::unused_number(&[]), filter.steps().to_vec());
        Some(Parts { placed, codes: needs.filter.iter().map(code).collect() })
    }

    /// Whether programs of users are among them.
    pub(crate) fn has_programs(&self) -> bool {
        !self.placed.is_empty()
    }

    /// The object of the capture program with these parts, for a context and features. `new`: the program of a user to blame.
    ///
    /// # Errors
    /// If a program of a user cannot be linked, or a filter is too long to be instructions.
    pub(crate) fn object(&self, of: (Context, u32), new: Option<&UserProgram>) -> Result<Vec<u8>> {
        link::object(&self.placed, &self.codes, of, new)
    }

    /// Has a map of a user's program in the linked program take the layout of the capture's map.
    ///
    /// # Errors
    /// The error that libbpf returned.
    pub(crate) fn take_layout(
        &self,
        map: &mut OpenMapMut<'_>,
        (key, name): (u32, &str),
    ) -> libbpf_rs::Result<()> {
        let placed = self.placed.iter().find(|one| one.kind.key(one.place) == key);
        placed.and_then(|one| one.fresh.as_ref()).map_or(Ok(()), |state| take_layout(map, name, state))
    }

    /// Writes what the program knows of these parts into its configuration.
    ///
    /// # Errors
    /// If the configuration is too short, which is a bug.
    pub(crate) fn describe(&self, config: &mut [u8]) -> Result<()> {
        link::describe(config, &self.placed, &self.codes)
    }

    /// Keeps the objects in the instance, before another process can find it. `program`: id of the program.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn keep(self, programs: &MapHandle, program: u32) -> Result<First> {
        for one in &self.placed {
            store(programs, one.kind.key(one.place), &one.object)?;
        }
        Ok(First { program, parts: self })
    }
}

/// The first program of an instance, as this process has loaded it.
#[derive(Debug)]
pub(crate) struct First {
    /// Id of the program.
    program: u32,
    parts: Parts,
}

impl First {
    /// Slots of the programs of a group with these needs, and the number of its filter; `None`: `running` is another program, or
    /// has not all of it.
    pub(super) fn serves(&self, needs: &Needs, running: BorrowedFd<'_>) -> Result<Option<(Vec<u32>, u32)>> {
        if super::super::attach::program_id(running)? != self.program {
            return Ok(None);
        }
        let place = |program: &UserProgram| {
            let same = |one: &&Placed| one.kind == program.kind() && one.object == program.bytes();
            self.parts.placed.iter().find(same).map(|one| one.place)
        };
        let number = |steps: &[Step]| {
            self.parts.codes.iter().find(|(_, code)| code.as_slice() == steps).map(|(number, _)| *number)
        };
        let Some(places) = needs.programs().map(place).collect::<Option<Vec<u32>>>() else { return Ok(None) };
        let number = needs.filter.as_ref().map_or(Some(0), |filter| number(filter.steps()));
        Ok(number.map(|number| (places, number)))
    }
}
