//! The page itself: one file that loads nothing. All text is escaped, since tokens may be any text at all.

use std::fmt::Write as _;

use serde_json::Value;

use super::{TOKENS_SHOWN, UPDATES_SHOWN};

/// Lower ends of the steps of colour, nats; below the first there is none.
const STEPS: [f64; 5] = [0.01, 0.05, 0.2, 0.5, 1.0];

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // Characters that a page may not have, or that turn the text around them.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn step(kl: f64) -> usize {
    STEPS.iter().filter(|&&low| kl >= low).count()
}

/// The page of kept completions; `piece` is the text of a token.
pub(super) fn page(lines: &[Value], piece: &dyn Fn(u32) -> String, made_by: &[(&str, String)]) -> String {
    let mut updates: Vec<u64> = lines.iter().filter_map(|line| line["update"].as_u64()).collect();
    updates.dedup();
    if updates.len() > UPDATES_SHOWN {
        let newest = updates.len() - (UPDATES_SHOWN - 1);
        updates.drain(1..newest);
    }
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out += "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Samples of a run</title>\n<style>\n";
    out += include_str!("page.css");
    out += "</style>\n</head>\n<body>\n<h1>What the student wrote, and where the teacher differs</h1>\n<dl>\n";
    for (name, value) in made_by {
        writeln!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value)).expect("memory");
    }
    out += "</dl>\n<p class=\"legend\">KL(student, teacher) of a token, nats:";
    out += "<span class=\"a0\">below 0.01</span>";
    for (i, low) in STEPS.iter().enumerate() {
        write!(out, "<span class=\"a{}\">from {low}</span>", i + 1).expect("memory");
    }
    out += "</p>\n";
    for &update in updates.iter().rev() {
        writeln!(out, "<section>\n<h2>Update {update}</h2>").expect("memory");
        for line in lines.iter().filter(|line| line["update"].as_u64() == Some(update)) {
            article(&mut out, line, piece);
        }
        out += "</section>\n";
    }
    out + "</body>\n</html>\n"
}

fn ids(value: &Value) -> impl ExactSizeIterator<Item = u32> {
    let list = value.as_array().map_or(&[][..], |list| list);
    list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or(u32::MAX))
}

fn more(out: &mut String, count: usize) {
    if count > TOKENS_SHOWN {
        write!(out, " … {} more tokens", count - TOKENS_SHOWN).expect("memory");
    }
}

fn article(out: &mut String, line: &Value, piece: &dyn Fn(u32) -> String) {
    let kl = |at: usize| line["kl_teacher"][at].as_f64().unwrap_or(f64::NAN);
    let count = ids(&line["ids"]).len();
    let mean = (0..count).map(kl).sum::<f64>() / count.max(1) as f64;
    let version = line["versions"][0][1].as_u64().unwrap_or(0);
    let judged = match line["correct"].as_bool() {
        Some(true) => " · <b class=\"right\">correct</b>",
        Some(false) => " · <b class=\"wrong\">not correct</b>",
        None => "",
    };
    let (sample, finish) = (&line["sample"], escaped(line["finish"].as_str().unwrap_or("")));
    writeln!(
        out,
        "<article>\n<header>sample {sample} · weights version {version} · {count} tokens · mean {mean:.4} nats · {finish}\
         {judged}</header>"
    )
    .expect("memory");
    out.push_str("<pre><span class=\"prompt\">");
    for id in ids(&line["prompt_ids"]).take(TOKENS_SHOWN) {
        out.push_str(&escaped(&piece(id)));
    }
    more(out, ids(&line["prompt_ids"]).len());
    out.push_str("</span>");
    for (at, id) in ids(&line["ids"]).take(TOKENS_SHOWN).enumerate() {
        let (text, kl) = (escaped(&piece(id)), kl(at));
        let logprob = line["logprobs_rollout"][at].as_f64().unwrap_or(f64::NAN);
        write!(
            out,
            "<span class=\"t a{}\" title=\"{text} (id {id})&#10;KL {kl:.4} nats&#10;logprob {logprob:.4}&#10;\
             weights version {version}\">{text}</span>",
            step(kl)
        )
        .expect("memory");
    }
    more(out, count);
    out.push_str("</pre>\n</article>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(update: u64) -> Value {
        json!({"update": update, "prompt_ids": [7], "ids": [1, 2], "kl_teacher": [0.001, 1.5], "sample": 4,
            "logprobs_rollout": [-0.5, -1.0], "versions": [[0, 3]], "finish": "stop", "correct": false})
    }

    #[test]
    fn hostile_text_is_escaped() {
        let hostile = "</span><script>alert('x')</script>\"&\u{202e}\0";
        let html = page(&[line(4)], &|_| hostile.to_owned(), &[("device", hostile.to_owned())]);
        assert!(!html.contains("<script") && !html.contains('\0') && !html.contains('\u{202e}'), "{html}");
        let want = "&lt;/span&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;";
        // In the head, the prompt, and for both tokens in the text and the title.
        assert_eq!(html.matches(want).count(), 6);
        assert!(html.contains("class=\"t a0\"") && html.contains("class=\"t a5\""), "{html}");
    }

    #[test]
    fn its_size_has_a_bound() {
        let lines: Vec<Value> = (1..=100).map(line).collect();
        let html = page(&lines, &|id| id.to_string(), &[]);
        assert_eq!(html.matches("<section>").count(), UPDATES_SHOWN);
        assert!(html.contains("Update 1<") && html.contains("Update 100<") && !html.contains("Update 50<"));
        let mut long = line(1);
        long["ids"] = json!(vec![3; TOKENS_SHOWN + 5]);
        let html = page(&[long], &|id| id.to_string(), &[]);
        assert_eq!(html.matches("class=\"t ").count(), TOKENS_SHOWN);
        assert!(html.contains("5 more tokens"));
    }
}
