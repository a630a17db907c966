//! Writes tool calls in each model family's format, which [`state::output`](souffleur_state::output) parses.

mod braced;
pub(super) mod messages;
mod pythonic;
mod schemas;
mod several;
mod values;
pub(super) mod xml;

use serde_json::{Value, json};

use super::limits::GrammarLimits;
use super::markers::Markers;
use super::part::{Free, Part, Triggered};
use super::schema::{self, Objects};
use souffleur_base::error::FieldError;
use souffleur_state::output::{Tool, ToolChoice, ToolFormat, ToolUse};

/// The field of the request that errors name.
const FIELD: &str = "tools";

/// The text that begins calls inside of an answer.
pub(super) fn trigger(format: ToolFormat) -> &'static str {
    match format {
        ToolFormat::Hermes | ToolFormat::Qwen3Coder | ToolFormat::Glm45 | ToolFormat::Glm47 => {
            "<tool_call>"
        }
        ToolFormat::Lfm2 => "<|tool_call_start|>",
        ToolFormat::Gemma4 => "<|tool_call>",
        ToolFormat::DeepSeekV3 | ToolFormat::DeepSeekV31 => "<｜tool▁calls▁begin｜>",
        ToolFormat::GptOss => "<|channel|>",
        ToolFormat::Granite | ToolFormat::Phi4Mini => "<|tool_call|>",
        ToolFormat::Mistral => "[TOOL_CALLS]",
        ToolFormat::Llama3 => "<|python_tag|>",
        ToolFormat::Pythonic => "<|python_start|>",
    }
}

/// Which arguments follow the schemas of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    /// The arguments of all tools follow their schemas, where these are supported.
    Typed,
    /// The arguments of strict tools follow their schemas. Other tools take any object.
    OnlyStrict,
}

pub(super) struct Calls<'a> {
    pub(super) tools: &'a ToolUse,
    pub(super) format: ToolFormat,
    pub(super) arguments: Arguments,
    pub(super) markers: &'a Markers,
    pub(super) limits: &'a GrammarLimits,
}

impl Calls<'_> {
    /// One call, or several if parallel calls are allowed, without other text.
    pub(super) fn only(&self) -> Result<Part, FieldError> {
        let Form {
            begin,
            first,
            call,
            separator,
            end,
        } = self.form()?;
        let mut parts = vec![begin];
        match first {
            None => parts.push(call.clone()),
            Some(first) => parts.push(first),
        }
        parts.push(self.more(call, separator));
        parts.push(match end {
            None => self.line_after(),
            Some(end) => end,
        });
        Ok(Part::Sequence(parts))
    }

    /// Free text in which calls may begin.
    pub(super) fn free(&self) -> Result<Part, FieldError> {
        let bare = match self.format {
            ToolFormat::Llama3 => Some(LLAMA_BEGIN),
            ToolFormat::Pythonic => Some(PYTHONIC_BEGIN),
            _ => None,
        };
        let mut triggers = vec![(trigger(self.format).to_owned(), self.after_trigger()?)];
        triggers.extend(self.loose()?);
        let text = Part::Triggered(Triggered {
            free: Free {
                not_at_first: bare.map(str::to_owned),
                ..Free::default()
            },
            triggers,
            at_least_one: false,
            stops_after_first: self.tools.is_single(),
        });
        Ok(match bare {
            None => text,
            Some(_) => Part::Choice(vec![self.only()?, text]),
        })
    }

    /// The part that follows a trigger.
    fn after_trigger(&self) -> Result<Part, FieldError> {
        let choice = |calls: Vec<Part>| Part::Choice(calls);
        match self.format {
            ToolFormat::Hermes => Ok(choice(self.each(&mut |tool| self.hermes(tool, ""))?)),
            ToolFormat::Qwen3Coder => Ok(choice(self.each(&mut |tool| self.qwen(tool, ""))?)),
            ToolFormat::Mistral if self.has_args_marker() => {
                Ok(choice(self.each(&mut |tool| self.mistral(tool, ""))?))
            }
            ToolFormat::Mistral => {
                let calls = choice(self.each(&mut |tool| self.object(tool, "arguments"))?);
                Ok(Part::Sequence(vec![
                    Part::Terminal("/ ?\\[/".to_owned()),
                    self.in_parallel(calls, ", "),
                    Part::text("]"),
                ]))
            }
            ToolFormat::Llama3 => {
                let calls = choice(self.each(&mut |tool| self.object(tool, "parameters"))?);
                Ok(self.in_parallel(calls, "; "))
            }
            ToolFormat::Glm45 => Ok(choice(self.each(&mut |tool| self.glm(tool, "", "\n"))?)),
            ToolFormat::Glm47 => Ok(choice(self.each(&mut |tool| self.glm(tool, "", ""))?)),
            ToolFormat::Lfm2 => {
                let calls = choice(self.each(&mut |tool| self.pythonic(tool, ""))?);
                Ok(Part::Sequence(vec![
                    Part::text("["),
                    self.in_parallel(calls, ", "),
                    Part::text("]<|tool_call_end|>"),
                ]))
            }
            ToolFormat::DeepSeekV3 | ToolFormat::DeepSeekV31 => {
                let calls = choice(self.each(&mut |tool| self.deepseek(tool))?);
                Ok(Part::Sequence(vec![
                    self.in_parallel(calls, self.deepseek_separator()),
                    Part::text("<｜tool▁calls▁end｜>"),
                ]))
            }
            ToolFormat::Gemma4 => Ok(choice(self.each(&mut |tool| self.braced(tool, ""))?)),
            ToolFormat::Granite | ToolFormat::Phi4Mini => {
                let calls = choice(self.each(&mut |tool| self.object(tool, "arguments"))?);
                Ok(Part::Sequence(vec![
                    Part::text("["),
                    self.in_parallel(calls, ", "),
                    Part::text(self.end_of_list()),
                ]))
            }
            ToolFormat::GptOss => Err(messages::needs_chat()),
            ToolFormat::Pythonic => {
                let calls = choice(self.each(&mut |tool| self.pythonic(tool, ""))?);
                Ok(Part::Sequence(vec![
                    Part::text("["),
                    self.in_parallel(calls, ", "),
                    Part::text("]<|python_end|>"),
                ]))
            }
        }
    }

    fn form(&self) -> Result<Form, FieldError> {
        Ok(match self.format {
            ToolFormat::Hermes => {
                let calls = self.each(&mut |tool| self.hermes(tool, "<tool_call>"))?;
                Form::separated(calls, Part::text("\n"))
            }
            ToolFormat::Qwen3Coder => {
                let calls = self.each(&mut |tool| self.qwen(tool, "<tool_call>"))?;
                Form::separated(calls, Part::text("\n"))
            }
            ToolFormat::Mistral if self.has_args_marker() => {
                let calls = self.each(&mut |tool| self.mistral(tool, "[TOOL_CALLS]"))?;
                Form::separated(calls, nothing())
            }
            ToolFormat::Mistral => self.mistral_list()?,
            ToolFormat::Llama3 => Form {
                begin: Part::Choice(vec![nothing(), Part::text("<|python_tag|>")]),
                first: None,
                call: Part::Choice(self.each(&mut |tool| self.object(tool, "parameters"))?),
                separator: Part::text("; "),
                end: None,
            },
            ToolFormat::Glm45 => {
                let calls = self.each(&mut |tool| self.glm(tool, "<tool_call>", "\n"))?;
                Form::separated(calls, Part::text("\n"))
            }
            ToolFormat::Glm47 => {
                let calls = self.each(&mut |tool| self.glm(tool, "<tool_call>", ""))?;
                Form::separated(calls, nothing())
            }
            ToolFormat::Lfm2 => {
                let calls = self.each(&mut |tool| self.pythonic(tool, ""))?;
                Form::list("<|tool_call_start|>[", calls, ", ", "]<|tool_call_end|>")
            }
            ToolFormat::DeepSeekV3 | ToolFormat::DeepSeekV31 => {
                let calls = self.each(&mut |tool| self.deepseek(tool))?;
                Form::list(
                    "<｜tool▁calls▁begin｜>",
                    calls,
                    self.deepseek_separator(),
                    "<｜tool▁calls▁end｜>",
                )
            }
            ToolFormat::Gemma4 => {
                let calls = self.each(&mut |tool| self.braced(tool, "<|tool_call>"))?;
                Form::separated(calls, nothing())
            }
            ToolFormat::Granite | ToolFormat::Phi4Mini => {
                let calls = self.each(&mut |tool| self.object(tool, "arguments"))?;
                Form::list("<|tool_call|>[", calls, ", ", self.end_of_list())
            }
            ToolFormat::GptOss => return Err(messages::needs_chat()),
            ToolFormat::Pythonic => Form {
                begin: nothing(),
                // The bracket is in the text of the call: alone, it would be a shorter match than free text.
                first: Some(Part::Choice(
                    self.each(&mut |tool| self.pythonic(tool, "["))?,
                )),
                call: Part::Choice(self.each(&mut |tool| self.pythonic(tool, ""))?),
                separator: Part::text(", "),
                end: Some(Part::text("]")),
            },
        })
    }

    /// The calls of each tool that may be called.
    fn each(
        &self,
        call: &mut dyn FnMut(&Tool) -> Result<Part, FieldError>,
    ) -> Result<Vec<Part>, FieldError> {
        let named = match &self.tools.choice {
            ToolChoice::Named(name) => Some(name),
            ToolChoice::Auto | ToolChoice::Allowed | ToolChoice::Required => None,
        };
        let tools = self.tools.tools.iter();
        let tools = tools.filter(|tool| named.is_none_or(|name| *name == tool.name));
        let calls: Vec<Part> = tools.map(call).collect::<Result<_, _>>()?;
        if !calls.is_empty() {
            Ok(calls)
        } else {
            Err(FieldError::new(
                "tool_choice",
                "tool_choice names a tool that is not in tools: name one of them",
            ))
        }
    }

    fn mistral_list(&self) -> Result<Form, FieldError> {
        let begin = vec![
            Part::text("[TOOL_CALLS]"),
            Part::Terminal("/ ?\\[/".to_owned()),
        ];
        let calls = self.each(&mut |tool| self.object(tool, "arguments"))?;
        Ok(Form {
            begin: Part::Sequence(begin),
            first: None,
            call: Part::Choice(calls),
            separator: Part::text(", "),
            end: Some(Part::text("]")),
        })
    }

    fn hermes(&self, tool: &Tool, begin: &str) -> Result<Part, FieldError> {
        Ok(Part::Sequence(vec![
            Part::text(format!("{begin}\n")),
            self.object(tool, "arguments")?,
            Part::text("\n</tool_call>"),
        ]))
    }

    /// Writes the parameters of a call between tags.
    fn parameters(&self, tool: &Tool, tags: xml::Tags) -> Result<Part, FieldError> {
        let parameters = match self.schema(tool)? {
            Some(schema) => {
                xml::parameters(&place(tool), &schema, tags).map_err(|error| error.within(FIELD))
            }
            None => Ok(xml::any_parameters(tags)),
        };
        match parameters {
            Err(_) if !tool.strict => Ok(xml::any_parameters(tags)),
            parameters => parameters,
        }
    }

    fn glm(&self, tool: &Tool, begin: &str, line: &'static str) -> Result<Part, FieldError> {
        Ok(Part::Sequence(vec![
            Part::text(format!("{begin}{}{line}", tool.name)),
            self.parameters(tool, xml::Tags::glm(line))?,
            Part::text("</tool_call>"),
        ]))
    }

    fn deepseek(&self, tool: &Tool) -> Result<Part, FieldError> {
        let name = &tool.name;
        let (begin, end) = match self.format {
            ToolFormat::DeepSeekV3 => (format!("function<｜tool▁sep｜>{name}\n```json\n"), "\n```"),
            _ => (format!("{name}<｜tool▁sep｜>"), ""),
        };
        Ok(Part::Sequence(vec![
            Part::text(format!("<｜tool▁call▁begin｜>{begin}")),
            self.arguments(tool)?,
            Part::text(format!("{end}<｜tool▁call▁end｜>")),
        ]))
    }

    fn braced(&self, tool: &Tool, begin: &str) -> Result<Part, FieldError> {
        let arguments = match self.schema(tool)? {
            Some(schema) => {
                braced::arguments(&place(tool), &schema).map_err(|error| error.within(FIELD))
            }
            None => Ok(braced::any_arguments()),
        };
        let arguments = match arguments {
            Err(_) if !tool.strict => braced::any_arguments(),
            arguments => arguments?,
        };
        Ok(Part::Sequence(vec![
            Part::text(format!("{begin}call:{}{{", tool.name)),
            arguments,
            Part::text("}<tool_call|>"),
        ]))
    }

    /// The end of a list of objects after `<|tool_call|>`.
    fn end_of_list(&self) -> &'static str {
        match self.format {
            ToolFormat::Phi4Mini => "]<|/tool_call|>",
            _ => "]",
        }
    }

    fn deepseek_separator(&self) -> &'static str {
        match self.format {
            ToolFormat::DeepSeekV3 => "\n",
            _ => "",
        }
    }

    fn qwen(&self, tool: &Tool, begin: &str) -> Result<Part, FieldError> {
        let parameters = self.parameters(tool, xml::Tags::QWEN)?;
        Ok(Part::Sequence(vec![
            Part::text(format!("{begin}\n<function={}>\n", tool.name)),
            parameters,
            Part::text("</function>\n</tool_call>"),
        ]))
    }

    fn mistral(&self, tool: &Tool, begin: &str) -> Result<Part, FieldError> {
        Ok(Part::Sequence(vec![
            Part::text(format!("{begin}{}[ARGS]", tool.name)),
            self.arguments(tool)?,
        ]))
    }

    fn pythonic(&self, tool: &Tool, begin: &str) -> Result<Part, FieldError> {
        let arguments = match self.schema(tool)? {
            Some(schema) => {
                pythonic::arguments(&place(tool), &schema).map_err(|error| error.within(FIELD))
            }
            None => Ok(pythonic::any_arguments()),
        };
        let arguments = match arguments {
            Err(_) if !tool.strict => pythonic::any_arguments(),
            arguments => arguments?,
        };
        Ok(Part::Sequence(vec![
            Part::text(format!("{begin}{}(", tool.name)),
            arguments,
            Part::text(")"),
        ]))
    }

    fn object(&self, tool: &Tool, arguments: &str) -> Result<Part, FieldError> {
        let name = Value::from(tool.name.as_str());
        Ok(Part::Sequence(vec![
            Part::text(format!("{{\"name\": {name}, \"{arguments}\": ")),
            self.arguments(tool)?,
            Part::text("}"),
        ]))
    }

    fn arguments(&self, tool: &Tool) -> Result<Part, FieldError> {
        let schema = self.schema(tool)?;
        Ok(Part::json(
            schema.unwrap_or_else(|| json!({"type": "object"})),
        ))
    }

    /// The schema of the arguments; `None` if any object is allowed.
    fn schema(&self, tool: &Tool) -> Result<Option<Value>, FieldError> {
        let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
        let Some(schema) = &tool.parameters else {
            return Ok(Some(none()));
        };
        let objects = match (tool.strict, self.arguments) {
            (true, _) => Objects::Closed,
            (false, Arguments::Typed) => Objects::AsWritten,
            (false, Arguments::OnlyStrict) => return Ok(None),
        };
        let checked = schema::checked(&place(tool), schema, objects, self.limits);
        match checked.map(with_object_type) {
            Ok(schema) => Ok(Some(schema)),
            Err(_) if !tool.strict => Ok(None),
            Err(error) => Err(error.within(FIELD)),
        }
    }

    fn has_args_marker(&self) -> bool {
        self.markers.id("[ARGS]").is_some()
    }
}

/// The beginning of a call without a tag: its first key is `name`, or has an escape that may spell `name`.
const LLAMA_BEGIN: &str = r#"\s*\{\s*"(?:name"|[^"\\]*\\)"#;
/// The beginning of a call in a Python list.
const PYTHONIC_BEGIN: &str = r"\s*\[\s*[A-Za-z_][A-Za-z0-9_.\-]*\s*\(";

struct Form {
    begin: Part,
    /// The first call, if it is written differently.
    first: Option<Part>,
    call: Part,
    separator: Part,
    /// The text after the last call; `None` if the calls need none.
    end: Option<Part>,
}

impl Form {
    /// Calls with a text between them.
    fn separated(calls: Vec<Part>, separator: Part) -> Self {
        Self {
            begin: nothing(),
            first: None,
            call: Part::Choice(calls),
            separator,
            end: None,
        }
    }

    /// Calls between a text before the first one and a text after the last one.
    fn list(begin: &str, calls: Vec<Part>, separator: &str, end: &str) -> Self {
        Self {
            begin: Part::text(begin),
            first: None,
            call: Part::Choice(calls),
            separator: Part::text(separator),
            end: Some(Part::text(end)),
        }
    }
}

fn nothing() -> Part {
    Part::Sequence(Vec::new())
}

/// Names the schema of a tool in errors.
fn place(tool: &Tool) -> String {
    format!("tools, in the parameters of {:?},", tool.name)
}

/// Adds the type `object`: arguments are objects, even if the schema does not require it.
fn with_object_type(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.entry("type").or_insert_with(|| "object".into());
    }
    schema
}
