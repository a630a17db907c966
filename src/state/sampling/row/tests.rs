//! Tests of the row sampler against a naive one.

use proptest::prelude::*;

use super::*;

const VOCAB: usize = 64;
const EOS: u32 = 2;

fn sampler(params: SamplingParams, prompt: &[u32], output: &[u32]) -> RowSampler {
    RowSampler::new(Arc::new(params), VOCAB, &[EOS], prompt, output)
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams {
        sampling_seed: Some(seed),
        ..SamplingParams::default()
    }
}

impl RowSampler {
    fn sample(&mut self, logits: &mut [f32], mask: Option<&TokenMask>) -> Sampled {
        let sampled = self.choose(logits, mask, &mut DrawScratch::default());
        self.record(sampled.token);
        sampled
    }
}

/// Pseudo-random logits, a function of the position.
fn logits_at(position: usize) -> Vec<f32> {
    let noise = |token| uniform(99, (position * VOCAB + token) as u64) as f32;
    (0..VOCAB).map(|token| 6.0 * noise(token) - 3.0).collect()
}

fn run(sampler: &mut RowSampler, positions: std::ops::Range<usize>) -> Vec<u32> {
    positions
        .map(|position| sampler.sample(&mut logits_at(position), None).token)
        .collect()
}

/// Frequency of each token in many draws from the same logits.
fn shares(params: SamplingParams, logits: &[f32]) -> Vec<f64> {
    const DRAWS: usize = 4000;
    let params = Arc::new(params);
    let mut sampler = RowSampler::new(params, logits.len(), &[], &[], &[]);
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(&mut logits.to_vec(), None).token as usize] += 1.0 / DRAWS as f64;
    }
    counts
}

fn check_shares(params: SamplingParams, probabilities: &[f64], expected: &[f64]) {
    let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() as f32).collect();
    for (got, expected) in shares(params.clone(), &logits).iter().zip(expected) {
        let close = (got - expected).abs() < 0.03 && (*expected > 0.0 || *got == 0.0);
        assert!(close, "got {got}, expected {expected} under {params:?}");
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_equals() {
    let params = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let mut logits = [1.0, 3.0, 3.0, f32::NEG_INFINITY];
    let mut sampler = RowSampler::new(Arc::new(params), 4, &[], &[], &[]);
    assert_eq!(
        sampler.sample(&mut logits, None),
        Sampled {
            token: 1,
            nan: false
        }
    );
}

#[test]
fn draws_follow_the_softmax() {
    let p = [0.1, 0.4, 0.2, 0.3];
    check_shares(seeded(1), &p, &p);
    let hot = SamplingParams {
        temperature: 2.0,
        ..seeded(1)
    };
    let roots: f64 = p.iter().map(|p: &f64| p.sqrt()).sum();
    check_shares(hot, &p, &p.map(|p| p.sqrt() / roots));
}

#[test]
fn filters_keep_a_prefix_of_the_ranking() {
    let p = [0.1, 0.4, 0.2, 0.3];
    let top_two = [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0];
    check_shares(
        SamplingParams {
            top_k: 2,
            ..seeded(3)
        },
        &p,
        &top_two,
    );
    check_shares(
        SamplingParams {
            top_p: 0.65,
            ..seeded(3)
        },
        &p,
        &top_two,
    );
    check_shares(
        SamplingParams {
            min_p: 0.7,
            ..seeded(3)
        },
        &p,
        &top_two,
    );
    check_shares(
        SamplingParams {
            top_p: 1e-6,
            ..seeded(3)
        },
        &p,
        &[0.0, 1.0, 0.0, 0.0],
    );
    check_shares(
        SamplingParams {
            min_p: 1.0,
            ..seeded(3)
        },
        &p,
        &[0.0, 1.0, 0.0, 0.0],
    );
}

#[test]
fn top_p_refers_to_the_whole_vocabulary_after_top_k() {
    // With renormalisation after top_k, the first token would hold 4/7 of the mass, and top_p 0.5 would keep only it.
    let params = SamplingParams {
        top_k: 2,
        top_p: 0.5,
        ..seeded(5)
    };
    let p = [0.1, 0.4, 0.2, 0.3];
    check_shares(params, &p, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
}

#[test]
fn a_large_nucleus_of_equal_tokens_is_kept_whole() {
    let vocab = 5000;
    let params = SamplingParams {
        top_p: 0.5,
        ..seeded(8)
    };
    let mut scratch = DrawScratch::default();
    let kept = KeptTokens::of(&vec![0.0; vocab], 0.0, &params, &mut scratch);
    assert_eq!(kept.pick(0.0), 0);
    assert_eq!(
        kept.pick(1.0 - f64::EPSILON),
        2500,
        "equally likely tokens rank by id"
    );
}

#[test]
fn filters_agree_with_sorting_for_any_vocabulary_and_distribution() {
    let shapes: [fn(f64) -> f64; 4] = [
        |u| 8.0 * u,
        |u| 60.0 * u * u,
        |u| 1e-3 * u,
        |u| (4.0 * u).floor(),
    ];
    for (vocab, shape) in [1usize, 63, 64, 65, 4000]
        .into_iter()
        .flat_map(|vocab| shapes.map(|shape| (vocab, shape)))
    {
        let logits: Vec<f32> = (0..vocab)
            .map(|i| shape(uniform(5, i as u64)) as f32)
            .collect();
        for (top_p, top_k, min_p) in [
            (0.3, -1, 0.0),
            (0.99, -1, 0.0),
            (0.9, 40, 0.0),
            (1.0, 7, 0.01),
            (1.0, 3000, 0.0),
            (1.0, -1, 0.05),
        ] {
            let params = SamplingParams {
                top_p,
                top_k,
                min_p,
                ..seeded(1)
            };
            let mut scratch = DrawScratch::default();
            let kept = KeptTokens::of(&logits, Peak::of(&logits, 0).logit, &params, &mut scratch);
            for draw in 0..50 {
                let draw = uniform(2, draw);
                let expected = naive_choice(&logits, &params, draw);
                assert_eq!(kept.pick(draw), expected, "{vocab} tokens, {params:?}");
            }
        }
    }
}

#[test]
fn penalties_count_as_sglang_does() {
    let params = SamplingParams {
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        repetition_penalty: 2.0,
        logit_bias: [(4, 3.0)].into(),
        ..seeded(0)
    };
    let sampler = RowSampler::new(Arc::new(params), 6, &[], &[0, 1, 99], &[1, 2, 2, 77]);
    let mut logits = [1.0, 1.0, -1.0, 1.0, 1.0, 1.0];
    sampler.penalize(&mut logits);
    sampler.constrain(&mut logits, None);
    // Token 0 is only in the prompt: repetition penalty. Token 1: (1 - 0.5 - 0.25) / 2. Token 2: (-1 - 1 - 0.25) * 2.
    assert_eq!(logits, [0.5, 0.125, -4.5, 1.0, 4.0, 1.0]);
}

#[test]
fn ends_are_banned_until_min_new_tokens() {
    let params = SamplingParams {
        min_new_tokens: 3,
        stop_token_ids: [5].into(),
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let mut sampler = sampler(params, &[1], &[9]);
    let likely_end = || {
        let mut logits = vec![0.0; VOCAB];
        (logits[EOS as usize], logits[5], logits[7]) = (9.0, 8.0, 1.0);
        logits
    };
    let tokens: Vec<u32> = (0..3)
        .map(|_| sampler.sample(&mut likely_end(), None).token)
        .collect();
    assert_eq!(tokens, [7, 7, EOS]);
}

#[test]
fn a_mask_rules_out_all_other_tokens_and_overrides_min_new_tokens() {
    let params = SamplingParams {
        min_new_tokens: 9,
        ..seeded(4)
    };
    let mut sampler = sampler(params, &[], &[]);
    let mut mask = TokenMask::none(VOCAB);
    mask.allow(40);
    mask.allow(EOS);
    mask.allow(VOCAB as u32);
    assert_eq!(mask.allowed_tokens(), 2);
    // Modulo 38, both allowed tokens, 40 and EOS, are equal to EOS.
    for position in 0..20 {
        assert_eq!(
            sampler.sample(&mut logits_at(position), Some(&mask)).token % 38,
            EOS
        );
    }
    let mut only_end = TokenMask::none(VOCAB);
    only_end.allow(EOS);
    let params = SamplingParams {
        min_new_tokens: 9,
        ..seeded(4)
    };
    let mut early = RowSampler::new(Arc::new(params), VOCAB, &[EOS], &[], &[]);
    let expected = Sampled {
        token: EOS,
        nan: false,
    };
    assert_eq!(early.sample(&mut logits_at(0), Some(&only_end)), expected);
}

#[test]
fn nan_and_nothing_allowed_are_reported() {
    for params in [
        seeded(1),
        SamplingParams {
            temperature: 0.0,
            ..seeded(1)
        },
    ] {
        let mut nan = logits_at(0);
        nan[VOCAB - 1] = f32::NAN;
        assert!(sampler(params.clone(), &[], &[]).sample(&mut nan, None).nan);
        let nothing = TokenMask::none(VOCAB);
        assert!(
            sampler(params.clone(), &[], &[])
                .sample(&mut logits_at(0), Some(&nothing))
                .nan
        );
        let mut infinite = logits_at(0);
        infinite[17] = f32::INFINITY;
        let expected = Sampled {
            token: 17,
            nan: false,
        };
        assert_eq!(
            sampler(params, &[], &[]).sample(&mut infinite, None),
            expected
        );
    }
}

#[test]
fn equal_seeds_give_equal_tokens_and_different_seeds_do_not() {
    let tokens = |seed| run(&mut sampler(seeded(seed), &[], &[]), 0..32);
    assert_eq!(tokens(7), tokens(7));
    assert_ne!(tokens(7), tokens(8));
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let filters = (0.3f32..1.5, 0.2f32..=1.0, -1i32..20, 0.0f32..0.3);
    let penalties = (-1.0f32..1.0, -1.0f32..1.0, 0.5f32..1.8, 0u32..10);
    (any::<u64>(), filters, penalties).prop_map(|(seed, filters, penalties)| SamplingParams {
        temperature: filters.0,
        top_p: filters.1,
        top_k: if filters.2 < 1 { -1 } else { filters.2 },
        min_p: filters.3,
        frequency_penalty: penalties.0,
        presence_penalty: penalties.1,
        repetition_penalty: penalties.2,
        min_new_tokens: penalties.3,
        ..seeded(seed)
    })
}

fn naive_choice(logits: &[f32], params: &SamplingParams, draw: f64) -> u32 {
    let max = f64::from(Peak::of(logits, 0).logit);
    let mut ranked: Vec<(u32, f64)> = logits
        .iter()
        .enumerate()
        .map(|(id, &l)| {
            (
                id as u32,
                ((f64::from(l) - max) / f64::from(params.temperature)).exp(),
            )
        })
        .collect();
    let total: f64 = ranked.iter().map(|token| token.1).sum();
    let sorts =
        params.top_p < 1.0 || (params.top_k != -1 && (params.top_k as usize) < logits.len());
    if sorts {
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    let mut before = 0.0;
    let mut rank = 0;
    ranked.retain(|token| {
        let kept = (!sorts || before <= f64::from(params.top_p) * total)
            && (params.top_k == -1 || rank < params.top_k)
            && token.1 >= f64::from(params.min_p);
        before += token.1;
        rank += 1;
        kept
    });
    let mass: f64 = ranked.iter().map(|token| token.1).sum();
    let mut cumulated = 0.0;
    let past = |token: &&(u32, f64)| {
        cumulated += token.1;
        cumulated > draw * mass
    };
    ranked.iter().find(past).expect("draw is below 1").0
}

proptest! {
    #[test]
    fn a_rebuilt_sampler_makes_the_same_choices(
        params in any_params(), prompt in prop::collection::vec(0..VOCAB as u32, 0..8), cut in 0usize..24,
    ) {
        let whole = run(&mut sampler(params.clone(), &prompt, &[]), 0..24);
        let rest = run(&mut sampler(params, &prompt, &whole[..cut]), cut..24);
        prop_assert_eq!(&whole[cut..], &rest[..]);
    }

    #[test]
    fn selection_agrees_with_sorting_the_vocabulary(params in any_params(), position in 0usize..1000) {
        let logits = logits_at(position);
        let draw = uniform(1, position as u64);
        let mut scratch = DrawScratch::default();
        let kept = KeptTokens::of(&logits, Peak::of(&logits, 0).logit, &params, &mut scratch);
        // Without a rank filter the draw is in id order, so only sorted draws are comparable.
        let sorts = params.top_p < 1.0 || (params.top_k != -1 && params.top_k < VOCAB as i32);
        if sorts {
            prop_assert_eq!(kept.pick(draw), naive_choice(&logits, &params, draw));
        }
    }
}
