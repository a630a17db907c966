//! Measures scaling: decoding by context length, a long prefill, and throughput by batch size.

use super::bench::Bench;
use super::streams;
use crate::cli::bench::offline::args::OfflineArgs;
use crate::cli::bench::offline::load::{Load, first, longest_prompt};
use crate::cli::bench::offline::machine::MachineRates;
use crate::cli::bench::offline::machine::floors::Sequence;
use crate::cli::bench::offline::report::rows::{Row, Unit};
use crate::cli::bench::offline::report::scaling::{ContextCost, Scaling};
use crate::cli::failure::Failure;
use crate::cli::statistics::{Line, Quartiles};

const SHORTEST_CONTEXT_TOKENS: u32 = 1024;
const LONG_PROMPT_TOKENS: u32 = 8192;
const LARGEST_BATCH: u32 = 64;
const TOKENS_PER_CONTEXT: u32 = 33;

pub async fn run(bench: &mut Bench<'_>, args: &OfflineArgs) -> Result<Scaling, Failure> {
    let rates = bench.machine.measure();
    let decode_by_context = by_context(bench, args, &rates).await?;
    let line = fit_line(&decode_by_context, |cost| cost.quartiles.median);
    // Uses one bandwidth for all contexts, so that other load on the host does not distort the line.
    let read_rates = decode_by_context
        .iter()
        .flat_map(|cost| &cost.read_bytes_per_s);
    let read = Quartiles::of(&read_rates.copied().collect::<Vec<_>>());
    let floor_line =
        read.and_then(|read| fit_line(&decode_by_context, |cost| cost.bytes as f64 / read.median));
    let slopes = line.zip(floor_line);
    let slope_fraction = slopes.map(|(line, floor)| floor.slope / line.slope);
    let limit = longest_prompt(bench.engine.model(), 1);
    let long = Load {
        streams: 1,
        prompt_tokens: LONG_PROMPT_TOKENS.min(limit),
        output_tokens: 1,
    };
    let long_prefill = rows(bench, vec![long], args.repeat, &rates).await?.pop();
    let longest = longest_prompt(bench.engine.model(), args.output_tokens);
    let prompt_tokens = first(&args.batch_prompt_tokens).min(longest);
    let batches = (0..=LARGEST_BATCH.ilog2()).map(|power| Load {
        streams: 1 << power,
        prompt_tokens,
        output_tokens: args.output_tokens,
    });
    let batch_curve = rows(bench, batches.collect(), args.repeat, &rates).await?;
    Ok(Scaling {
        decode_by_context,
        line,
        floor_line,
        slope_fraction,
        long_prefill,
        batch_curve,
    })
}

fn fit_line(costs: &[ContextCost], of: impl Fn(&ContextCost) -> f64) -> Option<Line> {
    let points = costs
        .iter()
        .map(|cost| (f64::from(cost.context_tokens), of(cost)));
    Line::fit(&points.collect::<Vec<_>>())
}

async fn rows(
    bench: &mut Bench<'_>,
    loads: Vec<Load>,
    repeat: u32,
    rates: &MachineRates,
) -> Result<Vec<Row>, Failure> {
    let loads = bench.possible(loads);
    let mut samples = vec![Vec::new(); loads.len()];
    for round in 1..=repeat {
        for (load, samples) in loads.iter().zip(&mut samples) {
            bench.show_status(format!(
                "scaling, round {round} of {repeat}: {}",
                load.name()
            ));
            samples.extend(bench.sample(*load, rates).await?);
        }
    }
    let rows = loads.into_iter().zip(samples);
    Ok(rows
        .filter_map(|(load, samples)| {
            Row::new(load.name(), Unit::TokensPerSecond, Some(load), samples)
        })
        .collect())
}

/// 1k, 2k, 4k and so on up to `limit`; only `limit` if it is shorter than 1k.
fn contexts(limit: u32) -> Vec<u32> {
    let doubled = std::iter::successors(Some(SHORTEST_CONTEXT_TOKENS), |tokens| {
        tokens.checked_mul(2)
    });
    let contexts: Vec<u32> = doubled.take_while(|tokens| *tokens <= limit).collect();
    if contexts.is_empty() {
        vec![limit]
    } else {
        contexts
    }
}

/// Each context is a prefix of the next one, so that the cache serves most of the prompt; only decoding is timed.
async fn by_context(
    bench: &mut Bench<'_>,
    args: &OfflineArgs,
    rates: &MachineRates,
) -> Result<Vec<ContextCost>, Failure> {
    let limit = longest_prompt(bench.engine.model(), TOKENS_PER_CONTEXT);
    let contexts = contexts(args.scaling.max_context.min(limit));
    let longest = contexts.last().copied().unwrap_or_default();
    let prompt = bench.prompts.ids(longest as usize);
    let mut taken = vec![ContextSamples::default(); contexts.len()];
    for round in 1..=args.repeat {
        for (context, taken) in contexts.iter().zip(&mut taken) {
            let n = args.repeat;
            bench.show_status(format!("scaling, round {round} of {n}: context {context}"));
            let prompt = prompt[..*context as usize].to_vec();
            let stream = streams::run(bench.engine, prompt, TOKENS_PER_CONTEXT).await?;
            let read_bytes_per_s = bench.machine.read_bytes_per_s();
            let Some(decoded) = streams::decoded(&[stream]) else {
                continue;
            };
            let peak = bench.subject.peak(rates, read_bytes_per_s);
            let step = [middle(*context)];
            taken
                .samples_s
                .push(decoded.seconds / f64::from(decoded.tokens));
            taken.floors_s.push(bench.cost.step_seconds(&step, &peak));
            taken.read_bytes_per_s.push(read_bytes_per_s);
        }
    }
    let costs = contexts.into_iter().zip(taken);
    Ok(costs
        .filter_map(|(context_tokens, taken)| {
            Some(ContextCost {
                context_tokens,
                quartiles: Quartiles::of(&taken.samples_s)?,
                floor_s: Quartiles::of(&taken.floors_s)?.median,
                bytes: bench.cost.bytes(&[middle(context_tokens)]),
                samples_s: taken.samples_s,
                read_bytes_per_s: taken.read_bytes_per_s,
            })
        })
        .collect())
}

#[derive(Clone, Default)]
struct ContextSamples {
    samples_s: Vec<f64>,
    floors_s: Vec<f64>,
    read_bytes_per_s: Vec<f64>,
}

/// The step halfway through the generated tokens after a context.
fn middle(context_tokens: u32) -> Sequence {
    Sequence {
        cached_tokens: u64::from(context_tokens + TOKENS_PER_CONTEXT / 2),
        new_tokens: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_double_up_to_the_limit() {
        assert_eq!(contexts(32_768), [1024, 2048, 4096, 8192, 16_384, 32_768]);
        assert_eq!(contexts(5000), [1024, 2048, 4096]);
        assert_eq!(contexts(200), [200]);
    }

    #[test]
    fn lines_are_fitted_to_one_value_of_each_context() {
        let cost = |context_tokens: u32| ContextCost {
            context_tokens,
            samples_s: vec![0.5],
            quartiles: Quartiles::of(&[0.5]).expect("the list has a sample"),
            floor_s: 0.25,
            bytes: 100 + 3 * u64::from(context_tokens),
            read_bytes_per_s: vec![10.0],
        };
        let costs = [cost(1024), cost(2048), cost(4096)];
        let line = fit_line(&costs, |cost| cost.bytes as f64 / 10.0);
        let line = line.expect("contexts differ");
        assert!((line.slope - 0.3).abs() < 1e-12, "{line:?}");
        assert_eq!(fit_line(&costs[..1], |cost| cost.floor_s), None);
    }
}
