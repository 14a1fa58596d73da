use std::collections::HashSet;

use super::*;

/// Specs at their defaults, at the ends of their ranges, and in between.
fn specs() -> Vec<TaskSpec> {
    let chain = |modulus, depth, ops: &str| TaskSpec::ModularChain { modulus, depth, ops: ops.to_string() };
    let mut specs: Vec<TaskSpec> = TaskSpec::NAMES.iter().map(|name| TaskSpec::example(name).unwrap()).collect();
    specs.extend([
        chain(36, 24, "*"),
        chain(2, 16, "+-"),
        chain(11, 3, "-*"),
        TaskSpec::Addition { digits_min: 1, digits_max: 1, digits_test: None },
        TaskSpec::Addition { digits_min: 1, digits_max: 19, digits_test: None },
        TaskSpec::Expression { depth: 1, modulus: 36 },
        TaskSpec::Expression { depth: 5, modulus: 7 },
        TaskSpec::Copy { len_min: 3, len_max: 3 },
        TaskSpec::Sort { len_min: 2, len_max: 24 },
    ]);
    specs
}

fn text(ids: &[u32]) -> String {
    vocab().render(ids)
}

/// The answer to a prompt, worked out from its text.
fn solve(spec: &TaskSpec, prompt: &str) -> String {
    let body = &prompt["<bos>".len()..prompt.len() - 1];
    let value = |c: char| i64::from(c.to_digit(36).expect("a value"));
    let digit = |v: i64, modulus: u32| {
        char::from_digit(u32::try_from(v.rem_euclid(i64::from(modulus))).unwrap(), 36).unwrap().to_string()
    };
    match spec {
        TaskSpec::ModularChain { modulus, .. } => {
            let symbols: Vec<char> = body.chars().collect();
            let total = symbols[1..].chunks(2).fold(value(symbols[0]), |total, pair| {
                let right = value(pair[1]);
                let next = match pair[0] {
                    '+' => total + right,
                    '-' => total - right,
                    '*' => total * right,
                    other => panic!("{other}"),
                };
                next.rem_euclid(i64::from(*modulus))
            });
            digit(total, *modulus)
        }
        TaskSpec::Addition { .. } => {
            let (left, right) = body.split_once('+').expect("a sum");
            (left.parse::<u128>().unwrap() + right.parse::<u128>().unwrap()).to_string()
        }
        TaskSpec::Expression { modulus, .. } => {
            // Two stacks; every operation stands in parentheses.
            let (mut values, mut ops) = (Vec::new(), Vec::new());
            for c in body.chars() {
                match c {
                    '(' => {}
                    '+' | '-' | '*' => ops.push(c),
                    ')' => {
                        let (right, left): (i64, i64) = (values.pop().unwrap(), values.pop().unwrap());
                        let result = match ops.pop().unwrap() {
                            '+' => left + right,
                            '-' => left - right,
                            _ => left * right,
                        };
                        values.push(result.rem_euclid(i64::from(*modulus)));
                    }
                    c => values.push(value(c)),
                }
            }
            assert_eq!((values.len(), ops.len()), (1, 0));
            digit(values[0], *modulus)
        }
        TaskSpec::Copy { .. } => body.to_string(),
        TaskSpec::Sort { .. } => {
            let mut letters: Vec<char> = body.chars().collect();
            letters.sort_unstable();
            letters.into_iter().collect()
        }
    }
}

#[test]
fn solutions_are_right_and_fit() {
    for spec in specs() {
        spec.check().unwrap();
        let (mut prompt_len, mut completion_len) = (0, 0);
        for index in 0..1000 {
            let split = if index % 4 == 0 { Split::Test } else { Split::Train };
            let problem = spec.problem(index % 7, split, index);
            let prompt = text(&problem.prompt);
            assert_eq!(text(&problem.solution[problem.answer.clone()]), solve(&spec, &prompt), "{prompt}");
            assert_eq!((problem.prompt[0], problem.solution[problem.answer.end]), (BOS, EOS));
            assert_eq!(problem.answer.end + 1, problem.solution.len());
            assert!(spec.is_correct(&problem, &problem.solution), "{prompt}{}", text(&problem.solution));
            prompt_len = prompt_len.max(problem.prompt.len());
            completion_len = completion_len.max(problem.solution.len());
        }
        // The bounds hold, and are met wherever the longest problem is not rare (a full tree of depth 5 is).
        let (prompt_max, completion_max) = (spec.prompt_max(), spec.completion_max());
        assert!(prompt_len <= prompt_max && completion_len <= completion_max, "{spec:?}");
        if !matches!(spec, TaskSpec::Expression { depth: 5, .. }) {
            assert_eq!((prompt_len, completion_len), (prompt_max, completion_max), "{spec:?}");
        }
    }
}

/// Written out by hand.
#[test]
fn written_forms() {
    let cases = [
        (TaskSpec::example("modular-chain").unwrap(), "<bos>7+5*3-9=", "267<eos>", 2..3),
        (TaskSpec::example("addition").unwrap(), "<bos>57+68=", "51,21>125<eos>", 6..9),
        (TaskSpec::example("expression").unwrap(), "<bos>((1+2)*(3-4))=", "(3*9)=7<eos>", 6..7),
        (TaskSpec::example("copy").unwrap(), "<bos>cab>", "cab<eos>", 0..3),
        (TaskSpec::example("sort").unwrap(), "<bos>cab:", "abc<eos>", 0..3),
    ];
    for (spec, prompt, solution, answer) in cases {
        let parse = |text: &str| vocab().parse(text).unwrap();
        assert_eq!(text(&parse(solution)[answer.clone()]), solve(&spec, prompt));
        let problem = Problem { prompt: parse(prompt), solution: parse(solution), answer };
        assert!(spec.is_correct(&problem, &problem.solution));
    }
    // The same forms as they are drawn.
    let shape = |ids: &[u32], value: char| -> String {
        ids.iter().map(|&id| if id_value(id).is_some() { value.to_string() } else { text(&[id]) }).collect()
    };
    let addition = TaskSpec::Addition { digits_min: 2, digits_max: 2, digits_test: None };
    let problem = addition.problem(1, Split::Train, 0);
    assert_eq!(shape(&problem.prompt, 'd'), "<bos>dd+dd=");
    assert!(shape(&problem.solution, 'd').starts_with("dd,dd>dd"), "{}", text(&problem.solution));
    let depth_one = TaskSpec::Expression { depth: 1, modulus: 36 }.problem(1, Split::Train, 0);
    assert_eq!(shape(&depth_one.solution, 'v'), "v<eos>");
}

/// Each written step is true, not only the last.
#[test]
fn steps_are_true() {
    let chain = TaskSpec::example("modular-chain").unwrap();
    let expression = TaskSpec::Expression { depth: 4, modulus: 10 };
    for index in 0..500 {
        let problem = chain.problem(3, Split::Train, index);
        for (i, &step) in problem.solution[..problem.answer.end].iter().enumerate() {
            let part = format!("{}=", text(&problem.prompt[..2 * i + 4]));
            assert_eq!(text(&[step]), solve(&chain, &part));
        }
        let problem = expression.problem(3, Split::Train, index);
        let solution = text(&problem.solution[..problem.answer.end]);
        let answer = solve(&expression, &text(&problem.prompt));
        assert_eq!(solution.split('=').count(), 4);
        for step in solution.split('=') {
            assert_eq!(solve(&expression, &format!("<bos>{step}=")), answer, "{solution}");
        }
    }
}

#[test]
fn corruptions_are_rejected() {
    for spec in specs() {
        for index in 0..200 {
            let problem = spec.problem(11, Split::Train, index);
            let solution = &problem.solution;
            let wrong = |completion: &[u32]| {
                assert!(!spec.is_correct(&problem, completion), "{} is not {}", text(completion), text(solution));
            };
            // Any other symbol anywhere in the answer or for the `<eos>`.
            for at in problem.answer.start..solution.len() {
                for id in (0..64).filter(|&id| id != solution[at]) {
                    let mut completion = solution.clone();
                    completion[at] = id;
                    wrong(&completion);
                }
            }
            // One token missing or one too many, anywhere; cut short; going on after `<eos>`.
            for at in 0..solution.len() {
                let mut completion = solution.clone();
                completion.remove(at);
                wrong(&completion);
                let mut completion = solution.clone();
                completion.insert(at, solution[at]);
                wrong(&completion);
                wrong(&solution[..at]);
            }
            wrong(&[solution.as_slice(), &[EOS]].concat());
            wrong(&[solution.as_slice(), &[PAD]].concat());
        }
    }
}

/// Steps are judged by their form: a value may be wrong, but must be a value, and the rest must stand as it is.
#[test]
fn steps_count_by_form() {
    for (spec, count) in
        [(TaskSpec::example("modular-chain").unwrap(), 10), (TaskSpec::example("addition").unwrap(), 10)]
    {
        let problem = spec.problem(5, Split::Test, 0);
        for at in 0..problem.answer.start {
            for id in 0..64 {
                let mut completion = problem.solution.clone();
                completion[at] = id;
                let want = match id_value(problem.solution[at]) {
                    Some(_) => id_value(id).is_some_and(|value| value < count),
                    None => id == problem.solution[at],
                };
                assert_eq!(spec.is_correct(&problem, &completion), want, "{}", text(&completion));
            }
        }
    }
}

#[test]
fn splits_are_disjoint_and_problems_repeatable() {
    for spec in specs() {
        let prompts = |split, seed: u64| -> Vec<Vec<u32>> {
            (0..400).map(|index| spec.problem(seed, split, index).prompt).collect()
        };
        let train: HashSet<Vec<u32>> = prompts(Split::Train, 1).into_iter().chain(prompts(Split::Train, 2)).collect();
        let test: HashSet<Vec<u32>> = prompts(Split::Test, 1).into_iter().chain(prompts(Split::Test, 3)).collect();
        assert!(train.is_disjoint(&test), "{spec:?}");
        assert!(train.iter().all(|prompt| split_of(prompt) == Split::Train));
        assert_eq!(prompts(Split::Test, 1), prompts(Split::Test, 1));
        assert_ne!(prompts(Split::Test, 1), prompts(Split::Test, 2), "{spec:?}: the seed changes nothing");
    }
}

/// About one prompt in eight is a test prompt. The standard error of the share is sqrt(.125 * .875 / 8000) = .0037.
#[test]
fn the_test_share_is_an_eighth() {
    let spec = TaskSpec::example("modular-chain").unwrap();
    let mut stream = Stream::new(1, Purpose::Test, 0);
    let test = (0..8000).filter(|_| split_of(&spec.draw(Split::Train, &mut stream).prompt) == Split::Test).count();
    assert!((880..=1120).contains(&test), "{test} of 8000");
}

#[test]
fn longer_operands_for_the_test_split() {
    let spec = TaskSpec::Addition { digits_min: 1, digits_max: 3, digits_test: Some(7) };
    spec.check().unwrap();
    for index in 0..200 {
        assert_eq!(spec.problem(1, Split::Test, index).prompt.len(), spec.prompt_max());
        assert!(spec.problem(1, Split::Train, index).prompt.len() <= 1 + 3 + 1 + 3 + 1);
    }
}

#[test]
fn every_step_of_a_chain_keeps_an_error_alive() {
    let spec = TaskSpec::ModularChain { modulus: 12, depth: 6, ops: "*".to_string() };
    for index in 0..200 {
        let prompt = text(&spec.problem(1, Split::Train, index).prompt);
        let answers: HashSet<String> = "0123456789ab"
            .chars()
            .map(|start| solve(&spec, &format!("<bos>{start}{}", &prompt["<bos>0".len()..])))
            .collect();
        assert_eq!(answers.len(), 12, "{prompt}");
    }
}

#[test]
fn wrong_sizes_are_named() {
    let chain = |modulus, depth, ops: &str| TaskSpec::ModularChain { modulus, depth, ops: ops.to_string() };
    let cases = [
        (chain(37, 8, "+"), "modulus is 37; it must be 2 to 36"),
        (chain(10, 0, "+"), "depth is 0; it must be 1 to 512"),
        (chain(10, 8, "+/"), "ops is \"+/\"; it must be one or more of + - *, each at most once"),
        (chain(10, 8, "++"), "ops is \"++\"; it must be one or more of + - *, each at most once"),
        (chain(10, 8, ""), "ops is \"\"; it must be one or more of + - *, each at most once"),
        (TaskSpec::Addition { digits_min: 4, digits_max: 3, digits_test: None }, "digits_min is 4; it must be 1 to 3"),
        (
            TaskSpec::Addition { digits_min: 1, digits_max: 3, digits_test: Some(3) },
            "digits_test is 3; it must be 4 to 129",
        ),
        (TaskSpec::Expression { depth: 8, modulus: 10 }, "depth is 8; it must be 1 to 7"),
        (TaskSpec::Sort { len_min: 0, len_max: 3 }, "len_min is 0; it must be 1 to 3"),
        (
            chain(2, 1, "*"), // two prompts: 0*1 and 1*1
            "depth is too small: there are so few different prompts that the Test split is empty",
        ),
    ];
    for (spec, want) in cases {
        let error = spec.check().unwrap_err();
        assert_eq!(error.to_string(), want);
        assert!(want.starts_with(error.key()));
    }
}

/// The ends of the ranges can be drawn, and quickly.
#[test]
fn the_largest_sizes_work() {
    for spec in [
        TaskSpec::ModularChain { modulus: 36, depth: 512, ops: "+-*".to_string() },
        TaskSpec::Addition { digits_min: 128, digits_max: 128, digits_test: Some(129) },
        TaskSpec::Expression { depth: 7, modulus: 36 },
        TaskSpec::Sort { len_min: 512, len_max: 512 },
    ] {
        spec.check().unwrap();
        let problem = spec.problem(u64::MAX, Split::Test, u64::MAX);
        assert!(spec.is_correct(&problem, &problem.solution));
    }
}

#[test]
fn specs_are_read_with_defaults_and_without_unknown_keys() {
    let read = |text: &str| toml::from_str::<TaskSpec>(text);
    for name in TaskSpec::NAMES {
        let mut example = TaskSpec::example(name).unwrap();
        assert_eq!(read(&toml::to_string(&example).unwrap()).unwrap(), example);
        if let TaskSpec::Addition { digits_test, .. } = &mut example {
            *digits_test = None;
        }
        assert_eq!(read(&format!("name = \"{name}\"")).unwrap(), example, "the defaults are the example's");
    }
    assert!(read("name = \"copy\"\nlength = 3").is_err());
    assert!(read("name = \"copied\"").is_err());
}

#[test]
fn tokenizers_reads_our_file() {
    let tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer_json()).unwrap();
    let all: Vec<u32> = (0..64).collect();
    let mut rows = vec![all];
    for spec in specs() {
        for index in 0..20 {
            let problem = spec.problem(2, Split::Train, index);
            rows.push([problem.prompt, problem.solution].concat());
        }
    }
    for ids in rows {
        for special in [false, true] {
            let encoding = tokenizer.encode(text(&ids), special).unwrap();
            assert_eq!(encoding.get_ids(), ids, "{}", text(&ids));
        }
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text(&ids));
    }
    assert_eq!(tokenizer.decode(&[BOS, 4, 5, EOS], true).unwrap(), "12");
    assert_eq!(tokenizer.get_vocab_size(true), VOCAB_LEN);
    assert!(tokenizer.encode("1A", false).is_err(), "a stranger is an error, not an unknown token");
    let config: serde_json::Value = serde_json::from_str(&tokenizer_config_json()).unwrap();
    for (key, id) in [("bos_token", BOS), ("eos_token", EOS), ("pad_token", PAD)] {
        assert_eq!(tokenizer.token_to_id(config[key].as_str().unwrap()), Some(id));
    }
}
