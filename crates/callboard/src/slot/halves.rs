//! A bounded map of what is known of a server's tools, in two halves: when the younger is full, the older is dropped
//! and it takes its place.

use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct Halves<V> {
    young: HashMap<String, (V, usize)>,
    /// Of the younger half, in bytes.
    weight: usize,
    old: HashMap<String, (V, usize)>,
}

impl<V> Default for Halves<V> {
    fn default() -> Self {
        Self {
            young: HashMap::new(),
            weight: 0,
            old: HashMap::new(),
        }
    }
}

impl<V> Halves<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    pub(crate) fn get(&self, tool: &str) -> Option<&V> {
        let found = self.young.get(tool).or_else(|| self.old.get(tool))?;
        Some(&found.0)
    }

    pub(crate) fn forget(&mut self, tool: &str) {
        if let Some((_, weight)) = self.young.remove(tool) {
            self.weight -= weight;
        }
        self.old.remove(tool);
    }

    /// `weight`: of the value alone, in bytes. Says whether others were dropped for it.
    pub(crate) fn insert(&mut self, tool: String, value: V, weight: usize) -> bool {
        self.forget(&tool);
        let weight = tool.len() + weight;
        let is_full = self.young.len() == HALF || self.weight + weight > HALF_WEIGHT;
        let dropped = is_full && !self.old.is_empty();
        if is_full {
            self.old = std::mem::take(&mut self.young);
            self.weight = 0;
        }
        self.weight += weight;
        self.young.insert(tool, (value, weight));
        dropped
    }
}

/// Half of the tools that something is known of.
pub(crate) const HALF: usize = 5_000;

/// Half of the bytes that they may take.
pub(crate) const HALF_WEIGHT: usize = 4 << 20;

#[cfg(test)]
impl<V> Halves<V> {
    /// How many tools something is known of, and how many bytes they take.
    pub(crate) fn measure(&self) -> (usize, usize) {
        let weight =
            |half: &HashMap<String, (V, usize)>| half.values().map(|(_, weight)| weight).sum::<usize>();
        (
            self.young.len() + self.old.len(),
            weight(&self.young) + weight(&self.old),
        )
    }
}
