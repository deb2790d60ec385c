//! Several streams of packets that alternate by their weights.
//!
//! A round has as many packets as the weights add up to. Within a round the streams alternate as evenly as their weights
//! allow (smooth weighted round robin, as nginx does it). Each stream numbers its own packets without gaps, so packet `n` of
//! the run is always the same packet of the same stream, whichever thread sends it.

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

/// The templates of all streams, and their order.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    templates: Vec<Template>,
    weights: Vec<u64>,
    round: Vec<Place>,
    largest: usize,
    /// Bytes that may hold the headers of any stream.
    head: usize,
    stamped: bool,
}

impl Streams {
    /// The streams of this traffic.
    pub(crate) fn new(traffic: &[Traffic]) -> Result<Streams> {
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
        let round = round.collect();
        Ok(Streams {
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
        if let Some(only) = self.only() {
            return only.write(number, sent_ns, frame);
        }
        let (stream, number) = self.place(number);
        let template = &self.templates[stream];
        // The buffer holds a packet of any stream. Behind the longest headers all bytes are zero.
        let head = self.head.min(template.frame.len());
        frame[..head].copy_from_slice(&template.frame[..head]);
        template.write(number, sent_ns, frame)
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
        let streams = Streams::new(&three()).unwrap();
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
        let streams = Streams::new(&three()).unwrap();
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
                template.write(own, 0, frame);
            }
            assert_eq!(used[..length], fresh[..length], "packet {number}");
        }
    }

    #[test]
    fn bytes_of_streams_are_counted_as_they_are_sent() {
        let streams = Streams::new(&three()).unwrap();
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
        assert!(Streams::new(&[heavy.clone(), heavy.clone()]).is_err());
        assert!(Streams::new(&[Traffic { weight: 0, ..heavy }]).is_err());
        assert!(Streams::new(&[]).is_err());
    }
}
