//! Metrics for other hosts: TLS, and a required token.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, finish};
use wirelane_tests::{Lab, require_root, timed, wirelane_binary};

const TOKEN: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";
const CONFIG: &str = "interval = \"100ms\"\n[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n";

/// True if the programs that the test needs are installed.
fn is_there(test: &str) -> bool {
    let missing =
        ["curl", "openssl"].into_iter().find(|name| Command::new(name).arg("--version").output().is_err());
    if let Some(name) = missing {
        println!("left out: {test} (no {name}: scripts/setup)");
    }
    missing.is_none()
}

/// Writes a self-signed certificate for this address, its key, the token, and a configuration.
fn write_files(folder: &Path, address: &str) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let alternative = format!("subjectAltName=IP:{address}");
    let output = Command::new("openssl")
        .current_dir(folder)
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=probe", "-keyout", "key.pem", "-out", "cert.pem", "-addext", &alternative])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(folder.join("token"), format!("{TOKEN}\n")).unwrap();
    for secret in ["key.pem", "token"] {
        fs::set_permissions(folder.join(secret), fs::Permissions::from_mode(0o600)).unwrap();
    }
    fs::write(folder.join("p.toml"), CONFIG).unwrap();
}

#[test]
fn who_has_the_token_is_told_by_tls_and_nobody_is_in_the_way() {
    if !require_root("who_has_the_token_is_told_by_tls_and_nobody_is_in_the_way")
        || !is_there("TLS and token")
    {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let (device, address) = (lab.receiver().device.clone(), lab.receiver().address);
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), &address.to_string());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let at = format!("{address}:9464");
    let (config, cert, key, token) = (path("p.toml"), path("cert.pem"), path("key.pem"), path("token"));
    let words = ["probe", &config, "-i", &device, "--json", "-p", "--metrics", &at, "--metrics-cert", &cert];
    let words = [&words[..], &["--metrics-key", &key, "--metrics-token-file", &token, "udp"]].concat();
    let probe = capture(&lab, &words).unwrap();
    // Key and token were read before the rights were given up.
    fs::remove_file(&key).unwrap();
    fs::remove_file(&token).unwrap();
    let tasks = fs::read_dir(format!("/proc/{}/task", probe.pid())).unwrap();
    for task in tasks {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains("Seccomp:\t2"), "{status}");
    }
    // Requests from another host.
    let elsewhere = lab.sender().namespace.clone();
    let curl = |words: &[&str], url: &str| -> (Option<i32>, String) {
        let fixed = ["-s", "-S", "--max-time", "20", "--cacert", &cert, "-w", "\n%{http_code}"];
        let output = lab.command(&elsewhere, "curl").args(fixed).args(words).arg(url).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code(), said.concat())
    };
    let url = format!("https://{at}/metrics");
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let good = || {
        let start = Instant::now();
        let (status, said) = curl(&["-H", &bearer], &url);
        assert_eq!(status, Some(0), "{said}");
        assert!(
            said.ends_with("\n200") && said.contains("wirelane_packets_total{column=\"lost\"} 0"),
            "{said}"
        );
        start.elapsed()
    };
    good();
    for (words, path, code) in [
        (&[][..], "/metrics", "401"),
        (&["-H", "Authorization: Bearer 0f1e2d3c4b5a69788796a5b4c3d2e1f1"], "/metrics", "401"),
        (&["-H", "Authorization: Bearer 0f1e2d3c4b5a69788796a5b4c3d2e1f"], "/metrics", "401"),
        (&["-u", "wirelane:0f1e2d3c4b5a69788796a5b4c3d2e1f0"], "/metrics", "401"),
        (&[], "/", "401"),
        (&["-X", "POST"], "/metrics", "401"),
        (&["-H", &bearer], "/", "404"),
        (&["-H", &bearer, "-X", "POST"], "/metrics", "405"),
        (&["-H", &bearer, "-I"], "/metrics", "200"),
    ] {
        let (status, said) = curl(words, &format!("https://{at}{path}"));
        assert!(status == Some(0) && said.ends_with(&format!("\n{code}")), "{words:?} {path}: {said}");
        assert!(code == "200" || !said.contains("wirelane_"), "{said}");
    }
    let (_, said) = curl(&["-i"], &url);
    assert!(said.to_lowercase().contains("www-authenticate: bearer"), "{said}");
    // Without TLS, and with an old version of TLS.
    let (status, said) = curl(&["-H", &bearer], &format!("http://{at}/metrics"));
    assert!(status == Some(0) && said.ends_with("\n400") && said.contains("ask by https"), "{said}");
    let (status, said) = curl(&["-H", &bearer, "--tls-max", "1.2"], &url);
    assert!(status == Some(35), "{status:?} {said}");

    // Silent or incomplete connections do not delay other clients, and are closed.
    let to: SocketAddr = at.parse().unwrap();
    let connect = || {
        let stream = lab.enter(&elsewhere, || TcpStream::connect(to).unwrap()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let silent: Vec<TcpStream> = (0..40)
        .map(|number| {
            let mut stream = connect();
            // Nothing, a handshake record with less data than announced, and an endless request without TLS.
            let begun: [&[u8]; 3] = [b"", &[22, 3, 1, 0x40, 0, 1], b"GET /metrics HTTP/1.1\r\nX: "];
            stream.write_all(begun[number % 3]).unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    let took = good();
    assert!(!timed() || took < Duration::from_millis(1900), "{took:?}");
    for mut stream in silent {
        let mut rest = Vec::new();
        // Closed, by FIN or RST.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 1000, "{rest:?}");
    }
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    // More connections than slots: the next one waits for a slot.
    let many: Vec<TcpStream> = (0..80).map(|_| connect()).collect();
    good();
    drop(many);
    // Invalid bytes that a correct client does not send.
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 4 << 20]].concat();
    let records: Vec<u8> = [22, 3, 1, 0x40, 0].into_iter().chain(vec![0xff; 0x4000]).collect();
    for hostile in [&long[..], &records, &[22; 100_000], &[0; 100_000], b"\x16\x03\x01\x00\x00", b"\r\n\r\n"]
    {
        let mut stream = connect();
        // The server may close the connection before all bytes are written.
        let _ = stream.write_all(hostile);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let said = String::from_utf8_lossy(&rest).into_owned();
        assert!(rest.len() < 1000 && !said.contains("wirelane_"), "{said}");
        good();
    }
    let end = finish(probe).unwrap();
    assert_eq!(column(&end, "lost"), 0);
}

/// A certificate that is renewed is served from then on, without a restart and without losing the token, which is in the
/// environment here. While only the certificate is new and not its key, the pair of before is served.
#[test]
fn a_renewed_certificate_is_served_at_once() {
    if !require_root("a_renewed_certificate_is_served_at_once") || !is_there("a renewed certificate") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let (device, address) = (lab.receiver().device.clone(), lab.receiver().address);
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let make = |name: &str| {
        let made = folder.path().join(name);
        fs::create_dir(&made).unwrap();
        write_files(&made, &address.to_string());
        for file in ["cert.pem", "key.pem"] {
            std::os::unix::fs::chown(made.join(file), Some(65534), Some(65534)).unwrap();
        }
        made
    };
    let (now, next) = (make("now"), make("next"));
    let (old_ca, new_ca) = (folder.path().join("old.pem"), folder.path().join("new.pem"));
    fs::copy(now.join("cert.pem"), &old_ca).unwrap();
    fs::copy(next.join("cert.pem"), &new_ca).unwrap();
    let at = format!("{address}:9464");
    let program = wirelane_binary().unwrap();
    let (cert, key) = (now.join("cert.pem"), now.join("key.pem"));
    let token = format!("WIRELANE_TEST_TOKEN={TOKEN}");
    let words =
        ["env", &token, program.to_str().unwrap(), "count", "-i", &device, "--json", "--user", "65534"];
    let metrics = ["--metrics", &at, "--metrics-token-env", "WIRELANE_TEST_TOKEN"];
    let files = ["--metrics-cert", cert.to_str().unwrap(), "--metrics-key", key.to_str().unwrap()];
    let mut count = lab.spawn(&lab.receiver().namespace, &[&words[..], &metrics, &files].concat()).unwrap();
    count.wait_ready(LIMIT).unwrap();
    let trusts = |authority: &Path| {
        let output = lab
            .command(&lab.sender().namespace, "curl")
            .args([
                "-s",
                "-S",
                "--max-time",
                "20",
                "-H",
                &format!("Authorization: Bearer {TOKEN}"),
                "--cacert",
            ])
            .arg(authority)
            .arg(format!("https://{at}/metrics"))
            .output()
            .unwrap();
        // 60: the certificate is not that of the authority.
        assert!([Some(0), Some(60)].contains(&output.status.code()), "{output:?}");
        output.status.success()
    };
    assert!(trusts(&old_ca) && !trusts(&new_ca));
    fs::rename(next.join("cert.pem"), &cert).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(trusts(&old_ca) && !trusts(&new_ca), "without its key");
    fs::rename(next.join("key.pem"), &key).unwrap();
    let begun = Instant::now();
    while !trusts(&new_ca) {
        assert!(begun.elapsed() < LIMIT, "the new certificate is not served");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(!trusts(&old_ca));
    let finished = count.terminate(LIMIT).unwrap();
    assert!(finished.stderr.contains("stay in use"), "{}", finished.stderr);
    assert!(!finished.stderr.contains(TOKEN), "{}", finished.stderr);
    assert_eq!(column(&finished.last_json().unwrap(), "lost"), 0);
}

/// Options that would expose metrics to everybody, or a secret to other users, are refused before anything is captured.
#[test]
fn what_does_not_keep_others_out_is_refused() {
    if !is_there("refusals of certificates and tokens") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_files(here, "127.0.0.1");
    let write = |name: &str, text: &str, mode: u32| {
        fs::write(here.join(name), text).unwrap();
        fs::set_permissions(here.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let key = fs::read_to_string(here.join("key.pem")).unwrap();
    write("open-key.pem", &key, 0o644);
    write("open-token", TOKEN, 0o604);
    write("short-token", "0123456789abcde", 0o600);
    write("blank-token", "0123456789abcdef 0123456789abcdef", 0o600);
    fs::create_dir(here.join("other")).unwrap();
    write_files(&here.join("other"), "127.0.0.1");
    let refused = |address: &str, files: &[&str], what: &str| {
        for command in [&["probe", "p.toml"][..], &["voip"], &["http"]] {
            let names = ["--metrics-cert", "--metrics-key", "--metrics-token-file"];
            let options = names.iter().zip(files).filter(|(_, file)| !file.is_empty());
            let options = options.flat_map(|(name, file)| [*name, *file]);
            let output = Command::new(wirelane_binary().unwrap())
                .current_dir(here)
                .args(command)
                .args(["-i", "lo", "--metrics", address])
                .args(options)
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{files:?}: {errors}");
            assert!(errors.contains(what) && output.stdout.is_empty(), "{files:?}: {errors}");
            assert!(!errors.contains(TOKEN), "{errors}");
        }
    };
    refused("0.0.0.0:0", &[], "other hosts could read it");
    refused("[::]:0", &[], "other hosts could read it");
    for files in [["cert.pem", "key.pem", ""], ["", "key.pem", "token"], ["cert.pem", "", "token"]] {
        refused("127.0.0.1:0", &files, "are given together");
    }
    for (files, what) in [
        (["none.pem", "key.pem", "token"], "none.pem: No such file"),
        (["token", "key.pem", "token"], "token: no PEM certificate in it"),
        (["cert.pem", "cert.pem", "token"], "cert.pem: is readable by others (mode 0644)"),
        (["cert.pem", "open-key.pem", "token"], "open-key.pem: is readable by others (mode 0644)"),
        (["cert.pem", "key.pem", "open-token"], "open-token: is readable by others (mode 0604)"),
        (["cert.pem", "token", "token"], "token: not a PEM private key"),
        (["cert.pem", "other/key.pem", "token"], "cert.pem: it cannot be used with the key other/key.pem"),
        (["cert.pem", "key.pem", "short-token"], "short-token: a token is of 16 to 4096"),
        (["cert.pem", "key.pem", "blank-token"], "blank-token: a token is of 16 to 4096"),
    ] {
        refused("0.0.0.0:0", &files, what);
    }
}

/// Commands for finished files and programs of alarms have the environment of the monitor, except the variable with the token.
#[test]
fn commands_of_the_user_do_not_inherit_the_token() {
    let test = "commands_of_the_user_do_not_inherit_the_token";
    if !require_root(test) || !is_there(test) {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = &lab.receiver().device;
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), "127.0.0.1");
    let out = tempfile::tempdir().unwrap();
    fs::set_permissions(out.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let at = |name: &str| out.path().join(name).display().to_string();
    let alarm = format!(
        "[[alarm]]\nname = \"any\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 5\nactions = [\"note\"]\n\
         [[action]]\nname = \"note\"\nrun = [\"/bin/sh\", \"-c\", \"env -0 >{0}.part && mv {0}.part {0}\"]\n",
        at("of-alarm")
    );
    fs::write(folder.path().join("p.toml"), CONFIG.to_owned() + &alarm).unwrap();
    fs::write(
        folder.path().join("site.toml"),
        format!(
            "[capture]\ninterface = \"{device}\"\ninterval = 0.1\nuser = \"root\"\n\
             [record]\nwrite = \"{}\"\nrotate-packets = 10\npost-rotate = \"env -0 >{}; true\"\n[probe]\nconfig = \"{}\"\n\
             [metrics]\naddress = \"127.0.0.1:0\"\ncert = \"{}\"\nkey = \"{}\"\ntoken-env = \"WIRELANE_TEST_TOKEN\"\n",
            at("all.pcapng"),
            at("of-file"),
            path("p.toml"),
            path("cert.pem"),
            path("key.pem"),
        ),
    )
    .unwrap();
    let program = wirelane_binary().unwrap();
    let token = format!("WIRELANE_TEST_TOKEN={TOKEN}");
    let site = path("site.toml");
    let words =
        ["env", &token, "WIRELANE_TEST_OTHER=kept", program.to_str().unwrap(), "monitor", &site, "--json"];
    let mut monitor = lab.spawn(&lab.receiver().namespace, &words).unwrap();
    monitor.wait_ready(LIMIT).unwrap();
    wirelane_tests::numbers::send(&lab, 100, &[]).unwrap();
    let begun = Instant::now();
    while !out.path().join("of-alarm").exists() {
        assert!(begun.elapsed() < LIMIT, "the alarm's program did not run");
        std::thread::sleep(Duration::from_millis(20));
    }
    let last = finish(monitor).unwrap();
    let record = &last["analyses"]["record"];
    assert!(
        column(record, "post_rotate_done") >= 10 && column(record, "post_rotate_failed") == 0,
        "{record}"
    );
    for name in ["of-file", "of-alarm"] {
        let environment = fs::read(out.path().join(name)).unwrap();
        let variables: Vec<_> = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        assert!(variables.iter().any(|one| one == "WIRELANE_TEST_OTHER=kept"), "{name}: {variables:?}");
        let told = variables.iter().find(|one| one.contains("WIRELANE_TEST_TOKEN") || one.contains(TOKEN));
        assert_eq!(told, None, "{name}");
    }
}
