//! Tests of replicas' threads on simulated machines.

use super::*;

/// A machine whose cores have two logical CPUs each, and whose nodes have these numbers of cores.
fn machine(nodes: &[usize]) -> Machine {
    let n_cores: usize = nodes.iter().sum();
    let mut next = 0..n_cores;
    let core = |cpu: usize| Core {
        cpus: vec![cpu, cpu + n_cores],
    };
    let nodes = nodes
        .iter()
        .map(|size| next.by_ref().take(*size).map(core).collect());
    Machine {
        nodes: nodes.collect(),
        n_usable: n_cores,
    }
}

fn config(dp_size: usize) -> EngineConfig {
    EngineConfig {
        dp_size,
        ..EngineConfig::default()
    }
}

/// The lines of `souffleur plan`, without their labels.
fn explained(threads: &ReplicaThreads) -> Vec<String> {
    let lines = threads.explain().into_iter();
    lines.map(|line| line[22..].to_owned()).collect()
}

/// Checks that no thread is bound, and that each replica has this number of them.
fn check_unbound(machine: &Machine, config: &EngineConfig, expected: usize) {
    let threads = ReplicaThreads::on(machine, config);
    for replica in 0..config.dp_size {
        assert!(threads.cpus(replica).is_empty(), "{threads:?}");
    }
    assert_eq!(threads.fewest(), expected, "{threads:?}");
    assert_eq!(threads.of_this_thread(), expected, "{threads:?}");
    let bound = (threads.pins(config), threads.numa(config));
    assert_eq!(bound, (false, Numa::Off), "{threads:?}");
}

#[test]
fn each_replica_has_a_thread_on_each_of_its_cores() {
    let threads = ReplicaThreads::on(&machine(&[8, 8]), &config(2));
    assert_eq!(
        explained(&threads),
        [
            "8",
            "8 (CPUs 0-7,16-23), a thread on each",
            "8 (CPUs 8-15,24-31), a thread on each"
        ]
    );
    assert!(threads.pins(&config(2)));
    assert_eq!(threads.numa(&config(2)), Numa::Auto);
    let threads = ReplicaThreads::on(&machine(&[2]), &config(2));
    assert_eq!((threads.cpus(0), threads.cpus(1)), (vec![0, 2], vec![1, 3]));
    assert_eq!(threads.fewest(), 1);
    let threads = ReplicaThreads::on(&machine(&[8]), &config(3));
    assert_eq!(explained(&threads)[0], "2 to 3");
    assert_eq!(threads.cpus(1), [2, 3, 4, 10, 11, 12]);
}

#[test]
fn threads_are_bound_to_cores_only_if_there_are_as_many() {
    for (threads, is_bound) in [(3, false), (4, true), (5, false)] {
        let config = EngineConfig {
            threads,
            ..config(2)
        };
        if is_bound {
            let bound = ReplicaThreads::on(&machine(&[8]), &config);
            assert_eq!(bound.cpus(1), [4, 5, 6, 7, 12, 13, 14, 15]);
        } else {
            check_unbound(&machine(&[8]), &config, threads);
        }
    }
    let unpinned = EngineConfig {
        pin_threads: false,
        ..config(2)
    };
    check_unbound(&machine(&[8]), &unpinned, 4);
    let with_quota = Machine {
        n_usable: 5,
        ..machine(&[8])
    };
    check_unbound(&with_quota, &config(2), 2);
}

#[test]
fn threads_that_are_bound_to_no_core_stay_on_the_nodes_of_their_replica() {
    let unpinned = EngineConfig {
        pin_threads: false,
        ..config(4)
    };
    let threads = ReplicaThreads::on(&machine(&[4, 4]), &unpinned);
    let node = "all of its NUMA nodes (CPUs 4-7,12-15)";
    assert_eq!(explained(&threads)[3..], [node, node]);
    assert_eq!(threads.cpus(0), threads.cpus(1));
    let bound = (threads.pins(&unpinned), threads.numa(&unpinned));
    assert_eq!((bound, threads.fewest()), ((false, Numa::Auto), 2));
    let without_nodes = EngineConfig {
        numa: Numa::Off,
        ..unpinned
    };
    check_unbound(&machine(&[4, 4]), &without_nodes, 2);
    let pinned = EngineConfig {
        numa: Numa::Off,
        ..config(3)
    };
    let threads = ReplicaThreads::on(&machine(&[4, 4]), &pinned);
    assert_eq!(threads.cpus(1), [2, 3, 4, 10, 11, 12]);
    assert_eq!(threads.numa(&pinned), Numa::Off);
}

#[test]
fn more_replicas_than_cores_share_all_of_them() {
    check_unbound(&machine(&[2]), &config(4), 1);
    let threads = ReplicaThreads::on(&machine(&[2]), &config(4));
    let text = "all: 4 replicas are more than 2 usable cores";
    assert_eq!(explained(&threads), ["1", text]);
    let with_quota = Machine {
        n_usable: 3,
        ..machine(&[4, 4])
    };
    check_unbound(&with_quota, &config(4), 1);
}

#[test]
fn the_threads_of_a_replica_are_divided_among_its_ranks() {
    let shared = |n_cores: usize, tp_size: usize| {
        let config = EngineConfig {
            tp_size,
            ..config(2)
        };
        ReplicaThreads::on(&machine(&[n_cores]), &config)
    };
    let threads = shared(9, 2);
    assert_eq!(
        explained(&threads),
        [
            "4",
            "4 (CPUs 0-3,9-12), which its ranks share",
            "5 (CPUs 4-8,13-17), which its ranks share"
        ]
    );
    assert_eq!((threads.fewest(), threads.of_this_thread()), (4, 2));
    assert_eq!(threads.per_rank(), "2");
    let threads = shared(11, 2);
    assert_eq!(explained(&threads)[0], "4 to 6");
    assert_eq!(threads.per_rank(), "2 to 3");
    let threads = shared(6, 4);
    assert_eq!((threads.fewest(), threads.of_this_thread()), (4, 1));
    let alone = EngineConfig {
        threads: 7,
        tp_size: 3,
        ..config(1)
    };
    let threads = ReplicaThreads::of(&alone);
    assert_eq!((threads.fewest(), threads.of_this_thread()), (6, 2));
    assert_eq!(threads.per_rank(), "2");
}

#[test]
fn a_system_that_reports_no_cores_places_the_threads() {
    let unknown = Machine {
        nodes: Vec::new(),
        n_usable: 8,
    };
    check_unbound(&unknown, &config(2), 4);
}

#[test]
fn a_single_replica_is_placed_by_its_executor() {
    let config = EngineConfig {
        threads: 3,
        ..config(1)
    };
    let threads = ReplicaThreads::of(&config);
    assert_eq!((threads.fewest(), threads.of_this_thread()), (3, 3));
    assert!(threads.cpus(0).is_empty());
    assert!(threads.pins(&config));
    assert_eq!(threads.numa(&config), Numa::Auto);
}

#[test]
fn cpus_are_listed_as_linux_lists_them() {
    for (cpus, list) in [
        (&[0, 1, 2, 3, 8][..], "0-3,8"),
        (&[5], "5"),
        (&[1, 3], "1,3"),
        (&[], ""),
    ] {
        assert_eq!(cpu_list(cpus), list);
    }
}
