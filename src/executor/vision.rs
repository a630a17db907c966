//! The seam to a vision tower, and the image that it encodes: steps have slices of its work.
//!
//! One image is encoded at a time. Its vectors leave the executor apart from the results of steps, since the scheduler
//! decides nothing by them.

use std::sync::{Arc, Weak};

use souffleur_base::beat::Beat;
use souffleur_base::error::StepError;
use souffleur_base::ids::Ticket;
use souffleur_state::prompt_images::ImageInput;
use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::step::{StepPlan, VisionSlice};

/// A vision tower on a device of type `B`. Its work on an image consists of units, which run in order.
///
/// **An image's vectors depend on its patches only, bit for bit**: not on the steps, images and rows between its units.
/// Errors are those of an image; the tower can encode others. They continue a sentence about the image.
pub trait ImageTower<B>: Send {
    /// Forgets an unfinished image, and begins another.
    ///
    /// # Errors
    /// If the tower cannot encode the image.
    fn begin(&mut self, device: &mut B, input: &dyn ImageInput) -> Result<(), String>;

    /// Runs the next unit. `input` is the image's that was begun.
    ///
    /// # Errors
    /// If there is none, or it cannot read the input.
    fn advance(&mut self, device: &mut B, input: &dyn ImageInput) -> Result<(), String>;

    /// After the last unit: the vectors of all views, `[n_vectors, width]`, in their order.
    ///
    /// # Errors
    /// If a unit is missing.
    fn finish(&mut self, device: &mut B) -> Result<Vec<f32>, String>;

    /// Frees the memory of an unfinished image.
    fn forget(&mut self);
}

/// An image that was encoded.
#[derive(Debug)]
pub struct EncodedImage {
    /// The job of its slices.
    pub job: Ticket,
    /// The vectors, or why there are none: the end of a sentence about the image.
    pub result: Result<Arc<PromptVectors>, String>,
}

/// A tower, and the image that it encodes.
pub struct Encoder<B> {
    tower: Box<dyn ImageTower<B>>,
    /// Values of a vector.
    width: usize,
    current: Option<Current>,
    encoded: Vec<EncodedImage>,
    beat: Beat,
}

struct Current {
    job: Ticket,
    /// The requests that wait for the image own it.
    input: Weak<dyn ImageInput>,
    n_done: u32,
    /// Why the tower cannot encode the image: the remaining units are skipped.
    failure: Option<String>,
}

impl<B> Encoder<B> {
    /// `width`: the values of a position of an image, in the text model.
    pub fn new(tower: Box<dyn ImageTower<B>>, width: usize) -> Self {
        Self {
            tower,
            width,
            current: None,
            encoded: Vec::new(),
            beat: Beat::default(),
        }
    }

    /// The tower beats at the end of each unit.
    pub fn set_beat(&mut self, beat: Beat) {
        self.beat = beat;
    }

    /// Checks a slice before its step begins.
    ///
    /// # Errors
    /// [`StepError::Rejected`] for a slice without units or pixels, and [`StepError::Lost`] for one that continues an
    /// image whose units before are missing, as after a lost step.
    pub fn check(&self, slice: &VisionSlice) -> Result<(), StepError> {
        check_form(slice)?;
        let VisionSlice { job, units, .. } = slice;
        let current = self.current.as_ref();
        let continues = current.is_some_and(|it| it.job == *job && it.n_done == units.start);
        if units.start > 0 && !continues {
            return Err(StepError::Lost(format!(
                "the slice from unit {} on of image {job} follows no other: its step failed",
                units.start
            )));
        }
        Ok(())
    }

    /// Runs a slice.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing has changed then.
    pub fn run(&mut self, device: &mut B, slice: &VisionSlice) -> Result<(), StepError> {
        self.check(slice)?;
        let VisionSlice {
            job,
            input,
            units,
            n_units,
        } = slice;
        if let Some(input) = input.as_ref().filter(|_| units.start == 0) {
            self.tower.forget();
            self.current = Some(Current {
                job: *job,
                input: Arc::downgrade(input),
                n_done: 0,
                failure: self.tower.begin(device, &**input).err(),
            });
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let input = input.clone().or_else(|| current.input.upgrade());
        for _ in units.clone() {
            if current.failure.is_none() {
                current.failure = match &input {
                    Some(input) => self.tower.advance(device, &**input).err(),
                    None => Some("has no pixels any more".to_owned()),
                };
                self.beat.beat();
            }
        }
        current.n_done = units.end;
        if units.end == *n_units {
            self.finish(device);
        }
        Ok(())
    }

    fn finish(&mut self, device: &mut B) {
        let Some(Current { job, failure, .. }) = self.current.take() else {
            return;
        };
        let values = match failure {
            None => self.tower.finish(device),
            Some(failure) => Err(failure),
        };
        let width = self.width;
        let result = values.and_then(|values| {
            let vectors = PromptVectors::new(width, values);
            vectors.map(Arc::new).map_err(|_| {
                format!("is encoded to vectors that are not {width} finite numbers each")
            })
        });
        self.encoded.push(EncodedImage { job, result });
        self.tower.forget();
    }

    /// Takes the images that were encoded since the last call.
    pub fn take_encoded(&mut self) -> Vec<EncodedImage> {
        std::mem::take(&mut self.encoded)
    }

    /// Drops the unfinished image if no request waits for it any more, and no slice is on its way.
    pub fn forget_unwanted(&mut self) {
        let current = self.current.as_ref();
        if current.is_some_and(|it| it.input.strong_count() == 0) {
            self.current = None;
            self.tower.forget();
        }
    }

    /// Drops the unfinished image, as after a lost step: no later slice continues it. Images that were not taken are
    /// dropped, too.
    pub fn forget(&mut self) {
        self.current = None;
        self.encoded.clear();
        self.tower.forget();
    }
}

/// Refuses a slice that contradicts itself.
///
/// # Errors
/// [`StepError::Rejected`] for a slice without units or pixels.
pub fn check_form(slice: &VisionSlice) -> Result<(), StepError> {
    let VisionSlice { units, n_units, .. } = slice;
    if units.is_empty() || units.end > *n_units {
        return Err(StepError::Rejected(format!(
            "a slice has units {} to {} of an image with {n_units}",
            units.start, units.end
        )));
    }
    if units.start == 0 && slice.input.is_none() {
        let reason = "a slice begins an image without pixels".to_owned();
        return Err(StepError::Rejected(reason));
    }
    Ok(())
}

/// Refuses a slice, for an executor without a tower.
///
/// # Errors
/// If the plan has a slice.
pub fn refuse_slice(plan: &StepPlan) -> Result<(), StepError> {
    match plan.vision {
        None => Ok(()),
        Some(_) => Err(StepError::Rejected(
            "the step encodes an image, but this executor has no vision tower".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use souffleur_state::prompt_images::ImageGrid;

    use super::*;

    /// Adds up numbers, one in each unit. The device counts the units that ran.
    struct Adder {
        sum: Option<f32>,
        fails: bool,
    }

    impl ImageTower<u32> for Adder {
        fn begin(&mut self, _: &mut u32, input: &dyn ImageInput) -> Result<(), String> {
            if self.fails {
                return Err("is too large".to_owned());
            }
            self.sum = Some(input.patches(0)[0]);
            Ok(())
        }

        fn advance(&mut self, device: &mut u32, input: &dyn ImageInput) -> Result<(), String> {
            assert_eq!(input.n_views(), 1);
            *device += 1;
            let sum = self.sum.as_mut().ok_or("was not begun")?;
            *sum += 1.0;
            Ok(())
        }

        fn finish(&mut self, _: &mut u32) -> Result<Vec<f32>, String> {
            let sum = self.sum.ok_or("was not begun")?;
            Ok(vec![sum, 2.0])
        }

        fn forget(&mut self) {
            self.sum = None;
        }
    }

    #[derive(Debug)]
    struct Pixel(f32);

    impl ImageInput for Pixel {
        fn n_views(&self) -> usize {
            1
        }

        fn grid(&self, _: usize) -> ImageGrid {
            ImageGrid {
                rows: 1,
                columns: 1,
            }
        }

        fn patches(&self, _: usize) -> Vec<f32> {
            vec![self.0]
        }

        fn bytes(&self) -> usize {
            4
        }
    }

    fn new_encoder(fails: bool) -> Encoder<u32> {
        Encoder::new(Box::new(Adder { sum: None, fails }), 2)
    }

    fn slice(job: u64, units: std::ops::Range<u32>, pixel: f32) -> VisionSlice {
        VisionSlice {
            job: Ticket::new(job),
            input: Some(Arc::new(Pixel(pixel))),
            units,
            n_units: 5,
        }
    }

    fn vectors(encoder: &mut Encoder<u32>) -> Vec<(u64, Result<Vec<f32>, String>)> {
        let encoded = encoder.take_encoded().into_iter();
        let encoded = encoded.map(|image| {
            let vectors = image.result.map(|vectors| vectors.values(0..1).to_vec());
            (image.job.get(), vectors)
        });
        encoded.collect()
    }

    #[test]
    fn any_division_into_slices_gives_the_same_vectors() {
        for cut in 1..5 {
            let (mut encoder, mut device) = (new_encoder(false), 0);
            for units in [0..cut, cut..5] {
                let ran = encoder.run(&mut device, &slice(1, units, 10.0));
                assert_eq!(ran, Ok(()));
            }
            assert_eq!(vectors(&mut encoder), [(1, Ok(vec![15.0, 2.0]))]);
            assert_eq!(device, 5);
        }
    }

    #[test]
    fn another_image_ends_an_unfinished_one() {
        let (mut encoder, mut device) = (new_encoder(false), 0);
        assert_eq!(encoder.run(&mut device, &slice(1, 0..3, 10.0)), Ok(()));
        assert_eq!(encoder.run(&mut device, &slice(2, 0..5, 20.0)), Ok(()));
        let continued = encoder.run(&mut device, &slice(1, 3..5, 10.0));
        assert!(matches!(continued, Err(StepError::Lost(_))));
        assert_eq!(vectors(&mut encoder), [(2, Ok(vec![25.0, 2.0]))]);
        // After a reset nothing continues.
        assert_eq!(encoder.run(&mut device, &slice(3, 0..1, 10.0)), Ok(()));
        encoder.forget();
        let continued = encoder.run(&mut device, &slice(3, 1..5, 10.0));
        assert!(matches!(continued, Err(StepError::Lost(_))));
    }

    #[test]
    fn an_image_that_no_request_waits_for_is_dropped() {
        let (mut encoder, mut device) = (new_encoder(false), 0);
        let first = slice(1, 0..3, 10.0);
        assert_eq!(encoder.run(&mut device, &first), Ok(()));
        encoder.forget_unwanted();
        let next = VisionSlice {
            input: first.input.clone(),
            ..slice(1, 3..4, 10.0)
        };
        assert_eq!(encoder.run(&mut device, &next), Ok(()));
        drop((first, next));
        encoder.forget_unwanted();
        let continued = encoder.run(&mut device, &slice(1, 4..5, 10.0));
        assert!(matches!(continued, Err(StepError::Lost(_))));
        assert!(vectors(&mut encoder).is_empty());
    }

    #[test]
    fn later_slices_read_the_pixels_that_the_first_one_had() {
        let (mut encoder, mut device) = (new_encoder(false), 0);
        let first = slice(1, 0..3, 10.0);
        assert_eq!(encoder.run(&mut device, &first), Ok(()));
        let without = |units: std::ops::Range<u32>| VisionSlice {
            input: None,
            ..slice(1, units, 10.0)
        };
        assert_eq!(encoder.run(&mut device, &without(3..4)), Ok(()));
        drop(first);
        assert_eq!(encoder.run(&mut device, &without(4..5)), Ok(()));
        assert_eq!(device, 4);
        let failed = (1, Err("has no pixels any more".to_owned()));
        assert_eq!(vectors(&mut encoder), [failed]);
    }

    #[test]
    fn a_failing_image_fails_alone() {
        let (mut encoder, mut device) = (new_encoder(true), 0);
        for units in [0..2, 2..5] {
            assert_eq!(encoder.run(&mut device, &slice(1, units, 1.0)), Ok(()));
        }
        assert_eq!(device, 0);
        let failed = (1, Err("is too large".to_owned()));
        assert_eq!(vectors(&mut encoder), [failed]);
        let mut encoder = new_encoder(false);
        let ran = encoder.run(&mut device, &slice(2, 0..5, f32::NAN));
        assert_eq!(ran, Ok(()));
        let (job, result) = vectors(&mut encoder).remove(0);
        assert_eq!(job, 2);
        assert!(result.is_err_and(|why| why.contains("not 2 finite numbers")));
    }

    #[test]
    fn slices_that_contradict_themselves_are_rejected() {
        let (mut encoder, mut device) = (new_encoder(false), 0);
        let blind = VisionSlice {
            input: None,
            ..slice(1, 0..1, 1.0)
        };
        for slice in [slice(1, 2..2, 1.0), slice(1, 0..6, 1.0), blind] {
            let ran = encoder.run(&mut device, &slice);
            assert!(matches!(ran, Err(StepError::Rejected(_))), "{slice:?}");
        }
        assert_eq!(device, 0);
    }
}
