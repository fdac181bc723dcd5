//! Connections without a server, for the unit files.

use std::io;
use std::time::Duration;

use serde_json::{Map, Value};
use wharf::{Condition, Establish, EstablishError, Establishing, Stage};

use super::case::number;
use super::runner::service_id;

#[derive(Default)]
pub struct Mock {
    takes: Duration,
    hang: Vec<u64>,
    fail: Vec<u64>,
    overload: Vec<u64>,
    services: Vec<Value>,
}

pub struct MockConnection {
    spoiled: bool,
}

impl MockConnection {
    pub fn spoil(&mut self) {
        self.spoiled = true;
    }
}

impl Mock {
    pub fn new(plan: &Map<String, Value>) -> Self {
        let mut mock = Self::default();
        for (name, value) in plan {
            let list = || value.as_array().expect("a list").clone();
            let ids = || list().iter().map(number).collect();
            match name.as_str() {
                "establishMS" => mock.takes = Duration::from_millis(number(value)),
                "hang" => mock.hang = ids(),
                "fail" => mock.fail = ids(),
                "overload" => mock.overload = ids(),
                "serviceIds" => mock.services = list(),
                unknown => panic!("the mock knows no {unknown}"),
            }
        }
        mock
    }
}

impl Establish for Mock {
    type Connection = MockConnection;

    async fn establish(&self, connecting: Establishing) -> Result<MockConnection, EstablishError> {
        let id = connecting.connection_id();
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        let error = || io::Error::other("the mock fails on request");
        if self.overload.contains(&id) {
            return Err(EstablishError::overloaded(Stage::Connect, error()));
        }
        if connecting.is_load_balanced() {
            let turn = (id as usize - 1) % self.services.len();
            connecting.identify(service_id(&self.services[turn]));
        }
        if self.hang.contains(&id) {
            std::future::pending::<()>().await;
        }
        if self.fail.contains(&id) {
            return Err(EstablishError::permanent(Stage::Authenticate, error()));
        }
        Ok(MockConnection { spoiled: false })
    }

    fn condition(&self, connection: &mut MockConnection) -> Condition {
        if connection.spoiled { Condition::Broken } else { Condition::Reusable }
    }
}
