//! JPEG files that contradict themselves.

use super::files::file;
use crate::{ImageError, Kind, Limits, read};

/// The place of the first segment with this marker.
fn segment(bytes: &[u8], marker: u8) -> usize {
    let found = bytes.windows(2).position(|pair| pair == [0xff, marker]);
    found.expect("the file has the segment")
}

/// Without the first segment with this marker.
fn without(name: &str, marker: u8) -> Vec<u8> {
    let mut bytes = file(name);
    let at = segment(&bytes, marker);
    let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
    bytes.drain(at..at + 2 + length);
    bytes
}

/// The file with these bytes at a distance from the first segment with this marker.
fn with(name: &str, marker: u8, distance: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = file(name);
    let at = segment(&bytes, marker) + distance;
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// The reason for which a file is refused as damaged.
fn reason(bytes: &[u8]) -> String {
    match read(bytes, &Limits::default()) {
        Err(ImageError::Damaged { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_tables_are_named() {
    assert_eq!(
        reason(&without("jpeg-444", 0xc4)),
        "a scan's Huffman table is missing"
    );
    assert_eq!(
        reason(&without("jpeg-444", 0xdb)),
        "quantisation table 0 is missing"
    );
    assert_eq!(
        reason(&without("jpeg-444", 0xc0)),
        "a scan comes before the frame"
    );
}

#[test]
fn scans_that_contradict_the_frame_are_refused() {
    let another = with("jpeg-444", 0xda, 5, &[9]);
    assert_eq!(
        reason(&another),
        "a scan lists component 9, which the frame lacks or the scan lists twice"
    );
    let twice = with("jpeg-444", 0xda, 5, &[2]);
    assert_eq!(
        reason(&twice),
        "a scan lists component 2, which the frame lacks or the scan lists twice"
    );
    let none = with("jpeg-444", 0xda, 4, &[0]);
    assert_eq!(reason(&none), "a scan has 0 components");
    // The band and the bits of the first scan, after three components.
    let band = with("jpeg-progressive", 0xda, 11, &[0, 5, 0]);
    assert_eq!(
        reason(&band),
        "a progressive scan has an invalid range: coefficients 0 to 5, bits 0 to 0, 3 components"
    );
    let shift = with("jpeg-progressive", 0xda, 11, &[0, 0, 15]);
    assert_eq!(
        reason(&shift),
        "a progressive scan has an invalid range: coefficients 0 to 0, bits 0 to 15, 3 components"
    );
}

#[test]
fn codes_of_no_table_and_ends_in_a_scan_are_refused() {
    // The counts of the first lengths, with the sum of before: there are two codes of one bit.
    let overfull = with("jpeg-444", 0xc4, 5, &[3, 1, 2]);
    assert_eq!(
        reason(&overfull),
        "a Huffman table has more codes than their lengths allow"
    );
    let mut short = file("jpeg-444");
    let scan = segment(&short, 0xda);
    let length = short.len();
    short.drain(scan + 30..length - 2);
    assert_eq!(reason(&short), "a scan ends before its last block");
    short.truncate(scan + 30);
    let cut = ImageError::Cut {
        kind: Kind::Jpeg,
        length: scan + 30,
    };
    assert_eq!(read(&short, &Limits::default()), Err(cut));
    let restart = with("jpeg-restarts", 0xd1, 1, &[0xd2]);
    assert_eq!(reason(&restart), "restart marker 1 is missing");
}

#[test]
fn pictures_of_two_components_are_refused_by_name() {
    let mut two = file("jpeg-444");
    let frame = segment(&two, 0xc0);
    two[frame + 3] -= 3;
    two[frame + 9] = 2;
    two.drain(frame + 16..frame + 19);
    let expected = ImageError::Unsupported {
        kind: Kind::Jpeg,
        variant: "one of two components".to_owned(),
    };
    assert_eq!(read(&two, &Limits::default()), Err(expected));
    let mut thirds = file("jpeg-444");
    thirds[frame + 11] = 0x21;
    thirds[frame + 14] = 0x31;
    let refused = read(&thirds, &Limits::default()).expect_err("2 does not divide 3");
    assert_eq!(refused.code(), "image_unsupported");
}

#[test]
fn a_progressive_picture_without_its_last_scan_is_read() {
    let whole = file("jpeg-progressive");
    let scans = whole.windows(2).rposition(|pair| pair == [0xff, 0xda]);
    let mut short = whole[..scans.expect("the file has scans")].to_vec();
    assert!(segment(&short, 0xda) < short.len());
    short.extend([0xff, 0xd9]);
    let size = |bytes: &[u8]| {
        let picture = read(bytes, &Limits::default()).expect("the file is complete");
        (picture.width(), picture.height())
    };
    assert_eq!(size(&short), size(&whole));
}
