//! Tests that several ranks compute the results of one, and that the loss of a rank ends the step on all.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use souffleur_base::error::StepError;
use souffleur_base::ids::StateSlot;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions, describe, load_ranks};
use souffleur_executor::{Executor, Ranks};
use souffleur_kernels::cpu::ranks::GroupRules;
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::loader::LoadFormat;
use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use souffleur_state::sampling::{LogprobWish, TokenLogprobs, TokenMask};
use souffleur_state::step::{StateStart, StepOutput, StepPlan};

use crate::common::{
    append, decode, fixture, fixtures, greedy, options, plan, prefill, start, tokens,
};
use crate::gguf_files::of_folder;
use crate::kernel_paths::is_repeated;

const PROMPT_TOKENS: u32 = 60;
const DECODES: u32 = 12;
const ROW: u32 = 3;
/// Largest difference of log probabilities, in f32.
const TOLERANCE: f32 = 2e-4;
/// More than a rank of a test ever waits.
const LONG: Duration = Duration::from_secs(600);

fn in_f32() -> CpuOptions {
    CpuOptions {
        dtype: Some(Dtype::F32),
        ..options()
    }
}

/// The error's text if the model cannot be divided.
fn on_ranks(name: &str, options: &CpuOptions, count: usize) -> Result<Ranks, String> {
    on_ranks_from(&fixture(name), options, count)
}

fn on_ranks_from(path: &Path, options: &CpuOptions, count: usize) -> Result<Ranks, String> {
    let rules = GroupRules::new(count, LONG);
    let ranks = load_ranks(path, options, &rules, None, None, &mut |_, _| {});
    ranks.map_err(|error| error.to_string())
}

fn on_one(name: &str, options: &CpuOptions) -> CpuExecutor {
    CpuExecutor::load(&fixture(name), options, &mut |_, _| {}).unwrap()
}

/// Prefills a prompt in chunks, and decodes.
fn steps(chunk: u32, keeps_states: bool) -> Vec<StepPlan> {
    let prompt = tokens(1, PROMPT_TOKENS as usize, 288);
    let wish = Arc::new(LogprobWish {
        start: Some(0),
        top: 2,
        ..Default::default()
    });
    let chunks = (0..PROMPT_TOKENS).step_by(chunk as usize).map(|first| {
        let end = PROMPT_TOKENS.min(first + chunk);
        prefill(ROW, first..end, end == PROMPT_TOKENS)
    });
    let decodes = (0..DECODES).map(|index| decode(ROW, PROMPT_TOKENS + index));
    let rows = chunks.chain(decodes).enumerate();
    let steps = rows.map(|(number, mut row)| {
        let mut step = plan(number as u64);
        if number == 0 {
            let mut start = start(ROW, &prompt, prompt.len(), &greedy());
            start.state = keeps_states.then_some(StateStart {
                live: StateSlot::new(1),
                from: None,
            });
            step.starts = vec![start];
            step.table = vec![append(ROW, 1..PROMPT_TOKENS + DECODES + 2)];
        }
        row.logprobs = Some(wish.clone());
        step.rows = vec![row];
        step
    });
    steps.collect()
}

/// The log probabilities of the prompt's tokens, and of the greedy outputs with their alternatives.
fn outcome(executor: &mut impl Executor, steps: &[StepPlan]) -> [Vec<TokenLogprobs>; 2] {
    let [mut input, mut output] = [Vec::new(), Vec::new()];
    for step in steps {
        let mut result = executor.run(step).unwrap();
        let logprobs = result.rows[0].logprobs.take().unwrap();
        input.extend(logprobs.input);
        output.extend(logprobs.output);
        executor.recycle(result.rows);
    }
    assert_eq!(input.len(), PROMPT_TOKENS as usize - 1);
    assert_eq!(output.len(), DECODES as usize + 1);
    [input, output]
}

fn is_close(a: &TokenLogprobs, b: &TokenLogprobs) -> bool {
    let difference = a.logprob.unwrap() - b.logprob.unwrap();
    difference.abs() <= TOLERANCE
}

fn check_equal(ours: &[Vec<TokenLogprobs>; 2], one: &[Vec<TokenLogprobs>; 2], about: &str) {
    for (position, (ours, one)) in ours[0].iter().zip(&one[0]).enumerate() {
        assert!(
            is_close(ours, one),
            "{about}, {position}: {ours:?}, {one:?}"
        );
    }
    for (position, (ours, one)) in ours[1].iter().zip(&one[1]).enumerate() {
        if ours.token != one.token {
            let margin = one.top[0].1 - one.top[1].1;
            assert!(
                margin <= 2.0 * TOLERANCE,
                "{about}, output {position}: {ours:?}, {one:?}"
            );
            // The outputs may differ from here on.
            return;
        }
        assert!(
            is_close(ours, one),
            "{about}, {position}: {ours:?}, {one:?}"
        );
    }
}

#[test]
fn every_family_gives_on_ranks_what_it_gives_on_one() {
    // Sums over ranks do not depend on the kernel path.
    if is_repeated() {
        return;
    }
    let mut n_divided = 0;
    for name in fixtures() {
        let options = in_f32();
        let mut one = on_one(&name, &options);
        let plans = [PROMPT_TOKENS, 7].map(|chunk| steps(chunk, one.keeps_states()));
        let expected = outcome(&mut one, &plans[0]);
        for count in [1, 2, 4] {
            let mut ranks = match on_ranks(&name, &options, count) {
                Ok(ranks) => ranks,
                Err(refusal) => {
                    assert!(refusal.starts_with("tp_size is 4"), "{name}: {refusal}");
                    continue;
                }
            };
            n_divided += usize::from(count > 1);
            for (index, plans) in plans.iter().enumerate() {
                let about = format!("{name} on {count} ranks, plans {index}");
                check_equal(&outcome(&mut ranks, plans), &expected, &about);
                ranks.reset().unwrap();
            }
        }
    }
    assert!(n_divided > fixtures().len(), "{n_divided}");
}

#[test]
fn one_rank_has_the_bits_of_a_whole_model() {
    for name in ["llama", "qwen3-5-moe", "deepseek-v3", "olmo2"] {
        let mut one = on_one(name, &options());
        let plans = steps(16, one.keeps_states());
        let expected = outcome(&mut one, &plans);
        let mut rank = on_ranks(name, &options(), 1).unwrap();
        assert!(outcome(&mut rank, &plans) == expected, "{name}");
    }
}

#[test]
fn results_of_ranks_are_reproducible_bit_for_bit() {
    let plans = steps(16, false);
    let outcomes = [1, 2].map(|threads| {
        let options = CpuOptions {
            threads,
            ..options()
        };
        outcome(&mut on_ranks("llama", &options, 2).unwrap(), &plans)
    });
    assert!(outcomes[0] == outcomes[1]);
}

/// The file has other names, and the rows of queries and keys in another order.
#[test]
fn ranks_on_a_gguf_file_have_the_bits_of_ranks_on_its_safetensors() {
    for (name, count) in [("llama", 4), ("qwen3-moe", 2)] {
        let (folder, dir) = (fixture(name), tempfile::tempdir().unwrap());
        let file = dir.path().join("model.gguf");
        std::fs::write(&file, of_folder(&folder).bytes()).unwrap();
        let plans = steps(16, false);
        let outcomes = [folder, file].map(|path| {
            let mut ranks = on_ranks_from(&path, &in_f32(), count).unwrap();
            outcome(&mut ranks, &plans)
        });
        assert!(outcomes[0] == outcomes[1], "{name}");
    }
}

#[test]
fn models_that_do_not_divide_are_refused_by_name() {
    let refusal = |name: &str, options: &CpuOptions, count: usize| {
        on_ranks(name, options, count).err().unwrap()
    };
    let heads = refusal("llama", &options(), 3);
    assert!(heads.contains("num_attention_heads is 4"), "{heads}");
    let blocks = refusal("gpt-oss-mxfp4", &options(), 4);
    assert!(blocks.contains("in blocks of 32"), "{blocks}");
    let int8 = CpuOptions {
        quantization: Some(Quantization::Int8),
        ..options()
    };
    let groups = refusal("llama", &int8, 2);
    assert!(groups.contains("in blocks of 128"), "{groups}");
}

#[test]
fn the_description_has_the_memory_of_each_rank() {
    let described = |name: &str| describe(&fixture(name), None, None, LoadFormat::Auto).unwrap();
    let llama = described("llama");
    let on_two = llama.on_ranks(2).unwrap();
    let [first, second] = on_two.weights_bytes[..] else {
        panic!("there are two ranks");
    };
    assert_eq!(first, second);
    // Every rank has the embeddings and the norms.
    assert!(2 * first > llama.weights_bytes && first < llama.weights_bytes);
    let whole = llama.kv_layout.bytes_per_token();
    assert_eq!(2 * on_two.kv_layout.bytes_per_token(), whole);
    let refused = described("gpt-oss-mxfp4").on_ranks(4).unwrap_err();
    assert!(refused.to_string().contains("in blocks of 32"), "{refused}");
}

#[test]
fn plans_that_all_ranks_refuse_are_rejected() {
    let mut ranks = on_ranks("llama", &options(), 2).unwrap();
    let mut unknown = plan(0);
    unknown.rows = vec![decode(ROW, 10)];
    let error = ranks.run(&unknown).unwrap_err();
    assert!(matches!(error, StepError::Rejected(_)), "{error}");
    let steps = steps(16, false);
    outcome(&mut ranks, &steps);
}

/// A grammar that allows everything; the mask with this number panics. Each rank makes a mask for each sampled token.
#[derive(Clone, Debug)]
struct Planted {
    n_masks: Arc<AtomicUsize>,
    panics_at: usize,
}

impl Grammar for Planted {
    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(self.clone())
    }
}

impl GrammarState for Planted {
    fn mask(&mut self, _: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        let number = self.n_masks.fetch_add(1, Ordering::SeqCst);
        assert!(number != self.panics_at, "planted");
        Ok(Allowed::All)
    }

    fn commit(&mut self, _: u32) -> Result<GrammarProgress, GrammarFailure> {
        Ok(GrammarProgress::Open)
    }
}

fn run_all(ranks: &mut Ranks, steps: &[StepPlan]) -> Result<Vec<StepOutput>, StepError> {
    steps.iter().map(|step| ranks.run(step)).collect()
}

#[test]
fn a_rank_that_panics_loses_the_step_on_all_and_a_reset_repairs_them() {
    let mut ranks = on_ranks("llama", &options(), 2).unwrap();
    let plans = steps(16, false);
    let expected = outcome(&mut ranks, &plans);
    for panics_at in 0..6 {
        ranks.reset().unwrap();
        let mut broken = plans.clone();
        broken[0].starts[0].grammar = Some(Arc::new(Planted {
            n_masks: Arc::default(),
            panics_at,
        }));
        let error = run_all(&mut ranks, &broken).unwrap_err();
        let StepError::Lost(reason) = &error else {
            panic!("{error}");
        };
        assert!(reason.contains("planted"), "{reason}");
        assert!(!ranks.is_lost());
        ranks.reset().unwrap();
        assert!(outcome(&mut ranks, &plans) == expected, "{panics_at}");
    }
}
