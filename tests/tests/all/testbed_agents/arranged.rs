//! Settings of its device that an agent lets managers choose.

use std::time::{Duration, Instant};

use wirelane_tests::{Signal, require_root};

use super::{Field, LIMIT, number};

#[test]
fn an_agent_sets_queues_and_napi_of_its_device_if_it_may_and_sets_them_back() {
    if !require_root("an_agent_sets_queues_and_napi_of_its_device_if_it_may_and_sets_them_back") {
        return;
    }
    let field = Field::with(2);
    let _injector = field.agent("injector", &["--busy-cores"]);
    let sensor = field.agent("sensor", &["--device", "rx0"]);
    let at_sensor = |words: &[&str]| {
        let mut command = field.lab.command(&field.lab.links[0].receiver.namespace, words[0]);
        let output = command.args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // Without an XDP program, a veth has NAPI only with GRO.
    at_sensor(&["ethtool", "-K", "rx0", "gro", "on"]);
    let state = || (at_sensor(&["ethtool", "-l", "rx0"]), at_sensor(&["cat", "/sys/class/net/rx0/threaded"]));
    let before = state();
    field.suite(
        "arranged",
        "sensors = [\"wirelane-count\", \"libpcap-loops\"]\nrates = [2000]\nduration = \"300ms\"\nloops = [100]\n\
         cores = [[1], [0, 1]]\nper-core = true\nnapi = \"threads\"",
    );
    let told = field.run(&["arranged.toml"]);
    assert_eq!(told.status.code(), Some(1), "{}", told.stderr);
    assert!(told.stderr.contains("only with --arrange"), "{}", told.stderr);
    sensor.terminate(LIMIT).unwrap();
    let sensor = field.agent("sensor", &["--device", "rx0", "--arrange"]);
    let told = field.run_when_free(&["arranged.toml", "--out", "arranged"]);
    assert!(told.status.success(), "{}", told.stderr);
    let trials = field.rows("arranged");
    let queues = |queues: &str| trials.iter().filter(|row| row["case"].contains(queues)).count();
    assert_eq!((trials.len(), queues(" queues=1"), queues(" queues=2")), (4, 2, 2));
    for row in &trials {
        assert!(row["fault"].is_empty() && number(row, "sent") > 0, "{row:?}");
        assert_eq!(number(row, "unaccounted"), 0, "{row:?}");
        assert!(row["napi_cpu_s"].parse::<f64>().unwrap() > 0.0, "{row:?}");
    }
    let wait_until = |is_arranged: bool| {
        let end = Instant::now() + LIMIT;
        while (state() != before) != is_arranged {
            assert!(Instant::now() < end, "{:?}, before {before:?}", state());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_until(false);
    field.suite(
        "killed",
        "sensors = [\"wirelane-count\"]\nrates = [2000]\nduration = \"9s\"\nrepetitions = 2\ncores = [[1]]\nnapi = \"threads\"",
    );
    let manager = field.start(&["killed.toml"]);
    field.wait_for("wirelane send", "wirelane count", true);
    wait_until(true);
    sensor.signal(Signal::Kill).unwrap();
    let _ = sensor.finish(LIMIT).unwrap();
    wait_until(false);
    manager.terminate(LIMIT).unwrap();
}
