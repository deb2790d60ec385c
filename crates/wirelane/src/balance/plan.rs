//! Plans moves of buckets: a pure function of load and assignment.
//!
//! A bucket with a worker's fair share of the load or more is an elephant. It gets a worker of its own, as long as one
//! is left for the other buckets; the other workers share the remaining load. Among them, buckets move from the busiest
//! to the idlest worker while that reduces the difference of the two.

/// Load of the busiest worker, in hundredths of the mean, below which nothing is moved.
const TOLERATED: u64 = 108;
/// Load of the busiest worker, in hundredths of the mean, at which moving stops.
const WANTED: u64 = 103;
/// Maximum number of buckets that one plan moves: the load is measured anew before the next.
const MOST_MOVES: usize = 128;

/// A bucket and its new worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) bucket: usize,
    pub(crate) worker: usize,
}

/// Result of one look at the loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) moves: Vec<Move>,
    /// Buckets that have a worker of their own.
    pub(crate) elephants: Vec<usize>,
}

/// The plan for these loads, by bucket, and this table of the buckets' workers, each below `workers`. Buckets for which
/// `resting` is true do not move.
pub(crate) fn plan(loads: &[u64], table: &[u16], workers: usize, resting: impl Fn(usize) -> bool) -> Plan {
    let mut table: Vec<usize> = table.iter().map(|worker| usize::from(*worker).min(workers - 1)).collect();
    let mut moves: Vec<Move> = Vec::new();
    let elephants = elephants(loads, workers);
    let mut load = vec![0; workers];
    for (bucket, worker) in table.iter().enumerate() {
        load[*worker] += loads[bucket];
    }

    // Each elephant keeps its worker, unless a larger one has it already.
    let mut taken = vec![false; workers];
    for &bucket in &elephants {
        let mut worker = table[bucket];
        if taken[worker] {
            let Some(idlest) =
                (0..workers).filter(|worker| !taken[*worker]).min_by_key(|worker| load[*worker])
            else {
                break;
            };
            shift(&mut moves, &mut table, &mut load, loads, bucket, idlest);
            worker = idlest;
        }
        taken[worker] = true;
    }
    let free: Vec<usize> = (0..workers).filter(|worker| !taken[*worker]).collect();
    if free.is_empty() {
        return Plan { moves, elephants };
    }
    // Other buckets on an elephant's worker move to workers without an elephant, the largest first.
    let mut guests: Vec<usize> = (0..loads.len())
        .filter(|bucket| taken[table[*bucket]] && !elephants.contains(bucket) && loads[*bucket] > 0)
        .collect();
    guests.sort_by_key(|bucket| std::cmp::Reverse(loads[*bucket]));
    for bucket in guests.into_iter().take(MOST_MOVES) {
        if let Some(&idlest) = free.iter().min_by_key(|worker| load[**worker]) {
            shift(&mut moves, &mut table, &mut load, loads, bucket, idlest);
        }
    }

    let mean = free.iter().map(|worker| load[*worker]).sum::<u64>() / free.len() as u64;
    let busiest = |load: &[u64]| free.iter().copied().max_by_key(|worker| load[*worker]);
    let idlest = |load: &[u64]| free.iter().copied().min_by_key(|worker| load[*worker]);
    if busiest(&load).is_none_or(|worker| load[worker] * 100 <= mean * TOLERATED) {
        return Plan { moves, elephants };
    }
    while moves.len() < MOST_MOVES {
        let (Some(from), Some(to)) = (busiest(&load), idlest(&load)) else { break };
        if load[from] * 100 <= mean * WANTED {
            break;
        }
        // The largest bucket that does not make `to` the busier one of the two.
        let most = (load[from] - load[to]) / 2;
        let candidate = (0..loads.len())
            .filter(|bucket| {
                table[*bucket] == from && (1..=most).contains(&loads[*bucket]) && !resting(*bucket)
            })
            .max_by_key(|bucket| loads[*bucket]);
        let Some(bucket) = candidate else { break };
        shift(&mut moves, &mut table, &mut load, loads, bucket, to);
    }
    Plan { moves, elephants }
}

/// Buckets that alone bring a worker's fair share or more, the largest first; at least one worker is left for the
/// rest.
fn elephants(loads: &[u64], workers: usize) -> Vec<usize> {
    let total: u64 = loads.iter().sum();
    let mut found: Vec<usize> = (0..loads.len())
        .filter(|bucket| loads[*bucket] > 0 && loads[*bucket] * workers as u64 >= total)
        .collect();
    found.sort_by_key(|bucket| std::cmp::Reverse(loads[*bucket]));
    found.truncate(workers - 1);
    found
}

fn shift(
    moves: &mut Vec<Move>,
    table: &mut [usize],
    load: &mut [u64],
    loads: &[u64],
    bucket: usize,
    worker: usize,
) {
    load[table[bucket]] -= loads[bucket];
    load[worker] += loads[bucket];
    table[bucket] = worker;
    // A bucket that this plan has moved already is moved once, to its final worker.
    match moves.iter_mut().find(|earlier| earlier.bucket == bucket) {
        Some(earlier) => earlier.worker = worker,
        None => moves.push(Move { bucket, worker }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUCKETS: usize = 512;

    fn spread(workers: usize) -> Vec<u16> {
        (0..BUCKETS).map(|bucket| (bucket % workers) as u16).collect()
    }

    /// Loads of the workers after the plan, in hundredths of the mean; without workers that have an elephant.
    fn after(loads: &[u64], table: &[u16], workers: usize, plan: &Plan) -> Vec<u64> {
        let mut table = table.to_vec();
        plan.moves.iter().for_each(|m| table[m.bucket] = m.worker as u16);
        let homes: Vec<u16> = plan.elephants.iter().map(|bucket| table[*bucket]).collect();
        let load = |worker: u16| -> u64 {
            (0..BUCKETS).filter(|bucket| table[*bucket] == worker).map(|bucket| loads[bucket]).sum()
        };
        let rest: Vec<u64> = (0..workers as u16).filter(|worker| !homes.contains(worker)).map(load).collect();
        let mean = (rest.iter().sum::<u64>() / rest.len() as u64).max(1);
        rest.iter().map(|load| load * 100 / mean).collect()
    }

    #[test]
    fn an_even_load_is_left_alone() {
        let plan = plan(&[10; BUCKETS], &spread(4), 4, |_| false);
        assert_eq!(plan, Plan::default());
    }

    #[test]
    fn no_load_is_left_alone() {
        assert_eq!(plan(&[0; BUCKETS], &spread(3), 3, |_| false), Plan::default());
        assert_eq!(plan(&[5; BUCKETS], &[0; BUCKETS], 1, |_| false), Plan::default());
    }

    #[test]
    fn all_on_one_worker_is_spread_within_a_few_plans() {
        let loads: Vec<u64> = (1..=BUCKETS as u64).collect();
        let mut table = vec![0u16; BUCKETS];
        for _ in 0..6 {
            let plan = plan(&loads, &table, 4, |_| false);
            plan.moves.iter().for_each(|m| table[m.bucket] = m.worker as u16);
        }
        let left = after(&loads, &table, 4, &Plan::default());
        assert!(left.iter().all(|share| (92..=108).contains(share)), "{left:?}");
    }

    #[test]
    fn an_elephant_has_a_worker_to_itself() {
        let mut loads = vec![10u64; BUCKETS];
        loads[77] = 20_000;
        let table = spread(4);
        let plan = plan(&loads, &table, 4, |_| false);
        assert_eq!(plan.elephants, [77]);
        let mut moved = table.clone();
        plan.moves.iter().for_each(|m| moved[m.bucket] = m.worker as u16);
        let home = moved[77];
        assert_eq!(home, table[77], "it stays where it is: others are cheaper to move");
        let guests = (0..BUCKETS).filter(|bucket| moved[*bucket] == home).count();
        assert_eq!(guests, 1);
        assert!(after(&loads, &table, 4, &plan).iter().all(|share| *share <= 110));
    }

    #[test]
    fn two_elephants_on_one_worker_part() {
        let mut loads = vec![1u64; BUCKETS];
        (loads[4], loads[8]) = (5_000, 6_000);
        let table = spread(4);
        assert_eq!(table[4], table[8]);
        let plan = plan(&loads, &table, 4, |_| false);
        assert_eq!(plan.elephants, [8, 4]);
        let to = plan.moves.iter().find(|m| m.bucket == 4).expect("the smaller one moves");
        assert_ne!(to.worker, usize::from(table[8]));
    }

    #[test]
    fn what_rests_stays() {
        let loads: Vec<u64> =
            (0..BUCKETS as u64).map(|bucket| if bucket % 4 == 0 { 30 } else { 10 }).collect();
        let plan = plan(&loads, &spread(4), 4, |bucket| bucket % 8 == 0);
        assert!(!plan.moves.is_empty() && plan.moves.iter().all(|m| m.bucket % 8 != 0));
    }

    proptest! {
        #[test]
        fn a_plan_is_sound_and_never_makes_it_worse(
            loads in prop::collection::vec(0u64..1000, BUCKETS),
            table in prop::collection::vec(0u16..8, BUCKETS),
            workers in 1usize..8,
        ) {
            let table: Vec<u16> = table.iter().map(|worker| worker % workers as u16).collect();
            let plan = plan(&loads, &table, workers, |_| false);
            let mut seen = std::collections::BTreeSet::new();
            for m in &plan.moves {
                prop_assert!(m.worker < workers && m.bucket < BUCKETS && seen.insert(m.bucket));
            }
            if plan.elephants.is_empty() {
                let before = after(&loads, &table, workers, &Plan::default());
                let then = after(&loads, &table, workers, &plan);
                prop_assert!(then.iter().max() <= before.iter().max());
            }
        }
    }
}
