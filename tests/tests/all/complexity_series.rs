//! Linear time: series of n to 8n hostile elements for each parser and table.
//!
//! In a process of its own: it measures the processor time of all children.

mod tables;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use wirelane_tests::calls::{Scene, description, message, rtp};
use wirelane_tests::frames::ethernet;
use wirelane_tests::recordings::{write_header, write_packet};
use wirelane_tests::{children_cpu_time, full, in_own_process, wirelane_binary};

/// Largest allowed cost ratio of eight times the elements: 64 where the time grows with the square, 12.2 for three steps of 2.3.
/// Between neighbouring points the ratio also depends on caches and on other processes.
const MOST: f64 = 12.0;
/// Measurements of a point: others use the processor, too, so the least counts.
const TIMES: usize = 2;
/// Measurements of a series before it fails.
const TRIES: usize = 40;
/// Least cost of the first point of a series. Below that, the start of the process dominates.
const LEAST: Duration = Duration::from_millis(30);

/// Processor time of a command over a file: the least of [`TIMES`] runs.
fn cost(words: &[&str], file: &Path) -> Duration {
    let run = || {
        let begun = children_cpu_time();
        let mut command = Command::new(wirelane_binary().unwrap());
        command.args(words).arg("-r").arg(file).stdout(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}: {said:.1000}", output.status);
        children_cpu_time() - begun
    };
    (0..TIMES).map(|_| run()).min().unwrap()
}

/// Makes so many elements.
#[derive(Clone, Copy)]
enum Make {
    /// Frames in the order of the file.
    Frames(fn(usize) -> Vec<Vec<u8>>),
    /// A rule file, for a capture without packets.
    Rules(fn(usize) -> String),
    /// Frames for these rules.
    Ruled(&'static str, fn(usize) -> Vec<Vec<u8>>),
    /// A capture file.
    File(fn(usize, &Path)),
}

/// A series; `elements` is the size of its first point.
struct Series {
    name: &'static str,
    words: &'static [&'static str],
    elements: usize,
    make: Make,
}

impl Series {
    /// Processor time of the command for so many elements.
    fn cost(&self, folder: &Path, elements: usize) -> Duration {
        let (file, rules) = (folder.join("in.pcap"), folder.join("rules.toml"));
        let mut words = self.words.to_vec();
        let mut ruled = |text: &str| {
            std::fs::write(&rules, text).unwrap();
            words.extend(["--rules", rules.to_str().unwrap()]);
        };
        match self.make {
            Make::Frames(make) => write(&file, &make(elements)),
            Make::Rules(make) => {
                ruled(&make(elements));
                write(&file, &[]);
            }
            Make::Ruled(text, make) => {
                ruled(text);
                write(&file, &make(elements));
            }
            Make::File(make) => make(elements, &file),
        }
        cost(&words, &file)
    }
}

fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut output = BufWriter::new(File::create(path).unwrap());
    write_header(&mut output).unwrap();
    for (number, frame) in frames.iter().enumerate() {
        write_packet(&mut output, number as u64 * 1000, frame).unwrap();
    }
    output.flush().unwrap();
}

const CLIENT: &str = "10.0.0.1:4000";
const WEB: &str = "10.0.0.2:80";
const SIP: &str = "10.0.0.2:5060";

fn scene(fill: impl FnOnce(&mut Scene)) -> Vec<Vec<u8>> {
    let mut scene = Scene::new();
    fill(&mut scene);
    scene.into_frames()
}

/// A stream in segments of so many bytes, in the given order.
fn segments(to: &str, bytes: &[u8], size: usize, order: impl Fn(&mut [usize])) -> Vec<Vec<u8>> {
    scene(|scene| {
        scene.segment(CLIENT, to, 2, (0, 0), b"");
        let parts: Vec<&[u8]> = bytes.chunks(size).collect();
        let mut numbers: Vec<usize> = (0..parts.len()).collect();
        order(&mut numbers);
        for number in numbers {
            scene.segment(CLIENT, to, 0x18, (1 + (number * size) as u32, 1), parts[number]);
        }
    })
}

/// Shuffles deterministically.
fn shuffle(numbers: &mut [usize]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(at, (state >> 33) as usize % (at + 1));
    }
}

/// A fragment of an IPv4 datagram.
fn fragment(source: u32, id: u16, offset: usize, more: bool, bytes: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet[2..4].copy_from_slice(&(20 + bytes.len() as u16).to_be_bytes());
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&((offset / 8) as u16 | if more { 0x2000 } else { 0 }).to_be_bytes());
    packet.extend(Ipv4Addr::from(0x0a01_0000 + source).octets());
    packet.extend([10, 0, 0, 2]);
    packet.extend(bytes);
    ethernet(0x0800, &packet)
}

fn invite(id: &str, tag: usize, more: &str, body: &str) -> Vec<u8> {
    let (from, to) = (format!("From: <sip:a@b>;tag={tag}"), format!("To: <sip:c@d>;tag={tag}"));
    let (cseq, id) = (format!("CSeq: {tag} INVITE"), format!("Call-ID: {id}"));
    let mut lines = vec![from.as_str(), &to, &id, &cseq];
    lines.extend(more.lines());
    message("INVITE sip:c@d SIP/2.0", &lines, body)
}

const SERIES: [Series; 18] = [
    Series {
        name: "http: segments in reverse",
        words: &["http", "--quiet"],
        elements: 2000,
        make: Make::Frames(|n| {
            segments(WEB, format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(4 * n)).as_bytes(), 4, |order| {
                order.reverse()
            })
        }),
    },
    Series {
        name: "http: segments in any order",
        words: &["http", "--quiet"],
        elements: 2000,
        make: Make::Frames(|n| {
            segments(WEB, format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(4 * n)).as_bytes(), 4, shuffle)
        }),
    },
    Series {
        name: "http: one byte a segment",
        words: &["http", "--quiet"],
        elements: 4000,
        make: Make::Frames(|n| segments(WEB, format!("GET /{}", "a".repeat(n)).as_bytes(), 1, |_| {})),
    },
    Series {
        name: "http: fields",
        words: &["http", "--quiet"],
        elements: 40_000,
        make: Make::Frames(|n| {
            segments(WEB, format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(n)).as_bytes(), 1400, |_| {})
        }),
    },
    Series {
        name: "http: requests that do not wait",
        words: &["http", "--quiet"],
        elements: 4000,
        make: Make::Frames(|n| segments(WEB, "GET / HTTP/1.1\r\n\r\n".repeat(n).as_bytes(), 1400, |_| {})),
    },
    Series {
        name: "http: chunks of one byte",
        words: &["http", "--quiet"],
        elements: 20_000,
        make: Make::Frames(|n| {
            let mut frames = segments(WEB, b"GET / HTTP/1.1\r\n\r\n", 1400, |_| {});
            let response =
                format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", "1\r\na\r\n".repeat(n));
            frames.extend(scene(|scene| {
                for (number, part) in response.as_bytes().chunks(1400).enumerate() {
                    scene.segment(WEB, CLIENT, 0x18, (1 + number as u32 * 1400, 19), part);
                }
            }));
            frames
        }),
    },
    Series {
        name: "voip: segments in reverse",
        words: &["voip", "--quiet"],
        elements: 2000,
        make: Make::Frames(|n| {
            segments(
                SIP,
                format!("INVITE sip:a SIP/2.0\r\nX: {}", "y".repeat(4 * n)).as_bytes(),
                4,
                |order| order.reverse(),
            )
        }),
    },
    Series {
        name: "voip: segments in any order",
        words: &["voip", "--quiet"],
        elements: 2000,
        make: Make::Frames(|n| {
            segments(SIP, format!("INVITE sip:a SIP/2.0\r\nX: {}", "y".repeat(4 * n)).as_bytes(), 4, shuffle)
        }),
    },
    Series {
        name: "voip: fragments in the worst order",
        words: &["voip", "--quiet"],
        elements: 4000,
        make: Make::Frames(|n| {
            let datagram = |id| (0..100).rev().map(move |at| fragment(0, id, at * 8, at < 99, &[b'z'; 8]));
            (0..n / 100).flat_map(|id| datagram(id as u16)).collect()
        }),
    },
    Series {
        name: "voip: first fragments",
        words: &["voip", "--quiet"],
        elements: 5000,
        make: Make::Frames(|n| {
            (0..n).map(|id| fragment((id >> 16) as u32, id as u16, 0, true, &[b'z'; 64])).collect()
        }),
    },
    Series {
        name: "voip: overlapping fragments",
        words: &["voip", "--quiet"],
        elements: 4000,
        make: Make::Frames(|n| {
            (0..n).map(|at| fragment(0, 7, at * 40 % 60_000, true, &[b'z'; 64])).collect()
        }),
    },
    Series {
        name: "voip: Via fields",
        words: &["voip", "--quiet"],
        elements: 20_000,
        make: Make::Frames(|n| {
            let via = "Via: x\r\n".repeat(1000);
            scene(|scene| {
                (0..n / 1000)
                    .for_each(|k| scene.udp(0, CLIENT, SIP, &invite(&format!("{}", k % 5), 1, &via, "")))
            })
        }),
    },
    Series {
        name: "voip: media of one call",
        words: &["voip", "--quiet"],
        elements: 8000,
        make: Make::Frames(|n| {
            let media = |k: usize| {
                (0..800)
                    .map(|at| format!("m=audio {} RTP/AVP 0\r\n", 2 + 2 * ((k * 800 + at) % 30_000)))
                    .collect::<String>()
            };
            scene(|scene| {
                (0..n / 800).for_each(|k| {
                    scene.udp(
                        0,
                        CLIENT,
                        SIP,
                        &invite("one", k, "", &(description("10.0.0.1", 6000) + &media(k))),
                    );
                })
            })
        }),
    },
    Series {
        name: "voip: messages of one Call-ID, all tags new",
        words: &["voip", "--quiet"],
        elements: 1000,
        make: Make::Frames(|n| {
            scene(|scene| (0..n).for_each(|tag| scene.udp(0, CLIENT, SIP, &invite("one", tag, "", ""))))
        }),
    },
    Series {
        name: "voip: calls",
        words: &["voip", "--quiet"],
        elements: 1000,
        make: Make::Frames(|n| {
            scene(|scene| {
                (0..n).for_each(|k| {
                    scene.udp(
                        0,
                        CLIENT,
                        SIP,
                        &invite(&format!("{k}@x"), 1, "", &description("10.0.0.1", 6000)),
                    )
                })
            })
        }),
    },
    Series {
        name: "voip: an SSRC in each packet",
        words: &["voip", "--quiet", "--heuristic"],
        elements: 5000,
        make: Make::Frames(|n| {
            scene(|scene| {
                scene.udp(0, CLIENT, SIP, &invite("one", 1, "", &description("10.0.0.1", 6000)));
                (0..n).for_each(|k| {
                    scene.udp(
                        0,
                        &format!("10.0.0.2:{}", 7000 + k % 50),
                        "10.0.0.1:6000",
                        &rtp(k as u64, k as u32),
                    )
                });
            })
        }),
    },
    Series {
        name: "flows: every packet a new flow",
        words: &["flows", "--quiet"],
        elements: 10_000,
        make: Make::Frames(|n| {
            scene(|scene| {
                (0..n).for_each(|k| {
                    scene.udp(
                        0,
                        &format!("10.{}.{}.1:{}", k >> 16 & 255, k >> 8 & 255, 1024 + (k & 255)),
                        "10.0.0.2:9",
                        b"x",
                    )
                })
            })
        }),
    },
    Series {
        name: "probe: every packet a new key",
        words: &["probe", "--ready", "port-scan", "--quiet"],
        elements: 10_000,
        make: Make::Frames(|n| {
            scene(|scene| {
                (0..n).for_each(|k| {
                    scene.segment(
                        &format!("10.{}.{}.1:1024", k >> 8 & 255, k & 255),
                        &format!("10.0.0.2:{}", 1 + k % 60_000),
                        2,
                        (0, 0),
                        b"",
                    )
                })
            })
        }),
    },
];

/// Battery: I7
#[test]
fn hostile_elements_take_linear_time() {
    if !in_own_process("complexity_series::hostile_elements_take_linear_time") {
        return;
    }
    SERIES.iter().for_each(is_linear);
}

/// Battery: I7
#[test]
fn hostile_tables_and_rules_take_linear_time() {
    if in_own_process("complexity_series::hostile_tables_and_rules_take_linear_time") {
        tables::TABLES.iter().for_each(is_linear);
    }
}

/// Asserts that eight times the elements of a series take at most [`MOST`] times the time.
fn is_linear(series: &Series) {
    let folder = tempfile::tempdir().unwrap();
    let (folder, name) = (folder.path(), series.name);
    let mut elements = series.elements;
    let idle = series.cost(folder, 0);
    let mut ratio = f64::INFINITY;
    // Only the ends are compared; the points between them show where a cost begins to grow.
    let factors = if full() { &[1, 2, 4, 8][..] } else { &[1, 8] };
    // The least of all tries with the same elements: the cost of other processes is not counted.
    let mut points = vec![Duration::MAX; factors.len()];
    for attempt in 1..=TRIES {
        for (point, factor) in points.iter_mut().zip(factors) {
            *point = series.cost(folder, elements * factor).saturating_sub(idle).min(*point);
        }
        ratio = points[factors.len() - 1].as_secs_f64() / points[0].as_secs_f64().max(1e-6);
        println!("{name}: {elements} elements, {points:?}, {ratio:.2}");
        if points[0] < LEAST && attempt < TRIES {
            elements *= 2;
            points.fill(Duration::MAX);
        }
        if ratio <= MOST {
            break;
        }
    }
    assert!(ratio <= MOST, "{name}: eight times the elements take {ratio:.2} times as long: {points:?}");
}

/// Filter expressions of 10,000 terms and of 1 MiB are compiled or refused within a second of processor time.
/// Battery: I8
#[test]
fn long_expressions_end_soon() {
    if !in_own_process("complexity_series::long_expressions_end_soon") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, expression) = (folder.path().join("in.pcap"), folder.path().join("expression"));
    write(&file, &[]);
    let terms =
        |join: &str, term: &dyn Fn(usize) -> String| (0..10_000).map(term).collect::<Vec<_>>().join(join);
    for (name, text) in [
        ("ports", terms(" or ", &|n| format!("port {}", n + 1))),
        ("hosts", terms(" or ", &|n| format!("host 10.0.{}.{}", n >> 8, n & 255))),
        ("bytes", terms(" and ", &|n| format!("udp[{}] != {}", n % 1000, n & 255))),
        ("not", format!("{}udp", "not ".repeat(10_000))),
        ("brackets", format!("{0}udp{1}", "(".repeat(10_000), ")".repeat(10_000))),
        ("1 MiB of brackets", "(".repeat(1 << 20)),
        ("1 MiB of a word", "a".repeat(1 << 20)),
        ("1 MiB of digits", format!("port {}", "9".repeat(1 << 20))),
        ("1 MiB of blanks", format!("udp{}", " ".repeat(1 << 20))),
    ] {
        std::fs::write(&expression, &text).unwrap();
        let begun = children_cpu_time();
        let mut command = Command::new(wirelane_binary().unwrap());
        command.args(["count", "--json", "-F"]).arg(&expression).arg("-r").arg(&file);
        let output = command.output().unwrap();
        let took = children_cpu_time() - begun;
        println!("{name}: {:?}, {took:?}", output.status.code());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 2)), "{name}: {}: {said:.1000}", output.status);
        assert!(said.len() < 20_000, "{name}: an error of {} bytes", said.len());
        assert!(took < Duration::from_secs(1), "{name}: {took:?}");
    }
}
