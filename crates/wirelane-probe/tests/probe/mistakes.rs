//! Mistakes in a configuration are reported with line and column, and with the allowed values.

use std::path::Path;

use wirelane_probe::config::{LONGEST, describe};
use wirelane_probe::{Config, READY};

use crate::traffic::config;

/// Mistakes of a text, one line each, without the path.
fn mistakes(text: &str) -> String {
    let mistakes = Config::parse(text, Path::new("p.toml")).expect_err(text);
    assert!(!mistakes.0.is_empty());
    mistakes.to_string().replace("p.toml:", "")
}

/// Battery: I4
#[test]
fn mistakes_have_places_and_say_what_is_allowed() {
    let one = "[[measurement]]\nname = \"m\"\nvalues = [\"pps\"]\n";
    let alarm = "[[alarm]]\nname = \"a\"\nmeasurement = \"m\"\nvalue = \"pps\"\n";
    for (text, expected) in [
        (String::new(), "1:1: no [[measurement]]"),
        ("intervall = 1".into(), "1:1: unknown field `intervall`, expected one of `interval`, `capture`"),
        ("interval = 1".into(), "1:12: invalid type: integer `1`, expected a length of time as text"),
        (format!("interval = \"1ms\"\n{one}"), "1:12: an interval is from"),
        ("[[measurement]]\nname = 'm'\n".into(), "1:1: missing field `values`"),
        (
            "[[measurement]]\nname = 'm'\nvalues = ['ppss']".into(),
            "3:11: unknown variant `ppss`, expected one of `packets`",
        ),
        (
            "[[measurement]]\nname = 'm'\nvalues = ['pps']\nkey = ['source']".into(),
            "4:8: unknown variant `source`, expected one of `src`",
        ),
        (format!("{one}kay = []"), "4:1: unknown field `kay`, expected one of `name`, `rule`, `key`"),
        (format!("{one}rule = 'x'"), "4:8: unknown rule; none is defined"),
        (
            format!("{one}analysis = 'kernel'").replace("pps", "gaps"),
            "4:12: this cannot be \"kernel\": \"gaps\" depends on single packets",
        ),
        (
            format!("{one}analysis = 'kernel'\nkey = ['application']"),
            "4:12: this cannot be \"kernel\": \"application\" is found in payloads",
        ),
        (
            format!("{one}key = ['src', 'pair']"),
            "4:15: \"pair\" repeats a field of the key before it",
        ),
        (format!("{one}key = ['src']\nkeys = 0"), "5:8: give 1 to 1000000 keys"),
        (
            format!("{one}prefix = 33\nkey = ['src-net']"),
            "4:10: a network of these addresses has 0 to 32 bits",
        ),
        (format!("{one}{one}"), "5:8: another measurement has this name"),
        (
            "[[measurement]]\nname = \"a\\u001b[2J\"\nvalues = ['pps']".into(),
            "2:8: a name is of up to 64 letters",
        ),
        (
            "[[measurement]]\nname = 'm'\nvalues = ['one-way']".into(),
            "3:11: \"one-way\" needs the key \"pair\" or \"flow\"",
        ),
        (
            "[[measurement]]\nname = 'm'\nvalues = ['flows']\nkey = ['src']\nkeys = 1000000\nprecision = 16"
                .into(),
            "1:1: all measurements together could take",
        ),
        (
            "[[measurement]]\nname = 'm'\nvalues = ['peak-bytes']\nbin = '7ms'".into(),
            "4:7: a bin is a part of an interval",
        ),
        (format!("{one}{alarm}"), "4:1: no condition: expected one of above"),
        (
            format!("{one}[[rule]]\nname = 'r'\nplugin = 'x'"),
            "4:1: rules of a probe are evaluated in the worker and cannot use plug-ins",
        ),
        ("[[measurement]]\nname = 'm'\nplugin = 'dns'".into(), "3:10: unknown plug-in"),
        (
            "[[plugin]]\nname = 'a'\nfile = ''\n[[measurement]]\nname = 'm'\nplugin = 'a'".into(),
            "3:8: give an object file",
        ),
        (
            "[[plugin]]\nname = 'a'\nfile = 'x'\n[[measurement]]\nname = 'm'\nplugin = 'a'\nkey = ['src']".into(),
            "7:8: a plug-in counts what it likes",
        ),
        (
            "[[plugin]]\nname = 'a'\nfile = 'x'\n[[measurement]]\nname = 'm'\nplugin = 'a'\ncounters = ['q']\n\
             [[alarm]]\nname = 'b'\nmeasurement = 'm'\ncounter = 'z'\nabove = 1"
                .into(),
            "11:11: the measurement has q",
        ),
        (format!("{one}{}above = 1", alarm.replace("value = \"pps\"", "counter = \"x\"")), "7:11: m is not of a plug-in: give value"),
        (format!("{one}counters = ['x']"), "4:12: only valid with plugin = \"NAME\""),
        (format!("{one}{alarm}above = 1\nbelow = 2"), "4:1: no condition: expected one of above"),
        (format!("{one}{alarm}above = 10\nclear = 11"), "9:9: it would be cleared when it is raised"),
        (format!("{one}{alarm}above = 10\nactions = ['x']"), "9:12: unknown action"),
        (format!("{one}{alarm}above = -1"), "8:9: give a number that is not negative"),
        (format!("{one}key = ['src']\n{alarm}below = 1"), "9:9: a key that falls silent"),
        (format!("{one}[[action]]\nname = 'x'"), "4:1: an action does one thing"),
        (
            format!("{one}[[action]]\nname = 'x'\nrecord = 'f.pcapng'"),
            "6:10: expected a table",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nrecord = {{ folder = '' }}"),
            "6:21: give a folder",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nrecord = {{ folder = 'a', before = '2h' }}"),
            "6:35: give \"0s\" to \"1h\"",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nrecord = {{ folder = 'a', buffer = '16' }}"),
            "6:35: write a size as text, as in \"16MiB\"",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nrecord = {{ folder = 'a', rule = 'r' }}"),
            "6:33: unknown rule",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nexport = 'http://x'"),
            "6:10: write file:PATH, udp://HOST:PORT or tcp://HOST:PORT (JSON), syslog://HOST:PORT",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nexport = 'udp://'"),
            "6:10: write file:PATH",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nexport = 'udp://192.0.2.1'"),
            "6:10: write file:PATH",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nexport = 'tcp://[2001:db8::1]:0'"),
            "6:10: write file:PATH",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nexport = 'file:a'\nlog = true"),
            "4:1: an action does one thing",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\ndigest = 'sha256'\nlog = true"),
            "6:10: only valid with record: the digest of a recorded file",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\ndigest = 'md5'\nrecord = {{ folder = 'a' }}"),
            "6:10: expected \"sha256\"",
        ),
        (
            format!("{one}analysis = 'kernel'\n[[action]]\nname = 'x'\nrecord = {{ folder = 'a' }}"),
            "4:12: this cannot be \"kernel\": the action x records packets",
        ),
        (format!("{one}[[action]]\nname = 'x'\nrun = ['sh']"), "6:8: give the program's whole path"),
        (format!("{one}[[action]]\nname = 'x'\nrun = ['/x', '{{kay}}']"), "6:14: braces are for {alarm}"),
        (
            format!("{one}[[schedule]]\nname = 's'\nat = '25:00'\nflush = true"),
            "6:6: write a time of the day as text",
        ),
        (format!("{one}[[schedule]]\nname = 's'\nevery = '1h'"), "4:1: nothing is done then"),
        (
            format!("{one}[[schedule]]\nname = 's'\nevery = '1h'\nretime = {{ t = '1h' }}"),
            "7:16: unknown schedule t; defined: s",
        ),
        (
            format!("{one}[[schedule]]\nname = 's'\nevery = '1h'\nretime = {{ s = '10ms' }}"),
            "7:16: give \"1s\" or more",
        ),
        (
            format!("{one}[[action]]\nname = 'x'\nretime = {{ s = '24:30' }}"),
            "6:16: write a length of time as text, as in \"10m\", or a time of the day (UTC)",
        ),
        (
            format!("{one}[[rule]]\nname = 'm'\n[[action]]\nname = 'x'\nactivate = ['m']"),
            "8:13: a measurement and a rule have this name: which of them?",
        ),
        (format!("{one}[[rule]]\nport = 80"), "4:1: the rule has no name"),
        (format!("{one}[[rule]]\nname = 'r'\naction = 'drop'"), "6:1: 'action' says what becomes of packets"),
        (
            format!("{one}[[rule]]\nname = 'r'\nprot = 'tcp'"),
            "6:1: unknown field 'prot'; did you mean 'protocol'?",
        ),
        (
            format!("{one}[[rule]]\nname = 'r'\ndevice = 'eth1'"),
            "4:1: rules of a probe cannot use devices",
        ),
        ("[measurement".into(), "1:"),
        ("a.".repeat(40) + "b = 1", "1:"),
        ("#".repeat(LONGEST + 1), "1:1: this has 1048577 bytes"),
    ] {
        let said = mistakes(&text);
        assert!(said.contains(expected), "{text}\n{said}\nnot {expected}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
    // Several mistakes at a time, in the order of the file.
    let said = mistakes(&format!("{one}rule = 'x'\nbin = '1ms'\n{alarm}above = 1\nclear = 2"));
    let places: Vec<&str> = said.lines().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(places, ["4:8", "5:7", "11:9"], "{said}");
}

#[test]
fn what_will_be_done_is_said() {
    for (name, text) in READY {
        let config = config(text);
        let said = describe(&config);
        for measurement in &config.measurements {
            assert!(said.contains(&format!("measurement {}: ", measurement.name)), "{name}: {said}");
        }
        assert!(said.contains("analysis in the workers") && said.contains("raised"), "{name}: {said}");
    }
    let said = describe(&config(
        "[[measurement]]\nname = 'm'\nkey = ['dst']\nkeys = 100\nanalysis = 'user'\nvalues = ['flows', 'top-src']\n\
         [[action]]\nname = 'x'\nrun = ['/bin/x', 'a b']\ntimeout = '2s'\n\
         [[schedule]]\nname = 's'\nat = '06:30'\ndays = ['mon', 'sun']\nflush = true\ndeactivate = ['m']\n\
         [[schedule]]\nname = 't'\nevery = '1h'\nretime = { t = '1m', s = '07:00' }\n",
    ));
    let more = describe(&config(
        "[[plugin]]\nname = 'p'\nfile = \"a\\u001bb\"\n[[measurement]]\nname = 'q'\nplugin = 'p'\ncounters = ['x', 'asked']\n\
         [[measurement]]\nname = 'm'\nkey = ['application']\nvalues = ['packets']\n\
         [[alarm]]\nname = 'a'\nmeasurement = 'q'\ncounter = 'x'\nabove = 1\n\
         [[action]]\nname = 'r'\nrecord = { folder = '/k', before = '1s', buffer = '1MiB' }\ndigest = 'sha256'\n\
         [[action]]\nname = 'e'\nexport = 'unix:/dev/log'\n",
    ));
    for part in [
        "plug-in p: a\\u{1b}b\nmeasurement q: counters of plug-in p: x, asked\n",
        "; the names of conversations take up to 11 MiB more in each",
        "alarm a: x of q above 1,",
        "action r: records the packets of its measurement from 1s before to 5s after it in /k, with a SHA-256 digest, up to",
        "action e: is exported to unix:/dev/log, when an alarm is raised or cleared",
    ] {
        assert!(more.contains(part), "{more}");
    }
    for part in [
        "by dst (up to 100 keys a worker, the rest in 'other')",
        "standard error of 3.25 %",
        "action x: runs \"/bin/x\" \"a b\", for 2s at most, when an alarm is raised or cleared",
        "schedule s: at 06:30:00 UTC on mon, sun shows totals and begins them anew, deactivates m\n",
        "schedule t: every 1h has from then on s at 07:00:00 UTC on mon, sun, t every 1m\n",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
