//! The framing of TensorBoard's files: each record between its length and a checksum, so that a torn end is noticed.
//!
//! ```text
//! length: u64 | masked CRC32C of those 8 bytes: u32 | data: [length] | masked CRC32C of data: u32     (little endian)
//! ```

use std::io::{self, Write};

/// CRC32C of every byte value: the Castagnoli polynomial with its bits reversed.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// CRC32C (Castagnoli) of `data`.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, &byte| (crc >> 8) ^ TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)])
}

/// The checksum as it is stored: rotated and moved, since data may hold checksums of its own.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Writes one record, in one call, so that a reader that follows the file rarely meets half of one.
pub fn write(to: &mut impl Write, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend_from_slice(&masked(data).to_le_bytes());
    to.write_all(&record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        let rising: Vec<u8> = (0..32).collect();
        for (data, want) in [
            (&[][..], 0),
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&rising, 0x46dd_794e),
        ] {
            assert_eq!(crc32c(data), want, "{data:?}");
        }
    }

    #[test]
    fn a_record_has_the_bytes_worked_out_by_hand() {
        // 0xe3069283 rotated right by 15 is 0x2507c60d; plus 0xa282ead8 that is 0xc78ab0e5. The length's checksum was
        // computed bit by bit outside of this program.
        let mut got = Vec::new();
        write(&mut got, b"123456789").expect("memory");
        let want = [&[9, 0, 0, 0, 0, 0, 0, 0][..], &[0x37, 0xf9, 0x71, 0x39], b"123456789", &[0xe5, 0xb0, 0x8a, 0xc7]]
            .concat();
        assert_eq!(got, want);
    }
}
