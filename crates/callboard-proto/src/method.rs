//! Method names, cheap to clone.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The name of a JSON-RPC method; cloning it never allocates.
#[derive(Clone, Debug)]
pub struct Method(Name);

#[derive(Clone, Debug)]
enum Name {
    Known(&'static str),
    Other(Arc<str>),
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        impl Method {
            $($(#[$doc])* pub const $name: Self = Self(Name::Known($text));)*

            fn known(text: &str) -> Option<&'static str> {
                match text { $($text => Some($text),)* _ => None }
            }
        }
    };
}

methods! {
    /// `initialize` (legacy): the handshake.
    INITIALIZE = "initialize";
    /// `notifications/initialized` (legacy): ends the handshake.
    INITIALIZED = "notifications/initialized";
    /// `server/discover` (modern): what the server speaks and offers.
    DISCOVER = "server/discover";
    /// `ping` (legacy).
    PING = "ping";
    /// `tools/list`.
    TOOLS_LIST = "tools/list";
    /// `tools/call`.
    TOOLS_CALL = "tools/call";
    /// `resources/list`.
    RESOURCES_LIST = "resources/list";
    /// `resources/templates/list`.
    RESOURCE_TEMPLATES_LIST = "resources/templates/list";
    /// `resources/read`.
    RESOURCES_READ = "resources/read";
    /// `prompts/list`.
    PROMPTS_LIST = "prompts/list";
    /// `prompts/get`.
    PROMPTS_GET = "prompts/get";
    /// `completion/complete`.
    COMPLETE = "completion/complete";
    /// `logging/setLevel` (legacy).
    SET_LEVEL = "logging/setLevel";
    /// `tasks/get` (extension `io.modelcontextprotocol/tasks`).
    TASKS_GET = "tasks/get";
    /// `tasks/update` (the same extension).
    TASKS_UPDATE = "tasks/update";
    /// `tasks/cancel` (the same extension).
    TASKS_CANCEL = "tasks/cancel";
    /// `subscriptions/listen` (modern).
    LISTEN = "subscriptions/listen";
    /// `notifications/cancelled`.
    CANCELLED = "notifications/cancelled";
    /// `notifications/progress`.
    PROGRESS = "notifications/progress";
    /// `notifications/message`: a log message.
    LOG_MESSAGE = "notifications/message";
    /// `notifications/tools/list_changed`.
    TOOLS_CHANGED = "notifications/tools/list_changed";
    /// `notifications/prompts/list_changed`.
    PROMPTS_CHANGED = "notifications/prompts/list_changed";
    /// `notifications/resources/list_changed`.
    RESOURCES_CHANGED = "notifications/resources/list_changed";
    /// `notifications/resources/updated`.
    RESOURCE_UPDATED = "notifications/resources/updated";
    /// `notifications/roots/list_changed` (legacy).
    ROOTS_CHANGED = "notifications/roots/list_changed";
    /// `elicitation/create`.
    ELICIT = "elicitation/create";
    /// `sampling/createMessage`.
    SAMPLE = "sampling/createMessage";
    /// `roots/list`.
    ROOTS_LIST = "roots/list";
    /// No method of JSON-RPC: the GET that opens the stream of HTTP+SSE, as an attempt of an opening.
    GET = "GET";
}

impl Method {
    /// Any method by its name; the known ones share a static text.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(match Self::known(name) {
            Some(known) => Name::Known(known),
            None => Name::Other(Arc::from(name)),
        })
    }

    /// The name on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Known(text) => text,
            Name::Other(text) => text,
        }
    }

    /// Whether a result of this method may ask for input (2026-07-28, basic/patterns/mrtr).
    #[must_use]
    pub fn may_ask_for_input(&self) -> bool {
        *self == Self::TOOLS_CALL || *self == Self::PROMPTS_GET || *self == Self::RESOURCES_READ
    }
}

impl Method {
    /// Whether running it changes nothing at the server, by what the protocol says of it: then running it twice does
    /// no harm. What is not known changes something.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        [
            Self::DISCOVER,
            Self::PING,
            Self::TOOLS_LIST,
            Self::RESOURCES_LIST,
            Self::RESOURCE_TEMPLATES_LIST,
            Self::RESOURCES_READ,
            Self::PROMPTS_LIST,
            Self::PROMPTS_GET,
            Self::COMPLETE,
            Self::TASKS_GET,
        ]
        .contains(self)
    }
}

/// The member of its params that says what a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Name,
    Uri,
    TaskId,
}

impl Method {
    /// What a request of this method is about, for those that say so in a header.
    pub(crate) fn target(&self) -> Option<Target> {
        let is_one_of = |methods: &[Self]| methods.contains(self);
        if is_one_of(&[Self::TOOLS_CALL, Self::PROMPTS_GET]) {
            Some(Target::Name)
        } else if *self == Self::RESOURCES_READ {
            Some(Target::Uri)
        } else if is_one_of(&[Self::TASKS_GET, Self::TASKS_UPDATE, Self::TASKS_CANCEL]) {
            Some(Target::TaskId)
        } else {
            None
        }
    }
}

impl From<&str> for Method {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<Cow<'_, str>> for Method {
    fn from(name: Cow<'_, str>) -> Self {
        Self::new(&name)
    }
}

impl PartialEq for Method {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Method {}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // FR-043
    #[test]
    fn only_what_is_known_to_change_nothing_may_be_run_twice() {
        #[rustfmt::skip]
        let table = [
            ("initialize",               false),
            ("server/discover",          true),
            ("ping",                     true),
            ("tools/list",               true),
            ("tools/call",               false),
            ("resources/list",           true),
            ("resources/templates/list", true),
            ("resources/read",           true),
            ("prompts/list",             true),
            ("prompts/get",              true),
            ("completion/complete",      true),
            ("logging/setLevel",         false),
            ("tasks/get",                true),
            ("tasks/update",             false),
            ("tasks/cancel",             false),
            ("subscriptions/listen",     false),
            ("notifications/cancelled",  false),
            ("elicitation/create",       false),
            ("vendor/list",              false),
            ("TOOLS/LIST",               false),
        ];
        for (method, changes_nothing) in table {
            assert_eq!(Method::new(method).changes_nothing(), changes_nothing, "{method}");
        }
    }
}
