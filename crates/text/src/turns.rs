//! Finds the turns of a chat in its tokens. Prompts of one conversation, or with the same instructions, diverge at the
//! start of a turn.

use serde_json::{Map, Value, json};

use super::{ChatPrompt, TextModel};

/// The tokens that open turns in a model's chat template; empty where they were not detected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnMarks {
    /// The tokens between the instructions and the first words of the user.
    user: Vec<u32>,
    /// The tokens right before an answer.
    reply: Vec<u32>,
}

impl TurnMarks {
    /// Detects the marks by rendering short chats with and without each turn. A mark stays empty if chats are rejected.
    pub fn learn(text: &TextModel) -> Self {
        let system = json!({"role": "system", "content": "Be brief."});
        let asks = |words: &str| json!({"role": "user", "content": words});
        let render = |messages: Vec<Value>, opens_reply: bool, thinks: Option<bool>| {
            render(text, &Value::from(messages), opens_reply, thinks)
        };
        let user = || {
            let Some(before) = render(vec![system.clone()], false, None) else {
                return tokens_between(&render);
            };
            let one = render(vec![system.clone(), asks("One")], false, None)?;
            let two = render(vec![system.clone(), asks("Two")], false, None)?;
            added(&before, &one[..common_prefix_len(&one, &two)])
        };
        let reply = || {
            let before = render(vec![asks("One")], false, None)?;
            let open = added(&before, &render(vec![asks("One")], true, None)?)?;
            // Some templates write an empty thinking block if thinking is off, others open one only if thinking is on.
            let others = [false, true].into_iter().filter_map(|thinks| {
                let other = render(vec![asks("One")], true, Some(thinks))?;
                added(&before, &other)
            });
            let shared = others.map(|other| common_prefix_len(&open, &other)).min();
            Some(open[..shared.unwrap_or(open.len())].to_vec())
        };
        Self {
            user: user().unwrap_or_default(),
            reply: reply().unwrap_or_default(),
        }
    }

    /// The positions at which other prompts are likely to diverge from this one, ascending: the end of the
    /// instructions, of the user's last message, and of all turns before the answer. `replies` is the number of replies
    /// since the user's last message, including the requested reply. Later prompts drop the reasoning of these replies.
    pub fn anchors(&self, prompt: &[u32], replies: usize) -> Vec<u32> {
        let starts = |mark: &[u32]| {
            if mark.is_empty() {
                None
            } else {
                Some(prompt.windows(mark.len()))
            }
        };
        let first = starts(&self.user)
            .and_then(|mut places| places.position(|place| place == self.user.as_slice()));
        let mut last = None;
        let mut query = None;
        if let Some(places) = starts(&self.reply) {
            let places = places.enumerate().rev();
            let found = places.filter(|(_, place)| *place == self.reply.as_slice());
            let mut found = found.map(|(at, _)| at);
            last = found.next();
            query = replies.checked_sub(2).and_then(|before| found.nth(before));
        }
        let mut anchors: Vec<u32> = [first, query, last]
            .into_iter()
            .flatten()
            .filter(|place| *place > 0)
            .map(|place| place as u32)
            .collect();
        anchors.sort_unstable();
        anchors.dedup();
        anchors
    }
}

/// Finds the user mark of a template that rejects a system message alone: the tokens between the system text and the
/// user text, which do not change with these texts.
fn tokens_between(
    render: &dyn Fn(Vec<Value>, bool, Option<bool>) -> Option<Vec<u32>>,
) -> Option<Vec<u32>> {
    let chat = |system: &str, user: &str| {
        let system = json!({"role": "system", "content": system});
        render(
            vec![system, json!({"role": "user", "content": user})],
            false,
            None,
        )
    };
    let one = chat("Be brief.", "One")?;
    let (other_words, other_system) = (chat("Be brief.", "Two")?, chat("Go on!", "One")?);
    let end = common_prefix_len(&one, &other_words);
    let shared = one.iter().rev().zip(other_system.iter().rev());
    let start = one.len() - shared.take_while(|(a, b)| a == b).count();
    let found = one.get(start..end)?;
    (!found.is_empty()).then(|| found.to_vec())
}

fn render(
    text: &TextModel,
    messages: &Value,
    opens_reply: bool,
    thinks: Option<bool>,
) -> Option<Vec<u32>> {
    let kwargs = thinks.map(|thinks| {
        let names = ["enable_thinking", "thinking"];
        Map::from_iter(names.map(|name| (name.to_owned(), json!(thinks))))
    });
    let rendered = text.render_chat(&ChatPrompt {
        add_generation_prompt: opens_reply,
        template_kwargs: kwargs.as_ref(),
        ..ChatPrompt::new(messages)
    });
    text.encode_chat(&rendered.ok()?).ok()
}

/// The tokens of `after` that follow `before`, if it begins with `before`.
fn added(before: &[u32], after: &[u32]) -> Option<Vec<u32>> {
    let added = after.strip_prefix(before)?;
    (!added.is_empty()).then(|| added.to_vec())
}

fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
