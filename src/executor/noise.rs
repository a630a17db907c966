//! Measures decode steps after a context of random K/V, without a prefill.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Executor;
use crate::cpu::{CpuExecutor, CpuOptions};
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::ids::{PageId, RowId, SeqId, StateSlot, StepId};
use souffleur_base::kv_layout::KvDtype;
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::loader::LoadFormat;
use souffleur_model::sparsity::ModelSparsity;
use souffleur_state::pool::pages::PageRun;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::step::{RowStart, RowWork, StateStart, StepPlan, StepRow, TableDelta};

#[derive(Clone, Debug)]
pub struct NoiseRequest {
    pub model: PathBuf,
    /// `None` for the checkpoint's data type.
    pub dtype: Option<Dtype>,
    pub quantization: Option<Quantization>,
    /// `None` for the data type of the weights.
    pub kv_dtype: Option<KvDtype>,
    pub load_format: LoadFormat,
    pub threads: usize,
    pub pin_threads: bool,
    pub numa: Numa,
    pub page_size: usize,
    pub context_tokens: usize,
    pub decoded_tokens: usize,
    pub sparsity: Option<ModelSparsity>,
}

pub struct NoiseContext {
    executor: CpuExecutor,
    prefix: Arc<[PageId]>,
    new_pages: Vec<PageId>,
    prompt: Arc<[u32]>,
    decoded_tokens: usize,
    step: u64,
}

impl NoiseContext {
    /// Loads the model and fills its KV pool with noise.
    pub fn load(request: &NoiseRequest) -> Result<Self, LoadError> {
        let page_size = request.page_size.max(1);
        let n_prefix = request.context_tokens / page_size;
        let prompt_tokens = n_prefix * page_size + 1;
        let n_pages = (prompt_tokens + request.decoded_tokens).div_ceil(page_size);
        let options = CpuOptions {
            dtype: request.dtype,
            quantization: request.quantization,
            kv_dtype: request.kv_dtype,
            load_format: request.load_format,
            page_size,
            pin_threads: request.pin_threads,
            numa: request.numa,
            sparsity: request.sparsity.clone(),
            ..CpuOptions::for_one_row(n_pages, request.threads)
        };
        let mut executor = CpuExecutor::load(&request.model, &options, &mut |_, _| {})?;
        executor.fill_with_noise();
        let pages = |range: std::ops::Range<usize>| range.map(|page| PageId::new(page as u32 + 1));
        Ok(Self {
            executor,
            prefix: pages(0..n_prefix).collect(),
            new_pages: pages(n_prefix..n_pages).collect(),
            prompt: vec![0; prompt_tokens].into(),
            decoded_tokens: request.decoded_tokens,
            step: 0,
        })
    }

    /// Number of tokens before the first decoded token.
    pub fn context_tokens(&self) -> usize {
        self.prompt.len()
    }

    /// Decodes `decoded_tokens` tokens and returns the time taken; `is_dense` lets all queries see all keys.
    pub fn decode(&mut self, is_dense: bool) -> Result<Duration, StepError> {
        self.executor.disable_sparse_attention(is_dense);
        let (row, seq) = (RowId::new(1), SeqId::new(0));
        let mut prefix = PageRun::empty();
        prefix.push(&self.prefix, 0..self.prefix.len() as u32);
        let prompt_tokens = self.prompt.len() as u32;
        let start = RowStart {
            row,
            seq,
            tokens: self.prompt.clone(),
            prompt_tokens,
            sampling: Arc::new(SamplingParams {
                temperature: 0.0,
                max_new_tokens: self.decoded_tokens as u32 + 1,
                ..Default::default()
            }),
            grammar: None,
            vectors: None,
            images: None,
            pooling: None,
            prefix,
            state: self.executor.keeps_states().then_some(StateStart {
                live: StateSlot::new(1),
                from: None,
            }),
            draft_texts: Default::default(),
        };
        let mut starts = vec![start];
        let pages = self.new_pages.iter().copied().collect();
        let mut table = vec![TableDelta::Append { row, pages }];
        let mut began = Instant::now();
        for n in 0..=self.decoded_tokens as u32 {
            let work = match n {
                0 => RowWork::Prefill {
                    positions: prompt_tokens - 1..prompt_tokens,
                },
                n => RowWork::Decode {
                    position: prompt_tokens - 1 + n,
                    room: 1,
                },
            };
            self.step += 1;
            self.executor.run(&StepPlan {
                step: StepId::new(self.step),
                starts: std::mem::take(&mut starts),
                table: std::mem::take(&mut table),
                rows: vec![StepRow {
                    row,
                    seq,
                    work,
                    sample: true,
                    logprobs: None,
                    saves: Default::default(),
                }],
                copies: None,
                vision: None,
            })?;
            if n == 0 {
                began = Instant::now();
            }
        }
        Ok(began.elapsed())
    }
}
