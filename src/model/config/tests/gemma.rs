//! The families of Gemma.

use super::*;
use super::super::gemma as own;

#[test]
fn gemma_2_takes_the_defaults_of_its_class() {
    let read = parse(&with(
        base("Gemma2ForCausalLM"),
        json!({"num_attention_heads": null, "num_key_value_heads": null, "vocab_size": null, "hidden_act": "gelu"}),
    ));
    let read = read.expect("supported");
    assert_eq!((read.num_attention_heads, read.vocab_size), (8, 256_000));
    assert_eq!((read.bos_token_id, read.eos_token_ids.as_slice()), (Some(2), &[1][..]));
    assert_eq!(read.windows, [Some(4096), None, Some(4096)]);
    assert_eq!((read.head_dim, read.max_position_embeddings), (256, 8192));
    assert_eq!((read.attention_scale(), read.embedding_scale), (0.0625, Some(8.0)));
    assert!(read.tie_word_embeddings && read.writes_norms_from_one() && !read.qk_norm);
    assert_eq!(read.gate(), Gate::GeluTanh);
    let gemma = read.gemma.expect("it is one");
    assert_eq!((gemma.score_cap, gemma.logits_cap), (Some(50.0), Some(30.0)));
    assert_eq!(gemma.window_rope, None);
    let edits = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let uncapped = parse(&with(base("Gemma2ForCausalLM"), edits)).expect("supported");
    let gemma = uncapped.gemma.expect("it is one");
    assert_eq!((gemma.score_cap, gemma.logits_cap), (None, None));
}

#[test]
fn gemma_3_rotates_by_kinds_of_layers() {
    let linear = json!({"rope_type": "linear", "factor": 8});
    let default = json!({"rope_type": "default", "rope_theta": 300});
    let table = [
        (json!({}), (1e6, None), 1e4),
        // As published models say it.
        (json!({"rope_scaling": linear, "rope_theta": 5e5, "rope_local_base_freq": 1e3}), (5e5, Some(8.0)), 1e3),
        (
            json!({"rope_parameters": {"full_attention": linear, "sliding_attention": default}}),
            (1e6, Some(8.0)),
            300.0,
        ),
    ];
    for (edits, (theta, factor), of_windows) in table {
        let read = parse(&with(base("Gemma3ForCausalLM"), edits)).expect("supported");
        assert_eq!(read.rope.theta, theta);
        let scaling = factor.map_or(RopeScaling::Default, |factor| RopeScaling::Linear { factor });
        assert_eq!(read.rope.scaling, scaling);
        let gemma = read.gemma.expect("it is one");
        let windowed = gemma.window_rope.expect("windows rotate otherwise");
        assert_eq!((windowed.theta, windowed.scaling), (of_windows, RopeScaling::Default));
        assert_eq!((gemma.score_cap, gemma.logits_cap), (None, None));
        assert_eq!(read.windows, [Some(4096); 3]);
    }
    let edits = json!({"num_hidden_layers": 7, "sliding_window": 512, "sliding_window_pattern": 3});
    let read = parse(&with(base("Gemma3ForConditionalGeneration"), edits)).expect("supported");
    let slides: Vec<bool> = read.windows.iter().map(Option::is_some).collect();
    assert_eq!(slides, [true, true, false, true, true, false, true]);
}

#[test]
fn what_a_gemma_cannot_do_here_is_refused() {
    let table = [
        (json!({"hidden_activation": "gelu"}), "hidden_activation is \"gelu\", supported is \"gelu_pytorch_tanh\""),
        (json!({"use_bidirectional_attention": true}), "use_bidirectional_attention is true"),
        (json!({"final_logit_softcapping": 0}), "final_logit_softcapping is 0, expected a number from"),
        (json!({"sliding_window": null}), "sliding_window is null, expected a number of tokens"),
        (json!({"query_pre_attn_scalar": -1}), "query_pre_attn_scalar is -1, expected"),
        (
            json!({"rope_parameters": {"rope_theta": 1e4}}),
            "rope_parameters.rope_theta stands where full_attention and sliding_attention are expected",
        ),
    ];
    for (edits, complaint) in table {
        let error = parse(&with(base("Gemma3ForCausalLM"), edits)).expect_err("it is refused");
        assert!(error.to_string().contains(complaint), "{error}");
    }
}

#[test]
fn factors_on_embeddings_are_rounded_as_published_models_run() {
    let scale = own::embedding_scale(2560);
    assert_eq!(Dtype::BF16.rounded(scale), 50.5);
    assert_eq!(Dtype::F32.rounded(scale), scale);
    assert_eq!(Dtype::F16.rounded(scale), 50.59375);
}
