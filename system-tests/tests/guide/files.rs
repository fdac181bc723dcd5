use tokio::io::{AsyncRead, AsyncReadExt, copy};
use wharf::Client;
use wharf::bson::{Bson, doc};

/// Stores a photo, and returns its `_id`.
pub async fn store(
    client: &Client,
    name: &str,
    mut photo: impl AsyncRead + Unpin,
) -> Result<Bson, Box<dyn std::error::Error>> {
    let photos = client.database("album").gridfs_bucket(None);
    let mut upload = photos.open_upload_stream(name).metadata(doc! { "reviewed": false }).await?;
    copy(&mut photo, &mut upload).await?;
    Ok(upload.finish().await?)
}

/// Reads the latest photo with this name.
pub async fn latest(client: &Client, name: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let photos = client.database("album").gridfs_bucket(None);
    let mut photo = Vec::new();
    photos.open_download_stream_by_name(name).await?.read_to_end(&mut photo).await?;
    Ok(photo)
}
