//! Measures decoding after a long context of random keys and values, which needs no prefill.

use serde::Serialize;
use souffleur::config::{Device, EngineConfig};
use souffleur::executor::cpu::{CpuDescription, describe};
use souffleur::executor::memory_plan::{Bytes, available_bytes};
use souffleur::executor::noise::{NoiseContext, NoiseRequest};
use souffleur::kernels::cpu::{Isa, default_threads};

use crate::cli::bench::offline::args::OfflineArgs;
use crate::cli::failure::Failure;
use crate::cli::output::record::date;
use crate::cli::output::table;
use crate::cli::statistics::Quartiles;

#[derive(Serialize)]
pub struct NoiseRecord {
    date: String,
    version: &'static str,
    kernel_path: &'static str,
    threads: usize,
    context_tokens: usize,
    output_tokens: u32,
    dense_s: Vec<f64>,
    sparse_s: Vec<f64>,
}

/// Measures dense decoding and, with double sparsity, alternates it with sparse decoding. The first round is a warm-up.
pub fn measure(
    args: &OfflineArgs,
    config: &EngineConfig,
    context_tokens: u32,
) -> Result<NoiseRecord, Failure> {
    if let Device::Cuda(_) = config.device {
        let reason = "--noise-context measures only on the CPU: remove --device".to_owned();
        return Err(Failure::Usage(reason));
    }
    config
        .validate()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let described = describe(
        &config.model_path,
        config.dtype.named(),
        config.quantization,
        config.load_format,
    );
    let described = described.map_err(Failure::failed)?;
    let mut description = described.with_kv(config.kv_cache_dtype.named());
    let wish = config.double_sparsity();
    let sparsity = wish.map(|wish| description.sparsify(&wish));
    let sparsity = sparsity.transpose().map_err(Failure::failed)?;
    check_size(args, &description, context_tokens)?;
    let threads = match config.threads {
        0 => default_threads(),
        threads => threads,
    };
    let is_sparse = sparsity.is_some();
    let request = NoiseRequest {
        model: config.model_path.clone(),
        dtype: config.dtype.named(),
        quantization: config.quantization,
        kv_dtype: config.kv_cache_dtype.named(),
        load_format: config.load_format,
        threads,
        pin_threads: config.pin_threads,
        numa: config.numa,
        page_size: config.page_size as usize,
        context_tokens: context_tokens as usize,
        decoded_tokens: args.output_tokens as usize,
        sparsity,
    };
    let mut context = NoiseContext::load(&request).map_err(Failure::failed)?;
    let mut record = NoiseRecord {
        date: date(),
        version: env!("CARGO_PKG_VERSION"),
        kernel_path: Isa::chosen().map_err(Failure::failed)?.name(),
        threads,
        context_tokens: context.context_tokens(),
        output_tokens: args.output_tokens,
        dense_s: Vec::new(),
        sparse_s: Vec::new(),
    };
    for round in 0..=args.repeat {
        let mut step = |is_dense| {
            let took = context.decode(is_dense).map_err(Failure::failed)?;
            Ok::<_, Failure>(took.as_secs_f64() / f64::from(args.output_tokens))
        };
        let dense = step(true)?;
        let sparse = is_sparse.then(|| step(false)).transpose()?;
        if round > 0 {
            record.dense_s.push(dense);
            record.sparse_s.extend(sparse);
        }
    }
    Ok(record)
}

/// Checks that context and output fit into the model's context and into memory.
fn check_size(
    args: &OfflineArgs,
    description: &CpuDescription,
    context_tokens: u32,
) -> Result<(), Failure> {
    let tokens = u64::from(context_tokens) + u64::from(args.output_tokens) + 1;
    check_length(tokens, description.config.context_tokens())?;
    let bytes = description.weights_bytes + tokens * description.kv_layout.bytes_per_token();
    let available = available_bytes().map_err(Failure::failed)?;
    if bytes > available {
        return Err(Failure::failed(format_args!(
            "--noise-context is {context_tokens}: weights and K/V take {}, but only {} are available: lower it",
            Bytes(bytes),
            Bytes(available)
        )));
    }
    Ok(())
}

fn check_length(tokens: u64, limit: usize) -> Result<(), Failure> {
    if tokens > limit as u64 {
        Err(Failure::Usage(format!(
            "--noise-context and --output-tokens make {tokens} tokens, the model supports at most {limit}: lower one"
        )))
    } else {
        Ok(())
    }
}

impl NoiseRecord {
    pub fn print(&self) {
        let row = |name: &str, seconds: &[f64], digits: usize, scale: f64| {
            let values: Vec<f64> = seconds.iter().map(|value| value * scale).collect();
            let quartiles = Quartiles::of(&values)?;
            let text = |value: f64| format!("{value:.digits$}");
            let range = format!("{} to {}", text(quartiles.lower), text(quartiles.upper));
            Some(vec![name.to_owned(), text(quartiles.median), range])
        };
        let pairs = self.dense_s.iter().zip(&self.sparse_s);
        let ratios: Vec<f64> = pairs.map(|(dense, sparse)| dense / sparse).collect();
        let rows = [
            row("dense, ms a step", &self.dense_s, 1, 1e3),
            row("sparse, ms a step", &self.sparse_s, 1, 1e3),
            row("sparse, times as fast as dense", &ratios, 2, 1.0),
        ];
        let title = format!(
            "decode, {} tokens after {}",
            self.output_tokens, self.context_tokens
        );
        let rows: Vec<Vec<String>> = rows.into_iter().flatten().collect();
        table::print(&[&title, "median", "quartiles"], &rows);
    }
}
