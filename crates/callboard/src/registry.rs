//! The only dashmap: server names to slots.
//!
//! Its functions give clones of the `Arc` and never a guard, call no user code, and never touch a second key
//! while holding one: a guard is a held shard lock.

use crate::config::ServerName;
use crate::slot::Slot;
use dashmap::DashMap;
use std::sync::Arc;

/// All slots of a hub. Written by the hub's handles and the supervisor, read by everybody.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    slots: DashMap<ServerName, Arc<Slot>>,
}

impl Registry {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Slot>> {
        let name: ServerName = name.parse().ok()?;
        self.slots.get(&name).map(|slot| Arc::clone(&slot))
    }

    /// Adds a slot, unless its name is taken.
    pub(crate) fn add(&self, slot: &Arc<Slot>) -> bool {
        let mut added = false;
        self.slots.entry(slot.name.clone()).or_insert_with(|| {
            added = true;
            Arc::clone(slot)
        });
        added
    }

    /// Removes exactly this slot, not another that took its name meanwhile.
    pub(crate) fn remove(&self, slot: &Arc<Slot>) {
        self.slots
            .remove_if(&slot.name, |_, held| Arc::ptr_eq(held, slot));
    }

    /// All slots, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Slot>> {
        let mut slots: Vec<_> = self.slots.iter().map(|entry| Arc::clone(entry.value())).collect();
        slots.sort_by(|a, b| a.name.cmp(&b.name));
        slots
    }
}
