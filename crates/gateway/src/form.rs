//! A browser's form (`multipart/form-data`) up to its file: fields first, then the file, as S3 asks.

use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Method};

use crate::errors::{GatewayError, GatewayResult};

/// The type of a form.
const FORM: &[u8] = b"multipart/form-data";
/// The bytes that may come before the file. S3 takes 20 KB of fields.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_FIELDS: usize = 100;
/// RFC 2046.
const MAX_BOUNDARY_BYTES: usize = 70;

/// The fields of a form, and what it says of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadForm {
    /// With names in lower case, in the order they came.
    pub fields: Vec<(String, String)>,
    pub file_name: String,
    pub file_type: Option<String>,
}

impl UploadForm {
    /// The first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// A part's headers.
#[derive(Default)]
struct FormPart {
    name: String,
    file_name: Option<String>,
    kind: Option<String>,
}

fn malformed(reason: &str) -> GatewayError {
    GatewayError::InvalidArgument(format!("the form can't be read: {reason}"))
}

/// Whether a request is an upload by a form, and no document of another type that begins with `multipart/`.
pub(crate) fn is_form(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::POST
        && headers.get_all(CONTENT_TYPE).iter().any(|value| {
            let text = value.as_bytes().trim_ascii_start();
            text.get(..FORM.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(FORM))
        })
}

/// The delimiter between two parts of the form, without the end of its line.
///
/// # Errors
/// When the content type has no boundary that a form may have.
pub fn boundary_of(content_type: &str) -> GatewayResult<String> {
    let boundary = content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"').to_owned())
    });
    match boundary {
        Some(text) if (1..=MAX_BOUNDARY_BYTES).contains(&text.len()) && text.is_ascii() => {
            Ok(format!("--{text}"))
        }
        _ => Err(malformed("its Content-Type has no boundary")),
    }
}

/// Reads a form as it comes. It goes on where it stopped: a client that sends one byte at a time costs no more than
/// another.
pub struct FormReader {
    first: String,
    between: String,
    /// Of what has been taken in.
    at: usize,
    /// So far there is no mark.
    looked_at: usize,
    /// Its value is being waited for.
    part: Option<FormPart>,
    form: UploadForm,
}

impl FormReader {
    /// `boundary` as of [`boundary_of`].
    pub fn new(boundary: &str) -> FormReader {
        FormReader {
            // The first boundary has nothing before it; each further one has the end of a line.
            first: format!("{boundary}\r\n"),
            between: format!("\r\n{boundary}"),
            at: 0,
            looked_at: 0,
            part: None,
            form: UploadForm::default(),
        }
    }

    /// `bytes` are all that came, from the beginning on. Nothing as long as the file has not begun, and then where that
    /// begins.
    ///
    /// # Errors
    /// When it is no form.
    pub fn read(&mut self, bytes: &[u8]) -> GatewayResult<Option<(UploadForm, usize)>> {
        if self.at == 0 {
            if !bytes.starts_with(self.first.as_bytes()) {
                // What is here so far may be the beginning of a boundary whose rest is to come.
                return match self.first.as_bytes().starts_with(bytes) {
                    true => Ok(None),
                    false => Err(malformed("it does not begin with its boundary")),
                };
            }
            self.go_to(self.first.len());
        }
        loop {
            match self.part.take() {
                None => {
                    let Some(end) = self.find(bytes, b"\r\n\r\n") else { return Ok(None) };
                    let part = part_of(&bytes[self.at..end])?;
                    self.go_to(end + 4);
                    // The file is not read here: its bytes need no room beside the fields.
                    if part.name == "file" {
                        let mut form = std::mem::take(&mut self.form);
                        form.file_name = base_name(&part.file_name.unwrap_or_default()).to_owned();
                        form.file_type = part.kind;
                        return Ok(Some((form, self.at)));
                    }
                    self.part = Some(part);
                }
                Some(part) => {
                    let between = self.between.clone();
                    let end = self.find(bytes, between.as_bytes());
                    let after = end.and_then(|end| bytes.get(end + between.len()..end + between.len() + 2));
                    // The two bytes behind the boundary may be still to come.
                    let (Some(end), Some(after)) = (end, after) else {
                        self.part = Some(part);
                        return Ok(None);
                    };
                    // The last boundary of a form is followed by two hyphens.
                    if after != b"\r\n" {
                        return Err(malformed("it has no file, whose field has to be the last that counts"));
                    }
                    let value = std::str::from_utf8(&bytes[self.at..end])
                        .map_err(|_| malformed("a field is not UTF-8"))?
                        .to_owned();
                    self.form.fields.push((part.name, value));
                    if self.form.fields.len() > MAX_FIELDS {
                        return Err(malformed("it has more than 100 fields"));
                    }
                    self.go_to(end + between.len() + 2);
                }
            }
        }
    }

    fn go_to(&mut self, position: usize) {
        (self.at, self.looked_at) = (position, position);
    }

    /// Where `pattern` begins, behind what was taken in.
    fn find(&mut self, bytes: &[u8], pattern: &[u8]) -> Option<usize> {
        // It may have begun in what was looked at.
        let from = self.looked_at.saturating_sub(pattern.len()).max(self.at);
        let found = find(&bytes[from..], pattern).map(|position| from + position);
        self.looked_at = found.unwrap_or(bytes.len());
        found
    }
}

/// Reads the beginning of a form that is there at once.
///
/// # Errors
/// When it is no form.
pub fn read(bytes: &[u8], boundary: &str) -> GatewayResult<Option<(UploadForm, usize)>> {
    FormReader::new(boundary).read(bytes)
}

/// Where `pattern` begins.
pub fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let first = *pattern.first()?;
    let mut from = 0;
    while let Some(found) = bytes[from..].iter().position(|byte| *byte == first) {
        let position = from + found;
        if bytes[position..].starts_with(pattern) {
            return Some(position);
        }
        from = position + 1;
    }
    None
}

fn part_of(headers: &[u8]) -> GatewayResult<FormPart> {
    let text = std::str::from_utf8(headers).map_err(|_| malformed("a header is not UTF-8"))?;
    let mut part = FormPart::default();
    for line in text.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-type") {
            part.kind = Some(value.trim().to_owned());
        } else if name.eq_ignore_ascii_case("content-disposition") {
            part.name = parameter(value, "name").unwrap_or_default().to_ascii_lowercase();
            part.file_name = parameter(value, "filename");
        }
    }
    match part.name.is_empty() {
        true => Err(malformed("a field has no name")),
        false => Ok(part),
    }
}

/// A parameter of a header, in quotes or without: browsers write a quote within as `%22`, older ones with a backslash.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, tail) = match after.strip_prefix('"') {
            Some(quoted) => {
                let (mut value, mut is_escaped, mut end) = (String::new(), false, quoted.len());
                for (index, c) in quoted.char_indices() {
                    match c {
                        '"' if !is_escaped => {
                            end = index;
                            break;
                        }
                        // A path of Windows has backslashes too, and none before a quote.
                        '\\' if !is_escaped && quoted[index + 1..].starts_with('"') => is_escaped = true,
                        c => {
                            is_escaped = false;
                            value.push(c);
                        }
                    }
                }
                (value, quoted.get(end + 1..).unwrap_or(""))
            }
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = tail.trim_start().strip_prefix(';')?;
    }
}

/// Some browsers send the whole path.
fn base_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORM: &str = "--xyz\r\nContent-Disposition: form-data; name=\"Key\"\r\n\r\na/${filename}\r\n\
        --xyz\r\ncontent-disposition: form-data; name=policy; filename=\"policy\"\r\n\r\nMTIz\r\n--not the end\r\n\
        --xyz\r\nContent-Type: text/plain\r\nContent-Disposition: form-data; filename=\"C:\\dir\\a \\\"b\\\".txt\"; name=\"file\"\r\n\r\nthe bytes\r\n--xyz--\r\n";

    #[test]
    fn forms_are_known_by_their_type_alone() {
        let is_form = |method: Method, kind: &'static str| {
            is_form(&method, &HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]))
        };
        assert!(is_form(Method::POST, "multipart/form-data; boundary=x"));
        assert!(is_form(Method::POST, " Multipart/Form-DATA;boundary=x"));
        assert!(!is_form(Method::POST, "application/xml"));
        assert!(!is_form(Method::POST, "multipart/related; boundary=x"));
        assert!(!is_form(Method::PUT, "multipart/form-data"));
    }

    #[test]
    fn fields_come_before_the_file() {
        let (form, file_start) = read(FORM.as_bytes(), "--xyz").unwrap().unwrap();
        assert_eq!(form.field("key"), Some("a/${filename}"));
        assert_eq!(form.field("policy"), Some("MTIz\r\n--not the end"));
        assert_eq!((form.file_name.as_str(), form.file_type.as_deref()), ("a \"b\".txt", Some("text/plain")));
        assert!(FORM[file_start..].starts_with("the bytes"));
        // However little of it is there, it is no mistake; and byte by byte it is the same form.
        let mut reader = FormReader::new("--xyz");
        for end in 0..file_start {
            assert_eq!(read(&FORM.as_bytes()[..end], "--xyz").unwrap(), None, "{end}");
            assert_eq!(reader.read(&FORM.as_bytes()[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(reader.read(FORM.as_bytes()).unwrap(), Some((form, file_start)));
    }

    #[test]
    fn malformed_form_is_refused() {
        let nameless = FORM.replace("name=\"Key\"", "nom=\"Key\"");
        let without_file = "--xyz\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na\r\n--xyz--\r\n";
        for wrong in ["GET / HTTP/1.1", "--xy\r\n\r\n", &nameless, without_file] {
            assert!(read(wrong.as_bytes(), "--xyz").is_err(), "{wrong}");
        }
        let field = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n";
        assert!(read(field.repeat(102).as_bytes(), "--xyz").is_err());
    }

    #[test]
    fn boundary_is_read_from_parameter() {
        assert_eq!(boundary_of("multipart/form-data; boundary=xyz").unwrap(), "--xyz");
        assert_eq!(boundary_of("Multipart/Form-Data; charset=utf-8; Boundary=\"x y\"").unwrap(), "--x y");
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        for wrong in ["multipart/form-data", "multipart/form-data; boundary=", &long] {
            assert!(boundary_of(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_form_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "(--x\r\n|[a-z:;=\"\\\\ ]|\r\n){0,60}") {
            let _ = (read(&bytes, "--x"), read(text.as_bytes(), "--x"), boundary_of(&text));
        }
    }
}
