//! Reference outputs of the CPU executor, and its log probabilities of the tokens that a GPU chose.
//!
//! In f32 the tokens are equal, and log probabilities differ by at most [`F32_TOLERANCE`], because sums are reordered.
//! In bfloat16 the devices round activations at different places, so they may choose different tokens of nearly
//! the same probability: the CPU scores each token that the GPU chose, given the GPU's previous tokens.

use std::path::Path;

use souffleur_config::DtypeChoice;
use souffleur_request::{Event, GenerateRequest, Prompt};
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};

use crate::requests::{Bits, bits};
use crate::setups::{Setup, start_on_cpu};
use crate::world::{World, within};

/// Largest allowed difference of log probabilities, in nats.
const F32_TOLERANCE: f32 = 2e-4;
/// Largest allowed difference of log probabilities, in nats; bfloat16 has 8 bits of precision.
const BF16_TOLERANCE: f32 = 0.1;

pub struct Reference {
    world: World,
    request: fn(u32) -> GenerateRequest,
    outputs: Vec<Bits>,
}

/// The CPU's log probabilities for a chosen token, in nats.
struct TokenScore {
    logprob: f32,
    /// The log probability of the likeliest allowed token.
    highest: f32,
}

impl Reference {
    /// Runs requests `0..n` one after the other.
    pub async fn new(
        setup: &Setup,
        model: &Path,
        (request, n): (fn(u32) -> GenerateRequest, u32),
    ) -> Self {
        let world = start_on_cpu(setup.config(model));
        let mut outputs = Vec::new();
        for index in 0..n {
            outputs.push(bits(world.generate(request(index))).await.0);
        }
        Self {
            world,
            request,
            outputs,
        }
    }

    /// Compares a request's tokens and their log probabilities.
    pub async fn check(&self, setup: &Setup, index: u32, got: &Bits, what: &str) {
        let what = format!("{setup:?}, {what}, request {index}");
        let tokens: Vec<u32> = got.iter().map(|pair| pair.0).collect();
        let logprobs: Vec<f32> = match setup.dtype {
            DtypeChoice::Float32 => {
                assert_eq!(tokens, self.expected(index), "{what}");
                let expected = self.outputs[index as usize].iter();
                expected.map(|pair| f32::from_bits(pair.1)).collect()
            }
            _ => {
                let scored = self.check_choices(index, &tokens, &what).await;
                scored.iter().map(|scored| scored.logprob).collect()
            }
        };
        let tolerance = match setup.dtype {
            DtypeChoice::Float32 => F32_TOLERANCE,
            _ => BF16_TOLERANCE,
        };
        for (place, (got, expected)) in got.iter().zip(&logprobs).enumerate() {
            let got = f32::from_bits(got.1);
            assert!(
                (got - expected).abs() <= tolerance,
                "{what}, token {place}: log probability is {got}, on the CPU {expected}"
            );
        }
    }

    /// Compares the tokens of a request without log probabilities.
    pub async fn check_tokens(&self, setup: &Setup, index: u32, tokens: &[u32], what: &str) {
        let what = format!("{setup:?}, {what}, request {index}");
        match setup.dtype {
            DtypeChoice::Float32 => assert_eq!(tokens, self.expected(index), "{what}"),
            _ => drop(self.check_choices(index, tokens, &what).await),
        }
    }

    pub async fn stop(self) {
        self.world.stop().await;
    }

    fn expected(&self, index: u32) -> Vec<u32> {
        let output = self.outputs[index as usize].iter();
        output.map(|pair| pair.0).collect()
    }

    /// Checks the number of tokens, and for greedy requests that each has nearly the highest log probability.
    async fn check_choices(&self, index: u32, tokens: &[u32], what: &str) -> Vec<TokenScore> {
        let expected = self.expected(index);
        assert_eq!(tokens.len(), expected.len(), "{what}");
        let request = (self.request)(index);
        let scored = self.scored(&request, tokens).await;
        if request.sampling.temperature == 0.0 {
            for (place, TokenScore { logprob, highest }) in scored.iter().enumerate() {
                assert!(
                    highest - logprob <= 2.0 * BF16_TOLERANCE,
                    "{what}, token {place}: log probability {logprob} on the CPU, another token has {highest}"
                );
            }
        }
        scored
    }

    /// The log probabilities of a request's output, token by token.
    async fn scored(&self, request: &GenerateRequest, output: &[u32]) -> Vec<TokenScore> {
        let mut scoring = request.clone();
        let Prompt::Tokens(prompt) = &request.prompt else {
            panic!("{request:?}")
        };
        let banned: &[u32] = match request.sampling.min_new_tokens {
            0 => &[],
            _ => &self.world.engine.model().eos_token_ids,
        };
        scoring.prompt = Prompt::Tokens(prompt.iter().chain(output).copied().collect());
        scoring.logprobs = Some(LogprobWish {
            start: Some(prompt.len() as u32 - 1),
            top: 1 + banned.len() as u32,
            ..Default::default()
        });
        scoring.sampling.max_new_tokens = 1;
        scoring.sampling.min_new_tokens = 0;
        let scored = self.input_logprobs(scoring).await;
        // The first token of the requested range has no log probability.
        let scored = &scored[scored.len() - output.len()..];
        let score = |(scored, token): (&TokenLogprobs, &u32)| {
            assert_eq!(scored.token, *token);
            let allowed = scored.top.iter().find(|top| !banned.contains(&top.0));
            TokenScore {
                logprob: scored.logprob.unwrap(),
                highest: allowed.unwrap().1,
            }
        };
        scored.iter().zip(output).map(score).collect()
    }

    async fn input_logprobs(&self, request: GenerateRequest) -> Vec<TokenLogprobs> {
        let mut generation = self.world.generate(request);
        let mut found = Vec::new();
        loop {
            match within(generation.next()).await.unwrap() {
                Event::Delta(delta) => found.extend(delta.input_logprobs),
                Event::Finished(end) => {
                    found.extend(end.delta.input_logprobs);
                    return found;
                }
                other => panic!("ended with {other:?}"),
            }
        }
    }
}
