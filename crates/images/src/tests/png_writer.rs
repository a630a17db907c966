//! Writes the PNG files of `tools/oracle/make_images.py`.

/// Where the rows and columns of Adam7's passes begin, and how far apart they are: x, dx, y, dy.
const PASSES: [(u32, u32, u32, u32); 7] = [
    (0, 8, 0, 8),
    (4, 8, 0, 8),
    (0, 4, 4, 8),
    (2, 4, 0, 4),
    (0, 2, 2, 4),
    (1, 2, 0, 2),
    (0, 1, 1, 2),
];

/// The names of all kinds of pictures, with PNG's colour type and bits.
pub const KINDS: [(&str, u8, u8); 15] = [
    ("rgb8", 2, 8),
    ("rgb8-trns", 2, 8),
    ("rgba8", 6, 8),
    ("grey8", 0, 8),
    ("greya8", 4, 8),
    ("grey1", 0, 1),
    ("grey2", 0, 2),
    ("grey4", 0, 4),
    ("palette8", 3, 8),
    ("palette4-trns", 3, 4),
    ("palette1", 3, 1),
    ("rgb16", 2, 16),
    ("rgba16", 6, 16),
    ("grey16", 0, 16),
    ("greya16", 4, 16),
];

/// A picture that a formula makes.
pub struct Source {
    pub width: u32,
    pub height: u32,
    /// One of [`KINDS`].
    pub kind: &'static str,
    pub seed: u32,
    /// EXIF's number; 1 writes no EXIF.
    pub orientation: u16,
    pub is_interlaced: bool,
}

/// The static name of a kind.
pub fn kind_named(name: &str) -> &'static str {
    let found = KINDS.iter().find(|(kind, ..)| *kind == name);
    found.expect("the kind is known").0
}

fn sample(x: u32, y: u32, channel: u32, seed: u32) -> u8 {
    let value = if seed % 2 == 1 {
        x * 73 + y * 151 + channel * 57 + seed * 29 + ((x * y) >> 2) * 3 + ((x ^ y) & 31) * 5
    } else {
        x * 5 + y * 3 + channel * 40 + seed
    };
    (value & 255) as u8
}

/// A chunk with its length and checksum.
pub fn chunk(name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let named = [&name[..], data].concat();
    let length = (data.len() as u32).to_be_bytes();
    let checksum = crc32fast::hash(&named).to_be_bytes();
    [&length[..], &named, &checksum].concat()
}

/// A file with these chunks between header and end.
pub fn file(header: &[u8], chunks: &[Vec<u8>]) -> Vec<u8> {
    let start = [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", header)].concat();
    [start, chunks.concat(), chunk(b"IEND", b"")].concat()
}

/// The data of the header.
pub fn header(width: u32, height: u32, (colour, bits): (u8, u8), is_interlaced: bool) -> Vec<u8> {
    let sides = [width, height].map(u32::to_be_bytes).concat();
    let rest = [bits, colour, 0, 0, u8::from(is_interlaced)];
    [&sides[..], &rest].concat()
}

/// A zlib stream of stored blocks.
pub fn stored(data: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let n_blocks = data.len().div_ceil(65_535);
    for (i, block) in data.chunks(65_535).enumerate() {
        let length = block.len() as u16;
        stream.push(u8::from(i + 1 == n_blocks));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in data {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    stream.extend(((high << 16) | low).to_be_bytes());
    stream
}

/// A TIFF structure with one entry, in either byte order.
pub fn exif(orientation: u16) -> Vec<u8> {
    let is_big = orientation % 2 == 1;
    let short = |value: u16| {
        if is_big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let long = |value: u32| {
        if is_big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    let mut tiff = if is_big { b"MM\0*" } else { b"II*\0" }.to_vec();
    tiff.extend(long(8));
    tiff.extend([1, 0x0112, 3].map(short).concat());
    tiff.extend(long(1));
    tiff.extend([orientation, 0].map(short).concat());
    tiff.extend(long(0));
    tiff
}

impl Source {
    fn format(&self) -> (u8, u8) {
        let found = KINDS.iter().find(|(kind, ..)| *kind == self.kind);
        let (_, colour, bits) = found.expect("the kind is known");
        (*colour, *bits)
    }

    fn n_channels(&self) -> u32 {
        match self.format().0 {
            2 => 3,
            4 => 2,
            6 => 4,
            _ => 1,
        }
    }

    /// A row of one pass.
    fn row(&self, y: u32, (first, step): (u32, u32), rows: &mut Vec<u8>) {
        let (_, bits) = self.format();
        rows.push(0);
        let (mut byte, mut filled) = (0_u32, 0);
        for x in (first..self.width).step_by(step as usize) {
            for channel in 0..self.n_channels() {
                let value = sample(x, y, channel, self.seed);
                if bits == 16 {
                    rows.extend([value, sample(y, x, channel, self.seed)]);
                    continue;
                }
                byte = (byte << bits) | u32::from(value >> (8 - bits));
                filled += bits;
                if filled == 8 {
                    rows.push(byte as u8);
                    (byte, filled) = (0, 0);
                }
            }
        }
        if filled > 0 {
            rows.push((byte << (8 - filled)) as u8);
        }
    }

    /// The rows with their filters, which are all 0.
    fn rows(&self) -> Vec<u8> {
        let mut rows = Vec::new();
        let whole = [(0, 1, 0, 1)];
        let passes: &[(u32, u32, u32, u32)] = if self.is_interlaced { &PASSES } else { &whole };
        for (x, dx, y, dy) in passes {
            if self.width <= *x {
                continue;
            }
            for row in (*y..self.height).step_by(*dy as usize) {
                self.row(row, (*x, *dx), &mut rows);
            }
        }
        rows
    }

    /// The file.
    pub fn png(&self) -> Vec<u8> {
        let (colour, bits) = self.format();
        let mut chunks = Vec::new();
        if self.orientation != 1 {
            chunks.push(chunk(b"eXIf", &exif(self.orientation)));
        }
        if colour == 3 {
            let entries = (0..1_u32 << bits).flat_map(|index| {
                (0..3).map(move |channel| sample(index * 7, 3, channel, self.seed))
            });
            let entries: Vec<u8> = entries.collect();
            chunks.push(chunk(b"PLTE", &entries));
        }
        if self.kind == "rgb8-trns" {
            let clear = [0, 1, 2].map(|channel| [0, sample(0, 0, channel, self.seed)]);
            chunks.push(chunk(b"tRNS", &clear.concat()));
        }
        if self.kind == "palette4-trns" {
            let alphas: Vec<u8> = (0..12).map(|index| index * 17).collect();
            chunks.push(chunk(b"tRNS", &alphas));
        }
        chunks.push(chunk(b"IDAT", &stored(&self.rows())));
        let header = header(self.width, self.height, (colour, bits), self.is_interlaced);
        file(&header, &chunks)
    }
}
