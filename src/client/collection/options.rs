//! The options of commands. Each option has one row, with its documentation, its name here and in the protocol, and its
//! type. Each builder picks the options that the specification defines for it.

/// Declares the methods of a builder for the options that the macro call names. The builder's field in brackets
/// contains the document that receives the options.
macro_rules! options {
    ([$($place:ident).+] $($option:ident),* $(,)?) => { options!(@rows [$($place).+] $($option)*); };
    (@rows $place:tt $($option:ident)*) => { $(options!(@row $place $option);)* };

    (@row $place:tt allow_disk_use) => { options!(@method $place "allowDiskUse" flag
        /// Sets whether the server may write temporary files (`allowDiskUse`).
        allow_disk_use
    ); };
    (@row $place:tt allow_partial_results) => { options!(@method $place "allowPartialResults" flag
        /// Sets whether a mongos returns partial results if some shards are down (`allowPartialResults`).
        allow_partial_results
    ); };
    (@row $place:tt array_filters) => { options!(@method $place "arrayFilters" array
        /// Sets which array elements the update applies to, as an array of filters (`arrayFilters`).
        array_filters
    ); };
    (@row $place:tt authorized_collections) => { options!(@method $place "authorizedCollections" flag
        /// Sets whether to list only the collections that the user may use (`authorizedCollections`).
        authorized_collections
    ); };
    (@row $place:tt authorized_databases) => { options!(@method $place "authorizedDatabases" flag
        /// Sets whether to list only the databases that the user may use (`authorizedDatabases`).
        authorized_databases
    ); };
    (@row $place:tt bits) => { options!(@method $place "bits" number
        /// Sets the precision of a 2d index, in bits (`bits`).
        bits
    ); };
    (@row $place:tt bypass_document_validation) => { options!(@method $place "bypassDocumentValidation" flag
        /// Sets whether the documents may violate the collection's validator (`bypassDocumentValidation`).
        bypass_document_validation
    ); };
    (@row $place:tt capped) => { options!(@method $place "capped" flag
        /// Sets whether the collection has a fixed [`size`](Self::size), and drops its oldest documents (`capped`).
        capped
    ); };
    (@row $place:tt change_stream_pre_and_post_images) => {
        options!(@method $place "changeStreamPreAndPostImages" document
            /// Sets whether change streams can show documents before and after changes (`changeStreamPreAndPostImages`):
            /// `{ enabled: true }`.
            change_stream_pre_and_post_images
        );
    };
    (@row $place:tt clustered_index) => { options!(@method $place "clusteredIndex" document
        /// Sets the index that orders the stored documents (`clusteredIndex`): `{ key: { _id: 1 }, unique: true }`.
        clustered_index
    ); };
    (@row $place:tt collation) => { options!(@method $place "collation" document
        /// Sets the language rules for comparing strings (`collation`), such as `{ locale: "en" }`.
        collation
    ); };
    (@row $place:tt comment) => { options!(@method $place "comment" value
        /// Sets a comment, which the server shows in its log, its profiler and `currentOp` (`comment`). The comment can
        /// be any value. Before MongoDB 4.4, queries accept only a string, and other commands accept no comment.
        comment
    ); };
    (@row $place:tt commit_quorum) => { options!(@method $place "commitQuorum" value
        /// Sets how many members of the replica set must build the index before it can be used (`commitQuorum`): a number,
        /// `majority`, `votingMembers` or the name of a mode. Needs MongoDB 4.4.
        commit_quorum
    ); };
    (@row $place:tt default_language) => { options!(@method $place "default_language" text
        /// Sets the language of a text index (`default_language`).
        default_language
    ); };
    (@row $place:tt drop_target) => { options!(@method $place "dropTarget" flag
        /// Sets whether an existing collection with the new name is dropped first (`dropTarget`).
        drop_target
    ); };
    (@row $place:tt expire_after) => { options!(@method $place "expireAfterSeconds" seconds
        /// Sets the time after which documents are deleted (`expireAfterSeconds`).
        expire_after
    ); };
    (@row $place:tt fields) => { options!(@method $place "fields" document
        /// Sets which fields of the document are returned (`projection`, `fields` in the protocol).
        projection
    ); };
    (@row $place:tt filter) => { options!(@method $place "filter" document
        /// Sets which entries are listed, by their fields (`filter`).
        filter
    ); };
    (@row $place:tt full_document) => { options!(@method $place "fullDocument" text
        /// Sets whether the event for an update contains the whole document (`fullDocument`): `updateLookup`,
        /// `whenAvailable`, `required`.
        full_document
    ); };
    (@row $place:tt full_document_before_change) => { options!(@method $place "fullDocumentBeforeChange" text
        /// Sets whether an event contains the document before the change (`fullDocumentBeforeChange`): `whenAvailable`,
        /// `required`, `off`. Needs MongoDB 6.0.
        full_document_before_change
    ); };
    (@row $place:tt hidden) => { options!(@method $place "hidden" flag
        /// Sets whether the index is hidden from queries (`hidden`).
        hidden
    ); };
    (@row $place:tt hint) => { options!(@method $place "hint" hint
        /// Sets the index to use, by its name or its keys (`hint`).
        hint
    ); };
    (@row $place:tt index_option_defaults) => { options!(@method $place "indexOptionDefaults" document
        /// Sets the default options for the collection's indexes (`indexOptionDefaults`).
        index_option_defaults
    ); };
    (@row $place:tt language_override) => { options!(@method $place "language_override" text
        /// Sets which field of a document contains the language of that document, for a text index
        /// (`language_override`).
        language_override
    ); };
    (@row $place:tt let_vars) => { options!(@method $place "let" document
        /// Sets variables that expressions can read as `$$name` (`let`). Needs MongoDB 5.0.
        let_vars
    ); };
    (@row $place:tt max) => { options!(@method $place "max" document
        /// Sets the exclusive upper bound of the index that [`hint`](Self::hint) names (`max`).
        max
    ); };
    (@row $place:tt max_coordinate) => { options!(@method $place "max" real
        /// Sets the upper bound of the coordinates of a 2d index (`max`).
        max
    ); };
    (@row $place:tt max_documents) => { options!(@method $place "max" number
        /// Sets the maximum number of documents in a capped collection (`max`).
        max_documents
    ); };
    (@row $place:tt max_time) => { options!(@method $place "maxTimeMS" milliseconds
        /// Sets how long the server may work (`maxTimeMS`). Not sent together with a [`timeout`](Self::timeout), which
        /// limits the whole call and is preferable.
        max_time
    ); };
    (@row $place:tt min) => { options!(@method $place "min" document
        /// Sets the inclusive lower bound of the index that [`hint`](Self::hint) names (`min`).
        min
    ); };
    (@row $place:tt min_coordinate) => { options!(@method $place "min" real
        /// Sets the lower bound of the coordinates of a 2d index (`min`).
        min
    ); };
    (@row $place:tt name) => { options!(@method $place "name" text
        /// Sets the name (`name`). By default it is derived from the keys, such as `customer_1_price_-1`.
        name
    ); };
    (@row $place:tt no_cursor_timeout) => { options!(@method $place "noCursorTimeout" flag
        /// Sets whether the server keeps the cursor open even if it is idle for ten minutes (`noCursorTimeout`).
        no_cursor_timeout
    ); };
    (@row $place:tt partial_filter_expression) => { options!(@method $place "partialFilterExpression" document
        /// Sets which documents the index contains (`partialFilterExpression`).
        partial_filter_expression
    ); };
    (@row $place:tt pipeline) => { options!(@method $place "pipeline" array
        /// Sets the stages that a view applies to the collection named in [`view_on`](Self::view_on) (`pipeline`).
        pipeline
    ); };
    (@row $place:tt projection) => { options!(@method $place "projection" document
        /// Sets which fields of the documents are returned (`projection`).
        projection
    ); };
    (@row $place:tt resume_after) => { options!(@method $place "resumeAfter" document
        /// Sets the resume token of the event after which the stream begins (`resumeAfter`). With `None`, the stream
        /// begins now.
        resume_after
    ); };
    (@row $place:tt return_key) => { options!(@method $place "returnKey" flag
        /// Sets whether only the keys of the index are returned (`returnKey`).
        return_key
    ); };
    (@row $place:tt show_expanded_events) => { options!(@method $place "showExpandedEvents" flag
        /// Sets whether the stream includes events for indexes, and for collections that are created or changed
        /// (`showExpandedEvents`). Needs MongoDB 6.0.
        show_expanded_events
    ); };
    (@row $place:tt show_record_id) => { options!(@method $place "showRecordId" flag
        /// Sets whether each document contains its position in storage as `$recordId` (`showRecordId`).
        show_record_id
    ); };
    (@row $place:tt size) => { options!(@method $place "size" number
        /// Sets the maximum size of a capped collection in bytes (`size`).
        size
    ); };
    (@row $place:tt skip) => { options!(@method $place "skip" number
        /// Sets how many documents to skip (`skip`).
        skip
    ); };
    (@row $place:tt sort) => { options!(@method $place "sort" document
        /// Sets the order of the documents (`sort`), such as `{ price: -1 }`. An operation that changes only one
        /// document changes the first in this order.
        sort
    ); };
    (@row $place:tt sparse) => { options!(@method $place "sparse" flag
        /// Sets whether the index omits documents without its fields (`sparse`).
        sparse
    ); };
    (@row $place:tt sphere_2d_index_version) => { options!(@method $place "2dsphereIndexVersion" number
        /// Sets the version of a 2dsphere index (`2dsphereIndexVersion`).
        sphere_2d_index_version
    ); };
    (@row $place:tt start_after) => { options!(@method $place "startAfter" document
        /// Sets the resume token after which the stream begins (`startAfter`). The token may come from an event that
        /// invalidates a stream. With `None`, the stream begins now.
        start_after
    ); };
    (@row $place:tt start_at_operation_time) => { options!(@method $place "startAtOperationTime" value
        /// Sets the time at which the stream's events begin, as a [`bson::Timestamp`] (`startAtOperationTime`).
        start_at_operation_time
    ); };
    (@row $place:tt storage_engine) => { options!(@method $place "storageEngine" document
        /// Sets options of the storage engine (`storageEngine`).
        storage_engine
    ); };
    (@row $place:tt text_index_version) => { options!(@method $place "textIndexVersion" number
        /// Sets the version of a text index (`textIndexVersion`).
        text_index_version
    ); };
    (@row $place:tt time_series) => { options!(@method $place "timeseries" document
        /// Makes the collection a time series (`timeseries`): `{ timeField: …, metaField: …, granularity: … }`. Needs
        /// MongoDB 5.0.
        time_series
    ); };
    (@row $place:tt unique) => { options!(@method $place "unique" flag
        /// Sets whether the index's fields must be unique in the collection (`unique`).
        unique
    ); };
    (@row $place:tt upsert) => { options!(@method $place "upsert" flag
        /// Sets whether a document is inserted if none is found (`upsert`).
        upsert
    ); };
    (@row $place:tt validation_action) => { options!(@method $place "validationAction" text
        /// Sets whether a document that violates the validator is refused or only logged (`validationAction`): `error`,
        /// `warn`.
        validation_action
    ); };
    (@row $place:tt validation_level) => { options!(@method $place "validationLevel" text
        /// Sets which changes the validator applies to (`validationLevel`): `strict`, `moderate`, `off`.
        validation_level
    ); };
    (@row $place:tt validator) => { options!(@method $place "validator" document
        /// Sets the filter that each document must match (`validator`), such as `{ $jsonSchema: … }`.
        validator
    ); };
    (@row $place:tt version) => { options!(@method $place "v" number
        /// Sets the index format version (`v`).
        version
    ); };
    (@row $place:tt view_on) => { options!(@method $place "viewOn" text
        /// Makes the new collection a view of the existing collection or view with this name (`viewOn`).
        view_on
    ); };
    (@row $place:tt weights) => { options!(@method $place "weights" document
        /// Sets the weight of each field of a text index (`weights`).
        weights
    ); };
    (@row $place:tt wildcard_projection) => { options!(@method $place "wildcardProjection" document
        /// Sets the fields that a wildcard index includes or excludes (`wildcardProjection`).
        wildcard_projection
    ); };

    (@method $place:tt $field:literal flag $(#[$doc:meta])* $method:ident) => {
        options!(@of $place $field (bool) Any $(#[$doc])* $method);
    };
    (@method $place:tt $field:literal number $(#[$doc:meta])* $method:ident) => {
        options!(@of $place $field (u64) Any $(#[$doc])* $method);
    };
    (@method $place:tt $field:literal real $(#[$doc:meta])* $method:ident) => {
        options!(@of $place $field (f64) Any $(#[$doc])* $method);
    };
    (@method $place:tt $field:literal value $(#[$doc:meta])* $method:ident) => {
        options!(@of $place $field (impl serde::Serialize) Any $(#[$doc])* $method);
    };
    (@method $place:tt $field:literal document $(#[$doc:meta])* $method:ident) => {
        options!(@of $place $field (impl serde::Serialize) Document $(#[$doc])* $method);
    };
    (@method $place:tt $field:literal array $(#[$doc:meta])* $method:ident) => {
        options!(@of $place $field (impl serde::Serialize) Array $(#[$doc])* $method);
    };
    (@method $place:tt $field:literal hint $(#[$doc:meta])* $method:ident) => {
        options!(@of $place $field (impl serde::Serialize) Hint $(#[$doc])* $method);
    };
    (@method [$($place:ident).+] $field:literal text $(#[$doc:meta])* $method:ident) => {
        $(#[$doc])*
        pub fn $method(mut self, text: impl AsRef<str>) -> Self {
            self.$($place).+.set(stringify!($method), $field, Shape::Any, text.as_ref());
            self
        }
    };
    (@method [$($place:ident).+] $field:literal milliseconds $(#[$doc:meta])* $method:ident) => {
        $(#[$doc])*
        pub fn $method(mut self, limit: std::time::Duration) -> Self {
            let limit = $crate::text::milliseconds::limit_for_server(limit);
            self.$($place).+.set(stringify!($method), $field, Shape::Any, &limit);
            self
        }
    };
    (@method [$($place:ident).+] $field:literal seconds $(#[$doc:meta])* $method:ident) => {
        $(#[$doc])*
        pub fn $method(mut self, time: std::time::Duration) -> Self {
            self.$($place).+.set(stringify!($method), $field, Shape::Any, &time.as_secs());
            self
        }
    };
    (@of [$($place:ident).+] $field:literal ($type:ty) $shape:ident $(#[$doc:meta])* $method:ident) => {
        $(#[$doc])*
        pub fn $method(mut self, value: $type) -> Self {
            self.$($place).+.set(stringify!($method), $field, Shape::$shape, &value);
            self
        }
    };
}
