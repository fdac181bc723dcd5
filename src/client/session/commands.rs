//! Determines from a command's name and arguments whether the command can be retried, and which fields a session may
//! add to it.

use bson::{RawBsonRef, RawDocument};

/// Returns whether a write can be retried with a transaction number: an acknowledged write whose statements each affect
/// at most one document (Retryable Writes, "Supported Write Operations"). Commits and aborts are not included, because
/// they follow a separate rule.
///
/// `sequences` are the arguments that are sent outside the command's document, with their names: `updates`, `deletes`
/// or `ops`. `is_unacknowledged` says whether the effective write concern is `w: 0`.
pub fn is_retryable_write<'a>(
    command: &'a RawDocument,
    sequences: impl IntoIterator<Item = (&'a str, &'a RawDocument)>,
    is_unacknowledged: bool,
) -> bool {
    let statements = match name(command) {
        Some("insert" | "findAndModify" | "findandmodify") => return !is_unacknowledged,
        Some("update") => "updates",
        Some("delete") => "deletes",
        Some("bulkWrite") => "ops",
        _ => return false,
    };
    let inside = command.get_array(statements).ok().into_iter().flatten().flatten();
    !is_unacknowledged
        && inside.filter_map(RawBsonRef::as_document).all(|statement| is_single(statements, statement))
        && sequences.into_iter().all(|(name, statement)| is_single(name, statement))
}

/// Returns whether the server sends no reply to a command with this name if its write concern is `w: 0`. All other
/// commands return more than an acknowledgement, so the client waits for their replies.
pub fn has_no_reply(command: &str) -> bool {
    matches!(command, "insert" | "update" | "delete" | "bulkWrite")
}

/// Returns whether a statement in this argument affects at most one document.
pub fn is_single(argument: &str, statement: &RawDocument) -> bool {
    match argument {
        "updates" | "ops" => !is_true(statement, "multi"),
        // `limit: 0` removes all matching documents. Without a limit, the server refuses the delete.
        "deletes" => is_true(statement, "limit"),
        _ => true,
    }
}

/// Returns whether a command is a read that can be repeated (Retryable Reads, "Supported Read Operations").
#[allow(dead_code, reason = "so far the application says what is a read")]
pub fn is_retryable_read(command: &RawDocument) -> bool {
    match name(command) {
        Some("aggregate") => !writes_its_result(command),
        Some(name) => {
            matches!(name, "find" | "distinct" | "count" | "listDatabases" | "listCollections" | "listIndexes")
        }
        None => false,
    }
}

/// Returns whether an aggregation ends with a stage that writes: `$out` or `$merge`.
pub fn writes_its_result(aggregate: &RawDocument) -> bool {
    let Ok(pipeline) = aggregate.get_array("pipeline") else { return false };
    let last = pipeline.into_iter().map_while(Result::ok).last().and_then(RawBsonRef::as_document);
    last.and_then(name).is_some_and(|stage| matches!(stage, "$out" | "$merge"))
}

/// Returns whether a command with this name takes a read concern from the client (Read and Write Concern, "Read
/// Concern").
pub fn takes_read_concern(name: &str) -> bool {
    matches!(name, "aggregate" | "count" | "distinct" | "find")
}

/// Returns whether a command with this name carries `afterClusterTime` in a causally consistent session (Read and Write
/// Concern, "afterClusterTime").
pub fn takes_after_cluster_time(name: &str) -> bool {
    takes_read_concern(name)
        || matches!(
            name,
            "insert"
                | "update"
                | "delete"
                | "findAndModify"
                | "bulkWrite"
                | "create"
                | "createIndexes"
                | "drop"
                | "dropDatabase"
                | "dropIndexes"
        )
}

/// Returns the name of a command, or of a stage: its first key.
pub fn name(command: &RawDocument) -> Option<&str> {
    command.iter().next()?.ok().map(|(name, _)| name.as_str())
}

fn is_true(statement: &RawDocument, field: &str) -> bool {
    match statement.get(field) {
        Ok(Some(RawBsonRef::Boolean(value))) => value,
        Ok(Some(RawBsonRef::Int32(value))) => value != 0,
        Ok(Some(RawBsonRef::Int64(value))) => value != 0,
        Ok(Some(RawBsonRef::Double(value))) => value != 0.0,
        Ok(None) => false,
        // The server refuses a value of any other type. A `multi` of another type must not be sent with a transaction
        // number.
        Ok(Some(_)) | Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn retryable(command: &RawDocument) -> bool {
        is_retryable_write(command, [], false)
    }

    #[test]
    fn writes_of_single_documents_are_retryable() {
        for command in [
            rawdoc! { "insert": "c", "documents": [{}, {}] },
            rawdoc! { "update": "c", "updates": [{ "q": {}, "u": {} }, { "q": {}, "u": {}, "multi": false }] },
            rawdoc! { "delete": "c", "deletes": [{ "q": {}, "limit": 1 }] },
            rawdoc! { "findAndModify": "c", "remove": true },
            rawdoc! { "bulkWrite": 1, "ops": [{ "insert": 0, "document": {} }, { "update": 0, "multi": false }, { "delete": 0 }] },
        ] {
            assert!(retryable(&command), "{command:?}");
            assert!(!is_retryable_write(&command, [], true), "unacknowledged: {command:?}");
        }
    }

    #[test]
    fn writes_of_many_documents_and_other_commands_are_not() {
        for command in [
            rawdoc! { "update": "c", "updates": [{ "q": {}, "u": {} }, { "q": {}, "u": {}, "multi": true }] },
            rawdoc! { "update": "c", "updates": [{ "q": {}, "u": {}, "multi": 1 }] },
            rawdoc! { "delete": "c", "deletes": [{ "q": {}, "limit": 1 }, { "q": {}, "limit": 0 }] },
            rawdoc! { "bulkWrite": 1, "ops": [{ "delete": 0, "multi": true }] },
            rawdoc! { "aggregate": "c", "pipeline": [{ "$out": "d" }] },
            rawdoc! { "commitTransaction": 1 },
            rawdoc! { "find": "c" },
            rawdoc! {},
        ] {
            assert!(!retryable(&command), "{command:?}");
        }
    }

    #[test]
    fn statements_in_sequences_count_as_well() {
        let statement: [(&str, &str, RawDocumentBuf, bool); 4] = [
            ("update", "updates", rawdoc! { "q": {}, "multi": true }, false),
            ("update", "updates", rawdoc! { "q": {} }, true),
            ("delete", "deletes", rawdoc! { "q": {}, "limit": 0 }, false),
            ("bulkWrite", "ops", rawdoc! { "update": 0, "multi": true }, false),
        ];
        for (name, sequence, statement, expected) in statement {
            let mut command = RawDocumentBuf::new();
            command.append(bson::raw::CString::try_from(name).unwrap(), "c");
            assert_eq!(
                is_retryable_write(&command, [(sequence, &*statement)], false),
                expected,
                "{name} {statement:?}"
            );
        }
    }

    #[test]
    fn reads_are_retryable_unless_they_write_or_continue_a_cursor() {
        for (command, expected) in [
            (rawdoc! { "find": "c" }, true),
            (rawdoc! { "aggregate": "c", "pipeline": [{ "$match": {} }] }, true),
            (rawdoc! { "aggregate": "c", "pipeline": [] }, true),
            (rawdoc! { "aggregate": "c", "pipeline": [{ "$match": {} }, { "$merge": "d" }] }, false),
            (rawdoc! { "aggregate": "c", "pipeline": [{ "$out": "d" }] }, false),
            (rawdoc! { "listCollections": 1 }, true),
            (rawdoc! { "getMore": 1_i64, "collection": "c" }, false),
            (rawdoc! { "mapReduce": "c" }, false),
            (rawdoc! { "insert": "c" }, false),
        ] {
            assert_eq!(is_retryable_read(&command), expected, "{command:?}");
        }
    }

    #[test]
    fn causal_consistency_reaches_writes_but_read_concerns_do_not() {
        assert!(takes_after_cluster_time("find") && takes_after_cluster_time("dropIndexes"));
        assert!(!takes_after_cluster_time("getMore") && !takes_after_cluster_time("ping"));
        assert!(takes_read_concern("count") && !takes_read_concern("insert"));
    }
}
