//! Builds the parts of an engine (model facts, tokenizer, executor, store) from its configuration.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use crate::card::ModelCard;
use crate::gpu::{self, Gpu};
use crate::memory::{context_length, memory_plan};
use crate::origin::from_the_same_files;
use crate::progress::Progress;
use crate::replicas::{GpuShare, rank_limit, unit_executors};
use crate::speculation::speculation;
use crate::store::{image_secret, record_weight_files, store_setup, tier_limits, with_tower};
use crate::text::ModelText;
use crate::threads::ReplicaThreads;
use crate::tower;
use crate::tower_file::TowerFile;
use souffleur_actors::beats::Beats;
use souffleur_actors::executor::ExecutorFactory;
use souffleur_actors::kv_store::StoreSetup;
use souffleur_actors::pictures::ImageReader;
use souffleur_actors::tokenizer::{AnswerFormats, ImageSettings, TokenizerSettings};
use souffleur_actors::unit::{BindThread, Blueprint};
use souffleur_actors::vision::VisionSetup;
use souffleur_base::error::{ConfigError, LoadError, StartError};
use souffleur_bundled as bundled;
use souffleur_chaos::Chaos;
use souffleur_config::{Device, EngineConfig, SpeculationWish};
use souffleur_executor::Executor;
use souffleur_executor::cpu::{self, CpuDescription, CpuExecutor, CpuOptions};
use souffleur_executor::memory_plan::MemoryPlan;
use souffleur_executor::speculation::Speculation;
use souffleur_grammar::{GrammarCompiler, GrammarLimits};
use souffleur_kernels::cpu::KernelPath;
use souffleur_kernels::cpu::ranks::GroupRules;
use souffleur_kv_events::KvEventPublishers;
use souffleur_metrics::request_lost;
use souffleur_model::generation::{GenerationConfig, eos_token_ids};
use souffleur_model::sparsity::ModelSparsity;
use souffleur_model::text::{TextModel, TurnMarks};
use souffleur_record::LogSink;
use souffleur_record::file::Header;
use souffleur_request::ImageSupport;
use souffleur_request::admission::Admission;
use souffleur_state::cache::prefix_history::HistoryLimits;
use souffleur_state::control::ControlSetup;
use souffleur_state::output::{OutputFormats, ReasoningFormat, ToolFormat};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::scheduler::vision::VisionLimits;
use souffleur_state::scheduler::{IntakeLimits, QueueRules, SchedulerLimits};

/// Page ids have 32 bits, and page 0 is the dummy page.
const MAX_PAGES: usize = u32::MAX as usize - 1;

#[derive(Clone, Debug)]
pub struct ModelInfo {
    pub served_model_name: String,
    /// The model's folder or GGUF file.
    pub model_path: PathBuf,
    pub context_length: usize,
    pub max_total_tokens: usize,
    pub page_size: usize,
    pub max_running_requests: usize,
    pub vocab_size: usize,
    /// The size of a prompt embedding; `None` if the executor takes no prompt embeddings.
    pub hidden_size: Option<usize>,
    /// Whether prompts may have images, and how these rotate.
    pub images: ImageSupport,
    /// The length (prompt and longest output) above which a sequence uses long-context RoPE factors, if any.
    pub long_above: Option<usize>,
    pub eos_token_ids: Vec<u32>,
    pub generation: GenerationConfig,
    /// How the memory is divided; `None` for a host's executor.
    pub memory: Option<MemoryPlan>,
    /// The type in which keys and values are cached; `None` for a host's executor.
    pub kv_cache_dtype: Option<&'static str>,
    /// The kernels of attention; `None` for a host's executor.
    pub attention_backend: Option<&'static str>,
    /// The CPU's kernel path and the reason for it; `None` on a GPU and for a host's executor.
    pub kernel_path: Option<Arc<str>>,
    /// The parameters of double sparsity, which affect keys and values; `None` if it is off.
    pub double_sparsity: Option<Arc<str>>,
    /// How the executor speculates; `None` if steps have no drafts.
    pub speculation: Option<SpeculationWish>,
    /// The formats in which calls and reasoning are parsed.
    pub formats: OutputFormats,
    /// Facts about the model's files; `None` for a host's executor, and for files that the executor will not find either.
    pub card: Option<Arc<ModelCard>>,
}

/// The parts that an engine runs on: the model's facts, its tokenizer, its executor.
pub struct EngineParts {
    pub info: ModelInfo,
    /// `None`: token ids in, token ids out.
    pub text: Option<Arc<TextModel>>,
    /// Reads the images of chats; `None` if nothing encodes them.
    pub images: Option<Arc<ImageReader>>,
    /// Makes the executors of all replicas, or of those on the first GPU, or the first group of GPUs if a replica has
    /// several ranks.
    pub executor: Arc<ExecutorFactory>,
    /// Factories of the executors on the other GPUs: replicas have the GPUs in turn.
    pub other_executors: Vec<Arc<ExecutorFactory>>,
    /// The GPUs, those of a group in the order of its ranks; empty on a CPU and for a host's executor.
    pub gpus: Vec<GpuShare>,
    pub store: Option<Arc<StoreSetup>>,
    /// The vision tower of the executors, which then encode the images of prompts; `None` if they have none.
    pub vision: Option<Arc<VisionSetup>>,
}

impl EngineParts {
    /// Reads the model's configuration and tokenizer, checks every tensor's shape and divides the memory. Weights are
    /// loaded when the engine starts. A configuration that names no model gets the [bundled](souffleur_bundled) one.
    ///
    /// # Errors
    /// The configuration or the model cannot be used. Nothing is allocated then.
    pub fn from_model(config: &EngineConfig, progress: Progress) -> Result<Self, StartError> {
        config.validate()?;
        let config = with_a_model(config)?;
        let config = &*config;
        let dir = &config.model_path;
        let gpus = Gpu::open_all(config)?;
        let kernel_path = gpus.is_empty().then(kernel_path).transpose()?;
        let weights = record_weight_files(config);
        // In parallel: the search for the driver's library takes some milliseconds.
        let notice = (config.device == Device::Auto).then(|| thread::spawn(gpu::notice_unused));
        let (mut model, sparsity) = describe(config)?;
        let tower = tower::open(config, &mut model, !gpus.is_empty())?;
        let tower_file = tower.as_ref().map(|tower| tower.file.clone());
        let mmproj = tower_file.as_ref().and_then(TowerFile::mmproj);
        let weights = with_tower(weights, mmproj);
        let double_sparsity = sparsity.as_ref().map(|sparsity| sparsity.tag.clone());
        let (memory, shares) = memory_plan(config, &model, &gpus)?;
        let (ModelText { text, generation }, formats) = model_text(config)?;
        let text = text.map(Arc::new);
        let context_length = context_length(config, &model)?;
        let of_tokenizer = text.as_deref().and_then(TextModel::eos_id);
        let eos_token_ids = eos_token_ids(&model.config, &generation, of_tokenizer);
        let parts = (&memory, sparsity.as_ref());
        let store = store_setup(config, &model, parts, (gpus.first(), weights))?.map(Arc::new);
        let ends = (&eos_token_ids[..], tower_file.clone());
        let executors = if gpus.is_empty() {
            let parts = (&memory, shortcuts(config, &model, sparsity)?, store.clone());
            vec![cpu_executor(config, parts, ends, progress)]
        } else {
            let parts = (&memory, store.clone());
            let model = (&model, context_length);
            Gpu::executors(gpus, config, model, parts, ends, progress)?
        };
        let mut executors = from_the_same_files(dir, mmproj, executors).into_iter();
        let (vision, images) = tower::parts(config, &model, tower.as_ref(), text.as_deref())?;
        let info = ModelInfo {
            served_model_name: config.model_name(),
            model_path: dir.clone(),
            context_length,
            max_total_tokens: memory.max_total_tokens as usize,
            page_size: config.page_size as usize,
            max_running_requests: memory.max_running_requests as usize,
            vocab_size: model.config.vocab_size,
            hidden_size: Some(model.config.hidden_size),
            images: tower::support(config, &model.config, kernel_path.is_none()),
            long_above: model.config.rope.long_above(),
            eos_token_ids,
            generation,
            memory: Some(memory),
            kv_cache_dtype: Some(model.kv_dtype.name()),
            attention_backend: Some(config.attention_backend.resolved()),
            kernel_path,
            double_sparsity,
            speculation: config.speculation()?,
            formats,
            card: ModelCard::read(dir, &model).ok().map(Arc::new),
        };
        // A panic of this thread is harmless: it only writes to the log.
        let _ = notice.map(thread::JoinHandle::join);
        Ok(Self {
            info,
            text,
            images,
            executor: executors.next().expect("an engine has a device"),
            other_executors: executors.collect(),
            gpus: shares,
            store,
            vision,
        })
    }

    /// Reads only a model's tokenizer and chat template, as [`Self::from_model`] does; `None` if the configuration
    /// skips the tokenizer.
    ///
    /// # Errors
    /// [`LoadError::Io`] and [`LoadError::Format`], naming the file; [`ConfigError`] for a parser that does not
    /// match the model.
    pub fn text_model_of(config: &EngineConfig) -> Result<Option<TextModel>, StartError> {
        let config = with_a_model(config)?;
        Ok(model_text(&config)?.0.text)
    }

    /// The limits of the scheduler of an engine with this model.
    ///
    /// # Errors
    /// A page size of 0, or an unknown eviction policy.
    pub fn scheduler_limits(
        info: &ModelInfo,
        config: &EngineConfig,
    ) -> Result<SchedulerLimits, ConfigError> {
        let page_size = PageSize::new(info.page_size as u32).ok_or_else(|| ConfigError {
            key: "page_size".to_owned(),
            reason: "is 0, must be at least 1".to_owned(),
        })?;
        let total_pages = page_size.full_pages(info.max_total_tokens);
        if total_pages > MAX_PAGES {
            return Err(ConfigError {
                key: "max_total_tokens".to_owned(),
                reason: format!(
                    "is {total_pages} pages of page_size, limit is {MAX_PAGES}: raise page_size"
                ),
            });
        }
        Ok(SchedulerLimits {
            page_size,
            total_pages,
            total_rows: info.max_running_requests,
            max_prefill_tokens: config.max_prefill_tokens,
            chunk_tokens: config.chunk_tokens(),
            prefix_wait: config.prefix_wait && !config.disable_radix_cache,
            rules: config.batch_rules(),
            schedule_conservativeness: config.schedule_conservativeness,
            max_pins: config.max_pins,
            queue: QueueRules {
                priority: config.priority_order(),
                eviction_policy: config.eviction_policy()?,
            },
            eos_token_ids: info.eos_token_ids.clone().into(),
            states: info.memory.as_ref().and_then(MemoryPlan::state_limits),
            windows: info.memory.as_ref().and_then(MemoryPlan::window_limits),
            tier: None,
            vision: None,
        })
    }

    pub(super) fn blueprint(&self, config: &EngineConfig) -> Result<Blueprint, StartError> {
        let info = &self.info;
        let mut limits = Self::scheduler_limits(info, config)?;
        let store = self.store.as_deref();
        limits.tier = store.and_then(|store| tier_limits(config, store));
        limits.vision = self.vision_limits();
        let tokenizer = self.tokenizer_settings(config, &limits)?;
        let page_size = limits.page_size;
        let chaos = Chaos::new(&config.chaos);
        let factories = iter::once(&self.executor).chain(&self.other_executors);
        let control = ControlSetup {
            limits,
            schedule_policy: config.schedule_policy.clone(),
            diagnoses_misses: config.prefix_diagnostics,
        };
        Ok(Blueprint {
            model_name: info.served_model_name.clone(),
            units: config.units(),
            load_balance: config.load_balance_method,
            record: record(config, info, &control, &chaos)?,
            kv_events: config
                .kv_events()?
                .map(|events| KvEventPublishers::start(&chaos, &events, page_size, config.units()))
                .transpose()?,
            control,
            tokenizer,
            executors: unit_executors(config, factories, &chaos),
            bind_thread: self.bind_thread(config),
            store: self.store.clone(),
            vision: self.vision.clone(),
            rebuild: config.rebuild_rules(),
            rules: config.supervision_rules(),
            beats: Beats::new(config.watchdog_timeout(), config.units()),
            log_long_requests: config.log_long_requests(),
            chaos,
        })
    }

    /// Requests that wait may hold as many vectors as the cache; `None` without a vision tower.
    fn vision_limits(&self) -> Option<VisionLimits> {
        let vision = self.vision.as_ref()?;
        let width = self.info.images.vector_width(self.info.hidden_size?);
        let vector_bytes = width * size_of::<f32>();
        Some(VisionLimits {
            max_vectors: vision.cache_bytes / vector_bytes.max(1),
            flops_per_token: vision.flops_per_token,
        })
    }

    fn bind_thread(&self, config: &EngineConfig) -> Arc<BindThread> {
        // The executors of GPUs compute on no CPU, and a host's executor places its threads.
        if self.info.kernel_path.is_none() {
            return Arc::new(|_| {});
        }
        ReplicaThreads::of(config).binder()
    }

    fn tokenizer_settings(
        &self,
        config: &EngineConfig,
        limits: &SchedulerLimits,
    ) -> Result<TokenizerSettings, ConfigError> {
        let (info, page_size) = (&self.info, limits.page_size);
        Ok(TokenizerSettings {
            text: self.text.clone(),
            formats: self
                .text
                .as_deref()
                .map(|text| answer_formats(config, text))
                .transpose()?
                .unwrap_or_default(),
            grammars: self.text.clone().map(|text| {
                let (ends, limits) = (&info.eos_token_ids, GrammarLimits::default());
                Arc::new(GrammarCompiler::new(text, ends, info.vocab_size, limits))
            }),
            turns: if limits.states.is_some() || limits.windows.is_some() {
                self.text.as_deref().map(TurnMarks::learn)
            } else {
                None
            },
            vocab_size: info.vocab_size,
            hidden_size: info.hidden_size,
            images: ImageSettings {
                support: info.images,
                secret: image_secret(self.store.as_deref()),
                encodes: self.vision.is_some(),
                chunk_tokens: config.chunk_tokens(),
                reader: self.images.clone(),
            },
            limits: IntakeLimits {
                context_length: info.context_length,
                capacity_tokens: page_size.tokens_in(limits.total_pages),
                page_size,
            },
            long_above: info.long_above,
            client_backlog_bytes: config.client_backlog_bytes,
            max_logprob_entries: config.max_logprob_entries,
            timeouts: config.request_timeouts(),
            prefix_history: config.prefix_diagnostics.then_some(HistoryLimits {
                page_size,
                max_requests: config.prefix_diagnostics_requests,
                max_evicted_pages: config.prefix_diagnostics_pages,
            }),
            request_limits: config.request_limits(),
            room: info.speculation.map_or(0, |wish| wish.room),
            admission: Admission::new(
                config.max_admitted_requests(),
                config.max_queued_tokens,
                request_lost,
            ),
            has_replicas: config.units() > 1,
        })
    }
}

fn with_a_model(config: &EngineConfig) -> Result<Cow<'_, EngineConfig>, LoadError> {
    if !config.model_path.as_os_str().is_empty() {
        return Ok(Cow::Borrowed(config));
    }
    Ok(Cow::Owned(EngineConfig {
        model_path: bundled::unpacked()?,
        ..config.clone()
    }))
}

/// Refuses settings that several ranks do not support.
fn check_ranks(config: &EngineConfig) -> Result<(), ConfigError> {
    if config.tp_size == 1 || !config.enable_double_sparsity {
        return Ok(());
    }
    Err(ConfigError {
        key: "tp_size".to_owned(),
        reason: format!(
            "is {}, expected 1 with enable_double_sparsity",
            config.tp_size
        ),
    })
}

fn describe(config: &EngineConfig) -> Result<(CpuDescription, Option<ModelSparsity>), StartError> {
    check_ranks(config)?;
    let mut model = cpu::describe(
        &config.model_path,
        config.dtype.named(),
        config.quantization,
        config.load_format,
    )?
    .with_kv(config.kv_cache_dtype.named());
    let sparsity = config.double_sparsity();
    let sparsity = sparsity.map(|wish| model.sparsify(&wish)).transpose()?;
    if let Some(sparsity) = &sparsity {
        tracing::info!(
            kv = &*sparsity.tag,
            "double sparsity enabled: long-context attention is approximate"
        );
    }
    Ok((model, sparsity))
}

fn kernel_path() -> Result<Arc<str>, LoadError> {
    let path = KernelPath::of_process().map_err(LoadError::Memory)?;
    let name = path.to_string();
    tracing::debug!(path = %name, "CPU instruction set");
    Ok(name.into())
}

/// Reads a model's tokenizer, sampling defaults and output formats.
fn model_text(config: &EngineConfig) -> Result<(ModelText, OutputFormats), StartError> {
    let model_text = ModelText::read(config)?;
    let formats = match &model_text.text {
        Some(text) => output_formats(config, text)?,
        None => OutputFormats::default(),
    };
    Ok((model_text, formats))
}

/// The output formats that the configuration names, or else those of the model.
///
/// # Errors
/// The configuration names a format that conflicts with the model's other format.
fn output_formats(config: &EngineConfig, text: &TextModel) -> Result<OutputFormats, ConfigError> {
    let formats = OutputFormats {
        tool: match config.tool_call_parser.as_str() {
            "auto" => text.tool_format(),
            name => ToolFormat::parse(name),
        },
        reasoning: match config.reasoning_parser.as_str() {
            "auto" => text.reasoning_format(),
            name => ReasoningFormat::parse(name),
        },
    };
    config.check_formats(formats)?;
    Ok(formats)
}

/// As [`output_formats`], with the tokens of the formats' markers.
fn answer_formats(config: &EngineConfig, text: &TextModel) -> Result<AnswerFormats, ConfigError> {
    let formats = AnswerFormats::new(output_formats(config, text)?, text);
    Ok(match config.tool_call_parser.as_str() {
        "none" => formats.with_calls_as_text(),
        _ => formats,
    })
}

/// What makes decodes faster, each if it is on.
type Shortcuts = (Option<ModelSparsity>, Option<Speculation>);

fn shortcuts(
    config: &EngineConfig,
    model: &CpuDescription,
    sparsity: Option<ModelSparsity>,
) -> Result<Shortcuts, ConfigError> {
    let speculation = speculation(config, model.config.vocab_size)?;
    Ok((sparsity, speculation))
}

fn cpu_executor(
    config: &EngineConfig,
    (memory, (sparsity, speculation), store): (&MemoryPlan, Shortcuts, Option<Arc<StoreSetup>>),
    (eos_token_ids, tower): (&[u32], Option<TowerFile>),
    progress: Progress,
) -> Arc<ExecutorFactory> {
    let dir = config.model_path.clone();
    let threads = ReplicaThreads::of(config);
    threads.warn(config);
    let ranks = GroupRules::new(config.tp_size, rank_limit(config));
    let of_all = CpuOptions {
        dtype: config.dtype.named(),
        kv_dtype: config.kv_cache_dtype.named(),
        quantization: config.quantization,
        load_format: config.load_format,
        n_pages: memory.n_pages as usize,
        page_size: config.page_size as usize,
        threads: threads.fewest(),
        pin_threads: threads.pins(config),
        numa: threads.numa(config),
        max_rows: memory.max_running_requests as usize,
        // The plan counts the dummy slot, which the pool adds.
        n_state_slots: memory.state_slots.saturating_sub(1) as usize,
        n_window_pages: memory.window_pages as usize,
        isa: None,
        shared_prefix: true,
        eos_token_ids: eos_token_ids.into(),
        sparsity,
        speculation,
    };
    Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        let mut report = |done, total| progress.report(done, total);
        let options = CpuOptions {
            threads: threads.of_this_thread(),
            ..of_all.clone()
        };
        if ranks.count > 1 {
            let store = store.as_ref();
            let store = store.map(|store| (store.geometry.block_tokens, store.desk.port()));
            let tower = tower.as_ref().map(TowerFile::files).transpose()?;
            let executor = cpu::load_ranks(&dir, &options, &ranks, store, tower, &mut report)?;
            return Ok(Box::new(executor));
        }
        let mut executor = CpuExecutor::load(&dir, &options, &mut report)?;
        if let Some(tower) = &tower {
            executor = tower::load(executor, tower)?;
        }
        let Some(store) = &store else {
            return Ok(Box::new(executor));
        };
        let block_tokens = store.geometry.block_tokens;
        Ok(Box::new(
            executor.with_store(block_tokens, store.desk.port())?,
        ))
    })
}

fn record(
    config: &EngineConfig,
    info: &ModelInfo,
    control: &ControlSetup,
    chaos: &Chaos,
) -> Result<Option<Arc<LogSink>>, ConfigError> {
    let Some(path) = &config.record else {
        return Ok(None);
    };
    let header = Header {
        double_sparsity: info.double_sparsity.as_deref().map(str::to_owned),
        ..Header::new(control)
    };
    let sink = LogSink::create(chaos.clone(), path, config.record_max_bytes, &header);
    sink.map(Some).map_err(|error| ConfigError {
        key: "record".to_owned(),
        reason: format!("is {}, which cannot be written: {error}", path.display()),
    })
}
