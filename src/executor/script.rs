//! The script of a scripted executor: its answers to prompts.

use std::fmt;
use std::sync::Arc;

/// Maps a prompt's tokens to the tokens of the answer.
type Answers = dyn Fn(&[u32]) -> Vec<u32> + Send + Sync;

/// The answers to prompts: a function of the prompt's tokens, and the token with which every answer ends.
///
/// ```
/// use souffleur_executor::scripted::Script;
///
/// let echo = Script::new(0, |prompt| prompt.to_vec());
/// assert_eq!(echo.answer(&[7, 8]), [7, 8, 0]);
/// ```
#[derive(Clone)]
pub struct Script {
    answers: Arc<Answers>,
    eos: u32,
}

impl Script {
    /// Each answer is followed by the token `eos`.
    pub fn new(eos: u32, answers: impl Fn(&[u32]) -> Vec<u32> + Send + Sync + 'static) -> Self {
        Self {
            answers: Arc::new(answers),
            eos,
        }
    }

    /// All output tokens after a prompt, `eos` among them.
    pub fn answer(&self, prompt: &[u32]) -> Vec<u32> {
        let mut answer = (self.answers)(prompt);
        answer.push(self.eos);
        answer
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("eos", &self.eos).finish()
    }
}
