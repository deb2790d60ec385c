//! An agent: waits for managers, and works for one of them at a time.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::front::{Front, Session};
use super::message::{
    FromAgent, Hello, Offer, Order, PROTOCOL, Role, ToAgent, VERSION, Welcome, read, read_hello,
};
use super::tls::{Files, Listening};
use super::work::Worker;
use super::{AT_ONCE, HANDSHAKE, SILENCE, SOON};
use crate::duts::Duts;
use crate::holder::output;
use crate::machine::Machine;
use crate::suite::{Resources, is_device, tools};
use crate::watcher;

/// Options of an agent.
#[derive(Debug)]
pub struct Options {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Its certificate, key and authority.
    pub files: Files,
    /// The only device that a manager may use; `None`: any.
    pub device: Option<String>,
    /// The only cores that a manager may use; empty: all.
    pub cores: Vec<usize>,
    /// Whether managers may set RX queues and NAPI of the device.
    pub arrange: bool,
    /// Whether trials count while other programs use the cores, if the generator keeps its rate.
    pub busy_cores: bool,
    /// Adapters of the sensors that a manager may request.
    pub sensors: Duts,
    /// The program that sends, and that our sensors are.
    pub wirelane: PathBuf,
}

/// A listening agent.
#[derive(Debug)]
pub struct Agent {
    listener: TcpListener,
    shared: Shared,
}

/// State shared by the connections.
#[derive(Debug)]
struct Shared {
    options: Options,
    /// Cores for managers.
    cores: Vec<usize>,
    /// Current manager.
    manager: Mutex<Option<SocketAddr>>,
    log: fn(&str),
}

impl Agent {
    /// Listens. Messages go to `log`, a line each.
    ///
    /// # Errors
    /// The missing requirement: rights, programs, cores, usable files, a free address.
    pub fn listen(options: Options, log: fn(&str)) -> Result<Agent> {
        let resources = Resources::here();
        ensure!(resources.root, "an agent sends and captures, which takes root: run it with sudo");
        tools(&["ethtool", "setpriv", "unshare", "nsenter", "taskset"])?;
        if options.arrange {
            tools(&["chrt", "renice"])?;
        }
        if let Some(core) = options.cores.iter().find(|core| !resources.cores.contains(core)) {
            bail!("--cores has core {core}, which is not on line here");
        }
        if let Some(device) = &options.device {
            ensure!(is_there(device), "there is no device {device}");
        }
        let cores = if options.cores.is_empty() { resources.cores } else { options.cores.clone() };
        // Faults in the files are reported before the agent listens.
        Listening::new(&options.files)?;
        let listener =
            TcpListener::bind(options.listen).with_context(|| format!("listening on {}", options.listen))?;
        let shared = Shared { options, cores, manager: Mutex::new(None), log };
        Ok(Agent { listener, shared })
    }

    /// Address of the listening socket.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().context("the address of the listening socket")
    }

    /// Serves managers, until the process that accepts connections ends. `front`: the command line that starts that
    /// process ([`super::run_front`]), without the three files.
    ///
    /// # Errors
    /// That process has ended, or cannot be started.
    pub fn serve(&self, front: &[&str]) -> Result<()> {
        let shared = &self.shared;
        let mut front = Front::start(&self.listener, front, &shared.options.files)?;
        front.serve(shared.log, |peer, session| shared.meet(peer, session))
    }
}

/// Reservation of an agent by a manager; ends when dropped.
struct Taken<'a>(&'a Mutex<Option<SocketAddr>>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Shared {
    /// Serves a peer, if it is a manager and no other one is active.
    fn meet(&self, peer: SocketAddr, mut wire: Session) {
        match self.welcome(&mut wire, peer) {
            Ok((hello, _taken)) => {
                (self.log)(&format!("works for {peer} as {} on {}", hello.role.name(), hello.device));
                let ended = self.work(&mut wire, &hello);
                (self.log)(&format!("done with {peer}: {ended:#}"));
            }
            Err(error) => {
                (self.log)(&format!("{peer} is refused: {error:#}"));
                // The peer may not receive this.
                let _ = wire.say(&FromAgent::refused(format!("{error:#}")));
                let _ = wire.receive(Duration::from_secs(1));
            }
        }
    }

    /// Receives the request of a manager, and reserves the agent for it.
    fn welcome(&self, wire: &mut Session, peer: SocketAddr) -> Result<(Hello, Taken<'_>)> {
        let hello = read_hello(&wire.receive(HANDSHAKE)?)?;
        let taken = self.take(peer)?;
        self.check_device(&hello)?;
        let offer = |name: &String| {
            let adapter = self.options.sensors.get(name)?;
            Some((name.clone(), Offer { text: adapter.text.clone(), missing: adapter.missing() }))
        };
        let welcome = Welcome {
            protocol: PROTOCOL,
            version: VERSION.to_owned(),
            cores: self.cores.clone(),
            machine: Machine::describe(),
            sensors: hello.sensors.iter().filter_map(offer).collect(),
        };
        wire.say(&FromAgent::Welcome(Box::new(welcome)))?;
        Ok((hello, taken))
    }

    fn take(&self, peer: SocketAddr) -> Result<Taken<'_>> {
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = *manager {
            bail!("it works for another manager ({other}); one at a time");
        }
        *manager = Some(peer);
        Ok(Taken(&self.manager))
    }

    /// Checks that the device exists, may be used, and can carry the packets of the suite.
    fn check_device(&self, hello: &Hello) -> Result<()> {
        let device = &hello.device;
        if let Some(ours) = &self.options.device {
            ensure!(ours == device, "it is for device {ours}, and not for {device}");
        }
        ensure!(is_device(device) && is_there(device), "there is no device {device}");
        let file = |name: &str| {
            let path = Path::new("/sys/class/net").join(device).join(name);
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        ensure!(
            self.options.arrange || !hello.arranges,
            "the suite sets RX queues or NAPI of {device} ('queues', 'per-core', 'napi'), which this agent lets managers do only \
             with --arrange"
        );
        ensure!(file("operstate")?.trim() != "down", "{device} is down: ip link set {device} up");
        let mtu: u32 = file("mtu")?.trim().parse().context("an MTU")?;
        ensure!(
            mtu >= hello.mtu,
            "{device} has an MTU of {mtu}, and the suite's frames need {0}: ip link set {device} mtu {0}",
            hello.mtu
        );
        if hello.merges && hello.role != Role::Injector {
            let features = output(std::process::Command::new("ethtool").args(["-k", device]))?;
            let merges = |line: &str| {
                (line.starts_with("generic-receive-offload:") || line.starts_with("large-receive-offload:"))
                    && line.contains(": on")
            };
            ensure!(
                !features.lines().any(merges),
                "{device} merges segments of TCP: ethtool -K {device} gro off lro off"
            );
        }
        Ok(())
    }

    /// Executes orders until the manager is gone; returns the reason.
    fn work(&self, wire: &mut Session, hello: &Hello) -> anyhow::Error {
        let (orders, taken) = channel();
        let (give, answers) = channel();
        thread::scope(|scope| {
            // Processes end with the thread that started them.
            let worker = scope.spawn(move || {
                let mut worker = Worker::new(hello, &self.cores, &self.options);
                for order in taken {
                    if give.send(worker.carry_out(order)).is_err() {
                        break;
                    }
                }
            });
            let ended = relay(wire, &orders, &answers);
            drop(orders);
            while !worker.is_finished() {
                watcher::kill_all_of(worker.thread().id());
                thread::sleep(Duration::from_millis(10));
            }
            ended.err().unwrap_or_else(|| anyhow::anyhow!("it closed the connection"))
        })
    }
}

/// Relays orders and answers, until one side is gone.
fn relay(wire: &mut Session, orders: &Sender<Order>, answers: &Receiver<FromAgent>) -> Result<()> {
    let mut heard = Instant::now();
    let mut working = false;
    loop {
        // Short waits for the side that is expected to send.
        let mut wait = SOON;
        if working {
            wait = AT_ONCE;
            match answers.recv_timeout(SOON) {
                Ok(answer) => {
                    wire.say(&answer)?;
                    working = false;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the worker has ended"),
            }
        }
        if let Some(frame) = wire.poll(wait)? {
            heard = Instant::now();
            match read(&frame)? {
                ToAgent::Ping => wire.say(&FromAgent::Pong)?,
                ToAgent::Order(order) => {
                    ensure!(!working, "it gives an order before the last one is carried out");
                    orders.send(order).context("the worker has ended")?;
                    working = true;
                }
                ToAgent::Hello(_) => bail!("it says hello again"),
            }
        }
        ensure!(heard.elapsed() < SILENCE, "it has said nothing for {SILENCE:?}");
    }
}

fn is_there(device: &str) -> bool {
    is_device(device) && Path::new("/sys/class/net").join(device).exists()
}
