//! Where a test lets the runtime panic: set in a slot, sprung once, by whoever comes by first.

use std::sync::Mutex;

/// A place that may panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    ConnectionStarted,
    ConnectionHandler,
    ConnectionDriver,
    MonitorStarted,
    MonitorEnding,
    RequestStarted,
    RequestHandler,
    RequestDriver,
    SpawnerLaunch,
    SpawnerStart,
    Supervisor,
    TransportReader,
}

/// One for each server.
#[derive(Debug, Default)]
pub(crate) struct Trap(Mutex<Option<Place>>);

impl Trap {
    pub(crate) fn set(&self, place: Place) {
        *self.0.lock().unwrap() = Some(place);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    pub(crate) fn spring(&self, place: Place) {
        let sprung = self.0.lock().unwrap().take_if(|set| *set == place).is_some();
        // Not under the lock, which would be poisoned.
        assert!(!sprung, "on purpose");
    }
}
