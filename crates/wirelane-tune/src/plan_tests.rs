//! Plans for recorded machines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, prop_assert_ne, proptest};

use super::*;
use wirelane_netdev::topology::{CardQueue, Channels, Closeness, CpuSet, Offload, RingSize, Rss, fixtures};

fn machine(manifest: &str) -> (Topology, Card) {
    let tree = fixtures::tree(manifest);
    (Topology::read(tree.path()).unwrap(), Card::read(tree.path(), "eth1").unwrap())
}

fn wish(workers: Option<usize>) -> Wishes {
    Wishes { workers, polling: Some(Polling::Threaded), ..Wishes::default() }
}

/// Queue and worker of each pair.
fn pairs(plan: &Plan) -> Vec<(usize, usize)> {
    plan.queues.iter().zip(&plan.workers).map(|(queue, worker)| (queue.core.unwrap(), worker.core)).collect()
}

/// Invariants on any machine: every worker has a CPU that is allowed, no queue and worker share one unless there is
/// only one, and every line has a reason.
fn sound(topology: &Topology, plan: &Plan) {
    let serving: BTreeSet<usize> = plan.queues.iter().filter_map(|queue| queue.core).collect();
    for worker in &plan.workers {
        assert!(topology.cpu(worker.core).unwrap().allowed, "{worker:?}");
        assert!(topology.cpus.len() == 1 || !serving.contains(&worker.core), "{worker:?} of {plan:#?}");
        assert!(!worker.reason.is_empty());
    }
    assert!(plan.queues.iter().all(|queue| !queue.reason.is_empty()));
    assert!(plan.devices.iter().flat_map(|one| &one.changes).all(|change| !change.reason.is_empty()));
}

#[test]
fn the_papers_machine_gets_the_papers_placement() {
    let (topology, card) = machine(fixtures::XEON_5520);
    let plan = plan(&topology, std::slice::from_ref(&card), &wish(Some(2)));
    sound(&topology, &plan);
    // Hyper-threads of one core on the card's processor; core 0 is spared, as the paper could not afford to.
    assert_eq!(pairs(&plan), [(2, 10), (4, 12)]);
    let bound: Vec<(Setting, String)> =
        plan.devices[0].changes.iter().map(|change| (change.what.clone(), change.new.clone())).collect();
    assert_eq!(bound[0], (Setting::Threaded, "1".into()));
    assert!(bound.contains(&(Setting::ThreadAffinity { queue: 1 }, "4".into())), "{bound:?}");
    assert!(bound.contains(&(Setting::IrqAffinity { irq: 65 }, "4".into())), "{bound:?}");
    assert!(plan.workers[0].reason.contains("hyper-thread of the same core"), "{:?}", plan.workers[0]);

    // All CPUs of processor 0: three pairs beside core 0.
    let all = super::plan(&topology, &[card], &wish(None));
    assert_eq!(pairs(&all), [(2, 10), (4, 12), (6, 14)]);
}

#[test]
fn chiplets_are_not_crossed() {
    let (topology, card) = machine(fixtures::EPYC_7763);
    let plan = plan(&topology, &[card], &wish(None));
    sound(&topology, &plan);
    assert_eq!(plan.workers.len(), 63);
    for (serves, works) in pairs(&plan) {
        assert_eq!(topology.closeness(serves, works), Closeness::Core, "{serves} {works}");
        assert_ne!(serves % 64, 0, "core 0 is left alone");
    }
}

#[test]
fn a_worker_beyond_its_queue_stays_in_the_chiplet() {
    let (topology, mut card) = machine(fixtures::EPYC_7763);
    card.queues.truncate(2);
    let plan = plan(&topology, &[card], &wish(Some(6)));
    sound(&topology, &plan);
    assert_eq!(plan.queues.len(), 2);
    for worker in &plan.workers {
        let serves = plan.queues[worker.worker % 2].core.unwrap();
        assert!(topology.closeness(serves, worker.core) <= Closeness::L3, "{worker:?}");
    }
}

#[test]
fn the_cards_node_is_used() {
    let (topology, card) = machine(fixtures::DUAL_ICELAKE);
    let plan = plan(&topology, &[card], &wish(None));
    sound(&topology, &plan);
    assert_eq!(plan.workers.len(), 28);
    for (serves, works) in pairs(&plan) {
        assert_eq!(topology.cpu(serves).unwrap().node, Some(1));
        assert_eq!(topology.closeness(serves, works), Closeness::Core);
    }
    assert!(plan.queues[0].reason.contains("NUMA node 1"), "{:?}", plan.queues[0]);
    // 40 pairs are more than a node has: the others are on the far one, with a reason.
    let (topology, card) = machine(fixtures::DUAL_ICELAKE);
    let plan = super::plan(&topology, &[card], &wish(Some(40)));
    sound(&topology, &plan);
    let far = plan.queues.iter().filter(|queue| queue.reason.contains("is full: on node 0")).count();
    assert_eq!((plan.queues.len(), far), (40, 12));
}

#[test]
fn without_hyper_threads_neighbours_are_paired() {
    let (topology, card) = machine(fixtures::ALTRA_Q80);
    let plan = plan(&topology, &[card], &wish(None));
    sound(&topology, &plan);
    assert_eq!(plan.workers.len(), 39);
    assert_eq!(pairs(&plan)[..3], [(1, 2), (3, 4), (5, 6)]);
    let used: BTreeSet<usize> = pairs(&plan).into_iter().flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(used.len(), 78, "no CPU twice");
    assert!(!used.contains(&0));
}

#[test]
fn two_cores_serve_one_queue_and_read_it() {
    let (topology, mut card) = machine(fixtures::VM);
    card.channels = Some(Channels { combined: (2, 2), ..Channels::default() });
    let plan = plan(&topology, std::slice::from_ref(&card), &wish(None));
    sound(&topology, &plan);
    assert_eq!(pairs(&plan), [(0, 1)]);
    assert_eq!(plan.devices[0].changes[0].new, "rx 0 tx 0 combined 1");
    // More workers than CPUs are allowed, with a note.
    let plan = super::plan(&topology, &[card], &wish(Some(3)));
    sound(&topology, &plan);
    assert!(plan.notes.iter().any(|note| note.contains("more workers (3) than CPUs")), "{:?}", plan.notes);
}

#[test]
fn one_core_does_it_all() {
    let (topology, card) = machine("cpus 0\ncard eth1 0000:00:01.0 node -1\nqueues eth1 4 irq 9 name eth1-");
    let plan = plan(&topology, &[card], &wish(Some(2)));
    sound(&topology, &plan);
    assert!(
        plan.workers.iter().all(|worker| worker.core == 0 && worker.reason.contains("only")),
        "{plan:#?}"
    );
}

#[test]
fn busy_cpus_are_avoided_and_the_mask_is_kept() {
    let (mut topology, card) = machine(fixtures::XEON_5520);
    topology.set_load(&BTreeMap::from([(2, 0.9), (10, 0.1), (4, 0.2)]));
    let plan = plan(&topology, std::slice::from_ref(&card), &wish(Some(1)));
    assert_eq!(pairs(&plan), [(4, 12)]);
    assert!(plan.queues[0].reason.contains("20 % busy"), "{:?}", plan.queues[0]);

    for cpu in &mut topology.cpus {
        cpu.allowed = matches!(cpu.cpu, 1 | 9 | 3);
    }
    let plan = super::plan(&topology, &[card], &wish(Some(1)));
    assert_eq!(pairs(&plan), [(1, 9)]);
}

#[test]
fn what_is_fixed_is_worked_around() {
    let (topology, mut card) = machine(fixtures::XEON_5520);
    card.queues.truncate(4);
    let stay = Wishes { workers: Some(3), as_it_is: true, ..Wishes::default() };
    let plan = plan(&topology, std::slice::from_ref(&card), &stay);
    sound(&topology, &plan);
    // The interrupts of queues 0 to 3 go to CPUs 0 to 3.
    let served: Vec<Option<usize>> = plan.queues.iter().map(|queue| queue.core).collect();
    assert_eq!(served, [Some(0), Some(1), Some(2), Some(3)]);
    let cores: Vec<usize> = plan.workers.iter().map(|worker| worker.core).collect();
    assert_eq!(cores, [8, 9, 10], "beside queues 0, 1 and 2");
    assert!(plan.devices[0].changes.is_empty());

    // The CPUs that serve queues are unknown: workers get dedicated cores.
    for queue in &mut card.queues {
        (queue.irq_cpus, queue.irq_effective) = Default::default();
    }
    let plan = super::plan(&topology, &[card], &stay);
    let cores: Vec<usize> = plan.workers.iter().map(|worker| worker.core).collect();
    assert_eq!(cores, [2, 4, 6]);
    assert!(plan.queues.iter().all(|queue| queue.core.is_none()));
}

#[test]
fn two_cards_share_the_machine() {
    let (topology, one) = machine(fixtures::DUAL_ICELAKE);
    let two = Card { device: "eth2".into(), node: Some(0), ..one.clone() };
    let plan = plan(&topology, &[one, two], &wish(None));
    sound(&topology, &plan);
    for queue in &plan.queues {
        let node = topology.cpu(queue.core.unwrap()).unwrap().node;
        assert_eq!(node, Some(u32::from(queue.device == "eth1")), "{queue:?}");
    }
    let cpus: BTreeSet<usize> = pairs(&plan).into_iter().flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(cpus.len(), 2 * plan.workers.len(), "no CPU twice");
}

#[test]
fn the_card_is_set_for_capture() {
    let (topology, mut card) = machine(fixtures::XEON_5520);
    card.channels = Some(Channels { combined: (8, 8), ..Channels::default() });
    card.ring = Some(RingSize { now: 256, most: 8192 });
    card.rss = Some(Rss {
        table: (0..128).map(|entry| entry % 8).collect(),
        key: vec![0x11; 40],
        toeplitz: true,
        symmetric: false,
    });
    let offload = |name: &str, on, fixed| Offload { name: name.into(), on, fixed };
    card.offloads = vec![
        offload("rx-gro", true, false),
        offload("rx-lro", false, false),
        offload("rx-vlan-hw-parse", true, true),
        offload("tx-checksumming", true, false),
    ];
    card.queues[1].rps_cpus = CpuSet::from([3]);
    let plan = plan(&topology, std::slice::from_ref(&card), &wish(Some(2)));
    let changes = &plan.devices[0].changes;
    let new = |what: Setting| changes.iter().find(|change| change.what == what).map(|one| one.new.as_str());
    assert_eq!(new(Setting::Channels), Some("rx 0 tx 0 combined 2"));
    assert_eq!(new(Setting::RxRing), Some("4096"));
    assert_eq!(new(Setting::RssTable), Some("even 2"));
    assert!(new(Setting::RssKey).is_some_and(|key| key.len() == 80 && key.starts_with("6d5a6d5a")));
    assert_eq!(new(Setting::Rps { queue: 1 }), Some(""));
    let offloads: Vec<&Setting> =
        changes.iter().map(|one| &one.what).filter(|what| matches!(what, Setting::Offload { .. })).collect();
    assert_eq!(offloads, [&Setting::Offload { name: "rx-gro".into() }]);

    // A table that was set explicitly keeps its queues: it is changed before them.
    let by_hand = card.rss.as_mut().map(|rss| rss.table.fill(7));
    assert!(by_hand.is_some());
    let plan = super::plan(&topology, &[card], &wish(Some(2)));
    let order: Vec<&Setting> = plan.devices[0].changes.iter().map(|change| &change.what).take(2).collect();
    assert_eq!(order, [&Setting::RssTable, &Setting::Channels]);
    let tables = plan.devices[0].changes.iter().filter(|change| change.what == Setting::RssTable).count();
    assert_eq!(tables, 1);
}

#[test]
fn interrupts_and_busy_polling_are_planned() {
    let (topology, mut card) = machine(fixtures::XEON_5520);
    card.threaded = Some(true);
    let wishes = |polling| Wishes { polling: Some(polling), workers: Some(1), ..Wishes::default() };
    let plan = plan(&topology, std::slice::from_ref(&card), &wishes(Polling::Interrupt));
    let first = &plan.devices[0].changes[0];
    assert_eq!((&first.what, first.new.as_str()), (&Setting::Threaded, "0"));
    assert!(!plan.devices[0].changes.iter().any(|one| matches!(one.what, Setting::ThreadAffinity { .. })));

    card.busy_threads = true;
    let busy = super::plan(&topology, std::slice::from_ref(&card), &wishes(Polling::Busy));
    assert_eq!(busy.devices[0].changes[0].what, Setting::QueueThread { queue: 0 });
    card.busy_threads = false;
    (card.defer_hard_irqs, card.gro_flush_timeout) = (Some(0), Some(0));
    let without = super::plan(&topology, &[card], &wishes(Polling::Busy));
    assert!(without.devices[0].changes.iter().any(|one| one.what == Setting::DeferHardIrqs));
    assert!(without.notes.iter().any(|note| note.contains("6.19")), "{:?}", without.notes);
}

#[test]
fn threads_go_beside_workers_that_are_placed_already() {
    let (topology, card) = machine(fixtures::XEON_5520);
    let mut wishes = wish(Some(2));
    (wishes.cores, wishes.as_it_is) = (vec![12, 3], true);
    let plan = plan(&topology, &[card], &wishes);
    sound(&topology, &plan);
    let cores: Vec<usize> = plan.workers.iter().map(|worker| worker.core).collect();
    assert_eq!(cores, [12, 3]);
    let first: Vec<usize> = plan.queues.iter().take(2).map(|queue| queue.core.unwrap()).collect();
    assert_eq!(first, [4, 11], "{:#?}", plan.queues);
}

/// The recorded machines, read once.
static MACHINES: LazyLock<[(Topology, Card); 5]> = LazyLock::new(|| {
    use fixtures::{ALTRA_Q80, DUAL_ICELAKE, EPYC_7763, VM, XEON_5520};
    [XEON_5520, EPYC_7763, DUAL_ICELAKE, ALTRA_Q80, VM].map(machine)
});

/// The small machine among them.
const SMALL: usize = 4;

/// A recorded machine, and its card with so many queues.
fn with_queues(machine: usize, queues: u32) -> (&'static Topology, Card) {
    let (topology, card) = &MACHINES[machine];
    let queue = |queue| CardQueue { queue, ..card.queues[0].clone() };
    (topology, Card { queues: (0..queues).map(queue).collect(), ..card.clone() })
}

/// Cores that are given, with more queues than cores: both CPUs of a small machine serve two queues each, and none
/// those of its own worker.
#[test]
fn threads_are_spread_where_there_are_more_queues_than_cores() {
    let served = |cores: &[usize], workers: usize| -> Vec<usize> {
        let (topology, card) = with_queues(SMALL, 4);
        let mut wishes = wish(Some(workers));
        (wishes.cores, wishes.as_it_is) = (cores.to_vec(), true);
        let plan = plan(topology, &[card], &wishes);
        plan.queues.iter().map(|queue| queue.core.unwrap()).collect()
    };
    assert_eq!(served(&[0, 1], 2), [1, 0, 1, 0]);
    assert_eq!(served(&[1, 0], 2), [0, 1, 0, 1]);
    // With one worker, the other CPU serves all queues.
    assert_eq!(served(&[0], 1), [1, 1, 1, 1]);
    assert_eq!(served(&[1], 1), [0, 0, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// On any recorded machine, each queue is served by a CPU with the least to do, of these by one as close as possible
    /// to the worker that it feeds, and not by that worker's CPU unless there is no other.
    #[test]
    fn threads_are_spread_evenly_beside_their_workers(
        machine in 0..5usize,
        queues in 1..200u32,
        workers in 1..12usize,
        cores in proptest::collection::vec(0..160usize, 1..12),
    ) {
        let (topology, card) = with_queues(machine, queues);
        let mut wishes = wish(Some(workers));
        wishes.as_it_is = true;
        wishes.cores = cores.iter().map(|core| topology.cpus[core % topology.cpus.len()].cpu).collect();
        let plan = plan(topology, &[card], &wishes);
        let share = (queues as usize).div_ceil(workers);
        let mut load: BTreeMap<usize, usize> = topology.cpus.iter().map(|cpu| (cpu.cpu, 0)).collect();
        for worker in &plan.workers {
            *load.get_mut(&worker.core).unwrap() += share;
        }
        prop_assert_eq!(plan.queues.len(), queues as usize);
        for (at, queue) in plan.queues.iter().enumerate() {
            let (core, feeds) = (queue.core.unwrap(), plan.workers[at % workers].core);
            prop_assert_ne!(core, feeds);
            let cost = |cpu: usize| (load[&cpu], topology.closeness(cpu, feeds));
            let others = load.keys().filter(|cpu| **cpu != feeds);
            prop_assert_eq!(cost(core), others.map(|cpu| cost(*cpu)).min().unwrap());
            *load.get_mut(&core).unwrap() += 1;
        }
        // CPUs without a worker serve equally many, or one more.
        let idle = load.iter().filter(|(cpu, _)| plan.workers.iter().all(|worker| worker.core != **cpu));
        let idle: Vec<usize> = idle.map(|(_, load)| *load).collect();
        let spread = idle.iter().max().unwrap_or(&0) - idle.iter().min().unwrap_or(&0);
        prop_assert!(spread <= 1, "{:?}", idle);
    }
}
