//! `underlay media list`

use std::process::ExitCode;

use underlay_record::PriceSum;
use underlay_report::quantity;
use underlay_report::terminal::wrap;
use underlay_storage::catalogue::{self, CatalogueMedium, LayoutPreset, MediumBasis, MediumKind};

use crate::exit_codes::ExitFailure;
use crate::output;

struct MediaListing<'a> {
    media: &'a [CatalogueMedium],
    layouts: &'a [LayoutPreset],
}

pub(crate) fn list(json: bool) -> Result<ExitCode, ExitFailure> {
    let listing = MediaListing { media: catalogue::builtin(), layouts: catalogue::layouts() };
    if json {
        let media: Vec<_> = listing.media.iter().map(with_basis).collect();
        let value = serde_json::json!({ "media": media, "layouts": listing.layouts });
        let text = serde_json::to_string_pretty(&value).expect("the catalogue is plain data");
        output::print(&text);
    } else {
        output::print(&render(&listing, output::width()));
    }
    Ok(ExitCode::SUCCESS)
}

/// A medium as data, with what it rests on.
fn with_basis(medium: &CatalogueMedium) -> serde_json::Value {
    let mut value = serde_json::to_value(medium).expect("the catalogue is plain data");
    value["basis"] = serde_json::to_value(medium.basis()).expect("counts are plain data");
    value
}

/// `42/6/52`, and a mark where no figure can tell how wrong that is.
fn basis_mark(basis: MediumBasis) -> String {
    let [measured, published, estimated] = basis.shares_percent();
    format!("{measured}/{published}/{estimated}{}", if basis.is_guess() { " !" } else { "" })
}

fn heading(kind: MediumKind) -> &'static str {
    match kind {
        MediumKind::Hdd => "Hard disks",
        MediumKind::Flash => "Flash, and 3D XPoint behind a block interface",
        MediumKind::Pmem => "Persistent memory",
        MediumKind::Cloud => "Cloud volumes",
        MediumKind::Network => "Volumes over a network",
        MediumKind::Measured => "Devices as they were measured",
    }
}

fn render(listing: &MediaListing<'_>, width: usize) -> String {
    // One width for the names of all groups, so that the columns stand under each other.
    let names = listing.media.iter().map(|medium| medium.name.as_str());
    let names = names.chain(listing.layouts.iter().map(|layout| layout.name.as_str()));
    let name_width = names.map(str::len).max().unwrap_or(0);
    let numbers_width: usize = COLUMNS.iter().map(|column| column + 2).sum();
    let title_width = width.saturating_sub(name_width + 2 + numbers_width).max(20);
    let is_narrow = width < name_width + 2 + 20 + numbers_width;
    let lines = ListingLines { name_width, title_width, narrow: is_narrow.then_some(width) };
    let mut text = String::new();
    for &kind in MediumKind::ALL {
        let mut media: Vec<&CatalogueMedium> =
            listing.media.iter().filter(|medium| medium.kind == kind).collect();
        if media.is_empty() {
            continue;
        }
        media.sort_by(|a, b| (a.year, &a.name).cmp(&(b.year, &b.name)));
        lines.heading(&mut text, heading(kind), ["year", "capacity", "price", "$/TB", "m/p/e %"]);
        for medium in media {
            let numbers = TitleNumbers {
                first: medium.year.to_string(),
                bytes: medium.capacity_bytes() as f64,
                price: medium.price(),
                basis: basis_mark(medium.basis()),
            };
            lines.line(&mut text, &medium.name, &medium.title, numbers);
        }
        text.push('\n');
    }
    let layouts = "Layouts of published set-ups";
    lines.heading(&mut text, layouts, ["disks", "capacity", "price", "$/TB", ""]);
    for layout in listing.layouts {
        let devices: u32 = layout.devices.iter().map(|device| device.count).sum();
        let numbers = TitleNumbers {
            first: devices.to_string(),
            bytes: layout.capacity_bytes() as f64,
            price: layout.price(),
            basis: String::new(),
        };
        lines.line(&mut text, &layout.name, &layout.summary(), numbers);
    }
    let note = "m/p/e: shares of the model's values that were measured, published and estimated. `!` marks a medium \
         that no measured or published figure of the device itself can judge: prefer another. Rent is for three years. \
         Rates and prices of cloud volumes follow their size; those above are for the capacity shown. `underlay media \
         show NAME` prints every number with its source, and what the model makes of the published figures.";
    text + "\n" + &wrap(note, width.min(100), "").join("\n") + "\n"
}

/// Year or number of disks, capacity, price, dollars a TB and basis; two blanks before each.
const COLUMNS: [usize; 5] = [5, 8, 12, 12, 10];

/// The numbers behind a title.
struct TitleNumbers {
    /// Year, or number of disks.
    first: String,
    bytes: f64,
    price: PriceSum,
    /// What it rests on; empty for a layout.
    basis: String,
}

impl TitleNumbers {
    fn usd_per_tb(&self) -> f64 {
        self.price.usd / (self.bytes / 1e12)
    }

    fn to_columns(&self) -> [String; 5] {
        let rent = if self.price.rent_usd > 0.0 { " rent" } else { "" };
        let [price, per_tb] =
            [self.price.usd, self.usd_per_tb()].map(|usd| format!("{}{rent}", dollars(usd)));
        [self.first.clone(), quantity::bytes(self.bytes), price, per_tb, self.basis.clone()]
    }

    /// Without a heading above them, so each says what it is.
    fn describe(&self) -> String {
        let price = self.price.remark(dollars).map_or(String::new(), |remark| format!(" ({remark})"));
        let words = [
            self.first.clone(),
            quantity::bytes(self.bytes),
            format!("price {}{price}", dollars(self.price.usd)),
            format!("{} a TB", dollars(self.usd_per_tb())),
            self.basis.clone(),
        ];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
    }
}

struct ListingLines {
    name_width: usize,
    title_width: usize,
    /// The columns of a terminal that has no room for them beside each other.
    narrow: Option<usize>,
}

impl ListingLines {
    fn heading(&self, text: &mut String, title: &str, columns: [&str; 5]) {
        if let Some(width) = self.narrow {
            text.push_str(&(wrap(title, width, "  ").join("\n") + "\n"));
            return;
        }
        let width = self.name_width + 2 + self.title_width;
        self.write(text, &format!("{:<width$}", shortened(title, width)), columns.map(str::to_owned));
    }

    fn line(&self, text: &mut String, name: &str, title: &str, numbers: TitleNumbers) {
        let ListingLines { name_width, title_width, narrow } = *self;
        if let Some(width) = narrow {
            text.push_str(&format!("  {name}\n"));
            for part in [title.to_owned(), numbers.describe()] {
                let part = wrap(&part, width - 4, "").join("\n    ");
                text.push_str(&if part.is_empty() { String::new() } else { format!("    {part}\n") });
            }
            return;
        }
        let title = shortened(title, title_width);
        self.write(text, &format!("{name:<name_width$}  {title:<title_width$}"), numbers.to_columns());
    }

    fn write(&self, text: &mut String, left: &str, numbers: [String; 5]) {
        let mut line = left.to_owned();
        for (number, width) in numbers.iter().zip(COLUMNS) {
            line.push_str(&format!("  {number:>width$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// Without cents: nobody chooses a disk by them.
fn dollars(usd: f64) -> String {
    format!("${}", quantity::number(usd.round(), 1))
}

/// At most `width` characters, cut between words.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let head: String = text.chars().take(width.saturating_sub(1)).collect();
    let mid_word = !text[head.len()..].starts_with(' ');
    let space = head.rfind(' ').filter(|&end| mid_word && end * 2 > head.len());
    let end = space.unwrap_or(head.len());
    format!("{}…", head[..end].trim_end_matches([',', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_list_fits_terminal() {
        for width in [40, 80, 100, 160] {
            let listing = MediaListing { media: catalogue::builtin(), layouts: catalogue::layouts() };
            let text = render(&listing, width);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
            for medium in catalogue::builtin() {
                assert!(text.contains(&medium.name), "{}", medium.name);
            }
            let rented = catalogue::builtin().iter().filter(|medium| medium.price.rented).count();
            assert!(rented > 5 && text.matches("rent").count() >= rented, "{width}: {text}");
        }
    }

    #[test]
    fn narrow_list_names_prices_and_rents() {
        let listing = MediaListing { media: catalogue::builtin(), layouts: catalogue::layouts() };
        let text = render(&listing, 40);
        let about = |name: &str| {
            let (_, after) = text.split_once(&format!("  {name}\n")).expect("listed");
            let lines = after.lines().take_while(|line| line.starts_with("    "));
            lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
        };
        let words = about("ebs-gp3");
        let medium = catalogue::find("ebs-gp3").unwrap();
        let price = format!("price {} (3 years' rent),", dollars(medium.price_usd()));
        assert!(words.contains(&price) && words.contains(" a TB"), "{words}");
        let words = about("nvme-990-pro");
        assert!(words.contains("price $") && !words.contains("rent"), "{words}");
    }

    #[test]
    fn title_is_cut_between_words() {
        assert_eq!(
            shortened("Micron 9300 MAX, NVMe U.2, PCIe 3.0", 40),
            "Micron 9300 MAX, NVMe U.2, PCIe 3.0"
        );
        assert_eq!(shortened("Micron 9300 MAX, NVMe U.2, PCIe 3.0", 27), "Micron 9300 MAX, NVMe U.2…");
        assert_eq!(shortened("Abcdefghijklmnop", 8), "Abcdefg…");
    }
}
