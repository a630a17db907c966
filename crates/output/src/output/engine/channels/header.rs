//! Parser of the header of a gpt-oss message: role, channel and recipient.

use crate::output::named::MAX_NAME_BYTES;
use crate::output::syntax::Tag;

/// A longer header is invalid.
const MAX_CHARS: usize = 512;
const TO: &str = "to=";
/// The namespace of a request's tools.
const FUNCTIONS: &str = "functions.";
/// Recipients that are not tools.
const ROLE_RECIPIENTS: [&str; 4] = ["all", "assistant", "system", "user"];
const REASONING_CHANNEL: &str = "analysis";
const ROLES: [&str; 6] = [
    "assistant",
    "developer",
    "functions.",
    "system",
    "tool",
    "user",
];

#[derive(Debug)]
pub(super) struct Header {
    tags: Tags,
    has_role: bool,
    at: At,
    word: String,
    channel: Option<String>,
    recipient: Option<String>,
    n_chars: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tags {
    /// The header began in the prompt, which contains its role, and the output has none of its tags yet.
    OnlyInPrompt,
    InOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Role,
    Channel,
    AfterChannel,
    Constraint,
}

/// The effect of a character or tag on a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderStep {
    More,
    Body,
    Broken,
}

impl Header {
    pub(super) fn after_role() -> Self {
        Self {
            tags: Tags::OnlyInPrompt,
            has_role: true,
            at: At::Role,
            word: String::new(),
            channel: None,
            recipient: None,
            n_chars: 0,
        }
    }

    pub(super) fn after_tag(tag: Tag) -> Self {
        Self {
            tags: Tags::InOutput,
            has_role: false,
            at: match tag {
                Tag::Channel => At::Channel,
                _ => At::Role,
            },
            ..Self::after_role()
        }
    }

    pub(super) fn read(&mut self, c: char) -> HeaderStep {
        self.n_chars += 1;
        if c == '\n' || self.n_chars > MAX_CHARS {
            return HeaderStep::Broken;
        }
        if c.is_whitespace() {
            self.end_word()
        } else {
            self.word.push(c)
        }
        if self.at != At::Role || self.may_be_before_channel() {
            HeaderStep::More
        } else {
            HeaderStep::Broken
        }
    }

    /// Whether the partial word may precede the channel: as the role or a recipient.
    fn may_be_before_channel(&self) -> bool {
        let word = self.word.as_str();
        let is_role =
            |role: &str| role.starts_with(word) || role.ends_with('.') && word.starts_with(role);
        word.starts_with(TO)
            || TO.starts_with(word)
            || !self.has_role && ROLES.into_iter().any(is_role)
    }

    pub(super) fn read_tag(&mut self, tag: Tag) -> HeaderStep {
        self.end_word();
        self.tags = Tags::InOutput;
        match (tag, self.at) {
            (Tag::Channel, At::Role) => self.at = At::Channel,
            (Tag::Constraint, At::Role | At::Channel | At::AfterChannel) => {
                self.at = At::Constraint
            }
            (Tag::MessageBody, _) => return HeaderStep::Body,
            _ => return HeaderStep::Broken,
        }
        HeaderStep::More
    }

    pub(super) fn has_tag(&self) -> bool {
        self.tags == Tags::InOutput
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.channel.as_deref() == Some(REASONING_CHANNEL)
    }

    pub(super) fn function(&self) -> Option<&str> {
        let recipient = self.recipient.as_deref()?;
        let name = recipient.strip_prefix(FUNCTIONS).unwrap_or(recipient);
        let is_name = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
        (is_name && !ROLE_RECIPIENTS.contains(&recipient)).then_some(name)
    }

    fn end_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        if let Some(recipient) = word.strip_prefix(TO) {
            self.recipient = Some(recipient.to_owned());
        } else if self.at == At::Role {
            self.has_role |= !word.is_empty();
        } else if self.at == At::Channel && !word.is_empty() {
            self.channel = Some(word);
            self.at = At::AfterChannel;
        }
    }
}
