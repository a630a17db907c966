//! Parses the bodies of `POST /api/chat` and `POST /api/generate`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::target::Target;
use super::{keep_alive, messages, names, options, suffix, thinking, tools};
use crate::budget::Charges;
use crate::call::{CallLimits, read_rid};
use crate::constraint;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::call::logprobs;
use crate::options::Options;
use souffleur_base::field::Field;
use souffleur_base::ids::RequestId;
use souffleur_request::{ChatPrompt, GenerateRequest, OutputParsing, Prompt};
use souffleur_state::grammar::{Constraint, JsonWhitespace};
use souffleur_state::sampling::{LogprobWish, SamplingParams};

/// A debugging aid of Ollama's: the call renders the prompt and generates nothing.
const DEBUG: &str = "_debug_render_only";
/// Fields of plain prompts that would change the answer and are not supported.
const UNSUPPORTED: [&str; 3] = ["template", "context", DEBUG];

pub(super) struct Call {
    /// The model's name as the client wrote it.
    pub(super) model: String,
    pub(super) wish: Wish,
}

pub(super) enum Wish {
    /// The call has no messages or prompt: it loads or unloads the model.
    Nothing {
        unloads: bool,
    },
    Answer(Box<Generation>),
}

pub(super) struct Generation {
    pub(super) request: GenerateRequest,
    pub(super) has_logprobs: bool,
    pub(super) charges: Charges,
}

pub(super) fn chat(mut fields: Fields, target: &Target<'_>) -> Result<Call, ApiError> {
    let model = names::take(&mut fields, &["model"], target.served_name())?;
    let unloads = keep_alive::is_zero(&mut fields)?;
    let messages = fields.peek("messages");
    if messages.is_none_or(|messages| messages.first_of_list() == Some(b']')) {
        let wish = Wish::Nothing { unloads };
        return Ok(Call { model, wish });
    }
    let messages = messages::read(&mut fields)?;
    let tools = tools::read(&mut fields)?;
    let settings = Settings::read(&mut fields, &model, target)?;
    fields.refuse(&[DEBUG])?;
    let continues = is_unfinished(&messages);
    let prompt = ChatPrompt {
        messages: Value::Array(messages),
        tools: tools.prompt,
        template_kwargs: settings.variables.clone(),
        add_generation_prompt: !continues,
        continue_final_message: continues,
        known: None,
        images: Vec::new(),
    };
    let parsing = OutputParsing {
        tools: tools.usage,
        separates_reasoning: true,
    };
    settings.into_call(model, prompt.into(), Some(parsing), (fields, target.limits))
}

/// Returns whether the last message is an answer that the model is to continue.
fn is_unfinished(messages: &[Value]) -> bool {
    let last = messages.last();
    last.is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none())
}

pub(super) fn generate(mut fields: Fields, target: &Target<'_>) -> Result<Call, ApiError> {
    let model = names::take(&mut fields, &["model"], target.served_name())?;
    let unloads = keep_alive::is_zero(&mut fields)?;
    fields.refuse(&UNSUPPORTED)?;
    let images = messages::images_of(&mut fields)?;
    let suffix = suffix::read(&mut fields, &model, target.loaded)?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        let wish = Wish::Nothing { unloads };
        return Ok(Call { model, wish });
    }
    let system = fields.string("system")?.filter(|system| !system.is_empty());
    let is_raw = fields.flag("raw")?;
    if is_raw && system.is_some() {
        let text = "system has no place in a raw prompt: put it into prompt, or leave raw out";
        return Err(ApiError::field("system", text));
    }
    if is_raw && suffix.is_some() {
        return Err(suffix::of_raw_prompt());
    }
    if !images.is_empty() && (is_raw || suffix.is_some()) {
        let text = "images have a place only in a chat template: leave raw and suffix out, or send no images";
        return Err(ApiError::field("images", text));
    }
    let settings = Settings::read(&mut fields, &model, target)?;
    let text = target.loaded.engine.text();
    let has_template = text.is_some_and(|text| text.has_chat_template());
    let (prompt, parsing) = if let Some(suffix) = suffix {
        (suffix::around(prompt, suffix), None)
    } else if is_raw || (!has_template && system.is_none() && images.is_empty()) {
        (Prompt::Text(prompt.into()), None)
    } else {
        let system = system.map(|system| json!({"role": "system", "content": system}));
        let content = messages::content_of(images, prompt);
        let user = json!({"role": "user", "content": content});
        let messages = system.into_iter().chain([user]).collect();
        let prompt = ChatPrompt {
            template_kwargs: settings.variables.clone(),
            ..ChatPrompt::new(Value::Array(messages))
        };
        let parsing = OutputParsing {
            tools: None,
            separates_reasoning: true,
        };
        (prompt.into(), Some(parsing))
    };
    settings.into_call(model, prompt, parsing, (fields, target.limits))
}

/// The fields that chats and plain prompts share.
struct Settings {
    id: RequestId,
    sampling: SamplingParams,
    constraint: Option<Arc<Constraint>>,
    /// Variables of the chat template.
    variables: Map<String, Value>,
    top_logprobs: Option<u32>,
    options: Options,
    is_stream: bool,
}

impl Settings {
    fn read(fields: &mut Fields, model: &str, target: &Target<'_>) -> Result<Self, ApiError> {
        let defaults = &target.loaded.engine.model().generation;
        Ok(Self {
            id: rid(fields)?,
            sampling: options::read(fields, defaults, target.limits.request)?,
            constraint: format(fields)?,
            variables: thinking::read(fields, model, target)?,
            top_logprobs: logprobs(fields)?,
            options: Options::table().read(fields, target.limits)?,
            is_stream: fields.optional_flag("stream")?.unwrap_or(true),
        })
    }

    fn into_call(
        self,
        model: String,
        prompt: Prompt,
        parsing: Option<OutputParsing>,
        (fields, limits): (Fields, CallLimits<'_>),
    ) -> Result<Call, ApiError> {
        let wish = |top| LogprobWish {
            start: None,
            top,
            token_ids: Arc::default(),
        };
        let request = GenerateRequest {
            rid: self.id,
            sampling: self.sampling,
            logprobs: self.top_logprobs.map(wish),
            constraint: self.constraint,
            parsing,
            namespace: self.options.namespace(limits)?,
            priority: self.options.scheduling.priority,
            timeouts: self.options.scheduling.timeouts,
            is_streaming: self.is_stream,
            ..GenerateRequest::new(prompt)
        };
        let generation = Generation {
            request,
            has_logprobs: self.top_logprobs.is_some(),
            charges: fields.into_charges(),
        };
        Ok(Call {
            model,
            wish: Wish::Answer(Box::new(generation)),
        })
    }
}

pub(super) fn rid(fields: &mut Fields) -> Result<RequestId, ApiError> {
    match fields.take("rid")? {
        Some(value) => read_rid(value),
        None => Ok(RequestId::new(format!("ollama-{}", RequestId::random()))),
    }
}

/// Reads `format`: JSON, or JSON by a schema.
fn format(fields: &mut Fields) -> Result<Option<Arc<Constraint>>, ApiError> {
    const NAME: &str = "format";
    let raw = fields.take_raw(NAME).filter(|raw| !raw.has_no_effect());
    let Some(raw) = raw else {
        return Ok(None);
    };
    if raw.is_object() {
        return constraint::of_schema(fields, NAME, raw);
    }
    let value = raw.shallow(NAME)?;
    match value.as_str() {
        Some("json") => {
            let json = Constraint::JsonObject(JsonWhitespace::default());
            Ok(Some(Arc::new(json)))
        }
        _ => {
            let wanted = "\"json\", or a JSON schema: an object";
            Err(Field::new(NAME, &value).must_be(wanted).into())
        }
    }
}
