//! Checks that warnings about connection strings are logged.

use tracing::Level;
use wharf::Options;
use wharf_testbed::log::kept;

/// Returns the result of `work`, and the texts of its warnings in the log.
fn warnings<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let mut result = None;
    let messages = kept("wharf::options", Level::WARN, || result = Some(work())).into_iter();
    (result.unwrap(), messages.map(|mut message| message.remove("message").unwrap()).collect())
}

#[test]
fn every_warning_is_logged_once() {
    let (options, logged) =
        warnings(|| Options::parse("mongodb://a/?foo=1&w=-1&proxyPassword=&authMechanismProperties=hunter2").unwrap());
    assert_eq!(logged, options.warnings().iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(logged.len(), 3);
}

#[test]
fn unapplied_options_are_logged_with_the_endpoint() {
    let uri = "mongodb://a/?w=majority&journal=true&wTimeoutMS=5&readConcernLevel=local&readPreference=nearest";
    let options = Options::parse(uri).unwrap();
    assert_eq!(options.warnings(), []);
    let (_, logged) = warnings(|| options.endpoint().unwrap());
    let unapplied: Vec<_> = options.unapplied().iter().map(ToString::to_string).collect();
    assert_eq!(logged, unapplied);
    let start = r#"has no effect, because a pool sends commands as they are: give each"#;
    let write = format!("{start} write its writeConcern");
    let expected = [
        format!(r#"w {write}"#),
        format!(r#"journal {write}"#),
        format!(r#"wTimeoutMS {write}"#),
        format!(r#"readConcernLevel {start} read its readConcern"#),
        format!(r#"readPreference {start} read its $readPreference"#),
    ];
    assert_eq!(unapplied, expected);
    assert_eq!(Options::parse("mongodb://a/?readPreference=primary&retryWrites=true").unwrap().unapplied(), []);
}
