//! The inputs under `fuzz/corpus`, each held against the properties of its target.

#![expect(clippy::disallowed_methods, reason = "the inputs are files")]

use std::fs;
use std::path::Path;

#[test]
fn every_property_holds_for_the_inputs_that_are_kept() {
    type Check = fn(&[u8]);
    let targets: [(&str, Check); 5] = [
        ("frame", super::frame::check),
        ("headers", super::headers::check),
        ("lines", super::lines::check),
        ("mirror", super::mirror::check),
        ("sse", super::sse::check),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");

    let mut there: Vec<_> = fs::read_dir(&folder).unwrap().map(name).collect();
    there.sort();
    assert_eq!(
        there,
        targets.map(|(target, _)| target),
        "a check for each folder"
    );
    for (target, check) in targets {
        let inputs: Vec<_> = fs::read_dir(folder.join(target)).unwrap().map(name).collect();
        assert!(inputs.len() > 5, "{target}: {} inputs", inputs.len());
        for input in inputs {
            let data = fs::read(folder.join(target).join(&input)).unwrap();
            let held = std::panic::catch_unwind(|| check(&data));
            assert!(held.is_ok(), "fuzz/corpus/{target}/{input}");
        }
    }
}

fn name(entry: std::io::Result<fs::DirEntry>) -> String {
    entry.unwrap().file_name().into_string().unwrap()
}
