//! Reads and writes channel files of double sparsity, in SGLang's format: a JSON key for each layer and ranking, whose
//! value has a row of channels for each head, most important first.
//!
//! All query heads of a key head share its labels, so there is a row for each key head. Rows for each query head are
//! also accepted: a key head then has the channels with the lowest sums of ranks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::channel_type::ChannelType;
use crate::json_file::{JsonFile, load_error};
use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::PagedKv;
use souffleur_kernels::sparsity::LabelChannels;

/// The three rankings of 128 layers with 128 heads of 256 channels take two thirds of this limit.
const MAX_FILE_BYTES: u64 = 64 << 20;

pub(super) struct ChannelFile {
    json: JsonFile,
    pub bytes: Vec<u8>,
}

fn key(layer: usize, ranked_by: ChannelType) -> String {
    format!("model.layers.{layer}.self_attn.{}_proj", ranked_by.name())
}

pub(super) fn read(file: &Path) -> Result<ChannelFile, LoadError> {
    let io = |source| LoadError::Io {
        file: file.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(io)?;
    let mut bounded = opened.take(MAX_FILE_BYTES + 1);
    bounded.read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let reason = format!(
            "has more than {MAX_FILE_BYTES} bytes, the limit of a channel file: make one with `souffleur calibrate`"
        );
        return Err(load_error(file, reason));
    }
    let json = JsonFile::parse(file, &bytes)?;
    Ok(ChannelFile { json, bytes })
}

impl ChannelFile {
    pub fn channels(
        &self,
        layer: usize,
        (ranked_by, wanted): (ChannelType, usize),
        pages: &PagedKv,
        n_heads: usize,
    ) -> Result<LabelChannels, LoadError> {
        let key = key(layer, ranked_by);
        let refuse = |reason: String| Err(load_error(self.json.file(), reason));
        let Some(value) = self.json.value(&key) else {
            return refuse(format!(
                "{key} is missing: make the file with `souffleur calibrate` for this model"
            ));
        };
        let Some(rows) = value.as_array() else {
            return refuse(format!(
                "{key} is not a list of lists: one list of channels for each head"
            ));
        };
        if rows.len() != pages.heads && rows.len() != n_heads {
            return refuse(format!(
                "{key} has {} rows, expected {} (one for each key head) or {n_heads} (one for each query head)",
                rows.len(),
                pages.heads
            ));
        }
        let mut ranked = Vec::with_capacity(rows.len());
        for (head, row) in rows.iter().enumerate() {
            match row_of(row, wanted, pages.key_dim) {
                Ok(row) => ranked.push(row),
                Err(reason) => return refuse(format!("{key}, row {head}: {reason}")),
            }
        }
        let group = rows.len() / pages.heads;
        let of_group = |rows: &[Vec<u16>]| match rows {
            [row] => row[..wanted].to_vec(),
            rows => least_ranks(rows, wanted, pages.key_dim),
        };
        Ok(LabelChannels::new(
            ranked.chunks(group).map(of_group).collect(),
        ))
    }
}

/// The channels of a row, most important first.
fn row_of(row: &Value, wanted: usize, dim: usize) -> Result<Vec<u16>, String> {
    let row = row.as_array().ok_or("is not a list of channels")?;
    if !(wanted..=dim).contains(&row.len()) {
        return Err(format!(
            "has {} channels, expected at least {wanted} (ds_heavy_channel_num) and at most {dim} (those of a key)",
            row.len()
        ));
    }
    let mut seen = vec![false; dim];
    let mut channels = Vec::with_capacity(row.len());
    for value in row {
        let channel = value.as_u64().filter(|channel| *channel < dim as u64);
        let channel = channel.ok_or_else(|| {
            format!(
                "{value} is not a channel, expected a whole number from 0 to {}",
                dim - 1
            )
        })?;
        if std::mem::replace(&mut seen[channel as usize], true) {
            return Err(format!("channel {channel} occurs twice"));
        }
        channels.push(channel as u16);
    }
    Ok(channels)
}

/// The channels with the lowest sums of ranks; ties go to the lower channel. A channel missing in a row ranks last.
fn least_ranks(rows: &[Vec<u16>], wanted: usize, dim: usize) -> Vec<u16> {
    let mut sums = vec![0; dim];
    for row in rows {
        let mut ranks = vec![row.len(); dim];
        for (rank, channel) in row.iter().enumerate() {
            ranks[usize::from(*channel)] = rank;
        }
        sums.iter_mut()
            .zip(ranks)
            .for_each(|(sum, rank)| *sum += rank);
    }
    let mut channels: Vec<u16> = (0..dim as u16).collect();
    channels.sort_by_key(|channel| sums[usize::from(*channel)]);
    channels.truncate(wanted);
    channels
}

/// Importance of each channel of a layer's key heads, `[n_kv_heads][channels]`, by each [`ChannelType`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelRanks {
    pub layer: usize,
    /// One entry for each type of [`ChannelType::ALL`].
    pub importance: [Vec<Vec<f64>>; 3],
}

/// Writes a channel file. Of equally important channels the lower comes first.
///
/// # Errors
/// [`LoadError::Io`].
pub fn write(file: &Path, layers: &[ChannelRanks]) -> Result<(), LoadError> {
    let mut object: BTreeMap<String, Vec<Vec<usize>>> = BTreeMap::new();
    for ranks in layers {
        for (ranked_by, heads) in ChannelType::ALL.into_iter().zip(&ranks.importance) {
            let rows = heads.iter().map(|importance| ranking(importance));
            object.insert(key(ranks.layer, ranked_by), rows.collect());
        }
    }
    let text = serde_json::to_vec(&object).expect("numbers are JSON");
    std::fs::write(file, text).map_err(|source| LoadError::Io {
        file: PathBuf::from(file),
        source,
    })
}

/// Indices in descending order of value. Values are not negative, so that their bits sort them, including NaN.
fn ranking(importance: &[f64]) -> Vec<usize> {
    let mut channels: Vec<usize> = (0..importance.len()).collect();
    let bits = |channel: &usize| Reverse(importance[*channel].to_bits());
    channels.sort_by_key(bits);
    channels
}
