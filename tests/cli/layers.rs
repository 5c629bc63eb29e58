//! `observe.layers_every`: the norms of each parameter in `layers.jsonl`, for TensorBoard, and on
//! the page of `report`; and `observe.noise_scale_every`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::tensorboard::{histograms, scalars};
use super::{lockstep, metrics, text, train_args};

fn lines(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("layers.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_that_is_continued_has_the_norms_of_each_observed_step_once() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let run = |epochs: &str, more: &[&str]| {
        let sets = [
            "observe.layers_every=10",
            "observe.tensorboard=true",
            "train.steps_per_launch=4",
            "checkpoint.every_steps=12",
            "mesh.data=2",
            "model.hidden=[8]",
            epochs,
        ];
        lockstep(&train_args(&sets, &[&["--out", text(&out)], more].concat())).succeeded()
    };
    run("train.epochs=1", &[]);
    run("train.epochs=2", &["--resume"]);
    let (lines, metrics) = (lines(&out), metrics(&out));
    assert_eq!(metrics.len(), 44);
    let steps: Vec<_> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [9, 19, 29, 39]);
    let scalars = scalars(&out);
    for line in &lines {
        let step = line["step"].as_u64().unwrap();
        let layers = line["layers"].as_object().unwrap();
        assert_eq!(layers.len(), 6, "{line}");
        let mut squares = 0.0;
        for (name, norms) in layers {
            let norm = |kind: &str| norms[kind].as_f64().unwrap();
            squares += norm("grad_norm").powi(2);
            let ratio = norm("update_norm") / norm("param_norm");
            assert!((norm("update_ratio") - ratio).abs() < 1e-12, "{name}: {norms}");
            for kind in ["param_norm", "grad_norm", "update_norm", "update_ratio"] {
                let place = (format!("{kind}/{name}"), step as i64);
                assert_eq!(scalars.get(&place), Some(&(norm(kind) as f32)), "{place:?}");
            }
        }
        let grad_norm = metrics[step as usize]["grad_norm"].as_f64().unwrap();
        assert!((squares.sqrt() - grad_norm).abs() < 1e-5 * grad_norm, "{line}: {grad_norm}");
    }

    // All 64 x 8 weights, in buckets one after the other, around the norm's share of each.
    let histograms = histograms(&out);
    assert_eq!(histograms.len(), 4 * 6);
    let buckets = &histograms[&("params/blocks.0.linear.weight".to_owned(), 39)];
    assert_eq!(buckets.iter().map(|bucket| bucket[2]).sum::<f64>(), 512.0);
    assert!(buckets.windows(2).all(|pair| pair[0][1] == pair[1][0]), "{buckets:?}");
    let param_norm = lines[3]["layers"]["blocks.0.linear.weight"]["param_norm"].as_f64().unwrap();
    let middle = |bucket: &[f64; 3]| bucket[2] * ((bucket[0] + bucket[1]) / 2.0).powi(2);
    let from_buckets = buckets.iter().map(middle).sum::<f64>().sqrt();
    assert!((from_buckets / param_norm - 1.0).abs() < 0.05, "{from_buckets}: {param_norm}");

    let to = dir.path().join("page.html");
    let report = lockstep(&["report", "--json", "--to", text(&to), text(&out)]).succeeded().json();
    let page = fs::read_to_string(to).unwrap();
    assert!(page.contains("After step 40: 0 of 6 parameters with an update above 0.1"), "{page}");
    let (_, chart) = page.split_once("aria-label=\"update_ratio by step").unwrap();
    let (chart, _) = chart.split_once("</svg>").unwrap();
    assert_eq!(chart.matches("<path class=\"thin c0\"").count(), 6, "{chart}");
    assert!(chart.contains("<title>blocks.0.linear.weight</title>"), "{chart}");
    let layers = report["runs"][0]["layers"].as_array().unwrap();
    for (place, layer) in layers.iter().enumerate() {
        let name = layer["name"].as_str().unwrap();
        let ratio = |line: &Value| line["layers"][name]["update_ratio"].as_f64().unwrap();
        assert_eq!(layer["update_ratio"], ratio(&lines[3]), "{name}");
        let largest = lines.iter().map(ratio).fold(0.0, f64::max);
        assert_eq!(layer["max_ratio"], largest, "{name}");
        let curve = layer["ratios"].as_array().unwrap();
        let found: Vec<_> = curve.iter().map(|of| of["update_ratio"].as_f64().unwrap()).collect();
        assert_eq!(found, lines.iter().map(ratio).collect::<Vec<_>>(), "{name}");
        let row = format!("{name}</th><td class=\"number\">{:.4}", ratio(&lines[3]));
        let is_small = ratio(&lines[3]) < 1e-3;
        assert!(is_small || page.contains(&row), "{place}: {row}");
    }
}

#[test]
fn without_the_key_there_is_no_file_and_the_page_says_how_to_get_one() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = ["train.epochs=1", "model.hidden=[8]"];
    lockstep(&train_args(&sets, &["--out", text(&out)])).succeeded();
    assert!(!out.join("layers.jsonl").exists());
    let to = dir.path().join("page.html");
    lockstep(&["report", "--to", text(&to), text(&out)]).succeeded();
    assert!(fs::read_to_string(to).unwrap().contains("observe.layers_every = 100 records them"));
}

#[test]
fn the_critical_batch_stands_beside_the_global_batch() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = ["train.epochs=2", "mesh.data=2", "observe.noise_scale_every=4"];
    let run = lockstep(&train_args(&sets, &["--json", "--out", text(&out)])).succeeded();
    let (lines, summary) = (metrics(&out), run.json());
    let scale = summary["noise_scale"].as_f64().unwrap();
    for (step, line) in lines.iter().enumerate() {
        assert_eq!(line.get("noise_scale").is_some(), step >= 3, "{line}");
    }
    assert_eq!(lines[43]["noise_scale"], scale);
    let text_of = format!(
        "radient noise scale: it suggests a critical batch of about {scale:.0} examples; the \
         global batch is 64:"
    );
    assert!(scale > 0.0 && run.stderr.contains(&format!("g{text_of}")), "{}", run.stderr);
    let to = dir.path().join("page.html");
    let page = lockstep(&["report", "--to", text(&to), text(&out)]);
    page.succeeded();
    let page = fs::read_to_string(to).unwrap();
    assert!(page.contains(&format!("G{text_of}")) && page.contains("data-chart=\"noise_scale\""));
}

/// Surplus microbatches are repeated examples: a run with them goes on, and says what it lacks.
#[test]
fn with_surplus_microbatches_there_is_no_noise_scale() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = [
        "train.epochs=1",
        "mesh.data=3",
        "train.microbatch=16",
        "observe.noise_scale_every=4",
        "model.hidden=[8]",
    ];
    let run = lockstep(&train_args(&sets, &["--out", text(&out)])).succeeded();
    assert!(run.stderr.contains("none that is surplus"), "{}", run.stderr);
    assert!(metrics(&out).iter().all(|line| line.get("noise_scale").is_none()));
}
