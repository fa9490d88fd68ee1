//! Waiting for several servers at once.

use crate::client::Client;
use crate::error::{FleetError, NoSuchServer};
use crate::hub::{Hub, ServerView};
use crate::slot::Phase;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use std::future::IntoFuture;
use std::pin::Pin;
use std::time::Duration;

/// Which servers [`Hub::ready`] waits for.
///
/// Servers that rest, since they are lazy or were idle, are waited for only by name, which starts them; disabled ones
/// not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quorum {
    /// Every one.
    All,
    /// The first that is ready.
    Any,
    /// Those of these names, each.
    Named(Vec<String>),
    /// As many as this, whichever.
    AtLeast(usize),
}

impl Quorum {
    /// Those of these names.
    pub fn named<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Named(names.into_iter().map(Into::into).collect())
    }
}

/// Waits for several servers to be ready; see [`Hub::ready`].
#[must_use = "nothing is waited for until it is awaited"]
#[derive(Debug)]
pub struct FleetReady<'a> {
    hub: &'a Hub,
    quorum: Quorum,
    within: Duration,
}

impl<'a> FleetReady<'a> {
    pub(crate) fn new(hub: &'a Hub, quorum: Quorum) -> Self {
        Self {
            hub,
            quorum,
            within: Duration::from_secs(60),
        }
    }

    /// The longest wait. Default 60 s.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    async fn run(self) -> Result<Vec<ServerView>, FleetError> {
        let clients = self.clients()?;
        let wanted = match self.quorum {
            Quorum::All | Quorum::Named(_) => clients.len(),
            Quorum::Any => 1,
            Quorum::AtLeast(servers) => servers,
        };
        let waits = clients.into_iter().map(async |client| {
            let ready = client.ready().within(self.within);
            ready.await
        });
        let mut waits: FuturesUnordered<_> = waits.collect();
        let (mut ready, mut failed) = (Vec::new(), Vec::new());
        while ready.len() < wanted {
            // Those that are left cannot make up for those that have failed: who is there is told, and nobody waited for.
            let settled = match ready.len() + waits.len() < wanted {
                true => waits.next().now_or_never().flatten(),
                false => waits.next().await,
            };
            match settled {
                Some(Ok(view)) => ready.push(view),
                Some(Err(error)) => failed.push(error),
                None => {
                    return Err(FleetError::NotReady {
                        wanted,
                        ready,
                        failed,
                    });
                }
            }
        }
        Ok(ready)
    }

    fn clients(&self) -> Result<Vec<Client>, NoSuchServer> {
        if let Quorum::Named(names) = &self.quorum {
            return names.iter().map(|name| self.hub.client(name)).collect();
        }
        let mut clients = self.hub.clients();
        clients.retain(|client| {
            let state = client.slot.state();
            !matches!(state.phase, Phase::Idle { .. } | Phase::Disabled)
        });
        Ok(clients)
    }
}

impl<'a> IntoFuture for FleetReady<'a> {
    type Output = Result<Vec<ServerView>, FleetError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    /// Waits until as many are ready; gives those, in the order in which they came.
    ///
    /// # Errors
    ///
    /// [`FleetError`], once so many have failed, or the time has passed, that it cannot be.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
