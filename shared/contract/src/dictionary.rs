//! Dictionaries for the compression of reports. A dictionary never changes: a new one gets a new number and a new encoding. This
//! module compresses nothing.

/// Dictionary 1, in the format of zstd: the text that reports share. `schemas/dictionaries/train.py` made it.
pub const REPORTS_1: &[u8] = include_bytes!("../../../schemas/dictionaries/reports-1.zdict");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::Digest;

    #[test]
    fn a_dictionary_that_devices_use_never_changes() {
        let digest = "sha256:e4d9491e79b8c53909e1590e3e44ac8234e43062b9c8ec197f3c49dc0560c04e";
        assert_eq!(Digest::of_bytes(REPORTS_1).to_string(), digest);
        assert_eq!(REPORTS_1[4..8], 1u32.to_le_bytes(), "its number");
    }
}
