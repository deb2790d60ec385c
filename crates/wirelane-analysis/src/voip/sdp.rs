//! Session descriptions (RFC 8866): places and types of media.
//!
//! Lines are accepted in any order: descriptions of real devices lack required lines or have them in another order.

use std::net::IpAddr;

/// Maximum media of one description; further ones are only counted.
pub const MOST_MEDIA: usize = 16;
/// Maximum payload types of one media.
pub const MOST_PAYLOADS: usize = 16;
/// Maximum candidates of one media (RFC 8839).
pub const MOST_CANDIDATES: usize = 8;

/// A payload type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Payload type number.
    pub pt: u8,
    /// Name of the encoding from the rtpmap; at most 24 bytes.
    pub name: Box<str>,
    /// Rate of the RTP timestamp in Hz.
    pub clock: u32,
}

/// One media.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Whether its transport is RTP; T.38 over UDPTL is not.
    pub rtp: bool,
    /// Whether it is audio.
    pub audio: bool,
    /// Address of the receiver; `None` if it is a name, or missing.
    pub address: Option<IpAddr>,
    /// Port of the receiver; 0: no media.
    pub port: u16,
    /// Place of RTCP if it is not the next port (RFC 3605).
    pub rtcp: Option<(Option<IpAddr>, u16)>,
    /// Whether RTCP uses the same port (RFC 5761).
    pub rtcp_mux: bool,
    /// Payload types.
    pub payloads: Vec<Payload>,
    /// Candidate addresses (RFC 8839): the media may be sent to one of them. With the component: 1 is RTP, 2 RTCP.
    pub candidates: Vec<(u8, IpAddr, u16)>,
}

/// A description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The first [`MOST_MEDIA`] media.
    pub media: Vec<Media>,
    /// Number of further media.
    pub more: u64,
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// `IN IP4 192.0.2.1/127`.
fn connection(value: &str) -> Option<IpAddr> {
    let address = value.split_ascii_whitespace().nth(2)?;
    address.split('/').next()?.parse().ok()
}

fn payload(media: &mut Media, pt: u8) -> Option<&mut Payload> {
    media.payloads.iter_mut().find(|payload| payload.pt == pt)
}

/// Parses a description. `None`: it has no media line.
pub fn parse(body: &[u8]) -> Option<Description> {
    let mut described = Description::default();
    let mut session: Option<IpAddr> = None;
    let (mut any, mut kept) = (false, false);
    for line in body.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let [kind, b'=', value @ ..] = line else { continue };
        let value = text(value);
        match kind {
            b'm' => {
                any = true;
                kept = described.media.len() < MOST_MEDIA;
                if kept {
                    described.media.push(media_line(value, session));
                } else {
                    described.more += 1;
                }
            }
            b'c' if !any => session = connection(value),
            b'c' if kept => {
                if let (Some(media), Some(address)) = (described.media.last_mut(), connection(value)) {
                    media.address = Some(address);
                }
            }
            b'a' if kept => {
                if let Some(media) = described.media.last_mut() {
                    attribute(media, value);
                }
            }
            _ => {}
        }
    }
    any.then_some(described)
}

/// `audio 6000 RTP/AVP 0 101`.
fn media_line(value: &str, address: Option<IpAddr>) -> Media {
    let mut words = value.split_ascii_whitespace();
    let audio = words.next().is_some_and(|kind| kind.eq_ignore_ascii_case("audio"));
    // A number of ports may follow the port.
    let port = words.next().and_then(|port| port.split('/').next()?.parse().ok()).unwrap_or(0);
    let rtp = words.next().is_some_and(|transport| {
        transport
            .split('/')
            .any(|part| part.eq_ignore_ascii_case("RTP") || part.eq_ignore_ascii_case("SAVPF"))
    });
    let types = words.filter_map(|word| word.parse::<u8>().ok()).filter(|pt| *pt < 128).take(MOST_PAYLOADS);
    let payloads = types.map(|pt| Payload { pt, name: "".into(), clock: 0 }).collect();
    Media { rtp, audio, address, port, payloads, ..Media::default() }
}

fn attribute(media: &mut Media, value: &str) {
    let (name, value) = value.split_once(':').unwrap_or((value, ""));
    match name {
        "rtpmap" => {
            let mut words = value.split_ascii_whitespace();
            let pt = words.next().and_then(|pt| pt.parse().ok());
            let Some((name, rest)) = words.next().and_then(|format| format.split_once('/')) else { return };
            let clock = rest.split('/').next().and_then(|rate| rate.parse().ok()).unwrap_or(0);
            if let Some(payload) = pt.and_then(|pt| payload(media, pt)) {
                let cut = name.char_indices().nth(24).map_or(name.len(), |(at, _)| at);
                payload.name = super::sip::text(&name.as_bytes()[..cut]);
                // An implausible clock rate would result in meaningless times.
                payload.clock = if (1000..=1_000_000).contains(&clock) { clock } else { 0 };
            }
        }
        "rtcp-mux" => media.rtcp_mux = true,
        "rtcp" => {
            let mut words = value.split_ascii_whitespace();
            if let Some(port) = words.next().and_then(|port| port.parse().ok()) {
                media.rtcp = Some((words.nth(2).and_then(|address| address.parse().ok()), port));
            }
        }
        "candidate" if media.candidates.len() < MOST_CANDIDATES => {
            // foundation component transport priority address port
            let mut words = value.split_ascii_whitespace().skip(1);
            let component = words.next().and_then(|component| component.parse().ok());
            let udp = words.next().is_some_and(|transport| transport.eq_ignore_ascii_case("UDP"));
            let address = words.nth(1).and_then(|address| address.parse().ok());
            let port = words.next().and_then(|port| port.parse().ok());
            if let (true, Some(component), Some(address), Some(port)) = (udp, component, address, port) {
                media.candidates.push((component, address, port));
            }
        }
        _ => {}
    }
}

impl Media {
    /// Address and port of the receiver; `None` if the media is disabled, or on hold by the address 0.0.0.0 or ::.
    pub fn place(&self) -> Option<(IpAddr, u16)> {
        let address = self.address.filter(|address| !address.is_unspecified());
        (self.rtp && self.port != 0).then_some(())?;
        address.map(|address| (address, self.port))
    }

    /// Address and port of its RTCP, if it is not the same port.
    pub fn rtcp_place(&self) -> Option<(IpAddr, u16)> {
        let (address, port) = self.place()?;
        match self.rtcp {
            Some((elsewhere, port)) if port != 0 => Some((elsewhere.unwrap_or(address), port)),
            _ => port.checked_add(1).map(|port| (address, port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_media_with_addresses_of_their_own() {
        let described = parse(
            b"v=0\r\no=- 1 1 IN IP4 192.0.2.9\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n\
              m=audio 6000 RTP/AVP 0 101\r\na=rtpmap:101 telephone-event/8000\r\na=rtcp:7001 IN IP4 192.0.2.7\r\n\
              m=video 0 RTP/SAVPF 96\r\nm=video 6004/2 UDP/TLS/RTP/SAVPF 97\nc=IN IP6 2001:db8::1\n\
              a=rtpmap:97 VP8/90000\na=rtcp-mux\n\
              a=candidate:1 1 UDP 2130706431 10.0.0.1 5000 typ host\na=candidate:1 1 TCP 1 10.0.0.1 9 typ host\n\
              m=image 5004 udptl t38\r\n",
        )
        .unwrap();
        let [audio, off, video, fax] = &described.media[..] else { panic!("{described:?}") };
        assert_eq!(audio.place(), Some(("192.0.2.1".parse().unwrap(), 6000)));
        assert_eq!(audio.rtcp_place(), Some(("192.0.2.7".parse().unwrap(), 7001)));
        assert_eq!((&*audio.payloads[1].name, audio.payloads[1].clock), ("telephone-event", 8000));
        assert_eq!(off.place(), None);
        assert_eq!(video.place(), Some(("2001:db8::1".parse().unwrap(), 6004)));
        assert_eq!(video.candidates, [(1, "10.0.0.1".parse().unwrap(), 5000)]);
        assert!(video.rtcp_mux && !fax.rtp && fax.place().is_none());
    }

    #[test]
    fn a_thousand_media_are_counted() {
        let body = "c=IN IP4 192.0.2.1\r\n".to_owned() + &"m=audio 6000 RTP/AVP 0\r\n".repeat(1000);
        let described = parse(body.as_bytes()).unwrap();
        assert_eq!((described.media.len(), described.more), (MOST_MEDIA, 1000 - MOST_MEDIA as u64));
        assert_eq!(parse(b"v=0\r\ns=-\r\n"), None);
    }

    #[test]
    fn odd_clocks_and_held_media() {
        let described =
            parse(b"c=IN IP4 0.0.0.0\nm=audio 6000 RTP/AVP 96\na=rtpmap:96 x/1\na=rtpmap:97 y/8000\n")
                .unwrap();
        assert_eq!((described.media[0].place(), described.media[0].payloads[0].clock), (None, 0));
    }
}
