//! The numbers as CSV: every trial, the summary, and the searches.

use std::fmt::Write as _;

use crate::flow_rates::Rates;
use crate::summary::{Line, LossFree};
use crate::trial::Trial;

const TRIAL_COLUMNS: &str = "part,round,setup,method,size,receiver,asked_pps,offered,device_dropped,seen,received,lost,\
unaccounted,duration_s,received_pps,receiver_cpu_s,receiver_ns_per_packet,napi_cpu_s,generator_cpu_s,\
others_share,steal_share,invalid,load_average,receiver_user_s\n";

/// Every trial of throughput, with its round, then those of the searches, then those of flow probes.
pub fn trials(throughput: &[(usize, Trial)], searches: &[Trial], flows: &Rates) -> String {
    let mut text = TRIAL_COLUMNS.to_owned();
    for (round, trial) in throughput {
        trial_line(&mut text, "throughput", &(round + 1).to_string(), trial);
    }
    for trial in searches {
        trial_line(&mut text, "loss-free", "", trial);
    }
    for (round, trial) in &flows.trials {
        trial_line(&mut text, "flows", &(round + 1).to_string(), trial);
    }
    for (round, trial) in &flows.search_trials {
        trial_line(&mut text, "flows-loss-free", &(round + 1).to_string(), trial);
    }
    for (number, trial) in flows.at_peers_best.iter().flat_map(|best| best.trials.iter().enumerate()) {
        trial_line(&mut text, "flows-at-peers-best", &(number + 1).to_string(), trial);
    }
    text
}

fn trial_line(text: &mut String, part: &str, round: &str, trial: &Trial) {
    let or_empty = |value: Option<String>| value.unwrap_or_default();
    let _ = writeln!(
        text,
        "{part},{round},{},{},{},{},{},{},{},{},{},{},{},{:.6},{:.0},{:.6},{:.1},{:.6},{:.6},{:.4},{:.4},{},{:.2},{:.6}",
        trial.setup.name(),
        trial.load.method.name(),
        trial.load.size,
        trial.receiver.name(),
        or_empty(trial.asked_pps.map(|pps| format!("{pps:.0}"))),
        trial.offered,
        trial.device_dropped,
        or_empty(trial.seen.map(|seen| seen.to_string())),
        trial.received,
        trial.lost,
        trial.unaccounted,
        trial.duration_s,
        trial.received_pps(),
        trial.receiver_cpu_s,
        trial.receiver_ns(),
        trial.napi_cpu_s,
        trial.generator_cpu_s,
        trial.others_share,
        trial.steal_share,
        trial.invalid.unwrap_or_default(),
        trial.load_average,
        trial.receiver_user_s,
    );
}

/// The medians.
pub fn summary(lines: &[Line]) -> String {
    let mut text =
        "setup,method,size,receiver,trials,median_pps,low_pps,high_pps,of_xdp_drop,of_af_xdp,of_tpacket_v3,\
                    receiver_ns_per_packet,napi_share,lost_share,exact\n"
            .to_owned();
    let ratio = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
    for line in lines {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{:.0},{:.0},{:.0},{},{},{},{:.1},{:.4},{:.4},{}",
            line.setup.name(),
            line.load.method.name(),
            line.load.size,
            line.receiver.name(),
            line.trials,
            line.pps.median,
            line.pps.low,
            line.pps.high,
            ratio(line.of_limit),
            ratio(line.of_xsk),
            ratio(line.of_packet),
            line.receiver_ns,
            line.napi_share,
            line.lost_share,
            line.exact,
        );
    }
    text
}

/// The highest rates.
pub fn loss_free(results: &[LossFree]) -> String {
    let mut text = "setup,method,size,receiver,goal_loss,rate_pps,bound,trials,invalid_trials,\
overload_offered_pps,overload_received_of_rate,lost_after_recovery,overload_unaccounted\n"
        .to_owned();
    for LossFree { setup, load, receiver, found, overload } in results {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{}",
            setup.name(),
            load.method.name(),
            load.size,
            receiver.name(),
            found.goal,
            found.rate.map_or_else(String::new, |rate| format!("{rate:.0}")),
            found.bound.name(),
            found.trials,
            found.invalid,
            overload.map_or_else(
                || ",,,".to_owned(),
                |over| format!(
                    "{:.0},{:.4},{},{}",
                    over.offered_pps,
                    over.received_of_rate,
                    over.lost_after_recovery.map_or_else(String::new, |lost| format!("{lost:.6}")),
                    over.unaccounted
                )
            ),
        );
    }
    text
}
