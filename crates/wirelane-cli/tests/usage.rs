//! Usage errors of the command line; needs no privileges.

use std::process::{Command, Output};

fn wirelane(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wirelane")).args(arguments.split_whitespace()).output().unwrap()
}

#[test]
fn without_arguments_there_is_help() {
    let output = wirelane("");
    let errors = String::from_utf8(output.stderr).unwrap();
    for command in ["devices", "count", "record", "send"] {
        assert!(errors.contains(&format!("  {command} ")), "{errors}");
    }
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_would_be_right() {
    let cases = [
        ("count", "name a device ('wirelane devices' lists them), or a file to read with -r"),
        ("record -w out.pcapng", "name a device ('wirelane devices' lists them), or a file to read with -r"),
        ("record -i lo", "--write"),
        ("count -i lo@x", "'x' is not a queue number"),
        ("count -i lo -r file.pcap", "cannot be used with"),
        ("count -i lo --duration 0", "give a time, as in 10 (seconds), 500ms, 10m or 1h"),
        ("send -i lo --duration soon", "give a time, as in 10 (seconds), 500ms, 10m or 1h"),
        ("count -i lo --workers 0", "--workers: 0 is not between 1 and 64"),
        ("count -i lo --ring-size 3", "--ring-size: 3 is not a power of two"),
        ("count -i lo --cores 4000", "--cores: this process may not run on 4000, only on "),
        ("count -i lo --snap-length 999999", "--snap-length: 999999 is more than 131008"),
        ("count -i lo --engine packet --hook tc", "--hook: engine packet has no hooks"),
        ("count -i lo --engine xsk", "add --exclusive to agree"),
        ("count -i lo --filter-file expression tcp", "cannot be used with"),
        ("count -i lo --engine file", "name it with -r"),
        ("count -r file.pcap --engine ring", "leave the option out"),
        ("count -r file.pcap --workers 2", "a file is read by one worker"),
        ("count -r /dev/null tcp prot 80", "filter: syntax error\n  tcp prot 80\n      ^"),
        ("count -r Cargo.toml tcp prot 80", "  tcp prot 80\n      ^"),
        ("record -r Cargo.toml -w out.pcapng tcp port", "  tcp port\n          ^ here something is missing"),
        ("cuont", "unrecognized subcommand"),
    ];
    for (arguments, message) in cases {
        let output = wirelane(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
        assert!(errors.contains(message), "{arguments}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments}: standard output holds results only");
    }
}

#[test]
fn what_is_not_there_exits_with_1_and_is_named() {
    let cases = [
        ("count -i nosuchdevice0", "no device 'nosuchdevice0' in this network namespace; there are: "),
        ("count -i lo@999", "'lo' has no RX queue 999; it has only lo@0"),
        ("count -r /no/such/file.pcap", "/no/such/file.pcap: No such file"),
        ("count -r /dev/null", "/dev/null"),
        ("devices nosuchdevice0", "no device 'nosuchdevice0'"),
    ];
    for (arguments, message) in cases {
        let output = wirelane(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {errors}");
        assert!(errors.contains(message), "{arguments}: {errors}");
    }
}
