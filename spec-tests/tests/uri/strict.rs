//! Strict parsing: every warning is an error.

use wharf::Options;

use super::parse;

/// What a strict parser says of a connection string that the other one only warns of.
fn refusal(uri: &str) -> String {
    match Options::parse_strict(uri) {
        Ok(options) => panic!("{uri} is accepted: {options:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn each_kind_of_warning_is_an_error_with_option_value_and_what_is_allowed() {
    let refusals = [
        ("mongodb://a/?Fsync=1", r#"option is "Fsync", but must be one that wharf knows"#),
        ("mongodb://a/?x@y=1", "option is not shown, but must be one that wharf knows"),
        ("mongodb://a/?connectTimeoutMS=-2", r#"connectTimeoutMS is "-2", but must be 0 (no limit) to 2147483647"#),
        ("mongodb://a/?maxPoolSize=2147483648", r#"maxPoolSize is "2147483648", but must be 0 (no limit) to 1048575"#),
        ("mongodb://a/?tlsInsecure=invalid", r#"tlsInsecure is "invalid", but must be true or false"#),
        (
            "mongodb://a/?authMechanismProperties=hunter2",
            "authMechanismProperties is not shown, but must be comma-separated name:value pairs",
        ),
        ("mongodb://a/?compressors=lz4,zstd", r#"compressors is "lz4", but must be of snappy, zlib, zstd"#),
        ("mongodb://a/?retryReads=true&retryReads=true", "retryReads is given more than once, but must be given once"),
        ("mongodb://a,A:27017", r#"hosts is "A:27017" more than once, but must be each server once"#),
        ("mongodb://a/?wtimeout=5", "wtimeout is given, but must be written as wTimeoutMS"),
        ("mongodb://a/?wtimeoutms=6&wtimeout=5", "wtimeout is given, but must be left out with wTimeoutMS"),
        ("mongodb://a/?journal=y", r#"journal is "y", but must be written as true"#),
        (
            "mongodb://a?authMechanism=MONGODB-OIDC&authMechanismProperties=TOKEN_RESOURCE:a%2Cb,ENVIRONMENT:azure",
            "authMechanismProperties is TOKEN_RESOURCE with a comma in its value, but must be without commas in values; \
             Credential::mechanism_property takes them",
        ),
        ("mongodb://a/?tls=false&tlsCAFile=f", "tlsCAFile is given, but must be left out, because tls is false"),
        (
            "mongodb://a/?w=majority",
            "w is given, but must be left out, because a pool sends commands as they are: give each write its \
             writeConcern",
        ),
        (
            "mongodb://a/?readPreference=secondary",
            "readPreference is given, but must be left out, because a pool sends commands as they are: give each read \
             its $readPreference",
        ),
    ];
    for (uri, message) in refusals {
        let found = parse(uri);
        assert!(!found.warnings().is_empty() || !found.unapplied().is_empty(), "{uri}");
        assert_eq!(refusal(uri), message);
    }
}

#[test]
fn what_the_other_parser_refuses_is_refused_in_the_same_words() {
    for uri in ["mongodb://", "mongodb://a/?tls=on", "mongodb://a,b/?directConnection=true", "mongodb://u:hunter2"] {
        assert_eq!(Options::parse_strict(uri), Err(Options::parse(uri).unwrap_err()));
    }
}

#[test]
fn what_nothing_is_wrong_with_is_accepted_with_the_same_values() {
    let uri = "mongodb://ada:p@a,b:2/db?tls=true&maxPoolSize=5&replicaSet=r&retryWrites=true&appName=x";
    let (strict, lenient) = (Options::parse_strict(uri).unwrap(), parse(uri));
    assert_eq!((&strict.hosts, &strict.tls, &strict.pool), (&lenient.hosts, &lenient.tls, &lenient.pool));
    assert_eq!(strict.credential, lenient.credential);
    assert_eq!(strict.warnings(), []);
}
