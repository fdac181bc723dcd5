//! Warnings about connection strings.

use wharf::UriWarning;

use super::parse;
use super::values::value_of;

#[test]
fn each_kind_of_warning_says_its_consequence() {
    let warnings = [
        ("mongodb://a/?Fsync=1", r#"option "Fsync" is not supported; it is ignored"#),
        (
            "mongodb://a/?sslCAFile=ca.pem",
            r#"option "sslCAFile" is not supported; the nearest name is tlsCAFile; it is ignored"#,
        ),
        ("mongodb://a/?replicaSet=rs \r\n", "connection string has white space at its end; it is left out"),
        ("mongodb://a\n", "connection string has white space at its end; it is left out"),
        ("mongodb://a/?x@y=1", "option that is not shown is not supported; it is ignored"),
        (
            "mongodb://a/?connectTimeoutMS=-2",
            r#"connectTimeoutMS must be 0 (no limit) to 2147483647, got "-2"; the value is ignored"#,
        ),
        (
            "mongodb://a/?HeartbeatFrequencyMS=499",
            r#"heartbeatFrequencyMS must be 500 to 2147483647, got "499"; the value is ignored"#,
        ),
        (
            "mongodb://a/?serverSelectionTimeoutMS=0",
            r#"serverSelectionTimeoutMS must be 1 to 2147483647, got "0"; the value is ignored"#,
        ),
        (
            "mongodb://a/?maxStalenessSeconds=89",
            r#"maxStalenessSeconds must be -1 (no limit) or at least 90, got "89"; the value is ignored"#,
        ),
        ("mongodb://a/?maxConnecting=0", r#"maxConnecting must be 1 to 1048575, got "0"; the value is ignored"#),
        (
            "mongodb://a/?maxPoolSize=2147483648",
            r#"maxPoolSize must be 0 (no limit) to 1048575, got "2147483648"; the value is ignored"#,
        ),
        ("mongodb://a/?minPoolSize=-1", r#"minPoolSize must be 0 to 1048575, got "-1"; the value is ignored"#),
        (
            "mongodb://a/?readPreference=Primary",
            r#"readPreference must be primary, primaryPreferred, secondary, secondaryPreferred or nearest, got "Primary"; the value is ignored"#,
        ),
        ("mongodb://a/?replicaSet=", r#"replicaSet must not be empty, got ""; the value is ignored"#),
        ("mongodb://a/?retryReads=True", r#"retryReads must be true or false, got "True"; the value is ignored"#),
        ("mongodb://a/?appName=%ff", r#"appName must be percent-encoded, in UTF-8, got "%ff"; the value is ignored"#),
        ("mongodb://a/?w=-1", r#"w must be 0 to 2147483647, or a mode, got "-1"; the value is ignored"#),
        ("mongodb://a/?proxyHost=h&proxyPort=0", r#"proxyPort must be 1 to 65535, got "0"; the value is ignored"#),
        (
            "mongodb+srv://a.b.c/?srvServiceName=-",
            r#"srvServiceName must be 1 to 62 letters, digits and single hyphens, at least one letter, no hyphen at an end, got "-"; the value is ignored"#,
        ),
        (
            "mongodb://a/?authMechanismProperties=secret",
            "authMechanismProperties must be comma-separated name:value pairs; the value is ignored",
        ),
        ("mongodb://a/?w=1&W=2", "w is given more than once; the last value counts"),
        ("mongodb://a,A:27017", r#"host "A:27017" is listed more than once"#),
        ("mongodb://a/?wtimeout=5", "wtimeout is deprecated; use wTimeoutMS"),
        ("mongodb://a/?wtimeoutms=6&wtimeout=5", "wtimeout is deprecated; use wTimeoutMS, which is given, too"),
        ("mongodb://a/?journal=y", r#"journal must be true or false, got "y"; use journal=true"#),
        ("mongodb://a/?journal=-1", r#"journal must be true or false, got "-1"; use journal=false"#),
        ("mongodb://a/?tls=false&tlsCAFile=f", r#"tlsCAFile has no effect, because tls is false"#),
        (
            "mongodb://a/?authMechanismProperties=A:b",
            r#"authMechanismProperties has no effect, because neither a user nor authMechanism is given"#,
        ),
    ];
    for (uri, warning) in warnings {
        let found: Vec<_> = parse(uri).warnings().iter().map(ToString::to_string).collect();
        assert_eq!(found, [warning], "{uri}");
    }
}

#[test]
fn level_of_zlib_without_zlib_is_no_reason_to_warn() {
    for uri in ["mongodb://a/?zlibCompressionLevel=1", "mongodb://a/?compressors=snappy&zlibCompressionLevel=1"] {
        assert_eq!(parse(uri).warnings(), [], "{uri}");
    }
}

#[test]
fn rest_of_a_password_under_a_former_name_is_not_shown() {
    for option in ["tlsCertificateKeyFilePassword", "sslPEMKeyPassword"] {
        let options = parse(&format!("mongodb://a/?tls=true&tlsCertificateKeyFile=f&{option}=hun&ter2=3"));
        let found: Vec<_> = options.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(found.last().unwrap(), "option that is not shown is not supported; it is ignored", "{option}");
    }
    let error = wharf::Options::parse("mongodb://a/?sslPEMKeyPassword=hun&ter2").unwrap_err();
    assert_eq!(error.to_string(), "option that is not shown has no value");
    let named = parse("mongodb://a/?sslPEMKeyPassword=hunter2");
    let [warning] = named.warnings() else { panic!("{:?}", named.warnings()) };
    let expected = r#"option "sslPEMKeyPassword" is not supported; the nearest name is tlsCertificateKeyFilePassword; it is ignored"#;
    assert_eq!(warning.to_string(), expected);
}

#[test]
fn unknown_compressor_is_left_out_of_the_list() {
    let options = parse("mongodb://a/?compressors=lz4,zstd,snappy,zstd");
    assert_eq!(value_of(&options, "compressors").unwrap(), serde_json::json!(["zstd", "snappy"]));
    let [UriWarning::InvalidValue { error }] = options.warnings() else { panic!("{:?}", options.warnings()) };
    assert_eq!(error.to_string(), r#"compressors must be one of snappy, zlib, zstd, got "lz4""#);
}

#[test]
fn last_value_of_a_repeated_option_and_new_name_of_a_renamed_option_count() {
    let value = |uri, option| value_of(&parse(uri), option).unwrap();
    assert_eq!(value("mongodb://a/?w=1&w=2", "w"), 2);
    assert_eq!(value("mongodb://a/?wtimeoutMS=10&wtimeout=5", "wTimeoutMS"), 10);
    assert_eq!(value("mongodb://a/?wtimeout=5", "wTimeoutMS"), 5);
    assert_eq!(value("mongodb://a/?j=true", "journal"), true);
    assert_eq!(value("mongodb://a/?w=2&w=-1", "w"), 2);
}

#[test]
fn old_words_for_true_and_false_are_read() {
    for (word, meaning) in [("1", true), ("yes", true), ("y", true), ("t", true), ("true", true)] {
        assert_eq!(parse(&format!("mongodb://a/?retryWrites={word}")).retry_writes, meaning);
        assert_eq!(parse(&format!("mongodb://a/?loadBalanced={word}")).load_balanced, Some(meaning));
    }
    for word in ["0", "-1", "no", "n", "f", "false"] {
        let options = parse(&format!("mongodb://a/?retryWrites={word}"));
        assert!(!options.retry_writes);
        assert_eq!(options.warnings().is_empty(), word == "false");
    }
}
