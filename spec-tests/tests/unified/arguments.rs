//! The arguments of an operation, and a table of the arguments that are options. The table has one row for each option,
//! and serves the builders of both clients.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Bson, Document};
use serde_json::Value;
use wharf::client::{CursorType, ReturnDocument, TimeoutMode};
use wharf::{Acknowledgement, ReadPreference, ReadPreferenceMode, WriteConcern};

use crate::format::{Object, Operation};
use crate::matching::bson;
use crate::stop::Stop;

/// An operation's arguments that have not been read yet.
pub struct Arguments {
    /// The name of the operation that the arguments belong to.
    of: String,
    rest: Object,
}

impl Arguments {
    pub fn of(operation: &Operation) -> Self {
        Self::new(&operation.name, &operation.arguments)
    }

    pub fn new(of: &str, fields: &Object) -> Self {
        Self { of: of.to_owned(), rest: fields.clone() }
    }

    /// Reads an argument.
    pub fn take<T: Argument>(&mut self, name: &str) -> Result<Option<T>, Stop> {
        let Some(value) = self.rest.remove(name) else { return Ok(None) };
        let read = T::read(&value);
        read.map(Some).ok_or_else(|| Stop::Broken(format!("{}: {value} is not a value of {name}", self.of)))
    }

    /// Reads an argument that the operation must have.
    pub fn need<T: Argument>(&mut self, name: &str) -> Result<T, Stop> {
        self.take(name)?.ok_or_else(|| Stop::Broken(format!("{} needs {name}", self.of)))
    }

    /// Reads all remaining arguments.
    pub fn rest(&mut self) -> Document {
        std::mem::take(&mut self.rest).into_iter().map(|(name, value)| (name, bson(&value))).collect()
    }

    /// Fails if an argument has not been read.
    pub fn end(&self) -> Result<(), Stop> {
        match self.rest.keys().next() {
            Some(name) => Err(Stop::Broken(format!("{} has no argument {name}", self.of))),
            None => Ok(()),
        }
    }
}

/// A type that an argument can have.
pub trait Argument: Sized {
    /// Reads a value. Returns `None` if the value has a different type.
    fn read(value: &Value) -> Option<Self>;
}

macro_rules! arguments {
    ($($type:ty: |$value:ident| $read:expr;)*) => { $(
        impl Argument for $type {
            fn read($value: &Value) -> Option<Self> {
                $read
            }
        }
    )* };
}

arguments! {
    bool: |value| value.as_bool();
    i32: |value| value.as_i64()?.try_into().ok();
    u32: |value| value.as_u64()?.try_into().ok();
    i64: |value| value.as_i64();
    u64: |value| value.as_u64();
    String: |value| value.as_str().map(str::to_owned);
    Object: |value| value.as_object().cloned();
    Vec<Object>: |value| value.as_array()?.iter().map(Object::read).collect();
    Bson: |value| Some(bson(value));
    Document: |value| match bson(value) {
        Bson::Document(document) => Some(document),
        _ => None,
    };
    Vec<Document>: |value| value.as_array()?.iter().map(Document::read).collect();
    Duration: |value| value.as_u64().map(Duration::from_millis);
    CursorType: |value| match value.as_str()? {
        "nonTailable" => Some(Self::NonTailable),
        "tailable" => Some(Self::Tailable),
        "tailableAwait" => Some(Self::TailableAwait),
        _ => None,
    };
    TimeoutMode: |value| match value.as_str()? {
        "cursorLifetime" => Some(Self::CursorLifetime),
        "iteration" => Some(Self::Iteration),
        _ => None,
    };
    ReturnDocument: |value| match value.as_str()?.to_lowercase().as_str() {
        "before" => Some(Self::Before),
        "after" => Some(Self::After),
        _ => None,
    };
    ReadPreference: |value| {
        let mode = match value.get("mode")?.as_str()?.to_lowercase().as_str() {
            "primary" => ReadPreferenceMode::Primary,
            "primarypreferred" => ReadPreferenceMode::PrimaryPreferred,
            "secondary" => ReadPreferenceMode::Secondary,
            "secondarypreferred" => ReadPreferenceMode::SecondaryPreferred,
            "nearest" => ReadPreferenceMode::Nearest,
            _ => return None,
        };
        let mut read = Self::new(mode);
        for tags in value.get("tagSets").and_then(Value::as_array).into_iter().flatten() {
            read = read.tag_set(serde_json::from_value::<BTreeMap<String, String>>(tags.clone()).ok()?);
        }
        match value.get("maxStalenessSeconds") {
            Some(seconds) => Some(read.max_staleness(Duration::from_secs(seconds.as_u64()?))),
            None => Some(read),
        }
    };
    WriteConcern: |value| {
        let mut read = Self::default();
        for (name, value) in value.as_object()? {
            read = match (name.as_str(), value) {
                ("w", Value::String(mode)) => read.w(Acknowledgement::Mode(mode.clone())),
                ("w", servers) => read.w(Acknowledgement::Servers(u32::read(servers)?)),
                ("journal" | "j", value) => read.journal(value.as_bool()?),
                ("wtimeout" | "wtimeoutMS", value) => read.w_timeout(Duration::read(value)?),
                _ => return None,
            };
        }
        Some(read)
    };
}

/// Takes the options from the arguments, and sets them on a builder. Each option is named after the builder's method.
/// Its row contains the argument's name and type; `_` stands for the type that the method takes.
macro_rules! options {
    ($arguments:expr, $builder:expr; $($option:ident),* $(,)?) => {{
        let mut builder = $builder;
        $(options!(@ $option $arguments, builder);)*
        builder
    }};

    (@ allow_disk_use $($to:tt)*) => { options!(= allow_disk_use "allowDiskUse" _; $($to)*) };
    (@ array_filters $($to:tt)*) => { options!(= array_filters "arrayFilters" Bson; $($to)*) };
    (@ batch_size $($to:tt)*) => { options!(= batch_size "batchSize" _; $($to)*) };
    (@ bypass_document_validation $($to:tt)*) => {
        options!(= bypass_document_validation "bypassDocumentValidation" _; $($to)*)
    };
    (@ capped $($to:tt)*) => { options!(= capped "capped" _; $($to)*) };
    (@ causal_consistency $($to:tt)*) => { options!(= causal_consistency "causalConsistency" _; $($to)*) };
    (@ change_stream_pre_and_post_images $($to:tt)*) => {
        options!(= change_stream_pre_and_post_images "changeStreamPreAndPostImages" Bson; $($to)*)
    };
    (@ chunk_size_bytes $($to:tt)*) => { options!(= chunk_size_bytes "chunkSizeBytes" _; $($to)*) };
    (@ clustered_index $($to:tt)*) => { options!(= clustered_index "clusteredIndex" Bson; $($to)*) };
    (@ collation $($to:tt)*) => { options!(= collation "collation" Bson; $($to)*) };
    (@ comment $($to:tt)*) => { options!(= comment "comment" Bson; $($to)*) };
    (@ cursor_type $($to:tt)*) => { options!(= cursor_type "cursorType" _; $($to)*) };
    (@ default_timeout $($to:tt)*) => { options!(= default_timeout "defaultTimeoutMS" _; $($to)*) };
    (@ drop_target $($to:tt)*) => { options!(= drop_target "dropTarget" _; $($to)*) };
    (@ expire_after $arguments:expr, $builder:ident) => {
        if let Some(seconds) = $arguments.take::<u64>("expireAfterSeconds")? {
            $builder = $builder.expire_after(std::time::Duration::from_secs(seconds));
        }
    };
    (@ filter $($to:tt)*) => { options!(= filter "filter" Bson; $($to)*) };
    (@ full_document $($to:tt)*) => { options!(& full_document "fullDocument"; $($to)*) };
    (@ full_document_before_change $($to:tt)*) => {
        options!(& full_document_before_change "fullDocumentBeforeChange"; $($to)*)
    };
    (@ hint $($to:tt)*) => { options!(= hint "hint" Bson; $($to)*) };
    (@ id $($to:tt)*) => { options!(= id "id" Bson; $($to)*) };
    (@ let_vars $($to:tt)*) => { options!(= let_vars "let" Bson; $($to)*) };
    (@ limit $($to:tt)*) => { options!(= limit "limit" _; $($to)*) };
    (@ max $($to:tt)*) => { options!(= max "max" Bson; $($to)*) };
    (@ max_await_time $($to:tt)*) => { options!(= max_await_time "maxAwaitTimeMS" _; $($to)*) };
    (@ max_commit_time $($to:tt)*) => { options!(= max_commit_time "maxCommitTimeMS" _; $($to)*) };
    (@ max_documents $($to:tt)*) => { options!(= max_documents "max" _; $($to)*) };
    (@ max_time $($to:tt)*) => { options!(= max_time "maxTimeMS" _; $($to)*) };
    (@ metadata $($to:tt)*) => { options!(= metadata "metadata" Document; $($to)*) };
    (@ min $($to:tt)*) => { options!(= min "min" Bson; $($to)*) };
    (@ name $($to:tt)*) => { options!(& name "name"; $($to)*) };
    (@ ordered $($to:tt)*) => { options!(= ordered "ordered" _; $($to)*) };
    (@ pipeline $($to:tt)*) => { options!(= pipeline "pipeline" Bson; $($to)*) };
    (@ projection $($to:tt)*) => { options!(= projection "projection" Bson; $($to)*) };
    (@ read_preference $($to:tt)*) => { options!(= read_preference "readPreference" _; $($to)*) };
    (@ resume_after $($to:tt)*) => { options!(= resume_after "resumeAfter" Bson; $($to)*) };
    (@ return_document $($to:tt)*) => { options!(= return_document "returnDocument" _; $($to)*) };
    (@ return_key $($to:tt)*) => { options!(= return_key "returnKey" _; $($to)*) };
    (@ revision $($to:tt)*) => { options!(= revision "revision" _; $($to)*) };
    (@ show_expanded_events $($to:tt)*) => { options!(= show_expanded_events "showExpandedEvents" _; $($to)*) };
    (@ show_record_id $($to:tt)*) => { options!(= show_record_id "showRecordId" _; $($to)*) };
    (@ size $($to:tt)*) => { options!(= size "size" _; $($to)*) };
    (@ skip $($to:tt)*) => { options!(= skip "skip" _; $($to)*) };
    (@ snapshot $($to:tt)*) => { options!(= snapshot "snapshot" _; $($to)*) };
    (@ sort $($to:tt)*) => { options!(= sort "sort" Bson; $($to)*) };
    (@ start_after $($to:tt)*) => { options!(= start_after "startAfter" Bson; $($to)*) };
    (@ start_at_operation_time $($to:tt)*) => {
        options!(= start_at_operation_time "startAtOperationTime" Bson; $($to)*)
    };
    (@ time_series $($to:tt)*) => { options!(= time_series "timeseries" Bson; $($to)*) };
    (@ timeout $($to:tt)*) => { options!(= timeout "timeoutMS" _; $($to)*) };
    (@ timeout_mode $($to:tt)*) => { options!(= timeout_mode "timeoutMode" _; $($to)*) };
    (@ unique $($to:tt)*) => { options!(= unique "unique" _; $($to)*) };
    (@ upsert $($to:tt)*) => { options!(= upsert "upsert" _; $($to)*) };
    (@ validator $($to:tt)*) => { options!(= validator "validator" Bson; $($to)*) };
    (@ verbose_results $($to:tt)*) => { options!(= verbose_results "verboseResults" _; $($to)*) };
    (@ view_on $($to:tt)*) => { options!(& view_on "viewOn"; $($to)*) };
    (@ write_concern $($to:tt)*) => { options!(= write_concern "writeConcern" _; $($to)*) };

    (= $method:ident $name:literal $type:ty; $arguments:expr, $builder:ident) => {
        if let Some(value) = $arguments.take::<$type>($name)? {
            $builder = $builder.$method(value);
        }
    };
    (& $method:ident $name:literal; $arguments:expr, $builder:ident) => {
        if let Some(text) = $arguments.take::<String>($name)? {
            $builder = $builder.$method(&text);
        }
    };
}

pub(crate) use options;
