use wharf::{Credential, InvalidAddress, Options, TlsOptions};

pub fn options() -> Result<Options, InvalidAddress> {
    let user = Credential::new("app", "secret").source("admin");
    Ok(Options::new(["db.example.com"])?.credential(user).tls(TlsOptions::default()))
}
