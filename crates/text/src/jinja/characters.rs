//! Defines Python's character classes for templates.

/// White space of `str.isspace` and `str.strip`.
pub(super) fn is_blank(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\x1c'..='\x1f')
}

/// The value of a decimal digit of any script.
pub(super) fn decimal(character: char) -> Option<u32> {
    let code = u32::from(character);
    let after = ZEROS.partition_point(|zero| *zero <= code);
    let zero = ZEROS.get(after.checked_sub(1)?)?;
    Some(code - zero).filter(|digit| *digit < 10)
}

/// `str.isdigit` of one character.
pub(super) fn is_digit(character: char) -> bool {
    let code = u32::from(character);
    let mut others = DIGITS.iter();
    decimal(character).is_some() || others.any(|(first, last)| (*first..=*last).contains(&code))
}

/// `str.isnumeric` of one character.
pub(super) fn is_numeric(character: char) -> bool {
    const IDEOGRAPHS: &str = "一二三四五六七八九十百千万亿零〇壹贰叁肆伍陆柒捌玖拾佰仟兆億萬兩两";
    character.is_numeric() || IDEOGRAPHS.contains(character)
}

/// `str.isalpha` of one character: `char::is_alphabetic` without combining marks and letter numbers.
pub(super) fn is_alpha(character: char) -> bool {
    let is_mark = matches!(
        character,
        '\u{345}' | '\u{5b0}'..='\u{5bd}' | '\u{64b}'..='\u{657}' | '\u{900}'..='\u{903}'
            | '\u{93a}'..='\u{93b}' | '\u{93e}'..='\u{94c}' | '\u{e31}' | '\u{e34}'..='\u{e3a}'
            | '\u{2160}'..='\u{2182}' | '\u{2185}'..='\u{2188}' | '\u{24b6}'..='\u{24e9}'
            | '\u{3007}' | '\u{3021}'..='\u{3029}'
    );
    character.is_alphabetic() && !is_mark
}

/// `str.isalnum` of one character.
pub(super) fn is_alnum(character: char) -> bool {
    is_alpha(character) || is_numeric(character) || is_digit(character)
}

/// A character that has case.
pub(super) fn is_cased(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase() || is_title(character)
}

/// A letter of title case, such as `ǅ`.
pub(super) fn is_title(character: char) -> bool {
    matches!(character, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}'
        | '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// The digit zero of each script; the digits 1 to 9 follow it.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// Ranges of digits that are not decimal, such as superscripts: first and last.
const DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];
