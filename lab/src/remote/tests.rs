//! A manager with faulty and other agents.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use super::link::{Link, Refusal};
use super::message::{Hello, Order, Role};
use super::tls::{Files, Listening, Manager};
use super::wire::Wire;
use super::{PROTOCOL, VERSION};
use crate::machine::Machine;
use crate::suite::AgentDevice;

fn files(folder: &Path, name: &str) -> Files {
    let file = |name: &str| folder.join(name);
    Files { cert: file(&format!("{name}.pem")), key: file(&format!("{name}.key")), ca: file("ca.pem") }
}

/// Creates an authority, and certificates of an agent and of a manager.
fn certificates(folder: &Path) {
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let signed = format!("{new} -CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE -addext");
    for words in [
        format!("{new} -subj /CN=ca -keyout ca.key -out ca.pem -addext keyUsage=critical,keyCertSign"),
        format!(
            "{signed} extendedKeyUsage=clientAuth -subj /CN=manager -keyout manager.key -out manager.pem"
        ),
        format!(
            "{signed} extendedKeyUsage=serverAuth -addext subjectAltName=IP:127.0.0.1 -subj /CN=agent -keyout agent.key -out \
             agent.pem"
        ),
    ] {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
    }
}

fn hello() -> Hello {
    let (protocol, version) = (PROTOCOL, VERSION.to_owned());
    let device = "a".to_owned();
    let (merges, arranges, sensors) = (false, false, vec![]);
    Hello { protocol, version, role: Role::Sensor, device, mtu: 1500, merges, arranges, sensors }
}

fn welcome() -> Value {
    let machine = Machine::describe();
    json!({ "welcome": { "protocol": PROTOCOL, "version": VERSION, "cores": [0], "machine": machine, "sensors": {} } })
}

/// An agent that handles its only connection with this function.
fn agent(folder: &Path, does: impl FnOnce(Wire) + Send + 'static) -> (AgentDevice, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let agent_device = AgentDevice {
        host: "127.0.0.1".into(),
        port: listener.local_addr().unwrap().port(),
        device: "a".into(),
    };
    let listening = Listening::new(&files(folder, "agent")).unwrap();
    let thread = thread::spawn(move || {
        let mut wire = listening.accept(listener.accept().unwrap().0).unwrap();
        let said: Value = serde_json::from_slice(&wire.receive(super::HANDSHAKE).unwrap()).unwrap();
        assert_eq!(said["hello"]["role"], "sensor");
        does(wire);
    });
    (agent_device, thread)
}

#[test]
fn agents_of_other_versions_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let manager = Manager::new(&files(folder.path(), "manager")).unwrap();
    for (said, words) in [
        (json!({ "welcome": { "protocol": 99, "version": "9.9.9" } }), "it is wirelane 9.9.9 (protocol 99)"),
        (json!({ "welcome": { "protocol": PROTOCOL, "version": "0.0.1" } }), "it is wirelane 0.0.1"),
        (json!({ "refused": { "protocol": 99, "version": "9.9.9", "reason": "no" } }), "it refuses: no"),
        (json!({ "hello": 1 }), "no agent of"),
    ] {
        let (agent_device, thread) = agent(folder.path(), move |mut wire| wire.say(&said).unwrap());
        let error = format!("{:#}", Link::connect(&manager, &agent_device, &hello()).unwrap_err());
        assert!(error.contains(words), "{error}");
        thread.join().unwrap();
    }
}

#[test]
fn an_agent_that_leaves_or_speaks_nonsense_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let manager = Manager::new(&files(folder.path(), "manager")).unwrap();
    for (said, words) in [
        (None, "closed the connection"),
        (Some(json!("dance")), "not understood"),
        (Some(welcome()), "its answer is none"),
    ] {
        let (agent_device, thread) = agent(folder.path(), move |mut wire| {
            wire.say(&welcome()).unwrap();
            // Wait for the order; pings may precede it.
            while !String::from_utf8_lossy(&wire.receive(super::HANDSHAKE).unwrap()).contains("begin") {}
            if let Some(said) = said {
                wire.say(&said).unwrap();
                // The message is received before the connection is closed.
                let _ = wire.receive(super::HANDSHAKE);
            }
        });
        let (link, welcome) = Link::connect(&manager, &agent_device, &hello()).unwrap();
        assert_eq!(welcome.cores, [0]);
        match link.ask(Order::Begin) {
            Err(Refusal::Gone(error)) => assert!(format!("{error:#}").contains(words), "{error:#}"),
            other => panic!("{other:?}"),
        }
        drop(link);
        thread.join().unwrap();
    }
}

#[test]
fn files_that_are_none_are_named() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let good = files(folder.path(), "manager");
    std::fs::write(folder.path().join("empty"), "nothing\n").unwrap();
    let empty = folder.path().join("empty");
    for (files, words) in [
        (Files { cert: folder.path().join("none.pem"), ..good.clone() }, "none.pem"),
        (Files { cert: empty.clone(), ..good.clone() }, "has no certificate"),
        (Files { key: empty, ..good.clone() }, "the key"),
        (Files { key: folder.path().join("agent.key"), ..good.clone() }, "manager.pem with the key"),
    ] {
        let error = format!("{:#}", Manager::new(&files).unwrap_err());
        assert!(error.contains(words), "{error}");
        assert!(Listening::new(&files).is_err());
    }
}
