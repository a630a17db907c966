//! Checks the images of a row: their true ids, their vectors, and that those without vectors come from the cache.

use super::Limits;
use souffleur_state::prompt_images::PromptImages;
use souffleur_state::step::RowStart;

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
        let (wanted, vectors) = (limits.hidden_size, image.vectors());
        if let Some(width) = vectors.map(|vectors| vectors.width())
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
