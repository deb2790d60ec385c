//! Several streams of packets that alternate by their weights.
//!
//! A round has as many packets as the weights add up to. Within a round the streams alternate as evenly as their weights
//! allow (smooth weighted round robin, as nginx does it). Each stream numbers its own packets without gaps.
//!
//! Threads take turns: packet `n` of the run is sent by thread `n` modulo their number. The flows of a stream are divided
//! among the threads that send packets of it, so that all packets of a flow are sent by one thread, in order.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::pattern::Traffic;
use super::template::Template;
use crate::{Error, Result};

/// Maximum number of streams.
pub const MOST_STREAMS: usize = 64;

/// Maximum sum of the weights.
pub const MOST_WEIGHT: u32 = 1024;

/// A place in a round: the stream, and how many packets of the round it has before this place.
#[derive(Clone, Copy, Debug)]
struct Place {
    stream: usize,
    before: u64,
}

/// The flows at a place in a period, which is a round for each thread: those of the thread that sends there. They are
/// numbered by the stream's packets that this thread sends.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// The number of these packets in a period, and the number of them before this place.
    all: u64,
    before: u64,
    /// The thread's flows: the first one, the step to the next, and their number.
    first: u64,
    step: u64,
    flows: u64,
}

/// The templates of all streams, and their order.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    templates: Vec<Template>,
    weights: Vec<u64>,
    round: Vec<Place>,
    turns: Vec<Turn>,
    largest: usize,
    /// Bytes that may hold the headers of any stream.
    head: usize,
    stamped: bool,
}

impl Streams {
    /// The streams of this traffic, sent by so many threads.
    pub(crate) fn new(traffic: &[Traffic], threads: u64) -> Result<Streams> {
        let wrong = |reason: String| Err(Error::BadOption { option: "--stream", reason });
        if traffic.is_empty() || traffic.len() > MOST_STREAMS {
            return wrong(format!("give 1 to {MOST_STREAMS} streams"));
        }
        let templates = traffic.iter().map(Template::new).collect::<Result<Vec<_>>>()?;
        let sum: u32 = traffic.iter().map(|one| u32::from(one.weight)).sum();
        if sum > MOST_WEIGHT {
            return wrong(format!("the weights add up to {sum}: expected {MOST_WEIGHT} or less"));
        }
        let mut credit = vec![0_i64; traffic.len()];
        let mut used = vec![0_u64; traffic.len()];
        let round = (0..sum).map(|_| {
            for (credit, one) in credit.iter_mut().zip(traffic) {
                *credit += i64::from(one.weight);
            }
            // The first of those with most credit.
            let stream = (0..traffic.len()).rev().max_by_key(|stream| credit[*stream]).unwrap_or(0);
            credit[stream] -= i64::from(sum);
            used[stream] += 1;
            Place { stream, before: used[stream] - 1 }
        });
        let round: Vec<Place> = round.collect();
        Ok(Streams {
            turns: turns(traffic, &round, threads)?,
            weights: traffic.iter().map(|one| u64::from(one.weight)).collect(),
            round,
            largest: templates.iter().map(Template::largest).max().unwrap_or(0),
            head: templates.iter().map(Template::head).max().unwrap_or(0),
            stamped: templates.iter().any(Template::is_stamped),
            templates,
        })
    }

    /// Bytes of the largest frame.
    pub(crate) fn largest(&self) -> usize {
        self.largest
    }

    /// All templates.
    pub(crate) fn templates(&self) -> &[Template] {
        &self.templates
    }

    /// The template, if there is one stream only.
    pub(crate) fn only(&self) -> Option<&Template> {
        match &self.templates[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The stream of a packet of the run, and its number in the stream.
    fn place(&self, number: u64) -> (usize, u64) {
        let length = self.round.len() as u64;
        let place = self.round[(number % length) as usize];
        (place.stream, number / length * self.weights[place.stream] + place.before)
    }

    /// Prepares a buffer of [`Streams::largest`] bytes.
    pub(crate) fn prepare(&self, frame: &mut [u8]) {
        frame.fill(0);
        self.templates[0].prepare(frame);
    }

    /// Turns a prepared buffer into the packet with this number in the run; returns its length.
    pub(crate) fn write(&self, number: u64, frame: &mut [u8]) -> usize {
        let sent_ns = if self.stamped { utc_ns() } else { 0 };
        let flow = self.flow(number);
        if let Some(only) = self.only() {
            return only.write(number, flow, sent_ns, frame);
        }
        let (stream, number) = self.place(number);
        let template = &self.templates[stream];
        // The buffer holds a packet of any stream. Behind the longest headers all bytes are zero.
        let head = self.head.min(template.frame.len());
        frame[..head].copy_from_slice(&template.frame[..head]);
        template.write(number, flow, sent_ns, frame)
    }

    /// The flow of a packet of the run, within its stream.
    fn flow(&self, number: u64) -> u64 {
        let period = self.turns.len() as u64;
        let turn = &self.turns[(number % period) as usize];
        let own = number / period * turn.all + turn.before;
        turn.first + own % turn.flows * turn.step
    }

    /// Total bytes of the `count` packets with the numbers `first`, `first + stride`, ... of the run.
    pub(crate) fn bytes_of(&self, first: u64, stride: u64, count: u64) -> u64 {
        // After a whole round of steps of any stride, the same place comes again.
        let length = self.round.len() as u64;
        let of_place = |step: u64| {
            let (stream, number) = self.place(first + step * stride);
            let times = (count - step).div_ceil(length);
            self.templates[stream].bytes_of(number, stride * self.weights[stream], times)
        };
        (0..length.min(count)).map(of_place).sum()
    }
}

/// The flows at each place of a period.
fn turns(traffic: &[Traffic], round: &[Place], threads: u64) -> Result<Vec<Turn>> {
    let length = round.len() as u64;
    let (mut one, mut other) = (length, threads);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    let period = length / one * threads;
    let place = |number: u64| (round[(number % length) as usize].stream, number % threads);
    // By stream: its threads, and how many of its packets each sends in a period.
    let mut counts = vec![BTreeMap::<u64, u64>::new(); traffic.len()];
    let mut before = Vec::with_capacity(period as usize);
    for (stream, thread) in (0..period).map(place) {
        let count = counts[stream].entry(thread).or_default();
        before.push(*count);
        *count += 1;
    }
    let mut shares = vec![BTreeMap::new(); traffic.len()];
    for ((shares, counts), one) in shares.iter_mut().zip(&counts).zip(traffic) {
        let (step, all) = (counts.len() as u64, u64::from(one.flows));
        if all < step {
            let reason = format!(
                "{step} threads cannot share {all} flows and keep the order of each: give {all} or fewer, or more flows"
            );
            return Err(Error::BadOption { option: "--threads", reason });
        }
        for (first, thread) in (0..).zip(counts.keys()) {
            shares.insert(*thread, (first, step, (all - first).div_ceil(step)));
        }
    }
    let turn = |(number, before): (u64, u64)| {
        let (stream, thread) = place(number);
        let (first, step, flows) = shares[stream][&thread];
        Turn { all: counts[stream][&thread], before, first, step, flows }
    };
    Ok((0..).zip(before).map(turn).collect())
}

/// The time now.
fn utc_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::stamp::Stamp;
    use super::super::{IMIX, Transport};
    use super::*;

    fn three() -> Vec<Traffic> {
        let plain = Traffic { stream: Some(1), ..Traffic::default() };
        let sizes = IMIX.map(|size| size.max(120)).to_vec();
        vec![
            Traffic { weight: 5, sizes: vec![70], ..plain.clone() },
            Traffic {
                weight: 1,
                stream: Some(2),
                src: "fd00::1".parse().unwrap(),
                dst: "fd00::2".parse().unwrap(),
                transport: Transport::Tcp,
                vlans: vec![100, 7],
                sizes,
                ..plain.clone()
            },
            Traffic { weight: 2, stream: Some(3), sizes: vec![64, 200], ..plain },
        ]
    }

    fn stamp(streams: &Streams, number: u64, frame: &mut [u8]) -> (Stamp, usize) {
        let length = streams.write(number, frame);
        let (stream, _) = streams.place(number);
        (Stamp::read(&frame[streams.templates[stream].payload..length]).unwrap(), length)
    }

    #[test]
    fn streams_alternate_by_weight_and_number_their_packets_without_gaps() {
        let streams = Streams::new(&three(), 1).unwrap();
        let mut frame = vec![0; streams.largest()];
        streams.prepare(&mut frame);
        let order: Vec<u16> = (0..8).map(|number| stamp(&streams, number, &mut frame).0.stream).collect();
        assert_eq!(order, [1, 3, 1, 1, 2, 1, 3, 1]);
        let mut next = [0; 4];
        for number in 0..8000 {
            let (stamp, _) = stamp(&streams, number, &mut frame);
            let next = &mut next[usize::from(stamp.stream)];
            assert_eq!(stamp.number, *next);
            *next += 1;
        }
        assert_eq!(next, [0, 5000, 1000, 2000]);
    }

    #[test]
    fn a_buffer_of_another_stream_gives_the_same_packet() {
        let streams = Streams::new(&three(), 1).unwrap();
        let (mut used, mut fresh) = (vec![0; streams.largest()], vec![0; streams.largest()]);
        streams.prepare(&mut used);
        for number in 0..500 {
            streams.prepare(&mut fresh);
            let length = streams.write(number, &mut used);
            assert_eq!(streams.write(number, &mut fresh), length);
            // Except for the time, and so the checksum.
            let (stream, own) = streams.place(number);
            let template = &streams.templates[stream];
            for frame in [&mut used, &mut fresh] {
                template.write(own, streams.flow(number), 0, frame);
            }
            assert_eq!(used[..length], fresh[..length], "packet {number}");
        }
    }

    #[test]
    fn bytes_of_streams_are_counted_as_they_are_sent() {
        let streams = Streams::new(&three(), 1).unwrap();
        let mut frame = vec![0; streams.largest()];
        streams.prepare(&mut frame);
        for (first, stride) in [(0, 1), (1, 2), (2, 3), (7, 8), (3, 5)] {
            for count in [0, 1, 5, 8, 9, 100, 1000] {
                let written: usize = (0..count).map(|k| streams.write(first + k * stride, &mut frame)).sum();
                assert_eq!(
                    streams.bytes_of(first, stride, count),
                    written as u64,
                    "{first} {stride} {count}"
                );
            }
        }
    }

    #[test]
    fn weights_are_limited() {
        let heavy = Traffic { weight: 1000, stream: Some(1), sizes: vec![70], ..Traffic::default() };
        assert!(Streams::new(&[heavy.clone(), heavy.clone()], 1).is_err());
        assert!(Streams::new(&[Traffic { weight: 0, ..heavy }], 1).is_err());
        assert!(Streams::new(&[], 1).is_err());
    }

    /// Each flow is sent by one thread, all flows are sent, and by each thread in turn; with a divisor of the flows as
    /// number of threads, a packet's flow is that of a single thread.
    #[test]
    fn a_flow_is_sent_by_one_thread() {
        let one = |flows| vec![Traffic { flows, ..Traffic::default() }];
        let mut several = three();
        several.iter_mut().zip([4, 13, 5]).for_each(|(one, flows)| one.flows = flows);
        for traffic in [one(1), one(7), one(8), one(4096), several] {
            for threads in 1..=5 {
                let Ok(streams) = Streams::new(&traffic, threads) else {
                    assert!(traffic.iter().any(|one| u64::from(one.flows) < threads));
                    continue;
                };
                let mut sent: BTreeMap<(usize, u64), (u64, u64)> = BTreeMap::new();
                let packets = 4096 * 8 * 5;
                for number in 0..packets {
                    let ((stream, own), flow) = (streams.place(number), streams.flow(number));
                    assert!(flow < u64::from(traffic[stream].flows));
                    let (thread, count) = sent.entry((stream, flow)).or_insert((number % threads, 0));
                    assert_eq!(
                        *thread,
                        number % threads,
                        "flow {flow} of stream {stream}, {threads} threads"
                    );
                    *count += 1;
                    let alone = own % u64::from(traffic[stream].flows);
                    let divides = traffic.len() == 1 && u64::from(traffic[0].flows) % threads == 0;
                    assert!(flow == alone || !divides && threads > 1);
                }
                let flows: u64 = traffic.iter().map(|one| u64::from(one.flows)).sum();
                assert_eq!(sent.len() as u64, flows, "{threads} threads");
            }
        }
        let reason = Streams::new(&one(1), 2).unwrap_err().to_string();
        assert!(reason.contains("2 threads cannot share 1 flows and keep the order of each"), "{reason}");
    }
}
