//! A vision tower on the compute threads of a host, for a text model on a device.

use super::tower::{TowerFiles, load_tower};
use crate::vision::{EncodedImage, Encoder, ImageTower};
use souffleur_base::beat::Beat;
use souffleur_base::error::{LoadError, StepError};
use souffleur_base::kv_layout::KvLayout;
use souffleur_kernels::cpu::{CpuBackend, CpuSizes, Isa, Numa};
use souffleur_kernels::dtype::Dtype;
use souffleur_state::step::VisionSlice;

/// How a host computes the tower of a model that is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSizes {
    /// The type of matrices.
    pub dtype: Dtype,
    /// Compute threads, including the executor's own thread. They sleep between slices.
    pub threads: usize,
}

/// A vision tower, its compute threads, and the image that it encodes.
pub struct HostTower {
    backend: CpuBackend,
    encoder: Encoder<CpuBackend>,
}

impl HostTower {
    /// `width`: values of a position of an image.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if the threads cannot be started, or if the machine lacks the instructions that
    /// [`ISA_VARIABLE`](souffleur_kernels::cpu::ISA_VARIABLE) names.
    pub fn new(
        tower: Box<dyn ImageTower<CpuBackend>>,
        width: usize,
        sizes: HostSizes,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            backend: backend(sizes)?,
            encoder: Encoder::new(tower, width),
        })
    }

    /// Loads the tower of a text model with this hidden size. Each position of an image has the given number of values.
    ///
    /// # Errors
    /// As [`Self::new`]; if the tower is another model's, or its files have changed.
    pub fn load(
        files: &TowerFiles,
        widths: (usize, usize),
        sizes: HostSizes,
    ) -> Result<Self, LoadError> {
        let mut backend = backend(sizes)?;
        let of = (&files.checkpoint, files.source.as_path());
        let tower = load_tower(of, widths, &mut backend)?;
        Ok(Self {
            backend,
            encoder: Encoder::new(tower, widths.1),
        })
    }

    /// Runs a slice on the threads.
    ///
    /// # Errors
    /// As [`Encoder::run`]; nothing has changed then.
    pub fn run(&mut self, slice: &VisionSlice) -> Result<(), StepError> {
        self.backend.wake();
        let ran = self.encoder.run(&mut self.backend, slice);
        self.backend.rest();
        ran
    }

    /// Takes the images that were encoded since the last call.
    pub fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.encoder.take_encoded()
    }

    /// The tower beats at the end of each unit.
    pub fn set_beat(&mut self, beat: Beat) {
        self.encoder.set_beat(beat);
    }

    /// Frees the memory of an image whose requests were cancelled.
    pub fn forget_unwanted(&mut self) {
        self.encoder.forget_unwanted();
    }

    /// Drops the unfinished image, as after a lost step or a panic.
    pub fn forget(&mut self) {
        self.encoder.forget();
        self.backend.rest();
    }
}

/// Threads and kernels without a text model: there are no pages and no rows.
fn backend(sizes: HostSizes) -> Result<CpuBackend, LoadError> {
    let made = CpuBackend::new(&CpuSizes {
        dtype: sizes.dtype,
        quantization: None,
        threads: sizes.threads,
        // Other threads of the process need the cores between slices.
        pin_threads: false,
        numa: Numa::Off,
        isa: Isa::chosen().map_err(LoadError::Memory)?,
        kv: KvLayout::new(Vec::new()),
        n_pages: 0,
        page_size: 1,
        n_rows: 1,
        n_state_slots: 0,
        n_window_pages: 0,
        shared_prefix: false,
        sparsity: None,
    });
    made.map_err(|error| {
        LoadError::Memory(format!(
            "failed to start the threads of the vision tower: {error}; set a lower --threads, or raise the limit \
             (ulimit -u)"
        ))
    })
}
