//! The header of a safetensors file, read strictly: every byte after it belongs to exactly one tensor.
//!
//! Layout: the header's length (8 bytes, little endian), the header (a JSON object from names to dtype, shape and byte
//! range, and an optional `__metadata__` of strings, with spaces behind it), the tensors' bytes.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::CheckpointError;

/// Longest header, as in the format's reference implementation.
const HEADER_MAX: u64 = 100_000_000;

/// Element types of the format, with their bits.
const DTYPES: [(&str, usize); 21] = [
    ("F32", 32),
    ("BF16", 16),
    ("F16", 16),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F4", 4),
    ("F64", 64),
    ("C64", 64),
    ("I64", 64),
    ("U64", 64),
    ("I32", 32),
    ("U32", 32),
    ("I16", 16),
    ("U16", 16),
    ("I8", 8),
    ("U8", 8),
];
/// The one type that is no number.
const BOOL: (&str, usize) = ("BOOL", 8);

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    /// Byte range in the file.
    pub start: usize,
    pub end: usize,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header's map with its order and its duplicates.
struct Table(Vec<(String, Raw)>);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Table, D::Error> {
        struct TableVisitor;
        impl<'de> Visitor<'de> for TableVisitor {
            type Value = Table;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object from tensor names to tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
                let mut rows = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<Option<Metadata>>()?;
                    } else {
                        let row =
                            map.next_value::<Raw>().map_err(|e| A::Error::custom(format!("tensor {name}: {e}")))?;
                        rows.push((name, row));
                    }
                }
                Ok(Table(rows))
            }
        }
        deserializer.deserialize_map(TableVisitor)
    }
}

/// `__metadata__`: strings by strings. Its content says nothing about the tensors.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        struct MetadataVisitor;
        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Metadata;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("`__metadata__` from strings to strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                while map.next_entry::<IgnoredAny, String>()?.is_some() {}
                Ok(Metadata)
            }
        }
        deserializer.deserialize_map(MetadataVisitor)
    }
}

/// The tensors of `bytes`, the content of `file`, in the order of their bytes.
pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<Entry>, CheckpointError> {
    let named = || file.to_owned();
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(CheckpointError::Truncated { file: named(), len: bytes.len(), need: 8 });
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_MAX {
        return Err(CheckpointError::HeaderSize { file: named(), header: length, limit: HEADER_MAX });
    }
    let header = usize::try_from(length).ok().and_then(|n| rest.get(..n));
    let Some(header) = header else {
        return Err(CheckpointError::Truncated { file: named(), len: bytes.len(), need: 8 + length });
    };
    let bad = |offset: usize, reason: String| CheckpointError::Header { file: file.to_owned(), offset, reason };
    if header.first() != Some(&b'{') {
        return Err(bad(8, "it begins with something else than `{`".into()));
    }
    let Table(rows) = serde_json::from_slice(header).map_err(|e| {
        // A header is one line unless someone formatted it by hand.
        let line: usize =
            header.split_inclusive(|&b| b == b'\n').take(e.line().saturating_sub(1)).map(<[u8]>::len).sum();
        bad(8 + line + e.column().saturating_sub(1), e.to_string())
    })?;
    let base = 8 + header.len();
    let mut entries =
        rows.into_iter().map(|(name, raw)| entry(file, base, bytes.len(), name, raw)).collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let reason = "it is in the header twice".into();
        return Err(CheckpointError::Entry { file: named(), tensor: pair[0].to_owned(), reason });
    }
    entries.sort_by_key(|e| (e.start, e.end));
    let mut at = base;
    for (i, e) in entries.iter().enumerate() {
        if e.start > at {
            return Err(CheckpointError::Gap {
                file: named(),
                tensor: e.name.clone(),
                offset: at,
                bytes: e.start - at,
            });
        }
        if e.start < at {
            let other = entries[i - 1].name.clone();
            return Err(CheckpointError::Overlap {
                file: named(),
                tensor: e.name.clone(),
                other,
                offset: e.start,
                end: at,
            });
        }
        at = e.end;
    }
    if at < bytes.len() {
        return Err(CheckpointError::Trailing { file: named(), offset: at, bytes: bytes.len() - at });
    }
    Ok(entries)
}

fn entry(file: &Path, base: usize, len: usize, name: String, raw: Raw) -> Result<Entry, CheckpointError> {
    let file = || file.to_owned();
    let Some(&(dtype, bits)) = DTYPES.iter().chain([&BOOL]).find(|(known, _)| *known == raw.dtype) else {
        return Err(CheckpointError::UnknownDType { file: file(), tensor: name, dtype: raw.dtype });
    };
    let shape: Option<Vec<usize>> = raw.shape.iter().map(|&n| usize::try_from(n).ok()).collect();
    let bit_count = shape.as_ref().and_then(|shape| shape.iter().try_fold(bits, |product, &n| product.checked_mul(n)));
    let (Some(shape), Some(bit_count)) = (shape, bit_count) else {
        return Err(CheckpointError::Overflow { file: file(), tensor: name, shape: raw.shape });
    };
    let [start, end] = raw.data_offsets;
    if end < start {
        let reason = format!("its byte range {start}..{end} ends before it begins");
        return Err(CheckpointError::Entry { file: file(), tensor: name, reason });
    }
    let place = |offset: u64| usize::try_from(offset).ok().and_then(|n| n.checked_add(base)).filter(|&n| n <= len);
    let (Some(start), Some(end)) = (place(start), place(end)) else {
        return Err(CheckpointError::OutOfFile {
            file: file(),
            tensor: name,
            end: end.saturating_add(u64::try_from(base).unwrap_or(u64::MAX)),
            len,
        });
    };
    let (want, got) = (bit_count / 8, end - start);
    if want != got || !bit_count.is_multiple_of(8) {
        return Err(CheckpointError::Length { file: file(), tensor: name, offset: start, dtype, shape, want, got });
    }
    Ok(Entry { name, dtype, shape, start, end })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file: the length of `header`, `header`, `data` zero bytes.
    pub(in super::super) fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = u64::try_from(header.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn fault(bytes: &[u8]) -> String {
        let error = parse(Path::new("dir/model.safetensors"), bytes).expect_err("must be refused").to_string();
        assert!(error.starts_with("dir/model.safetensors: "), "{error}");
        error
    }

    #[test]
    fn a_header_gives_tensors_in_the_order_of_their_bytes() {
        let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},
            "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"e":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]}}  "#;
        let bytes = file(header, 20);
        let entries = parse(Path::new("f"), &bytes).unwrap();
        let base = 8 + header.len();
        let names: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.start - base, e.end - base)).collect();
        assert_eq!(names, [("a", 0, 8), ("e", 8, 8), ("b", 8, 20)]);
        assert_eq!((entries[2].dtype, &entries[2].shape[..]), ("BF16", &[2, 3][..]));
        assert_eq!(parse(Path::new("f"), &file("{}", 0)).unwrap(), []);
    }

    #[test]
    fn every_fault_names_file_tensor_and_place() {
        let t = |fields: &str| format!(r#"{{"x.w":{{{fields}}}}}"#);
        let ok = r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#;
        let two = |a: &str, b: &str| {
            format!(
                r#"{{"x.w":{{"dtype":"F32","shape":[2],"data_offsets":{a}}},"y.w":{{"dtype":"F32","shape":[2],"data_offsets":{b}}}}}"#
            )
        };
        let rows: Vec<(String, usize, Vec<&str>)> = vec![
            (t(&ok.replace("F32", "F33")), 8, vec!["x.w", "unknown dtype F33"]),
            (t(&ok.replace("[2]", "[3]")), 8, vec!["x.w", "F32 of shape [3] takes 12 bytes, its range has 8"]),
            (t(&ok.replace("[2]", "[4611686018427387904]")), 8, vec!["x.w", "overflows"]),
            (t(&ok.replace("[2]", "[18446744073709551616]")), 8, vec!["x.w"]),
            (t(&ok.replace("[2]", "[-2]")), 8, vec!["x.w"]),
            (t(&ok.replace("[0,8]", "[8,0]")), 8, vec!["x.w", "ends before it begins"]),
            (t(&ok.replace("[0,8]", "[0,16]").replace("[2]", "[4]")), 8, vec!["x.w", "truncated"]),
            (t(&ok.replace("[0,8]", "[18446744073709551600,18446744073709551608]")), 8, vec!["x.w", "truncated"]),
            (t(&ok.replace("[0,8]", "[0,8,9]")), 8, vec!["x.w"]),
            (t(&ok.replace("[0,8]", "[4,12]")), 12, vec!["x.w", "4 bytes at byte", "belong to no tensor"]),
            (t(&format!(r#"{ok},"extra":1"#)), 8, vec!["x.w", "unknown field `extra`"]),
            (t(r#""dtype":"F32","shape":[2]"#), 8, vec!["x.w", "missing field `data_offsets`"]),
            (t(r#""dtype":"F4","shape":[3],"data_offsets":[0,1]"#), 1, vec!["x.w", "F4 of shape [3]"]),
            (t(ok), 12, vec!["4 bytes at byte", "after the last tensor"]),
            (t(ok), 4, vec!["x.w", "truncated"]),
            (two("[0,8]", "[4,12]"), 12, vec!["y.w", "overlaps x.w"]),
            (two("[0,8]", "[12,20]"), 20, vec!["y.w", "4 bytes at byte"]),
            (two("[0,8]", "[8,16]").replace("y.w", "x.w"), 16, vec!["x.w", "twice"]),
            (r#"{"__metadata__":{"a":1}}"#.into(), 0, vec!["bad header at byte"]),
            ("[]".into(), 0, vec!["bad header at byte 8"]),
            (String::new(), 0, vec!["bad header at byte 8"]),
            ("{".into(), 0, vec!["bad header at byte"]),
            ("{}x".into(), 0, vec!["bad header at byte 10"]),
            ("{\"a\u{0}\":1}".into(), 0, vec!["bad header"]),
        ];
        for (header, data, wants) in rows {
            let error = fault(&file(&header, data));
            for want in wants {
                assert!(error.contains(want), "{header}: {error}");
            }
        }
        assert!(fault(&[]).contains("truncated"));
        assert!(fault(&[1, 0, 0]).contains("truncated"));
        assert!(fault(&9_u64.to_le_bytes()).contains("has 8 bytes and its header needs 17"));
        assert!(fault(&u64::MAX.to_le_bytes()).contains("above the limit"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Arbitrary bytes behind a plausible length, and damaged valid files, give an error or tensors that tile the data.
        #[test]
        fn no_bytes_panic(
            random in proptest::collection::vec(any::<u8>(), 0..200),
            at in 0_usize..200, with in any::<u8>(), cut in 0_usize..240,
        ) {
            let header = r#"{"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
            let mut damaged = file(header, 20);
            let place = at % damaged.len();
            damaged[place] = with;
            damaged.truncate(cut);
            let mut framed = u64::try_from(random.len() / 2).unwrap().to_le_bytes().to_vec();
            framed.extend_from_slice(&random);
            let mut object = framed.clone();
            if let Some(first) = object.get_mut(8) { *first = b'{'; }
            for bytes in [&random, &damaged, &framed, &object] {
                if let Ok(entries) = parse(Path::new("f"), bytes) {
                    let data: usize = entries.iter().map(|e| e.end - e.start).sum();
                    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    prop_assert_eq!(u64::try_from(bytes.len() - data).unwrap(), 8 + header);
                }
            }
        }
    }
}
