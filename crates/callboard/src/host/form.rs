//! A form of the elicitation: the defaults of its schema, and whether values fit it (ELI-06, ELI-07).
//!
//! A schema is judged before the user is asked, so that nobody fills in a form that cannot be accepted.

use callboard_proto::message::RawJson;
use callboard_proto::message::flat_form;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

/// The schema of a form, ready for values.
pub(super) struct Form {
    /// By property.
    defaults: Map<String, Value>,
    validator: Validator,
}

impl Form {
    /// Reads a requested schema. Of its keywords only those of a form are compiled.
    ///
    /// # Errors
    ///
    /// It is no schema of a flat object, or none that can be used; the text names the property where there is one.
    pub(super) fn new(schema: &RawJson) -> Result<Self, String> {
        if schema.bytes().len() > SCHEMA_LIMIT {
            return Err(format!("the requested schema exceeds {SCHEMA_LIMIT} bytes"));
        }
        let unusable = |reason: String| format!("the requested schema cannot be used, {reason}");
        let schema: Value = schema.decode().map_err(|error| unusable(error.to_string()))?;
        let schema = flat_form(&schema).map_err(unusable)?;
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let defaults = properties.iter().filter_map(|(name, property)| {
            let default = property.get("default").filter(|default| is_flat(default))?;
            Some((name.clone(), default.clone()))
        });
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .with_pattern_options(
                PatternOptions::fancy_regex()
                    .backtrack_limit(BACKTRACK_LIMIT)
                    .size_limit(REGEX_LIMIT)
                    .dfa_size_limit(REGEX_LIMIT),
            )
            .offline()
            .build(&schema)
            .map_err(|error| unusable(short(&error.masked().to_string())))?;
        Ok(Self {
            defaults: defaults.collect(),
            validator,
        })
    }

    /// Fills in the defaults of properties that `content` leaves out, then checks it.
    ///
    /// # Errors
    ///
    /// It does not fit the schema. The text names the property and never shows a value.
    pub(super) fn complete(&self, mut content: Map<String, Value>) -> Result<Map<String, Value>, String> {
        for (name, default) in &self.defaults {
            if !content.contains_key(name) {
                content.insert(name.clone(), default.clone());
            }
        }
        if let Some((name, _)) = content.iter().find(|(_, value)| !is_flat(value)) {
            return Err(format!(
                "the property `{}` is no string, number, boolean or list of strings",
                short(name)
            ));
        }
        let content = Value::Object(content);
        self.validator
            .validate(&content)
            .map_err(|error| reason(&error))?;
        match content {
            Value::Object(content) => Ok(content),
            // It is made of an object above.
            _ => Ok(Map::new()),
        }
    }
}

/// What is wrong with the content, without any value of it.
fn reason(error: &ValidationError<'_>) -> String {
    if let ValidationErrorKind::Required { property } = error.kind() {
        let name = property.as_str().unwrap_or_default();
        return format!("the property `{}` is missing", short(name));
    }
    let masked = short(&error.masked().to_string());
    let path = error.instance_path().as_str();
    match path.trim_start_matches('/').split('/').next() {
        None | Some("") => masked,
        Some(name) => {
            let name = short(&name.replace("~1", "/").replace("~0", "~"));
            format!("the property `{name}` does not fit the requested schema, {masked}")
        }
    }
}

/// Whether a value is one that a form can hold. Null is none: what has no value is left out.
fn is_flat(value: &Value) -> bool {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => true,
        Value::Array(items) => items.iter().all(Value::is_string),
        Value::Null | Value::Object(_) => false,
    }
}

/// The beginning of a text that a server chose.
fn short(text: &str) -> String {
    text.chars().take(TEXT_LIMIT).collect()
}

/// The most bytes of a schema: reading one takes time on a thread of the host.
const SCHEMA_LIMIT: usize = 256 * 1024;
/// The most steps back that a `pattern` may take; past it the value does not fit.
const BACKTRACK_LIMIT: usize = 100_000;
/// The most bytes that a compiled `pattern` may take.
const REGEX_LIMIT: usize = 1024 * 1024;
/// The most characters of a server's text in a failure.
const TEXT_LIMIT: usize = 200;
