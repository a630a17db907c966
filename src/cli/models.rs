//! The commands `souffleur pull`, `list` and `rm`, on the models that were downloaded from the hub.

use std::path::PathBuf;

use clap::Args;
use indicatif::HumanBytes;
use souffleur::executor::memory_plan::available_bytes;
use souffleur::hub::{Extent, Hub, HubModel, HubSettings, ListedModel};

use super::failure::Failure;
use super::output::{say, table};
use super::progress;

#[derive(Args, Debug)]
pub struct PullArgs {
    /// Id on the hub: owner/name, owner/name:QUANTISATION or owner/name/FILE.gguf
    #[arg(value_name = "MODEL")]
    id: String,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

#[derive(Args, Debug)]
pub struct RmArgs {
    /// Id of the downloaded model, as `souffleur list` shows it
    #[arg(value_name = "MODEL")]
    id: String,
}

pub fn pull(args: &PullArgs) -> Result<(), Failure> {
    let model = parse(&args.id)?;
    let hub = Hub::new(HubSettings::from_env()?);
    let watch = &mut progress::download_bar();
    let path: PathBuf = hub.fetch(&model, args.revision.as_deref(), Extent::Whole, watch)?;
    say(format_args!("{} is in {}", args.id, path.display()));
    say(format_args!("try: souffleur run {}", args.id));
    Ok(())
}

pub fn list() -> Result<(), Failure> {
    let settings = HubSettings::from_env()?;
    let cache = settings.cache.clone();
    let models = Hub::new(settings).models()?;
    if models.is_empty() {
        say(format_args!(
            "no models in {}: `souffleur pull Qwen/Qwen3-0.6B` downloads one",
            cache.display()
        ));
        return Ok(());
    }
    let free_bytes = available_bytes().ok();
    let rows = models.iter().map(|model| row(model, free_bytes));
    let rows: Vec<_> = rows.collect();
    table::print(&["model", "size", "fits into the free memory"], &rows);
    Ok(())
}

fn row(model: &ListedModel, free_bytes: Option<u64>) -> Vec<String> {
    let fits = match free_bytes {
        _ if !model.is_complete => "not complete: pull it again",
        None => "unknown",
        Some(free_bytes) if model.bytes < free_bytes => "yes",
        Some(_) => "no",
    };
    let size = HumanBytes(model.bytes).to_string();
    vec![model.id.clone(), size, fits.to_owned()]
}

pub fn remove(args: &RmArgs) -> Result<(), Failure> {
    let model = parse(&args.id)?;
    let bytes = Hub::new(HubSettings::from_env()?).remove(&model)?;
    say(format_args!("deleted {}: {}", args.id, HumanBytes(bytes)));
    Ok(())
}

fn parse(id: &str) -> Result<HubModel, Failure> {
    HubModel::parse(id).ok_or_else(|| {
        Failure::Usage(format!(
            "{id:?} is not the id of a model on the hub: expected owner/name, such as Qwen/Qwen3-0.6B, \
             owner/name:QUANTISATION or owner/name/FILE.gguf"
        ))
    })
}
