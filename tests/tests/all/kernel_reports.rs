//! `tests/kernels/judge` finds faults in a guest's report, and all kernel programs load: on this kernel, and on those of
//! `scripts/test-kernels`.

use std::fs;
use std::process::Command;

use wirelane_tests::{repository, require_root};

const ACCEPTED: &str = "# kernel\tprogram\tconfiguration\tinstructions\n\
    6.1\tcapture/xdp\tplain\t1000\n\
    6.1\tcapture/late\tplain\t-\n\
    7.2\tcapture/xdp\tplain\t900\n";

const GOOD: &str = "== kernel\n6.1.0\n\
    == verified-instructions\n\
    capture/xdp\tplain\t1000\n\
    capture/late\tplain\t-\n\
    status 0\n\
    == battery kernels\n\
    running 3 tests\n\
    test fast ... ok\n\
    test asks_the_host ... \nsend 5000\nok\n\
    test by_tc ... ok\n\
    successes:\n\
    ---- by_tc stdout ----\n\
    left out: by tc (needs Linux 6.6)\n\
    status 0\n\
    == dmesg\n\
    == end\n";

/// The lines of the verdict as (verdict, check), without the counts.
fn judge(report: &str, kernel: &str, objects: &str) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let (recorded, path) = (folder.path().join("recorded"), folder.path().join("report"));
    fs::write(&recorded, ACCEPTED).unwrap();
    fs::write(&path, report).unwrap();
    let output = Command::new("awk")
        .arg("-f")
        .arg(repository().join("tests/kernels/judge"))
        .args(["-v", &format!("kernel={kernel}"), "-v", &format!("recorded={}", recorded.display())])
        .args(["-v", &format!("objects={objects}"), "-v", "accept=0", "-v", "limit=500000"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let fields = lines.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let verdicts = fields.filter(|fields| fields[0] != "count");
    verdicts.map(|fields| (fields[0].to_owned(), fields[1].to_owned())).collect()
}

fn failures(report: &str) -> Vec<String> {
    let verdicts = judge(report, "6.1", "capture").into_iter();
    verdicts.filter(|(verdict, _)| verdict == "failed").map(|(_, check)| check).collect()
}

#[test]
fn a_good_report_is_taken_line_by_line() {
    let verdicts = judge(GOOD, "6.1", "capture");
    let of = |wanted: &str| -> Vec<&str> {
        verdicts.iter().filter(|(verdict, _)| verdict == wanted).map(|(_, check)| check.as_str()).collect()
    };
    assert_eq!(
        of("passed"),
        ["verified-instructions capture/xdp (plain)", "kernels::fast", "kernels::asks_the_host", "dmesg"]
    );
    assert_eq!(of("skipped"), ["verified-instructions capture/late (plain)", "kernels::by_tc"]);
    assert_eq!(of("failed"), [""; 0]);
}

#[test]
fn whatever_is_wrong_fails() {
    let cases = [
        ("growth", "\t1000\n", "\t1001\n", "verified-instructions capture/xdp (plain)"),
        ("a program beyond the limit", "\t1000\n", "\t500001\n", "verified-instructions capture/xdp (plain)"),
        (
            "a program that is gone",
            "capture/xdp\tplain\t1000\n",
            "",
            "verified-instructions capture/xdp (plain)",
        ),
        (
            "a program not on record",
            "capture/late",
            "capture/new",
            "verified-instructions capture/late (plain)",
        ),
        ("a load that fails", "status 0\n== battery", "status 1\n== battery", "verified-instructions"),
        ("a test that fails", "test fast ... ok", "test fast ... FAILED", "kernels::fast"),
        ("one that fails later", "send 5000\nok", "send 5000\nFAILED", "kernels::asks_the_host"),
        ("a test program that dies", "status 0\n== dmesg", "status 134\n== dmesg", "kernels"),
        ("a guest that dies in a test", &GOOD[GOOD.find("ok\ntest by_tc").unwrap()..], "", "kernels"),
        ("a guest that dies later", "== end\n", "", "the whole run"),
        ("a kernel that complains", "== dmesg\n", "== dmesg\n[ 1.0] BUG: bad page\n", "dmesg"),
    ];
    for (what, from, to, check) in cases {
        let report = GOOD.replacen(from, to, 1);
        assert_ne!(report, GOOD, "{what}: the report has no {from:?}");
        let failures = failures(&report);
        assert!(failures.iter().any(|failed| failed == check), "{what}: {check} is not in {failures:?}");
    }
}

#[test]
fn programs_that_nobody_loads_are_found() {
    let failed = ("failed".to_owned(), "verified-instructions flows".to_owned());
    assert!(judge(GOOD, "6.1", "capture flows").contains(&failed));
}

#[test]
fn kernels_without_a_record_are_compared_with_nothing() {
    let verdicts = judge(GOOD, "7.3", "capture");
    assert!(verdicts.contains(&("skipped".into(), "verified-instructions capture/xdp (plain)".into())));
    assert!(verdicts.iter().all(|(verdict, _)| verdict != "failed"), "{verdicts:?}");
}

/// Every kernel program, in every configuration, on the kernel that runs here.
/// Battery: F10
#[test]
fn all_programs_load_on_this_kernel() {
    if !require_root("all_programs_load_on_this_kernel") {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_verified-instructions")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let sources = fs::read_dir(repository().join("crates/wirelane-bpf/bpf")).unwrap();
    let names = sources.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let objects: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".bpf.c").map(str::to_owned)).collect();
    assert!(objects.len() > 5, "{objects:?}");
    let report = format!("== verified-instructions\n{lines}status 0\n== end\n");
    // Numbers of instructions depend on the compiler: `scripts/test-kernels` compares them.
    let verdicts = judge(&report, "0.0", &objects.join(" "));
    assert!(verdicts.len() >= objects.len(), "{verdicts:?}");
    assert!(verdicts.iter().all(|(verdict, _)| verdict != "failed"), "{verdicts:?}\n{said}");
}

/// The same on the oldest kernel that is served, on Debian's, and on the newest that Debian packages.
/// Battery: F10
#[test]
#[ignore = "takes some minutes: make test-all"]
fn all_programs_load_on_other_kernels() {
    const NAME: &str = "all_programs_load_on_other_kernels";
    if !require_root(NAME) {
        return;
    }
    let output = Command::new(repository().join("scripts/test-kernels"))
        .args(["bookworm/programs", "trixie/programs", "sid/programs"])
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{lines}\n{}", String::from_utf8_lossy(&output.stderr));
    let of = |wanted: &str, check: &str| -> Vec<&str> {
        let words = lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let those =
            words.filter(|words| words.len() > 2 && words[0] == wanted && words[2].starts_with(check));
        those.map(|words| words[1]).collect()
    };
    if !of("skipped", "boot").is_empty() {
        println!("left out: {NAME} ({})", lines.lines().next().unwrap_or_default());
        return;
    }
    let booted = of("passed", "boot");
    println!("{booted:?}");
    assert_eq!(booted.len(), 3, "{lines}");
    assert!(booted[0].starts_with("6.1.") && booted[1].starts_with("6.12"), "{booted:?}");
    for release in booted {
        let loaded = of("passed", "verified-instructions").into_iter().filter(|one| *one == release).count();
        assert!(loaded > 20, "{release}: {loaded} programs\n{lines}");
    }
}
