//! placeholder
/// p
pub struct Protocol;
