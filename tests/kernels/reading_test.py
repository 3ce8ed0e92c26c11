#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What scripts/check-kernels reads from listings, and its issue model, on listings written by hand: no tool is needed.

usage: reading_test.py
"""
import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import issue_model  # noqa: E402
import machine_code  # noqa: E402

GATE = pathlib.Path(__file__).resolve().parents[2] / "scripts/check-kernels"


def listing(*lines, name="kernel"):
    """What nvdisasm -c would print; lines that begin with a point are labels."""
    text, address = [f".text.{name}:"], 0
    for line in lines:
        if line.startswith("."):
            text.append(f"{line}:")
        else:
            text.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return "\n".join(text)


def read(*lines):
    return machine_code.read_listing(listing(*lines))["kernel"]


LOGITS = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"  # R24 ... R87
OUTPUT = "HGMMA.64x64x16.F32.BF16 R88, R4, gdesc[UR12].tnspB, R88, gsb0"  # R88 ... R119, left R4 ... R7


def wait(left):
    return f"WARPGROUP.DEPBAR.LE gsb0, {left:#x}"


class Loops(unittest.TestCase):
    def test_pass_without_mask_is_chosen(self):
        kernel = read("S2R R0, SR_TID.X",
                      ".L_x_0", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", "@!P0 BRA `(.L_x_0)",
                      ".L_x_1", LOGITS, wait(0), "@P1 BRA `(.L_x_2)",
                      "ISETP.GE.AND P2, PT, R3, R4, PT", "FSEL R24, R24, -INF , P2", "MUFU.EX2 R24, R24",
                      "BRA `(.L_x_3)",
                      ".L_x_2", "MUFU.EX2 R24, R24",
                      ".L_x_3", "@P3 BRA `(.L_x_1)", "EXIT ")
        self.assertEqual([i.name for i in machine_code.wgmma_loop(kernel)],
                         ["HGMMA", "WARPGROUP", "BRA", "MUFU", "BRA"])

    def test_longest_pass_has_what_is_seldom_done(self):
        kernel = read(".L_x_1", LOGITS, wait(0), OUTPUT, "@P1 BRA `(.L_x_2)", "FMUL R88, R88, R3",
                      ".L_x_2", "MUFU.EX2 R24, R24", wait(0), "@P3 BRA `(.L_x_1)", "EXIT ")
        self.assertEqual(machine_code.touched_products(machine_code.wgmma_loop(kernel)), [])
        longest = machine_code.wgmma_loop(kernel, longest=True)
        self.assertIn("FMUL", [i.name for i in longest])
        self.assertRegex(machine_code.touched_products(longest)[0], "FMUL at .* R88, sums of the HGMMA")

    def test_way_around_the_softmax_is_not_the_pass(self):
        kernel = read(".L_x_1", LOGITS, wait(0), "@P1 BRA `(.L_x_3)", "MUFU.EX2 R24, R24",
                      ".L_x_3", "@P3 BRA `(.L_x_1)", "EXIT ")
        self.assertEqual(machine_code.count_exponentials(machine_code.wgmma_loop(kernel)), (0, 1))

    def test_loop_over_the_head_dim_is_laid_out(self):
        kernel = read(".L_x_1", "MOV R0, RZ", ".L_x_2", "LDSM.16.M88.4 R4, [R1]", "HMMA.16816.F32 R8, R4, R6, R8",
                      "@P0 BRA `(.L_x_2)", *["HMMA.16816.F32 R12, R8, R10, R12"] * 4, "@P1 BRA `(.L_x_1)", "EXIT ")
        path = machine_code.mma_loop(kernel, 1 / 2)
        self.assertEqual(machine_code.count_products(path), {"m16n8k16": 8})
        self.assertEqual(sum(i.name == "LDSM" for i in path), 4)
        with self.assertRaisesRegex(machine_code.Unreadable, "4 products outside"):
            machine_code.mma_loop(read(".L_x_1", "MOV R0, RZ", ".L_x_2", *["HMMA.16816.F32 R8, R4, R6, R8"] * 3, "@P0 BRA `(.L_x_2)",
                                       *["HMMA.16816.F32 R12, R8, R10, R12"] * 4, "@P1 BRA `(.L_x_1)", "EXIT "), 1 / 2)

    def test_kernel_without_products_is_refused(self):
        with self.assertRaisesRegex(machine_code.Unreadable, "kernel has no loop with products"):
            machine_code.wgmma_loop(read(".L_x_1", "@P0 BRA `(.L_x_1)", "EXIT "))


class Passes(unittest.TestCase):
    def path(self, *lines):
        return read(".L_x_1", *lines, "@P0 BRA `(.L_x_1)", "EXIT ").code[:-1]

    def test_products_flops_and_bytes(self):
        path = self.path(LOGITS, OUTPUT, "LDS.64 R0, [R1]", "LDSM.16.MT88.4 R4, [R1]", "STS [R1], R4")
        self.assertEqual(machine_code.count_products(path), {"m64n128k16": 1, "m64n64k16 from registers": 1})
        self.assertEqual(machine_code.flops(path), 2 * 64 * (128 + 64) * 16 / 4)
        self.assertEqual(machine_code.shared_bytes(path), ((64 + 128) * 32 + 64 * 32) / 4 + 128 * (2 + 4 + 1))

    def test_exponentials_under_products(self):
        power = "MUFU.EX2 R0, R1"
        for lines, expected in (((LOGITS, power, wait(0), power), (1, 2)),
                                ((LOGITS, OUTPUT, wait(1), power, wait(0), power), (1, 2)),
                                ((power, wait(0), LOGITS), (1, 1)),  # of the pass before
                                ((LOGITS, OUTPUT, wait(0), power), (0, 1))):
            self.assertEqual(machine_code.count_exponentials(self.path(*lines)), expected, lines)

    def test_registers_of_an_open_product_are_found(self):
        for line, verb in (("FMUL R87, R0, R1", "writes R87"), ("FADD R0, R24, R1", "reads R24"),
                           ("F2FP.BF16.F32.PACK_AB R4, R0, R1", "writes R4"), ("STG.E.64 [R2.64], R86", "reads R86"),
                           ("LDS.128 R20, [R1]", ""), ("LDS.128 R24, [R1]", "writes R24"),
                           ("IMAD.WIDE R22, R0, R1, R2", ""), ("IMAD.WIDE R23, R0, R1, R2", "writes R24"),
                           ("SHFL.BFLY PT, R30, R0, 0x1, 0x1f", "writes R30"), ("FSETP.GT.AND P0, PT, R40, R1, PT", "reads R40"),
                           ("MOV R0, R4", ""), ("FMUL R120, R2, R3", "")):
            said = machine_code.touched_products(self.path(LOGITS, OUTPUT, line, wait(0)))
            self.assertEqual(len(said), bool(verb), f"{line}: {said}")
            self.assertIn(verb, "".join(said))
        self.assertEqual(machine_code.touched_products(self.path(LOGITS, OUTPUT, wait(1), "FADD R0, R24, R1", wait(0),
                                                                 "FMUL R88, R88, R0")), [])
        # What the end of a pass leaves open is open at the start of the next.
        self.assertEqual(len(machine_code.touched_products(self.path("FADD R0, R24, R1", wait(0), LOGITS))), 1)


class Model(unittest.TestCase):
    """Loops that one thing limits take what it takes. Each warp is late by 60 cycles or so in the mean; others hide that."""

    def cycles(self, path, warps, meeting=None, stall=1):
        for i in path:
            i.stall = stall
        return issue_model.Model(path, warps, 2, True, 0, meeting, 1).cycles()

    def test_one_pipe_limits(self):
        for line, each in (("MUFU.EX2 R0, R1", 8), ("FADD R0, R1, R2", 1), ("FMNMX R0, R1, R2, PT", 2),
                           ("LDS.128 R0, [R4]", 16), ("HMMA.16816.F32 R8, R4, R6, R8", issue_model.CYCLES_OF_MMA)):
            path = read(*[line] * 100).code
            self.assertAlmostEqual(self.cycles(path, 4) / (4 * 100 * each), 1, delta=0.05, msg=line)

    def test_tensor_unit_limits(self):
        path = read(*["HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0"] * 16, wait(0)).code
        self.assertAlmostEqual(self.cycles(path, 2) / (2 * 16 * 64), 1, delta=0.02)
        # Both operands from shared memory: 32 columns need 16 cycles of products, but 3072 bytes are moved at 128 a cycle.
        path = read(*["HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"] * 32, wait(0)).code
        self.assertAlmostEqual(self.cycles(path, 2) / (2 * 32 * 24), 1, delta=0.02)

    def test_a_stall_is_kept(self):
        path = read(*["FADD R0, R1, R2"] * 200).code
        self.assertAlmostEqual(self.cycles(path, 1, stall=5), 200 * 5 + 60, delta=30)

    def test_copies_slow_shared_memory(self):
        path = read(*["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"] * 32, wait(0)).code
        half = issue_model.Model(path, 2, 2, True, 0.5, None, 1).cycles()
        self.assertAlmostEqual(half / (2 * 32 * 64), 1, delta=0.02)

    def test_turns_are_handed_on(self):
        path = read("BAR.SYNC.DEFER_BLOCKING 0x3, 0x100", *["FADD R0, R1, R2"] * 300, "BAR.ARV 0x4, 0x100").code
        self.assertGreater(self.cycles(path, 2, "pairs"), 2 * 300)
        self.assertLess(self.cycles(path[1:-1], 2), 2 * 300 + 60)


class Door(unittest.TestCase):
    def test_missing_tools_skip_with_a_word(self):
        for option, word in (("--nvcc", "nvcc is not on the PATH"), ("--nvdisasm", "nvdisasm")):
            done = subprocess.run([sys.executable, GATE, option, "/nowhere/tool"], capture_output=True, text=True, check=False,
                                  env={"PATH": ""})
            self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
            self.assertRegex(done.stdout, "^check-kernels: skipped, ")
            if not pathlib.Path("/usr/local/cuda/bin/nvcc").exists():
                self.assertIn("nvcc is not", done.stdout)


if __name__ == "__main__":
    unittest.main()
