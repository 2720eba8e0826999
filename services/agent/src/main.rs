//! The door of `muster-agent`.

fn main() {}
