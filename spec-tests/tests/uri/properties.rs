//! Properties that hold for all strings.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::prelude::*;
use wharf::{Options, Secret};

use super::parse;

const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// Random strings made of pieces of connection strings, so that the parser does not refuse them immediately.
fn near_miss() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("mongodb://".to_owned()),
        Just("mongodb+srv://".to_owned()),
        "[@:/?&=,%;.\\[\\]]",
        "%[0-9a-f]{2}",
        "(localhost|a\\.b\\.c|127\\.0\\.0\\.1|\\[::1\\]|%2Fx\\.sock)",
        "(tls|w|journal|authMechanism|authMechanismProperties|readPreferenceTags|compressors|proxyPort|srvMaxHosts)=",
        "(true|false|-1|0|90|PLAIN|GSSAPI|zlib|A:b|nearest)",
        ".{0,3}",
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn parsing_never_panics(text in ".*") {
        let _ = Options::parse(&text);
        let _ = Options::parse(&format!("mongodb://{text}"));
    }

    #[test]
    fn near_misses_never_panic_and_accepted_ones_are_valid(text in near_miss(), srv in any::<bool>()) {
        let uri = format!("{}{text}", if srv { "mongodb+srv://" } else { "mongodb://" });
        if let Ok(options) = Options::parse(&uri) {
            prop_assert_eq!(options.validate(), Ok(()));
            prop_assert_eq!(options.hosts.is_empty(), srv);
        }
        let _ = Options::parse(&text);
    }

    #[test]
    fn percent_encoded_texts_are_decoded(
        name in ".+",
        password in ".*",
        database in "[^/\\\\ \"$]+",
        app in "\\PC{1,32}",
        set in ".+",
    ) {
        let parts = [&name, &password, &database, &app, &set].map(|part| encoded(part));
        let [user, secret, db, app_name, replica_set] = parts;
        let options = parse(&format!("mongodb://{user}:{secret}@host/{db}?appName={app_name}&replicaSet={replica_set}"));
        prop_assert_eq!(options.default_database, Some(database));
        prop_assert_eq!(options.app_name, Some(app));
        prop_assert_eq!(options.replica_set, Some(set));
        let credential = options.credential.unwrap();
        prop_assert_eq!(credential.username, Some(name));
        prop_assert_eq!(credential.password, Some(Secret::new(password)));
    }

    #[test]
    fn password_is_never_shown(secret in "[a-z0-9]{3}zq[a-z0-9]{3,20}", odd in "[@:/?#%&=,;+ ]?", tail in "[a-z]{3}qz[a-z]{0,9}") {
        // The first strings contain the password in percent-encoded form, and the others contain it raw.
        let password = format!("{secret}{odd}{tail}");
        let forgotten_host = if odd == "@" { "%40" } else { &odd };
        let uris = [
            format!("mongodb://ada:{}@host/?tlsCertificateKeyFilePassword={}&x=1", encoded(&password), encoded(&password)),
            format!("mongodb://host/?proxyHost=p&proxyUsername=u&proxyPassword={}", encoded(&password)),
            format!("mongodb://host/?proxyHost=p&proxyPassword={}", encoded(&password)),
            format!("mongodb://ada:{password}@host/db?w=-1"),
            format!("mongodb+srv://ada:{password}@a.example.com"),
            // After a raw at-sign, the rest would be the host.
            format!("mongodb://ada:{secret}{forgotten_host}{tail}"),
        ];
        for uri in uris {
            let shown = match Options::parse(&uri) {
                // If there is neither a credential nor a proxy, the string has a different meaning, and only its
                // warnings are checked.
                Ok(options) if options.credential.is_some() || options.proxy.is_some() => format!("{options:?} {options:#?}"),
                Ok(options) => format!("{:?}", options.warnings()),
                Err(error) => format!("{error} {error:?}"),
            };
            prop_assert!(!shown.contains(&secret) && !shown.contains(&tail), "{}: {}", uri, shown);
        }
    }
}
