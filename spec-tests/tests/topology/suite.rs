//! The files of the official suites.

use std::fs;
use std::path::{Path, PathBuf};

use bson::raw::CString;
use bson::{RawBson, RawDocumentBuf};
use serde_json::Value;

/// Returns the JSON files below a folder in a suite, sorted, each with its name within the suite.
pub fn files(suite: &str, folder: &str) -> Vec<(String, Value)> {
    let root = wharf_testbed::provision::suite(suite).expect("the official test suite");
    let mut found = Vec::new();
    collect(&root.join(folder), &mut found);
    found.sort();
    let read = |file: &PathBuf| {
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        (name, serde_json::from_slice(&fs::read(file).unwrap()).unwrap())
    };
    found.iter().map(read).collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
}

/// Reads a document in the suites' extended JSON.
pub fn document(json: &Value) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    for (name, value) in json.as_object().expect("an object") {
        document.append(CString::try_from(name.as_str()).expect("a field's name"), element(value));
    }
    document
}

fn element(json: &Value) -> RawBson {
    match json {
        Value::Null => RawBson::Null,
        Value::Bool(value) => RawBson::Boolean(*value),
        Value::String(text) => RawBson::String(text.clone()),
        Value::Number(number) => {
            let number = number.as_i64().expect("a whole number");
            i32::try_from(number).map_or(RawBson::Int64(number), RawBson::Int32)
        }
        Value::Array(elements) => RawBson::Array(elements.iter().map(element).collect()),
        Value::Object(fields) => match fields.iter().next() {
            Some((name, Value::String(id))) if name == "$oid" => RawBson::ObjectId(id.parse().expect("an ObjectId")),
            Some((name, Value::String(number))) if name == "$numberLong" => {
                RawBson::Int64(number.parse().expect("a whole number"))
            }
            Some((name, _)) if name.starts_with('$') => panic!("unknown extended JSON: {json}"),
            _ => RawBson::Document(document(json)),
        },
    }
}
