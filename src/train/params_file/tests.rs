use std::path::Path;

use hlo::{DType, LeafSpec, Literal, Tree};

use super::{Error, FILE, SavedModel, open, save};
use crate::train::ModelValues;

fn example() -> Tree<Literal> {
    let weight = Literal::from_slice(&[2, 2], &[1.0f32, -2.0, 3.5, f32::MIN_POSITIVE]);
    Tree::from_iter([
        ("b.10.weight".to_owned(), weight),
        ("b.2.bias".to_owned(), Literal::from_slice(&[1], &[4.0f32])),
    ])
}

fn load(path: &Path, specs: &Tree<LeafSpec>) -> Result<Tree<Literal>, Error> {
    open(path, specs)?.read_all()
}

fn specs(params: &Tree<Literal>) -> Tree<LeafSpec> {
    params.map(|_, literal| LeafSpec::replicated(literal.dtype(), literal.dims()))
}

#[test]
fn saved_parameters_can_be_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    save(&path, &example()).unwrap();
    assert_eq!(load(&path, &specs(&example())).unwrap(), example());
}

#[test]
fn parameters_that_do_not_fit_the_model_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let specs = specs(&example());
    let message = |specs: &Tree<LeafSpec>| load(&path, specs).unwrap_err().to_string();
    assert!(message(&specs).contains("cannot read the parameters"));

    save(&path, &example()).unwrap();
    let mut more = specs.clone();
    more.insert("head.bias", LeafSpec::replicated(DType::F32, &[1]));
    assert!(message(&more).contains("`head.bias` is missing"));
    let mut other = specs.clone();
    other.insert("b.2.bias", LeafSpec::replicated(DType::F32, &[2]));
    assert!(message(&other).contains("`b.2.bias` is F32[1], but the model's is f32[2]"));
    assert!(message(&Tree::new()).contains("which the model does not have"));

    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    assert!(message(&specs).contains("damaged"));
}

#[test]
fn nonfinite_values_are_neither_saved_nor_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    save(&path, &example()).unwrap();
    let good = std::fs::read(&path).unwrap();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut params = example();
        params.insert("b.2.bias", Literal::from_slice(&[1], &[bad]));
        let error = save(&path, &params).unwrap_err().to_string();
        assert!(error.contains("cannot write the parameters"), "{error}");
        assert!(error.contains("`b.2.bias` holds values that are infinite or NaN"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), good, "the old file stays");

        let damaged = dir.path().join("damaged.safetensors");
        let bytes = good.windows(4).position(|bytes| bytes == 4f32.to_ne_bytes()).unwrap();
        let mut file = good.clone();
        file[bytes..bytes + 4].copy_from_slice(&bad.to_ne_bytes());
        std::fs::write(&damaged, file).unwrap();
        let error = load(&damaged, &specs(&example())).unwrap_err().to_string();
        assert!(error.contains("`b.2.bias` holds values that are infinite or NaN"), "{error}");
    }
}

#[test]
fn floats_of_another_width_are_converted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let load_as = |from: DType, to: DType, values: &[f64]| {
        let params =
            Tree::from_iter([("w".to_owned(), Literal::from_f64(from, &[values.len()], values))]);
        save(&path, &params).unwrap();
        let specs = params.map(|_, literal| LeafSpec::replicated(to, literal.dims()));
        load(&path, &specs).map(|params| params["w"].clone())
    };
    let floats = [DType::F64, DType::F32, DType::Bf16, DType::F16];
    for from in floats {
        for to in floats {
            let loaded = load_as(from, to, &[0.5, -3.0, 0.0, 96.0]).unwrap();
            let expected = Literal::from_f64(to, &[4], &[0.5, -3.0, 0.0, 96.0]);
            assert_eq!(loaded, expected, "{from} as {to}");
        }
    }
    // Rounded once: through f32, the first value would become a tie and be rounded down.
    let above_tie = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    let rounded = load_as(DType::F64, DType::Bf16, &[above_tie, 1e-300]).unwrap();
    assert_eq!(rounded.to_f64(), [1.0 + 2f64.powi(-7), 0.0]);

    let too_large = [(DType::F64, DType::F32, -1e39), (DType::F32, DType::F16, 65536.0)];
    for (from, to, value) in too_large {
        let error = load_as(from, to, &[1.0, value]).unwrap_err().to_string();
        let expected = format!("`w` holds {value:e}, which is too large for {to}");
        assert!(error.contains(&expected), "{error}");
    }
    let error = load_as(DType::I32, DType::F32, &[1.0]).unwrap_err().to_string();
    assert!(error.contains("`w` is I32[1], but the model's is f32[1]"), "{error}");
}

/// Files of earlier versions, and those of Hugging Face's GPT-2, have queries, keys and values in
/// one tensor, as rows or as columns.
#[test]
fn fused_parameters_are_read_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let numbers = |dims: &[usize], values: &[f32]| Literal::from_slice(dims, values);
    let rows = numbers(&[6, 2], &[0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11.]);
    let columns = numbers(&[2, 6], &[0., 2., 4., 6., 8., 10., 1., 3., 5., 7., 9., 11.]);
    let bias = numbers(&[6], &[0., 1., 2., 3., 4., 5.]);
    let spec = |dims: &[usize]| LeafSpec::replicated(DType::F32, dims);
    let name = |part: &str, kind: &str| format!("blocks.0.attn.{part}.{kind}");
    let specs: Tree<_> = ["query", "key", "value"]
        .iter()
        .flat_map(|part| [(name(part, "weight"), spec(&[2, 2])), (name(part, "bias"), spec(&[2]))])
        .collect();
    for (weight, names) in [
        (rows, [name("qkv", "weight"), name("qkv", "bias")]),
        (columns, ["weight", "bias"].map(|kind| format!("transformer.h.0.attn.c_attn.{kind}"))),
    ] {
        let tensors = names.clone().into_iter().zip([weight, bias.clone()]);
        save(&path, &tensors.collect()).unwrap();
        let found = load(&path, &specs).unwrap();
        assert_eq!(found[&*name("query", "weight")].to_f64(), [0.0, 1.0, 2.0, 3.0], "{names:?}");
        assert_eq!(found[&*name("key", "weight")].to_f64(), [4.0, 5.0, 6.0, 7.0], "{names:?}");
        assert_eq!(found[&*name("value", "weight")].to_f64(), [8.0, 9.0, 10.0, 11.0], "{names:?}");
        assert_eq!(found[&*name("value", "bias")].to_f64(), [4.0, 5.0], "{names:?}");
        let piece = open(&path, &specs).unwrap();
        let piece = piece.piece(&name("key", "weight"), &spec(&[2, 2]), &[1, 1], &[1, 1]).unwrap();
        assert_eq!(piece.to_f64(), [7.0], "{names:?}");
    }
}

/// A linear layer from 3 to 2 features in the layout of Hugging Face's GPT-2, `[in, out]`.
fn of_gpt2() -> Tree<Literal> {
    let matrix = Literal::from_slice(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    Tree::from_iter([
        ("transformer.h.0.mlp.c_fc.weight".to_owned(), matrix.clone()),
        ("transformer.wte.weight".to_owned(), matrix.clone()),
        ("transformer.h.0.attn.bias".to_owned(), Literal::from_slice(&[1], &[1u8])),
        ("lm_head.weight".to_owned(), matrix),
    ])
}

#[test]
fn a_foreign_file_is_recognized_by_its_names_and_transposed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    save(&path, &of_gpt2()).unwrap();
    let specs = |paths: &[(&str, [usize; 2])]| -> Tree<LeafSpec> {
        let leaf = |(path, dims): &(&str, [usize; 2])| {
            ((*path).to_owned(), LeafSpec::replicated(DType::F32, dims))
        };
        paths.iter().map(leaf).collect()
    };
    let (up, embed) = (("blocks.0.mlp.up.weight", [2, 3]), ("embed.weight", [3, 2]));
    let loaded = load(&path, &specs(&[up, embed])).unwrap();
    assert_eq!(loaded[up.0].as_slice::<f32>(), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    assert_eq!(loaded[embed.0].as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);

    let message = |paths: &[_]| load(&path, &specs(paths)).unwrap_err().to_string();
    let other = message(&[("stem.conv.weight", [1, 1])]);
    assert!(other.contains("a Hugging Face GPT-2, which has no tensor for the model's `stem.conv"));
    assert!(message(&[embed]).contains("`transformer.h.0.mlp.c_fc.weight`, which the model"));
    let missing = message(&[up, embed, ("blocks.1.mlp.up.weight", [2, 3])]);
    assert!(missing.contains("`h.1.mlp.c_fc.weight` is missing"), "{missing}");
    let turned = message(&[("blocks.0.mlp.up.weight", [3, 2]), embed]);
    assert!(turned.contains("is F32[3, 2], but the model's is f32[2, 3]"), "{turned}");

    let half = |_: &str, literal: &Literal| {
        let dtype = if literal.dtype().is_float() { DType::F16 } else { literal.dtype() };
        Literal::from_f64(dtype, literal.dims(), &literal.to_f64())
    };
    save(&path, &of_gpt2().map(half)).unwrap();
    assert_eq!(load(&path, &specs(&[up, embed])).unwrap(), loaded);

    let mut untied = of_gpt2();
    untied.insert("lm_head.weight", Literal::zeros(DType::F32, &[3, 2]));
    save(&path, &untied).unwrap();
    assert!(message(&[up, embed]).contains("`lm_head.weight` has its own values"));
    // Every model of this kind has that head, so that it is no other model's.
    let below = SavedModel::find(&path).unwrap().open_below_head(&specs(&[up, embed]));
    assert!(below.unwrap_err().to_string().contains("`lm_head.weight` has its own values"));
}

/// Tensors by name.
type Named<'a> = &'a [(&'a str, &'a Literal)];

/// transformers writes one of two names of a tensor, and reads both.
#[test]
fn a_tied_tensor_is_taken_under_either_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let spec = |dims: &[usize]| LeafSpec::replicated(DType::F32, dims);
    let matrix = Literal::from_slice(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let bias = Literal::from_slice(&[3], &[7.0f32, 8.0, 9.0]);
    let norm = Literal::from_slice(&[2], &[1.0f32, 2.0]);
    let bert = "bert.embeddings.LayerNorm.weight";
    let cases: [(Named<'_>, Named<'_>); 5] = [
        (
            &[("lm_head.weight", &matrix), ("transformer.ln_f.weight", &norm)],
            &[("embed.weight", &matrix), ("norm.weight", &norm)],
        ),
        (
            &[("cls.predictions.decoder.weight", &matrix), (bert, &norm)],
            &[("embed.weight", &matrix), ("embed.norm.weight", &norm)],
        ),
        (
            &[
                ("cls.predictions.decoder.weight", &matrix),
                ("cls.predictions.decoder.bias", &bias),
                (bert, &norm),
            ],
            &[("embed.weight", &matrix), ("vocabulary.bias", &bias)],
        ),
        (
            &[
                ("bert.embeddings.word_embeddings.weight", &matrix),
                ("cls.predictions.decoder.bias", &bias),
            ],
            &[("embed.weight", &matrix), ("vocabulary.bias", &bias)],
        ),
        (
            &[
                ("vocab_projector.weight", &matrix),
                ("distilbert.embeddings.LayerNorm.weight", &norm),
            ],
            &[("embed.weight", &matrix), ("embed.norm.weight", &norm)],
        ),
    ];
    for (file, model) in cases {
        let file: Tree<_> =
            file.iter().map(|(name, value)| ((*name).to_owned(), (*value).clone())).collect();
        save(&path, &file).unwrap();
        let mut specs: Tree<_> =
            model.iter().map(|(name, value)| ((*name).to_owned(), spec(value.dims()))).collect();
        if file.get(bert).is_some() {
            specs.insert("embed.norm.weight", spec(&[2]));
        }
        let (below, unmatched) = SavedModel::find(&path).unwrap().open_below_head(&specs).unwrap();
        assert!(unmatched.unused.is_empty() && unmatched.missing.is_empty(), "{unmatched:?}");
        let found = load(&path, &specs).unwrap();
        assert_eq!(found, below.read_all().unwrap());
        for (name, value) in model {
            assert_eq!(found[*name], **value, "{name}");
        }
    }
    // Both names, with values of their own.
    let file: Tree<_> =
        [("bert.embeddings.word_embeddings.weight", &matrix), ("cls.predictions.bias", &bias)]
            .into_iter()
            .chain([("cls.predictions.decoder.bias", &Literal::zeros(DType::F32, &[3]))])
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
    save(&path, &file).unwrap();
    let specs = [("embed.weight", spec(&[3, 2])), ("vocabulary.bias", spec(&[3]))];
    let specs: Tree<_> = specs.map(|(name, spec)| (name.to_owned(), spec)).into_iter().collect();
    let error = load(&path, &specs).unwrap_err().to_string();
    assert!(
        error.contains("decoder.bias` has its own values, but the model ties it to `cls"),
        "{error}"
    );
    // A model without that head needs neither.
    let specs = Tree::from_iter([("embed.weight".to_owned(), spec(&[3, 2]))]);
    let (_, unmatched) = SavedModel::find(&path).unwrap().open(&specs).unwrap();
    assert_eq!(unmatched.unused, ["cls.predictions.bias", "cls.predictions.decoder.bias"]);
    // A head that is needed is not drawn here.
    let mut more = specs.clone();
    more.insert("classifier.bias", spec(&[2]));
    let error = load(&path, &more).unwrap_err().to_string();
    assert!(
        error.contains("`classifier.bias` is missing: a head that the file does not have"),
        "{error}"
    );
}

/// A process reads its own shards, and nothing else.
#[test]
fn pieces_are_read_alone_in_any_layout() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let values: Vec<f64> = (0..12).map(f64::from).collect();
    let matrix = Literal::from_f64(DType::Bf16, &[4, 3], &values);
    let file = [("transformer.h.0.mlp.c_fc.weight", &matrix), ("transformer.wte.weight", &matrix)];
    let file: Tree<_> =
        file.map(|(path, value)| (path.to_owned(), value.clone())).into_iter().collect();
    save(&path, &file).unwrap();
    let (up, embed) = ("blocks.0.mlp.up.weight", "embed.weight");
    let spec = |dims: &[usize]| LeafSpec::replicated(DType::F32, dims);
    let specs: Tree<_> = [(up, spec(&[3, 4])), (embed, spec(&[4, 3]))]
        .map(|(path, spec)| (path.to_owned(), spec))
        .into_iter()
        .collect();
    let whole = load(&path, &specs).unwrap();
    let check = |of: &[(&str, [usize; 2], [usize; 2])]| {
        let model = open(&path, &specs).unwrap();
        for (leaf, start, dims) in of {
            let piece = model.piece(leaf, &specs[*leaf], start, dims).unwrap();
            assert_eq!(piece, whole[*leaf].slice(start, dims), "{leaf} at {start:?}");
        }
    };
    let pieces = [
        (up, [0, 2], [3, 2]),
        (up, [1, 0], [1, 4]),
        (embed, [2, 0], [1, 3]),
        (embed, [0, 1], [4, 1]),
    ];
    check(&pieces);

    // The last row of each matrix in the file is damaged.
    let mut bytes = std::fs::read(&path).unwrap();
    let num_bytes = bytes.len();
    for end in [num_bytes, num_bytes - matrix.num_bytes()] {
        bytes[end - 6..end].fill(0xff);
    }
    std::fs::write(&path, bytes).unwrap();
    let row = [0, 0];
    check(&[(up, row, [3, 3]), (embed, row, [3, 3])]);
    let model = open(&path, &specs).unwrap();
    for (leaf, start) in [(up, [0, 3]), (embed, [3, 0])] {
        let error = model.piece(leaf, &specs[leaf], &start, &[1, 1]).unwrap_err().to_string();
        assert!(error.contains("infinite or NaN"), "{error}");
    }
}

#[test]
fn a_folder_may_have_several_files_and_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, keep: &dyn Fn(&str) -> bool| {
        let part = of_gpt2().into_iter().filter(|(path, _)| keep(path)).collect();
        save(&dir.path().join(name), &part).unwrap();
    };
    let index = dir.path().join("model.safetensors.index.json");
    let index_of = |files: [&str; 2]| {
        let [first, second] = files;
        let map = serde_json::json!({"weight_map": {"a": first, "b": second, "c": first}});
        std::fs::write(&index, map.to_string()).unwrap();
    };
    let leaf = |(path, dims): (&str, [usize; 2])| {
        (path.to_owned(), LeafSpec::replicated(DType::F32, &dims))
    };
    let specs: Tree<LeafSpec> = [("blocks.0.mlp.up.weight", [2, 3]), ("embed.weight", [3, 2])]
        .map(leaf)
        .into_iter()
        .collect();
    let message = || load(dir.path(), &specs).unwrap_err().to_string();
    assert!(message().contains("neither checkpoints nor params.safetensors"), "{}", message());

    let whole = dir.path().join("whole.safetensors");
    save(&whole, &of_gpt2()).unwrap();
    let expected = load(&whole, &specs).unwrap();
    write("1.safetensors", &|path| path.contains("wte") || path.contains("lm_head"));
    write("2.safetensors", &|path| path.contains("h.0"));
    index_of(["1.safetensors", "2.safetensors"]);
    assert_eq!(load(dir.path(), &specs).unwrap(), expected);

    index_of(["1.safetensors", "1.safetensors"]);
    assert!(message().contains("`h.0.mlp.c_fc.weight` is missing"), "{}", message());
    write("2.safetensors", &|_| true);
    index_of(["1.safetensors", "2.safetensors"]);
    assert!(message().contains("as another file of the model does"), "{}", message());
    index_of(["1.safetensors", "../2.safetensors"]);
    assert!(message().contains("`../2.safetensors`, which is not the name of a file"));
    index_of(["1.safetensors", "3.safetensors"]);
    assert!(message().contains("3.safetensors"), "{}", message());
    std::fs::write(&index, "{}").unwrap();
    assert!(message().contains("it has no weight_map"), "{}", message());
}
