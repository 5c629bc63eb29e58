//! Sizes and offsets of the declared structs against the C header that the plugin's wheel ships.

use std::fmt::Write;
use std::process::Command;

use lockstep::pjrt::{API_MAJOR, API_MINOR, EXTENSION_BASE, LAYOUTS};

use crate::programs::found;

#[test]
fn every_struct_has_the_size_and_offsets_of_the_header() {
    let include = found().path.with_file_name("include");
    let mut source = String::from(
        "#include <stdio.h>\n#include \"pjrt_c_api.h\"\n#define SIZE(s) printf(#s \" %zu %zu\\n\", \
         sizeof(s), (size_t)s##_STRUCT_SIZE);\n#define FIELD(s, f) printf(#s \".\" #f \" %zu \
         %zu\\n\", offsetof(s, f), sizeof(((s*)0)->f));\nint main(void) \
         {\n  printf(\"version %d %d\\n\", PJRT_API_MAJOR, PJRT_API_MINOR);\n",
    );
    let mut expected = format!("version {API_MAJOR} {API_MINOR}\n");
    for layout in LAYOUTS.iter().chain([&EXTENSION_BASE]) {
        let _ = writeln!(source, "  SIZE({})", layout.name);
        let _ = writeln!(expected, "{} {} {}", layout.name, layout.size, layout.struct_size);
        for field in layout.fields {
            let name = field.name.trim_start_matches("r#");
            let _ = writeln!(source, "  FIELD({}, {name})", layout.name);
            let _ = writeln!(expected, "{}.{name} {} {}", layout.name, field.offset, field.size);
        }
    }
    source += "  return 0;\n}\n";

    let dir = tempfile::tempdir().unwrap();
    let (c_file, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&c_file, source).unwrap();
    let compiled = Command::new("cc")
        .arg("-I")
        .arg(include)
        .arg(&c_file)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    let differing: Vec<String> = expected
        .lines()
        .zip(found.lines())
        .filter(|(ours, theirs)| ours != theirs && !is_end_of_table(ours, theirs))
        .map(|(ours, theirs)| format!("declared {ours}, header {theirs}"))
        .collect();
    assert_eq!(expected.lines().count(), found.lines().count());
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Functions past the last one that is called are not declared, so the table may be shorter.
fn is_end_of_table(ours: &str, theirs: &str) -> bool {
    let size = |line: &str| line.split(' ').nth(1).and_then(|size| size.parse::<usize>().ok());
    ours.starts_with("PJRT_Api ") && theirs.starts_with("PJRT_Api ") && size(ours) < size(theirs)
}
