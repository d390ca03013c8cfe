//! The frame around every page's content.

use maud::{DOCTYPE, Markup, html};

use super::PageTopic;
use super::words::prose;

/// A page before it is drawn.
pub(crate) struct PageFrame<'a> {
    pub title: &'a str,
    /// The topic that keeps it up to date.
    pub topic: Option<&'a PageTopic>,
    /// Of those that every page leads to, the one that this page belongs to.
    pub place: Option<NavigationTarget>,
    /// Load it again after so many seconds.
    pub refresh_s: Option<u32>,
    pub content: Markup,
}

/// Links on every page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NavigationTarget {
    Runs,
    Studies,
    Host,
}

const PLACES: [(NavigationTarget, &str, &str); 3] = [
    (NavigationTarget::Runs, "/", "Runs"),
    (NavigationTarget::Studies, "/studies", "Studies"),
    (NavigationTarget::Host, "/host", "This host"),
];

impl<'a> PageFrame<'a> {
    pub(crate) fn new(title: &'a str, content: Markup) -> PageFrame<'a> {
        PageFrame { title, topic: None, place: None, refresh_s: None, content }
    }
}

impl PageFrame<'_> {
    pub(crate) fn draw(self) -> Markup {
        let topic = self.topic.map(PageTopic::to_string);
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    @if let Some(seconds) = self.refresh_s { meta http-equiv="refresh" content=(seconds); }
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
                            @for (place, address, name) in PLACES {
                                @let current = (self.place == Some(place)).then_some("true");
                                a href=(address) aria-current=[current] { (name) }
                            }
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
            p { (prose(text)) }
            p { a href="/" { "All runs" } }
        }
    };
    PageFrame::new(title, content).draw()
}

/// Asks before something is done: the same request again, with the word that it is meant. The button that does nothing
/// has the focus.
pub(crate) fn confirm(
    question: &str,
    consequence: &str,
    button: &str,
    action: &str,
    back: &str,
    fields: &[(String, String)],
) -> Markup {
    let content = html! {
        section {
            h1 { (prose(question)) }
            p { (prose(consequence)) }
            form method="post" action=(action) {
                @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
                input type="hidden" name="confirmed" value="yes";
                p.buttons {
                    a.button href=(back) autofocus { "No, go back" }
                    button.danger type="submit" { (button) }
                }
            }
        }
    };
    PageFrame::new(question, content).draw()
}
