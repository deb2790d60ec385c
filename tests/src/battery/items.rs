//! The items of the battery and their claims.

use super::Item;

const fn item(code: &'static str, claim: &'static str) -> Item {
    Item { code, claim }
}

/// All items, in the order of the table.
pub const ITEMS: [Item; 45] = [
    item(
        "L1",
        "Conservation: sent = delivered + filtered + absorbed + shed + lost, exactly, with numbered packets, for every engine, hook, filter, rule and steering",
    ),
    item(
        "L2",
        "The highest rate without loss is found by search for frames of 64 bytes, IMIX, 1514 and 9000 bytes, on 1 and 2 RX queues, and no trial has an unexplained packet",
    ),
    item("L3", "On the same generator the capture holds at least the rate of tcpdump and dumpcap"),
    item(
        "L4",
        "At twice the highest rate without loss: exact counts, at least 90 % of that rate delivered, no loss 1 s after the load falls",
    ),
    item(
        "L5",
        "Real and hostile traffic at a paced rate for 30 minutes (50 seconds in `make test`): no packet lost, resident memory grows by less than 1 MiB in 10 minutes, descriptors and BPF objects constant, for `flows`, `http`, `voip`, `probe` and `record`",
    ),
    item(
        "L6",
        "Every packet a new flow, up to 4 times the table: resident memory stays within the budget, evictions are counted, flows that carry traffic stay whole",
    ),
    item(
        "L7",
        "Real captures replayed at 10 times, 100 times and full speed have the results of the file where no packet was lost, and never more",
    ),
    item(
        "L8",
        "One flow with most of the load beside 10,000 small ones: no packet of a small flow is lost, and both directions of each flow meet at one worker",
    ),
    item("L9", "A burst as large as documented is not lost"),
    item(
        "L10",
        "10,000 exact-match rules cost a packet at most 20 % more than one rule; wildcard, set and payload rules have a bounded cost",
    ),
    item("L11", "A recording has every packet, and its statistics say so"),
    item(
        "L12",
        "The first packet after \"ready\" is captured, SIGTERM under load loses nothing that is in a ring, 200 starts and stops leave nothing behind",
    ),
    item(
        "L13",
        "With congestion control at 2.5 times the capacity: no flow of which anything was analysed has a gap, 99 % of the short ones that begin during it are whole, and 97 % of the capacity is used",
    ),
    item(
        "F1",
        "A device is set down and up, renamed, resized, moved, deleted and made anew: captured on or a clear end, exact counts, no spinning",
    ),
    item(
        "F2",
        "Another XDP program is named and left alone; nobody replaces ours; a killed capture leaves a device that works",
    ),
    item(
        "F3",
        "Disks that are full, fail with EIO, are read-only, slow or gone: for every output the capture goes on, what is unwritten is counted exactly, no line or file is torn, and writing resumes",
    ),
    item("F4", "A writer that is killed at any moment leaves a file that is read up to the cut"),
    item(
        "F5",
        "A worker, process or alarm program that stops, panics or hangs loses only its own packets, in its own line of the ledger",
    ),
    item(
        "F6",
        "A collector that is away, refuses or restarts: the export resumes, templates are sent again, and the sequence numbers give the loss exactly",
    ),
    item(
        "F7",
        "Clock steps of an hour and slewing: durations are never negative, stamps are in order, rotation does not loop",
    ),
    item(
        "F8",
        "In a control group of base memory + budget + 10 % no process is killed under L6, I5 and I6, the stop included; other limits are named where they are met",
    ),
    item(
        "F9",
        "A kernel that refuses BPF, AF_XDP, BTF or memory: packet sockets instead, with the reason, and the same results",
    ),
    item("F10", "All programs load on Linux 6.1, 6.12, 6.18 and the newest that Debian packages"),
    item(
        "I1",
        "Every capture of the corpus through every command: no panic, a documented error at most, bounded time and memory, the packets of the ground truth",
    ),
    item("I2", "A packet cut at every length has one result, in the kernel and natively"),
    item(
        "I3",
        "The whole corpus with 2 % of its bytes changed at random, 100,000 packets a run: every command ends well in bounded time and memory",
    ),
    item("I4", "Every parser has a coverage-guided fuzz target, at least 18, and their seeds do no harm"),
    item(
        "I5",
        "Hostile HTTP: heads of a million fields, a line of 1 GiB, lengths that overflow, contradict or lie, 10,000 pipelined requests, responses without requests, gaps, overlaps, any order, one byte a segment, compression bombs: bounded memory, exact counts, each marked",
    ),
    item(
        "I6",
        "Hostile SIP and RTP: headers of 0 to 64 KiB, 10,000 Via, Content-Length of 2^32+32, control bytes, 1000 media, 100,000 calls without an answer, SSRC collisions, wraps, other payload types, floods of a negotiated port: bounded memory, exact counts",
    ),
    item("I7", "8n hostile elements take at most 12 times the time of n, for every parser and table"),
    item(
        "I8",
        "Every expression of libpcap's tests is compiled with tcpdump's verdicts or refused with the place; 10,000 terms and 1 MiB of text take less than a second",
    ),
    item(
        "I9",
        "pcap and pcapng with hostile lengths, orders, resolutions, options and a million interfaces: bounded memory, a named error",
    ),
    item(
        "I10",
        "The corpus through every analysis equals the results of tshark, Suricata, nfdump, softflowd, sngrep and sipp where these agree",
    ),
    item(
        "S1",
        "After \"ready\" no thread of any command is root's, has a capability that is not documented, or is without seccomp",
    ),
    item(
        "S2",
        "Parsers run without capture rights behind a seccomp list that kills on `execve`, `socket`, `ptrace` and `bpf`, for every command",
    ),
    item(
        "S3",
        "Landlock: nothing outside of the output folder is written and nothing outside of the input is read",
    ),
    item(
        "S4",
        "Files are 0600, links are never followed, existing files never replaced without being asked to, and no command gets text from a packet",
    ),
    item("S5", "Without rights: a refusal that names the capability, nothing attached"),
    item(
        "S6",
        "Hostile text in packets: one event is one line, JSON parses, no control, bidirectional or separator character and no spreadsheet formula reaches an output, for every command",
    ),
    item(
        "S7",
        "Authorization, Cookie, SIP credentials and DTMF digits are in no output unless asked for; call audio needs its own switch",
    ),
    item(
        "S8",
        "Control and metrics sockets are the user's or loopback only, and 10,000 slow clients neither stop the capture nor lock others out for long",
    ),
    item("S9", "A captured device transmits nothing, for every command"),
    item(
        "S10",
        "`unsafe` is listed, the C ABI is clean under AddressSanitizer, the release is hardened and builds to the same bytes twice, dependencies are pinned",
    ),
    item(
        "S11",
        "A flood of spoofed 64-byte frames makes no more bytes of output than it had on the wire, and what is suppressed is counted",
    ),
    item(
        "S12",
        "Nothing is pinned, and another user can neither read packets nor change rules; a reader that writes nonsense harms itself only",
    ),
];
