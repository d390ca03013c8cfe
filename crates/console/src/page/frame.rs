//! What every page has around its content.

use maud::{DOCTYPE, Markup, html};

use super::Topic;

/// A page before it is drawn.
pub(crate) struct Frame<'a> {
    pub title: &'a str,
    /// What is kept up to date on it.
    pub topic: Option<&'a Topic>,
    pub content: Markup,
}

const PLACES: [(&str, &str); 3] = [("/", "Runs"), ("/studies", "Studies"), ("/host", "This host")];

impl Frame<'_> {
    pub(crate) fn draw(self) -> Markup {
        let topic = self.topic.map(Topic::to_string);
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " - Underlay" }
                    link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                    link rel="stylesheet" href="/assets/report.css";
                    link rel="stylesheet" href="/assets/console.css";
                    script src="/assets/console.js" defer {}
                }
                body data-topic=[topic.as_deref()] {
                    a.skip href="#content" { "Skip to the content" }
                    header.bar {
                        a.brand href="/" { "Underlay" }
                        nav.places aria-label="Console" {
                            @for (address, name) in PLACES { a href=(address) { (name) } }
                        }
                        @if topic.is_some() { span #link.link role="status" { "" } }
                    }
                    main #content tabindex="-1" { (self.content) }
                }
            }
        }
    }
}

/// A page that says what is wrong.
pub(crate) fn problem(title: &str, text: &str) -> Markup {
    let content = html! {
        section {
            h1 { (title) }
            p { (text) }
            p { a href="/" { "All runs" } }
        }
    };
    Frame { title, topic: None, content }.draw()
}

/// Asks before something is done: the same request again, with the word that it is meant.
pub(crate) fn confirm(
    question: &str,
    what: &str,
    action: &str,
    back: &str,
    fields: &[(String, String)],
) -> Markup {
    let content = html! {
        section {
            h1 { (question) }
            p { (what) }
            form method="post" action=(action) {
                @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
                input type="hidden" name="confirmed" value="yes";
                p.buttons {
                    button.danger type="submit" autofocus { "Yes, do it" }
                    a.button href=(back) { "No, go back" }
                }
            }
        }
    };
    Frame { title: question, topic: None, content }.draw()
}
