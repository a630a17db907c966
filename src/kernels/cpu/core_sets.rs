//! Division of the machine's cores among replicas.

use super::cores::Core;

/// A replica gets at most this many times the cores of another.
const LARGEST_RATIO: usize = 2;

/// Divides cores, which are listed by NUMA node, into a set of whole cores for each replica; `None` if there are fewer
/// cores than replicas.
///
/// If the number of replicas is a multiple of that of nodes, each has cores of one node; if it is a divisor, each has
/// whole nodes. For other numbers, and where nodes of different sizes would make the sets too uneven, all cores are cut
/// into sets that differ by at most one core, in the order of the nodes: some sets then have cores of several nodes.
pub fn divide_cores(nodes: &[Vec<Core>], n_replicas: usize) -> Option<Vec<Vec<Core>>> {
    let n_cores: usize = nodes.iter().map(Vec::len).sum();
    if n_replicas == 0 || n_cores < n_replicas {
        return None;
    }
    let sets = by_node(nodes, n_replicas).filter(|sets| are_even(sets));
    Some(sets.unwrap_or_else(|| cut(&nodes.concat(), n_replicas)))
}

fn by_node(nodes: &[Vec<Core>], n_replicas: usize) -> Option<Vec<Vec<Core>>> {
    if n_replicas.is_multiple_of(nodes.len()) {
        let per_node = n_replicas / nodes.len();
        let sets = nodes.iter().flat_map(|cores| cut(cores, per_node));
        return Some(sets.collect());
    }
    if !nodes.len().is_multiple_of(n_replicas) {
        return None;
    }
    let groups = nodes.chunks(nodes.len() / n_replicas);
    Some(groups.map(|group| group.concat()).collect())
}

/// Whether each set has a core, and none has too many more than another.
fn are_even(sets: &[Vec<Core>]) -> bool {
    let fewest = sets.iter().map(Vec::len).min().unwrap_or(0);
    fewest > 0 && sets.iter().all(|set| set.len() <= LARGEST_RATIO * fewest)
}

/// Cuts cores into sets of consecutive cores.
fn cut(cores: &[Core], n_sets: usize) -> Vec<Vec<Core>> {
    let end = |set: usize| set * cores.len() / n_sets;
    (0..n_sets)
        .map(|set| cores[end(set)..end(set + 1)].to_vec())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// The distance between the two logical CPUs of a core.
    const SIBLING: usize = 100;

    /// A node whose cores have one logical CPU each.
    fn plain(cores: Range<usize>) -> Vec<Core> {
        cores.map(|cpu| Core { cpus: vec![cpu] }).collect()
    }

    /// A node whose cores have two logical CPUs each.
    fn smt(cores: Range<usize>) -> Vec<Core> {
        let core = |cpu: usize| Core {
            cpus: vec![cpu, cpu + SIBLING],
        };
        cores.map(core).collect()
    }

    /// The first CPU of each core of each set.
    fn divided(nodes: &[Vec<Core>], n_replicas: usize) -> Vec<Vec<usize>> {
        let sets = divide_cores(nodes, n_replicas).expect("there are enough cores");
        let first = |core: &Core| core.cpus[0];
        let sets = sets.iter().map(|set| set.iter().map(first).collect());
        sets.collect()
    }

    fn ranges(ranges: &[Range<usize>]) -> Vec<Vec<usize>> {
        ranges.iter().cloned().map(Iterator::collect).collect()
    }

    #[test]
    fn two_cores_serve_at_most_two_replicas() {
        let nodes = [plain(0..2)];
        assert_eq!(divide_cores(&nodes, 1), Some(nodes.to_vec()));
        assert_eq!(divided(&nodes, 2), [[0], [1]]);
        assert_eq!(divide_cores(&nodes, 3), None);
        assert_eq!(divide_cores(&nodes, 0), None);
        assert_eq!(divide_cores(&[], 1), None);
    }

    #[test]
    fn replicas_have_cores_of_one_node_with_both_siblings() {
        let nodes = [smt(0..8), smt(8..16)];
        assert_eq!(divide_cores(&nodes, 1), Some(vec![smt(0..16)]));
        assert_eq!(divide_cores(&nodes, 2), Some(nodes.to_vec()));
        assert_eq!(divided(&nodes, 4), ranges(&[0..4, 4..8, 8..12, 12..16]));
        assert_eq!(
            divided(&nodes, 6),
            ranges(&[0..2, 2..5, 5..8, 8..10, 10..13, 13..16])
        );
        let alone = divide_cores(&nodes, 16).expect("there are enough cores");
        assert_eq!(alone[9], smt(9..10));
    }

    #[test]
    fn replicas_have_whole_nodes_if_there_are_fewer_of_them() {
        let nodes = [plain(0..3), plain(3..6), plain(6..9), plain(9..12)];
        assert_eq!(divided(&nodes, 2), ranges(&[0..6, 6..12]));
        assert_eq!(divide_cores(&nodes, 1), Some(vec![plain(0..12)]));
    }

    #[test]
    fn other_numbers_of_replicas_differ_by_one_core() {
        assert_eq!(divided(&[plain(0..8)], 3), ranges(&[0..2, 2..5, 5..8]));
        let nodes = [smt(0..8), smt(8..16)];
        assert_eq!(divided(&nodes, 3), ranges(&[0..5, 5..10, 10..16]));
    }

    #[test]
    fn uneven_nodes_are_kept_whole_unless_a_replica_would_get_more_than_twice_the_cores() {
        let nodes = [plain(0..8), plain(8..14)];
        assert_eq!(divided(&nodes, 2), ranges(&[0..8, 8..14]));
        let nodes = [plain(0..8), plain(8..12)];
        assert_eq!(divided(&nodes, 2), ranges(&[0..8, 8..12]));
        let nodes = [plain(0..8), plain(8..11)];
        assert_eq!(divided(&nodes, 2), ranges(&[0..5, 5..11]));
        // The smaller node has fewer cores than its replicas.
        let nodes = [plain(0..12), plain(12..13)];
        assert_eq!(divided(&nodes, 4), ranges(&[0..3, 3..6, 6..9, 9..13]));
    }

    #[test]
    fn every_core_belongs_to_one_replica() {
        for sizes in [&[1][..], &[7], &[4, 4], &[5, 2], &[3, 3, 3, 3], &[1, 9, 2]] {
            let mut n_cores = 0;
            let nodes = sizes.iter().map(|&size| {
                n_cores += size;
                smt(n_cores - size..n_cores)
            });
            let nodes: Vec<Vec<Core>> = nodes.collect();
            for n_replicas in 1..=n_cores {
                let sets = divide_cores(&nodes, n_replicas).expect("there are enough cores");
                assert_eq!(sets.len(), n_replicas, "{sizes:?}");
                assert!(!sets.contains(&Vec::new()), "{sizes:?}: {sets:?}");
                assert_eq!(sets.concat(), smt(0..n_cores), "{sizes:?}, {n_replicas}");
            }
        }
    }
}
