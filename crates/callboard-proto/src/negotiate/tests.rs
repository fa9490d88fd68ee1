//! The tables of the opening.

use super::*;
use serde_json::{Value, json};

fn at() -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test needs some instant to count from"
    )]
    Instant::now()
}

fn config(channel: Channel, started: Instant) -> OpeningConfig {
    OpeningConfig {
        channel,
        era: EraChoice::Auto,
        known: Known::default(),
        probe_limit: Duration::from_secs(10),
        total_limit: Duration::from_secs(if channel == Channel::Pipe { 60 } else { 30 }),
        started,
        restarted_after: None,
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
    Initialize(&'static str),
    Modern,
    Legacy(&'static str),
    Restart,
    Fail(&'static str),
}

fn kind(step: &Step) -> S {
    match step {
        Step::Wait => S::Wait,
        Step::Ask(Ask::Discover(_)) => S::Discover,
        Step::Ask(Ask::Initialize(revision)) => S::Initialize(revision.as_str()),
        Step::Opened(opened) if opened.revision.era() == Era::Modern => S::Modern,
        Step::Opened(opened) => S::Legacy(opened.revision.as_str()),
        Step::Restart(_) => S::Restart,
        Step::Fail(failure) => S::Fail(match failure.kind {
            OpeningFailureKind::NoSharedRevision { .. } => "no shared revision",
            OpeningFailureKind::ExcludedEra { .. } => "excluded era",
            OpeningFailureKind::NotModern => "not modern",
            OpeningFailureKind::Refused => "refused",
            OpeningFailureKind::Unauthorized => "unauthorized",
            OpeningFailureKind::Forbidden => "forbidden",
            OpeningFailureKind::Unavailable(_) => "unavailable",
            OpeningFailureKind::NotMcp => "not mcp",
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
    Initializing,
    Settled,
}

fn brought_to(state: In, channel: Channel) -> (Opening, Instant) {
    let now = at();
    let mut opening = Opening::new(config(channel, now));
    let inputs = match state {
        In::Idle => vec![],
        In::Probing => vec![Input::Up],
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
    let initialized = || Input::Initialized(legacy());
    #[rustfmt::skip]
    let table: [(In, Input, S, S); 4 * 5] = [
        //                                      over a pipe                over HTTP
        (In::Idle,         Input::Up,           S::Discover,               S::Discover),
        (In::Idle,         discovered(),        S::Wait,                   S::Wait),
        (In::Idle,         initialized(),       S::Wait,                   S::Wait),
        (In::Idle,         Input::Timeout,      S::Fail("no answer"),      S::Fail("no answer")),
        (In::Idle,         down(),              S::Fail("down"),           S::Fail("down")),
        (In::Probing,      Input::Up,           S::Wait,                   S::Wait),
        (In::Probing,      discovered(),        S::Modern,                 S::Modern),
        (In::Probing,      initialized(),       S::Wait,                   S::Wait),
        (In::Probing,      Input::Timeout,      NEWEST,                    S::Fail("no answer")),
        (In::Probing,      down(),              S::Restart,                S::Fail("down")),
        (In::Initializing, Input::Up,           S::Wait,                   S::Wait),
        (In::Initializing, discovered(),        S::Wait,                   S::Wait),
        (In::Initializing, initialized(),       S::Legacy("2025-06-18"),   S::Legacy("2025-06-18")),
        (In::Initializing, Input::Timeout,      S::Fail("no answer"),      S::Fail("no answer")),
        (In::Initializing, down(),              S::Fail("down"),           S::Fail("down")),
        (In::Settled,      Input::Up,           S::Wait,                   S::Wait),
        (In::Settled,      discovered(),        S::Wait,                   S::Wait),
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
        (with_status(error(-32601, None), 404),       S::Modern),
        (with_status(error(-32601, None), 400),       NEWEST),
        (with_status(error(-32000, None), 400),       NEWEST),
        (with_status(error(-32600, None), 400),       NEWEST),
        (with_status(error(-32603, None), 500),       S::Fail("unavailable")),
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

// LIF-03, LIF-08, ERA-13, ERA-15
#[test]
fn answers_to_initialize() {
    let listed = |list: &[&str]| Some(json!({"supported": list}));
    #[rustfmt::skip]
    let table: Vec<(Reply, S)> = vec![
        (legacy(),                                              S::Legacy("2025-06-18")),
        (result(&json!({"protocolVersion": "2024-11-05"})),     S::Legacy("2024-11-05")),
        (result(&json!({"protocolVersion": "2026-07-28"})),     S::Fail("no shared revision")),
        (result(&json!({"protocolVersion": "2023-01-01"})),     S::Fail("no shared revision")),
        (result(&json!({})),                                    S::Fail("not mcp")),
        (error(-32602, listed(&["2024-11-05"])),                S::Initialize("2024-11-05")),
        (error(-32602, listed(&["2099-01-01"])),                S::Fail("no shared revision")),
        (error(-32022, listed(&["2026-07-28"])),                S::Modern),
        (error(-32022, None),                                   S::Fail("refused")),
        (error(-32603, None),                                   S::Fail("refused")),
        (with_status(error(-32000, None), 401),                 S::Fail("unauthorized")),
        (with_status(error(-32000, None), 403),                 S::Fail("forbidden")),
        (with_status(error(-32000, None), 503),                 S::Fail("unavailable")),
        (Reply::Status(401),                                    S::Fail("unauthorized")),
        (Reply::Status(403),                                    S::Fail("forbidden")),
        (Reply::Status(404),                                    S::Fail("not mcp")),
        (Reply::Status(503),                                    S::Fail("unavailable")),
        (Reply::Unusable("HTML".into()),                        S::Fail("not mcp")),
        (Reply::Failed("reset".into()),                         S::Fail("unreachable")),
    ];
    for (reply, expected) in table {
        let (mut opening, now) = brought_to(In::Initializing, Channel::Http);
        let step = opening.handle(Input::Initialized(reply.clone()), now);
        assert_eq!(kind(&step), expected, "{reply:?}");
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
        ("silence", vec![Input::Timeout], S::Restart),
        ("exit", vec![Input::Down(exited())], S::Restart),
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
    again.restarted_after = Some(Vec::new());
    let mut opening = Opening::new(again);
    assert_eq!(kind(&opening.handle(Input::Up, start + secs(31))), NEWEST);
    assert_eq!(
        opening.timeout(),
        Some(start + secs(60)),
        "a restarted process gets the rest"
    );
}

// ERA-18: the restart happens once
#[test]
fn a_restarted_process_that_fails_ends_the_opening() {
    for input in [Input::Timeout, Input::Down(exited())] {
        let now = at();
        let mut config = config(Channel::Pipe, now);
        config.restarted_after = Some(Vec::new());
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
         (initialize: error -32022, m)"
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
    let Step::Restart(attempts) = opening.handle(Input::Down(exited()), now) else {
        panic!()
    };
    let mut config = config(Channel::Pipe, now);
    config.restarted_after = Some(attempts);
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
