//! Chat templates: Jinja as transformers renders it, with bounds.
//!
//! A template comes with the model's files. It cannot run long (fuel) nor write much (a bounded writer); the memory
//! of its own variables is not bounded, so take models from whom you would take weights.

mod probe;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;

use super::SpecialTokens;
use super::chat::{ChatPrompt, Expected, invalid};
use super::ending;
use super::files::TemplateSources;
use super::messages::normalize;
use super::python;
use super::tool_place::{self, ToolPlace};
use super::written::CallWriter;
use crate::error::RequestError;

/// Instructions that one rendering may execute; a long chat takes some hundred for each message.
const FUEL: u64 = 5_000_000;

/// Bytes that one rendering may write.
const MAX_OUTPUT_BYTES: usize = 16 << 20;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Variables that the engine sets: a request's `chat_template_kwargs` may not.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// The chat templates of a model, compiled.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    special: BTreeMap<&'static str, String>,
    /// The form in which each compiled template expects messages.
    expected: BTreeMap<&'static str, Expected>,
    file: PathBuf,
    /// Why a template did not compile.
    broken: Option<String>,
    /// The templates' text.
    source: String,
}

impl ChatTemplate {
    pub(super) fn compile(sources: TemplateSources, special: &SpecialTokens) -> Self {
        let mut template = Self {
            environment: environment(),
            special: variables(special),
            expected: BTreeMap::new(),
            file: sources.file,
            broken: None,
            source: [
                sources.default.as_str(),
                sources.tool_use.as_deref().unwrap_or_default(),
            ]
            .concat(),
        };
        template.add(DEFAULT, &sources.default);
        if let Some(source) = &sources.tool_use {
            template.add(TOOL_USE, source);
        }
        template
    }

    /// Has the calls of earlier answers in their content where a template leaves them out.
    pub(super) fn put_calls_into_content(&mut self, writer: CallWriter) {
        for expected in self.expected.values_mut() {
            expected.calls = expected.calls.in_content(writer);
        }
    }

    pub(super) fn render(&self, prompt: &ChatPrompt<'_>) -> Result<String, RequestError> {
        if let Some(reason) = &self.broken {
            return invalid(format!(
                "the chat template in {} does not compile: {reason}: send a plain prompt, or mend the template",
                self.file.display()
            ));
        }
        let name = self.name(prompt.tools.is_some());
        let template = self
            .environment
            .get_template(name)
            .expect("compiled, or else broken");
        let mut messages = normalize(prompt.messages, self.expected[name])?;
        let place = self.expected[name].tools;
        if let (ToolPlace::FirstMessage, Some(tools)) = (place, prompt.tools) {
            tool_place::put_into_messages(&mut messages, tools);
        }
        let continued = prompt
            .continue_final_message
            .then(|| ending::mark(&mut messages));
        let context = self.context(prompt, messages, place)?;
        let mut output = BoundedOutput::default();
        if let Err(error) = template.render_captured_to(context, &mut output) {
            return invalid(explain(&error));
        }
        let text = String::from_utf8(output.bytes).expect("the engine writes whole strings");
        match continued {
            Some(blank_bytes) => ending::cut(text, blank_bytes),
            None => Ok(text),
        }
    }

    /// Returns whether instructions may come after a user's message, in chats with or without tools.
    pub(super) fn takes_late_system(&self, has_tools: bool) -> bool {
        self.expected[self.name(has_tools)].late_system
    }

    /// The template for chats with or without tools.
    fn name(&self, has_tools: bool) -> &'static str {
        match has_tools && self.expected.contains_key(TOOL_USE) {
            true => TOOL_USE,
            false => DEFAULT,
        }
    }

    /// Returns whether a template's text contains this.
    pub(super) fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    fn add(&mut self, name: &'static str, source: &str) {
        let mut expected = Expected::of(source);
        let cleaned = without_generation_tags(source);
        if let Err(error) = self.environment.add_template_owned(name, cleaned) {
            self.broken = Some(error.to_string());
        }
        let form = probe::call_form(source, |messages| self.try_to_render(name, messages));
        if let Some((arguments, empty_content)) = form {
            expected.calls = expected.calls.with(arguments, empty_content);
        }
        expected.late_system =
            probe::takes_late_system(|messages| self.try_to_render(name, messages));
        self.expected.insert(name, expected);
    }

    /// Renders messages as they are.
    fn try_to_render(&self, name: &str, messages: &Json) -> Option<String> {
        let template = self.environment.get_template(name).ok()?;
        let messages_of = messages.as_array()?.clone();
        let context = self.context(&ChatPrompt::new(messages), messages_of, ToolPlace::Variable);
        let mut output = BoundedOutput::default();
        template
            .render_captured_to(context.ok()?, &mut output)
            .ok()?;
        String::from_utf8(output.bytes).ok()
    }

    fn context(
        &self,
        prompt: &ChatPrompt<'_>,
        messages: Vec<Json>,
        place: ToolPlace,
    ) -> Result<Value, RequestError> {
        let mut variables: BTreeMap<String, Value> = BTreeMap::new();
        for (name, token) in &self.special {
            variables.insert((*name).to_owned(), Value::from(token.as_str()));
        }
        for (name, value) in prompt.template_kwargs.into_iter().flatten() {
            if RESERVED.contains(&name.as_str()) {
                return invalid(format!(
                    "chat_template_kwargs.{name} is set by the request itself: leave it out"
                ));
            }
            variables.insert(name.clone(), Value::from(Serde(value)));
        }
        if let (ToolPlace::XmlTools, Some(tools)) = (place, prompt.tools) {
            let functions = || Value::from(Serde(tool_place::functions(tools)));
            variables
                .entry(tool_place::XML_TOOLS.to_owned())
                .or_insert_with(functions);
        }
        variables.insert("messages".to_owned(), Value::from(Serde(messages)));
        // Templates ask `tools is not none`: without tools the variable exists and is none.
        variables.insert("tools".to_owned(), Value::from(Serde(prompt.tools)));
        variables
            .entry("documents".to_owned())
            .or_insert(Value::from(()));
        variables.insert(
            "add_generation_prompt".to_owned(),
            Value::from(prompt.add_generation_prompt),
        );
        Ok(Value::from(variables))
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.expect("the default delimiters are valid"));
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(python::write);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", python::string);
    environment.add_test("iterable", python::is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", python::strftime_now);
    environment
}

fn variables(special: &SpecialTokens) -> BTreeMap<&'static str, String> {
    [
        ("bos_token", &special.bos),
        ("eos_token", &special.eos),
        ("pad_token", &special.pad),
        ("unk_token", &special.unk),
    ]
    .into_iter()
    .filter_map(|(name, token)| Some((name, token.clone()?)))
    .collect()
}

/// transformers marks the assistant's tokens for training with `{% generation %}` blocks, which print as they are.
fn without_generation_tags(source: &str) -> String {
    let mut cleaned = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let tag = &rest[start..start + length + 2];
        cleaned.push_str(&rest[..start]);
        let name = tag[2..length].trim_matches(['-', '+', ' ', '\t', '\n']);
        match name {
            "generation" => cleaned.push_str(&tag.replace(name, "if true")),
            "endgeneration" => cleaned.push_str(&tag.replace(name, "endif")),
            _ => cleaned.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    cleaned + rest
}

/// The template itself refuses the messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(text: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(text)))
}

fn explain(error: &Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(text)) = error.downcast_ref() {
            return format!("the chat template refuses the messages: {text}");
        }
        if error
            .downcast_ref::<Error>()
            .is_some_and(|error| error.kind() == ErrorKind::OutOfFuel)
        {
            return format!(
                "the chat template takes more than {FUEL} instructions: send fewer messages"
            );
        }
        if error.downcast_ref::<io::Error>().is_some() {
            return format!(
                "the chat template writes more than {MAX_OUTPUT_BYTES} bytes: send shorter messages"
            );
        }
        cause = error.source();
    }
    format!("the chat template fails on the messages: {error}")
}

#[derive(Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
