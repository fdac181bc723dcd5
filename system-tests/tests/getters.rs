//! Everything that can be set in options can be read: through a public field of the same name, or a method.
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use wharf::{Endpoint, Options, PoolOptions, TlsOptions};
use wharf_system_tests::root;

/// In these types, methods that take and return `Self` set options.
const TYPES: [&str; 12] = [
    "CloudEnvironment",
    "Credential",
    "DriverInfo",
    "Options",
    "PoolBuilder",
    "PoolOptions",
    "ProxyOptions",
    "ReadPreference",
    "ServerApi",
    "SrvName",
    "TlsOptions",
    "WriteConcern",
];

/// Methods that set an option, each with the field or method that reads it, if the names differ. For values that an
/// application supplies as code, as a key or as certificates, only their presence can be read.
const GETTERS: [(&str, &str); 24] = [
    ("CloudEnvironment::variables", "CloudEnvironment::has_own_variables(&self)"),
    ("Credential::allowed_hosts", "Credential::effective_allowed_hosts(&self)"),
    ("Credential::aws_credential_provider", "Credential::has_aws_credential_provider(&self)"),
    ("Credential::cloud_environment", "Credential::effective_cloud_environment(&self)"),
    ("Credential::mechanism_property", "Credential::mechanism_properties:"),
    ("Credential::oidc_callback", "Credential::has_oidc_callback(&self)"),
    ("Credential::oidc_human_callback", "Credential::has_oidc_human_callback(&self)"),
    ("PoolBuilder::budget", "Pool<E>::budget(&self)"),
    ("PoolBuilder::account_for_holders", "Pool<E>::accounts_for_holders(&self)"),
    ("PoolBuilder::max_waiting", "Pool<E>::max_waiting(&self)"),
    ("PoolBuilder::options", "Pool<E>::options(&self)"),
    ("PoolBuilder::report_holds_after", "Pool<E>::holds_are_reported_after(&self)"),
    ("PoolBuilder::runtime", "Pool<E>::runtime(&self)"),
    ("PoolBuilder::slow_check_out", "Pool<E>::slow_check_out(&self)"),
    ("PoolBuilder::timeout", "Pool<E>::timeout(&self)"),
    ("PoolBuilder::tokio_clock", "Pool<E>::tokio_clock(&self)"),
    ("ReadPreference::tag_set", "ReadPreference::tag_sets:"),
    ("TlsOptions::ca_der", "TlsOptions::has_ca_in_memory(&self)"),
    ("TlsOptions::ca_pem", "TlsOptions::has_ca_in_memory(&self)"),
    ("TlsOptions::certificate_key_der", "TlsOptions::has_certificate_key_in_memory(&self)"),
    ("TlsOptions::certificate_key_pem", "TlsOptions::has_certificate_key_in_memory(&self)"),
    ("TlsOptions::client_config", "TlsOptions::own_config(&self)"),
    ("TlsOptions::crypto_provider", "TlsOptions::own_provider(&self)"),
    // `insecure` sets several fields, of which this is the first.
    ("TlsOptions::insecure", "TlsOptions::allow_invalid_certificates:"),
];

/// Methods that take functions, because functions cannot be read back. The documentation of `PoolBuilder` says so.
const FUNCTIONS: [&str; 4] =
    ["PoolBuilder::log", "PoolBuilder::on_failure", "PoolBuilder::on_long_hold", "PoolBuilder::subscriber"];

#[test]
fn everything_that_can_be_set_can_be_read() {
    let surface = fs::read_to_string(root().join("public-api.txt")).unwrap();
    let mut needed: BTreeSet<&str> = GETTERS.iter().map(|(setter, _)| *setter).chain(FUNCTIONS).collect();
    let mut setters = 0;
    for line in surface.lines() {
        let Some(method) = line.strip_prefix("pub fn wharf::").filter(|line| line.ends_with(" -> Self")) else {
            continue;
        };
        let Some((path, arguments)) = method.split_once('(') else { continue };
        let path = path.replace("<E>", "");
        let path = path.split('<').next().unwrap();
        let is_setter = TYPES.contains(&path.split("::").next().unwrap()) && arguments.starts_with("self, ");
        if !is_setter {
            continue;
        }
        setters += 1;
        needed.remove(path);
        if FUNCTIONS.contains(&path) {
            continue;
        }
        let getter = GETTERS.iter().find(|(setter, _)| *setter == path).map(|(_, getter)| (*getter).to_owned());
        let getter = getter.unwrap_or_else(|| format!("{path}:"));
        let shown = surface.lines().any(|line| {
            let item = line.strip_prefix("pub wharf::").or_else(|| line.strip_prefix("pub fn wharf::"));
            item.is_some_and(|item| item.starts_with(&getter))
        });
        assert!(shown, "{path} sets what nothing shows: {getter} is missing; add it, or name another one in GETTERS");
    }
    assert!(setters > 60, "only {setters} setters found: does the test read the right file?");
    assert!(needed.is_empty(), "GETTERS or FUNCTIONS has methods that do not exist: {needed:?}");
}

#[test]
fn getters_tell_what_was_set() {
    let tls = TlsOptions::default();
    assert!(!tls.has_ca_in_memory() && !tls.has_certificate_key_in_memory());
    assert!(tls.own_provider().is_none() && tls.own_config().is_none());
    assert!(TlsOptions::default().ca_pem("x").has_ca_in_memory());
    assert!(TlsOptions::default().certificate_key_pem("x").has_certificate_key_in_memory());
}

#[cfg(feature = "oidc")]
#[test]
fn getters_tell_what_was_set_in_credentials() {
    use wharf::{CloudEnvironment, Credential, Mechanism, OidcContext, OidcToken};

    let plain = Credential::of(Mechanism::MongoDbOidc);
    assert!(!plain.has_oidc_callback() && !plain.has_oidc_human_callback());
    assert_eq!(plain.effective_allowed_hosts()[0], "*.mongodb.net");
    assert_eq!(plain.effective_cloud_environment(), &CloudEnvironment::default());
    assert!(!plain.effective_cloud_environment().has_own_variables());
    let callback = |_: OidcContext| async { Ok(OidcToken::new("a token")) };
    let cloud = CloudEnvironment::default().variables(|_| None);
    let human = plain.clone().oidc_human_callback(callback).allowed_hosts(["db"]).cloud_environment(cloud);
    assert!(!human.has_oidc_callback() && human.has_oidc_human_callback());
    assert!(plain.oidc_callback(callback).has_oidc_callback());
    assert_eq!(human.effective_allowed_hosts(), ["db"]);
    assert!(human.effective_cloud_environment().has_own_variables());
}

#[tokio::test]
async fn pool_shows_what_its_builder_has_set() {
    let builder = || Endpoint::new("localhost").unwrap().pool();
    let plain = builder().build().unwrap();
    assert_eq!((plain.timeout(), plain.slow_check_out(), plain.holds_are_reported_after()), (None, None, None));
    assert!(!plain.tokio_clock() && !plain.accounts_for_holders());
    assert_eq!(plain.runtime().unwrap().id(), Handle::current().id());
    assert_eq!(plain.options(), PoolOptions::default());

    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let other = Runtime::new().unwrap();
    let (timeout, options) = (builder().timeout(seconds(1)), PoolOptions::default().max_pool_size(7));
    let pool = timeout
        .options(options.clone())
        .slow_check_out(seconds(2))
        .report_holds_after(seconds(3))
        .runtime(other.handle().clone())
        .tokio_clock(true)
        .build()
        .unwrap();
    assert_eq!(
        (pool.timeout(), pool.slow_check_out(), pool.holds_are_reported_after()),
        (seconds(1), seconds(2), seconds(3))
    );
    assert!(pool.tokio_clock() && pool.accounts_for_holders());
    assert_eq!((pool.runtime().unwrap().id(), pool.options()), (other.handle().id(), options));
    other.shutdown_background();
    // When the pool is next used, it moves to the caller's runtime.
    pool.ready();
    let moved = async {
        while pool.runtime().is_none_or(|runtime| runtime.id() != Handle::current().id()) {
            tokio::task::yield_now().await;
            pool.ready();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), moved).await.expect("the pool has not moved");

    let accounts = builder().account_for_holders(true).build().unwrap();
    assert!(accounts.accounts_for_holders() && accounts.holds_are_reported_after().is_none());
}

#[tokio::test]
async fn load_balanced_field_reaches_the_pool() {
    let mut options = Options::new(["localhost"]).unwrap();
    options.load_balanced = Some(true);
    assert!(options.is_load_balanced());
    let pool = options.endpoint().unwrap().pool().build().unwrap();
    assert!(pool.options().load_balanced);
    let mut several = Options::new(["a", "b"]).unwrap();
    several.load_balanced = Some(true);
    assert_eq!(several.validate().unwrap_err().to_string(), "loadBalanced cannot be true with 2 hosts");
}

#[test]
fn load_balanced_pool_in_options_that_say_otherwise_is_refused() {
    let mut options = Options::new(["localhost"]).unwrap();
    options.pool = PoolOptions::default().load_balanced(true);
    assert!(options.is_load_balanced() && options.validate().is_ok());
    options.load_balanced = Some(false);
    let error = options.validate().unwrap_err().to_string();
    assert_eq!(error, "loadBalanced cannot be false if the pool's options say true");
}
