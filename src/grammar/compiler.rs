//! Compiles the output constraints of requests to grammars, with a cache and limits.

use std::io;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::thread;

use llguidance::earley::SlicedBiasComputer;
use llguidance::{ParserFactory, panic_utils};
use toktrie::{InferenceCapabilities, TokEnv};

use super::GrammarWish;
use super::cache::{Compiled, Permit, Permits, Slot, Slots, Unready, lock};
use super::gate::Gated;
use super::lexer_start::parser;
use super::limits::GrammarLimits;
use super::literals::{self, Encoded};
use super::markers::Markers;
use super::source::Source;
use super::state::Template;
use super::tokens::Tokens;
use super::tools::trigger;
use super::wish::sources;
use super::words;
use souffleur_base::error::{FieldError, RequestError};
use souffleur_model::text::TextModel;
use souffleur_state::grammar::{Grammar, GrammarFailure};

/// Stack of a compiling thread. llguidance recurses along references; only touched pages take memory.
const STACK_BYTES: usize = 256 << 20;
/// Maximum number of characters of an llguidance error that a client receives.
const MAX_CHARS: usize = 400;

/// Compiles the grammars of one model. Creating it is cheap: the first compilation reads the vocabulary.
pub struct GrammarCompiler {
    core: Arc<Core>,
}

struct Core {
    text: Arc<TextModel>,
    eos_token_ids: Vec<u32>,
    vocab_size: usize,
    limits: GrammarLimits,
    factory: OnceLock<Result<ParserFactory, String>>,
    markers: OnceLock<Markers>,
    slots: Mutex<Slots>,
    permits: Arc<Permits>,
    literals: Encoded,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompileNotes {
    /// Cache hit: an earlier request had an equal grammar.
    pub is_cached: bool,
    /// The wait for the grammar timed out.
    pub timed_out: bool,
}

impl CompileNotes {
    fn note(&mut self, unready: &Unready) {
        self.timed_out |= matches!(unready, Unready::TimedOut);
    }
}

impl GrammarCompiler {
    /// `vocab_size` is the number of the model's logits. Tokens that the tokenizer lacks are never allowed.
    pub fn new(
        text: Arc<TextModel>,
        eos_token_ids: &[u32],
        vocab_size: usize,
        limits: GrammarLimits,
    ) -> Self {
        let core = Core {
            text,
            eos_token_ids: eos_token_ids.to_vec(),
            vocab_size,
            factory: OnceLock::new(),
            markers: OnceLock::new(),
            slots: Mutex::new(Slots::new(limits.cached)),
            permits: Arc::new(Permits::new(limits.compiling)),
            literals: Encoded::default(),
            limits,
        };
        Self {
            core: Arc::new(core),
        }
    }

    /// Compiles a request's constraints; `None` if there are none. Blocks until the grammar is compiled, the request is
    /// cancelled or the time limit passes. Equal requests are compiled once.
    ///
    /// # Errors
    /// [`RequestError::Field`] names the unsupported constraint and the reason; [`RequestError::Overloaded`] while too
    /// many compilations are in flight; [`RequestError::Interrupted`] if no thread can be started.
    pub fn compile(
        &self,
        wish: &GrammarWish,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Arc<dyn Grammar>>, RequestError> {
        self.compile_with_notes(wish, is_cancelled, &mut CompileNotes::default())
    }

    /// Like [`GrammarCompiler::compile`], with notes on the cache hit and the timeout.
    pub fn compile_with_notes(
        &self,
        wish: &GrammarWish,
        is_cancelled: &dyn Fn() -> bool,
        notes: &mut CompileNotes,
    ) -> Result<Option<Arc<dyn Grammar>>, RequestError> {
        notes.is_cached = true;
        let sources = sources(wish, self.core.markers(), &self.core.limits)?;
        let mut refused = None;
        for source in sources {
            match self.compile_source(source, is_cancelled, notes) {
                Ok(template) => return Ok(Some(self.core.gated(template, wish))),
                Err(error @ RequestError::Field(_)) => refused = refused.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// The words that the grammar of a compiled wish dictates, such as the names of properties, as tokens: at most a few
    /// thousand. Equal requests share them.
    pub fn literals(&self, wish: &GrammarWish) -> Arc<[u32]> {
        let core = &self.core;
        core.literals.tokens(literals::text(wish), |text| {
            let tokens = core.text.encode_chat(text).ok()?;
            let is_known = |token: &u32| (*token as usize) < core.vocab_size;
            tokens.iter().all(is_known).then_some(tokens)
        })
    }

    fn compile_source(
        &self,
        source: Source,
        is_cancelled: &dyn Fn() -> bool,
        notes: &mut CompileNotes,
    ) -> Compiled {
        let core = &self.core;
        source.check_size(&core.limits)?;
        let (key, field) = (source.key(), source.field);
        let timeout = core.limits.compile_time;
        let cached = lock(&core.slots).find(&key);
        let slot = match cached {
            Some(slot) => slot,
            None => {
                notes.is_cached = false;
                let permit = core.permits.take(timeout, is_cancelled);
                let permit = permit.map_err(|unready| {
                    notes.note(&unready);
                    core.permit_error(&unready)
                })?;
                core.slot_for(source, permit)?
            }
        };
        let waited = slot.wait(timeout, is_cancelled);
        waited.unwrap_or_else(|unready| {
            notes.note(&unready);
            Err(core.wait_error(field, &unready))
        })
    }
}

impl Core {
    fn markers(&self) -> &Markers {
        self.markers
            .get_or_init(|| Markers::new(&self.text, &self.eos_token_ids, self.vocab_size))
    }

    /// Makes the grammar begin after the reasoning, if there is any.
    fn gated(&self, template: Arc<Template>, wish: &GrammarWish) -> Arc<dyn Grammar> {
        let Some(gate) = &wish.reasoning else {
            return template;
        };
        let call = wish.tools.as_ref().and(wish.tool_format);
        let call = call.and_then(|format| self.markers().id(trigger(format)));
        let tokens = template.tokens();
        Arc::new(Gated::new(template, gate, call, self.markers(), tokens))
    }

    /// Adds a slot after a cache miss, and a thread that fills it. Returns the slot if another request just added it.
    fn slot_for(
        self: &Arc<Self>,
        source: Source,
        permit: Permit,
    ) -> Result<Arc<Slot>, RequestError> {
        let key = source.key();
        let slot = {
            let mut slots = lock(&self.slots);
            if let Some(slot) = slots.find(&key) {
                return Ok(slot);
            }
            slots.add(key)
        };
        let (core, filled) = (self.clone(), slot.clone());
        let compiling = thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                core.fill(&filled, source);
                drop(permit);
            });
        if let Err(error) = compiling {
            // Other requests may already wait for the slot.
            slot.end(Err(not_started(&error)));
            lock(&self.slots).remove(&key);
        }
        Ok(slot)
    }

    fn fill(&self, slot: &Slot, source: Source) {
        let field = source.field;
        let compiled = catch_unwind(AssertUnwindSafe(|| {
            let factory = self.factory.get_or_init(|| self.factory());
            slot.begin();
            match factory {
                Ok(factory) => compile(factory, source),
                Err(reason) => {
                    let reason = format!(
                        "{field} does not work with this model: {reason}; leave it out, or use another model"
                    );
                    Err(FieldError::new(field, reason).into())
                }
            }
        }));
        let compiled = compiled.unwrap_or_else(|_| Err(refusal(field, words::CRASHED)));
        slot.end(compiled.map(Arc::new));
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        keep_panic_hook();
        let tokens = Tokens::new(self.text.clone(), &self.eos_token_ids, self.vocab_size)?;
        let tokens: TokEnv = Arc::new(tokens);
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = self.limits.of_parser();
        Ok(factory)
    }

    fn permit_error(&self, unready: &Unready) -> RequestError {
        match unready {
            Unready::Cancelled => cancelled(),
            Unready::TimedOut => overloaded("grammars to compile", self.limits.compiling),
        }
    }

    fn wait_error(&self, field: &'static str, unready: &Unready) -> RequestError {
        match unready {
            Unready::Cancelled => cancelled(),
            Unready::TimedOut => {
                let limit = self.limits.compile_time;
                let reason = format!("compilation exceeded the limit of {limit:?}");
                refusal(field, &reason)
            }
        }
    }
}

/// llguidance replaces the panic hook on its first call. This restores the application's hook.
fn keep_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let host_hook = panic::take_hook();
        let called = panic_utils::catch_unwind(|| Ok(()));
        drop((panic::take_hook(), called));
        panic::set_hook(host_hook);
    });
}

/// Compiles a grammar, and checks that an output can begin.
fn compile(factory: &ParserFactory, source: Source) -> Result<Template, RequestError> {
    let field = source.field;
    let parser = parser(factory, source.into_grammar());
    let parser = parser.map_err(|error| refusal(field, &error))?;
    Template::new(parser).map_err(|failure| match failure {
        GrammarFailure::NoToken => refusal(field, "it allows no text at all"),
        GrammarFailure::TooComplex => refusal(field, "it is too complex"),
    })
}

fn overloaded(what: &'static str, n: usize) -> RequestError {
    RequestError::Overloaded {
        what,
        queued: n,
        limit: n,
    }
}

fn not_started(error: &io::Error) -> RequestError {
    let text = format!(
        "compiling the grammar failed: no thread could be started: {error}: try again later, or raise the server's \
         limits of threads and memory"
    );
    RequestError::Interrupted(text)
}

fn cancelled() -> RequestError {
    RequestError::Invalid("the request was cancelled".to_owned())
}

fn refusal(field: &'static str, reason: &str) -> RequestError {
    let message: String = words::for_client(reason).chars().take(MAX_CHARS).collect();
    let reason =
        format!("{field} cannot be compiled to a grammar: {message}; change or simplify it");
    RequestError::Field(FieldError::new(field, reason))
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}
