//! An agentic trace: conversations with common system prompts, their turns in random order.

pub const N_CONVERSATIONS: usize = 24;
const N_TURNS: usize = 8;
const N_SYSTEMS: usize = 4;
const SYSTEM_TOKENS: usize = 1120;
/// Tokens that a user adds in a turn. With the outputs, no conversation is longer than the bundled model's context.
const USER_TOKENS: std::ops::Range<usize> = 100..340;
const OUTPUT_TOKENS: std::ops::Range<u32> = 8..28;

pub struct Turn {
    pub conversation: usize,
    /// They follow the previous turn's answer.
    pub user: Vec<u32>,
    pub output_tokens: u32,
}

pub struct Trace {
    systems: Vec<Vec<u32>>,
    pub turns: Vec<Turn>,
}

impl Trace {
    pub fn new(seed: u64, vocab_size: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut order: Vec<usize> = (0..N_CONVERSATIONS * N_TURNS)
            .map(|turn| turn % N_CONVERSATIONS)
            .collect();
        random.shuffle(&mut order);
        let systems = (0..N_SYSTEMS).map(|_| tokens(&mut random, SYSTEM_TOKENS, vocab_size));
        let systems = systems.collect();
        let turns = order.into_iter().map(|conversation| {
            let n_user = random.usize(USER_TOKENS);
            Turn {
                conversation,
                user: tokens(&mut random, n_user, vocab_size),
                output_tokens: random.u32(OUTPUT_TOKENS),
            }
        });
        Self {
            systems,
            turns: turns.collect(),
        }
    }

    /// The system prompt of each conversation.
    pub fn beginnings(&self) -> Vec<Vec<u32>> {
        let conversations = 0..N_CONVERSATIONS;
        conversations
            .map(|conversation| self.systems[conversation % N_SYSTEMS].clone())
            .collect()
    }

    /// The tokens of all prompts and outputs, each prefix counted once.
    pub fn distinct_tokens(&self) -> usize {
        let turns = self.turns.iter();
        let of_turns = turns.map(|turn| turn.user.len() + turn.output_tokens as usize);
        of_turns.sum::<usize>() + N_SYSTEMS * SYSTEM_TOKENS
    }
}

pub fn tokens(random: &mut fastrand::Rng, n: usize, vocab_size: u32) -> Vec<u32> {
    (0..n).map(|_| random.u32(..vocab_size)).collect()
}
