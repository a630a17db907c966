//! A naive model of the queue's order, which checks the candidates of every plan in the scheduler's tests.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::plan::PlanStep;
use souffleur_state::plan::probe::ProbeKey;
use souffleur_state::scheduler::policy::PriorityOrder;
use souffleur_state::step::{RowWork, StepPlan};

use crate::scheduler_requests::RequestView;
use crate::scheduler_world::World;

/// Policies that probe the cache, and whether they fall back to arrival order when more than 128 wait.
const PROBING: [(&str, bool); 4] = [
    ("lpm", true),
    ("hrrn", true),
    ("dfs-weight", false),
    ("shortest-prefill-first", false),
];
const MAX_PROBED: usize = 128;
/// Candidates that a plan considers.
const MAX_CANDIDATES: usize = 256;

/// The facts that the order of a queue depends on, gathered while a world runs.
#[derive(Default)]
pub struct OrderCheck {
    /// The number of prompt tokens prefilled so far, and that number at the arrival of each request.
    prefilled: u64,
    arrivals: Vec<u64>,
    /// Requests that were admitted once: if they wait, they were retracted or preempted.
    started: HashSet<usize>,
    /// The probed requests, in the order of the probe, with the cached tokens of each.
    probed: Option<Vec<(usize, usize)>>,
    /// The policy that requested the probe; a change of policy takes effect at the next plan.
    probing_policy: Option<&'static str>,
    /// The plan repeats the previous one and keeps its order.
    pub repeats: bool,
    /// The candidates of the last plan.
    last: Vec<usize>,
    /// Plans whose queue had at least two requests.
    pub checked: usize,
    /// Plans with candidates.
    n_plans: usize,
    touched: Vec<(usize, Vec<usize>)>,
}

impl OrderCheck {
    pub fn touched(&self) -> &[(usize, Vec<usize>)] {
        &self.touched
    }

    pub fn note_arrival(&mut self) {
        self.arrivals.push(self.prefilled);
    }

    pub fn note_start(&mut self, number: usize) {
        self.started.insert(number);
    }

    pub fn note_step(&mut self, step: &StepPlan) {
        for row in &step.rows {
            if let RowWork::Prefill { positions } = &row.work {
                self.prefilled += positions.len() as u64;
            }
        }
    }

    pub fn note_probing_policy(&mut self, policy: &'static str) {
        self.probing_policy = Some(policy);
    }

    /// Matching adds and removes nothing, so a later peek finds the same match.
    pub fn note_probe(&mut self, cache: &RadixTree, numbers: &[usize], keys: &[ProbeKey]) {
        let policy = self.probing_policy.expect("no policy requested the probe");
        let (_, falls_back) = PROBING
            .iter()
            .find(|(name, _)| *name == policy)
            .expect("the policy does not probe the cache");
        assert!(keys.len() <= MAX_PROBED || !falls_back, "{policy}");
        let matched = keys
            .iter()
            .map(|key| cache.peek(&key.namespace, &key.tokens));
        self.probed = Some(numbers.iter().copied().zip(matched).collect());
    }

    /// Checks the plan's candidates: the waiting requests, retracted ones first, the others in the policy's order.
    pub fn check(&mut self, world: &World, plan: &PlanStep) {
        let (probed, probing_policy) = (self.probed.take(), self.probing_policy.take());
        let Some(admit) = &plan.admit else { return };
        self.n_plans += 1;
        let touched: Vec<usize> = plan.touch.iter().map(|k| world.number_of(k.seq)).collect();
        if !touched.is_empty() {
            self.touched.push((self.n_plans, touched));
        }
        let new_candidates = admit.candidates.iter().filter(|c| c.continues_at.is_none());
        let numbers: Vec<usize> = new_candidates.map(|c| world.number_of(c.seq)).collect();
        let last = std::mem::replace(&mut self.last, numbers.clone());
        let is_retracted = |number: &usize| self.started.contains(number);
        if world.setup.rules.priority.is_some() {
            check_priorities(world, &numbers);
            if self.repeats {
                assert_eq!(common(&numbers, &last), common(&last, &numbers));
                return;
            }
            let in_probe = probed.iter().flatten().map(|(number, _)| number);
            if numbers.iter().chain(in_probe).any(is_retracted) {
                // The model cannot order preempted requests among those that never ran.
                return;
            }
        }
        assert!(!self.repeats, "only a preemption plans an admission again");
        let n_retracted = numbers.iter().take_while(|n| is_retracted(n)).count();
        let (retracted, waiting) = numbers.split_at(n_retracted);
        assert!(retracted.is_sorted(), "{numbers:?}");
        assert!(!waiting.iter().any(is_retracted), "{numbers:?}");
        if waiting.is_empty() || !world.is_full_check() {
            return;
        }
        let waits = |number: &usize| {
            let view = &world.views[*number];
            view.end.is_none() && !view.flag.is_raised() && !is_retracted(number)
        };
        let queue: Vec<usize> = (0..world.views.len()).filter(waits).collect();
        let policy = probing_policy.unwrap_or_else(|| world.states.scheduler.policy_name());
        if probed.is_none() {
            check_unprobed(policy, queue.len());
        }
        self.checked += usize::from(queue.len() > 1);
        let in_probe: Vec<usize> = probed.iter().flatten().map(|(number, _)| *number).collect();
        let place = |number: &usize| {
            (
                priority_key(world.setup.priority_order(), &world.views[*number]),
                *number,
            )
        };
        assert!(in_probe.is_sorted_by_key(place), "{in_probe:?}");
        let model = Model {
            views: &world.views,
            waited: |number: usize| self.prefilled - self.arrivals[number],
            page_size: world.setup.page_size as usize,
            probed: probed.into_iter().flatten().collect(),
            in_probe,
        };
        let mut expected = model.order(policy, queue);
        expected.sort_by_key(|n| priority_key(world.setup.priority_order(), &world.views[*n]));
        if policy == "random" {
            let is_all = sorted(waiting) == sorted(&expected);
            assert!(numbers.len() == MAX_CANDIDATES || is_all);
            check_priorities(world, waiting);
            return;
        }
        let n_considered = expected.len().min(MAX_CANDIDATES - n_retracted);
        assert_eq!(waiting, &expected[..n_considered], "{policy}");
    }
}

/// The items of `a` that are in `b`, in the order of `a`.
fn common(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().copied().filter(|n| b.contains(n)).collect()
}

fn sorted(numbers: &[usize]) -> Vec<usize> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Checks that the requests are in the order of their priorities.
fn check_priorities(world: &World, numbers: &[usize]) {
    let rank = |number: &usize| priority_key(world.setup.priority_order(), &world.views[*number]);
    assert!(numbers.is_sorted_by_key(rank), "{numbers:?}");
}

/// Checks that a policy that probes the cache had a reason not to: fewer than two requests wait, or too many.
fn check_unprobed(policy: &str, n: usize) {
    if let Some((_, falls_back)) = PROBING.iter().find(|(name, _)| *name == policy) {
        assert!(
            n < 2 || (n > MAX_PROBED && *falls_back),
            "{policy} did not probe the cache"
        );
    }
}

/// The sort key of a priority: smaller comes first, and requests without a priority come last.
pub fn priority_key(order: PriorityOrder, view: &RequestView) -> (bool, i128) {
    let priority = view.ask.priority;
    match order {
        PriorityOrder::Ignored => (false, 0),
        PriorityOrder::LargerFirst => (priority.is_none(), -i128::from(priority.unwrap_or(0))),
        PriorityOrder::SmallerFirst => (priority.is_none(), i128::from(priority.unwrap_or(0))),
    }
}

struct Model<'a, W> {
    views: &'a [RequestView],
    waited: W,
    page_size: usize,
    /// The number of cached tokens of each probed request.
    probed: HashMap<usize, usize>,
    /// The probed requests, in the order of the probe.
    in_probe: Vec<usize>,
}

impl<W: Fn(usize) -> u64> Model<'_, W> {
    /// `queue` is in order of arrival.
    fn order(&self, policy: &str, queue: Vec<usize>) -> Vec<usize> {
        if self.probed.is_empty() && PROBING.iter().any(|(name, _)| *name == policy) {
            return queue;
        }
        let mut order = queue;
        match policy {
            "fcfs" | "random" => return order,
            "lof" => {
                order.sort_by_key(|n| -(self.views[*n].ask.max_new_tokens as i64));
                return order;
            }
            _ => {}
        }
        // Requests that arrived after the probe come last.
        let (mut ordered, late): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|n| self.probed.contains_key(n));
        let deprioritised = self.deprioritised();
        match policy {
            "lpm" => ordered.sort_by_key(|n| {
                if deprioritised.contains(n) {
                    i64::MAX
                } else {
                    -(self.matched(*n) as i64)
                }
            }),
            "shortest-prefill-first" => ordered.sort_by_key(|n| {
                let work = self.prompt(*n).len() - self.matched(*n);
                (deprioritised.contains(n), work.max(1))
            }),
            "hrrn" => ordered.sort_by(|a, b| {
                let key = |n: usize| self.response_ratio_key(n, deprioritised.contains(&n));
                key(*a).total_cmp(&key(*b))
            }),
            "dfs-weight" => {
                let all = ordered.clone();
                ordered.sort_by(|a, b| self.depth_first(&all, *a, *b));
            }
            other => panic!("the model has no policy {other}"),
        }
        ordered.extend(late);
        ordered
    }

    /// The tokens of a request's first prefill: its prompt and its opening.
    fn prompt(&self, number: usize) -> Vec<u32> {
        let ask = &self.views[number].ask;
        let tokens = ask.prompt.iter().chain(ask.opening());
        tokens.copied().collect()
    }

    /// How many tokens an admission may take from the cache.
    fn matched(&self, number: usize) -> usize {
        let ask = &self.views[number].ask;
        let last = self.prompt(number).len() - 1;
        let start = ask.logprob_start.map(|start| start as usize);
        let limit = start.filter(|start| *start < last).unwrap_or(last);
        self.probed[&number].min(limit)
    }

    fn shared(&self, a: usize, b: usize) -> usize {
        let (one, other) = (&self.views[a].ask, &self.views[b].ask);
        if one.salt != other.salt || one.bypasses_cache || other.bypasses_cache {
            return 0;
        }
        let pairs = self.prompt(a).into_iter().zip(self.prompt(b));
        pairs.take_while(|(x, y)| x == y).count()
    }

    /// Requests with little in the cache, in queue order, that share 32 tokens with an earlier one that is not
    /// deprioritised itself.
    fn deprioritised(&self) -> HashSet<usize> {
        let (mut kept, mut deprioritised) = (Vec::new(), HashSet::new());
        for &number in self.in_probe.iter().filter(|n| self.probed[n] <= 32) {
            if kept.iter().any(|other| self.shared(number, *other) >= 32) {
                deprioritised.insert(number);
            } else {
                kept.push(number);
            }
        }
        deprioritised
    }

    fn response_ratio_key(&self, number: usize, is_deprioritised: bool) -> f64 {
        let prompt_tokens = self.views[number].ask.prompt.len();
        let uncached = prompt_tokens.saturating_sub(self.matched(number));
        match (is_deprioritised, uncached) {
            (true, _) => f64::INFINITY,
            (false, 0) => f64::NEG_INFINITY,
            // Not negative zero, which sorts before zero.
            (false, _) => 0.0 - (self.waited)(number) as f64 / uncached as f64,
        }
    }

    /// At the node where the cached prefixes of two requests diverge, the branch with more requests comes first,
    /// then the one whose first request came first. A request that ends at a node comes after those below it.
    fn depth_first(&self, all: &[usize], a: usize, b: usize) -> Ordering {
        let whole_pages = |tokens: usize| tokens - tokens % self.page_size;
        let common = |x: usize, y: usize| {
            let cached = self.probed[&x].min(self.probed[&y]);
            whole_pages(self.shared(x, y).min(cached))
        };
        let parts_at = common(a, b);
        let ends = |n: usize| self.probed[&n] == parts_at;
        match (ends(a), ends(b)) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => {}
        }
        let branch = |n: usize| {
            let in_branch = all.iter().filter(|other| common(n, **other) > parts_at);
            let in_branch: Vec<usize> = in_branch.copied().collect();
            (std::cmp::Reverse(in_branch.len()), in_branch[0])
        };
        branch(a).cmp(&branch(b))
    }
}
