//! Bounds-checked reader of GGUF headers, which are untrusted input.

/// Metadata and tensor descriptions must end before this byte.
pub(super) const MAX_HEADER_BYTES: usize = 512 << 20;

/// Reads little-endian numbers and strings in order. Error texts continue a sentence that begins with the file's name.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn left(&self) -> usize {
        self.bytes.len().min(MAX_HEADER_BYTES) - self.at
    }

    /// `what` names the bytes in errors.
    pub fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], String> {
        let count = usize::try_from(count).ok();
        match count.filter(|&count| count <= self.left()) {
            Some(count) => {
                let taken = &self.bytes[self.at..self.at + count];
                self.at += count;
                Ok(taken)
            }
            None => Err(self.out_of_bytes(what)),
        }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a length of at most `limit` bytes, then the string.
    pub fn string(&mut self, limit: u64, what: &str) -> Result<&'a [u8], String> {
        let length = self.u64(what)?;
        if length > limit {
            return Err(format!(
                "{what} has {length} bytes, the limit is {limit}: the file is broken, download it again"
            ));
        }
        self.take(length, what)
    }

    /// Reads a count of items, of at least `min_bytes` each. Fails if it exceeds `limit` or the remaining bytes.
    pub fn count(&mut self, limit: u64, min_bytes: u64, what: &str) -> Result<usize, String> {
        let count = self.u64(what)?;
        if count > limit {
            return Err(format!(
                "{what} is {count}, the limit is {limit}: the file is broken, download it again"
            ));
        }
        let left = self.left() as u64;
        if count.saturating_mul(min_bytes) > left {
            return Err(format!(
                "{what} is {count}, but the {left} bytes that follow cannot hold that many: the file is incomplete, \
                 download it again"
            ));
        }
        usize::try_from(count).map_err(|_| self.out_of_bytes(what))
    }

    fn out_of_bytes(&self, what: &str) -> String {
        if self.bytes.len() > MAX_HEADER_BYTES {
            return format!(
                "{what} is beyond byte {MAX_HEADER_BYTES}, the limit for metadata: the file is broken, download it \
                 again"
            );
        }
        format!(
            "ends at byte {}, inside {what}: the file is incomplete, download it again",
            self.bytes.len()
        )
    }
}
