//! The compute threads of replicas: how many each has, how its ranks divide them, and the CPUs that they are bound to.
//!
//! The thread of a replica's executor is bound to the replica's CPUs before the executor is made on it, as `taskset`
//! binds a process. So the executor places its threads and its memory there, by the rules for one engine.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use souffleur_actors::unit::BindThread;
use souffleur_base::ids::UnitId;
use souffleur_config::EngineConfig;
use souffleur_kernels::cpu::{
    Core, Numa, allowed_cores, allowed_cores_by_node, bind_this_thread, default_threads,
    divide_cores,
};

/// The number of compute threads of each replica, of all its ranks together; the smallest if the replicas have
/// different numbers of cores.
pub fn compute_threads(config: &EngineConfig) -> usize {
    ReplicaThreads::of(config).fewest()
}

/// The compute threads of all replicas on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaThreads {
    n_replicas: usize,
    n_ranks: usize,
    /// Of the replica with the fewest, before its ranks divide them.
    fewest: usize,
    placement: Placement,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Placement {
    /// The executor of a single replica places its threads.
    Single,
    /// Each replica has its own cores, and a thread bound to each of them; several ranks share the cores.
    Cores(Vec<Vec<Core>>),
    /// The threads of each replica are bound to these CPUs: all those of the NUMA nodes with its share of the cores.
    Nodes(Vec<Vec<usize>>),
    /// The OS places the threads.
    Anywhere,
    /// The OS places the threads: there are only this many usable cores, fewer than replicas.
    TooFewCores(usize),
}

/// The CPUs of the machine, as far as this process may use them.
struct Machine {
    /// The cores of each NUMA node; empty if the system does not report them.
    nodes: Vec<Vec<Core>>,
    /// The number of cores within the CPU quota of the cgroup.
    n_usable: usize,
}

impl ReplicaThreads {
    pub fn of(config: &EngineConfig) -> Self {
        if config.dp_size > 1 {
            let machine = Machine {
                nodes: allowed_cores_by_node(),
                n_usable: default_threads(),
            };
            return Self::on(&machine, config);
        }
        Self {
            n_replicas: 1,
            n_ranks: config.tp_size.max(1),
            fewest: match config.threads {
                0 => default_threads(),
                threads => threads,
            },
            placement: Placement::Single,
        }
    }

    fn on(machine: &Machine, config: &EngineConfig) -> Self {
        let n_replicas = config.dp_size;
        let placement = place(machine, config);
        let fewest = match (&placement, config.threads) {
            (Placement::Cores(sets), _) => sets.iter().map(Vec::len).min().unwrap_or(1),
            (_, 0) => (machine.n_usable / n_replicas).max(1),
            (_, threads) => threads,
        };
        Self {
            n_replicas,
            n_ranks: config.tp_size.max(1),
            fewest,
            placement,
        }
    }

    /// The number of compute threads of the replica with the fewest, of all its ranks together.
    pub fn fewest(&self) -> usize {
        self.of_ranks(self.fewest)
    }

    /// The number of compute threads of each rank, as text: a range if the replicas differ.
    pub fn per_rank(&self) -> String {
        range(self.of_rank(self.fewest), self.of_rank(self.most()))
    }

    /// The number of compute threads of each rank of a replica that has `threads` to divide.
    fn of_rank(&self, threads: usize) -> usize {
        (threads / self.n_ranks).max(1)
    }

    /// As [`Self::of_rank`], of all ranks of the replica together.
    fn of_ranks(&self, threads: usize) -> usize {
        self.of_rank(threads) * self.n_ranks
    }

    /// As `fewest`, of the replica with the most.
    fn most(&self) -> usize {
        match &self.placement {
            Placement::Cores(sets) => sets.iter().map(Vec::len).max().unwrap_or(1),
            _ => self.fewest,
        }
    }

    /// The CPUs that the threads of a replica are bound to, lowest first; empty if the OS or a single replica's
    /// executor places them.
    pub fn cpus(&self, replica: usize) -> Vec<usize> {
        match &self.placement {
            Placement::Cores(sets) => cpus_of(&sets[replica]),
            Placement::Nodes(cpus) => cpus[replica].clone(),
            Placement::Single | Placement::Anywhere | Placement::TooFewCores(_) => Vec::new(),
        }
    }

    /// Lines for `souffleur plan`, if there are several replicas.
    pub fn explain(&self) -> Vec<String> {
        let line = |label: &str, text: &str| format!("{label:<21} {text}");
        let of_replica = |(replica, text): (usize, String)| {
            let label = format!("cores of replica {replica}");
            line(&label, &text)
        };
        let counts = range(self.of_ranks(self.fewest), self.of_ranks(self.most()));
        let mut lines = vec![line("threads per replica", &counts)];
        match &self.placement {
            Placement::Single => {}
            Placement::Cores(sets) => {
                let users = match self.n_ranks {
                    1 => "a thread on each",
                    _ => "which its ranks share",
                };
                let texts = sets.iter().map(|set| {
                    let (n_cores, cpus) = (set.len(), cpu_list(&cpus_of(set)));
                    format!("{n_cores} (CPUs {cpus}), {users}")
                });
                lines.extend(texts.enumerate().map(of_replica));
            }
            Placement::Nodes(all) => {
                let texts = all
                    .iter()
                    .map(|cpus| format!("all of its NUMA nodes (CPUs {})", cpu_list(cpus)));
                lines.extend(texts.enumerate().map(of_replica));
            }
            Placement::Anywhere => lines.push(line("cores per replica", "all")),
            Placement::TooFewCores(cores) => {
                let n_replicas = self.n_replicas;
                let text = format!("all: {n_replicas} replicas are more than {cores} usable cores");
                lines.push(line("cores per replica", &text));
            }
        }
        lines
    }

    /// Logs a warning if threads are not bound to cores although the configuration asks for it.
    pub(crate) fn warn(&self, config: &EngineConfig) {
        if let Placement::TooFewCores(cores) = self.placement
            && config.pin_threads
        {
            tracing::warn!(
                replicas = self.n_replicas,
                cores,
                "more replicas than usable cores: threads are bound to no core"
            );
        }
    }

    /// Whether an executor binds each of its threads to a core, if it has as many threads as cores.
    pub(crate) fn pins(&self, config: &EngineConfig) -> bool {
        let is_divided = matches!(self.placement, Placement::Single | Placement::Cores(_));
        config.pin_threads && is_divided
    }

    /// How an executor divides its work among the NUMA nodes of the CPUs that its thread is bound to.
    pub(crate) fn numa(&self, config: &EngineConfig) -> Numa {
        match self.placement {
            Placement::Single | Placement::Cores(_) | Placement::Nodes(_) => config.numa,
            Placement::Anywhere | Placement::TooFewCores(_) => Numa::Off,
        }
    }

    /// The number of compute threads of each rank of the replica whose executor's thread calls this.
    pub(crate) fn of_this_thread(&self) -> usize {
        self.of_rank(match self.placement {
            // A system that refuses to bind the thread must not make a replica use all cores.
            Placement::Cores(_) => allowed_cores().len().clamp(self.fewest, self.most()),
            _ => self.fewest,
        })
    }

    /// Binds the thread of a unit's executor to the CPUs of the unit, the same after every restart.
    pub(crate) fn binder(self) -> Arc<BindThread> {
        Arc::new(move |unit: UnitId| bind_this_thread(&self.cpus(unit.index())))
    }
}

fn place(machine: &Machine, config: &EngineConfig) -> Placement {
    if machine.n_usable < config.dp_size {
        return Placement::TooFewCores(machine.n_usable);
    }
    let nodes = if config.numa == Numa::Auto {
        machine.nodes.clone()
    } else {
        vec![machine.nodes.concat()]
    };
    let Some(sets) = divide_cores(&nodes, config.dp_size) else {
        return Placement::Anywhere;
    };
    let n_cores: usize = sets.iter().map(Vec::len).sum();
    // As for one engine: the OS places fewer threads better, and more only wait for each other.
    let has_thread_per_core = match config.threads {
        0 => machine.n_usable == n_cores,
        threads => sets.iter().all(|set| set.len() == threads),
    };
    if config.pin_threads && has_thread_per_core {
        return Placement::Cores(sets);
    }
    if nodes.len() > 1 {
        let cpus = sets.iter().map(|set| cpus_of_nodes(set, &nodes));
        return Placement::Nodes(cpus.collect());
    }
    Placement::Anywhere
}

fn range(fewest: usize, most: usize) -> String {
    if fewest == most {
        return fewest.to_string();
    }
    format!("{fewest} to {most}")
}

fn cpus_of(cores: &[Core]) -> Vec<usize> {
    let cpus = cores.iter().flat_map(|core| core.cpus.iter().copied());
    let mut cpus: Vec<usize> = cpus.collect();
    cpus.sort_unstable();
    cpus
}

/// All CPUs of the nodes that have a core of the set.
fn cpus_of_nodes(set: &[Core], nodes: &[Vec<Core>]) -> Vec<usize> {
    let has_core = |node: &&Vec<Core>| set.iter().any(|core| node.contains(core));
    let cores: Vec<Core> = nodes.iter().filter(has_core).flatten().cloned().collect();
    cpus_of(&cores)
}

/// CPUs as Linux lists them, `0-3,8`.
fn cpu_list(cpus: &[usize]) -> String {
    let ranges = cpus.chunk_by(|cpu, next| cpu + 1 == *next);
    let texts = ranges.map(|range| match range {
        [first, .., last] => format!("{first}-{last}"),
        [cpu] => cpu.to_string(),
        [] => String::new(),
    });
    texts.collect::<Vec<String>>().join(",")
}
