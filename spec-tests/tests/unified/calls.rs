//! A method call on either client, and the options that all calls share.

use crate::arguments::Arguments;
use crate::clients::Session;

/// The inputs to a method call.
pub struct Call<'s> {
    pub arguments: Arguments,
    pub session: Option<&'s mut Session>,
    /// Whether the operation asks for the data in the server's own form (`rawData`). The builders have no method for
    /// this option.
    pub raw_data: bool,
}

/// Runs the builder that a method returns, for a handle from either client.
macro_rules! call {
    ($handle:expr, $call:ident, |$of:ident| $builder:expr) => {
        match $handle {
            Of::Pooled($of) => shared!($call, $builder, pooled).await.map_err(Stop::from),
            Of::Single($of) => {
                let builder = shared!($call, $builder, single);
                apart(|| builder.run()).map_err(Stop::from)
            }
        }
    };
}

/// Runs a builder that opens a cursor or a change stream.
macro_rules! open {
    ($handle:expr, $call:ident, |$of:ident| $builder:expr) => {
        match $handle {
            Of::Pooled($of) => {
                let opened = shared!($call, $builder, pooled).await;
                opened.map(|opened| Of::Pooled(opened.typed())).map_err(Stop::from)
            }
            Of::Single($of) => {
                let builder = shared!($call, $builder, single);
                let opened = apart(|| builder.run());
                opened.map(|opened| Of::Single(Apart::of(opened.typed()))).map_err(Stop::from)
            }
        }
    };
}

/// Sets the options that all calls share. Fails if an argument is left unread.
macro_rules! shared {
    ($call:ident, $builder:expr, $own:ident) => {{
        let mut builder = options!($call.arguments, $builder; timeout);
        $call.arguments.end()?;
        if $call.raw_data {
            builder = builder.options(bson::doc! { "rawData": true });
        }
        if let Some(session) = $call.session.take() {
            builder = builder.session(session.$own());
        }
        builder
    }};
}

pub(crate) use {call, open, shared};
