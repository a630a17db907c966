//! Parses sizes in bytes such as `64G`.

/// Suffixes, and the power of two by which they multiply the number.
const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

pub fn parse(text: &str) -> Result<u64, String> {
    let with_unit = |(letter, shift): &(char, u32)| Some((text.strip_suffix(*letter)?, *shift));
    let (digits, shift) = UNITS.iter().find_map(with_unit).unwrap_or((text, 0));
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        "must be a whole number of bytes below 2^64, or a number followed by K, M, G or T, such as 64G".to_owned()
    })
}

pub fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        let read = |text| parse(text).ok();
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("1000"), Some(1000));
        assert_eq!(read("3K"), Some(3 << 10));
        assert_eq!(read("8G"), Some(8 << 30));
        assert_eq!(read("2T"), Some(2 << 40));
        for wrong in ["", "G", "8GG", "8g", "-1", "1.5G", "99999999999T"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(gib(8 << 30), 8.0);
    }
}
