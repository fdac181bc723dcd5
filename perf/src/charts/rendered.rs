//! Tests of the pictures as a browser draws them, in the light and in the dark scheme. They need headless Chromium:
//! `cargo test --manifest-path perf/Cargo.toml rendered -- --ignored`.

use std::process::Command;
use std::{env, fs};

use super::{charts, recordings, series, svg};

/// The programs that the test tries, unless `WHARF_CHROMIUM` names a program.
const BROWSERS: [&str; 3] = ["chromium-headless-shell", "chromium", "google-chrome"];
/// The name of a scheme, Chromium's number for it, and the page's background.
const SCHEMES: [(&str, u8, &str); 2] = [("light", 1, "#ffffff"), ("dark", 0, "#0d1117")];
/// The minimum contrast between text and its background (WCAG 2.2, level AA).
const CONTRAST: f64 = 4.5;

/// The script that looks for faults, and writes them into the page's title.
const LOOK: &str = r#"
const faults = [];
const area = element => element.getBoundingClientRect();
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const light = color => {
    const [r, g, b] = color.match(/[\d.]+/g).map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
const picture = area(document.querySelector("svg"));
const back = light(getComputedStyle(document.body).backgroundColor);
const texts = [...document.querySelectorAll("text")], marks = [...document.querySelectorAll("rect, circle")];
if (!texts.length || !marks.length) faults.push("nothing is drawn");
for (const [place, text] of texts.entries()) {
    const box = area(text);
    if (box.left < picture.left || box.right > picture.right || box.top < picture.top || box.bottom > picture.bottom)
        faults.push(`"${text.textContent}" leaves the picture`);
    for (const other of texts.slice(place + 1)) if (meet(box, area(other))) faults.push(`"${text.textContent}" meets "${other.textContent}"`);
    for (const mark of marks) if (meet(box, area(mark))) faults.push(`"${text.textContent}" meets a mark`);
    const seen = contrast(light(getComputedStyle(text).fill), back);
    if (seen < LEAST) faults.push(`"${text.textContent}" has a contrast of ${seen.toFixed(1)}`);
}
for (const mark of marks) if (contrast(light(getComputedStyle(mark).fill), back) < 3) faults.push("a mark has too little contrast");
document.title = faults.join("; ") || "fine";
"#;

fn browser() -> String {
    let is_there =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let found = || BROWSERS.into_iter().find(is_there).map(str::to_owned);
    env::var("WHARF_CHROMIUM").ok().or_else(found).expect("a Chromium, or WHARF_CHROMIUM with its path")
}

/// Returns the faults that the browser finds in a picture.
fn look_at(browser: &str, name: &str, picture: &str, (scheme, number, background): (&str, u8, &str)) -> String {
    let page = env::temp_dir().join(format!("wharf-{}-{name}-{scheme}.html", std::process::id()));
    let look = LOOK.replace("LEAST", &CONTRAST.to_string());
    fs::write(&page, format!("<body style=\"background:{background}\">{picture}<script>{look}</script></body>"))
        .unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--blink-settings=preferredColorScheme={number}"))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    fs::remove_file(page).unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let title = page.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    title.unwrap_or_else(|| panic!("{browser} drew nothing: {}", String::from_utf8_lossy(&output.stderr))).0.to_owned()
}

#[test]
#[ignore = "needs headless Chromium"]
fn pictures_are_legible_in_light_and_dark() {
    let browser = browser();
    let charts = charts().unwrap().into_iter().map(|(name, chart)| (name, svg::draw(&chart)));
    let recordings = recordings().unwrap().into_iter().map(|(name, recording)| (name, series::draw(&recording)));
    for (name, picture) in charts.chain(recordings) {
        for scheme in SCHEMES {
            assert_eq!(look_at(&browser, &name, &picture, scheme), "fine", "{name}, {}", scheme.0);
        }
    }
}

#[test]
#[ignore = "needs headless Chromium"]
fn illegible_picture_is_noticed() {
    let browser = browser();
    let (_, chart) = charts().unwrap().swap_remove(0);
    let picture = svg::draw(&chart);
    let pale = picture.replace("fill:#1f2328", "fill:#d0d0d0");
    let moved = picture.replacen("text-anchor=\"end\"", "text-anchor=\"start\"", 1);
    for (fault, changed) in [("contrast", pale), ("meets", moved)] {
        let said = look_at(&browser, "changed", &changed, SCHEMES[0]);
        assert!(said.contains(fault), "{said}");
    }
}
