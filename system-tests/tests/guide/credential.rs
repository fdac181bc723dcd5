use wharf::{Credential, InvalidOption, Options, TlsOptions};

pub fn options() -> Result<Options, InvalidOption> {
    let user = Credential::new("app", "secret").source("admin");
    Ok(Options::new(["db.example.com"])?.credential(user).tls(TlsOptions::default()))
}
