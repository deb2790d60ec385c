//! Execution of orders by an agent. Orders are validated: a certificate alone is not a reason to trust a manager.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::arrange::Arranged;
use super::message::{Answer, FromAgent, Hello, Order, Role};
use super::serve::Options;
use crate::holder::{Folder, Holder};
use crate::roles::receiver::Counting;
use crate::roles::station::Station;
use crate::roles::{DutOrder, Failure, Host, SendOrder};
use crate::suite::{ENGINES, MOST_LOOPS, MOST_PPS};

/// Maximum duration of a trial: a search confirms with three times the maximum of a suite.
const LONGEST: f64 = 3.0 * 3600.0;

/// The agent's machine as host of a sensor, with its files in memory.
#[derive(Debug)]
struct Own {
    holder: Holder,
    device: String,
    /// `None`: the device stays as it is.
    arranged: Option<Arranged>,
}

/// Executes the orders of one manager.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    /// Station, or the reason why it could not be created.
    station: Result<Station<Own>, String>,
    role: Role,
    cores: &'a [usize],
    options: &'a Options,
}

impl<'a> Worker<'a> {
    /// Call in the thread that executes orders: the processes that it starts end with this thread.
    pub(super) fn new(hello: &Hello, cores: &'a [usize], options: &'a Options) -> Worker<'a> {
        let host = || {
            let holder = Holder::new("the files of trials", false)?;
            let arranged = hello.arranges.then(|| Arranged::new(&hello.device)).transpose()?;
            anyhow::Ok(Own { holder, device: hello.device.clone(), arranged })
        };
        let station = host().map(|host| Station::new(host, options.wirelane.clone()));
        Worker { station: station.map_err(|error| format!("{error:#}")), role: hello.role, cores, options }
    }

    /// Executes an order and returns its result.
    pub(super) fn carry_out(&mut self, order: Order) -> FromAgent {
        match self.try_to(order) {
            Ok(answer) => FromAgent::Done(answer),
            Err(wrong) => {
                // A failed trial is over.
                if let Ok(station) = &mut self.station {
                    station.abandon();
                }
                match wrong {
                    Failure::Trial(error) => FromAgent::Fault(FromAgent::reason(&error)),
                    Failure::Testbed(error) => FromAgent::Failed(FromAgent::reason(&error)),
                }
            }
        }
    }

    fn try_to(&mut self, order: Order) -> Result<Answer, Failure> {
        let station = self.station.as_mut().map_err(|error| anyhow!("{error}"))?;
        station.host.check()?;
        let wanted = order.role();
        if wanted != self.role {
            return Err(anyhow!("this is an order for the {}", wanted.name()).into());
        }
        let done = |()| Answer::Done;
        match order {
            Order::Start(order) => {
                check_sensor(&order, self.cores)?;
                let adapter = self.options.sensors.get(&order.sensor);
                let adapter = adapter.with_context(|| format!("there is no adapter {:?} here", order.sensor));
                // A driver may refuse other queues while a sensor has its program there.
                station.abandon();
                if let Some(arranged) = &mut station.host.arranged {
                    arranged.arrange(&order)?;
                }
                station.start(adapter?, &order).map(done)
            }
            Order::Begin => station.begin().map(done),
            Order::Sent => station.sent().map(done),
            Order::End => station.end().map(Answer::Taken),
            Order::Count => station.count().map(done),
            Order::Counted => Ok(Answer::Received(station.received()?.context("nothing is counted")?)),
            Order::Send(order) => {
                check_send(&order, self.cores)?;
                let mut sent = station.send(&order)?;
                if self.options.busy_cores {
                    sent.load.others = 0.0;
                }
                Ok(Answer::Sent(sent))
            }
        }
    }
}

impl Host for Own {
    fn device(&self) -> &str {
        &self.device
    }

    fn command(&self, cores: &[usize], words: &[String]) -> Command {
        self.holder.on(cores, words)
    }

    fn folder(&self, name: &str) -> Result<Folder> {
        self.holder.folder(name)
    }

    fn settle(&mut self, order: &DutOrder) -> Result<()> {
        self.arranged.as_mut().map_or(Ok(()), |arranged| arranged.settle(order))
    }

    fn napi_time(&self) -> Result<Duration> {
        self.arranged.as_ref().map_or(Ok(Duration::ZERO), Arranged::napi_time)
    }

    fn takes_interrupts(&self) -> bool {
        true
    }

    fn check(&mut self) -> Result<()> {
        self.holder.check()
    }

    fn sending(&self) -> Vec<&str> {
        vec![&self.device]
    }

    fn sender(&self) -> &Holder {
        &self.holder
    }

    fn receives(&self) -> Result<Option<Counting>> {
        // The agent's own sysfs: that of its network namespace.
        Counting::begin(Path::new("/sys"), &self.device).map(Some)
    }
}

fn check_cores(asked: &[usize], given: &[usize]) -> Result<()> {
    ensure!(!asked.is_empty() && asked.len() <= given.len(), "{} cores are asked for", asked.len());
    let other = asked.iter().find(|core| !given.contains(core));
    ensure!(other.is_none(), "core {other:?} is not a manager's to use");
    Ok(())
}

fn check_duration(seconds: f64) -> Result<()> {
    ensure!(seconds > 0.0 && seconds <= LONGEST, "a trial of {seconds} s is asked for");
    Ok(())
}

fn check_sensor(order: &DutOrder, cores: &[usize]) -> Result<()> {
    check_cores(&order.cores, cores)?;
    check_duration(order.duration_s)?;
    ensure!(ENGINES.contains(&order.engine.as_str()), "there is no engine {:?}", order.engine);
    ensure!((1..=64).contains(&order.workers), "{} workers are asked for", order.workers);
    ensure!((1..=64).contains(&order.queues), "{} RX queues are asked for", order.queues);
    ensure!(order.loops <= MOST_LOOPS, "{} loops per packet are asked for", order.loops);
    ensure!(order.entries <= 10_000_000, "{} entries are asked for", order.entries);
    ensure!((1..=1024).contains(&order.buffer), "a buffer of {} MiB is asked for", order.buffer);
    Ok(())
}

fn check_send(order: &SendOrder, cores: &[usize]) -> Result<()> {
    check_cores(&order.cores, cores)?;
    check_duration(order.duration_s)?;
    ensure!(order.replay.is_none(), "an agent replays no capture");
    ensure!(order.flows > 0, "no flows are asked for");
    ensure!(order.size.is_some_and(|size| size >= 60), "no size of frames is asked for");
    ensure!(
        order.pps.is_none_or(|pps| pps > 0.0 && pps <= MOST_PPS),
        "{:?} packets a second are asked for",
        order.pps
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensor() -> DutOrder {
        let (cores, engine) = (vec![1], "auto".to_owned());
        DutOrder { cores, queues: 1, workers: 1, engine, duration_s: 1.0, buffer: 4, ..DutOrder::default() }
    }

    #[test]
    fn orders_that_no_suite_makes_are_refused() {
        let given = [1, 2];
        check_sensor(&sensor(), &given).unwrap();
        for (words, order) in [
            ("cores", DutOrder { cores: vec![], ..sensor() }),
            ("core Some(0)", DutOrder { cores: vec![0], ..sensor() }),
            ("engine", DutOrder { engine: "--help".into(), ..sensor() }),
            ("workers", DutOrder { workers: 0, ..sensor() }),
            ("queues", DutOrder { queues: 65, ..sensor() }),
            ("loops", DutOrder { loops: u32::MAX, ..sensor() }),
            ("MiB", DutOrder { buffer: 1 << 20, ..sensor() }),
            ("trial of", DutOrder { duration_s: f64::NAN, ..sensor() }),
            ("trial of", DutOrder { duration_s: 1e300, ..sensor() }),
        ] {
            let error = check_sensor(&order, &given).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let (cores, size, pps) = (vec![1], Some(60), Some(1.0));
        let send = SendOrder { cores, size, flows: 1, pps, duration_s: 1.0, ..SendOrder::default() };
        check_send(&send, &given).unwrap();
        for order in [
            SendOrder { size: None, ..send.clone() },
            SendOrder { flows: 0, ..send.clone() },
            SendOrder { pps: Some(f64::INFINITY), ..send.clone() },
            SendOrder { cores: vec![1, 1, 2], ..send.clone() },
        ] {
            assert!(check_send(&order, &given).is_err(), "{order:?}");
        }
    }
}
