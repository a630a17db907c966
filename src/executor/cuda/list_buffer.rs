//! A buffer that holds all lists of a step contiguously, for one copy to the device.

use std::marker::PhantomData;

use bytemuck::Pod;

use souffleur_kernels::cuda::driver::DevicePtr;

/// Lists begin at multiples of this many words: 16 bytes, enough for any element.
const ALIGNMENT: usize = 4;

#[derive(Default)]
pub(super) struct ListBuffer {
    words: Vec<u32>,
}

pub(super) struct Section<T> {
    first_word: usize,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl ListBuffer {
    pub(super) fn clear(&mut self) {
        self.words.clear();
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    pub(super) fn list<T: Pod>(&mut self, items: impl IntoIterator<Item = T>) -> Section<T> {
        let first_word = self.begin();
        let mut len = 0;
        for item in items {
            self.words
                .extend_from_slice(bytemuck::cast_slice(std::slice::from_ref(&item)));
            len += 1;
        }
        Section::new(first_word, len)
    }

    /// Begins a list of words for [`Self::extend`] and [`Self::end`]. Returns the list's first word.
    pub(super) fn begin(&mut self) -> usize {
        self.words
            .resize(self.words.len().next_multiple_of(ALIGNMENT), 0);
        self.words.len()
    }

    pub(super) fn extend(&mut self, items: impl IntoIterator<Item = u32>) {
        self.words.extend(items);
    }

    /// Ends the list that begins at `first_word`.
    pub(super) fn end(&self, first_word: usize) -> Section<u32> {
        Section::new(first_word, self.words.len() - first_word)
    }
}

impl<T> Section<T> {
    fn new(first_word: usize, len: usize) -> Self {
        Self {
            first_word,
            len,
            of: PhantomData,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The list's address on the device, if the buffer was copied to `start`.
    pub(super) fn at(&self, start: DevicePtr<u32>) -> DevicePtr<T> {
        start.add(self.first_word).cast()
    }

    /// The list's words in the buffer.
    pub(super) fn words(&self) -> std::ops::Range<usize> {
        let n_words = self.len * size_of::<T>() / size_of::<u32>();
        self.first_word..self.first_word + n_words
    }
}

impl<T> Clone for Section<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Section<T> {}
