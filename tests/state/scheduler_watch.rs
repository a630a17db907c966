//! Checks the scheduler's steps without its internal state: which rows decode, are left out, or are preempted.

use souffleur_base::ids::SeqId;
use souffleur_state::scheduler::BatchRules;
use souffleur_state::step::{RowWork, StepPlan, StepRow};

use crate::scheduler_requests::Ask;

#[derive(Debug)]
struct WatchedRequest {
    max_new_tokens: usize,
    priority: Option<i64>,
    wants_logprobs: bool,
    /// Output tokens once the steps so far are done, at most.
    planned: usize,
    /// The latest result gave room back to a request that had none, perhaps after the open plan had chosen its rows.
    had_no_room: bool,
    /// The whole prefill is planned, and the request has not been released since.
    is_prefilled: bool,
    is_admitted: bool,
    has_ended: bool,
    /// Consecutive steps in which the request could have decoded but did not.
    skipped: usize,
    max_skipped: usize,
}

impl WatchedRequest {
    fn can_decode(&self) -> bool {
        self.is_prefilled && !self.has_ended && self.planned < self.max_new_tokens
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Waiting,
    /// Some chunks of the prompt are planned, but not all.
    Prefilling,
    Decoding,
    /// The step of the last token is planned.
    Ending,
}

#[derive(Debug)]
pub struct Watch {
    rules: BatchRules,
    chunk_tokens: Option<usize>,
    requests: Vec<WatchedRequest>,
    due_decodes: usize,
    preemptions: u64,
    pub mixed_steps: usize,
    /// Decode steps that were due after a prefill step, before the next one.
    pub deferrals: usize,
}

impl Watch {
    pub fn new(rules: BatchRules, chunk_tokens: Option<usize>) -> Self {
        Self {
            rules,
            chunk_tokens,
            requests: Vec::new(),
            due_decodes: 0,
            preemptions: 0,
            mixed_steps: 0,
            deferrals: 0,
        }
    }

    pub fn submitted(&mut self, ask: &Ask) {
        self.requests.push(WatchedRequest {
            max_new_tokens: ask.max_new_tokens,
            priority: ask.priority,
            wants_logprobs: ask.logprob_start.is_some(),
            planned: 0,
            had_no_room: false,
            is_prefilled: false,
            is_admitted: false,
            has_ended: false,
            skipped: 0,
            max_skipped: 0,
        });
    }

    pub fn stage(&self, number: usize) -> Stage {
        let request = &self.requests[number];
        if !request.is_admitted {
            Stage::Waiting
        } else if request.planned >= request.max_new_tokens {
            Stage::Ending
        } else if request.is_prefilled {
            Stage::Decoding
        } else {
            Stage::Prefilling
        }
    }

    pub fn ended(&mut self, number: usize) {
        self.requests[number].has_ended = true;
    }

    pub fn released(&mut self, number: usize) {
        let request = &mut self.requests[number];
        request.is_prefilled = false;
        request.is_admitted = false;
        request.skipped = 0;
    }

    /// Takes back room that a decode did not use.
    pub fn give_back(&mut self, number: usize, room: usize) {
        let request = &mut self.requests[number];
        request.had_no_room |= room > 0 && request.planned >= request.max_new_tokens;
        request.planned = request.planned.saturating_sub(room);
    }

    /// The most steps between two tokens of this request; 1 if it is in every step.
    pub fn worst_gap(&self, number: usize) -> usize {
        self.requests[number].max_skipped + 1
    }

    pub fn take_step(&mut self, plan: &StepPlan, number_of: impl Fn(SeqId) -> usize) {
        let decodes = |number: &usize| {
            let has_row = |row: &StepRow| number_of(row.seq) == *number;
            !self.requests[*number].had_no_room || plan.rows.iter().any(has_row)
        };
        let decodable: Vec<usize> = (0..self.requests.len())
            .filter(|&number| self.requests[number].can_decode())
            .filter(decodes)
            .collect();
        self.check_rows(plan, &decodable, &number_of);
        for request in &mut self.requests {
            request.had_no_room = false;
        }
        for start in &plan.starts {
            let request = &mut self.requests[number_of(start.seq)];
            request.is_admitted = true;
            request.planned = start.tokens.len() - start.prompt_tokens as usize;
        }
        for row in &plan.rows {
            let request = &mut self.requests[number_of(row.seq)];
            request.planned += match row.work {
                RowWork::Prefill { .. } => usize::from(row.sample),
                RowWork::Decode { room, .. } => room as usize,
            };
            assert!(request.planned <= request.max_new_tokens, "{request:?}");
            // A request that generates nothing never samples, and never decodes.
            request.is_prefilled |= row.sample;
        }
    }

    fn check_rows(
        &mut self,
        plan: &StepPlan,
        decodable: &[usize],
        number_of: &impl Fn(SeqId) -> usize,
    ) {
        let is_decode = |work: &RowWork| matches!(work, RowWork::Decode { .. });
        let decodes: Vec<usize> = plan
            .rows
            .iter()
            .filter(|row| is_decode(&row.work))
            .map(|row| number_of(row.seq))
            .collect();
        let prefills = plan.rows.len() - decodes.len();
        assert!(decodes.iter().all(|number| decodable.contains(number)));
        // All decodable rows are in the step, or none of them.
        let has_all = decodable.iter().all(|number| decodes.contains(number));
        assert!(has_all || decodes.is_empty(), "{decodes:?} {decodable:?}");
        if prefills > 0 && !decodes.is_empty() {
            assert!(self.rules.mixed_chunk || self.rules.max_prefill_step_ms.is_some());
            let wants_logprobs = |row: &StepRow| self.requests[number_of(row.seq)].wants_logprobs;
            assert!(!plan.rows.iter().any(wants_logprobs));
            self.mixed_steps += 1;
        }
        let tokens: usize = plan.rows.iter().map(|row| row.work.positions().len()).sum();
        if let Some(chunk) = self.chunk_tokens.filter(|_| prefills > 0) {
            assert!(tokens <= chunk, "{tokens} tokens in a chunk of {chunk}");
        }
        self.check_interval(prefills > 0, !decodes.is_empty(), decodable);
    }

    /// Checks that after a prefill step that left out a decodable sequence, decode steps follow for the interval.
    fn check_interval(&mut self, has_prefill: bool, has_decode: bool, decodable: &[usize]) {
        let min_batch = self.rules.prefill_decode_interval_min_bs.max(1);
        if has_prefill && self.due_decodes > 0 {
            assert!(decodable.len() < min_batch, "a prefill came too soon");
        }
        if !has_prefill {
            self.deferrals += usize::from(self.due_decodes > 0);
            self.due_decodes = self.due_decodes.saturating_sub(1);
        } else if !has_decode && !decodable.is_empty() {
            self.due_decodes = self.rules.prefill_decode_interval;
        }
        for &number in decodable {
            let request = &mut self.requests[number];
            request.skipped = if has_decode { 0 } else { request.skipped + 1 };
            request.max_skipped = request.max_skipped.max(request.skipped);
            let has_no_minimum = self.rules.prefill_decode_interval > 0 && min_batch == 1;
            assert!(!has_no_minimum || request.skipped <= 1, "request {number}");
        }
    }

    /// Checks the victims if the count of preemptions has grown: each has a lower priority than a waiting request by
    /// more than the threshold, and no request of lower priority keeps running. Returns whether there are victims.
    pub fn note_preemptions(&mut self, preemptions: u64, victims: &[usize]) -> bool {
        let n_victims = preemptions - std::mem::replace(&mut self.preemptions, preemptions);
        if n_victims == 0 {
            return false;
        }
        assert_eq!(n_victims as usize, victims.len());
        let rules = self.rules.priority.expect("priorities");
        let threshold = rules.preemption_threshold.expect("a threshold");
        // A missing priority is worse than every number.
        let rank = |request: &WatchedRequest| {
            let sign = if rules.low_values_first { -1 } else { 1 };
            request.priority.map_or(-1_000_000, |value| sign * value)
        };
        let waiting = self
            .requests
            .iter()
            .enumerate()
            .filter(|(number, request)| {
                !request.is_admitted && !request.has_ended && !victims.contains(number)
            });
        let best = waiting.map(|(_, request)| rank(request)).max();
        let best = best.expect("a preempting request waits");
        for &victim in victims {
            let worst = rank(&self.requests[victim]);
            assert!(best - worst > threshold, "{best} preempts {worst}");
            let others = self.requests.iter().enumerate();
            let mut kept =
                others.filter(|(number, other)| other.can_decode() && !victims.contains(number));
            assert!(kept.all(|(_, other)| rank(other) >= worst));
        }
        true
    }
}
