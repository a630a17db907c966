//! Thread affinity: the NUMA node and CPUs of each compute thread.

use serde::{Deserialize, Serialize};

use super::cores::{Node, allowed_cores, allowed_nodes};
use super::nodes::Nodes;
use crate::shard::Rank;

/// Whether threads, weights and KV memory are divided among NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numa {
    /// Among the nodes whose CPUs the process may use, if there are two or more.
    #[default]
    Auto,
    Off,
    /// For tests and benches: simulates this number of nodes, but at most one per thread; the OS places the threads.
    #[serde(skip)]
    Simulated(usize),
    /// The threads of a rank are on one node: consecutive ranks share a node if there are more ranks than nodes.
    #[serde(skip)]
    OfRank(Rank),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    pub nodes: Nodes,
    /// The CPUs that each thread is bound to; empty if the OS places it.
    pub cpus: Vec<Vec<usize>>,
}

impl Seats {
    /// Leaves the placement to the OS; `threads` is the number of threads of each node.
    pub fn anywhere(threads: &[usize]) -> Self {
        let nodes = Nodes::new(threads.iter().copied());
        let cpus = vec![Vec::new(); nodes.n_threads()];
        Self { nodes, cpus }
    }

    /// Places `n_threads` threads (0 means one). `pins` binds each to a core if there are as many threads as usable
    /// cores; the OS places fewer threads better.
    pub fn choose(n_threads: usize, pins: bool, numa: Numa) -> Self {
        let n_threads = n_threads.max(1);
        let grouped = match numa {
            Numa::Auto => Self::on_nodes(n_threads, pins, &allowed_nodes()),
            Numa::Off => None,
            Numa::Simulated(nodes) => {
                let nodes = nodes.clamp(1, n_threads);
                let threads: Vec<usize> = (0..nodes)
                    .map(|node| (node + 1) * n_threads / nodes - node * n_threads / nodes)
                    .collect();
                Some(Self::anywhere(&threads))
            }
            Numa::OfRank(rank) => Some(Self::of_rank(n_threads, rank, &allowed_nodes())),
        };
        grouped.unwrap_or_else(|| Self::on_one_node(n_threads, pins.then(allowed_cores)))
    }

    /// Binds the threads to the rank's node; to none if there are fewer than two nodes.
    fn of_rank(n_threads: usize, rank: Rank, nodes: &[Node]) -> Self {
        let mut seats = Self::anywhere(&[n_threads]);
        if nodes.len() > 1 {
            let node = &nodes[rank.index() * nodes.len() / rank.count()];
            seats.cpus = vec![node.cpus.clone(); n_threads];
        }
        seats
    }

    fn on_one_node(n_threads: usize, cores: Option<Vec<usize>>) -> Self {
        let mut seats = Self::anywhere(&[n_threads]);
        if let Some(cores) = cores.filter(|cores| cores.len() == n_threads) {
            seats.cpus = cores.into_iter().map(|core| vec![core]).collect();
        }
        seats
    }

    /// Divides threads among nodes in proportion to their cores; `None` if all would be on one node.
    fn on_nodes(n_threads: usize, pins: bool, nodes: &[Node]) -> Option<Self> {
        let n_cores: usize = nodes.iter().map(|node| node.cores.len()).sum();
        let (mut cores, mut taken) = (0, 0);
        let mut seats: Vec<(usize, &Node)> = Vec::with_capacity(nodes.len());
        for node in nodes {
            cores += node.cores.len();
            let end = n_threads * cores / n_cores;
            seats.push((end - taken, node));
            taken = end;
        }
        seats.retain(|(threads, _)| *threads > 0);
        if seats.len() < 2 {
            return None;
        }
        let pins = pins && n_threads == n_cores;
        let cpus = seats.iter().flat_map(|(threads, node)| {
            (0..*threads).map(move |thread| {
                if pins {
                    vec![node.cores[thread]]
                } else {
                    node.cpus.clone()
                }
            })
        });
        Some(Self {
            cpus: cpus.collect(),
            nodes: Nodes::new(seats.iter().map(|(threads, _)| *threads)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> [Node; 2] {
        // Eight CPUs on four cores: CPUs 0 to 3 are on different cores, alternating between the nodes.
        [
            Node {
                cpus: vec![0, 2, 4, 6],
                cores: vec![0, 2],
            },
            Node {
                cpus: vec![1, 3, 5, 7],
                cores: vec![1, 3],
            },
        ]
    }

    #[test]
    fn one_thread_per_core_is_bound_to_a_core_of_its_node() {
        let seats = Seats::on_nodes(4, true, &nodes()).expect("both nodes have threads");
        assert_eq!(seats.nodes, Nodes::new([2, 2]));
        assert_eq!(seats.cpus, [[0], [2], [1], [3]]);
    }

    #[test]
    fn threads_not_bound_to_a_core_are_bound_to_their_node() {
        for (threads, pins) in [(2, true), (4, false), (8, true)] {
            let seats = Seats::on_nodes(threads, pins, &nodes()).expect("both nodes have threads");
            assert_eq!(seats.nodes, Nodes::new([threads / 2; 2]));
            let cpus = seats.cpus.iter().enumerate();
            for (thread, cpus) in cpus {
                let node = &nodes()[seats.nodes.of_thread(thread)];
                assert_eq!(*cpus, node.cpus, "thread {thread} of {threads}");
            }
        }
    }

    #[test]
    fn nodes_are_ignored_if_all_threads_are_on_one() {
        assert_eq!(Seats::on_nodes(1, true, &nodes()), None);
        assert_eq!(Seats::on_nodes(4, true, &nodes()[..1]), None);
        assert_eq!(Seats::on_nodes(4, true, &[]), None);
        let seats = Seats::on_one_node(2, Some(vec![4, 6]));
        assert_eq!(seats.nodes, Nodes::new([2]));
        assert_eq!(seats.cpus, [[4], [6]]);
        let fewer = Seats::on_one_node(1, Some(vec![4, 6]));
        assert_eq!(fewer, Seats::anywhere(&[1]));
    }

    #[test]
    fn ranks_are_divided_among_the_nodes() {
        for (count, cpus_of) in [(1, &[0][..]), (2, &[0, 1]), (4, &[0, 0, 1, 1])] {
            for (rank, node) in Rank::all(count).zip(cpus_of) {
                let seats = Seats::of_rank(3, rank, &nodes());
                assert_eq!(seats.nodes, Nodes::new([3]));
                assert_eq!(seats.cpus, vec![nodes()[*node].cpus.clone(); 3], "{rank:?}");
                assert_eq!(
                    Seats::of_rank(3, rank, &nodes()[..1]),
                    Seats::anywhere(&[3])
                );
            }
        }
    }

    #[test]
    fn pretended_nodes_have_a_thread_each_and_bind_none() {
        for (threads, nodes, expected) in [
            (4, 1, vec![4]),
            (4, 2, vec![2, 2]),
            (4, 3, vec![1, 1, 2]),
            (2, 4, vec![1, 1]),
            (0, 0, vec![1]),
        ] {
            let seats = Seats::choose(threads, true, Numa::Simulated(nodes));
            assert_eq!(seats, Seats::anywhere(&expected), "{threads}, {nodes}");
        }
        assert_eq!(Seats::choose(3, false, Numa::Off), Seats::anywhere(&[3]));
    }
}
