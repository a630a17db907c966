//! Metrics of images in prompts.

use metrics::{Counter, Gauge, counter, gauge};

/// Counts the images of a prompt that is accepted.
pub fn images_received(images: usize) {
    counter!("souffleur_images_received_total").increment(images as u64);
}

pub struct VisionMetrics {
    encoded: Counter,
    reused: Counter,
    held_bytes: Gauge,
    seconds: Gauge,
}

impl VisionMetrics {
    pub fn register() -> Self {
        Self {
            encoded: counter!("souffleur_images_encoded_total"),
            reused: counter!("souffleur_images_reused_total"),
            held_bytes: gauge!("souffleur_image_vectors_bytes"),
            seconds: gauge!("souffleur_image_encoding_seconds_total"),
        }
    }

    /// Counts an image that the tower has encoded.
    pub fn encoded(&self) {
        self.encoded.increment(1);
    }

    /// Counts an image that a request needed, and that was encoded, or being encoded, for another one.
    pub fn reused(&self) {
        self.reused.increment(1);
    }

    pub fn set_held_bytes(&self, bytes: u64) {
        self.held_bytes.set(bytes as f64);
    }

    /// Adds the time of a step with a slice of an image.
    pub fn worked(&self, seconds: f64) {
        self.seconds.increment(seconds.max(0.0));
    }
}
