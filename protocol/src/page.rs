//! Layout of the shared page through which supervisor and worker agree on who runs a waiting call.

/// Bytes of the page that belong to one slot.
pub const SLOT_LEN: usize = 128;
const REVOKED: usize = 64;
const REVOKED_LEN: u32 = 64;

/// Offset of the number (little-endian, 4 bytes) of the call that the worker has begun last on `slot`.
#[must_use]
pub fn taken_offset(slot: usize) -> usize {
    slot * SLOT_LEN
}

/// Offset of the byte that is 1 where `call` on `slot` is revoked.
#[must_use]
pub fn revoked_offset(slot: usize, call: u32) -> usize {
    slot * SLOT_LEN + REVOKED + (call % REVOKED_LEN) as usize
}

/// Whether a worker that has begun `taken` has begun `call`. Numbers count up and wrap.
#[must_use]
pub fn has_begun(taken: u32, call: u32) -> bool {
    taken.wrapping_sub(call) < u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_across_the_wrap() {
        assert!(has_begun(5, 5) && has_begun(6, 5) && !has_begun(4, 5));
        assert!(has_begun(2, u32::MAX) && !has_begun(u32::MAX, 2));
    }

    #[test]
    fn slots_do_not_overlap() {
        assert_eq!(taken_offset(1), SLOT_LEN);
        assert!((0..200).all(|call| (64..128).contains(&revoked_offset(0, call))));
    }
}
