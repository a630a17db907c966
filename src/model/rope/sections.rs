//! M-RoPE, arXiv 2409.12191: the pairs of a head are divided into sections, which rotate by a token's time, row and
//! column. Text has three equal numbers, so the sections do not change it.

use crate::gguf::keys::Keys;
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

/// More pairs than any head has.
const MAX_PAIRS: usize = 1 << 12;

/// The number of pairs that rotate by row and by column; the others rotate by time. They are interleaved: pairs 1, 4, 7
/// and so on rotate by row, pairs 2, 5, 8 and so on by column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MropeSections {
    pub rows: usize,
    pub columns: usize,
}

impl MropeSections {
    /// Reads `mrope_section` of a family that has M-RoPE, and else returns the family's `usual` sections.
    ///
    /// # Errors
    /// [`LoadError::Format`] if it is not three numbers, or if the sections are not interleaved.
    pub(crate) fn from_json(
        json: &JsonFile,
        usual: Option<Self>,
    ) -> Result<Option<Self>, LoadError> {
        const KEY: &str = "mrope_section";
        if usual.is_none() {
            return Ok(None);
        }
        for rope in ["rope_scaling", "rope_parameters"] {
            let Some(rope) = json.object(rope)? else {
                continue;
            };
            if rope.flag("mrope_interleaved")? == Some(false) {
                let reason = "is false, supported: true (interleaved sections)";
                return Err(rope.error("mrope_interleaved", reason));
            }
            let Some(numbers) = rope.numbers(KEY, "three numbers")? else {
                continue;
            };
            return match numbers.as_slice() {
                &[_, rows, columns] if rows.max(columns) <= MAX_PAIRS => {
                    Ok(Some(Self { rows, columns }))
                }
                _ => {
                    let reason =
                        format!("is {numbers:?}, expected three numbers up to {MAX_PAIRS}");
                    Err(rope.error(KEY, reason))
                }
            };
        }
        Ok(usual)
    }

    /// As [`Self::from_json`], read from `rope.dimension_sections`, whose fourth number must be 0.
    pub(crate) fn from_gguf(
        keys: &Keys<'_>,
        usual: Option<Self>,
    ) -> Result<Option<Self>, LoadError> {
        const KEY: &str = "rope.dimension_sections";
        if usual.is_none() {
            return Ok(None);
        }
        let numbers = keys
            .metadata
            .integers(&keys.key(KEY), 0..=MAX_PAIRS as i64)?;
        match numbers.as_deref() {
            None => Ok(usual),
            Some(&[_, rows, columns] | &[_, rows, columns, 0]) => Ok(Some(Self {
                rows: rows as usize,
                columns: columns as usize,
            })),
            Some(numbers) => {
                let reason = format!(
                    "is {numbers:?}, expected three numbers, or four of which the last is 0: convert the model again"
                );
                Err(keys.error(KEY, reason))
            }
        }
    }

    /// The component of the 3-D M-RoPE position that each of `n_pairs` pairs uses: 0 time, 1 row, 2 column.
    pub fn axes(self, n_pairs: usize) -> Vec<usize> {
        let axis = |pair: usize| match pair % 3 {
            1 if pair < 3 * self.rows => 1,
            2 if pair < 3 * self.columns => 2,
            _ => 0,
        };
        (0..n_pairs).map(axis).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const USUAL: MropeSections = MropeSections {
        rows: 11,
        columns: 10,
    };

    fn read(text: &str, usual: Option<MropeSections>) -> Result<Option<MropeSections>, LoadError> {
        let json = JsonFile::parse(Path::new("config.json"), text.as_bytes())?;
        MropeSections::from_json(&json, usual)
    }

    /// The axes as `apply_interleaved_mrope` of transformers 5 assigns them, by slices with a step of three.
    fn sliced(sections: [usize; 3], n_pairs: usize) -> Vec<usize> {
        let mut axes = vec![0; n_pairs];
        for axis in [1, 2] {
            let end = n_pairs.min(3 * sections[axis]);
            for pair in (axis..end).step_by(3) {
                axes[pair] = axis;
            }
        }
        axes
    }

    #[test]
    fn pairs_are_interleaved_as_in_transformers() {
        for (sections, n_pairs) in [([11, 11, 10], 32), ([24, 20, 20], 64), ([2, 1, 1], 4)] {
            let [_, rows, columns] = sections;
            let axes = MropeSections { rows, columns }.axes(n_pairs);
            assert_eq!(axes, sliced(sections, n_pairs));
            let count = |axis: usize| axes.iter().filter(|other| **other == axis).count();
            assert_eq!([count(0), count(1), count(2)], sections);
        }
        assert_eq!(USUAL.axes(7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn sections_are_read_only_in_families_with_m_rope() {
        let given =
            r#"{"rope_parameters": {"mrope_section": [2, 1, 3], "mrope_interleaved": true}}"#;
        let found = MropeSections {
            rows: 1,
            columns: 3,
        };
        assert_eq!(read(given, Some(USUAL)).expect("supported"), Some(found));
        assert_eq!(read(given, None).expect("supported"), None);
        assert_eq!(read("{}", Some(USUAL)).expect("supported"), Some(USUAL));
        let refused = [
            (
                r#"{"rope_scaling": {"mrope_section": [2, 1]}}"#,
                "is [2, 1]",
            ),
            (
                r#"{"rope_scaling": {"mrope_section": [0, 9999, 1]}}"#,
                "up to 4096",
            ),
            (
                r#"{"rope_scaling": {"mrope_section": "a"}}"#,
                "a list of three numbers",
            ),
            (
                r#"{"rope_parameters": {"mrope_interleaved": false}}"#,
                "is false",
            ),
        ];
        for (text, expected) in refused {
            let error = read(text, Some(USUAL)).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}, expected {expected}");
        }
    }
}
