//! Tokens as the server shows them beside log probabilities.

use std::sync::Arc;

use souffleur::model::text::TextModel;
use souffleur::server::TokenWords;
use souffleur::state::detok::TokenText;

/// The vocabulary of a loaded model.
pub struct Vocabulary(Arc<TextModel>);

impl Vocabulary {
    /// The vocabulary of `text`.
    pub fn shared(text: Arc<TextModel>) -> Arc<dyn TokenWords> {
        Arc::new(Self(text))
    }
}

impl TokenWords for Vocabulary {
    fn bytes(&self, token: u32) -> Vec<u8> {
        self.0.token_text(token).into_bytes()
    }

    fn is_special(&self, token: u32) -> bool {
        let text = |skip_special| self.0.decode(&[token], skip_special, true);
        text(true).is_empty() && !text(false).is_empty()
    }
}
