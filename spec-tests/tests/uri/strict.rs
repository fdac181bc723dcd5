//! Strict parsing: every warning is an error.

use wharf::{Client, Options};

use super::parse;

/// Returns the message of the error that strict parsing returns instead of a warning.
fn refusal(uri: &str) -> String {
    match Options::parse_strict(uri) {
        Ok(options) => panic!("{uri} is accepted: {options:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_kind_of_warning_is_an_error() {
    let refusals = [
        ("mongodb://a/?Fsync=1", r#"option "Fsync" is not supported"#),
        ("mongodb://a/?replicaSet=rs\n", "connection string has white space at its end"),
        ("mongodb://a/?x@y=1", "option that is not shown is not supported"),
        ("mongodb://a/?connectTimeoutMS=-2", r#"connectTimeoutMS must be 0 (no limit) to 2147483647, got "-2""#),
        ("mongodb://a/?maxPoolSize=2147483648", r#"maxPoolSize must be 0 (no limit) to 1048575, got "2147483648""#),
        ("mongodb://a/?tlsInsecure=invalid", r#"tlsInsecure must be true or false, got "invalid""#),
        (
            "mongodb://a/?authMechanismProperties=hunter2",
            "authMechanismProperties must be comma-separated name:value pairs",
        ),
        ("mongodb://a/?compressors=lz4,zstd", r#"compressors must be one of snappy, zlib, zstd, got "lz4""#),
        ("mongodb://a/?retryReads=true&retryReads=true", "retryReads is given more than once"),
        ("mongodb://a,A:27017", r#"host "A:27017" is listed more than once"#),
        ("mongodb://a/?wtimeout=5", "wtimeout is deprecated; use wTimeoutMS"),
        ("mongodb://a/?wtimeoutms=6&wtimeout=5", "wtimeout is deprecated; use wTimeoutMS"),
        ("mongodb://a/?journal=y", r#"journal must be true or false, got "y"; use journal=true"#),
        (
            "mongodb://a?authMechanism=MONGODB-OIDC&authMechanismProperties=TOKEN_RESOURCE:a%2Cb,ENVIRONMENT:azure",
            "authMechanismProperties has a comma in the value of TOKEN_RESOURCE; use Credential::mechanism_property",
        ),
        ("mongodb://a/?tls=false&tlsCAFile=f", "tlsCAFile has no effect, because tls is false"),
    ];
    for (uri, message) in refusals {
        assert!(!parse(uri).warnings().is_empty(), "{uri}");
        assert_eq!(refusal(uri), message);
    }
}

#[test]
fn option_that_only_a_client_applies_is_an_error_for_a_pool() {
    let of_pool = |option, command, field| {
        format!("{option} has no effect, because a pool sends commands as they are: give each {command} its {field}")
    };
    for (uri, message) in [
        ("mongodb://a/?w=majority", of_pool("w", "write", "writeConcern")),
        ("mongodb://a/?readPreference=secondary", of_pool("readPreference", "read", "$readPreference")),
    ] {
        let strict = Options::parse_strict(uri).unwrap();
        assert_eq!(strict.endpoint().unwrap_err().to_string(), message);
        assert_eq!(strict.endpoints().unwrap_err().to_string(), message);
        assert!(parse(uri).endpoint().is_ok());
        assert!(Client::new(strict).is_ok());
    }
}

#[test]
fn errors_of_lenient_parsing_are_the_same() {
    for uri in ["mongodb://", "mongodb://a/?tls=on", "mongodb://a,b/?directConnection=true", "mongodb://u:hunter2"] {
        assert_eq!(Options::parse_strict(uri), Err(Options::parse(uri).unwrap_err()));
    }
}

#[test]
fn valid_connection_string_has_the_same_values() {
    let uri = "mongodb://ada:p@a,b:2/db?tls=true&maxPoolSize=5&replicaSet=r&retryWrites=true&appName=x";
    let (strict, lenient) = (Options::parse_strict(uri).unwrap(), parse(uri));
    assert_eq!((&strict.hosts, &strict.tls, &strict.pool), (&lenient.hosts, &lenient.tls, &lenient.pool));
    assert_eq!(strict.credential, lenient.credential);
    assert_eq!(strict.warnings(), []);
}
