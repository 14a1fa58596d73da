//! Repository chores: see `main`.
fn main() {}
