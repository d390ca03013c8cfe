//! The page of somebody who was not let in. They get no style sheet either, so that this page has its style in itself,
//! which the policy allows by its hash.

use std::sync::LazyLock;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use openssl::base64;
use openssl::sha::sha256;

const STYLE: &str = "\
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2430; --text: #3c4754; --line: #d9dee5; --accent: #1f5fbf; }
@media (prefers-color-scheme: dark) { :root { --page: #14181e; --card: #1d232b; --ink: #eef2f6; --text: #c3ccd6; --line: #39424e; --accent: #8ab8ff; } }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 24px; background: var(--page); color: var(--text); font: 16px/1.55 system-ui, sans-serif; }
main { width: 100%; max-width: 40rem; padding: 28px 32px 32px; background: var(--card); border: 1px solid var(--line); border-radius: 14px; }
.brand { margin: 0 0 18px; font-weight: 700; color: var(--text); }
h1 { margin: 0 0 10px; font-size: 1.5rem; line-height: 1.25; letter-spacing: -.01em; color: var(--ink); }
h2 { margin: 22px 0 6px; font-size: 1rem; color: var(--ink); }
p { margin: 0 0 10px; overflow-wrap: anywhere; }
code { display: inline-block; max-width: 100%; padding: 0 6px; border: 1px solid var(--line); border-radius: 6px; background: var(--page); color: var(--ink); font: .92em ui-monospace, monospace; }
a { display: inline-block; margin-top: 8px; padding: 8px 18px; border: 1px solid var(--accent); border-radius: 8px; color: var(--accent); text-decoration: none; }
a:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
";

/// As a policy names the style: <https://www.w3.org/TR/CSP3/#match-element-to-source-list>.
pub(super) static STYLE_HASH: LazyLock<String> =
    LazyLock::new(|| format!("sha256-{}", base64::encode_block(&sha256(STYLE.as_bytes()))));

/// The problem, and the next step; text between backticks is to be typed.
pub(super) fn page(title: &str, problem: &str, next: &str, link: Option<&str>) -> Markup {
    let content = html! {
        p { (with_code(problem)) }
        h2 { "What to do next" }
        p { (with_code(next)) }
        @if let Some(address) = link { a href=(address) { "Open the console" } }
    };
    drawn(title, None, &content)
}

/// Says that the session has begun, and goes on.
pub(super) fn page_that_goes_on(place: &str) -> Markup {
    drawn("The console is open", Some(place), &html! { a href=(place) { "Go on" } })
}

fn drawn(title: &str, place: Option<&str>, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(place) = place { meta http-equiv="refresh" content={ "0; url=" (place) }; }
                title { (title) " - Underlay" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    p.brand { "Underlay" }
                    h1 { (title) }
                    (content)
                }
            }
        }
    }
}

fn with_code(text: &str) -> Markup {
    html! {
        @for (place, part) in text.split('`').enumerate() {
            @if place % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_matches_policy_hash() {
        let page = page("T", "a `b<` c", "next", Some("http://here/")).into_string();
        let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
        assert_eq!(format!("sha256-{}", base64::encode_block(&sha256(style.as_bytes()))), *STYLE_HASH);
        assert!(page.contains("a <code>b&lt;</code> c") && page.contains("href=\"http://here/\""), "{page}");
    }
}
