//! Calls: requests that arrive together and may share prompts. Each distinct prompt has a weight, the estimated cost of
//! encoding it. The sender of a call computes the weights, because examining a large prompt would delay the Tokenizer.

use std::collections::hash_map::Entry;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use crate::pictures;
use souffleur_base::error::RequestError;
use souffleur_base::field::count_values;
use souffleur_request::sink::EventSink;
use souffleur_request::{CancelFlag, GenerateRequest, OutputParsing, Prompt, ToolChoice};
use souffleur_state::grammar::Constraint;

/// Weight of a grammar, in bytes of text that take as long to encode: compiling takes some milliseconds.
const GRAMMAR_WEIGHT: usize = 16 << 10;

#[derive(Debug)]
pub struct Asked {
    pub request: GenerateRequest,
    /// Receives the events. Holds the admission permit, or takes one when the Tokenizer reads the request.
    pub sink: EventSink,
    /// Raised by the client to cancel, before it sends `CancelRequest`.
    pub cancel: CancelFlag,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct OutputForm {
    pub(crate) constraint: Option<Arc<Constraint>>,
    pub(crate) parsing: Option<OutputParsing>,
    /// Steps of an output may have drafts, where the engine speculates.
    pub(crate) may_draft: bool,
    /// A guess of the outputs' text, if their steps may have drafts.
    pub(crate) prediction: Option<Arc<Predicted>>,
}

/// A guess of outputs' text. The prompts of a call with the same guess share it, so it is encoded and stored once.
#[derive(Debug)]
pub(crate) struct Predicted {
    text: Arc<str>,
    tokens: OnceLock<Result<Arc<[u32]>, RequestError>>,
}

/// The distinct prompts of some requests, each with the form of its outputs.
#[derive(Debug, Default)]
pub struct Prompts {
    distinct: Vec<WeightedPrompt>,
    of_request: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct WeightedPrompt {
    pub(crate) prompt: Prompt,
    pub(crate) form: OutputForm,
    /// Cost of preparing the prompt: bytes of text and number of JSON values to encode, and the weights of the grammar and
    /// of images.
    pub(crate) weight: usize,
    /// The part of `weight` for the prediction; 0 if an earlier prompt has the same one.
    prediction_weight: usize,
    estimated_tokens: usize,
}

impl Prompts {
    /// Requests share a prompt if their prompts and output forms are at the same addresses.
    pub fn of<'a>(requests: impl Iterator<Item = &'a GenerateRequest>) -> Self {
        let mut prompts = Self::default();
        let mut known = FxHashMap::default();
        let mut predictions = Predictions::default();
        for request in requests {
            let index = *known.entry(Address::of(request)).or_insert_with(|| {
                let weighed = WeightedPrompt::new(request, &mut predictions);
                prompts.distinct.push(weighed);
                prompts.distinct.len() - 1
            });
            prompts.distinct[index].form.may_draft |= may_draft(request);
            prompts.of_request.push(index);
        }
        prompts
    }

    pub fn estimated_tokens(&self, request: usize) -> usize {
        self.distinct[self.of_request[request]].estimated_tokens
    }

    pub(crate) fn index_of(&self, request: usize) -> usize {
        self.of_request[request]
    }

    pub(crate) fn into_distinct(self) -> Vec<WeightedPrompt> {
        self.distinct
    }
}

impl WeightedPrompt {
    fn new(request: &GenerateRequest, predictions: &mut Predictions) -> Self {
        let prompt = &request.prompt;
        let prediction = prediction(request).map(|text| predictions.of(text));
        let (prediction, prediction_weight) = prediction.unzip();
        let prediction_weight = prediction_weight.unwrap_or(0);
        let form = OutputForm {
            constraint: request.constraint.clone(),
            parsing: request.parsing.clone(),
            may_draft: may_draft(request),
            prediction,
        };
        let values = match prompt {
            Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Infill(_) => 0,
            Prompt::Vectors(_) | Prompt::Images(_) | Prompt::TextImages(_) => 0,
            Prompt::Chat(chat) => {
                let tools = chat.tools.as_ref();
                let tools = tools.map_or(0, |tools| count_values(tools.get().as_bytes()));
                n_values(&chat.messages) + tools + n_values_in(&chat.template_kwargs)
            }
        };
        let pixels = pictures::weight(prompt.image_files());
        Self {
            prompt: prompt.clone(),
            weight: prompt.text_bytes() + values + form.weight() + pixels + prediction_weight,
            prediction_weight,
            form,
            estimated_tokens: prompt.estimated_tokens(),
        }
    }

    /// Forgets the prediction: the engine does not speculate.
    pub(crate) fn drop_prediction(&mut self) {
        self.form.prediction = None;
        self.weight -= std::mem::take(&mut self.prediction_weight);
    }
}

impl Predicted {
    /// The tokens, which `encode` makes the first time.
    ///
    /// # Errors
    /// Those of `encode`, each time.
    pub(crate) fn tokens(
        &self,
        encode: impl FnOnce(&str) -> Result<Arc<[u32]>, RequestError>,
    ) -> Result<Arc<[u32]>, RequestError> {
        self.tokens.get_or_init(|| encode(&self.text)).clone()
    }
}

/// The predictions of a call, by their addresses.
#[derive(Default)]
struct Predictions(FxHashMap<*const (), Arc<Predicted>>);

impl Predictions {
    /// The prediction with this text, and the weight of encoding it: 0 if an earlier prompt has it too.
    fn of(&mut self, text: &Arc<str>) -> (Arc<Predicted>, usize) {
        match self.0.entry(Arc::as_ptr(text).cast()) {
            Entry::Occupied(known) => (known.get().clone(), 0),
            Entry::Vacant(new) => {
                let predicted = Predicted {
                    text: text.clone(),
                    tokens: OnceLock::new(),
                };
                (new.insert(Arc::new(predicted)).clone(), text.len())
            }
        }
    }
}

impl OutputForm {
    /// True if the outputs need a compiled grammar.
    pub(crate) fn is_constrained(&self) -> bool {
        let parsing = self.parsing.as_ref();
        let tools = parsing.and_then(|parsing| parsing.tools.as_deref());
        self.constraint.is_some()
            || tools.is_some_and(|tools| {
                tools.choice != ToolChoice::Auto || tools.tools.iter().any(|tool| tool.strict)
            })
    }

    fn weight(&self) -> usize {
        if self.is_constrained() {
            GRAMMAR_WEIGHT
        } else {
            0
        }
    }
}

/// False if the request turns drafts off, or has embeddings for a prompt, which have none.
fn may_draft(request: &GenerateRequest) -> bool {
    let room = request.sampling.speculative_num_draft_tokens;
    room.is_none_or(|room| room > 1) && !matches!(request.prompt, Prompt::Vectors(_))
}

/// The request's prediction, if its steps may have drafts.
fn prediction(request: &GenerateRequest) -> Option<&Arc<str>> {
    let prediction = request.prediction.as_ref();
    prediction.filter(|_| may_draft(request))
}

/// Memory addresses of a prompt and of the form of its outputs.
#[derive(PartialEq, Eq, Hash)]
struct Address {
    prompt: *const (),
    constraint: Option<*const Constraint>,
    tools: Option<*const ()>,
    parses: bool,
    separates_reasoning: bool,
    prediction: Option<*const ()>,
}

impl Address {
    fn of(request: &GenerateRequest) -> Self {
        let parsing = request.parsing.as_ref();
        let tools = parsing.and_then(|parsing| parsing.tools.as_ref());
        Self {
            prompt: match &request.prompt {
                Prompt::Text(text) => Arc::as_ptr(text).cast(),
                Prompt::Tokens(tokens) => Arc::as_ptr(tokens).cast(),
                Prompt::Chat(chat) => Arc::as_ptr(chat).cast(),
                Prompt::Infill(infill) => Arc::as_ptr(infill).cast(),
                Prompt::Vectors(vectors) => Arc::as_ptr(vectors).cast(),
                Prompt::Images(prompt) => Arc::as_ptr(prompt).cast(),
                Prompt::TextImages(prompt) => Arc::as_ptr(prompt).cast(),
            },
            constraint: request.constraint.as_ref().map(Arc::as_ptr),
            tools: tools.map(|tools| Arc::as_ptr(tools).cast()),
            parses: parsing.is_some(),
            separates_reasoning: parsing.is_some_and(|parsing| parsing.separates_reasoning),
            prediction: prediction(request).map(|text| Arc::as_ptr(text).cast()),
        }
    }
}

/// Counts a JSON value and all values in it. Empty lists have no text, but also take time to render.
fn n_values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(n_values).sum::<usize>(),
        Value::Object(fields) => 1 + n_values_in(fields),
        _ => 1,
    }
}

fn n_values_in(fields: &Map<String, Value>) -> usize {
    fields.values().map(n_values).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_a_prompt_only_at_the_same_address() {
        let prompt = |text: &str| GenerateRequest::new(Prompt::Text(text.into()));
        let (one, other) = (prompt("one"), prompt("one"));
        let requests = [one.clone(), other.clone(), one];
        let prompts = Prompts::of(requests.iter());
        assert_eq!(
            [0, 1, 2].map(|request| prompts.index_of(request)),
            [0, 1, 0]
        );
        assert_eq!(prompts.into_distinct().len(), 2);
    }

    #[test]
    fn requests_with_other_predictions_share_no_prompt() {
        let plain = GenerateRequest::new(Prompt::Text("one".into()));
        let with = |text: &str| GenerateRequest {
            prediction: Some(text.into()),
            ..plain.clone()
        };
        let mut off = with("three");
        off.sampling.speculative_num_draft_tokens = Some(0);
        let requests = [plain.clone(), with("two"), off];
        let prompts = Prompts::of(requests.iter());
        assert_eq!(
            [0, 1, 2].map(|request| prompts.index_of(request)),
            [0, 1, 0]
        );
        let distinct = prompts.into_distinct();
        assert_eq!(distinct[1].weight, distinct[0].weight + "two".len());
    }

    #[test]
    fn prompts_share_a_prediction_at_the_same_address() {
        let prediction: Arc<str> = "guess".into();
        let with = |prompt: &str| GenerateRequest {
            prediction: Some(prediction.clone()),
            ..GenerateRequest::new(Prompt::Text(prompt.into()))
        };
        let requests = [with("one"), with("two"), with("six")];
        let mut distinct = Prompts::of(requests.iter()).into_distinct();
        let weights = [0, 1, 2].map(|prompt| distinct[prompt].weight);
        assert_eq!(weights, [8, 3, 3]);
        let mut n_encoded = 0;
        for weighed in &distinct {
            let predicted = weighed.form.prediction.as_ref().expect("it has one");
            let tokens = predicted.tokens(|text| {
                n_encoded += 1;
                Ok([text.len() as u32].into())
            });
            assert_eq!(tokens.as_deref(), Ok(&[5][..]));
        }
        assert_eq!(n_encoded, 1);
        distinct
            .iter_mut()
            .for_each(WeightedPrompt::drop_prediction);
        assert!(distinct.iter().all(|weighed| weighed.weight == 3));
    }

    #[test]
    fn a_prompt_may_have_drafts_if_one_of_its_requests_may() {
        let on = GenerateRequest::new(Prompt::Text("one".into()));
        let mut off = on.clone();
        off.sampling.speculative_num_draft_tokens = Some(1);
        for (requests, expected) in [
            (vec![off.clone()], false),
            (vec![off, on.clone()], true),
            (vec![on], true),
        ] {
            let distinct = Prompts::of(requests.iter()).into_distinct();
            assert_eq!((distinct.len(), distinct[0].form.may_draft), (1, expected));
        }
    }

    #[test]
    fn empty_lists_have_weight() {
        let mut template_kwargs = Map::new();
        template_kwargs.insert("a".to_owned(), serde_json::json!([[], [], {}]));
        let request = GenerateRequest::new(Prompt::Chat(Arc::new(souffleur_request::ChatPrompt {
            messages: serde_json::json!([]),
            tools: None,
            template_kwargs,
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
            images: Vec::new(),
        })));
        let distinct = Prompts::of([&request].into_iter()).into_distinct();
        assert!(distinct[0].weight >= 5, "{}", distinct[0].weight);
    }
}
