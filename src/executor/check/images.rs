//! Checks the images of a row: their true ids, their vectors, and that images without vectors come from the cache.

use super::{Limits, Row};
use souffleur_state::prompt_images::PromptImages;
use souffleur_state::step::{RowStart, RowWork, StepPlan, StepRow};

/// Refuses ids outside of the vocabulary, except at the positions of images, which have keys.
pub(super) fn check_tokens(
    tokens: &[u32],
    images: Option<&PromptImages>,
    limits: &Limits,
) -> Result<(), String> {
    let vocab_size = limits.vocab_size;
    let is_image = |at: u32| images.is_some_and(|images| images.at(at).is_some());
    let mut ids = (0..).zip(tokens);
    match ids.find(|(at, token)| **token as usize >= vocab_size && !is_image(*at)) {
        None => Ok(()),
        Some((_, token)) => Err(format!(
            "the row has token {token}, but the vocabulary size is {vocab_size}"
        )),
    }
}

pub(super) fn check(start: &RowStart, limits: &Limits) -> Result<(), String> {
    let Some(images) = &start.images else {
        return Ok(());
    };
    if start.vectors.is_some() {
        return Err("the row has prompt embeddings and images".to_owned());
    }
    let wanted = limits.image_width;
    for image in images.spans() {
        let (positions, n_prompt) = (image.positions(), start.prompt_tokens);
        if positions.end > n_prompt {
            return Err(format!(
                "an image is at positions {} to {} of a prompt of {n_prompt} tokens",
                positions.start, positions.end
            ));
        }
        let vocab_size = limits.vocab_size;
        if let Some(mark) = image.marks().find(|mark| *mark as usize >= vocab_size) {
            return Err(format!(
                "an image has the mark {mark}, but the vocabulary size is {vocab_size}"
            ));
        }
        if let Some(width) = image.vectors().map(|vectors| vectors.width())
            && width != wanted
        {
            return Err(format!(
                "an image has vectors of size {width}, expected {wanted}"
            ));
        }
    }
    Ok(())
}

/// Refuses work that computes positions of an image without vectors.
pub(super) fn check_cached(first: usize, cached_until: usize) -> Result<(), String> {
    if first < cached_until {
        Err(format!(
            "the work begins at position {first}, expected {cached_until} or later: an image before has no vectors, \
             so its K/V must come from the cache"
        ))
    } else {
        Ok(())
    }
}

/// Refuses prefills that end within vectors that attend to each other: the keys of the rest are not stored yet.
pub(super) fn check_ends(
    plan: &StepPlan,
    rows: &[Option<Row>],
    limits: &Limits,
) -> Result<(), String> {
    if limits.bidirectional.is_none() {
        return Ok(());
    }
    let is_cut = |work: &&StepRow| {
        let RowWork::Prefill { positions } = &work.work else {
            return false;
        };
        let start = plan.starts.iter().find(|start| start.row == work.row);
        let images = match (start, rows.get(work.row.index())) {
            (Some(start), _) => start.images.as_deref(),
            (None, Some(Some(row))) => row.images.as_ref().map(|images| &*images.table),
            (None, _) => None,
        };
        images.is_some_and(|images| images.cuts_run(positions.end))
    };
    match plan.rows.iter().find(is_cut) {
        None => Ok(()),
        Some(work) => Err(format!(
            "row {}, sequence {}: a prefill ends at position {}, within an image whose vectors attend to each other",
            work.row,
            work.seq,
            work.work.positions().end
        )),
    }
}
