//! `watch`: change streams of collections and databases, and their options.

use bson::Document;
use serde::Serialize;

use super::super::change_stream::{ChangeStreamEvent, Watch, WatchTarget};
use super::fields::Shape;
use super::{AnyClient, Collection, Database, Namespace};

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares a change stream that returns a [`ChangeStreamEvent`] for each change to the collection: see
    /// [`Client::watch`](crate::Client::watch). `pipeline` contains the stages that process the changes. Pass `()` for
    /// no stages.
    #[track_caller]
    pub fn watch(&self, pipeline: impl Serialize) -> Watch<'_, ChangeStreamEvent<T>, C> {
        self.namespace.watch(WatchTarget::Collection(self.database(), self.name()), pipeline)
    }
}

impl<C: AnyClient> Database<C> {
    /// Prepares a change stream that returns a [`ChangeStreamEvent`] for each change to any collection in the database:
    /// see [`Client::watch`](crate::Client::watch). `pipeline` contains the stages that process the changes. Pass `()`
    /// for no stages.
    #[track_caller]
    pub fn watch(&self, pipeline: impl Serialize) -> Watch<'_, ChangeStreamEvent<Document>, C> {
        self.namespace.watch(WatchTarget::Database(self.name()), pipeline)
    }
}

impl<C: AnyClient> Namespace<C> {
    #[track_caller]
    fn watch<'c, E>(&'c self, target: WatchTarget<'c>, pipeline: impl Serialize) -> Watch<'c, E, C> {
        let mut watch = Watch::of(self.client.clone(), target, &pipeline);
        watch.timeout = self.timeout;
        watch.read_preference = self.settings.read_preference.as_ref();
        watch.read_concern = self.settings.read_concern.as_deref();
        watch
    }
}

impl<T, C: AnyClient> Watch<'_, T, C> {
    options!([stage]
        full_document, full_document_before_change, resume_after, show_expanded_events, start_after,
        start_at_operation_time,
    );
    options!([options] collation, comment);
}
