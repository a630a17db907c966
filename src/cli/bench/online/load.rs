//! Generates the requests of a bench of a server, and their arrival times.

use std::time::Duration;

use serde::Serialize;

use super::args::{Dataset, OnlineArgs};
use crate::cli::bench::prompts::Prompts;

const RANDOM_INPUT_TOKENS: u32 = 512;
const UNSHARED_INPUT_TOKENS: u32 = 64;

#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub prompt: Prompt,
    pub output_tokens: u32,
    pub ignore_eos: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Prompt {
    Ids(Vec<u32>),
    Text(String),
}

impl Prompt {
    /// The number of tokens, or of words, which count as one token each.
    pub fn tokens(&self) -> u32 {
        let tokens = match self {
            Self::Ids(ids) => ids.len(),
            Self::Text(text) => text.split(' ').count(),
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// The time since the first request.
    pub at: Duration,
    pub request: Request,
}

pub fn arrivals(args: &OnlineArgs, prompts: &mut Prompts) -> Vec<Arrival> {
    let prefix = match args.dataset_name {
        Dataset::Random => None,
        Dataset::SharedPrefix => Some(part(args, prompts, args.shared_prefix_len)),
    };
    let mut at_s = 0.0;
    let arrival = |index| {
        if index > 0 {
            at_s += prompts.arrival_gap_s(args.request_rate);
        }
        let unshared = part(args, prompts, unshared_tokens(args));
        let prompt = match &prefix {
            None => unshared,
            Some(prefix) => joined(prefix, unshared),
        };
        Arrival {
            at: Duration::try_from_secs_f64(at_s).unwrap_or(Duration::MAX),
            request: request(args, prompt),
        }
    };
    (0..args.num_prompts).map(arrival).collect()
}

/// A request whose prompt shares no prefix with others.
pub fn random(args: &OnlineArgs, prompts: &mut Prompts) -> Request {
    let prompt = part(args, prompts, unshared_tokens(args));
    request(args, prompt)
}

fn unshared_tokens(args: &OnlineArgs) -> u32 {
    let default = match args.dataset_name {
        Dataset::Random => RANDOM_INPUT_TOKENS,
        Dataset::SharedPrefix => UNSHARED_INPUT_TOKENS,
    };
    args.random_input_len.unwrap_or(default)
}

fn request(args: &OnlineArgs, prompt: Prompt) -> Request {
    Request {
        prompt,
        output_tokens: args.random_output_len,
        ignore_eos: args.ignore_eos,
    }
}

fn part(args: &OnlineArgs, prompts: &mut Prompts, tokens: u32) -> Prompt {
    if args.text_prompts {
        Prompt::Text(prompts.text(tokens as usize))
    } else {
        Prompt::Ids(prompts.ids(tokens as usize))
    }
}

fn joined(prefix: &Prompt, unshared: Prompt) -> Prompt {
    match (prefix, unshared) {
        (Prompt::Text(prefix), Prompt::Text(rest)) => Prompt::Text(format!("{prefix} {rest}")),
        (Prompt::Ids(prefix), Prompt::Ids(rest)) => Prompt::Ids([&prefix[..], &rest].concat()),
        (_, rest) => rest,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        online: OnlineArgs,
    }

    fn load(flags: &str) -> Vec<Arrival> {
        let flags = format!("bench --base-url http://h {flags}");
        let args = Flags::try_parse_from(flags.split(' ')).expect("the flags parse");
        arrivals(&args.online, &mut Prompts::new(5, 1000))
    }

    fn ids(arrival: &Arrival) -> &[u32] {
        match &arrival.request.prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => panic!("{text}"),
        }
    }

    #[test]
    fn random_prompts_have_nothing_in_common() {
        let load = load("--num-prompts 3 --random-input-len 40 --random-output-len 7 --ignore-eos");
        assert_eq!(load.len(), 3);
        for arrival in &load {
            assert_eq!(ids(arrival).len(), 40);
            assert_eq!(arrival.at, Duration::ZERO);
            assert_eq!(arrival.request.output_tokens, 7);
            assert!(arrival.request.ignore_eos);
        }
        assert_ne!(ids(&load[0])[..8], ids(&load[1])[..8]);
    }

    #[test]
    fn all_prompts_share_the_prefix_and_have_their_own_tokens_after_it() {
        let flags = "--dataset-name shared-prefix --shared-prefix-len 20 --num-prompts 2";
        let load_ids = load(flags);
        let [first, second] = [ids(&load_ids[0]), ids(&load_ids[1])];
        assert_eq!((first.len(), second.len()), (20 + 64, 20 + 64));
        assert_eq!(first[..20], second[..20]);
        assert_ne!(first[20..28], second[20..28]);
        let load_text = load(&format!("{flags} --text-prompts --random-input-len 3"));
        let prompts: Vec<_> = load_text
            .iter()
            .map(|arrival| &arrival.request.prompt)
            .collect();
        assert!(prompts.iter().all(|prompt| prompt.tokens() == 23));
        let json = serde_json::to_value(prompts).expect("plain data");
        assert!(json[0].is_string(), "{json}");
    }

    #[test]
    fn arrivals_have_the_requested_rate() {
        let load = load("--num-prompts 2000 --random-input-len 1 --request-rate 100");
        assert_eq!(load[0].at, Duration::ZERO);
        assert!(load.is_sorted_by_key(|arrival| arrival.at));
        let last_s = load[1999].at.as_secs_f64();
        assert!((17.0..23.0).contains(&last_s), "{last_s}");
    }

    #[test]
    fn rates_and_lengths_out_of_range_are_refused() {
        for flags in [
            "--request-rate 0",
            "--request-rate -1",
            "--request-rate nan",
            "--request-rate 1e-300",
            "--request-rate soon",
            "--num-prompts 0",
            "--random-input-len 0",
            "--random-input-len 4000000000",
            "--max-concurrency 0",
            "--vocab-size 9 --text-prompts",
            "--dataset-name sharegpt",
        ] {
            let line = format!("bench --base-url http://h {flags}");
            assert!(Flags::try_parse_from(line.split(' ')).is_err(), "{flags}");
        }
    }
}
