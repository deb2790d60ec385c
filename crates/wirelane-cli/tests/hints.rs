//! Command lines of other programs' users: they work, or the error names the option of ours. Needs no privileges.

use std::process::{Command, Output};

fn wirelane(arguments: &str) -> Output {
    let words = shlex::split(arguments).unwrap();
    Command::new(env!("CARGO_BIN_EXE_wirelane")).args(words).output().unwrap()
}

/// Command lines, and what the error says.
const REFUSED: &[(&str, &str)] = &[
    // Without a command, or with that of another program.
    ("-i eth1", "'wirelane packets -i DEV' prints packets"),
    ("-r file.pcap", "'wirelane packets -r FILE' prints"),
    ("-nni eth1 port 80", "names are never looked up"),
    ("-w out.pcap", "'wirelane record -i DEV -w FILE'"),
    ("-d eth1", "'wirelane voip -i DEV --top'"),
    ("-I calls.pcap", "'wirelane voip -r FILE --top'"),
    ("--nosuch", "options of a command follow its name"),
    ("tcpdump -i eth1", "'wirelane packets -i DEV' prints packets"),
    ("tshark -i eth1", "'wirelane packets -i DEV' prints packets"),
    ("dumpcap -i eth1", "'wirelane record -i DEV -w FILE'"),
    ("capture eth1", "'wirelane record -i DEV -w FILE'"),
    ("sniff", "'wirelane packets -i DEV'"),
    ("tcpreplay -i eth1 x.pcap", "'wirelane send -i DEV -r FILE'"),
    ("replay x.pcap", "'wirelane send -i DEV -r FILE'"),
    ("pktgen", "'wirelane send -i DEV'"),
    ("sngrep", "'wirelane voip -i DEV --top'"),
    ("SIP", "'wirelane voip -i DEV'"),
    ("iftop -i eth1", "'wirelane flows -i DEV --top'"),
    ("softflowd -i eth1", "--export netflow9://HOST:PORT"),
    ("ipfix", "--export ipfix://HOST:PORT"),
    ("httpry", "'wirelane http -i DEV'"),
    ("interfaces", "'wirelane devices'"),
    ("stats", "'wirelane count -i DEV'"),
    ("sql", "'wirelane query --store DIR SQL'"),
    ("version", "'wirelane --version'"),
    ("count -i lo -c many", "'--packets <N>'\n\n  tip: expected a whole number\n"),
    ("count -i lo -c 1e3", "'--packets <N>'\n\n  tip: expected a whole number\n"),
    ("count -i lo -c 99999999999999999999", "'--packets <N>'\n\n  tip: expected a smaller number\n"),
    ("send -i lo --mbps fast", "'--mbps <MBPS>'\n\n  tip: expected a number\n"),
    // tcpdump.
    ("packets -i lo -Q input", "[possible values: auto, rx, tx, both]"),
    ("packets -i lo -P out", "-Q in, out and inout, or --direction rx, tx and both"),
    ("packets -i lo -B 4096", "--ring-size MIB"),
    ("packets -i lo --buffer-size=4096", "--ring-size MIB"),
    ("record -i lo -w x.pcap -Z nobody", "--user USER"),
    ("record -i lo -w x.pcap --relinquish-privileges=nobody", "--user USER"),
    ("packets -i lo --immediate-mode", "is --immediate"),
    ("packets -i lo --snapshot-length=96", "is --snap-length BYTES"),
    ("packets -i lo --no-promiscuous-mode", "is --no-promiscuous"),
    ("packets -i lo -w x.pcap", "'wirelane record -i DEV -w FILE'"),
    ("count -i lo -C 100", "'wirelane record' writes files: it has -C"),
    ("packets -i lo -G 60", "'wirelane record' writes files: it has -G"),
    ("packets -i lo -W 5", "'wirelane record' writes files: it has -W"),
    ("packets -i lo -z gzip", "'wirelane record' writes files: it has -z"),
    ("packets -i lo -d tcp", "'tcpdump -d EXPRESSION' does"),
    ("packets -i lo -D", "'wirelane devices' lists devices"),
    ("packets -i lo -j adapter", "--clock packet, batch or card"),
    ("packets -i lo --time-stamp-type=host", "--clock packet, batch or card"),
    ("packets -i lo --time-stamp-precision=nano", "always in nanoseconds"),
    ("packets -i lo --micro", "always in nanoseconds"),
    ("packets -i lo -K", "checksums are not verified"),
    ("packets -i lo -O", "always optimised"),
    ("packets -i lo -L", "'wirelane devices DEV'"),
    ("packets -i lo -I", "monitor mode with 'iw'"),
    ("packets -i lo -y EN10MB", "leave -y out"),
    ("packets -i lo -q", "'wirelane packets' prints short lines"),
    ("count -i lo -S", "absolute sequence numbers"),
    ("packets -i lo -T rtp", "leave -T out"),
    ("packets -i lo -E secret", "decrypts nothing"),
    ("packets -V list", "name each file with -r"),
    ("record -i lo -w - -U", "--immediate for the least delay"),
    ("packets -r file.pcap --count", "'wirelane count' prints the number"),
    ("packets -r file.pcap --number", "'| nl' does that"),
    ("count -i lo -v", "'wirelane packets -v'"),
    ("count -i lo -X", "'wirelane packets -X'"),
    ("record -i lo -w x.pcap -e", "'wirelane packets -e'"),
    ("record -i lo -w x-%H%M.pcap -G 60", "leave conversions such as %H out"),
    ("packets -i lo -ttttttt", "-t: give it one to five times"),
    // tshark and dumpcap.
    ("packets -i lo -f 'tcp port 80'", "at the end"),
    ("packets -i lo -Y tcp.port==80", "a tcpdump filter expression at the end"),
    ("record -i lo -w x.pcapng -a duration:10", "--duration TIME"),
    ("record -i lo -w x.pcapng -b filesize:100", "--rotate-size SIZE"),
    // tcpreplay.
    ("send -i lo x.pcap", "with -r: wirelane send -i DEV -r FILE"),
    ("send --intf1=lo x.pcap", "is -i DEV"),
    ("send -i lo -t x.pcap", "--speed max"),
    ("send -i lo --topspeed -r x.pcap", "--speed max"),
    ("send -i lo -x 2 -r x.pcap", "--speed 2x"),
    ("send -i lo --multiplier=2 -r x.pcap", "--speed 2x"),
    ("send -i lo -p 1000 -r x.pcap", "--rate PPS"),
    ("send -i lo -M 10 -r x.pcap", "--mbps MBPS"),
    ("send -i lo --pnat=10.0.0.0/8:11.0.0.0/8 -r x.pcap", "--map-address FROM=TO"),
    ("send -i lo -l 3 -r x.pcap", "is --loop N"),
    ("send -i lo -L 100 -r x.pcap", "'wirelane record -r FILE -c N -w PART'"),
    ("send -i lo -K -r x.pcap", "leave -K out"),
    ("send -i lo --stats=1 -r x.pcap", "--interval TIME"),
    ("send -i lo --intf2=lo -r x.pcap", "--server-interface DEV"),
    ("send -i lo --unique-ip -r x.pcap", "--flows N"),
    ("send -i lo --oneatatime -r x.pcap", "--rate 1"),
    // sngrep.
    ("voip -d lo", "is -i DEV"),
    ("voip -I calls.pcap", "is -r FILE"),
    ("voip -i lo -O out.pcap", "--save-calls DIR"),
    ("voip -i lo -H udp:10.0.0.1:9060", "--export hep://HOST:PORT"),
    ("voip -L udp:0.0.0.0:9060", "does not receive it"),
    ("voip -i lo --limit 1000", "--memory MIB"),
    ("voip -i lo -N", "leave -N out"),
    ("voip -i lo -R", "leave -R out"),
    ("voip -i lo -k key.pem", "TLS is not decrypted"),
    ("voip -i lo --rtp", "RTP is measured without an option"),
    // softflowd and httpry.
    ("flows -i lo -v 9", "netflow9://HOST:PORT"),
    ("flows -i lo -t maxlife=60", "--active-timeout 60"),
    ("flows -i lo -m 1000", "--memory MIB"),
    ("flows -i lo -b", "--biflow"),
    ("http -i lo -o access.log", "--log FORMAT:FILE"),
    ("http -i lo -f host", "--fields NAMES"),
    // Filter expressions.
    ("count -r /dev/null tpc port 80", "'tpc': did you mean 'tcp'?"),
    ("count -r /dev/null tcp prot 80", "'prot': did you mean 'port'?"),
    ("count -r /dev/null TCP port 80", "lower case: 'tcp'"),
    ("count -r /dev/null udp adn port 53", "'adn': did you mean 'and'?"),
    ("count -r /dev/null port 80,443", "'80 or 443'"),
    ("count -r /dev/null port=80", "write 'port 80'"),
    ("count -r /dev/null 'ip.addr == 10.0.0.1'", "write host ADDRESS"),
    ("count -r /dev/null 'tcp port 80 -c 5'", "an option: write it before the expression"),
    ("count -r /dev/null udp port 53 --nosuch", "'wirelane count --help' lists the options"),
];

#[test]
fn users_of_other_programs_are_told_the_right_option() {
    let mut wrong = Vec::new();
    for (arguments, message) in REFUSED {
        let output = wirelane(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        let is_short = errors.lines().filter(|line| line.contains("tip:")).count() <= 1;
        let usage = output.status.code() == Some(2) && output.stdout.is_empty();
        if !usage || !is_short || !errors.contains(message) || errors.contains("as a value, use") {
            wrong.push(format!("{arguments}: {:?} {errors}", output.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), REFUSED.len(), wrong.join("\n"));
    assert!(REFUSED.len() >= 100, "{}", REFUSED.len());
}

/// A pcap file of Ethernet frames with these bytes.
fn pcap(frames: &[&[u8]]) -> Vec<u8> {
    let mut file: Vec<u8> =
        [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    for frame in frames {
        let length = frame.len() as u32;
        file.extend([1u32, 2, length, length].iter().flat_map(|word| word.to_le_bytes()));
        file.extend(*frame);
    }
    file
}

#[test]
fn options_behind_an_expression_and_letters_of_tcpdump_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    // ARP, of which the filter accepts the first two only by their number.
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6];
    frame.resize(60, 0);
    std::fs::write(&file, pcap(&[&frame, &frame, &frame])).unwrap();
    let file = file.to_str().unwrap();
    for (arguments, lines) in [
        (format!("packets -r {file} arp -c 2"), 2),
        (format!("packets arp -c 1 -r {file}"), 1),
        (format!("packets -nnl -c 2 -r {file} arp or 'ether[12:2] - 1 = 2053'"), 2),
        (format!("packets -r {file} ether[0] -1 = 1 -c 3"), 3),
        (format!("packets -nvvXSs0 -r {file}"), 12),
        (format!("packets -nvveXs0 -r {file} -c 1"), 4),
        (format!("packets -n -r {file} not arp -vv -e"), 0),
        (format!("packets -Att -n -r {file} -c 1"), 2),
    ] {
        let output = wirelane(&arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments}: {errors}");
        assert_eq!(text.lines().count(), lines, "{arguments}: {text}");
    }
    for arguments in ["-D", "packets -D", "record --list-interfaces"] {
        let output = wirelane(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("RX QUEUES"), "{arguments}: {text}");
    }
}

#[test]
fn letters_of_tcpdump_rotate_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    let frames: Vec<Vec<u8>> =
        (0..3000u32).map(|n| [&[2u8; 60][..], &n.to_be_bytes(), &[7; 1000]].concat()).collect();
    std::fs::write(&file, pcap(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>())).unwrap();
    let out = folder.path().join("out.pcap");
    let (file, out) = (file.display(), out.display());
    let record = |more: &str| wirelane(&format!("record -r {file} -w {out} {more}"));
    // 3.2 MB in files of 1 MB, of which three are kept.
    let marks = folder.path().join("finished");
    let output = record(&format!("-C 1 -W 3 -z 'echo >> {} '", marks.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut sizes: Vec<u64> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("out_"))
        .map(|entry| entry.metadata().unwrap().len())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes.len(), 3, "{sizes:?}");
    assert!(sizes[2] <= 1_000_000 && sizes[1] > 990_000, "{sizes:?}");
    let timed = wirelane(&format!("record -r {file} -w {}/timed-%Y-%s.pcap", folder.path().display()));
    assert!(timed.status.success(), "{}", String::from_utf8_lossy(&timed.stderr));
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let name =
        names.map(|name| name.into_string().unwrap()).find(|name| name.starts_with("timed-2")).unwrap();
    assert!(name.len() == "timed-2026-1772366645.pcap".len() && !name.contains('%'), "{name}");
    let output = record("-C 1 --rotate-size 1MB");
    assert_eq!(output.status.code(), Some(2));
    let output = record("-G 1h --overwrite -C 64k");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
