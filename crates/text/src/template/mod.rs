//! Renders chat templates as transformers does, within limits on time and memory.
//!
//! The template comes from the model's files and its input from the client. Neither can crash the process.

mod probe;
mod variables;

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustc_hash::FxHashMap;
use serde_json::Value as Json;

use super::SpecialTokens;
use crate::chat::{ChatPrompt, Forms};
use crate::ending;
use crate::files::TemplateSources;
use crate::jinja::{Error, Fault, Limits, Template, Value};
use crate::messages::normalize;
use crate::refusal::invalid;
use crate::tool_place::{self, ToolPlace};
use crate::written::CallWriter;
use souffleur_base::error::RequestError;

const LIMITS: Limits = Limits {
    // Each message of a long chat takes a few hundred instructions.
    instructions: 5_000_000,
    memory_bytes: 256 << 20,
    output_bytes: 16 << 20,
};

/// Maximum number of characters that an error quotes from a template's error.
const MAX_MESSAGE_CHARS: usize = 1000;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Variables that a request's `chat_template_kwargs` may not set.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

#[derive(Debug)]
pub(super) struct ChatTemplate {
    templates: BTreeMap<&'static str, Template>,
    special: BTreeMap<&'static str, String>,
    expected: BTreeMap<&'static str, Forms>,
    file: PathBuf,
    compile_error: Option<String>,
    source: String,
    /// Bytes of the default template in `source`.
    default_bytes: usize,
}

impl ChatTemplate {
    pub(super) fn compile(sources: TemplateSources, special: &SpecialTokens) -> Self {
        let mut template = Self {
            templates: BTreeMap::new(),
            special: variables::of_tokens(special),
            expected: BTreeMap::new(),
            file: sources.file,
            compile_error: None,
            source: [
                sources.default.as_str(),
                sources.tool_use.as_deref().unwrap_or_default(),
            ]
            .concat(),
            default_bytes: sources.default.len(),
        };
        template.add(DEFAULT, &sources.default);
        if let Some(source) = &sources.tool_use {
            template.add(TOOL_USE, source);
        }
        template
    }

    /// The template for requests without tools.
    pub(super) fn default_source(&self) -> &str {
        &self.source[..self.default_bytes]
    }

    /// This template with other sources: those that `rewrite` returns for its own. It takes the same messages.
    pub(super) fn rewritten(&self, rewrite: impl Fn(&str) -> String) -> Self {
        let (default, tool_use) = self.source.split_at(self.default_bytes);
        let (default, tool_use) = (rewrite(default), rewrite(tool_use));
        let mut compile_error = self.compile_error.clone();
        let mut templates = BTreeMap::new();
        for name in self.templates.keys() {
            let source = if *name == TOOL_USE {
                &tool_use
            } else {
                &default
            };
            match Template::compile(source) {
                Ok(template) => {
                    templates.insert(*name, template);
                }
                Err(error) => compile_error = Some(error),
            }
        }
        Self {
            templates,
            special: self.special.clone(),
            expected: self.expected.clone(),
            file: self.file.clone(),
            compile_error,
            default_bytes: default.len(),
            source: default + &tool_use,
        }
    }

    /// Appends the calls of earlier answers to their content if the template leaves them out.
    pub(super) fn put_calls_into_content(&mut self, writer: CallWriter) {
        for expected in self.expected.values_mut() {
            expected.calls = expected.calls.in_content(writer);
        }
    }

    pub(super) fn render(&self, prompt: &ChatPrompt<'_>) -> Result<String, RequestError> {
        self.render_as(prompt, self.expected[self.name(prompt.tools.is_some())])
    }

    /// As [`Self::render`], for messages with parts `{"type": "image"}`.
    pub(super) fn render_with_images(
        &self,
        prompt: &ChatPrompt<'_>,
    ) -> Result<String, RequestError> {
        let mut expected = self.expected[self.name(prompt.tools.is_some())];
        // Without parts, a part that is an image is refused by its place.
        expected.content = expected.content.with_images().unwrap_or(expected.content);
        self.render_as(prompt, expected)
    }

    fn render_as(&self, prompt: &ChatPrompt<'_>, expected: Forms) -> Result<String, RequestError> {
        if let Some(reason) = &self.compile_error {
            return invalid(format!(
                "the chat template in {} does not compile: {reason}: send a plain prompt, or fix the template",
                self.file.display()
            ));
        }
        let name = self.name(prompt.tools.is_some());
        let mut messages = normalize(prompt.messages, expected)?;
        if let (ToolPlace::FirstMessage, Some(tools)) = (expected.tools, prompt.tools) {
            tool_place::put_into_messages(&mut messages, &variables::of_tools(tools)?)?;
        }
        let continued = prompt
            .continue_final_message
            .then(|| ending::mark(&mut messages));
        let mut variables = self.variables(prompt, &messages, expected)?;
        let template = &self.templates[name];
        let mut rendered = template.render(&variables, LIMITS);
        if let Err(Error {
            fault: Fault::Other(_),
            ..
        }) = &rendered
            && let Some(tools) = variables::with_parameters(&variables["tools"])
        {
            // Some templates read the properties of every tool, also of tools without parameters.
            variables.insert("tools".to_owned(), tools);
            rendered = template.render(&variables, LIMITS);
        }
        let text = match rendered {
            Ok(text) => text,
            Err(error) => return invalid(explain(&error)),
        };
        match continued {
            Some(blank_bytes) => ending::cut(text, blank_bytes),
            None => Ok(text),
        }
    }

    /// Returns whether system messages may come after a user's message. Chats with tools may have another template.
    pub(super) fn takes_late_system(&self, has_tools: bool) -> bool {
        self.expected[self.name(has_tools)].late_system
    }

    fn name(&self, has_tools: bool) -> &'static str {
        if has_tools && self.expected.contains_key(TOOL_USE) {
            TOOL_USE
        } else {
            DEFAULT
        }
    }

    pub(super) fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    fn add(&mut self, name: &'static str, source: &str) {
        let mut expected = Forms::of(source);
        match Template::compile(source) {
            Ok(template) => {
                self.templates.insert(name, template);
            }
            Err(error) => self.compile_error = Some(error),
        }
        let form = probe::call_form(source, |messages| {
            self.try_to_render(name, messages, expected)
        });
        if let Some((arguments, empty_content)) = form {
            expected.calls = expected.calls.with(arguments, empty_content);
        }
        expected.late_system =
            probe::takes_late_system(|messages| self.try_to_render(name, messages, expected));
        self.expected.insert(name, expected);
    }

    fn try_to_render(&self, name: &str, messages: &Json, expected: Forms) -> Option<String> {
        let template = self.templates.get(name)?;
        let unchanged = Forms {
            calls: expected.calls.as_given(),
            tools: ToolPlace::Variable,
            ..expected
        };
        let given = messages.as_array()?;
        let variables = self.variables(&ChatPrompt::new(messages), given, unchanged);
        template.render(&variables.ok()?, LIMITS).ok()
    }

    fn variables(
        &self,
        prompt: &ChatPrompt<'_>,
        messages: &[Json],
        expected: Forms,
    ) -> Result<FxHashMap<String, Value>, RequestError> {
        let mut variables = FxHashMap::default();
        for (name, token) in &self.special {
            variables.insert((*name).to_owned(), Value::text(token.as_str()));
        }
        for (name, value) in prompt.template_kwargs.into_iter().flatten() {
            if RESERVED.contains(&name.as_str()) {
                return invalid(format!(
                    "chat_template_kwargs.{name} is a variable that the server sets: leave it out"
                ));
            }
            variables.insert(name.clone(), variables::of_json(value)?);
        }
        // Templates ask `tools is not none`: without tools the variable exists and is none.
        let tools = match prompt.tools {
            Some(tools) => variables::of_tools(tools)?,
            None => Value::None,
        };
        if expected.tools == ToolPlace::XmlTools && prompt.tools.is_some() {
            let functions = tool_place::functions(&tools).map_err(variables::too_deep)?;
            variables
                .entry(tool_place::XML_TOOLS.to_owned())
                .or_insert(functions);
        }
        variables.insert("tools".to_owned(), tools);
        let messages = variables::of_messages(messages, expected.calls)?;
        variables.insert("messages".to_owned(), messages);
        variables
            .entry("documents".to_owned())
            .or_insert(Value::None);
        variables.insert(
            "add_generation_prompt".to_owned(),
            prompt.add_generation_prompt.into(),
        );
        Ok(variables)
    }
}

fn explain(error: &Error) -> String {
    let cut = |text: &str| match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    };
    let Limits {
        instructions,
        memory_bytes,
        output_bytes,
    } = LIMITS;
    match &error.fault {
        Fault::Raised(text) => format!("the chat template rejects the messages: {}", cut(text)),
        Fault::Instructions => format!(
            "the chat template executes more than {instructions} instructions: send fewer messages"
        ),
        Fault::Output => format!(
            "the chat template writes more than {output_bytes} bytes: send shorter messages"
        ),
        Fault::Memory => format!(
            "the chat template's values take more than {memory_bytes} bytes: send shorter messages"
        ),
        Fault::Depth | Fault::Other(_) => format!(
            "the chat template fails on the messages: {}",
            cut(&error.to_string())
        ),
    }
}

#[cfg(test)]
mod tests;
