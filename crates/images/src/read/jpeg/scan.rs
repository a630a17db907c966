//! A scan: the order of its blocks.

use super::bits::Bits;
use super::blocks::Planes;
use super::frame::Frame;
use super::huffman::Huffman;
use super::progressive::Progressive;
use super::segments::{Segment, Segments};
use super::sequential;
use crate::limits::ImageError;
use crate::read::header::File;

/// A component of a scan.
pub struct Member<'a> {
    /// Its place among the frame's components.
    pub component: usize,
    /// Huffman tables of its DC and AC coefficients.
    pub codes: [Option<&'a Huffman>; 2],
    /// The DC coefficient of the previous block, to which the next one is a difference.
    pub last: i32,
}

impl<'a> Member<'a> {
    /// A Huffman table: 0 for DC coefficients, 1 for AC.
    ///
    /// # Errors
    /// The file has not defined it.
    pub fn codes(&self, file: &File, of: usize) -> Result<&'a Huffman, ImageError> {
        self.codes[of].ok_or_else(|| file.damaged("a scan's Huffman table is missing"))
    }
}

/// A scan's header.
pub struct Scan<'a> {
    members: Vec<Member<'a>>,
    /// The first and the last of a block's coefficients.
    pub band: (usize, usize),
    /// The bit up to which they are already known, and the one up to which this scan tells them.
    pub bits: (u8, u8),
}

fn header<'a>(
    file: &File,
    segment: Segment,
    found: &'a Segments,
    frame: &Frame,
) -> Result<Scan<'a>, ImageError> {
    let n_members = usize::from(file.byte(segment.at + 2)?);
    if !(1..=frame.components.len()).contains(&n_members) {
        return Err(file.damaged(format!("a scan has {n_members} components")));
    }
    let listed = file.at(segment.at + 3, n_members * 2 + 3)?;
    let (listed, rest) = listed.split_at(n_members * 2);
    let mut members: Vec<Member> = Vec::new();
    for two in listed.chunks_exact(2) {
        let component = frame.components.iter().position(|one| one.id == two[0]);
        let is_new = |component: &usize| members.iter().all(|one| one.component != *component);
        let Some(component) = component.filter(is_new) else {
            return Err(file.damaged(format!(
                "a scan lists component {}, which the frame lacks or the scan lists twice",
                two[0]
            )));
        };
        let table = |of: usize, number: u8| {
            let tables = &found.huffman[of];
            tables.get(usize::from(number)).and_then(Option::as_deref)
        };
        members.push(Member {
            component,
            codes: [table(0, two[1] >> 4), table(1, two[1] & 15)],
            last: 0,
        });
    }
    Ok(Scan {
        members,
        band: (usize::from(rest[0]), usize::from(rest[1])),
        bits: (rest[2] >> 4, rest[2] & 15),
    })
}

/// The reader of a scan's blocks.
struct Reader<'a, 'b> {
    file: &'b File<'a>,
    bits: Bits<'a>,
    frame: &'b Frame,
    planes: &'b mut Planes,
    progressive: Option<Progressive>,
}

impl<'a> Reader<'a, '_> {
    /// Reads the block of a component at a place, in blocks across and down.
    fn block(&mut self, member: &mut Member, place: (usize, usize)) -> Result<(), ImageError> {
        let component = &self.frame.components[member.component];
        let plane = self.planes.of(member.component);
        if let Some(progressive) = &mut self.progressive {
            let block = plane.block(place.1 * component.blocks.0 + place.0);
            progressive.read(self.file, &mut self.bits, member, block)?;
        } else {
            let block = sequential::read(self.file, &mut self.bits, member)?;
            plane.write(&block, place, component.stride());
        }
        Ok(())
    }

    /// Reads a unit: a block of a component alone, or the blocks of all components of a unit of the frame.
    fn unit(&mut self, members: &mut [Member], (x, y): (usize, usize)) -> Result<(), ImageError> {
        if let [member] = members {
            self.block(member, (x, y))?;
            return self.bits.check();
        }
        for member in members {
            let (across, down) = self.frame.components[member.component].factors;
            for v in 0..down {
                for h in 0..across {
                    self.block(member, (x * across + h, y * down + v))?;
                }
            }
        }
        self.bits.check()
    }

    fn restart(&mut self, members: &mut [Member], number: u8) -> Result<(), ImageError> {
        self.bits.restart(number)?;
        for member in members {
            member.last = 0;
        }
        if let Some(progressive) = &mut self.progressive {
            progressive.restart();
        }
        Ok(())
    }
}

/// Reads the scan that begins with this segment.
///
/// # Errors
/// It is cut or damaged.
pub fn read(
    file: &File,
    segment: Segment,
    found: &Segments,
    frame: &Frame,
    planes: &mut Planes,
) -> Result<(), ImageError> {
    let mut scan = header(file, segment, found, frame)?;
    let progressive = if frame.is_progressive {
        Some(Progressive::new(file, &scan, scan.members.len())?)
    } else {
        None
    };
    for member in &scan.members {
        planes.begin(file, found, frame, member.component)?;
    }
    let units = match scan.members.as_slice() {
        [member] => frame.components[member.component].own_blocks(),
        _ => frame.units,
    };
    let mut reader = Reader {
        file,
        bits: Bits::new(*file, segment.end),
        frame,
        planes,
        progressive,
    };
    let mut n_read = 0;
    for y in 0..units.1 {
        for x in 0..units.0 {
            if found.restart > 0 && n_read > 0 && n_read % found.restart == 0 {
                let number = (n_read / found.restart - 1) % 8;
                reader.restart(&mut scan.members, number as u8)?;
            }
            reader.unit(&mut scan.members, (x, y))?;
            n_read += 1;
        }
    }
    Ok(())
}
