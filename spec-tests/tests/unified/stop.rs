//! Why a case, or an operation of it, ends early.

use bson::{Bson, Document, doc};
use wharf::ClientError;
use wharf::client::WriteFailure;

use crate::environment::owned;
use crate::format::ExpectedError;
use crate::matching::{Entities, bson, document, matches};

/// Why a case, or an operation of it, ends early.
#[derive(Debug, Clone)]
pub enum Stop {
    /// The operation raised an error, which the case may expect.
    Raised(Box<ClientError>),
    /// The arguments of the operation are refused, which the case may expect.
    Refused(String),
    /// wharf, or this runner, lacks a feature that the case needs.
    Lacks(&'static str),
    /// The case failed.
    Broken(String),
}

impl From<ClientError> for Stop {
    fn from(error: ClientError) -> Self {
        Self::Raised(Box::new(error))
    }
}

impl From<wharf::OperationError> for Stop {
    fn from(error: wharf::OperationError) -> Self {
        Self::Raised(Box::new(error.into()))
    }
}

impl From<String> for Stop {
    fn from(error: String) -> Self {
        Self::Broken(error)
    }
}

impl Stop {
    pub fn describe(&self) -> String {
        match self {
            Self::Raised(error) => format!("raised: {error}"),
            Self::Refused(error) => format!("refused: {error}"),
            Self::Lacks(what) => format!("lacks {what}"),
            Self::Broken(error) => error.clone(),
        }
    }

    fn client_error(&self) -> Option<&ClientError> {
        match self {
            Self::Raised(error) => Some(error),
            _ => None,
        }
    }

    fn write_failure(&self) -> Option<&WriteFailure> {
        match self.client_error()? {
            ClientError::Write(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the server's reply that reports the error, or an error in it.
    fn responses(&self) -> Vec<Document> {
        let mut responses: Vec<Document> = Vec::new();
        if let Some(error) = self.client_error().and_then(ClientError::server_error) {
            responses.push(owned(&error.reply));
        }
        if let Some(error) = self.client_error().and_then(ClientError::write_concern_error) {
            responses.push(owned(&error.reply));
        }
        if let Some(failure) = self.write_failure() {
            responses.extend(failure.errors.iter().map(|error| owned(&error.error.reply)));
            responses.extend(failure.write_concern_errors.iter().map(|error| owned(&error.reply)));
        }
        if let Some(concern) = responses.first().and_then(|reply| reply.get_document("writeConcernError").ok()).cloned()
        {
            responses.push(concern);
        }
        responses
    }

    fn is_timeout(&self) -> bool {
        self.client_error().is_some_and(ClientError::is_timeout)
    }

    fn has_label(&self, label: &str) -> bool {
        let in_reply = |reply: &Document| {
            reply.get_array("errorLabels").is_ok_and(|labels| labels.contains(&Bson::String(label.to_owned())))
        };
        self.client_error().is_some_and(|error| error.has_label(label)) || self.responses().iter().any(in_reply)
    }

    /// Checks an error against the assertions of a case. The result of a partial success is `expectResult`.
    pub fn check(&self, expected: &ExpectedError, entities: &dyn Entities) -> Result<(), String> {
        let fails = |what: String| Err(format!("{what}: {}", self.describe()));
        let responses = self.responses();
        if let Some(is_client_error) = expected.is_client_error {
            // The server's own time limit is also an error of the server.
            let is_server_error = !responses.is_empty();
            if is_client_error == is_server_error && !(is_client_error && self.is_timeout()) {
                return fails(format!("isClientError must be {is_client_error}"));
            }
        }
        if let Some(is_timeout) = expected.is_timeout_error
            && is_timeout != self.is_timeout()
        {
            return fails(format!("isTimeoutError must be {is_timeout}"));
        }
        if let Some(text) = &expected.error_contains {
            let mut all = self.describe();
            for reply in &responses {
                all.push_str(reply.get_str("errmsg").unwrap_or_default());
            }
            if !all.to_lowercase().contains(&text.to_lowercase()) {
                return fails(format!("the error must contain {text:?}"));
            }
        }
        let has = |field: &str, value: &Bson| {
            let is_equal = |actual: &Bson| match (actual, value) {
                (Bson::String(actual), Bson::String(value)) => actual.eq_ignore_ascii_case(value),
                _ => crate::matching::is_same(value, actual),
            };
            responses.iter().any(|reply| reply.get(field).is_some_and(is_equal))
        };
        if let Some(code) = expected.error_code
            && !has("code", &code.into())
        {
            return fails(format!("errorCode must be {code}"));
        }
        if let Some(name) = &expected.error_code_name
            && !has("codeName", &name.as_str().into())
        {
            return fails(format!("errorCodeName must be {name}"));
        }
        for label in expected.error_labels_contain.iter().flat_map(|labels| &labels.0) {
            if !self.has_label(label) {
                return fails(format!("the label {label} is missing"));
            }
        }
        for label in expected.error_labels_omit.iter().flat_map(|labels| &labels.0) {
            if self.has_label(label) {
                return fails(format!("the label {label} is there"));
            }
        }
        if let Some(response) = &expected.error_response {
            let response = Bson::Document(document(response));
            let actual = responses.first().cloned().map(Bson::Document);
            if let Err(error) = matches(&response, actual.as_ref(), true, entities) {
                return fails(format!("errorResponse: {error}"));
            }
        }
        if expected.write_errors.is_some() || expected.write_concern_errors.is_some() {
            return Err("writeErrors are for clientBulkWrite".to_owned());
        }
        if let Some(result) = &expected.expect_result {
            // Before the first write, wharf's error has no result.
            let none = wharf::client::Written::default();
            let actual = Some(bulk_result(self.write_failure().map_or(&none, |failure| &failure.written)));
            if let Err(error) = matches(&bson(result), actual.as_ref(), true, entities) {
                return fails(format!("expectResult: {error}"));
            }
        }
        Ok(())
    }
}

/// Returns the BulkWriteResult of the CRUD specification.
pub fn bulk_result(written: &wharf::client::Written) -> Bson {
    let number = |number: u64| i64::try_from(number).unwrap();
    let upserted: Document = written
        .upserted
        .iter()
        .map(|(place, id)| (place.to_string(), Bson::try_from(id.as_raw_bson_ref()).unwrap()))
        .collect();
    Bson::Document(doc! {
        "insertedCount": number(written.inserted),
        "matchedCount": number(written.matched),
        "modifiedCount": number(written.modified),
        "deletedCount": number(written.deleted),
        "upsertedCount": written.upserted.len() as i64,
        "upsertedIds": upserted,
    })
}
