//! Membership: joining an instance as a group, and clearing the group's slot afterwards.
//!
//! A slot is taken by putting a socket into the instance's `wl_owners` map, which only succeeds where the entry is
//! empty (BPF_NOEXIST). The kernel removes the socket when its last descriptor is closed, so the slot of a killed owner
//! is free at once, and the holder of a slot has exclusive access to it. The remains of a dead owner (its active bit,
//! its rings) are cleared by the next owner of the slot or by [`reap`], which every process of the instance runs a few
//! times a second.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use wirelane_bpf::instance::{
    AWAKE, ELEMENT, MAX_READERS, MAX_WORKERS, Mark, Reader as ReaderEnd, Ring, SEGMENT, Tally, group_flags,
};

use super::at_once::at_once;
use super::bell::Bell;
use super::data::{RingMemory, create_data};
use super::describe::{first_table, write_balance, write_group};
use super::egress_devices;
use super::filters::{self, FIRST_FILTER, NO_FILTER};
use super::flows::{self, GroupFlows, LaneFlows};
use super::group_config::GroupConfig;
use super::http;
use super::instance::Instance;
use super::masks::{is_active, set_active, set_clock, set_ordered, set_wide};
use super::memory::{Mapping, Word};
use super::plugins::{self, GroupPlugins};
use super::program::{self, GroupState};
use super::reader::Reader;
use super::rules::{self, GroupRules, NO_RULES};
use super::shed;
use super::tallies::{WorkerTally, read_tally, worker_tally};
use crate::error::{Error, Result};
use crate::settings::Clock;
use wirelane_filter::Filter;
use wirelane_netdev::Device;

/// A slot in an instance, and the memory of its rings.
#[derive(Debug)]
pub(crate) struct Membership {
    instance: Arc<Instance>,
    place: GroupSlot,
    workers: usize,
    segments: usize,
    data: Arc<Mapping>,
    readers: Arc<Mapping>,
    /// The rings' map: [`Membership::set_filter`] puts it into the instance once more, to wait.
    map: MapHandle,
    rules: Option<Arc<GroupRules>>,
    flows: Option<Arc<GroupFlows>>,
    http: Option<Arc<MapHandle>>,
    /// Maps of plug-ins and of the steering program.
    state: GroupState,
    clock: Clock,
    /// Whether the group's rules hold for the whole device.
    wide: bool,
    /// Whether the program on the device is known to have the interpreter of filters (`WL_HAS_FILTERS`).
    interprets: bool,
    joined: bool,
}

/// Exclusive ownership of one group's slot; given up on drop, or by the kernel when the process ends.
#[derive(Debug)]
struct GroupSlot {
    group: usize,
    token: Arc<Token>,
}

/// The socket in `wl_owners`, which stays there as long as a descriptor of it is open, and its peer. Workers share it:
/// a worker that outlives its capture still reads the writers' ends of its rings, which must not become another group's
/// meanwhile.
#[derive(Debug)]
pub(super) struct Token(#[expect(dead_code, reason = "held open, not used")] (OwnedFd, OwnedFd));

/// Maximum time to wait for a slot that is only being cleared, where no other is free.
const CLEARING: Duration = Duration::from_secs(1);

impl GroupSlot {
    /// Takes this slot; `None` if it has an owner.
    fn take(instance: &Instance, group: usize) -> Result<Option<GroupSlot>> {
        let (token, peer) =
            UnixDatagram::pair().map_err(|e| Error::kernel("making an ownership token", e))?;
        let value = token.as_raw_fd() as u64;
        let key = (group as u32).to_ne_bytes();
        match instance.owners.update(&key, &value.to_ne_bytes(), MapFlags::NO_EXIST) {
            Ok(()) => Ok(Some(GroupSlot { group, token: Arc::new(Token((token.into(), peer.into()))) })),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::AlreadyExists => Ok(None),
            Err(e) => Err(Error::bpf("taking a group's place", e)),
        }
    }

    /// Takes the first free slot.
    fn take_any(instance: &Instance, device: &str) -> Result<GroupSlot> {
        let deadline = Instant::now() + CLEARING;
        loop {
            for group in 0..instance.group_slots {
                if let Some(place) = GroupSlot::take(instance, group)? {
                    return Ok(place);
                }
            }
            // An inactive slot may be owned by a process that clears it after a dead owner.
            if (0..instance.group_slots).all(|group| is_active(instance, group)) || Instant::now() >= deadline
            {
                return Err(Error::TooManyGroups {
                    device: device.to_owned(),
                    limit: instance.group_slots as u32,
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Clears the remains of an earlier owner of this slot.
    fn clear(&self, instance: &Instance) -> Result<()> {
        set_active(instance, self.group, false);
        set_wide(instance, self.group, false);
        set_ordered(instance, self.group, false);
        set_clock(instance, self.group, Clock::Packet);
        program::release(instance, self.group);
        let mut left = Vec::new();
        for (maps, key) in of_group(instance, self.group) {
            if is_there(maps, key)? {
                left.push((maps, key));
            }
        }
        for bell in (0..MAX_WORKERS).map(|worker| self.group * MAX_WORKERS + worker) {
            if is_there(&instance.bells, bell)? {
                left.push((&instance.bells, bell));
            }
        }
        for (maps, place) in rules::places(instance, self.group) {
            if is_there(maps, place)? {
                left.push((maps, place));
            }
        }
        at_once(left.into_iter(), |(map, key)| remove(map, key))
    }
}

/// Maximum number of entries that are changed at once.
const AT_ONCE: usize = 64;

/// Puts the rings of groups, and the bells of all workers in their order, into the instances' maps. The kernel waits for
/// running programs.
pub(crate) fn hand_over<'a, B: Iterator<Item = &'a Bell>>(
    groups: impl Iterator<Item = (&'a Membership, B)>,
) -> Result<()> {
    // `None`: the rings.
    let entries: Vec<(&Membership, Option<(usize, &Bell)>)> = groups
        .flat_map(|(group, bells)| {
            std::iter::once((group, None))
                .chain(bells.enumerate().map(move |(worker, bell)| (group, Some((worker, bell)))))
        })
        .collect();
    entries.chunks(AT_ONCE).try_for_each(|some| {
        at_once(some.iter(), |(group, bell)| match bell {
            None => group.hand_over(),
            Some((worker, bell)) => group.hang(*worker, bell),
        })
    })
}

/// The entries of a group in arrays of maps, except those of its rules.
fn of_group(instance: &Instance, group: usize) -> impl Iterator<Item = (&MapHandle, usize)> {
    let one = [&instance.data, &instance.http, &instance.sheds, &instance.streams, &instance.measured];
    let caches = [false, true].map(|second| (&instance.flows, flows::key_of(group, second)));
    one.map(|maps| (maps, group)).into_iter().chain(caches)
}

/// Whether an array of maps has an entry with this key. Cheap, whereas a deletion waits even if there is no entry.
fn is_there(map: &MapHandle, key: usize) -> Result<bool> {
    let found = map.lookup(&(key as u32).to_ne_bytes(), MapFlags::ANY);
    found.map(|found| found.is_some()).map_err(|e| Error::bpf("looking for a group's map", e))
}

/// Removes an entry from an array of maps. On return no program uses it any more.
fn remove(map: &MapHandle, key: usize) -> Result<()> {
    match map.delete(&(key as u32).to_ne_bytes()) {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(Error::bpf("removing a group's map", e)),
        _ => Ok(()),
    }
}

/// Clears the slots of groups whose owners have ended. Returns their number.
pub(crate) fn reap(instance: &Instance) -> Result<usize> {
    let mut reaped = 0;
    for group in 0..instance.group_slots {
        // An owner may have been killed between handing over its tables and rings and becoming active.
        let mut left = is_active(instance, group) || is_there(&instance.rules.counts, group)?;
        for (maps, key) in of_group(instance, group) {
            left = left || is_there(maps, key)?;
        }
        if !left {
            continue;
        }
        // Succeeds only where the owner has ended; while we hold the slot, no other process can join here.
        if let Some(place) = GroupSlot::take(instance, group)? {
            place.clear(instance)?;
            reaped += 1;
        }
    }
    Ok(reaped)
}

impl Membership {
    /// Joins `instance` as a new group. Lanes begin to write to it when [`hand_over`] and [`Membership::activate`] are called.
    pub(crate) fn join(
        instance: &Arc<Instance>,
        device: &Device,
        config: &GroupConfig,
    ) -> Result<Membership> {
        let rings = instance.lanes * config.workers;
        if rings > MAX_READERS || config.workers > MAX_WORKERS {
            return Err(Error::BadOption {
                option: "--workers",
                reason: format!(
                    "{} has {} lanes: at most {} workers",
                    device.name,
                    instance.lanes,
                    (MAX_READERS / instance.lanes).min(MAX_WORKERS)
                ),
            });
        }
        if let Some(queue) = config.queues.iter().find(|&&queue| queue as usize >= instance.queues) {
            return Err(Error::BadOption {
                option: "-i",
                reason: format!(
                    "{}@{queue}: only queues below {} can be told apart",
                    device.name, instance.queues
                ),
            });
        }
        let place = GroupSlot::take_any(instance, &device.name)?;
        place.clear(instance)?;
        for slot in 0..instance.slots() {
            instance.tallies.clear(instance.tally(place.group, slot), size_of::<Tally>());
        }
        for lane in 0..instance.lanes {
            let first = instance.ring(place.group, lane, 0);
            instance.rings.clear(first, MAX_WORKERS * size_of::<Ring>());
        }

        let segments = config.ring_size.div_ceil(SEGMENT).next_power_of_two();
        let elements = 1 + rings * segments;
        let map = create_data(elements, rings, segments)?;
        let share = |len, writable| {
            Mapping::new(map.as_fd(), 0, len, writable).map_err(|e| {
                let (all, each) = (len.div_ceil(1 << 20), (segments * SEGMENT) >> 20);
                Error::kernel(
                    format!(
                        "mapping {all} MiB for {rings} rings of {each} MiB (reduce it with a smaller --ring-size \
                         or fewer workers; ulimit -v limits the address space)"
                    ),
                    e,
                )
            })
        };
        let data = Arc::new(share(elements * ELEMENT, false)?);
        let readers = Arc::new(share(rings * size_of::<ReaderEnd>(), true)?);
        for ring in 0..rings {
            let offset = ring * size_of::<ReaderEnd>() + offset_of!(ReaderEnd, wake_at);
            readers.word(offset).store(AWAKE, Ordering::Relaxed);
        }
        let buckets = first_table(config.workers);
        if let Some(filter) = &config.needs.filter {
            filters::write(instance, place.group, FIRST_FILTER, filter)?;
        }
        plugins::clear(instance, place.group);
        let installed = program::install(instance, device, Some(place.group), &config.needs)?;
        let state = GroupState::hand_over(instance, place.group, &config.needs, &installed)?;
        let filter = if config.needs.filter.is_some() {
            filters::with_code(FIRST_FILTER, installed.filter)
        } else {
            NO_FILTER
        };
        let plugins = GroupPlugins::new(&config.needs.plugins, &installed.plugins);
        let programs = (installed.place, &plugins);
        write_group(instance, place.group, config, segments, programs, (filter, NO_RULES));
        let interprets = installed.interprets;
        // Releases the lock: from here on the group's description names its program, and its filter.
        drop(installed);
        if config.flags & group_flags::ADAPTIVE != 0 {
            for lane in 0..instance.lanes {
                write_balance(instance, place.group, lane, &buckets);
            }
        }
        egress_devices::write(instance, place.group, &config.egress_devices);
        let token = Arc::clone(&place.token);
        let named = |room| {
            GroupRules::new(
                (instance, place.group),
                &device.name,
                room,
                &config.egress_devices,
                plugins,
                token,
            )
        };
        let rules = config.rules.clone().map(named).transpose()?.map(Arc::new);
        if let Some(rules) = &rules {
            at_once(rules.entries().into_iter(), |(maps, key, map)| rules::put_in(maps, key, map))?;
        }
        if let Some(streams) = &config.streams {
            streams.hand_over(instance, place.group)?;
        }
        let token = Arc::clone(&place.token);
        let broker = config.flow_maps.as_ref();
        let flows = |wish| GroupFlows::new((instance, place.group), wish, config.workers, broker, token);
        let flows = config.flows.as_ref().map(flows).transpose()?.map(Arc::new);
        let http = http::create(instance, place.group, config.http)?;
        if config.shed.is_some() {
            shed::create(instance, place.group, rings)?;
        }
        // Before the rings are put into the instance, for which the kernel waits: each run that finds the group active
        // marks its packet.
        set_ordered(instance, place.group, config.ordered);
        Ok(Membership {
            instance: Arc::clone(instance),
            place,
            workers: config.workers,
            segments,
            data,
            readers,
            map,
            rules,
            flows,
            http,
            state,
            clock: config.clock,
            wide: config.flags & group_flags::WIDE != 0,
            interprets,
            joined: true,
        })
    }

    /// Evaluates by this filter in each lane, from its next packet on; `None` accepts everything. Returns whether anything
    /// changes; then [`Membership::settle`] has to follow, after which no lane evaluates by the previous filter.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the running program does not support filters, and cannot be replaced.
    pub(crate) fn change_filter(&mut self, device: &Device, filter: Option<&Filter>) -> Result<bool> {
        if !self.joined || filter.is_none() && !filters::has_one(&self.instance, self.place.group) {
            return Ok(false);
        }
        let wait = || self.hand_over();
        let interprets =
            filters::change(&self.instance, device, self.place.group, filter, self.interprets, &wait)?;
        self.interprets |= interprets;
        Ok(true)
    }

    /// Waits for all runs of programs on all devices that began before.
    pub(crate) fn settle(&self) -> Result<()> {
        // Putting the same map there again changes nothing, but the kernel waits for all programs that are running now
        // (maybe_wait_bpf_programs() in kernel/bpf/syscall.c).
        self.hand_over()
    }

    /// The group's rules; `None`: no capacity for rules.
    pub(crate) fn rules(&self) -> Option<&Arc<GroupRules>> {
        self.rules.as_ref()
    }

    /// The group's flow caches; `None`: no flows.
    pub(crate) fn flows(&self) -> Option<&Arc<GroupFlows>> {
        self.flows.as_ref()
    }

    /// The map of connection directions that the group's lanes follow; `None`: no HTTP.
    pub(crate) fn http(&self) -> Option<Arc<MapHandle>> {
        self.http.clone()
    }

    /// Puts the group's rings into the instance's map for the lanes. The kernel waits for running programs.
    fn hand_over(&self) -> Result<()> {
        let key = (self.place.group as u32).to_ne_bytes();
        self.instance
            .data
            .update(&key, &self.map.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::bpf("handing the rings to the capture program", e))
    }

    /// Puts the bell of a worker into the instance's map.
    fn hang(&self, worker: usize, bell: &Bell) -> Result<()> {
        let key = ((self.place.group * MAX_WORKERS + worker) as u32).to_ne_bytes();
        self.instance
            .bells
            .update(&key, &bell.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::bpf("hanging up a worker's bell", e))
    }

    /// Makes lanes write to the group.
    pub(crate) fn activate(&self) {
        set_clock(&self.instance, self.place.group, self.clock);
        set_wide(&self.instance, self.place.group, self.wide);
        set_active(&self.instance, self.place.group, true);
    }

    /// Stops the lanes' writing: on return no program run touches the group's rings. The slot, and with it the ledger,
    /// stays ours until drop.
    pub(crate) fn leave(&mut self) -> Result<()> {
        if std::mem::take(&mut self.joined) {
            if let Some(rules) = &self.rules {
                rules.leave();
            }
            if let Some(flows) = &self.flows {
                flows.leave();
            }
            set_active(&self.instance, self.place.group, false);
            // A run that saw the group active writes its packet, which would be lost without rings.
            self.settle()?;
            remove(&self.instance.data, self.place.group)?;
            self.state.leave(self.place.group)?;
            if let Some(flows) = &self.flows {
                flows.freeze();
            }
        }
        Ok(())
    }

    /// The ring from a lane to a worker.
    pub(crate) fn reader(&self, lane: usize, worker: usize) -> (Reader<Word>, RingMemory) {
        let ring = self.instance.ring(self.place.group, lane, worker);
        let index = lane * self.workers + worker;
        let end = index * size_of::<ReaderEnd>();
        let word = |offset| Word::new(&self.instance.writers_ends, ring + offset);
        let reader = Reader::new(
            word(offset_of!(Ring, head)),
            word(offset_of!(Ring, public_head)),
            Word::new(&self.readers, end + offset_of!(ReaderEnd, tail)),
            Word::new(&self.readers, end + offset_of!(ReaderEnd, wake_at)),
        );
        let memory = RingMemory::new(
            Arc::clone(&self.data),
            1 + index * self.segments,
            self.segments,
            Arc::clone(&self.place.token),
        );
        (reader, memory)
    }

    /// The mark of the packet that a lane is processing.
    pub(crate) fn mark(&self, lane: usize) -> Word {
        Word::new(&self.instance.marks, lane * size_of::<Mark>() + offset_of!(Mark, in_flight))
    }

    /// A worker's view of a lane's flow cache.
    pub(crate) fn lane_flows(&self, lane: usize, worker: usize) -> Option<LaneFlows> {
        self.flows.as_ref().map(|flows| flows.lane(lane, worker))
    }

    /// One line of the ledger. Exact once the group has left; before, the lane may be between two columns.
    pub(crate) fn tally(&self, slot: usize) -> Tally {
        read_tally(&self.instance, self.place.group, slot)
    }

    /// Counts of the packets that were steered to one worker, over all lanes.
    pub(crate) fn worker_tally(&self, worker: usize) -> WorkerTally {
        worker_tally(&self.instance, self.place.group, worker)
    }

    /// Number of packets and copies that were sent to the egress device with this number, and number of failures.
    pub(crate) fn sent(&self, index: usize) -> (u64, u64) {
        egress_devices::read(&self.instance, self.place.group, index)
    }

    /// A worker's read position in its ring of this lane.
    pub(crate) fn tail(&self, lane: usize, worker: usize) -> Word {
        let end = (lane * self.workers + worker) * size_of::<ReaderEnd>();
        Word::new(&self.readers, end + offset_of!(ReaderEnd, tail))
    }

    /// The slot's number in the instance.
    pub(crate) fn group(&self) -> usize {
        self.place.group
    }

    /// The instance of the group.
    pub(crate) fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(e) = self.leave().and_then(|()| self.place.clear(&self.instance)) {
            tracing::warn!("leaving the capture program: {e}");
        }
    }
}
