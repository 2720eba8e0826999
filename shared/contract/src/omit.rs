//! Predicates by which a field is left out of a document. Nothing else.

/// Whether a count is zero.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) const fn is_zero(count: &u64) -> bool {
    *count == 0
}
