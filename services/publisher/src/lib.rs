//! The publisher: Git and requests in, one validated desired state for each device out.
pub mod compose;
pub mod content;
pub mod git;
pub mod held;
pub mod margo;
pub mod plan;
pub mod problems;
pub mod source;
