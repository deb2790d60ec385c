//! The rates of flow probes as text and as CSV.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{AtBest, GOALS, Rates};
use crate::bed::Setup;
use crate::receiver::{PROBES, Receiver};
use crate::report::table;
use crate::search::Bound;
use crate::summary::Spread;
use crate::trial::Trial;

/// What is to be reached: times the cache in the worker, times the best peer, and the share of a core in user space.
const TIMES_USER: f64 = 2.0;
const TIMES_PEER: f64 = 4.0;
const USER_SHARE: f64 = 0.1;

const EXPLANATION: &str = "\nLive frames of 60 bytes and 4096 flows, one RX queue. Received is what is in flows by whoever's own \
count, and the kernel's cache has its 4096 entries but where 65,536 are said; ns are of CPU time per packet received: of the process in user space and in the kernel (by clock ticks), of NAPI's \
thread (setup B), and of the generator's core, which in setup A does NAPI's work too.\n";

impl Rates {
    /// Trials at full speed that count, of one round or all.
    fn of(&self, setup: Setup, receiver: Receiver, round: Option<usize>) -> Vec<&Trial> {
        let wanted = |(number, trial): &&(usize, Trial)| {
            (trial.setup, trial.receiver) == (setup, receiver)
                && trial.invalid.is_none()
                && round.is_none_or(|round| round == *number)
        };
        self.trials.iter().filter(wanted).map(|(_, trial)| trial).collect()
    }

    fn spread(&self, setup: Setup, receiver: Receiver, value: impl Fn(&Trial) -> f64) -> Option<Spread> {
        Spread::of(self.of(setup, receiver, None).into_iter().map(value).collect())
    }

    /// Of ours to the best of these, within each round.
    fn ratio(&self, setup: Setup, ours: Receiver, others: &[Receiver]) -> Option<Spread> {
        let rounds: BTreeSet<usize> = self.trials.iter().map(|(round, _)| *round).collect();
        let rate =
            |receiver, round| self.of(setup, receiver, Some(round)).last().map(|trial| trial.received_pps());
        let of = |round| {
            let best = others.iter().filter_map(|other| rate(*other, round)).max_by(f64::total_cmp)?;
            Some(rate(ours, round)? / best)
        };
        Spread::of(rounds.into_iter().filter_map(of).collect())
    }

    fn setups(&self) -> Vec<Setup> {
        let tried = self.trials.iter().map(|(_, trial)| trial.setup);
        tried.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

fn peers() -> Vec<Receiver> {
    PROBES.into_iter().filter(|one| one.is_probe()).collect()
}

fn judged(value: Option<f64>, target: f64, least: bool) -> String {
    let Some(value) = value else { return "-".into() };
    let met = if least { value >= target } else { value <= target };
    format!("{value:.2}{}", if met { "" } else { ", missed" })
}

/// For the run's page; nothing where nothing was measured. `hit`: nanoseconds of a packet that is added to a flow.
pub fn page(rates: &Rates, hit: Option<Spread>) -> String {
    if rates.trials.is_empty() && rates.left_out.is_empty() && rates.failed.is_empty() {
        return String::new();
    }
    let mut text = "\n## Flow probes side by side\n".to_owned();
    text += EXPLANATION;
    for setup in rates.setups() {
        let _ = writeln!(text, "\nSetup {}, full speed, medians of the rounds:\n", setup.name());
        text += &full_speed(rates, setup);
    }
    text += "\nHighest rates, Mpps, medians of the rounds of searches and their spread (`>=`: the generator could not go faster):\n\n";
    text += &searched(rates);
    text += "\nThe kernel's cache at the best rate of the best peer, percent of a core:\n\n";
    text += &at_best(&rates.at_peers_best);
    text += "\nAgainst the targets:\n\n";
    text += &targets(rates, hit);
    for left_out in &rates.left_out {
        let _ = writeln!(text, "\nLeft out: {left_out}.");
    }
    for (_, failed) in &rates.failed {
        let _ = writeln!(text, "\nfailed: {failed}");
    }
    text
}

fn full_speed(rates: &Rates, setup: Setup) -> String {
    let heads = [
        "probe",
        "Mpps",
        "spread",
        "of XDP_DROP",
        "dropped and lost",
        "user ns",
        "system ns",
        "NAPI ns",
        "generator ns",
        "rounds",
    ];
    let rows = PROBES.into_iter().filter_map(|receiver| {
        let of = |value: &dyn Fn(&Trial) -> f64| rates.spread(setup, receiver, value);
        let ns = |spread: Option<Spread>| {
            spread.map_or_else(|| "-".into(), |spread| format!("{:.0}", spread.median))
        };
        let per_packet = |seconds: f64, trial: &Trial| seconds * 1e9 / trial.received.max(1) as f64;
        let pps = of(&|trial| trial.received_pps())?;
        Some(vec![
            receiver.label().to_owned(),
            format!("{:.3}", pps.median / 1e6),
            format!("{:.3} to {:.3}", pps.low / 1e6, pps.high / 1e6),
            rates
                .ratio(setup, receiver, &[Receiver::Drop])
                .map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
            of(&|trial| trial.loss()).map_or("-".into(), |loss| format!("{:.1} %", loss.median * 100.0)),
            ns(of(&|trial| trial.user_and_system_ns()[0])),
            ns(of(&|trial| trial.user_and_system_ns()[1])),
            if setup == Setup::B { ns(of(&|trial| per_packet(trial.napi_cpu_s, trial))) } else { "-".into() },
            ns(of(&|trial| per_packet(trial.generator_cpu_s, trial))),
            rates.of(setup, receiver, None).len().to_string(),
        ])
    });
    table(&heads, rows)
}

fn searched(rates: &Rates) -> String {
    let setups: BTreeSet<Setup> = rates.found.iter().map(|(_, one)| one.setup).collect();
    let cells: Vec<(Setup, f64)> =
        setups.into_iter().flat_map(|setup| GOALS.map(|goal| (setup, goal))).collect();
    let mut heads = vec!["probe".to_owned()];
    heads.extend(cells.iter().map(|(setup, goal)| match goal {
        0.0 => format!("{}, no loss", setup.name()),
        goal => format!("{}, {:.1} % loss", setup.name(), goal * 100.0),
    }));
    let rows = PROBES.into_iter().filter(|one| rates.found.iter().any(|(_, found)| found.receiver == *one));
    let rows = rows.map(|receiver| {
        let cell = |(setup, goal): &(Setup, f64)| {
            let Some(found) = rates.searched(*setup, receiver, *goal) else { return "none".to_owned() };
            let bounds = rates
                .found
                .iter()
                .map(|(_, one)| one)
                .filter(|one| (one.setup, one.receiver) == (*setup, receiver) && one.found.goal == *goal);
            let by_generator = bounds.clone().any(|one| one.found.bound == Bound::Generator);
            let unconfirmed = bounds.clone().any(|one| one.found.bound == Bound::Trials);
            format!(
                "{}{:.3} ({:.3} to {:.3}){}",
                if by_generator { ">= " } else { "" },
                found.median / 1e6,
                found.low / 1e6,
                found.high / 1e6,
                if unconfirmed { ", unconfirmed" } else { "" }
            )
        };
        std::iter::once(receiver.label().to_owned()).chain(cells.iter().map(cell)).collect()
    });
    table(&heads.iter().map(String::as_str).collect::<Vec<_>>(), rows)
}

/// Shares of a core that the process took at a rate.
fn share(best: &AtBest, seconds: impl Fn(&Trial) -> f64) -> Option<Spread> {
    Spread::of(best.trials.iter().map(|trial| seconds(trial) / trial.duration_s).collect())
}

fn at_best(all: &[AtBest]) -> String {
    let heads = ["setup, peer", "Mpps", "the process", "in user space", "NAPI", "lost"];
    let percent =
        |spread: Option<Spread>| spread.map_or("-".into(), |one| format!("{:.2} %", one.median * 100.0));
    let rows = all.iter().map(|best| {
        vec![
            format!("{}, {}", best.setup.name(), best.peer.label()),
            format!("{:.3}", best.rate / 1e6),
            percent(share(best, |trial| trial.receiver_cpu_s)),
            percent(share(best, |trial| trial.receiver_user_s)),
            if best.setup == Setup::B { percent(share(best, |trial| trial.napi_cpu_s)) } else { "-".into() },
            percent(Spread::of(best.trials.iter().map(|trial| trial.loss()).collect())),
        ]
    });
    table(&heads, rows)
}

fn targets(rates: &Rates, hit: Option<Spread>) -> String {
    let (kernel, user) = (Receiver::FlowsKernel, Receiver::FlowsUser);
    let mut rows = Vec::new();
    let row = |what: String, value: String, target: String| vec![what, value, target];
    for setup in rates.setups() {
        let name = setup.name();
        let full = |others: &[Receiver]| rates.ratio(setup, kernel, others).map(|ratio| ratio.median);
        let found = |receiver| rates.searched(setup, receiver, 0.0).map(|found| found.median);
        let best = peers().into_iter().filter_map(found).max_by(f64::total_cmp);
        let of = |other: Option<f64>| Some(found(kernel)? / other?);
        let user_target = format!(">= {TIMES_USER:.0}");
        let peer_target = format!(">= {TIMES_PEER:.0}");
        for (what, value, target, text) in [
            ("full speed, the kernel's cache to the worker's", full(&[user]), TIMES_USER, &user_target),
            ("no loss, the kernel's cache to the worker's", of(found(user)), TIMES_USER, &user_target),
            ("full speed, the kernel's cache to the best peer", full(&peers()), TIMES_PEER, &peer_target),
            ("no loss, the kernel's cache to the best peer", of(best), TIMES_PEER, &peer_target),
        ] {
            rows.push(row(format!("{name}: {what}"), judged(value, target, true), text.clone()));
        }
    }
    for best in &rates.at_peers_best {
        let whole = share(best, |trial| trial.receiver_cpu_s).map(|one| one.median);
        rows.push(row(
            format!("{}: core that the process takes at the best peer's rate", best.setup.name()),
            judged(whole, USER_SHARE, false),
            format!("<= {USER_SHARE}"),
        ));
    }
    rows.push(row(
        "ns of the kernel program for a packet that is added to a flow".into(),
        judged(hit.map(|hit| hit.median), 150.0, false),
        "<= 150".into(),
    ));
    table(&["what", "measured", "target"], rows.into_iter())
}

/// What the searches found.
pub fn csv(rates: &Rates) -> String {
    let mut text = "round,setup,receiver,goal,rate,bound,trials,invalid\n".to_owned();
    for (round, one) in &rates.found {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{}",
            round + 1,
            one.setup.name(),
            one.receiver.name(),
            one.found.goal,
            one.found.rate.map(|rate| format!("{rate:.0}")).unwrap_or_default(),
            one.found.bound.name(),
            one.found.trials,
            one.found.invalid
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::tests::trial;

    #[test]
    fn ratios_are_within_a_round_and_to_the_best_peer() {
        let rates = Rates {
            trials: vec![
                (0, trial(Receiver::FlowsKernel, 2000)),
                (0, trial(Receiver::FlowsUser, 1000)),
                (0, trial(Receiver::Softflowd, 400)),
                (0, trial(Receiver::Nfpcapd, 500)),
                (1, trial(Receiver::FlowsKernel, 200)),
                (1, trial(Receiver::Nfpcapd, 40)),
                (1, Trial { invalid: Some("steal"), ..trial(Receiver::Softflowd, 2000) }),
            ],
            left_out: vec!["pmacctd (not there)".to_owned()],
            ..Rates::default()
        };
        let ratio = |others: &[Receiver]| rates.ratio(Setup::A, Receiver::FlowsKernel, others).unwrap();
        assert_eq!(ratio(&peers()), Spread { median: 4.5, low: 4.0, high: 5.0 });
        assert_eq!(ratio(&[Receiver::FlowsUser]).high, 2.0);
        let hit = Spread { median: 160.0, low: 150.0, high: 170.0 };
        let page = page(&rates, Some(hit));
        for line in [
            "the kernel's cache to the worker's",
            " 4.50 |",
            "160.00, missed",
            "Left out: pmacctd (not there)",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
    }
}
