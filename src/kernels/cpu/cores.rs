//! Detection of the usable cores and NUMA nodes, and thread affinity.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The node's logical CPUs, lowest first.
    pub cpus: Vec<usize>,
    /// One logical CPU of each physical core.
    pub cores: Vec<usize>,
}

/// A physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its logical CPUs that this process may use, lowest first.
    pub cpus: Vec<usize>,
}

/// One logical CPU of each usable physical core, lowest first; empty if the system does not report them.
pub fn allowed_cores() -> Vec<usize> {
    one_cpu_per_core(allowed_cpus(), siblings)
}

/// The default number of compute threads: one per usable physical core, within the CPU quota of the cgroup.
pub fn default_threads() -> usize {
    let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
    match allowed_cores().len() {
        0 => parallelism,
        cores => cores.min(parallelism),
    }
}

/// The NUMA nodes with CPUs that this process may use; empty if the system does not report them.
pub(super) fn allowed_nodes() -> Vec<Node> {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/has_cpu").unwrap_or_default();
    let cpus_of = |node| {
        let file = format!("/sys/devices/system/node/node{node}/cpulist");
        std::fs::read_to_string(file).unwrap_or_default()
    };
    nodes_of(&allowed_cpus(), &nodes, cpus_of, siblings)
}

/// The usable physical cores of each NUMA node, as those of one node if the system reports no nodes; empty if it
/// reports no CPUs.
pub fn allowed_cores_by_node() -> Vec<Vec<Core>> {
    cores_by_node(allowed_nodes(), allowed_cpus(), siblings)
}

/// Sets the calling thread's affinity, unless `cpus` is empty. A failure only costs speed.
#[cfg(target_os = "linux")]
pub fn bind_this_thread(cpus: &[usize]) {
    use rustix::thread::CpuSet;
    let mut set = CpuSet::new();
    let cpus = cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU);
    cpus.clone().for_each(|cpu| set.set(*cpu));
    if set.count() == 0 {
        return;
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        let cpus: Vec<usize> = cpus.copied().collect();
        tracing::debug!(?cpus, %error, "failed to set the affinity of a compute thread: it may run slower");
    }
}

/// Does nothing: other systems place threads themselves.
#[cfg(not(target_os = "linux"))]
pub fn bind_this_thread(_: &[usize]) {}

/// Runs a closure on some CPUs, or anywhere if there are none, then restores the calling thread's affinity.
pub(super) fn run_on<R>(cpus: &[usize], run: impl FnOnce() -> R) -> R {
    /// The affinity to restore, even after a panic.
    struct SavedAffinity(Vec<usize>);
    impl Drop for SavedAffinity {
        fn drop(&mut self) {
            bind_this_thread(&self.0);
        }
    }
    if cpus.is_empty() {
        return run();
    }
    let _saved = SavedAffinity(allowed_cpus());
    bind_this_thread(cpus);
    run()
}

#[cfg(target_os = "linux")]
fn allowed_cpus() -> Vec<usize> {
    use rustix::thread::CpuSet;
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(_) => Vec::new(),
    }
}

#[cfg(not(target_os = "linux"))]
fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

fn nodes_of(
    allowed: &[usize],
    nodes: &str,
    cpus_of: impl Fn(usize) -> String,
    siblings: impl Fn(usize) -> Option<String> + Copy,
) -> Vec<Node> {
    let nodes = parse_cpu_list(nodes).into_iter().map(|node| {
        let all = parse_cpu_list(&cpus_of(node));
        let cpus: Vec<usize> = allowed
            .iter()
            .copied()
            .filter(|cpu| all.contains(cpu))
            .collect();
        Node {
            cores: one_cpu_per_core(cpus.clone(), siblings),
            cpus,
        }
    });
    nodes.filter(|node| !node.cpus.is_empty()).collect()
}

/// Parses a Linux CPU list, `0-3,8`. Ignores ranges that are invalid or end at `MOST` or later.
fn parse_cpu_list(list: &str) -> Vec<usize> {
    const MOST: usize = 1 << 16;
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (last < MOST).then_some(first..=last)
    });
    ranges.flatten().collect()
}

/// The CPU list of the core that `cpu` belongs to.
fn siblings(cpu: usize) -> Option<String> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(file).ok()
}

fn one_cpu_per_core(allowed: Vec<usize>, siblings: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let cores = by_core(allowed, siblings).into_iter();
    cores.map(|core| core.cpus[0]).collect()
}

/// Groups CPUs by their cores, in the order of the first CPU of each.
fn by_core(allowed: Vec<usize>, siblings: impl Fn(usize) -> Option<String>) -> Vec<Core> {
    let mut cores: Vec<(String, Core)> = Vec::new();
    for cpu in allowed {
        // A CPU without known siblings counts as a core.
        let name = siblings(cpu).unwrap_or_else(|| cpu.to_string());
        let place = cores.iter().position(|(known, _)| *known == name);
        match place {
            Some(place) => cores[place].1.cpus.push(cpu),
            None => cores.push((name, Core { cpus: vec![cpu] })),
        }
    }
    cores.into_iter().map(|(_, core)| core).collect()
}

fn cores_by_node(
    nodes: Vec<Node>,
    allowed: Vec<usize>,
    siblings: impl Fn(usize) -> Option<String> + Copy,
) -> Vec<Vec<Core>> {
    let mut cpus: Vec<Vec<usize>> = nodes.into_iter().map(|node| node.cpus).collect();
    if cpus.is_empty() && !allowed.is_empty() {
        cpus.push(allowed);
    }
    let cpus = cpus.into_iter();
    cpus.map(|cpus| by_core(cpus, siblings)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_core_count_once() {
        let siblings = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        assert_eq!(one_cpu_per_core((0..8).collect(), siblings), [0, 1, 2, 3]);
        assert_eq!(one_cpu_per_core(vec![1, 5, 6], siblings), [1, 6]);
        assert_eq!(one_cpu_per_core(vec![0, 3], |_| None), [0, 3]);
    }

    #[test]
    fn default_threads_are_within_the_available_parallelism() {
        let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=parallelism).contains(&default_threads()));
    }

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpu_list("7"), [7]);
        for nothing in ["", "\n", "x", "3-", "-", "5-4", "0-99999999999"] {
            assert_eq!(parse_cpu_list(nothing), [0; 0], "{nothing:?}");
        }
    }

    #[test]
    fn nodes_have_only_allowed_cpus() {
        let cpus_of = |node| String::from(["0-3,8-11\n", "", "4-7,12-15\n", "16"][node]);
        let siblings = |cpu: usize| Some(format!("{},{}\n", cpu % 8, cpu % 8 + 8));
        let nodes = |allowed: &[usize]| nodes_of(allowed, "0-3\n", cpus_of, siblings);
        let node = |cpus: &[usize], cores: &[usize]| Node {
            cpus: cpus.to_vec(),
            cores: cores.to_vec(),
        };
        let all: Vec<usize> = (0..16).collect();
        assert_eq!(
            nodes(&all),
            [
                node(&[0, 1, 2, 3, 8, 9, 10, 11], &[0, 1, 2, 3]),
                node(&[4, 5, 6, 7, 12, 13, 14, 15], &[4, 5, 6, 7]),
            ]
        );
        assert_eq!(
            nodes(&[3, 8, 11, 16]),
            [node(&[3, 8, 11], &[3, 8]), node(&[16], &[16])]
        );
        assert_eq!(nodes(&[4, 12]), [node(&[4, 12], &[4])]);
        assert_eq!(nodes_of(&all, "", cpus_of, siblings), []);
    }

    #[test]
    fn cores_have_only_allowed_cpus() {
        let siblings = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        let node = |cpus: &[usize]| Node {
            cpus: cpus.to_vec(),
            cores: Vec::new(),
        };
        let core = |cpus: &[usize]| Core {
            cpus: cpus.to_vec(),
        };
        let nodes = vec![node(&[0, 1, 4]), node(&[6])];
        assert_eq!(
            cores_by_node(nodes, vec![0, 1, 4, 6], siblings),
            [vec![core(&[0, 4]), core(&[1])], vec![core(&[6])]]
        );
        let without_nodes = cores_by_node(Vec::new(), vec![2, 3, 6], siblings);
        assert_eq!(without_nodes, [vec![core(&[2, 6]), core(&[3])]]);
        let unknown = cores_by_node(Vec::new(), Vec::new(), siblings);
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn binding_affects_only_the_calling_thread() {
        let before = allowed_cpus();
        let cpu = *before.last().expect("a thread runs somewhere");
        let bound = std::thread::spawn(move || {
            bind_this_thread(&[cpu]);
            let alone = allowed_cpus();
            bind_this_thread(&[]);
            (alone, allowed_cpus())
        });
        assert_eq!(
            bound.join().expect("the thread must not panic"),
            (vec![cpu], vec![cpu])
        );
        assert_eq!(allowed_cpus(), before);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn run_on_restores_the_affinity() {
        let before = allowed_cpus();
        let cpu = before[0];
        assert_eq!(run_on(&[cpu], allowed_cpus), [cpu]);
        assert_eq!(allowed_cpus(), before);
        assert_eq!(run_on(&[], allowed_cpus), before);
        let panicked = std::panic::catch_unwind(|| run_on(&[cpu], || panic!("planted")));
        assert!(panicked.is_err());
        assert_eq!(allowed_cpus(), before);
    }
}
