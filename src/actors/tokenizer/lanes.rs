//! Schedules the encoding of long prompts on other threads, by weighted fair queueing.
//!
//! Encoding cannot be interrupted. So each lane, with one thread, encodes prompts of similar size, and a short prompt
//! never waits for a long one. Within a lane, the next turn is the one that would end first if all calls shared the
//! thread equally. So a small call overtakes a large one that came earlier, but cannot delay it beyond its equal share.

use std::collections::VecDeque;

use crate::call::OutputForm;
use souffleur_request::{CancelFlag, Prompt};

/// Largest weight of a prompt in each lane: encoding takes some ten milliseconds, half a second, or any time.
const LANES: [usize; 3] = [32 << 10, 512 << 10, usize::MAX];
/// The lanes of prompts whose output follows a grammar: prompts without one never wait for a compilation, and a slow
/// grammar leaves two lanes to the others.
const GRAMMAR_LANES: std::ops::Range<usize> = LANES.len()..LANES.len() + 3;
const N_LANES: usize = GRAMMAR_LANES.end;
/// Short prompts of a call share a turn up to this weight: a turn itself costs some ten microseconds.
const TURN_BYTES: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CallId(pub(super) u64);

#[derive(Clone)]
pub(super) struct Job {
    /// Index of the prompt in its call.
    pub(super) index: usize,
    pub(super) prompt: Prompt,
    pub(super) form: OutputForm,
    pub(super) weight: usize,
    /// The cancel flags of the requests with this prompt.
    pub(super) cancels: Vec<CancelFlag>,
}

pub(super) struct Turn {
    pub(super) lane: usize,
    pub(super) call: CallId,
    pub(super) jobs: Vec<Job>,
}

pub(super) struct Lanes([Lane; N_LANES]);

#[derive(Default)]
struct Lane {
    flows: Vec<Flow>,
    /// The turn that the lane's thread has.
    running: Option<(CallId, Vec<Job>)>,
    /// Virtual time: the weight that each waiting call would have been given by now if all shared the thread.
    virtual_time: u64,
}

struct Flow {
    call: CallId,
    jobs: VecDeque<Job>,
    /// Virtual time at which the call's next turn would begin.
    start: u64,
}

impl Job {
    /// True if all requests with this prompt are cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancels.iter().all(CancelFlag::is_raised)
    }

    /// How many requests wait for the job's grammar.
    pub(super) fn n_grammars(&self) -> usize {
        if self.form.is_constrained() {
            self.cancels.len()
        } else {
            0
        }
    }
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Lane::default()))
    }

    pub(super) fn add(&mut self, call: CallId, job: Job) {
        let fits = |longest: &usize| job.weight <= *longest;
        let lane = if job.form.is_constrained() {
            self.least_busy(GRAMMAR_LANES)
        } else {
            LANES.iter().position(fits).unwrap_or(LANES.len() - 1)
        };
        self.0[lane].add(call, job);
    }

    /// Of these lanes, the one with the fewest running and waiting jobs.
    fn least_busy(&self, lanes: std::ops::Range<usize>) -> usize {
        let jobs = |lane: &Lane| {
            let waiting: usize = lane.flows.iter().map(|flow| flow.jobs.len()).sum();
            waiting + usize::from(lane.running.is_some())
        };
        let first = lanes.start;
        lanes
            .min_by_key(|lane| jobs(&self.0[*lane]))
            .unwrap_or(first)
    }

    /// A turn of a lane whose thread is free. The lane is busy from now on.
    pub(super) fn next(&mut self) -> Option<Turn> {
        let mut lanes = self.0.iter_mut().enumerate();
        lanes.find_map(|(index, lane)| {
            let (call, jobs) = lane.next()?;
            Some(Turn {
                lane: index,
                call,
                jobs,
            })
        })
    }

    pub(super) fn finished(&mut self, lane: usize) {
        self.0[lane].running = None;
    }

    /// Queues again the turns whose results will not arrive.
    pub(super) fn repeat_running(&mut self) {
        for lane in &mut self.0 {
            if let Some((call, jobs)) = lane.running.take() {
                let jobs = jobs.into();
                let start = lane.virtual_time;
                lane.flows.insert(0, Flow { call, jobs, start });
            }
        }
    }
}

impl Lane {
    fn add(&mut self, call: CallId, job: Job) {
        // The prompts of a call come one after another.
        match self.flows.last_mut().filter(|flow| flow.call == call) {
            Some(flow) => flow.jobs.push_back(job),
            None => self.flows.push(Flow {
                call,
                start: self.virtual_time,
                jobs: [job].into(),
            }),
        }
    }

    fn next(&mut self) -> Option<(CallId, Vec<Job>)> {
        if self.running.is_some() {
            return None;
        }
        let at = self.soonest()?;
        let n_flows = self.flows.len() as u64;
        let flow = &mut self.flows[at];
        let (call, (jobs, weight)) = (flow.call, flow.turn());
        self.virtual_time += weight as u64 / n_flows;
        if flow.jobs.is_empty() {
            self.flows.remove(at);
        }
        if self.flows.is_empty() {
            self.virtual_time = 0;
        }
        self.running = Some((call, jobs.clone()));
        Some((call, jobs))
    }

    /// The flow with the next turn. Cancelled prompts come first: they take no time, and their memory becomes free.
    fn soonest(&self) -> Option<usize> {
        let is_cancelled = |flow: &Flow| flow.jobs.front().is_some_and(Job::is_cancelled);
        self.flows.iter().position(is_cancelled).or_else(|| {
            let flows = self.flows.iter().enumerate();
            flows.min_by_key(|(_, flow)| flow.end()).map(|(at, _)| at)
        })
    }
}

impl Flow {
    /// Virtual time at which the next prompt would be encoded.
    fn end(&self) -> u64 {
        let next = self.jobs.front().map_or(0, |job| job.weight);
        self.start + next as u64
    }

    /// The prompts of the next turn, at least one, and their weight.
    fn turn(&mut self) -> (Vec<Job>, usize) {
        let (mut jobs, mut weight) = (Vec::new(), 0);
        while let Some(job) = self.jobs.pop_front() {
            if !job.is_cancelled() {
                weight += job.weight;
            }
            jobs.push(job);
            let next = self.jobs.front().map_or(0, |next| next.weight);
            if weight + next > TURN_BYTES {
                break;
            }
        }
        self.start += weight as u64;
        (jobs, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(index: usize, weight: usize) -> Job {
        Job {
            index,
            prompt: Prompt::Tokens([].into()),
            form: OutputForm::default(),
            weight,
            cancels: vec![CancelFlag::default()],
        }
    }

    /// The calls in the order of their turns, if each turn ends at once.
    fn turns(lanes: &mut Lanes, n: usize) -> Vec<u64> {
        let mut calls = Vec::new();
        for _ in 0..n {
            let turn = lanes.next().expect("a job is waiting");
            lanes.finished(turn.lane);
            calls.push(turn.call.0);
        }
        calls
    }

    #[test]
    fn a_small_call_overtakes_large_calls_that_came_earlier() {
        let mut lanes = Lanes::new();
        for call in 0..100 {
            lanes.add(CallId(call), job(0, 30_000));
        }
        assert_eq!(turns(&mut lanes, 2), [0, 1]);
        lanes.add(CallId(100), job(0, 9_000));
        assert_eq!(turns(&mut lanes, 2), [100, 2]);
    }

    #[test]
    fn calls_with_many_and_few_prompts_share_a_lane_equally() {
        let mut lanes = Lanes::new();
        for index in 0..100 {
            lanes.add(CallId(1), job(index, 20_000));
        }
        assert_eq!(turns(&mut lanes, 3), [1, 1, 1]);
        lanes.add(CallId(2), job(0, 20_000));
        lanes.add(CallId(2), job(1, 20_000));
        let order = turns(&mut lanes, 5);
        assert_eq!(
            order.iter().filter(|call| **call == 2).count(),
            2,
            "{order:?}"
        );
    }

    #[test]
    fn small_calls_do_not_starve_a_large_one() {
        let mut lanes = Lanes::new();
        lanes.add(CallId(0), job(0, 30_000));
        let mut n_small = 0;
        loop {
            n_small += 1;
            assert!(n_small < 100, "the large call starves");
            lanes.add(CallId(n_small), job(0, 1000));
            if turns(&mut lanes, 1) == [0] {
                break;
            }
        }
    }

    #[test]
    fn prompts_of_different_sizes_use_different_threads() {
        let mut lanes = Lanes::new();
        for (call, weight) in [(0, 8 << 20), (1, 100_000), (2, 9_000), (3, 9_000)] {
            lanes.add(CallId(call), job(0, weight));
        }
        let turns: Vec<Turn> = std::iter::from_fn(|| lanes.next()).collect();
        let mut calls: Vec<u64> = turns.iter().map(|turn| turn.call.0).collect();
        calls.sort_unstable();
        assert_eq!(calls, [0, 1, 2]);
    }

    #[test]
    fn cancelled_prompts_come_first() {
        let mut lanes = Lanes::new();
        lanes.add(CallId(0), job(0, 1000));
        let cancelled = job(0, 30_000);
        cancelled.cancels[0].raise();
        lanes.add(CallId(1), cancelled);
        assert_eq!(turns(&mut lanes, 2), [1, 0]);
    }

    #[test]
    fn short_prompts_of_a_call_share_a_turn() {
        let mut lanes = Lanes::new();
        for index in 0..1000 {
            lanes.add(CallId(0), job(index, 100));
        }
        let turn = lanes.next().expect("a job is waiting");
        assert_eq!(turn.jobs.len(), TURN_BYTES / 100);
    }
}
