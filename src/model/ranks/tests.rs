//! Tests of the division of every fixture's tensors among ranks.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::config::ModelConfig;
use crate::config::recurrent::Recurrence;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::recurrent::{DeltaNetShape, HeadOrder};

fn models() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models")
}

fn fixture(name: &str) -> ModelConfig {
    ModelConfig::read(&models().join(name)).expect("fixtures are supported")
}

fn fixtures() -> Vec<(String, ModelConfig)> {
    let dirs = fs::read_dir(models()).expect("fixtures are committed");
    let names = dirs.map(|dir| dir.expect("readable").file_name().into_string());
    let names = names.map(|name| name.expect("names are UTF-8"));
    names.map(|name| (name.clone(), fixture(&name))).collect()
}

fn part(config: &ModelConfig, spec: &TensorSpec, rank: Rank) -> Option<Part> {
    Part::of(spec, (&cut(config, spec), rank), 1).expect("the configuration divides")
}

fn indices(ranges: &[Range<usize>]) -> Vec<usize> {
    ranges.iter().cloned().flatten().collect()
}

/// How often each of `len` indices is in the ranges.
fn occurrences<'a>(len: usize, ranges: impl Iterator<Item = &'a Range<usize>>) -> Vec<usize> {
    let mut counts = vec![0; len];
    ranges
        .cloned()
        .flatten()
        .for_each(|index| counts[index] += 1);
    counts
}

/// The tensor `name` of the first layer with one.
fn spec(config: &ModelConfig, name: &str) -> TensorSpec {
    let end = format!(".{name}");
    let mut tensors = config.tensors().into_iter();
    tensors
        .find(|spec| spec.name.ends_with(&end))
        .expect("a layer has it")
}

#[test]
fn the_parts_have_the_shapes_of_a_rank_s_configuration() {
    for (name, whole) in fixtures() {
        for rank in [1, 2, 4].into_iter().flat_map(Rank::all) {
            let Ok(config) = of_rank(&whole, rank) else {
                continue;
            };
            let (all, own) = (whole.tensors(), config.tensors());
            assert_eq!(all.len(), own.len());
            for (spec, own) in all.iter().zip(own) {
                let part = part(&whole, spec, rank);
                let shape = part.map_or_else(|| spec.shape.clone(), |part| part.shape());
                if spec.name == "lm_head.weight" {
                    assert_eq!(shape, [spec.shape[0] / rank.count(), spec.shape[1]]);
                } else {
                    assert_eq!(
                        (&spec.name, shape),
                        (&own.name, own.shape),
                        "{name} {rank:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_family_runs_on_two_ranks_and_those_with_enough_heads_on_four() {
    let refused = |count: usize| {
        let rank = Rank::new(count - 1, count).expect("the last rank");
        let all = fixtures().into_iter();
        let refused = all.filter_map(|(name, config)| of_rank(&config, rank).err().map(|_| name));
        let mut names: Vec<String> = refused.collect();
        names.sort();
        names
    };
    assert!(refused(1).is_empty() && refused(2).is_empty());
    let few_heads = [
        "gpt-oss-plain",
        "qwen3-5",
        "qwen3-5-interval",
        "qwen3-5-moe",
        "qwen3-5-tied",
        "qwen3-next",
        "qwen3-next-sparse",
        "qwen3-window",
    ];
    assert_eq!(refused(4), few_heads);
    assert_eq!(refused(3).len(), fixtures().len());
}

#[test]
fn ranks_together_have_every_element_equally_often() {
    for (name, whole) in fixtures() {
        for count in [2, 4] {
            let last = Rank::new(count - 1, count).expect("the last rank");
            if of_rank(&whole, last).is_err() {
                continue;
            }
            for spec in whole.tensors() {
                let parts = Rank::all(count).map(|rank| part(&whole, &spec, rank));
                let Some(parts) = parts.collect::<Option<Vec<Part>>>() else {
                    continue;
                };
                let rows = parts.iter().flat_map(|part| &part.rows);
                let rows = occurrences(spec.shape[0], rows);
                let columns = parts.iter().flat_map(|part| &part.columns);
                let columns = occurrences(spec.shape[1..].iter().product(), columns);
                let shard = parts[0].shard;
                let (divided, other) = match shard {
                    Shard::Inputs => (columns, rows),
                    Shard::Outputs | Shard::Whole => (rows, columns),
                };
                let is_key_or_value = ["k_proj", "v_proj", "k_norm"]
                    .iter()
                    .any(|part| spec.name.contains(part));
                let context = format!("{name}: {} on {count} ranks", spec.name);
                assert!(
                    divided.iter().all(|times| *times == divided[0]),
                    "{context}"
                );
                assert!(other.iter().all(|times| *times == count), "{context}");
                match shard {
                    Shard::Whole => {
                        let zeros = parts.iter().map(|part| part.is_zero);
                        assert!(zeros.eq((0..count).map(|rank| rank > 0)), "{context}");
                    }
                    _ if is_key_or_value => assert!([1, count, 2].contains(&divided[0])),
                    Shard::Inputs | Shard::Outputs => assert_eq!(divided[0], 1, "{context}"),
                }
            }
        }
    }
}

#[test]
fn a_rank_has_the_key_heads_of_its_queries() {
    for (name, counts) in [("llama", &[2, 4][..]), ("llama-sharded", &[2, 4])] {
        let whole = fixture(name);
        let (group, dim) = (
            whole.num_attention_heads / whole.num_key_value_heads,
            whole.head_dim,
        );
        let [q, k] =
            ["q_proj", "k_proj"].map(|part| spec(&whole, &format!("self_attn.{part}.weight")));
        for rank in counts.iter().copied().flat_map(Rank::all) {
            let own = of_rank(&whole, rank).expect("the heads divide");
            let own_group = own.num_attention_heads / own.num_key_value_heads;
            let heads = |spec: &TensorSpec| {
                let part = part(&whole, spec, rank).expect("it is divided");
                let rows = indices(&part.rows).into_iter().step_by(dim);
                rows.map(|row| row / dim).collect::<Vec<usize>>()
            };
            let (queries, keys) = (heads(&q), heads(&k));
            assert_eq!(queries.len(), own.num_attention_heads);
            for (index, query) in queries.into_iter().enumerate() {
                assert_eq!(keys[index / own_group], query / group, "{name} {rank:?}");
            }
        }
    }
}

#[test]
fn a_rank_has_the_key_heads_of_its_values_in_delta_nets() {
    let mut whole = fixture("qwen3-5");
    for order in [HeadOrder::Grouped, HeadOrder::Tiled] {
        let recurrent = whole.recurrent.as_mut().expect("some layers have states");
        let Recurrence::DeltaNet { shape, .. } = &mut recurrent.recurrence else {
            panic!("the states are delta nets");
        };
        shape.order = order;
        let net = *shape;
        let decay = spec(&whole, "linear_attn.A_log");
        for rank in Rank::all(2) {
            let heads = part(&whole, &decay, rank).expect("it is divided");
            let own = DeltaNetShape {
                key_heads: net.key_heads / 2,
                value_heads: net.value_heads / 2,
                ..net
            };
            let first_key = rank.index() * own.key_heads;
            for (index, head) in indices(&heads.rows).into_iter().enumerate() {
                assert_eq!(net.key_head(head), first_key + own.key_head(index));
            }
        }
    }
}

#[test]
fn blocks_are_not_cut() {
    let whole = fixture("llama");
    let down = TensorSpec::new("model.layers.0.mlp.down_proj.weight", &[64, 1024]);
    let divided = |count: usize, inputs_per_scale: usize| {
        let rank = Rank::new(count - 1, count).expect("the last rank");
        Part::of(&down, (&cut(&whole, &down), rank), inputs_per_scale)
    };
    for (count, inputs_per_scale, columns) in [(4, 256, 768..1024), (8, 32, 896..1024)] {
        let part = divided(count, inputs_per_scale).expect("whole blocks");
        let part = part.expect("it is divided");
        assert_eq!(indices(&part.columns), columns.collect::<Vec<usize>>());
    }
    let reason = divided(8, 256).expect_err("half a block");
    assert_eq!(
        reason,
        "is 8, but tensor model.layers.0.mlp.down_proj.weight has 1024 inputs in blocks of 256, and a rank's part \
         would end inside a block, at input 896: use fewer ranks, or weights that are not quantised in blocks"
    );
}

#[test]
fn heads_and_widths_that_do_not_divide_are_named() {
    let error = |config: &ModelConfig, count: usize| {
        let rank = Rank::new(0, count).expect("the first rank");
        of_rank(config, rank).expect_err("refused").to_string()
    };
    let mut llama = fixture("llama");
    assert_eq!(
        error(&llama, 3),
        "tp_size is 3, but the model's num_attention_heads is 4, which must be a multiple of tp_size: choose another tp_size"
    );
    llama.intermediate_size = 110;
    assert!(error(&llama, 4).contains("intermediate_size is 110"));
    let heads = ModelConfig {
        num_attention_heads: 24,
        num_key_value_heads: 6,
        intermediate_size: 96,
        ..fixture("llama")
    };
    let refused = error(&heads, 4);
    assert!(
        refused.ends_with(
            "num_key_value_heads is 6, which must be a multiple or a divisor of tp_size: choose another tp_size"
        ),
        "{refused}"
    );
    assert!(error(&fixture("qwen3-5"), 4).contains("linear_num_key_heads is 2"));
}

#[test]
fn a_rank_keeps_the_memory_of_its_heads() {
    let layout = |config: &ModelConfig| config.kv_layout(Dtype::F32);
    let of = |name: &str, count: usize| {
        let whole = fixture(name);
        let rank = Rank::new(0, count).expect("the first rank");
        let own = of_rank(&whole, rank).expect("the heads divide");
        (layout(&whole), layout(&own))
    };
    // Two key heads: a rank of two or of four has one.
    for count in [2, 4] {
        let (whole, own) = of("llama", count);
        assert_eq!(2 * own.bytes_per_token(), whole.bytes_per_token());
    }
    // Every rank keeps the latents of all heads.
    let (whole, own) = of("deepseek-v3", 4);
    assert_eq!(own, whole);
    let (whole, own) = of("qwen3-5", 2);
    assert_eq!(2 * own.state_bytes(), whole.state_bytes());
    // Short convolutions are not divided.
    let (whole, own) = of("lfm2", 2);
    assert_eq!(own.state_bytes(), whole.state_bytes());
}
