//! 9.7.14.5 "mma.sync": fragments of m16n8k16 (9.7.14.5.8, f16 and bf16) and m16n8k32 (9.7.14.5.10, e4m3 and e5m2).
//!
//! With g = lane / 4 and t = lane % 4. m16n8k16: a0..a7 lie in row g where i % 4 < 2, else g + 8, and in column
//! 2 t + i % 2, plus 8 from i = 4 on; b0..b3 in row 2 t + i % 2, plus 8 from i = 2 on, and column g. m16n8k32: a0..a15 in
//! row g where i / 4 is even, else g + 8, and in column 4 t + i % 4, plus 16 from i = 8 on; b0..b7 in row 4 t + i % 4,
//! plus 16 from i = 4 on, and column g. c0..c3 of both lie in row g, from i = 2 on g + 8, and column 2 t + i % 2. Lower
//! elements lie in lower bits. The order and the rounding of the sums are not specified, so only exact sums are expected
//! in all modes; the pessimistic one must lose as much of others as hardware may.

use simt::Mode;

use crate::harness::Body;
use crate::values::{BF16, E4M3, E5M2, F16, Format, Random};

struct Shape {
    op: &'static str,
    format: Format,
    depth: usize,
}

const SHAPES: [Shape; 4] = [
    Shape { op: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", format: F16, depth: 16 },
    Shape { op: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", format: BF16, depth: 16 },
    Shape { op: "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", format: E4M3, depth: 32 },
    Shape { op: "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", format: E5M2, depth: 32 },
];

const ROWS: usize = 16;
const COLUMNS: usize = 8;

impl Shape {
    fn per_register(&self) -> usize {
        32 / self.format.bits() as usize
    }

    /// Row and column of element `i` of A's fragment.
    fn a(&self, lane: usize, i: usize) -> (usize, usize) {
        let (g, t) = (lane / 4, lane % 4);
        match self.depth {
            16 => (if i % 4 < 2 { g } else { g + 8 }, 2 * t + i % 2 + if i < 4 { 0 } else { 8 }),
            _ => (if (i / 4).is_multiple_of(2) { g } else { g + 8 }, 4 * t + i % 4 + if i < 8 { 0 } else { 16 }),
        }
    }

    /// Row and column of element `i` of B's fragment.
    fn b(&self, lane: usize, i: usize) -> (usize, usize) {
        let (g, t) = (lane / 4, lane % 4);
        match self.depth {
            16 => (2 * t + i % 2 + if i < 2 { 0 } else { 8 }, g),
            _ => (4 * t + i % 4 + if i < 4 { 0 } else { 16 }, g),
        }
    }

    fn registers(&self, elements: impl Fn(usize) -> u32, count: usize) -> Vec<u32> {
        let each = self.per_register();
        (0..count)
            .map(|register| {
                (0..each).fold(0, |word, i| word | elements(register * each + i) << (self.format.bits() as usize * i))
            })
            .collect()
    }
}

/// Row and column of element `i` of the accumulators.
fn c(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + if i < 2 { 0 } else { 8 }, 2 * (lane % 4) + i % 2)
}

/// One product: codes of A `[16][depth]` and B `[depth][8]`, and values of C `[16][8]`.
struct Product {
    a: Vec<u32>,
    b: Vec<u32>,
    c: Vec<f32>,
}

/// Runs all products, a block each, and compares bits with what `want` says of an element.
fn run(shape: &Shape, products: &[Product], want: impl Fn(&Product, usize, usize) -> f32) {
    let mut input = Vec::new();
    for product in products {
        for lane in 0..32 {
            let a = |i| {
                let (row, column) = shape.a(lane, i);
                product.a[row * shape.depth + column]
            };
            let b = |i| {
                let (row, column) = shape.b(lane, i);
                product.b[row * COLUMNS + column]
            };
            input.extend(shape.registers(a, 4));
            input.extend(shape.registers(b, 2));
            input.extend((0..4).map(|i| {
                let (row, column) = c(lane, i);
                product.c[row * COLUMNS + column].to_bits()
            }));
        }
    }
    let text = format!(
        "\tmul.wide.u32 %q1, %t, 40;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.v2.u32 {{%r10, %r11}}, [%q2];\n\
         \tld.global.v2.u32 {{%r12, %r13}}, [%q2+8];\n\tld.global.v2.u32 {{%r14, %r15}}, [%q2+16];\n\
         \tld.global.v2.f32 {{%f10, %f11}}, [%q2+24];\n\tld.global.v2.f32 {{%f12, %f13}}, [%q2+32];\n\
         \t{} {{%f20, %f21, %f22, %f23}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{%f10, %f11, %f12, %f13}};\n\
         \tst.global.v4.f32 [%out], {{%f20, %f21, %f22, %f23}};\n",
        shape.op
    );
    let blocks = u32::try_from(products.len()).expect("few");
    let rows = Body::new(&text, &input, 4).blocks(blocks).rows();
    for (thread, got) in rows.into_iter().enumerate() {
        let product = &products[thread / 32];
        for (i, got) in got.into_iter().enumerate() {
            let (row, column) = c(thread % 32, i);
            let (got, want) = (f32::from_bits(got), want(product, row, column));
            let same = got.to_bits() == want.to_bits() || (got == 0.0 && want == 0.0);
            assert!(same, "{}, product {}, row {row}, column {column}: want {want}, got {got}", shape.op, thread / 32);
        }
    }
}

/// Codes of positive finite values in a seeded order, none of them one another's neighbour in the matrix.
fn codes(shape: &Shape, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let least = 1 << shape.format.mantissa_bits;
    // Below a quarter of the largest exponent, so that a product with 1 is the value itself.
    (0..count).map(|_| least + random.word() % (shape.format.largest() - least)).collect()
}

fn value(shape: &Shape, code: u32) -> f32 {
    shape.format.value(code) as f32
}

#[test]
fn a_unit_of_a_picks_a_row_of_b() {
    for shape in &SHAPES {
        let one = shape.format.nearest(1.0, true);
        let mut products = Vec::new();
        // Several fillings, because 8 bits have fewer codes than B has elements.
        for seed in 0..if shape.depth == 16 { 1 } else { 2 } {
            let b = codes(shape, shape.depth * COLUMNS, 110 + seed);
            for row in 0..ROWS {
                for column in 0..shape.depth {
                    let mut a = vec![0; ROWS * shape.depth];
                    a[row * shape.depth + column] = one;
                    products.push(Product { a, b: b.clone(), c: vec![0.0; ROWS * COLUMNS] });
                }
            }
        }
        run(shape, &products, |product, row, column| {
            let place = product.a.iter().position(|&code| code == one).expect("a unit");
            let (unit_row, k) = (place / shape.depth, place % shape.depth);
            if row == unit_row { value(shape, product.b[k * COLUMNS + column]) } else { 0.0 }
        });
    }
}

#[test]
fn a_unit_of_b_picks_a_column_of_a() {
    for shape in &SHAPES {
        let one = shape.format.nearest(1.0, true);
        let mut products = Vec::new();
        for seed in 0..2 {
            let a = codes(shape, ROWS * shape.depth, 120 + seed);
            for k in 0..shape.depth {
                for column in 0..COLUMNS {
                    let mut b = vec![0; shape.depth * COLUMNS];
                    b[k * COLUMNS + column] = one;
                    products.push(Product { a: a.clone(), b, c: vec![0.0; ROWS * COLUMNS] });
                }
            }
        }
        run(shape, &products, |product, row, column| {
            let place = product.b.iter().position(|&code| code == one).expect("a unit");
            let (k, unit_column) = (place / COLUMNS, place % COLUMNS);
            if column == unit_column { value(shape, product.a[row * shape.depth + k]) } else { 0.0 }
        });
    }
}

#[test]
fn the_accumulator_passes_through() {
    for shape in &SHAPES {
        // Few bits each, as an accumulator may be narrower than f32.
        let c: Vec<f32> = (0..ROWS * COLUMNS).map(|i| i as f32 * 0.75 - 40.0).collect();
        let zeros = Product { a: vec![0; ROWS * shape.depth], b: vec![0; shape.depth * COLUMNS], c: c.clone() };
        run(shape, &[zeros], |product, row, column| product.c[row * COLUMNS + column]);
    }
}

#[test]
fn sums_of_small_integers_are_exact() {
    for shape in &SHAPES {
        let mut random = Random::new(130);
        let mut products = Vec::new();
        for _ in 0..6 {
            // Whole numbers that every format holds: -3 to 3 fit e5m2 too.
            let mut code = |_| shape.format.nearest(f64::from(random.word() % 7) - 3.0, true);
            let a = (0..ROWS * shape.depth).map(&mut code).collect();
            let b = (0..shape.depth * COLUMNS).map(&mut code).collect();
            let c = (0..ROWS * COLUMNS).map(|i| (i as f32 - 60.0) * 3.0).collect();
            products.push(Product { a, b, c });
        }
        run(shape, &products, |product, row, column| {
            let dot: f32 = (0..shape.depth)
                .map(|k| value(shape, product.a[row * shape.depth + k]) * value(shape, product.b[k * COLUMNS + column]))
                .sum();
            dot + product.c[row * COLUMNS + column]
        });
    }
}

#[test]
fn every_eight_bit_code_is_multiplied() {
    // All finite codes of both signs, subnormals included, times a power of two: exact.
    for shape in &SHAPES[2..] {
        let finite: Vec<u32> = (0..256).filter(|&code| shape.format.value(code).is_finite()).collect();
        let half = shape.format.nearest(0.5, true);
        let mut products = Vec::new();
        for k in 0..shape.depth {
            let mut a = vec![0; ROWS * shape.depth];
            (0..ROWS).for_each(|row| a[row * shape.depth + k] = finite[(row * 16 + k / 2) % finite.len()]);
            let b = vec![half; shape.depth * COLUMNS];
            products.push(Product { a, b, c: vec![0.0; ROWS * COLUMNS] });
        }
        run(shape, &products, |product, row, _| {
            (0..shape.depth).map(|k| 0.5 * value(shape, product.a[row * shape.depth + k])).sum()
        });
    }
}

#[test]
fn the_accumulator_may_be_the_destination() {
    let shape = &SHAPES[1];
    let one = shape.format.nearest(1.0, true);
    let word = one | one << 16;
    let text = format!(
        "\tmov.u32 %r10, {word};\n\tmov.f32 %f10, 0f00000000;\n\tmov.f32 %f11, 0f3F800000;\n\tmov.f32 %f12, 0f40000000;\n\tmov.f32 %f13, 0f40400000;\n\
         \t{} {{%f10, %f11, %f12, %f13}}, {{%r10, %r10, %r10, %r10}}, {{%r10, %r10}}, {{%f10, %f11, %f12, %f13}};\n\
         \t{} {{%f10, %f11, %f12, %f13}}, {{%r10, %r10, %r10, %r10}}, {{%r10, %r10}}, {{%f10, %f11, %f12, %f13}};\n\
         \tst.global.v4.f32 [%out], {{%f10, %f11, %f12, %f13}};\n",
        shape.op, shape.op
    );
    Body::new(&text, &[0], 4).expect(|_| [32.0_f32, 33.0, 34.0, 35.0].map(f32::to_bits).to_vec());
}

#[test]
fn infinities_and_nans_spread() {
    for shape in &SHAPES {
        let one = shape.format.nearest(1.0, true);
        // The highest code is NaN in all four formats.
        let nan = shape.format.codes() - 1;
        let mut a = vec![one; ROWS * shape.depth];
        a[3 * shape.depth + 1] = nan;
        let product = Product { a, b: vec![one; shape.depth * COLUMNS], c: vec![0.0; ROWS * COLUMNS] };
        let mut input = Vec::new();
        for lane in 0..32 {
            let a = |i| {
                let (row, column) = shape.a(lane, i);
                product.a[row * shape.depth + column]
            };
            input.extend(shape.registers(a, 4));
        }
        let ones = shape.registers(|_| one, 1)[0];
        let text = format!(
            "\tmul.wide.u32 %q1, %t, 16;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%q2];\n\
             \tmov.u32 %r14, {ones};\n\tmov.f32 %f10, 0f00000000;\n\
             \t{} {{%f20, %f21, %f22, %f23}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r14}}, {{%f10, %f10, %f10, %f10}};\n\
             \tst.global.v4.f32 [%out], {{%f20, %f21, %f22, %f23}};\n",
            shape.op
        );
        for (lane, got) in Body::new(&text, &input, 4).rows().into_iter().enumerate() {
            for (i, got) in got.into_iter().enumerate() {
                let row = c(lane, i).0;
                let got = f32::from_bits(got);
                let right = if row == 3 { got.is_nan() } else { got == shape.depth as f32 };
                assert!(right, "{}, lane {lane}, element {i}: {got}", shape.op);
            }
        }
    }
}

/// Runs one instruction on products of 1 x b in column k = 0 and small x small in all others, with c as it is.
fn one_large_and_many_small(shape: &Shape, mode: Mode, small: [f64; 2], c_value: f32) -> f32 {
    let code = |x: f64| shape.format.nearest(x, true);
    let a = |k: usize| if k == 0 { code(1.0) } else { code(small[0]) };
    let b = |k: usize| if k == 0 { code(1.0) } else { code(small[1]) };
    let mut input = Vec::new();
    for lane in 0..32 {
        input.extend(shape.registers(|i| a(shape.a(lane, i).1), 4));
        input.extend(shape.registers(|i| b(shape.b(lane, i).0), 2));
        input.extend([c_value.to_bits(); 2]);
    }
    let text = format!(
        "\tmul.wide.u32 %q1, %t, 32;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%q2];\n\
         \tld.global.v4.u32 {{%r14, %r15, %r16, %r17}}, [%q2+16];\n\tmov.b32 %f10, %r16;\n\
         \t{} {{%f20, %f21, %f22, %f23}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{%f10, %f10, %f10, %f10}};\n\
         \tst.global.v4.f32 [%out], {{%f20, %f21, %f22, %f23}};\n",
        shape.op
    );
    let out = Body::new(&text, &input, 4).run_in(mode);
    assert!(out.iter().all(|&bits| bits == out[0]), "{}: all sums are the same", shape.op);
    f32::from_bits(out[0])
}

#[test]
fn inexact_sums_lose_nearly_a_last_place_of_the_largest_addend_each() {
    // Hardware keeps no fewer than 24 bits of the largest addend of a sum of 16-bit inputs, 13 of one of 8-bit inputs:
    // K - 1 products just below the last place are lost when they are cut off, and come through when they are not.
    for shape in &SHAPES {
        // A value just below 2, times two powers of two whose product is half a last place.
        let (wide, low, high) = match shape.depth {
            16 => (1.98, -12, -12),
            _ => (1.75, -7, -6),
        };
        let small = [wide * 2.0_f64.powi(low), 2.0_f64.powi(high)];
        let exact = |c: f64| 1.0 + c + (shape.depth - 1) as f64 * small[0] * small[1];
        let checked = one_large_and_many_small(shape, Mode::Checked, small, 0.0);
        assert!((f64::from(checked) - exact(0.0)).abs() < small[0] * small[1], "{}: {checked}", shape.op);
        assert_eq!(one_large_and_many_small(shape, Mode::Pessimistic, small, 0.0), 1.0, "{}", shape.op);
        // The largest may be c, whose last place is then coarser by 2, and c may be among the lost.
        assert_eq!(one_large_and_many_small(shape, Mode::Pessimistic, small, -2.0), -1.0, "{}", shape.op);
        let least = (small[0] * small[1]) as f32;
        assert_eq!(one_large_and_many_small(shape, Mode::Pessimistic, small, least), 1.0, "{}", shape.op);
        // At the last place itself nothing is lost.
        let place = [2.0_f64.powi(low + 1), 2.0_f64.powi(high)];
        let want = 1.0 + (shape.depth - 1) as f64 * place[0] * place[1];
        let got = one_large_and_many_small(shape, Mode::Pessimistic, place, 0.0);
        assert_eq!(f64::from(got), want, "{}", shape.op);
    }
}
