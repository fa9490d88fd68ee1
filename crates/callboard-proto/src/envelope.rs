//! The envelope of a request: what is constant for a connection, what is this request's, what is the caller's.
//!
//! The constant part of `_meta` is serialised once and copied into the prefix of each message; the caller's
//! params are serialised once, by the caller, and never parsed again:
//!
//! ```text
//! prefix  {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_meta":{…,"progressToken":7},
//! params  "name":"add","arguments":{"a":1,"b":2}}        (a slice, without its opening brace)
//! suffix  }
//! ```
//! Reserved keys of `_meta` always win over the caller's, which are dropped by the rule of [`is_reserved`].

use crate::frame::{ErrorObject, RequestId};
use crate::message::LoggingLevel;
use crate::method::{Method, Target};
use crate::wire::{Key, Outgoing};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::Write as _;

/// The caller's own members of `_meta`, filtered and serialised: `"key":value,"key":value`.
#[derive(Clone, Debug, Default)]
pub struct CallerMeta(Vec<u8>);

impl CallerMeta {
    /// Adds a member unless its key is reserved; says whether it was added (MET-08).
    ///
    /// # Errors
    ///
    /// The value's own, where it cannot be serialised.
    pub fn insert(&mut self, key: &str, value: &impl Serialize) -> Result<bool, serde_json::Error> {
        if is_reserved(key) {
            return Ok(false);
        }
        let text = serde_json::to_vec(value)?;
        if !self.0.is_empty() {
            self.0.push(b',');
        }
        write_json_string(&mut self.0, key);
        self.0.push(b':');
        self.0.extend_from_slice(&text);
        Ok(true)
    }

    /// Adds all members of `other`.
    pub fn append(&mut self, other: &Self) {
        if other.0.is_empty() {
            return;
        }
        if !self.0.is_empty() {
            self.0.push(b',');
        }
        self.0.extend_from_slice(&other.0);
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether a caller may not set this key of `_meta`: `progressToken`, and every key whose prefix has a label
/// `modelcontextprotocol` or `mcp`. Wider than the specification's rule, which looks at the second label only.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    key == "progressToken"
        || key.split_once('/').is_some_and(|(prefix, _)| {
            prefix
                .split('.')
                .any(|label| label == "modelcontextprotocol" || label == "mcp")
        })
}

/// Whether a text is a W3C `traceparent` of version 00: lower-case hex, no field all zero (MET-05).
#[must_use]
pub fn is_traceparent(text: &str) -> bool {
    let fields: Vec<&str> = text.split('-').collect();
    let hex = |field: &str, length: usize| {
        field.len() == length
            && field
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let set = |field: &str| field.bytes().any(|byte| byte != b'0');
    match fields[..] {
        ["00", trace, parent, flags] => {
            hex(trace, 32) && set(trace) && hex(parent, 16) && set(parent) && hex(flags, 2)
        }
        _ => false,
    }
}

/// Params that are no JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("params must be a JSON object")]
pub struct NotAnObject;

/// Params of a request, ready to be spliced: a JSON object without `_meta`, and the caller's `_meta` apart.
#[derive(Clone, Debug, Default)]
pub struct Params {
    object: Bytes,
    meta: CallerMeta,
}

impl Params {
    /// Takes serialised params. A top-level `_meta` is moved out and filtered.
    ///
    /// # Errors
    ///
    /// [`NotAnObject`] for anything but an object; empty bytes are no params at all.
    pub fn new(object: Bytes) -> Result<Self, NotAnObject> {
        if object.is_empty() {
            return Ok(Self::default());
        }
        if object.first() != Some(&b'{') || object.last() != Some(&b'}') {
            return Err(NotAnObject);
        }
        let object = on_one_line(object);
        if memchr::memmem::find(&object, b"\"_meta\"").is_none() {
            return Ok(Self {
                object,
                meta: CallerMeta::default(),
            });
        }
        let mut members: BTreeMap<String, &RawValue> =
            serde_json::from_slice(&object).map_err(|_| NotAnObject)?;
        let Some(theirs) = members.remove("_meta") else {
            // The text was found deeper inside.
            return Ok(Self {
                object,
                meta: CallerMeta::default(),
            });
        };
        let mut meta = CallerMeta::default();
        let theirs: BTreeMap<String, &RawValue> =
            serde_json::from_str(theirs.get()).map_err(|_| NotAnObject)?;
        for (key, value) in &theirs {
            meta.insert(key, value).map_err(|_| NotAnObject)?;
        }
        let object = serde_json::to_vec(&members).map_err(|_| NotAnObject)?;
        Ok(Self {
            object: object.into(),
            meta,
        })
    }

    /// Adds `traceparent` to `_meta`, unless the caller has set one.
    pub fn trace(&mut self, traceparent: &str) {
        if memchr::memmem::find(&self.meta.0, b"\"traceparent\":").is_none() {
            // A text serialises without fail.
            let _ = self.meta.insert("traceparent", &traceparent);
        }
    }

    /// Takes an object that was put together here, member by member: it has no `_meta` of its own.
    ///
    /// # Errors
    ///
    /// [`NotAnObject`] for anything but an object.
    pub fn assembled(object: Bytes) -> Result<Self, NotAnObject> {
        if object.first() != Some(&b'{') || object.last() != Some(&b'}') {
            return Err(NotAnObject);
        }
        Ok(Self {
            object: on_one_line(object),
            meta: CallerMeta::default(),
        })
    }

    /// The same `_meta` with this object.
    #[must_use]
    pub fn replaced(self, object: &serde_json::Value) -> Self {
        Self {
            object: object.to_string().into(),
            meta: self.meta,
        }
    }

    /// The same `_meta` with the object of these bytes, which came from [`Params::object`].
    #[must_use]
    pub fn with_object(&self, object: Bytes) -> Self {
        Self {
            object,
            meta: self.meta.clone(),
        }
    }

    /// The caller's `_meta`, to be added to.
    pub fn meta_mut(&mut self) -> &mut CallerMeta {
        &mut self.meta
    }

    /// The object without `_meta`; empty where there are no params.
    #[must_use]
    pub fn object(&self) -> &Bytes {
        &self.object
    }

    /// The text that `Mcp-Name` carries for `method`: `name`, `uri` or `taskId` (HDR-02, HDR-03).
    #[must_use]
    pub fn target(&self, method: &Method) -> Option<String> {
        // Each as it stands: what another member is does not matter.
        #[derive(serde::Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            name: Option<&'a RawValue>,
            #[serde(borrow)]
            uri: Option<&'a RawValue>,
            #[serde(borrow, rename = "taskId")]
            task: Option<&'a RawValue>,
        }
        let member = method.target()?;
        let named: Named<'_> = serde_json::from_slice(&self.object).ok()?;
        let text = match member {
            Target::Name => named.name,
            Target::Uri => named.uri,
            Target::TaskId => named.task,
        };
        serde_json::from_str(text?.get()).ok()
    }

    fn members(&self) -> Bytes {
        // Everything behind the opening brace, the closing one included.
        self.object.slice(1.min(self.object.len())..)
    }
}

/// The constant part of `_meta` of a connection in the modern era: its members, without braces.
#[derive(Clone, Debug)]
pub struct ModernMeta(Bytes);

impl ModernMeta {
    /// Serialises the keys that a modern request carries (VER-01, MET-01, MET-02), and the log level where one is
    /// wanted (LOG-01).
    ///
    /// `capabilities` and `client_info` are JSON objects.
    #[must_use]
    pub fn new(
        version: &str,
        capabilities: &[u8],
        client_info: &[u8],
        log_level: Option<LoggingLevel>,
    ) -> Self {
        let mut text = Vec::with_capacity(192 + capabilities.len() + client_info.len());
        text.extend_from_slice(b"\"io.modelcontextprotocol/protocolVersion\":");
        write_json_string(&mut text, version);
        text.extend_from_slice(b",\"io.modelcontextprotocol/clientCapabilities\":");
        text.extend_from_slice(capabilities);
        text.extend_from_slice(b",\"io.modelcontextprotocol/clientInfo\":");
        text.extend_from_slice(client_info);
        if let Some(level) = log_level {
            text.extend_from_slice(b",\"io.modelcontextprotocol/logLevel\":");
            write_json_string(&mut text, level.as_str());
        }
        Self(text.into())
    }
}

/// Splices a request. `constant` is the modern era's part of `_meta`, `None` in the legacy era.
///
/// ```
/// use callboard_proto::Method;
/// use callboard_proto::envelope::{Params, request};
///
/// let given = br#"{"name":"echo","_meta":{"progressToken":"x","trace":"t"}}"#;
/// let params = Params::new(given.as_slice().into()).unwrap();
/// let message = request(7, &Method::TOOLS_CALL, &params, None, true);
/// let message: serde_json::Value = serde_json::from_slice(&message.to_vec()).unwrap();
/// assert_eq!(message["params"]["_meta"], serde_json::json!({"progressToken": 7, "trace": "t"}));
/// ```
#[must_use]
pub fn request(
    key: Key,
    method: &Method,
    params: &Params,
    constant: Option<&ModernMeta>,
    wants_progress: bool,
) -> Outgoing {
    let constant = constant.map_or(&b""[..], |meta| &meta.0[..]);
    let mut prefix =
        BytesMut::with_capacity(96 + method.as_str().len() + constant.len() + params.meta.0.len());
    prefix.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    push_number(&mut prefix, key);
    push_method(&mut prefix, method);

    let has_meta = !constant.is_empty() || wants_progress || !params.meta.is_empty();
    if !has_meta {
        if params.object.is_empty() {
            return Outgoing {
                prefix: prefix.freeze(),
                params: Bytes::new(),
                suffix: "}",
            };
        }
        prefix.extend_from_slice(b",\"params\":");
        return Outgoing {
            prefix: prefix.freeze(),
            params: params.object.clone(),
            suffix: "}",
        };
    }

    prefix.extend_from_slice(b",\"params\":{\"_meta\":{");
    prefix.extend_from_slice(constant);
    let mut separate = !constant.is_empty();
    if wants_progress {
        if separate {
            prefix.extend_from_slice(b",");
        }
        prefix.extend_from_slice(b"\"progressToken\":");
        push_number(&mut prefix, key);
        separate = true;
    }
    if !params.meta.is_empty() {
        if separate {
            prefix.extend_from_slice(b",");
        }
        prefix.extend_from_slice(&params.meta.0);
    }
    prefix.extend_from_slice(b"}");

    let members = params.members();
    if members.is_empty() {
        return Outgoing {
            prefix: prefix.freeze(),
            params: Bytes::new(),
            suffix: "}}",
        };
    }
    if members.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'}') {
        prefix.extend_from_slice(b",");
    }
    Outgoing {
        prefix: prefix.freeze(),
        params: members,
        suffix: "}",
    }
}

/// A notification; `params` is an object or empty.
#[must_use]
pub fn notification(method: &Method, params: &Bytes) -> Outgoing {
    let mut prefix = BytesMut::with_capacity(64);
    prefix.extend_from_slice(b"{\"jsonrpc\":\"2.0\"");
    push_method(&mut prefix, method);
    if !params.is_empty() {
        prefix.extend_from_slice(b",\"params\":");
    }
    Outgoing {
        prefix: prefix.freeze(),
        params: params.clone(),
        suffix: "}",
    }
}

/// An answer to a request of the server (legacy era only, RPC-06).
#[must_use]
pub fn answer(id: &RequestId, answer: Result<&Bytes, &ErrorObject>) -> Outgoing {
    let mut prefix = Vec::with_capacity(64);
    prefix.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    match id {
        RequestId::Number(number) => {
            let _ = write!(prefix, "{number}");
        }
        RequestId::String(text) => write_json_string(&mut prefix, text),
    }
    let params = match answer {
        Ok(result) => {
            prefix.extend_from_slice(b",\"result\":");
            result.clone()
        }
        Err(error) => {
            let _ = write!(prefix, ",\"error\":{{\"code\":{},\"message\":", error.code);
            write_json_string(&mut prefix, &error.message);
            prefix.push(b'}');
            Bytes::new()
        }
    };
    Outgoing {
        prefix: prefix.into(),
        params,
        suffix: "}",
    }
}

/// A raw line end can only be blank space between tokens: inside a string JSON does not allow one. Over stdio
/// it would cut the message in two (STD-01).
fn on_one_line(object: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &object).is_none() {
        return object;
    }
    object
        .iter()
        .map(|&byte| {
            if byte == b'\n' || byte == b'\r' {
                b' '
            } else {
                byte
            }
        })
        .collect()
}

fn push_number(buffer: &mut BytesMut, number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    buffer.extend_from_slice(&digits[at..]);
}

fn push_method(buffer: &mut BytesMut, method: &Method) {
    buffer.extend_from_slice(b",\"method\":");
    let name = method.as_str();
    if name
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
    {
        buffer.extend_from_slice(b"\"");
        buffer.extend_from_slice(name.as_bytes());
        buffer.extend_from_slice(b"\"");
    } else {
        let mut text = Vec::new();
        write_json_string(&mut text, name);
        buffer.extend_from_slice(&text);
    }
}

fn write_json_string(buffer: &mut Vec<u8>, text: &str) {
    // Writing a string into a Vec fails for no input.
    let _ = serde_json::to_writer(buffer, text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn params(value: &Value) -> Params {
        Params::new(serde_json::to_vec(value).unwrap().into()).unwrap()
    }

    fn read(message: &Outgoing) -> Value {
        serde_json::from_slice(&message.to_vec()).unwrap()
    }

    // VER-01, MET-01, MET-02
    #[test]
    fn a_modern_request_carries_the_three_keys_and_the_token() {
        let constant = ModernMeta::new("2026-07-28", b"{}", br#"{"name":"t","version":"1"}"#, None);
        let table = [
            (json!({"name": "add", "arguments": {"a": 1}}), true),
            (json!({}), true),
            (json!({"cursor": ""}), false),
        ];
        for (given, token) in table {
            let message = request(7, &Method::TOOLS_CALL, &params(&given), Some(&constant), token);
            let mut expected = given.clone();
            expected["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            });
            if token {
                expected["_meta"]["progressToken"] = json!(7);
            }
            let expected = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": expected});
            assert_eq!(read(&message), expected, "{given}");
        }
    }

    #[test]
    fn a_request_without_params_has_no_params_member_in_the_legacy_era() {
        let message = request(3, &Method::PING, &Params::default(), None, false);
        assert_eq!(
            read(&message),
            json!({"jsonrpc": "2.0", "id": 3, "method": "ping"})
        );

        let with_token = request(3, &Method::PING, &Params::default(), None, true);
        assert_eq!(
            read(&with_token)["params"],
            json!({"_meta": {"progressToken": 3}})
        );

        let spaced = Params::new(Bytes::from_static(b"{ }")).unwrap();
        assert_eq!(
            read(&request(3, &Method::PING, &spaced, None, true))["params"],
            json!({"_meta": {"progressToken": 3}})
        );
    }

    // MET-08
    #[test]
    fn reserved_keys_of_the_caller_are_dropped_and_the_others_kept() {
        let table = [
            ("progressToken", true),
            ("io.modelcontextprotocol/protocolVersion", true),
            ("com.mcp.tools/x", true),
            ("com.example.mcp/x", true),
            ("mcp/x", true),
            ("traceparent", false),
            ("com.example/x", false),
            ("mcp", false),
        ];
        for (key, reserved) in table {
            assert_eq!(is_reserved(key), reserved, "{key}");
            let given = params(&json!({"name": "x", "_meta": {key: 1, "com.example/kept": [2]}}));
            let message = read(&request(1, &Method::TOOLS_CALL, &given, None, true));
            let meta = &message["params"]["_meta"];
            assert_eq!(meta["progressToken"], json!(1), "{key}");
            assert_eq!(meta["com.example/kept"], json!([2]), "{key}");
            assert_eq!(message["params"]["name"], json!("x"));
            if key != "progressToken" {
                assert_eq!(meta.get(key).is_none(), reserved, "{key}");
            }
        }
    }

    #[test]
    fn meta_deeper_inside_stays_where_it_is() {
        let given = json!({"name": "x", "arguments": {"_meta": {"progressToken": 1}}});
        let message = read(&request(1, &Method::TOOLS_CALL, &params(&given), None, false));
        assert_eq!(message["params"], given);
    }

    // MET-05
    #[test]
    fn a_traceparent_is_taken_when_it_is_well_formed_and_the_caller_has_none() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let table = [
            (good, true),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", false),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false),
            ("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n", false),
            ("", false),
        ];
        for (text, taken) in table {
            assert_eq!(is_traceparent(text), taken, "{text}");
        }
        let mut own = params(&json!({"_meta": {"traceparent": "mine"}}));
        own.trace(good);
        assert_eq!(
            read(&request(1, &Method::PING, &own, None, false))["params"]["_meta"],
            json!({"traceparent": "mine"})
        );
        let mut none = Params::default();
        none.trace(good);
        assert_eq!(
            read(&request(1, &Method::PING, &none, None, false))["params"]["_meta"],
            json!({"traceparent": good})
        );
    }

    // HDR-02, HDR-03, HDR-09, HDR-10, FR-095
    #[test]
    fn the_name_header_carries_what_the_body_names_for_each_method_that_needs_it() {
        let table = [
            (
                "tools/call",
                json!({"name": "add", "arguments": {"name": "x"}}),
                Some("add"),
            ),
            (
                "tools/call",
                json!({"name": "天気", "uri": 1}),
                Some("=?base64?5aSp5rCX?="),
            ),
            ("tools/call", json!({"name": " add"}), Some("=?base64?IGFkZA==?=")),
            (
                "tools/call",
                json!({"name": "a\r\nX-Evil: 1"}),
                Some("=?base64?YQ0KWC1FdmlsOiAx?="),
            ),
            (
                "tools/call",
                json!({"name": "=?base64?YQ==?="}),
                Some("=?base64?PT9iYXNlNjQ/WVE9PT89?="),
            ),
            ("tools/call", json!({"name": ""}), Some("")),
            ("tools/call", json!({"uri": "x", "taskId": "y"}), None),
            ("prompts/get", json!({"name": "a b"}), Some("a b")),
            (
                "resources/read",
                json!({"uri": "file:///a%20b?c=d", "name": 1}),
                Some("file:///a%20b?c=d"),
            ),
            (
                "resources/read",
                json!({"uri": "docs://天"}),
                Some("=?base64?ZG9jczovL+WkqQ==?="),
            ),
            ("tasks/get", json!({"taskId": "t-1", "name": "x"}), Some("t-1")),
            (
                "tasks/update",
                json!({"taskId": "t-1", "inputResponses": {}}),
                Some("t-1"),
            ),
            (
                "tasks/cancel",
                json!({"taskId": "\u{e9}"}),
                Some("=?base64?w6k=?="),
            ),
            // What names nothing, and what is no request of 2026-07-28 that does.
            ("tools/list", json!({"name": "x"}), None),
            ("tasks/list", json!({"taskId": "t-1"}), None),
            ("vendor/call", json!({"name": "x"}), None),
        ];
        for (method, given, header) in table {
            let target = params(&given).target(&Method::new(method));
            let encoded = target.as_deref().map(crate::headers::encode);
            assert_eq!(encoded.as_deref(), header, "{method} {given}");
        }
        assert_eq!(Params::default().target(&Method::TOOLS_CALL), None);
    }

    #[test]
    fn params_that_are_no_object_are_refused() {
        for text in ["[1]", "1", "null", "\"{}\"", "{\"_meta\":{}"] {
            assert!(
                Params::new(Bytes::from_static(text.as_bytes())).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn answers_keep_the_type_of_the_id() {
        let result = Bytes::from_static(b"{}");
        let message = answer(&RequestId::String("1\"".into()), Ok(&result));
        assert_eq!(
            read(&message),
            json!({"jsonrpc": "2.0", "id": "1\"", "result": {}})
        );

        let error = ErrorObject {
            code: -32601,
            message: "no \"x\"".into(),
            data: None,
        };
        let message = answer(&RequestId::Number(-4), Err(&error));
        assert_eq!(
            read(&message),
            json!({"jsonrpc": "2.0", "id": -4, "error": {"code": -32601, "message": "no \"x\""}})
        );
    }

    #[test]
    fn no_message_holds_a_newline() {
        let pretty = Params::new(Bytes::from_static(b"{\n\r\n  \"a\": \"b\\n\"\n}")).unwrap();
        let message = request(1, &Method::TOOLS_CALL, &pretty, None, true);
        assert!(!message.to_vec().contains(&b'\n'));
        assert_eq!(read(&message)["params"]["a"], json!("b\n"));

        let odd = Method::new("a\n\"b");
        let message = request(1, &odd, &Params::default(), None, false);
        assert!(!message.to_vec().contains(&b'\n'));
        assert_eq!(read(&message)["method"], json!("a\n\"b"));
    }
}
