//! Which cores this process may compute on.

/// Returns one logical CPU of each physical core that this process may use, lowest first; nothing where the system
/// does not tell.
pub fn allowed_cores() -> Vec<usize> {
    one_cpu_a_core(allowed_cpus(), siblings)
}

/// Returns how many threads compute by default: one a physical core, within what the process may use and the share of
/// CPU time that its control group has.
pub fn default_threads() -> usize {
    let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
    match allowed_cores().len() {
        0 => parallelism,
        cores => cores.min(parallelism),
    }
}

/// Binds the calling thread to a CPU. A refusal costs speed only.
#[cfg(target_os = "linux")]
pub(super) fn pin_this_thread(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(cpu, %error, "a compute thread is not pinned");
    }
}

/// Other systems place threads themselves.
#[cfg(not(target_os = "linux"))]
pub(super) fn pin_this_thread(_: usize) {}

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

/// The logical CPUs of a CPU's core, as the system writes them.
fn siblings(cpu: usize) -> Option<String> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(file).ok()
}

fn one_cpu_a_core(allowed: Vec<usize>, siblings: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let mut seen = Vec::with_capacity(allowed.len());
    let mut cores = allowed;
    cores.retain(|&cpu| {
        // A CPU of which nothing is known counts as a core.
        let core = siblings(cpu).unwrap_or_else(|| cpu.to_string());
        let is_new = !seen.contains(&core);
        seen.push(core);
        is_new
    });
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_core_count_once() {
        let siblings = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        assert_eq!(one_cpu_a_core((0..8).collect(), siblings), [0, 1, 2, 3]);
        assert_eq!(one_cpu_a_core(vec![1, 5, 6], siblings), [1, 6]);
        assert_eq!(one_cpu_a_core(vec![0, 3], |_| None), [0, 3]);
    }

    #[test]
    fn default_is_at_least_one_and_at_most_what_the_system_grants() {
        let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=parallelism).contains(&default_threads()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pinned_thread_stays_on_its_cpu_and_others_do_not() {
        let before = allowed_cpus();
        let cpu = *before.last().expect("a thread runs somewhere");
        let pinned = std::thread::spawn(move || {
            pin_this_thread(cpu);
            allowed_cpus()
        });
        assert_eq!(pinned.join().expect("no panic"), [cpu]);
        assert_eq!(allowed_cpus(), before);
    }
}
