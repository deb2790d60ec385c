//! The injector: the processes of the generator, and their reports.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

use super::{Recording, SendOrder, Sent, Watch};
use crate::calls;
use crate::child::{Child, Finished};
use crate::holder::Holder;
use crate::suite::{Method, Named, Proto, Shape};
use crate::web;

/// Maximum time of the generator in addition to the sending.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum time for a capture.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Sends from these devices in the holder's namespaces, with one generator for each and its share of the rate.
/// `wirelane` is the program.
pub fn send(wirelane: &Path, devices: &[&str], order: &SendOrder, holder: &Holder) -> Result<Sent> {
    // Generated captures are removed after the sending.
    let folder = holder.folder("sent")?;
    let made = "made.pcap";
    let file = match order.replay.as_ref().map(|replay| &replay.recording) {
        None => None,
        Some(Recording::File(file)) => Some(file.clone()),
        Some(Recording::Signalling(count)) => {
            calls::write_signalling(&folder.outside.join(made), *count)?;
            Some(folder.inside.join(made).display().to_string())
        }
        Some(Recording::Web(clients)) => {
            web::recording(wirelane)?.write(&folder.outside.join(made), *clients)?;
            Some(folder.inside.join(made).display().to_string())
        }
        Some(Recording::Media(media)) => {
            calls::write_media(&folder.outside.join(made), media)?;
            Some(folder.inside.join(made).display().to_string())
        }
    };
    let each = SendOrder { pps: order.pps.map(|pps| pps / devices.len() as f64), ..order.clone() };
    let children = children_time()?;
    let watch = Watch::begin(&order.cores)?;
    let mut generators = Vec::new();
    for device in devices {
        let mut words = words(wirelane, device, &each, file.as_deref());
        if order.first {
            words.splice(0..0, ["chrt", "-f", "1"].map(str::to_owned));
        }
        let mut command = match order.shares_cores {
            true => holder.favoured(&order.cores, &words, FIRST),
            false => holder.on(&order.cores, &words),
        };
        generators.push(Child::spawn("the generator", &mut command)?);
    }
    let most = order.replay.as_ref().map_or(Duration::from_secs_f64(order.duration_s) + LIMIT, |_| LONGEST);
    let finished = generators.into_iter().map(|child| child.finish(most)).collect::<Result<Vec<_>>>()?;
    let cpu = children_time()?.saturating_sub(children);
    let load = watch.load(|| Ok(cpu), false)?;
    let mut sent = Sent { cpu_s: cpu.as_secs_f64(), load, ..Sent::default() };
    for one in &finished {
        add(&mut sent, one)?;
    }
    Ok(sent)
}

/// Sends packets after all others, with these options of `wirelane send`; their delivery is not checked.
pub fn flush(wirelane: &Path, device: &str, cores: &[usize], options: &str, holder: &Holder) -> Result<()> {
    let line = format!("send -i {device} --json {options}");
    let words = [wirelane.display().to_string()]
        .into_iter()
        .chain(line.split(' ').map(str::to_owned))
        .collect::<Vec<_>>();
    let finished = Child::spawn("the generator", &mut holder.on(cores, &words))?.finish(LIMIT)?;
    ensure!(finished.status.success(), "the generator failed: {}", finished.said.trim());
    Ok(())
}

/// Adds the report of one generator.
fn add(sent: &mut Sent, finished: &Finished) -> Result<()> {
    ensure!(finished.status.success(), "the generator failed: {}", finished.said.trim());
    let last = finished
        .said
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str::<Value>(line).ok().filter(|value| value["final"] == true));
    let told = last.with_context(|| format!("the generator said nothing: {}", finished.said.trim()))?;
    let count =
        |name: &str| told[name].as_u64().with_context(|| format!("no {name} from the generator: {told}"));
    sent.offered += count("offered")?;
    sent.sent += count("sent")?;
    sent.foreign += count("others")?;
    let duration = told["duration_s"].as_f64();
    sent.duration_s =
        sent.duration_s.max(duration.with_context(|| format!("no duration_s from the generator: {told}"))?);
    sent.fell_short |= told["fell_short"] == true;
    Ok(())
}

/// Nice value of a generator with precedence on its core.
const FIRST: i32 = -20;

/// Command line of the generator; `file` is the capture that it replays.
fn words(wirelane: &Path, device: &str, order: &SendOrder, file: Option<&str>) -> Vec<String> {
    let cores = order.cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let own = match (order.shape, order.method) {
        (Shape::Ending, _) => Some("flows".to_owned()),
        (Shape::Skewed, _) => Some("flows --zipf 1 --elephant 0.4".to_owned()),
        (Shape::Steady, Method::Clone) => Some(format!("clones --queues {}", order.queues)),
        (Shape::Steady, _) => None,
    };
    let pace = order.pps.map_or(String::new(), |pps| format!(" --rate {pps:.0}"));
    if let Some(own) = own {
        let program = std::env::current_exe().unwrap_or_default().display().to_string();
        let rest = format!(
            "generate {own} {device} --size {} --duration {}{pace}",
            order.size.unwrap_or(60),
            order.duration_s
        );
        return [program].into_iter().chain(rest.split(' ').map(str::to_owned)).collect();
    }
    let mut words = vec![wirelane.display().to_string()];
    let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
    add(&format!("send -i {device} --json"));
    if let (Some(replay), Some(file)) = (&order.replay, file) {
        add(&format!("--speed {} --loop {} --replay", replay.speed, replay.passes));
        words.push(file.to_owned());
        return words;
    }
    // Where packets could be merged, NAPI does not accept frames of the method "kernel".
    let method = if order.proto == Proto::Tcp { Method::Socket } else { order.method }.name();
    add(&format!("--interval 3600 --cores {cores} --method {method} --flows {}", order.flows));
    add(&format!("--pattern {} --proto {}", order.pattern.name(), order.proto.name()));
    add(&format!("--duration {}", order.duration_s));
    if let Some(size) = order.size {
        add(&format!("--size {size}"));
    }
    if order.pps.is_some() {
        // Packets without room are lost, as on a wire: retries beside a slower sensor would not keep the rate.
        add(&format!("--no-retry{pace}"));
    }
    words
}

/// CPU time of all processes that this one has waited for.
fn children_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

#[cfg(test)]
mod tests {
    use super::super::Replay;
    use super::*;

    #[test]
    fn the_generator_is_told_what_was_ordered() {
        let mut order = SendOrder {
            cores: vec![0, 2],
            size: Some(60),
            flows: 16,
            pps: Some(1000.0),
            duration_s: 0.5,
            queues: 2,
            ..SendOrder::default()
        };
        let words = |order: &SendOrder| {
            super::words(Path::new("/w"), "tx", order, order.replay.as_ref().map(|_| "/a b.pcap")).join(" ")
        };
        assert_eq!(
            words(&order),
            "/w send -i tx --json --interval 3600 --cores 0,2 --method auto --flows 16 --pattern papers --proto udp \
             --duration 0.5 --size 60 --no-retry --rate 1000"
        );
        let clones = SendOrder { method: Method::Clone, ..order.clone() };
        assert!(
            words(&clones).ends_with(" generate clones --queues 2 tx --size 60 --duration 0.5 --rate 1000")
        );
        let skewed = SendOrder { shape: Shape::Skewed, pps: None, ..order.clone() };
        assert!(
            words(&skewed).ends_with(" generate flows --zipf 1 --elephant 0.4 tx --size 60 --duration 0.5")
        );
        order.proto = Proto::Tcp;
        order.pps = None;
        assert!(words(&order).contains("--method socket") && !words(&order).contains("--rate"));
        let recording = Recording::File("/a b.pcap".into());
        order.replay = Some(Replay { recording, speed: "10x".into(), passes: 2 });
        assert_eq!(words(&order), "/w send -i tx --json --speed 10x --loop 2 --replay /a b.pcap");
        // The capture is not sent over the network.
        let text = serde_json::to_string(&order).unwrap();
        assert!(!text.contains("pcap"), "{text}");
        assert_eq!(serde_json::from_str::<SendOrder>(&text).unwrap().replay, None);
    }
}
