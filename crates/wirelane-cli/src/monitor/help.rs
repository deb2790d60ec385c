//! Texts after the options in the long help of `monitor` and `check`.

/// Text after the options in the long help.
pub const HELP: &str = "\
Sections, whose keys are the long options of the commands without '--':
  [capture]   options of the source: interface, direction, hook, engine, filter
              (an expression), rules, cores, workers, steering, user, interval,
              duration, and the others under 'Source' and 'Capture'
  [record]    'wirelane record': write, rotate-size, keep-size, compress, ...
  [flows]     'wirelane flows': export, cache, biflow, active-timeout, ...
  [http]      'wirelane http': log, export, fields, memory, ...
  [voip]      'wirelane voip': export, save-calls, from, memory, ...
  [probe]     'wirelane probe': config (a file) or ready, cache-entries
  [store]     folder, max-age, max-size, rotate, probe: the store of flows,
              transactions and calls, for 'wirelane query'
  [ship]      'wirelane ship' of this store: to (one target or a list),
              password-file, ca, create, batch-size, batch-age, patience, probe
  [metrics]   address, cert, key, token-file or token-env: Prometheus
  [control]   socket, group, mode: a socket at a fixed path for 'status'
              and 'reload' of others than root and the monitor's user

An option that may be repeated takes a list, one without a value true or false.
An empty section is an analysis with its default options. cache = \"kernel\" of
[flows] and analysis = \"kernel\" of [voip], which takes one worker, work beside
other sections; analysis = \"kernel\" of [http], and plug-ins of a probe and its
measurements in the kernel, exclude them.

Example, site.toml:
  [capture]
  interface = \"eth1\"
  filter = \"not port 22\"
  [record]
  write = \"/srv/packets/eth1.pcapng\"
  rotate-size = \"1GiB\"
  keep-size = \"100GiB\"
  [flows]
  export = [\"ipfix://192.0.2.1:4739\"]
  [http]
  log = [\"combined:/var/log/wirelane/access.log\"]
  [voip]
  [store]
  folder = \"/var/lib/wirelane\"
  max-size = \"50GB\"

Examples:
  wirelane flows -i eth1 --biflow --print-config > site.toml
  wirelane check site.toml
  sudo wirelane monitor site.toml

Signals: SIGHUP reads the file again ('wirelane reload' does, too, and says
what has changed), and opens logs and exports to files again, as after
logrotate. filter, filter-file, rules and interval of [capture], and timeouts
and cache-entries of [flows] can change while it runs, all at once or not at
all; a file with mistakes, or with another change, is refused. SIGTERM and
Ctrl-C end it with its ledger.

'wirelane status' shows what it does, and whether each output works.

Exit status: 0 done (also after Ctrl-C), 1 failed or something is unwritten,
2 wrong usage or a mistake in the file.";

/// Text after the options in the long help.
pub const CHECK_HELP: &str = "\
Example:
  wirelane check /etc/wirelane/eth1.toml

Exit status: 0 no mistake, 2 mistakes.";
