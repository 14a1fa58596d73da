//! 10 "Special Registers": places and extents of threads and blocks, the lane, and masks by lane.

use crate::harness::Body;

#[test]
fn places_and_extents() {
    let names = ["tid", "ntid", "ctaid", "nctaid"];
    let mut text = String::from(
        "\tmov.u32 %r40, %tid.x;\n\tmov.u32 %r41, %tid.y;\n\tmov.u32 %r42, %tid.z;\n\tmov.u32 %r43, %ctaid.x;\n\tmov.u32 %r44, %ctaid.y;\n\
         \tmov.u32 %r45, %ctaid.z;\n\tmad.lo.s32 %r50, %r42, 3, %r41;\n\tmad.lo.s32 %r50, %r50, 5, %r40;\n\
         \tmad.lo.s32 %r51, %r45, 2, %r44;\n\tmad.lo.s32 %r51, %r51, 3, %r43;\n\tmad.lo.s32 %r52, %r51, 30, %r50;\n\
         \tld.param.u64 %q1, [kernel_out];\n\tmul.wide.u32 %q2, %r52, 48;\n\tadd.s64 %q3, %q1, %q2;\n",
    );
    for (i, name) in names.iter().enumerate() {
        for (j, axis) in ["x", "y", "z"].iter().enumerate() {
            text += &format!("\tmov.u32 %r60, %{name}.{axis};\n\tst.global.u32 [%q3+{}], %r60;\n", 4 * (3 * i + j));
        }
    }
    Body::new(&text, &[0], 12).shape([3, 2, 2], [5, 3, 2]).expect(|index| {
        let (block, thread) = (index as u32 / 30, index as u32 % 30);
        vec![thread % 5, thread / 5 % 3, thread / 15, 5, 3, 2, block % 3, block / 3 % 2, block / 6, 3, 2, 2]
    });
}

#[test]
fn lanes_are_counted_along_x_first() {
    let text = "\tmov.u32 %r40, %tid.x;\n\tmov.u32 %r41, %tid.y;\n\tmad.lo.s32 %r50, %r41, 6, %r40;\n\tld.param.u64 %q1, [kernel_out];\n\
                \tmul.wide.u32 %q2, %r50, 4;\n\tadd.s64 %q3, %q1, %q2;\n\tmov.u32 %r60, %laneid;\n\tst.global.u32 [%q3], %r60;\n";
    let body = Body::new(text, &[0], 1).shape([1; 3], [6, 8, 1]);
    if body.known("%laneid") {
        body.expect(|thread| vec![thread as u32 % 32]);
    }
}

#[test]
fn masks_by_lane() {
    for (name, want) in [
        ("%lanemask_eq", (|lane| 1 << lane) as fn(u32) -> u32),
        ("%lanemask_lt", |lane| (1 << lane) - 1),
        ("%lanemask_le", |lane| u32::MAX >> (31 - lane)),
        ("%lanemask_gt", |lane| !(u32::MAX >> (31 - lane))),
        ("%lanemask_ge", |lane| u32::MAX << lane),
    ] {
        let text = format!("\tmov.u32 %r10, {name};\n\tst.global.u32 [%out], %r10;\n");
        let body = Body::new(&text, &[0], 1);
        if body.known(name) {
            body.expect(|lane| vec![want(lane as u32)]);
        }
    }
}

#[test]
fn special_registers_as_operands_of_mov_alone_and_with_b32() {
    let text = "\tmov.b32 %r10, %tid.x;\n\tmov.u32 %r11, %ntid.x;\n\tcvt.u64.u32 %q1, %r10;\n\tst.global.u64 [%out], %q1;\n\tst.global.u32 [%out+8], %r11;\n";
    Body::new(text, &[0], 4).threads(64).expect(|thread| vec![thread as u32, 0, 64, 0xcdcd_cdcd]);
}
