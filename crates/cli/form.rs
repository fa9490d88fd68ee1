//! A form that a server asks for: its fields as they are shown, and whether values fit it (ELI-06, ELI-07).

use callboard::message::RawJson;
use callboard::message::flat_form;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

/// A requested schema, read.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) fields: Vec<Field>,
    validator: Validator,
}

/// One property of the schema.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// What it is called towards people.
    pub(crate) title: String,
    pub(crate) description: Option<String>,
    pub(crate) kind: FieldKind,
    /// What may be chosen; empty where anything may be written.
    pub(crate) choices: Vec<Choice>,
    pub(crate) default: Option<Value>,
    pub(crate) required: bool,
    /// `None` where the property cannot be checked without the whole form.
    validator: Option<Validator>,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Text,
    Number,
    Integer,
    Boolean,
    /// Some of its choices.
    Several,
}

/// A value that may be chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) value: String,
    pub(crate) title: String,
}

impl Form {
    /// Reads a requested schema. Of its keywords only those of a form are compiled.
    pub(crate) fn read(schema: &RawJson) -> Result<Self, String> {
        if schema.bytes().len() > SCHEMA_LIMIT {
            return Err(format!("its form exceeds {SCHEMA_LIMIT} bytes"));
        }
        let schema: Value = schema.decode().map_err(|error| error.to_string())?;
        let schema = flat_form(&schema).map_err(unusable)?;
        let validator = validator(&schema)?;
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let required = |name: &str| {
            let required = schema["required"].as_array();
            required.is_some_and(|names| names.iter().any(|required| required == name))
        };
        let fields = properties
            .iter()
            .map(|(name, property)| Field::read(name, property, required(name)));
        Ok(Self {
            fields: fields.collect(),
            validator,
        })
    }

    /// What an answer looks like, with the values that are required left open.
    pub(crate) fn example(&self) -> String {
        let required = self
            .fields
            .iter()
            .filter(|field| field.required && field.default.is_none());
        let members: Vec<String> = required
            .map(|field| format!("{}: …", Value::from(field.name.as_str())))
            .collect();
        format!("{{{}}}", members.join(", "))
    }

    /// Fills in the defaults that `content` leaves out, then checks it. What is wrong is told without any value.
    pub(crate) fn complete(&self, mut content: Map<String, Value>) -> Result<Map<String, Value>, String> {
        for field in &self.fields {
            if let Some(default) = &field.default {
                content
                    .entry(field.name.clone())
                    .or_insert_with(|| default.clone());
            }
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

impl Field {
    fn read(name: &str, property: &Value, required: bool) -> Self {
        let kind = match property["type"].as_str() {
            Some("integer") => FieldKind::Integer,
            Some("number") => FieldKind::Number,
            Some("boolean") => FieldKind::Boolean,
            Some("array") => FieldKind::Several,
            _ => FieldKind::Text,
        };
        let of = if kind == FieldKind::Several {
            &property["items"]
        } else {
            property
        };
        let text = |key: &str| property[key].as_str().map(str::to_owned);
        Self {
            name: name.to_owned(),
            title: text("title").unwrap_or_else(|| name.to_owned()),
            description: text("description"),
            kind,
            choices: choices(of),
            default: property.get("default").filter(|value| !value.is_null()).cloned(),
            required,
            validator: validator(property).ok(),
        }
    }

    /// What kind of value it takes, for people.
    pub(crate) fn type_name(&self) -> &'static str {
        match self.kind {
            FieldKind::Text if self.choices.is_empty() => "text",
            FieldKind::Text => "one of these",
            FieldKind::Number => "number",
            FieldKind::Integer => "whole number",
            FieldKind::Boolean => "yes or no",
            FieldKind::Several => "any of these, with commas between",
        }
    }

    /// Reads what a user wrote.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, String> {
        let value = match self.kind {
            FieldKind::Text if self.choices.is_empty() => Value::from(text),
            FieldKind::Text => self.choose(text.trim())?.into(),
            FieldKind::Number | FieldKind::Integer => match serde_json::from_str(text.trim()) {
                Ok(value @ Value::Number(_)) => value,
                _ => return Err("that is no number".to_owned()),
            },
            FieldKind::Boolean => match text.trim().to_lowercase().as_str() {
                "y" | "yes" | "true" => true.into(),
                "n" | "no" | "false" => false.into(),
                _ => return Err("write yes or no".to_owned()),
            },
            FieldKind::Several => {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                Value::Array(
                    words
                        .map(|word| self.choose(word).map(Value::from))
                        .collect::<Result<_, _>>()?,
                )
            }
        };
        if let Some(validator) = &self.validator {
            validator.validate(&value).map_err(|error| reason(&error))?;
        }
        Ok(value)
    }

    /// The choice that a word names: its value, its title, or its number in the list.
    fn choose(&self, word: &str) -> Result<String, String> {
        if self.choices.is_empty() {
            return Ok(word.to_owned());
        }
        let named = self.choices.iter().find(|choice| choice.value == word);
        let titled = || self.choices.iter().find(|choice| choice.title == word);
        let numbered = || self.choices.get(word.parse::<usize>().ok()?.checked_sub(1)?);
        match named.or_else(titled).or_else(numbered) {
            Some(choice) => Ok(choice.value.clone()),
            None => Err("that is none of the choices".to_owned()),
        }
    }
}

/// The values of `enum` with the titles of `enumNames`, or those of `oneOf` and `anyOf`.
fn choices(schema: &Value) -> Vec<Choice> {
    let texts = |key: &str| schema[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let choice = |value: &Value, title: &Value| {
        let value = value.as_str()?.to_owned();
        let title = title.as_str().unwrap_or(&value).to_owned();
        Some(Choice { value, title })
    };
    let titles = texts("enumNames").iter().chain(std::iter::repeat(&Value::Null));
    let plain = texts("enum")
        .iter()
        .zip(titles)
        .filter_map(|(value, title)| choice(value, title));
    let titled = texts("oneOf")
        .iter()
        .chain(texts("anyOf"))
        .filter_map(|entry| choice(&entry["const"], &entry["title"]));
    plain.chain(titled).collect()
}

/// What checks values. A server's patterns may take neither much time nor much memory.
fn validator(schema: &Value) -> Result<Validator, String> {
    jsonschema::options()
        .should_validate_formats(true)
        .with_pattern_options(
            PatternOptions::fancy_regex()
                .backtrack_limit(BACKTRACK_LIMIT)
                .size_limit(REGEX_LIMIT)
                .dfa_size_limit(REGEX_LIMIT),
        )
        .offline()
        .build(schema)
        .map_err(|error| unusable(short(&error.masked().to_string())))
}

fn unusable(reason: impl std::fmt::Display) -> String {
    format!("its form cannot be used, {reason}")
}

fn reason(error: &ValidationError<'_>) -> String {
    let place = error.instance_path().as_str().trim_start_matches('/');
    let reason = short(&error.masked().to_string());
    match place {
        "" => reason,
        place => format!("`{}`: {reason}", short(place)),
    }
}

/// The beginning of a text that a server chose.
fn short(text: &str) -> String {
    text.chars().take(200).collect()
}

/// The most bytes of a schema.
const SCHEMA_LIMIT: usize = 256 * 1024;
/// The most steps back that a `pattern` may take; past it the value does not fit.
const BACKTRACK_LIMIT: usize = 100_000;
/// The most bytes that a compiled `pattern` may take.
const REGEX_LIMIT: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_reads_what_a_user_writes() {
        let titled = json!({"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}, {"const": "#0f0", "title": "Green"}]});
        let several =
            json!({"type": "array", "maxItems": 2, "items": {"type": "string", "enum": ["a", "b", "c"]}});
        let table = [
            (json!({"type": "string"}), " a ", Some(json!(" a "))),
            (json!({"type": "string", "minLength": 2}), "a", None),
            (
                json!({"type": "string", "format": "email"}),
                "ada@example.com",
                Some(json!("ada@example.com")),
            ),
            (json!({"type": "string", "format": "email"}), "ada", None),
            (json!({"type": "integer"}), "7", Some(json!(7))),
            (json!({"type": "integer"}), "7.5", None),
            (json!({"type": "integer", "maximum": 5}), "7", None),
            (json!({"type": "number"}), "7.5", Some(json!(7.5))),
            (json!({"type": "number"}), "seven", None),
            (json!({"type": "boolean"}), "Yes", Some(json!(true))),
            (json!({"type": "boolean"}), "n", Some(json!(false))),
            (json!({"type": "boolean"}), "perhaps", None),
            (titled.clone(), "2", Some(json!("#0f0"))),
            (titled.clone(), "Red", Some(json!("#f00"))),
            (titled.clone(), "#f00", Some(json!("#f00"))),
            (titled, "3", None),
            (several.clone(), "1, c", Some(json!(["a", "c"]))),
            (several, "a,b,c", None),
        ];
        for (property, text, expected) in table {
            let field = Field::read("x", &property, true);
            assert_eq!(field.parse(text).ok(), expected, "{property} {text}");
        }
    }

    #[test]
    fn titles_of_an_enum_are_taken_where_there_are_some() {
        let read = choices(&json!({"enum": ["a", "b"], "enumNames": ["Anna"]}));

        let read: Vec<(&str, &str)> = read
            .iter()
            .map(|choice| (choice.value.as_str(), choice.title.as_str()))
            .collect();
        assert_eq!(read, [("a", "Anna"), ("b", "b")]);
    }

    // ELI-06
    #[test]
    fn a_schema_that_no_form_has_is_refused_without_following_it() {
        let read = |schema: Value| Form::read(&RawJson::of(&schema).unwrap());
        let mut definitions: Map<String, Value> = (0..40)
            .map(|at| {
                let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
                (format!("d{at}"), json!({"allOf": [next, next]}))
            })
            .collect();
        definitions.insert("d40".to_owned(), json!({"type": "string"}));
        let reference = json!({"$ref": "#/$defs/d0"});
        let many: Map<String, Value> = (0..257).map(|at| (format!("x{at}"), json!({}))).collect();
        let table = [
            (
                json!({"$defs": definitions, "properties": {"x": reference}}),
                "`$",
            ),
            (json!({"properties": {"x": reference}}), "`x` uses `$ref`"),
            (json!({"properties": {"x": {"allOf": []}}}), "`x` uses `allOf`"),
            (json!({"properties": {"x": {"type": "object"}}}), "`x` nests"),
            (
                json!({"properties": {"x": {"pattern": "a".repeat(1001)}}}),
                "`x` has a `pattern`",
            ),
            (json!({"properties": {"x": {"enum": vec!["a"; 4097]}}}), "`enum`"),
            (json!({"properties": many}), "256 properties"),
            (json!({"title": "x".repeat(300_000)}), "exceeds"),
        ];
        for (schema, named) in table {
            let told = read(schema).unwrap_err();
            assert!(told.contains(named), "{named}: {told}");
        }
        assert!(read(json!({"properties": {"x": {"x-widget": {"$ref": "y"}, "examples": ["a"]}}})).is_ok());
    }

    // ELI-06, ELI-07
    #[test]
    fn defaults_are_filled_in_and_values_checked_without_being_shown() {
        let schema = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "default": 30}}});
        let form = Form::read(&RawJson::of(&schema).unwrap()).unwrap();
        let complete = |content: Value| form.complete(content.as_object().unwrap().clone());

        assert_eq!(
            Value::from(complete(json!({"name": "Ada"})).unwrap()),
            json!({"name": "Ada", "age": 30})
        );
        assert!(complete(json!({})).unwrap_err().contains("name"));
        let told = complete(json!({"name": "Ada", "age": "s3cret"})).unwrap_err();
        assert!(told.starts_with("`age`") && !told.contains("s3cret"), "{told}");
    }
}
