//! Which step a request is answered with.

use super::log::Recorded;
use super::step::HttpStep;
use crate::results;
use callboard_proto::Revision;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Says with which step each request is answered.
///
/// Looked at in this order:
///
/// 1. the router of its path ([`at`](Self::at)), which then answers alone;
/// 2. the rules for its name ([`Recorded::name`]): each [`on`](Self::on) for one name answers one request,
///    the last all that follow;
/// 3. for a JSON-RPC request, the next step of the list ([`then`](Self::then));
/// 4. the [`fallback`](Self::fallback). Without one: 405 for what is no POST, 202 for notifications and
///    answers, 500 for a request.
#[derive(Clone, Debug, Default)]
#[must_use = "a router does nothing until a server is started with it"]
pub struct Router {
    paths: HashMap<String, Router>,
    rules: HashMap<String, VecDeque<Source>>,
    list: VecDeque<HttpStep>,
    fallback: Option<Source>,
}

/// Where a step comes from.
#[derive(Clone)]
enum Source {
    Fixed(HttpStep),
    Made(Arc<dyn Fn(&Recorded) -> HttpStep + Send + Sync>),
}

impl Router {
    /// A router without a rule.
    pub fn new() -> Self {
        Self::default()
    }

    /// A server of 2026-07-28: `server/discover` is answered.
    pub fn modern() -> Self {
        Self::new().on("server/discover", HttpStep::json(results::discover()))
    }

    /// A legacy server of 2025-11-25, as [`legacy_of`](Self::legacy_of) says.
    pub fn legacy(session: Option<&str>) -> Self {
        Self::legacy_of(Revision::NEWEST_LEGACY.as_str(), session)
    }

    /// A legacy server of this revision: `server/discover` is refused with 400 and -32000, `initialize` is
    /// answered, with a session id where given; GET is refused with 405, DELETE accepted where there are
    /// sessions.
    ///
    /// That later requests carry the session id is for the test to check.
    pub fn legacy_of(revision: &str, session: Option<&str>) -> Self {
        let refusal = HttpStep::error(400, -32000, "Bad Request: Server not initialized");
        let opening = HttpStep::json(results::initialize(revision));
        let router = Self::new().on("server/discover", refusal);
        match session {
            Some(session) => router
                .on("initialize", opening.header("Mcp-Session-Id", session))
                .on("DELETE", HttpStep::respond(200, NO_HEADERS, "")),
            None => router.on("initialize", opening),
        }
    }

    /// An ordinary small server of these revisions; see [`Script::serve_only`](crate::Script::serve_only).
    pub fn serve<'a>(revisions: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new().fallback(HttpStep::serve(revisions))
    }

    /// Answers what comes for `path`, whatever its query, by a router of its own.
    pub fn at(mut self, path: &str, router: impl Into<Router>) -> Self {
        self.paths.insert(path.into(), router.into());
        self
    }

    /// Answers a request of this name ([`Recorded::name`]) with `step`.
    pub fn on(self, name: &str, step: impl Into<HttpStep>) -> Self {
        self.rule(name, Source::Fixed(step.into()))
    }

    /// Answers a request of this name with what `make` gives for it.
    pub fn on_with(self, name: &str, make: impl Fn(&Recorded) -> HttpStep + Send + Sync + 'static) -> Self {
        self.rule(name, Source::Made(Arc::new(make)))
    }

    /// Answers the next JSON-RPC request that no rule is for.
    pub fn then(mut self, step: impl Into<HttpStep>) -> Self {
        self.list.push_back(step.into());
        self
    }

    /// Answers all else.
    pub fn fallback(mut self, step: impl Into<HttpStep>) -> Self {
        self.fallback = Some(Source::Fixed(step.into()));
        self
    }

    /// Answers all else with what `make` gives for it.
    pub fn fallback_with(mut self, make: impl Fn(&Recorded) -> HttpStep + Send + Sync + 'static) -> Self {
        self.fallback = Some(Source::Made(Arc::new(make)));
        self
    }

    fn rule(mut self, name: &str, source: Source) -> Self {
        self.rules.entry(name.into()).or_default().push_back(source);
        self
    }

    /// Takes the step for a request.
    pub(crate) fn step_for(&mut self, request: &Recorded) -> HttpStep {
        let path = request.path.split('?').next().unwrap_or_default();
        if let Some(router) = self.paths.get_mut(path) {
            return router.step_for(request);
        }
        if let Some(rules) = self.rules.get_mut(request.name()) {
            let next = if rules.len() > 1 {
                rules.pop_front()
            } else {
                rules.front().cloned()
            };
            if let Some(source) = next {
                return source.step(request);
            }
        }
        if request.is_request()
            && let Some(step) = self.list.pop_front()
        {
            return step;
        }
        match &self.fallback {
            Some(source) => source.step(request),
            None => unscripted(request),
        }
    }
}

impl Source {
    fn step(&self, request: &Recorded) -> HttpStep {
        match self {
            Self::Fixed(step) => step.clone(),
            Self::Made(make) => make(request),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(step) => step.fmt(f),
            Self::Made(_) => f.write_str("Made(..)"),
        }
    }
}

impl From<Vec<HttpStep>> for Router {
    fn from(steps: Vec<HttpStep>) -> Self {
        Self {
            list: steps.into(),
            ..Self::default()
        }
    }
}

impl<const N: usize> From<[HttpStep; N]> for Router {
    fn from(steps: [HttpStep; N]) -> Self {
        Self::from(Vec::from(steps))
    }
}

fn unscripted(request: &Recorded) -> HttpStep {
    if request.http_method != "POST" {
        return HttpStep::respond(405, [("Allow", "POST")], "");
    }
    if request.is_request() {
        let text = format!("callboard-testkit: no step for `{}`", request.name());
        return HttpStep::respond(
            500,
            [("Content-Type", "application/json")],
            json!(text).to_string(),
        );
    }
    HttpStep::respond(202, NO_HEADERS, "")
}

const NO_HEADERS: [(&str, &str); 0] = [];
