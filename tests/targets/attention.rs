//! cuDNN's attention in a step for a GPU.

use super::{compile, config, text_data};

const MODEL: &str = "name = \"gpt\"\nnum_layers = 1\nwidth = 256\nnum_heads = 4\n\
                     context = 1024\nvocabulary = 256";

/// With cuDNN no scores are kept for the backward pass, and the report says what that saves.
#[test]
#[ignore = "compiles for minutes; of the full set"]
fn attention_by_cudnn_saves_memory_and_traffic_on_h100() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MODEL, &text_data(1024), 8);
    let dump = dir.path().join("dump");
    let more = ["--set", "compile.kernels=all", "--dump", dump.to_str().unwrap()];
    let (code, report) = compile(&path, "gpu:h100:1x2", &more);
    assert_eq!(code, Some(0));
    let listing = std::fs::read_to_string(dump.join("optimized.txt")).unwrap();
    for target in ["__cudnn$fmhaSoftmax\n", "__cudnn$fmhaSoftmaxBackward\n"] {
        assert_eq!(listing.matches(target).count(), 1, "{target}{listing}");
    }
    let forms = report["attention_forms"].as_array().unwrap();
    let [by_cudnn, as_ops] = &forms[..] else { panic!("{report}") };
    assert!(by_cudnn["is_by_cudnn"] == true && as_ops["is_by_cudnn"] == false, "{report}");
    let of = |key: &str| [by_cudnn, as_ops].map(|form| form[key].as_u64().unwrap());
    assert_eq!(of("peak_bytes")[0], report["memory"]["peak_bytes"].as_u64().unwrap());
    // Scores of a layer, and their softmax: 8 examples x 4 heads x 1024 x 1024.
    let scores: u64 = 8 * 4 * 1024 * 1024;
    let [with, without] = of("temporaries_bytes");
    assert!(with + 2 * scores < without, "{with} and {without}");
    let [with, without] = of("traffic_bytes");
    assert!(with + 2 * 4 * scores < without, "{with} and {without}");

    assert_eq!(report["num_cudnn_calls"], 2);
}

#[test]
#[ignore = "compiles for minutes; of the full set"]
fn there_is_no_attention_by_cudnn_in_f32() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MODEL, &text_data(1024), 8);
    let more = ["--set", "compile.kernels=all", "--set", "train.precision=f32"];
    let (code, report) = compile(&path, "gpu:h100:1x2", &more);
    assert_eq!(code, Some(0));
    assert_eq!(report["attention_forms"].as_array().map(Vec::len), Some(0), "{report}");
}
