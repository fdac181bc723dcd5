//! The options that a client can replace while it is in use.

use super::{InvalidOption, Options};

impl Options {
    /// Refuses options that differ from these options in anything but the credential, TLS and the compressors.
    pub(crate) fn check_replacement(&self, by: &Self) -> Result<(), InvalidOption> {
        let Self {
            hosts,
            srv,
            app_name,
            driver_info,
            credential: _,
            auth_source: _,
            default_database,
            tls: _,
            proxy,
            compressors: _,
            server_api,
            connect_timeout,
            socket_timeout,
            timeout,
            drain_timeout,
            drain_limit,
            busy_poll,
            pool,
            load_balanced: _,
            replica_set,
            direct_connection,
            read_preference,
            read_concern,
            write_concern,
            retry_reads,
            retry_writes,
            max_adaptive_retries,
            enable_overload_retargeting,
            heartbeat_frequency,
            local_threshold,
            server_selection_timeout,
            server_selection_try_once,
            server_monitoring_mode,
            warnings: _,
            is_strict: _,
        } = self;
        let is_same = [
            ("srv", *srv == by.srv),
            // DNS may list different servers under the SRV name by now.
            ("hosts", srv.is_some() || *hosts == by.hosts),
            ("appName", *app_name == by.app_name),
            ("driverInfo", *driver_info == by.driver_info),
            ("database", *default_database == by.default_database),
            ("proxyHost", *proxy == by.proxy),
            ("serverApi", *server_api == by.server_api),
            ("connectTimeoutMS", *connect_timeout == by.connect_timeout),
            ("socketTimeoutMS", *socket_timeout == by.socket_timeout),
            ("timeoutMS", *timeout == by.timeout),
            ("drainTimeout", *drain_timeout == by.drain_timeout),
            ("drainLimit", *drain_limit == by.drain_limit),
            ("busyPoll", *busy_poll == by.busy_poll),
            ("loadBalanced", self.is_load_balanced() == by.is_load_balanced()),
            ("replicaSet", *replica_set == by.replica_set),
            ("directConnection", *direct_connection == by.direct_connection),
            ("readPreference", *read_preference == by.read_preference),
            ("readConcernLevel", *read_concern == by.read_concern),
            ("w", *write_concern == by.write_concern),
            ("retryReads", *retry_reads == by.retry_reads),
            ("retryWrites", *retry_writes == by.retry_writes),
            ("maxAdaptiveRetries", *max_adaptive_retries == by.max_adaptive_retries),
            ("enableOverloadRetargeting", *enable_overload_retargeting == by.enable_overload_retargeting),
            ("heartbeatFrequencyMS", *heartbeat_frequency == by.heartbeat_frequency),
            ("localThresholdMS", *local_threshold == by.local_threshold),
            ("serverSelectionTimeoutMS", *server_selection_timeout == by.server_selection_timeout),
            ("serverSelectionTryOnce", *server_selection_try_once == by.server_selection_try_once),
            ("serverMonitoringMode", *server_monitoring_mode == by.server_monitoring_mode),
        ];
        let differing = is_same.into_iter().find(|(_, is_same)| !is_same).map(|(option, _)| option);
        match differing.or_else(|| pool.differences(&by.pool).next()) {
            Some(option) => Err(InvalidOption::because(option, "cannot change while the client is in use")),
            None => Ok(()),
        }
    }

    /// Returns these options, with the credential, TLS and the compressors from `by`.
    pub(crate) fn with_replaced(&self, by: &Self) -> Self {
        let options = Self { tls: by.tls.clone(), compressors: by.compressors.clone(), ..self.clone() };
        match by.credential.clone() {
            // A credential without a source inherits `authSource`, which may come from the TXT record.
            Some(credential) => options.credential(credential),
            None => Self { credential: None, ..options },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "tls")]
    #[test]
    fn what_belongs_to_connections_may_differ_and_nothing_else_may() {
        let own = "mongodb://ada:old@a,b/shop?replicaSet=rs&maxPoolSize=5";
        let present = Options::parse(own).unwrap();
        let check = |uri: &str| present.check_replacement(&Options::parse(uri).unwrap());
        let replaceable = "mongodb://bob:new@a,b/shop?replicaSet=rs&maxPoolSize=5&tlsCAFile=ca.pem&compressors=zlib\
                           &authSource=users&authMechanism=PLAIN";
        assert_eq!(check(replaceable), Ok(()));
        let refused = [
            ("mongodb://ada:old@a,c/shop?replicaSet=rs&maxPoolSize=5", "hosts"),
            ("mongodb+srv://a.b.c/shop?replicaSet=rs&maxPoolSize=5", "srv"),
            ("mongodb://ada:old@a,b/shop?replicaSet=other&maxPoolSize=5", "replicaSet"),
            ("mongodb://ada:old@a,b/other?replicaSet=rs&maxPoolSize=5", "database"),
            ("mongodb://ada:old@a,b/shop?replicaSet=rs&maxPoolSize=6", "maxPoolSize"),
            ("mongodb://ada:old@a,b/shop?replicaSet=rs&maxPoolSize=5&w=2", "w"),
        ];
        for (uri, option) in refused {
            let error = check(uri).unwrap_err();
            assert_eq!(error.to_string(), format!("{option} cannot change while the client is in use"));
        }
        let own = present.clone().pool(present.pool.clone().jitter_percent(5));
        assert_eq!(present.check_replacement(&own).unwrap_err().option, "jitterPercent");
    }

    #[test]
    fn replaced_credential_without_a_source_gets_that_of_the_deployment() {
        let present = Options::parse("mongodb://ada:old@a/?authSource=users&appName=shop").unwrap();
        let replaced = present.with_replaced(&Options::parse("mongodb://bob:new@a/?appName=shop").unwrap());
        let credential = replaced.credential.as_ref().unwrap();
        assert_eq!((credential.username.as_deref(), credential.source.as_deref()), (Some("bob"), Some("users")));
        assert_eq!(present.with_replaced(&Options::parse("mongodb://a").unwrap()).credential, None);
    }
}
