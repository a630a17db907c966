//! Unaligned reads and writes.

/// A value at any alignment. Reading it compiles to a plain unaligned load in every profile. In debug builds, the
/// standard library's `read_unaligned`, which load intrinsics use, has checks that keep tiles out of registers.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// # Safety
/// `p` is valid for reading a `T`.
#[inline(always)]
pub unsafe fn read<T: Copy, P>(p: *const P) -> T {
    // SAFETY: guaranteed by the caller; `Unaligned` needs no alignment.
    unsafe { (*p.cast::<Unaligned<T>>()).0 }
}

/// # Safety
/// `p` is valid for writing a `T`.
#[inline(always)]
pub unsafe fn write<T: Copy, P>(p: *mut P, value: T) {
    // SAFETY: guaranteed by the caller; `Unaligned` needs no alignment.
    unsafe { (*p.cast::<Unaligned<T>>()).0 = value };
}
