//! A value for each stage of an establishment.

use crate::pool::error::Stage;

/// Holds one value for each stage of establishing a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ByStage<T> {
    /// [`Stage::Resolve`].
    pub resolve: T,
    /// [`Stage::Proxy`]. With a proxy, this stage includes connecting.
    pub proxy: T,
    /// [`Stage::Connect`].
    pub connect: T,
    /// [`Stage::Tls`].
    pub tls: T,
    /// [`Stage::Hello`].
    pub hello: T,
    /// [`Stage::Authenticate`].
    pub authenticate: T,
}

impl<T> ByStage<T> {
    /// Returns the value of a stage.
    pub fn of(&self, stage: Stage) -> &T {
        match stage {
            Stage::Resolve => &self.resolve,
            Stage::Proxy => &self.proxy,
            Stage::Connect => &self.connect,
            Stage::Tls => &self.tls,
            Stage::Hello => &self.hello,
            Stage::Authenticate => &self.authenticate,
        }
    }

    /// Returns the stages in order, each with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, &T)> {
        [Stage::Resolve, Stage::Proxy, Stage::Connect, Stage::Tls, Stage::Hello, Stage::Authenticate]
            .into_iter()
            .map(|stage| (stage, self.of(stage)))
    }

    /// Returns the names of the stages in order, each with its value.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &T)> {
        let names = ["resolve", "proxy", "connect", "tls", "hello", "authenticate"];
        names.into_iter().zip(self.iter().map(|(_, value)| value))
    }

    /// Returns the result of `f` for each value.
    pub(crate) fn map<U>(&self, f: impl Fn(&T) -> U) -> ByStage<U> {
        ByStage {
            resolve: f(&self.resolve),
            proxy: f(&self.proxy),
            connect: f(&self.connect),
            tls: f(&self.tls),
            hello: f(&self.hello),
            authenticate: f(&self.authenticate),
        }
    }
}
