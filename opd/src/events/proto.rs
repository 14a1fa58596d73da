//! The few fields of TensorBoard's `Event` that scalars need, as protocol buffers write them.
//!
//! ```text
//! Event      1 wall_time: double | 2 step: int64 | one of 3 file_version: string, 5 summary, 7 session_log
//! Summary    1 value, repeated: (1 tag: string | 2 simple_value: float)
//! SessionLog 1 status: enum, START = 1
//! ```

/// What an event says.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// The first event of a file.
    FileVersion,
    /// Whatever has this step or a later one in earlier files is void: it is done again.
    Start,
    /// Scalars by tag.
    Scalars(&'a [(String, f32)]),
}

/// The bytes of one event.
#[must_use]
pub fn event(wall_time_s: f64, step: u64, what: What<'_>) -> Vec<u8> {
    let mut out = vec![1 << 3 | FIXED_64];
    out.extend_from_slice(&wall_time_s.to_le_bytes());
    if step > 0 {
        out.push(2 << 3 | VARINT);
        varint(&mut out, step);
    }
    match what {
        What::FileVersion => bytes(&mut out, 3, b"brain.Event:2"),
        What::Start => bytes(&mut out, 7, &[1 << 3 | VARINT, 1]),
        What::Scalars(scalars) => {
            let mut summary = Vec::new();
            for (tag, value) in scalars {
                let mut inner = Vec::new();
                bytes(&mut inner, 1, tag.as_bytes());
                inner.push(2 << 3 | FIXED_32);
                inner.extend_from_slice(&value.to_le_bytes());
                bytes(&mut summary, 1, &inner);
            }
            bytes(&mut out, 5, &summary);
        }
    }
    out
}

const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

fn varint(out: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        out.push(x.to_le_bytes()[0] | 0x80);
        x >>= 7;
    }
    out.push(x.to_le_bytes()[0]);
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_bytes_worked_out_by_hand() {
        let got = event(1.5, 300, What::Scalars(&[("loss".to_owned(), 0.25)]));
        let want = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f][..], // 1.5
            &[0x10, 0xac, 0x02],                       // 300 = 2 * 128 + 44
            &[0x2a, 13, 0x0a, 11, 0x0a, 4],
            b"loss",
            &[0x15, 0, 0, 0x80, 0x3e], // 0.25
        ]
        .concat();
        assert_eq!(got, want);
        let time = [0x09, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(event(0.0, 0, What::FileVersion), [&time[..], &[0x1a, 13], b"brain.Event:2"].concat());
        assert_eq!(event(0.0, 5, What::Start), [&time[..], &[0x10, 5, 0x3a, 2, 8, 1]].concat());
    }
}
