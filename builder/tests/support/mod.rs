//! Zips as no well-behaved archiver writes them: every name, mode and length is the test's to choose.

/// One stored (not compressed) entry.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) bytes: &'a [u8],
    /// Upper half of the external attributes: kind and permissions as Unix archivers write them.
    pub(crate) mode: u16,
    /// The uncompressed size that the headers claim.
    pub(crate) claimed: u32,
}

/// A regular file with mode 0644 and an honest length.
pub(crate) fn file<'a>(name: &'a str, bytes: &'a str) -> Entry<'a> {
    let claimed = u32::try_from(bytes.len()).unwrap();
    Entry { name: name.as_bytes(), bytes: bytes.as_bytes(), mode: 0o100_644, claimed }
}

pub(crate) fn pack(entries: &[Entry<'_>]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let offset = u32::try_from(out.len()).unwrap();
        let length = u32::try_from(entry.bytes.len()).unwrap();
        let name_length = u16::try_from(entry.name.len()).unwrap();
        let mut shared = Vec::new();
        for field in [20u16, 0x0800, 0, 0, 0x21] {
            shared.extend(field.to_le_bytes());
        }
        for field in [crc32(entry.bytes), length, entry.claimed] {
            shared.extend(field.to_le_bytes());
        }
        shared.extend(name_length.to_le_bytes());
        shared.extend(0u16.to_le_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&shared);
        out.extend(entry.name);
        out.extend(entry.bytes);
        directory.extend(b"PK\x01\x02");
        directory.extend(0x0314u16.to_le_bytes());
        directory.extend(&shared);
        directory.extend([0; 6]);
        directory.extend((u32::from(entry.mode) << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(entry.name);
    }
    let count = u16::try_from(entries.len()).unwrap().to_le_bytes();
    let (start, length) = (u32::try_from(out.len()).unwrap(), u32::try_from(directory.len()).unwrap());
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count);
    out.extend(count);
    out.extend(length.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}
