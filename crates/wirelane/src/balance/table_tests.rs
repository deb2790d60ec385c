//! The planner of an RSS table against a simulated card, which alone knows the true load of each entry.

use super::table::TablePlanner;

/// A card: its table, the load of each entry per look, and the count of each queue.
struct Card {
    table: Vec<u32>,
    loads: Vec<u64>,
    counts: Vec<u64>,
}

impl Card {
    fn new(entries: u32, queues: u32, loads: impl Fn(u32) -> u64) -> Card {
        Card {
            table: (0..entries).map(|entry| entry % queues).collect(),
            loads: (0..entries).map(loads).collect(),
            counts: vec![0; queues as usize],
        }
    }

    fn by_queue(&self) -> Vec<u64> {
        let mut sums = vec![0; self.counts.len()];
        self.table.iter().zip(&self.loads).for_each(|(queue, load)| sums[*queue as usize] += load);
        sums
    }

    /// The busiest queue's load in hundredths of the mean over these queues.
    fn worst(&self, queues: &[u32]) -> u64 {
        let all = self.by_queue();
        let its: Vec<u64> = queues.iter().map(|queue| all[*queue as usize]).collect();
        its.iter().max().unwrap() * 100 * its.len() as u64 / its.iter().sum::<u64>()
    }

    /// Runs `looks` looks; returns the number of moved entries.
    fn run(&mut self, planner: &mut TablePlanner, looks: u32) -> usize {
        let mut moved = 0;
        for _ in 0..looks {
            let came = self.by_queue();
            self.counts.iter_mut().zip(came).for_each(|(sum, one)| *sum += one);
            let counts: Vec<u64> =
                planner.queues().iter().map(|queue| self.counts[*queue as usize]).collect();
            let moves = planner.look(&counts);
            if moves.is_empty() {
                continue;
            }
            moves.iter().for_each(|one| self.table[one.entry as usize] = one.queue);
            moved += moves.len();
            planner.moved();
        }
        moved
    }
}

#[test]
fn an_even_load_moves_nothing() {
    let mut card = Card::new(128, 4, |_| 100);
    let mut planner = TablePlanner::new(&card.table, None).unwrap();
    assert_eq!(card.run(&mut planner, 200), 0);
}

#[test]
fn nothing_moves_for_a_few_packets() {
    let mut card = Card::new(128, 4, |entry| u64::from(entry == 3));
    let mut planner = TablePlanner::new(&card.table, None).unwrap();
    assert_eq!(card.run(&mut planner, 200), 0);
}

#[test]
fn a_busy_queue_is_relieved_and_then_there_is_rest() {
    // Queue 0 has four times the load of the others, evenly over its entries.
    let mut card = Card::new(128, 4, |entry| if entry % 4 == 0 { 400 } else { 100 });
    let mut planner = TablePlanner::new(&card.table, None).unwrap();
    assert!(card.worst(&[0, 1, 2, 3]) > 220);
    assert!(card.run(&mut planner, 60) > 0);
    assert!(card.worst(&[0, 1, 2, 3]) <= 110, "{:?}", card.by_queue());
    assert_eq!(card.run(&mut planner, 300), 0, "it goes on moving: {:?}", card.by_queue());
}

#[test]
fn uneven_entries_are_learnt() {
    // No entry has the load that its queue's mean suggests.
    let mut card = Card::new(128, 4, |entry| match entry % 4 {
        0 => 50 + u64::from(entry) * u64::from(entry) / 16,
        1 => 20 + u64::from(entry),
        _ => 40,
    });
    let before = card.worst(&[0, 1, 2, 3]);
    let mut planner = TablePlanner::new(&card.table, None).unwrap();
    card.run(&mut planner, 400);
    let after = card.worst(&[0, 1, 2, 3]);
    assert!(before > 250 && after <= 115, "{before} {after} {:?}", card.by_queue());
}

#[test]
fn an_elephant_is_left_a_queue_of_its_own() {
    let mut card = Card::new(128, 4, |entry| if entry == 40 { 20_000 } else { 30 });
    let mut planner = TablePlanner::new(&card.table, None).unwrap();
    card.run(&mut planner, 600);
    let home = card.table[40];
    let with_it: u64 = (0..128)
        .filter(|entry| *entry != 40 && card.table[*entry] == home)
        .map(|entry| card.loads[entry])
        .sum();
    assert!(with_it <= 120, "{with_it} beside it");
    let others: Vec<u32> = (0..4).filter(|queue| *queue != home).collect();
    assert!(card.worst(&others) <= 115, "{:?}", card.by_queue());
}

#[test]
fn only_the_captured_queues_take_part() {
    let mut card = Card::new(128, 4, |entry| if entry % 4 == 1 { 400 } else { 100 });
    let before = card.table.clone();
    let mut planner = TablePlanner::new(&card.table, Some(&[3, 1])).unwrap();
    assert_eq!(planner.queues(), [1, 3]);
    assert!(card.run(&mut planner, 60) > 0);
    assert!(card.worst(&[1, 3]) <= 110, "{:?}", card.by_queue());
    for (then, now) in before.iter().zip(&card.table) {
        assert!(then == now || [1, 3].contains(then) && [1, 3].contains(now), "{then} {now}");
    }
}

#[test]
fn what_was_refused_is_asked_for_again() {
    let mut card = Card::new(64, 2, |entry| if entry % 2 == 0 { 500 } else { 100 });
    let mut planner = TablePlanner::new(&card.table, None).unwrap();
    let mut asked = 0;
    for look in 1..=20 {
        let counts: Vec<u64> = card.by_queue().iter().map(|load| load * look).collect();
        card.counts.clone_from(&counts);
        if !planner.look(&counts).is_empty() {
            asked += 1;
            assert!(planner.look(&counts).is_empty(), "nothing is asked for before there is an answer");
            planner.not_moved();
        }
    }
    assert!(asked >= 3, "{asked}");
    // Afterwards the planner works as before.
    assert!(card.run(&mut planner, 60) > 0);
    assert!(card.worst(&[0, 1]) <= 110, "{:?}", card.by_queue());
}

#[test]
fn one_queue_is_no_choice() {
    assert!(TablePlanner::new(&[0; 64], None).is_none());
    assert!(TablePlanner::new(&[0, 1, 0, 1], Some(&[1])).is_none());
    assert!(TablePlanner::new(&[], None).is_none());
}
