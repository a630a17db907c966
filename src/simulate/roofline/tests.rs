//! Tests of step costs against values computed by hand.

use std::sync::Arc;

use super::*;
use crate::shape;
use souffleur_base::ids::{RowId, SeqId, StateSlot, StepId};
use souffleur_base::kv_layout::{KvDtype, KvLayout, LayerKv, PagedKv, StateHeads, Values};
use souffleur_kernels::dtype::Dtype;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::speculation::RowDrafts;
use souffleur_state::step::{RowStart, RowVerdict, StateSave, StateStart, StepRow};

fn plan(works: &[(std::ops::Range<u32>, bool)]) -> StepPlan {
    let row = |(index, (positions, sample)): (usize, &(std::ops::Range<u32>, bool))| StepRow {
        row: RowId::new(index as u32 + 1),
        seq: SeqId::new(index as u64),
        work: RowWork::Prefill {
            positions: positions.clone(),
        },
        sample: *sample,
        logprobs: None,
        saves: Default::default(),
    };
    StepPlan {
        step: StepId::new(1),
        starts: Vec::new(),
        table: Vec::new(),
        rows: works.iter().enumerate().map(row).collect(),
        copies: None,
        vision: None,
    }
}

/// The result of a row with as many drafts as its room allows, all of them rejected.
fn rejected(row: &StepRow) -> RowResult {
    let (accepted, n_drafts) = match &row.work {
        RowWork::Prefill { positions } => (positions.len() as u32, 0),
        RowWork::Decode { room, .. } => (1, *room - 1),
    };
    RowResult {
        seq: row.seq,
        tokens: Default::default(),
        accepted,
        logprobs: None,
        verdict: RowVerdict::Open,
        drafts: RowDrafts {
            n_tokens: n_drafts,
            ..RowDrafts::default()
        },
    }
}

fn cost_of(roofline: &Roofline, plan: &StepPlan) -> StepCost {
    let results: Vec<RowResult> = plan.rows.iter().map(rejected).collect();
    roofline.cost(plan, &results)
}

fn h100(devices: u32) -> Roofline {
    let hardware = Hardware::load("h100-sxm").expect("it is compiled in");
    let model = shape::load("llama-3.1-8b").expect("it is compiled in");
    let storage = Storage {
        dtype: Dtype::BF16,
        kv_dtype: KvDtype::BF16,
        quantization: None,
        sparsity: None,
    };
    Roofline::new(&hardware, &model, storage, devices)
}

#[test]
fn a_decode_reads_the_weights_once_and_each_context() {
    let cost = cost_of(&h100(1), &plan(&[(999..1000, true), (1999..2000, true)]));
    let body = 2.0 * (8_030_261_248.0 - 2.0 * 128_256.0 * 4096.0);
    let head = 2.0 * 128_256.0 * 4096.0;
    assert_eq!(cost.weight_bytes, body + head);
    assert_eq!(cost.linear_flops, 2.0 * (body + head));
    assert_eq!(cost.kv_bytes, 131_072.0 * (1000.0 + 1.0 + 2000.0 + 1.0));
    assert_eq!(cost.attention_flops, 32.0 * 4.0 * 4096.0 * 3000.0);
    // Both parts are limited by bandwidth.
    let bandwidth = 3350e9 * 0.85;
    let expected = 150e-6 + cost.weight_bytes / bandwidth + cost.kv_bytes / bandwidth;
    assert!((h100(1).seconds(&cost) / expected - 1.0).abs() < 1e-12);
}

#[test]
fn a_decode_with_drafts_reads_its_context_once_and_has_a_head_row_for_each_query() {
    let roofline = h100(1);
    let with_room = |room| {
        let mut plan = plan(&[(999..1000, true)]);
        plan.rows[0].work = RowWork::Decode {
            position: 999,
            room,
        };
        cost_of(&roofline, &plan)
    };
    let (one, four) = (with_room(1), with_room(4));
    assert_eq!(one, cost_of(&roofline, &plan(&[(999..1000, true)])));
    assert_eq!(four.tokens, 4);
    assert_eq!(four.linear_flops, 4.0 * one.linear_flops);
    assert_eq!(four.weight_bytes, one.weight_bytes);
    assert_eq!(four.kv_bytes, 131_072.0 * (1003.0 + 4.0));
    let pairs = 1000.0 + 1001.0 + 1002.0 + 1003.0;
    assert_eq!(four.attention_flops, 32.0 * 4.0 * 4096.0 * pairs);
}

#[test]
fn a_decode_costs_the_drafts_that_it_has_and_a_skipped_row_nothing() {
    let roofline = h100(1);
    let decode = |room| {
        let mut plan = plan(&[(999..1000, true)]);
        plan.rows[0].work = RowWork::Decode {
            position: 999,
            room,
        };
        plan
    };
    let mut results = vec![rejected(&decode(4).rows[0])];
    assert_eq!(
        roofline.cost(&decode(8), &results),
        cost_of(&roofline, &decode(4))
    );
    results[0].drafts.n_tokens = 0;
    let plain = cost_of(&roofline, &decode(1));
    assert_eq!(roofline.cost(&decode(8), &results), plain);
    let mut two = decode(8);
    two.rows.push(two.rows[0].clone());
    results.push(rejected(&two.rows[1]));
    results[1].accepted = 0;
    assert_eq!(roofline.cost(&two, &results), plain);
}

#[test]
fn a_part_of_the_shorter_time_counts_if_the_overlap_is_incomplete() {
    let mut roofline = h100(1);
    let cost = cost_of(&roofline, &plan(&[(999..1000, true)]));
    let full_s = roofline.seconds(&cost);
    roofline.overlap = 0.75;
    let flops_s = (cost.linear_flops + cost.attention_flops) / (989.4e12 * 0.7);
    let expected = full_s + 0.25 * flops_s;
    assert!((roofline.seconds(&cost) / expected - 1.0).abs() < 1e-12);
    // A prefill is limited by FLOPs: a part of the time of its bytes is added.
    let cost = cost_of(&roofline, &plan(&[(0..4000, true)]));
    let flops_s = (cost.linear_flops + cost.attention_flops) / (989.4e12 * 0.7);
    let bytes_s = (cost.weight_bytes + cost.kv_bytes) / (3350e9 * 0.85);
    let expected = 150e-6 + flops_s + 0.25 * bytes_s;
    assert!((roofline.seconds(&cost) / expected - 1.0).abs() < 1e-12);
}

#[test]
fn rows_beyond_a_group_are_rounded_up_to_whole_groups() {
    let mut roofline = h100(1);
    let flops = |roofline: &Roofline, tokens: u32| {
        let cost = cost_of(roofline, &plan(&[(0..tokens, false)]));
        cost.linear_flops
    };
    let one = flops(&roofline, 1);
    assert_eq!(flops(&roofline, 9), 9.0 * one);
    roofline.group_rows = Some(8.0);
    for (tokens, rows) in [
        (1, 1.0),
        (7, 7.0),
        (8, 8.0),
        (9, 16.0),
        (16, 16.0),
        (17, 24.0),
    ] {
        assert_eq!(flops(&roofline, tokens), rows * one, "{tokens}");
    }
}

#[test]
fn a_sparse_decode_reads_labels_and_some_tokens() {
    let hardware = Hardware::load("h100-sxm").expect("it is compiled in");
    let model = shape::load("llama-3.1-8b").expect("it is compiled in");
    let storage = Storage {
        dtype: Dtype::BF16,
        kv_dtype: KvDtype::BF16,
        quantization: None,
        sparsity: Some(Sparsity {
            channels: Some(32),
            tokens: 256,
            threshold: 4096,
        }),
    };
    let roofline = Roofline::new(&hardware, &model, storage, 1);
    let cost = |position: u32| cost_of(&roofline, &plan(&[(position..position + 1, true)]));
    let (kv, label) = (131_072.0, 32.0 * 8.0 * 32.0 * 2.0);
    // Below the threshold, labels are only written.
    assert_eq!(cost(4094).kv_bytes, kv * 4096.0 + label);
    assert_eq!(
        cost(4095).kv_bytes,
        kv * (4.0 * 256.0 + 1.0) + label * 4097.0
    );
    let flops = 32.0 * 4096.0 * 4.0 * 256.0 + 32.0 * 2.0 * 32.0 * 32.0 * 4096.0;
    assert_eq!(cost(4095).attention_flops, flops);
}

#[test]
fn costs_depend_on_each_layers_width_and_state() {
    let mut model = shape::load("llama-3.1-8b").expect("it is compiled in");
    model.windows[3] = Some(64);
    let pages = |key_dim, values| {
        LayerKv::Pages(PagedKv {
            heads: 2,
            key_dim,
            values,
            labels: 0,
            dtype: KvDtype::BF16,
        })
    };
    let (own, latent) = (Values::Own { dim: 16 }, Values::InKeys { dim: 16 });
    let layout = KvLayout::new(vec![
        pages(16, own),
        LayerKv::State {
            bytes: 1000,
            heads: StateHeads::default(),
        },
        pages(24, latent),
        pages(16, own),
        pages(16, own),
    ]);
    let layers = |window, dims, bytes_per_token| Layers {
        window,
        flops_per_pair: 2.0 * 32.0 * dims,
        bytes_per_token,
        sparse: None,
    };
    assert_eq!(
        Layers::of(&model, &layout, None),
        [
            layers(None, 2.0 * 32.0, 2.0 * 128.0),
            layers(None, 40.0, 96.0),
            layers(Some(64), 32.0, 128.0),
        ]
    );
    let mut roofline = h100(1);
    let mut plan = plan(&[(999..1000, true), (0..7, false)]);
    let without = cost_of(&roofline, &plan);
    (roofline.state_bytes, roofline.state_ops) = (1000.0, 10.0);
    let with = cost_of(&roofline, &plan);
    assert_eq!(with.kv_bytes, without.kv_bytes + 2.0 * 2.0 * 1000.0);
    assert_eq!(with.attention_flops, without.attention_flops + 8.0 * 10.0);
    // A state copied at the start of a row, a saved copy, and a cleared state.
    plan.starts = vec![start(Some(StateSlot::new(3))), start(None)];
    plan.rows[1].saves = vec![StateSave {
        position: 5,
        slot: StateSlot::new(4),
    }]
    .into();
    let copies = cost_of(&roofline, &plan).kv_bytes - with.kv_bytes;
    assert_eq!(copies, (2.0 + 1.0 + 2.0) * 1000.0);
}

fn start(from: Option<StateSlot>) -> RowStart {
    RowStart {
        row: RowId::new(1),
        seq: SeqId::new(1),
        tokens: [7].into(),
        vectors: None,
        images: None,
        pooling: None,
        prompt_tokens: 1,
        grammar: None,
        sampling: Arc::default(),
        prefix: PageRun::empty(),
        state: Some(StateStart {
            live: StateSlot::new(1),
            from,
        }),
        draft_texts: Default::default(),
    }
}

#[test]
fn tokens_of_a_hybrid_model_include_operations_on_states() {
    let text = r#"{"architectures": ["Lfm2ForCausalLM"], "vocab_size": 100, "hidden_size": 8,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16,
        "conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"]}"#;
    let model = ModelConfig::parse(std::path::Path::new("config.json"), text.as_bytes());
    let model = model.expect("it can be parsed");
    assert_eq!(state_ops(&model), 2.0 * 2.0 * 3.0 * 8.0);
}

#[test]
fn prefill_flops_grow_quadratically_and_do_not_depend_on_chunks() {
    let whole = cost_of(&h100(1), &plan(&[(0..4000, true)]));
    assert_eq!(
        whole.attention_flops,
        32.0 * 4.0 * 4096.0 * (4000.0 * 4001.0 / 2.0)
    );
    let chunks = [
        cost_of(&h100(1), &plan(&[(0..1500, false)])),
        cost_of(&h100(1), &plan(&[(1500..4000, true)])),
    ];
    let sum = |of: fn(&StepCost) -> f64| chunks.iter().map(of).sum::<f64>();
    assert_eq!(sum(|cost| cost.attention_flops), whole.attention_flops);
    assert_eq!(sum(|cost| cost.linear_flops), whole.linear_flops);
    // Limited by FLOPs.
    let expected = 150e-6 + (whole.linear_flops + whole.attention_flops) / (989.4e12 * 0.7);
    assert!((h100(1).seconds(&whole) / expected - 1.0).abs() < 1e-12);
}

#[test]
fn two_devices_are_not_twice_as_fast() {
    let cost = cost_of(&h100(1), &plan(&[(0..4000, true)]));
    let (one, two) = (h100(1).seconds(&cost), h100(2).seconds(&cost));
    assert!(two > one / 2.0 && two < one, "{one} {two}");
}

#[test]
fn a_step_reads_the_experts_of_all_its_tokens() {
    let text = r#"{"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100, "hidden_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}"#;
    let model = ModelConfig::parse(std::path::Path::new("config.json"), text.as_bytes());
    let model = model.expect("it can be parsed");
    let storage = Storage {
        dtype: Dtype::BF16,
        kv_dtype: KvDtype::BF16,
        quantization: None,
        sparsity: None,
    };
    let hardware = Hardware::load("h100-sxm").expect("it is compiled in");
    let roofline = Roofline::new(&hardware, &model, storage, 1);
    let of = |tokens: u32| cost_of(&roofline, &plan(&[(0..tokens, false)]));
    let expert = 2.0 * 3.0 * 8.0 * 16.0;
    let all = weights_bytes(&model, storage) as f64 - 2.0 * 2.0 * 800.0;
    assert_eq!(of(200).weight_bytes, all);
    assert_eq!(of(1).weight_bytes, all - 2.0 * 2.0 * expert);
    assert_eq!(of(2).weight_bytes, all - 2.0 * expert);
    let weights = model.parameters() as f64 - 2.0 * 800.0 - 2.0 * expert;
    assert_eq!(of(3).linear_flops, 2.0 * 3.0 * weights);
}
