//! What is told, and what of a server's doings is told as what. No queue; of the clock only what is left of a pause.

use crate::config::ServerName;
use crate::hub::{ServerInfo, ServerState};
use crate::slot::{Phase, left};
use actix::Message;
use callboard_proto::Method;
use callboard_proto::message::{LogMessage, LoggingLevel, RawJson};
use serde::Deserialize;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Something that happened to a server, or to the hub.
///
/// Its `Display` is one line of text; what a server wrote is in it as it came, line ends included.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HubEvent {
    /// A server is ready: it takes calls.
    Up {
        /// Which one.
        server: ServerName,
        /// What it told of itself.
        info: Arc<ServerInfo>,
    },
    /// A server ended, or could not be opened, and is started again by itself.
    Down {
        /// Which one.
        server: ServerName,
        /// Why, in words.
        reason: Arc<str>,
        /// How long after this event it is started again.
        next_in: Duration,
    },
    /// A server is given up for a while, and refuses calls.
    Parked {
        /// Which one.
        server: ServerName,
        /// Why, in words.
        reason: Arc<str>,
        /// How long after this event it is tried again.
        next_in: Duration,
    },
    /// A server came into another state than those above: with this one, every change of a state is told.
    StateChanged {
        /// Which one.
        server: ServerName,
        /// Its state from here on.
        state: ServerState,
        /// Why, in words, where it rests or is stopped.
        reason: Option<Arc<str>>,
    },
    /// A server says that one of its lists is another than before. However often it says so, there is one event
    /// until it is read.
    CatalogueChanged {
        /// Which one.
        server: ServerName,
        /// Which of its lists.
        catalogue: Catalogue,
    },
    /// A server says that a resource has changed; one event for each URI until it is read.
    ResourceUpdated {
        /// Which one.
        server: ServerName,
        /// The resource.
        uri: Arc<str>,
    },
    /// A line that a server's process wrote to its standard error, without the line's end.
    Stderr {
        /// Which one.
        server: ServerName,
        /// The line; a longer one than 8 KiB comes in pieces.
        line: Arc<str>,
    },
    /// A log message of a server. [`HubBuilder::on_log`](crate::HubBuilder::on_log) gets it whole.
    Log {
        /// Which one.
        server: ServerName,
        /// How much it matters, where the server named a level of the protocol.
        level: Option<LoggingLevel>,
        /// Which part of the server speaks.
        logger: Option<Arc<str>>,
        /// What it says: a text, or any other value as JSON. Cut at 8 KiB, with `…` at its end.
        text: Arc<str>,
    },
    /// So many events before the next one are lost, because they were not read in time; see [`Events`](crate::Events) for which.
    Missed {
        /// How many.
        count: u64,
    },
    /// The hub is over: nothing comes after this.
    Stopped,
}

/// A list that a server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Catalogue {
    /// Its tools.
    Tools,
    /// Its resources and their templates.
    Resources,
    /// Its prompts.
    Prompts,
}

/// What an event is about, to choose by; see [`Events::kinds`](crate::Events::kinds).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// The states of servers: [`HubEvent::Up`], [`HubEvent::Down`], [`HubEvent::Parked`],
    /// [`HubEvent::StateChanged`].
    State,
    /// What servers offer: [`HubEvent::CatalogueChanged`], [`HubEvent::ResourceUpdated`].
    Catalogue,
    /// [`HubEvent::Stderr`].
    Stderr,
    /// [`HubEvent::Log`].
    Log,
}

impl HubEvent {
    /// Which server it is about; `None` where it is about the hub or the subscription.
    #[must_use]
    pub fn server(&self) -> Option<&ServerName> {
        match self {
            Self::Up { server, .. }
            | Self::Down { server, .. }
            | Self::Parked { server, .. }
            | Self::StateChanged { server, .. }
            | Self::CatalogueChanged { server, .. }
            | Self::ResourceUpdated { server, .. }
            | Self::Stderr { server, .. }
            | Self::Log { server, .. } => Some(server),
            Self::Missed { .. } | Self::Stopped => None,
        }
    }

    /// What it is about; `None` for [`HubEvent::Missed`] and [`HubEvent::Stopped`].
    #[must_use]
    pub fn kind(&self) -> Option<EventKind> {
        match self {
            Self::Up { .. } | Self::Down { .. } | Self::Parked { .. } | Self::StateChanged { .. } => {
                Some(EventKind::State)
            }
            Self::CatalogueChanged { .. } | Self::ResourceUpdated { .. } => Some(EventKind::Catalogue),
            Self::Stderr { .. } => Some(EventKind::Stderr),
            Self::Log { .. } => Some(EventKind::Log),
            Self::Missed { .. } | Self::Stopped => None,
        }
    }

    /// What a step from one phase to the next is told as.
    pub(crate) fn of_step(server: &ServerName, before: &Phase, after: &Phase) -> Option<Self> {
        let server = server.clone();
        // A change within a phase is none of the phase: another session in place of a lost one, a count.
        if std::mem::discriminant(before) == std::mem::discriminant(after) {
            return None;
        }
        Some(match after {
            Phase::Ready { info, .. } => Self::Up {
                server,
                info: Arc::clone(info),
            },
            Phase::Restarting { reason, at, .. } => Self::Down {
                server,
                reason: Arc::clone(reason),
                next_in: left(*at),
            },
            Phase::Parked { reason, at } => Self::Parked {
                server,
                reason: Arc::clone(reason),
                next_in: left(*at),
            },
            other => Self::StateChanged {
                server,
                state: ServerState::of(other),
                reason: match other {
                    Phase::Idle { reason } | Phase::Stopped { reason } => Some(Arc::clone(reason)),
                    _ => None,
                },
            },
        })
    }

    /// The kind of event that this notification makes, where it makes one.
    pub(crate) fn kind_of(method: &Method) -> Option<EventKind> {
        match method {
            method if *method == Method::LOG_MESSAGE => Some(EventKind::Log),
            method if *method == Method::RESOURCE_UPDATED || catalogue_of(method).is_some() => {
                Some(EventKind::Catalogue)
            }
            _ => None,
        }
    }

    /// What a notification is told as. The event shares nothing with the frame, which may be large.
    ///
    /// # Errors
    ///
    /// A notification that ought to make one, but cannot be read, or is too large to be.
    pub(crate) fn of_notification(
        server: &ServerName,
        method: &Method,
        params: &RawJson,
    ) -> Result<Self, Untold> {
        let server = server.clone();
        if let Some(catalogue) = catalogue_of(method) {
            return Ok(Self::CatalogueChanged { server, catalogue });
        }
        if params.bytes().len() > READ {
            return Err(Untold::TooLarge);
        }
        if *method == Method::RESOURCE_UPDATED {
            let updated: Updated = params.decode().map_err(|_| Untold::Malformed)?;
            if updated.uri.len() > TEXT {
                return Err(Untold::TooLarge);
            }
            let uri = updated.uri.into();
            return Ok(Self::ResourceUpdated { server, uri });
        }
        let message = LogMessage::from_raw(params.clone()).map_err(|_| Untold::Malformed)?;
        let text = match message.data.decode::<String>() {
            Ok(text) => cut(&text),
            Err(_) => cut(message.data.get()),
        };
        Ok(Self::Log {
            server,
            level: message.level,
            logger: message.logger.as_deref().map(cut),
            text,
        })
    }

    pub(crate) fn stderr(server: &ServerName, line: &str) -> Self {
        Self::Stderr {
            server: server.clone(),
            line: cut(line),
        }
    }
}

/// Why a notification makes no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untold {
    /// It is not of the shape that the protocol gives it.
    Malformed,
    /// It is longer than is worth the time of the arbiter.
    TooLarge,
}

/// The params of `notifications/resources/updated`.
#[derive(Deserialize)]
struct Updated {
    uri: String,
}

fn catalogue_of(method: &Method) -> Option<Catalogue> {
    match method {
        method if *method == Method::TOOLS_CHANGED => Some(Catalogue::Tools),
        method if *method == Method::RESOURCES_CHANGED => Some(Catalogue::Resources),
        method if *method == Method::PROMPTS_CHANGED => Some(Catalogue::Prompts),
        _ => None,
    }
}

/// At most [`TEXT`] bytes of a text.
fn cut(text: &str) -> Arc<str> {
    if text.len() <= TEXT {
        return text.into();
    }
    let mut end = TEXT;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end]).into()
}

/// The most bytes of text in an event, so that a bounded number of events is a bounded number of bytes.
const TEXT: usize = 8 << 10;
/// Longer params are not read for an event: that is done on the arbiter.
const READ: usize = 256 << 10;

impl fmt::Display for HubEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = self.server() {
            write!(f, "{server}: ")?;
        }
        match self {
            Self::Up { info, .. } => write!(f, "up, speaks {} over {}", info.revision, info.transport.name()),
            Self::Down { reason, next_in, .. } => write!(f, "down, next start in {next_in:.1?}: {reason}"),
            Self::Parked { reason, next_in, .. } => {
                write!(f, "parked, tried again in {next_in:.1?}: {reason}")
            }
            Self::StateChanged {
                state,
                reason: Some(reason),
                ..
            } => write!(f, "{state}: {reason}"),
            Self::StateChanged { state, .. } => state.fmt(f),
            Self::CatalogueChanged { catalogue, .. } => write!(f, "its {catalogue} have changed"),
            Self::ResourceUpdated { uri, .. } => write!(f, "updated {uri}"),
            Self::Stderr { line, .. } => write!(f, "stderr: {line}"),
            Self::Log {
                level, logger, text, ..
            } => {
                f.write_str(level.map_or("log", LoggingLevel::as_str))?;
                if let Some(logger) = logger {
                    write!(f, " {logger}")?;
                }
                write!(f, ": {text}")
            }
            Self::Missed { count } => write!(f, "{count} events were missed"),
            Self::Stopped => f.write_str("the hub has stopped"),
        }
    }
}

impl fmt::Display for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::Prompts => "prompts",
        })
    }
}

impl Message for HubEvent {
    type Result = ();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor;
    use crate::clock;
    use crate::config::TransportKind;
    use crate::connection::ConnRef;
    use callboard_proto::Revision;
    use callboard_proto::negotiate::{Channel, Opened};

    fn name() -> ServerName {
        "s".parse().unwrap()
    }

    fn ready() -> Phase {
        let (addr, _) = actor::mailbox();
        let opened = Opened {
            revision: Revision::NEWEST_MODERN,
            channel: Channel::Pipe,
            result: None,
            slow: false,
            attempts: Vec::new(),
        };
        let info = ServerInfo::read(&opened, TransportKind::Memory, Duration::ZERO);
        Phase::Ready {
            conn: Arc::new(ConnRef::new(addr, 1, false)),
            info: Arc::new(info),
        }
    }

    // Paused, so that what is left of a pause is all of it.
    #[tokio::test(start_paused = true)]
    async fn every_step_is_told_once_and_none_that_is_no_step() {
        let later = || clock::now() + Duration::from_secs(90);
        let phases = [
            (
                Phase::Idle {
                    reason: "lazy".into(),
                },
                "s: idle: lazy",
            ),
            (Phase::Connecting { after: None }, "s: connecting"),
            (Phase::Negotiating { after: None }, "s: negotiating"),
            (ready(), "s: up, speaks 2026-07-28 over memory"),
            (
                Phase::Restarting {
                    attempt: 2,
                    at: later(),
                    reason: "it broke".into(),
                },
                "s: down, next start in 90.0s: it broke",
            ),
            (
                Phase::Parked {
                    reason: "no".into(),
                    at: later(),
                },
                "s: parked, tried again in 90.0s: no",
            ),
            (Phase::Disabled, "s: disabled"),
            (
                Phase::Stopped {
                    reason: "it was removed".into(),
                },
                "s: stopped: it was removed",
            ),
        ];
        for (from, (before, _)) in phases.iter().enumerate() {
            for (to, (after, words)) in phases.iter().enumerate() {
                let expected = if from == to { "" } else { *words };

                let event = HubEvent::of_step(&name(), before, after);

                let told = event.as_ref().map(ToString::to_string).unwrap_or_default();
                assert_eq!(told, expected, "{before:?} to {after:?}");
                assert!(event.is_none_or(|event| event.kind() == Some(EventKind::State)));
            }
        }
    }

    #[test]
    fn notifications_are_told_as_what_they_say() {
        let long = "ä".repeat(TEXT);
        let cut = format!("s: info: {}…", &long[..TEXT]);
        let too_long = format!(r#"{{"data":"{}"}}"#, "x".repeat(READ));
        let long_uri = format!(r#"{{"uri":"a:{long}"}}"#);
        let long_log = format!(r#"{{"level":"info","data":"{long}"}}"#);
        let (log, update) = (Method::LOG_MESSAGE, Method::RESOURCE_UPDATED);
        let table: [(Method, &str, Result<&str, Untold>); 13] = [
            (Method::TOOLS_CHANGED, "{}", Ok("s: its tools have changed")),
            (Method::PROMPTS_CHANGED, "{}", Ok("s: its prompts have changed")),
            (
                Method::RESOURCES_CHANGED,
                "[]",
                Ok("s: its resources have changed"),
            ),
            (
                update.clone(),
                r#"{"uri":"a:1","title":"x"}"#,
                Ok("s: updated a:1"),
            ),
            (update.clone(), "{}", Err(Untold::Malformed)),
            (update, &long_uri, Err(Untold::TooLarge)),
            (
                log.clone(),
                r#"{"level":"error","logger":"db","data":"a\u00e4"}"#,
                Ok("s: error db: aä"),
            ),
            (
                log.clone(),
                r#"{"level":"loud","data":{"a": 1}}"#,
                Ok(r#"s: log: {"a": 1}"#),
            ),
            (
                log.clone(),
                r#"{"level":"info","data":null}"#,
                Ok("s: info: null"),
            ),
            (log.clone(), &long_log, Ok(&cut)),
            (log.clone(), &too_long, Err(Untold::TooLarge)),
            (log.clone(), r#"{"level":"info"}"#, Err(Untold::Malformed)),
            (log, "7", Err(Untold::Malformed)),
        ];
        for (method, params, expected) in table {
            let kind = HubEvent::kind_of(&method);
            let params = RawJson::new(params.to_owned().into());

            let told = HubEvent::of_notification(&name(), &method, &params);

            if let Ok(event) = &told {
                assert_eq!(event.kind(), kind, "{method}");
            }
            let told = told.map(|event| event.to_string());
            assert_eq!(told, expected.map(str::to_owned), "{method}");
        }
        assert_eq!(HubEvent::kind_of(&Method::ROOTS_CHANGED), None);
    }
}
