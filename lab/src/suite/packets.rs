//! Traffic and rates of a suite, validated by [`check`](super::check).

use std::collections::BTreeSet;
use std::time::Duration;

use wirelane_probe::placed::At;

use super::check::{Check, MOST_PPS};
use super::raw::{self, Raw};
use super::{Method, Proto, Rate, Shape, Traffic};
use crate::calls;

/// Smallest frames that carry a sequence number, over UDP and TCP.
const SMALLEST: [u16; 2] = [60, 66];
/// Largest frame: the maximum MTU of a veth pair.
const LARGEST: u16 = 65_535;

impl Check {
    pub(super) fn traffic(&mut self, raw: Option<At<raw::Traffic>>) -> Traffic {
        let (start, raw) = raw.map_or_else(Default::default, |raw| (raw.start, raw.value));
        let smallest = SMALLEST[usize::from(raw.proto == Proto::Tcp)];
        let replay = raw.replay.map(|file| file.value);
        if replay.is_some() && (raw.sizes.is_some() || raw.flows.is_some()) {
            self.found.push((start, "a capture has its own packets; leave out 'sizes' and 'flows'".into()));
        }
        if let (None, Some(passes)) = (&replay, &raw.passes) {
            self.fault(passes, "'passes' is for a capture: name it as 'replay'");
        }
        if let Some(calls) = &raw.calls {
            let own = raw.flows.is_some() || (raw.pattern, raw.proto, raw.method) != Default::default();
            if replay.is_some() || own {
                let reason = "calls have packets of their own: leave out all of 'traffic' but 'sizes'";
                self.fault(calls, reason);
            }
        }
        if raw.web && (replay.is_some() || raw.calls.is_some() || raw.sizes.is_some() || raw.flows.is_some())
        {
            self.found
                .push((start, "web traffic has packets of its own: leave out all else of 'traffic'".into()));
        }
        let own_generator = raw.shape != Shape::Steady;
        if own_generator && (replay.is_some() || raw.web || raw.calls.is_some() || raw.flows.is_some()) {
            self.found.push((
                start,
                "flows of this 'shape' have a generator of their own: leave out all but 'sizes'".into(),
            ));
        }
        if !cfg!(feature = "bench") && (own_generator || raw.method == Method::Clone) {
            let reason =
                "this test-bed was built without the generator of this traffic (cargo: feature 'bench')";
            self.found.push((start, reason.into()));
        }
        let (default, most) = (if raw.calls.is_some() { calls::FRAME } else { smallest }, calls::MOST);
        let calls = self.list(raw.calls, &[], &format!("numbers of calls, 1 to {most}"), |calls| {
            (1..=most).contains(calls)
        });
        let smallest = if calls.is_empty() { smallest } else { calls::SMALLEST };
        let allowed = format!("bytes of a frame without FCS, {smallest} to {LARGEST}");
        let sizes = match &replay {
            Some(_) => Vec::new(),
            None if raw.web => Vec::new(),
            None => self.list(raw.sizes, &[default], &allowed, |size| *size >= smallest),
        };
        Traffic {
            sizes,
            flows: self.within(raw.flows, 4096, 1, u32::MAX),
            pattern: raw.pattern,
            proto: raw.proto,
            method: raw.method,
            shape: raw.shape,
            flows_as_entries: raw.flows_as_entries,
            web: raw.web,
            replay,
            passes: self.within(raw.passes, 1, 1, 1_000_000),
            calls,
        }
    }

    pub(super) fn rates(&mut self, raw: &Raw, replays: bool, duration: Duration) -> Vec<Rate> {
        let mut rates: Vec<Rate> = Vec::new();
        let least = 1.0 / duration.as_secs_f64();
        for rate in raw.rates.iter().flat_map(|rates| &rates.value) {
            if !(least..=MOST_PPS).contains(&rate.value) {
                let reason = format!(
                    "{} packets a second: give one packet a trial ({least:.0}) to {MOST_PPS:.0}",
                    rate.value
                );
                self.fault(rate, reason);
            }
            rates.push(Rate::Pps(rate.value));
        }
        if let Some(sweep) = &raw.sweep {
            let (from, to, steps) = (sweep.value.from.value, sweep.value.to.value, sweep.value.steps.value);
            if from < least || to > MOST_PPS || from >= to {
                self.fault(sweep, "a sweep goes from a rate to a higher one, in packets a second");
            } else if !(2..=1000).contains(&steps) {
                self.fault(&sweep.value.steps, "a sweep has 2 to 1000 steps");
            } else {
                let step = (to - from) / f64::from(steps - 1);
                rates.extend((0..steps).map(|at| Rate::Pps((from + step * f64::from(at)).round())));
            }
        }
        for part in raw.of_capacity.iter().flat_map(|parts| &parts.value) {
            if !(0.01..=100.0).contains(&part.value) {
                self.fault(part, "a part of the capacity is from 0.01 to 100, as in 0.5");
            }
            rates.push(Rate::OfCapacity(part.value));
        }
        if raw.full_speed.as_ref().is_some_and(|full| full.value) {
            rates.push(Rate::Full);
        }
        if let Some(search) = &raw.search {
            for goal in search.value.iter().filter(|goal| !(0.0..1.0).contains(&goal.value)) {
                self.fault(goal, "a loss to search for is a part from 0 to 1, as in 0.005");
            }
            if search.value.is_empty() {
                self.fault(search, "give losses to search for, as in [0.005, 0.0]");
            }
            let mut goals: Vec<f64> = search.value.iter().map(|goal| goal.value).collect();
            goals.sort_by(|a, b| b.total_cmp(a));
            rates.push(Rate::Search(goals));
        }
        if let (true, false) = (replays, rates.is_empty()) {
            let reason = "a capture is replayed at 'speeds', not at rates: leave out 'rates', 'sweep', 'search' and 'full-speed'";
            self.found.push((raw.name.start, reason.into()));
        }
        if replays {
            let is_speed = |text: &String| {
                let factor = text.strip_suffix('x').and_then(|number| number.parse::<f64>().ok());
                matches!(text.as_str(), "recorded" | "max")
                    || factor.is_some_and(|factor| factor > 0.0 && factor < 1e6)
            };
            let speeds = raw.speeds.as_ref().map(|list| At {
                start: list.start,
                value: list
                    .value
                    .iter()
                    .map(|one| At { start: one.start, value: one.value.clone() })
                    .collect(),
            });
            let allowed = "speeds: \"recorded\", \"max\", or a factor such as \"10x\"";
            let speeds = self.list(speeds, &["recorded".to_owned()], allowed, is_speed);
            return speeds.into_iter().map(Rate::Speed).collect();
        }
        if let Some(speeds) = &raw.speeds {
            self.fault(speeds, "'speeds' are for a capture: name it as 'replay' under [traffic]");
        }
        // Mistakes in values have been reported already.
        if rates.is_empty() && raw.sweep.is_none() {
            let reason = "nothing says how fast packets come: give 'rates', 'sweep', 'of-capacity', 'search' or 'full-speed = true'";
            self.found.push((raw.name.start, reason.into()));
        }
        // The names of rates identify trials.
        let mut names = BTreeSet::new();
        rates.retain(|rate| names.insert(rate.name()));
        rates
    }
}
