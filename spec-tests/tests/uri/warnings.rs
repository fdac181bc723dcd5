//! What is ignored, and who hears of it.

use wharf::UriWarning;

use super::parse;
use super::values::value_of;

#[test]
fn each_kind_of_warning_says_what_is_done() {
    let warnings = [
        ("mongodb://a/?Fsync=1", r#"Unsupported option "Fsync" is ignored"#),
        ("mongodb://a/?x@y=1", "An unsupported option is ignored"),
        (
            "mongodb://a/?connectTimeoutMS=-2",
            r#"Unsupported value "-2" of "connectTimeoutMS" is ignored; allowed is 0 (no limit) to 2147483647"#,
        ),
        (
            "mongodb://a/?HeartbeatFrequencyMS=499",
            r#"Unsupported value "499" of "heartbeatFrequencyMS" is ignored; allowed is 500 to 2147483647"#,
        ),
        (
            "mongodb://a/?serverSelectionTimeoutMS=0",
            r#"Unsupported value "0" of "serverSelectionTimeoutMS" is ignored; allowed is 1 to 2147483647"#,
        ),
        (
            "mongodb://a/?maxStalenessSeconds=89",
            r#"Unsupported value "89" of "maxStalenessSeconds" is ignored; allowed is -1 (no limit) or at least 90"#,
        ),
        (
            "mongodb://a/?maxConnecting=0",
            r#"Unsupported value "0" of "maxConnecting" is ignored; allowed is 1 to 1048575"#,
        ),
        (
            "mongodb://a/?maxPoolSize=2147483648",
            r#"Unsupported value "2147483648" of "maxPoolSize" is ignored; allowed is 0 (no limit) to 1048575"#,
        ),
        (
            "mongodb://a/?minPoolSize=-1",
            r#"Unsupported value "-1" of "minPoolSize" is ignored; allowed is 0 to 1048575"#,
        ),
        (
            "mongodb://a/?readPreference=Primary",
            r#"Unsupported value "Primary" of "readPreference" is ignored; allowed is primary, primaryPreferred, secondary, secondaryPreferred or nearest"#,
        ),
        ("mongodb://a/?replicaSet=", r#"Unsupported value "" of "replicaSet" is ignored; allowed is a name"#),
        (
            "mongodb://a/?retryReads=True",
            r#"Unsupported value "True" of "retryReads" is ignored; allowed is true or false"#,
        ),
        (
            "mongodb://a/?appName=%ff",
            r#"Unsupported value "%ff" of "appName" is ignored; allowed is percent-encoded, in UTF-8"#,
        ),
        ("mongodb://a/?w=-1", r#"Unsupported value "-1" of "w" is ignored; allowed is 0 to 2147483647, or a mode"#),
        (
            "mongodb://a/?proxyHost=h&proxyPort=0",
            r#"Unsupported value "0" of "proxyPort" is ignored; allowed is 1 to 65535"#,
        ),
        (
            "mongodb+srv://a.b.c/?srvServiceName=-",
            r#"Unsupported value "-" of "srvServiceName" is ignored; allowed is 1 to 62 letters, digits and single hyphens, at least one letter, no hyphen at an end"#,
        ),
        (
            "mongodb://a/?authMechanismProperties=secret",
            r#"Unsupported value of "authMechanismProperties" is ignored; allowed is comma-separated name:value pairs"#,
        ),
        ("mongodb://a/?w=1&W=2", r#""w" is given more than once; the last one counts"#),
        ("mongodb://a,A:27017", r#""A:27017" is listed more than once"#),
        ("mongodb://a/?wtimeout=5", r#"Deprecated option "wtimeout" has been replaced with "wTimeoutMS""#),
        (
            "mongodb://a/?wtimeoutms=6&wtimeout=5",
            r#"Deprecated option "wtimeout" is ignored because "wTimeoutMS" is present"#,
        ),
        ("mongodb://a/?journal=y", r#"Deprecated value "y" of "journal"; use "journal=true""#),
        ("mongodb://a/?journal=-1", r#"Deprecated value "-1" of "journal"; use "journal=false""#),
        ("mongodb://a/?tls=false&tlsCAFile=f", r#""tlsCAFile" has no effect, because tls is false"#),
        (
            "mongodb://a/?zlibCompressionLevel=1",
            r#""zlibCompressionLevel" has no effect, because zlib is not one of the compressors"#,
        ),
        (
            "mongodb://a/?authMechanismProperties=A:b",
            r#""authMechanismProperties" has no effect, because neither a user nor authMechanism is given"#,
        ),
    ];
    for (uri, warning) in warnings {
        let found: Vec<_> = parse(uri).warnings().iter().map(ToString::to_string).collect();
        assert_eq!(found, [warning], "{uri}");
    }
}

#[test]
fn a_compressor_that_there_is_not_is_left_out_of_the_list() {
    let options = parse("mongodb://a/?compressors=lz4,zstd,snappy,zstd");
    assert_eq!(value_of(&options, "compressors").unwrap(), serde_json::json!(["zstd", "snappy"]));
    let [UriWarning::InvalidValue { option: "compressors", value: Some(value), allowed }] = options.warnings() else {
        panic!("{:?}", options.warnings());
    };
    assert_eq!((value.as_str(), allowed.as_str()), ("lz4", "of snappy, zlib, zstd"));
}

#[test]
fn of_a_repeated_option_the_last_counts_and_of_a_renamed_one_the_new_name() {
    let value = |uri, option| value_of(&parse(uri), option).unwrap();
    assert_eq!(value("mongodb://a/?w=1&w=2", "w"), 2);
    assert_eq!(value("mongodb://a/?wtimeoutMS=10&wtimeout=5", "wTimeoutMS"), 10);
    assert_eq!(value("mongodb://a/?wtimeout=5", "wTimeoutMS"), 5);
    assert_eq!(value("mongodb://a/?j=true", "journal"), true);
    assert_eq!(value("mongodb://a/?w=2&w=-1", "w"), 2);
}

#[test]
fn the_words_for_yes_and_no() {
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
