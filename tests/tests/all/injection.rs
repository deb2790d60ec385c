//! Hostile bytes of packets in every field that commands show: none of them reaches standard output or a report
//! unescaped.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wirelane::escape::is_unsafe;
use wirelane_tests::calls::Scene;
use wirelane_tests::commands::PROBE;
use wirelane_tests::frames::{ethernet, replay, udp};
use wirelane_tests::numbers::{LIMIT, capture, column, last_of};
use wirelane_tests::pages::elements;
use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root, wirelane_binary};

/// Each byte between letters; then Unicode characters with an effect on terminals, escape sequences, markup and
/// formulas.
fn hostile() -> Vec<Vec<u8>> {
    let unicode = "\u{61c}\u{200b}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\
                   \u{2067}\u{2068}\u{2069}\u{feff}\u{85}\u{9b}\u{e0041}";
    let texts = [
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\u{9b}31m",
        "a\u{202e}gpj.exe",
        "=cmd|' /C calc'!A1",
        "@SUM(1+1)",
        "+1+1",
        "-2+3",
        "\t=1",
        "\"quo\"te,",
        "<script>alert(1)</script>",
        "';--",
        "%0d%0aX:",
        "\\n\\x1b",
        "\u{1f600}",
        "\u{85}NEL",
        "\u{feff}x",
        "\u{2066}iso\u{2069}",
        "${jndi:ldap://x}",
        "../../../etc/passwd",
        "</title><img src=x onerror=1>",
        "&amp;<>\"",
        "a,b;c|d",
        ". . ",
    ];
    // Behind the last code point, an overlong form, a surrogate, and a sequence that is cut.
    let invalid = [&b"\xf4\x90\x80\x80"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x80"].map(<[u8]>::to_vec);
    let bytes = (0..=255).filter(|byte| !b"\r\n".contains(byte)).map(|byte| vec![b'a', byte, b'b']);
    let unicode = unicode.chars().map(|c| format!("a{c}b").into_bytes());
    bytes.chain(unicode).chain(texts.map(|text| text.as_bytes().to_vec())).chain(invalid).collect()
}

/// A text in which `~` is replaced by the hostile bytes.
fn filled(text: &str, bytes: &[u8]) -> Vec<u8> {
    text.replace('\n', "\r\n").split('~').map(str::as_bytes).collect::<Vec<_>>().join(bytes)
}

/// An HTTP transaction and a call for each hostile text.
fn make_scene(hostile: &[Vec<u8>]) -> Scene {
    let mut scene = Scene::new();
    for (number, bytes) in hostile.iter().enumerate() {
        let at = number as u64 * 10_000;
        let (client, server) = (format!("10.0.0.1:{}", 10_000 + number), "10.0.0.2:80");
        let request = filled("GET /~?~ HTTP/1.1\nHost: ~\nUser-Agent: ~\nReferer: ~\n\n", bytes);
        let answer = filled("HTTP/1.1 200 ~\nContent-Type: ~\nContent-Length: 0\n\n", bytes);
        scene.tcp(at, &client, server, 1, &request);
        scene.tcp(at + 1, server, &client, 1, &answer);
        let head = format!(
            "Via: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK{number}\nFrom: \"~\" <sip:~@b>;tag=~\nTo: <sip:~@d>;tag=2\n\
             Call-ID: ~@{number}\nUser-Agent: ~\nServer: ~\nReason: ~\n"
        );
        let body = "v=0\no=- 1 1 IN IP4 10.0.0.1\ns=~\nc=IN IP4 10.0.0.1\nt=0 0\nm=audio 9000 RTP/AVP 96\n\
                    a=rtpmap:96 ~/8000\n";
        let body = String::from_utf8_lossy(&filled(body, bytes)).into_owned();
        let described = format!("Content-Type: application/sdp\nContent-Length: {}\n\n", body.len());
        for (step, from_caller, start, method, described) in [
            (2, true, "INVITE sip:~@d SIP/2.0\n", "INVITE", true),
            (3, false, "SIP/2.0 200 ~\n", "INVITE", true),
            (4, true, "BYE sip:~@d SIP/2.0\n", "BYE", false),
            (5, false, "SIP/2.0 200 ~\n", "BYE", false),
        ]
        .map(|(step, from, start, method, with)| {
            (step, from, start, method, if with { &*described } else { "\n" })
        }) {
            let mut text = filled(&format!("{start}{head}CSeq: {step} {method}\n{described}"), bytes);
            if described.len() > 1 {
                text.extend(body.as_bytes());
            }
            let ends = ["10.0.0.1:5060", "10.0.0.2:5060"];
            let (from, to) = if from_caller { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
            scene.udp(at + step, from, to, &text);
        }
    }
    scene
}

/// Writes a pcapng file of one packet whose interface has this name.
fn make_named(path: &Path, name: &[u8]) {
    let block = |kind: u32, body: &[u8]| {
        let length = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    };
    let padded = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    // LINKTYPE_ETHERNET without a snap length; option 2 is the name.
    let of_name = [&[2, 0], &(name.len() as u16).to_le_bytes()[..], &padded(name), &[0; 4]].concat();
    let interface = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &of_name].concat();
    let frame = ethernet(0x0800, &udp([10, 0, 0, 1], [10, 0, 0, 2], (1, 2), b"x"));
    let length = (frame.len() as u32).to_le_bytes();
    let packet = [&[0; 12][..], &length, &length, &padded(&frame)].concat();
    fs::write(path, [block(0x0a0d_0d0a, &section), block(1, &interface), block(6, &packet)].concat())
        .unwrap();
}

/// Output of a command, after a check that it is text without unsafe characters other than line ends.
fn shown(folder: &Path, words: &[&str]) -> String {
    let output = Command::new(wirelane_binary().unwrap()).current_dir(folder).args(words).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("it is UTF-8"));
    assert!(output.status.success(), "{words:?}: {}", said[1]);
    for text in &said {
        assert_safe(words, text);
    }
    let [stdout, _] = said;
    stdout
}

fn assert_safe(words: &[&str], text: &str) {
    for line in text.lines() {
        assert!(!line.contains(is_unsafe), "{words:?}: {line:?}");
    }
    assert!(!text.contains('\r'), "{words:?}");
}

/// The cells of a line of CSV; cells do not contain line ends.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // A doubled quote within quotes stands for one.
            '"' if quoted && rest.next_if_eq(&'"').is_some() => cells.last_mut().unwrap().push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().unwrap().push(c),
        }
    }
    cells
}

/// The lines of a command's JSON, each of them an object, and the last one, which is its ledger.
fn objects(words: &[&str], text: &str) -> (Vec<Value>, Value) {
    let parse =
        |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{words:?}: {error}: {line}"));
    let mut objects: Vec<Value> = text.lines().map(parse).collect();
    assert!(objects.iter().all(Value::is_object), "{words:?}");
    let last = objects.pop().unwrap();
    assert_eq!(last["final"], true, "{words:?}: {last}");
    (objects, last)
}

/// Cells that a spreadsheet would run are numbers, or texts after an apostrophe.
fn assert_no_formula(words: &[&str], csv: &str) {
    for cell in csv.lines().flat_map(cells) {
        assert!(!cell.starts_with(['=', '+', '-', '@']) || cell.parse::<f64>().is_ok(), "{words:?}: {cell}");
    }
}

/// Every log and export to a file, and every command's lines: one event is one line, and as many as the ledger counts.
/// Battery: S6
#[test]
fn one_event_is_one_line_in_every_file_and_on_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let hostile = hostile();
    assert!(hostile.len() >= 291, "{}", hostile.len());
    make_scene(&hostile).write(&folder.join("in.pcap")).unwrap();
    fs::write(folder.join("p.toml"), PROBE).unwrap();
    // Options, the file, the keys of its events in the ledger, and the lines of its head.
    for (words, file, events, head) in [
        (&["http", "--log", "common:FILE"][..], "common.log", &["transactions"][..], 0),
        (&["http", "--log", "combined:FILE"], "combined.log", &["transactions"], 0),
        (&["http", "--log", "squid:FILE"], "squid.log", &["transactions"], 0),
        (&["http", "--log", "w3c:FILE"], "w3c.log", &["transactions"], 0),
        (&["http", "--log", "json:FILE"], "http.json", &["transactions"], 0),
        (&["voip", "--export", "file:FILE"], "voip.json", &["calls", "streams_without_call"], 0),
        (&["voip", "--export", "file:FILE"], "voip.csv", &["calls"], 1),
        (&["flows", "--export", "file:FILE"], "flows.json", &["flows"], 0),
        (&["flows", "--export", "file:FILE"], "flows.csv", &["flows"], 1),
    ] {
        let words: Vec<String> = words.iter().map(|word| word.replace("FILE", file)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words = [&words[..], &["--quiet", "--json", "-r", "in.pcap"]].concat();
        let (_, last) = objects(&words, &shown(folder, &words));
        let bytes = fs::read(folder.join(file)).unwrap();
        let text = String::from_utf8(bytes).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert_safe(&words, &text);
        let events: u64 = events.iter().map(|name| column(&last, name)).sum();
        // The directives of W3C's format.
        let lines = text.lines().filter(|line| !file.starts_with("w3c") || !line.starts_with('#')).count();
        assert!(events >= hostile.len() as u64, "{words:?}: {last}");
        assert_eq!(lines as u64 - head, events, "{words:?}: one event is one line");
        if file.ends_with(".json") {
            for line in text.lines() {
                serde_json::from_str::<Value>(line)
                    .unwrap_or_else(|error| panic!("{words:?}: {error}: {line}"));
            }
        }
        if file.ends_with(".csv") {
            assert_no_formula(&words, &text);
        }
    }
    for (words, key, events) in [
        (&["http"][..], "transaction", &["transactions"][..]),
        (&["voip"], "call", &["calls"]),
        (&["flows"], "flow", &["flows"]),
        (&["packets"], "record", &["analysed"]),
    ] {
        let words = [words, &["--json", "-r", "in.pcap"]].concat();
        let (lines, last) = objects(&words, &shown(folder, &words));
        let lines = lines.iter().filter(|line| line.get(key).is_some()).count();
        assert_eq!(lines as u64, events.iter().map(|name| column(&last, name)).sum::<u64>(), "{words:?}");
    }
    let words = ["voip", "--csv", "-r", "in.pcap"];
    let csv = shown(folder, &words);
    assert_no_formula(&words, &csv);
    assert_eq!(csv.lines().count(), hostile.len() + 1, "{words:?}: each call is one line");
    let words = ["probe", "p.toml", "--json", "-r", "in.pcap"];
    objects(&words, &shown(folder, &words));
    shown(folder, &["probe", "p.toml", "-r", "in.pcap"]);
}

/// Battery: S6
#[test]
fn no_byte_of_a_packet_reaches_an_output_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let hostile = hostile();
    make_scene(&hostile).write(&folder.join("in.pcap")).unwrap();
    let read = |words: &[&str]| shown(folder, &[words, &["-r", "in.pcap"]].concat());
    for of in ["http", "voip"] {
        read(&[of, "--quiet", "--store", "s.db"]);
    }
    for print in ["common", "combined", "w3c", "squid", "json"] {
        read(&["http", "--print", print]);
    }
    for of in ["http", "voip", "packets", "flows"] {
        read(&[of]);
        read(&[of, "--json"]);
    }
    for of in ["voip", "flows"] {
        read(&[of, "--csv"]);
    }
    for table in ["transactions", "calls", "streams"] {
        let sql = format!("SELECT * FROM {table}");
        let ask = |words: &[&str]| shown(folder, &[&["query", &sql, "--store", "s.db"], words].concat());
        ask(&[]);
        for line in ask(&["--json"]).lines() {
            serde_json::from_str::<Value>(line).unwrap();
        }
        let csv = ask(&["--csv"]);
        assert_no_formula(&[table], &csv);
        if table != "streams" {
            assert_eq!(csv.lines().count(), hostile.len() + 1, "{table}: each row is one line");
        }
    }
    shown(folder, &["report", "--store", "s.db"]);
    shown(folder, &["report", "--store", "s.db", "--json"]);
    shown(folder, &["report", "--store", "s.db", "--html", "r.html"]);
    let page = fs::read_to_string(folder.join("r.html")).unwrap();
    assert_safe(&["r.html"], &page);
    elements(&page);
}

/// Battery: S6
#[test]
fn no_name_of_an_interface_reaches_an_output_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for name in ["=1+\u{1b}[2J", "\u{202e}eth\u{9b}1", "@\u{2028}x\n"] {
        make_named(&folder.join("in.pcapng"), name.as_bytes());
        // An alarm's text contains the device of its key.
        let probe = "interval = \"1s\"\n[[measurement]]\nname = \"m\"\nkey = [\"device\"]\nvalues = [\"packets\"]\n\
                     [[alarm]]\nname = \"a\"\nmeasurement = \"m\"\nvalue = \"packets\"\nabove = 0\n";
        fs::write(folder.join("p.toml"), probe).unwrap();
        for words in [
            &["packets"][..],
            &["probe", "p.toml"],
            &["probe", "p.toml", "--json"],
            &["packets", "--json"],
            &["flows"],
            &["flows", "--json"],
            &["flows", "--csv"],
            &["count"],
            &["count", "--json"],
        ] {
            let text = shown(folder, &[words, &["-r", "in.pcapng"]].concat());
            if words == ["flows", "--csv"] {
                let formula =
                    text.lines().any(|line| cells(line).iter().any(|cell| cell.starts_with(['=', '@'])));
                assert!(text.lines().count() > 1 && !formula, "{text}");
            }
        }
    }
}

/// Bytes that a command has written to a terminal, without the escape sequences that draw a screen (CSI, and DEC's save and
/// restore of the cursor).
fn undrawn(bytes: Vec<u8>) -> String {
    let text = String::from_utf8(bytes).expect("it is UTF-8");
    let mut rest = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' if chars.next_if_eq(&'[').is_some() => {
                // Parameters and intermediate bytes, up to the final byte (ECMA-48, section 5.4).
                let last = chars.find(|c| matches!(c, '@'..='~'));
                // Only the sequences that set colours, move or clear are used.
                assert!(last.is_some_and(|last| "ABCDHJKmhl".contains(last)), "{last:?}");
            }
            '\u{1b}' if chars.next_if(|c| "78".contains(*c)).is_some() => {}
            '\r' | '\n' => {}
            c => rest.push(c),
        }
    }
    rest
}

/// Battery: S6
#[test]
fn no_byte_of_a_packet_reaches_a_screen_or_a_metric_as_it_is() {
    if !require_root("no_byte_of_a_packet_reaches_a_screen_or_a_metric_as_it_is") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let device = &lab.receiver().device;
    let hostile = hostile();
    let probe = folder.path().join("p.toml");
    fs::write(&probe, PROBE).unwrap();
    let probe = probe.to_str().unwrap();
    let screen = |of: &[&str]| {
        let words = [of, &["--top", "-i", device, "--interval", "0.2"]].concat();
        Terminal::start(&lab, 200, 50, &words)
    };
    let screens = [&["voip"][..], &["flows"], &["probe", probe]].map(screen);
    screens.iter().for_each(|screen| screen.until_text("q ends"));
    let scraped = [("http", "127.0.0.1:9481"), ("voip", "127.0.0.1:9482"), ("probe", "127.0.0.1:9483")];
    let commands = scraped.map(|(of, address)| {
        let words = [of, "-i", device, "--json", "--quiet", "--metrics", address];
        let ready = if of == "probe" { &["--ready", "bandwidth"][..] } else { &[] };
        capture(&lab, &[&words[..], ready].concat()).unwrap()
    });
    // 5,000 packets a second, a rate without losses.
    replay(&lab, folder.path(), &make_scene(&hostile).into_frames(), 1).unwrap();
    let calls = hostile.len();
    screens[0].until_text(&format!("{calls}"));
    for (of, address) in scraped {
        let page = lab
            .enter(&lab.receiver().namespace, || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                let mut page = Vec::new();
                stream.read_to_end(&mut page).unwrap();
                String::from_utf8(page).expect("it is UTF-8")
            })
            .unwrap();
        let (_, body) = page.split_once("\r\n\r\n").unwrap();
        assert_safe(&[of, "--metrics"], body);
        for label in body
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(|line| line.split('"').skip(1).step_by(2))
        {
            let ours = |c: char| c.is_ascii_alphanumeric() || "_-.+ ".contains(c);
            assert!(label.chars().all(ours), "{of}: {label:?}");
        }
    }
    for mut screen in screens {
        screen.type_in("q");
        let written = screen.written();
        assert!(screen.ended().0.success());
        let text = undrawn(written);
        assert!(!text.contains(is_unsafe), "{text:?}");
    }
    let [http, voip, probe] = commands.map(|command| last_of(&command.terminate(LIMIT).unwrap()).unwrap());
    assert_eq!([&http, &voip, &probe].map(|last| column(last, "lost")), [0; 3]);
    assert_eq!(column(&http, "transactions"), hostile.len() as u64, "{http}");
    assert_eq!(column(&voip, "calls"), hostile.len() as u64, "{voip}");
}
