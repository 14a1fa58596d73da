use super::*;

fn text() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/certificate.json")).unwrap()
}

#[test]
fn it_reads_what_it_writes() {
    let certificate = Certificate::parse(&text(), "c.json").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(Certificate::parse(&certificate.to_json(), "again").unwrap(), certificate);
    assert_eq!(certificate.to_json(), text());
    let coherent = certificate.family(Kind::Coherent).unwrap();
    assert!(coherent.lower_nats <= coherent.budget_nats);
    assert_eq!((Metric::Accuracy.quality(0.5), Metric::KlTeacher.quality(0.5)), (0.5, -0.5));
}

/// Every damage names file and key.
#[test]
fn what_is_wrong_is_named() {
    let cases = [
        ("\"margin\": ", "\"margins\": ", "c.json:", "unknown field `margins`"),
        ("\"margin\": 0.03,", "", "c.json:", "missing field `margin`"),
        ("\"margin\": 0.03", "\"margin\": \"much\"", "at `margin`", "invalid type"),
        ("\"margin\": 0.03", "\"margin\": -1", "`margin` is -1", "more than 0"),
        ("\"lr\": ", "\"lr\": true, \"lr2\": ", "at `settings.lr`", "invalid type: boolean"),
        ("\"verdict\": \"knee\"", "\"verdict\": \"kneel\"", "at `families[1].verdict`", "unknown variant `kneel`"),
        ("\"asked\": \"fail\"", "\"asked\": 3", "at `families[1].rungs[2].asked`", "expected value"),
        ("\"family\": \"coherent\"", "\"family\": \"zero-mean\"", "`families[1].family`", "there once"),
        ("\"format\": 1", "\"format\": 2", "`format` is 2", "this version reads 1"),
        ("\"format\": 1", "\"format\": \"1\"", "`format` is \"1\"", "this version reads 1"),
        ("\"student\": \"", "\"student\": \"x", "`student`", "64 hexadecimal digits"),
        ("\"at_least\": true", "\"at_least\": false", "`families[0].at_least`", "what `verdict` says"),
    ];
    let whole = text();
    for (from, to, place, what) in cases {
        assert!(whole.contains(from), "the fixture has {from}");
        let error = Certificate::parse(&whole.replacen(from, to, 1), "c.json").unwrap_err().to_string();
        assert!(error.starts_with("c.json") && error.contains(place) && error.contains(what), "{from}: {error}");
    }
    for cut in (0..whole.len() - 2).step_by(97) {
        let error = Certificate::parse(&whole[..cut], "c.json").unwrap_err().to_string();
        assert!(error.starts_with("c.json:") && error.contains("calibrate"), "{cut} bytes: {error}");
    }
}

#[test]
fn lists_have_an_entry_for_each_seed() {
    let mut certificate = Certificate::parse(&text(), "c.json").unwrap();
    certificate.families[1].rungs[2].drift.pop();
    let error = Certificate::parse(&certificate.to_json(), "c.json").unwrap_err().to_string();
    assert!(error.contains("`families[1].rungs[2].drift` is a list of"), "{error}");
}

#[test]
fn places_in_a_text() {
    let text = "{\"a\": [1, {\"b\": \"x,}\", \"c\\\"d\": [[], 2]}]}";
    let at = |what: &str| place::key_before(text, 1, text.find(what).unwrap() + what.len());
    assert_eq!((at("[1"), at("\"x,}\""), at("2")), ("a[0]".into(), "a[1].b".into(), "a[1].c\\\"d[1]".into()));
    assert_eq!(place::key_before("", 1, 0), "");
}
