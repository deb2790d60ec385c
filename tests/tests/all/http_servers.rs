//! `wirelane http` beside real servers: nginx, Apache and Squid with real clients. The logs are equal line by line,
//! except for facts that are not on the wire: when a server began to process a request (times), and the result of
//! Squid's cache.

mod offloaded;
mod servers;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use servers::{Servers, is_there};
use wirelane_tests::numbers::{LIMIT, capture, column, finish};
use wirelane_tests::{Lab, require_root};

/// Lines, and how often each occurs.
type Lines = BTreeMap<String, usize>;

fn lines(text: &str, normal: impl Fn(&str) -> String) -> Lines {
    let mut lines = Lines::new();
    for line in text.lines() {
        *lines.entry(normal(line)).or_default() += 1;
    }
    lines
}

/// A line of Apache's formats without its time.
fn timeless(line: &str) -> String {
    let (before, rest) = line.split_once('[').unwrap();
    let (_, after) = rest.split_once(']').unwrap();
    format!("{before}{after}")
}

/// A line without its time and the number of bytes, which is the third word after the quotes around the request.
fn without_bytes(line: &str) -> String {
    let (before, after) =
        timeless(line).split_once("\" ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let words: Vec<&str> = after.splitn(3, ' ').collect();
    format!("{before}\" {} {}", words[0], words.get(2).unwrap_or(&""))
}

/// Fields of a line in Squid's native format: client, status, bytes, method, URL, type.
fn squid(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let status = words[3].split_once('/').unwrap().1;
    format!("{} {status} {} {} {} {}", words[2], words[4], words[5], words[6], words[9])
}

fn only<'a>(one: &'a Lines, other: &Lines) -> Vec<(&'a String, &'a usize)> {
    one.iter().filter(|(line, count)| other.get(*line) != Some(*count)).collect()
}

fn assert_same(what: &str, ours: &Lines, theirs: &Lines) {
    let (ours_only, theirs_only) = (only(ours, theirs), only(theirs, ours));
    assert!(ours == theirs, "{what}: ours only {ours_only:#?}\ntheirs only {theirs_only:#?}");
    println!("{what}: {} lines are the same", ours.values().sum::<usize>());
}

/// Runs a client in the sender's namespace.
fn client(lab: &Lab, home: &Path, words: &[&str]) -> String {
    let mut command = lab.command(&lab.sender().namespace, words[0]);
    let output = command.args(&words[1..]).env("HOME", home).env_remove("http_proxy").output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sends raw bytes, and reads up to the end of the response.
fn raw(lab: &Lab, to: SocketAddr, parts: &[&[u8]]) -> Vec<u8> {
    let talk = || {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        for part in parts {
            stream.write_all(part)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut answer = Vec::new();
        // A server may reset the connection of a refused request.
        let _ = stream.read_to_end(&mut answer);
        std::io::Result::Ok(answer)
    };
    lab.enter(&lab.sender().namespace, talk).unwrap().unwrap()
}

/// Requests as a browser, an impatient program and an attacker would send them.
fn ask(lab: &Lab, home: &Path, to: SocketAddr) {
    let at = |path: &str| format!("http://{to}{path}");
    let curl = |words: &[&str]| client(lab, home, &[&["curl", "-s", "-o", "/dev/null"], words].concat());
    // Many requests over one connection.
    let (small, large, gone) = (at("/small.txt"), at("/large.bin"), at("/gone?a=b&c=%22d%22"));
    curl(&[&small, "-o", "/dev/null", &large, "-o", "/dev/null", &gone, "-o", "/dev/null", &small]);
    curl(&["-I", &small]);
    curl(&["-r", "10-19", &large]);
    curl(&["-z", "2037-01-01", &small]);
    curl(&["-A", "quote \" backslash \\ tab \t end", "-e", "http://example.org/a?\"b\"", &small]);
    curl(&["-H", "User-Agent:", &small]);
    curl(&["-X", "DELETE", &small]);
    curl(&["-X", "FOO", &small]);
    curl(&["-d", "a=b", &small]);
    curl(&["-d", &"x".repeat(5000), "-H", "Expect: 100-continue", &at("/post")]);
    curl(&["-d", "chunked", "-H", "Transfer-Encoding: chunked", &at("/post")]);
    curl(&["--http1.0", &small]);
    curl(&["-u", "somebody:secret", "-b", "session=secret", &small]);
    // Large bodies in both directions, chunked and not, one after the other.
    for _ in 0..5 {
        curl(&[&large, "-o", "/dev/null", &large, "-o", "/dev/null", &small]);
    }
    curl(&["-d", &"u".repeat(100_000), "-H", "Expect:", &at("/post")]);
    // Pipelined, and byte by byte.
    let get = |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: here\r\n{more}\r\n");
    let many: String = (0..40).map(|n| get(&format!("/small.txt?{n}"), "")).collect();
    raw(lab, to, &[(many + &get("/end", "Connection: close\r\n")).as_bytes()]);
    let slowly =
        get("/small.txt?slowly", "User-Agent: a\r\n b\r\nConnection: close\r\n").replace("a\r\n b", "a b");
    let bytes: Vec<&[u8]> = slowly.as_bytes().chunks(1).collect();
    raw(lab, to, &bytes);
    let long = get(&format!("/{}", "long".repeat(700)), "Connection: close\r\n");
    raw(lab, to, &[long.as_bytes()]);
    // Bytes that are not UTF-8, and requests that servers refuse.
    raw(lab, to, &[b"GET /\xff\xfe\xc3\xa9 HTTP/1.1\r\nHost: h\r\nUser-Agent: \x01\x1b[2J\x7f\xe9\r\nConnection: close\r\n\r\n"]);
    raw(lab, to, &[b"GET /lf HTTP/1.1\nHost: h\nConnection: close\n\n"]);
}

/// Requests through Squid: a proxy receives absolute URLs.
fn ask_proxy(lab: &Lab, home: &Path, proxy: SocketAddr, origin: SocketAddr) {
    let at = |path: &str| format!("http://{origin}{path}");
    let proxy = proxy.to_string();
    let curl = |words: &[&str]| {
        client(lab, home, &[&["curl", "-s", "-o", "/dev/null", "-x", &proxy], words].concat())
    };
    let (small, large) = (at("/small.txt"), at("/large.bin"));
    curl(&[&small, "-o", "/dev/null", &large, "-o", "/dev/null", &at("/gone")]);
    curl(&["-I", &large]);
    curl(&["-d", "a=b", &small]);
    curl(&["-r", "5-9", &large]);
    curl(&["http://nothing.invalid/"]);
}

/// Waits until a file has not grown for a while, and returns its content.
fn settled(path: &Path) -> String {
    let (mut length, mut since, end) = (0, Instant::now(), Instant::now() + LIMIT);
    while since.elapsed() < Duration::from_millis(600) && Instant::now() < end {
        let now = fs::metadata(path).map_or(0, |data| data.len());
        if now != length {
            (length, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::read_to_string(path).unwrap()
}

fn of_port(log: &str, port: u16) -> Vec<Value> {
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["server_port"] == port).collect()
}

/// Battery: S6
#[test]
fn logs_are_those_of_the_servers() {
    if !require_root("logs_are_those_of_the_servers")
        || !is_there(&["nginx", "apache2", "squid", "curl", "siege", "wrk"])
    {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(&lab, folder.path());
    let device = lab.receiver().device.clone();
    let at = |name: &str| folder.path().join(name);
    let log = |format: &str| format!("{format}:{}", at(&format!("{format}.log")).display());
    let formats = ["common", "combined", "vhost", "combined-us", "nginx", "squid", "w3c", "json"];
    let logs: Vec<String> = formats.iter().flat_map(|format| ["--log".to_owned(), log(format)]).collect();
    // Nine outputs of small transactions exceed the limit that their packets allow, so there is no limit.
    let words = ["http", "-i", &device, "--direction", "both", "--json", "--quiet", "--ring-size", "64"];
    let words: Vec<&str> = [&words[..], &["--output-rate", "0"]].concat();
    let words: Vec<&str> = words.into_iter().chain(logs.iter().map(String::as_str)).collect();
    let offloaded = offloaded::start(&lab, &at("offloaded.json"));
    let child = capture(&lab, &words).unwrap();

    ask(&lab, folder.path(), servers.nginx);
    // A chunked response: nginx includes the chunk framing in its byte count.
    let page = format!("http://{}/page.html", servers.nginx);
    client(&lab, folder.path(), &["curl", "-s", "-o", "/dev/null", "--compressed", &page]);
    ask(&lab, folder.path(), servers.apache);
    ask_proxy(&lab, folder.path(), servers.squid, servers.nginx);
    let small = format!("http://{}/small.txt", servers.nginx);
    client(&lab, folder.path(), &["siege", "-q", "-b", "-c", "8", "-r", "60", &small]);
    let small = format!("http://{}/small.txt", servers.apache);
    client(&lab, folder.path(), &["wrk", "-t", "1", "-c", "4", "-d", "1s", &small]);
    let (nginx, apache, proxy) =
        (settled(&at("nginx-access.log")), settled(&at("apache.log")), settled(&at("squid-access.log")));
    servers.stop();
    std::thread::sleep(Duration::from_millis(500));
    let last = finish(child).unwrap();
    assert_eq!(column(&last, "lost"), 0, "{last}");
    offloaded::assert_same(&at("json.log"), &last, &at("offloaded.json"), &finish(offloaded).unwrap());

    let json = fs::read_to_string(at("json.log")).unwrap();
    let combined = fs::read_to_string(at("combined.log")).unwrap();
    assert_eq!(combined.lines().count() as u64, column(&last, "transactions"));
    for log in last["logs"].as_array().unwrap() {
        assert_eq!(column(log, "lines"), column(&last, "transactions"));
    }
    let of_nginx = fs::read_to_string(at("nginx.log")).unwrap();
    // Lines of a server: all logs have the same order.
    fn of_server<'l>(json: &str, log: &'l str, port: u16) -> Vec<&'l str> {
        let of = json.lines().zip(log.lines());
        of.filter(|(json, _)| json.contains(&format!("\"server_port\":{port},")))
            .map(|(_, line)| line)
            .collect()
    }
    let of_apache = of_server(&json, &combined, servers.apache.port()).join("\n");
    // Exceptions: Apache logs a line feed without a carriage return as a part of the request line, and it does not log
    // any fields of a request with a field that it refuses.
    let normal = |line: &str| {
        let line = timeless(line).replace("/lf HTTP/1.1\\n\"", "/lf HTTP/1.1\"");
        line.replace("\"\\x01\\x1b[2J\\x7f\\xe9\"", "\"-\"")
    };
    assert_same("Apache", &lines(&of_apache, normal), &lines(&apache, normal));
    // Exception: the byte count of the chunked response, which is compared below.
    let is_plain = |line: &&str| !line.contains("GET /page.html");
    // Exception: nginx logs the user of Authorization, which is redacted here by default.
    let normal = |line: &str| timeless(line).replace(" - somebody ", " - - ");
    let theirs =
        nginx.lines().filter(is_plain).filter(|line| line.starts_with("10.77.0.1 ")).collect::<Vec<_>>();
    let of_nginx = of_server(&json, &of_nginx, servers.nginx.port());
    let plain = of_nginx.iter().copied().filter(is_plain).collect::<Vec<_>>().join("\n");
    assert_same("nginx", &lines(&plain, normal), &lines(&theirs.join("\n"), normal));
    let page = nginx.lines().find(|line| line.contains("GET /page.html")).unwrap();
    let found = of_port(&json, servers.nginx.port());
    let found = found.iter().find(|line| line["uri"] == "/page.html").unwrap();
    assert_eq!(found["response_chunked"], true);
    let packed = column(found, "response_bytes") - column(found, "response_head");
    assert_eq!(page.split_whitespace().nth(9).unwrap(), packed.to_string());
    assert!(packed > column(found, "response_body"));
    assert_eq!(without_bytes(page), without_bytes(of_nginx.iter().find(|line| !is_plain(line)).unwrap()));
    // Squid: everything except times, the result of its cache, and the origin server.
    let ours: Vec<String> = {
        let log = fs::read_to_string(at("squid.log")).unwrap();
        let of = json.lines().zip(log.lines());
        let mine =
            of.filter(|(json, _)| json.contains(&format!("\"server_port\":{},", servers.squid.port())));
        mine.map(|(_, line)| line.to_owned()).collect()
    };
    let asked = |line: &&str| line.contains(" 10.77.0.1 ");
    let theirs: Vec<&str> = proxy.lines().filter(asked).collect();
    assert_same("Squid", &lines(&ours.join("\n"), squid), &lines(&theirs.join("\n"), squid));
    assert!(!json.contains("secret") && !combined.contains("secret"), "nobody has asked for it");
    reads_all(&at, column(&last, "transactions"));
}

/// goaccess reads every line of every format, except for lines with an unknown method in formats with a field for the
/// method.
fn reads_all(at: &impl Fn(&str) -> std::path::PathBuf, transactions: u64) {
    if !is_there(&["goaccess"]) {
        return;
    }
    let dates = ["--date-format=%d/%b/%Y", "--time-format=%T"];
    let seconds = ["--date-format=%s", "--time-format=%s"];
    let json = "{\"time\":\"%x.%^\",\"client\":\"%h\",\"method\":\"%m\",\"uri\":\"%U\",\"status\":\"%s\",\"response_body\":\"%b\"}";
    let formats: [(&str, &str, &[&str]); 8] = [
        ("common", "COMMON", &[]),
        ("combined", "COMBINED", &[]),
        ("nginx", "COMBINED", &[]),
        ("vhost", "VCOMBINED", &[]),
        ("combined-us", "%h %^[%d:%t %^] \"%r\" %s %b \"%R\" \"%u\" %D", &dates),
        ("squid", "%x.%^ %~%L %h %C/%s %b %m %U %e %^ %M", &seconds),
        ("w3c", "W3C", &[]),
        ("json", json, &seconds),
    ];
    for (name, format, more) in formats {
        let out = at(&format!("{name}.goaccess.json"));
        let failed = at(&format!("{name}.invalid"));
        let log = at(&format!("{name}.log"));
        let output = Command::new("goaccess")
            .arg(&log)
            .args(["--no-global-config", "--log-format", format, "-o"])
            .arg(&out)
            .arg("--invalid-requests")
            .arg(&failed)
            .args(more)
            .output()
            .unwrap();
        let invalid = fs::read_to_string(&failed).unwrap_or_default();
        assert!(output.status.success(), "{name}: {output:?}\n{invalid}");
        let report: Value = serde_json::from_str(&String::from_utf8_lossy(&fs::read(&out).unwrap())).unwrap();
        let general = &report["general"];
        let unknown = if format.contains("%m") || name == "w3c" { 2 } else { 0 };
        assert_eq!(
            invalid.lines().filter(|line| line.contains("FOO")).count() as u64,
            unknown,
            "{name}: {invalid}"
        );
        assert_eq!(column(general, "failed_requests"), unknown, "{name}: {invalid}");
        assert_eq!(column(general, "valid_requests"), transactions - unknown, "{name}: {general}");
        println!("goaccess, {name}: {transactions} lines");
    }
}
