//! The names of tokens of images, videos and sounds in vocabularies.

/// Families share many of them. A vocabulary without a name has the letters as text anyway.
const NAMES: [&str; 49] = [
    // Qwen
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    // Gemma 3 and 3n
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<start_of_audio>",
    "<end_of_audio>",
    "<audio_soft_token>",
    // Gemma 4
    "<|image|>",
    "<|image>",
    "<image|>",
    "<|video|>",
    "<|audio|>",
    "<|audio>",
    "<audio|>",
    // Pixtral, Ministral, Voxtral
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[AUDIO]",
    "[BEGIN_AUDIO]",
    // LFM2
    "<image>",
    "<|image_start|>",
    "<|image_end|>",
    "<|image_split|>",
    "<|img_thumbnail|>",
    // SmolVLM
    "<fake_token_around_image>",
    "<global-img>",
    // GLM
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    // Llama 4
    "<|patch|>",
    "<|tile_x_separator|>",
    "<|tile_y_separator|>",
    // InternVL
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
    // Kimi
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
];

/// Rows and columns of LFM2's tiles.
const MAX_TILES: u32 = 10;

pub(super) fn names() -> impl Iterator<Item = String> {
    let tiles = (1..=MAX_TILES).flat_map(|row| {
        (1..=MAX_TILES).map(move |column| format!("<|img_row_{row}_col_{column}|>"))
    });
    NAMES.iter().map(|name| (*name).to_owned()).chain(tiles)
}
