//! Hints for users of tcpdump, tcpreplay, sngrep and other programs: the option of ours that does what theirs does.

use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Hints by option.
type Hints = &'static [(&'static str, &'static str)];

/// Names of programs and tasks, and the command for them.
const COMMANDS: Hints = &[
    ("tcpdump", "'wirelane packets -i DEV' prints packets, 'wirelane record -i DEV -w FILE' writes them"),
    ("tshark", "'wirelane packets -i DEV' prints packets, 'wirelane record -i DEV -w FILE' writes them"),
    ("capture", "'wirelane record -i DEV -w FILE' writes packets, 'wirelane packets -i DEV' prints them"),
    ("dumpcap", "'wirelane record -i DEV -w FILE' writes packets"),
    ("write", "'wirelane record -i DEV -w FILE' writes packets"),
    ("save", "'wirelane record -i DEV -w FILE' writes packets"),
    ("dump", "'wirelane packets -i DEV' prints packets"),
    ("print", "'wirelane packets -i DEV' prints packets"),
    ("sniff", "'wirelane packets -i DEV' prints packets"),
    ("show", "'wirelane packets -i DEV' prints packets"),
    ("read", "'wirelane packets -r FILE' prints the packets of a file"),
    ("any", "name a command first, as in 'wirelane packets -i DEV'"),
    ("tcpreplay", "'wirelane send -i DEV -r FILE' replays a file"),
    ("replay", "'wirelane send -i DEV -r FILE' replays a file"),
    ("tcprewrite", "'wirelane send -i DEV -r FILE --map-address FROM=TO' changes addresses"),
    ("tcpprep", "'wirelane send -i DEV --server-interface DEV -r FILE' splits clients and servers"),
    ("pktgen", "'wirelane send -i DEV' sends numbered packets"),
    ("generate", "'wirelane send -i DEV' sends numbered packets"),
    ("sngrep", "'wirelane voip -i DEV --top' shows calls"),
    ("sip", "'wirelane voip -i DEV' follows SIP calls"),
    ("calls", "'wirelane voip -i DEV' follows SIP calls"),
    ("iftop", "'wirelane flows -i DEV --top' shows flows by rate"),
    ("top", "'wirelane flows -i DEV --top' shows flows by rate"),
    ("softflowd", "'wirelane flows -i DEV --export netflow9://HOST:PORT' exports flows"),
    ("netflow", "'wirelane flows -i DEV --export netflow9://HOST:PORT' exports flows"),
    ("ipfix", "'wirelane flows -i DEV --export ipfix://HOST:PORT' exports flows"),
    ("httpry", "'wirelane http -i DEV' prints HTTP transactions"),
    ("web", "'wirelane http -i DEV' prints HTTP transactions"),
    ("interfaces", "'wirelane devices' lists devices"),
    ("list", "'wirelane devices' lists devices, 'wirelane groups' captures"),
    ("stats", "'wirelane count -i DEV' counts packets and bytes"),
    ("sql", "'wirelane query --store DIR SQL' queries a store"),
    ("version", "'wirelane --version' prints the version"),
];

/// Options before a command.
const BEFORE: Hints = &[
    (
        "-i",
        "name a command first: 'wirelane packets -i DEV' prints packets, 'wirelane record -i DEV -w FILE' writes them",
    ),
    ("-r", "name a command first: 'wirelane packets -r FILE' prints the packets of a file"),
    ("-w", "name a command first: 'wirelane record -i DEV -w FILE' writes packets"),
    (
        "-d",
        "name a command first: 'wirelane voip -i DEV --top' shows calls, 'wirelane packets -i DEV' prints packets",
    ),
    ("-I", "name a command first: 'wirelane voip -r FILE --top' shows the calls of a file"),
    ("-n", "name a command first: 'wirelane packets -i DEV' prints packets; names are never looked up"),
    ("-v", "name a command first: 'wirelane packets -i DEV -v'; 'wirelane --version' prints the version"),
];

/// Options of tcpdump, tshark and dumpcap, in all commands that capture.
const CAPTURING: Hints = &[
    ("-a", "to stop after a time, write --duration TIME"),
    ("-B", "tcpdump's -B KIB is --ring-size MIB, for each RX queue and worker"),
    ("--buffer-size", "tcpdump's --buffer-size KIB is --ring-size MIB, for each RX queue and worker"),
    ("-C", "only 'wirelane record' writes files: it has -C and --rotate-size"),
    ("-G", "only 'wirelane record' writes files: it has -G and --rotate-interval"),
    ("-W", "only 'wirelane record' writes files: it has -W and --keep-files"),
    ("-z", "only 'wirelane record' writes files: it has -z and --post-rotate"),
    ("-w", "'wirelane record -i DEV -w FILE' writes packets"),
    (
        "-d",
        "Wirelane does not print filter programs: 'tcpdump -d EXPRESSION' does. A device is named with -i",
    ),
    ("-D", "'wirelane devices' lists devices"),
    ("--list-interfaces", "'wirelane devices' lists devices"),
    ("-E", "Wirelane decrypts nothing: record the packets, and give the keys to Wireshark"),
    ("-f", "a filter expression is given without an option, at the end"),
    ("-H", "802.11 headers are read without an option: leave -H out"),
    ("-I", "set the device to monitor mode with 'iw' first. A file is read with -r"),
    ("--monitor-mode", "set the device to monitor mode with 'iw' first"),
    ("-j", "tcpdump's -j TYPE is --clock packet, batch or card"),
    ("--time-stamp-type", "tcpdump's --time-stamp-type is --clock packet, batch or card"),
    ("-J", "--clock packet, batch and card are the clocks"),
    ("--time-stamp-precision", "times are always in nanoseconds: leave the option out"),
    ("--nano", "times are always in nanoseconds: leave the option out"),
    ("--micro", "times are always in nanoseconds: leave the option out"),
    ("-k", "'wirelane packets' shows the device and the direction without an option"),
    ("-K", "checksums are not verified: leave -K out"),
    ("--dont-verify-checksums", "checksums are not verified: leave the option out"),
    ("-L", "'wirelane devices DEV' shows the link type of a device"),
    ("-m", "Wirelane reads no MIBs: leave -m out"),
    ("-M", "TCP-MD5 digests are not checked: leave -M out"),
    ("-N", "names of hosts are never looked up: leave -N out"),
    ("-O", "the filter is always optimised: leave -O out"),
    ("--no-optimize", "the filter is always optimised: leave the option out"),
    ("-P", "tcpdump's -P in, out and inout are -Q in, out and inout, or --direction rx, tx and both"),
    ("-q", "leave -q out: 'wirelane packets' prints short lines, and 'wirelane count' totals"),
    ("-R", "give a filter expression at the end"),
    ("-S", "'wirelane packets -v' prints absolute sequence numbers"),
    ("-T", "a protocol is recognised by its content or port: leave -T out"),
    ("-u", "leave -u out"),
    ("-U", "'wirelane record -w -' writes packets as they come; add --immediate for the least delay"),
    (
        "--packet-buffered",
        "'wirelane record -w -' writes packets as they come; add --immediate for the least delay",
    ),
    ("-V", "name each file with -r, or a pattern in quotes: -r '*.pcap'"),
    ("-y", "the link type is that of the device: leave -y out"),
    ("--linktype", "the link type is that of the device: leave the option out"),
    ("-Y", "give a tcpdump filter expression at the end, as in: tcp port 80"),
    ("-Z", "tcpdump's -Z USER is --user USER"),
    ("--relinquish-privileges", "tcpdump's --relinquish-privileges USER is --user USER"),
    ("--immediate-mode", "tcpdump's --immediate-mode is --immediate"),
    ("--snapshot-length", "tcpdump's --snapshot-length BYTES is --snap-length BYTES"),
    ("--no-promiscuous-mode", "tcpdump's --no-promiscuous-mode is --no-promiscuous"),
    ("--count", "'wirelane count' prints the number of packets. To stop after N packets, write -c N"),
    (
        "--number",
        "'wirelane packets --json' has the time of each packet; lines are not numbered ('| nl' does that)",
    ),
    ("-#", "lines are not numbered: '| nl' does that"),
    ("--print", "'wirelane packets' prints packets; run it beside 'wirelane record'"),
    ("--lengths", "'wirelane packets' prints the length without an option"),
    ("--skip", "--duration and -c end a capture; nothing skips its first packets"),
    ("-v", "'wirelane packets -v' prints the fields of the headers"),
    ("-e", "'wirelane packets -e' prints the Ethernet header"),
    ("-x", "'wirelane packets -x' prints the bytes"),
    ("-X", "'wirelane packets -X' prints the bytes"),
    ("-A", "'wirelane packets -A' prints the characters"),
    ("-t", "'wirelane packets -t' prints other times"),
    ("-o", "'wirelane record -w FILE' writes packets"),
    ("-b", "'wirelane record --rotate-size SIZE' and '--rotate-interval TIME' begin new files"),
];

/// Options of tcpreplay and of other generators, in `send`.
const SENDING: Hints = &[
    ("--intf1", "tcpreplay's --intf1 DEV is -i DEV"),
    ("--intf2", "tcpreplay's --intf2 DEV is --server-interface DEV, with -r"),
    ("-I", "tcpreplay's -I DEV is --server-interface DEV, with -r"),
    ("--cachefile", "no cache file is needed: --server-interface DEV splits clients and servers"),
    ("--pnat", "tcprewrite's --pnat=FROM:TO is --map-address FROM=TO, with -r"),
    ("--portmap", "tcprewrite's --portmap=FROM:TO is --map-port FROM=TO, with -r"),
    ("--enet-smac", "tcprewrite's --enet-smac=MAC is --src-mac MAC, with -r"),
    ("--enet-dmac", "tcprewrite's --enet-dmac=MAC is --dst-mac MAC, with -r"),
    ("-t", "tcpreplay's -t is --speed max, with -r"),
    ("--topspeed", "tcpreplay's --topspeed is --speed max, with -r"),
    ("-x", "tcpreplay's -x 2 is --speed 2x, with -r"),
    ("--multiplier", "tcpreplay's --multiplier 2 is --speed 2x, with -r"),
    ("-p", "tcpreplay's -p PPS is --rate PPS"),
    ("--pps", "tcpreplay's --pps PPS is --rate PPS"),
    ("-M", "tcpreplay's -M MBPS is --mbps MBPS"),
    ("-l", "tcpreplay's -l N is --loop N, with -r"),
    (
        "-L",
        "tcpreplay's -L N is -c N, for numbered packets; cut a file with 'wirelane record -r FILE -c N -w PART'",
    ),
    (
        "--limit",
        "tcpreplay's --limit N is -c N, for numbered packets; cut a file with 'wirelane record -r FILE -c N -w PART'",
    ),
    ("-K", "the file is always read ahead: leave -K out"),
    ("--preload-pcap", "the file is always read ahead: leave the option out"),
    ("-o", "packets are not sent one by one at a key: --rate 1 sends one a second"),
    ("--oneatatime", "packets are not sent one by one at a key: --rate 1 sends one a second"),
    ("-q", "leave -q out: the totals are printed at the end"),
    ("--quiet", "leave the option out: the totals are printed at the end"),
    ("--stats", "tcpreplay's --stats SECONDS is --interval TIME"),
    ("-T", "the timer is chosen by the program: leave -T out"),
    ("--timer", "the timer is chosen by the program: leave the option out"),
    ("--duration-limit", "--duration TIME ends the sending"),
    ("--unique-ip", "numbered packets have --flows N; a replay sends addresses as they are"),
    ("--listnics", "'wirelane devices' lists devices"),
    ("--netmap", "--method chooses how packets are sent"),
    ("-v", "'wirelane packets -i DEV -v' prints packets"),
    ("-w", "'wirelane record -i DEV -w FILE' writes packets"),
];

/// Options of sngrep, in `voip`.
const CALLS: Hints = &[
    ("-d", "sngrep's -d DEV is -i DEV"),
    ("--device", "sngrep's --device DEV is -i DEV"),
    ("-I", "sngrep's -I FILE is -r FILE"),
    ("--input", "sngrep's --input FILE is -r FILE"),
    ("-O", "sngrep's -O FILE is --save-calls DIR, with a file for each call"),
    ("--output", "sngrep's --output FILE is --save-calls DIR, with a file for each call"),
    ("-H", "sngrep's -H udp:HOST:PORT is --export hep://HOST:PORT"),
    ("--eep-send", "sngrep's --eep-send udp:HOST:PORT is --export hep://HOST:PORT"),
    ("-L", "Wirelane sends HEP (--export hep://HOST:PORT) and does not receive it"),
    ("--eep-listen", "Wirelane sends HEP (--export hep://HOST:PORT) and does not receive it"),
    ("--limit", "--memory MIB limits the calls that are kept"),
    ("-N", "without --top a line per call is printed, and no screen is opened: leave -N out"),
    ("--no-interface", "without --top a line per call is printed, and no screen is opened"),
    ("-R", "calls are given up when --memory is full: leave -R out"),
    ("--rotate", "calls are given up when --memory is full: leave the option out"),
    ("-k", "TLS is not decrypted: capture behind the TLS proxy"),
    ("--keyfile", "TLS is not decrypted: capture behind the TLS proxy"),
    ("--rtp", "RTP is measured without an option; --save-calls DIR --with-audio stores it"),
    ("--calls", "calls are shown without an option; messages outside of calls are counted"),
    ("-B", "tcpdump's and sngrep's -B is --ring-size MIB"),
    (
        "--no-incomplete",
        "calls that began before the capture are left out by the reader of --json: see call_states",
    ),
];

/// Options of softflowd, in `flows`.
const FLOWS: Hints = &[
    ("-b", "softflowd's -b is --biflow"),
    ("-t", "softflowd's -t maxlife=60 is --active-timeout 60, and -t general=15 is --inactive-timeout 15"),
    ("-m", "softflowd's -m FLOWS is --memory MIB"),
    ("-v", "the version is in the target: --export netflow9://HOST:PORT"),
    ("-P", "the transport is in the target: --export ipfix://HOST:PORT?transport=tcp"),
    ("-d", "Wirelane stays in the foreground: leave -d out"),
    ("-D", "Wirelane stays in the foreground: leave -D out. 'wirelane devices' lists devices"),
    ("-B", "iftop's -B is the default unit; tcpdump's -B KIB is --ring-size MIB"),
];

/// Options of httpry, in `http`.
const WEB: Hints = &[
    ("-o", "httpry's -o FILE is --log FORMAT:FILE, as in --log combined:access.log"),
    ("-f", "httpry's -f FIELDS is --fields NAMES, with --log json:FILE"),
    ("-d", "Wirelane stays in the foreground: leave -d out"),
    ("-m", "all methods are logged: filter the output of --json"),
    ("-b", "'wirelane record -w FILE tcp port 80' writes packets"),
];

/// Replaces the parser's own tip by one that names the option of ours. Says where options belong if one is wrong.
pub fn improve(error: &mut clap::Error, command: Option<&str>) {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return,
    };
    let Some(ContextValue::String(given)) = error.get(kind).cloned() else { return };
    let hint = match (error.kind(), command) {
        (ErrorKind::InvalidSubcommand, _) => find(&[COMMANDS], &given.to_lowercase()),
        (_, None) => find(&[BEFORE], &given).or(given
            .starts_with('-')
            .then_some("options of a command follow its name: 'wirelane COMMAND OPTIONS'")),
        (_, Some("send")) => find(&[SENDING], &given).or((!given.starts_with('-'))
            .then_some("name the file to replay with -r: wirelane send -i DEV -r FILE")),
        (_, Some(command)) => match command {
            "voip" => find(&[CALLS, CAPTURING], &given),
            "flows" => find(&[FLOWS, CAPTURING], &given),
            "http" => find(&[WEB, CAPTURING], &given),
            "packets" | "count" | "record" | "probe" => find(&[CAPTURING], &given),
            _ => None,
        },
    };
    if let Some(hint) = hint {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    } else if kind == ContextKind::InvalidArg && error.get(ContextKind::SuggestedArg).is_none() {
        // The parser would advise to pass an unknown option as a part of the filter expression.
        let hint = format!("'wirelane {} --help' lists the options", command.unwrap_or("COMMAND"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
}

/// Names the expected value where the error of a number is the standard library's, as in "invalid digit found in string".
pub fn of_number(error: clap::Error, definition: &clap::Command) -> clap::Error {
    let source = std::error::Error::source(&error);
    let expected = match source.and_then(|source| source.downcast_ref::<ParseIntError>()) {
        Some(wrong) if *wrong.kind() == IntErrorKind::PosOverflow => "expected a smaller number",
        Some(_) => "expected a whole number",
        None if source.is_some_and(|source| source.is::<ParseFloatError>()) => "expected a number",
        None => return error,
    };
    let mut plain = clap::Error::new(error.kind()).with_cmd(definition);
    for (kind, value) in error.context() {
        plain.insert(kind, value.clone());
    }
    plain.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![expected.into()]));
    plain
}

fn find(tables: &[Hints], given: &str) -> Option<&'static str> {
    let all = tables.iter().flat_map(|table| table.iter());
    all.into_iter().find(|(option, _)| *option == given).map(|(_, hint)| *hint)
}
