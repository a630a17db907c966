//! The length of the common prefix of two token sequences, for walks of the radix tree.

/// Tokens per call of the C library's `memcmp`, which uses the widest vector registers.
const BLOCK: usize = 256;
/// Tokens compared at a time inside the first block that differs.
const LANES: usize = 16;

/// The number of leading tokens that `a` and `b` share.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut same = equal_chunks::<BLOCK>(a, b);
    same += equal_chunks::<LANES>(&a[same..], &b[same..]);
    let tail = a[same..].iter().zip(&b[same..]);
    same + tail.take_while(|(x, y)| x == y).count()
}

fn equal_chunks<const N: usize>(a: &[u32], b: &[u32]) -> usize {
    let chunks = a.chunks_exact(N).zip(b.chunks_exact(N));
    N * chunks.take_while(|(x, y)| x == y).count()
}
