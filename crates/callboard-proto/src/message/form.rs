//! What of a requested schema is a form: properties that do not nest, with the keywords of primitive values.
//!
//! Nothing else is compiled. With references a schema of a few thousand bytes can make the check of one value take
//! longer than anybody lives, and the check cannot be interrupted, so a schema that has them is refused.

use serde_json::{Map, Value};

/// The schema of an elicitation form with the keywords of a form alone (2025-11-25 and 2026-07-28,
/// client/elicitation). Names that JSON Schema does not give a meaning are left out.
///
/// # Errors
///
/// It is that of no form; the text says what the schema does, with the property and the keyword.
pub fn flat_form(schema: &Value) -> Result<Value, String> {
    let members = match schema {
        Value::Object(members) if !members.contains_key("type") || names(members, "object") => members,
        _ => return Err("it is not that of an object".to_owned()),
    };
    let mut kept = Map::new();
    for (keyword, value) in members {
        let value = match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => flat_properties(properties)?,
            ("$schema" | "type" | "required" | "title" | "description", _)
            | ("additionalProperties", Value::Bool(_)) => value.clone(),
            (other, _) if ASSERTIONS.contains(&other) || REFUSED.contains(&other) => {
                return Err(format!("it {}", misused(other)));
            }
            _ => continue,
        };
        kept.insert(keyword.clone(), value);
    }
    Ok(Value::Object(kept))
}

fn flat_properties(properties: &Map<String, Value>) -> Result<Value, String> {
    if properties.len() > PROPERTY_LIMIT {
        return Err(format!("it has more than {PROPERTY_LIMIT} properties"));
    }
    let mut patterns = 0;
    let mut kept = Map::new();
    for (name, property) in properties {
        let property = flat_part(property, Place::Property, &mut patterns)
            .map_err(|reason| format!("its property `{}` {reason}", short(name)))?;
        kept.insert(name.clone(), property);
    }
    Ok(Value::Object(kept))
}

/// A server's text in a failure: at most so many characters.
fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Where a schema below that of the form stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Property,
    /// In `anyOf` or `oneOf` of a property.
    Choice,
    /// What the items of a list are.
    Items,
    /// In `anyOf` or `oneOf` of the items.
    ItemChoice,
}

impl Place {
    /// Where its choices stand, if it may have some.
    fn choices(self) -> Option<Self> {
        match self {
            Self::Property => Some(Self::Choice),
            Self::Items => Some(Self::ItemChoice),
            Self::Choice | Self::ItemChoice => None,
        }
    }

    /// Whether it may be a list.
    fn lists(self) -> bool {
        matches!(self, Self::Property | Self::Choice)
    }
}

/// `patterns` counts those of the whole form.
fn flat_part(schema: &Value, place: Place, patterns: &mut usize) -> Result<Value, String> {
    let Value::Object(members) = schema else {
        return Err("is described by what is no object".to_owned());
    };
    if names(members, "object") || (names(members, "array") && !place.lists()) {
        return Err("nests, and a form is flat".to_owned());
    }
    let mut kept = Map::new();
    for (keyword, value) in members {
        let value = match (keyword.as_str(), value, place.choices()) {
            ("anyOf" | "oneOf" | "enum", Value::Array(choices), _) if choices.len() > CHOICE_LIMIT => {
                return Err(format!("has more than {CHOICE_LIMIT} members in `{keyword}`"));
            }
            ("anyOf" | "oneOf", Value::Array(choices), Some(inner)) => choices
                .iter()
                .map(|choice| flat_part(choice, inner, patterns))
                .collect::<Result<_, _>>()?,
            ("items", Value::Object(_), _) if place.lists() => flat_part(value, Place::Items, patterns)?,
            ("pattern", Value::String(pattern), _) => {
                *patterns += 1;
                if pattern.chars().nth(PATTERN_LENGTH).is_some() {
                    return Err(format!(
                        "has a `pattern` of more than {PATTERN_LENGTH} characters"
                    ));
                }
                if *patterns > PATTERN_LIMIT {
                    return Err(format!(
                        "has a `pattern` after {PATTERN_LIMIT} others of the form"
                    ));
                }
                value.clone()
            }
            (known, _, _) if ASSERTIONS.contains(&known) || ANNOTATIONS.contains(&known) => value.clone(),
            (other, _, _) if REFUSED.contains(&other) => return Err(misused(other)),
            _ => continue,
        };
        kept.insert(keyword.clone(), value);
    }
    Ok(Value::Object(kept))
}

fn misused(keyword: &str) -> String {
    format!("uses `{keyword}` as no form does")
}

/// Whether `type` names this type.
fn names(schema: &Map<String, Value>, wanted: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == wanted,
        Some(Value::Array(several)) => several.iter().any(|one| one == wanted),
        _ => false,
    }
}

/// What limits a primitive value, or a list of them, by itself.
const ASSERTIONS: [&str; 15] = [
    "type",
    "const",
    "enum",
    "minLength",
    "maxLength",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "uniqueItems",
];
/// What describes a property to people, or fills it in.
const ANNOTATIONS: [&str; 4] = ["title", "description", "default", "enumNames"];
/// What JSON Schema has besides, or has elsewhere: to leave it out would let values pass that the server excludes.
const REFUSED: [&str; 33] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "$defs",
    "definitions",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "properties",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "required",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "unevaluatedItems",
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "minContains",
    "maxContains",
    "contentSchema",
    "extends",
    "disallow",
];

/// The most properties of a form.
const PROPERTY_LIMIT: usize = 256;
/// The most members of one `enum`, `anyOf` or `oneOf`.
const CHOICE_LIMIT: usize = 4096;
/// The most characters of a `pattern`.
const PATTERN_LENGTH: usize = 1000;
/// The most patterns of a form: to compile one takes time.
const PATTERN_LIMIT: usize = 64;
