//! The half of the `bson_corpus` suite that covers BSON bytes, which wharf reads and writes through the `bson` crate.
//! The other half covers extended JSON, which wharf does not read.

use std::fs;

use bson::{Document, RawDocumentBuf};
use serde_json::Value;
use wharf_testbed::edition::{Edition, root};
use wharf_testbed::table::{Row, show};

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().expect("hexadecimal digits");
    let byte = |place: usize| u8::from_str_radix(&hex[place..place + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Decodes all values in a document, and encodes them again.
fn read_and_write(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let raw = RawDocumentBuf::from_bytes(bytes).map_err(|error| error.to_string())?;
    let document = Document::try_from(raw).map_err(|error| error.to_string())?;
    RawDocumentBuf::try_from(&document).map(RawDocumentBuf::into_bytes).map_err(|error| error.to_string())
}

#[test]
fn documents_of_the_suite_are_read_and_written() {
    let folder = root().join("bson_corpus");
    if Edition::present() == Edition::Fetched {
        return;
    }
    let (mut files, mut cases, mut failed) = (0, 0, Vec::new());
    for entry in fs::read_dir(folder).unwrap() {
        let file: Value = serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap();
        files += 1;
        let of = |name: &str| file[name].as_array().cloned().unwrap_or_default();
        for case in of("valid") {
            cases += 1;
            let canonical = bytes(&case["canonical_bson"]);
            let others =
                ["degenerate_bson", "converted_bson"].map(|name| case.get(name).filter(|_| name == "degenerate_bson"));
            for given in [Some(&case["canonical_bson"])].into_iter().chain(others).flatten() {
                let outcome = read_and_write(bytes(given));
                if outcome.as_ref() != Ok(&canonical) {
                    failed.push(format!("{}, {}: {outcome:02x?}", file["description"], case["description"]));
                }
            }
        }
        for case in of("decodeErrors") {
            cases += 1;
            if read_and_write(bytes(&case["bson"])).is_ok() {
                failed.push(format!("{}, {}: it is read", file["description"], case["description"]));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(cases > 0);
    show([Row { files, ..Row::passed("bson_corpus", cases) }], "");
}
