//! Tool arguments that are mirrored in headers (2026-07-28, basic/transports/streamable-http): which of them a schema
//! marks, and what a call sends.
//!
//! ```text
//! inputSchema ──Marks::of──► Marks ──Marks::headers(params)──► Mcp-Param-Region: eu-3
//!                   └──► Invalid: the whole tool is left out of lists
//! ```
//! A mark is the member `x-mcp-header` of a *schema*. Schemas are walked, not raw JSON: a property that has this name,
//! and data in `default`, `const`, `enum` or `examples`, are no marks. What a walk costs is bounded (SCH-05).

use crate::brief::Brief;
use crate::headers;
use crate::message::{Item, Page, RawJson, Rejected, Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// The arguments of one tool that are mirrored, by their place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    fields: Vec<Field>,
    count: usize,
}

/// A property that is marked, or has marked ones within.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    mark: Option<Mark>,
    inner: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// The whole name of the header.
    header: String,
    types: Types,
}

/// Which values a marked property may have, beside null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Types {
    string: bool,
    integer: bool,
    boolean: bool,
}

/// Why the marks of a schema are not valid; the tool is not to be listed over Streamable HTTP (HDR-05).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at `inputSchema{}`", Brief(.place))]
pub struct Invalid {
    /// The place of the schema as a JSON pointer, such as `/properties/region`.
    place: String,
    what: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("`x-mcp-header` is no string")]
    NoString,
    #[error("`x-mcp-header` is empty")]
    Empty,
    #[error("`x-mcp-header` is no name for a header (letters, digits and !#$%&'*+-.^_`|~)")]
    NoToken,
    #[error("`x-mcp-header` is longer than {MAX_NAME} characters")]
    TooLong,
    #[error("`x-mcp-header` repeats the name of another, letter case set aside")]
    Twice,
    #[error("`x-mcp-header` marks what is neither string, integer nor boolean")]
    Type,
    #[error("`x-mcp-header` stands where `properties` alone do not lead")]
    Place,
    #[error("there are more than {MAX_MARKS} `x-mcp-header`, the last")]
    TooMany,
    #[error(
        "the schema is too large or too deep, or has a number or text that cannot be held, to be searched for `x-mcp-header`,"
    )]
    TooLarge,
}

/// Why an argument cannot be mirrored; holds nothing of its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the argument `{}` cannot be mirrored in the header `{header}`, {why}", Brief(.argument))]
pub struct NotMirrored {
    /// The names of the properties that lead to it, with dots between.
    argument: String,
    header: String,
    why: &'static str,
}

/// A tool of a list, and what it has marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its name.
    pub tool: String,
    /// Its marks, perhaps none; or why they are not valid.
    pub marks: Result<Marks, Invalid>,
    /// It is marked as read-only or idempotent: running it twice does no harm, by its server's word.
    pub repeatable: bool,
}

/// What the tools of a page are like; on pages of anything else it does nothing. Where `mirrors`, marks are looked for
/// too, and tools whose marks are not valid are moved from the items to those that are rejected (HDR-05).
pub fn sift<T: Item>(page: &mut Page<T>, mirrors: bool) -> Vec<Seen> {
    let mut seen = Vec::new();
    if !mirrors {
        seen.extend(page.items.iter().filter_map(|item| {
            let tool = item.as_tool()?;
            Some(Seen {
                tool: tool.name.clone(),
                marks: Ok(Marks::default()),
                repeatable: is_repeatable(tool),
            })
        }));
        return seen;
    }
    let items = std::mem::take(&mut page.items);
    for item in items {
        let Some(tool) = item.as_tool() else {
            page.items.push(item);
            continue;
        };
        let (tool, raw, marks, repeatable) = (
            tool.name.clone(),
            tool.raw().clone(),
            Marks::of(&tool.input_schema),
            is_repeatable(tool),
        );
        match &marks {
            Ok(_) => page.items.push(item),
            Err(invalid) => page.rejected.push(Rejected {
                name: Some(tool.clone()),
                reason: invalid.to_string(),
                raw,
                readable: true,
            }),
        }
        seen.push(Seen {
            tool,
            marks,
            repeatable,
        });
    }
    seen
}

fn is_repeatable(tool: &Tool) -> bool {
    let hints = tool.annotations.as_ref();
    hints.is_some_and(ToolAnnotations::is_idempotent)
}

impl Marks {
    /// Finds the marks of a tool's `inputSchema` (HDR-04, HDR-07).
    ///
    /// # Errors
    ///
    /// One of them is not valid.
    pub fn of(schema: &RawJson) -> Result<Self, Invalid> {
        if !may_hold_marks(schema.bytes()) {
            return Ok(Self::default());
        }
        let too_large = || Invalid {
            place: String::new(),
            what: Fault::TooLarge,
        };
        if schema.bytes().len() > MAX_SCHEMA {
            return Err(too_large());
        }
        // This bounds the depth too.
        let root: Value = serde_json::from_slice(schema.bytes()).map_err(|_| too_large())?;
        let mut walk = Walk {
            steps: 0,
            names: HashSet::new(),
            referenced: HashSet::new(),
            waiting: Vec::new(),
        };
        let found = walk.schema(&root, &Place::Root)?;
        while let Some(pointer) = walk.waiting.pop() {
            if let Some(schema) = root.pointer(pointer) {
                walk.elsewhere(schema, &Place::Referenced(pointer))?;
            }
        }
        Ok(Self {
            count: walk.names.len(),
            fields: found.map(|field| field.inner).unwrap_or_default(),
        })
    }

    /// Whether nothing is marked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// How many arguments are marked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// About how many bytes they take.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.fields.iter().map(Field::weight).sum()
    }

    /// The headers of a call with these params of `tools/call`: name and encoded value of each marked argument that
    /// is there and not null (HDR-08, HDR-09, HDR-11).
    ///
    /// # Errors
    ///
    /// A marked argument is not of its type, or an integer that not every peer can hold.
    pub fn headers(&self, params: &[u8]) -> Result<Vec<(String, String)>, NotMirrored> {
        #[derive(Deserialize)]
        struct Call<'a> {
            #[serde(borrow)]
            arguments: Option<&'a RawValue>,
        }
        let mut headers = Vec::with_capacity(self.count);
        let call: Option<Call<'_>> = serde_json::from_slice(params).ok();
        if let Some(arguments) = call.and_then(|call| call.arguments) {
            collect(&self.fields, arguments, &mut Vec::new(), &mut headers)?;
        }
        Ok(headers)
    }
}

impl Field {
    fn weight(&self) -> usize {
        let mark = self.mark.as_ref().map_or(0, |mark| mark.header.len());
        let inner: usize = self.inner.iter().map(Self::weight).sum();
        size_of::<Self>() + self.name.len() + mark + inner
    }
}

/// Whether the text may have a member `x-mcp-header`: a cheap look before a costly one. Where there is none, whatever
/// else the schema holds is of no concern here, be it large, deep, or more than a [`Value`] can hold (HDR-05).
fn may_hold_marks(text: &[u8]) -> bool {
    let holds = |part| memchr::memmem::find(text, part).is_some();
    holds(MARK) || (holds(b"\\u") && holds_escaped_mark(text))
}

/// Any letter of a name can be written as an escape.
fn holds_escaped_mark(text: &[u8]) -> bool {
    let (mut rest, mut found) = (text, 0);
    while let Some((byte, after)) = rest.split_first() {
        let letter;
        (letter, rest) = match (byte, after) {
            (b'\\', [b'u', a, b, c, d, after @ ..]) => (ascii([*a, *b, *c, *d]), after),
            (b'\\', [_, after @ ..]) => (None, after),
            (byte, after) => (Some(*byte), after),
        };
        // Its first letter is nowhere else in it: a search that fails begins anew here or behind.
        found = match letter {
            Some(letter) if letter == MARK[found] => found + 1,
            Some(letter) if letter == MARK[0] => 1,
            _ => 0,
        };
        if found == MARK.len() {
            return true;
        }
    }
    false
}

/// The character that the digits of an escape stand for, if it is an ASCII one.
fn ascii(digits: [u8; 4]) -> Option<u8> {
    let code = u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?;
    code.is_ascii().then_some(code)
}

/// One walk over the schemas of a tool.
struct Walk<'a> {
    /// How many schemas have been looked at.
    steps: usize,
    /// The names given so far, in lower case.
    names: HashSet<String>,
    /// Where references lead to.
    referenced: HashSet<&'a str>,
    /// Those of them that are still to be walked: one after the other, not each within the one before.
    waiting: Vec<&'a str>,
}

/// Where a schema stands, by way of the ones around it.
enum Place<'a> {
    Root,
    /// Under this name among the `properties` of the schema around it.
    Property(&'a str, &'a Place<'a>),
    /// Under this keyword, or this entry of one, where no call has an argument for certain.
    Elsewhere(&'a str, &'a Place<'a>),
    /// Where a reference leads.
    Referenced(&'a str),
}

impl<'a> Walk<'a> {
    /// Walks a schema; gives the field it makes, if there is a mark on it or within its properties.
    fn schema(&mut self, schema: &'a Value, place: &Place<'_>) -> Result<Option<Field>, Invalid> {
        // `true` and `false` are schemas too.
        let Value::Object(keywords) = schema else {
            return Ok(None);
        };
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Invalid {
                place: place.pointer(),
                what: Fault::TooLarge,
            });
        }
        let mark = match keywords.get("x-mcp-header") {
            Some(name) => Some(self.mark(name, keywords.get("type"), place)?),
            None => None,
        };
        let mut inner = Vec::new();
        for (keyword, value) in keywords {
            match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    for (name, property) in properties {
                        inner.extend(self.schema(property, &Place::Property(name, place))?);
                    }
                }
                ("$ref" | "$dynamicRef", Value::String(target)) => self.reference(target),
                (holder, value) if HOLDERS.contains(&holder) => {
                    self.elsewhere(value, &Place::Elsewhere(holder, place))?;
                }
                (holder, Value::Object(schemas)) if MAPS.contains(&holder) => {
                    let around = Place::Elsewhere(holder, place);
                    for (name, schema) in schemas {
                        self.elsewhere(schema, &Place::Elsewhere(name, &around))?;
                    }
                }
                // Data, and what JSON Schema does not know.
                _ => {}
            }
        }
        let name = match place {
            Place::Property(name, _) => *name,
            Place::Root | Place::Elsewhere(..) | Place::Referenced(_) => "",
        };
        Ok((mark.is_some() || !inner.is_empty()).then(|| Field {
            name: name.to_owned(),
            mark,
            inner,
        }))
    }

    /// Walks a schema, or an array of them, that no mark may be in.
    fn elsewhere(&mut self, value: &'a Value, place: &Place<'_>) -> Result<(), Invalid> {
        match value {
            Value::Array(schemas) => schemas
                .iter()
                .try_for_each(|schema| self.schema(schema, place).map(drop)),
            schema => self.schema(schema, place).map(drop),
        }
    }

    /// Has what a reference within the document leads to walked, unless `properties` alone lead there too.
    fn reference(&mut self, target: &'a str) {
        let Some(pointer) = target.strip_prefix('#') else {
            return;
        };
        let mut steps = pointer.split('/').skip(1);
        let mut reachable = true;
        while let (Some(keyword), true) = (steps.next(), reachable) {
            reachable = keyword == "properties" && steps.next().is_some();
        }
        if !reachable && self.referenced.insert(pointer) {
            self.waiting.push(pointer);
        }
    }

    fn mark(&mut self, name: &Value, kind: Option<&Value>, place: &Place<'_>) -> Result<Mark, Invalid> {
        let fault = |what| Invalid {
            place: place.pointer(),
            what,
        };
        let Value::String(name) = name else {
            return Err(fault(Fault::NoString));
        };
        if name.is_empty() {
            return Err(fault(Fault::Empty));
        }
        if !name.bytes().all(is_token) {
            return Err(fault(Fault::NoToken));
        }
        if name.len() > MAX_NAME {
            return Err(fault(Fault::TooLong));
        }
        if !place.is_property() {
            return Err(fault(Fault::Place));
        }
        let Some(types) = kind.and_then(Types::of) else {
            return Err(fault(Fault::Type));
        };
        if self.names.len() == MAX_MARKS {
            return Err(fault(Fault::TooMany));
        }
        if !self.names.insert(name.to_ascii_lowercase()) {
            return Err(fault(Fault::Twice));
        }
        Ok(Mark {
            header: format!("Mcp-Param-{name}"),
            types,
        })
    }
}

impl Place<'_> {
    /// Whether `properties` alone lead from the root to here, and it is not the root.
    fn is_property(&self) -> bool {
        match self {
            Self::Property(_, around) => matches!(around, Self::Root) || around.is_property(),
            Self::Root | Self::Elsewhere(..) | Self::Referenced(_) => false,
        }
    }

    fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Property(name, around) => format!("{}/properties/{name}", around.pointer()),
            Self::Elsewhere(name, around) => format!("{}/{name}", around.pointer()),
            Self::Referenced(pointer) => (*pointer).to_owned(),
        }
    }
}

impl Types {
    /// What a `type` allows; `None` where it is more or less than marked properties may be.
    fn of(kind: &Value) -> Option<Self> {
        let names = match kind {
            Value::Array(names) => names.as_slice(),
            name => std::slice::from_ref(name),
        };
        let mut types = Self::default();
        for name in names {
            match name.as_str()? {
                "string" => types.string = true,
                "integer" => types.integer = true,
                "boolean" => types.boolean = true,
                "null" => {}
                _ => return None,
            }
        }
        (types != Self::default()).then_some(types)
    }

    /// The text of a value.
    fn text(self, value: &RawValue) -> Result<String, &'static str> {
        let text = value.get();
        match text.as_bytes().first() {
            Some(b'"') if self.string => {
                serde_json::from_str(text).map_err(|_| "it is no text that UTF-8 can hold")
            }
            Some(b't' | b'f') if self.boolean => Ok(text.to_owned()),
            Some(b'-' | b'0'..=b'9') if self.integer => integer(text),
            _ => Err(self.expectation()),
        }
    }

    fn expectation(self) -> &'static str {
        match (self.string, self.integer, self.boolean) {
            (true, false, false) => "it must be a string",
            (false, true, false) => "it must be an integer",
            (false, false, true) => "it must be a boolean",
            (true, true, false) => "it must be a string or an integer",
            (true, false, true) => "it must be a string or a boolean",
            (false, true, true) => "it must be an integer or a boolean",
            (_, _, _) => "it must be a string, an integer or a boolean",
        }
    }
}

/// Appends what is mirrored of `arguments`. `path` leads to them.
fn collect<'a>(
    fields: &'a [Field],
    arguments: &RawValue,
    path: &mut Vec<&'a str>,
    headers: &mut Vec<(String, String)>,
) -> Result<(), NotMirrored> {
    // What is no object has no properties: they are absent.
    let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(arguments.get()) else {
        return Ok(());
    };
    for field in fields {
        let Some(value) = members.get(&field.name).filter(|value| value.get() != "null") else {
            continue;
        };
        path.push(&field.name);
        if let Some(mark) = &field.mark {
            let text = mark.types.text(value).map_err(|why| NotMirrored {
                argument: path.join("."),
                header: mark.header.clone(),
                why,
            })?;
            headers.push((mark.header.clone(), headers::encode(&text).into_owned()));
        }
        if !field.inner.is_empty() {
            collect(&field.inner, value, path, headers)?;
        }
        path.pop();
    }
    Ok(())
}

/// The decimal digits of a JSON number that is whole, however it is written (HDR-11).
fn integer(text: &str) -> Result<String, &'static str> {
    const NOT_WHOLE: &str = "it must be an integer";
    const TOO_LARGE: &str = "it exceeds 2^53 - 1, more than every server can hold";
    let (minus, text) = match text.strip_prefix('-') {
        Some(text) => ("-", text),
        None => ("", text),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Ok("0".to_owned());
    }
    // An exponent that is no `i64` is larger than any number of digits makes up for.
    let exponent = match exponent.parse::<i64>() {
        Ok(exponent) => exponent,
        Err(_) if exponent.starts_with('-') => return Err(NOT_WHOLE),
        Err(_) => return Err(TOO_LARGE),
    };
    let zeros = exponent
        .saturating_sub_unsigned(fraction.len() as u64)
        .saturating_add_unsigned((digits.len() - significant.len()) as u64);
    let Ok(zeros) = usize::try_from(zeros) else {
        return Err(if zeros < 0 { NOT_WHOLE } else { TOO_LARGE });
    };
    if significant.len().saturating_add(zeros) > MAX_INTEGER.len() {
        return Err(TOO_LARGE);
    }
    let digits = format!("{significant}{}", "0".repeat(zeros));
    if digits.len() == MAX_INTEGER.len() && digits.as_str() > MAX_INTEGER {
        return Err(TOO_LARGE);
    }
    Ok(format!("{minus}{digits}"))
}

/// RFC 9110 §5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl fmt::Display for Marks {
    /// The names of the headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write(fields: &[Field], f: &mut fmt::Formatter<'_>, first: &mut bool) -> fmt::Result {
            for field in fields {
                if let Some(mark) = &field.mark {
                    let joint = if std::mem::take(first) { "" } else { ", " };
                    write!(f, "{joint}{}", mark.header)?;
                }
                write(&field.inner, f, first)?;
            }
            Ok(())
        }
        write(&self.fields, f, &mut true)
    }
}

/// Keywords that hold a schema or an array of schemas.
const HOLDERS: [&str; 16] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];

/// Keywords that hold schemas by name.
const MAPS: [&str; 5] = [
    "$defs",
    "definitions",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
];

/// The member of a schema that is a mark.
const MARK: &[u8; 12] = b"x-mcp-header";

/// 2^53 - 1: the largest integer that a server may expect in a header.
const MAX_INTEGER: &str = "9007199254740991";

/// The most arguments of one tool that are mirrored: servers take about a hundred headers.
const MAX_MARKS: usize = 128;

/// The longest name of a mark.
const MAX_NAME: usize = 256;

/// The largest schema with marks that is walked, in bytes.
const MAX_SCHEMA: usize = 1 << 20;

/// How many schemas a walk looks at, those that references lead to counted each time.
const MAX_STEPS: usize = 100_000;

#[cfg(test)]
mod tests;
