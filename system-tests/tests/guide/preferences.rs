use std::time::Duration;

use wharf::{InvalidOption, Options, ReadPreference, ReadPreferenceMode, WriteConcern};

/// Returns options that read from secondaries in New York, or else from any secondary, or else from the primary.
pub fn options(uri: &str) -> Result<Options, InvalidOption> {
    let any_tags: [(&str, &str); 0] = [];
    let nearby = ReadPreference::new(ReadPreferenceMode::SecondaryPreferred)
        .tag_set([("dc", "ny")])
        .tag_set(any_tags)
        .max_staleness(Duration::from_secs(120));
    let options = Options::parse(uri)?.read_preference(nearby);
    Ok(options.read_concern("majority").write_concern(WriteConcern::majority()))
}
