//! Checks whether an actual value matches the expected value ("Evaluating Matches").

use bson::{Bson, Document};
use serde_json::Value;

use crate::format::Object;

/// Converts a value from a test file, which is extended JSON.
pub fn bson(value: &Value) -> Bson {
    Bson::try_from(value.clone()).unwrap_or_else(|error| panic!("{value} is not extended JSON: {error}"))
}

pub fn document(object: &Object) -> Document {
    match bson(&Value::Object(object.clone())) {
        Bson::Document(document) => document,
        other => panic!("{other} is not a document"),
    }
}

/// The values that operators look up.
pub trait Entities {
    /// Returns the BSON value of an entity.
    fn bson(&self, name: &str) -> Option<Bson>;
    /// Returns the identifier of a session entity.
    fn session_id(&self, name: &str) -> Option<Bson>;
}

/// Checks a value. The error says what differs and where.
pub fn matches(expected: &Bson, actual: Option<&Bson>, is_root: bool, entities: &dyn Entities) -> Result<(), String> {
    if let Bson::Document(expected) = expected {
        if let Some((operator, operand)) = operator(expected) {
            return operate(operator, operand, actual, is_root, entities);
        }
        let Some(Bson::Document(actual)) = actual else { return Err(format!("expected {expected}, got {actual:?}")) };
        return documents_match(expected, actual, is_root, entities);
    }
    let Some(actual) = actual else { return Err(format!("expected {expected}, got nothing")) };
    match (expected, actual) {
        (Bson::Array(expected), Bson::Array(actual)) => {
            if expected.len() != actual.len() {
                return Err(format!("expected {} elements, got {}: {actual:?}", expected.len(), actual.len()));
            }
            for (index, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                matches(expected, Some(actual), false, entities).map_err(|error| format!("[{index}]: {error}"))?;
            }
            Ok(())
        }
        _ if is_equal(expected, actual) => Ok(()),
        _ => Err(format!("expected {expected}, got {actual}")),
    }
}

/// Checks several documents, each as a root-level document.
pub fn all_match(expected: &Bson, actual: Option<&Bson>, entities: &dyn Entities) -> Result<(), String> {
    match (expected, actual) {
        (Bson::Array(expected), Some(Bson::Array(actual))) if expected.len() == actual.len() => {
            for (index, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                matches(expected, Some(actual), true, entities).map_err(|error| format!("[{index}]: {error}"))?;
            }
            Ok(())
        }
        (Bson::Document(expected), Some(Bson::Document(actual))) if expected.len() == actual.len() => {
            for (name, expected) in expected {
                matches(expected, actual.get(name), true, entities).map_err(|error| format!("{name}: {error}"))?;
            }
            Ok(())
        }
        _ => matches(expected, actual, true, entities),
    }
}

fn documents_match(
    expected: &Document,
    actual: &Document,
    is_root: bool,
    entities: &dyn Entities,
) -> Result<(), String> {
    for (name, value) in expected {
        matches(value, actual.get(name), false, entities).map_err(|error| format!("{name}: {error}"))?;
    }
    match actual.keys().find(|name| !expected.contains_key(name.as_str())) {
        Some(name) if !is_root => Err(format!("unexpected field {name} in {actual}")),
        _ => Ok(()),
    }
}

/// Returns the operator that a document consists of, if any.
fn operator(document: &Document) -> Option<(&str, &Bson)> {
    let (name, operand) = document.iter().next()?;
    (document.len() == 1 && name.starts_with("$$")).then_some((name, operand))
}

fn operate(
    operator: &str,
    operand: &Bson,
    actual: Option<&Bson>,
    is_root: bool,
    entities: &dyn Entities,
) -> Result<(), String> {
    let fails = || Err(format!("{operator} {operand} does not hold for {actual:?}"));
    let holds = |holds: bool| if holds { Ok(()) } else { fails() };
    match operator {
        "$$exists" => holds(Some(actual.is_some()) == operand.as_bool()),
        "$$type" => {
            let types = match operand {
                Bson::Array(types) => types.clone(),
                one => vec![one.clone()],
            };
            let is_of = |of: &Bson| of.as_str().is_some_and(|of| actual.is_some_and(|actual| is_type(of, actual)));
            holds(types.iter().any(is_of))
        }
        "$$unsetOrMatches" => match actual {
            None => Ok(()),
            Some(_) => matches(operand, actual, is_root, entities),
        },
        "$$matchesEntity" => {
            let name = operand.as_str().ok_or("$$matchesEntity needs a name")?;
            let entity = entities.bson(name).ok_or_else(|| format!("there is no entity {name}"))?;
            matches(&entity, actual, is_root, entities)
        }
        "$$sessionLsid" => {
            let name = operand.as_str().ok_or("$$sessionLsid needs a name")?;
            let id = entities.session_id(name).ok_or_else(|| format!("there is no session {name}"))?;
            holds(actual == Some(&id))
        }
        "$$matchesHexBytes" => {
            let hex = operand.as_str().ok_or("$$matchesHexBytes needs a string")?;
            let bytes = match actual {
                Some(Bson::String(text)) => text.as_bytes().to_vec(),
                Some(Bson::Binary(binary)) => binary.bytes.clone(),
                _ => return fails(),
            };
            holds(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() == hex.to_lowercase())
        }
        "$$lte" => match (number(operand), actual.and_then(number)) {
            (Some(most), Some(actual)) => holds(actual <= most),
            _ => fails(),
        },
        "$$matchAsDocument" => {
            let Some(Bson::String(text)) = actual else { return fails() };
            let value: Value = serde_json::from_str(text).map_err(|error| format!("{text} is not JSON: {error}"))?;
            let actual = Bson::try_from(value).map_err(|error| error.to_string())?;
            matches(operand, Some(&actual), false, entities)
        }
        "$$matchAsRoot" => matches(operand, actual, true, entities),
        _ => Err(format!("{operator} is not an operator")),
    }
}

fn is_type(name: &str, actual: &Bson) -> bool {
    match name {
        "double" => matches!(actual, Bson::Double(_)),
        "string" => matches!(actual, Bson::String(_)),
        "object" => matches!(actual, Bson::Document(_)),
        "array" => matches!(actual, Bson::Array(_)),
        "binData" => matches!(actual, Bson::Binary(_)),
        "undefined" => matches!(actual, Bson::Undefined),
        "objectId" => matches!(actual, Bson::ObjectId(_)),
        "bool" => matches!(actual, Bson::Boolean(_)),
        "date" => matches!(actual, Bson::DateTime(_)),
        "null" => matches!(actual, Bson::Null),
        "regex" => matches!(actual, Bson::RegularExpression(_)),
        "dbPointer" => matches!(actual, Bson::DbPointer(_)),
        "javascript" => matches!(actual, Bson::JavaScriptCode(_)),
        "symbol" => matches!(actual, Bson::Symbol(_)),
        "javascriptWithScope" => matches!(actual, Bson::JavaScriptCodeWithScope(_)),
        "int" => matches!(actual, Bson::Int32(_)),
        "timestamp" => matches!(actual, Bson::Timestamp(_)),
        "long" => matches!(actual, Bson::Int64(_)),
        "decimal" => matches!(actual, Bson::Decimal128(_)),
        "number" => number(actual).is_some() || matches!(actual, Bson::Decimal128(_)),
        "minKey" => matches!(actual, Bson::MinKey),
        "maxKey" => matches!(actual, Bson::MaxKey),
        _ => panic!("{name} is not a type of BSON"),
    }
}

fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(number) => Some((*number).into()),
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}

fn is_equal(expected: &Bson, actual: &Bson) -> bool {
    match (number(expected), number(actual)) {
        (Some(expected), Some(actual)) => expected == actual,
        _ => expected == actual,
    }
}

/// Compares the contents of collections exactly, except for the order of fields.
pub fn is_same(expected: &Bson, actual: &Bson) -> bool {
    match (expected, actual) {
        (Bson::Document(expected), Bson::Document(actual)) => {
            let has = |(name, value): (&String, &Bson)| actual.get(name).is_some_and(|other| is_same(value, other));
            expected.len() == actual.len() && expected.iter().all(has)
        }
        (Bson::Array(expected), Bson::Array(actual)) => {
            expected.len() == actual.len() && expected.iter().zip(actual).all(|(one, other)| is_same(one, other))
        }
        _ => is_equal(expected, actual),
    }
}
