//! Models that leave a run for other programs, and that runs start from.

use std::fs;
use std::path::Path;

use hlo::{LeafSpec, Tree};
use lockstep::train::params_file::{self, SavedModel};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::{file, install_plugin, lockstep, names, text};

const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 2
width = 16
num_heads = 2
context = 8
vocabulary = 32
dropout = 0.25
scan_layers = true
[data]
source = "synthetic_tokens"
vocab_size = 32
context = 8
num_examples = 64
[train]
global_batch = 16
steps = 4
[optimizer]
name = "adamw"
ema_decay = 0.5
[schedule]
name = "constant"
peak = 0.01
[mesh]
data = 1
fsdp = 2
[checkpoint]
every_steps = 2
[compile.overrides]
xla_backend_optimization_level = 0
"#;

fn export(from: &Path, to: &Path, more: &[&str]) -> super::Outcome {
    lockstep(&[&["checkpoint", "export", text(from), "--to", text(to)], more].concat())
}

/// The bytes of the parameters at the end of a run.
fn train(config: &Path, out: &Path, more: &[&str]) -> Vec<u8> {
    lockstep(&[&["train", text(config), "--out", text(out)], more].concat()).succeeded();
    fs::read(out.join(params_file::FILE)).unwrap()
}

/// The configuration, a run of it, and the Hugging Face folder that was exported from it.
fn exported(dir: &Path) -> [std::path::PathBuf; 3] {
    install_plugin();
    let config = file(dir, "gpt.toml", GPT.as_bytes());
    let (run, folder) = (dir.join("run"), dir.join("folder"));
    train(&config, &run, &[]);
    let done = export(&run, &folder, &["--format", "huggingface"]).succeeded();
    assert!(done.stdout.contains("run/params.safetensors"), "{}", done.stdout);
    [config, run, folder]
}

#[test]
fn a_gpt_becomes_a_folder_that_transformers_loads() {
    let dir = tempfile::tempdir().unwrap();
    let [_, run, folder] = exported(dir.path());
    assert_eq!(names(&folder), ["config.json", "model.safetensors"]);
    assert_eq!(names(dir.path()), ["folder", "gpt.toml", "run"]);

    let config: Value =
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let expected = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 32,
        "n_positions": 8,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_inner": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "embd_pdrop": 0.25,
        "attn_pdrop": 0.25,
        "resid_pdrop": 0.25,
        "tie_word_embeddings": true,
        // Of this vocabulary nothing is known.
        "bos_token_id": null,
        "eos_token_id": null,
        "dtype": "float32",
        "torch_dtype": "float32",
    });
    assert_eq!(config, expected);

    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    let shape = |name: &str| weights.tensor(name).unwrap().shape().to_vec();
    assert_eq!(weights.len(), 2 * 12 + 4);
    assert_eq!(shape("transformer.wte.weight"), [32, 16]);
    assert_eq!(shape("transformer.wpe.weight"), [8, 16]);
    assert_eq!(shape("transformer.h.1.attn.c_attn.weight"), [16, 48]);
    assert_eq!(shape("transformer.h.1.mlp.c_proj.weight"), [64, 16]);
    assert_eq!(shape("transformer.ln_f.bias"), [16]);

    // What is read again is what was written.
    let params = SavedModel::find(&run).unwrap().values(true).unwrap();
    let specs = |_: &str, value: &hlo::Literal| LeafSpec::replicated(value.dtype(), value.dims());
    let specs: Tree<LeafSpec> = params.map(specs);
    assert_eq!(params_file::open(&folder, &specs).unwrap().read_all().unwrap(), params);

    for (name, from) in [("from_checkpoint", run.join("checkpoints")), ("raw", run)] {
        let to = dir.path().join(name);
        let raw: &[&str] = if name == "raw" { &["--without-ema"] } else { &[] };
        export(&from, &to, &[&["--format", "huggingface"], raw].concat()).succeeded();
        let found = fs::read(to.join("model.safetensors")).unwrap();
        assert_eq!(found == bytes, name != "raw", "{name}");
    }
}

#[test]
fn runs_start_from_whatever_holds_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let [config, run, folder] = exported(dir.path());
    let params = run.join(params_file::FILE);
    let sets = ["--set", "train.steps=1", "--set", "checkpoint.keep=0"];
    let start = |from: &Path, out: &str| {
        let more = [&sets[..], &["--init", text(from)]].concat();
        train(&config, &dir.path().join(out), &more)
    };
    let expected = start(&params, "from_file");
    let checkpoints = run.join("checkpoints");
    let newest = checkpoints.join("step_00000004");
    for (index, from) in [&run, &checkpoints, &newest, &folder].into_iter().enumerate() {
        assert!(start(from, &format!("from_{index}")) == expected, "{}", from.display());
    }
    let early = start(&checkpoints.join("step_00000002"), "early");
    assert!(early != expected);

    // A run that was continued and killed still has the file of its earlier end.
    let summary = run.join("summary.json");
    let text_of = fs::read_to_string(&summary).unwrap();
    fs::write(&summary, text_of.replace("\"done\"", "\"running\"")).unwrap();
    fs::remove_dir_all(&newest).unwrap();
    assert!(start(&run, "killed") == early);
    let said = lockstep(&[&["train", text(&config), "--init", text(&run)], &sets[..]].concat());
    let said = said.succeeded().stderr;
    let expected = "step_00000002 (after 2 steps, running means of the parameters)";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn what_cannot_be_exported_or_imported_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [config, run, folder] = exported(dir.path());
    let to = dir.path().join("to");
    let refused = |done: super::Outcome, fragments: &[&str]| {
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        for fragment in fragments {
            assert!(done.stderr.contains(fragment), "{fragment}: {}", done.stderr);
        }
        assert!(!to.exists());
    };
    let torchvision = [
        "torchvision has no model that computes the same",
        "\"gpt\"",
        "safetensors or huggingface",
    ];
    refused(export(&run, &to, &["--format", "torchvision"]), &torchvision);
    refused(export(&folder, &to, &[]), &["is not a checkpoint"]);
    refused(export(dir.path(), &to, &[]), &["neither checkpoints nor params.safetensors"]);
    let before = names(&folder);
    let taken = export(&run, &folder, &["--format", "huggingface"]);
    refused(taken, &["folder exists; choose another --to"]);
    assert_eq!(names(&folder), before);

    let mlp = dir.path().join("mlp");
    let sets = ["model.hidden=[8]", "train.epochs=1"];
    lockstep(&super::train_args(&sets, &["--out", text(&mlp)])).succeeded();
    let fragments = ["transformers has no model", "\"mlp\"", "choose --format safetensors\n"];
    refused(export(&mlp, &to, &["--format", "huggingface"]), &fragments);

    // Neither the number of heads nor the activation can be seen in shapes.
    let path = folder.join("config.json");
    let original = fs::read_to_string(&path).unwrap();
    let start = |from: &str, to: &str| {
        fs::write(&path, original.replace(from, to)).unwrap();
        let args = ["train", text(&config), "--set", "train.steps=1", "--init", text(&folder)];
        lockstep(&args)
    };
    refused(start("\"n_head\": 2", "\"n_head\": 4"), &["n_head is 4, but the model's is 2"]);
    refused(start("gelu_new", "gelu"), &["activation_function is \"gelu\""]);
    start("gelu_new", "gelu_pytorch_tanh").succeeded();
    refused(start("{", ""), &["config.json", "is not JSON"]);
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    refused(start("", ""), &["neither checkpoints nor params.safetensors, model.safetensors"]);
}
