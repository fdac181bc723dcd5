//! Deletes and renames files, and drops buckets.

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use bson::{Bson, doc};

use super::super::collection::Call;
use super::super::cursor::convert;
use super::super::error::ClientError;
use super::super::session::SessionError;
use super::super::{AnyClient, Client};
use super::{GridFsBucket, GridFsProblem, call, with_id, with_name};
use crate::endpoint::Limit;
use crate::endpoint::options::PRIMARY;

impl<C: AnyClient> GridFsBucket<C> {
    /// Prepares the deletion of a file and its chunks. The error is [`ClientError::GridFs`] if there is no file with
    /// this `_id`; any chunks that an upload has left behind are still deleted.
    pub fn delete(&self, id: impl Into<Bson>) -> ChangeFiles<'_, C> {
        self.change(Change::Delete(id.into()))
    }

    /// Prepares the deletion of all files with this name. The error is [`ClientError::GridFs`] if there are none.
    pub fn delete_by_name(&self, filename: impl Into<String>) -> ChangeFiles<'_, C> {
        self.change(Change::DeleteByName(filename.into()))
    }

    /// Prepares a rename of a file. The error is [`ClientError::GridFs`] if there is no file with this `_id`.
    pub fn rename(&self, id: impl Into<Bson>, new_filename: impl Into<String>) -> ChangeFiles<'_, C> {
        self.change(Change::Rename(id.into(), new_filename.into()))
    }

    /// Prepares a rename of all files with this name. The error is [`ClientError::GridFs`] if there are none.
    pub fn rename_by_name(&self, filename: impl Into<String>, new_filename: impl Into<String>) -> ChangeFiles<'_, C> {
        self.change(Change::RenameByName(filename.into(), new_filename.into()))
    }

    /// Prepares the removal of the bucket's two collections, with all files.
    pub fn drop(&self) -> ChangeFiles<'_, C> {
        self.change(Change::Drop)
    }

    fn change(&self, change: Change) -> ChangeFiles<'_, C> {
        ChangeFiles { bucket: self, change, timeout: Limit::Unset }
    }
}

enum Change {
    Delete(Bson),
    DeleteByName(String),
    Rename(Bson, String),
    RenameByName(String, String),
    Drop,
}

/// A deletion or a rename: [`GridFsBucket::delete`], [`GridFsBucket::rename`] and others.
#[must_use = "it is sent when it is awaited or run"]
pub struct ChangeFiles<'b, C = Client> {
    bucket: &'b GridFsBucket<C>,
    change: Change,
    timeout: Limit,
}

impl<C: AnyClient> ChangeFiles<'_, C> {
    async fn send(self, limit: Limit) -> Result<(), ClientError> {
        let (bucket, files, chunks) = (self.bucket, self.bucket.files(), self.bucket.chunks());
        let set_name = |name: String| doc! { "$set": { "filename": name } };
        // An unacknowledged write does not show whether the file exists.
        let (found, file) = match self.change {
            Change::Delete(id) => {
                let deleted = files.delete_one(doc! { "_id": &id }).begin(limit).await?;
                chunks.delete_many(doc! { "files_id": &id }).begin(limit).await?;
                (deleted.deleted_count > 0 || !deleted.acknowledged, with_id(&id))
            }
            Change::DeleteByName(name) => {
                let named = files.find(doc! { "filename": &name }).projection(doc! { "_id": 1 });
                // A secondary may not have a newly stored file yet.
                let mut named = named.read_preference(&PRIMARY).begin(limit).await?;
                let mut ids = Vec::new();
                while let Some(file) = named.next_document().await? {
                    ids.extend(convert(file, |mut file| Ok::<_, Infallible>(file.remove("_id")))?);
                }
                let found = !ids.is_empty();
                if found {
                    let all = doc! { "$in": ids };
                    let deleted = files.delete_many(doc! { "_id": &all }).begin(limit).await;
                    // An unmet write concern does not undo the deletion, and no later call would find the chunks.
                    if deleted.as_ref().err().is_none_or(ClientError::is_unmet_concern) {
                        chunks.delete_many(doc! { "files_id": all }).begin(limit).await?;
                    }
                    deleted?;
                }
                (found, with_name(&name))
            }
            Change::Rename(id, name) => {
                let renamed = files.update_one(doc! { "_id": &id }, set_name(name)).begin(limit).await?;
                (renamed.matched_count > 0 || !renamed.acknowledged, with_id(&id))
            }
            Change::RenameByName(old, name) => {
                let renamed = files.update_many(doc! { "filename": &old }, set_name(name)).begin(limit).await?;
                (renamed.matched_count > 0 || !renamed.acknowledged, with_name(&old))
            }
            Change::Drop => {
                let dropped = async {
                    files.drop().begin(limit).await?;
                    chunks.drop().begin(limit).await
                }
                .await;
                // A failed drop may have taken effect. ORD: Relaxed; nothing is published. The next upload checks the
                // indexes.
                bucket.shared.has_indexes.store(false, Ordering::Relaxed);
                return dropped;
            }
        };
        if found { Ok(()) } else { Err(bucket.error(file, GridFsProblem::NotFound)) }
    }
}

call!(ChangeFiles => (), ():
    "Sets `timeoutMS`: how long the call may take in total, with all its commands. The default is"
    "[`Options::timeout`](crate::Options::timeout). Zero means no limit."
);
