//! Why a case, or one of its operations, stops early.

use bson::{Bson, Document};
use wharf::ClientError;
use wharf::client::{WriteFailure, Written};

use crate::environment::owned;
use crate::format::ExpectedError;
use crate::matching::{Entities, all_match, bson, document, matches};
use crate::results::{bulk_of_client, partial_bulk};

/// Why a case, or one of its operations, stops early.
#[derive(Debug, Clone)]
pub enum Stop {
    /// The operation raised an error, which the case may expect.
    Raised(Box<ClientError>),
    /// The operation's arguments were refused, which the case may expect.
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

    /// Returns the server's replies that report the error, and the write concern error within the first of them.
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

    /// Checks an error against a case's assertions. `expectResult` is the expected result of a partial success.
    pub fn check(&self, expected: &ExpectedError, entities: &dyn Entities) -> Result<(), String> {
        let fails = |what: String| Err(format!("{what}: {}", self.describe()));
        let responses = self.responses();
        if let Some(is_client_error) = expected.is_client_error {
            // A timeout that the server reports is a server error, but the case may call it a client error.
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
        let failure = match self.client_error() {
            Some(ClientError::BulkWrite(failure)) => Some(failure),
            _ => None,
        };
        if let Some(errors) = &expected.write_errors {
            let actual = failure.map(|failure| {
                let errors = failure.write_errors.iter();
                let errors = errors.map(|(place, error)| (place.to_string(), owned(&error.error.reply).into()));
                Bson::Document(errors.collect::<Document>())
            });
            let errors = Bson::Document(document(errors));
            all_match(&errors, actual.as_ref(), entities).or_else(|error| fails(format!("writeErrors: {error}")))?;
        }
        if let Some(errors) = &expected.write_concern_errors {
            let actual = failure.map(|failure| {
                let errors = failure.write_concern_errors.iter().map(|error| owned(&error.reply));
                let concern = |reply: Document| reply.get("writeConcernError").cloned().unwrap_or(reply.into());
                Bson::Array(errors.map(concern).collect())
            });
            let errors = Bson::Array(errors.iter().map(|error| document(error).into()).collect());
            all_match(&errors, actual.as_ref(), entities)
                .or_else(|error| fails(format!("writeConcernErrors: {error}")))?;
        }
        if let Some(result) = &expected.expect_result {
            // In wharf, an error before the first write has no result, so an empty result is used for the comparison.
            let actual = match failure {
                Some(failure) => failure.partial_result.as_ref().map(bulk_of_client),
                None => Some(partial_bulk(self.write_failure().map_or(&Written::default(), |of| &of.written))),
            };
            if let Err(error) = matches(&bson(result), actual.as_ref(), true, entities) {
                return fails(format!("expectResult: {error}"));
            }
        }
        Ok(())
    }
}
