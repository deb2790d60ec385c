//! Packages in roots of Debian: installed by apt with what they depend on, used as the service's user, purged without a trace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wirelane_tests::{Debian, require_root};

use super::{files, package};

/// Files of a root, without what apt, dpkg and rpm write about their work.
fn listing(root: &Path) -> BTreeMap<PathBuf, (u32, u64)> {
    let mut found = files(root);
    let logs = ["dpkg.log", "apt/", "alternatives.log"].map(|name| format!("var/log/{name}"));
    let kept =
        ["var/lib/dpkg/", "var/lib/apt/", "var/lib/rpm/", "var/cache/", "debs/", "tmp/", "proc/", "sys/"]
            .map(str::to_owned);
    found.retain(|path, _| {
        let name = path.to_string_lossy();
        !kept.iter().chain(&logs).any(|start| name.starts_with(start.as_str()))
            // Copies and locks of the tools for accounts.
            && !(name.starts_with("etc/") && (name.ends_with('-') || name.ends_with(".lock")))
            && name != "etc/ld.so.cache"
    });
    found
}

fn differences(
    before: &BTreeMap<PathBuf, (u32, u64)>,
    after: &BTreeMap<PathBuf, (u32, u64)>,
) -> Vec<PathBuf> {
    let of = |one: &BTreeMap<PathBuf, (u32, u64)>, other: &BTreeMap<PathBuf, (u32, u64)>| {
        one.iter()
            .filter(|(path, file)| other.get(*path) != Some(*file))
            .map(|(path, _)| path.clone())
            .collect::<Vec<_>>()
    };
    [of(after, before), of(before, after)].concat()
}

/// A service captures as its user, is asked, and has its file read again.
const USE: &str = r#"
ip link set lo up
mkdir -p /run/wirelane-monitor/eth1 /etc/wirelane
chown wirelane /run/wirelane-monitor/eth1
ip link add eth1 type veth peer name eth2
ip link set eth1 up
ip link set eth2 up
printf '[capture]\ninterface = "eth1"\ninterval = %s\n[flows]\n' 0.2 >/etc/wirelane/eth1.toml
wirelane check /etc/wirelane/eth1.toml
export XDG_RUNTIME_DIR=/run/wirelane-monitor/eth1
caps=$(sed -n 's/^AmbientCapabilities=//p' /usr/lib/systemd/system/wirelane@.service |
	sed 's/CAP_\([A-Z_]*\)/,+\1/g; s/ //g' | tr A-Z a-z)
setpriv --reuid=wirelane --regid=wirelane --clear-groups "--inh-caps=-all$caps" "--ambient-caps=-all$caps" \
	"--bounding-set=-all$caps" --no-new-privs wirelane monitor /etc/wirelane/eth1.toml --json >/tmp/out 2>/tmp/err &
for i in $(seq 600); do ! grep -q ready /tmp/out || break; sleep 0.1; done
wirelane send -i eth2 --packets 100 >/dev/null
printf '[capture]\ninterface = "eth1"\ninterval = %s\n[flows]\n' 0.3 >/etc/wirelane/eth1.toml
wirelane reload eth1
wirelane status eth1 --json
kill $!
wait $! || { cat /tmp/err >&2; exit 1; }
tail -n 1 /tmp/out
ls /usr/lib/*/wireshark/extcap/wirelane
"#;

fn on(test: &str, suite: &str) {
    if !require_root(test) {
        return;
    }
    let Some(debian) = Debian::new(test, suite).unwrap() else { return };
    let root = debian.root();
    let debs = root.join("debs");
    package(&debs, &["deb"]);
    debian.shell("apt-get update -q").unwrap();
    let before = listing(&root);
    debian.shell("apt-get install -qy --no-install-recommends /debs/*.deb").unwrap();
    let said = debian.shell_alone(USE).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.first(), Some(&"changed: interval"), "{said}");
    let json = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    assert_eq!(json(lines[1])["reloads"], 1, "{said}");
    let last = json(lines[2]);
    assert!(last["analysed"].as_u64().unwrap() >= 100 && last["lost"] == 0, "{last}");
    // The libraries stay: apt removes them as it does for any package.
    let names = "wirelane-dbgsym wirelane-wireshark libwirelane-pcap wirelane";
    debian.shell(&format!("apt-get purge -qy {names}; apt-get autoremove -qy --purge")).unwrap();
    let left = differences(&before, &listing(&root));
    assert!(left.is_empty(), "{left:?}");
}

/// The .deb packages in a root of Debian 12.
/// Battery: S10
#[test]
#[ignore = "installs a Debian, minutes: make test-all"]
fn packages_work_on_bookworm() {
    on("packages_work_on_bookworm", "bookworm");
}

/// The .deb packages in a root of Debian 13.
/// Battery: S10
#[test]
#[ignore = "installs a Debian, minutes: make test-all"]
fn packages_work_on_trixie() {
    on("packages_work_on_trixie", "trixie");
}

/// The .rpm packages, by rpm in a root that has the libraries, with their scripts.
/// Battery: S10
#[test]
#[ignore = "installs a Debian, minutes: make test-all"]
fn rpm_packages_are_installed_used_and_removed_without_a_trace() {
    let test = "rpm_packages_are_installed_used_and_removed_without_a_trace";
    if !require_root(test) {
        return;
    }
    let Some(debian) = Debian::new(test, "trixie").unwrap() else { return };
    let root = debian.root();
    package(&root.join("debs"), &["rpm"]);
    // Libraries as Debian's packages need them, from its archive; rpm's database does not know them.
    debian
        .shell(
            "apt-get update -q; apt-get install -qy --no-install-recommends libelf1t64 libpcap0.8t64 zlib1g",
        )
        .unwrap();
    let before = listing(&root);
    debian.shell("rpm --install --nodeps /debs/*.rpm").unwrap();
    let account = fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(account.contains("\nwirelane:"), "{account}");
    let said = debian.shell_alone(
        "ip link set lo up; wirelane --version; rpm -q --queryformat '%{VERSION}\\n' wirelane
         wirelane count -i lo --hook tc --duration 0.3 --json | tail -n 1",
    );
    let said = said.unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(lines[..2], [format!("wirelane {version}"), version.to_owned()], "{said}");
    let last: Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!((&last["final"], &last["lost"]), (&Value::Bool(true), &0.into()), "{last}");
    debian.shell("rpm --erase wirelane-wireshark libwirelane-pcap wirelane").unwrap();
    let mut left = differences(&before, &listing(&root));
    // As RPM distributions do, accounts stay: files that somebody keeps would belong to the next user of their number.
    let accounts = ["passwd", "shadow", "group", "gshadow"].map(|name| Path::new("etc").join(name));
    left.retain(|path| !accounts.contains(path));
    assert!(left.is_empty(), "{left:?}");
}
