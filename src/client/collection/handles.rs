//! The methods that return handles to a client's databases and collections.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{AnyClient, Client, Collection, Database, Namespace};

impl Client {
    /// Returns a handle to a database. Sends nothing: the server creates a database when its first document is
    /// inserted.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::doc;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Order {
    ///     #[serde(rename = "_id")]
    ///     id: i32,
    ///     paid: bool,
    /// }
    ///
    /// let orders = client.database("shop").collection::<Order>("orders");
    /// orders.insert_one(Order { id: 1, paid: false }).await?;
    /// orders.update_one(doc! { "_id": 1 }, doc! { "$set": { "paid": true } }).await?;
    /// let paid: Vec<Order> = orders.find(doc! { "paid": true }).sort(doc! { "_id": 1 }).await?.try_collect().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn database(&self, name: impl Into<String>) -> Database {
        Database::new(self.clone(), name.into())
    }

    /// Returns a handle to the database that the connection string names, or `None` if it names none.
    #[must_use]
    pub fn default_database(&self) -> Option<Database> {
        self.options().default_database.as_ref().map(|name| self.database(name))
    }
}

impl<C: AnyClient> Database<C> {
    /// Returns a handle to a collection whose documents are values of type `T`. The collection inherits the database's
    /// read preference, concerns and time limit. Sends nothing: the server creates a collection when its first document
    /// is inserted.
    #[must_use]
    pub fn collection<T>(&self, name: impl Into<String>) -> Collection<T, C> {
        let namespace = Namespace { collection: name.into(), ..Namespace::clone(&self.namespace) };
        Collection { namespace: Arc::new(namespace), documents: PhantomData }
    }
}
