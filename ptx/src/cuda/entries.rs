//! What a PTX text says of its entries: the size of each parameter and the largest block. Launches are checked against it,
//! since the driver reads as many bytes as the entry has and says nothing when it was given fewer.

/// One `.entry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Bytes of each parameter, in order.
    pub(super) params: Vec<usize>,
    /// The product of `.maxntid`, if it is stated.
    pub(super) max_threads: Option<u32>,
}

/// The entries of a text, or what is not understood.
pub(super) fn parse(ptx: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let text = without_comments(ptx);
    let mut rest = text.as_str();
    while let Some(at) = rest.find(".entry") {
        rest = rest[at + ".entry".len()..].trim_start();
        let end =
            rest.find(|c: char| c.is_whitespace() || matches!(c, '(' | '{' | ';')).ok_or("an entry without a body")?;
        let name = rest[..end].to_string();
        rest = rest[end..].trim_start();
        let params = match rest.strip_prefix('(') {
            None => Vec::new(),
            Some(list) => {
                let close = list.find(')').ok_or_else(|| format!("{name}: parameters without an end"))?;
                rest = &list[close + 1..];
                let params = list[..close].split(',').map(str::trim).filter(|param| !param.is_empty());
                params
                    .map(|param| size(param).ok_or_else(|| format!("{name}: parameter {param:?}")))
                    .collect::<Result<_, _>>()?
            }
        };
        let body = rest.find('{').ok_or_else(|| format!("{name}: no body"))?;
        let max_threads = max_threads(&rest[..body]).map_err(|what| format!("{name}: {what}"))?;
        entries.push(Entry { name, params, max_threads });
    }
    Ok(entries)
}

/// The text without `//` and `/* */`, in which anything may stand.
fn without_comments(ptx: &str) -> String {
    let mut out = String::with_capacity(ptx.len());
    let mut rest = ptx;
    while let Some(at) = rest.find('/') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else {
            out.push('/');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// Bytes of `.param .u64 name`, `.param .u64 .ptr .global .align 16 name` or `.param .align 8 .b8 name[24]`.
fn size(param: &str) -> Option<usize> {
    let words = param.strip_prefix(".param")?;
    let element = words.split_whitespace().find_map(|word| match word {
        ".b8" | ".u8" | ".s8" => Some(1),
        ".b16" | ".u16" | ".s16" | ".f16" => Some(2),
        ".b32" | ".u32" | ".s32" | ".f32" => Some(4),
        ".b64" | ".u64" | ".s64" | ".f64" => Some(8),
        _ => None,
    })?;
    let count = match words.split_once('[') {
        None => 1,
        Some((_, count)) => count.trim_end().strip_suffix(']')?.trim().parse().ok()?,
    };
    Some(element * count)
}

/// The product of the numbers behind `.maxntid`, which end with the line or the next directive.
fn max_threads(directives: &str) -> Result<Option<u32>, String> {
    let Some((_, numbers)) = directives.split_once(".maxntid") else { return Ok(None) };
    let numbers = numbers.split(['\n', '.']).next().unwrap_or_default();
    let product = numbers.split(',').try_fold(1_u32, |product, n| product.checked_mul(n.trim().parse().ok()?));
    product.map(Some).ok_or_else(|| format!(".maxntid {numbers:?}"))
}

#[cfg(test)]
mod tests {
    use super::{Entry, parse};

    #[test]
    fn parameters_and_largest_block_of_each_entry() {
        let ptx = "//\n// .entry in_a_comment(\n.version 8.0\n.target sm_80\n.extern .shared .align 128 .b8 smem[];\n\
            .visible .entry one(\n\t.param .u64 .ptr .global .align 16 one_param_0, // a pointer\n\t.param .u32 one_param_1,\n\
            \t.param .f32 one_param_2,\n\t.param .align 8 .b8 one_param_3[24]\n)\n.maxntid 128, 2, 1\n.minnctapersm 4\n{ ret; }\n\
            .visible .entry none()\n{\n\tret;\n}\n.entry bare .maxntid 64 { ret; }";
        let entry =
            |name: &str, params: &[usize], max_threads| Entry { name: name.into(), params: params.into(), max_threads };
        let want =
            vec![entry("one", &[8, 4, 4, 24], Some(256)), entry("none", &[], None), entry("bare", &[], Some(64))];
        assert_eq!(parse(ptx).unwrap(), want);
        assert_eq!(parse(".entry x(.param .pred p) { }").unwrap_err(), "x: parameter \".param .pred p\"");
        assert_eq!(parse(".entry x(.param .u32 p").unwrap_err(), "x: parameters without an end");
    }
}
