//! The vision tower of the fake executor, and the checks of the vectors that it made.
//!
//! All values of an image's vectors are the first value of its first patch, which must be the first byte of the image's
//! digest: a row that gets the vectors of another image, or none, fails its step.

use std::ops::Range;
use std::sync::Arc;

use super::refusal::rejected;
use super::{FakeExecutor, FakeRow};
use crate::vision::{Encoder, ImageTower, refuse_slice};
use souffleur_base::error::StepError;
use souffleur_state::prompt_images::{ImageInput, ImageSpan};
use souffleur_state::step::StepPlan;

/// Operations of a unit of the fake tower's work, for each patch.
const FLOPS: u64 = 1_000_000;

/// The work of the fake tower: a unit for each row of patches.
pub fn fake_tower_work(input: &dyn ImageInput) -> Arc<[u64]> {
    let grids = (0..input.n_views()).map(|view| input.grid(view));
    let rows = grids.flat_map(|grid| (0..grid.rows).map(move |_| u64::from(grid.columns)));
    rows.map(|patches| patches * FLOPS).collect()
}

pub(super) struct FakeTower {
    hidden_size: usize,
    image: Option<FakeImage>,
}

struct FakeImage {
    value: f32,
    n_vectors: usize,
    /// Units to run.
    n_left: usize,
}

impl ImageTower<()> for FakeTower {
    fn begin(&mut self, _: &mut (), input: &dyn ImageInput) -> Result<(), String> {
        let patches: Vec<f32> = (0..input.n_views())
            .flat_map(|view| input.patches(view))
            .collect();
        let value = *patches.first().ok_or("has no patches")?;
        self.image = Some(FakeImage {
            value,
            n_vectors: patches.len(),
            n_left: fake_tower_work(input).len(),
        });
        Ok(())
    }

    fn advance(&mut self, _: &mut (), _: &dyn ImageInput) -> Result<(), String> {
        let image = self.image.as_mut().ok_or("was not begun")?;
        image.n_left = image.n_left.checked_sub(1).ok_or("has no further unit")?;
        Ok(())
    }

    fn finish(&mut self, _: &mut ()) -> Result<Vec<f32>, String> {
        let image = self.image.as_ref().filter(|image| image.n_left == 0);
        let image = image.ok_or("lacks units")?;
        Ok(vec![image.value; image.n_vectors * self.hidden_size])
    }

    fn forget(&mut self) {
        self.image = None;
    }
}

impl FakeExecutor {
    /// Lets plans have slices. A patch of an image gives a vector.
    pub fn with_tower(self, hidden_size: usize) -> Self {
        let tower = FakeTower {
            hidden_size,
            image: None,
        };
        Self {
            vision: Some(Encoder::new(Box::new(tower), hidden_size)),
            ..self
        }
    }

    pub(super) fn forget_image(&mut self) {
        if let Some(encoder) = &mut self.vision {
            encoder.forget();
        }
    }

    pub(super) fn encode(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        match (&mut self.vision, &plan.vision) {
            (Some(encoder), Some(slice)) => encoder.run(&mut (), slice),
            (None, _) => refuse_slice(plan),
            (Some(_), None) => Ok(()),
        }
    }

    /// Checks that each position of an image that a row computes has the image's vector.
    pub(super) fn verify_images(
        &self,
        row: &FakeRow,
        positions: &Range<u32>,
    ) -> Result<(), StepError> {
        let Some(images) = row.images.as_ref().filter(|_| self.vision.is_some()) else {
            return Ok(());
        };
        let mut spans = positions.clone().filter_map(|at| {
            let span = images.at(at)?;
            span.mark_at(at).is_none().then_some(span)
        });
        let is_wrong = |span: &&ImageSpan| {
            let expected = f32::from(span.digest().0[0]);
            let values = span.vectors().map(|vectors| vectors.values(0..1)[0]);
            values != Some(expected)
        };
        match spans.find(is_wrong) {
            None => Ok(()),
            Some(span) => Err(rejected(
                row.seq,
                &format!("lacks the vectors of its image {:?}", span.digest()),
            )),
        }
    }
}
