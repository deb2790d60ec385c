//! Medians, spread and ratios: the table on the terminal, and CSV.

use std::fmt::Write as _;

use crate::receiver::Receiver;
use crate::search::Found;
use crate::trial::{Case, Outcome};

/// One receiver in one case.
#[derive(Clone, Debug)]
pub struct Row {
    /// The case.
    pub case: Case,
    /// The receiver.
    pub receiver: Receiver,
    /// Its trials at full speed.
    pub outcomes: Vec<Outcome>,
    /// Its highest rates: without loss, and with 0.5 % of it.
    pub rates: Option<[Found; 2]>,
    /// Why trials failed.
    pub failures: Vec<String>,
}

impl Row {
    /// The median of what a trial gave; `None` without a trial.
    pub fn median(&self, value: impl Fn(&Outcome) -> f64) -> Option<f64> {
        let mut values: Vec<f64> = self.outcomes.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            count if count % 2 == 0 => Some(f64::midpoint(values[middle - 1], values[middle])),
            _ => Some(values[middle]),
        }
    }

    /// The median rate received, in packets per second.
    pub fn pps(&self) -> Option<f64> {
        self.median(Outcome::received_pps)
    }

    /// From the slowest to the fastest trial, as a share of the median.
    pub fn spread(&self) -> Option<f64> {
        let rates = || self.outcomes.iter().map(Outcome::received_pps);
        let span = rates().fold(f64::MIN, f64::max) - rates().fold(f64::MAX, f64::min);
        self.pps().filter(|pps| *pps > 0.0).map(|pps| span / pps)
    }

    /// The trial that left the most packets unaccounted for; `None` where the receiver has no such counters.
    pub fn unaccounted(&self) -> Option<i64> {
        self.outcomes.iter().filter_map(Outcome::unaccounted).max_by_key(|count| count.abs())
    }
}

/// All rows of a run.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// One per receiver and case, in the order of the table.
    pub rows: Vec<Row>,
}

impl Results {
    /// The rows of one case.
    pub fn of(&self, case: Case) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.case == case)
    }

    /// How many times as fast as `other` a row is, in the same case.
    pub fn ratio(&self, row: &Row, other: Receiver) -> Option<f64> {
        let other = self.of(row.case).find(|candidate| candidate.receiver == other)?.pps()?;
        (other > 0.0).then(|| row.pps().map(|pps| pps / other)).flatten()
    }

    /// The cases, each once, in order.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for row in &self.rows {
            if !cases.contains(&row.case) {
                cases.push(row.case);
            }
        }
        cases
    }

    /// The tables for the terminal, one per case.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for case in self.cases() {
            let Case { setup, method, size } = case;
            let _ = writeln!(
                text,
                "\nSetup {}, {size}-byte frames, generator: {}\n{:<23}{:>8}{:>9}{:>8}{:>8}{:>8}{:>8}{:>9}{:>11}{:>11}{:>9}",
                setup.name(),
                method.name(),
                "receiver",
                "Mpps",
                "spread",
                "/limit",
                "/AF_XDP",
                "/TPv3",
                "lost",
                "CPU ns",
                "0 loss",
                "0.5 % loss",
                "unacc."
            );
            for row in self.of(case) {
                let _ = writeln!(
                    text,
                    "{:<23}{:>8}{:>9}{:>8}{:>8}{:>8}{:>8}{:>9}{:>11}{:>11}{:>9}",
                    row.receiver.name(),
                    number(row.pps().map(|pps| pps / 1e6), 3),
                    percent(row.spread()),
                    number(self.ratio(row, Receiver::Drop), 2),
                    number(self.ratio(row, Receiver::Xsk), 2),
                    number(self.ratio(row, Receiver::Packet), 2),
                    percent(row.median(Outcome::loss)),
                    number(row.median(Outcome::cpu_ns), 0),
                    found(row.rates.as_ref().map(|rates| &rates[0])),
                    found(row.rates.as_ref().map(|rates| &rates[1])),
                    row.unaccounted().map_or_else(|| "-".to_owned(), |count| count.to_string()),
                );
                for failure in &row.failures {
                    let _ = writeln!(text, "    failed: {failure}");
                }
            }
        }
        text.push_str(
            "\nMpps: packets received, median of the rounds; spread: from the slowest to the fastest round.\n\
             lost: share of the packets offered at full speed that were not received; CPU ns: CPU time of the\n\
             receiver's process per packet (kernel work in softirq is not in it).\n\
             0 loss, 0.5 % loss: highest rate in Mpps, confirmed by a longer trial; '>': the generator's limit;\n\
             '?': not confirmed. unacc.: packets sent that are neither received nor in the receiver's drop counters.\n",
        );
        text
    }

    /// Every trial at full speed, a line each.
    pub fn trials_csv(&self) -> String {
        let mut text =
            "setup,generator,frame_bytes,receiver,round,offered,sent,received,dropped,unaccounted,\
                        duration_s,received_pps,cpu_ns_per_packet\n"
                .to_owned();
        for row in &self.rows {
            for (round, outcome) in row.outcomes.iter().enumerate() {
                let optional = |value: Option<i64>| value.map_or_else(String::new, |value| value.to_string());
                let _ = writeln!(
                    text,
                    "{},{},{},\"{}\",{},{},{},{},{},{},{:.4},{:.0},{:.1}",
                    row.case.setup.name(),
                    row.case.method.name(),
                    row.case.size,
                    row.receiver.name(),
                    round + 1,
                    outcome.offered,
                    outcome.sent,
                    outcome.received,
                    optional(outcome.dropped.map(u64::cast_signed)),
                    optional(outcome.unaccounted()),
                    outcome.seconds,
                    outcome.received_pps(),
                    outcome.cpu_ns(),
                );
            }
        }
        text
    }

    /// The highest rates that were searched for, a line each.
    pub fn rates_csv(&self) -> String {
        let mut text = "setup,generator,frame_bytes,receiver,loss_goal,pps,confirmed,generator_limited,\
                        invalid_trials\n"
            .to_owned();
        for row in &self.rows {
            for (found, goal) in row.rates.iter().flatten().zip(["0", "0.005"]) {
                let _ = writeln!(
                    text,
                    "{},{},{},\"{}\",{goal},{:.0},{},{},{}",
                    row.case.setup.name(),
                    row.case.method.name(),
                    row.case.size,
                    row.receiver.name(),
                    found.rate,
                    found.confirmed,
                    found.generator_limited,
                    found.invalid,
                );
            }
        }
        text
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.1} %", value * 100.0))
}

fn found(found: Option<&Found>) -> String {
    found.map_or_else(
        || "-".to_owned(),
        |found| {
            let mark = match (found.generator_limited, found.confirmed) {
                (_, false) => "?",
                (true, true) => ">",
                (false, true) => "",
            };
            format!("{mark}{:.3}", found.rate / 1e6)
        },
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::trial::{Method, Setup};

    fn row(receiver: Receiver, received: &[u64]) -> Row {
        let outcome = |received: &u64| Outcome {
            offered: 1000,
            sent: 1000,
            received: *received,
            dropped: Some(1000 - received),
            seconds: 1.0,
            cpu: Duration::ZERO,
            fell_short: false,
        };
        let case = Case { setup: Setup::A, method: Method::Kernel, size: 60 };
        let outcomes = received.iter().map(outcome).collect();
        Row { case, receiver, outcomes, rates: None, failures: Vec::new() }
    }

    #[test]
    fn ratios_are_of_medians() {
        let (limit, ours) = (row(Receiver::Drop, &[1000, 10, 800]), row(Receiver::Native, &[400, 400]));
        let results = Results { rows: vec![limit, ours] };
        assert_eq!(results.rows[0].pps(), Some(800.0));
        assert_eq!(results.ratio(&results.rows[1], Receiver::Drop), Some(0.5));
        assert_eq!(results.ratio(&results.rows[1], Receiver::Packet), None);
        assert_eq!(results.rows[1].unaccounted(), Some(0));
        assert_eq!(results.trials_csv().lines().count(), 6);
        assert!(results.table().contains("0.50"));
    }

    #[test]
    fn a_receiver_without_a_trial_has_no_numbers() {
        let results = Results { rows: vec![row(Receiver::Drop, &[])] };
        assert_eq!((results.rows[0].pps(), results.rows[0].spread()), (None, None));
        assert!(results.table().contains('-'));
    }
}
