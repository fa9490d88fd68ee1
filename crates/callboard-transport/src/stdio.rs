//! placeholder
/// placeholder
#[derive(Debug)]
pub struct ChildHandle;
