//! What all actors and handles of one hub share: counters, limits, the identity told to servers.

use crate::cell::Outstanding;
use crate::clock::{self, Instant};
use crate::registry::Registry;
use crate::slot::Phase;
use callboard_proto::dialect::Identity;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tracing::error;

/// One per hub. Owns no actor; outlives them all.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The zero of all deadlines.
    pub(crate) epoch: Instant,
    /// What is told to servers.
    pub(crate) identity: Identity,
    /// The limit for one answer, where neither call nor server gives one.
    pub(crate) timeout: Duration,
    /// Set once, when the hub shuts down; new calls are refused from then on.
    closing: AtomicBool,
    pub(crate) registry: Registry,
    pub(crate) outstanding: Arc<Outstanding>,
    pub(crate) gauges: Gauges,
}

/// How many of each kind are alive.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) requests: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) children: Arc<AtomicUsize>,
    pub(crate) exchanges: Arc<AtomicUsize>,
    pub(crate) late_answers: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(epoch: Instant, identity: Identity, timeout: Duration) -> Self {
        Self {
            epoch,
            identity,
            timeout,
            closing: AtomicBool::new(false),
            registry: Registry::default(),
            outstanding: Arc::default(),
            gauges: Gauges::default(),
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Refuses everything new from here on.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// The hub cannot go on: a part of it that is never restarted has failed. All servers say why.
    pub(crate) fn fail(&self, reason: &str) {
        error!(reason, "the hub ends");
        self.close();
        for slot in self.registry.all() {
            slot.publish(|state| {
                state.phase = Phase::Stopped {
                    reason: format!("the hub has ended, {reason}").into(),
                };
                state.since = clock::now();
            });
        }
    }
}

/// Counts what is alive, and tells when nothing is.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    alive: AtomicUsize,
    idle: Notify,
}

impl Gauge {
    pub(crate) fn get(&self) -> usize {
        self.alive.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self) {
        self.alive.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn lower(&self) {
        if self.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Waits until nothing is alive. Cancel safe.
    pub(crate) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.get() == 0 {
                return;
            }
            idle.await;
        }
    }
}
