//! A vision tower for engines of tests whose models have none: its vectors have the mean of an image's patches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use souffleur_actors::vision::VisionSetup;
use souffleur_base::beat::Beat;
use souffleur_base::error::StepError;
use souffleur_engine::EngineParts;
use souffleur_executor::vision::{EncodedImage, Encoder, ImageTower};
use souffleur_executor::{DeviceLost, Executor};
use souffleur_request::ImageInput;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};

/// Units of the tower's work on an image.
const UNITS: usize = 3;
const FLOPS: u64 = 1 << 30;

/// A tower whose vectors have the mean of an image's patches.
struct Mean {
    width: usize,
    encoded: Arc<AtomicUsize>,
    /// The mean, and the number of vectors.
    image: Option<(f32, usize)>,
}

impl ImageTower<()> for Mean {
    fn begin(&mut self, _: &mut (), input: &dyn ImageInput) -> Result<(), String> {
        let patches = input.patches(0);
        let mean = patches.iter().sum::<f32>() / patches.len() as f32;
        let grid = input.grid(0);
        self.image = Some((mean, (grid.rows * grid.columns / 4) as usize));
        Ok(())
    }

    fn advance(&mut self, _: &mut (), _: &dyn ImageInput) -> Result<(), String> {
        Ok(())
    }

    fn finish(&mut self, _: &mut ()) -> Result<Vec<f32>, String> {
        let (mean, n_vectors) = self.image.ok_or("was not begun")?;
        self.encoded.fetch_add(1, Ordering::SeqCst);
        Ok(vec![mean; n_vectors * self.width])
    }

    fn forget(&mut self) {
        self.image = None;
    }
}

struct Towered {
    inner: Box<dyn Executor>,
    encoder: Encoder<()>,
}

impl Executor for Towered {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let Some(slice) = &plan.vision else {
            return self.inner.run(plan);
        };
        self.encoder.run(&mut (), slice)?;
        self.inner.run(&StepPlan {
            vision: None,
            ..plan.clone()
        })
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.encoder.take_encoded()
    }

    fn set_beat(&mut self, beat: Beat) {
        self.inner.set_beat(beat);
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.encoder.forget();
        self.inner.reset()
    }
}

/// Gives the executors of these parts such a tower. Returns the number of images that they have encoded.
pub fn see(parts: &mut EngineParts) -> Arc<AtomicUsize> {
    let encoded = Arc::new(AtomicUsize::new(0));
    let (inner, of_tower) = (parts.executor.clone(), encoded.clone());
    let width = parts.info.hidden_size.expect("the executor takes vectors");
    parts.executor = Arc::new(move || {
        let tower = Mean {
            width,
            encoded: of_tower.clone(),
            image: None,
        };
        Ok(Box::new(Towered {
            inner: inner()?,
            encoder: Encoder::new(Box::new(tower), width),
        }))
    });
    parts.vision = Some(Arc::new(VisionSetup {
        cache_bytes: 1 << 20,
        work: Box::new(|_: &dyn ImageInput| -> Arc<[u64]> { [FLOPS; UNITS].into() }),
        flops_per_token: 1,
    }));
    encoded
}
