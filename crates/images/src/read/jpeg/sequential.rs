//! The blocks of baseline and extended pictures.

use super::bits::Bits;
use super::scan::Member;
use super::segments::ZIGZAG;
use crate::limits::ImageError;
use crate::read::header::File;

/// The difference of a block's first coefficient.
pub fn first(file: &File, bits: &mut Bits, member: &mut Member) -> Result<i32, ImageError> {
    let n = bits.symbol(member.codes(file, 0)?)?;
    if n > 15 {
        return Err(file.damaged(format!(
            "a DC coefficient has {n} bits, and the limit is 15"
        )));
    }
    member.last = member.last.wrapping_add(bits.take_signed(u32::from(n)));
    Ok(member.last)
}

/// The coefficients of the next block, in the order of its rows.
pub fn read(file: &File, bits: &mut Bits, member: &mut Member) -> Result<[i16; 64], ImageError> {
    let mut block = [0; 64];
    block[0] = first(file, bits, member)? as i16;
    let codes = member.codes(file, 1)?;
    let mut at = 1;
    while at < 64 {
        let symbol = bits.symbol(codes)?;
        let (n_zeros, n_bits) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        if n_bits == 0 {
            if n_zeros < 15 {
                break;
            }
            at += 16;
            continue;
        }
        at += n_zeros;
        let value = bits.take_signed(n_bits);
        let Some(place) = ZIGZAG.get(at) else {
            return Err(file.damaged("a block has more than 64 coefficients"));
        };
        block[usize::from(*place)] = value as i16;
        at += 1;
    }
    Ok(block)
}
