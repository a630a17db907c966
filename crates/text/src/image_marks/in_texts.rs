//! Images in messages of roles for which a template takes text only.
//!
//! Many templates place the images of users, and write the content of a tool's message as a text, leave out all but its
//! texts, or raise an exception. A screenshot in a result would end the conversation. So such messages are rendered as
//! one text, with the stand-in of the placeholder in each image's place. Roles whose images the template places itself
//! are rendered as they are.

use serde_json::Value;

use super::{ImageMarks, RenderedImages};
use crate::chat::{ChatPrompt, IMAGE};
use crate::template::ChatTemplate;

/// The roles of messages, in the order in which their images are given back to the template.
const ROLES: [&str; 6] = [
    "user",
    "tool",
    "function",
    "assistant",
    "system",
    "developer",
];

impl ImageMarks {
    /// Renders a chat with placeholders in the texts of those roles for which the template does not write them.
    /// `as_given` is the chat as the template writes it, `None` if it fails.
    ///
    /// Renders at most twice, and once for each of [`ROLES`]. Returns `None` if `as_given` has all images, or if
    /// placeholders in texts do not complete them.
    pub(super) fn render_in_texts(
        &self,
        template: &ChatTemplate,
        prompt: &ChatPrompt<'_>,
        as_given: Option<&RenderedImages>,
    ) -> Option<RenderedImages> {
        let n_images: usize = messages_of(prompt.messages).map(n_images_of).sum();
        let n_written = as_given.map_or(0, |rendered| self.n_placeholders(rendered));
        if n_written >= n_images {
            return None;
        }
        let mark = self.mark_in(template)?;
        let has_images = |role: &str| {
            let mut messages = messages_of(prompt.messages);
            messages.any(|message| message["role"] == role && n_images_of(message) > 0)
        };
        let render = |roles: &[&str]| {
            let messages = with_marks(prompt.messages, roles, &mark);
            let prompt = ChatPrompt {
                messages: &messages,
                ..*prompt
            };
            let rendered = template.render_with_images(&prompt).ok()?;
            let rendered = self.read(&rendered);
            (self.n_placeholders(&rendered) == n_images).then_some(rendered)
        };
        let all: Vec<&str> = ROLES.into_iter().filter(|role| has_images(role)).collect();
        // A template that places images at all places those of users, and may take only lists of them.
        let others: Vec<&str> = all.iter().copied().filter(|role| *role != "user").collect();
        let mut choices = vec![others, all];
        choices.retain(|roles| !roles.is_empty());
        choices.dedup();
        let mut choices = choices.into_iter();
        let (mut in_texts, mut found) =
            choices.find_map(|roles| render(&roles).map(|rendered| (roles, rendered)))?;
        for role in in_texts.clone() {
            // Without any of them it is the chat as given.
            if in_texts.len() == 1 {
                break;
            }
            let others = in_texts.iter().copied().filter(|other| *other != role);
            let others: Vec<&str> = others.collect();
            if let Some(rendered) = render(&others) {
                (in_texts, found) = (others, rendered);
            }
        }
        Some(found)
    }

    /// The stand-ins that a template with stand-ins writes for an image, with those of its begin and end if it writes
    /// all three together. `None` if it writes no images.
    fn mark_in(&self, template: &ChatTemplate) -> Option<String> {
        let stand_in = |name: usize| self.stand_ins[name].as_str();
        let placeholder = stand_in(self.of_images.placeholder?);
        if let (Some(begin), Some(end)) = (self.of_images.begin, self.of_images.end) {
            let whole = [stand_in(begin), placeholder, stand_in(end)].concat();
            if template.mentions(&whole) {
                return Some(whole);
            }
        }
        let has_images = template.mentions(placeholder);
        has_images.then(|| placeholder.to_owned())
    }
}

fn messages_of(messages: &Value) -> impl Iterator<Item = &Value> {
    messages.as_array().into_iter().flatten()
}

fn parts_of(message: &Value) -> &[Value] {
    let parts = message["content"].as_array();
    parts.map(Vec::as_slice).unwrap_or_default()
}

fn is_image(part: &Value) -> bool {
    part["type"] == IMAGE
}

fn n_images_of(message: &Value) -> usize {
    parts_of(message).iter().filter(|it| is_image(it)).count()
}

/// The messages, with `mark` for each image in those of these roles.
fn with_marks(messages: &Value, roles: &[&str], mark: &str) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        if roles.contains(&role)
            && let Some(text) = text_of(message, mark)
        {
            message["content"] = Value::from(text);
        }
    }
    messages
}

/// The parts of a message with images as one text; `None` if it has none, or a part that will be refused.
fn text_of(message: &Value, mark: &str) -> Option<String> {
    if n_images_of(message) == 0 {
        return None;
    }
    let texts = parts_of(message).iter().map(|part| {
        if is_image(part) {
            Some(mark)
        } else if part["type"] == "text" {
            part["text"].as_str()
        } else {
            None
        }
    });
    texts.collect()
}
