//! Text after the options in the long help.

/// Example of a configuration, and of its use.
pub const HELP: &str = "\
A configuration:
  interval = \"1s\"                   # of results; packets' time, UTC
  [capture]                         # options of the command line come first
  devices = [\"eth1\"]                # or read = \"FILE\"; engine, workers,
                                    # steering, filter
  [[rule]]                          # which packets: conditions of rule files
  name = \"syn\"
  tcp-flags = \"S/SA\"

  [[measurement]]
  name = \"syns\"
  rule = \"syn\"                      # default: all packets
  key = [\"dst\"]                     # default: one total
  values = [\"pps\", \"distinct-src\"]
  keys = 10000                      # capacity; the rest is in 'other'
  analysis = \"user\"                 # or \"kernel\", \"auto\": see below

  [[plugin]]                        # your own BPF program (wirelane/plugin.h)
  name = \"dns\"
  file = \"dns.bpf.o\"
  [[measurement]]
  name = \"questions\"                # its counters in each interval
  plugin = \"dns\"
  counters = [\"queries\", \"asked\"]   # default: all; also asked and matched

  [[alarm]]
  name = \"flood\"
  measurement = \"syns\"
  value = \"pps\"                     # or counter = \"queries\"
  above = 1000                      # or below, rises, falls (percent)
  clear = 500
  actions = [\"tell\"]

  [[action]]
  name = \"tell\"
  run = [\"/usr/local/bin/tell\", \"{alarm}\", \"{state}\", \"{key}\", \"{value}\"]
  timeout = \"5s\"                    # or log = true, activate = [...],
                                    # or record, or export, as here:
  [[action]]
  name = \"keep\"                     # packets around the event, as pcapng
  record = { folder = \"/var/lib/alarms\", before = \"2s\", after = \"5s\" }
  digest = \"sha256\"                 # in record, too: rule, buffer, most,
                                    # cool-down, at-once, files
  [[action]]
  name = \"say\"
  export = \"syslog://192.0.2.9\"     # or unix:/dev/log; as JSON file:PATH,
                                    # udp://HOST:PORT, tcp://HOST:PORT

  [[schedule]]
  name = \"night\"
  at = \"22:00\"                      # UTC; or every = \"10m\"; days = [\"mon\"]
  deactivate = [\"flood\"]            # or activate = [...], flush = true, or
                                    # retime = { NAME = \"1h\" } of schedules

Keys: src, dst, src-net, dst-net (prefix, prefix6), src-port, dst-port, port
  (the lower), protocol, vlan, queue, device, pair, flow (both directions),
  application (protocol of a conversation, from the packet on that shows it)
Values: packets, bytes, pps, bps; flows, distinct-src, distinct-dst,
  distinct-src-port, distinct-dst-port (estimates; precision); top-src, top-dst,
  top-port, top-flow (with their error bound); lengths, gaps (ns);
  peak-packets, peak-bytes (bin); one-way; macs; segments, retransmissions,
  retransmitted-percent; keys, entropy

analysis = \"kernel\": lanes add packets up by addresses, ports, protocol, VLAN,
  device and direction, and only sums are delivered: the packets are 'absorbed'
  in the ledger, and many measurements cost what one costs. Results are the
  same, up to 2 s later. It needs engine 'ring', and values and rules that do
  not depend on single packets (not lengths, gaps, peaks, segments, TCP flags).
  Measurements in the workers beside it need rules: only the packets of these
  are delivered. \"auto\" is \"kernel\" if all of that holds; --check says why if
  not.

The screen of --top:
  Measurements with rates and their history, the rows of one, raised alarms,
  the ledger. Arrows or 'j' and 'k' select a measurement, 's' sorts its rows by
  the next column, 'p' pauses the display, 'q' or Ctrl-C ends it.

With --json: an object per measurement and interval, with 'measurement'; per
raised or cleared alarm, with 'alarm'; at the end the totals, with
\"total\": true, and the ledger, with \"final\": true.

Examples:
  wirelane probe --ready syn-flood -r capture.pcapng
  wirelane probe --ready bandwidth --print-ready > my.toml
  wirelane probe my.toml --check
  wirelane probe my.toml -i eth1 --print-config > site.toml    # for 'monitor'
  sudo wirelane probe my.toml -i eth1 --workers 2 --json
  sudo wirelane probe --ready bandwidth -i eth1 --top
  sudo wirelane probe my.toml -i eth1 --store probe.db --metrics 127.0.0.1:9464
  sudo kill -HUP $(pgrep -x wirelane)          # read the configuration again
  sudo wirelane probe set alarm.flood.above=5000     # while it runs
  sudo wirelane probe show                     # active parts, raised alarms

--store writes results, alarms and the ledger to the tables 'measurements',
'alarms' and 'ledgers', for 'wirelane query' and 'wirelane report'; --metrics
serves them to Prometheus.

Programs are run without a shell, as the user that the command becomes (--user),
at most four at a time, with 64 waiting. A program that fails, or is killed at
its timeout, is reported and counted, and delays no packet. So are recordings
and exports that fail or exceed their limits.
Exit status: 0 done (also after Ctrl-C), 1 failed, a mistake in the
configuration, or a recording or an export of an alarm failed (all else was
done), 2 wrong usage.";
