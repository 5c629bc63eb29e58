//! `tokenize LINES.tsv TOKENIZER`: encodes the column `sentence` on all cores, and prints the
//! seconds that it took and how many tokens there are. `benches/peers/tokenizing.py` runs it beside
//! Python's `tokenizers`.

use std::path::Path;
use std::time::Instant;

use lockstep::data::{TextEncoder, read_text_rows};
use rayon::prelude::*;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [lines, tokenizer] = &arguments[..] else {
        println!("run by benches/peers/tokenizing.py");
        return;
    };
    let rows = read_text_rows(Path::new(lines), "LINES.tsv", &["sentence"]).unwrap();
    let encoder = TextEncoder::open(Path::new(tokenizer), "TOKENIZER", 512, true).unwrap();
    let start = Instant::now();
    let encoded: Vec<_> =
        rows.par_iter().map(|row| encoder.encode(&row.cells[0], None).unwrap()).collect();
    let seconds = start.elapsed().as_secs_f64();
    println!("{seconds} {}", encoded.iter().map(|text| text.ids.len()).sum::<usize>());
}
