//! The images of a request that came without vectors.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::prompt_images::{ImageDigest, PromptImages};
use crate::prompt_vectors::PromptVectors;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::submission::Submission;
use crate::tiers::name_of_vectors;
use crate::vision::{VisionOrder, WantedImage};
use souffleur_base::ids::Ticket;

#[derive(Debug)]
pub struct SequenceVision {
    /// The images' parts, in the order of the prompt.
    parts: SmallVec<[Part; 2]>,
    /// The number of releases of vectors when the request last found no room for its own.
    turned_away_at: Option<u64>,
    /// The request was retracted since the store did not give the K/V of an image.
    distrusts_store: bool,
}

#[derive(Debug)]
struct Part {
    /// The image's index in the prompt's table.
    index: usize,
    /// The name of its vectors, which requests with equal salts share.
    name: ImageDigest,
    /// The position after the last one that has a vector.
    end: u32,
    n_vectors: usize,
    progress: Progress,
}

#[derive(Debug, Default)]
enum Progress {
    #[default]
    Unasked,
    Asked(Ticket),
    /// `None` in a replay of a message log.
    Encoded(Ticket, Option<Arc<PromptVectors>>),
}

impl Progress {
    fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Unasked => None,
            Self::Asked(ticket) | Self::Encoded(ticket, _) => Some(*ticket),
        }
    }
}

impl SequenceVision {
    /// `None` for a request whose images all have vectors.
    pub(in crate::scheduler) fn of(request: &Submission) -> Option<Box<Self>> {
        let spans = request.images.as_ref()?.spans().iter().enumerate();
        let without = spans.filter(|(_, span)| span.vectors().is_none());
        let parts = without.map(|(index, span)| Part {
            index,
            name: name_of_vectors(span, &request.namespace),
            end: span.vectors_end(),
            n_vectors: span.n_vectors(),
            progress: Progress::Unasked,
        });
        let parts: SmallVec<[Part; 2]> = parts.collect();
        (!parts.is_empty()).then(|| {
            Box::new(Self {
                parts,
                turned_away_at: None,
                distrusts_store: false,
            })
        })
    }

    /// The ends of the images without vectors.
    pub(super) fn missing(&self) -> SmallVec<[u32; 2]> {
        let has_none = |part: &&Part| !matches!(part.progress, Progress::Encoded(..));
        self.parts
            .iter()
            .filter(has_none)
            .map(|part| part.end)
            .collect()
    }

    /// Whether an image is being encoded, or waits for that.
    pub(in crate::scheduler) fn is_waiting(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| matches!(part.progress, Progress::Asked(_)))
    }

    /// Notes that there is no room for the request's vectors before the next release.
    pub(super) fn turn_away(&mut self, n_releases: u64) {
        self.turned_away_at = Some(n_releases);
    }

    /// Whether no vectors were released since the request found no room.
    pub(super) fn was_turned_away(&self, n_releases: u64) -> bool {
        self.turned_away_at == Some(n_releases)
    }

    pub(super) fn distrust_store(&mut self) {
        self.distrusts_store = true;
    }

    /// Vectors to ask for, if the first `cached` tokens are cached; and those that were asked for before.
    pub(super) fn wanted_after(&self, cached: usize) -> (usize, usize) {
        let sum = |is_counted: &dyn Fn(&Part) -> bool| {
            let parts = self.parts.iter().filter(|part| is_counted(part));
            parts.map(|part| part.n_vectors).sum::<usize>()
        };
        let wanted = sum(&|part| part.is_unasked_after(cached));
        let has = sum(&|part| part.progress.ticket().is_some());
        (wanted, has)
    }

    /// Asks for the images that end after the first `cached` tokens, unless they were asked for before.
    pub(super) fn ask_after(
        &mut self,
        cached: usize,
        images: &PromptImages,
        mut ticket: impl FnMut() -> Ticket,
    ) -> SmallVec<[VisionOrder; 2]> {
        let parts = self.parts.iter_mut();
        let unasked = parts.filter(|part| part.is_unasked_after(cached));
        let orders = unasked.filter_map(|part| {
            let span = images.spans().get(part.index)?;
            let ticket = ticket();
            part.progress = Progress::Asked(ticket);
            let image = WantedImage {
                digest: part.name,
                n_vectors: part.n_vectors,
                input: span.input().cloned(),
            };
            Some(VisionOrder::Encode { ticket, image })
        });
        orders.collect()
    }

    /// Takes vectors that were asked for, in the number that was asked for.
    pub(super) fn take(&mut self, ticket: Ticket, vectors: Option<Arc<PromptVectors>>) {
        let mut parts = self.parts.iter_mut();
        let asked = parts.find(|part| matches!(part.progress, Progress::Asked(it) if it == ticket));
        if let Some(part) = asked {
            part.progress = Progress::Encoded(ticket, vectors);
        }
    }

    pub(super) fn index_of(&self, ticket: Ticket) -> Option<usize> {
        let mut parts = self.parts.iter();
        let part = parts.find(|part| part.progress.ticket() == Some(ticket));
        part.map(|part| part.index)
    }

    /// Forgets vectors and orders; returns the tickets, and the number of vectors.
    pub(super) fn release(&mut self) -> (SmallVec<[Ticket; 2]>, usize) {
        let (mut tickets, mut n_vectors) = (SmallVec::new(), 0);
        for part in &mut self.parts {
            if let Some(ticket) = std::mem::take(&mut part.progress).ticket() {
                tickets.push(ticket);
                n_vectors += part.n_vectors;
            }
        }
        (tickets, n_vectors)
    }

    fn vectors_of(&self, index: usize) -> Option<Arc<PromptVectors>> {
        let part = self.parts.iter().find(|part| part.index == index)?;
        match &part.progress {
            Progress::Encoded(_, vectors) => vectors.clone(),
            Progress::Unasked | Progress::Asked(_) => None,
        }
    }
}

impl Part {
    fn is_unasked_after(&self, cached: usize) -> bool {
        self.end as usize > cached && matches!(self.progress, Progress::Unasked)
    }
}

impl Sequence {
    /// Whether the request gets nothing more from the KV store, which did not give the K/V of an image as expected.
    pub(in crate::scheduler) fn distrusts_store(&self) -> bool {
        let parts = self.vision.as_deref();
        parts.is_some_and(|parts| parts.distrusts_store)
    }

    /// The images for a row that starts, with the vectors that they have now.
    pub(in crate::scheduler) fn row_images(&self) -> Option<Arc<PromptImages>> {
        let images = self.request.images.as_ref()?;
        Some(match self.vision.as_deref() {
            Some(parts) => Arc::new(images.with_vectors(|index| parts.vectors_of(index))),
            None => images.clone(),
        })
    }
}
