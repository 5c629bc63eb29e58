//! The page of `report` in headless Chromium: no errors, all points, exact numbers, zoom, theme,
//! toggles, and curves without JavaScript. Where there is no Chromium, stderr says that nothing was
//! tested; with `LOCKSTEP_NEED_CHROMIUM`, as in `.ci/run`, that is a failure.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::pipeline::GPT;
use super::report::{long_page, runs};
use super::restarted::restarted;
use super::{file, lockstep, metrics, text};

/// The browser, if there is one.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|dir| ["chromium", "chromium-browser"].map(|name| dir.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        let text = "there is no chromium in PATH: the page of `report` was opened in no browser";
        let is_needed = std::env::var_os("LOCKSTEP_NEED_CHROMIUM").is_some();
        assert!(!is_needed, "{text}; `apt-get install chromium` installs it");
        // Not captured as the words of a test that passes are.
        let _ = writeln!(std::io::stderr(), "NOT TESTED: {text}");
    }
    found
}

/// What the browser makes of a page: its document after the scripts, and its console.
fn open(browser: &Path, page: &str, options: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", text(profile.path()));
    let output = Command::new("timeout")
        .arg("90")
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", &profile])
        .args(["--no-first-run", "--disable-dev-shm-usage", "--enable-logging=stderr"])
        .arg("--window-size=1600,1200")
        .args(options)
        .arg(page)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    let console: Vec<_> = stderr.lines().filter(|line| line.contains("CONSOLE")).collect();
    (String::from_utf8(output.stdout).unwrap(), console.join("\n"))
}

/// As much time as the scripts of a page ask for, without waiting for it.
const VIRTUAL_TIME: &str = "--virtual-time-budget=3000";

fn dumped(browser: &Path, page: &Path) -> (String, String) {
    open(browser, &format!("file://{}", text(page)), &["--dump-dom", VIRTUAL_TIME])
}

/// The page of these runs in a directory.
fn page(dir: &Path, runs: &[&Path]) -> PathBuf {
    let to = dir.join(format!("{}.html", runs.len()));
    let mut args = vec!["report", "--to", text(&to)];
    args.extend(runs.iter().map(|run| text(run)));
    lockstep(&args).succeeded();
    to
}

/// The page with a script after its own.
fn with_script(page: &Path, script: &str) -> PathBuf {
    let html = fs::read_to_string(page).unwrap();
    let html = html.replace("</body>", &format!("<script>{script}</script></body>"));
    file(page.parent().unwrap(), "scripted.html", html.as_bytes())
}

/// What stands in the chart of the loss.
fn loss(document: &str) -> &str {
    let (_, figure) = document.split_once("<figure data-chart=\"loss\"").unwrap();
    figure.split_once("</figure>").unwrap().0
}

/// The number of points of a curve.
fn num_points(figure: &str, class: &str) -> usize {
    let (_, path) = figure.split_once(&format!("<path class=\"{class}\" d=\"")).unwrap();
    let (path, _) = path.split_once('"').unwrap();
    path.matches(['M', 'L']).count()
}

#[test]
fn a_browser_shows_all_points_and_no_errors() {
    let Some(browser) = browser() else { return };
    let ([four, one], dir) = (runs(), tempfile::tempdir().unwrap());
    for dirs in [&[&*four][..], &[&*four, &*one]] {
        let (document, console) = dumped(&browser, &page(dir.path(), dirs));
        assert_eq!(console, "");
        assert!(!document.contains("role=\"toolbar\" aria-label=\"All charts\" hidden"));
        let loss = loss(&document);
        for number in 0..dirs.len() {
            for kind in ["raw", "line"] {
                assert_eq!(num_points(loss, &format!("{kind} c{number}")), 44);
            }
            let dots = loss.matches(&format!("<circle class=\"dot c{number}\"")).count();
            assert_eq!(dots, 2, "evaluations");
        }
    }
    // An error would be seen.
    let broken = with_script(&dir.path().join("1.html"), "undefinedName();");
    let (_, console) = dumped(&browser, &broken);
    assert!(console.contains("undefinedName"), "{console}");
}

/// Opens the page of a run: all of its steps are there, and what the keys read is what was
/// recorded.
#[track_caller]
fn check_page(browser: &Path, run: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let press = "const figure = document.querySelector('figure[data-chart=loss]');
        figure.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));";
    let page = with_script(&page(dir.path(), &[run]), press);
    let (document, console) = dumped(browser, &page);
    assert_eq!(console, "");
    let lines = metrics(run);
    let figure = loss(&document);
    assert_eq!(num_points(figure, "raw c0"), lines.len());
    let hover = figure.split_once("role=\"status\"").unwrap().1;
    let (_, step) = hover.split_once(">step ").unwrap();
    let step: usize = step.split_once(',').unwrap().0.parse().unwrap();
    assert_eq!(lines[step]["step"], step);
    let value = format!(">loss {}<", lines[step]["loss"]);
    assert!(hover.contains(&value), "{value}: {hover}");
    document
}

#[test]
fn a_restart_and_a_slow_process_are_on_the_page() {
    let Some(browser) = browser() else { return };
    let document = check_page(&browser, &restarted().0);
    for part in
        ["ended: killed by signal 9", "Process 1 on ", " is slow: ", "waiting for other processes"]
    {
        assert!(document.contains(part), "{part}");
    }
}

#[test]
fn a_gpt_in_stages_has_a_page() {
    let Some(browser) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = file(dir.path(), "gpt.toml", GPT.as_bytes());
    let run = dir.path().join("run");
    let args = ["train", text(&config), "--set", "train.steps=12", "--out", text(&run)];
    lockstep(&args).succeeded();
    let document = check_page(&browser, &run);
    assert!(document.contains("pipeline 2"), "the mesh");
    assert!(document.contains("F3.1: forward pass of microbatch 3"), "the ticks of its stages");
}

/// Measured by the browser itself, from the beginning of the navigation until the page's script
/// has drawn all charts.
#[test]
fn a_million_steps_open_within_two_seconds() {
    let Some(browser) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    let page = file(dir.path(), "long.html", long_page().0.as_bytes());
    let script = "document.documentElement.dataset.opened = performance.now();";
    let page = format!("file://{}", text(&with_script(&page, script)));
    let opened = || -> f64 {
        let (document, console) = open(&browser, &page, &["--dump-dom"]);
        assert_eq!(console, "");
        assert!(num_points(loss(&document), "line c0") > 500);
        let (_, opened) = document.split_once("data-opened=\"").unwrap();
        opened.split_once('"').unwrap().0.parse().unwrap()
    };
    // Other programs may have had the processors.
    let times: Vec<_> = (0..3).map(|_| opened()).collect();
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(best < 2000.0, "{times:?} ms");
    println!("opened in {times:?} ms");
}

#[test]
fn keys_read_exact_numbers_and_zoom_and_buttons_toggle() {
    let Some(browser) = browser() else { return };
    let ([four, one], dir) = (runs(), tempfile::tempdir().unwrap());
    let both = page(dir.path(), &[&four, &one]);
    let press = "const figure = document.querySelector('figure[data-chart=loss]');
        const press = (key) => figure.dispatchEvent(new KeyboardEvent('keydown', { key }));";
    let (document, console) =
        dumped(&browser, &with_script(&both, &format!("{press} press('ArrowRight');")));
    assert_eq!(console, "");
    let hover = loss(&document).split_once("role=\"status\"").unwrap().1;
    assert!(hover.contains(">step 22, "), "{hover}");
    for (name, run) in [("four", &four), ("one", &one)] {
        let line = &metrics(run)[22];
        let value = format!(">{name}: loss {}<", line["loss"]);
        assert!(hover.contains(&value), "{value}: {hover}");
    }
    let script = format!(
        "{press} press('+'); press('+'); document.getElementById('theme').click();
        document.querySelector('button[data-run=\"1\"]').click();"
    );
    let (document, console) = dumped(&browser, &with_script(&both, &script));
    assert_eq!(console, "");
    let loss = loss(&document);
    let zoomed = num_points(loss, "raw c0");
    assert!((10..16).contains(&zoomed), "{zoomed} points in a quarter of 44 steps");
    assert!(!loss.contains("raw c1\""), "this run is hidden");
    assert!(document.contains("data-run=\"1\" aria-pressed=\"false\""));
    assert!(document.contains("data-theme=\"light\""));
}

#[test]
fn without_javascript_there_are_curves_and_tables() {
    let Some(browser) = browser() else { return };
    let ([four, one], dir) = (runs(), tempfile::tempdir().unwrap());
    let html = fs::read_to_string(page(dir.path(), &[&four, &one])).unwrap();
    // The browser's own switch for scripts also ends its pictures.
    let off = "<meta http-equiv=\"Content-Security-Policy\" content=\"script-src 'none'\"><title>";
    let still = html.replacen("<title>", off, 1);
    let still = file(dir.path(), "still.html", still.as_bytes());
    let (document, console) = dumped(&browser, &still);
    assert!(console.contains("script-src 'none'"), "{console}");
    assert!(
        document.contains("aria-label=\"All charts\"") && !document.contains("role=\"status\"")
    );
    for number in ["c0", "c1"] {
        assert_eq!(num_points(loss(&document), &format!("raw {number}")), 44);
    }
    assert!(document.matches("<table").count() >= 8, "{}", document.matches("<table").count());
    let still = format!("file://{}", text(&still));
    for (width, theme, name) in [(360, 0, "dark"), (900, 1, "light"), (1600, 0, "dark")] {
        let to = dir.path().join(format!("{width}-{name}.png"));
        let options = [
            VIRTUAL_TIME,
            &*format!("--screenshot={}", text(&to)),
            &format!("--window-size={width},4000"),
            &format!("--blink-settings=preferredColorScheme={theme}"),
        ];
        open(&browser, &still, &options);
        let decoder = png::Decoder::new(std::io::BufReader::new(fs::File::open(&to).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        let num_channels = info.color_type.samples();
        let has = |color: [u8; 3]| {
            pixels.chunks_exact(num_channels).filter(|pixel| pixel[..3] == color).count()
        };
        // The background, and the curves of both runs.
        let colors = match name {
            "light" => [[0xff, 0xff, 0xff], [0x00, 0x72, 0xb2], [0xd5, 0x5e, 0x00]],
            _ => [[0x14, 0x17, 0x1a], [0x56, 0xb4, 0xe9], [0xff, 0x8f, 0x45]],
        };
        let [background, first, second] = colors.map(has);
        let all = pixels.len() / num_channels;
        assert!(2 * background > all, "{width} {name}: {background} of {all}");
        assert!(first > 500 && second > 500, "{width} {name}: {first}, {second}");
    }
}

#[test]
fn a_served_page_that_loads_itself_again_stays_zoomed() {
    let Some(browser) = browser() else { return };
    let ([four, _], dir) = (runs(), tempfile::tempdir().unwrap());
    let press = "const figure = document.querySelector('figure[data-chart=loss]');
        const press = (key) => figure.dispatchEvent(new KeyboardEvent('keydown', { key }));
        if (!sessionStorage.getItem('again')) {
            sessionStorage.setItem('again', 'yes');
            document.getElementById('log').click();
            press('+'); press('+');
            location.reload();
        } else { document.documentElement.dataset.again = 'yes'; }";
    let scripted = with_script(&page(dir.path(), &[&four]), press);
    let html = fs::read_to_string(&scripted).unwrap();
    let served = html.replacen("<html lang=\"en\"", "<html lang=\"en\" data-version=\"1\"", 1);
    assert_ne!(html, served);
    let (document, console) = dumped(&browser, &file(dir.path(), "again.html", served.as_bytes()));
    assert_eq!(console, "");
    assert!(document.contains("data-again=\"yes\""));
    let zoomed = num_points(loss(&document), "raw c0");
    assert!((10..16).contains(&zoomed), "{zoomed} points");
    assert!(document.contains("id=\"reset\" type=\"button\">"), "the zoom can be ended");
}
