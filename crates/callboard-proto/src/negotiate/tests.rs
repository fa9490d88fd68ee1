//! The tables of the opening.

use super::*;
use crate::at;
use crate::wire::{ConnectFailure, StartFailure};
use serde_json::{Value, json};

fn config(channel: Channel, started: Instant) -> OpeningConfig {
    OpeningConfig {
        channel,
        era: EraChoice::Auto,
        known: Known::default(),
        probe_limit: Duration::from_secs(10),
        total_limit: Duration::from_secs(if channel == Channel::Pipe { 60 } else { 30 }),
        started,
        reopened: None,
    }
}

fn result(value: &Value) -> Reply {
    Reply::Result(value.to_string().into())
}

fn error(code: i64, data: Option<Value>) -> Reply {
    Reply::Error(
        ErrorObject {
            code,
            message: "m".into(),
            data: data.map(|data| data.to_string().into()),
        },
        None,
    )
}

fn with_status(reply: Reply, status: u16) -> Reply {
    match reply {
        Reply::Error(error, _) => Reply::Error(error, Some(status)),
        other => other,
    }
}

fn modern() -> Reply {
    result(&json!({"supportedVersions": ["2026-07-28"], "capabilities": {}}))
}

fn legacy() -> Reply {
    result(
        &json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}),
    )
}

fn exited() -> Down {
    Down::Exited {
        status: Some("exit status 1".into()),
        stderr: String::new(),
    }
}

/// A step without its payload, for tables.
#[derive(Debug, PartialEq, Eq)]
enum S {
    Wait,
    Discover,
    List,
    Initialize(&'static str),
    Modern,
    Legacy(&'static str),
    Reopen(Way),
    Fail(&'static str),
}

fn kind(step: &Step) -> S {
    match step {
        Step::Wait => S::Wait,
        Step::Ask(Ask::Discover(_)) => S::Discover,
        Step::Ask(Ask::List(_)) => S::List,
        Step::Ask(Ask::Initialize(revision)) => S::Initialize(revision.as_str()),
        Step::Opened(opened) if opened.revision.era() == Era::Modern => S::Modern,
        Step::Opened(opened) => S::Legacy(opened.revision.as_str()),
        Step::Reopen(reopened) => S::Reopen(reopened.way),
        Step::Fail(failure) => S::Fail(match failure.kind {
            OpeningFailureKind::NoSharedRevision { .. } => "no shared revision",
            OpeningFailureKind::ExcludedEra { .. } => "excluded era",
            OpeningFailureKind::NotModern => "not modern",
            OpeningFailureKind::Refused => "refused",
            OpeningFailureKind::Unauthorized => "unauthorized",
            OpeningFailureKind::Forbidden => "forbidden",
            OpeningFailureKind::Unavailable(_) => "unavailable",
            OpeningFailureKind::NotMcp => "not mcp",
            OpeningFailureKind::NotHttpSse => "not http+sse",
            OpeningFailureKind::NoEndpoint => "no endpoint",
            OpeningFailureKind::NoAnswer(_) => "no answer",
            OpeningFailureKind::Unreachable => "unreachable",
            OpeningFailureKind::Down(_) => "down",
        }),
    }
}

const NEWEST: S = S::Initialize("2025-11-25");

#[derive(Clone, Copy, Debug)]
enum In {
    Idle,
    Probing,
    Confirming,
    Initializing,
    Settled,
}

fn brought_to(state: In, channel: Channel) -> (Opening, Instant) {
    let now = at();
    let mut opening = Opening::new(config(channel, now));
    let inputs = match state {
        In::Idle => vec![],
        In::Probing => vec![Input::Up],
        In::Confirming => vec![
            Input::Up,
            Input::Discovered(with_status(error(-32601, None), 404)),
        ],
        In::Initializing => vec![Input::Up, Input::Discovered(error(-32602, None))],
        In::Settled => vec![Input::Up, Input::Discovered(modern())],
    };
    for input in inputs {
        opening.handle(input, now);
    }
    (opening, now)
}

#[test]
fn every_state_meets_every_input() {
    let down = || Input::Down(exited());
    let discovered = || Input::Discovered(modern());
    let listed = || Input::Listed(result(&json!({"resultType": "complete"})));
    let initialized = || Input::Initialized(legacy());
    let restart = || S::Reopen(Way::Unprobed);
    #[rustfmt::skip]
    let table: [(In, Input, S, S); 4 * 6] = [
        //                                      over a pipe                over HTTP
        (In::Idle,         Input::Up,           S::Discover,               S::Discover),
        (In::Idle,         discovered(),        S::Wait,                   S::Wait),
        (In::Idle,         listed(),            S::Wait,                   S::Wait),
        (In::Idle,         initialized(),       S::Wait,                   S::Wait),
        (In::Idle,         Input::Timeout,      S::Fail("no answer"),      S::Fail("no answer")),
        (In::Idle,         down(),              S::Fail("down"),           S::Fail("down")),
        (In::Probing,      Input::Up,           S::Wait,                   S::Wait),
        (In::Probing,      discovered(),        S::Modern,                 S::Modern),
        (In::Probing,      listed(),            S::Wait,                   S::Wait),
        (In::Probing,      initialized(),       S::Wait,                   S::Wait),
        (In::Probing,      Input::Timeout,      NEWEST,                    S::Fail("no answer")),
        (In::Probing,      down(),              restart(),                 S::Fail("down")),
        (In::Initializing, Input::Up,           S::Wait,                   S::Wait),
        (In::Initializing, discovered(),        S::Wait,                   S::Wait),
        (In::Initializing, listed(),            S::Wait,                   S::Wait),
        (In::Initializing, initialized(),       S::Legacy("2025-06-18"),   S::Legacy("2025-06-18")),
        (In::Initializing, Input::Timeout,      S::Fail("no answer"),      S::Fail("no answer")),
        (In::Initializing, down(),              S::Fail("down"),           S::Fail("down")),
        (In::Settled,      Input::Up,           S::Wait,                   S::Wait),
        (In::Settled,      discovered(),        S::Wait,                   S::Wait),
        (In::Settled,      listed(),            S::Wait,                   S::Wait),
        (In::Settled,      initialized(),       S::Wait,                   S::Wait),
        (In::Settled,      Input::Timeout,      S::Wait,                   S::Wait),
        (In::Settled,      down(),              S::Wait,                   S::Wait),
    ];
    for (state, input, pipe, http) in table {
        for (channel, expected) in [(Channel::Pipe, pipe), (Channel::Http, http)] {
            let (mut opening, now) = brought_to(state, channel);
            let step = opening.handle(input.clone(), now);
            assert_eq!(kind(&step), expected, "{state:?} on {input:?} over {channel:?}");
        }
    }
    // This state is of HTTP alone.
    let table = [
        (Input::Up, S::Wait),
        (discovered(), S::Wait),
        (listed(), S::Modern),
        (initialized(), S::Wait),
        (Input::Timeout, S::Fail("no answer")),
        (down(), S::Fail("down")),
    ];
    for (input, expected) in table {
        let (mut opening, now) = brought_to(In::Confirming, Channel::Http);
        let step = opening.handle(input.clone(), now);
        assert_eq!(kind(&step), expected, "Confirming on {input:?}");
    }
}

// ERA-03, ERA-04, ERA-06 to ERA-09, ERA-13, ERA-17
#[test]
fn answers_to_the_probe() {
    let supported = |list: &[&str]| Some(json!({"supported": list, "requested": "2026-07-28"}));
    #[rustfmt::skip]
    let table: Vec<(Reply, S, S)> = vec![
        (modern(),                                                               S::Modern, S::Modern),
        (result(&json!({"supportedVersions": ["2024-11-05", "2026-07-28"]})),    S::Modern, S::Modern),
        (result(&json!({"supportedVersions": ["2025-06-18"]})),                  S::Initialize("2025-06-18"), S::Initialize("2025-06-18")),
        (result(&json!({"supportedVersions": ["2099-01-01"]})),                  S::Fail("no shared revision"), S::Fail("no shared revision")),
        (result(&json!({"supportedVersions": "2026-07-28"})),                    NEWEST, NEWEST),
        (result(&json!({})),                                                     NEWEST, NEWEST),
        (result(&json!({"resultType": "complete"})),                             NEWEST, S::Modern),
        (error(-32022, supported(&["2026-07-28"])),                              S::Discover, S::Discover),
        (error(-32022, supported(&["2025-11-25", "2025-03-26"])),                NEWEST, NEWEST),
        (error(-32022, supported(&["2099-01-01"])),                              S::Fail("no shared revision"), S::Fail("no shared revision")),
        (error(-32022, None),                                                    S::Fail("no shared revision"), S::Fail("no shared revision")),
        (error(-32021, None),                                                    S::Modern, S::Modern),
        (error(-32020, None),                                                    S::Modern, S::Modern),
        (error(-32601, None),                                                    NEWEST, NEWEST),
        (error(-32602, None),                                                    NEWEST, NEWEST),
        (error(-32600, None),                                                    NEWEST, NEWEST),
        (error(-32603, None),                                                    NEWEST, NEWEST),
        (error(-32000, None),                                                    NEWEST, NEWEST),
        (error(-32001, None),                                                    NEWEST, NEWEST),
        (error(0, None),                                                         NEWEST, NEWEST),
        (error(17, None),                                                        NEWEST, NEWEST),
    ];
    for (reply, pipe, http) in table {
        for (channel, expected) in [(Channel::Pipe, pipe), (Channel::Http, http)] {
            let (mut opening, now) = brought_to(In::Probing, channel);
            let step = opening.handle(Input::Discovered(reply.clone()), now);
            assert_eq!(kind(&step), expected, "{reply:?} over {channel:?}");
        }
    }
}

// ERA-06 to ERA-09, ERA-13
#[test]
fn http_answers_to_the_probe() {
    let supported = Some(json!({"supported": ["2026-07-28"]}));
    #[rustfmt::skip]
    let table: Vec<(Reply, S)> = vec![
        (with_status(error(-32022, supported), 400),  S::Discover),
        (with_status(error(-32021, None), 400),       S::Modern),
        (with_status(error(-32020, None), 400),       S::Modern),
        (with_status(error(-32601, None), 404),       S::List),
        (with_status(error(-32601, None), 400),       NEWEST),
        (with_status(error(-32000, None), 400),       NEWEST),
        (with_status(error(-32600, None), 400),       NEWEST),
        (with_status(error(-32600, None), 401),       NEWEST),
        (with_status(error(-32600, None), 403),       NEWEST),
        (with_status(error(-32600, None), 404),       NEWEST),
        (with_status(error(-32603, None), 500),       S::Fail("unavailable")),
        (with_status(error(-32000, None), 429),       S::Fail("unavailable")),
        (Reply::Status(400),                          NEWEST),
        (Reply::Status(401),                          NEWEST),
        (Reply::Status(403),                          NEWEST),
        (Reply::Status(404),                          NEWEST),
        (Reply::Status(405),                          NEWEST),
        (Reply::Status(406),                          NEWEST),
        (Reply::Status(302),                          S::Fail("not mcp")),
        (Reply::Status(408),                          S::Fail("unavailable")),
        (Reply::Status(425),                          S::Fail("unavailable")),
        (Reply::Status(429),                          S::Fail("unavailable")),
        (Reply::Status(500),                          S::Fail("unavailable")),
        (Reply::Status(503),                          S::Fail("unavailable")),
        (Reply::Unusable("HTML".into()),              S::Fail("not mcp")),
        (Reply::Failed("refused".into()),             S::Fail("unreachable")),
    ];
    for (reply, expected) in table {
        let (mut opening, now) = brought_to(In::Probing, Channel::Http);
        let step = opening.handle(Input::Discovered(reply.clone()), now);
        assert_eq!(kind(&step), expected, "{reply:?}");
    }
}

// ERA-07, ERA-09: `server/discover` was 404 and -32601, what comes of a real request decides
#[test]
fn answers_to_the_request_that_follows_a_missing_discover() {
    let supported = |list: &[&str]| Some(json!({"supported": list}));
    #[rustfmt::skip]
    let table: Vec<(Reply, S)> = vec![
        (result(&json!({"resultType": "complete"})),               S::Modern),
        (result(&json!({"tools": []})),                            NEWEST),
        (error(-32020, None),                                      S::Modern),
        (with_status(error(-32021, None), 400),                    S::Modern),
        (with_status(error(-32022, supported(&["2026-07-28"])), 400), S::Discover),
        (with_status(error(-32601, None), 404),                    S::Modern),
        (error(-32601, None),                                      NEWEST),
        (with_status(error(-32000, None), 400),                    NEWEST),
        (with_status(error(-32000, None), 503),                    S::Fail("unavailable")),
        (Reply::Status(400),                                       NEWEST),
        (Reply::Status(404),                                       NEWEST),
        (Reply::Status(401),                                       NEWEST),
        (Reply::Status(429),                                       S::Fail("unavailable")),
        (Reply::Unusable("HTML".into()),                           S::Fail("not mcp")),
        (Reply::Failed("reset".into()),                            S::Fail("unreachable")),
    ];
    for (reply, expected) in table {
        let (mut opening, now) = brought_to(In::Confirming, Channel::Http);
        let step = opening.handle(Input::Listed(reply.clone()), now);
        assert_eq!(kind(&step), expected, "{reply:?}");
    }
}

// 1.4: a result without a type may be that of a legacy server; where there is no handshake it was not
#[test]
fn a_real_request_that_worked_counts_where_initialize_is_refused() {
    #[rustfmt::skip]
    let table: Vec<(Reply, S)> = vec![
        (legacy(),                                S::Legacy("2025-06-18")),
        (error(-32601, None),                     S::Modern),
        (with_status(error(-32601, None), 404),   S::Modern),
        (Reply::Status(400),                      S::Modern),
        (Reply::Status(503),                      S::Fail("unavailable")),
        (Reply::Failed("reset".into()),           S::Fail("unreachable")),
    ];
    for (reply, expected) in table {
        let (mut opening, now) = brought_to(In::Confirming, Channel::Http);
        opening.handle(Input::Listed(result(&json!({"tools": []}))), now);
        let step = opening.handle(Input::Initialized(reply.clone()), now);
        assert_eq!(kind(&step), expected, "{reply:?}");
    }
}

// LIF-03, LIF-08, ERA-10, ERA-13, ERA-15
#[test]
fn answers_to_initialize() {
    let listed = |list: &[&str]| Some(json!({"supported": list}));
    let fallback = || S::Reopen(Way::HttpSse);
    #[rustfmt::skip]
    let table: Vec<(Reply, S, S)> = vec![
        //                                                      over HTTP                      over HTTP+SSE
        (legacy(),                                              S::Legacy("2025-06-18"),       S::Legacy("2025-06-18")),
        (result(&json!({"protocolVersion": "2024-11-05"})),     S::Legacy("2024-11-05"),       S::Legacy("2024-11-05")),
        (result(&json!({"protocolVersion": "2026-07-28"})),     S::Fail("no shared revision"), S::Fail("no shared revision")),
        (result(&json!({"protocolVersion": "2023-01-01"})),     S::Fail("no shared revision"), S::Fail("no shared revision")),
        (result(&json!({})),                                    S::Fail("not mcp"),            S::Fail("not mcp")),
        (error(-32602, listed(&["2024-11-05"])),                S::Initialize("2024-11-05"),   S::Initialize("2024-11-05")),
        (error(-32602, listed(&["2024-11-05", "2026-07-28"])),  S::Initialize("2024-11-05"),   S::Initialize("2024-11-05")),
        (error(-32602, listed(&["2026-07-28"])),                S::Modern,                     S::Fail("refused")),
        (error(-32602, listed(&["2099-01-01"])),                S::Fail("no shared revision"), S::Fail("no shared revision")),
        (error(-32022, listed(&["2026-07-28"])),                S::Modern,                     S::Fail("refused")),
        (error(-32022, listed(&["2024-11-05", "2026-07-28"])),  S::Modern,                     S::Fail("refused")),
        (error(-32022, None),                                   S::Fail("refused"),            S::Fail("refused")),
        (error(-32603, None),                                   S::Fail("refused"),            S::Fail("refused")),
        (error(-32601, None),                                   S::Fail("refused"),            S::Fail("refused")),
        (with_status(error(-32000, None), 400),                 fallback(),                    S::Fail("refused")),
        (with_status(error(-32000, None), 404),                 fallback(),                    S::Fail("refused")),
        (with_status(error(-32601, None), 405),                 fallback(),                    S::Fail("refused")),
        (with_status(error(-32000, None), 415),                 S::Fail("refused"),            S::Fail("refused")),
        // Said by a modern server: nothing older is looked for.
        (with_status(error(-32601, None), 404),                 S::Fail("refused"),            S::Fail("refused")),
        (with_status(error(-32022, None), 400),                 S::Fail("refused"),            S::Fail("refused")),
        (with_status(error(-32021, None), 400),                 S::Fail("refused"),            S::Fail("refused")),
        (with_status(error(-32020, None), 400),                 S::Fail("refused"),            S::Fail("refused")),
        (with_status(error(-32000, None), 401),                 S::Fail("unauthorized"),       S::Fail("unauthorized")),
        (with_status(error(-32000, None), 403),                 S::Fail("forbidden"),          S::Fail("forbidden")),
        (with_status(error(-32000, None), 503),                 S::Fail("unavailable"),        S::Fail("unavailable")),
        (Reply::Status(400),                                    fallback(),                    S::Fail("not mcp")),
        (Reply::Status(404),                                    fallback(),                    S::Fail("not mcp")),
        (Reply::Status(405),                                    fallback(),                    S::Fail("not mcp")),
        (Reply::Status(401),                                    S::Fail("unauthorized"),       S::Fail("unauthorized")),
        (Reply::Status(403),                                    S::Fail("forbidden"),          S::Fail("forbidden")),
        (Reply::Status(406),                                    S::Fail("not mcp"),            S::Fail("not mcp")),
        (Reply::Status(503),                                    S::Fail("unavailable"),        S::Fail("unavailable")),
        (Reply::Unusable("HTML".into()),                        S::Fail("not mcp"),            S::Fail("not mcp")),
        (Reply::Failed("reset".into()),                         S::Fail("unreachable"),        S::Fail("unreachable")),
    ];
    for (reply, http, sse) in table {
        for (channel, expected) in [(Channel::Http, http), (Channel::HttpSse, sse)] {
            let (mut opening, now) = brought_to_initialize(channel);
            let step = opening.handle(Input::Initialized(reply.clone()), now);
            assert_eq!(kind(&step), expected, "{reply:?} over {channel:?}");
        }
    }
}

fn brought_to_initialize(channel: Channel) -> (Opening, Instant) {
    match channel {
        Channel::Pipe | Channel::Http => brought_to(In::Initializing, channel),
        Channel::HttpSse => {
            let (mut opening, now) = brought_to(In::Idle, channel);
            assert_eq!(kind(&opening.handle(Input::Up, now)), NEWEST, "never probed");
            (opening, now)
        }
    }
}

// ERA-10: a process has no other transport
#[test]
fn http_sse_is_looked_for_over_http_alone_and_never_where_the_era_is_pinned_modern() {
    let (mut opening, now) = brought_to(In::Initializing, Channel::Pipe);
    let step = opening.handle(Input::Initialized(error(-32000, None)), now);
    assert_eq!(kind(&step), S::Fail("refused"));

    for (era, expected) in [
        (EraChoice::Auto, S::Reopen(Way::HttpSse)),
        (EraChoice::Legacy, S::Reopen(Way::HttpSse)),
        (EraChoice::Modern, S::Fail("not modern")),
    ] {
        let now = at();
        let mut config = config(Channel::Http, now);
        config.era = era;
        let mut opening = Opening::new(config);
        let mut step = opening.handle(Input::Up, now);
        if kind(&step) == S::Discover {
            step = opening.handle(Input::Discovered(Reply::Status(404)), now);
        }
        if kind(&step) == NEWEST {
            step = opening.handle(Input::Initialized(Reply::Status(404)), now);
        }
        assert_eq!(kind(&step), expected, "{era:?}");
    }
}

fn no_stream(failure: StreamFailure) -> Input {
    Input::Down(Down::Stream(failure))
}

// ERA-10, ERA-13, FR-088: what a stream that is not there means, by what led to it
#[test]
fn answers_to_the_get_of_http_sse() {
    use StreamFailure as F;
    let failed = || Reopened {
        way: Way::HttpSse,
        attempts: Vec::new(),
        failure: Some(OpeningFailureKind::Refused),
    };
    let anew = || S::Reopen(Way::Anew);
    #[rustfmt::skip]
    let table: Vec<(F, S, S, S)> = vec![
        //                                  as the fallback           remembered                configured
        (F::Status(404),                    S::Fail("refused"),       anew(),                   S::Fail("not http+sse")),
        (F::Status(405),                    S::Fail("refused"),       anew(),                   S::Fail("not http+sse")),
        (F::Status(401),                    S::Fail("unauthorized"),  S::Fail("unauthorized"),  S::Fail("unauthorized")),
        (F::Status(403),                    S::Fail("forbidden"),     S::Fail("forbidden"),     S::Fail("forbidden")),
        (F::Status(503),                    S::Fail("unavailable"),   S::Fail("unavailable"),   S::Fail("unavailable")),
        (F::Status(429),                    S::Fail("unavailable"),   S::Fail("unavailable"),   S::Fail("unavailable")),
        (F::NotOne("HTML".into()),          S::Fail("refused"),       anew(),                   S::Fail("not http+sse")),
        (F::Silent("10 s".into()),          S::Fail("no endpoint"),   anew(),                   S::Fail("no endpoint")),
        (F::Unreachable("refused".into()),  S::Fail("unreachable"),   S::Fail("unreachable"),   S::Fail("unreachable")),
        (F::Endpoint("elsewhere".into()),   S::Fail("down"),          S::Fail("down"),          S::Fail("down")),
    ];
    for (failure, fallback, remembered, configured) in table {
        let rows = [
            ("fallback", Some(failed()), false, fallback),
            ("remembered", None, true, remembered),
            ("configured", None, false, configured),
        ];
        for (row, reopened, http_sse, expected) in rows {
            let now = at();
            let mut config = config(Channel::HttpSse, now);
            (config.reopened, config.known.http_sse) = (reopened, http_sse);
            let step = Opening::new(config).handle(no_stream(failure.clone()), now);
            assert_eq!(kind(&step), expected, "{failure:?}, {row}");
        }
    }
}

// 1.4, step 4
#[test]
fn a_failure_over_http_names_all_three_attempts() {
    let (mut opening, now) = brought_to(In::Probing, Channel::Http);
    opening.handle(Input::Discovered(Reply::Status(404)), now);
    let Step::Reopen(reopened) = opening.handle(Input::Initialized(error_on(405, -32000)), now) else {
        panic!()
    };
    let mut config = config(Channel::HttpSse, now);
    config.reopened = Some(reopened);
    let step = Opening::new(config).handle(no_stream(StreamFailure::Status(406)), now);
    let Step::Fail(failure) = step else {
        panic!("{step:?}")
    };
    assert_eq!(
        failure.to_string(),
        "the server refused the opening (server/discover: HTTP status 404; initialize: HTTP status 405, error \
         -32000, m; GET: HTTP+SSE: HTTP status 406)"
    );
}

fn error_on(status: u16, code: i64) -> Reply {
    with_status(error(code, None), status)
}

// SSE-04, FR-088
#[test]
fn the_transport_of_a_url_follows_the_configuration_the_memory_and_the_opening() {
    let reopened = |way| {
        Some(Reopened {
            way,
            attempts: Vec::new(),
            failure: None,
        })
    };
    let known = |http_sse| Known {
        http_sse,
        ..Known::default()
    };
    use {Channel as C, EraChoice as E};
    #[rustfmt::skip]
    let table = [
        // pinned, era, remembered, reopened
        (false, E::Auto,   false, None,                   C::Http),
        (false, E::Auto,   true,  None,                   C::HttpSse),
        (false, E::Legacy, true,  None,                   C::HttpSse),
        (false, E::Modern, true,  None,                   C::Http),
        (false, E::Auto,   false, reopened(Way::HttpSse), C::HttpSse),
        (false, E::Auto,   true,  reopened(Way::Anew),    C::Http),
        (true,  E::Auto,   false, None,                   C::HttpSse),
        (true,  E::Legacy, true,  None,                   C::HttpSse),
    ];
    for (pinned, era, remembered, reopened, expected) in table {
        assert_eq!(
            Channel::of_url(pinned, era, known(remembered), reopened.as_ref()),
            expected,
            "{pinned} {era:?} {remembered} {reopened:?}"
        );
    }
}

// ERA-12, FR-088: what was remembered and does not hold is found out anew, once
#[test]
fn a_remembered_legacy_server_that_refuses_initialize_is_probed_once() {
    let anew = || S::Reopen(Way::Anew);
    let supported = |list: &[&str]| Some(json!({"supported": list}));
    #[rustfmt::skip]
    let table: Vec<(Input, S, S)> = vec![
        //                                                                    over a pipe              over HTTP
        (Input::Initialized(error(-32601, None)),                             anew(),                  anew()),
        (Input::Initialized(error(-32602, supported(&["2099-01-01"]))),       anew(),                  anew()),
        (Input::Initialized(error(-32022, supported(&["2026-07-28"]))),       S::Modern,               S::Modern),
        (Input::Initialized(result(&json!({"protocolVersion": "2026-07-28"}))), anew(),                anew()),
        (Input::Initialized(result(&json!({}))),                              anew(),                  anew()),
        (Input::Initialized(legacy()),                                        S::Legacy("2025-06-18"), S::Legacy("2025-06-18")),
        (Input::Initialized(Reply::Status(400)),                              anew(),                  anew()),
        (Input::Initialized(Reply::Status(404)),                              anew(),                  anew()),
        (Input::Initialized(Reply::Unusable("HTML".into())),                  anew(),                  anew()),
        // No sign of another era.
        (Input::Initialized(Reply::Status(401)),                              S::Fail("unauthorized"), S::Fail("unauthorized")),
        (Input::Initialized(Reply::Status(403)),                              S::Fail("forbidden"),    S::Fail("forbidden")),
        (Input::Initialized(Reply::Status(503)),                              S::Fail("unavailable"),  S::Fail("unavailable")),
        (Input::Initialized(Reply::Failed("reset".into())),                   S::Fail("unreachable"),  S::Fail("unreachable")),
        (Input::Down(exited()),                                               anew(),                  anew()),
        (Input::Down(Down::Io("broken".into())),                              S::Fail("down"),         S::Fail("down")),
        (Input::Timeout,                                                      S::Fail("no answer"),    S::Fail("no answer")),
    ];
    for (input, pipe, http) in table {
        for (channel, expected) in [(Channel::Pipe, pipe), (Channel::Http, http)] {
            let now = at();
            let mut config = config(channel, now);
            config.known.era = Some(Era::Legacy);
            let mut opening = Opening::new(config.clone());
            assert_eq!(kind(&opening.handle(Input::Up, now)), NEWEST);
            let step = opening.handle(input.clone(), now);
            assert_eq!(kind(&step), expected, "{input:?} over {channel:?}");

            let Step::Reopen(reopened) = step else { continue };
            config.reopened = Some(reopened);
            let mut opening = Opening::new(config);
            assert_eq!(
                kind(&opening.handle(Input::Up, now)),
                S::Discover,
                "probed, whatever is remembered"
            );
            opening.handle(Input::Discovered(error(-32602, None)), now);
            let again = opening.handle(input.clone(), now);
            assert_ne!(kind(&again), anew(), "{input:?} over {channel:?}, again");
        }
    }
}

/// However often it is refused, an opening ends.
#[test]
fn no_opening_goes_on_for_ever() {
    let known = Known {
        era: Some(Era::Legacy),
        slow: false,
        http_sse: true,
    };
    let down = |input: &Input| matches!(input, Input::Down(_));
    for refusal in [
        Input::Initialized(Reply::Status(404)),
        Input::Down(exited()),
        no_stream(StreamFailure::Status(404)),
        no_stream(StreamFailure::Silent("10 s".into())),
    ] {
        for first in [Channel::Pipe, Channel::Http, Channel::HttpSse] {
            let now = at();
            let mut config = config(first, now);
            config.known = known;
            let mut connections = 0;
            loop {
                connections += 1;
                assert!(connections <= 4, "{refusal:?} over {first:?}");
                let mut opening = Opening::new(config.clone());
                if !(down(&refusal) && config.channel == Channel::HttpSse) {
                    opening.handle(Input::Up, now);
                    opening.handle(Input::Discovered(Reply::Status(404)), now);
                }
                let Step::Reopen(reopened) = opening.handle(refusal.clone(), now) else {
                    break;
                };
                if first != Channel::Pipe {
                    config.channel = Channel::of_url(false, config.era, config.known, Some(&reopened));
                }
                config.reopened = Some(reopened);
            }
        }
    }
}

// ERA-19
#[test]
fn a_server_that_was_slow_once_stays_known_as_slow() {
    for was_slow in [false, true] {
        let now = at();
        let mut config = config(Channel::Pipe, now);
        config.known.slow = was_slow;
        let mut opening = Opening::new(config);
        opening.handle(Input::Up, now);
        let Step::Opened(opened) = opening.handle(Input::Discovered(modern()), now) else {
            panic!()
        };
        assert_eq!(opened.slow, was_slow);
    }
    let known = Known {
        era: Some(Era::Legacy),
        slow: true,
        http_sse: true,
    };
    assert_eq!(
        known.forgotten(),
        Known {
            slow: true,
            ..Known::default()
        }
    );
}

// ERA-13
#[test]
fn what_is_kept_of_an_opening_does_not_keep_the_buffer_that_it_was_read_into() {
    for (state, reply) in [(In::Probing, modern()), (In::Initializing, legacy())] {
        let Reply::Result(read) = reply.clone() else {
            panic!()
        };
        let (mut opening, now) = brought_to(state, Channel::Pipe);
        let input = match state {
            In::Probing => Input::Discovered(reply),
            _ => Input::Initialized(reply),
        };
        let Step::Opened(opened) = opening.handle(input, now) else {
            panic!()
        };
        let kept = opened.result.unwrap();
        assert_eq!(kept, read);
        assert_ne!(kept.as_ptr(), read.as_ptr());
    }
}

#[test]
fn what_says_nothing_of_a_server_leaves_what_is_remembered_of_it() {
    use OpeningFailureKind as K;
    let table = [
        (K::Unavailable(503), true),
        (K::Unreachable, true),
        (K::NoEndpoint, true),
        (K::NoAnswer(Duration::ZERO), false),
        (K::Refused, false),
        (K::NotMcp, false),
        (K::Unauthorized, false),
        (K::Down(exited()), false),
    ];
    for (kind, expected) in table {
        assert_eq!(kind.is_transient(), expected, "{kind:?}");
    }
}

// ERA-16, ERA-18: the second table of the stdio rules
#[test]
fn after_a_silent_probe_the_answer_to_initialize_decides() {
    let late_version_error = || error(-32022, Some(json!({"supported": ["2026-07-28"]})));
    #[rustfmt::skip]
    let table: Vec<(&str, Vec<Input>, S)> = vec![
        ("result", vec![Input::Initialized(legacy())], S::Legacy("2025-06-18")),
        ("late discover, then result", vec![Input::Discovered(modern()), Input::Initialized(legacy())], S::Legacy("2025-06-18")),
        ("version error", vec![Input::Initialized(late_version_error())], S::Modern),
        ("late discover, then any error", vec![Input::Discovered(modern()), Input::Initialized(error(-32600, None))], S::Modern),
        ("late version error, then any error", vec![Input::Discovered(late_version_error()), Input::Initialized(error(-32600, None))], S::Modern),
        ("late refusal, then error", vec![Input::Discovered(error(-32601, None)), Input::Initialized(error(-32600, None))], S::Fail("refused")),
        ("error", vec![Input::Initialized(error(-32600, None))], S::Fail("refused")),
        ("late discover, then silence", vec![Input::Discovered(modern()), Input::Timeout], S::Modern),
        ("silence", vec![Input::Timeout], S::Reopen(Way::Unprobed)),
        ("exit", vec![Input::Down(exited())], S::Reopen(Way::Unprobed)),
        ("hangup", vec![Input::Down(Down::HungUp)], S::Reopen(Way::Unprobed)),
        ("fault", vec![Input::Down(Down::Io("x".into()))], S::Fail("down")),
    ];
    for (name, inputs, expected) in table {
        let start = at();
        let mut opening = Opening::new(config(Channel::Pipe, start));
        opening.handle(Input::Up, start);
        let later = opening.timeout().unwrap();
        assert_eq!(kind(&opening.handle(Input::Timeout, later)), NEWEST, "{name}");

        let mut step = Step::Wait;
        for input in inputs {
            step = opening.handle(input, later);
        }

        assert_eq!(kind(&step), expected, "{name}");
    }
}

// ERA-05
#[test]
fn the_limits_of_the_opening_over_a_pipe() {
    let start = at();
    let secs = Duration::from_secs;

    let mut opening = Opening::new(config(Channel::Pipe, start));
    assert_eq!(
        opening.timeout(),
        Some(start + secs(60)),
        "idle: start and opening together"
    );
    opening.handle(Input::Up, start + secs(1));
    assert_eq!(
        opening.timeout(),
        Some(start + secs(11)),
        "the probe, from when it was sent"
    );
    opening.handle(Input::Timeout, start + secs(11));
    assert_eq!(
        opening.timeout(),
        Some(start + secs(30)),
        "half of the time for the first process"
    );
    opening.handle(Input::Discovered(modern()), start + secs(12));
    assert_eq!(
        opening.timeout(),
        Some(start + secs(17)),
        "five seconds after a late modern answer"
    );

    let mut slow = config(Channel::Pipe, start);
    slow.known.slow = true;
    let mut opening = Opening::new(slow);
    opening.handle(Input::Up, start);
    assert_eq!(
        opening.timeout(),
        Some(start + secs(20)),
        "a slow server gets twice the probe limit"
    );

    let mut again = config(Channel::Pipe, start);
    again.reopened = Some(unprobed());
    let mut opening = Opening::new(again);
    assert_eq!(kind(&opening.handle(Input::Up, start + secs(31))), NEWEST);
    assert_eq!(
        opening.timeout(),
        Some(start + secs(60)),
        "a restarted process gets the rest"
    );
}

// ERA-18: over a socket a server ends the connection, and a new one is opened without the probe
#[test]
fn only_a_server_that_ends_the_connection_itself_is_opened_without_the_probe() {
    let table = [
        (exited(), S::Reopen(Way::Unprobed)),
        (Down::HungUp, S::Reopen(Way::Unprobed)),
        (Down::Io("reset".into()), S::Fail("down")),
        (Down::NotReading, S::Fail("down")),
        (Down::Vanished, S::Fail("down")),
    ];
    for (down, expected) in table {
        let (mut opening, now) = brought_to(In::Probing, Channel::Pipe);
        let step = opening.handle(Input::Down(down.clone()), now);
        assert_eq!(kind(&step), expected, "{down:?}");
    }
}

fn unprobed() -> Reopened {
    Reopened {
        way: Way::Unprobed,
        attempts: Vec::new(),
        failure: None,
    }
}

// ERA-18: the restart happens once
#[test]
fn a_restarted_process_that_fails_ends_the_opening() {
    for input in [Input::Timeout, Input::Down(exited())] {
        let now = at();
        let mut config = config(Channel::Pipe, now);
        config.reopened = Some(unprobed());
        let mut opening = Opening::new(config);
        opening.handle(Input::Up, now);
        assert!(
            matches!(opening.handle(input.clone(), now), Step::Fail(_)),
            "{input:?}"
        );
    }
}

// ERA-11: pinned and remembered eras
#[test]
fn the_first_request_follows_the_configuration_and_the_memory() {
    #[rustfmt::skip]
    let table = [
        (EraChoice::Auto,   None,              S::Discover),
        (EraChoice::Auto,   Some(Era::Modern), S::Discover),
        (EraChoice::Auto,   Some(Era::Legacy), NEWEST),
        (EraChoice::Modern, Some(Era::Legacy), S::Discover),
        (EraChoice::Legacy, Some(Era::Modern), NEWEST),
    ];
    for (era, known, expected) in table {
        let now = at();
        let mut config = config(Channel::Pipe, now);
        (config.era, config.known.era) = (era, known);
        assert_eq!(
            kind(&Opening::new(config).handle(Input::Up, now)),
            expected,
            "{era:?} {known:?}"
        );
    }
}

// ERA-02
#[test]
fn a_server_pinned_modern_is_never_sent_initialize() {
    #[rustfmt::skip]
    let table = [
        (error(-32601, None),                                               S::Fail("not modern")),
        (with_status(error(-32000, None), 400),                             S::Fail("not modern")),
        (result(&json!({})),                                                S::Fail("not modern")),
        (Reply::Status(404),                                                S::Fail("not modern")),
        (Reply::Status(401),                                                S::Fail("unauthorized")),
        (Reply::Status(403),                                                S::Fail("forbidden")),
        (with_status(error(-32000, None), 401),                             S::Fail("unauthorized")),
        (with_status(error(-32000, None), 403),                             S::Fail("forbidden")),
        (error(-32022, Some(json!({"supported": ["2025-11-25"]}))),         S::Fail("excluded era")),
        (error(-32022, Some(json!({"supported": ["2099-01-01"]}))),         S::Fail("no shared revision")),
    ];
    for (reply, expected) in table {
        let now = at();
        let mut config = config(Channel::Http, now);
        config.era = EraChoice::Modern;
        let mut opening = Opening::new(config);
        opening.handle(Input::Up, now);
        let step = opening.handle(Input::Discovered(reply.clone()), now);
        assert_eq!(kind(&step), expected, "{reply:?}: {step:?}");
    }
}

#[test]
fn a_modern_only_server_that_is_pinned_legacy_is_said_to_be_so() {
    let now = at();
    let mut config = config(Channel::Pipe, now);
    config.era = EraChoice::Legacy;
    let mut opening = Opening::new(config);
    opening.handle(Input::Up, now);
    let refusal = error(
        -32022,
        Some(json!({"supported": ["2026-07-28"], "requested": "2025-11-25"})),
    );
    let step = opening.handle(Input::Initialized(refusal), now);
    let Step::Fail(failure) = step else {
        panic!("{step:?}")
    };
    assert!(failure.kind.is_configuration());
    assert_eq!(
        failure.to_string(),
        "the server speaks 2026-07-28 alone, and the configuration pins the legacy era; allow the other \
         (initialize: error -32022, m; it names 2026-07-28)"
    );
}

// VER-03
#[test]
fn a_version_refused_twice_ends_the_opening() {
    let refusal = |version| Input::Discovered(error(-32022, Some(json!({"supported": [version]}))));
    for (second, expected) in [("2026-07-28", "refused"), ("2030-01-01", "no shared revision")] {
        let (mut opening, now) = brought_to(In::Probing, Channel::Http);
        assert_eq!(kind(&opening.handle(refusal("2026-07-28"), now)), S::Discover);
        assert_eq!(kind(&opening.handle(refusal(second), now)), S::Fail(expected));
    }
}

#[test]
fn a_restarted_process_goes_on_after_the_attempts_of_the_first() {
    let (mut opening, now) = brought_to(In::Probing, Channel::Pipe);
    let Step::Reopen(reopened) = opening.handle(Input::Down(exited()), now) else {
        panic!()
    };
    let mut config = config(Channel::Pipe, now);
    config.reopened = Some(reopened);
    let mut opening = Opening::new(config);
    opening.handle(Input::Up, now);
    let Step::Opened(opened) = opening.handle(Input::Initialized(legacy()), now) else {
        panic!()
    };
    let told: Vec<_> = opened
        .attempts
        .iter()
        .map(|attempt| attempt.method.as_str())
        .collect();
    assert_eq!(told, ["server/discover", "initialize"]);
}

#[test]
fn a_failure_names_every_attempt() {
    let (mut opening, now) = brought_to(In::Initializing, Channel::Http);
    let step = opening.handle(Input::Initialized(Reply::Status(401)), now);
    let Step::Fail(failure) = step else {
        panic!("{step:?}")
    };
    assert_eq!(
        failure.to_string(),
        "the server demands authorization (401); give credentials, for example an `Authorization` header \
         (server/discover: error -32602, m; initialize: HTTP status 401)"
    );
}

// FR-011, FR-024, FR-025
#[test]
fn a_failure_names_what_came_instead_of_an_answer() {
    let junk = || Stray::Junk(Junk::NotAnObject);
    let error = || {
        Stray::Error(ErrorObject {
            code: -32603,
            message: "m".into(),
            data: None,
        })
    };
    let answer = || Stray::Answer(RequestId::Number(0));
    let table = [
        (vec![], "no answer"),
        (
            vec![junk()],
            "no answer, but something that is no message (not a JSON object)",
        ),
        (
            vec![error(), answer(), junk()],
            "no answer, but error -32603 without an id, m",
        ),
        (
            vec![junk(), answer(), error()],
            "no answer, but an answer to the unknown id 0",
        ),
    ];
    for (strays, expected) in table {
        let (mut opening, now) = brought_to(In::Initializing, Channel::Pipe);
        strays.into_iter().for_each(|stray| opening.note_stray(stray));
        let step = opening.handle(Input::Timeout, now);
        let Step::Fail(failure) = step else {
            panic!("{step:?}")
        };
        assert_eq!(failure.attempts[1].outcome, expected);
    }
}

#[test]
fn what_may_pass_by_itself_is_no_fault_of_the_configuration() {
    let path = || "/run/x.sock".to_owned();
    let bad_path = ConnectFailure::BadPath {
        path: path(),
        reason: "it is empty".into(),
    };
    let busy = ConnectFailure::Busy {
        path: path(),
        after: Duration::from_secs(10),
    };
    let table = [
        (Down::Start(StartFailure::NoSuchProgram(path())), true),
        (Down::Start(StartFailure::Other(path())), false),
        (Down::Connect(ConnectFailure::NotASocket(path())), true),
        (Down::Connect(ConnectFailure::NotPermitted(path())), true),
        (Down::Connect(bad_path), true),
        // A daemon that is started later than its client, or anew.
        (Down::Connect(ConnectFailure::NoSuchSocket(path())), false),
        (Down::Connect(ConnectFailure::Refused(path())), false),
        (Down::Connect(busy), false),
        (Down::Connect(ConnectFailure::Other(path())), false),
        (exited(), false),
        (Down::HungUp, false),
    ];
    for (down, expected) in table {
        let told = down.to_string();
        let kind = OpeningFailureKind::Down(down);
        assert_eq!(kind.is_configuration(), expected, "{told}");
    }
    assert!(!OpeningFailureKind::NoEndpoint.is_configuration());
    assert!(OpeningFailureKind::NotHttpSse.is_configuration());
}
