//! Parses the body of `POST /v1/responses`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::ids::ResponseId;
use super::input::{self, StoreView};
use super::output::{Output, OutputSettings};
use super::pinning::Pinning;
use super::settings::Settings;
use super::store::{KeptTokens, Owner, StoredResponse, Turn};
use super::tools::{self, ToolNames};
use super::writer::{StoreJob, Writer, WriterParts};
use crate::budget::Charges;
use crate::call::{CallLimits, check_size};
use crate::constraint;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::foreign;
use crate::openai::chat::call::{UNLIMITED, template_kwargs};
use crate::openai::chat::reasoning::Reasoning;
use crate::openai::{Common, alternatives, refusals};
use crate::spelling::Spelling;
use souffleur_base::field::Keep;
use souffleur_engine::EngineHandle;
use souffleur_request::{ChatPrompt, GenerateRequest, KnownTurns, OutputParsing, ToolUse};

/// Other endpoints' names for fields of this endpoint. They are refused.
const OF_OTHERS: [&str; 4] = ["prompt", "messages", "max_tokens", "max_completion_tokens"];

pub(super) const MAX_INCLUDES: usize = 64;

pub(super) struct Call {
    id: ResponseId,
    pub(super) common: Common,
    settings: Settings,
    pub(super) prompt: ChatPrompt,
    tools: Option<Arc<ToolUse>>,
    names: ToolNames,
    reasoning: Reasoning,
    logprobs: Option<u32>,
    wants_encrypted: bool,
    is_warm_up: bool,
    store_job: Option<StoreJob>,
}

pub(super) struct ParseContext<'a> {
    pub(super) view: StoreView<'a>,
    pub(super) limits: CallLimits<'a>,
    pub(super) engine: &'a EngineHandle,
    /// Time for which the K/V of a conversation is pinned in the prefix cache; zero pins nothing.
    pub(super) pin_ttl: Duration,
}

impl Call {
    /// Parses a call. Returns it with the charges for the memory of its values.
    pub(super) fn parse(
        mut sent: Fields,
        parse_context: &ParseContext<'_>,
    ) -> Result<(Self, Charges), ApiError> {
        let fields = &mut sent;
        refusals::modalities(fields)?;
        let id = ResponseId::random();
        let mut settings = Settings::read(fields, &parse_context.engine.model().served_model_name)?;
        let is_warm_up = is_warm_up(fields)?;
        let earlier = earlier(&settings, &parse_context.view)?;
        let owner = owner(&settings, &parse_context.view);
        let input = input::read(fields, &parse_context.view, owner.as_ref().and(Some(&id)))?;
        let (tools, names) = tools::read(fields)?;
        let read_constraint = constraint::of_responses_call;
        let mut common = Common::read(fields, "response-", read_constraint, parse_context.limits)?;
        if common.sampling.n != 1 {
            return Err(ApiError::unsupported("n"));
        }
        check_size("n", 1, 1, parse_context.limits)?;
        settings.set_sampling(&common);
        let most = settings.max_output_tokens.unwrap_or(UNLIMITED);
        common.limit_length(if is_warm_up { 0 } else { most })?;
        let includes = Includes::read(fields)?;
        let logprobs = logprobs(fields, &includes)?;
        settings.top_logprobs = logprobs.unwrap_or(0);
        let mut kwargs = template_kwargs(fields)?;
        let reasoning = Reasoning::read(fields, &mut kwargs)?;
        foreign::refuse(fields, &OF_OTHERS)?;
        let setup_hash = setup_hash(&settings, tools.prompt.as_ref(), &kwargs);
        let new = input.messages;
        let store_job = match owner {
            Some(owner) => {
                let messages = serde_json::to_vec(&new).expect("messages have string keys only");
                fields.charge_request_bytes(messages.len())?;
                let turns = earlier.as_ref();
                Some(StoreJob {
                    store: parse_context.view.store.clone(),
                    owner,
                    input: input.items,
                    earlier: turns.map_or_else(Vec::new, |it| it.turns.clone()),
                    messages: (messages, new.len()),
                    setup_hash,
                    pinning: pinning(parse_context, &common, earlier.as_ref()),
                })
            }
            None => None,
        };
        let (messages, known) = messages(fields, &settings, earlier.as_deref(), new, setup_hash)?;
        let call = Self {
            id,
            common,
            settings,
            prompt: ChatPrompt {
                tools: tools.prompt,
                template_kwargs: kwargs,
                add_generation_prompt: !is_warm_up,
                known,
                ..ChatPrompt::new(Value::Array(messages))
            },
            tools: tools.usage,
            names,
            reasoning,
            logprobs,
            wants_encrypted: includes.encrypted,
            is_warm_up,
            store_job,
        };
        Ok((call, sent.into_charges()))
    }

    pub(super) fn into_parts(
        self,
        spelling: Spelling,
        lane: Option<Arc<str>>,
    ) -> (GenerateRequest, Writer) {
        let output = Output::new(OutputSettings {
            id: self.id.clone(),
            rid: self.common.id.clone(),
            names: Arc::new(self.names),
            hides_reasoning: self.reasoning == Reasoning::Hidden,
            wants_encrypted: self.wants_encrypted,
        });
        let writer = Writer::new(WriterParts {
            id: self.id,
            settings: self.settings,
            output,
            spelling: self.logprobs.map(|_| spelling),
            is_silent: !self.common.stream,
            lane,
            is_warm_up: self.is_warm_up,
            store_job: self.store_job,
        });
        let parsing = OutputParsing {
            tools: self.tools,
            separates_reasoning: self.reasoning != Reasoning::InText,
        };
        let is_parsed = parsing.tools.is_some() || parsing.separates_reasoning;
        let parsing = is_parsed.then_some(parsing);
        let request = self
            .common
            .into_chat_request(self.prompt, self.logprobs, parsing);
        (request, writer)
    }
}

/// Returns whether a call only computes its prompt, for later calls, and generates nothing.
fn is_warm_up(fields: &mut Fields) -> Result<bool, ApiError> {
    let generates = fields.optional_flag("generate")?.unwrap_or(true);
    let prewarms = fields.object("prompt_cache_options")?.flag("prewarm")?;
    Ok(!generates || prewarms)
}

fn earlier(
    settings: &Settings,
    view: &StoreView<'_>,
) -> Result<Option<Arc<StoredResponse>>, ApiError> {
    let Some(id) = &settings.previous_response_id else {
        return Ok(None);
    };
    let found = view.store.find(&ResponseId::from_client(id), &view.owner);
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(ApiError::no_previous_response(id)),
    }
}

/// The owner of the response; `None` if the response is not stored.
fn owner(settings: &Settings, view: &StoreView<'_>) -> Option<Owner> {
    let owner = if settings.store {
        Some(Owner::Anyone)
    } else {
        Some(view.owner.clone()).filter(|owner| *owner != Owner::Anyone)
    };
    owner.filter(|_| view.store.is_enabled())
}

fn pinning(
    parse_context: &ParseContext<'_>,
    common: &Common,
    earlier: Option<&Arc<StoredResponse>>,
) -> Option<Pinning> {
    (!parse_context.pin_ttl.is_zero()).then(|| Pinning {
        engine: parse_context.engine.clone(),
        namespace: common.namespace.clone(),
        ttl: parse_context.pin_ttl,
        earlier: earlier.cloned(),
    })
}

/// Returns all messages, and the tokens of the earlier messages if they are known.
fn messages(
    fields: &mut Fields,
    settings: &Settings,
    earlier: Option<&StoredResponse>,
    new: Vec<Value>,
    setup_hash: [u8; 32],
) -> Result<(Vec<Value>, Option<KnownTurns>), ApiError> {
    let mut all = Vec::new();
    if let Some(instructions) = &settings.instructions
        && !instructions.is_empty()
    {
        all.push(json!({"role": "system", "content": instructions}));
    }
    let mut known = None;
    if let Some(earlier) = earlier {
        let instructions = all.len();
        for turn in &earlier.turns {
            input::append_earlier(fields, &turn.messages, &mut all)?;
        }
        let messages = instructions + earlier.turns.iter().map(n_messages).sum::<usize>();
        let tokens = earlier.tokens.as_ref();
        let tokens = tokens.filter(|kept| kept.setup_hash == setup_hash && messages == all.len());
        known = tokens.map(|kept: &KeptTokens| KnownTurns {
            messages,
            tokens: kept.tokens.clone(),
            has_answer: kept.has_answer,
        });
    }
    all.extend(new);
    if all.is_empty() {
        Err(ApiError::field(
            "input",
            "input is missing: send a string or a list of items",
        ))
    } else {
        Ok((all, known))
    }
}

fn n_messages(turn: &Arc<Turn>) -> usize {
    turn.n_messages
}

/// Hash of everything that the template renders except the messages.
fn setup_hash(
    settings: &Settings,
    tools: Option<&impl serde::Serialize>,
    kwargs: &Map<String, Value>,
) -> [u8; 32] {
    let instructions = settings.instructions.as_deref().filter(|it| !it.is_empty());
    let template = serde_json::to_vec(&(instructions, tools, kwargs));
    Sha256::digest(template.expect("templates have string keys only")).into()
}

#[derive(Default)]
struct Includes {
    encrypted: bool,
    logprobs: bool,
}

impl Includes {
    fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        const NAME: &str = "include";
        let Some(raw) = fields.take_raw(NAME) else {
            return Ok(Self::default());
        };
        let list = raw.parse_with(NAME, Keep(MAX_INCLUDES))?;
        let field = souffleur_base::field::Field::new(NAME, &list);
        let mut includes = Self::default();
        for name in field.list("a list of strings", MAX_INCLUDES, "names")? {
            match name.as_str() {
                Some("reasoning.encrypted_content") => includes.encrypted = true,
                Some("message.output_text.logprobs") => includes.logprobs = true,
                // Other names refer to tools that run at OpenAI.
                _ => (),
            }
        }
        Ok(includes)
    }
}

/// Reads `top_logprobs` as the number of alternatives; `None` means no log probabilities.
fn logprobs(fields: &mut Fields, includes: &Includes) -> Result<Option<u32>, ApiError> {
    const NAME: &str = "top_logprobs";
    let top = fields.take(NAME)?;
    let top = top.map(|value| alternatives(NAME, &value)).transpose()?;
    Ok(match (top, includes.logprobs) {
        (None | Some(0), false) => None,
        (top, _) => Some(top.unwrap_or(0)),
    })
}
